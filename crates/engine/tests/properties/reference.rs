//! A GPT-2 written from its definition, in double precision and plain loops, and dropout as the
//! design defines it.
//!
//! It shares with the crates under test only the numbers: weights are read from the checkpoint and
//! masks from the random function. So it says which outputs are dropped (after the projection and
//! its bias, before the residual), how (zeroed, or divided by 1 - p), and in which passes.

use engine::perturb::RowId;
use engine::{DropoutScope, DropoutSites, Perturbation, SamplingParams};
use model::Checkpoint;
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use tensor::Tensor;
use tensor::rng::Site;

use crate::common::*;

type PlainMatrix = Vec<Vec<f64>>;

/// A GPT-2's weights under their published names, looked up as they are used.
struct PlainGpt2 {
    checkpoint: Checkpoint,
    spec: CheckpointSpec,
}

/// Where dropout falls: a row's name, the rate, the sites, and which positions are stochastic.
struct PlainDropout {
    row: RowId,
    p: f32,
    sites: DropoutSites,
    stochastic: Vec<bool>,
}

impl PlainGpt2 {
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> PlainMatrix {
        let flat = self.checkpoint.tensor(name, &[rows, cols]).unwrap();
        flat.chunks(cols).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
    }

    fn vector(&self, name: &str, len: usize) -> Vec<f64> {
        self.checkpoint.tensor(name, &[len]).unwrap().into_iter().map(f64::from).collect()
    }

    fn embeddings(&self) -> PlainMatrix {
        self.matrix("wte.weight", self.checkpoint.config().vocab, self.spec.width)
    }

    fn layer_norm(&self, name: &str, x: &PlainMatrix) -> PlainMatrix {
        let (g, b) = (
            self.vector(&format!("{name}.weight"), self.spec.width),
            self.vector(&format!("{name}.bias"), self.spec.width),
        );
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
    fn conv(&self, name: &str, x: &PlainMatrix, outputs: usize) -> PlainMatrix {
        let inputs = x[0].len();
        let (w, b) = (
            self.matrix(&format!("{name}.weight"), inputs, outputs),
            self.vector(&format!("{name}.bias"), outputs),
        );
        x.iter()
            .map(|row| {
                (0..outputs)
                    .map(|j| b[j] + (0..inputs).map(|k| row[k] * w[k][j]).sum::<f64>())
                    .collect()
            })
            .collect()
    }

    /// Causal attention, heads side by side.
    fn attention(&self, qkv: &PlainMatrix) -> PlainMatrix {
        let (d, heads) = (self.spec.width, self.spec.heads);
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
    fn forward(&self, inputs: &PlainMatrix, dropping: Option<&PlainDropout>) -> PlainMatrix {
        let d = self.spec.width;
        let positions = self.matrix("wpe.weight", self.spec.context, d);
        let mut x: PlainMatrix = inputs
            .iter()
            .zip(&positions)
            .map(|(x, p)| x.iter().zip(p).map(|(x, p)| x + p).collect())
            .collect();
        for layer in 0..self.spec.layers {
            let name = |part: &str| format!("h.{layer}.{part}");
            let qkv = self.conv(&name("attn.c_attn"), &self.layer_norm(&name("ln_1"), &x), 3 * d);
            let out = self.conv(&name("attn.c_proj"), &self.attention(&qkv), d);
            add(&mut x, &out, dropping, (layer, Site::AttnOut));
            let mut inner =
                self.conv(&name("mlp.c_fc"), &self.layer_norm(&name("ln_2"), &x), self.spec.ffn);
            inner.iter_mut().flatten().for_each(|x| *x = gelu(*x));
            let out = self.conv(&name("mlp.c_proj"), &inner, d);
            add(&mut x, &out, dropping, (layer, Site::MlpOut));
        }
        self.layer_norm("ln_f", &x)
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// The residual: `x += out`, with inverted dropout on `out` at positions that are stochastic.
fn add(
    x: &mut PlainMatrix,
    out: &PlainMatrix,
    dropping: Option<&PlainDropout>,
    (layer, site): (usize, Site),
) {
    for t in 0..x.len() {
        let drawn = dropping.filter(|d| {
            d.stochastic[t]
                && if site == Site::AttnOut { d.sites.attn_out } else { d.sites.mlp_out }
        });
        for i in 0..x[t].len() {
            x[t][i] += match drawn {
                Some(d) if d.row.rng_key(SEED, t).keeps(layer, site, i, d.p) => {
                    out[t][i] / (1.0 - f64::from(d.p))
                }
                Some(_) => 0.0,
                None => out[t][i],
            };
        }
    }
}

/// What COCONUT does with it: feed hidden states back, then the end token. Thoughts, then logits
/// after the end token.
struct PlainCoconut<'a> {
    gpt2: &'a PlainGpt2,
    dropping: Option<PlainDropout>,
    thoughts: usize,
}

impl PlainCoconut<'_> {
    /// Positions that the design calls stochastic, of a prompt, the thoughts and one end token.
    fn stochastic(scope: DropoutScope, prompt: usize, thoughts: usize) -> Vec<bool> {
        let first = if scope == DropoutScope::Thoughts { prompt - 1 } else { 0 };
        let end =
            if scope == DropoutScope::All { prompt + thoughts + 1 } else { prompt + thoughts - 1 };
        (0..prompt + thoughts + 1).map(|t| (first..end).contains(&t)).collect()
    }

    fn run(&self, prompt: &[u32], end: u32) -> (Tensor, Tensor) {
        let table = self.gpt2.embeddings();
        let mut inputs: PlainMatrix = prompt.iter().map(|&t| table[t as usize].clone()).collect();
        for _ in 0..self.thoughts {
            let hidden = self.gpt2.forward(&inputs, self.dropping.as_ref()).pop().unwrap();
            inputs.push(hidden);
        }
        let thoughts = inputs[prompt.len()..].to_vec();
        inputs.push(table[end as usize].clone());
        let hidden = self.gpt2.forward(&inputs, self.dropping.as_ref()).pop().unwrap();
        let logits =
            table.iter().map(|e| e.iter().zip(&hidden).map(|(e, h)| e * h).sum()).collect();
        (tensor(&thoughts), tensor(&vec![logits]))
    }
}

fn tensor(x: &PlainMatrix) -> Tensor {
    Tensor::from_vec(x.len(), x[0].len(), x.iter().flatten().map(|&x| x as f32).collect())
}

/// Both implementations on one checkpoint.
struct ModelPair {
    gpt2: PlainGpt2,
    reasoner: engine::Reasoner,
}

const THOUGHTS: usize = 4;

impl ModelPair {
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
            gpt2: PlainGpt2 { checkpoint: Checkpoint::open(dir.path()).unwrap(), spec },
            reasoner,
        }
    }

    /// The distance between the reference with given stochastic positions and the engine: of
    /// thoughts, and of the logits after them.
    fn apart(
        &self,
        perturbation: Perturbation,
        stochastic: &dyn Fn(usize) -> Vec<bool>,
    ) -> (f32, f32) {
        let settings = SamplingParams {
            length: exactly(THOUGHTS),
            ..settings(&self.reasoner, 2, perturbation)
        };
        let prompt = prompted(&self.reasoner, &question(21, "If 3 cats eat 3 mice?"));
        let (mut thoughts, mut logits) = (0f32, 0f32);
        for (k, found) in replayed(&self.reasoner, &settings, &prompt).iter().enumerate() {
            let dropping = match perturbation {
                Perturbation::Dropout { p, sites, .. } => Some(PlainDropout {
                    row: row(prompt.id, k),
                    p: p.get(),
                    sites,
                    stochastic: stochastic(prompt.tokens.len()),
                }),
                _ => None,
            };
            let reference = PlainCoconut { gpt2: &self.gpt2, dropping, thoughts: THOUGHTS };
            let expected = reference.run(&prompt.tokens, self.reasoner.method.end_latent[0]);
            thoughts = thoughts.max(apart(&found.thoughts, &expected.0));
            logits = logits.max(apart(&matrix(&found.first_logits), &expected.1));
        }
        (thoughts, logits)
    }
}

const SITES: [DropoutSites; 3] = [DropoutSites::BOTH, DropoutSites::MLP, DropoutSites::ATTN];
const SCOPES: [DropoutScope; 3] = [DropoutScope::Thoughts, DropoutScope::Prompt, DropoutScope::All];

#[test]
fn without_dropout_the_engine_is_the_reference() {
    let (thoughts, logits) = ModelPair::load().apart(Perturbation::None, &|_| Vec::new());
    assert!(thoughts < 1e-4 && logits < 1e-4, "{thoughts:e} {logits:e}");
}

#[test]
fn dropout_falls_exactly_where_the_design_says() {
    let both = ModelPair::load();
    for scope in SCOPES {
        for sites in SITES {
            let designed = |prompt| PlainCoconut::stochastic(scope, prompt, THOUGHTS);
            let (thoughts, logits) = both.apart(dropout(0.2, sites, scope), &designed);
            assert!(
                thoughts < 1e-4 && logits < 1e-4,
                "{scope:?} {sites:?}: {thoughts:e} {logits:e}"
            );
        }
    }
}

/// The comparison above can fail: one position more or less shows in what follows it.
#[test]
fn one_stochastic_position_more_or_less_shows() {
    let both = ModelPair::load();
    let perturbation = thoughtful(0.2);
    let flipped = |from_prompt: isize| {
        let stochastic = |prompt: usize| {
            let mut designed = PlainCoconut::stochastic(DropoutScope::Thoughts, prompt, THOUGHTS);
            let at = prompt.checked_add_signed(from_prompt).unwrap();
            designed[at] = !designed[at];
            designed
        };
        both.apart(perturbation, &stochastic)
    };
    assert!(flipped(-2).0 > 1e-2, "the token before the last is clean");
    assert!(flipped(-1).0 > 1e-2, "the last token is stochastic");
    assert!(flipped(THOUGHTS as isize - 2).0 > 1e-2, "the last but one thought is stochastic");
    let (thoughts, logits) = flipped(THOUGHTS as isize - 1);
    assert!(thoughts < 1e-4 && logits > 1e-2, "the last thought is clean");
    let (thoughts, logits) = flipped(THOUGHTS as isize);
    assert!(thoughts < 1e-4 && logits > 1e-2, "the end token is clean");
}
