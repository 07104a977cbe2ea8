//! Views: everything a reader sees, computed from commits.
//!
//! Pure: the trait. A view reads commits and the log's lookups, and nothing else: no clock, no configuration. So its
//! files can be deleted and made again, the same.

use simplefeed_core::commit::Commit;

use crate::log::{LogError, Series};

pub mod error;
pub mod documents;
pub mod manifest;
pub mod frozen;
pub mod frozen_files;
pub mod sidecar;
pub mod archive_files;
mod in_flight;
pub mod open_feeds;
pub mod index;
pub mod watch;
pub mod sup;
pub mod sup_files;

/// A deterministic function of commits.
pub trait View {
    /// Name of the view's folder, below `views` in the data folder.
    const NAME: &'static str;
    /// Work that a shell carries out for the view. Doing it twice is as good as once.
    type Effect;

    /// Applies the next commit. Returns the work that follows from it.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    fn apply(&mut self, commit: &Commit, log: &dyn Series) -> Result<Vec<Self::Effect>, LogError>;
}
