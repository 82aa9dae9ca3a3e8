//! Where rows end, and what is refused rather than tried.

use std::ops::ControlFlow;
use std::path::Path;

use engine::{Engine, EngineError, Perturbation, Question, Reasoner, RewardModel, SamplingParams};
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use serde_json::{Value, json};
use tensor::Tensor;

use crate::common::*;

fn tokens(reasoner: &Reasoner, settings: &SamplingParams) -> Vec<Vec<u32>> {
    let prompts = questions().iter().map(|q| prompted(reasoner, q)).collect::<Vec<_>>();
    prompts
        .iter()
        .flat_map(|prompt| replayed(reasoner, settings, prompt))
        .map(|row| row.tokens.to_vec())
        .collect()
}

/// Rows that finish leave; those that stay must not notice.
#[test]
fn answers_end_at_the_first_ending_token() {
    for family in FAMILIES {
        let mut reasoner =
            reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let settings =
            SamplingParams { max_new_tokens: count(12), ..settings(&reasoner, 4, thoughtful(0.3)) };
        reasoner.model.method.eos.clear();
        let endless = tokens(&reasoner, &settings);
        assert!(
            endless.iter().all(|t| t.len() == 12),
            "{family:?}: without an ending token the limit is what ends"
        );
        // Any token that some rows say, at unlike places, can be the one that ends.
        reasoner.model.method.eos = vec![endless[0][3], endless[5][0]];
        let cut = |row: &Vec<u32>| {
            row.iter().position(|t| reasoner.method.eos.contains(t)).map_or(12, |at| at + 1)
        };
        let expected: Vec<Vec<u32>> = endless.iter().map(|row| row[..cut(row)].to_vec()).collect();
        assert_eq!(tokens(&reasoner, &settings), expected, "{family:?}");
        assert!(expected.iter().any(|row| row.len() < 12), "{family:?}");
    }
}

#[test]
fn fewer_tokens_are_the_first_ones() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let long =
            SamplingParams { max_new_tokens: count(9), ..settings(&reasoner, 3, thoughtful(0.3)) };
        for limit in [1, 4] {
            let short = tokens(&reasoner, &SamplingParams { max_new_tokens: count(limit), ..long });
            for (short, long) in short.iter().zip(tokens(&reasoner, &long)) {
                assert_eq!(*short, long[..limit.min(long.len())], "{family:?}");
            }
        }
    }
}

/// A reasoner whose context ends `room` positions after the end tokens of a question, and what it
/// was asked.
fn cramped(family: CheckpointFamily, room: isize) -> (Reasoner, SamplingParams, Question) {
    let asked = questions().remove(2);
    let roomy = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
    let used = prompted(&roomy, &asked).tokens.len() + 4 + roomy.method.end_latent.len();
    let mut cramped = reasoner(
        device(),
        &CheckpointSpec {
            family,
            context: used.checked_add_signed(room).unwrap(),
            ..CheckpointSpec::default()
        },
    );
    cramped.model.method.eos.clear();
    let settings = SamplingParams {
        length: exactly(4),
        max_new_tokens: count(20),
        ..settings(&cramped, 3, thoughtful(0.2))
    };
    (cramped, settings, asked)
}

#[test]
fn answers_never_pass_the_context() {
    for family in FAMILIES {
        for room in [1, 2, 5] {
            let (reasoner, settings, asked) = cramped(family, room);
            // A token is read off the last position as well, and not fed.
            for row in replayed(&reasoner, &settings, &prompted(&reasoner, &asked)) {
                assert_eq!(row.tokens.len(), room as usize + 1, "{family:?}");
            }
            let outcomes =
                ask(Engine { reasoner: &reasoner, reward_model: None, params: settings }, &[asked])
                    .unwrap();
            assert_eq!(outcomes[0].thoughts[0].rows(), 4, "{family:?}");
        }
    }
}

#[test]
fn what_leaves_no_room_for_an_answer_is_too_long() {
    for family in FAMILIES {
        for room in [0, -1, -4] {
            let (reasoner, settings, asked) = cramped(family, room);
            let id = asked.id;
            let result = ask(
                Engine { reasoner: &reasoner, reward_model: None, params: settings },
                &[question(0, "x"), asked],
            );
            assert!(
                matches!(result, Err(EngineError::TooLong { id: found, .. }) if found == id),
                "{family:?}, {room}: {result:?}"
            );
        }
    }
}

/// The judge's context counts as well.
#[test]
fn what_the_judge_cannot_read_is_too_long() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let spec = CheckpointSpec {
        family: CheckpointFamily::RewardGpt2,
        context: 24,
        ..CheckpointSpec::default()
    };
    let judge = written(&spec, |dir| RewardModel::load(device(), dir, &pair.reasoner).unwrap());
    let settings = settings(&pair.reasoner, 1, thoughtful(0.2));
    let asked = [question(8, "twenty bytes are much")];
    assert!(ask(pair.engine(settings), &asked).is_ok());
    let result = ask(Engine { reward_model: Some(&judge), ..pair.engine(settings) }, &asked);
    assert!(matches!(result, Err(EngineError::TooLong { id: 8, context: 24, .. })), "{result:?}");
}

#[test]
fn a_row_that_does_not_fit_the_memory_is_refused() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    for perturbation in perturbations() {
        for memory in [0, 1, 4096] {
            let result = ask(
                pair.engine(SamplingParams { memory, ..settings(&pair.reasoner, 2, perturbation) }),
                &questions()[1..2],
            );
            assert!(
                matches!(result, Err(EngineError::Memory { id: 2, .. })),
                "{perturbation:?}, {memory}: {result:?}"
            );
        }
    }
}

#[test]
fn a_prompt_without_tokens_is_refused() {
    let mut pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    (pair.reasoner.model.method.prompt_suffix, pair.reasoner.model.method.begin_latent) =
        ("", Vec::new());
    let result =
        ask(pair.engine(settings(&pair.reasoner, 1, Perturbation::None)), &[question(4, "")]);
    assert!(matches!(result, Err(EngineError::Empty { id: 4 })), "{result:?}");
}

#[test]
fn a_judge_is_no_reasoner_and_a_reasoner_no_judge() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let load = |spec: &CheckpointSpec| {
        written(spec, |dir| RewardModel::load(device(), dir, &pair.reasoner).err())
    };
    let wide = CheckpointSpec {
        family: CheckpointFamily::RewardGpt2,
        width: 64,
        ..CheckpointSpec::default()
    };
    assert!(matches!(load(&wide), Some(EngineError::WidthDiffers { reward: 64, reasoner: 32 })));
    assert!(matches!(load(&CheckpointSpec::default()), Some(EngineError::NotARewardModel { .. })));
    let judge =
        CheckpointSpec { family: CheckpointFamily::RewardGpt2, ..CheckpointSpec::default() };
    assert!(matches!(
        written(&judge, |dir| Reasoner::load(device(), dir, None).err()),
        Some(EngineError::RewardModelAsReasoner { .. })
    ));
}

/// What a judge reads and thinks has to fit it, too.
#[test]
fn a_judge_that_thinks_needs_a_mind_room_and_words() {
    let coconut =
        |spec: CheckpointSpec| CheckpointSpec { family: CheckpointFamily::Coconut, ..spec };
    let mind = |spec: CheckpointSpec| {
        written(&spec, |dir| RewardModel::load_reference(device(), dir, 32).err())
    };
    assert!(mind(coconut(CheckpointSpec::default())).is_none());
    assert!(matches!(
        mind(coconut(CheckpointSpec { width: 64, ..CheckpointSpec::default() })),
        Some(EngineError::UnfitMind { .. })
    ));

    let pair = RewardedReasoner::reflecting(CheckpointFamily::Coconut);
    let settings = settings(&pair.reasoner, 1, Perturbation::None);
    let length = prompted(&pair.reasoner, &questions()[0]).tokens.len();
    let limit = |context: usize| {
        let spec = CheckpointSpec {
            family: CheckpointFamily::RewardGpt2,
            context,
            ..CheckpointSpec::default()
        };
        let judge = written(&spec, |dir| RewardModel::load(device(), dir, &pair.reasoner).unwrap());
        let reflecting = RewardedReasoner::reflecting(CheckpointFamily::Coconut).judge;
        let judge = RewardModel {
            outcome_head: reflecting.outcome_head,
            reference: reflecting.reference,
            ..judge
        };
        ask(Engine { reward_model: Some(&judge), ..pair.engine(settings) }, &questions()[..1])
    };
    // Six thoughts of its own, four that it judges, the end token, and one of the answer.
    assert!(limit(length + 12).is_ok());
    assert!(matches!(limit(length + 11), Err(EngineError::TooLong { id: 9, .. })));
}

#[test]
fn a_run_ends_when_its_reader_has_enough() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let mut seen: Vec<Vec<Tensor>> = Vec::new();
    let engine = pair.engine(settings(&pair.reasoner, 2, thoughtful(0.2)));
    engine
        .run(&questions(), &mut |outcome| {
            seen.push(outcome.thoughts);
            if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(seen.len(), 2);
    assert!(ask(engine, &[]).unwrap().is_empty());
}

/// Thoughts that overflow have no likeliest token; the first token of the vocabulary stands in, and
/// nothing panics.
#[test]
fn thoughts_that_are_not_numbers_still_end() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for std in [1e30, f32::MAX, f32::INFINITY, f32::NAN] {
            let settings = SamplingParams {
                length: exactly(3),
                ..settings(&pair.reasoner, 2, Perturbation::Gaussian { std })
            };
            let outcome = pair.ask_one(settings, &questions()[0]);
            assert_eq!(outcome.sample.trajectories.len(), 2, "{family:?}, {std}");
        }
    }
}

/// Numbers that no machine could serve are answered, not overflowed.
#[test]
fn absurd_lengths_are_refused_or_bounded() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let base = settings(&pair.reasoner, 1, thoughtful(0.2));
    for length in
        [exactly(usize::MAX), at_most(usize::MAX), between(1, usize::MAX), exactly(usize::MAX - 4)]
    {
        let result = ask(pair.engine(SamplingParams { length, ..base }), &questions());
        assert!(matches!(result, Err(EngineError::TooLong { .. })), "{length:?}: {result:?}");
    }
    // No answer passes the context, so that an unlimited one is planned as one that fills it.
    let bounded =
        ask(pair.engine(SamplingParams { max_new_tokens: count(1024), ..base }), &questions()[..1])
            .unwrap();
    let unbounded = ask(
        pair.engine(SamplingParams { max_new_tokens: count(usize::MAX), ..base }),
        &questions()[..1],
    )
    .unwrap();
    assert_same(&bounded[0], &unbounded[0], "unlimited answers");
    let rows = replayed(
        &pair.reasoner,
        &SamplingParams { max_new_tokens: count(usize::MAX), ..base },
        &prompted(&pair.reasoner, &questions()[0]),
    );
    assert_same_bits(&rows[0].thoughts, &unbounded[0].thoughts[0], "unlimited answers, replayed");
}

/// A token without an embedding: the tokenizer of another model, of the reasoner or of its judge.
#[test]
fn tokens_beyond_the_vocabulary_are_refused() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiLlama);
    // GPT-2's tiny vocabulary is smaller than Llama's, whose start token it lacks.
    let spec = CheckpointSpec { family: CheckpointFamily::RewardGpt2, ..CheckpointSpec::default() };
    let judge = written(&spec, |dir| RewardModel::load(device(), dir, &pair.reasoner).unwrap());
    let settings = settings(&pair.reasoner, 1, thoughtful(0.2));
    let result =
        ask(Engine { reward_model: Some(&judge), ..pair.engine(settings) }, &questions()[..1]);
    assert!(
        matches!(result, Err(EngineError::UnknownToken { id: 9, vocab: 260, .. })),
        "{result:?}"
    );
    // A tokenizer that knows a token more than the table has, and a question that says it.
    let larger = tempfile::tempdir().unwrap();
    write_checkpoint(larger.path(), &CheckpointSpec::default()).unwrap();
    let reasoner = add_token(larger.path(), "<|extra|>");
    let engine = Engine { reasoner: &reasoner, reward_model: None, params: settings };
    assert!(ask(engine, &questions()[..1]).is_ok());
    let result = ask(engine, &[question(6, "what is <|extra|>?")]);
    assert!(
        matches!(result, Err(EngineError::UnknownToken { id: 6, token: 260, vocab: 260 })),
        "{result:?}"
    );
}

/// Loads a COCONUT whose tokenizer got a token more than its weights.
fn add_token(dir: &Path, content: &str) -> Reasoner {
    let file = dir.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut token = tokens[0].clone();
    (token["id"], token["content"]) =
        (json!(tokens[tokens.len() - 1]["id"].as_u64().unwrap() + 1), json!(content));
    tokens.push(token);
    std::fs::write(file, tokenizer.to_string()).unwrap();
    load(device(), dir, CheckpointFamily::Coconut)
}

/// Published CODI checkpoints have markers without a text. A model that says one says nothing; the
/// run goes on.
#[test]
fn tokens_without_a_text_are_left_out_of_answers() {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(
        dir.path(),
        &CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() },
    )
    .unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let file = dir.path().join(name);
        let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        if let Some(tokens) = json.get_mut("added_tokens").and_then(Value::as_array_mut) {
            tokens.retain(|t| t["special"] == true);
        }
        if let Some(tokens) = json.get_mut("added_tokens_decoder").and_then(Value::as_object_mut) {
            tokens.retain(|_, t| t["special"] == true);
        }
        std::fs::write(file, json.to_string()).unwrap();
    }
    let reasoner = load(device(), dir.path(), CheckpointFamily::CodiGpt2);
    let unnamed = reasoner.tokenizer.vocab_size() as u32..;
    assert!(unnamed.contains(&reasoner.method.end_latent[0]));
    let settings =
        SamplingParams { max_new_tokens: count(40), ..settings(&reasoner, 16, thoughtful(0.5)) };
    let said = questions()
        .iter()
        .flat_map(|q| replayed(&reasoner, &settings, &prompted(&reasoner, q)))
        .map(|r| r.tokens)
        .collect::<Vec<_>>();
    assert!(
        said.iter().flatten().any(|t| unnamed.contains(t)),
        "no row says a token without a text"
    );
    let outcomes =
        ask(Engine { reasoner: &reasoner, reward_model: None, params: settings }, &questions())
            .unwrap();
    assert_eq!(outcomes.len(), questions().len());
}
