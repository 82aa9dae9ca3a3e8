//! Thoughts that are forced, mixed with Gumbel noise or read through a lens, on a GPU and on the
//! CPU.

use latent_tts_engine::{Lens, Perturbation, Request, SamplingParams, Temperature};
use model::testkit::CheckpointFamily;
use tensor::{Precision, Tensor};

use super::{AgreementCount, FREE_F32, gpu, many_questions, tiny};
use crate::common::*;

/// Forced thoughts are the same on both devices, so that only the answers can differ.
#[test]
fn forced_thoughts_give_the_answers_of_the_cpu() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    for family in FAMILIES {
        let cpu = RewardedReasoner::of(family);
        let gpu = RewardedReasoner::new(&gpu.device, &tiny(family));
        let params = short_params(&cpu.reasoner, 1, Perturbation::None);
        let clean = cpu.run(params, &many_questions(20));
        let request = |(question, reply): (&TestQuestion, &latent_tts_engine::Output)| {
            let own = latents(reply).remove(0);
            let zeros = Tensor::zeros(own.rows(), own.cols());
            let params = SamplingParams { samples: nonzero(3), ..params };
            // The third trajectory computes its thoughts, in the same passes.
            Request { forced_thoughts: vec![own, zeros].into(), ..question.request(params) }
        };
        let requests: Vec<Request> = many_questions(20).iter().zip(&clean).map(request).collect();
        let found = solve_all(&gpu.engine(), &requests);
        let expected = solve_all(&cpu.engine(), &requests);
        let mut count = AgreementCount::default();
        count.add_free(&found, &expected);
        count.print(&format!("{family:?}, forced by the request"));
        count.assert_agreeing(&format!("{family:?}"));
        for (found, expected) in found.iter().zip(&expected) {
            for k in 0..2 {
                let [a, b] = [found, expected].map(|reply| &reply.trajectories[k].latents);
                assert_same_bits(a, b, &format!("{family:?}, forced trajectory {k}"));
            }
        }
    }
}

/// Every token's noise equals the CPU's; at a near tie a mixture may select a different tenth
/// token.
#[test]
fn gumbel_mixtures_are_those_of_the_cpu() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    let cpu = RewardedReasoner::of(CheckpointFamily::LatentSft);
    let gpu = RewardedReasoner::new(&gpu.device, &tiny(CheckpointFamily::LatentSft));
    let mut count = AgreementCount::default();
    for tau in [0.3, 1.0, 2.0] {
        let perturbation =
            Perturbation::Gumbel { tau: Temperature::new(tau).unwrap(), one_sided: None };
        let params = short_params(&cpu.reasoner, 16, perturbation);
        let questions = many_questions(10);
        count.add_free(&gpu.run(params, &questions), &cpu.run(params, &questions));
    }
    count.print("gumbel noise on gpu and cpu, free");
    count.assert_agreeing("gumbel noise");
    count.assert_within(FREE_F32, "gumbel noise");
}

#[test]
fn a_lens_finds_the_tokens_of_the_cpu() {
    let Some(gpu) = gpu(Precision::F32) else { return };
    for family in FAMILIES {
        let cpu = RewardedReasoner::of(family);
        let gpu = RewardedReasoner::new(&gpu.device, &tiny(family));
        let params = short_params(&cpu.reasoner, 2, thought_dropout(0.2));
        let lens = Some(Lens { tokens: nonzero(1), sampled: true });
        let requests: Vec<Request> = many_questions(20)
            .iter()
            .map(|question: &TestQuestion| Request { lens, ..question.request(params) })
            .collect();
        let found = solve_all(&gpu.engine(), &requests);
        let expected = solve_all(&cpu.engine(), &requests);
        let mut thoughts = 0;
        let mut alike = 0;
        for (a, b) in found.iter().zip(&expected) {
            for (a, b) in a.trajectories.iter().zip(&b.trajectories) {
                assert_eq!(a.lens.len(), a.thoughts, "{family:?}");
                for (a, b) in a.lens.iter().zip(&b.lens) {
                    thoughts += 1;
                    alike += usize::from(a[0].token == b[0].token);
                }
            }
        }
        println!("{family:?}: {alike} of {thoughts} thoughts have the same token");
        assert!(alike * 100 >= thoughts * 99, "{family:?}: {alike} of {thoughts}");
    }
}
