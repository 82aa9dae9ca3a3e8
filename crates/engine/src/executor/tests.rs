//! Tests, on a CPU, of steps that are launched before the tokens of the last one are read.

use model::Cache;

use super::{AnswerTokens, Executor, Lookahead, SequenceSpec};
use crate::batch::BatchItem;
use crate::engine::Engine;
use crate::engine::tests::{MODELS, all_params, count, engine, set_eos};
use crate::prompt::Prompt;
use crate::request::CancelToken;
use crate::sampler::{Sampler, SequenceId};
use crate::sampling_params::SamplingParams;

const SEQUENCES: u32 = 40;

fn answers(
    engine: &Engine,
    params: &SamplingParams,
    lookahead: Lookahead,
) -> Vec<(AnswerTokens, f32)> {
    let model = &engine.reasoner().model;
    let cancel = CancelToken::default();
    let prompt = Prompt::new(engine.reasoner(), 3, "A hen lays 12 eggs; what do 3 lay?").unwrap();
    let items = [BatchItem::new(&prompt, params, &cancel)];
    let id = |trajectory| SequenceId { question: 3, trajectory };
    let specs: Vec<SequenceSpec> =
        (0..SEQUENCES).map(|k| SequenceSpec { item: 0, id: id(k), perturbed: true }).collect();
    let device = model.decoder.device();
    let config = model.decoder.config();
    let mut cache = Cache::new(device, config, 1 << 14).unwrap();
    let mut executor = Executor::aligned(model, &specs);
    executor.lookahead = lookahead;
    device.run(|| executor.run(&mut cache, Sampler::new(&items))).unwrap();
    executor.sequences.into_iter().map(|sequence| (sequence.tokens, sequence.logprob)).collect()
}

/// Both if few sequences end with the tokens that a step feeds, and if enough do that it is
/// aborted.
#[test]
fn answers_are_the_same_one_step_ahead() {
    for (model, rewards) in MODELS {
        let mut engine = engine(model, rewards);
        for params in all_params(&engine, 2, 14) {
            let params = SamplingParams { samples: count(SEQUENCES as usize), ..params };
            set_eos(&mut engine, Vec::new());
            let endless = answers(&engine, &params, Lookahead::WhileComputed);
            // Some of the generated tokens become end-of-answer tokens.
            for position in [0, 3, 9] {
                let eos = endless.iter().step_by(4).map(|(tokens, _)| tokens[position]).collect();
                set_eos(&mut engine, eos);
                let expected = answers(&engine, &params, Lookahead::WhileComputed);
                assert!(expected.iter().any(|(tokens, _)| tokens.len() < 14), "{params:?}");
                let ahead = answers(&engine, &params, Lookahead::Always);
                assert_eq!(ahead, expected, "{model:?}, {params:?}, {position}");
            }
        }
    }
}
