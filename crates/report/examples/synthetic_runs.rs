//! Synthetic run directories and trainings with their reports, without a model.
//!
//! `cargo run -p latent-tts-report --example synthetic_runs -- OUT [QUESTIONS] [SAMPLES]` writes
//! runs at several strengths of dropout and noise, with rewards and thoughts, and the report of all
//! of them. A perturbation increases the variance of the answers and lowers their accuracy, so
//! coverage grows with N and is largest at a moderate strength, as in the paper. `OUT/trainings`
//! has two trainings and their comparison.

use std::path::Path;

use aggregate::StepDiversity;
use latent_tts_report::interval::Bootstrap;
use record::{
    AblatedAnswer, AblatedQuestion, Ablation, AblationKind, BeamResult, LatentsWriter, Manifest,
    RunDir, Sample, StageSeconds, TrainingDir, TrajectoryRecord,
};
use serde_json::{Value, json};

const THOUGHTS: usize = 6;
const WIDTH: usize = 24;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().ok_or("usage: synthetic_runs OUT [QUESTIONS] [SAMPLES]")?;
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let questions = number(200)?;
    let samples = number(64)?;
    let out = Path::new(&out);
    let mut runs = Vec::new();
    for strength in [0.05, 0.1, 0.2, 0.3, 0.5] {
        let dropout = json!({ "sampler": "dropout", "dropout_p": strength, "sites": "both", "scope": "thoughts" });
        let noise = json!({ "sampler": "noise", "noise_std": 2.0 * strength });
        for (name, sampler) in [("dropout", dropout), ("noise", noise)] {
            let run = SyntheticRun { questions, samples, strength, noisy: name == "noise" };
            runs.push(run.write(&out.join(format!("{name}-{strength}")), sampler)?);
        }
    }
    for fewer in [4, 16].into_iter().filter(|fewer| *fewer < samples) {
        let sampler =
            json!({ "sampler": "dropout", "dropout_p": 0.2, "sites": "both", "scope": "thoughts" });
        let run = SyntheticRun { questions, samples: fewer, strength: 0.2, noisy: false };
        runs.push(run.write(&out.join(format!("dropout-0.2-n{fewer}")), sampler)?);
    }
    let files = latent_tts_report::write(&runs, out, latent_tts_report::ReportOptions::default())?;
    println!("{}", files.page.display());
    let trainings = [("steady", 1e-3), ("hasty", 1e-2)]
        .map(|(name, lr)| write_training(&out.join("trainings").join(name), lr));
    let trainings = trainings.into_iter().collect::<Result<Vec<_>, _>>()?;
    let trainings_out = out.join("trainings");
    let files = latent_tts_report::write_trainings(
        &trainings,
        &trainings_out,
        latent_tts_report::ReportOptions::default(),
    )?;
    println!("{}", files.page.display());
    Ok(())
}

/// The records of a training of 2000 steps; with a larger learning rate it is faster and worse.
fn write_training(model: &Path, lr: f64) -> Result<TrainingDir, Box<dyn std::error::Error>> {
    const STEPS: u32 = 2000;
    let records = TrainingDir::new(model.join(record::TRAINING_DIR));
    std::fs::create_dir_all(records.path())?;
    let mut random = SyntheticRng((lr * 1e6) as u64);
    let mut log = String::new();
    let mut evals = String::new();
    let mut timings = String::new();
    for step in 0..STEPS {
        let progress = f64::from(step) / f64::from(STEPS);
        let floor = 0.15 + 40.0 * lr * progress;
        let loss = (floor + 5.5 * (-f64::from(step) * (lr / 0.1).sqrt() / 20.0).exp())
            * (1.0 + 0.15 * random.normal());
        let schedule = lr * f64::from(step + 1).min(200.0) / 200.0 * (1.0 - 0.9 * progress);
        let norm = (0.4 + loss.abs() / 4.0) * (0.3 * random.normal()).exp();
        let line = json!({
            "step": step, "loss": loss.abs(), "distill": 0.2 * loss.abs() + 0.02, "lr": schedule,
            "grad_norm": norm, "n_examples": 64, "n_tokens": 5120,
        });
        log.push_str(&format!("{line}\n"));
        timings.push_str(&format!("{}\n", json!({ "step": step, "seconds": 0.12 })));
    }
    let mut best = 0.0;
    for eval in 1..=10u32 {
        let share = f64::from(eval) / 10.0;
        let score = 0.7 * share.sqrt() - 25.0 * lr * share * share + 0.01 * random.normal();
        let score = (score.clamp(0.0, 1.0) * 500.0).round() / 500.0;
        let line = json!({
            "step": eval * STEPS / 10, "score": score, "kept": score > best,
            "metrics": { "greedy": score, "problems": 500 },
        });
        best = score.max(best);
        evals.push_str(&format!("{line}\n"));
    }
    let settings = json!({ "steps": STEPS, "batch": 64, "seed": 0, "lr": lr });
    std::fs::write(records.log_file(), log)?;
    std::fs::write(records.evals_file(), evals)?;
    std::fs::write(records.timings_file(), timings)?;
    std::fs::write(records.settings_file(), settings.to_string())?;
    Ok(records)
}

struct SyntheticRun {
    questions: usize,
    samples: usize,
    strength: f64,
    noisy: bool,
}

/// A question; trajectories with a skill above its difficulty are correct.
struct SyntheticQuestion {
    gold: u64,
    difficulty: f64,
}

impl SyntheticRun {
    fn write(&self, path: &Path, mut sampling: Value) -> Result<RunDir, record::RecordError> {
        sampling["samples"] = json!(self.samples);
        let manifest = Manifest {
            program: "synthetic_runs".into(),
            created: "2026-01-01T00:00:00Z".into(),
            host: json!({ "model": "made-up", "data": "invented.json", "device": "no machine" }),
            settings: json!({ "method": "coconut", "rewards": true, "sampling": sampling }),
            seeds: vec![0],
            questions: self.questions,
            ..Manifest::default()
        };
        let mut writer = RunDir::overwrite(path, &manifest)?;
        let mut latents = LatentsWriter::open(path, WIDTH)?;
        for id in 0..self.questions as u32 {
            let (sample, thoughts) = self.question(id);
            latents.append(&sample, thoughts.iter().map(Vec::as_slice))?;
            writer.append(&sample)?;
        }
        let seconds = 0.002 * (self.questions * (self.samples + 4)) as f64;
        writer.append_timing(&StageSeconds {
            thoughts: 0.6 * seconds,
            answers: 0.3 * seconds,
            total: seconds,
            ..StageSeconds::default()
        })?;
        let run = writer.finish()?;
        latents.finish()?;
        run.write_ablation(&self.ablation())?;
        Ok(run)
    }

    /// Ablation: unmodified greedy answers, and with swapped thoughts the next question's answer.
    fn ablation(&self) -> Ablation {
        let answer = |id: u32, of: u32| {
            let question = self.question(id).0;
            let given = self.question(of).0;
            let answer = given.greedy.and_then(|greedy| greedy.answer);
            AblatedAnswer { correct: answer.as_ref() == Some(&question.gold), answer }
        };
        let count = self.questions as u32;
        let question = |id: u32| AblatedQuestion {
            id,
            latent_steps: THOUGHTS as u32,
            clean: answer(id, id),
            ablated: vec![answer(id, (id + 1) % count)],
        };
        let questions = (0..count).map(question).collect();
        latent_tts_report::ablation::measure(
            &[AblationKind::Swap],
            questions,
            0,
            &Bootstrap::default(),
        )
    }

    fn question(&self, id: u32) -> (Sample, Vec<Vec<f32>>) {
        let mut shared = SyntheticRng(u64::from(id) + 1);
        let question =
            SyntheticQuestion { gold: 2 + shared.below(90), difficulty: 1.6 * shared.normal() };
        let base: Vec<f64> = (0..THOUGHTS * WIDTH).map(|_| shared.normal()).collect();
        let apples = 3 + shared.below(20);
        let given = 1 + shared.below(9);
        let mut random = SyntheticRng(
            u64::from(id) << 20 | (self.strength * 1000.0) as u64 | u64::from(self.noisy) << 19,
        );
        let rows =
            (0..self.samples as u32).map(|k| self.trajectory(k, &question, &base, &mut random));
        let (trajectories, mut thoughts): (Vec<TrajectoryRecord>, Vec<Vec<f32>>) = rows.unzip();
        let diversity = Some(diversity(&thoughts));
        thoughts.push(base.iter().map(|x| *x as f32).collect());
        let greedy = self.answer(0, 0.4 - question.difficulty, &question, &mut shared);
        let token =
            |i: usize| (["7", "<b>", " and", "\n"][i].to_owned(), 0.5f32.powi(i as i32 + 1));
        let lens = vec![(0..4).map(token).collect(); THOUGHTS];
        let greedy = TrajectoryRecord { lens, ..greedy };
        let beam = self.answer(0, 0.8 - question.difficulty, &question, &mut random);
        let sample = Sample {
            id,
            question: format!(
                "Maria picks {apples} baskets of <b>apples</b> & gives {given} away to \"friends\". \
                 How many are left of question {id}?"
            ),
            gold: question.gold.to_string(),
            diversity,
            beam: Some(BeamResult {
                width: 8,
                candidates: (self.samples / 8).max(1) as u32,
                correct: beam.is_correct(),
                text: beam.text,
                answer: beam.answer,
                ..BeamResult::default()
            }),
            greedy: Some(greedy),
            trajectories,
            steps: (self.samples * 13) as u64,
            flops: 2e9 * (self.samples + 8) as f64,
            ..Sample::default()
        };
        (sample, thoughts)
    }

    fn trajectory(
        &self,
        k: u32,
        question: &SyntheticQuestion,
        base: &[f64],
        random: &mut SyntheticRng,
    ) -> (TrajectoryRecord, Vec<f32>) {
        let own: Vec<f64> = (0..4).map(|_| random.normal()).collect();
        // A stronger perturbation has more variance and lower accuracy; noise harms less than
        // dropout.
        let harm = if self.noisy { 4.0 } else { 9.0 } * self.strength * self.strength;
        let skill = 0.4 - question.difficulty - harm
            + 6.0 * self.strength / (1.0 + 3.0 * self.strength) * own[0];
        let trajectory = self.answer(k, skill, question, random);
        let lift = if trajectory.is_correct() { 0.5 } else { -0.2 };
        let reward = |t: usize, random: &mut SyntheticRng| {
            (0.5 + lift * (t + 1) as f64 / THOUGHTS as f64 + 0.3 * random.normal()) as f32
        };
        let rewards: Vec<f32> = (0..THOUGHTS).map(|t| reward(t, random)).collect();
        // Runs with noise have outcome rewards too.
        let outcome_reward = rewards.last().filter(|_| self.noisy).copied();
        let scale = |t: usize| if self.noisy { 0.5 + (t % 3) as f64 } else { 1.0 };
        let thought = |i: usize, random: &mut SyntheticRng| {
            base[i] + 1.5 * self.strength * scale(i / WIDTH) * (random.normal() + 2.0 * own[i % 4])
        };
        let thoughts = (0..base.len()).map(|i| thought(i, random) as f32).collect();
        (
            TrajectoryRecord { process_rewards: Some(rewards), outcome_reward, ..trajectory },
            thoughts,
        )
    }

    fn answer(
        &self,
        k: u32,
        skill: f64,
        question: &SyntheticQuestion,
        random: &mut SyntheticRng,
    ) -> TrajectoryRecord {
        let correct = skill > 0.0;
        let range = 1 + random.below(12);
        let wrong = question.gold + 1 + random.below(range);
        let answer = if correct { question.gold } else { wrong };
        let none = !correct && random.below(20) == 0;
        TrajectoryRecord {
            index: k,
            latent_steps: THOUGHTS as u32,
            text: if none { "### I do not".into() } else { format!("### {answer}") },
            answer: (!none).then(|| answer.to_string()),
            correct: Some(correct),
            ..TrajectoryRecord::default()
        }
    }
}

fn diversity(thoughts: &[Vec<f32>]) -> Vec<f64> {
    let mut diversity = StepDiversity::new(WIDTH);
    for trajectory in thoughts {
        trajectory.chunks(WIDTH).enumerate().for_each(|(t, thought)| diversity.add(t, thought));
    }
    diversity.values()
}

/// The SplitMix64 generator.
struct SyntheticRng(u64);

impl SyntheticRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next() as f64 / u64::MAX as f64).sum::<f64>() - 6.0
    }
}
