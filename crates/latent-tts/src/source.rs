//! Where models come from: inside the program, a directory, a GGUF file, or the Hugging Face cache.

use std::path::{Path, PathBuf};

use model::ModelFiles;

use crate::Error;

/// The name of the embedded reasoner, and of its reward model where a reward model is asked for.
pub const EMBEDDED: &str = "embedded";

/// The files of a reasoner: [`EMBEDDED`], a directory, a GGUF file, or an id (`owner/name`) in the
/// Hugging Face cache. Nothing is downloaded.
pub fn reasoner_files(name: &str) -> Result<ModelFiles, Error> {
    match name {
        EMBEDDED => embedded_reasoner(),
        name => Ok(ModelFiles::from(&model_path(name)?)),
    }
}

/// The files of a reward model, named likewise.
pub fn reward_model_files(name: &str) -> Result<ModelFiles, Error> {
    match name {
        EMBEDDED => embedded_reward_model(),
        name => Ok(ModelFiles::from(&model_path(name)?)),
    }
}

/// The embedded files that messages call by this name.
pub fn embedded_files(name: &str) -> Option<ModelFiles> {
    #[cfg(feature = "embedded")]
    return crate::embedded::by_name(name);
    #[cfg(not(feature = "embedded"))]
    return None.filter(|_| name.is_empty());
}

#[cfg(feature = "embedded")]
fn embedded_reasoner() -> Result<ModelFiles, Error> {
    Ok(crate::embedded::reasoner())
}

#[cfg(feature = "embedded")]
fn embedded_reward_model() -> Result<ModelFiles, Error> {
    Ok(crate::embedded::reward_model())
}

#[cfg(not(feature = "embedded"))]
fn embedded_reasoner() -> Result<ModelFiles, Error> {
    Err(Error::NotEmbedded)
}

#[cfg(not(feature = "embedded"))]
fn embedded_reward_model() -> Result<ModelFiles, Error> {
    Err(Error::NotEmbedded)
}

/// The directory or GGUF file of a model.
fn model_path(name: &str) -> Result<PathBuf, Error> {
    let path = Path::new(name);
    // A path is taken as it is, so that errors name the path that was given.
    let is_id = name.split('/').count() == 2
        && !name.starts_with(['/', '.', '~'])
        && !name.ends_with('/')
        && !name.ends_with(".gguf");
    if path.exists() || !is_id { Ok(path.to_owned()) } else { cached_snapshot(name) }
}

/// The snapshot of a Hugging Face model that `main` names in the local cache, else the newest.
fn cached_snapshot(id: &str) -> Result<PathBuf, Error> {
    let Some(hub) = hub_cache_dir() else { return Err(Error::NoHubCache { name: id.to_owned() }) };
    let model = hub.join(format!("models--{}", id.replace('/', "--")));
    let snapshots = model.join("snapshots");
    let main = std::fs::read_to_string(model.join("refs/main"));
    let main = main.ok().map(|commit| snapshots.join(commit.trim()));
    let snapshot = main.filter(|dir| dir.is_dir()).or_else(|| newest_snapshot(&snapshots));
    snapshot.ok_or_else(|| Error::NoSuchModel { name: id.to_owned(), hub })
}

/// The directory in which huggingface_hub keeps models.
fn hub_cache_dir() -> Option<PathBuf> {
    let variable =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let home = || Some(cache()?.join("huggingface"));
    variable("HF_HUB_CACHE").or_else(|| Some(variable("HF_HOME").or_else(home)?.join("hub")))
}

fn newest_snapshot(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.filter_map(Result::ok);
    let dirs = entries.filter(|entry| entry.path().is_dir());
    let dated =
        dirs.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())));
    dated.max().map(|(_, path)| path)
}
