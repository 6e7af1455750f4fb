//! In the place of Spanner's client: the errors that wal3's own error type names. Nobody raises them.

/// Errors of a client.
pub mod client {
    /// What a call may fail with.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// The server's answer.
        #[error(transparent)]
        GRPC(#[from] tonic::Status),
    }
}

/// Errors of a row.
pub mod row {
    /// What decoding a column may fail with.
    #[derive(Debug, thiserror::Error)]
    #[error("a row cannot be decoded")]
    pub struct Error;
}

/// Errors of a session.
pub mod session {
    /// What a session may fail with.
    #[derive(Debug, thiserror::Error)]
    pub enum SessionError {
        /// The server's answer.
        #[error(transparent)]
        GRPC(#[from] tonic::Status),
    }
}
