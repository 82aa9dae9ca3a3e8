//! Canonical tensor names: maps the names of published files, with any wrapper prefixes, to the
//! names that the decoder and the heads load.
//!
//! The same matrix is `transformer.h.0.attn.c_attn.weight` in a plain GPT-2,
//! `base_causallm.transformer.…` in COCONUT's own checkpoints and
//! `codi.base_model.model.transformer.….base_layer.weight` in CODI's. Its canonical name is
//! `h.0.attn.c_attn.weight` in all of them. Names only: nothing is transposed or split here.

/// Prefixes of modules that training scripts wrap around the model, outermost first; any nesting of
/// them is stripped.
const WRAPPERS: [&str; 10] = [
    "_base_model.",
    "module.",
    "_orig_mod.",
    "base_causallm.",
    "codi.",
    "llm.",
    "base_model.model.",
    "transformer.",
    "language_model.",
    "model.",
];

/// Heads with more than one published name, as (published prefix, canonical prefix).
const HEAD_ALIASES: [(&str, &str); 5] = [
    ("prj.ln.", "projector.4."),
    ("projector.ln.", "projector.4."),
    ("prj.", "projector."),
    ("latent_policy.", "lt_head."),
    ("score.", "classifier."),
];

/// The role of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorRole {
    /// A weight, under its canonical name.
    Weight(String),
    /// The low-rank factor A, (rank, in), of the module with this canonical name.
    LoraA(String),
    /// The low-rank factor B, (out, rank), of the module with this canonical name.
    LoraB(String),
    /// Not needed for inference; the reason.
    Ignored(&'static str),
    /// Part of an adapter that cannot be merged; what it is.
    Unmergeable(&'static str),
}

/// The role of the tensor named `original` in its file.
pub fn classify(original: &str) -> TensorRole {
    let name = strip_wrappers(original);
    if let Some(reason) = ignored_reason(name) {
        return TensorRole::Ignored(reason);
    }
    if let Some(role) = lora_factor(name) {
        return role;
    }
    let name = name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".");
    TensorRole::Weight(canonical_head(&name))
}

/// The name without wrapper prefixes.
fn strip_wrappers(original: &str) -> &str {
    let mut name = original;
    while let Some(rest) = WRAPPERS.iter().find_map(|w| name.strip_prefix(w)) {
        name = rest;
    }
    name
}

fn canonical_head(name: &str) -> String {
    match HEAD_ALIASES.iter().find_map(|(from, to)| Some((to, name.strip_prefix(from)?))) {
        Some((to, rest)) => format!("{to}{rest}"),
        None => name.to_owned(),
    }
}

/// The modules of SIM-CoT's step decoder, over CODI and over COCONUT.
const STEP_DECODER: [&str; 4] = ["decoder.", "pj_in.", "pj_out.", "expainable_llm."];

/// The reason that a tensor of published files is not read; `None` if it is.
fn ignored_reason(name: &str) -> Option<&'static str> {
    let in_block = name.starts_with("h.");
    if in_block && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) {
        Some("a causal mask saved as a buffer")
    } else if name.ends_with("rotary_emb.inv_freq") {
        Some("rotary frequencies, computed from config.json")
    } else if name.starts_with("visual.") {
        Some("the vision tower, unused for text")
    } else if name.starts_with("vision_encoder.") {
        Some("a second copy of the model that encodes rendered steps in training")
    } else if name.starts_with("dynamic_cls.") {
        Some("a training-time classifier")
    } else if STEP_DECODER.iter().any(|prefix| name.starts_with(prefix)) {
        Some("SIM-CoT's step decoder, used only in training")
    } else if name.contains("log_std.") {
        Some("the spread of sampled thoughts; only their mean is used")
    } else if name == "embedding.weight" {
        Some("a second name of the token embedding")
    } else if name.contains(".original_module.") {
        Some("replaced by modules_to_save")
    } else {
        None
    }
}

/// Parses `<module>.lora_A.weight` and `<module>.lora_A.<adapter>.weight`, and the same of
/// `lora_B`.
fn lora_factor(name: &str) -> Option<TensorRole> {
    if name.contains("lora_magnitude_vector") {
        return Some(TensorRole::Unmergeable("a DoRA magnitude"));
    }
    if name.contains("lora_embedding_") {
        return Some(TensorRole::Unmergeable("a low-rank embedding"));
    }
    let (module, rest, is_a) = match name.split_once(".lora_A.") {
        Some((module, rest)) => (module, rest, true),
        None => {
            let (module, rest) = name.split_once(".lora_B.")?;
            (module, rest, false)
        }
    };
    if rest != "weight" && !rest.ends_with(".weight") {
        return Some(TensorRole::Unmergeable("a low-rank factor that is not a weight"));
    }
    let module = canonical_head(module);
    Some(if is_a { TensorRole::LoraA(module) } else { TensorRole::LoraB(module) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(original: &str) -> String {
        match classify(original) {
            TensorRole::Weight(name) => name,
            other => panic!("{original}: {other:?}"),
        }
    }

    #[test]
    fn every_published_spelling_has_one_canonical_name() {
        for (original, canonical) in [
            ("transformer.wte.weight", "wte.weight"),
            ("wte.weight", "wte.weight"),
            ("base_causallm.transformer.h.3.ln_1.bias", "h.3.ln_1.bias"),
            ("base_causallm.lm_head.weight", "lm_head.weight"),
            (
                "codi.base_model.model.transformer.h.0.attn.c_attn.base_layer.weight",
                "h.0.attn.c_attn.weight",
            ),
            (
                "codi.base_model.model.transformer.h.0.attn.c_attn.base_layer.bias",
                "h.0.attn.c_attn.bias",
            ),
            (
                "codi.base_model.model.model.layers.2.mlp.up_proj.base_layer.weight",
                "layers.2.mlp.up_proj.weight",
            ),
            ("llm.base_model.model.model.embed_tokens.weight", "embed_tokens.weight"),
            (
                "model.language_model.layers.0.self_attn.q_norm.weight",
                "layers.0.self_attn.q_norm.weight",
            ),
            (
                "base_model.model.model.language_model.layers.7.self_attn.q_proj.base_layer.weight",
                "layers.7.self_attn.q_proj.weight",
            ),
            ("model.norm.weight", "norm.weight"),
            ("prj.1.weight", "projector.1.weight"),
            ("prj.3.bias", "projector.3.bias"),
            ("prj.ln.weight", "projector.4.weight"),
            ("projector.4.bias", "projector.4.bias"),
            ("latent_policy.fc.0.weight", "lt_head.fc.0.weight"),
            ("lt_head.mean.bias", "lt_head.mean.bias"),
            ("score.weight", "classifier.weight"),
            ("classifier.bias", "classifier.bias"),
            ("img_begin_emb", "img_begin_emb"),
        ] {
            assert_eq!(weight(original), canonical, "{original}");
        }
    }

    #[test]
    fn low_rank_factors_name_their_module() {
        let module = "layers.0.self_attn.q_proj".to_owned();
        let prefix = "llm.base_model.model.model.layers.0.self_attn.q_proj";
        assert_eq!(
            classify(&format!("{prefix}.lora_A.default.weight")),
            TensorRole::LoraA(module.clone())
        );
        assert_eq!(
            classify(&format!("{prefix}.lora_B.default.weight")),
            TensorRole::LoraB(module.clone())
        );
        assert_eq!(classify(&format!("{prefix}.lora_A.weight")), TensorRole::LoraA(module));
        assert!(matches!(
            classify(&format!("{prefix}.lora_B.default.bias")),
            TensorRole::Unmergeable(_)
        ));
        assert!(matches!(
            classify(&format!("{prefix}.lora_magnitude_vector.default.weight")),
            TensorRole::Unmergeable(_)
        ));
    }

    #[test]
    fn buffers_and_unused_towers_are_ignored_with_a_reason() {
        for original in [
            "transformer.h.0.attn.bias",
            "transformer.h.11.attn.masked_bias",
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.visual.blocks.0.attn.qkv.weight",
            "dynamic_cls.0.weight",
            "latent_policy.log_std.weight",
            "embedding.weight",
            "decoder.base_model.model.model.layers.0.mlp.up_proj.base_layer.weight",
            "expainable_llm.transformer.wte.weight",
            "pj_in.weight",
            "vision_encoder.mllm_model.model.language_model.norm.weight",
        ] {
            assert!(matches!(classify(original), TensorRole::Ignored(_)), "{original}");
        }
        assert_eq!(weight("transformer.h.0.attn.c_attn.bias"), "h.0.attn.c_attn.bias");
    }
}
