//! The generated pages of `docs/reference`: commands, configuration, rules, samplers, metrics and
//! the HTTP API, each from the definitions that the program uses.
//!
//! Tested by `tests/reference.rs`, which fails where a page differs and writes the pages with
//! `UPDATE_REFERENCE=1`.

mod commands;
#[cfg(feature = "serve")]
mod http;
mod registries;

/// The pages with their file names.
pub fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("cli.md", commands::command_line()),
        ("configuration.md", commands::configuration()),
        ("rules.md", registries::rules()),
        ("samplers.md", registries::samplers()),
        ("metrics.md", registries::metrics()),
        #[cfg(feature = "serve")]
        ("http.md", http::page()),
    ]
}
