//! Comparison of this engine with a reference dump.
//!
//! A dump holds a checkpoint, the prompts, the dropout masks and the noise that a reference
//! implementation used, and its results. The engine's own stages run on the same inputs; each check
//! has the largest error of one of them.
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
    /// The dump's name of its model's family.
    pub dump_family: String,
    /// The family that the checkpoint was loaded as.
    pub family: Family,
    /// Every check, in the order of the stages.
    pub checks: Vec<GoldenCheck>,
}

impl Verification {
    /// The number of checks with this outcome.
    pub fn count(&self, outcome: CheckOutcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// Whether no check has failed.
    pub fn has_passed(&self) -> bool {
        self.count(CheckOutcome::Failed) == 0
    }
}

/// Runs every check that a dump has data for. `base` is the model that its adapters are added to,
/// where they do not record it.
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
