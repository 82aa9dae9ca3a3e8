//! The baseline that thinks in words, answers that are drawn, and what a checkpoint's config.json
//! says about its use.

use std::path::Path;

use engine::{
    DropoutScope, DropoutSites, EngineError, LatentLength, Outcome, Perturbation, Reasoner,
    SamplingParams,
};
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use serde_json::{Value, json};
use tensor::Device;

use crate::common::*;

/// A language model that thinks in words: the backbone of a family without what the family adds.
pub fn reasoner(device: &Device, spec: &CheckpointSpec) -> Reasoner {
    // Their backbones are plain; CODI on Llama is taken for the shape and without its projector.
    let family =
        if gpt2(spec.family) { CheckpointFamily::Coconut } else { CheckpointFamily::LatentSft };
    written(&CheckpointSpec { family, ..spec.clone() }, |dir| {
        Reasoner::load(device, dir, Some(engine::Family::Cot)).unwrap()
    })
}

/// All questions, without a judge.
pub fn run(reasoner: &Reasoner, settings: SamplingParams) -> Vec<Outcome> {
    ask(engine::Engine { reasoner, reward_model: None, params: settings }, &questions()).unwrap()
}

#[test]
fn words_have_no_thoughts_and_the_same_company_rules() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    assert_eq!((reasoner.method.length, reasoner.method.max_new_tokens), (LatentLength::None, 128));
    assert!(reasoner.method.end_latent.is_empty() && reasoner.method.begin_latent.is_empty());
    let many = SamplingParams { greedy: true, ..settings(&reasoner, 16, drawn(1.0, 0.95)) };
    let all = run(&reasoner, many);
    assert!(
        all.iter()
            .flat_map(|o| &o.sample.trajectories)
            .all(|t| t.thoughts == 0 && t.logprob.is_some_and(|p| p < 0.0))
    );
    assert!(
        all.iter()
            .all(|o| o.thoughts.iter().all(|t| t.rows() == 0) && o.sample.diversity.is_none())
    );
    let texts = |o: &Outcome| {
        o.sample
            .trajectories
            .iter()
            .map(|t| t.text.clone())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert!(all.iter().all(|o| texts(o).len() > 8), "drawn words differ");
    let few = run(&reasoner, SamplingParams { samples: count(4), ..many });
    // A budget that holds some rows of a question at a time.
    let split = run(&reasoner, SamplingParams { memory: 200 << 10, ..many });
    for ((all, few), split) in all.iter().zip(&few).zip(&split) {
        assert_eq!(all.sample.trajectories[..4], few.sample.trajectories[..]);
        assert_eq!(all.sample.greedy, few.sample.greedy);
        assert_same(all, split, "in parts");
        let question = questions().into_iter().find(|q| q.id == all.sample.id).unwrap();
        let alone = ask(
            engine::Engine { reasoner: &reasoner, reward_model: None, params: many },
            &[question],
        )
        .unwrap();
        assert_same(all, &alone[0], "alone");
    }
    let other = run(&reasoner, SamplingParams { seed: SEED + 1, ..many });
    assert!(all.iter().zip(&other).all(|(a, b)| a.sample.trajectories != b.sample.trajectories));
    assert!(all.iter().zip(&other).all(|(a, b)| a.sample.greedy == b.sample.greedy));
}

#[test]
fn the_narrowest_nucleus_and_the_coldest_temperature_say_the_likeliest() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let plain = pair.ask(settings(&pair.reasoner, 2, Perturbation::None), &questions());
        for perturbation in [drawn(1.0, 1e-6), drawn(1e-6, 1.0)] {
            for (plain, found) in
                plain.iter().zip(pair.ask(settings(&pair.reasoner, 2, perturbation), &questions()))
            {
                assert_eq!(
                    plain.sample.trajectories, found.sample.trajectories,
                    "{family:?}, {perturbation:?}"
                );
            }
        }
    }
}

/// Thoughts are nobody's choice where words are drawn: all rows think alike, and then say different
/// things.
#[test]
fn drawn_words_leave_thoughts_alone() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let plain = pair.ask(settings(&pair.reasoner, 1, Perturbation::None), &questions());
        for (plain, found) in
            plain.iter().zip(pair.ask(settings(&pair.reasoner, 8, drawn(1.5, 1.0)), &questions()))
        {
            found
                .thoughts
                .iter()
                .for_each(|t| assert_same_bits(t, &plain.thoughts[0], &format!("{family:?}")));
            let first = &found.sample.trajectories[0].text;
            assert!(found.sample.trajectories.iter().any(|t| t.text != *first), "{family:?}");
        }
    }
}

/// Every token is a step; the first is read off the prompt and the last is not fed.
#[test]
fn what_words_cost_is_counted() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    let settings = SamplingParams { greedy: true, ..settings(&reasoner, 3, drawn(1.0, 1.0)) };
    let outcomes = run(&reasoner, settings);
    for (outcome, question) in outcomes.iter().zip(questions()) {
        let prompt = prompted(&reasoner, &question);
        let mut lengths: Vec<usize> =
            replayed(&reasoner, &settings, &prompt).iter().map(|row| row.tokens.len()).collect();
        let plain =
            SamplingParams { perturbation: Perturbation::None, samples: count(1), ..settings };
        lengths.extend(replayed(&reasoner, &plain, &prompt).iter().map(|row| row.tokens.len()));
        assert_eq!(outcome.sample.steps, lengths.iter().sum::<usize>() as u64);
        let (decoder, context) = (&reasoner.decoder, prompt.tokens.len());
        let position =
            |i: usize| decoder.flops_per_position() + (i + 1) as f64 * decoder.flops_per_attended();
        let mut flops: f64 = (0..context).map(position).sum();
        for length in lengths {
            flops += (context..context + length - 1).map(position).sum::<f64>();
            flops += length as f64 * decoder.flops_per_logits();
        }
        assert!(
            (outcome.sample.flops - flops).abs() < 1e-9 * flops,
            "{} and {flops}",
            outcome.sample.flops
        );
    }
}

#[test]
fn what_has_no_meaning_without_thoughts_is_refused() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    let base = settings(&reasoner, 2, Perturbation::None);
    let result = |settings| {
        ask(
            engine::Engine { reasoner: &reasoner, reward_model: None, params: settings },
            &questions(),
        )
    };
    for perturbation in [thoughtful(0.2), Perturbation::Gaussian { std: 0.3 }] {
        let found = result(SamplingParams { perturbation, ..base });
        assert!(
            matches!(found, Err(EngineError::NothingToPerturb { .. })),
            "{perturbation:?}: {found:?}"
        );
    }
    let found = result(SamplingParams { length: at_most(4), ..base });
    assert!(matches!(found, Err(EngineError::EndlessThoughts { .. })), "{found:?}");
    for perturbation in [
        Perturbation::None,
        dropout(0.2, DropoutSites::BOTH, DropoutScope::All),
        dropout(0.2, DropoutSites::BOTH, DropoutScope::Prompt),
    ] {
        result(SamplingParams { perturbation, ..base }).unwrap();
    }
    assert_eq!(SamplingParams::defaults_for(&reasoner.method).perturbation, drawn(1.0, 1.0));
}

/// A checkpoint whose files were changed.
fn changed(spec: &CheckpointSpec, change: impl FnOnce(&Path)) -> Result<Reasoner, EngineError> {
    written(spec, |dir| {
        change(dir);
        Reasoner::load(device(), dir, None)
    })
}

fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(file, json.to_string()).unwrap();
}

fn saying(spec: &CheckpointSpec, said: Value) -> Result<Reasoner, EngineError> {
    changed(spec, |dir| edit(&dir.join("config.json"), |config| config["latent_tts"] = said))
}

#[test]
fn what_a_checkpoint_says_wins_over_its_family() {
    let said = json!({ "thoughts": 3, "max_new_tokens": 24, "p": 0.05, "sigma": 0.5 });
    let method = saying(&CheckpointSpec::default(), said).unwrap().model.method;
    assert_eq!(
        (method.family, method.length, method.max_new_tokens),
        (engine::Family::Coconut, exactly(3), 24)
    );
    assert_eq!((method.p, method.sigma), (0.05, 0.5));
    let words =
        saying(&CheckpointSpec::default(), json!({ "family": "cot" })).unwrap().model.method;
    assert_eq!(
        (words.family, words.length, words.max_new_tokens),
        (engine::Family::Cot, LatentLength::None, 128)
    );
    let open = saying(
        &CheckpointSpec { family: CheckpointFamily::Colar, ..CheckpointSpec::default() },
        json!({ "thoughts": 9 }),
    )
    .unwrap()
    .model
    .method;
    assert_eq!(open.length, at_most(9), "a family that ends its thoughts by itself still does");
    let mute = saying(&CheckpointSpec::default(), json!({ "thoughts": 0 })).unwrap().model.method;
    assert_eq!(mute.length, LatentLength::None);
    let error = saying(&CheckpointSpec::default(), json!({ "family": "words" })).err().unwrap();
    assert!(matches!(&error, EngineError::UnknownFamily { name, .. } if name == "words"));
    let message = error.to_string();
    for part in ["config.json", "latent_tts.family", "words", "coconut", "cot", "--method"] {
        assert!(message.contains(part), "no {part} in {message}");
    }
}

/// What is asked for wins over both.
#[test]
fn a_named_family_wins_over_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &CheckpointSpec::default()).unwrap();
    edit(&dir.path().join("config.json"), |config| {
        config["latent_tts"] = json!({ "family": "cot" })
    });
    assert_eq!(
        load(device(), dir.path(), CheckpointFamily::Coconut).method.family,
        engine::Family::Coconut
    );
}

/// Takes the markers out of a checkpoint's tokenizer and config; its vocabulary stays as large.
fn unmark(dir: &Path) {
    let plain =
        |token: &Value| token["content"].as_str().is_some_and(|text| text.contains("latent"));
    edit(&dir.join("tokenizer.json"), |json| {
        for token in
            json["added_tokens"].as_array_mut().unwrap().iter_mut().filter(|token| plain(token))
        {
            token["content"] =
                json!(token["content"].as_str().unwrap().replace("latent", "unused"));
        }
    });
    edit(&dir.join("tokenizer_config.json"), |json| {
        drop(json.as_object_mut().unwrap().remove("added_tokens_decoder"))
    });
    edit(&dir.join("config.json"), |json| {
        ["latent_id", "latent_start_id", "latent_end_id"]
            .iter()
            .for_each(|field| drop(json.as_object_mut().unwrap().remove(*field)));
    });
}

/// Every language model could think in words; which one should, is said and not guessed.
#[test]
fn a_plain_language_model_is_not_taken_for_one_that_thinks_in_words() {
    let error = changed(&CheckpointSpec::default(), unmark).err().unwrap();
    assert!(
        matches!(error, EngineError::Unrecognised { .. })
            && error.to_string().contains("--method cot"),
        "{error}"
    );
    let llama = changed(
        &CheckpointSpec { family: CheckpointFamily::LatentSft, ..CheckpointSpec::default() },
        unmark,
    )
    .unwrap();
    assert_eq!(llama.method.family, engine::Family::LatentSft);
}
