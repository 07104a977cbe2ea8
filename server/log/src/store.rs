//! A store: an open log, and the state beside the commits.
//!
//! Pure: the contract. A server runs over any store. So each store chooses the places of the
//! watermark, of the control socket and of the mark of a restoration.

use std::{error::Error, path::PathBuf, sync::Arc};

use super::{WritableLog, held::HeldFolder, moment::MomentNote};
use crate::watermark::Watermark;

/// Reason why a store cannot be closed, or a mark of the store cannot be changed.
pub type StoreError = Box<dyn Error + Send + Sync>;

/// An open log, with the state that no commit holds.
pub trait LogStore: Send {
    /// Returns the log. The store keeps the right to close the log.
    fn log(&self) -> Arc<dyn WritableLog>;

    /// Opens the watermark. The watermark lives where the log lives: the next process that appends
    /// must stamp commits later than the watermark. If several processes append to one log, they
    /// must share one watermark. Else a second counts as over while another process still appends
    /// commits with instants of that second.
    ///
    /// # Errors
    ///
    /// Returns why the watermark cannot be read.
    fn watermark(&self) -> Result<Watermark, StoreError>;

    /// Returns the note of the last moment that a server knew, if the store keeps such a note.
    fn moment(&self) -> Option<MomentNote> {
        None
    }

    /// Returns the folder of the log, if the log has one: views keep their files there.
    fn folder(&self) -> Option<HeldFolder> {
        None
    }

    /// Returns whether the log was restored, so that an epoch must begin before the log is served.
    fn is_restored(&self) -> bool;

    /// Notes that the epoch of a restored log has begun.
    ///
    /// # Errors
    ///
    /// Returns why the note failed. The next start begins the epoch again.
    fn epoch_has_begun(&self) -> Result<(), StoreError>;

    /// Returns the path of the socket at which a server takes upkeep tasks, if the store has a
    /// folder.
    fn control_socket(&self) -> Option<PathBuf>;

    /// Begins the log's work in the background. A program that only reads the log does not call
    /// this.
    fn begin_work(&self) {}

    /// Ends the work in the background as soon as possible, even if a publisher waits for that
    /// work. A server calls this when it stops.
    fn end_work(&self) {}

    /// Makes every read fail from now on, so that work still in progress ends.
    fn end_reading(&self);

    /// Closes the log, and notes where the log ends, for the next opening. Returns `false`, and
    /// closes nothing, while somebody else uses the log.
    ///
    /// # Errors
    ///
    /// Returns the failed write. Nothing acknowledged is lost.
    fn close(self: Box<Self>) -> Result<bool, StoreError>;
}
