//! A reference GPT-2, implemented from its definition in double precision and plain loops, with
//! dropout as specified.
//!
//! It shares only the numbers with the crates under test: weights are read from the checkpoint and
//! masks come from the random number generator. So it specifies which outputs are dropped (after
//! the projection and its bias, before the residual), how (zeroed, or divided by 1 - p), and in
//! which passes.

use latent_tts_engine::{
    DropoutScope, DropoutSites, Perturbation, Reasoner, SamplingParams, SequenceId,
};
use model::Checkpoint;
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use tensor::Tensor;
use tensor::rng::Site;

use crate::common::*;

type MatrixF64 = Vec<Vec<f64>>;

/// A GPT-2's weights under their published names, looked up as they are used.
struct ReferenceGpt2 {
    checkpoint: Checkpoint,
    spec: CheckpointSpec,
}

/// The specification of dropout: the sequence's random number key, the rate, the sites, the
/// stochastic positions.
struct ReferenceDropout {
    row: SequenceId,
    p: f32,
    sites: DropoutSites,
    stochastic: Vec<bool>, // (positions)
}

impl ReferenceGpt2 {
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> MatrixF64 {
        let flat = self.checkpoint.tensor(name, &[rows, cols]).unwrap();
        flat.chunks(cols).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
    }

    fn vector(&self, name: &str, len: usize) -> Vec<f64> {
        self.checkpoint.tensor(name, &[len]).unwrap().into_iter().map(f64::from).collect()
    }

    fn embeddings(&self) -> MatrixF64 {
        self.matrix("wte.weight", self.checkpoint.config().vocab, self.spec.width)
    }

    fn layer_norm(&self, name: &str, x: &MatrixF64) -> MatrixF64 {
        let g = self.vector(&format!("{name}.weight"), self.spec.width);
        let b = self.vector(&format!("{name}.bias"), self.spec.width);
        let one = |row: &Vec<f64>| {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            (0..row.len())
                .map(|i| (row[i] - mean) / (variance + 1e-5).sqrt() * g[i] + b[i])
                .collect()
        };
        x.iter().map(one).collect()
    }

    /// `Conv1D`: x W + b with W stored (in, out).
    fn conv(&self, name: &str, x: &MatrixF64, outputs: usize) -> MatrixF64 {
        let inputs = x[0].len();
        let w = self.matrix(&format!("{name}.weight"), inputs, outputs);
        let b = self.vector(&format!("{name}.bias"), outputs);
        x.iter()
            .map(|row| {
                (0..outputs)
                    .map(|j| b[j] + (0..inputs).map(|k| row[k] * w[k][j]).sum::<f64>())
                    .collect()
            })
            .collect()
    }

    /// Causal attention, heads side by side.
    fn attention(&self, qkv: &MatrixF64) -> MatrixF64 {
        let d = self.spec.width;
        let heads = self.spec.heads;
        let dim = d / heads;
        let mut out = vec![vec![0.0; d]; qkv.len()];
        for t in 0..qkv.len() {
            for h in 0..heads {
                let at = h * dim..(h + 1) * dim;
                let dot = |s: usize| {
                    at.clone().map(|i| qkv[t][i] * qkv[s][d + i]).sum::<f64>() / (dim as f64).sqrt()
                };
                let weights: Vec<f64> = (0..=t).map(|s| dot(s).exp()).collect();
                let total: f64 = weights.iter().sum();
                for i in at.clone() {
                    out[t][i] = (0..=t).map(|s| weights[s] / total * qkv[s][2 * d + i]).sum();
                }
            }
        }
        out
    }

    /// Hidden states after the final norm of a whole sequence of input vectors.
    fn forward(&self, inputs: &MatrixF64, dropout: Option<&ReferenceDropout>) -> MatrixF64 {
        let d = self.spec.width;
        let positions = self.matrix("wpe.weight", self.spec.context, d);
        let mut x: MatrixF64 = inputs
            .iter()
            .zip(&positions)
            .map(|(x, p)| x.iter().zip(p).map(|(x, p)| x + p).collect())
            .collect();
        for layer in 0..self.spec.layers {
            let name = |part: &str| format!("h.{layer}.{part}");
            let qkv = self.conv(&name("attn.c_attn"), &self.layer_norm(&name("ln_1"), &x), 3 * d);
            let out = self.conv(&name("attn.c_proj"), &self.attention(&qkv), d);
            add(&mut x, &out, dropout, (layer, Site::AttnOut));
            let mut inner =
                self.conv(&name("mlp.c_fc"), &self.layer_norm(&name("ln_2"), &x), self.spec.ffn);
            inner.iter_mut().flatten().for_each(|x| *x = gelu(*x));
            let out = self.conv(&name("mlp.c_proj"), &inner, d);
            add(&mut x, &out, dropout, (layer, Site::MlpOut));
        }
        self.layer_norm("ln_f", &x)
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// The residual: `x += out`, with inverted dropout on `out` at positions that are stochastic.
fn add(
    x: &mut MatrixF64,
    out: &MatrixF64,
    dropout: Option<&ReferenceDropout>,
    (layer, site): (usize, Site),
) {
    for t in 0..x.len() {
        let has_site = |sites: DropoutSites| match site {
            Site::AttnOut => sites.attn_out,
            _ => sites.mlp_out,
        };
        let dropout = dropout.filter(|d| d.stochastic[t] && has_site(d.sites));
        for i in 0..x[t].len() {
            x[t][i] += match dropout {
                Some(d) if d.row.rng_key(SEED, t).keeps(layer, site, i, d.p) => {
                    out[t][i] / (1.0 - f64::from(d.p))
                }
                Some(_) => 0.0,
                None => out[t][i],
            };
        }
    }
}

/// COCONUT on it: hidden states are fed back, then the end token.
struct ReferenceCoconut<'a> {
    gpt2: &'a ReferenceGpt2,
    dropout: Option<ReferenceDropout>,
    thoughts: usize,
}

impl ReferenceCoconut<'_> {
    /// The positions of a prompt, the thoughts and one end token that are specified as stochastic.
    fn stochastic(scope: DropoutScope, prompt: usize, thoughts: usize) -> Vec<bool> {
        let first = if scope == DropoutScope::Thoughts { prompt - 1 } else { 0 };
        let end =
            if scope == DropoutScope::All { prompt + thoughts + 1 } else { prompt + thoughts - 1 };
        (0..prompt + thoughts + 1).map(|t| (first..end).contains(&t)).collect()
    }

    /// The thoughts, and the logits after the end token.
    fn run(&self, prompt: &[u32], end: u32) -> (Tensor, Tensor) {
        let table = self.gpt2.embeddings();
        let mut inputs: MatrixF64 = prompt.iter().map(|&t| table[t as usize].clone()).collect();
        for _ in 0..self.thoughts {
            let hidden = self.gpt2.forward(&inputs, self.dropout.as_ref()).pop().unwrap();
            inputs.push(hidden);
        }
        let thoughts = inputs[prompt.len()..].to_vec();
        inputs.push(table[end as usize].clone());
        let hidden = self.gpt2.forward(&inputs, self.dropout.as_ref()).pop().unwrap();
        let logits =
            table.iter().map(|e| e.iter().zip(&hidden).map(|(e, h)| e * h).sum()).collect();
        (tensor(&thoughts), tensor(&vec![logits]))
    }
}

fn tensor(x: &MatrixF64) -> Tensor {
    Tensor::from_vec(x.len(), x[0].len(), x.iter().flatten().map(|&x| x as f32).collect())
}

/// Both implementations on one checkpoint.
struct ReferencePair {
    gpt2: ReferenceGpt2,
    reasoner: Reasoner,
}

const THOUGHTS: usize = 4;

impl ReferencePair {
    fn load() -> Self {
        let spec = CheckpointSpec {
            family: CheckpointFamily::Coconut,
            context: 64,
            ..CheckpointSpec::default()
        };
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(dir.path(), &spec).unwrap();
        let reasoner = load(device(), dir.path(), spec.family);
        Self {
            gpt2: ReferenceGpt2 { checkpoint: Checkpoint::open(dir.path()).unwrap(), spec },
            reasoner,
        }
    }

    /// The relative error between the engine and the reference with given stochastic positions: of
    /// thoughts, and of the logits after them.
    fn errors(
        &self,
        perturbation: Perturbation,
        stochastic: &dyn Fn(usize) -> Vec<bool>,
    ) -> (f32, f32) {
        let params = SamplingParams {
            length: exactly(THOUGHTS),
            ..short_params(&self.reasoner, 2, perturbation)
        };
        let prompt = prompt_of(&self.reasoner, &question(21, "If 3 cats eat 3 mice?"));
        let mut thoughts = 0f32;
        let mut logits = 0f32;
        for (k, found) in run_sequences(&self.reasoner, &params, &prompt).iter().enumerate() {
            let dropout = match perturbation {
                Perturbation::Dropout { p, sites, .. } => Some(ReferenceDropout {
                    row: row_id(prompt.id, k),
                    p: p.get(),
                    sites,
                    stochastic: stochastic(prompt.tokens.len()),
                }),
                _ => None,
            };
            let reference = ReferenceCoconut { gpt2: &self.gpt2, dropout, thoughts: THOUGHTS };
            let expected = reference.run(&prompt.tokens, self.reasoner.method.end_latent[0]);
            thoughts = thoughts.max(relative_error(&found.thoughts, &expected.0));
            logits = logits.max(relative_error(&matrix(&found.first_logits), &expected.1));
        }
        (thoughts, logits)
    }
}

const SITES: [DropoutSites; 3] = [DropoutSites::BOTH, DropoutSites::MLP, DropoutSites::ATTN];
const SCOPES: [DropoutScope; 3] = [DropoutScope::Thoughts, DropoutScope::Prompt, DropoutScope::All];

#[test]
fn without_dropout_the_engine_is_the_reference() {
    let (thoughts, logits) = ReferencePair::load().errors(Perturbation::None, &|_| Vec::new());
    assert!(thoughts < 1e-4 && logits < 1e-4, "{thoughts:e} {logits:e}");
}

#[test]
fn dropout_falls_exactly_where_it_is_specified() {
    let both = ReferencePair::load();
    for scope in SCOPES {
        for sites in SITES {
            let specified = |prompt| ReferenceCoconut::stochastic(scope, prompt, THOUGHTS);
            let (thoughts, logits) = both.errors(dropout(0.2, sites, scope), &specified);
            assert!(
                thoughts < 1e-4 && logits < 1e-4,
                "{scope:?} {sites:?}: {thoughts:e} {logits:e}"
            );
        }
    }
}

/// The comparison above is sensitive: one stochastic position more or less changes the results
/// after it.
#[test]
fn one_stochastic_position_more_or_less_shows() {
    let both = ReferencePair::load();
    let perturbation = thought_dropout(0.2);
    let flipped = |from_prompt: isize| {
        let stochastic = |prompt: usize| {
            let mut specified =
                ReferenceCoconut::stochastic(DropoutScope::Thoughts, prompt, THOUGHTS);
            let at = prompt.checked_add_signed(from_prompt).unwrap();
            specified[at] = !specified[at];
            specified
        };
        both.errors(perturbation, &stochastic)
    };
    assert!(flipped(-2).0 > 1e-2, "the token before the last is clean");
    assert!(flipped(-1).0 > 1e-2, "the last token is stochastic");
    assert!(flipped(THOUGHTS as isize - 2).0 > 1e-2, "the last but one thought is stochastic");
    let (thoughts, logits) = flipped(THOUGHTS as isize - 1);
    assert!(thoughts < 1e-4 && logits > 1e-2, "the last thought is clean");
    let (thoughts, logits) = flipped(THOUGHTS as isize);
    assert!(thoughts < 1e-4 && logits > 1e-2, "the end token is clean");
}
