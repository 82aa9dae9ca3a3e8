//! `latent-tts inspect`: what a checkpoint holds, what was recognised, what is missing or unknown.
//!
//! Headers are enough for that; weights are read only for `--values`, one at a time. The listing is printed even for a
//! checkpoint that cannot be used, and the error says why not.

mod expected;
mod listing;

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use engine::reasoner::MIND;
use engine::{Extras, Family, LatentLength, Method};
use model::config::Architecture;
use model::{Checkpoint, Folder, LmHead, RewardHead, Tokenizer};
use serde_json::{Value, json};
use tensor::Device;

use crate::args::InspectArgs;
use crate::args::values::{show_bytes, show_thoughts};
use crate::embedded;
use crate::manifest::show_sites;
use crate::printer::Printer;
use crate::settings::model_dir;
use listing::Listing;

/// Runs the command.
pub fn run(args: &InspectArgs, printer: &Printer) -> Result<ExitCode> {
    let folder = embedded::named(&args.dir).map_or_else(|| model_dir("inspect", &args.dir).map(Folder::Disk), Ok)?;
    let checkpoint = Checkpoint::open(folder)?;
    let kind = Kind::of(&checkpoint, args.method)?;
    let expected = expected::tensors(&checkpoint, kind.lm_head())?;
    let listing = Listing::new(&checkpoint, &expected);
    let found = Found { checkpoint: &checkpoint, kind: &kind, listing: &listing };
    printer.result(&found.document(), || found.text(args.method))?;
    listing.complain(checkpoint.dir(), kind.refuses_unknown())?;
    if args.values {
        expected.iter().try_for_each(|e| checkpoint.tensor(&e.name, &e.shape).map(|_| ()))?;
        printer.note("all weights are finite");
    }
    Ok(ExitCode::SUCCESS)
}

/// What sort of model it is.
enum Kind {
    Reasoner { method: Box<Method>, tokenizer: Box<Tokenizer> },
    Reward { tokenizer: Option<Box<Tokenizer>>, reads_answers: bool, thinks: bool },
}

impl Kind {
    /// Recognises the checkpoint and reads its heads, which are small.
    fn of(checkpoint: &Checkpoint, family: Option<Family>) -> Result<Self> {
        let (folder, device) = (checkpoint.folder(), Device::cpu(Some(NonZeroUsize::MIN))?);
        if RewardHead::find(checkpoint).is_some() {
            if family.is_some() {
                bail!(
                    "{}: this is a reward model (it has a head that scores), and --method is for reasoners",
                    checkpoint.dir().display()
                );
            }
            RewardHead::load(&device, checkpoint.config(), checkpoint)?;
            let reads_answers = RewardHead::verdict(&device, checkpoint.config(), checkpoint)?.is_some();
            // A reward model reads the reasoner's tokens and needs no tokenizer of its own.
            let tokenizer = Tokenizer::read(folder).ok().map(Box::new);
            return Ok(Self::Reward { tokenizer, reads_answers, thinks: folder.folder(MIND).is_some() });
        }
        let tokenizer = Tokenizer::read(folder)?;
        let method = Extras::read(&device, checkpoint, &tokenizer, family)?.method;
        Ok(Self::Reasoner { method: Box::new(method), tokenizer: Box::new(tokenizer) })
    }

    fn lm_head(&self) -> LmHead {
        match self {
            Self::Reasoner { .. } => LmHead::With,
            Self::Reward { .. } => LmHead::Without,
        }
    }

    /// A reasoner with tensors that nobody asks for is of another family than it is taken for.
    fn refuses_unknown(&self) -> bool {
        matches!(self, Self::Reasoner { .. })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Reasoner { .. } => "reasoner",
            Self::Reward { .. } => "reward model",
        }
    }

    fn method(&self) -> Option<&Method> {
        match self {
            Self::Reasoner { method, .. } => Some(method),
            Self::Reward { .. } => None,
        }
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Self::Reasoner { tokenizer, .. } => Some(tokenizer),
            Self::Reward { tokenizer, .. } => tokenizer.as_deref(),
        }
    }
}

/// Everything that is told.
struct Found<'a> {
    checkpoint: &'a Checkpoint,
    kind: &'a Kind,
    listing: &'a Listing<'a>,
}

impl Found<'_> {
    fn document(&self) -> Value {
        let c = self.checkpoint.config();
        json!({
            "dir": self.checkpoint.dir(),
            "kind": self.kind.name(),
            "family": self.kind.method().map(|m| m.family.name()),
            "class": c.class_name,
            "backbone": backbone(c.architecture),
            "config": {
                "layers": c.layers, "width": c.width, "heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim,
                "ffn": c.ffn, "vocab": c.vocab, "context": c.context, "tied": c.tied,
            },
            "parameters": self.listing.parameters(),
            "bytes": self.listing.bytes(),
            "dtypes": self.listing.dtypes(),
            "tokenizer_size": self.kind.tokenizer().map(Tokenizer::vocab_size),
            "tokens": self.kind.method().map(|m| json!({ "prompt_end": m.then, "thoughts_end": m.end, "answer_end": m.eos })),
            "defaults": self.kind.method().map(defaults),
            "tensors": self.listing.document(),
        })
    }

    fn text(&self, given: Option<Family>) -> String {
        let c = self.checkpoint.config();
        let mut lines = vec![("checkpoint", self.checkpoint.dir().display().to_string()), ("kind", self.kind.name().to_owned())];
        if let Some(method) = self.kind.method() {
            let how = if given.is_some() { "as given" } else { "recognised" };
            lines.push(("family", format!("{} ({how})", method.family)));
        }
        if let Kind::Reward { reads_answers, thinks, .. } = self.kind {
            let reads = if *reads_answers { "thoughts and answers" } else { "thoughts" };
            lines.push(("reads", reads.to_owned()));
            if *thinks {
                lines.push(("thinks", format!("with {}", self.checkpoint.dir().join(MIND).display())));
            }
        }
        lines.extend(c.class_name.clone().map(|class| ("class", class)));
        lines.push(("backbone", format!("{}, {} layers, {} wide", backbone(c.architecture), c.layers, c.width)));
        lines.push((
            "heads",
            format!("{} of {}, {} for keys and values; feed-forward {}", c.heads, c.head_dim, c.kv_heads, c.ffn),
        ));
        lines.push((
            "vocabulary",
            format!("{} embeddings, {}", c.vocab, if c.tied { "tied to the head" } else { "head of its own" }),
        ));
        lines.push(("context", format!("{} positions", c.context)));
        lines.push(("weights", self.weights()));
        lines.extend(self.kind.tokenizer().map(|t| ("tokenizer", format!("{} tokens", t.vocab_size()))));
        if let Some(method) = self.kind.method() {
            lines.push((
                "tokens",
                format!("{:?} end the prompt, {:?} the thoughts, {:?} the answer", method.then, method.end, method.eos),
            ));
            lines.push(("defaults", show_defaults(method)));
        }
        let mut text: String = lines.iter().map(|(name, value)| format!("{name:<12}{value}\n")).collect();
        text.push_str(&self.listing.text());
        text
    }

    fn weights(&self) -> String {
        let millions = self.listing.parameters() as f64 / 1e6;
        format!("{millions:.2} million parameters, {}, {}", self.listing.dtypes().join(" and "), show_bytes(self.listing.bytes()))
    }
}

fn backbone(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Gpt2 => "gpt2",
        Architecture::Llama => "llama",
        Architecture::Qwen3 => "qwen3",
    }
}

fn defaults(method: &Method) -> Value {
    json!({
        "thoughts": show_thoughts(method.length),
        "max_new_tokens": method.max_new_tokens,
        "p": crate::manifest::exact(method.p),
        "sigma": crate::manifest::exact(method.sigma),
        "sites": show_sites(method.sites),
    })
}

fn show_defaults(method: &Method) -> String {
    if method.length == LatentLength::None {
        return format!("--thoughts 0 --max-new-tokens {} --temperature 1 --top-p 1", method.max_new_tokens);
    }
    format!(
        "--thoughts {} --max-new-tokens {} --p {} --sites {}, or --sigma {}",
        show_thoughts(method.length),
        method.max_new_tokens,
        method.p,
        show_sites(method.sites),
        method.sigma
    )
}

impl Listing<'_> {
    /// Why the checkpoint cannot be used, if it cannot.
    fn complain(&self, dir: &Path, refuses_unknown: bool) -> Result<()> {
        let dir = dir.display();
        if let Some(first) = self.missing().first() {
            bail!(
                "{dir}: {} tensors are missing, the first is `{}`; download the checkpoint again",
                self.missing().len(),
                first.name
            );
        }
        if let Some((entry, expected)) = self.misshapen().first() {
            let (name, found) = (entry.original, entry.shape);
            bail!(
                "{dir}: tensor `{name}` has shape {found:?}, {:?} expected; config.json and weights do not belong together",
                expected.shape
            );
        }
        match self.unknown().first() {
            Some(first) if refuses_unknown => {
                let count = self.unknown().len();
                bail!(
                    "{dir}: {count} tensors belong to no known part, the first is `{}`; pass --method if it is another family",
                    first.original
                )
            }
            _ => Ok(()),
        }
    }
}
