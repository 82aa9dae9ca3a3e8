//! Recorded runs and trainings below a folder, each as the page that `latent-tts report` writes.
//!
//! Names come from a scan of the folder, and only what the scan found is opened: a request cannot
//! name another file. Pages are made on demand and kept until their records change.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use latent_tts::record::{RunDir, TrainingDir};
use latent_tts::report::{self, ReportError};
use serde_json::{Value, json};

use crate::ServeError;

/// How deep below the folder runs are looked for, and how many are listed.
const MAX_DEPTH: usize = 3;
const MAX_ENTRIES: usize = 1000;
/// Pages that are kept; each may have 10 MB.
const KEPT_PAGES: usize = 8;

/// The folder that `--runs` names.
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Pages by name, with the time of the records that they were made of.
    pages: Mutex<BTreeMap<String, (SystemTime, Arc<str>)>>,
    /// One page is made at a time: that takes a core for seconds.
    rendering: tokio::sync::Mutex<()>,
}

/// Something that has a page.
#[derive(Clone, Debug)]
struct RecordedEntry {
    name: String,
    kind: EntryKind,
    paths: Vec<PathBuf>,
    /// When its records were last written.
    modified: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    Run,
    /// A folder of several runs, compared.
    Comparison,
    Training,
}

impl RunFolder {
    pub(crate) fn open(path: PathBuf) -> Result<Self, ServeError> {
        if !path.is_dir() {
            return Err(ServeError::Runs { path });
        }
        let (pages, rendering) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Ok(Self { path, pages, rendering })
    }

    /// What can be opened, the newest first.
    pub(crate) fn list(&self) -> Value {
        let mut entries = self.scan();
        entries.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| a.name.cmp(&b.name)));
        let entry = |entry: &RecordedEntry| {
            let since = entry.modified.duration_since(SystemTime::UNIX_EPOCH);
            let kind = match entry.kind {
                EntryKind::Run => "run",
                EntryKind::Comparison => "comparison",
                EntryKind::Training => "training",
            };
            let modified = since.map_or(0, |since| since.as_secs());
            json!({ "name": entry.name, "kind": kind, "modified": modified })
        };
        entries.iter().map(entry).collect()
    }

    /// The page of an entry; `None` where there is no such entry.
    pub(crate) async fn page(
        self: &Arc<Self>,
        name: &str,
    ) -> Option<Result<Arc<str>, ReportError>> {
        let _one = self.rendering.lock().await;
        let (folder, name) = (Arc::clone(self), name.to_owned());
        let page = tokio::task::spawn_blocking(move || folder.make_page(&name));
        // A panic was printed by the thread itself.
        page.await.ok().flatten()
    }

    fn make_page(&self, name: &str) -> Option<Result<Arc<str>, ReportError>> {
        let entry = self.scan().into_iter().find(|entry| entry.name == name)?;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made_of, page)) = pages.get(name)
            && *made_of == entry.modified
        {
            return Some(Ok(Arc::clone(page)));
        }
        pages.remove(name);
        drop(pages);
        Some(entry.page().map(|page| {
            let page: Arc<str> = page.into();
            let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            if pages.len() >= KEPT_PAGES {
                pages.pop_first();
            }
            pages.insert(entry.name, (entry.modified, Arc::clone(&page)));
            page
        }))
    }

    fn scan(&self) -> Vec<RecordedEntry> {
        let mut entries = Vec::new();
        let own = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let name = own.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy());
        scan_below(&self.path, &name, MAX_DEPTH, &mut entries);
        entries
    }
}

impl RecordedEntry {
    /// The run or the training in a directory.
    fn of(name: &str, path: &Path) -> Option<Self> {
        let training = TrainingDir::find(path);
        let (kind, file) = match &training {
            _ if path.join("manifest.json").is_file() => {
                (EntryKind::Run, path.join("samples.jsonl"))
            }
            Some(training) => (EntryKind::Training, training.log_file()),
            None => return None,
        };
        let modified = fs::metadata(file).and_then(|file| file.modified());
        Some(Self {
            name: name.to_owned(),
            kind,
            paths: vec![path.to_owned()],
            modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
        })
    }

    fn page(&self) -> Result<String, ReportError> {
        if self.kind == EntryKind::Training {
            let trainings: Vec<TrainingDir> =
                self.paths.iter().filter_map(|path| TrainingDir::find(path)).collect();
            return report::page_of_trainings(&trainings);
        }
        let runs = self.paths.iter().map(RunDir::open).collect::<Result<Vec<_>, _>>()?;
        report::page_of_runs(&runs)
    }
}

/// Adds what is in `path`, and below it where it is neither a run nor a training. Several runs in
/// one folder, a sweep for instance, can also be compared.
fn scan_below(path: &Path, name: &str, depth: usize, entries: &mut Vec<RecordedEntry>) {
    if entries.len() >= MAX_ENTRIES {
        return;
    }
    if let Some(entry) = RecordedEntry::of(name, path) {
        entries.push(entry);
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    let Ok(folder) = fs::read_dir(path) else { return };
    let mut folders: Vec<PathBuf> = folder
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    let first = entries.len();
    for folder in folders {
        let Some(own) = folder.file_name().and_then(|name| name.to_str()) else { continue };
        scan_below(&folder, &format!("{name}/{own}"), depth, entries);
    }
    let is_child = |entry: &&RecordedEntry| {
        entry.kind == EntryKind::Run && entry.paths[0].parent() == Some(path)
    };
    let runs: Vec<&RecordedEntry> = entries[first..].iter().filter(is_child).collect();
    if let (Some(modified), 2..) = (runs.iter().map(|run| run.modified).max(), runs.len()) {
        let paths = runs.iter().map(|run| run.paths[0].clone()).collect();
        let kind = EntryKind::Comparison;
        entries.push(RecordedEntry { name: name.to_owned(), kind, paths, modified });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &RunFolder) -> Vec<(String, String)> {
        let list = folder.list();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut names: Vec<(String, String)> = list
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (text(&entry["name"]), text(&entry["kind"])))
            .collect();
        names.sort();
        names
    }

    fn write(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "{}").unwrap();
    }

    #[test]
    fn runs_and_trainings_are_found_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        for name in ["sweep/a", "sweep/b", "one", "too/deep/to/find"] {
            write(&base.join(name).join("manifest.json"));
        }
        write(&base.join("model/training/log.jsonl"));
        fs::create_dir_all(base.join("empty")).unwrap();
        let folder = RunFolder::open(base.clone()).unwrap();
        let found = names(&folder);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
        let expected = [
            ("base/model", "training"),
            ("base/one", "run"),
            ("base/sweep", "comparison"),
            ("base/sweep/a", "run"),
            ("base/sweep/b", "run"),
        ];
        assert_eq!(found, expected);
        let alone = RunFolder::open(base.join("one")).unwrap();
        assert_eq!(names(&alone), [("one".to_owned(), "run".to_owned())]);
        assert!(RunFolder::open(base.join("one/manifest.json")).is_err());
        // A name is no path: only what was found is opened.
        assert!(folder.make_page("base/../base/one").is_none());
        assert!(
            folder.make_page("base/one").is_some_and(|page| page.is_err()),
            "an empty manifest"
        );
    }
}
