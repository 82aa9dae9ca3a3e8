//! Models and datasets of the Hugging Face Hub: their ids, the on-disk cache that is shared with
//! Python tools, and (feature `download`) the download client.
//!
//! ```text
//! owner/name@revision ──> HubId ──> HubCache ──> snapshot directory, or a file of it
//!                                      ^
//!                     HubClient ───────┘  listing, selection of files, blobs
//! ```

mod cache;
#[cfg(feature = "hub")]
mod client;
mod error;
mod id;
#[cfg(feature = "hub")]
mod select;
#[cfg(feature = "hub")]
mod transfer;

pub use cache::HubCache;
#[cfg(feature = "hub")]
pub use client::{HubClient, HubEvent};
pub use error::HubError;
pub use id::{DATA_EXTENSIONS, HubId, MODEL_EXTENSIONS, RepoKind};
