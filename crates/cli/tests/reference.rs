//! The generated pages of the reference are those in docs/reference.

use std::path::Path;

#[test]
fn generated_pages_are_up_to_date() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let pages = latent_tts_cli::reference::pages();
    for (name, page) in &pages {
        let path = dir.join(name);
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(&path, page).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == *page,
            "{} differs from the program; run `UPDATE_REFERENCE=1 cargo test -p latent-tts-cli \
             --test reference`",
            path.display()
        );
    }
    let has = |name: &str, text: &str| {
        assert!(
            pages.iter().any(|(page, content)| *page == name && content.contains(text)),
            "{text}"
        );
    };
    has("cli.md", "`--dropout-p P`");
    has("cli.md", "## latent-tts train reward");
    has("configuration.md", "`LATENT_TTS_DROPOUT_P`");
    has("rules.md", "| `weighted` |");
    has("samplers.md", "`--noise-std STD`");
    has("metrics.md", "| `coverage` |");
    has("http.md", "`POST /v1/chat/completions`");
}
