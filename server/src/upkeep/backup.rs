//! Copies a log into a new folder, also while the log grows.
//!
//! Shell: reads a log and the views, writes a folder. The copy has the same commits, hence the same
//! chain, up to the end of the log when the backup began. Archived documents have the same bytes.
//! The folder takes its name only once the copy is whole and durable. The first server of the copy
//! begins an epoch.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use simplefeed_core::feed::CommitNumber;
use simplefeed_log::{
    Commits as _, EntryLog, LogError, WritableLog,
    barrier::{Barrier, sync_large_tree},
    durable::{self, parent_of},
    sled::{
        folder::{OpenError, keep_to_ourselves, mark_restored},
        opening::{Disk, open_with},
    },
};
use simplefeed_process::regular;
use simplefeed_views::{Views, error::ViewError, folders::Folders};
use tempfile::TempDir;
use tracing::warn;

/// Reason why a backup failed. The unfinished folder is removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The target exists and is not an empty folder.
    #[error("{to} is there already; a backup needs a folder of its own")]
    Exists {
        /// Where the backup was to go.
        to: PathBuf,
    },
    /// The target is a mount point, so no folder can take its name.
    #[error("{to} is a mount point; name a new folder in it")]
    Mounted {
        /// Where the backup was to go.
        to: PathBuf,
    },
    /// The log cannot be read.
    #[error("the log cannot be read")]
    Read(#[source] LogError),
    /// The copy cannot be written.
    #[error("the backup cannot be written")]
    Write(#[source] LogError),
    /// The copy cannot be opened or closed.
    #[error("the backup cannot be written")]
    Open(#[from] OpenError),
    /// A document can be neither copied nor made again.
    #[error("the archive cannot be copied")]
    Archive(#[from] ViewError),
    /// The operating system refused.
    #[error("cannot write {path}")]
    Io {
        /// File or folder that cannot be written.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A commit is missing, or the copy of a commit has another chain hash.
    #[error("commit {commit} of the copy differs from the log's; run `simplefeed-server verify`")]
    Different {
        /// The first such commit.
        commit: CommitNumber,
    },
}

/// Contents of a finished backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// Commits in the copied log.
    pub commits: u64,
    /// Feeds in the copied log.
    pub feeds: u64,
    /// Archived documents, copied or made again.
    pub documents: u64,
}

/// First part of the names of folders with unfinished work.
const PARTIAL: &str = ".partial-";

/// A barrier that syncs nothing: an incomplete copy is of no use to anybody, and a complete copy is
/// synced as a whole.
pub(crate) struct NoBarrier;

impl Barrier for NoBarrier {
    fn sync(&self, _file: &fs::File) -> io::Result<()> {
        Ok(())
    }
}

/// Copies all commits of the log, as it is at the beginning, into the folder `to`, which must not
/// exist, or must be empty.
///
/// # Errors
///
/// See [`BackupError`].
pub fn backup(log: &dyn EntryLog, views: &Views, to: &Path) -> Result<BackupReport, BackupError> {
    tell_left(to);
    make_folder(to, |folder| {
        let opened = open_with(folder, &Disk::behind(NoBarrier))?;
        copy_commits(log, &opened.log)?;
        let folders = Folders::new(folder, None).unhurried();
        let mut documents = 0;
        for (view, _) in views.iter() {
            documents += view.copy(&opened.log, &folders)?;
        }
        let report = BackupReport {
            commits: opened.log.head().number.0,
            feeds: opened.log.head().feeds,
            documents,
        };
        opened.close()?;
        Ok(report)
    })
}

/// Makes a folder that a log is restored from. The folder has another name until the copy is whole
/// and durable.
///
/// # Errors
///
/// Returns the error of `fill` or of the file system. There is no such folder then.
pub(crate) fn make_folder<T, E: From<BackupError>>(
    to: &Path,
    fill: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    // An empty folder at `to` is replaced in the end.
    let is_free = fs::read_dir(to).map_or(!to.exists(), |mut items| items.next().is_none());
    if !is_free {
        return Err(BackupError::Exists { to: to.into() }.into());
    }
    let partial = folder_beside(to)?;
    // The folder is opened before anything is written, so that the sync reports every failed write.
    let opened = regular::open_folder(partial.path());
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| E::from(BackupError::Io { path, source })
    };
    // The mark is set first, so that no copy can be served without a new epoch.
    mark_restored(partial.path()).map_err(failed(partial.path()))?;
    let made = fill(partial.path())?;
    keep_to_ourselves(partial.path()).map_err(BackupError::Open)?;
    // The sync comes before the rename, so that a folder with the final name is whole even after a
    // power cut.
    opened
        .and_then(|opened| sync_large_tree(partial.path(), &opened))
        .map_err(failed(partial.path()))?;
    durable::rename(partial.path(), to).map_err(failed(to))?;
    // The folder has moved, so there is nothing left to remove on drop.
    let _moved = partial.keep();
    Ok(made)
}

/// Makes a folder for unfinished work, on the file system where `to` will be.
pub(crate) fn folder_beside(to: &Path) -> Result<TempDir, BackupError> {
    let parent = parent_of(to);
    let device = |path: &Path| fs::metadata(path).map(|folder| folder.dev()).ok();
    // A rename cannot replace a mount point, so a mount point is refused before the work.
    if device(to).is_some_and(|own| Some(own) != device(parent)) {
        return Err(BackupError::Mounted { to: to.into() });
    }
    tempfile::Builder::new()
        .prefix(PARTIAL)
        // The folder gets the mode of any new folder, because a web server may have to read the
        // files inside.
        .permissions(fs::Permissions::from_mode(0o777))
        .tempdir_in(parent)
        .map_err(|source| BackupError::Io {
            path: parent.into(),
            source,
        })
}

/// Warns of folders with unfinished work beside `to`. Removes none of them, because another command
/// may be at work there.
pub(crate) fn tell_left(to: &Path) {
    let items = fs::read_dir(parent_of(to)).into_iter().flatten().flatten();
    for item in items {
        if item.file_name().to_string_lossy().starts_with(PARTIAL) {
            let path = item.path();
            let path = path.display();
            warn!(%path, "a folder with unfinished work is there; unless a command is running, it can be removed");
        }
    }
}

fn copy_commits(log: &dyn EntryLog, copy: &dyn WritableLog) -> Result<(), BackupError> {
    let end = log.head().number;
    for number in (1..=end.0).map(CommitNumber) {
        // Commits are copied one at a time, because a commit may be as large as a request.
        let commit = log.commits(number, 1).map_err(BackupError::Read)?.pop();
        let commit = commit.ok_or(BackupError::Different { commit: number })?;
        let chain = copy.append(&commit).map_err(BackupError::Write)?;
        if log.chain(number).map_err(BackupError::Read)? != Some(chain) {
            return Err(BackupError::Different { commit: number });
        }
    }
    Ok(())
}
