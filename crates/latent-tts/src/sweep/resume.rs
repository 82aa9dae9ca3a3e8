//! The directory of a sweep: started with its settings, and only continued with the same ones.

use std::path::Path;

use record::{DirLock, FieldDifference};
use serde_json::{Value, json};

use super::{SUMMARY_FILE, Sweep, SweepGrid, SweepSpec, SweepSummary};
use crate::Error;

impl Sweep<'_> {
    /// Every setting that all points share, and the values to evaluate; a resumed sweep must have
    /// the same settings. The metric is included only if it guides a search.
    pub(super) fn settings(&self) -> Value {
        let SweepSpec { p, sigma, tau, sites, scopes, masks, tolerance, evaluations, .. } =
            self.spec;
        let mut settings = self.evaluation.settings.clone();
        if let (Value::Object(sampling), Ok(Value::Object(of_sampler))) = (
            &mut settings["sampling"],
            serde_json::to_value(self.evaluation.sampling().of_sampler()),
        ) {
            sampling.retain(|field, _| !of_sampler.contains_key(field));
        }
        settings["seeds"] = json!(self.evaluation.seeds);
        settings["questions"] = json!(self.evaluation.questions);
        settings["fingerprint"] = json!(self.evaluation.fingerprint);
        let grids = [("dropout_p", p), ("noise_std", sigma), ("gumbel_tau", tau)];
        for (name, grid) in grids {
            settings[name] = json!(grid.as_ref().map(ToString::to_string));
        }
        settings["sites"] = sites.iter().map(|sites| sites.name()).collect();
        settings["scope"] = scopes.iter().map(|scope| scope.name()).collect();
        settings["mask"] = masks.iter().map(|mask| mask.name()).collect();
        let searched = |axis: &super::SweepAxis| matches!(axis.grid, SweepGrid::Interval(..));
        if self.spec.axes().iter().any(searched) {
            settings["search"] = json!({
                "metric": self.spec.metric(),
                "k": self.max_k(),
                "tolerance": tolerance,
                "evaluations": evaluations,
            });
        }
        settings
    }

    /// Writes the summary without points, unless a sweep with equal settings is continued. The lock
    /// is held until the sweep ends.
    pub(super) fn begin(&self) -> Result<DirLock, Error> {
        record::files::check_no_weights(self.out)?;
        let lock = record::lock_dir(self.out)?;
        let (path, begun) = (self.out.join(SUMMARY_FILE), self.empty_summary());
        if !path.is_file() {
            record::write_document(&path, &begun)?;
            return Ok(lock);
        }
        if !self.resume {
            return Err(Error::SweepExists { dir: self.out.to_owned() });
        }
        let stored: SweepSummary = record::read_document(&path)?;
        let difference = record::first_difference("settings", &stored.settings, &begun.settings);
        match difference {
            Some(FieldDifference { field, stored, requested }) => {
                Err(Error::SweepChanged { path, field, stored, requested })
            }
            // An existing summary is kept until there is a new one to replace it.
            None => Ok(lock),
        }
    }
}

/// The summary of the finished sweep in `dir`; `None` if there is no sweep.
pub fn read_summary(dir: &Path) -> Result<Option<SweepSummary>, Error> {
    let path = dir.join(SUMMARY_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let summary: SweepSummary = record::read_document(&path)?;
    match summary.points.is_empty() {
        true => Err(Error::SweepUnfinished { dir: dir.to_owned() }),
        false => Ok(Some(summary)),
    }
}
