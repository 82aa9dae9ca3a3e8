//! Sources of models: embedded, a directory, a GGUF file, or the Hugging Face Hub.

use std::path::{Path, PathBuf};

#[cfg(feature = "hub")]
use model::ModelError;
use model::ModelFiles;
#[cfg(not(feature = "hub"))]
use model::hub::RepoKind;
use model::hub::{DATA_EXTENSIONS, HubCache, HubError, HubId, MODEL_EXTENSIONS};
#[cfg(feature = "hub")]
use model::hub::{HubClient, HubEvent};

use crate::Error;

/// The name of the embedded reasoner, or of its reward model where a reward model is expected.
pub const EMBEDDED: &str = "embedded";

/// The files of a reasoner: [`EMBEDDED`], a directory, a GGUF file, or a Hugging Face Hub id
/// (`owner/name`, `owner/name@revision`, `owner/name/file.gguf`), from the cache or downloaded.
pub fn reasoner_files(name: &str) -> Result<ModelFiles, Error> {
    match name {
        EMBEDDED => embedded_reasoner(),
        name => Ok(ModelFiles::from(&model_path(name)?)),
    }
}

/// The files of a reward model, with the same kinds of names.
pub fn reward_model_files(name: &str) -> Result<ModelFiles, Error> {
    match name {
        EMBEDDED => embedded_reward_model(),
        name => Ok(ModelFiles::from(&model_path(name)?)),
    }
}

/// The embedded files with this display name.
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

/// The path of a model's directory or GGUF file.
fn model_path(name: &str) -> Result<PathBuf, Error> {
    match hub_id(name, &MODEL_EXTENSIONS) {
        Some(id) => remote::model(&id, &mut |_| {}),
        // An existing path is not changed, so that errors show the given path.
        None => Ok(name.into()),
    }
}

/// The Hub id in a name, unless the name is a path: an existing one, or one in an existing
/// directory, which is treated as a mistyped path.
fn hub_id(name: &str, extensions: &[&str]) -> Option<HubId> {
    let path = Path::new(name);
    let in_a_directory =
        path.parent().is_some_and(|dir| !dir.as_os_str().is_empty() && dir.is_dir());
    HubId::parse(name, extensions).filter(|_| !path.exists() && !in_a_directory)
}

/// The file of a dataset, given as a path or a Hub id.
pub fn data_file(name: &str) -> Result<PathBuf, Error> {
    match hub_id(name, &DATA_EXTENSIONS) {
        Some(id) => remote::data(&id, &mut |_| {}),
        None => Ok(name.into()),
    }
}

/// Downloads the model with this name into the Hugging Face cache and reports the progress, unless
/// the name is a path or already cached. Loading the model by name then finds it.
#[cfg(feature = "hub")]
pub fn fetch_model(name: &str, progress: &mut dyn FnMut(HubEvent<'_>)) -> Result<(), Error> {
    let id = hub_id(name, &MODEL_EXTENSIONS);
    id.map_or(Ok(()), |id| remote::model(&id, progress).map(drop))
}

/// Like [`fetch_model`], for the bases that an adapter with this name, and adapters below it,
/// record by id.
#[cfg(feature = "hub")]
pub fn fetch_bases(name: &str, progress: &mut dyn FnMut(HubEvent<'_>)) -> Result<(), Error> {
    match name {
        EMBEDDED => Ok(()),
        name => remote::bases(&ModelFiles::from(&model_path(name)?), progress),
    }
}

/// Downloads missing bases that the files record by id. Without a network, or in a build without
/// downloads, reading the files reports how to get them.
pub(crate) fn find_bases(files: &ModelFiles) -> Result<(), Error> {
    remote::bases(files, &mut |_| {})
}

/// Like [`fetch_model`], for the file of a dataset.
#[cfg(feature = "hub")]
pub fn fetch_data(name: &str, progress: &mut dyn FnMut(HubEvent<'_>)) -> Result<(), Error> {
    let id = hub_id(name, &DATA_EXTENSIONS);
    id.map_or(Ok(()), |id| remote::data(&id, progress).map(drop))
}

/// Files of the Hub, from the cache or downloaded.
#[cfg(feature = "hub")]
mod remote {
    use super::*;

    type Progress<'a> = &'a mut dyn FnMut(HubEvent<'_>);

    fn client(id: &HubId) -> Result<HubClient, Error> {
        let cache = HubCache::from_env();
        let cache = cache.ok_or_else(|| HubError::NoCache { id: id.to_string() })?;
        Ok(HubClient::from_env(cache))
    }

    pub(super) fn model(id: &HubId, progress: Progress<'_>) -> Result<PathBuf, Error> {
        Ok(client(id)?.model(id, progress)?)
    }

    pub(super) fn bases(files: &ModelFiles, progress: Progress<'_>) -> Result<(), Error> {
        let mut fetched = None;
        // Each download reveals the base below it, if it is an adapter.
        while let Err(ModelError::MissingBase { file, id: Some(id), how, .. }) = files.chain() {
            if fetched.as_ref() == Some(&id) {
                break;
            }
            match client(&id)?.model(&id, progress) {
                Ok(_) => fetched = Some(id),
                Err(HubError::Offline { .. }) => break,
                Err(error) => {
                    let error = Box::new(error);
                    return Err(Error::Base { file, how, error });
                }
            }
        }
        Ok(())
    }

    pub(super) fn data(id: &HubId, progress: Progress<'_>) -> Result<PathBuf, Error> {
        Ok(client(id)?.data(id, progress)?)
    }
}

/// Files of the Hub, from the cache only.
#[cfg(not(feature = "hub"))]
mod remote {
    use super::*;

    type Progress<'a> = &'a mut dyn FnMut(());

    fn cached(
        id: &HubId,
        find: impl FnOnce(&HubCache) -> Option<PathBuf>,
    ) -> Result<PathBuf, Error> {
        let cache = HubCache::from_env();
        let cache = cache.ok_or_else(|| HubError::NoCache { id: id.to_string() })?;
        let (hub, how) = (cache.dir().to_owned(), id.download_command());
        find(&cache).ok_or_else(|| Error::NotCached { name: id.to_string(), hub, how })
    }

    pub(super) fn model(id: &HubId, _: Progress<'_>) -> Result<PathBuf, Error> {
        cached(id, |cache| cache.model(id))
    }

    pub(super) fn bases(_: &ModelFiles, _: Progress<'_>) -> Result<(), Error> {
        Ok(())
    }

    pub(super) fn data(id: &HubId, _: Progress<'_>) -> Result<PathBuf, Error> {
        let file = id.file.as_deref().unwrap_or_default();
        let path = |cache: &HubCache| Some(cache.snapshot(RepoKind::Dataset, id)?.join(file));
        cached(id, |cache| path(cache).filter(|path| path.is_file()))
    }
}

/// Sets the base of adapters, if given.
pub fn with_base(files: ModelFiles, base: Option<&str>) -> Result<ModelFiles, Error> {
    let Some(base) = base else { return Ok(files) };
    Ok(files.with_base(reasoner_files(base)?)?)
}
