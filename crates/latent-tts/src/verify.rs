//! Comparison of this engine with a reference dump.
//!
//! A dump contains a checkpoint, the prompts, dropout masks and noise used by a reference
//! implementation, and its results. The stages of the engine run on the same inputs; each check
//! reports the largest error of one stage.
//!
//! ```text
//! golden    reads a dump      fit       whether it fits its models
//! checks    inference         training  losses, gradients and optimizer steps, `methods` of CODI,
//! failure   errors                      SIM-CoT, LoRA and CoLaR
//! ```

#[macro_use]
mod failure;

mod checks;
mod fit;
mod golden;
mod methods;
mod training;

use std::path::Path;

use engine::{Family, Reasoner, RewardModel};
use model::ModelFiles;
use tensor::Device;

use crate::Error;
use crate::model::files;
use golden::GoldenDump;

pub use checks::{CheckOutcome, GoldenCheck};

/// The checks of a dump.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Verification {
    /// The family name recorded in the dump.
    pub dump_family: String,
    /// The family that the checkpoint was loaded as.
    pub family: Family,
    /// All checks, in the order of the stages.
    pub checks: Vec<GoldenCheck>,
}

impl Verification {
    /// The number of checks with this outcome.
    pub fn count(&self, outcome: CheckOutcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// Whether no check failed.
    pub fn has_passed(&self) -> bool {
        self.count(CheckOutcome::Failed) == 0
    }
}

/// Runs every check that the dump has data for. `base` is the base model of its adapters, if they
/// do not record it.
pub fn verify(dir: &Path, base: Option<&str>, device: &Device) -> Result<Verification, Error> {
    let golden = GoldenDump::read(dir)?;
    let part = |name: &str| -> Result<ModelFiles, Error> {
        let part = ModelFiles::from(&dir.join(name));
        match base {
            Some(base) => Ok(part.with_base(files(base)?)?),
            None => Ok(part),
        }
    };
    let checkpoint = part("checkpoint")?;
    let reasoner = Reasoner::load(device, &checkpoint, None)?;
    let reward_model = match golden.has_reward_model() {
        true => Some(RewardModel::load(device, part("latent-rm")?, &reasoner)?),
        false => None,
    };
    fit::check_reasoner(&golden, reasoner.decoder.config())?;
    if let Some(reward_model) = &reward_model {
        fit::check_reward_model(&golden, reward_model.decoder.config())?;
    }
    let mut checks = checks::run_all(&golden, &reasoner, reward_model.as_ref())?;
    checks.extend(training::run_all(&golden, device, dir, &checkpoint)?);
    checks.extend(methods::run_all(device, dir, &checkpoint)?);
    Ok(Verification { dump_family: golden.family, family: reasoner.method.family, checks })
}
