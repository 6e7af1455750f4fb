//! In the place of wal3's replicated logs, which need Spanner: the type that its other half shares with them.

use std::sync::atomic::AtomicU64;
use std::sync::Arc;

use chroma_storage::Storage;

/// Where one copy of a log lies.
#[derive(Clone)]
pub struct StorageWrapper {
    /// The name of the region.
    pub region: String,
    /// The store.
    pub storage: Storage,
    /// What the keys of the log begin with.
    pub prefix: String,
    /// Failures so far.
    pub counter: Arc<AtomicU64>,
}
