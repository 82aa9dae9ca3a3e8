//! Converts the metadata of a GGUF file to a config.json that transformers can read, too.

use serde_json::{Value, json};

use super::blocks::{GgmlType, RowOrder, dequantize};
use super::names::{ROPE_FACTORS, RotaryHeads, rotary_heads};
use super::reader::{GgufFile, GgufTensor};
use crate::error::ModelError;

/// Architecture, `model_type` and class of transformers.
const ARCHITECTURES: [(&str, &str); 3] =
    [("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")];
/// Llama 3's `low_freq_factor` and `high_freq_factor`: every published model has these.
const LLAMA3_FREQ_FACTORS: [f64; 2] = [1.0, 4.0];
/// Llama 3's context before scaling, unless another is specified.
const LLAMA3_ORIGINAL_CONTEXT: usize = 8192;
/// Converters compute the factors in f32.
const FACTOR_TOLERANCE: f64 = 1e-4;

/// The keys of one architecture: `<architecture>.<name>`.
struct ModelKeys<'a> {
    gguf: &'a GgufFile,
    architecture: &'static str,
}

impl<'a> ModelKeys<'a> {
    fn new(gguf: &'a GgufFile) -> Result<Self, ModelError> {
        let key = "general.architecture";
        let split = "split.count";
        if gguf.opt_integer(split)?.is_some_and(|n| n > 1) {
            let joined = "a single file; join the parts with llama-gguf-split --merge";
            return Err(gguf.unsupported(split, "above 1", joined));
        }
        let found = gguf.text(key)?;
        let architecture = ARCHITECTURES.iter().find(|(name, _)| *name == found);
        let names = ARCHITECTURES.map(|(name, _)| name).join(", ");
        let (architecture, _) =
            architecture.ok_or_else(|| gguf.unsupported(key, &format!("`{found}`"), &names))?;
        Ok(Self { gguf, architecture })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn count(&self, name: &str) -> Result<usize, ModelError> {
        self.gguf.count(&self.key(name))
    }

    fn opt_count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        self.gguf.opt_count(&self.key(name))
    }

    fn number(&self, name: &str) -> Result<Option<Value>, ModelError> {
        Ok(self.gguf.opt_number(&self.key(name))?.map(shortest))
    }

    fn heads(&self) -> Result<usize, ModelError> {
        self.count("attention.head_count")
    }

    fn kv_heads(&self) -> Result<usize, ModelError> {
        self.opt_count("attention.head_count_kv")?.map_or_else(|| self.heads(), Ok)
    }

    fn head_dim(&self) -> Result<usize, ModelError> {
        let width = self.count("embedding_length")?;
        let heads = self.heads()?;
        match self.opt_count("attention.key_length")? {
            Some(head_dim) => Ok(head_dim),
            None if width.is_multiple_of(heads) => Ok(width / heads),
            None => {
                let why = format!("is {heads}; it must divide embedding_length, {width}");
                Err(self.gguf.bad_value(&self.key("attention.head_count"), why))
            }
        }
    }

    /// Rejects keys that enable features that the decoder does not implement.
    fn check_supported(&self) -> Result<(), ModelError> {
        let head_dim = self.head_dim()?;
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(n) = self.opt_count(name)?.filter(|n| *n != head_dim) {
                let all = format!("{head_dim}, the size of a head");
                return Err(self.gguf.unsupported(&self.key(name), &n.to_string(), &all));
            }
        }
        for name in ["expert_count", "attention.sliding_window"] {
            if let Some(n) = self.gguf.opt_integer(&self.key(name))?.filter(|n| *n != 0) {
                return Err(self.gguf.unsupported(&self.key(name), &n.to_string(), "0"));
            }
        }
        let scaling = self.key("rope.scaling.type");
        match self.gguf.opt_text(&scaling)?.unwrap_or("none") {
            "none" | "" => {}
            other => return Err(self.gguf.unsupported(&scaling, other, "none")),
        }
        for name in ["rope.scaling.factor", "rope.scale_linear"] {
            if let Some(x) =
                self.gguf.opt_number(&self.key(name))?.filter(|x| ![0.0, 1.0].contains(x))
            {
                return Err(self.gguf.unsupported(&self.key(name), &x.to_string(), "1"));
            }
        }
        Ok(())
    }

    /// Number of rows of the token embedding; the list of tokens may be shorter.
    fn vocab(&self) -> Result<usize, ModelError> {
        let name = "token_embd.weight";
        match self.gguf.tensor(name).map(|tensor| tensor.shape.as_slice()) {
            Some([rows, _]) => Ok(*rows),
            Some(_) => Err(self.gguf.bad_value(name, "must be a matrix")),
            None => Err(ModelError::MissingTensor {
                dir: self.gguf.path.clone(),
                tensor: name.to_owned(),
                hint: "download the file again".to_owned(),
            }),
        }
    }
}

/// The content of config.json.
pub(super) fn config_json(gguf: &GgufFile) -> Result<Value, ModelError> {
    let keys = ModelKeys::new(gguf)?;
    keys.check_supported()?;
    let class = ARCHITECTURES.iter().find(|(name, _)| *name == keys.architecture);
    let mut config = json!({
        "architectures": [class.map(|(_, class)| class)],
        "model_type": keys.architecture,
        "hidden_act": "silu",
        "hidden_size": keys.count("embedding_length")?,
        "intermediate_size": keys.count("feed_forward_length")?,
        "num_hidden_layers": keys.count("block_count")?,
        "num_attention_heads": keys.heads()?,
        "num_key_value_heads": keys.kv_heads()?,
        "head_dim": keys.head_dim()?,
        "max_position_embeddings": keys.count("context_length")?,
        "rope_theta": keys.number("rope.freq_base")?.unwrap_or(json!(10000.0)),
        "tie_word_embeddings": gguf.tensor("output.weight").is_none(),
        "vocab_size": keys.vocab()?,
    });
    let eps = "attention.layer_norm_rms_epsilon";
    config["rms_norm_eps"] = keys.number(eps)?.ok_or_else(|| gguf.missing(&keys.key(eps)))?;
    if let Some(scaling) = rope_scaling(&keys)? {
        config["rope_scaling"] = scaling;
    }
    for token in ["bos", "eos"] {
        if let Some(id) = gguf.opt_integer(&format!("tokenizer.ggml.{token}_token_id"))? {
            config[format!("{token}_token_id")] = json!(id);
        }
    }
    Ok(config)
}

/// An f32 as the shortest decimal number that is read as the same f32: 1e-5 rather than
/// 9.999999747378752e-6.
fn shortest(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, |x| json!(x))
}

/// Llama 3's scaling. llama.cpp stores the divisor of every frequency instead of the scaling
/// parameters; the parameters are recovered and must reproduce the stored divisors.
fn rope_scaling(keys: &ModelKeys<'_>) -> Result<Option<Value>, ModelError> {
    let Some(tensor) = keys.gguf.tensor(ROPE_FACTORS) else { return Ok(None) };
    let bytes = keys.gguf.tensor_bytes(tensor);
    let stored = match (tensor.kind, tensor.shape.as_slice()) {
        (GgmlType::F32, [n]) if 2 * n == keys.head_dim()? => {
            dequantize(tensor.kind, RowOrder::Plain, &tensor.shape, bytes)
        }
        _ => return Err(unknown_factors(keys)),
    };
    let factor = stored.last().map_or(1.0, |x| f64::from(*x));
    if stored.iter().all(|x| *x == 1.0) {
        return Ok(None);
    }
    let original = keys.opt_count("rope.scaling.original_context_length")?;
    let context = original.unwrap_or(LLAMA3_ORIGINAL_CONTEXT);
    let theta = keys.gguf.opt_number(&keys.key("rope.freq_base"))?.unwrap_or(10000.0);
    let frequency = |i: usize| f64::from(theta).powf(-((2 * i) as f64) / (2 * stored.len()) as f64);
    let is_llama3 = stored.iter().enumerate().all(|(i, x)| {
        let expected = llama3_divisor(frequency(i), factor, context as f64);
        (f64::from(*x) - expected).abs() <= FACTOR_TOLERANCE * expected
    });
    if !is_llama3 {
        return Err(unknown_factors(keys));
    }
    let [low, high] = LLAMA3_FREQ_FACTORS;
    Ok(Some(json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": context,
    })))
}

/// The divisor of a frequency in Llama 3's scaling.
fn llama3_divisor(frequency: f64, factor: f64, context: f64) -> f64 {
    let [low, high] = LLAMA3_FREQ_FACTORS;
    let wavelength = std::f64::consts::TAU / frequency;
    if wavelength < context / high {
        1.0
    } else if wavelength > context / low {
        factor
    } else {
        let smooth = (context / wavelength - low) / (high - low);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}

fn unknown_factors(keys: &ModelKeys<'_>) -> ModelError {
    keys.gguf.unsupported(ROPE_FACTORS, "not Llama 3's", "Llama 3's factors, or none")
}

/// The order of a tensor's rows: llama's converter interleaves the rotary halves of queries and
/// keys, those of the others do not.
pub(crate) fn row_order(gguf: &GgufFile, tensor: &GgufTensor) -> Result<RowOrder, ModelError> {
    let keys = ModelKeys::new(gguf)?;
    let (Some(rotary), [rows, _], "llama") =
        (rotary_heads(&tensor.name), tensor.shape.as_slice(), keys.architecture)
    else {
        return Ok(RowOrder::Plain);
    };
    let heads = match rotary {
        RotaryHeads::Query => keys.heads()?,
        RotaryHeads::Key => keys.kv_heads()?,
    };
    let order = RowOrder::Interleaved { heads };
    if order.fits(*rows) {
        return Ok(order);
    }
    let why = format!("has {rows} rows, which do not split into {heads} heads of even size");
    Err(gguf.bad_value(&tensor.name, why))
}
