//! Bodies that parse the server's inputs other than JSON: chat templates, raw requests, recorded
//! runs.

use std::sync::{Arc, LazyLock};

use model::ModelFiles;

use record::{Manifest, RunDir, Sample, TrainingDir};
use serve::testkit::{ConnectionReader, render_template};

use crate::fixtures::{scratch_dir, write};
use crate::texts::tiny_engine;

pub(crate) const TEMPLATE_WORDS: &[&str] = &[
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "-%}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if ",
    "{% endif %}",
    "{% set ns = namespace(s='x') %}",
    "{% set ns.s = ns.s ~ ns.s %}",
    "{% macro f(x) %}",
    "{% endmacro %}",
    "m.content",
    "|replace('x', 'xx')",
    "|indent(1000000)",
    "|tojson",
    ".strip()",
    "raise_exception('x')",
    "range(99999)",
    "[0] * 99999",
    "(((((((((",
    "1+1+1+1+",
    "9999999999",
];
pub(crate) const HEAD_WORDS: &[&str] = &[
    "GET ",
    "POST ",
    "PROPFIND ",
    "/v1/models",
    "/metrics",
    "/runs/%ff",
    "http://localhost/",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "\r\n",
    "\r\n\r\n",
    "host: localhost\r\n",
    "host: evil.example\r\n",
    "content-length: 3\r\n",
    "content-length: 99999999999\r\n",
    "transfer-encoding: chunked\r\n",
    "content-type: application/json\r\n",
    "authorization: Bearer x\r\n",
    "expect: 100-continue\r\n",
    "connection: upgrade\r\n",
    "ffffffffffffffff\r\n",
    "0\r\n\r\n",
    "%00",
];

/// A chat template, which is rendered or rejected within its limits.
pub(crate) fn templates(input: &[u8]) {
    if let Ok(source) = std::str::from_utf8(input) {
        let _ = render_template(source);
    }
}

/// A server without a socket.
static SERVER: LazyLock<ConnectionReader> = LazyLock::new(|| {
    // The files are deleted after the engine is loaded; the server does not read them again.
    let files = ModelFiles::Memory(Arc::default());
    ConnectionReader::new(tiny_engine(), &files).expect("a server can be created")
});
/// Maximum size of the metrics in bytes, for any sequence of requests.
const MAX_METRICS: usize = 64 << 10;

/// The bytes of a connection: the response is valid HTTP, never a 500, and metrics stay small.
pub(crate) fn heads(input: &[u8]) {
    // Skips generation, which takes longer than thousands of heads; `http` covers request bodies.
    if input.windows(11).any(|window| window == b"completions") {
        return;
    }
    let answer = SERVER.answer(input);
    if !answer.is_empty() {
        let status = answer.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
        let status = status.expect("a response starts with a status line");
        assert_ne!(status, b"500", "{}", String::from_utf8_lossy(&answer));
    }
    assert!(SERVER.metrics_size() <= MAX_METRICS, "metrics grow with requests");
}

/// The log of a training, or the samples of a run, rendered as the server's page.
pub(crate) fn pages(input: &[u8]) {
    let dir = scratch_dir();
    if input.starts_with(b"{\"step") {
        std::fs::create_dir(dir.path().join("training")).expect("a directory can be created");
        write(&dir.path().join("training/log.jsonl"), input);
        if let Some(training) = TrainingDir::find(dir.path()) {
            let _ = report::page_of_trainings(&[training]);
        }
        return;
    }
    let manifest = Manifest { seeds: vec![7], questions: 1, ..Manifest::default() };
    let mut run = RunDir::create(dir.path(), &manifest).expect("a run can be created");
    for line in input.split(|&byte| byte == b'\n') {
        // A sample that violates an invariant is not written.
        let sample = serde_json::from_slice::<Sample>(line);
        let _ = sample.map(|sample| run.append(&sample));
    }
    let run = run.finish().expect("the run can be finished");
    if let Ok(page) = report::page_of_runs(&[run]) {
        assert!(page.starts_with("<!doctype html>"), "a page is HTML");
    }
}
