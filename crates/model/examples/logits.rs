//! Prints tokens and per-position outputs of a checkpoint for given texts as JSON, for
//! `runs/transformers_load.py`. The outputs are logits, or rewards for a reward model with a linear
//! head.
//!
//! `cargo run -p latent-tts-model --example logits -- DIR TEXT...`

use std::error::Error;
use std::path::PathBuf;

use latent_tts_model::{
    Cache, Checkpoint, Decoder, LmHead, Pass, RewardHead, RewardInputs, Sequence, Tokenizer, head,
};
use serde_json::{Value, json};
use tensor::{Device, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("usage: logits DIR TEXT...")?);
    let device = Device::cpu(None)?;
    let checkpoint = Checkpoint::open(&dir)?;
    let tokenizer = Tokenizer::read(&dir)?;
    let is_reward_model = RewardHead::detect(&checkpoint).is_some();
    let with = if is_reward_model { LmHead::Without } else { LmHead::With };
    let decoder = Decoder::load(&device, checkpoint.config(), &checkpoint, with)?;
    let reward_head = if is_reward_model {
        Some(RewardHead::load(&device, checkpoint.config(), &checkpoint)?)
    } else {
        None
    };
    let mut outputs_json = Vec::new();
    for text in args {
        let tokens = tokenizer.encode(&text)?;
        let hidden = hidden(&decoder, &tokens)?;
        let outputs = match &reward_head {
            Some(head) => rewards(head, &device, &hidden)?,
            None => rows(&head::logits(&decoder, &hidden)?.to_host()?),
        };
        outputs_json.push(json!({ "text": text, "tokens": tokens, "outputs": outputs }));
    }
    println!("{}", Value::Array(outputs_json));
    Ok(())
}

/// Hidden states of all tokens: (tokens, width).
fn hidden(decoder: &Decoder, tokens: &[u32]) -> Result<Tensor, Box<dyn Error>> {
    let mut cache = Cache::new(decoder.device(), decoder.config(), Cache::slots_for(tokens.len()))?;
    let mut pass = Pass::default();
    let mut sequence = Sequence::default();
    tokens.iter().for_each(|_| pass.push(&mut cache, &mut sequence, true));
    Ok(decoder.forward(&mut cache, &pass, decoder.embed(tokens)?, None)?)
}

/// One reward per token, as rows of one element.
fn rewards(
    head: &RewardHead,
    device: &Device,
    hidden: &Tensor,
) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    if !matches!(head, RewardHead::Linear { .. }) {
        return Err(
            "a comparison head needs thoughts; use a reward model with a linear head".into()
        );
    }
    let inputs = RewardInputs { before: hidden, at: hidden, thoughts: hidden };
    Ok(head.rewards(device, inputs)?.into_iter().map(|reward| vec![reward]).collect())
}

fn rows(tensor: &Tensor) -> Vec<Vec<f32>> {
    (0..tensor.rows()).map(|r| tensor.row(r).to_vec()).collect()
}
