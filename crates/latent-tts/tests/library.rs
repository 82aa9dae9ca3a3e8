//! The library without the command line, as its users call it.

#![expect(clippy::unwrap_used, reason = "what fails to load or to run fails the test")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;

use latent_tts::engine::EngineError;
use latent_tts::engine::rollout::ThoughtLabels;
use latent_tts::{
    AblationKind, Annotator, AnswerKind, AnswerRule, CancelToken, DataSource, DeviceKind,
    DeviceOptions, Error, Evaluation, FieldNames, LatentLength, MaskLifetime, Model,
    ModelSelection, OnExisting, Perturbation, Probability, Question, Request, RewardModelChoice,
    SamplingOptions, SamplingParams, grade, loglikelihood, record,
};
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};

fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// A tiny random reasoner in a directory, like a user's checkpoint.
fn checkpoint(dir: &Path) -> (ModelSelection, Model) {
    let spec = CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() };
    write_checkpoint(dir, &spec).unwrap();
    let selection = ModelSelection::new(dir.to_str().unwrap(), RewardModelChoice::Default).unwrap();
    let device = DeviceOptions { kind: DeviceKind::Cpu, ..DeviceOptions::default() };
    let model = selection.load(&device.open().unwrap()).unwrap();
    (selection, model)
}

fn params(model: &Model) -> SamplingParams {
    SamplingParams {
        samples: count(3),
        length: LatentLength::Exactly(count(3)),
        max_new_tokens: count(5),
        greedy: true,
        ..model.engine().unwrap().default_params()
    }
}

#[test]
fn batched_requests_get_the_same_results_as_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = checkpoint(dir.path());
    let engine = model.engine().unwrap();
    let base = params(&model);
    let noise = SamplingParams {
        samples: count(5),
        perturbation: Perturbation::Gaussian { std: 0.4 },
        length: LatentLength::Exactly(count(5)),
        seed: 9,
        ..base
    };
    let Perturbation::Dropout { sites, scope, .. } = base.perturbation else { unreachable!() };
    let mask = MaskLifetime::Trajectory;
    let p = Probability::new(0.5).unwrap();
    let strong = SamplingParams {
        perturbation: Perturbation::Dropout { p, sites, scope, mask },
        max_new_tokens: count(2),
        greedy: false,
        ..base
    };
    let requests = [
        Request::new("2+2?", base),
        Request { id: 7, ..Request::new("How many legs have 4 spiders?", noise) },
        Request { id: 8, ..Request::new("Half of 50?", strong) },
    ];
    let mut together = Vec::new();
    engine
        .run(&requests, |_, reply| -> Result<(), EngineError> {
            together.push(reply?);
            Ok(())
        })
        .unwrap();
    for (request, together) in requests.iter().zip(&mut together) {
        let mut alone = engine.solve(request).unwrap();
        // Only the times of a reply vary between runs.
        (alone.seconds, together.seconds) = Default::default();
        assert_eq!(*together, alone);
    }
}

#[test]
fn a_cancelled_request_leaves_the_others_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = checkpoint(dir.path());
    let engine = model.engine().unwrap();
    let cancel = CancelToken::default();
    cancel.cancel();
    let requests = vec![
        Request { id: 1, cancel, ..Request::new("2+2?", params(&model)) },
        Request { id: 2, ..Request::new("3+3?", params(&model)) },
    ];
    let replies: Vec<_> = engine.stream(requests).collect();
    assert!(matches!(replies[0], Err(EngineError::Cancelled { id: 1 })));
    assert_eq!(replies[1].as_ref().unwrap().trajectories.len(), 3);
}

#[test]
fn a_file_is_evaluated_and_resumed_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (models, model) = checkpoint(&dir.path().join("model"));
    let file = dir.path().join("data.jsonl");
    let lines = r#"{"question": "2+2?", "answer": "4"}
{"question": "Half of 50?", "answer": "25"}
"#;
    std::fs::write(&file, lines).unwrap();
    let data = DataSource::File(file, FieldNames::default());
    let questions = data.read(None, 0).unwrap();
    let engine = model.engine().unwrap();
    let options = SamplingOptions {
        latent_length: Some("3".parse().unwrap()),
        greedy: Some(true),
        ..SamplingOptions::new(NonZeroU32::new(4).unwrap())
    };
    let params = options.resolve(&model.reasoner().method).unwrap();
    let evaluation = |out: &str, on_existing| {
        Evaluation::new(&models, &data, params)
            .seeds([0, 1])
            .out(dir.path().join(out))
            .on_existing(on_existing)
            .lens(count(2))
            .ablations(AblationKind::ALL)
    };
    let samples = |out: &str| std::fs::read(dir.path().join(out).join("samples.jsonl")).unwrap();
    let output = evaluation("run", OnExisting::Refuse).run(&engine, &questions, &mut ()).unwrap();
    assert_eq!((output.results.questions, output.results.seeds), (2, 2));
    let ablation = output.ablation.unwrap();
    assert_eq!(output.run.ablation().unwrap().as_ref(), Some(&ablation));
    let greedy = |sample: &record::Sample| sample.greedy.as_ref().unwrap().answer.clone();
    let samples_of_run = output.run.samples().unwrap().map(Result::unwrap);
    for (question, sample) in ablation.questions.iter().zip(samples_of_run) {
        assert_eq!((question.id, &question.clean.answer), (sample.id, &greedy(&sample)));
        let lens = &sample.greedy.as_ref().unwrap().lens;
        assert!(lens.len() == 3 && lens.iter().all(|tokens| tokens.len() == 2), "{lens:?}");
        assert!(sample.trajectories.iter().all(|trajectory| trajectory.lens.is_empty()));
        assert_eq!((question.latent_steps, question.ablated.len()), (3, AblationKind::ALL.len()));
    }
    let refused = evaluation("run", OnExisting::Refuse).run(&engine, &questions, &mut ());
    assert!(refused.unwrap_err().to_string().contains("already holds a run"));

    // A run that was cut off after its first record continues.
    let whole = samples("run");
    evaluation("cut", OnExisting::Refuse).run(&engine, &questions, &mut ()).unwrap();
    let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    std::fs::write(dir.path().join("cut/samples.jsonl"), &whole[..first]).unwrap();
    evaluation("cut", OnExisting::Resume).run(&engine, &questions, &mut ()).unwrap();
    assert_eq!(samples("cut"), whole);
}

/// Workers send records as bytes, possibly late. A writer that adds them in order, and continues
/// after an interruption, produces the same file as a single process.
#[test]
fn records_of_other_processes_make_the_same_run() {
    let dir = tempfile::tempdir().unwrap();
    let (models, model) = checkpoint(&dir.path().join("model"));
    let file = dir.path().join("data.jsonl");
    let line = |n: usize| format!(r#"{{"question": "{n}+2?", "answer": "{}"}}"#, n + 2);
    std::fs::write(&file, (0..5).map(|n| line(n) + "\n").collect::<String>()).unwrap();
    let data = DataSource::File(file, FieldNames::default());
    let questions = data.read(None, 0).unwrap();
    let engine = model.engine().unwrap();
    let evaluation = |out: &str, on_existing| {
        Evaluation::new(&models, &data, params(&model))
            .seeds([0, 7])
            .out(dir.path().join(out))
            .on_existing(on_existing)
            .keep_latents(true)
    };
    evaluation("alone", OnExisting::Refuse).run(&engine, &questions, &mut ()).unwrap();

    let pieces = evaluation("pieces", OnExisting::Resume);
    for written in [3, usize::MAX] {
        let mut recorder = pieces.open(&engine, &questions).unwrap();
        let mut sent = Vec::new();
        for seed in [0, 7] {
            // Both workers of a seed, with the later questions first.
            let missing = recorder.missing(seed, &questions);
            let (first, second) = missing.split_at(missing.len() / 2);
            let mut records = [second, first].map(|part| {
                let mut records = Vec::new();
                let take = |record: record::QuestionRecord| {
                    records.push(record.to_bytes().unwrap());
                    Ok(())
                };
                pieces.sample(&engine, part, seed, take).unwrap();
                records
            });
            records.reverse();
            sent.extend(records.concat());
        }
        for bytes in sent.iter().take(written) {
            recorder.add(&record::QuestionRecord::from_bytes(bytes).unwrap()).unwrap();
        }
        if written == usize::MAX {
            assert_eq!(recorder.done_count(), recorder.total());
            pieces.finish(recorder).unwrap();
        }
    }
    for name in ["samples.jsonl", record::LATENTS_FILE] {
        let read = |out: &str| std::fs::read(dir.path().join(out).join(name)).unwrap();
        assert!(read("pieces") == read("alone"), "{name}");
    }
}

#[test]
fn cancelled_evaluations_and_annotations_end_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (models, model) = checkpoint(&dir.path().join("model"));
    let data = DataSource::parse("embedded:test:0..3").unwrap();
    let questions = data.read(None, 0).unwrap();
    let (engine, cancel) = (model.engine().unwrap(), CancelToken::default());
    cancel.cancel();
    let evaluation = Evaluation::new(&models, &data, params(&model))
        .out(dir.path().join("run"))
        .cancel(cancel.clone());
    let ended = evaluation.run(&engine, &questions, &mut ());
    assert!(matches!(ended, Err(Error::Engine(EngineError::Cancelled { .. }))));
    let params = SamplingParams { greedy: false, ..params(&model) };
    let annotator =
        Annotator::new(model.reasoner(), params, ThoughtLabels::Final).with_cancel(&cancel);
    let ended = annotator.run(&questions, |_| Ok::<(), Error>(()));
    assert!(matches!(ended, Err(Error::Engine(EngineError::Cancelled { .. }))));
}

/// A prefix of a continuation is more likely than the whole, and the log-likelihood of a text is
/// the sum of those of its parts.
#[test]
fn loglikelihoods_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = checkpoint(dir.path());
    let of = |context, text| loglikelihood(model.reasoner(), context, text).unwrap();
    let (whole, first) = (of("1 2", " 3 4"), of("1 2", " 3"));
    let second = of("1 2 3", " 4");
    assert!((whole.sum - first.sum - second.sum).abs() < 1e-4, "{whole:?} {first:?} {second:?}");
    assert!(whole.sum < first.sum && first.sum < 0.0);
    assert!(of("", "1").sum < 0.0);
    let long = loglikelihood(model.reasoner(), "1", &" 1".repeat(5000));
    assert!(matches!(long, Err(Error::LongContinuation { .. })));
    assert!(of(&"1 ".repeat(5000), " 1").sum.is_finite());
}

#[test]
fn grading_compares_answers_with_gold() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = checkpoint(dir.path());
    let engine = model.engine().unwrap();
    let params = params(&model);
    let question = Question {
        id: 3,
        text: "2+2?".into(),
        gold: "4".into(),
        kind: AnswerKind::Number,
        steps: Vec::new(),
    };
    let mut reply = engine.solve(&grade::request(&question, params)).unwrap();
    // A random model answers nothing, so these answers simulate a correct, a wrong and a missing
    // one.
    let answers = ["The answer is: 4.0", "The answer is: 5", "none"];
    for (trajectory, text) in reply.trajectories.iter_mut().zip(answers) {
        trajectory.answer = AnswerRule::LastNumber.extract(AnswerKind::Number, text);
    }
    let sample = grade::grade(&question, &params, &reply);
    assert_eq!((sample.id, sample.seed, sample.gold.as_str()), (3, params.seed, "4"));
    let graded = sample.trajectories.iter().map(|t| (t.answer.as_deref(), t.correct));
    assert!(graded.eq([(Some("4"), Some(true)), (Some("5"), Some(false)), (None, Some(false))]));
}

/// The embedded reasoner feeds its hidden states back, so the logits of its thoughts are the head
/// applied to its latents.
#[cfg(feature = "embedded")]
#[test]
fn a_lens_on_the_embedded_model_is_the_argmax_of_its_logits() {
    let device = DeviceOptions { kind: DeviceKind::Cpu, ..DeviceOptions::default() };
    let selection = ModelSelection::new("embedded", RewardModelChoice::None).unwrap();
    let model = selection.load(&device.open().unwrap()).unwrap();
    let engine = model.engine().unwrap();
    let params = SamplingParams { greedy: true, ..engine.default_params() };
    let question = "Tom has 3 boxes with 4 pens in each. How many pens does Tom have?";
    let lens = Some(latent_tts::Lens { tokens: count(1), sampled: false });
    let reply = engine.solve(&Request { lens, ..Request::new(question, params) }).unwrap();
    let greedy = reply.greedy.unwrap();
    assert!(greedy.lens.len() == greedy.thoughts && greedy.thoughts > 0);
    assert!(reply.trajectories.iter().all(|trajectory| trajectory.lens.is_empty()));
    let logits = model::head::logits(&engine.reasoner().decoder, &greedy.latents).unwrap();
    for (t, tokens) in greedy.lens.iter().enumerate() {
        let row = logits.row(t);
        let largest = (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a }).unwrap();
        assert_eq!(tokens[0].token as usize, largest, "thought {t}");
    }
}

#[cfg(not(feature = "embedded"))]
#[test]
fn without_the_feature_there_are_no_embedded_models() {
    let error = Model::load("embedded").err().unwrap();
    assert!(error.to_string().contains("embedded"), "{error}");
}
