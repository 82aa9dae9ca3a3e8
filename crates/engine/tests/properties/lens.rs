//! The logit lens: the tokens that the LM head predicts where a thought is computed.

use latent_tts_engine::{Lens, Perturbation, Request, SamplingParams};
use model::head;
use model::testkit::CheckpointFamily;
use tensor::Tensor;

use crate::common::*;

fn lens(tokens: usize, sampled: bool) -> Option<Lens> {
    Some(Lens { tokens: nonzero(tokens), sampled })
}

/// COCONUT's thoughts are its hidden states, so logits can be computed from a trajectory's latents.
#[test]
fn a_lens_is_the_head_on_the_hidden_state() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 3, thought_dropout(0.3));
    let params = SamplingParams { greedy: true, ..params };
    for question in questions() {
        let request = Request { lens: lens(4, true), ..question.request(params) };
        let reply = pair.engine().solve(&request).unwrap();
        for trajectory in reply.trajectories.iter().chain(&reply.greedy) {
            assert_eq!(trajectory.lens.len(), trajectory.thoughts);
            let decoder = &pair.reasoner.decoder;
            let logits = head::logits(decoder, &trajectory.latents).unwrap();
            for (t, tokens) in trajectory.lens.iter().enumerate() {
                let row: Vec<f64> = logits.row(t).iter().copied().map(f64::from).collect();
                let mut order: Vec<usize> = (0..row.len()).collect();
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
                let found: Vec<usize> = tokens.iter().map(|token| token.token as usize).collect();
                assert_eq!(found, order[..4], "thought {t}");
                let total: f64 = row.iter().map(|x| (x - row[order[0]]).exp()).sum();
                for token in tokens {
                    let x = row[token.token as usize] - row[order[0]];
                    let error = f64::from(token.probability) - x.exp() / total;
                    assert!(error.abs() < 1e-6, "thought {t}: off by {error:e}");
                    let text = pair.reasoner.tokenizer.decode(&[token.token]).unwrap();
                    assert_eq!(token.text, text);
                }
            }
        }
    }
}

/// For every family: the lens reads the input of the latent head, not its output.
#[test]
fn a_lens_reads_what_the_latent_head_reads() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let params = short_params(&pair.reasoner, 1, Perturbation::None);
        let question = &questions()[1];
        let request = Request { lens: lens(1, true), ..question.request(params) };
        let reply = pair.engine().solve(&request).unwrap();
        let [trajectory] = &reply.trajectories[..] else { panic!("one trajectory") };
        assert_eq!(trajectory.lens.len(), trajectory.thoughts, "{family:?}");
        let Some(first) = trajectory.lens.first() else { continue };
        let tokens = &prompt_of(&pair.reasoner, question).tokens;
        let hidden = latent_tts_engine::reference::prompt_hidden(&pair.reasoner, tokens).unwrap();
        let last = hidden.select([hidden.rows() - 1].into_iter());
        let argmax = |hidden: &Tensor| {
            tensor::ops::argmax(device(), hidden, pair.reasoner.decoder.lm_head()).unwrap()
        };
        assert_eq!(vec![first[0].token], argmax(&last), "{family:?}");
    }
}

#[test]
fn a_lens_changes_nothing_else_and_covers_what_it_is_asked_for() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let params = short_params(&pair.reasoner, 2, Perturbation::Gaussian { std: 0.2 });
        let params = SamplingParams { greedy: true, ..params };
        let requests: Vec<Request> = questions().iter().map(|q| q.request(params)).collect();
        let lenses = [None, lens(1, false), lens(3, true), lens(2, false), lens(5, true)];
        let seen: Vec<Request> = requests
            .iter()
            .zip(lenses)
            .map(|(request, lens)| Request { lens, ..request.clone() })
            .collect();
        let plain = solve_all(&pair.engine(), &requests);
        let read = solve_all(&pair.engine(), &seen);
        assert_all_same(&plain, &read, &format!("{family:?}"));
        for (reply, lens) in read.iter().zip(lenses) {
            let has = |trajectory: &latent_tts_engine::Trajectory, asked: bool| {
                let count = lens.filter(|_| asked).map_or(0, |lens| lens.tokens.get());
                let expected = if count > 0 { trajectory.thoughts } else { 0 };
                assert_eq!(trajectory.lens.len(), expected);
                assert!(trajectory.lens.iter().all(|tokens| tokens.len() == count));
            };
            has(reply.greedy.as_ref().unwrap(), true);
            let sampled = lens.is_some_and(|lens| lens.sampled);
            reply.trajectories.iter().for_each(|trajectory| has(trajectory, sampled));
        }
        for (request, together) in seen.iter().zip(&read) {
            let alone = pair.engine().solve(request).unwrap();
            assert_eq!(alone.greedy.unwrap().lens, together.greedy.as_ref().unwrap().lens);
        }
    }
}
