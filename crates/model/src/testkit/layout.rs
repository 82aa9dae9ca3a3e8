//! The tensors of a family: their published names, their shapes, and what kind of random numbers
//! they hold.

use serde_json::{Value, json};

use super::{Backbone, CheckpointFamily, CheckpointSpec};
use crate::tokenizer::Tokenizer;

/// How a tensor's values are drawn; wide enough that a forgotten norm or bias shows in the outputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum InitKind {
    /// Around 1.
    NormWeight,
    /// Around 0.
    Bias,
    /// Scaled by the number of inputs.
    Matrix { inputs: usize },
    /// An embedding, with one row made louder or quieter.
    Table { row: Option<(usize, f32)> },
    /// Scaled by the number of inputs, and smaller than a matrix: what an adapter learns.
    Factor { inputs: usize },
}

/// One tensor of a file.
#[derive(Debug, Clone)]
pub(super) struct TensorSpec {
    pub name: String,
    /// Whose random numbers: the canonical name, the same in every layout.
    pub rng_name: String,
    pub shape: Vec<usize>,
    pub kind: InitKind,
}

/// Everything a family publishes besides config and tokenizer.
pub(super) struct CheckpointLayout {
    pub tensors: Vec<TensorSpec>,
    pub side_files: Vec<(&'static str, Vec<TensorSpec>)>,
    pub adapter_config: Option<Value>,
    /// `model`, or what the family calls its shards.
    pub base_name: &'static str,
}

impl CheckpointLayout {
    pub fn new(spec: &CheckpointSpec, tokenizer: &Tokenizer) -> CheckpointLayout {
        let mut list = TensorList::new(spec);
        let table = InitKind::Table { row: scaled_row(spec.family, tokenizer) };
        match spec.family.backbone() {
            Backbone::Gpt2 => list.gpt2(tokenizer.vocab_size(), table),
            Backbone::Llama | Backbone::Qwen3Vl => list.llama(tokenizer.vocab_size(), table),
        }
        list.head();
        let side_files =
            if spec.family == CheckpointFamily::Rot { rot_files(spec, table) } else { Vec::new() };
        // CODI, CoLaR and RoT leave the scale to their training scripts.
        let written = spec.lora && !matches!(list.rank, 128 | 16);
        CheckpointLayout {
            tensors: list.tensors,
            side_files,
            adapter_config: written
                .then(|| json!({ "peft_type": "LORA", "r": 8, "lora_alpha": 16 })),
            base_name: if spec.family == CheckpointFamily::Rot && spec.shards > 1 {
                "RoT"
            } else {
                "model"
            },
        }
    }
}

/// Nobody's trained model says its placeholder; models that stop by themselves must be likely to.
fn scaled_row(family: CheckpointFamily, tokenizer: &Tokenizer) -> Option<(usize, f32)> {
    let (token, factor) = match family {
        CheckpointFamily::Colar => ("###", 2.2),
        CheckpointFamily::LatentSft => ("<", 2.2),
        _ => ("<|latent|>", 0.01),
    };
    tokenizer.token_to_id(token).map(|id| (id as usize, factor))
}

/// Collects tensors under a family's wrapper.
struct TensorList<'a> {
    spec: &'a CheckpointSpec,
    tensors: Vec<TensorSpec>,
    /// What the published names of the backbone start with.
    prefix: &'static str,
    /// Modules that get an adapter.
    targets: &'static [&'static str],
    rank: usize,
}

impl<'a> TensorList<'a> {
    fn new(spec: &'a CheckpointSpec) -> TensorList<'a> {
        let (prefix, targets, rank): (_, &[&str], _) = match (spec.family, spec.lora) {
            (CheckpointFamily::CodiGpt2, true) => {
                ("codi.base_model.model.transformer.", &["c_attn", "c_proj", "c_fc"], 128)
            }
            (CheckpointFamily::CodiLlama, true) => {
                ("codi.base_model.model.model.", &["_proj"], 128)
            }
            (CheckpointFamily::Colar, true) => {
                ("llm.base_model.model.model.", &["q_proj", "v_proj"], 128)
            }
            (CheckpointFamily::Rot, true) => (
                "base_model.model.model.language_model.",
                &["q_proj", "k_proj", "v_proj", "o_proj"],
                16,
            ),
            (family, lora) => match (family.backbone(), lora) {
                (Backbone::Gpt2, false) => ("transformer.", &[], 0),
                (Backbone::Gpt2, true) => ("base_model.model.transformer.", &["c_attn"], 8),
                (Backbone::Llama, false) => ("model.", &[], 0),
                (Backbone::Llama, true) => ("base_model.model.model.", &["q_proj", "v_proj"], 8),
                (Backbone::Qwen3Vl, _) => ("model.language_model.", &[], 0),
            },
        };
        TensorList { spec, tensors: Vec::new(), prefix, targets, rank }
    }

    fn push(&mut self, name: String, stream: &str, shape: &[usize], kind: InitKind) {
        self.tensors.push(TensorSpec {
            name,
            rng_name: stream.to_owned(),
            shape: shape.to_vec(),
            kind,
        });
    }

    /// A tensor of the backbone that no adapter touches.
    fn plain(&mut self, name: &str, shape: &[usize], kind: InitKind) {
        self.push(format!("{}{name}", self.prefix), name, shape, kind);
    }

    /// The weight and bias of a LayerNorm.
    fn layer_norm(&mut self, module: &str, width: usize) {
        self.plain(&format!("{module}.weight"), &[width], InitKind::NormWeight);
        self.plain(&format!("{module}.bias"), &[width], InitKind::Bias);
    }

    /// A matrix of the backbone, with its adapter if it has one. `shape` is that of the file.
    fn matrix(&mut self, module: &str, (inputs, outputs): (usize, usize), conv: bool) {
        let shape = if conv { [inputs, outputs] } else { [outputs, inputs] };
        let adapted = self.spec.lora && self.targets.iter().any(|t| module.ends_with(t));
        let infix = if adapted { ".base_layer" } else { "" };
        let (stem, rank) = (format!("{}{module}", self.prefix), self.rank);
        self.push(
            format!("{stem}{infix}.weight"),
            &format!("{module}.weight"),
            &shape,
            InitKind::Matrix { inputs },
        );
        if conv {
            self.push(
                format!("{stem}{infix}.bias"),
                &format!("{module}.bias"),
                &[outputs],
                InitKind::Bias,
            );
        }
        if adapted {
            let (a, b) = (format!("{module}.lora_A"), format!("{module}.lora_B"));
            self.push(
                format!("{stem}.lora_A.default.weight"),
                &a,
                &[rank, inputs],
                InitKind::Factor { inputs },
            );
            self.push(
                format!("{stem}.lora_B.default.weight"),
                &b,
                &[outputs, rank],
                InitKind::Factor { inputs: rank },
            );
        }
    }

    fn gpt2(&mut self, vocab: usize, table: InitKind) {
        let CheckpointSpec { width, ffn, context, layers, .. } = *self.spec;
        self.plain("wte.weight", &[vocab, width], table);
        self.plain("wpe.weight", &[context, width], InitKind::Table { row: None });
        for i in 0..layers {
            self.layer_norm(&format!("h.{i}.ln_1"), width);
            self.matrix(&format!("h.{i}.attn.c_attn"), (width, 3 * width), true);
            self.matrix(&format!("h.{i}.attn.c_proj"), (width, width), true);
            self.layer_norm(&format!("h.{i}.ln_2"), width);
            self.matrix(&format!("h.{i}.mlp.c_fc"), (width, ffn), true);
            self.matrix(&format!("h.{i}.mlp.c_proj"), (ffn, width), true);
        }
        self.layer_norm("ln_f", width);
    }

    fn llama(&mut self, vocab: usize, table: InitKind) {
        let CheckpointSpec { width, ffn, layers, heads, kv_heads, head_dim, .. } = *self.spec;
        let qwen = self.spec.family.backbone() == Backbone::Qwen3Vl;
        self.plain("embed_tokens.weight", &[vocab, width], table);
        for i in 0..layers {
            let attention = format!("layers.{i}.self_attn");
            self.plain(
                &format!("layers.{i}.input_layernorm.weight"),
                &[width],
                InitKind::NormWeight,
            );
            self.matrix(&format!("{attention}.q_proj"), (width, heads * head_dim), false);
            self.matrix(&format!("{attention}.k_proj"), (width, kv_heads * head_dim), false);
            self.matrix(&format!("{attention}.v_proj"), (width, kv_heads * head_dim), false);
            self.matrix(&format!("{attention}.o_proj"), (heads * head_dim, width), false);
            if qwen {
                self.plain(
                    &format!("{attention}.q_norm.weight"),
                    &[head_dim],
                    InitKind::NormWeight,
                );
                self.plain(
                    &format!("{attention}.k_norm.weight"),
                    &[head_dim],
                    InitKind::NormWeight,
                );
            }
            self.plain(
                &format!("layers.{i}.post_attention_layernorm.weight"),
                &[width],
                InitKind::NormWeight,
            );
            self.matrix(&format!("layers.{i}.mlp.gate_proj"), (width, ffn), false);
            self.matrix(&format!("layers.{i}.mlp.up_proj"), (width, ffn), false);
            self.matrix(&format!("layers.{i}.mlp.down_proj"), (ffn, width), false);
        }
        self.plain("norm.weight", &[width], InitKind::NormWeight);
    }

    /// The family's own head, outside the backbone's wrapper. Unmerged checkpoints spell it as
    /// their training code does.
    fn head(&mut self) {
        let (d, w, lora) = (self.spec.width, self.spec.head_width, self.spec.lora);
        match self.spec.family {
            CheckpointFamily::CodiGpt2 | CheckpointFamily::CodiLlama => {
                let (stem, norm) =
                    if lora { ("prj", "prj.ln") } else { ("projector", "projector.4") };
                self.linear(&format!("{stem}.1"), "projector.1", (d, w));
                self.linear(&format!("{stem}.3"), "projector.3", (w, d));
                self.head_norm(norm, "projector.4", d);
            }
            CheckpointFamily::Colar => {
                let stem = if lora { "latent_policy" } else { "lt_head" };
                self.linear(&format!("{stem}.fc.0"), "lt_head.fc.0", (d, w));
                self.linear(&format!("{stem}.fc.2"), "lt_head.fc.2", (w, w));
                self.head_norm(&format!("{stem}.fc.3"), "lt_head.fc.3", w);
                self.linear(&format!("{stem}.mean"), "lt_head.mean", (w, d));
                if lora {
                    self.linear(&format!("{stem}.log_std"), "lt_head.log_std", (w, d));
                }
            }
            CheckpointFamily::RewardGpt2 | CheckpointFamily::RewardLlama => {
                self.linear("classifier", "classifier", (d, 1))
            }
            CheckpointFamily::Coconut | CheckpointFamily::LatentSft | CheckpointFamily::Rot => {}
        }
    }

    fn linear(&mut self, name: &str, stream: &str, (inputs, outputs): (usize, usize)) {
        let kind = InitKind::Matrix { inputs };
        self.push(format!("{name}.weight"), &format!("{stream}.weight"), &[outputs, inputs], kind);
        self.push(format!("{name}.bias"), &format!("{stream}.bias"), &[outputs], InitKind::Bias);
    }

    fn head_norm(&mut self, name: &str, stream: &str, width: usize) {
        self.push(
            format!("{name}.weight"),
            &format!("{stream}.weight"),
            &[width],
            InitKind::NormWeight,
        );
        self.push(format!("{name}.bias"), &format!("{stream}.bias"), &[width], InitKind::Bias);
    }
}

/// Render-of-Thought's two files beside the model, whose names lack their module.
fn rot_files(spec: &CheckpointSpec, table: InitKind) -> Vec<(&'static str, Vec<TensorSpec>)> {
    let (d, w) = (spec.width, spec.head_width);
    let mut head = TensorList { spec, tensors: Vec::new(), prefix: "", targets: &[], rank: 0 };
    head.head_norm("0", "projection_head.0", d);
    head.linear("1", "projection_head.1", (d, w));
    for gate in ["w1", "w2", "w3"] {
        let name = format!("2.{gate}.weight");
        head.push(
            name.clone(),
            &format!("projection_head.{name}"),
            &[w, w],
            InitKind::Matrix { inputs: w },
        );
    }
    head.linear("3", "projection_head.3", (w, d));
    let mut markers = TensorList { spec, tensors: Vec::new(), prefix: "", targets: &[], rank: 0 };
    markers.plain("img_begin_emb", &[d], table);
    markers.plain("img_end_emb", &[d], table);
    vec![
        ("projection_head.safetensors", head.tensors),
        ("special_tokens.safetensors", markers.tensors),
    ]
}
