//! In the place of `chroma-types`, of which wal3 uses the name of an encryption key. A directory has none.

/// The name of a key that a store would encrypt with; passed on, never used.
#[derive(Clone, Debug, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Cmek(String);
