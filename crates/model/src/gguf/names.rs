//! Maps the tensor names of llama.cpp to canonical names.

use crate::names::TensorRole;

/// Modules outside of the blocks, as (llama.cpp, canonical).
const MODULES: [(&str, &str); 3] =
    [("token_embd", "embed_tokens"), ("output_norm", "norm"), ("output", "lm_head")];

/// Modules of a block, likewise.
const BLOCK_MODULES: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The rotary factors of Llama 3.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The role of a tensor. An unknown one keeps its name: nothing reads it, and it is reported as
/// unused.
pub(crate) fn tensor_role(name: &str) -> TensorRole {
    if name == ROPE_FACTORS {
        return TensorRole::Ignored("rotary scaling, which is part of the configuration");
    }
    TensorRole::Weight(canonical(name).unwrap_or_else(|| name.to_owned()))
}

fn canonical(name: &str) -> Option<String> {
    let (module, parameter) = name.rsplit_once('.')?;
    match block_module(module) {
        Some((block, module)) => {
            Some(format!("layers.{block}.{}.{parameter}", lookup(&BLOCK_MODULES, module)?))
        }
        None => Some(format!("{}.{parameter}", lookup(&MODULES, module)?)),
    }
}

/// `blk.3.attn_q` as (3, attn_q).
fn block_module(module: &str) -> Option<(&str, &str)> {
    module.strip_prefix("blk.")?.split_once('.')
}

fn lookup(modules: &[(&str, &'static str)], module: &str) -> Option<&'static str> {
    modules.iter().find(|(theirs, _)| *theirs == module).map(|(_, ours)| *ours)
}

/// The kind of heads that the rows of a tensor belong to, if rotary embeddings apply to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RotaryHeads {
    /// Query heads.
    Query,
    /// Key heads.
    Key,
}

/// Whether a tensor projects to queries or keys.
pub(super) fn rotary_heads(name: &str) -> Option<RotaryHeads> {
    match block_module(name.rsplit_once('.')?.0)?.1 {
        "attn_q" => Some(RotaryHeads::Query),
        "attn_k" => Some(RotaryHeads::Key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_llama_cpp_become_canonical() {
        for (name, canonical) in [
            ("token_embd.weight", "embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.11.attn_q.bias", "layers.11.self_attn.q_proj.bias"),
            ("blk.0.ffn_down.weight", "layers.0.mlp.down_proj.weight"),
            ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_exps.weight"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(tensor_role(name), TensorRole::Weight(canonical.to_owned()));
        }
        assert!(matches!(tensor_role(ROPE_FACTORS), TensorRole::Ignored(_)));
        assert_eq!(rotary_heads("blk.3.attn_k.weight"), Some(RotaryHeads::Key));
        assert_eq!(rotary_heads("blk.3.attn_k_norm.weight"), None);
    }
}
