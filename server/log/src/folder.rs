//! The data folder of a log: its lock, its files and their names.
//!
//! Shell: the file system. Nothing here knows sled; [`opening`](super::opening) decides when it may
//! touch its files.
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

use super::{
    LogError,
    barrier::sync_folder,
    durable::{self, create_folder, create_private_folder, parent_of, sync_if_ours},
    held::{HeldFolder, Identity, visible_path},
    moment::MomentNote,
    record::STORAGE_VERSION,
};

/// Name of the socket at which a server takes upkeep tasks.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Why a log cannot be opened.
///
/// Nothing in its folder was changed, unless sled could be opened and what it holds is refused.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the folder {folder} is in use by another process{holder}")]
    Locked {
        /// Folder that another process has locked: of the data, or of the documents.
        folder: PathBuf,
        /// Process in parentheses; empty if the lock file names none.
        holder: String,
    },
    /// The folder or a file in it cannot be used.
    #[error("cannot {action} {path}")]
    Io {
        /// Attempted action, such as `copy to`.
        action: &'static str,
        /// File or folder of the action.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The files do not hold the log as it was at its last commit.
    #[error("the log in {folder} is damaged: {what}")]
    Damaged {
        /// Data folder of the damaged log.
        folder: PathBuf,
        /// The missing or wrong part.
        what: String,
    },
    /// A newer version of this program wrote it.
    #[error(
        "the log in {folder} has storage version {version}, this program knows {STORAGE_VERSION}"
    )]
    Newer {
        /// Data folder of the newer log.
        folder: PathBuf,
        /// Storage version found in the log.
        version: u32,
    },
    /// An older version of this program wrote it, of before its first release.
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
    /// There is no log in the folder, and something else is.
    #[error(
        "{folder} holds no log, but {found:?}: check --data, or give a folder that is empty or does not exist yet"
    )]
    Foreign {
        /// Folder that was to be opened.
        folder: PathBuf,
        /// Name of one unexpected item in it.
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

/// The data folder of a log, locked.
#[derive(Debug)]
pub struct DataFolder {
    /// Path through the handle, also valid after a move.
    pub(super) path: PathBuf,
    held: HeldFolder,
    lock: Mutex<File>,
}

/// Marks the log in a new folder as restored: the first server of it begins an epoch.
///
/// # Errors
///
/// Returns why the note cannot be written.
#[expect(clippy::disallowed_methods, reason = "`sync_folder` follows")]
pub fn mark_restored(folder: &Path) -> io::Result<()> {
    create_folder(folder)?;
    regular::create(folder.join("restored"))?.sync_all()?;
    sync_folder(folder)
}

/// Makes the private folders of a data folder, durably. Only their owner may read them; `www` is not among them.
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

    /// Removes the mark of a restored log, once its epoch has begun.
    ///
    /// # Errors
    ///
    /// Returns why the note cannot be removed.
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

    /// Returns whether another process holds a folder, with or without its lock file.
    pub(super) fn is_locked(folder: &Path) -> bool {
        HeldFolder::open(folder).is_ok_and(|held| {
            let locked = held.handle().try_lock();
            matches!(locked, Err(TryLockError::WouldBlock))
        })
    }

    /// Returns the folder itself.
    pub fn held(&self) -> &HeldFolder {
        &self.held
    }

    /// Returns the path by which people find a file of the folder.
    pub(super) fn name_of(&self, name: &str) -> PathBuf {
        self.held.name().join(name)
    }

    /// Checks that the folder's name leads to it, and that nobody else has locked it. A lock file that was removed is made
    /// again.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Displaced`] if the next opening would find another folder, or another process has opened it.
    pub(super) fn check(&self) -> Result<(), LogError> {
        if !self.held.has_its_name() {
            let what = format!("{} does not lead to it", self.held.name().display());
            return Err(LogError::Displaced { what });
        }
        let path = self.path("lock");
        let mut lock = self.lock.lock();
        let is_there = lock
            .metadata()
            .is_ok_and(|lock| Identity::of(&lock).is_at(&path));
        if is_there {
            return Ok(());
        }
        let name = self.name_of("lock");
        match take_lock(&path) {
            Ok(taken) => {
                warn!(path = %name.display(), "the lock file was removed or replaced, and is made again");
                *lock = taken;
                drop(lock);
                // For people only.
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

    /// Takes the folder, creating it if need be.
    pub(super) fn lock(folder: &Path) -> Result<Self, OpenError> {
        make(folder).map_err(failed("create", folder))?;
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
        // Its file may be removed; the folder itself cannot be, while it is open.
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

    /// Writes the process id into the lock file, for people. Only done once the opening has succeeded, so
    /// that a refusal leaves every file as it was.
    pub(super) fn write_process_id(&self) -> Result<(), OpenError> {
        let mut file = self.lock.lock();
        file.set_len(0)
            .and_then(|()| writeln!(file, "process {}", std::process::id()))
            .map_err(self.io("write", "lock"))
    }

    /// Returns the refusal that an error of the log stands for.
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
            // It says already that the log is damaged.
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
        // Views may still have the handle.
        let _unlocked = self.held.handle().unlock();
    }
}

/// Locks the lock file, which is made if need be.
#[expect(
    clippy::disallowed_methods,
    reason = "the lock file is written anew at each start"
)]
fn take_lock(path: &Path) -> Result<File, TryLockError> {
    let mut options = OpenOptions::new();
    // The process id in it must survive an attempt that is refused.
    let options = options.create(true).read(true).write(true).truncate(false);
    let lock = regular::open_as(path, options);
    let lock = lock.map_err(TryLockError::Error)?;
    lock.try_lock()?;
    Ok(lock)
}

/// Makes a data folder, durably, unless there is one.
fn make(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        // A start that was killed may have made it.
        return sync_if_ours(parent_of(folder));
    }
    create_folder(folder)
}

/// Copies a folder with its subfolders; `fs::copy` shares the blocks where the file system can.
#[expect(
    clippy::disallowed_methods,
    reason = "the copy is synced as a whole where it is used"
)]
pub(super) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        let target = to.join(item.file_name());
        if item.file_type()?.is_dir() {
            copy_folder(&item.path(), &target)?;
        } else if fs::metadata(item.path())?.is_file() {
            fs::copy(item.path(), target)?;
        }
    }
    Ok(())
}
