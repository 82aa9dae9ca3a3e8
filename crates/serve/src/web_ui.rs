//! The page at `/`, for asking a question and watching its trajectories. It is embedded in the
//! program and only calls this server; `assets/explore.js` uses the public API.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use latent_tts::report::assets::{QUESTION, STYLE, TOOLTIPS};

const BODY: &str = include_str!("../assets/explore.html");
const OWN_STYLE: &str = include_str!("../assets/explore.css");
const SCRIPT: &str = include_str!("../assets/explore.js");
/// No requests to other hosts, no embedding in frames, no form submission.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

static PAGE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>latent-tts</title>\n\
         <style>\n{STYLE}{OWN_STYLE}</style>\n</head>\n\
         <body>\n{BODY}<script>\n{TOOLTIPS}{QUESTION}{SCRIPT}</script>\n</body>\n</html>\n"
    )
});

/// The page. It contains no model data; everything it shows is requested with the API key.
pub(crate) async fn page() -> Response {
    html(PAGE.as_str(), POLICY)
}

/// An HTML response under a content security policy.
pub(crate) fn html(text: impl Into<String>, policy: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text.into()).into_response()
}

/// The policy of a run's page, which makes no requests.
pub(crate) const RUN_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
                                     script-src 'unsafe-inline'; img-src data:; \
                                     base-uri 'none'; form-action 'none'; \
                                     frame-ancestors 'none'";
