//! Selects the files of a repository that are needed.

use crate::hub::error::HubError;
use crate::hub::id::{DATA_EXTENSIONS, HubId, RepoKind};

/// Files other than weights: configuration, tokenizer, and those of adapters.
const DESCRIPTIONS: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "adapter_config.json",
    "base.json",
];
/// Subdirectories that contain weights: CODI's projector, a reward model's reference reasoner.
const SUBDIRS: [&str; 3] = ["prj", "reference", "mind"];
const PICKLES: [&str; 4] = ["bin", "pt", "pth", "ckpt"];

/// The files of a repository that an id refers to.
pub(crate) fn needed(
    kind: RepoKind,
    id: &HubId,
    files: &[String],
) -> Result<Vec<String>, HubError> {
    match (&id.file, kind) {
        (Some(file), _) if files.contains(file) => Ok(vec![file.clone()]),
        (Some(file), _) => {
            let alike = with_extension(files, &[extension(file)]);
            Err(HubError::NoFile { id: id.to_string(), files: alike })
        }
        (None, RepoKind::Model) => model_files(id, files),
        (None, RepoKind::Dataset) => only_file(id, files, &DATA_EXTENSIONS),
    }
}

fn model_files(id: &HubId, files: &[String]) -> Result<Vec<String>, HubError> {
    let is_weight =
        |file: &str| extension(file) == "safetensors" || file.ends_with(".safetensors.index.json");
    let near = |file: &&String| match file.split_once('/') {
        None => true,
        Some((dir, name)) => SUBDIRS.contains(&dir) && !name.contains('/'),
    };
    let is_selected = |file: &&String| {
        let name = file.rsplit('/').next().unwrap_or(file);
        is_weight(name) || DESCRIPTIONS.contains(&name)
    };
    if files.iter().filter(near).any(|file| extension(file) == "safetensors") {
        return Ok(files.iter().filter(near).filter(is_selected).cloned().collect());
    }
    if files.iter().any(|file| extension(file) == "gguf") {
        return only_file(id, files, &["gguf"]);
    }
    let pickle = files.iter().find(|file| PICKLES.contains(&extension(file)));
    Err(match pickle {
        Some(file) => HubError::PickleOnly { id: id.to_string(), file: file.clone() },
        None => HubError::NothingToRead {
            id: id.to_string(),
            files: files.to_vec(),
            expected: "safetensors or GGUF",
        },
    })
}

/// The only file with one of the given extensions.
fn only_file(id: &HubId, files: &[String], extensions: &[&str]) -> Result<Vec<String>, HubError> {
    let found = with_extension(files, extensions);
    match found.len() {
        1 => Ok(found),
        0 => Err(HubError::NothingToRead {
            id: id.to_string(),
            files: files.to_vec(),
            expected: "json, jsonl, csv or parquet",
        }),
        _ => Err(HubError::SeveralFiles { id: id.to_string(), files: found }),
    }
}

fn with_extension(files: &[String], extensions: &[&str]) -> Vec<String> {
    // Metadata such as dataset_infos.json are not data.
    let described = |file: &&String| !file.ends_with("_infos.json");
    files
        .iter()
        .filter(|file: &&String| extensions.contains(&extension(file)))
        .filter(described)
        .cloned()
        .collect()
}

fn extension(file: &str) -> &str {
    file.rsplit_once('.').map_or("", |(_, extension)| extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(kind: RepoKind, id: &str, files: &[&str]) -> Result<Vec<String>, HubError> {
        let id = HubId::parse(id, &["gguf", "json", "jsonl", "csv", "parquet"]).unwrap();
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        needed(kind, &id, &files)
    }

    #[test]
    fn only_what_is_read_is_needed() {
        let model = |files| select(RepoKind::Model, "a/b", files);
        let files = [
            "README.md",
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "prj/projector.safetensors",
            "original/model.safetensors",
            "tokenizer.json",
            "b.gguf",
        ];
        let expected =
            ["config.json", "model.safetensors", "prj/projector.safetensors", "tokenizer.json"];
        assert_eq!(model(&files).unwrap(), expected);
        assert_eq!(model(&["README.md", "b.gguf"]).unwrap(), ["b.gguf"]);
        let several = model(&["a.gguf", "b.gguf"]).unwrap_err().to_string();
        assert!(several.contains("specify one: a/b/a.gguf"), "{several}");
        let pickle = model(&["config.json", "pytorch_model.bin"]).unwrap_err().to_string();
        assert!(pickle.contains("pytorch_model.bin") && pickle.contains("safetensors"), "{pickle}");
        assert!(matches!(model(&["README.md"]), Err(HubError::NothingToRead { .. })));
        let named = |id| select(RepoKind::Model, id, &["x/a.gguf", "b.gguf"]);
        assert_eq!(named("a/b/x/a.gguf").unwrap(), ["x/a.gguf"]);
        let missing = named("a/b/c.gguf").unwrap_err().to_string();
        assert!(missing.contains("x/a.gguf, b.gguf"), "{missing}");
    }

    #[test]
    fn a_dataset_is_one_file() {
        let data = |files| select(RepoKind::Dataset, "a/b", files);
        assert_eq!(data(&["README.md", "dataset_infos.json", "x.csv"]).unwrap(), ["x.csv"]);
        assert_eq!(data(&["data/test.parquet"]).unwrap(), ["data/test.parquet"]);
        let other = data(&["train.arrow"]).unwrap_err().to_string();
        assert!(other.contains("train.arrow; expected json"), "{other}");
        assert!(matches!(data(&["a.json", "b.json"]), Err(HubError::SeveralFiles { .. })));
    }
}
