//! Looped latent positions: they equal whole sequences computed from scratch, in every batch.

use std::sync::Arc;

use latent_tts_engine::{
    EngineError, Family, LatentLoop, Lens, Perturbation, Reasoner, Request, SamplingParams,
};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use model::{Cache, Pass, Sequence, head};
use tensor::{Tensor, ops};

use crate::common::*;
use crate::scheduler;

const LOOPS: usize = 3;

/// A tiny COCONUT, which has the markers, as a LOTUS.
fn lotus() -> RewardedReasoner {
    let mut pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let spec = CheckpointSpec { family: CheckpointFamily::Coconut, ..CheckpointSpec::default() };
    let load = |dir: &std::path::Path| Reasoner::load(device(), dir, Some(Family::LOTUS)).unwrap();
    let mut reasoner = with_checkpoint(&spec, load);
    let published = reasoner.model.method.looped.unwrap();
    assert_eq!((published.block_width, published.loops), (13, 6));
    reasoner.model.method.looped = Some(LatentLoop { loops: LOOPS, ..published });
    pair.reasoner = Arc::new(reasoner);
    pair
}

#[test]
fn a_looped_question_of_a_batch_gets_the_reply_that_it_gets_alone() {
    let pair = lotus();
    for perturbation in perturbations() {
        let params = short_params(&pair.reasoner, 3, perturbation);
        let params = SamplingParams { greedy: true, ..params };
        let questions = questions();
        let what = format!("{perturbation:?}");
        crate::batching::assert_same_alone(&pair, params, &questions, &what);
        let requests: Vec<Request> = questions.iter().map(|q| q.request(params)).collect();
        let expected = pair.run(params, &questions);
        let memory = smallest_memory(&pair.engine(), &requests);
        let in_little = pair.run_in_memory(memory, params, &questions);
        assert_all_same(&in_little, &expected, &format!("{what}, in little memory"));
        let open = scheduler::replies(&pair.engine(), &requests, 2);
        assert_all_same(&open, &expected, &format!("{what}, in an open batch"));
    }
}

/// The hidden states of a sequence of input vectors, computed from scratch.
fn hidden_of(reasoner: &Reasoner, x: Tensor) -> Tensor {
    let decoder = &reasoner.decoder;
    let mut cache = Cache::new(device(), decoder.config(), Cache::slots_for(x.rows())).unwrap();
    let mut pass = Pass::default();
    let mut sequence = Sequence::default();
    (0..x.rows()).for_each(|_| pass.push(&mut cache, &mut sequence, true));
    device().run(|| decoder.forward(&mut cache, &pass, x, None)).unwrap()
}

#[test]
fn loops_equal_whole_sequences_computed_from_scratch() {
    let pair = lotus();
    let reasoner = &pair.reasoner;
    let params = short_params(reasoner, 1, Perturbation::None);
    let count = params.length.limit();
    let token = reasoner.method.looped.unwrap().token;
    for question in questions() {
        let lens = Some(Lens { tokens: nonzero(1), sampled: true });
        let request = Request { lens, ..question.request(params) };
        let reply = pair.unrewarded_engine().solve(&request).unwrap();
        let trajectory = &reply.trajectories[0];
        let prompt = reasoner.embed(&prompt_of(reasoner, &question).tokens).unwrap();
        let embedding = reasoner.embed(&vec![token; count]).unwrap();
        let latent = prompt.rows()..prompt.rows() + count;
        let mut thoughts = embedding.clone();
        for _ in 0..LOOPS {
            let whole = ops::concat(device(), &[&prompt, &thoughts]).unwrap();
            thoughts = hidden_of(reasoner, whole).select(latent.clone());
            ops::add(device(), &mut thoughts, &embedding).unwrap();
        }
        for (a, b) in trajectory.latents.data().iter().zip(thoughts.data()) {
            assert!((a - b).abs() < 1e-4, "question {}: {a} {b}", question.id);
        }
        // The token at a latent position is predicted one position earlier.
        let whole = ops::concat(device(), &[&prompt, &thoughts]).unwrap();
        let before = hidden_of(reasoner, whole).select(latent.start - 1..latent.end - 1);
        let logits = head::logits(&reasoner.decoder, &before).unwrap();
        let largest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        let read: Vec<usize> = (0..count).filter_map(|t| largest(logits.row(t))).collect();
        let found = trajectory.lens.iter().map(|tokens| tokens[0].token as usize);
        assert_eq!(found.collect::<Vec<_>>(), read, "question {}", question.id);
    }
}

/// Forced thoughts replace those of the last pass.
#[test]
fn the_thoughts_of_a_reply_give_its_answer_again() {
    let pair = lotus();
    for perturbation in [thought_dropout(0.3), Perturbation::Gaussian { std: 0.4 }] {
        let params = short_params(&pair.reasoner, 3, perturbation);
        for question in questions() {
            let reply = pair.engine().solve(&question.request(params)).unwrap();
            let forced_thoughts = Arc::from(latents(&reply));
            let request = Request { forced_thoughts, ..question.request(params) };
            let again = pair.engine().solve(&request).unwrap();
            let what = format!("{perturbation:?}, question {}", question.id);
            assert_same_trajectories(&again.trajectories, &reply.trajectories, &what);
        }
    }
}

#[test]
fn thoughts_that_are_computed_together_are_not_searched() {
    let pair = lotus();
    let params = short_params(&pair.reasoner, 4, thought_dropout(0.2));
    let search = latent_tts_engine::Search::for_samples(
        latent_tts_engine::SearchMethod::Beam,
        params.samples,
    );
    let request = questions()[0].request(SamplingParams { search: Some(search), ..params });
    let error = pair.engine().solve(&request).unwrap_err();
    assert!(matches!(error, EngineError::ParallelThoughts { .. }), "{error}");
}
