//! Where models come from: inside the program, a directory, a GGUF file, or the Hugging Face cache.

use std::path::{Path, PathBuf};

use hub::{HubCache, HubId};
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

/// The extensions of the files of a model that an id may name.
const FILE_EXTENSIONS: [&str; 1] = ["gguf"];

/// The directory or GGUF file of a model.
fn model_path(name: &str) -> Result<PathBuf, Error> {
    let path = Path::new(name);
    // A path is taken as it is, so that errors name the path that was given.
    let id = HubId::parse(name, &FILE_EXTENSIONS).filter(|_| !path.exists());
    let Some(id) = id else { return Ok(path.to_owned()) };
    let cache = HubCache::from_env();
    let cache = cache.ok_or_else(|| Error::NoHubCache { name: name.to_owned() })?;
    cache.model(&id).ok_or_else(|| Error::NoSuchModel {
        name: name.to_owned(),
        hub: cache.dir().to_owned(),
        how: id.download_command(),
    })
}

/// Adapters over a base of this name, where one is given.
pub fn with_base(files: ModelFiles, base: Option<&str>) -> Result<ModelFiles, Error> {
    let Some(base) = base else { return Ok(files) };
    Ok(files.with_base(reasoner_files(base)?)?)
}
