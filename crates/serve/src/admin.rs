//! `/version`, and the reload of models and keys: by `POST /admin/reload`, or by SIGHUP.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{ApiError, json_response};
use crate::state::AppState;

/// `GET /version`, in the form of vLLM's.
pub(crate) async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    json_response(StatusCode::OK, &json!({ "version": version, "name": "latent-tts" }))
}

/// `POST /admin/reload`. Only a server with keys has it: without one anybody could make the server
/// read its models again and again.
pub(crate) async fn reload(State(state): State<Arc<AppState>>) -> Result<Response, ApiError> {
    if !state.keys.is_required() {
        let message = "reloading over HTTP needs a server with an API key; send SIGHUP instead";
        return Err(ApiError::forbidden(message));
    }
    let reloaded = reload_all(&state).await.map_err(ApiError::not_reloaded)?;
    Ok(json_response(StatusCode::OK, &reloaded))
}

/// Reads the keys file and every loaded model again. What cannot be read leaves the server as it
/// was; requests that run are not disturbed.
pub(crate) async fn reload_all(state: &AppState) -> Result<Value, String> {
    state.keys.reload().map_err(|error| error.to_string())?;
    let models = state.models.reload().await.map_err(|error| error.to_string())?;
    tracing::info!(?models, "reloaded");
    Ok(json!({ "models": models, "keys": state.keys.count() }))
}

/// SIGHUP, listened to from the moment it is made: before then it would end the process.
pub(crate) struct ReloadSignal {
    #[cfg(unix)]
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl ReloadSignal {
    pub(crate) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let hangup = signal(SignalKind::hangup());
        let failed = |error: &_| tracing::warn!(%error, "SIGHUP is not listened to");
        Self { hangup: hangup.inspect_err(failed).ok() }
    }

    /// Reloads at every signal, for as long as the returned future is polled.
    pub(crate) async fn reload(self, state: Arc<AppState>) {
        let Some(mut hangup) = self.hangup else { return };
        while hangup.recv().await.is_some() {
            if let Err(error) = reload_all(&state).await {
                tracing::error!(error, "cannot reload; the server continues with what it has");
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
