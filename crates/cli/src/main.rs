//! `latent-tts`: the command line.
fn main() {}
