//! Views: everything that readers see, computed from commits.
//!
//! Pure: the contract of a view, and a list of views. One [`follower`] runs any view, and upkeep
//! asks each view for a part of each task, so neither knows a view by name. The pure part of a view
//! reads commits and the log's lookups and nothing else: no clock, no configuration. So the files
//! of a view can be deleted and made again, byte for byte.
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

use std::{fmt, path::Path, sync::Arc};

use simplefeed_core::{commit::Outline, feed::CommitNumber};
use simplefeed_log::{EntryLog, LogError};
use simplefeed_process::stop::Stop;

pub mod error;
pub mod folders;
pub mod files;
pub mod reports;
pub mod tree;
pub mod follower;
pub mod scrub;
pub mod shown;
pub mod catalogue;
pub mod documents;
pub mod sup;
pub mod timelines;
pub mod push;
pub mod rates;

use error::ViewError;
use folders::Folders;
use follower::{FollowerProgress, Grace};
use reports::{Rebuilt, VerifyFindings};
use scrub::Scrub;
use shown::{ShownLog, ShownSeries};
use tree::{ExportError, Tree};

/// Answer of a view to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// The view takes the next commit.
    More,
    /// As much work waits as the view keeps in memory. The follower has this work carried out
    /// before the next commit.
    Full,
}

/// State that is derived from commits, with files that belong to the view. For a view without
/// files, the defaults of the methods about files are right.
///
/// A view keeps the work that follows from a commit until [`carry_out`](Self::carry_out) has done
/// the work. Work that is done twice has the same effect as work that is done once, so a crash at
/// any step costs time only.
pub trait View: fmt::Debug + Send + Sync {
    /// Returns the name of the view, which is also the name of a folder below `views` and the label
    /// in metrics.
    fn name(&self) -> &'static str;

    /// Prepares to follow a log. Returns the last commit that need not be applied again.
    ///
    /// # Errors
    ///
    /// See [`ViewError`]. The follower tries again.
    fn begin(&self, log: &dyn ShownLog) -> Result<CommitNumber, ViewError>;

    /// Applies the next commit.
    ///
    /// # Errors
    ///
    /// See [`ViewError`]. Nothing of the commit is applied then, and the follower tries again.
    fn apply(&self, commit: &Outline, log: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError>;

    /// Whether a view that was [full](ApplyOutcome::Full) takes commits again, although some work has
    /// failed.
    fn has_room(&self) -> bool {
        false
    }

    /// Carries out the work that waits, as long as `grace` lasts. Returns whether none is left.
    /// Work that fails keeps waiting, and holds up no other.
    ///
    /// # Errors
    ///
    /// See [`ViewError`]. The follower tries again, even if no commit comes.
    fn carry_out(&self, log: &dyn ShownSeries, grace: &Grace<'_>) -> Result<bool, ViewError>;

    /// Notes for the next start that all work up to a commit is carried out. Losing the note costs
    /// time only.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    fn note(&self, _commit: CommitNumber, _log: &dyn ShownLog) -> Result<(), ViewError> {
        Ok(())
    }

    /// Pauses an up-to-date follower, until `stop` is requested at most: work of the commits that
    /// come meanwhile is carried out together.
    fn pause(&self, _stop: &Stop) {}

    /// Returns the number of files that the follower has made since the start.
    fn made(&self) -> u64 {
        0
    }

    /// Compares all files of the view with the log, and reports each difference. `findings` has the
    /// outcome of the replay.
    ///
    /// # Errors
    ///
    /// Returns an error only where checking cannot go on.
    fn verify(&self, _log: &dyn ShownLog, _: &mut VerifyFindings) -> Result<(), ViewError> {
        Ok(())
    }

    /// Makes all files of the view again.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    fn rebuild(&self, _log: &dyn ShownLog, _rebuilt: &mut Rebuilt) -> Result<(), ViewError> {
        Ok(())
    }

    /// Checks that a log reaches as far as the documents that the view has made for readers.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Replaced`] if the log does not: these documents are of a later log.
    fn check_log(&self, _log: &dyn EntryLog) -> Result<(), LogError> {
        Ok(())
    }

    /// Notes for the next start that a document of the view, in this file, is of another log.
    fn note_replaced(&self, _log: &dyn EntryLog, _document: &Path) {}

    /// Compares all files of the view with their digests, a little at a time.
    fn scrub(&self, _log: &dyn ShownSeries, _scrub: &Scrub<'_>) {}

    /// Writes the files of the view for static web servers. Views without such files write nothing.
    ///
    /// # Errors
    ///
    /// See [`ExportError`].
    fn export(&self, _log: &Arc<dyn ShownSeries>, _tree: &mut Tree) -> Result<(), ExportError> {
        Ok(())
    }

    /// Makes the files of the view in the folders of a copied log. Returns the number of archived
    /// documents. A view that copies nothing is made from the commits when the copy is served.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    fn copy(&self, _log: &dyn EntryLog, _to: &Folders) -> Result<u64, ViewError> {
        Ok(0)
    }
}

/// The views of a data folder, each with the progress of its follower.
#[derive(Clone, Debug)]
pub struct Views(Vec<(Arc<dyn View>, Arc<FollowerProgress>)>);

impl Views {
    /// Returns some views, which nothing follows yet.
    pub fn of(views: Vec<Arc<dyn View>>) -> Self {
        let not_followed = |view| (view, Arc::default());
        Self(views.into_iter().map(not_followed).collect())
    }

    /// Checks that a log reaches as far as the documents that the views have made for readers.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Replaced`] if the log does not.
    pub fn check_log(&self, log: &dyn EntryLog) -> Result<(), LogError> {
        let mut views = self.0.iter();
        views.try_for_each(|(view, _)| view.check_log(log))
    }

    /// Returns the views, and how far the follower of each has come.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<dyn View>, &Arc<FollowerProgress>)> {
        self.0.iter().map(|(view, progress)| (view, progress))
    }
}
