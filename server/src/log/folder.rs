//! The data folder of a log: its lock, its files and their names.
//!
//! Shell: the file system. Nothing here knows sled; [`opening`](super::opening) decides when it may
//! touch its files.
//!
//! ```text
//! <data>/lock          held while open (flock); the process id, for people
//! <data>/witness       the last synced commit, its chain hash, the length of sled's file
//! <data>/clean         exists only after a clean stop; checksum of sled's folder
//! <data>/sled/         the log
//! <data>/ids/          the position of each id; made from the log
//! <data>/sled.opening/ a copy being checked
//! <data>/sled.before/  the original after an unclean stop, until the next clean one
//! <data>/restored      exists until a restored log is served for the first time
//! ```

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use simplefeed_core::{feed::CommitNumber, history::ChainHash};

use super::{
    barrier::sync_folder,
    record::STORAGE_VERSION,
    space::folder_bytes,
    witness::{Testimony, Witness},
};

/// How long to wait for sled's threads to let go of a database just closed.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// Most bytes of sled's files of which every one is read before sled may work in place.
const LOOKED_AT_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 256 << 20 };
/// Growth of sled's file above which a stop opens sled again, so that it notes where its pages are.
const GROWTH_MAX: u64 = if cfg!(test) { 1 << 20 } else { 128 << 20 };
/// Bytes of one sample, and most samples of a file of a large log.
const LOOK_BYTES: usize = 16 * 1024;
const LOOKS_MAX: u64 = 4_096;

/// Name of the socket at which a server takes upkeep tasks.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Why a log cannot be opened.
///
/// Nothing in its folder was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("the data folder {folder} is in use by another process{holder}")]
    Locked {
        /// Data folder that another process has locked.
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
    /// The last stop was unclean, and there is no room for the copy that is checked then.
    #[error("{folder} needs {needed} bytes of free space to check the log, and has {free}")]
    NoRoom {
        /// Data folder whose disk is too full.
        folder: PathBuf,
        /// Bytes of the log, which its copy needs.
        needed: u64,
        /// Bytes that are free now.
        free: u64,
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

/// The data folder of a log, locked.
#[derive(Debug)]
pub struct DataFolder {
    pub(super) path: PathBuf,
    lock: File,
    /// The length of sled's file when the folder was taken.
    bytes_before: u64,
}

/// Marks the log in a new folder as restored: the first server of it begins an epoch.
///
/// # Errors
///
/// Returns why the note cannot be written.
pub fn mark_restored(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    File::create(folder.join("restored"))?.sync_all()?;
    sync_folder(folder)
}

/// Makes the private folders of a data folder, which only their owner may read; `www` is not among them.
///
/// # Errors
///
/// Returns why its folders cannot be made or changed.
pub fn keep_to_ourselves(folder: &Path) -> io::Result<()> {
    for name in ["sled", "ids", "closed", "sidecars", "views"] {
        let private = folder.join(name);
        fs::create_dir_all(&private)?;
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
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

    /// Returns the path of the watermark.
    pub(super) fn watermark(&self) -> PathBuf {
        self.path("watermark")
    }

    /// Takes the folder, creating it if need be.
    pub(super) fn lock(folder: &Path) -> Result<Self, OpenError> {
        let failed = |action| {
            let path = folder.to_path_buf();
            move |source| OpenError::Io {
                action,
                path,
                source,
            }
        };
        fs::create_dir_all(folder).map_err(failed("create"))?;
        let path = folder.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            // The process id in it must survive an attempt that is refused.
            .truncate(false)
            .open(&path);
        let lock = lock.map_err(failed("write to"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: folder.into(),
                lock,
                // Only `has_grown` compares with it, so a file that is not there counts as empty.
                bytes_before: fs::metadata(folder.join("sled/db")).map_or(0, |file| file.len()),
            }),
            // The holder writes its process id into the lock file.
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(&path).unwrap_or_default();
                let holder = holder.trim();
                let holder = if holder.is_empty() {
                    String::new()
                } else {
                    format!(" ({holder})")
                };
                Err(OpenError::Locked {
                    folder: folder.into(),
                    holder,
                })
            }
            Err(TryLockError::Error(source)) => Err(failed("lock")(source)),
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
        let path = self.path(name);
        move |source| OpenError::Io {
            action,
            path,
            source,
        }
    }

    pub(super) fn damaged(&self, what: impl Into<String>) -> OpenError {
        OpenError::Damaged {
            folder: self.path.clone(),
            what: what.into(),
        }
    }

    /// Writes the process id into the lock file, for people. Only done once the opening has succeeded, so
    /// that a refusal leaves every file as it was.
    pub(super) fn write_process_id(&self) -> Result<(), OpenError> {
        let mut file = &self.lock;
        file.set_len(0)
            .and_then(|()| writeln!(file, "process {}", std::process::id()))
            .map_err(self.io("write", "lock"))
    }

    pub(super) fn witness(&self) -> Result<(Witness, Testimony), OpenError> {
        let path = self.path("witness");
        if !path.exists() {
            // Without the witness, a log that sled has emptied would pass for a new one.
            if self.has_log() {
                return Err(self.damaged("its witness is missing"));
            }
            let witness = Witness::create(&path).map_err(self.io("create", "witness"))?;
            sync_folder(&self.path).map_err(self.io("sync", ""))?;
            let commit = CommitNumber(0);
            return Ok((
                witness,
                Testimony {
                    commit,
                    chain: ChainHash::START,
                    file_bytes: 0,
                },
            ));
        }
        let (witness, testimony) = Witness::open(&path).map_err(self.io("read", "witness"))?;
        match testimony {
            Some(testimony) => Ok((witness, testimony)),
            // The very first start was cut off before its witness was on the disk.
            None if !self.has_log() => {
                fs::remove_file(&path).map_err(self.io("remove", "witness"))?;
                self.witness()
            }
            None => Err(self.damaged("its witness is unreadable")),
        }
    }

    /// Returns whether the folder has anything that a log may be in.
    pub(super) fn has_log(&self) -> bool {
        // Not the witness: a first start that broke off may have left one without a log.
        let names = ["sled", "sled.before", "clean"];
        names.iter().any(|name| self.path(name).exists())
    }

    pub(super) fn file_bytes(&self) -> Result<u64, OpenError> {
        let file = self.path("sled").join("db");
        fs::metadata(file)
            .map(|file| file.len())
            .map_err(self.io("measure", "sled/db"))
    }

    /// Returns the text of the clean mark, which must still be true for sled to work in place. sled's
    /// recovery overwrites pages that it takes for torn, so its files are compared before: every byte of a
    /// small log; of a large one, which cannot be read in the time of a start, the time of the last write,
    /// the length and some bytes of each file.
    pub(super) fn clean_mark(&self) -> io::Result<String> {
        let folder = self.path("sled");
        let bytes = folder_bytes(&folder)?;
        let mut hasher = crc32fast::Hasher::new();
        look_at(&folder, bytes > LOOKED_AT_BYTES_MAX, &mut hasher)?;
        let checksum = hasher.finalize();
        Ok(format!(
            "storage {STORAGE_VERSION}, sled {bytes} bytes, CRC-32 {checksum:08x}\n"
        ))
    }

    pub(super) fn write_clean_mark(&self) -> Result<(), OpenError> {
        let mark = self.clean_mark().map_err(self.io("read", "sled"))?;
        let mut file = File::create(self.path("clean")).map_err(self.io("write", "clean"))?;
        file.write_all(mark.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(self.io("write", "clean"))
    }

    /// Returns whether the last stop was clean and sled's files are as they were then, as far as
    /// [`clean_mark`](Self::clean_mark) looks. If not, sled gets a copy, and a refusal touches nothing.
    pub(super) fn stopped_cleanly(&self) -> bool {
        let Ok(mark) = fs::read_to_string(self.path("clean")) else {
            return false;
        };
        self.clean_mark().is_ok_and(|expected| mark == expected)
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), OpenError> {
        fs::rename(self.path(from), self.path(to))
            .and_then(|()| sync_folder(&self.path))
            .map_err(self.io("move to", to))
    }

    /// Removes snapshots that sled did not finish. They stop every later opening, and are of no use.
    pub(super) fn remove_leftovers(&self, name: &str) -> Result<(), OpenError> {
        let folder = self.path(name);
        for item in fs::read_dir(&folder).map_err(self.io("read", name))? {
            let item = item.map_err(self.io("read", name))?;
            let file = item.file_name();
            let file = file.to_string_lossy();
            // sled's own clean-up looks for another name (sled #1527).
            if file.starts_with("snap.") && file.ends_with(".generating") {
                fs::remove_file(item.path()).map_err(self.io("remove", name))?;
            }
        }
        Ok(())
    }

    pub(super) fn remove_file(&self, name: &str) -> Result<(), OpenError> {
        fs::remove_file(self.path(name))
            .and_then(|()| sync_folder(&self.path))
            .map_err(self.io("remove", name))
    }

    pub(super) fn remove_folder(&self, name: &str) -> Result<(), OpenError> {
        match fs::remove_dir_all(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.io("remove", name)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether sled's file has grown so much since the folder was locked that reading it again
    /// takes long.
    pub(super) fn has_grown(&self) -> Result<bool, OpenError> {
        Ok(self.file_bytes()? > self.bytes_before + GROWTH_MAX)
    }

    /// Waits until sled's threads have released the files, some time after the last handle is dropped.
    pub(super) fn wait_for_release(&self) -> Result<(), OpenError> {
        let deadline = Instant::now() + RELEASE_WAIT;
        for name in ["sled", "sled.opening", "sled.before"] {
            let path = self.path(name).join("db");
            let Ok(file) = File::open(&path) else {
                continue;
            };
            // sled locks its file while it is open. Our lock ends when `file` is dropped.
            while file.try_lock().is_err() {
                if Instant::now() > deadline {
                    return Err(self.damaged(format!("{name} is still in use")));
                }
                std::thread::park_timeout(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}

/// Adds the files of a folder to a checksum, in the order of their names; of a large folder, only times,
/// lengths and samples.
fn look_at(folder: &Path, large: bool, hasher: &mut crc32fast::Hasher) -> io::Result<()> {
    let mut paths = vec![];
    for item in fs::read_dir(folder)? {
        paths.push(item?.path());
    }
    // `read_dir` has no order, and the checksum must be the same each time.
    paths.sort();
    let mut buffer = vec![0; LOOK_BYTES];
    for path in paths {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        if path.is_dir() {
            look_at(&path, large, hasher)?;
            continue;
        }
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        hasher.update(&length.to_be_bytes());
        let look = u64::try_from(LOOK_BYTES).unwrap_or(u64::MAX);
        let mut stride = look;
        if large {
            // The time of the last write covers the bytes between the samples.
            let written = file.metadata()?.modified()?;
            let since = written.duration_since(SystemTime::UNIX_EPOCH);
            hasher.update(&since.unwrap_or_default().as_nanos().to_be_bytes());
            stride = (length / LOOKS_MAX).max(look);
        }
        let next = |at: &u64| Some(at + stride).filter(|next| *next < length);
        // The end of the file is always a sample, so that its last bytes are covered.
        let end = length.saturating_sub(look);
        for at in std::iter::successors(Some(0), next).chain([end]) {
            let read = file.read_at(&mut buffer, at)?;
            hasher.update(buffer.get(..read).unwrap_or_default());
        }
    }
    Ok(())
}

/// Copies a folder with its subfolders; `fs::copy` shares the blocks where the file system can.
pub(super) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        let target = to.join(item.file_name());
        if item.file_type()?.is_dir() {
            copy_folder(&item.path(), &target)?;
        } else {
            fs::copy(item.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sled works in place only on what it has left, however large.
    #[test]
    fn whatever_was_written_to_is_not_clean() {
        for kib in [40, 1_000, 3_000] {
            let folder = tempfile::tempdir().unwrap();
            let data = DataFolder::lock(folder.path()).unwrap();
            let (db, conf) = (data.path("sled").join("db"), data.path("sled").join("conf"));
            fs::create_dir(data.path("sled")).unwrap();
            fs::write(&db, vec![7; kib * 1024]).unwrap();
            fs::write(&conf, "conf").unwrap();
            data.write_clean_mark().unwrap();
            assert!(data.stopped_cleanly());
            let write = |bytes: &[u8], at: u64| {
                let file = OpenOptions::new().write(true).open(&db).unwrap();
                file.write_all_at(bytes, at).unwrap();
                file.set_modified(SystemTime::now() + Duration::from_secs(1))
                    .unwrap();
            };
            let middle = u64::try_from(kib * 512 + 700).unwrap();
            for at in [0, middle, u64::try_from(kib * 1024 - 1).unwrap()] {
                data.write_clean_mark().unwrap();
                write(&[8], at);
                assert!(!data.stopped_cleanly(), "{kib} KiB at {at}");
            }
            data.write_clean_mark().unwrap();
            write(&[7], u64::try_from(kib * 1024).unwrap());
            assert!(!data.stopped_cleanly(), "{kib} KiB are longer");
            data.write_clean_mark().unwrap();
            fs::remove_file(&conf).unwrap();
            assert!(!data.stopped_cleanly(), "a file is gone");
        }
    }

    /// Goal: rot that no time of writing tells of is found where it can be.
    #[test]
    fn small_logs_are_looked_at_byte_for_byte() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::lock(folder.path()).unwrap();
        fs::create_dir(data.path("sled")).unwrap();
        let db = data.path("sled").join("db");
        fs::write(&db, vec![7; 500_000]).unwrap();
        let written = fs::metadata(&db).unwrap().modified().unwrap();
        data.write_clean_mark().unwrap();
        for at in (0..500_000).step_by(77_777) {
            let file = OpenOptions::new().write(true).open(&db).unwrap();
            file.write_all_at(&[8], at).unwrap();
            file.set_modified(written).unwrap();
            assert!(!data.stopped_cleanly(), "at {at}");
            file.write_all_at(&[7], at).unwrap();
            assert!(data.stopped_cleanly());
        }
    }
}
