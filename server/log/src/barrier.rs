//! The barrier: the sync after which written bytes survive a power cut.
//!
//! Shell: the file system. The barrier is a trait, so that tests can count syncs, leave syncs out
//! and make them fail: a test of durability that passes without the barrier would prove nothing.
//!
//! sled's own flush does not reach the disk: sled calls `sync_file_range`, which commits neither a
//! file's new length nor the drive's cache. A sync at the end of a settling would be too late. sled
//! overwrites a segment as soon as sled takes the replacement for durable, and the new header then
//! names data that a power cut takes away. So sled is made to sync for real: sled calls `fsync`
//! where the system has no `sync_file_range`, and a filter of system calls refuses
//! `sync_file_range` to our process.

#[cfg(target_os = "linux")]
use std::collections::BTreeMap;

use parking_lot::Mutex;
#[cfg(target_os = "linux")]
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use simplefeed_process::regular;
use std::{collections::BTreeSet, fs::File, io, os::unix::fs::MetadataExt as _, path::Path};

/// Maximum number of files that are synced one by one; for more, `syncfs` takes less time.
const FEW_FILES: usize = 4;

/// Steps of the log's work beside the commits, for tests that kill a server in the middle of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// The log is opened.
    Opening,
    /// A new file of the journal is begun.
    Rotating,
    /// A chapter is written to sled.
    Settling,
    /// sled is opened again.
    Reopening,
    /// The witness is written, and the file of a settled chapter becomes the spare one.
    Recycling,
    /// The step that began last is done.
    Done,
}

/// Makes the content of a file durable.
pub trait Barrier: Send + Sync {
    /// Takes note of the step that begins.
    fn begins(&self, _step: LogStep) {}

    /// Returns once everything that was written to the file before the call would survive a power
    /// cut.
    ///
    /// # Errors
    ///
    /// Returns the first write that the disk could not do. No caller may try again, because the
    /// system may count the failed pages as written by then.
    fn sync(&self, file: &File) -> io::Result<()>;
}

/// The barrier of a real disk: `fdatasync`.
#[derive(Debug)]
pub struct DiskBarrier(());

impl DiskBarrier {
    /// Returns the barrier.
    ///
    /// # Errors
    ///
    /// Returns why sled cannot be made to sync.
    pub fn new() -> io::Result<Self> {
        have_sled_sync()?;
        Ok(Self(()))
    }
}

impl Barrier for DiskBarrier {
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }
}

/// Takes `sync_file_range` away from this process, which has no other use for that call.
#[cfg(target_os = "linux")]
fn have_sled_sync() -> io::Result<()> {
    static TAKEN: Mutex<bool> = Mutex::new(false);
    let mut taken = TAKEN.lock();
    // One filter is enough: a filter stays until the process ends, and every system call passes
    // through all filters.
    if *taken {
        return Ok(());
    }
    // sled takes this error for a system without the call.
    let refused = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let rules = BTreeMap::from([(libc::SYS_sync_file_range, vec![])]);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
    let program: BpfProgram = filter
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)?;
    *taken = true;
    Ok(())
}

/// Does nothing: on other systems, sled calls `fsync` anyway.
#[cfg(not(target_os = "linux"))]
fn have_sled_sync() -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn sync_file_system(folder: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(folder)?)
}

#[cfg(not(target_os = "linux"))]
fn sync_file_system(folder: &File) -> io::Result<()> {
    folder.sync_all()
}

#[cfg(target_os = "linux")]
fn syncfs_holds(opened: &File) -> bool {
    // The numbers of ext4, XFS, Btrfs and F2FS, and of tmpfs, where there is nothing to do. On
    // other file systems, such as those in user space, `syncfs` may do nothing.
    const KNOWN: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
    let system = rustix::fs::fstatfs(opened).ok();
    let kind = system.and_then(|system| u64::try_from(system.f_type).ok());
    kind.is_some_and(|kind| KNOWN.contains(&kind)) && syncfs_reports_errors()
}

#[cfg(target_os = "linux")]
fn syncfs_reports_errors() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut parts = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    let major = parts.next().and_then(Result::ok);
    let minor = parts.next().and_then(Result::ok);
    // Older kernels return success from `syncfs` although a write has failed: before 5.8 a write of
    // a file's bytes, before 5.17 a write of names.
    major.zip(minor).is_some_and(|version| version >= (5, 17))
}

#[cfg(not(target_os = "linux"))]
fn syncfs_holds(_opened: &File) -> bool {
    false
}

/// Syncs a file, and drops the pages of the file from the system's memory, so that the next reads
/// see the disk. After a failed sync, Linux keeps the unwritten pages and counts them as written.
///
/// # Errors
///
/// Returns the first write that the disk could not do.
pub fn drop_pages(file: &File) -> io::Result<()> {
    file.sync_all()?;
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Drops the pages of the files in a folder, as [`drop_pages`] does.
///
/// # Errors
///
/// Returns the first file that cannot be opened, or the first write that the disk could not do.
pub fn drop_pages_in(folder: &Path) -> io::Result<()> {
    for item in std::fs::read_dir(folder)? {
        let item = item?;
        if item.file_type()?.is_file() {
            drop_pages(&regular::open(item.path())?)?;
        }
    }
    Ok(())
}

/// Syncs every file below a folder with its attributes, then the folders, the innermost first. The
/// times of documents are shown to readers, so attributes count.
///
/// # Errors
///
/// Returns the first file or folder that cannot be synced.
pub(crate) fn sync_tree(folder: &Path) -> io::Result<()> {
    for item in std::fs::read_dir(folder)? {
        let item = item?;
        if item.file_type()?.is_dir() {
            sync_tree(&item.path())?;
        } else if item.file_type()?.is_file() {
            // A file may go away meanwhile, as when sled replaces a snapshot.
            match regular::open(item.path()) {
                Ok(file) => file.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    sync_folder(folder)
}

/// Makes everything durable that was written below a folder before the call. For a large tree, one
/// sync of the file system takes less time than a sync of each file. The caller opens the folder
/// before it writes the files, or a failure may be missed.
///
/// # Errors
///
/// Returns why the file system, or else a file, cannot be synced.
pub fn sync_large_tree(folder: &Path, opened: &File) -> io::Result<()> {
    if syncfs_holds(opened) {
        return sync_file_system(opened);
    }
    sync_tree(folder)
}

/// Makes files, or the names in folders, durable. Few files are synced one by one. For many files,
/// a sync of each file system with one of the `folders` takes less time. The caller opens the
/// folders before it writes the files, or a failure may be missed.
///
/// # Errors
///
/// Returns the first write that the disk could not do.
pub fn sync_files(files: &[&File], folders: &[&File]) -> io::Result<()> {
    if files.len() <= FEW_FILES || !folders.iter().all(|folder| syncfs_holds(folder)) {
        return files.iter().try_for_each(|file| file.sync_all());
    }
    let mut done = BTreeSet::new();
    for folder in folders {
        // Folders on the same file system share one sync.
        if done.insert(folder.metadata()?.dev()) {
            sync_file_system(folder)?;
        }
    }
    Ok(())
}

/// Makes the names in a folder durable.
///
/// # Errors
///
/// Returns why the folder cannot be synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    regular::open_folder(folder)?.sync_all()
}
