//! Properties that hold bitwise on the CPU hold bitwise on a GPU opened as deterministic, in both
//! precisions: a trajectory does not depend on other questions, the number of samples, the memory,
//! batches and their splitting, streams, CUDA graphs or the continuous batch.
//!
//! Tiny models of every family have small heads, which use the generic attention; so two models
//! whose shapes have specialized kernels are tested as well.

use latent_tts_engine::rollout::AnnotatedQuestion;
use latent_tts_engine::{Output, Perturbation, Request, SamplingParams};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use tensor::{Device, Precision};

use super::{GpuFixture, TIMES, gpu_as, many_questions, tiny};
use crate::common::*;
use crate::{batching, beam_search, mixed_requests, rollout, scheduler};

/// GPT-2's width, for which the residual stream has a specialized kernel, and heads of 64.
fn gpt2() -> CheckpointSpec {
    CheckpointSpec { width: 768, heads: 12, ffn: 1024, ..CheckpointSpec::default() }
}

/// Four query heads to a key head, rotated.
fn llama() -> CheckpointSpec {
    CheckpointSpec {
        family: CheckpointFamily::CodiLlama,
        width: 256,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        ffn: 384,
        ..CheckpointSpec::default()
    }
}

/// Runs `check` in both precisions for the models of `specs`; prints why if there is no GPU.
fn for_each_model(
    specs: impl IntoIterator<Item = CheckpointSpec>,
    check: impl Fn(&RewardedReasoner, &str),
) {
    let specs: Vec<CheckpointSpec> = specs.into_iter().collect();
    for precision in [Precision::F32, Precision::Bf16] {
        let Some(GpuFixture { device, _turn }) = gpu_as(precision, true) else { return };
        for spec in &specs {
            let what = format!("{:?}, {} wide, in {precision}", spec.family, spec.width);
            check(&RewardedReasoner::new(&device, spec), &what);
            println!("{what}: the same bits");
        }
    }
}

fn all_models() -> impl Iterator<Item = CheckpointSpec> {
    FAMILIES.map(tiny).into_iter().chain([gpt2(), llama()])
}

/// Families whose thoughts are computed in different ways, and the shapes with specialized kernels.
fn some_models() -> [CheckpointSpec; 4] {
    [tiny(CheckpointFamily::Colar), tiny(CheckpointFamily::LatentSft), gpt2(), llama()]
}

#[test]
fn the_flag_is_the_devices() {
    assert!(device().is_deterministic(), "a CPU always is");
    assert_eq!(device().deterministic_numerics(), None, "and says nothing of it in a manifest");
    let Some(GpuFixture { device, _turn }) = gpu_as(Precision::Bf16, true) else { return };
    assert!(device.is_deterministic() && device.describe().ends_with(", deterministic"));
    assert!(device.deterministic_numerics().unwrap().starts_with("bf16 on compute capability"));
    assert!(!Device::cuda(0, Precision::Bf16).unwrap().is_deterministic());
}

#[test]
fn a_question_of_a_batch_gets_the_reply_that_it_gets_alone() {
    for_each_model(all_models(), |pair, what| {
        for perturbation in perturbations() {
            let params = short_params(&pair.reasoner, 3, perturbation);
            let params = SamplingParams { greedy: true, ..params };
            let what = format!("{what}, {perturbation:?}");
            batching::assert_same_alone(pair, params, &questions(), &what);
        }
    });
}

/// Also compares the first logits, which outputs do not contain.
#[test]
fn a_row_of_a_batch_is_the_row_alone() {
    for_each_model(all_models(), |pair, what| {
        let prompt = prompt_of(&pair.reasoner, &questions()[2]);
        for perturbation in perturbations() {
            let many = short_params(&pair.reasoner, 19, perturbation);
            let one = SamplingParams { samples: nonzero(1), ..many };
            let [many, one] =
                [many, one].map(|params| run_sequences(&pair.reasoner, &params, &prompt));
            let what = format!("{what}, {perturbation:?}");
            assert_eq!(many[0].first_logits, one[0].first_logits, "{what}: first logits");
            assert_same_bits(&many[0].thoughts, &one[0].thoughts, &what);
            assert_eq!(many[0].tokens, one[0].tokens, "{what}");
        }
    });
}

#[test]
fn fewer_samples_are_the_first_ones() {
    for_each_model(all_models(), |pair, what| {
        for perturbation in perturbations() {
            let [few, many] = batching::few_of_many(pair, perturbation);
            for (many, few) in many.iter().zip(&few) {
                let what = format!("{what}, {perturbation:?}");
                assert_same_trajectories(&many.trajectories, &few.trajectories, &what);
            }
        }
    });
}

/// Batches that are split for lack of memory.
#[test]
fn little_memory_changes_nothing() {
    for_each_model(some_models(), |pair, what| {
        for perturbation in [Perturbation::None, thought_dropout(0.3), perturbations()[2]] {
            let (whole, split) = batching::run_in_little_memory(pair, perturbation);
            for (memory, split) in &split {
                let what = format!("{what}, {perturbation:?}, {memory} bytes");
                assert_all_same(&whole, split, &what);
            }
        }
    });
}

/// Requests with different parameters in one run, each of them alone, and in a continuous batch
/// with scattered slots.
#[test]
fn mixed_requests_and_the_continuous_batch_change_nothing() {
    for_each_model(all_models(), |pair, what| {
        let engine = pair.engine();
        let mixed = mixed_requests::mixed_requests(&pair.reasoner);
        let alone = mixed_requests::solve_alone(&engine, &mixed);
        let together = run_requests(&engine, &mixed).unwrap();
        assert_all_same(&together, &alone, &format!("{what}, together"));
        let mixed = mixed_requests::without_searches(&mixed);
        let alone = mixed_requests::solve_alone(&engine, &mixed);
        for at_once in [100, 5] {
            let what = format!("{what}, {at_once} at once in a continuous batch");
            assert_all_same(&scheduler::replies(&engine, &mixed, at_once), &alone, &what);
        }
    });
}

/// Too many sequences for CUDA graphs, for which the next step is launched before it is known which
/// sequences continue; and few enough for graphs.
#[test]
fn rows_that_end_at_different_tokens_do_not_disturb_the_others() {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some(GpuFixture { device, _turn }) = gpu_as(precision, true) else { return };
        for spec in some_models() {
            let mut pair = RewardedReasoner::new(&device, &spec);
            let questions = many_questions(60);
            let params = short_params(&pair.reasoner, 16, thought_dropout(0.3));
            let params = SamplingParams { max_new_tokens: nonzero(40), ..params };
            batching::spread_answer_ends(pair.reasoner_mut(), params, &questions[..20]);
            let few: Vec<Output> =
                questions.chunks(4).flat_map(|some| pair.run(params, some)).collect();
            let what = format!("{:?}, {} wide, in {precision}", spec.family, spec.width);
            assert_all_same(&pair.run(params, &questions), &few, &what);
        }
    }
}

/// Enough sequences for batches on several streams at once, and the same questions a few at a time.
#[test]
fn streams_change_nothing() {
    for_each_model(some_models(), |pair, what| {
        let questions = many_questions(200);
        let params = short_params(&pair.reasoner, 64, thought_dropout(0.2));
        let together = pair.run(params, &questions);
        let few: Vec<Output> =
            questions[..40].chunks(8).flat_map(|some| pair.run(params, some)).collect();
        assert_all_same(&together[..40], &few, what);
    });
}

/// A pass is captured when it recurs and replayed from then on; additional sequences make it too
/// large for that.
#[test]
fn replayed_graphs_and_launched_passes_are_the_same() {
    for_each_model(all_models(), |pair, what| {
        let params = short_params(&pair.reasoner, 8, thought_dropout(0.2));
        let among_many = pair.run(params, &many_questions(80));
        for time in 0..TIMES {
            let few = pair.run(params, &many_questions(3));
            assert_all_same(&few, &among_many[..3], &format!("{what}, time {time}"));
        }
    });
}

#[test]
fn a_beam_search_is_the_same_beside_others() {
    for_each_model(some_models(), |pair, what| {
        for perturbation in [thought_dropout(0.2), perturbations()[2]] {
            let search = beam_search::size(3, 4);
            let params = SamplingParams { search, ..short_params(&pair.reasoner, 3, perturbation) };
            let what = format!("{what}, {perturbation:?}");
            batching::assert_same_alone(pair, params, &questions(), &what);
        }
    });
}

#[test]
fn labels_of_rollouts_are_the_same_beside_others() {
    for_each_model(some_models(), |pair, what| {
        let prompts: Vec<_> =
            many_questions(24).iter().map(|q| prompt_of(&pair.reasoner, q)).collect();
        let params = short_params(&pair.reasoner, 8, thought_dropout(0.2));
        let runner = rollout::runner(&pair.reasoner, params, rollout::rollouts(4));
        let together = rollout::annotate(runner, &prompts);
        let few: Vec<AnnotatedQuestion> =
            prompts.chunks(3).flat_map(|some| rollout::annotate(runner, some)).collect();
        assert_eq!(together.len(), few.len(), "{what}");
        for (a, b) in together.iter().zip(&few) {
            for (a, b) in a.trajectories.iter().zip(&b.trajectories) {
                assert_same_bits(&a.thoughts, &b.thoughts, what);
                assert_eq!(a.labels, b.labels, "{what}");
            }
        }
    });
}

/// A resumed run computes the remaining questions, with the same ids.
#[test]
fn the_rest_of_a_run_is_what_the_whole_run_had() {
    for_each_model(some_models(), |pair, what| {
        let params = short_params(&pair.reasoner, 16, thought_dropout(0.2));
        let params = SamplingParams { greedy: true, ..params };
        let requests: Vec<Request> =
            many_questions(50).iter().map(|question| question.request(params)).collect();
        let engine = pair.engine();
        let whole = run_requests(&engine, &requests).unwrap();
        for done in [1, 17, 49] {
            let rest = run_requests(&engine, &requests[done..]).unwrap();
            assert_all_same(&rest, &whole[done..], &format!("{what}, from {done} on"));
        }
    });
}
