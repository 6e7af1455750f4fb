//! In the place of `chroma-storage`: objects as files, by the protocol of walstore's `LocalStore`.
//!
//! Programs of both kinds share one directory safely. What they must agree on is in `directory.rs`.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use chroma_error::{ChromaError, ErrorCodes};
use chroma_types::Cmek;

mod directory;
mod gate;

use directory::Directory;
pub use gate::{Gate, Moment};

type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// The disk's own words.
    #[error("cannot use the directory: {source}")]
    Generic { source: Source },
    /// There is no such object.
    #[error("there is no {path}: {source}")]
    NotFound { path: String, source: Source },
    /// The key is taken.
    #[error("there is {path} already: {source}")]
    AlreadyExists { path: String, source: Source },
    /// The object is not the one that was read.
    #[error("somebody changed {path}: {source}")]
    Precondition { path: String, source: Source },
    /// A directory asks for no permission; wal3 tells this one from others.
    #[error("no permission for {path}: {source}")]
    PermissionDenied { path: String, source: Source },
    /// A thread was lost.
    #[error("a thread of the store ended early")]
    JoinError,
}

impl ChromaError for StorageError {
    fn code(&self) -> ErrorCodes {
        match self {
            Self::NotFound { .. } => ErrorCodes::NotFound,
            Self::AlreadyExists { .. } => ErrorCodes::AlreadyExists,
            Self::Precondition { .. } => ErrorCodes::FailedPrecondition,
            Self::PermissionDenied { .. } => ErrorCodes::PermissionDenied,
            Self::Generic { .. } | Self::JoinError => ErrorCodes::Internal,
        }
    }
}

/// Which content an object has: the SHA-256 of it, as walstore has it.
#[derive(Clone, Debug, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct ETag(pub String);

/// What a put asks for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum PutMode {
    /// The object is there, with this content.
    IfMatch(ETag),
    /// There is no such object.
    IfNotExist,
    /// Nothing.
    #[default]
    Upsert,
}

/// How an object is put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    mode: PutMode,
}

impl PutOptions {
    /// Set the condition.
    pub fn with_mode(self, mode: PutMode) -> Self {
        Self { mode }
    }

    /// A directory has no queue to stand in.
    pub fn with_priority(self, _: admissioncontrolleds3::StorageRequestPriority) -> Self {
        self
    }

    /// A directory does not encrypt.
    pub fn with_cmek(self, _: Cmek) -> Self {
        self
    }
}

/// How an object is read: always whole, and as it is now.
#[derive(Clone, Debug, Default)]
pub struct GetOptions;

impl GetOptions {
    /// A directory has no queue to stand in.
    pub fn new(_: admissioncontrolleds3::StorageRequestPriority) -> Self {
        Self
    }

    /// A directory is.
    pub fn with_strong_consistency(self) -> Self {
        self
    }

    /// One read is fast enough.
    pub fn with_parallelism(self) -> Self {
        self
    }
}

/// How an object is deleted.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions;

/// The names that wal3 asks for under another one.
pub mod admissioncontrolleds3 {
    /// A place in a queue, which a directory does not have.
    #[derive(Clone, Copy, Debug, Default)]
    pub enum StorageRequestPriority {
        /// The first one.
        #[default]
        P0,
    }
}

/// What became of several objects.
#[derive(Clone, Debug, Default)]
pub struct DeletedObjects {
    /// The keys that are gone.
    pub deleted: Vec<String>,
    /// Why others are not.
    pub errors: Vec<StorageError>,
}

/// A store over a directory. Clones share it, and its gate.
#[derive(Clone, Debug)]
pub struct Storage {
    directory: Arc<Directory>,
    gate: Gate,
}

impl Storage {
    /// Objects lie below `root`. Nothing is made before the first write.
    pub fn new(root: PathBuf) -> Self {
        Self {
            directory: Arc::new(Directory::new(root)),
            gate: Gate::default(),
        }
    }

    /// Where calls can be made to wait.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Return a whole object.
    pub async fn get(&self, key: &str, options: GetOptions) -> Result<Arc<Vec<u8>>, StorageError> {
        Ok(self.get_with_e_tag(key, options).await?.0)
    }

    /// Return a whole object and what names its content.
    pub async fn get_with_e_tag(
        &self,
        key: &str,
        _: GetOptions,
    ) -> Result<(Arc<Vec<u8>>, Option<ETag>), StorageError> {
        let (directory, name) = (Arc::clone(&self.directory), key.to_string());
        let read = blocking(move || directory.read(&name));
        let (data, e_tag) = self.gated("get", key, read).await?;
        Ok((Arc::new(data), Some(e_tag)))
    }

    /// Return whether an object still has this content.
    pub async fn confirm_same(&self, key: &str, e_tag: &ETag) -> Result<bool, StorageError> {
        let (_, found) = self.get_with_e_tag(key, GetOptions).await?;
        Ok(found.as_ref() == Some(e_tag))
    }

    /// Put an object; durable when it returns.
    pub async fn put_bytes(
        &self,
        key: &str,
        bytes: Vec<u8>,
        options: PutOptions,
    ) -> Result<Option<ETag>, StorageError> {
        let (directory, name) = (Arc::clone(&self.directory), key.to_string());
        let put = blocking(move || match options.mode {
            PutMode::IfNotExist => directory.create(&name, &bytes),
            PutMode::IfMatch(e_tag) => directory.swap(&name, &bytes, Some(&e_tag)),
            PutMode::Upsert => directory.swap(&name, &bytes, None),
        });
        self.gated("put", key, put).await.map(Some)
    }

    /// Delete an object; one that is not there is fine.
    pub async fn delete(&self, key: &str, _: DeleteOptions) -> Result<(), StorageError> {
        let (directory, name) = (Arc::clone(&self.directory), key.to_string());
        let delete = blocking(move || directory.remove(&name));
        self.gated("delete", key, delete).await
    }

    /// Delete objects, one after the other.
    pub async fn delete_many<S, I>(&self, keys: I) -> Result<DeletedObjects, StorageError>
    where
        S: AsRef<str> + std::fmt::Debug,
        I: IntoIterator<Item = S>,
    {
        let keys: Vec<String> = keys
            .into_iter()
            .map(|key| key.as_ref().to_string())
            .collect();
        let mut answer = DeletedObjects::default();
        for key in keys {
            match self.delete(&key, DeleteOptions).await {
                Ok(()) => answer.deleted.push(key),
                Err(error) => answer.errors.push(error),
            }
        }
        Ok(answer)
    }

    /// Return the keys that begin with `prefix`, in their order.
    pub async fn list_prefix(
        &self,
        prefix: &str,
        _: GetOptions,
    ) -> Result<Vec<String>, StorageError> {
        let (directory, name) = (Arc::clone(&self.directory), prefix.to_string());
        self.gated("list", prefix, blocking(move || directory.list(&name)))
            .await
    }

    async fn gated<T>(
        &self,
        call: &str,
        key: &str,
        running: impl Future<Output = Result<T, StorageError>>,
    ) -> Result<T, StorageError> {
        self.gate.pass(Moment::Before, call, key).await;
        let outcome = running.await;
        self.gate.pass(Moment::After, call, key).await;
        outcome
    }
}

/// Run what blocks on a thread. A future that is dropped leaves it running, as a request would be.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    tokio::task::spawn_blocking(call)
        .await
        .map_err(|_| StorageError::JoinError)?
}

/// The directory below which wal3's own tests make their buckets.
pub const BUCKETS: &str = "WALSTORE_WAL3_BUCKETS";

/// Return an empty bucket for one of wal3's own tests, named after the thread that runs it.
pub async fn s3_client_for_test_with_new_bucket() -> Storage {
    let parent = std::env::var(BUCKETS).expect("wal3's tests need a directory for their buckets");
    let test = std::thread::current()
        .name()
        .unwrap_or("test")
        .replace("::", ".");
    let bucket = format!("{test}-{}", uuid::Uuid::new_v4().simple());
    Storage::new(PathBuf::from(parent).join(bucket))
}

/// The same under the name that some of the tests use.
pub mod s3 {
    pub use super::{s3_client_for_test_with_new_bucket, DeletedObjects};
}
