#![no_main]

use latent_tts_fuzz::FuzzTarget;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| FuzzTarget::find("pickle").expect("a target").run(input));
