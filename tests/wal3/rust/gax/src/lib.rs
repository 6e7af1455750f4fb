//! In the place of Google's call library: the trait that wal3's error type implements.

/// When a call is repeated.
pub mod retry {
    /// An error that may hold another one.
    pub trait TryAs<T> {
        /// Return the other one, if it does.
        fn try_as(&self) -> Option<&T>;
    }
}
