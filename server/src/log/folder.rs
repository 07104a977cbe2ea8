//! The data folder of a log: its lock, its files and their names.
//!
//! Shell: the file system. Nothing here knows sled; [`opening`](super::opening) decides when it may
//! touch its files.
//!
//! ```text
//! <data>/lock          held while open (flock); the process id, for people
//! <data>/witness       what must be in the log at least
//! <data>/clean         exists only after a clean stop; says what sled's folder was like then
//! <data>/sled/         the log
//! <data>/ids/          where the entry with an id is; made from the log
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

/// Up to so many bytes of sled's files, every one is looked at before sled may work in place.
const LOOKED_AT_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 256 << 20 };
/// The growth of sled's file after which it takes note, at the stop, of where everything is.
const GROWTH_MAX: u64 = if cfg!(test) { 1 << 20 } else { 128 << 20 };
/// The bytes looked at together, and how often in a file of a large log.
const LOOK_BYTES: usize = 16 * 1024;
const LOOKS_MAX: u64 = 4_096;

/// The name of the socket at which a server listens for those who look after its log.
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
        /// The data folder.
        folder: PathBuf,
        /// The process, if it said so.
        holder: String,
    },
    /// The folder or a file in it cannot be used.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// What is there is not what was there at the last commit.
    #[error("the log in {folder} is damaged: {what}")]
    Damaged {
        /// The data folder.
        folder: PathBuf,
        /// What is missing or wrong.
        what: String,
    },
    /// A newer version of this program wrote it.
    #[error(
        "the log in {folder} has storage version {version}, this program knows {STORAGE_VERSION}"
    )]
    Newer {
        /// The data folder.
        folder: PathBuf,
        /// Its storage version.
        version: u32,
    },
    /// The last stop was unclean, and there is no room for the copy that is checked then.
    #[error("{folder} needs {needed} bytes of free space to check the log, and has {free}")]
    NoRoom {
        /// The data folder.
        folder: PathBuf,
        /// The size of the log.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// There is no log in the folder, and something else is.
    #[error(
        "{folder} holds no log, but {found:?}: check --data, or give a folder that is empty or does not exist yet"
    )]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// One thing in it.
        found: String,
    },
    /// There is no log in the folder.
    #[error("there is no log in {folder}")]
    Absent {
        /// The data folder.
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

/// Notes in a new folder that its log is restored: whoever serves it begins an epoch.
///
/// # Errors
///
/// Returns why the note cannot be written.
pub fn mark_restored(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    File::create(folder.join("restored"))?.sync_all()?;
    sync_folder(folder)
}

/// Sees to it that nobody else looks into a data folder, but into `www`.
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
    /// Whether the log is restored and was not served since.
    pub fn is_restored(&self) -> bool {
        self.path("restored").exists()
    }

    /// Notes that the epoch of a restored log has begun.
    ///
    /// # Errors
    ///
    /// Returns why the note cannot be removed.
    pub fn epoch_has_begun(&self) -> Result<(), OpenError> {
        self.remove_file("restored")
    }

    /// Returns where a server listens for those who look after its log.
    pub fn control_socket(&self) -> PathBuf {
        self.path(CONTROL_SOCKET)
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
            .truncate(false)
            .open(&path);
        let lock = lock.map_err(failed("write to"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: folder.into(),
                lock,
                bytes_before: fs::metadata(folder.join("sled/db")).map_or(0, |file| file.len()),
            }),
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

    /// For people who wonder what holds the folder. Only written once the opening succeeded, so
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

    /// Whether there is anything that a log may be in.
    pub(super) fn has_log(&self) -> bool {
        let names = ["sled", "sled.before", "clean"];
        names.iter().any(|name| self.path(name).exists())
    }

    pub(super) fn file_bytes(&self) -> Result<u64, OpenError> {
        let file = self.path("sled").join("db");
        fs::metadata(file)
            .map(|file| file.len())
            .map_err(self.io("measure", "sled/db"))
    }

    /// What the mark of a clean stop says: all that must be so for sled to work in place. sled's
    /// recovery overwrites what it takes for torn, so its files are looked at first: every byte of a small
    /// log, and of a large one, which could not be read in the time of a start, when each file was
    /// written, how long it is, and some of its bytes.
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

    /// Whether the last stop was clean and sled's files are as they were then, as far as
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

    /// A snapshot that sled was interrupted in writing stops every later opening, and is of no use.
    pub(super) fn remove_leftovers(&self, name: &str) -> Result<(), OpenError> {
        let folder = self.path(name);
        for item in fs::read_dir(&folder).map_err(self.io("read", name))? {
            let item = item.map_err(self.io("read", name))?;
            let file = item.file_name();
            let file = file.to_string_lossy();
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

    /// Whether so much was written since the folder was taken that reading it again takes long.
    pub(super) fn has_grown(&self) -> Result<bool, OpenError> {
        Ok(self.file_bytes()? > self.bytes_before + GROWTH_MAX)
    }

    /// sled's threads let go of the file some time after the last handle is dropped.
    pub(super) fn wait_for_release(&self) -> Result<(), OpenError> {
        let deadline = Instant::now() + RELEASE_WAIT;
        for name in ["sled", "sled.opening", "sled.before"] {
            let path = self.path(name).join("db");
            let Ok(file) = File::open(&path) else {
                continue;
            };
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

/// Adds the files of a folder to a checksum, in the order of their names; of a large folder, what can be
/// read of it in little time.
fn look_at(folder: &Path, large: bool, hasher: &mut crc32fast::Hasher) -> io::Result<()> {
    let mut paths = vec![];
    for item in fs::read_dir(folder)? {
        paths.push(item?.path());
    }
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
            let written = file.metadata()?.modified()?;
            let since = written.duration_since(SystemTime::UNIX_EPOCH);
            hasher.update(&since.unwrap_or_default().as_nanos().to_be_bytes());
            stride = (length / LOOKS_MAX).max(look);
        }
        let next = |at: &u64| Some(at + stride).filter(|next| *next < length);
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
