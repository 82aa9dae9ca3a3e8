//! The generated command-line reference equals the page in docs/.

use std::path::Path;

#[test]
fn the_page_of_the_command_line_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let page = latent_tts_cli::reference::markdown();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == page,
        "{} differs from the commands; run `UPDATE_REFERENCE=1 cargo test -p latent-tts-cli --test \
         reference`",
        path.display()
    );
    assert!(page.contains("`--dropout-p P`") && page.contains("## latent-tts train reward"));
}
