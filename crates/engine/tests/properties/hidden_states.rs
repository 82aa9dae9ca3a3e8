//! Hidden states along a given trajectory are those that generation computes.

use latent_tts_engine::reference::prompt_hidden;
use latent_tts_engine::{EngineError, GivenTrajectory, Perturbation, Prompt};
use tensor::Tensor;

use crate::common::*;

#[test]
fn the_logits_of_a_greedy_trajectory_predict_its_tokens() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let reasoner = &pair.reasoner;
        let params = short_params(reasoner, 1, Perturbation::None);
        let last = reasoner.decoder.config().layers;
        for question in questions() {
            let request = question.request(params);
            let reply = pair.engine().solve(&request).unwrap();
            let of = &reply.trajectories[0];
            let given = GivenTrajectory {
                question: request.question.clone(),
                thoughts: of.latents.clone(),
                answer: of.tokens.to_vec(),
            };
            let layers: Vec<usize> = (0..=last).collect();
            let states = reasoner.hidden_states(&given, &layers, true).unwrap();
            assert_eq!(states.layers.len(), last + 1);
            assert_eq!(states.thoughts.len(), of.thoughts);
            let logits = states.logits.unwrap();
            // The position before each token predicts it.
            for (position, &token) in states.answer.clone().zip(&of.tokens) {
                let row = logits.row(position - 1);
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(row[token as usize], largest, "{family:?}, position {position}");
            }
            // Without thoughts and tokens it is the prompt, to the bit.
            let prompt = GivenTrajectory { question: request.question, ..Default::default() };
            let alone = reasoner.hidden_states(&prompt, &[last, 0], false).unwrap();
            let tokens = Prompt::new(reasoner, 0, &prompt.question).unwrap().tokens;
            let expected = prompt_hidden(&reasoner.model, &tokens).unwrap();
            assert_same_bits(&alone.layers[0], &expected, "the last layer");
            assert_same_bits(
                &states.layers[0].select(states.prompt.clone()),
                &alone.layers[1],
                "inputs",
            );
            assert!(alone.logits.is_none() && alone.answer.is_empty());
        }
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    let pair = RewardedReasoner::of(FAMILIES[0]);
    let question = questions()[0].request(pair.engine().default_params()).question;
    let given = GivenTrajectory { question, ..Default::default() };
    let layers = pair.reasoner.decoder.config().layers;
    let refused = |given: &GivenTrajectory, layer| {
        pair.reasoner.hidden_states(given, &[layer], false).unwrap_err()
    };
    assert!(matches!(refused(&given, layers + 1), EngineError::UnknownLayer { .. }));
    let narrow = GivenTrajectory { thoughts: Tensor::zeros(1, 1), ..given.clone() };
    assert!(matches!(refused(&narrow, 0), EngineError::ForcedShape { .. }));
    let unknown = GivenTrajectory { answer: vec![u32::MAX], ..given.clone() };
    assert!(matches!(refused(&unknown, 0), EngineError::UnknownToken { .. }));
    let context = pair.reasoner.decoder.config().context;
    let long = GivenTrajectory { answer: vec![1; context], ..given };
    assert!(matches!(refused(&long, 0), EngineError::TooLong { .. }));
}
