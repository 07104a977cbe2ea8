//! The data folder of a log: the lock, the files and their names.
//!
//! Shell: the file system. This module does not know sled; [`opening`](super::opening) decides when
//! sled may touch the files.
//!
//! ```text
//! <data>               held while open (flock), as <data>/lock is
//! <data>/lock          the process id, for people
//! <data>/journal/      the newest commits
//! <data>/sled/         all commits before
//! <data>/witness       the last commit in sled, its chain hash, what else must be there
//! <data>/views/seen    the last commit that readers have seen
//! <data>/ids/          the position of each id; made from the log
//! <data>/clock         the last moment that a server knew
//! <data>/restored      exists until a restored log is served for the first time
//! ```

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use simplefeed_process::{
    lack::{copy_of, lack_in},
    regular,
};
use tracing::{info, warn};

use super::record::STORAGE_VERSION;
use crate::moment::MomentNote;
use crate::{
    LogError,
    barrier::sync_folder,
    durable::{self, create_folder, create_private_folder, parent_of, sync_if_ours},
    held::{FileIdentity, HeldFolder, visible_path},
};

/// Name of the socket at which a server takes upkeep tasks.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Why a log cannot be opened.
///
/// The files of an existing log are unchanged, unless the opening of sled had begun.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the folder open.
    #[error("the folder {folder} is in use by another process{holder}")]
    Locked {
        /// Folder that another process has locked: of the data, or of the documents.
        folder: PathBuf,
        /// Process in parentheses; empty if the lock file names none.
        holder: String,
    },
    /// The folder or a file in the folder cannot be used.
    #[error("cannot {action} {path}")]
    Io {
        /// Attempted action, such as `copy to`.
        action: &'static str,
        /// File or folder of the action.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The files do not hold all commits of the log.
    #[error("the log in {folder} is damaged: {what}")]
    Damaged {
        /// Data folder of the damaged log.
        folder: PathBuf,
        /// The missing or wrong part.
        what: String,
    },
    /// A newer version of this program wrote the log.
    #[error(
        "the log in {folder} has storage version {version}, this program knows {STORAGE_VERSION}"
    )]
    Newer {
        /// Data folder of the newer log.
        folder: PathBuf,
        /// Storage version found in the log.
        version: u32,
    },
    /// An older version of this program, from before the first release, wrote the log.
    #[error(
        "the log in {folder} has storage version {version}, this program knows {STORAGE_VERSION}: export it with the \
         program that wrote it, and import that into a new log"
    )]
    Older {
        /// Data folder of the older log.
        folder: PathBuf,
        /// Storage version found in the log; 1 stands for 2, too.
        version: u32,
    },
    /// The folder has no log, but other files.
    #[error(
        "{folder} holds no log, but {found:?}: check --data, or give a folder that is empty or does not exist yet"
    )]
    Foreign {
        /// Folder that was to be opened.
        folder: PathBuf,
        /// Name of one unexpected item in the folder.
        found: String,
    },
    /// There is no log in the folder.
    #[error("there is no log in {folder}")]
    Absent {
        /// Folder that was to hold a log.
        folder: PathBuf,
    },
}

impl OpenError {
    /// Returns that a log has a storage version that this program does not know.
    pub(super) fn of_version(folder: &Path, version: u32) -> Self {
        let folder = folder.into();
        if version > STORAGE_VERSION {
            Self::Newer { folder, version }
        } else {
            Self::Older { folder, version }
        }
    }
}

/// The data folder of a log, held and locked.
#[derive(Debug)]
pub struct DataFolder {
    /// Path through the handle, also valid after a move.
    pub(super) path: PathBuf,
    held: HeldFolder,
    lock: Mutex<File>,
}

/// Marks the log in a new folder as restored: the first server of that log begins an epoch.
///
/// # Errors
///
/// Returns why the mark cannot be written.
#[expect(clippy::disallowed_methods, reason = "`sync_folder` follows")]
pub fn mark_restored(folder: &Path) -> io::Result<()> {
    create_folder(folder)?;
    regular::create(folder.join("restored"))?.sync_all()?;
    sync_folder(folder)
}

/// Makes the private folders of a data folder, durably. Only the owner may read them; `www` is not
/// among them.
///
/// # Errors
///
/// Returns which folder cannot be made or changed, and why.
pub fn keep_to_ourselves(folder: &Path) -> Result<(), OpenError> {
    for name in ["journal", "sled", "ids", "closed", "sidecars", "views"] {
        let folder = folder.join(name);
        create_private_folder(&folder).map_err(failed("create", &folder))?;
    }
    Ok(())
}

/// Returns the failure to do something to a file or folder, whose path may go through a handle.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = visible_path(path);
    move |source| OpenError::Io {
        action,
        path,
        source,
    }
}

impl DataFolder {
    /// Returns whether the log was restored and has not been served since.
    pub fn is_restored(&self) -> bool {
        self.path("restored").exists()
    }

    /// Removes the mark of a restored log, once the epoch has begun.
    ///
    /// # Errors
    ///
    /// Returns why the mark cannot be removed.
    pub fn epoch_has_begun(&self) -> Result<(), OpenError> {
        self.remove_file("restored")
    }

    /// Returns the path of the socket at which a server takes upkeep tasks.
    pub fn control_socket(&self) -> PathBuf {
        self.path(CONTROL_SOCKET)
    }

    /// Returns the note of the last moment that a server knew.
    pub fn moment(&self) -> MomentNote {
        MomentNote::new(self.path("clock"))
    }

    /// Returns the path of the watermark.
    pub(super) fn watermark(&self) -> PathBuf {
        self.path("watermark")
    }

    /// Returns whether another process has locked a folder, with or without a lock file.
    pub(super) fn is_locked(folder: &Path) -> bool {
        HeldFolder::open(folder).is_ok_and(|held| {
            let locked = held.handle().try_lock();
            matches!(locked, Err(TryLockError::WouldBlock))
        })
    }

    /// Returns the open folder.
    pub fn held(&self) -> &HeldFolder {
        &self.held
    }

    /// Returns the path by which people find a file of the folder.
    pub(super) fn name_of(&self, name: &str) -> PathBuf {
        self.held.name().join(name)
    }

    /// Checks that the name still leads to the folder, and that no other process has locked the
    /// folder. A removed lock file is made again.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Displaced`] if the next opening would find another folder, or another
    /// process has locked this folder.
    pub(super) fn check(&self) -> Result<(), LogError> {
        if !self.held.has_its_name() {
            let what = format!("{} does not lead to it", self.held.name().display());
            return Err(LogError::Displaced { what });
        }
        let path = self.path("lock");
        let mut lock = self.lock.lock();
        // The lock of a removed file stops nobody: another process could lock a new file of that
        // name.
        let is_there = lock
            .metadata()
            .is_ok_and(|lock| FileIdentity::of(&lock).is_at(&path));
        if is_there {
            return Ok(());
        }
        let name = self.name_of("lock");
        match take_lock(&path) {
            Ok(taken) => {
                warn!(path = %name.display(), "the lock file was removed or replaced, and is made again");
                *lock = taken;
                drop(lock);
                // The process id is for people only, so a failure does no harm.
                let _unwritten = self.write_process_id();
                Ok(())
            }
            Err(TryLockError::WouldBlock) => {
                let what = format!("another process has locked {}", name.display());
                Err(LogError::Displaced { what })
            }
            // Without the file, the lock of the folder is enough.
            Err(TryLockError::Error(_)) => Ok(()),
        }
    }

    /// Locks the folder, and creates a missing one.
    pub(super) fn lock(folder: &Path) -> Result<Self, OpenError> {
        make_folder(folder).map_err(failed("create", folder))?;
        let held = HeldFolder::open(folder).map_err(failed("open", folder))?;
        let path = held.path().join("lock");
        let locked = || {
            // The holder writes its process id into the lock file.
            let holder = regular::read_text(&path).unwrap_or_default();
            let holder = holder.trim();
            let holder = if holder.is_empty() {
                String::new()
            } else {
                format!(" ({holder})")
            };
            OpenError::Locked {
                folder: folder.into(),
                holder,
            }
        };
        // The folder itself is locked, too: somebody may remove the lock file, while an open folder
        // stays the same folder.
        match held.handle().try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked()),
            // Some network file systems lock no folders.
            Err(TryLockError::Error(error)) => {
                info!(%error, folder = %folder.display(), "the folder cannot be locked, only the file `lock` in it");
            }
        }
        match take_lock(&path) {
            Ok(lock) => Ok(Self {
                path: held.path().into(),
                held,
                lock: Mutex::new(lock),
            }),
            Err(TryLockError::WouldBlock) => Err(locked()),
            Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn io(
        &self,
        action: &'static str,
        name: &str,
    ) -> impl FnOnce(io::Error) -> OpenError {
        let path = self.name_of(name);
        move |source| OpenError::Io {
            action,
            path,
            source,
        }
    }

    pub(super) fn damaged(&self, what: impl Into<String>) -> OpenError {
        OpenError::Damaged {
            folder: self.held.name().into(),
            what: what.into(),
        }
    }

    /// Writes the process id into the lock file, for people. The caller does so only after a
    /// successful opening, so that a refusal leaves every file unchanged.
    pub(super) fn write_process_id(&self) -> Result<(), OpenError> {
        let mut file = self.lock.lock();
        file.set_len(0)
            .and_then(|()| writeln!(file, "process {}", std::process::id()))
            .map_err(self.io("write", "lock"))
    }

    /// Returns the refusal of an opening for an error of the log.
    pub(super) fn open_error(&self, error: LogError) -> OpenError {
        match error {
            LogError::Io {
                action,
                path,
                source,
            } => OpenError::Io {
                action,
                path,
                source,
            },
            // The text of the refusal says already that the log is damaged.
            LogError::Damaged { what } => self.damaged(what),
            error => {
                // A full disk, for one, is no damage.
                if let Some(lack) = lack_in(&error) {
                    return OpenError::Io {
                        action: "use",
                        path: self.held.name().into(),
                        source: copy_of(lack),
                    };
                }
                let cause = std::error::Error::source(&error);
                self.damaged(cause.map_or_else(|| error.to_string(), ToString::to_string))
            }
        }
    }

    /// Returns the refusal of a folder that sled cannot open.
    pub(super) fn unopened(&self, name: &str, error: LogError) -> OpenError {
        match self.open_error(error) {
            OpenError::Damaged { what, .. } => {
                self.damaged(format!("{name} cannot be opened: {what}"))
            }
            error => error,
        }
    }

    pub(super) fn remove_file(&self, name: &str) -> Result<(), OpenError> {
        durable::remove_file(&self.path(name)).map_err(self.io("remove", name))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the next opening removes what comes back"
    )]
    pub(super) fn remove_folder(&self, name: &str) -> Result<(), OpenError> {
        match fs::remove_dir_all(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.io("remove", name)(error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        // Views may still have the handle, which would keep the lock.
        let _unlocked = self.held.handle().unlock();
    }
}

/// Locks the lock file, and makes a missing one.
#[expect(
    clippy::disallowed_methods,
    reason = "the lock file is written anew at each start"
)]
fn take_lock(path: &Path) -> Result<File, TryLockError> {
    let mut options = OpenOptions::new();
    // The process id in the file must survive a refused attempt.
    let options = options.create(true).read(true).write(true).truncate(false);
    let lock = regular::open_as(path, options);
    let lock = lock.map_err(TryLockError::Error)?;
    lock.try_lock()?;
    Ok(lock)
}

/// Makes a data folder, durably, unless there is one.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        // A killed start may have made the folder without a sync of the name.
        return sync_if_ours(parent_of(folder));
    }
    create_folder(folder)
}

/// Copies a folder with all subfolders; `fs::copy` shares the blocks where the file system can.
#[expect(
    clippy::disallowed_methods,
    reason = "the copy is synced as a whole where it is used"
)]
pub(crate) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        let target = to.join(item.file_name());
        if item.file_type()?.is_dir() {
            copy_folder(&item.path(), &target)?;
        // Sockets and pipes are left out: reading a pipe would wait.
        } else if fs::metadata(item.path())?.is_file() {
            fs::copy(item.path(), target)?;
        }
    }
    Ok(())
}
