//! The entry log: the only truth. Everything a reader sees is computed from its commits.
//!
//! Pure: a list of parts. The contract is what readers and the writer have. [`sled`] keeps a log on
//! a disk, behind a feature. [`memory`] keeps a log in memory, for tests and as the model that
//! crash tests compare with. Both logs pass the same contract tests, and have equal chain hashes
//! for equal commits.
#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "no test needs a name beyond its end"
    )
)]

#[cfg(planted)]
#[path = "../../../tests/planted.rs"]
mod planted;

mod contract;
pub mod codec;
pub mod watermark;
pub mod announcements;
pub mod store;
pub mod memory;
pub mod barrier;
pub mod durable;
pub mod held;
mod slots;
#[cfg_attr(
    not(feature = "sled"),
    expect(dead_code, reason = "a log in memory keeps no such note")
)]
pub mod seen;
pub mod moment;
#[cfg(feature = "sled")]
pub mod sled;
pub mod space;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;

pub use contract::{
    Append, Commits, EndReason, EntryLog, FeedHeads, Ids, LogError, LogHead, LogRoom, PlacedEntry,
    Series, Space, WritableLog, pages, settings_of,
};
