//! A store: an open log, and what belongs to it beside its commits.
//!
//! Pure: the contract. A server runs over any store, so the place of the watermark, of the control socket and of the
//! mark of a restoration is the store's own affair.

use std::{error::Error, path::PathBuf, sync::Arc};

use super::{WritableLog, held::HeldFolder, moment::MomentNote};
use crate::watermark::Watermark;

/// Reason why a store cannot be closed, or its marks not be changed.
pub type StoreError = Box<dyn Error + Send + Sync>;

/// An open log, with its state that is no commit.
pub trait Store: Send {
    /// Returns the log. The store keeps the right to close it.
    fn log(&self) -> Arc<dyn WritableLog>;

    /// Opens the watermark. It lives where the log lives: whoever appends next must stamp later commits than it allows.
    /// A log that other processes write needs one that they share; else a second counts as over while they still
    /// append in it.
    ///
    /// # Errors
    ///
    /// Returns why the watermark cannot be read.
    fn watermark(&self) -> Result<Watermark, StoreError>;

    /// Returns the note of the last moment that a server knew, if the store keeps one.
    fn moment(&self) -> Option<MomentNote> {
        None
    }

    /// Returns the folder that the log is in, if it is in one: views keep their files there.
    fn folder(&self) -> Option<HeldFolder> {
        None
    }

    /// Whether the log was restored, so an epoch must begin before it is served.
    fn is_restored(&self) -> bool;

    /// Notes that the epoch of a restored log has begun.
    ///
    /// # Errors
    ///
    /// Returns why that cannot be noted. The next start begins the epoch again.
    fn epoch_has_begun(&self) -> Result<(), StoreError>;

    /// Returns the path of the socket at which a server takes upkeep tasks, if the store has a folder for it.
    fn control_socket(&self) -> Option<PathBuf>;

    /// Begins the log's work in the background, which a mere look at the log does without.
    fn begin_work(&self) {}

    /// Ends that work as soon as possible, also where a publisher waits for it. The server stops.
    fn end_work(&self) {}

    /// Makes every read fail from now on, so that work still in progress ends.
    fn end_reading(&self);

    /// Closes the log so that the next opening need not doubt it. Returns whether it was closed: not while it is in use.
    ///
    /// # Errors
    ///
    /// Returns the failed write. Nothing acknowledged is lost.
    fn close(self: Box<Self>) -> Result<bool, StoreError>;
}
