//! A custom family, defined in this file only: the code that a user of the library writes to run a
//! new model.

#![expect(clippy::unwrap_used, reason = "what fails to load or to run fails the test")]

use std::num::NonZeroUsize;
use std::path::Path;

use data::answer::AnswerRule;
use latent_tts_engine::{
    DropoutScope, DropoutSites, Engine, EngineError, Family, FamilySpec, LatentLength,
    MaskLifetime, Method, Output, Perturbation, Probability, Prompt, Reasoner, Request,
    SamplingParams, TokenLookup, reference,
};
use model::head::MlpNames;
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{Checkpoint, LatentHead};
use tensor::{Device, Tensor};

/// Thoughts are mixtures of the three most probable tokens on GPT-2, and end at `#`.
struct SoftTokens;

const SOFT_TOKENS: Family = Family::new(&SoftTokens);

impl FamilySpec for SoftTokens {
    fn name(&self) -> &'static str {
        "soft-tokens"
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let end_latent = tokens.encoded("#")?;
        Ok(Method {
            prompt_prefix: "Q: ".into(),
            prompt_suffix: "\nThink: ".into(),
            end_latent,
            length: LatentLength::AtMost(nonzero(5)),
            max_new_tokens: 12,
            answer_rule: AnswerRule::LastNumber,
            ..tokens.base()?
        })
    }

    fn latent_head(&self, _: &Device, _: &Checkpoint) -> Result<LatentHead, EngineError> {
        Ok(LatentHead::TopKMixture { k: 3 })
    }
}

/// CODI's checkpoint with CODI's projector, under another name and without marker tokens.
struct Projected;

const PROJECTED: Family = Family::new(&Projected);

impl FamilySpec for Projected {
    fn name(&self) -> &'static str {
        "projected"
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        Ok(Method { length: LatentLength::Exactly(nonzero(3)), ..tokens.base()? })
    }

    fn latent_head(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
    ) -> Result<LatentHead, EngineError> {
        let names = MlpNames { up: "projector.1", down: "projector.3", norm: "projector.4" };
        Ok(LatentHead::mlp(device, checkpoint, &names)?)
    }
}

fn nonzero(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// Writes a checkpoint, applies changes, and loads it as a toy family.
fn load(
    family: Family,
    checkpoint: CheckpointFamily,
    change: impl FnOnce(&Path),
) -> Result<Reasoner, EngineError> {
    let dir = tempfile::tempdir().unwrap();
    let spec = CheckpointSpec { family: checkpoint, ..CheckpointSpec::default() };
    write_checkpoint(dir.path(), &spec).unwrap();
    change(dir.path());
    Reasoner::load(&Device::cpu(Some(nonzero(2))).unwrap(), dir.path(), Some(family))
}

fn requests(params: SamplingParams) -> Vec<Request> {
    let texts = ["2+2?", "How many legs have 4 spiders and 2 dogs together in all?", "x"];
    (0..).zip(texts).map(|(id, text)| Request { id, ..Request::new(text, params) }).collect()
}

fn run(engine: &Engine, requests: &[Request]) -> Vec<Output> {
    let mut replies = Vec::new();
    engine
        .run(requests, |_, reply| -> Result<(), EngineError> {
            replies.push(reply?);
            Ok(())
        })
        .unwrap();
    replies
}

/// An output without its timings.
fn without_seconds(reply: &Output) -> Output {
    Output { seconds: Default::default(), ..reply.clone() }
}

#[test]
fn a_toy_family_brings_its_template_its_length_and_its_answer_rule() {
    let reasoner = load(SOFT_TOKENS, CheckpointFamily::Coconut, |_| ()).unwrap();
    let method = &reasoner.method;
    assert_eq!((method.family, method.family.name()), (SOFT_TOKENS, "soft-tokens"));
    assert_eq!((method.max_new_tokens, method.answer_rule), (12, AnswerRule::LastNumber));
    let prompt = Prompt::new(&reasoner, 0, "2+2?").unwrap();
    assert_eq!(prompt.text, "Q: 2+2?\nThink: ");
    assert_eq!(prompt.tokens, reasoner.tokenizer.encode(&prompt.text).unwrap());

    let engine = Engine::new(reasoner);
    let params = SamplingParams { samples: nonzero(4), greedy: true, ..engine.default_params() };
    let mut lengths = Vec::new();
    for reply in run(&engine, &requests(params)) {
        assert_eq!(reply.trajectories.len(), 4);
        for trajectory in reply.trajectories.iter().chain(&reply.greedy) {
            assert!(trajectory.thoughts <= 5 && trajectory.tokens.len() <= 12);
            let kind = data::answer::AnswerKind::Number;
            let answer = AnswerRule::LastNumber.extract(kind, &trajectory.text);
            assert_eq!(trajectory.answer, answer);
            lengths.push(trajectory.thoughts);
        }
    }
    assert!(lengths.iter().any(|&length| length > 0), "no row has thoughts");
}

/// The first thought is the family's own head over the prompt's last hidden state.
#[test]
fn a_toy_family_makes_thoughts_with_its_own_head() {
    for (family, checkpoint) in
        [(SOFT_TOKENS, CheckpointFamily::Coconut), (PROJECTED, CheckpointFamily::CodiGpt2)]
    {
        let engine = Engine::new(load(family, checkpoint, |_| ()).unwrap());
        let reasoner = engine.reasoner();
        let params = SamplingParams {
            perturbation: Perturbation::None,
            length: LatentLength::Exactly(nonzero(2)),
            ..engine.default_params()
        };
        for request in requests(params) {
            let prompt = Prompt::new(reasoner, request.id, &request.question).unwrap();
            let hidden = reference::prompt_hidden(reasoner, &prompt.tokens).unwrap();
            let last = hidden.row(hidden.rows() - 1).to_vec();
            let last = Tensor::from_vec(1, last.len(), last);
            let expected = reasoner.head.forward(&reasoner.decoder, &last).unwrap().thoughts;
            let reply = engine.solve(&request).unwrap();
            let found = reply.trajectories[0].latents.row(0);
            assert_eq!(found, expected.row(0), "{family}");
            assert_ne!(found, last.row(0), "{family}: thoughts are not bare hidden states");
        }
    }
}

#[test]
fn a_toy_family_does_not_depend_on_its_batch() {
    let engine = Engine::new(load(SOFT_TOKENS, CheckpointFamily::Coconut, |_| ()).unwrap());
    let defaults = SamplingParams { samples: nonzero(5), greedy: true, ..engine.default_params() };
    let p = Probability::new(0.3).unwrap();
    let sites = DropoutSites::MLP;
    let scope = DropoutScope::All;
    let perturbations = [
        defaults.perturbation,
        Perturbation::Gaussian { std: 0.4 },
        Perturbation::Dropout { p, sites, scope, mask: MaskLifetime::Trajectory },
    ];
    let mixed: Vec<Request> = perturbations
        .into_iter()
        .flat_map(|perturbation| requests(SamplingParams { perturbation, ..defaults }))
        .collect();
    let together = run(&engine, &mixed);
    for (request, reply) in mixed.iter().zip(&together) {
        let alone = engine.solve(request).unwrap();
        assert_eq!(without_seconds(reply), without_seconds(&alone));
    }
    // Without a reward model the default rule is the plain majority.
    let rules: Vec<_> = together.iter().map(|reply| reply.rule).collect();
    assert!(rules.iter().all(|rule| *rule == aggregate::Rule::MAJORITY));
}

/// config.json's `latent_tts` overrides a toy family's defaults as it does those of any family.
#[test]
fn the_checkpoint_overrides_a_toy_family() {
    let set_thoughts = |dir: &Path| {
        let file = dir.join("config.json");
        let mut config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        config["latent_tts"] = serde_json::json!({ "thoughts": 2, "max_new_tokens": 7 });
        std::fs::write(file, config.to_string()).unwrap();
    };
    let reasoner = load(SOFT_TOKENS, CheckpointFamily::Coconut, set_thoughts).unwrap();
    assert_eq!(reasoner.method.length, LatentLength::AtMost(nonzero(2)));
    assert_eq!(reasoner.method.max_new_tokens, 7);
}

/// A checkpoint with tensors that the family does not use belongs to another family.
#[test]
fn tensors_that_a_toy_family_does_not_use_are_reported() {
    let error = load(SOFT_TOKENS, CheckpointFamily::CodiGpt2, |_| ()).err().unwrap();
    assert!(
        matches!(&error, EngineError::UnusedTensors { family, .. } if *family == SOFT_TOKENS),
        "{error}"
    );
    assert!(error.to_string().contains("soft-tokens"), "{error}");
}
