//! Recorded runs and trainings in a directory, each rendered like the page of `latent-tts report`.
//!
//! Names come from a scan of the directory, and only scanned paths are opened, so requests cannot
//! access other files. Pages are rendered on demand and cached until their records change.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use latent_tts::record::{RunDir, TrainingDir};
use latent_tts::report::{self, ReportError};
use serde_json::{Value, json};

use crate::ServeError;

/// Maximum depth at which runs are searched, and maximum number listed.
const MAX_DEPTH: usize = 3;
const MAX_ENTRIES: usize = 1000;
/// Maximum number of cached pages; each may have 10 MB.
const KEPT_PAGES: usize = 8;

/// Memory in bytes per byte of records while rendering a page.
const RENDERING_GROWTH: usize = 4;

/// The directory given by `--runs`.
pub(crate) struct RunFolder {
    path: PathBuf,
    pages: Mutex<BTreeMap<String, RenderedPage>>,
    /// Pages are rendered one at a time, because that uses a core for seconds, and memory of a
    /// multiple of the run's size. The guard is held by the rendering thread, because the request
    /// may be dropped before it finishes.
    rendering: Arc<tokio::sync::Mutex<()>>,
}

/// A cached page.
#[derive(Clone)]
struct RenderedPage {
    page: Arc<str>,
    /// The last modification of the records that it was rendered from.
    made_of: SystemTime,
    /// When rendering started.
    begun: Instant,
}

/// A run, training or comparison with a page.
#[derive(Clone, Debug)]
struct RecordedEntry {
    name: String,
    kind: EntryKind,
    paths: Vec<PathBuf>,
    /// The last modification of its records.
    modified: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    Run,
    /// A directory of several runs, which are compared.
    Comparison,
    Training,
}

impl RunFolder {
    pub(crate) fn open(path: PathBuf) -> Result<Self, ServeError> {
        if !path.is_dir() {
            return Err(ServeError::Runs { path });
        }
        Ok(Self { path, pages: Mutex::default(), rendering: Arc::default() })
    }

    /// The available entries, the newest first.
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

    /// Upper bound of the memory for rendering the page of an entry, from the size of its records;
    /// `None` if there is no such entry.
    pub(crate) fn rendering_bytes(&self, name: &str) -> Option<usize> {
        let entry = self.scan().into_iter().find(|entry| entry.name == name)?;
        let files = entry.paths.iter().flat_map(|path| [path.clone(), path.join("training")]);
        let files = files.filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let sizes = files.filter_map(|file| file.metadata().ok()).filter(|file| file.is_file());
        let bytes: u64 = sizes.map(|file| file.len()).sum();
        Some(usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(RENDERING_GROWTH))
    }

    /// The page of an entry; `None` if there is no such entry.
    pub(crate) async fn page(
        self: &Arc<Self>,
        name: &str,
    ) -> Option<Result<Arc<str>, ReportError>> {
        let asked = Instant::now();
        // A request dropped here has no cost.
        let guard = Arc::clone(&self.rendering).lock_owned().await;
        let (folder, name) = (Arc::clone(self), name.to_owned());
        let page = tokio::task::spawn_blocking(move || {
            let page = folder.make_page(&name, asked);
            drop(guard);
            page
        });
        // A panic was printed by the thread itself.
        page.await.ok().flatten()
    }

    /// Returns the cached page if the records have not changed, or if its rendering started after
    /// this request arrived, so that concurrent requests for a page share one rendering.
    fn make_page(&self, name: &str, asked: Instant) -> Option<Result<Arc<str>, ReportError>> {
        let entry = self.scan().into_iter().find(|entry| entry.name == name)?;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = pages.get(name)
            && (kept.made_of == entry.modified || kept.begun >= asked)
        {
            return Some(Ok(Arc::clone(&kept.page)));
        }
        pages.remove(name);
        drop(pages);
        let begun = Instant::now();
        Some(entry.page().map(|page| {
            let page: Arc<str> = page.into();
            let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            if pages.len() >= KEPT_PAGES {
                pages.pop_first();
            }
            let made_of = entry.modified;
            pages.insert(entry.name, RenderedPage { page: Arc::clone(&page), made_of, begun });
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
    /// The run or training in a directory.
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

/// Adds the entry in `path`, or the entries below it if it is neither a run nor a training. Several
/// runs in a directory, such as a sweep, are also available as a comparison.
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
        // Names are not paths; only scanned entries are opened.
        assert!(folder.make_page("base/../base/one", Instant::now()).is_none());
        assert!(
            folder.make_page("base/one", Instant::now()).is_some_and(|page| page.is_err()),
            "an empty manifest"
        );
    }

    /// A directory with one training of some steps.
    fn training(steps: u32) -> (tempfile::TempDir, Arc<RunFolder>, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("model/training/log.jsonl");
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        let line = |step| format!("{{\"step\":{step},\"loss\":1.5,\"rate\":0.1,\"norm\":1.0}}\n");
        fs::write(&log, (0..steps).map(line).collect::<String>()).unwrap();
        let folder = Arc::new(RunFolder::open(dir.path().to_owned()).unwrap());
        (dir, folder, log)
    }

    #[test]
    fn waiting_requests_share_one_rendering() {
        let (dir, folder, log) = training(3);
        let name = format!("{}/model", dir.path().file_name().unwrap().to_str().unwrap());
        let early = Instant::now();
        let first = folder.make_page(&name, early).unwrap().unwrap();
        // The records changed, but a request that arrived before the first rendering started gets
        // its page.
        fs::write(&log, "{\"step\":0,\"loss\":9.5,\"rate\":0.1,\"norm\":1.0}\n").unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(9);
        fs::File::options().write(true).open(&log).unwrap().set_modified(later).unwrap();
        let shared = folder.make_page(&name, early).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &shared));
        let own = folder.make_page(&name, Instant::now()).unwrap().unwrap();
        assert_ne!(own, first);
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_does_not_let_another_rendering_begin() {
        let (dir, folder, _) = training(20_000);
        let name = format!("{}/model", dir.path().file_name().unwrap().to_str().unwrap());
        let page = folder.page(&name);
        let dropped = tokio::time::timeout(std::time::Duration::from_millis(1), page).await;
        assert!(dropped.is_err(), "a page of 20,000 steps takes more than a millisecond");
        assert!(folder.rendering.try_lock().is_err(), "the thread still renders");
        assert!(folder.page(&name).await.unwrap().is_ok());
    }
}
