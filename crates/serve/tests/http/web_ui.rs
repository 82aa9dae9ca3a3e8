//! The page at `/`, its requests, and recorded runs. `.ci/browser` tests the page in Chromium.

use latent_tts::Lens;
use latent_tts::record::{Manifest, RunDir, Sample, TrajectoryRecord};
use latent_tts_serve::ServeOptions;
use serde_json::{Value, json};

use crate::support::*;

#[test]
fn the_page_is_embedded_and_only_calls_this_server() {
    let options = ServeOptions { api_key: Some("secret".into()), ..Default::default() };
    let server = TestServer::with(options);
    let page = server.get("/");
    assert_eq!(page.status, 200, "the page itself says nothing about the model");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"));
    let foreign = page.text.replace("http://www.w3.org/2000/svg", "");
    assert!(!foreign.contains("http://") && !foreign.contains("https://"));
    assert!(!page.text.contains("coconut"));
    assert_eq!(server.get("/runs").status, 401);
}

#[test]
fn a_model_describes_the_latent_options() {
    let server = TestServer::start();
    let latent = server.get("/v1/models").ok()["data"][0]["latent"].clone();
    assert_eq!((&latent["sampler"], &latent["dropout_p"]), (&json!("dropout"), &json!(0.1)));
    assert_eq!((&latent["latent_length"], &latent["max_samples"]), (&json!(6), &json!(512)));
    assert_eq!(latent["rule"], "weighted");
    assert!(latent["rules"].as_array().unwrap().contains(&json!("best_of")));
}

fn ask(server: &TestServer, latent: Value) -> Response {
    server.post("/v1/completions", &json!({ "prompt": QUESTION, "latent": latent }))
}

#[test]
fn thoughts_are_read_graded_and_mapped() {
    let server = TestServer::start();
    let latent = json!({ "samples": 8, "seed": 3, "lens": 2, "gold": 605, "map": "pca",
        "return": ["trajectories"] });
    let reply = ask(&server, latent).ok();
    let latent = &reply["choices"][0]["latent"];
    let request = |params| latent_tts::Request {
        lens: Some(Lens { tokens: 2.try_into().unwrap(), sampled: true }),
        ..latent_tts::Request::new(QUESTION, params)
    };
    let options = latent_tts::SamplingOptions {
        seed: Some(3),
        ..latent_tts::SamplingOptions::new(8.try_into().unwrap())
    };
    let params = options.resolve(&model().reasoner().method).unwrap();
    let expected = engine().solve(&request(params)).unwrap();
    let is_right = |text: Option<&str>| json!(text == Some("605"));
    assert_eq!(latent["correct"], is_right(expected.answer()));
    let paths = latent["map"].as_array().unwrap();
    for (k, trajectory) in expected.trajectories.iter().enumerate() {
        let told = &latent["trajectories"][k];
        let answer = trajectory.answer.as_ref().map(|answer| answer.as_str());
        assert_eq!(told["correct"], is_right(answer));
        assert_eq!(told["lens"].as_array().unwrap().len(), trajectory.thoughts);
        assert_eq!(told["lens"][0][0][0], trajectory.lens[0][0].text);
        assert_eq!(paths[k].as_array().unwrap().len(), trajectory.thoughts);
    }
    let places = paths.iter().flat_map(|path| path.as_array().unwrap());
    let largest = places.flat_map(|place| place.as_array().unwrap().iter());
    let largest = largest.map(|x| x.as_f64().unwrap().abs()).fold(0.0, f64::max);
    assert_eq!(largest, 1.0, "a map is scaled");
    let embedded = ask(&server, json!({ "samples": 4, "map": "tsne", "return": [] })).ok();
    let latent = &embedded["choices"][0]["latent"];
    assert_eq!(latent["map"].as_array().unwrap().len(), 4);
    assert_eq!(latent["map"][3].as_array().unwrap().len(), 6);
    assert_eq!(latent["map_method"], json!({ "name": "pca" }), "24 thoughts are too few for t-SNE");
    let many = ask(&server, json!({ "samples": 16, "map": "tsne", "return": [] })).ok();
    let method = &many["choices"][0]["latent"]["map_method"];
    assert_eq!((&method["name"], &method["perplexity"]), (&json!("tsne"), &json!(20.0)));
}

#[test]
fn invalid_views_are_rejected_by_name() {
    let server = TestServer::start();
    let refused = |latent: Value| ask(&server, latent).refused_field();
    assert_eq!(refused(json!({ "samples": 8, "lens": 21 })), "latent.lens");
    assert_eq!(refused(json!({ "samples": 8, "gold": [1] })), "latent.gold");
    assert_eq!(refused(json!({ "samples": 8, "map": "umap" })), "latent.map");
    assert_eq!(refused(json!({ "samples": 512, "map": "tsne" })), "latent.map");
    let each = json!({ "prompt": QUESTION, "n": 2, "latent": { "map": "pca" } });
    assert_eq!(server.post("/v1/completions", &each).refused_field(), "latent.map");
}

/// A run of one question.
fn write_run(path: &std::path::Path) {
    let trajectory = |k| TrajectoryRecord {
        index: k,
        latent_steps: 2,
        text: "### 5".into(),
        answer: Some("5".into()),
        correct: Some(true),
        ..TrajectoryRecord::default()
    };
    let sample = Sample {
        question: "What is 2 + 3?".into(),
        gold: "5".into(),
        trajectories: vec![trajectory(0), trajectory(1)],
        ..Sample::default()
    };
    let mut writer = RunDir::create(path, &Manifest::default()).unwrap();
    writer.append(&sample).unwrap();
    writer.finish().unwrap();
}

#[test]
fn recorded_runs_are_listed_and_opened_as_their_report() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("runs");
    std::fs::create_dir(&base).unwrap();
    write_run(&base.join("first"));
    let server = TestServer::with(ServeOptions { runs: Some(base.clone()), ..Default::default() });
    let names = || -> Vec<String> {
        let list = server.get("/runs").ok();
        let name = |entry: &Value| entry["name"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(names(), ["runs/first"]);
    let page = server.get("/runs/runs/first");
    assert_eq!(page.status, 200, "{page:?}");
    assert!(page.text.contains("What is 2 + 3?") && page.text.contains("Question by question"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    write_run(&base.join("second"));
    let mut found = names();
    found.sort();
    assert_eq!(found, ["runs", "runs/first", "runs/second"]);
    let comparison = server.get("/runs/runs");
    assert_eq!(comparison.status, 200, "{comparison:?}");
    assert!(comparison.text.contains("2 runs compared"));
    for other in ["/runs/other", "/runs/runs/..%2Ffirst", "/runs/..%2f..%2fetc%2fpasswd"] {
        assert_eq!(server.get(other).status, 404, "{other}");
    }
}
