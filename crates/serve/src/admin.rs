//! `/version`, and reloading of models and keys by `POST /admin/reload` or SIGHUP.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{ApiError, json_response};
use crate::state::AppState;

/// `GET /version`, in vLLM's format.
pub(crate) async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    json_response(StatusCode::OK, &json!({ "version": version, "name": "latent-tts" }))
}

/// `POST /admin/reload`. Only available on a server with API keys; otherwise anyone could make the
/// server reread its models repeatedly.
pub(crate) async fn reload(State(state): State<Arc<AppState>>) -> Result<Response, ApiError> {
    if !state.keys.is_required() {
        let message = "reloading over HTTP requires an API key; send SIGHUP instead";
        return Err(ApiError::forbidden(message));
    }
    let reloaded = reload_all(&state).await.map_err(ApiError::not_reloaded)?;
    Ok(json_response(StatusCode::OK, &reloaded))
}

/// Rereads the keys file and every loaded model. Models and keys that cannot be read are left
/// unchanged; running requests are not affected.
pub(crate) async fn reload_all(state: &AppState) -> Result<Value, String> {
    state.keys.reload().map_err(|error| error.to_string())?;
    let models = state.models.reload().await.map_err(|error| error.to_string())?;
    tracing::info!(?models, "reloaded");
    Ok(json!({ "models": models, "keys": state.keys.count() }))
}

/// A SIGHUP listener. The signal is handled from its creation on; before, it would end the process.
pub(crate) struct ReloadSignal {
    #[cfg(unix)]
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl ReloadSignal {
    pub(crate) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let hangup = signal(SignalKind::hangup());
        let failed = |error: &_| tracing::warn!(%error, "cannot listen for SIGHUP");
        Self { hangup: hangup.inspect_err(failed).ok() }
    }

    /// Reloads at every signal while the returned future is polled.
    pub(crate) async fn reload(self, state: Arc<AppState>) {
        let Some(mut hangup) = self.hangup else { return };
        while hangup.recv().await.is_some() {
            if let Err(error) = reload_all(&state).await {
                tracing::error!(error, "cannot reload; the server keeps its models and keys");
            }
        }
    }
}

/// Other systems have no such signal.
#[cfg(not(unix))]
impl ReloadSignal {
    pub(crate) fn listen() -> Self {
        Self {}
    }

    pub(crate) async fn reload(self, _: Arc<AppState>) {}
}
