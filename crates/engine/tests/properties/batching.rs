//! A trajectory does not depend on its batch: not on other questions, the number of samples, the
//! memory, threads, or the order of the questions.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use latent_tts_engine::{AnswerTokens, Output, Perturbation, Reasoner, SamplingParams};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use model::{Cache, DeferredInputs, ForwardOptions, Pass, Sequence};
use proptest::prelude::*;
use tensor::ops::OutputDtype;
use tensor::{Device, DeviceError, Isa};

use crate::common::*;

/// Fails unless each question run alone has the same output as in the batch.
pub fn assert_same_alone(
    pair: &RewardedReasoner,
    params: SamplingParams,
    questions: &[TestQuestion],
    what: &str,
) {
    let together = pair.run(params, questions);
    for question in questions {
        let alone = pair.solve(params, question);
        let what = format!("{what}, question {}", question.id);
        assert_same(reply_to(&together, question.id), &alone, &what);
    }
}

#[test]
fn a_question_of_a_batch_gets_the_reply_that_it_gets_alone() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let params = short_params(&pair.reasoner, 3, perturbation);
            let params = SamplingParams { greedy: true, ..params };
            assert_same_alone(
                &pair,
                params,
                &questions(),
                &format!("{family:?}, {perturbation:?}"),
            );
        }
    }
}

/// Also compares the first logits, which outputs do not contain.
#[test]
fn a_row_of_a_batch_is_the_row_alone() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let prompt = prompt_of(&reasoner, &questions()[2]);
        for perturbation in perturbations() {
            let params = short_params(&reasoner, 7, perturbation);
            let many = run_sequences(&reasoner, &params, &prompt);
            let params = SamplingParams { samples: nonzero(1), ..params };
            let one = run_sequences(&reasoner, &params, &prompt);
            let what = format!("{family:?}, {perturbation:?}");
            assert_eq!(many[0].tokens, one[0].tokens, "{what}");
            assert_eq!(many[0].first_logits, one[0].first_logits, "{what}");
            assert_same_bits(&many[0].thoughts, &one[0].thoughts, &what);
        }
    }
}

/// Makes one token the EOS token: the one that ends the first sequences of the questions at the
/// largest number of different positions.
pub fn spread_answer_ends(
    reasoner: &mut Reasoner,
    params: SamplingParams,
    questions: &[TestQuestion],
) {
    reasoner.model.method.eos.clear();
    let params = SamplingParams { samples: nonzero(1), ..params };
    let unended: Vec<AnswerTokens> = questions
        .iter()
        .map(|q| run_sequences(reasoner, &params, &prompt_of(reasoner, q)).remove(0).tokens)
        .collect();
    let positions = |token: u32| {
        let positions = unended.iter().filter_map(|row| row.iter().position(|&t| t == token));
        positions.collect::<BTreeSet<_>>().len()
    };
    let tokens = unended.iter().flatten().copied();
    let eos = tokens.max_by_key(|&token| (positions(token), token)).unwrap();
    assert!(positions(eos) > 3, "answers end at {} positions", positions(eos));
    reasoner.model.method.eos = vec![eos];
}

/// A finished sequence has no effect on others and frees its cache slots, of which none are to
/// spare when answers take several chunks. On a GPU the next step is launched before it is known
/// which sequences end: see the test of this name there.
#[test]
fn rows_that_end_at_different_tokens_do_not_disturb_the_others() {
    let questions: Vec<_> =
        (0..24).map(|i| question(100 - i, &"how many? ".repeat(1 + i as usize % 3))).collect();
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama, CheckpointFamily::Rot] {
        let mut pair = RewardedReasoner::of(family);
        for perturbation in [thought_dropout(0.3), perturbations()[3], sampled(1.5, 1.0)] {
            let params = short_params(&pair.reasoner, 1, perturbation);
            let params = SamplingParams { max_new_tokens: nonzero(40), ..params };
            spread_answer_ends(pair.reasoner_mut(), params, &questions);
            assert_same_alone(&pair, params, &questions, &format!("{family:?}, {perturbation:?}"));
        }
    }
}

/// A pass is aborted before its input vectors are known, or after its first block: in both cases
/// cache and sequences are unchanged, and the next pass computes the same results.
#[test]
fn a_pass_that_is_called_off_leaves_nothing_behind() {
    let called_off = || DeviceError::UnsupportedIsa(Isa::Portable); // represents any error
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama] {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let decoder = &reasoner.decoder;
        let prefilled = |tokens: &[u32]| {
            let mut cache = Cache::new(device(), decoder.config(), 256).unwrap();
            let mut pass = Pass::default();
            let mut prefix = Sequence::default();
            tokens.iter().for_each(|_| pass.push(&mut cache, &mut prefix, false));
            decoder.forward(&mut cache, &pass, decoder.embed(tokens).unwrap(), None).unwrap();
            (cache, (0..3).map(|_| prefix.fork()).collect::<Vec<_>>())
        };
        let next_pass = |cache: &mut Cache, rows: &mut [Sequence]| {
            let mut pass = Pass::default();
            rows.iter_mut().for_each(|row| pass.push(cache, row, true));
            (pass, decoder.embed(&[4, 5, 6]).unwrap())
        };
        let options = ForwardOptions { dropout: None, output: OutputDtype::Compute };
        let [expected, found] = [0, 2].map(|times| {
            let (mut cache, mut rows) = prefilled(&[1, 2, 3]);
            for time in 0..times {
                let before = rows.clone();
                let mark = cache.mark();
                let (pass, x) = next_pass(&mut cache, &mut rows);
                let x = || if time == 0 { Err(called_off()) } else { Ok(x) };
                let inputs = DeferredInputs { x, proceed: || Err(called_off()) };
                decoder.forward_deferred(&mut cache, &pass, options, inputs).unwrap_err();
                cache.rollback(mark, &mut rows);
                assert_eq!(rows, before, "{family:?}");
            }
            let (pass, x) = next_pass(&mut cache, &mut rows);
            let inputs = DeferredInputs { x: || Ok::<_, DeviceError>(x), proceed: || Ok(()) };
            decoder.forward_deferred(&mut cache, &pass, options, inputs).unwrap()
        });
        assert_eq!(found, expected, "{family:?}");
    }
}

/// A pass longer than the decoder's maximum is split, possibly within a prompt. And if the prompts
/// of a batch have so many positions that sequences compute their last token in a second pass, the
/// outputs are the same as in a single one.
#[test]
fn prompts_that_are_cut_into_parts_give_the_same_replies() {
    let many: Vec<_> =
        (1000..1008).map(|id: u32| question(id, &format!("{id} ").repeat(80))).collect();
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama] {
        let pair = RewardedReasoner::of(family);
        let positions: usize =
            many.iter().map(|question| prompt_of(&pair.reasoner, question).tokens.len()).sum();
        assert!(positions > 2048, "{family:?}: {positions} positions");
        for perturbation in [Perturbation::None, thought_dropout(0.2), perturbations()[2]] {
            let params = short_params(&pair.reasoner, 2, perturbation);
            assert_same_alone(&pair, params, &many, &format!("{family:?}, {perturbation:?}"));
        }
    }
}

/// The samples of a small run, and the first samples of a large run.
pub fn few_of_many(pair: &RewardedReasoner, perturbation: Perturbation) -> [Vec<Output>; 2] {
    [4, 16].map(|samples| {
        let params = short_params(&pair.reasoner, samples, perturbation);
        let mut replies = pair.run(params, &questions()[..3]);
        replies.iter_mut().for_each(|reply| reply.trajectories.truncate(4));
        replies
    })
}

#[test]
fn fewer_samples_are_the_first_ones() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let [few, many] = few_of_many(&pair, perturbation);
            for (many, few) in many.iter().zip(&few) {
                let what = format!("{family:?}, {perturbation:?}");
                assert_same_trajectories(&many.trajectories, &few.trajectories, &what);
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar, CheckpointFamily::Rot] {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let run = |threads| {
            let device = Device::cpu(Some(nonzero(threads))).unwrap();
            let pair = RewardedReasoner::new(&device, &spec);
            // Enough that several threads process parts of a pass in parallel.
            let params = short_params(&pair.reasoner, 60, thought_dropout(0.2));
            let rows = 60 * questions().len();
            assert!(device.part_rows(rows) < rows || threads == 1);
            pair.run(SamplingParams { greedy: true, ..params }, &questions())
        };
        let one = run(1);
        for threads in [2, 3] {
            assert_all_same(&one, &run(threads), &format!("{family:?}, {threads} threads"));
        }
    }
}

/// A run with the default memory, and runs with little memory, with its size in bytes.
pub fn run_in_little_memory(
    pair: &RewardedReasoner,
    perturbation: Perturbation,
) -> (Vec<Output>, [(usize, Vec<Output>); 3]) {
    let params = short_params(&pair.reasoner, 6, perturbation);
    let params = SamplingParams { greedy: true, ..params };
    let longest = questions()[1].request(params);
    let least = smallest_memory(&pair.engine(), &[longest]);
    let split = [least, least + least / 3, 3 * least];
    let split = split.map(|memory| (memory, pair.run_in_memory(memory, params, &questions())));
    (pair.run(params, &questions()), split)
}

#[test]
fn little_memory_splits_batches_and_changes_nothing() {
    let pairs = [CheckpointFamily::Coconut, CheckpointFamily::LatentSft].map(|family| {
        [RewardedReasoner::of(family), RewardedReasoner::with_reference(family)]
            .map(|pair| (family, pair))
    });
    for (family, pair) in pairs.as_flattened() {
        for perturbation in [Perturbation::None, thought_dropout(0.3), perturbations()[2]] {
            let (whole, split) = run_in_little_memory(pair, perturbation);
            for (memory, split) in &split {
                let what = format!("{family:?}, {perturbation:?}, {memory} bytes");
                assert_all_same(&whole, split, &what);
            }
        }
    }
}

/// More sequences than the maximum batch size, with any memory.
#[test]
fn more_samples_than_a_batch_holds_are_all_there() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let short = SamplingParams {
        length: exactly(2),
        max_new_tokens: nonzero(2),
        ..short_params(&pair.reasoner, 1030, thought_dropout(0.2))
    };
    let questions = &questions()[..2];
    for (reply, question) in pair.run(short, questions).iter().zip(questions) {
        assert!(reply.trajectories.iter().map(|t| t.number).eq(0..1030));
        let few = pair.solve(SamplingParams { samples: nonzero(2), ..short }, question);
        assert_same_trajectories(&reply.trajectories[..2], &few.trajectories, "the first of many");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// A shard is a subset of the questions in some order. Random numbers are keyed by the
    /// question's id, so nothing else matters.
    #[test]
    fn shards_and_order_change_nothing(
        order in Just(vec![0usize, 1, 2, 3, 4]).prop_shuffle(),
        size in 1usize..6,
        noise in any::<bool>(),
        seed in any::<u64>(),
    ) {
        static PAIR: LazyLock<RewardedReasoner> =
            LazyLock::new(|| RewardedReasoner::of(CheckpointFamily::CodiGpt2));
        let gaussian = Perturbation::Gaussian { std: 0.5 };
        let perturbation = if noise { gaussian } else { thought_dropout(0.2) };
        let params = SamplingParams { seed, ..short_params(&PAIR.reasoner, 3, perturbation) };
        let all = PAIR.run(params, &questions());
        let shard: Vec<_> = order[..size].iter().map(|&i| questions()[i].clone()).collect();
        let some = PAIR.run(params, &shard);
        prop_assert!(some.iter().map(|reply| reply.id).eq(shard.iter().map(|q| q.id)));
        some.iter().for_each(|reply| assert_same(reply_to(&all, reply.id), reply, "a shard"));
    }
}

/// The same text with another id has the same prompt and different random numbers; likewise with
/// another seed.
#[test]
fn random_numbers_belong_to_the_id_and_the_seed() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 2, thought_dropout(0.2));
    let thoughts =
        |id, seed| latents(&pair.solve(SamplingParams { seed, ..params }, &question(id, "2+2?")));
    let base = thoughts(1, 5);
    assert_ne!(base[0], base[1]);
    assert_eq!(base, thoughts(1, 5));
    assert_ne!(base[0], thoughts(2, 5)[0]);
    assert_ne!(base[0], thoughts(1, 6)[0]);
    assert_ne!(base[0], thoughts(1, 5 | 1 << 40)[0], "the seed's upper half counts");
}
