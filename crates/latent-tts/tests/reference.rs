//! Every family against transformers on a tiny checkpoint in its published layout.
//!
//! tests/reference/reference.py wrote the directories. Larger dumps, with trainings, are compared
//! if they exist beside the checkout.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use std::path::{Path, PathBuf};

use latent_tts::verify::{CheckOutcome, verify};
use latent_tts::{Device, Family};

fn dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn assert_verified(name: &str, family: Family) {
    let verification = verify(&dir(name), None, &Device::cpu(None).unwrap()).unwrap();
    let failed: Vec<_> =
        verification.checks.iter().filter(|check| check.outcome == CheckOutcome::Failed).collect();
    assert!(failed.is_empty(), "{name}: {failed:#?}");
    assert_eq!(verification.family, family, "{name}");
    // Prompts, hidden states, and four runs with four checks each.
    assert!(verification.count(CheckOutcome::Passed) >= 19, "{name}");
}

#[test]
fn coconut() {
    assert_verified("coconut-gpt2", Family::COCONUT);
}

#[test]
fn codi() {
    assert_verified("codi-gpt2", Family::CODI);
}

#[test]
fn colar() {
    assert_verified("colar-llama", Family::COLAR);
}

#[test]
fn latent_sft() {
    assert_verified("latent-sft-llama", Family::LATENT_SFT);
}

#[test]
fn render_of_thought() {
    assert_verified("rot-qwen3vl", Family::ROT);
}

#[test]
fn slpo() {
    assert_verified("slpo-gpt2", Family::COCONUT);
}

#[test]
fn adaptive_latent_reasoning() {
    assert_verified("adaptive-llama", Family::ADAPTIVE);
}

#[test]
fn soft_thinking() {
    assert_verified("soft-thinking-llama", Family::SOFT_THINKING);
}

#[test]
fn lotus() {
    assert_verified("lotus-gpt2", Family::LOTUS);
    assert_verified("lotus-llama", Family::LOTUS);
}
