//! Properties of the engine on tiny random models of every family.
//!
//! Goldens say that one computation is right; these tests say that it is the same computation
//! whatever its company, its batch, its device and its checkpoint's layout, and that each
//! perturbation falls exactly where it should:
//!
//! * [`company`]: a trajectory does not depend on what runs beside it;
//! * [`recomputed`]: forked rows equal whole sequences computed from scratch;
//! * [`reference`]: a plain GPT-2 in double precision, and dropout by its definition;
//! * [`chance`]: what dropout and noise do, and that they do nothing at zero;
//! * [`length`]: how many thoughts a row has;
//! * [`scores`]: rewards are read at each thought's own position;
//! * [`beams`]: a beam search is the enumeration of its definition;
//! * [`rounds`]: stopping early changes no trajectory and no decided vote;
//! * [`rollout`]: labels of thoughts are what rollouts computed from scratch say;
//! * [`limits`]: where rows end, and what is refused;
//! * [`words`]: the baseline that thinks in words, drawn answers, and what a checkpoint says about
//!   itself;
//! * [`devices`]: instruction sets, number formats and layouts of a checkpoint;
//! * [`gpu`]: the same on a GPU, where there is one, to rounding.

#![expect(clippy::unwrap_used, reason = "what fails to load or to run fails the test")]

#[path = "../common/mod.rs"]
mod common;

mod beams;
mod chance;
mod company;
mod devices;
mod gpu;
mod length;
mod limits;
mod recomputed;
mod reference;
mod rollout;
mod rounds;
mod scores;
mod words;
