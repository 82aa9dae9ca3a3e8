//! The ends of sequences, and the rejection of invalid requests.

use std::path::Path;
use std::sync::Arc;

use latent_tts_engine::{
    Engine, EngineError, Output, Perturbation, Reasoner, RewardModel, SamplingParams,
};
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use serde_json::{Value, json};

use crate::common::*;

/// The answer tokens of every sequence of every question.
fn tokens(reasoner: &Reasoner, params: &SamplingParams) -> Vec<Vec<u32>> {
    let prompts = questions().into_iter().map(|question| prompt_of(reasoner, &question));
    let rows = prompts.flat_map(|prompt| run_sequences(reasoner, params, &prompt));
    rows.map(|row| row.tokens.to_vec()).collect()
}

/// Finished sequences leave the batch; the others continue unchanged.
#[test]
fn answers_end_at_the_first_eos_token() {
    for family in FAMILIES {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let mut reasoner = reasoner(device(), &spec);
        let params = short_params(&reasoner, 4, thought_dropout(0.3));
        let params = SamplingParams { max_new_tokens: nonzero(12), ..params };
        reasoner.model.method.eos.clear();
        let unended = tokens(&reasoner, &params);
        assert!(unended.iter().all(|t| t.len() == 12), "{family:?}: only the limit ends answers");
        // Tokens of some sequences, at different positions, become EOS tokens.
        reasoner.model.method.eos = vec![unended[0][3], unended[5][0]];
        let is_eos = |token: &u32| reasoner.method.eos.contains(token);
        let end = |row: &Vec<u32>| row.iter().position(is_eos).map_or(12, |at| at + 1);
        let expected: Vec<Vec<u32>> = unended.iter().map(|row| row[..end(row)].to_vec()).collect();
        assert_eq!(tokens(&reasoner, &params), expected, "{family:?}");
        assert!(expected.iter().any(|row| row.len() < 12), "{family:?}");
    }
}

#[test]
fn fewer_tokens_are_the_first_ones() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let params = short_params(&reasoner, 3, thought_dropout(0.3));
        let with_limit =
            |limit| tokens(&reasoner, &SamplingParams { max_new_tokens: nonzero(limit), ..params });
        let long = with_limit(9);
        for limit in [1, 4] {
            for (short, long) in with_limit(limit).iter().zip(&long) {
                assert_eq!(*short, long[..limit.min(long.len())], "{family:?}");
            }
        }
    }
}

/// A reasoner whose context ends `room` positions after the end tokens of a question; the
/// parameters, and the question.
fn with_small_context(
    family: CheckpointFamily,
    room: isize,
) -> (Reasoner, SamplingParams, TestQuestion) {
    let question = questions().remove(2);
    let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
    let large = reasoner(device(), &spec);
    let used = prompt_of(&large, &question).tokens.len() + 4 + large.method.end_latent.len();
    let context = used.checked_add_signed(room).unwrap();
    let mut small = reasoner(device(), &CheckpointSpec { context, ..spec });
    small.model.method.eos.clear();
    let params = short_params(&small, 3, thought_dropout(0.2));
    let params = SamplingParams { length: exactly(4), max_new_tokens: nonzero(20), ..params };
    (small, params, question)
}

#[test]
fn answers_never_pass_the_context() {
    for family in FAMILIES {
        for room in [1, 2, 5] {
            let (reasoner, params, question) = with_small_context(family, room);
            // A token is also decoded at the last position, but not fed.
            for row in run_sequences(&reasoner, &params, &prompt_of(&reasoner, &question)) {
                assert_eq!(row.tokens.len(), room as usize + 1, "{family:?}");
            }
            let reply = Engine::new(reasoner).solve(&question.request(params)).unwrap();
            assert_eq!(reply.trajectories[0].latents.rows(), 4, "{family:?}");
            let lengths = reply.trajectories.iter().map(|t| t.tokens.len());
            assert!(lengths.eq([room as usize + 1; 3]), "{family:?}");
        }
    }
}

#[test]
fn a_prompt_that_leaves_no_room_for_an_answer_is_too_long() {
    for family in FAMILIES {
        for room in [0, -1, -4] {
            let (reasoner, params, asked) = with_small_context(family, room);
            let id = asked.id;
            let result = run(&Engine::new(reasoner), params, &[question(0, "x"), asked]);
            assert!(
                matches!(result, Err(EngineError::TooLong { id: found, .. }) if found == id),
                "{family:?}, {room}: {result:?}"
            );
        }
    }
}

/// A reward model on GPT-2 with a given context.
fn reward_model_with_context(reasoner: &Reasoner, context: usize) -> RewardModel {
    let family = CheckpointFamily::RewardGpt2;
    let spec = CheckpointSpec { family, context, ..CheckpointSpec::default() };
    with_checkpoint(&spec, |dir| RewardModel::load(device(), dir, reasoner).unwrap())
}

#[test]
fn the_context_of_the_reward_model_counts_too() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let small = pair.engine().with_reward_model(reward_model_with_context(&pair.reasoner, 24));
    let params = short_params(&pair.reasoner, 1, thought_dropout(0.2));
    let asked = [question(8, "twenty bytes are much")];
    assert!(run(&pair.engine(), params, &asked).is_ok());
    let result = run(&small, params, &asked);
    assert!(matches!(result, Err(EngineError::TooLong { id: 8, context: 24, .. })), "{result:?}");
}

#[test]
fn a_row_that_does_not_fit_the_memory_is_refused() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    for perturbation in perturbations() {
        let params = short_params(&pair.reasoner, 2, perturbation);
        for memory in [0, 1, 4096] {
            let engine = pair.engine().with_memory(memory);
            let result = run(&engine, params, &questions()[1..2]);
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
    let method = &mut pair.reasoner_mut().model.method;
    method.prompt_suffix.clear();
    method.begin_latent.clear();
    let params = short_params(&pair.reasoner, 1, Perturbation::None);
    let result = run(&pair.engine(), params, &[question(4, "")]);
    assert!(matches!(result, Err(EngineError::Empty { id: 4 })), "{result:?}");
}

#[test]
fn a_reward_model_is_not_a_reasoner_and_a_reasoner_not_a_reward_model() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let load = |spec: &CheckpointSpec| {
        with_checkpoint(spec, |dir| RewardModel::load(device(), dir, &pair.reasoner).err())
    };
    let reward =
        CheckpointSpec { family: CheckpointFamily::RewardGpt2, ..CheckpointSpec::default() };
    let wide = CheckpointSpec { width: 64, ..reward.clone() };
    assert!(matches!(load(&wide), Some(EngineError::WidthDiffers { reward: 64, reasoner: 32 })));
    assert!(matches!(load(&CheckpointSpec::default()), Some(EngineError::NotARewardModel { .. })));
    assert!(matches!(
        with_checkpoint(&reward, |dir| Reasoner::load(device(), dir, None).err()),
        Some(EngineError::RewardModelAsReasoner { .. })
    ));
}

/// A reference reasoner must have the reward model's width, and its trace and the answer must fit
/// the reward model's context.
#[test]
fn a_reference_reasoner_has_to_fit_its_reward_model() {
    let load_reference = |spec: CheckpointSpec| {
        with_checkpoint(&spec, |dir| RewardModel::load_reference(device(), dir, 32).err())
    };
    assert!(load_reference(CheckpointSpec::default()).is_none());
    let wide = CheckpointSpec { width: 64, ..CheckpointSpec::default() };
    assert!(matches!(load_reference(wide), Some(EngineError::UnfitReference { .. })));

    let run_with_context = |context: usize| {
        let pair = RewardedReasoner::with_reference(CheckpointFamily::Coconut);
        let params = short_params(&pair.reasoner, 1, Perturbation::None);
        let length = prompt_of(&pair.reasoner, &questions()[0]).tokens.len();
        let small = reward_model_with_context(&pair.reasoner, length + context);
        let whole = Arc::into_inner(pair.reward_model).unwrap();
        let RewardModel { outcome_head, reference, .. } = whole;
        let reward_model = RewardModel { outcome_head, reference, ..small };
        let engine = Engine::new(pair.reasoner).with_reward_model(reward_model);
        run(&engine, params, &questions()[..1])
    };
    // Six thoughts of the trace, four of the candidate, the end token, and one of the answer.
    assert!(run_with_context(12).is_ok());
    assert!(matches!(run_with_context(11), Err(EngineError::TooLong { id: 9, .. })));
}

/// Thoughts that overflow have no largest logit; token 0 is used instead, and nothing panics.
#[test]
fn thoughts_that_are_not_numbers_still_end() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for std in [1e30, f32::MAX, f32::INFINITY, f32::NAN] {
            let params = short_params(&pair.reasoner, 2, Perturbation::Gaussian { std });
            let params = SamplingParams { length: exactly(3), ..params };
            let reply = pair.solve(params, &questions()[0]);
            assert_eq!(reply.trajectories.len(), 2, "{family:?}, {std}");
        }
    }
}

/// Excessive lengths are rejected or bounded, and overflow nothing.
#[test]
fn absurd_lengths_are_refused_or_bounded() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let base = short_params(&pair.reasoner, 1, thought_dropout(0.2));
    for length in
        [exactly(usize::MAX), at_most(usize::MAX), between(1, usize::MAX), exactly(usize::MAX - 4)]
    {
        let result = run(&pair.engine(), SamplingParams { length, ..base }, &questions());
        assert!(matches!(result, Err(EngineError::TooLong { .. })), "{length:?}: {result:?}");
    }
    // No answer exceeds the context, so an unlimited one is planned as one that fills it.
    let with_limit = |limit| SamplingParams { max_new_tokens: nonzero(limit), ..base };
    let question = &questions()[0];
    let bounded = pair.solve(with_limit(1024), question);
    let unbounded = pair.solve(with_limit(usize::MAX), question);
    assert_same(&bounded, &unbounded, "unlimited answers");
    let prompt = prompt_of(&pair.reasoner, question);
    let rows = run_sequences(&pair.reasoner, &with_limit(usize::MAX), &prompt);
    let latents = &unbounded.trajectories[0].latents;
    assert_same_bits(&rows[0].thoughts, latents, "unlimited answers, row by row");
}

/// A token without an embedding: the tokenizer belongs to a different model than the reasoner or
/// its reward model.
#[test]
fn tokens_beyond_the_vocabulary_are_refused() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiLlama);
    // GPT-2's tiny vocabulary is smaller than Llama's and lacks its start token.
    let reward_model = reward_model_with_context(&pair.reasoner, 1024);
    let params = short_params(&pair.reasoner, 1, thought_dropout(0.2));
    let engine = pair.engine().with_reward_model(reward_model);
    let result = run(&engine, params, &questions()[..1]);
    assert!(
        matches!(result, Err(EngineError::UnknownToken { id: 9, vocab: 260, .. })),
        "{result:?}"
    );
    // A tokenizer with one token more than the embedding table: a question that contains its text
    // is encoded as characters, so the token is never looked up.
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &CheckpointSpec::default()).unwrap();
    let engine = Engine::new(add_token(dir.path(), "<|extra|>"));
    assert!(run(&engine, params, &questions()[..1]).is_ok());
    assert!(run(&engine, params, &[question(6, "what is <|extra|>?")]).is_ok());
}

/// Loads a COCONUT whose tokenizer has one token more than its weights.
fn add_token(dir: &Path, content: &str) -> Reasoner {
    let file = dir.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut token = tokens[0].clone();
    let last = &tokens[tokens.len() - 1];
    token["id"] = json!(last["id"].as_u64().unwrap() + 1);
    token["content"] = json!(content);
    tokens.push(token);
    std::fs::write(file, tokenizer.to_string()).unwrap();
    load(device(), dir, CheckpointFamily::Coconut)
}

/// Published CODI checkpoints have marker tokens without text. If a model generates one, it is
/// omitted from the text, and the run continues.
#[test]
fn tokens_without_a_text_are_left_out_of_answers() {
    let dir = tempfile::tempdir().unwrap();
    let family = CheckpointFamily::CodiGpt2;
    write_checkpoint(dir.path(), &CheckpointSpec { family, ..CheckpointSpec::default() }).unwrap();
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
    let reasoner = load(device(), dir.path(), family);
    let unnamed = reasoner.tokenizer.vocab_size() as u32..;
    assert!(unnamed.contains(&reasoner.method.end_latent[0]));
    let params = short_params(&reasoner, 16, thought_dropout(0.5));
    let params = SamplingParams { max_new_tokens: nonzero(40), ..params };
    let replies: Vec<Output> = run(&Engine::new(reasoner), params, &questions()).unwrap();
    assert_eq!(replies.len(), questions().len());
    let mut tokens = replies.iter().flat_map(|reply| &reply.trajectories).flat_map(|t| &t.tokens);
    assert!(tokens.any(|token| unnamed.contains(token)), "no row has a token without a text");
}
