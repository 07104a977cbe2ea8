//! Views: everything that readers see, computed from commits.
//!
//! Pure: the contract of a view, and a list of views. One [`follower`] runs any view, and upkeep
//! asks each view for its part of each task, so neither the follower nor upkeep knows a view by
//! name. The pure part of a view reads commits and the log's lookups and nothing else: no clock, no
//! configuration. So the files of a view can be deleted and made again, byte for byte.
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
    /// The view has room for the work of the next commit.
    More,
    /// As much work waits as the view keeps in memory. The follower applies the next commit only
    /// once this work is carried out, or the view [has room](View::has_room) again.
    Full,
}

/// State that is derived from commits, with files that belong to the view. The default methods suit
/// a view without files.
///
/// A view keeps the work that follows from a commit until [`carry_out`](Self::carry_out) has done
/// the work. Repeated work has the same effect as work done once, so a crash at any step costs time
/// only.
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
    /// See [`ViewError`]. Nothing of the commit may be applied then, because the follower applies
    /// the same commit again.
    fn apply(&self, commit: &Outline, log: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError>;

    /// Returns whether a view that was [full](ApplyOutcome::Full) has room for more commits,
    /// although some of its work has failed.
    fn has_room(&self) -> bool {
        false
    }

    /// Carries out the work that waits, as long as `grace` lasts. Returns whether no work is left.
    /// Failed work keeps waiting, and does not hold up other work.
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

    /// Pauses the follower of a view that is up to date, so that the work of the commits that come
    /// meanwhile is carried out together. The pause ends soon after a stop of the server.
    fn pause(&self, _stop: &Stop) {}

    /// Returns the number of files that the follower has made since the start.
    fn made(&self) -> u64 {
        0
    }

    /// Compares all files of the view with the log, and adds each difference to the findings.
    /// Before this call, these already tell how the replay of the commits went.
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
    /// Returns [`LogError::Replaced`] if the log ends earlier, because the documents then belong to
    /// a later log.
    fn check_log(&self, _log: &dyn EntryLog) -> Result<(), LogError> {
        Ok(())
    }

    /// Notes for the next start that a document of the view belongs to another log. `document` is
    /// the path of the document's file.
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
    /// documents. The files of a view that copies nothing are made from the commits once the copy
    /// is served.
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
    /// Returns the given views, which no follower runs yet.
    pub fn of(views: Vec<Arc<dyn View>>) -> Self {
        let not_followed = |view| (view, Arc::default());
        Self(views.into_iter().map(not_followed).collect())
    }

    /// Checks that a log reaches as far as the documents that the views have made for readers.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Replaced`] if the log ends earlier.
    pub fn check_log(&self, log: &dyn EntryLog) -> Result<(), LogError> {
        let mut views = self.0.iter();
        views.try_for_each(|(view, _)| view.check_log(log))
    }

    /// Returns the views, and how far the follower of each has come.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<dyn View>, &Arc<FollowerProgress>)> {
        self.0.iter().map(|(view, progress)| (view, progress))
    }
}
