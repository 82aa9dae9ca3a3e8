//! The engine on a GPU: what is true to the bit on the processor is true to rounding there, and
//! both do the same.
//!
//! A GPU's products sum in an order that depends on how many rows there are, so that a row's
//! numbers depend on its company in the last places. Where numbers are compared closely, rows are
//! therefore led: thought t is computed from given ones before it, lest a random model amplify
//! rounding from thought to thought. Rows that are left to themselves are compared by what they do:
//! how many thoughts they have and what they answer.
//!
//! Without a GPU every test here says so and ends.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::reference::{self, ReferenceRow, ReferenceRun};
use engine::rollout::AnnotatedQuestion;
use engine::{Engine, LatentLength, Outcome, Perturbation, Question, Reasoner, SamplingParams};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use model::{Cache, Decoder, RandomWeights, RewardHead};
use tensor::{Device, Precision, Tensor};

use crate::common::*;
use crate::{beams, chance, company, rollout, rounds, words};

/// Rounding, in parts of the largest element, along a given path. An H200 was 5e-6 from the
/// processor at most.
const SINGLE: f32 = 2e-4;
/// The same in bf16; it was 8e-2 at most.
const BF16: f32 = 0.1;
/// The same in single precision for rows that feed themselves, a few thoughts long; it was 4e-4 at
/// most, and every row gave the same answer.
const FREE: f32 = 2e-3;

/// A GPU that is nobody else's: one test takes all of its memory.
struct GpuFixture {
    device: Device,
    _turn: MutexGuard<'static, ()>,
}

/// The GPU if there is one; says why if not.
fn gpu(precision: Precision) -> Option<GpuFixture> {
    static TURN: Mutex<()> = Mutex::new(());
    if let Err(why) = Device::cuda_availability() {
        println!("skipped: {why}");
        return None;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Some(GpuFixture { device: Device::cuda(0, precision).unwrap(), _turn })
}

/// How rows of two runs compare.
#[derive(Clone, Copy, Default)]
struct AgreementCount {
    rows: usize,
    alike: usize,  // as many thoughts, and the same answer
    thoughts: f32, // the largest distances, in parts of the largest element
    logits: f32,
    rewards: f32,
}

impl AgreementCount {
    /// Rows that were led along the same thoughts.
    fn add_led(&mut self, found: &[ReferenceRow], expected: &[ReferenceRow]) {
        for (a, b) in found.iter().zip(expected) {
            self.rows += 1;
            self.thoughts = self.thoughts.max(apart_as_far(&a.thoughts, &b.thoughts));
            // A row that ends its thoughts elsewhere has other logits.
            if a.thoughts.rows() == b.thoughts.rows() {
                self.alike += usize::from(a.tokens == b.tokens);
                self.logits =
                    self.logits.max(apart(&matrix(&a.first_logits), &matrix(&b.first_logits)));
            }
        }
    }

    /// Rows that went their own way; how far apart they are counts where they did the same.
    fn add_free(&mut self, found: &[Outcome], expected: &[Outcome]) {
        assert_eq!(found.len(), expected.len());
        let (mut rewards, mut wanted) = (Vec::new(), Vec::new());
        for (a, b) in found.iter().zip(expected) {
            assert_eq!((a.sample.id, a.thoughts.len()), (b.sample.id, b.thoughts.len()));
            for (k, (x, y)) in a.sample.trajectories.iter().zip(&b.sample.trajectories).enumerate()
            {
                assert_eq!(x.k, y.k);
                self.rows += 1;
                if (x.thoughts, &x.text) == (y.thoughts, &y.text) {
                    self.alike += 1;
                    self.thoughts = self.thoughts.max(apart_as_far(&a.thoughts[k], &b.thoughts[k]));
                    rewards.extend(x.process_rewards.iter().flatten());
                    wanted.extend(y.process_rewards.iter().flatten());
                }
            }
        }
        self.add_rewards(&rewards, &wanted);
    }

    fn add_rewards(&mut self, found: &[f32], expected: &[f32]) {
        self.rewards = self.rewards.max(apart(&matrix(found), &matrix(expected)));
    }

    /// Adds another tally.
    fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.alike += other.alike;
        self.thoughts = self.thoughts.max(other.thoughts);
        self.logits = self.logits.max(other.logits);
        self.rewards = self.rewards.max(other.rewards);
    }

    fn show(&self, what: &str) {
        let Self { rows, alike, thoughts, logits, rewards } = self;
        println!(
            "{what}: {alike} of {rows} rows alike; thoughts {thoughts:.1e}, logits {logits:.1e}, rewards {rewards:.1e} apart"
        );
    }

    /// Fails unless 99 rows in 100 do the same.
    fn assert_alike(&self, what: &str) {
        assert!(
            self.alike * 100 >= self.rows * 99,
            "{what}: only {} of {} rows are alike",
            self.alike,
            self.rows
        );
    }

    /// Fails unless all numbers are this near.
    fn assert_within(&self, most: f32, what: &str) {
        let Self { thoughts, logits, rewards, .. } = *self;
        assert!(
            thoughts.max(logits).max(rewards) <= most,
            "{what}: {thoughts:e}, {logits:e}, {rewards:e} apart"
        );
    }
}

/// One of each kind that the paper uses, and none.
fn kinds() -> [Perturbation; 3] {
    [Perturbation::None, thoughtful(0.2), Perturbation::Gaussian { std: 0.3 }]
}

/// Many questions with the texts of the usual ones.
fn many_questions(n: u32) -> Vec<Question> {
    let texts = questions();
    (0..n).map(|i| question(100 + 7 * i, &texts[i as usize % texts.len()].text)).collect()
}

/// Rows of a run along the thoughts of others.
fn led(
    reasoner: &Reasoner,
    settings: &SamplingParams,
    asked: &Question,
    path: &[ReferenceRow],
) -> Vec<ReferenceRow> {
    let path: Vec<Tensor> = path.iter().map(|row| row.thoughts.clone()).collect();
    let how = ReferenceRun { forced_thoughts: Some(&path), ..replay_of(settings) };
    reference::run_rows(reasoner, &prompted(reasoner, asked), how).unwrap()
}

#[test]
fn a_row_of_a_batch_is_the_row_alone() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let mut all = AgreementCount::default();
    for family in FAMILIES {
        let reasoner =
            reasoner(&gpu.device, &CheckpointSpec { family, ..CheckpointSpec::default() });
        let mut tally = AgreementCount::default();
        for perturbation in kinds() {
            let many = settings(&reasoner, 16, perturbation);
            let one = SamplingParams { samples: count(1), ..many };
            for asked in many_questions(20) {
                let batch = replayed(&reasoner, &many, &prompted(&reasoner, &asked));
                tally.add_led(&led(&reasoner, &one, &asked, &batch[..1]), &batch[..1]);
            }
        }
        tally.show(&format!("{family:?} alone and in a batch"));
        tally.assert_within(SINGLE, &format!("{family:?}"));
        all.add(tally);
    }
    all.show("alone and in a batch");
    all.assert_alike("alone and in a batch");
}

#[test]
fn a_seed_gives_the_trajectories_of_the_processor() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let mut all = AgreementCount::default();
    for family in FAMILIES {
        let (cpu, gpu) = (
            RewardedReasoner::of(family),
            RewardedReasoner::new(
                &gpu.device,
                &CheckpointSpec { family, ..CheckpointSpec::default() },
            ),
        );
        let mut tally = AgreementCount::default();
        for perturbation in &kinds()[1..] {
            let settings = settings(&cpu.reasoner, 16, *perturbation);
            tally.add_free(
                &gpu.ask(settings, &many_questions(10)),
                &cpu.ask(settings, &many_questions(10)),
            );
        }
        tally.show(&format!("{family:?} on gpu and cpu, free"));
        tally.assert_alike(&format!("{family:?}"));
        tally.assert_within(FREE, &format!("{family:?}"));
        all.add(tally);
    }
    all.show("gpu and cpu, free");
    assert!(all.rows >= 500);
}

/// The rows of a family on a device, led along the processor's thoughts.
fn against_the_processor(device: &Device, family: CheckpointFamily) -> AgreementCount {
    let (cpu, gpu) = (
        RewardedReasoner::of(family),
        RewardedReasoner::new(device, &CheckpointSpec { family, ..CheckpointSpec::default() }),
    );
    let mut tally = AgreementCount::default();
    for perturbation in perturbations() {
        let settings = settings(&cpu.reasoner, 8, perturbation);
        for asked in questions() {
            let prompt = prompted(&cpu.reasoner, &asked);
            let expected = replayed(&cpu.reasoner, &settings, &prompt);
            tally.add_led(&led(&gpu.reasoner, &settings, &asked, &expected), &expected);
            let path: Vec<Tensor> = expected.into_iter().map(|row| row.thoughts).collect();
            let [found, expected] = [&gpu, &cpu]
                .map(|on| reference::rewards(&on.judge, &prompt, &path).unwrap().concat());
            tally.add_rewards(&found, &expected);
        }
    }
    tally
}

#[test]
fn numbers_are_those_of_the_processor() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    for family in FAMILIES {
        let tally = against_the_processor(&gpu.device, family);
        tally.show(&format!("{family:?} on gpu and cpu, led"));
        tally.assert_within(SINGLE, &format!("{family:?}"));
        tally.assert_alike(&format!("{family:?}"));
    }
}

/// Which tokens a mixture takes is a choice, which a near tie can turn: its thoughts are not
/// compared.
#[test]
fn numbers_in_bf16_are_near_those_of_the_processor() {
    let Some(gpu) = gpu(Precision::Bf16) else { return };
    for family in FAMILIES {
        let mut tally = against_the_processor(&gpu.device, family);
        tally.show(&format!("{family:?} on gpu in bf16 and cpu, led"));
        if family == CheckpointFamily::LatentSft {
            tally.thoughts = 0.0;
        }
        tally.assert_within(BF16, &format!("{family:?}"));
    }
}

/// Fails unless runs of every family agree: `compare` gives runs that differ in nothing but their
/// company.
fn assert_company_does_not_matter(
    what: &str,
    compare: impl Fn(&RewardedReasoner, Perturbation, &mut AgreementCount),
) {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let mut all = AgreementCount::default();
    for family in FAMILIES {
        let pair = RewardedReasoner::new(
            &gpu.device,
            &CheckpointSpec { family, ..CheckpointSpec::default() },
        );
        for perturbation in perturbations() {
            compare(&pair, perturbation, &mut all);
        }
    }
    all.show(what);
    all.assert_alike(what);
    all.assert_within(FREE, what);
}

#[test]
fn fewer_samples_are_the_first_ones() {
    assert_company_does_not_matter("4 samples and 16", |pair, perturbation, tally| {
        let [few, many] = company::few_of_many(pair, perturbation);
        tally.add_free(&few, &many);
    });
}

#[test]
fn a_small_budget_changes_nothing() {
    assert_company_does_not_matter("little memory and plenty", |pair, perturbation, tally| {
        let (whole, split) = company::in_little_memory(pair, perturbation);
        split.iter().for_each(|(_, split)| tally.add_free(split, &whole));
    });
}

#[test]
fn the_order_of_questions_changes_nothing() {
    assert_company_does_not_matter(
        "questions in order and reversed",
        |pair, perturbation, tally| {
            let settings = settings(&pair.reasoner, 4, perturbation);
            let (there, mut back) = (questions(), questions());
            back.reverse();
            let (there, mut back) = (pair.ask(settings, &there), pair.ask(settings, &back));
            back.reverse();
            tally.add_free(&back, &there);
        },
    );
}

/// Rows too many for passes to be replayed, which are made ready before it is known who goes on;
/// and few enough for one lane.
#[test]
fn rows_that_end_at_unlike_tokens_do_not_disturb_the_others() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let mut all = AgreementCount::default();
    for family in FAMILIES {
        let mut pair = RewardedReasoner::new(
            &gpu.device,
            &CheckpointSpec { family, ..CheckpointSpec::default() },
        );
        let asked = many_questions(100);
        let settings = SamplingParams {
            max_new_tokens: count(40),
            ..settings(&pair.reasoner, 16, thoughtful(0.3))
        };
        company::end_at_many_places(&mut pair.reasoner, settings, &asked[..20]);
        let few: Vec<Outcome> = asked.chunks(4).flat_map(|some| pair.ask(settings, some)).collect();
        all.add_free(&pair.ask(settings, &asked), &few);
    }
    all.show("rows that end, many and few");
    all.assert_alike("rows that end, many and few");
}

/// Rows enough for waves in several lanes at once, beside the same questions a few at a time, which
/// have one lane. Again the same waves give the same bits: what one lane does to another's memory
/// would show.
#[test]
fn lanes_change_nothing() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let mut all = AgreementCount::default();
    for (family, perturbation) in FAMILIES.into_iter().zip(perturbations().into_iter().cycle()) {
        let pair = RewardedReasoner::new(
            &gpu.device,
            &CheckpointSpec { family, ..CheckpointSpec::default() },
        );
        let (asked, what) = (many_questions(200), format!("{family:?}, {perturbation:?} in lanes"));
        let settings = settings(&pair.reasoner, 64, perturbation);
        let together = pair.ask(settings, &asked);
        let few: Vec<Outcome> =
            asked.chunks(40).flat_map(|some| pair.ask(settings, some)).collect();
        all.add_free(&together, &few);
        for again in [pair.ask(settings, &asked), pair.ask(settings, &asked)] {
            together.iter().zip(&again).for_each(|(a, b)| assert_same(a, b, &what));
        }
    }
    // Other batches have other products, and models of random weights let rounding grow from
    // thought to thought: among a hundred thousand rows that run free some end far apart, so
    // that rows are compared by what they do.
    all.show("in lanes and alone");
    all.assert_alike("in lanes and alone");
}

/// The same of rollouts, and of rows that stop when their vote is certain.
#[test]
fn lanes_change_neither_labels_nor_votes() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let spec = CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() };
    let pair = RewardedReasoner::new(&gpu.device, &spec);
    let prompts: Vec<_> =
        many_questions(200).iter().map(|asked| prompted(&pair.reasoner, asked)).collect();
    let settings = settings(&pair.reasoner, 8, thoughtful(0.2));
    let labelled =
        |prompts: &[_]| rollout::all_of(&pair.reasoner, settings, rollout::rollouts(4), prompts);
    let (together, few) =
        (labelled(&prompts), prompts.chunks(4).flat_map(labelled).collect::<Vec<_>>());
    assert!(together.iter().map(|of| of.id).eq(prompts.iter().map(|prompt| prompt.id)));
    let (same, labels) = same_labels(&together, &few);
    println!("{same} of {labels} labels in lanes are those without");
    assert!(same * 100 >= labels * 97, "{same} of {labels} labels");

    let settings =
        SamplingParams { adaptive: rounds::adaptive(1.0), samples: count(64), ..settings };
    let asked = many_questions(600);
    let (together, few) =
        (pair.ask(settings, &asked), asked.chunks(100).flat_map(|some| pair.ask(settings, some)));
    let drawn = |outcome: &Outcome| (outcome.sample.id, outcome.sample.trajectories.len());
    let alike = together.iter().zip(few).filter(|(a, b)| drawn(a) == drawn(b)).count();
    println!("{alike} of {} adaptive questions in lanes stop where they do without", asked.len());
    assert!(alike * 100 >= asked.len() * 97, "{alike} of {}", asked.len());
}

/// How often each run is asked: a pass is recorded when it is met again and replayed from then on.
const TIMES: usize = 3;

/// Rows that feed themselves, so that a difference anywhere would grow, in both precisions.
#[test]
fn replayed_passes_are_those_launched_to_the_bit() {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some(gpu) = gpu(precision) else { return };
        for family in FAMILIES {
            let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
            let (replaying, launching) = (
                RewardedReasoner::new(&gpu.device, &spec),
                RewardedReasoner::new(&gpu.device, &spec).without_replays(),
            );
            for perturbation in perturbations() {
                let settings = settings(&launching.reasoner, 8, perturbation);
                let expected = launching.ask(settings, &questions());
                for time in 0..TIMES {
                    let what = format!("{family:?} in {precision}, {perturbation:?}, time {time}");
                    let found = replaying.ask(settings, &questions());
                    assert_eq!(found.len(), expected.len(), "{what}");
                    found.iter().zip(&expected).for_each(|(a, b)| assert_same(a, b, &what));
                }
            }
            let [thought, scored] =
                [&replaying.reasoner.decoder, &replaying.judge.decoder].map(Decoder::graph_replays);
            println!(
                "{family:?} in {precision}: {thought} passes of the reasoner replayed, {scored} of its judge"
            );
            // A judge sees a wave once: it replays only if its cache is put where the last one was.
            assert!(thought > 0, "{family:?} in {precision}: nothing was replayed");
            assert_eq!(
                launching.reasoner.decoder.graph_replays()
                    + launching.judge.decoder.graph_replays(),
                0
            );
        }
    }
}

/// Rounding turns only choices between extensions whose rewards are all but equal.
#[test]
fn a_search_finds_what_it_finds_on_the_processor() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let (mut alike, mut searches) = (0, 0);
    for family in FAMILIES {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let (on_gpu, on_cpu) =
            (RewardedReasoner::new(&gpu.device, &spec), RewardedReasoner::of(family));
        for perturbation in perturbations() {
            let settings = SamplingParams {
                beam: beams::size(2, 3),
                ..settings(&on_cpu.reasoner, 1, perturbation)
            };
            let found = on_gpu
                .ask(settings, &questions())
                .into_iter()
                .zip(on_cpu.ask(settings, &questions()));
            for (a, b) in found.map(|(a, b)| (a.sample.beam.unwrap(), b.sample.beam.unwrap())) {
                searches += 1;
                alike += usize::from((a.thoughts, &a.text) == (b.thoughts, &b.text));
            }
        }
    }
    println!("{alike} of {searches} searches find the same on gpu and cpu");
    assert!(100 * alike >= 95 * searches, "{alike} of {searches}");
}

#[test]
fn masks_are_drawn_to_the_bit() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    chance::assert_masks_are_drawn(&gpu.device);
    println!("all masks are the drawn ones");
}

/// A budget beyond the GPU's memory makes waves that cannot be had; they are cut until they can.
///
/// A row's slots are reserved for the longest answer that the context allows, however little of it
/// the prompt leaves. So a prompt that all but fills a long context makes rows that take much
/// memory and no time.
#[test]
fn waves_beyond_the_memory_are_halved() {
    const CONTEXT: usize = 4096;
    let Some(gpu) = gpu(Precision::F32) else { return };
    let spec = CheckpointSpec {
        family: CheckpointFamily::CodiLlama,
        kv_heads: 4,
        head_dim: 128,
        context: CONTEXT,
        ..CheckpointSpec::default()
    };
    let reasoner = reasoner(&gpu.device, &spec);
    let (_, total) = gpu.device.memory().unwrap().unwrap();
    let row = CONTEXT * Cache::bytes_per_position(&gpu.device, reasoner.decoder.config());
    let around = prompted(&reasoner, &question(1, "")).tokens.len();
    let asked = question(1, &"7".repeat(CONTEXT - around - 8));
    let short = SamplingParams {
        length: exactly(2),
        max_new_tokens: count(CONTEXT),
        memory: total / 8,
        ..settings(&reasoner, total / row + 1, thoughtful(0.2))
    };
    let run = |settings| {
        ask(
            Engine { reasoner: &reasoner, reward_model: None, params: settings },
            std::slice::from_ref(&asked),
        )
        .unwrap()
    };
    let whole = run(SamplingParams { memory: usize::MAX / 2, ..short });
    assert!(whole[0].sample.trajectories.iter().map(|t| t.k as usize).eq(0..short.samples.get()));
    let mut tally = AgreementCount::default();
    tally.add_free(&whole, &run(short));
    let what = format!("{} rows of {} MiB in {} MiB", short.samples, row >> 20, total >> 20);
    tally.show(&what);
    tally.assert_alike(&what);
    tally.assert_within(FREE, &what);
}

/// Neither thoughts nor end tokens: answers are read off the prompt, some by the likeliest token
/// and some drawn.
#[test]
fn words_are_those_of_the_processor() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    for family in [CheckpointFamily::Coconut, CheckpointFamily::LatentSft] {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let [cpu, gpu] = [device(), &gpu.device].map(|device| words::reasoner(device, &spec));
        let mut tally = AgreementCount::default();
        for perturbation in [Perturbation::None, drawn(1.0, 1.0), drawn(0.7, 0.9)] {
            let settings =
                SamplingParams { max_new_tokens: count(12), ..settings(&cpu, 16, perturbation) };
            let [expected, found] = [&cpu, &gpu].map(|on| words::run(on, settings));
            tally.add_free(&found, &expected);
            let said = |outcomes: &[Outcome]| {
                outcomes.iter().flat_map(|o| o.sample.trajectories.clone()).collect::<Vec<_>>()
            };
            for (a, b) in said(&found).iter().zip(said(&expected)).filter(|(a, b)| a.text == b.text)
            {
                let (a, b) = (a.logprob.unwrap(), b.logprob.unwrap());
                assert!(
                    (a - b).abs() <= FREE * b.abs().max(1.0),
                    "{family:?}, {perturbation:?}: {a} and {b}"
                );
            }
        }
        tally.show(&format!("{family:?} in words on gpu and cpu"));
        tally.assert_alike(&format!("{family:?} in words"));
    }
}

/// A judge that reads answers, where there is nothing else to read.
#[test]
fn answers_without_thoughts_are_judged_as_on_the_processor() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let [expected, found] = [device(), &gpu.device].map(|on| {
        let mut pair = RewardedReasoner::new(
            on,
            &CheckpointSpec { family: CheckpointFamily::Coconut, ..CheckpointSpec::default() },
        );
        pair.judge.outcome_head =
            RewardHead::outcome(on, pair.judge.decoder.config(), &RandomWeights { seed: 5 })
                .unwrap();
        let settings = SamplingParams {
            length: LatentLength::None,
            ..settings(&pair.reasoner, 4, drawn(1.0, 1.0))
        };
        pair.ask(settings, &questions())
            .into_iter()
            .flat_map(|outcome| outcome.sample.trajectories)
            .collect::<Vec<_>>()
    });
    let alike: Vec<_> = found.iter().zip(&expected).filter(|(a, b)| a.text == b.text).collect();
    assert!(
        alike.len() * 100 >= expected.len() * 99,
        "{} of {} rows say the same",
        alike.len(),
        expected.len()
    );
    for (a, b) in alike {
        let (a, b) = (a.outcome_reward.unwrap(), b.outcome_reward.unwrap());
        assert!((a - b).abs() <= SINGLE * b.abs().max(1.0), "{a} and {b}");
    }
}

/// Labels of two runs, in order, and how many of them are the same.
fn same_labels(found: &[AnnotatedQuestion], expected: &[AnnotatedQuestion]) -> (usize, usize) {
    let labels = |all: &[AnnotatedQuestion]| {
        all.iter().flat_map(|a| &a.trajectories).map(|p| p.labels.clone()).collect::<Vec<_>>()
    };
    let (found, expected) = (labels(found), labels(expected));
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(&expected).flat_map(|(a, b)| a.iter().zip(b));
    (pairs.filter(|(a, b)| a == b).count(), expected.iter().map(Vec::len).sum())
}

#[test]
fn rollouts_give_the_labels_of_the_processor() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    for family in FAMILIES {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let (cpu, gpu) = (reasoner(device(), &spec), reasoner(&gpu.device, &spec));
        for perturbation in perturbations() {
            let settings = settings(&cpu, 8, perturbation);
            let [found, expected] = [&gpu, &cpu].map(|on| {
                rollout::all_of(on, settings, rollout::rollouts(4), &rollout::prompts(on))
            });
            let (same, all) = same_labels(&found, &expected);
            println!(
                "{family:?}, {perturbation:?}: {same} of {all} labels are those of the processor"
            );
            assert!(same * 100 >= all * 97, "{family:?}, {perturbation:?}: {same} of {all} labels");
        }
    }
}

/// As [`waves_beyond_the_memory_are_halved`], of rollouts from the thoughts of one question.
#[test]
fn rollouts_beyond_the_memory_are_made_in_parts() {
    const CONTEXT: usize = 4096;
    let Some(gpu) = gpu(Precision::F32) else { return };
    let spec = CheckpointSpec {
        family: CheckpointFamily::CodiLlama,
        kv_heads: 4,
        head_dim: 128,
        context: CONTEXT,
        ..CheckpointSpec::default()
    };
    let reasoner = reasoner(&gpu.device, &spec);
    let (_, total) = gpu.device.memory().unwrap().unwrap();
    let row = CONTEXT * Cache::bytes_per_position(&gpu.device, reasoner.decoder.config());
    let around = prompted(&reasoner, &question(1, "")).tokens.len();
    let asked = prompted(&reasoner, &question(1, &"7".repeat(CONTEXT - around - 8)));
    let few = SamplingParams {
        length: exactly(2),
        max_new_tokens: count(CONTEXT),
        memory: total / 8,
        ..settings(&reasoner, 2, thoughtful(0.2))
    };
    let labels = rollout::rollouts(total / row / 2 + 1);
    let run = |settings| rollout::all_of(&reasoner, settings, labels, std::slice::from_ref(&asked));
    let whole = run(SamplingParams { memory: usize::MAX / 2, ..few });
    let parts = run(few);
    println!("{} rollouts of {} MiB in {} MiB", whole[0].rollouts, row >> 20, total >> 20);
    assert_eq!(whole[0].rollouts, 2 * labels.rollouts());
    for (a, b) in whole[0]
        .trajectories
        .iter()
        .zip(&parts[0].trajectories)
        .flat_map(|(a, b)| a.labels.iter().zip(&b.labels))
    {
        assert!((a - b).abs() < 0.05, "{a} at once and {b} in parts");
    }
}
