//! `latent-tts inspect`: prints the family, configuration and tensors of a directory or GGUF file.
//!
//! Tensors are read one at a time as the loader would read them (except with `--headers`), so that
//! errors of a run are found. The listing is printed even for an unusable checkpoint, before the
//! error that gives the reason.

mod gguf;
mod listing;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use latent_tts::engine::{Family, FamilyParts, LatentLength, Method, reference_files};
use latent_tts::{NoiseStd, Probability, files_over};
use model::config::Architecture;
use model::{Checkpoint, LmHead, ModelFiles, RewardHead, Tokenizer};
use serde_json::{Value, json};
use tensor::Device;

use crate::args::InspectArgs;
use crate::args::values::format_bytes;
use crate::printer::Printer;
use gguf::GgufDetails;
use listing::TensorListing;

/// Runs `inspect`.
pub fn run(args: &InspectArgs, printer: &Printer) -> Result<ExitCode> {
    tensor::start_global_threads(None)?;
    let mut checkpoint = Checkpoint::open(files_over(&args.dir, args.base.as_deref())?)?;
    // The heads are read to detect the family; requiring their tensors would report only the first
    // missing one.
    checkpoint.collect_missing();
    printer.warnings(checkpoint.warnings());
    let kind = CheckpointKind::detect(&checkpoint, args.method)?;
    let expected = checkpoint.expected_tensors(kind.lm_head())?;
    let listing = TensorListing::new(&checkpoint, &expected);
    let gguf = GgufDetails::read(&checkpoint, &listing)?;
    let report = InspectReport {
        checkpoint: &checkpoint,
        kind: &kind,
        listing: &listing,
        gguf: gguf.as_ref(),
    };
    printer.result(&report.to_json(), || report.text(args))?;
    listing.check_usable(checkpoint.dir(), kind.rejects_unknown())?;
    if !args.headers {
        expected.iter().try_for_each(|e| checkpoint.tensor(&e.name, &e.shape).map(|_| ()))?;
        printer.note("all weights are finite");
    }
    Ok(ExitCode::SUCCESS)
}

/// The kind of a model and the parts that were read.
enum CheckpointKind {
    Reasoner {
        method: Box<Method>,
        tokenizer: Box<Tokenizer>,
    },
    RewardModel {
        tokenizer: Option<Box<Tokenizer>>,
        reads_answers: bool,
        reference: Option<PathBuf>,
    },
    /// A GGUF file without a recognized family.
    LanguageModel {
        tokenizer: Box<Tokenizer>,
    },
}

impl CheckpointKind {
    /// Detects the kind of a checkpoint and reads its heads, which are small.
    fn detect(checkpoint: &Checkpoint, family: Option<Family>) -> Result<Self> {
        let (folder, device) = (checkpoint.model_files(), Device::cpu(Some(NonZeroUsize::MIN))?);
        if RewardHead::detect(checkpoint).is_some() {
            if family.is_some() {
                bail!(
                    "{}: --method applies to reasoners, but this is a reward model (it has a \
                     scoring head); omit --method",
                    checkpoint.dir().display()
                );
            }
            RewardHead::load(&device, checkpoint.config(), checkpoint)?;
            let reads_answers =
                RewardHead::outcome(&device, checkpoint.config(), checkpoint)?.is_some();
            // A reward model is fed the reasoner's token ids, so a tokenizer is optional.
            let tokenizer = Tokenizer::read(folder).ok().map(Box::new);
            return Ok(Self::RewardModel {
                tokenizer,
                reads_answers,
                reference: reference_path(checkpoint),
            });
        }
        let tokenizer = Tokenizer::read(folder)?;
        let family = family.or(Family::detect(checkpoint, &tokenizer).ok());
        if family.is_none() && matches!(folder, ModelFiles::Gguf(_)) {
            return Ok(Self::LanguageModel { tokenizer: Box::new(tokenizer) });
        }
        let method = FamilyParts::read(&device, checkpoint, &tokenizer, family)?.method;
        Ok(Self::Reasoner { method: Box::new(method), tokenizer: Box::new(tokenizer) })
    }

    fn lm_head(&self) -> LmHead {
        match self {
            Self::Reasoner { .. } | Self::LanguageModel { .. } => LmHead::With,
            Self::RewardModel { .. } => LmHead::Without,
        }
    }

    /// Whether unknown tensors are an error: in a reasoner they mean that it has another family
    /// than the detected one.
    fn rejects_unknown(&self) -> bool {
        !matches!(self, Self::RewardModel { .. })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Reasoner { .. } => "reasoner",
            Self::RewardModel { .. } => "reward model",
            Self::LanguageModel { .. } => "language model",
        }
    }

    fn method(&self) -> Option<&Method> {
        match self {
            Self::Reasoner { method, .. } => Some(method),
            Self::RewardModel { .. } | Self::LanguageModel { .. } => None,
        }
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Self::Reasoner { tokenizer, .. } | Self::LanguageModel { tokenizer } => Some(tokenizer),
            Self::RewardModel { tokenizer, .. } => tokenizer.as_deref(),
        }
    }
}

/// The data of the printed report.
struct InspectReport<'a> {
    checkpoint: &'a Checkpoint,
    kind: &'a CheckpointKind,
    listing: &'a TensorListing<'a>,
    gguf: Option<&'a GgufDetails>,
}

impl InspectReport<'_> {
    fn to_json(&self) -> Value {
        let c = self.checkpoint.config();
        let mut report = json!({
            "dir": self.checkpoint.dir(),
            "base": self.checkpoint.base().map(ModelFiles::path),
            "kind": self.kind.name(),
            "family": self.kind.method().map(|m| m.family.name()),
            "class": c.class_name,
            "backbone": architecture_name(c.architecture),
            "config": {
                "layers": c.layers,
                "width": c.width,
                "heads": c.heads,
                "kv_heads": c.kv_heads,
                "head_dim": c.head_dim,
                "ffn": c.ffn,
                "vocab": c.vocab,
                "context": c.context,
                "tied": c.tied,
            },
            "parameters": self.listing.parameters(),
            "bytes": self.listing.bytes(),
            "dtypes": self.listing.dtypes(),
            "tokenizer_size": self.kind.tokenizer().map(Tokenizer::vocab_size),
            "tokens": self.kind.method().map(tokens_json),
            "defaults": self.kind.method().map(defaults_json),
            "tensors": self.listing.to_json(),
        });
        if let Some(gguf) = self.gguf {
            report["types"] = gguf.types_json();
            report["chat_template"] = json!(gguf.chat_template);
        }
        report
    }

    fn text(&self, args: &InspectArgs) -> String {
        let c = self.checkpoint.config();
        let mut lines = vec![
            ("checkpoint", self.checkpoint.dir().display().to_string()),
            ("kind", self.kind.name().to_owned()),
        ];
        if let Some(method) = self.kind.method() {
            // Latent-SFT checkpoints have no distinguishing tensors or tokens.
            let assumed = method.family == Family::LATENT_SFT && c.defaults.family.is_none();
            let how = match (args.method, assumed) {
                (Some(_), _) => "given by --method",
                (None, true) => "assumed for a plain Llama; pass --method cot for a text model",
                (None, false) => "detected",
            };
            lines.push(("family", format!("{} ({how})", method.family)));
        }
        if let Some(base) = self.checkpoint.base() {
            lines.push(("base", base.path().display().to_string()));
        }
        if let CheckpointKind::RewardModel { reads_answers, reference, .. } = self.kind {
            let reads = if *reads_answers { "thoughts and answers" } else { "thoughts" };
            lines.push(("reads", reads.to_owned()));
            if let Some(reference) = reference {
                lines.push(("reference", reference.display().to_string()));
            }
        }
        lines.extend(c.class_name.clone().map(|class| ("class", class)));
        lines.push((
            "backbone",
            format!(
                "{}, {} layers, width {}",
                architecture_name(c.architecture),
                c.layers,
                c.width
            ),
        ));
        lines.push((
            "heads",
            format!(
                "{} query heads of size {}, {} key-value heads; feed-forward width {}",
                c.heads, c.head_dim, c.kv_heads, c.ffn
            ),
        ));
        lines.push((
            "vocabulary",
            format!(
                "{} embeddings, {}",
                c.vocab,
                if c.tied { "tied to the LM head" } else { "separate LM head" }
            ),
        ));
        lines.push(("context", format!("{} positions", c.context)));
        lines.push(("weights", self.weights()));
        lines.extend(
            self.kind.tokenizer().map(|t| ("tokenizer", format!("{} tokens", t.vocab_size()))),
        );
        lines.extend(self.gguf.into_iter().flat_map(GgufDetails::lines));
        if let Some(method) = self.kind.method() {
            lines.push((
                "tokens",
                format!(
                    "end of prompt {:?}, end of thoughts {:?}, end of answer {:?}",
                    method.begin_latent, method.end_latent, method.eos
                ),
            ));
            lines.push(("defaults", format_defaults(method)));
        }
        let mut text: String =
            lines.iter().map(|(name, value)| format!("{name:<12}{value}\n")).collect();
        text.push_str(&self.listing.text(args.tensors));
        text
    }

    fn weights(&self) -> String {
        let millions = self.listing.parameters() as f64 / 1e6;
        format!(
            "{millions:.2} million parameters, {}, {}",
            self.listing.dtypes().join(" and "),
            format_bytes(self.listing.bytes())
        )
    }
}

/// The directory of a reward model's reference reasoner.
fn reference_path(checkpoint: &Checkpoint) -> Option<PathBuf> {
    let copy = reference_files(checkpoint.model_files());
    let recorded = || Some(checkpoint.dir().join(&checkpoint.config().reference.as_ref()?.path));
    copy.map(|files| files.path().to_owned()).or_else(recorded)
}

fn architecture_name(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Gpt2 => "gpt2",
        Architecture::Llama => "llama",
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 | Architecture::Qwen3Vl => "qwen3",
    }
}

fn tokens_json(method: &Method) -> Value {
    json!({
        "prompt_end": method.begin_latent,
        "thoughts_end": method.end_latent,
        "answer_end": method.eos,
    })
}

fn defaults_json(method: &Method) -> Value {
    json!({
        "thoughts": method.length.to_string(),
        "max_new_tokens": method.max_new_tokens,
        "p": Probability::new(method.p).map(f64::from),
        "sigma": NoiseStd::new(method.sigma).map(f64::from),
        "sites": method.sites.name(),
    })
}

fn format_defaults(method: &Method) -> String {
    if method.length == LatentLength::None {
        return format!(
            "--thoughts 0 --max-new-tokens {} --temperature 1 --top-p 1",
            method.max_new_tokens
        );
    }
    format!(
        "--thoughts {} --max-new-tokens {} --dropout-p {} --sites {}, or --noise-std {}",
        method.length,
        method.max_new_tokens,
        method.p,
        method.sites.name(),
        method.sigma
    )
}

impl TensorListing<'_> {
    /// Fails with the reason if the checkpoint cannot be used.
    fn check_usable(&self, dir: &Path, rejects_unknown: bool) -> Result<()> {
        let dir = dir.display();
        if let Some(first) = self.missing().first() {
            bail!(
                "{dir}: {} missing, the first is `{}`; download the checkpoint again",
                match self.missing().len() {
                    1 => "1 tensor is".to_owned(),
                    count => format!("{count} tensors are"),
                },
                first.name
            );
        }
        if let Some((entry, expected)) = self.mismatched().first() {
            let (name, found) = (entry.original, entry.shape);
            bail!(
                "{dir}: tensor `{name}` has shape {found:?}, expected {:?}; config.json does not \
                 match the weights",
                expected.shape
            );
        }
        match self.unknown().first() {
            Some(first) if rejects_unknown => {
                let count = self.unknown().len();
                bail!(
                    "{dir}: {count} unknown tensors, the first is `{}`; pass --method if the \
                     model has another family",
                    first.original
                )
            }
            _ => Ok(()),
        }
    }
}
