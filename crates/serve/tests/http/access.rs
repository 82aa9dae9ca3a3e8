//! Access control: keys, open metrics, and pages of other origins.

use latent_tts_serve::ServeOptions;

use crate::support::*;

const ORIGIN: &str = "origin: https://app.example";

#[test]
fn every_key_of_the_file_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    std::fs::write(&path, "# ours\nalpha\nbeta\n").unwrap();
    let options = ServeOptions { api_keys_file: Some(path), ..Default::default() };
    let server = TestServer::with(options);
    for (key, status) in [("alpha", 200), ("beta", 200), ("# ours", 401), ("alph", 401)] {
        let header = format!("authorization: Bearer {key}");
        assert_eq!(server.send("GET", "/v1/models", &[&header], "").status, status, "{key}");
    }
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.get("/metrics").status, 401);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn metrics_can_be_open_while_the_api_needs_a_key() {
    let options =
        ServeOptions { api_key: Some("secret".into()), open_metrics: true, ..Default::default() };
    let server = TestServer::with(options);
    assert_eq!(server.get("/metrics").status, 200);
    for path in ["/v1/models", "/runs", "/tokenizer_info"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
}

#[test]
fn pages_of_listed_origins_may_call_the_server() {
    let options = ServeOptions {
        allowed_origins: vec!["https://app.example".into()],
        api_key: Some("secret".into()),
        ..Default::default()
    };
    let server = TestServer::with(options);
    let path = "/v1/chat/completions";
    let preflight = ["access-control-request-method: POST", ORIGIN];
    let response = server.send("OPTIONS", path, &preflight, "");
    assert_eq!(response.status, 204, "a preflight request carries no key");
    assert_eq!(response.header("access-control-allow-origin"), Some("https://app.example"));
    let allowed = response.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("authorization") && allowed.contains("content-type"));
    let refused = server.send("GET", "/v1/models", &[ORIGIN], "");
    assert_eq!(refused.status, 401);
    assert!(refused.header("access-control-allow-origin").is_some(), "the page can read the error");
    let other = ["access-control-request-method: POST", "origin: https://other.example"];
    let response = server.send("OPTIONS", path, &other, "");
    assert_eq!(response.header("access-control-allow-origin"), None);
    assert_eq!(response.status, 405);
}

#[test]
fn without_the_option_no_origin_is_allowed() {
    let server = TestServer::start();
    let response = server.send("GET", "/v1/models", &[ORIGIN], "");
    assert_eq!(response.status, 200);
    assert_eq!(response.header("access-control-allow-origin"), None);
    let any = ServeOptions { allowed_origins: vec!["*".into()], ..Default::default() };
    let response = TestServer::with(any).send("GET", "/v1/models", &[ORIGIN], "");
    assert_eq!(response.header("access-control-allow-origin"), Some("*"));
}
