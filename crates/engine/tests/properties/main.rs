//! Properties of the engine on tiny random models of every family.
//!
//! Golden tests say that one computation is right; these say that it is the same computation in
//! every batch, on every device and in every layout of the checkpoint, and that each perturbation
//! falls exactly where it should:
//!
//! * [`batching`]: a trajectory does not depend on what shares its batch;
//! * [`mixed_requests`]: requests with different parameters share a run and change nothing in each
//!   other;
//! * [`cancellation`]: a cancelled request ends early and changes nothing in the others;
//! * [`scheduler`]: requests that arrive at any time share passes and get what they get alone;
//! * [`requests`]: errors are handed over at the request's place, and the caller's own error ends
//!   the run;
//! * [`naive`]: forked rows equal whole sequences computed from scratch;
//! * [`reference_gpt2`]: a GPT-2 in double precision, and dropout by its definition;
//! * [`randomness`]: what dropout and noise do, and that they do nothing at strength zero;
//! * [`forced_thoughts`]: thoughts that a request brings are fed, and nothing else changes;
//! * [`gumbel`]: Gumbel noise on thoughts that are mixtures of token embeddings;
//! * [`mixtures`]: one-sided noise, sampled tokens, Cold Stop, and dropout on what is generated;
//! * [`latent_sampler`]: samplers of the calling program;
//! * [`hidden_states`]: hidden states along a given trajectory are those of its generation;
//! * [`lens`]: thoughts read through the LM head;
//! * [`length`]: how many thoughts a row has;
//! * [`rewards`]: rewards are read at each thought's own position;
//! * [`beam_search`]: a beam search finds what its definition does;
//! * [`adaptive`]: stopping early changes no trajectory and no decided vote;
//! * [`rollout`]: labels of thoughts are those of rollouts computed from scratch;
//! * [`loops`]: latent positions that are computed together, several times;
//! * [`limits`]: where rows end, and what is refused;
//! * [`markers`]: a question's text never becomes a control token;
//! * [`token_sampling`]: sampled answer tokens, and the chain-of-thought baseline;
//! * [`checkpoint_settings`]: what a checkpoint says about its use;
//! * [`devices`]: instruction sets, number formats and layouts of a checkpoint;
//! * [`gpu`]: the same on a GPU, where there is one: to rounding, or to the bit if it is
//!   deterministic.

#![expect(clippy::unwrap_used, reason = "what fails to load or to run fails the test")]

#[path = "../common/mod.rs"]
mod common;

mod adaptive;
mod batching;
mod beam_search;
mod cancellation;
mod checkpoint_settings;
mod devices;
mod forced_thoughts;
mod gpu;
mod gumbel;
mod hidden_states;
mod latent_sampler;
mod length;
mod lens;
mod limits;
mod loops;
mod markers;
mod mixed_requests;
mod mixtures;
mod naive;
mod randomness;
mod reference_gpt2;
mod requests;
mod rewards;
mod rollout;
mod scheduler;
mod token_sampling;
