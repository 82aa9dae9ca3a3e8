//! The inputs of a command, which must not be among its outputs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::RecordError;

/// The files and directories that a command reads.
///
/// Two paths are compared by the file that they resolve to, through symbolic links, `..` and hard
/// links. Devices and pipes are not compared: reading and writing one of them is not a conflict.
#[derive(Debug, Clone, Default)]
pub struct InputPaths(Vec<PathBuf>);

impl<P: Into<PathBuf>> FromIterator<P> for InputPaths {
    fn from_iter<I: IntoIterator<Item = P>>(paths: I) -> Self {
        Self(paths.into_iter().map(Into::into).collect())
    }
}

impl InputPaths {
    /// Rejects an output, a file or a directory, that is one of the inputs.
    ///
    /// # Errors
    ///
    /// [`RecordError::OutputIsInput`] with the input.
    pub fn check_output(&self, output: &Path) -> Result<(), RecordError> {
        match self.0.iter().find(|input| is_same_file(input, output)) {
            Some(input) => {
                Err(RecordError::OutputIsInput { output: output.to_owned(), input: input.clone() })
            }
            None => Ok(()),
        }
    }

    /// The inputs that are directly in a directory.
    pub(super) fn inside<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Path> {
        let is_inside = |input: &&PathBuf| {
            let above =
                input.canonicalize().ok().and_then(|input| Some(input.parent()?.to_owned()));
            above.is_some_and(|above| is_same_file(&above, dir))
        };
        self.0.iter().filter(is_inside).map(PathBuf::as_path)
    }
}

/// Whether two paths resolve to the same regular file or directory.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let (Ok(found), Ok(second)) = (fs::metadata(one), fs::metadata(other)) else { return false };
    let comparable = found.is_file() || found.is_dir();
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;

        comparable && (found.dev(), found.ino()) == (second.dev(), second.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = second;
        let place = |path: &Path| path.canonicalize().ok();
        comparable && place(one).is_some() && place(one) == place(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_recognised_by_every_name() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data.jsonl");
        let model = dir.path().join("model");
        fs::write(&data, "{}").unwrap();
        fs::create_dir(&model).unwrap();
        let inputs = InputPaths::from_iter([&data, &model]);
        let mut names = vec![data.clone(), model.join("../data.jsonl"), model.join(".")];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&model, dir.path().join("link")).unwrap();
            fs::hard_link(&data, dir.path().join("hard")).unwrap();
            names.extend([dir.path().join("link"), dir.path().join("hard")]);
        }
        for name in &names {
            let error = inputs.check_output(name).unwrap_err();
            assert!(error.to_string().contains("is an input"), "{error}");
        }
        inputs.check_output(&dir.path().join("other")).unwrap();
        inputs.check_output(&model.join("data.jsonl")).unwrap();
        assert_eq!(inputs.inside(dir.path()).collect::<Vec<_>>(), [&data, &model]);
        assert_eq!(inputs.inside(&model).count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_is_no_conflict() {
        InputPaths::from_iter(["/dev/null"]).check_output(Path::new("/dev/null")).unwrap();
    }
}
