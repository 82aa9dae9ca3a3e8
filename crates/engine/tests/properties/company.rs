//! A trajectory does not depend on its company: not on other questions, N, the batch, threads,
//! order or shard.

use std::collections::BTreeSet;

use engine::{AnswerTokens, Outcome, Perturbation, Question, Reasoner, SamplingParams};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use model::{Cache, DeferredInputs, ForwardOptions, Pass, Sequence};
use proptest::prelude::*;
use tensor::ops::OutputDtype;
use tensor::{Device, DeviceError, Isa};

use crate::common::*;

/// The outcome of a question, found by its number.
fn of(outcomes: &[Outcome], id: u32) -> &Outcome {
    outcomes.iter().find(|o| o.sample.id == id).unwrap()
}

#[test]
fn a_question_among_others_is_the_question_alone() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let settings =
                SamplingParams { greedy: true, ..settings(&pair.reasoner, 3, perturbation) };
            let together = pair.ask(settings, &questions());
            for question in questions() {
                let alone = pair.ask_one(settings, &question);
                assert_same(
                    of(&together, question.id),
                    &alone,
                    &format!("{family:?}, {perturbation:?}, question {}", question.id),
                );
            }
        }
    }
}

/// The tokens too, which records do not hold: rows run by themselves say what they said together.
#[test]
fn a_row_among_others_says_what_it_says_alone() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let prompt = prompted(&reasoner, &questions()[2]);
        for perturbation in perturbations() {
            let many = settings(&reasoner, 7, perturbation);
            let few = SamplingParams { samples: count(1), ..many };
            let (many, few) =
                (replayed(&reasoner, &many, &prompt), replayed(&reasoner, &few, &prompt));
            assert_eq!(many[0].tokens, few[0].tokens, "{family:?}, {perturbation:?}");
            assert_eq!(many[0].first_logits, few[0].first_logits, "{family:?}, {perturbation:?}");
            assert_same_bits(
                &many[0].thoughts,
                &few[0].thoughts,
                &format!("{family:?}, {perturbation:?}"),
            );
        }
    }
}

/// Lets that token end answers which ends those of the questions' first rows at the most places.
pub fn end_at_many_places(reasoner: &mut Reasoner, settings: SamplingParams, asked: &[Question]) {
    reasoner.model.method.eos.clear();
    let one = SamplingParams { samples: count(1), ..settings };
    let endless: Vec<AnswerTokens> = asked
        .iter()
        .map(|q| replayed(reasoner, &one, &prompted(reasoner, q)).remove(0).tokens)
        .collect();
    let places = |token: u32| {
        let places = endless.iter().filter_map(|row| row.iter().position(|&t| t == token));
        places.collect::<BTreeSet<_>>().len()
    };
    let ending =
        endless.iter().flatten().copied().max_by_key(|&token| (places(token), token)).unwrap();
    assert!(places(ending) > 3, "answers end at {} places", places(ending));
    reasoner.model.method.eos = vec![ending];
}

/// What was for those who ended leaves nothing behind, neither in the others nor in the cache,
/// which has no slot to spare where answers take several chunks of it. On a GPU passes are begun
/// before it is known who ends: see the test of this name there.
#[test]
fn rows_that_end_at_unlike_tokens_do_not_disturb_the_others() {
    let asked: Vec<_> =
        (0..24).map(|i| question(100 - i, &"how many? ".repeat(1 + i as usize % 3))).collect();
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama, CheckpointFamily::Rot] {
        let mut pair = RewardedReasoner::of(family);
        for perturbation in [thoughtful(0.3), perturbations()[3], drawn(1.5, 1.0)] {
            let settings = SamplingParams {
                max_new_tokens: count(40),
                ..settings(&pair.reasoner, 1, perturbation)
            };
            end_at_many_places(&mut pair.reasoner, settings, &asked);
            let together = pair.ask(settings, &asked);
            for question in &asked {
                let alone = pair.ask_one(settings, question);
                assert_same(
                    of(&together, question.id),
                    &alone,
                    &format!("{family:?}, {perturbation:?}, {}", question.id),
                );
            }
        }
    }
}

/// Neither where it is called off before its input vectors are there nor after its first block.
#[test]
fn a_pass_that_is_called_off_leaves_nothing_behind() {
    let called_off = || DeviceError::UnsupportedIsa(Isa::Portable); // stands for any
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama] {
        let decoder = &RewardedReasoner::of(family).reasoner.model.decoder;
        let started = |tokens: &[u32]| {
            let (mut cache, mut prefix) =
                (Cache::new(device(), decoder.config(), 256).unwrap(), Sequence::default());
            let mut pass = Pass::default();
            tokens.iter().for_each(|_| pass.push(&mut cache, &mut prefix, false));
            decoder.forward(&mut cache, &pass, decoder.embed(tokens).unwrap(), None).unwrap();
            (cache, (0..3).map(|_| prefix.fork()).collect::<Vec<_>>())
        };
        let next = |cache: &mut Cache, rows: &mut [Sequence]| {
            let mut pass = Pass::default();
            rows.iter_mut().for_each(|row| pass.push(cache, row, true));
            (pass, decoder.embed(&[4, 5, 6]).unwrap())
        };
        let options = ForwardOptions { dropout: None, output: OutputDtype::Compute };
        let [expected, found] = [0, 2].map(|times| {
            let (mut cache, mut rows) = started(&[1, 2, 3]);
            for time in 0..times {
                let (before, mark) = (rows.clone(), cache.mark());
                let (pass, x) = next(&mut cache, &mut rows);
                let x = || if time == 0 { Err(called_off()) } else { Ok(x) };
                let inputs = DeferredInputs { x, proceed: || Err(called_off()) };
                decoder.forward_deferred(&mut cache, &pass, options, inputs).unwrap_err();
                cache.rollback(mark, &mut rows);
                assert_eq!(rows, before, "{family:?}");
            }
            let (pass, x) = next(&mut cache, &mut rows);
            let inputs = DeferredInputs { x: || Ok::<_, DeviceError>(x), proceed: || Ok(()) };
            decoder.forward_deferred(&mut cache, &pass, options, inputs).unwrap()
        });
        assert_eq!(found, expected, "{family:?}");
    }
}

/// A pass longer than the decoder computes at once is cut, perhaps within a prompt; and prompts of
/// so many positions that rows follow them in a pass of their own are those that few rows pass
/// beside.
#[test]
fn prompts_that_are_cut_into_parts_stay_whole() {
    let long = |id: u32| question(id, &format!("{id} ").repeat(80));
    let many: Vec<_> = (1000..1008).map(long).collect();
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama] {
        let pair = RewardedReasoner::of(family);
        let positions: usize =
            many.iter().map(|asked| prompted(&pair.reasoner, asked).tokens.len()).sum();
        assert!(positions > 2048, "{family:?}: {positions} positions");
        for perturbation in [Perturbation::None, thoughtful(0.2), perturbations()[2]] {
            let settings = settings(&pair.reasoner, 2, perturbation);
            let together = pair.ask(settings, &many);
            for question in &many {
                assert_same(
                    of(&together, question.id),
                    &pair.ask_one(settings, question),
                    &format!("{family:?}, {perturbation:?}"),
                );
            }
        }
    }
}

/// A run of few samples, and as many of a run of more.
pub fn few_of_many(pair: &RewardedReasoner, perturbation: Perturbation) -> [Vec<Outcome>; 2] {
    [4, 16].map(|samples| {
        let mut outcomes =
            pair.ask(settings(&pair.reasoner, samples, perturbation), &questions()[..3]);
        for outcome in &mut outcomes {
            outcome.sample.trajectories.truncate(4);
            outcome.thoughts.truncate(4);
        }
        outcomes
    })
}

#[test]
fn fewer_samples_are_the_first_ones() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let [few, many] = few_of_many(&pair, perturbation);
            for (many, few) in many.iter().zip(&few) {
                assert_eq!(
                    many.sample.trajectories, few.sample.trajectories,
                    "{family:?}, {perturbation:?}"
                );
                let both = many.thoughts.iter().zip(&few.thoughts);
                both.for_each(|(a, b)| {
                    assert_same_bits(a, b, &format!("{family:?}, {perturbation:?}"))
                });
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar, CheckpointFamily::Rot] {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let run = |threads| {
            let pair = RewardedReasoner::new(&Device::cpu(Some(count(threads))).unwrap(), &spec);
            let settings =
                SamplingParams { greedy: true, ..settings(&pair.reasoner, 8, thoughtful(0.2)) };
            pair.ask(settings, &questions())
        };
        let one = run(1);
        for threads in [2, 3] {
            one.iter()
                .zip(run(threads))
                .for_each(|(a, b)| assert_same(a, &b, &format!("{family:?}, {threads} threads")));
        }
    }
}

/// The smallest budget that holds a row of the longest question, by bisection on what is refused.
fn smallest_budget(pair: &RewardedReasoner, settings: SamplingParams) -> usize {
    let one = SamplingParams { samples: count(1), greedy: false, ..settings };
    let fits = |memory: usize| {
        pair.engine(SamplingParams { memory, ..one }).check(&questions()[1..2]).is_ok()
    };
    let (mut no, mut yes) = (0, 1 << 26);
    while yes - no > 1 {
        let middle = (no + yes) / 2;
        if fits(middle) { yes = middle } else { no = middle }
    }
    yes
}

/// A run in plenty of memory, and runs in little: with the bytes that they had.
pub fn in_little_memory(
    pair: &RewardedReasoner,
    perturbation: Perturbation,
) -> (Vec<Outcome>, [(usize, Vec<Outcome>); 3]) {
    let settings = SamplingParams { greedy: true, ..settings(&pair.reasoner, 6, perturbation) };
    let least = smallest_budget(pair, settings);
    let split = [least, least + least / 3, 3 * least];
    let split =
        split.map(|memory| (memory, pair.ask(SamplingParams { memory, ..settings }, &questions())));
    (pair.ask(settings, &questions()), split)
}

#[test]
fn a_small_budget_splits_rows_and_changes_nothing() {
    let pairs = [CheckpointFamily::Coconut, CheckpointFamily::LatentSft].map(|family| {
        [(family, RewardedReasoner::of(family)), (family, RewardedReasoner::reflecting(family))]
    });
    for (family, pair) in pairs.as_flattened() {
        for perturbation in [Perturbation::None, thoughtful(0.3), perturbations()[2]] {
            let (whole, split) = in_little_memory(pair, perturbation);
            for (memory, split) in &split {
                whole.iter().zip(split).for_each(|(a, b)| {
                    assert_same(a, b, &format!("{family:?}, {perturbation:?}, {memory} bytes"))
                });
            }
        }
    }
}

/// More rows than any wave takes, whatever the memory.
#[test]
fn more_samples_than_a_wave_holds_are_all_there() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let short = SamplingParams {
        length: exactly(2),
        max_new_tokens: count(2),
        ..settings(&pair.reasoner, 1030, thoughtful(0.2))
    };
    let many = pair.ask(short, &questions()[..2]);
    for outcome in &many {
        assert!(outcome.sample.trajectories.iter().map(|t| t.k).eq(0..1030));
        let few = pair.ask_one(
            SamplingParams { samples: count(2), ..short },
            &question(outcome.sample.id, &outcome.sample.question),
        );
        assert_eq!(outcome.sample.trajectories[..2], few.sample.trajectories);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// A shard is some of the questions in some order. Numbers name the randomness, so that nothing else matters.
    #[test]
    fn shards_and_order_change_nothing(
        order in Just(vec![0usize, 1, 2, 3, 4]).prop_shuffle(),
        size in 1usize..6,
        noise in any::<bool>(),
        seed in any::<u64>(),
    ) {
        static PAIR: std::sync::LazyLock<RewardedReasoner> = std::sync::LazyLock::new(|| RewardedReasoner::of(CheckpointFamily::CodiGpt2));
        let perturbation = if noise { Perturbation::Gaussian { std: 0.5 } } else { thoughtful(0.2) };
        let settings = SamplingParams { seed, ..settings(&PAIR.reasoner, 3, perturbation) };
        let all = PAIR.ask(settings, &questions());
        let shard: Vec<_> = order[..size].iter().map(|&i| questions()[i].clone()).collect();
        let some = PAIR.ask(settings, &shard);
        prop_assert!(some.iter().map(|o| o.sample.id).eq(shard.iter().map(|q| q.id)));
        some.iter().for_each(|outcome| assert_same(of(&all, outcome.sample.id), outcome, "a shard"));
    }
}

/// The same text under another number has the same prompt and other randomness; likewise under
/// another seed.
#[test]
fn randomness_belongs_to_the_number_and_the_seed() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let settings = settings(&pair.reasoner, 2, thoughtful(0.2));
    let thoughts = |id, seed| {
        pair.ask_one(SamplingParams { seed, ..settings }, &question(id, "2+2?")).thoughts
    };
    let base = thoughts(1, 5);
    assert_ne!(base[0], base[1]);
    assert_eq!(base, thoughts(1, 5));
    assert_ne!(base[0], thoughts(2, 5)[0]);
    assert_ne!(base[0], thoughts(1, 6)[0]);
    assert_ne!(base[0], thoughts(1, 5 | 1 << 40)[0], "the seed's upper half counts");
}
