//! `--scorer`: an HTTP endpoint that scores trajectories in place of a reward model.

use std::sync::Arc;

use anyhow::Result;
use latent_tts::Scorer;

use crate::args::ScorerArgs;

/// The scorer that the flags name.
#[cfg(feature = "http")]
pub fn open(args: &ScorerArgs) -> Result<Option<Arc<dyn Scorer>>> {
    use std::time::Duration;

    use anyhow::{Context, bail};
    use latent_tts::{HttpScorer, HttpScorerOptions};

    /// A day.
    const MAX_SECONDS: f64 = 86_400.0;
    let Some(url) = &args.scorer else { return Ok(None) };
    if args.scorer_timeout > MAX_SECONDS {
        bail!("--scorer-timeout must be at most {MAX_SECONDS} seconds");
    }
    let mut options = HttpScorerOptions::new(url);
    options.model.clone_from(&args.scorer_model);
    options.api_key.clone_from(&args.scorer_api_key);
    options.timeout = Duration::from_secs_f64(args.scorer_timeout);
    options.concurrency = args.scorer_concurrency.get();
    let scorer = HttpScorer::new(options).context("--scorer (--scorer-model names the model)")?;
    Ok(Some(Arc::new(scorer)))
}

/// A program without HTTP has no scorer.
#[cfg(not(feature = "http"))]
pub fn open(args: &ScorerArgs) -> Result<Option<Arc<dyn Scorer>>> {
    match args.scorer {
        Some(_) => anyhow::bail!("--scorer: this program was built without the feature `http`"),
        None => Ok(None),
    }
}
