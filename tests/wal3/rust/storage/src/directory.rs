//! The blocking half. The protocol is that of `uploader/stores/local_directory.py`, which says why:
//!
//! * create: a synced temporary file in `.tmp`, a hard link to its name, a sync of the directory;
//! * swap: under a lock on `.tmp/lock`, the SHA-256 of the content compared, then a rename;
//! * delete: under the same lock;
//! * a read syncs the directories above what it found.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::{ETag, StorageError};

/// A root directory. Every method blocks.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub fn read(&self, key: &str) -> Result<(Vec<u8>, ETag), StorageError> {
        let path = self.path(key);
        let data = fs::read(&path).map_err(|error| translated(error, key))?;
        self.settle(&path, key)?;
        let e_tag = hash(&data);
        Ok((data, e_tag))
    }

    pub fn create(&self, key: &str, data: &[u8]) -> Result<ETag, StorageError> {
        let path = self.path(key);
        let temporary = self
            .temporary(data)
            .map_err(|error| translated(error, key))?;
        let linked = make_parent(&path).and_then(|()| fs::hard_link(&temporary.0, &path));
        if linked.is_ok() || path.exists() {
            self.settle(&path, key)?;
        }
        linked.map_err(|error| translated(error, key))?;
        Ok(hash(data))
    }

    /// Replace an object with this content, or whatever is there.
    pub fn swap(&self, key: &str, data: &[u8], e_tag: Option<&ETag>) -> Result<ETag, StorageError> {
        let path = self.path(key);
        let temporary = self
            .temporary(data)
            .map_err(|error| translated(error, key))?;
        {
            let _locked = self.locked().map_err(|error| translated(error, key))?;
            if let Some(expected) = e_tag {
                let found = fs::read(&path).ok().map(|found| hash(&found));
                if found.as_ref() != Some(expected) {
                    let source = Arc::new(std::io::Error::other("another content"));
                    return Err(StorageError::Precondition {
                        path: key.to_string(),
                        source,
                    });
                }
            }
            make_parent(&path)
                .and_then(|()| fs::rename(&temporary.0, &path))
                .map_err(|error| translated(error, key))?;
        }
        self.settle(&path, key)?;
        Ok(hash(data))
    }

    pub fn remove(&self, key: &str) -> Result<(), StorageError> {
        let path = self.path(key);
        {
            let _locked = self.locked().map_err(|error| translated(error, key))?;
            match fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                other => other.map_err(|error| translated(error, key))?,
            }
        }
        self.settle(&path, key)
    }

    /// Return the keys that begin with `prefix`, with its leading slash if it has one.
    pub fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        let wanted = prefix.trim_start_matches('/');
        let slash = if prefix.starts_with('/') { "/" } else { "" };
        let mut found = Vec::new();
        walk(&self.root, "", &mut found).map_err(|error| translated(error, prefix))?;
        found.retain(|key| key.starts_with(wanted));
        found.sort();
        Ok(found
            .into_iter()
            .map(|key| format!("{slash}{key}"))
            .collect())
    }

    /// Where an object lies. wal3 puts a slash behind an empty prefix.
    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key.trim_start_matches('/'))
    }

    fn temporary(&self, data: &[u8]) -> std::io::Result<Temporary> {
        let directory = self.root.join(".tmp");
        fs::create_dir_all(&directory)?;
        let name = uuid::Uuid::new_v4().simple().to_string();
        let temporary = Temporary(directory.join(&name[..16]));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary.0)?;
        file.write_all(data)?;
        file.sync_all()?;
        Ok(temporary)
    }

    /// Wait for the lock. It is given back when the file is closed.
    fn locked(&self) -> std::io::Result<File> {
        let directory = self.root.join(".tmp");
        fs::create_dir_all(&directory)?;
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join("lock"))?;
        file.lock()?;
        Ok(file)
    }

    /// Make the entries of the directories above a file durable, up to the root.
    fn settle(&self, path: &Path, key: &str) -> Result<(), StorageError> {
        for directory in path
            .ancestors()
            .skip(1)
            .take_while(|each| each.starts_with(&self.root))
        {
            File::open(directory)
                .and_then(|open| open.sync_all())
                .map_err(|error| translated(error, key))?;
        }
        Ok(())
    }
}

/// A file that goes when nobody needs it any more, unless it was renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn make_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn hash(data: &[u8]) -> ETag {
    let digest = Sha256::digest(data);
    ETag(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Collect the regular files; names that begin with a dot, and links, are no objects.
fn walk(directory: &Path, base: &str, found: &mut Vec<String>) -> std::io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), &format!("{base}{name}/"), found)?,
            Ok(kind) if kind.is_file() => found.push(format!("{base}{name}")),
            _ => {}
        }
    }
    Ok(())
}

fn translated(error: std::io::Error, key: &str) -> StorageError {
    let (kind, path, source) = (error.kind(), key.to_string(), Arc::new(error));
    match kind {
        ErrorKind::NotFound | ErrorKind::NotADirectory => StorageError::NotFound { path, source },
        ErrorKind::AlreadyExists => StorageError::AlreadyExists { path, source },
        ErrorKind::PermissionDenied => StorageError::PermissionDenied { path, source },
        _ => StorageError::Generic { source },
    }
}
