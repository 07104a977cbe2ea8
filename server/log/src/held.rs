//! A folder that is kept open: the handle leads to the folder even after a move or a new name.
//!
//! Shell: the file system. Where the system has names for handles (Linux), paths below the folder
//! go through the handle. So files that are written after a move land in the moved folder, and a
//! new folder with the old name gets none of them.

use std::{
    fs::{self, File, Metadata},
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use simplefeed_process::regular;

/// Folder in which Linux has a name for each handle of this process.
const HANDLES: &str = "/proc/self/fd";

/// An open folder. Clones share the handle, which stays open as long as a clone exists.
#[derive(Clone, Debug)]
pub struct HeldFolder(Arc<NamedHandle>);

#[derive(Debug)]
struct NamedHandle {
    name: PathBuf,
    path: PathBuf,
    handle: File,
    identity: FileIdentity,
}

/// Device and inode: the identity of a file on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(super) fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
        }
    }

    /// Returns whether a path leads to this file.
    pub(super) fn is_at(self, path: &Path) -> bool {
        look(path).is_ok_and(|(found, _)| found == self)
    }
}

/// Returns the identity and the length of the file that a path leads to.
///
/// # Errors
///
/// Returns why the path leads to no file.
pub(super) fn look(path: &Path) -> io::Result<(FileIdentity, u64)> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxFlags, makedev};
        let wanted = StatxFlags::INO | StatxFlags::SIZE;
        if let Some(found) = look_without_times(CWD, path, AtFlags::empty(), wanted)? {
            let device = makedev(found.stx_dev_major, found.stx_dev_minor);
            let inode = found.stx_ino;
            return Ok((FileIdentity { device, inode }, found.stx_size));
        }
    }
    let found = fs::metadata(path)?;
    Ok((FileIdentity::of(&found), found.len()))
}

/// Returns how many names an open file has, and how many bytes. No path is resolved, which would
/// take three times as long.
///
/// # Errors
///
/// Returns why the system does not tell.
#[cfg_attr(
    not(feature = "sled"),
    expect(dead_code, reason = "a log in memory has no files")
)]
pub(crate) fn look_at(file: &File) -> io::Result<(u64, u64)> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, StatxFlags};
        let wanted = StatxFlags::NLINK | StatxFlags::SIZE;
        if let Some(found) = look_without_times(file, "", AtFlags::EMPTY_PATH, wanted)? {
            return Ok((found.stx_nlink.into(), found.stx_size));
        }
    }
    let found = file.metadata()?;
    Ok((found.nlink(), found.len()))
}

/// Returns facts about a file without its times. After a call that asks for the times, the next
/// write updates the inode, which costs CPU time at each sync (Linux 6.13 and later). `None` if the
/// kernel is too old for the call, or a filter of system calls refuses it.
#[cfg(target_os = "linux")]
fn look_without_times(
    from: impl std::os::fd::AsFd,
    path: impl rustix::path::Arg,
    flags: rustix::fs::AtFlags,
    wanted: rustix::fs::StatxFlags,
) -> io::Result<Option<rustix::fs::Statx>> {
    use rustix::io::Errno;
    match rustix::fs::statx(from, path, flags, wanted) {
        Ok(found) => Ok(Some(found)),
        // The first error comes from an old kernel, the second from a filter of system calls.
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl HeldFolder {
    /// Opens a folder.
    ///
    /// # Errors
    ///
    /// Returns why the folder cannot be opened.
    pub fn open(name: &Path) -> io::Result<Self> {
        // A relative name would lead elsewhere once the current folder changes.
        let name = std::path::absolute(name)?;
        let handle = regular::open_folder(&name)?;
        let identity = FileIdentity::of(&handle.metadata()?);
        let path = Path::new(HANDLES).join(handle.as_raw_fd().to_string());
        // Where handles have no names, the path of the folder is used.
        let path = if identity.is_at(&path) {
            path
        } else {
            name.clone()
        };
        Ok(Self(Arc::new(NamedHandle {
            name,
            path,
            handle,
            identity,
        })))
    }

    /// Returns the path by which the system finds the folder as long as the handle is open.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the path that the folder was opened by, absolute.
    pub fn name(&self) -> &Path {
        &self.0.name
    }

    /// Returns whether the folder's name still leads to this folder.
    pub fn has_its_name(&self) -> bool {
        self.0.identity.is_at(&self.0.name)
    }

    /// Returns the open handle of the folder.
    #[cfg_attr(
        not(feature = "sled"),
        expect(dead_code, reason = "a log in memory has no files")
    )]
    pub(crate) fn handle(&self) -> &File {
        &self.0.handle
    }
}

/// Returns the path by which people find a file, even if `path` goes through a handle.
pub fn visible_path(path: &Path) -> PathBuf {
    let below = path.strip_prefix(HANDLES).ok();
    let found = below.and_then(|below| {
        let mut parts = below.components();
        // The link of a handle names the folder's present path, also after a move.
        let folder = fs::read_link(Path::new(HANDLES).join(parts.next()?)).ok()?;
        Some(folder.join(parts.as_path()))
    });
    found.unwrap_or_else(|| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file that is written by the path of a held folder lands in that folder, even after a
    /// move, and a new folder with the old name gets nothing.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_held_folder_is_not_what_takes_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (name, moved) = (folder.join("data"), folder.join("moved"));
        fs::create_dir(&name).unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(&name, &link).unwrap();
        let held = HeldFolder::open(&link).unwrap();
        assert!(held.has_its_name());
        fs::rename(&name, &moved).unwrap();
        assert!(!held.has_its_name());
        fs::create_dir(&name).unwrap();
        assert!(!held.has_its_name());
        let file = held.path().join("file");
        fs::write(&file, "text").unwrap();
        assert_eq!(fs::read_to_string(moved.join("file")).unwrap(), "text");
        assert!(!name.join("file").exists());
        assert_eq!(visible_path(&file), moved.join("file"));
        assert_eq!(visible_path(held.path()), moved);
        assert_eq!(visible_path(&moved), moved);
    }
}
