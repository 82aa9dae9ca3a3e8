//! The tensors of a family: published names, shapes and initialization.

use serde_json::{Value, json};

use super::{Backbone, CheckpointFamily, CheckpointSpec};
use crate::tokenizer::Tokenizer;

/// The distribution of a tensor's values; wide enough that a forgotten norm or bias changes the
/// outputs visibly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum InitKind {
    /// Mean 1.
    NormWeight,
    /// Mean 0.
    Bias,
    /// Standard deviation proportional to 1 / sqrt(inputs).
    Matrix { inputs: usize },
    /// An embedding; one row may be scaled by a factor.
    Table { row: Option<(usize, f32)> },
    /// A LoRA factor: like a matrix, but smaller.
    Factor { inputs: usize },
}

/// One tensor of a file.
#[derive(Debug, Clone)]
pub(super) struct TensorSpec {
    pub name: String,
    /// The canonical name, which seeds the values: the same in every layout.
    pub rng_name: String,
    pub shape: Vec<usize>,
    pub kind: InitKind,
}

/// The files that a family publishes besides config and tokenizer.
pub(super) struct CheckpointLayout {
    pub tensors: Vec<TensorSpec>,
    pub side_files: Vec<(&'static str, Vec<TensorSpec>)>,
    pub adapter_config: Option<Value>,
    /// The stem of the weight files: `model`, or the name that the family gives its shards.
    pub base_name: &'static str,
}

impl CheckpointLayout {
    pub fn new(spec: &CheckpointSpec, tokenizer: &Tokenizer) -> CheckpointLayout {
        let mut list = TensorList::new(spec);
        let table = InitKind::Table { row: scaled_row(spec.family, tokenizer) };
        match spec.family.backbone() {
            Backbone::Gpt2 => list.gpt2(tokenizer.vocab_size(), table),
            _ => list.llama(tokenizer.vocab_size(), table),
        }
        list.head();
        let side_files =
            if spec.family == CheckpointFamily::Rot { rot_files(spec, table) } else { Vec::new() };
        // CODI, CoLaR and RoT publish no adapter_config.json.
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

/// Scales one embedding row, which is also a row of the LM head: a trained model does not generate
/// its placeholder token, and models that choose their length must be likely to stop.
fn scaled_row(family: CheckpointFamily, tokenizer: &Tokenizer) -> Option<(usize, f32)> {
    let (token, factor) = match family {
        CheckpointFamily::Colar => ("###", 2.2),
        CheckpointFamily::LatentSft => ("<", 2.2),
        _ => ("<|latent|>", 0.01),
    };
    tokenizer.token_to_id(token).map(|id| (id as usize, factor))
}

/// Collects the tensors of a family.
struct TensorList<'a> {
    spec: &'a CheckpointSpec,
    tensors: Vec<TensorSpec>,
    /// The prefix of the backbone's published names.
    prefix: &'static str,
    /// Suffixes of the modules that have an adapter.
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
                (Backbone::Llama, false) | (Backbone::Qwen2 | Backbone::Qwen3, _) => {
                    ("model.", &[], 0)
                }
                (Backbone::Llama, true) => ("base_model.model.model.", &["q_proj", "v_proj"], 8),
                (Backbone::Qwen3Vl, _) => ("model.language_model.", &[], 0),
            },
        };
        TensorList { spec, tensors: Vec::new(), prefix, targets, rank }
    }

    /// A list for a side file, whose names have no prefix.
    fn side_file(spec: &'a CheckpointSpec) -> TensorList<'a> {
        TensorList { spec, tensors: Vec::new(), prefix: "", targets: &[], rank: 0 }
    }

    fn push(&mut self, name: String, rng_name: &str, shape: &[usize], kind: InitKind) {
        let rng_name = rng_name.to_owned();
        let shape = shape.to_vec();
        self.tensors.push(TensorSpec { name, rng_name, shape, kind });
    }

    /// A tensor of the backbone without an adapter.
    fn plain(&mut self, name: &str, shape: &[usize], kind: InitKind) {
        self.push(format!("{}{name}", self.prefix), name, shape, kind);
    }

    /// The weight and bias of a LayerNorm.
    fn layer_norm(&mut self, module: &str, width: usize) {
        self.plain(&format!("{module}.weight"), &[width], InitKind::NormWeight);
        self.plain(&format!("{module}.bias"), &[width], InitKind::Bias);
    }

    /// A matrix of the backbone, with its adapter if it is a target. A `Conv1D` is stored as (in,
    /// out) and has a bias.
    fn matrix(&mut self, module: &str, inputs: usize, outputs: usize, conv1d: bool) {
        let shape = if conv1d { [inputs, outputs] } else { [outputs, inputs] };
        let adapted = self.spec.lora && self.targets.iter().any(|t| module.ends_with(t));
        let infix = if adapted { ".base_layer" } else { "" };
        let stem = format!("{}{module}", self.prefix);
        let rank = self.rank;
        let name = format!("{stem}{infix}.weight");
        let rng_name = format!("{module}.weight");
        self.push(name, &rng_name, &shape, InitKind::Matrix { inputs });
        if conv1d {
            let name = format!("{stem}{infix}.bias");
            let rng_name = format!("{module}.bias");
            self.push(name, &rng_name, &[outputs], InitKind::Bias);
        }
        if adapted {
            let name = format!("{stem}.lora_A.default.weight");
            let rng_name = format!("{module}.lora_A");
            self.push(name, &rng_name, &[rank, inputs], InitKind::Factor { inputs });
            let name = format!("{stem}.lora_B.default.weight");
            let rng_name = format!("{module}.lora_B");
            self.push(name, &rng_name, &[outputs, rank], InitKind::Factor { inputs: rank });
        }
    }

    fn gpt2(&mut self, vocab: usize, table: InitKind) {
        let CheckpointSpec { width, ffn, context, layers, .. } = *self.spec;
        self.plain("wte.weight", &[vocab, width], table);
        self.plain("wpe.weight", &[context, width], InitKind::Table { row: None });
        for i in 0..layers {
            self.layer_norm(&format!("h.{i}.ln_1"), width);
            self.matrix(&format!("h.{i}.attn.c_attn"), width, 3 * width, true);
            self.matrix(&format!("h.{i}.attn.c_proj"), width, width, true);
            self.layer_norm(&format!("h.{i}.ln_2"), width);
            self.matrix(&format!("h.{i}.mlp.c_fc"), width, ffn, true);
            self.matrix(&format!("h.{i}.mlp.c_proj"), ffn, width, true);
        }
        self.layer_norm("ln_f", width);
    }

    fn llama(&mut self, vocab: usize, table: InitKind) {
        let CheckpointSpec { width, ffn, layers, heads, kv_heads, head_dim, .. } = *self.spec;
        let backbone = self.spec.family.backbone();
        let qk_norm = matches!(backbone, Backbone::Qwen3 | Backbone::Qwen3Vl);
        self.plain("embed_tokens.weight", &[vocab, width], table);
        for i in 0..layers {
            let attention = format!("layers.{i}.self_attn");
            self.plain(
                &format!("layers.{i}.input_layernorm.weight"),
                &[width],
                InitKind::NormWeight,
            );
            self.matrix(&format!("{attention}.q_proj"), width, heads * head_dim, false);
            self.matrix(&format!("{attention}.k_proj"), width, kv_heads * head_dim, false);
            self.matrix(&format!("{attention}.v_proj"), width, kv_heads * head_dim, false);
            self.matrix(&format!("{attention}.o_proj"), heads * head_dim, width, false);
            if backbone == Backbone::Qwen2 {
                for (part, outputs) in [("q", heads), ("k", kv_heads), ("v", kv_heads)] {
                    let name = format!("{attention}.{part}_proj.bias");
                    self.plain(&name, &[outputs * head_dim], InitKind::Bias);
                }
            }
            if qk_norm {
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
            self.matrix(&format!("layers.{i}.mlp.gate_proj"), width, ffn, false);
            self.matrix(&format!("layers.{i}.mlp.up_proj"), width, ffn, false);
            self.matrix(&format!("layers.{i}.mlp.down_proj"), ffn, width, false);
        }
        self.plain("norm.weight", &[width], InitKind::NormWeight);
        if !self.spec.tied {
            let name = "lm_head.weight";
            let kind = InitKind::Matrix { inputs: width };
            self.push(name.to_owned(), name, &[vocab, width], kind);
        }
    }

    /// The family's head, outside the backbone's wrapper. Unmerged checkpoints use the names of
    /// their training code.
    fn head(&mut self) {
        let d = self.spec.width;
        let w = self.spec.head_width;
        let lora = self.spec.lora;
        match self.spec.family {
            CheckpointFamily::CodiGpt2 | CheckpointFamily::CodiLlama => {
                let (stem, norm) =
                    if lora { ("prj", "prj.ln") } else { ("projector", "projector.4") };
                self.linear(&format!("{stem}.1"), "projector.1", d, w);
                self.linear(&format!("{stem}.3"), "projector.3", w, d);
                self.head_norm(norm, "projector.4", d);
            }
            CheckpointFamily::Colar => {
                let stem = if lora { "latent_policy" } else { "lt_head" };
                self.linear(&format!("{stem}.fc.0"), "lt_head.fc.0", d, w);
                self.linear(&format!("{stem}.fc.2"), "lt_head.fc.2", w, w);
                self.head_norm(&format!("{stem}.fc.3"), "lt_head.fc.3", w);
                self.linear(&format!("{stem}.mean"), "lt_head.mean", w, d);
                if lora {
                    self.linear(&format!("{stem}.log_std"), "lt_head.log_std", w, d);
                }
            }
            CheckpointFamily::RewardGpt2 | CheckpointFamily::RewardLlama => {
                self.linear("classifier", "classifier", d, 1)
            }
            _ => {}
        }
    }

    fn linear(&mut self, name: &str, rng_name: &str, inputs: usize, outputs: usize) {
        let kind = InitKind::Matrix { inputs };
        self.push(
            format!("{name}.weight"),
            &format!("{rng_name}.weight"),
            &[outputs, inputs],
            kind,
        );
        self.push(format!("{name}.bias"), &format!("{rng_name}.bias"), &[outputs], InitKind::Bias);
    }

    fn head_norm(&mut self, name: &str, rng_name: &str, width: usize) {
        self.push(
            format!("{name}.weight"),
            &format!("{rng_name}.weight"),
            &[width],
            InitKind::NormWeight,
        );
        self.push(format!("{name}.bias"), &format!("{rng_name}.bias"), &[width], InitKind::Bias);
    }
}

/// Render-of-Thought's side files, whose tensor names omit their module.
fn rot_files(spec: &CheckpointSpec, table: InitKind) -> Vec<(&'static str, Vec<TensorSpec>)> {
    let d = spec.width;
    let w = spec.head_width;
    let mut head = TensorList::side_file(spec);
    head.head_norm("0", "projection_head.0", d);
    head.linear("1", "projection_head.1", d, w);
    for gate in ["w1", "w2", "w3"] {
        let name = format!("2.{gate}.weight");
        head.push(
            name.clone(),
            &format!("projection_head.{name}"),
            &[w, w],
            InitKind::Matrix { inputs: w },
        );
    }
    head.linear("3", "projection_head.3", w, d);
    let mut markers = TensorList::side_file(spec);
    markers.plain("img_begin_emb", &[d], table);
    markers.plain("img_end_emb", &[d], table);
    vec![
        ("projection_head.safetensors", head.tensors),
        ("special_tokens.safetensors", markers.tensors),
    ]
}
