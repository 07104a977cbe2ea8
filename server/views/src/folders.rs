//! Folders in which views keep their files.
//!
//! Shell: the lock that all writers of these files share, and how the files become durable.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use simplefeed_log::{
    barrier::sync_files,
    durable::create_folders,
    held::{HeldFolder, visible_path},
    seen,
    sled::folder::OpenError,
};
use simplefeed_process::regular;
use tracing::info;

/// Folders of a server. Clones share two locks: the lock on the tree for web servers, and the lock
/// that [`writing`](Self::writing) takes.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Tree that any web server may serve.
    pub www: PathBuf,
    /// Tree of the closed feeds, which no web server may serve.
    pub closed: PathBuf,
    /// Facts about archived documents, for `recover`.
    pub sidecars: PathBuf,
    views: PathBuf,
    data: PathBuf,
    /// Whether the data folder is synced as a whole later.
    is_unhurried: bool,
    /// Keeps the paths above valid.
    _held: Option<HeldFolder>,
    /// Keeps other servers out of the tree for web servers.
    lock: Arc<Mutex<Option<File>>>,
    writing: Arc<Mutex<()>>,
}

impl Folders {
    /// Returns the folders below the data folder `data`, with the tree for web servers at `www` if
    /// given, else at `<data>/www`.
    pub fn new(data: &Path, www: Option<&Path>) -> Self {
        Self {
            www: www.map_or_else(|| data.join("www"), Path::to_path_buf),
            closed: data.join("closed"),
            sidecars: data.join("sidecars"),
            views: data.join("views"),
            data: data.into(),
            is_unhurried: false,
            _held: None,
            lock: Arc::default(),
            writing: Arc::default(),
        }
    }

    /// Returns the folders as [`new`](Self::new) does, below the handle of an open data folder.
    pub fn held(data: &HeldFolder, www: Option<&Path>) -> Self {
        Self {
            _held: Some(data.clone()),
            ..Self::new(data.path(), www)
        }
    }

    /// Returns folders whose files are not made durable one by one, because the data folder is
    /// synced as a whole later.
    #[must_use]
    pub fn unhurried(self) -> Self {
        Self {
            is_unhurried: true,
            ..self
        }
    }

    /// Returns the folders with the tree for web servers locked, if there is one. The tree may be
    /// outside the data folder, where two servers could overwrite each other's documents. Some
    /// network file systems lock no folders; the server logs that and goes on.
    ///
    /// # Errors
    ///
    /// Returns [`OpenError::Locked`] if another process holds the lock.
    pub fn locked(self) -> Result<Self, OpenError> {
        self.keep_locked()?;
        Ok(self)
    }

    /// Locks the tree for web servers, if there is one. A tree that was removed under a running
    /// server and made again is another folder, and is locked anew.
    ///
    /// # Errors
    ///
    /// As [`locked`](Self::locked).
    pub(super) fn keep_locked(&self) -> Result<(), OpenError> {
        let mut lock = self.lock.lock();
        // Device and inode tell a new folder under the old name from the locked one.
        let is_held = |held: &File| {
            let found = fs::metadata(&self.www).ok();
            let held = held.metadata().ok();
            found
                .zip(held)
                .is_some_and(|(found, held)| (found.dev(), found.ino()) == (held.dev(), held.ino()))
        };
        if lock.as_ref().is_some_and(is_held) {
            return Ok(());
        }
        // A later write into the tree reports the error.
        let Ok(tree) = regular::open_folder(&self.www) else {
            return Ok(());
        };
        match tree.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked {
                    folder: visible_path(&self.www),
                    holder: String::new(),
                });
            }
            Err(TryLockError::Error(error)) => {
                // Some network file systems lock no folders: a server there runs without the lock.
                let folder = visible_path(&self.www);
                info!(%error, folder = %folder.display(), "the folder cannot be locked; make sure that no other server uses it");
            }
        }
        *lock = Some(tree);
        Ok(())
    }

    /// Creates folders and their parents, durably unless the folders are
    /// [`unhurried`](Self::unhurried).
    ///
    /// # Errors
    ///
    /// Names the first folder that cannot be created or synced.
    #[expect(
        clippy::disallowed_methods,
        reason = "the data folder is synced as a whole"
    )]
    pub(super) fn create<'p>(&self, folders: &[&'p Path]) -> Result<(), (&'p Path, io::Error)> {
        if !self.is_unhurried {
            return create_folders(folders);
        }
        // Unhurried folders are those of a copy that `backup` or `recover` makes. The copy is
        // synced as a whole before the copy gets the final name, so nobody uses folders that a
        // power cut may remove.
        let mut each = folders.iter();
        each.try_for_each(|folder| fs::create_dir_all(folder).map_err(|error| (*folder, error)))
    }

    /// Makes files, or the names in folders, durable as [`sync_files`] does, unless the folders are
    /// [`unhurried`](Self::unhurried).
    ///
    /// # Errors
    ///
    /// Returns the error of the first failed sync.
    pub(super) fn sync(&self, files: &[&File], folders: &[&File]) -> io::Result<()> {
        if self.is_unhurried {
            // As in `create`: the sync of the whole folder follows.
            return Ok(());
        }
        sync_files(files, folders)
    }

    /// Returns the data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the folder of a view's own records, such as its cursor.
    pub fn of_view(&self, name: &str) -> PathBuf {
        self.views.join(name)
    }

    /// Returns the path of the log's note of the last commit that readers have seen.
    pub fn seen(&self) -> PathBuf {
        self.views.join(seen::NAME)
    }

    /// Returns the folders `www` and `closed`, which have documents in subfolders such as `feeds`
    /// and `sup`, and the folder `views`, which has a subfolder for each view.
    pub fn trees(&self) -> [&Path; 3] {
        [&self.www, &self.closed, &self.views]
    }

    /// Waits until nobody else writes files of views, and keeps others from writing until the guard
    /// is dropped. `rebuild` may run beside the followers.
    pub fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }
}
