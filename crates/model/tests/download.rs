//! Downloads from an in-process server that behaves like the Hub: a listing, redirects of large
//! files to another host, ranges, etags, refusals, lost connections.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

mod server;

extern crate latent_tts_model as model;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

use latent_tts_model::hub::{
    DATA_EXTENSIONS, HubCache, HubClient, HubError, HubEvent, HubId, MODEL_EXTENSIONS,
};
use server::{Behaviour, COMMIT, TestHub};

fn id(text: &str) -> HubId {
    HubId::parse(text, &MODEL_EXTENSIONS).unwrap()
}

fn ignore(_: HubEvent<'_>) {}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_model_is_fetched_once_in_the_layout_of_python_tools() {
    let hub = TestHub::start(Behaviour { token: Some("secret"), ..Behaviour::model() });
    let client = hub.client().with_token("secret");
    let mut begun = Vec::new();
    let mut last = 0;
    let snapshot = client.model(&id("a/b"), &mut |event| match event {
        HubEvent::File { name, size, resumed } => begun.push((name.to_owned(), size, resumed)),
        HubEvent::Bytes(done) => last = done,
        _ => {}
    });
    let snapshot = snapshot.unwrap();
    let repo = hub.cache.path().join("models--a--b");
    assert_eq!(snapshot, repo.join("snapshots").join(COMMIT));
    assert_eq!(text(&repo.join("refs/main")), COMMIT);
    assert_eq!(text(&snapshot.join("config.json")), "{}");
    assert!(!snapshot.join("README.md").exists(), "only what is needed");
    let weights = snapshot.join("model.safetensors");
    assert_eq!(std::fs::read(&weights).unwrap(), Behaviour::model().files["model.safetensors"]);
    #[cfg(unix)]
    assert_eq!(std::fs::read_link(&weights).unwrap(), Path::new("../../blobs/feedbeef"));
    let expected = [("config.json".to_owned(), 2, 0), ("model.safetensors".to_owned(), 200_000, 0)];
    assert_eq!((begun, last), (expected.to_vec(), 200_000));
    let requests = hub.requests();
    assert!(requests.contains(&"GET /blob/model.safetensors".to_owned()), "no token: {requests:?}");
    assert!(requests.iter().filter(|r| !r.contains("/blob/")).all(|r| r.ends_with(" token")));
    // From the cache, with and without a network.
    assert_eq!(client.model(&id("a/b"), &mut ignore).unwrap(), snapshot);
    assert_eq!(client.offline().model(&id("a/b"), &mut ignore).unwrap(), snapshot);
    assert_eq!(hub.requests(), [""; 0]);
}

#[test]
fn a_revision_has_its_own_snapshot() {
    let hub = TestHub::start(Behaviour::model());
    hub.client().model(&id("a/b@refs/pr/1"), &mut ignore).unwrap();
    assert_eq!(text(&hub.cache.path().join("models--a--b/refs/refs/pr/1")), COMMIT);
    let error = hub.client().model(&id("a/b@v9"), &mut ignore).unwrap_err();
    assert!(matches!(error, HubError::NoRepository { .. }), "{error}");
}

#[test]
fn a_cut_download_goes_on() {
    // Two interruptions within one command.
    let hub = TestHub::start(Behaviour {
        cut_after: Some(60_000),
        cuts: AtomicUsize::new(2),
        ..Behaviour::model()
    });
    let mut resumed = Vec::new();
    let snapshot = hub.client().model(&id("a/b"), &mut |event| {
        if let HubEvent::Resumed(from) = event {
            resumed.push(from);
        }
    });
    let whole = Behaviour::model().files["model.safetensors"].clone();
    assert_eq!(std::fs::read(snapshot.unwrap().join("model.safetensors")).unwrap(), whole);
    assert_eq!(resumed, [60_000, 120_000]);
    assert!(hub.requests().contains(&"GET /blob/model.safetensors from 120000".to_owned()));
    // Too many interruptions for one command, but not for two.
    let hub = TestHub::start(Behaviour {
        cut_after: Some(20_000),
        cuts: AtomicUsize::new(6),
        ..Behaviour::model()
    });
    let error = hub.client().model(&id("a/b"), &mut ignore).unwrap_err();
    let HubError::Cut { have: 100_000, size: 200_000, .. } = error else { panic!("{error}") };
    let mut begun = None;
    let snapshot = hub.client().model(&id("a/b"), &mut |event| {
        if let HubEvent::File { name: "model.safetensors", resumed, .. } = event {
            begun = Some(resumed);
        }
    });
    assert_eq!(std::fs::read(snapshot.unwrap().join("model.safetensors")).unwrap(), whole);
    assert_eq!(begun, Some(100_000));
}

#[test]
fn a_wrong_size_is_noticed() {
    let hub = TestHub::start(Behaviour { announced: Some(150_000), ..Behaviour::model() });
    let error = hub.client().model(&id("a/b"), &mut ignore).unwrap_err();
    assert!(matches!(error, HubError::WrongSize { have: 200_000, size: 150_000, .. }), "{error}");
    let blobs = std::fs::read_dir(hub.cache.path().join("models--a--b/blobs")).unwrap();
    assert_eq!(blobs.count(), 1, "only the configuration");
}

#[test]
fn refusals_say_what_to_do() {
    let hub = TestHub::start(Behaviour { token: Some("secret"), ..Behaviour::model() });
    let message = |client: HubClient, name: &str| {
        let error = client.model(&id(name), &mut ignore).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let none = message(hub.client(), "a/b");
    assert!(none.contains("no token is set") && none.contains("HF_TOKEN"), "{none}");
    let wrong = message(hub.client().with_token("other"), "a/b");
    assert!(wrong.contains("the token is invalid") && wrong.contains("/a/b"), "{wrong}");
    let own = || hub.client().with_token("secret");
    let missing = message(own(), "a/c");
    assert!(missing.contains("no such repository"), "{missing}");
    let file = message(own(), "a/b/other.gguf");
    assert!(file.contains("no such file"), "{file}");
    let offline = message(own().offline(), "a/b@v1");
    assert!(offline.contains("HF_HUB_OFFLINE") && offline.contains("--revision v1"), "{offline}");
    let files = BTreeMap::from([("config.json", vec![]), ("pytorch_model.bin", vec![])]);
    let pickles = TestHub::start(Behaviour { files, ..Behaviour::default() });
    let pickle = message(pickles.client(), "a/b");
    assert!(pickle.contains("pytorch_model.bin") && pickle.contains("save_pretrained"), "{pickle}");
    let nowhere = HubClient::new("http://127.0.0.1:9", HubCache::new(hub.cache.path()));
    let unreachable = message(nowhere, "a/b");
    assert!(unreachable.contains("cannot be reached"), "{unreachable}");
}

#[test]
fn a_dataset_is_a_file() {
    let files = BTreeMap::from([("README.md", vec![]), ("test.jsonl", b"{}".to_vec())]);
    let hub = TestHub::start(Behaviour { files, ..Behaviour::default() });
    let data = HubId::parse("a/b", &DATA_EXTENSIONS).unwrap();
    let path = hub.client().data(&data, &mut ignore).unwrap();
    assert!(path.starts_with(hub.cache.path().join("datasets--a--b/snapshots")));
    assert_eq!(text(&path), "{}");
    assert_eq!(hub.client().offline().data(&data, &mut ignore).unwrap(), path);
}

#[test]
fn a_dataset_s_file_may_be_in_a_folder() {
    let files = BTreeMap::from([
        ("main/test-00000-of-00001.parquet", b"PAR1".to_vec()),
        ("main/train-00000-of-00001.parquet", b"PAR1".to_vec()),
    ]);
    let hub = TestHub::start(Behaviour { files, ..Behaviour::default() });
    let data = |text| HubId::parse(text, &DATA_EXTENSIONS).unwrap();
    let several = hub.client().data(&data("a/b"), &mut ignore).unwrap_err().to_string();
    assert!(several.contains("specify one: a/b/main/test-00000-of-00001.parquet"), "{several}");
    let named = data("a/b/main/train-00000-of-00001.parquet");
    let path = hub.client().data(&named, &mut ignore).unwrap();
    assert!(path.ends_with("main/train-00000-of-00001.parquet"));
    assert_eq!(hub.client().offline().data(&named, &mut ignore).unwrap(), path);
}
