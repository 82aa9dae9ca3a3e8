//! Models and datasets of the Hugging Face Hub: their ids, and the cache on disk that Python tools
//! share.

mod cache;
mod id;

pub use cache::HubCache;
pub use id::{HubId, RepoKind};
