//! Properties of the engine on tiny random models of every family.
//!
//! Golden tests check that one computation is correct; these check that it is the same computation
//! in every batch, on every device and in every checkpoint layout, and that each perturbation is
//! applied exactly where specified:
//!
//! * [`batching`]: a trajectory does not depend on its batch;
//! * [`mixed_requests`]: requests with different parameters share a run and do not affect each
//!   other;
//! * [`cancellation`]: a cancelled request ends early and does not affect the others;
//! * [`scheduler`]: requests that arrive over time share forward steps and have the same outputs as
//!   alone;
//! * [`requests`]: errors are reported in request order, and the caller's own error ends the run;
//! * [`naive`]: forked rows equal whole sequences computed from scratch;
//! * [`reference_gpt2`]: a reference GPT-2 in double precision, with dropout by its definition;
//! * [`randomness`]: the effects of dropout and noise, which vanish at strength zero;
//! * [`forced_thoughts`]: forced thoughts are fed, and nothing else changes;
//! * [`gumbel`]: Gumbel noise on thoughts that are mixtures of token embeddings;
//! * [`mixtures`]: one-sided noise, sampled tokens, Cold Stop, and dropout on what is generated;
//! * [`latent_sampler`]: custom samplers;
//! * [`hidden_states`]: hidden states along a given trajectory are those of its generation;
//! * [`lens`]: thoughts read through the LM head;
//! * [`length`]: the number of thoughts of a sequence;
//! * [`probe`]: scores of hidden states, and checked steps;
//! * [`rewards`]: rewards are computed at each thought's own position;
//! * [`beam_search`]: beam search agrees with its definition;
//! * [`adaptive`]: stopping early changes no trajectory and no decided vote;
//! * [`rollout`]: labels of thoughts are those of rollouts computed from scratch;
//! * [`loops`]: latent positions that are computed in parallel over several loops;
//! * [`limits`]: the ends of sequences, and the rejection of invalid requests;
//! * [`markers`]: a question's text never becomes a control token;
//! * [`token_sampling`]: sampled answer tokens, and the chain-of-thought baseline;
//! * [`checkpoint_settings`]: settings from a checkpoint's files;
//! * [`devices`]: instruction sets, number formats and layouts of a checkpoint;
//! * [`gpu`]: the same on a GPU, if there is one: up to rounding, or bitwise if it is
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
mod probe;
mod randomness;
mod reference_gpt2;
mod requests;
mod rewards;
mod rollout;
mod scheduler;
mod token_sampling;
