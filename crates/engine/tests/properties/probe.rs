//! Probes: a probe reads the hidden states of every thought and answer token, gives a trajectory
//! the same score in every batch, and changes no trajectory. Likewise for checked steps.

use aggregate::{Rule, signals};
use latent_tts_engine::{Engine, Lens, Output, Request, SamplingParams, Trajectory};
use model::testkit::CheckpointFamily;
use model::{Probe, ProbeConfig, ProbeKind, StateCounts};

use crate::common::*;
use crate::scheduler::replies;

fn probe_for(engine: &Engine, kind: ProbeKind) -> Probe {
    let reasoner = engine.reasoner();
    let config = reasoner.decoder.config();
    let family = reasoner.method.family.name();
    let probe = ProbeConfig { inner: 64, ..ProbeConfig::new(kind, config.width, family) };
    Probe::initial(reasoner.decoder.device(), probe, 5).unwrap()
}

fn requests(engine: &Engine) -> Vec<Request> {
    let params =
        SamplingParams { greedy: true, ..short_params(engine.reasoner(), 4, thought_dropout(0.3)) };
    questions().iter().map(|question| question.request(params)).collect()
}

fn run(engine: &Engine, requests: &[Request]) -> Vec<Output> {
    requests.iter().map(|request| engine.solve(request).unwrap()).collect()
}

/// The trajectories without the results of a probe.
fn plain(replies: &[Output]) -> Vec<Trajectory> {
    let all = replies.iter().flat_map(|reply| reply.trajectories.iter().chain(&reply.greedy));
    let plain = |trajectory: &Trajectory| Trajectory {
        signals: Default::default(),
        states: Default::default(),
        ..trajectory.clone()
    };
    all.map(plain).collect()
}

#[test]
fn a_probe_reads_every_state_and_changes_nothing() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let without = pair.engine();
        for kind in [ProbeKind::Linear, ProbeKind::Encoder] {
            let probe = probe_for(&without, kind);
            let again = probe_for(&without, kind);
            let engine = without.clone().with_probe(probe).with_states();
            let requests = requests(&engine);
            let expected = run(&without, &requests);
            let found = run(&engine, &requests);
            assert_eq!(plain(&found), plain(&expected), "{family:?}");
            for trajectory in found.iter().flat_map(|reply| &reply.trajectories) {
                let positions = trajectory.thoughts + trajectory.tokens.len();
                assert_eq!(trajectory.states.rows(), positions, "{family:?}");
                let counts =
                    StateCounts { thoughts: trajectory.thoughts, answer: trajectory.tokens.len() };
                let score = again.scores(&trajectory.states, &[counts]).unwrap()[0];
                assert_eq!(trajectory.signals[signals::PROBE], score, "{family:?} {kind:?}");
            }
        }
    }
}

/// COCONUT's thoughts are its hidden states.
#[test]
fn states_of_thoughts_are_what_thoughts_are_made_of() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let engine = pair.engine().with_states();
    for reply in run(&engine, &requests(&engine)) {
        for trajectory in reply.trajectories {
            assert!(trajectory.thoughts > 0);
            for t in 0..trajectory.thoughts {
                assert_eq!(trajectory.states.row(t), trajectory.latents.row(t));
            }
        }
    }
}

#[test]
fn scores_do_not_depend_on_the_batch() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let engine = pair.engine();
    let probe = probe_for(&engine, ProbeKind::Encoder);
    let engine = engine.with_probe(probe);
    let requests = requests(&engine);
    let alone = run(&engine, &requests);
    let mut together = Vec::new();
    engine
        .run(&requests, |_, reply| -> Result<(), latent_tts_engine::EngineError> {
            together.push(reply?);
            Ok(())
        })
        .unwrap();
    let signals = |replies: &[Output]| -> Vec<_> {
        let all = replies.iter().flat_map(|reply| &reply.trajectories);
        all.map(|trajectory| trajectory.signals.clone()).collect()
    };
    assert_eq!(signals(&together), signals(&alone));
    let small = run(&engine.clone().with_memory(1 << 20), &requests);
    assert_eq!(signals(&small), signals(&alone));
    assert_eq!(signals(&replies(&engine, &requests, 2)), signals(&alone));
    let more = SamplingParams { samples: nonzero(7), ..requests[0].params };
    let more = engine.solve(&Request { params: more, ..requests[0].clone() }).unwrap();
    let first = &more.trajectories[..alone[0].trajectories.len()];
    let first: Vec<_> = first.iter().map(|trajectory| trajectory.signals.clone()).collect();
    assert_eq!(first, signals(&alone[..1]));
}

#[test]
fn a_probe_without_rewards_weighs_the_vote() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let engine = pair.engine().without_reward_model();
    assert_eq!(engine.default_rule(), Rule::MAJORITY);
    let probe = probe_for(&engine, ProbeKind::Linear);
    assert_eq!(engine.with_probe(probe).default_rule(), Rule::PROBE);
}

#[test]
fn checked_steps_change_no_trajectory_and_keep_no_lens() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let engine = pair.engine();
        let requests = requests(&engine);
        let checked: Vec<Request> = requests
            .iter()
            .map(|request| {
                let params = SamplingParams { check_steps: true, ..request.params };
                Request { params, ..request.clone() }
            })
            .collect();
        assert_eq!(plain(&run(&engine, &checked)), plain(&run(&engine, &requests)), "{family:?}");
        let lens = Some(Lens { tokens: nonzero(2), sampled: true });
        let both = Request { lens, ..checked[0].clone() };
        let reply = engine.solve(&both).unwrap();
        for trajectory in &reply.trajectories {
            assert_eq!(trajectory.lens.len(), trajectory.thoughts, "{family:?}");
        }
    }
}
