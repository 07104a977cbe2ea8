//! Files that are there as a whole or not at all, and the time.
//!
//! Shell: the disk and the clock.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use simplefeed_core::timestamp::Timestamp;

/// Replaces a file as a whole: a temporary file in the same folder is written, synced and renamed
/// over the file, and the folder is synced. A symbolic link stays, and the file behind the link is
/// replaced.
#[expect(clippy::disallowed_methods, reason = "the name is temporary")]
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    end::may_write()?;
    let path = &behind_links(path)?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    let replaced = replace_by(temporary, path, bytes);
    if let Err(error) = &replaced {
        // The temporary file may not exist, and the first error counts.
        let _none = fs::remove_file(temporary);
        // A mount cannot be renamed over, and the error of the system does not say so.
        if error.kind() == io::ErrorKind::ResourceBusy {
            check_replaceable(path)?;
        }
    }
    replaced
}

#[expect(clippy::disallowed_methods, reason = "the name is temporary")]
fn replace_by(temporary: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(temporary)?;
    file.write_all(bytes)?;
    // The file is synced before the rename: otherwise a crash could leave the name with an
    // incomplete file.
    #[cfg(planted)]
    if is_planted(path) {
        return rename(temporary, path);
    }
    file.sync_all()?;
    // `rename` syncs the folder, too: only then does the new name survive a crash.
    rename(temporary, path)
}

/// Checks that another file can replace the file at `path`, which need not exist.
///
/// # Errors
///
/// Returns that the file is a mount of its own, as in a container: no other file can replace a
/// mount.
pub(crate) fn check_replaceable(path: &Path) -> io::Result<()> {
    if is_mount(path) {
        return Err(io::Error::other(format!(
            "{} is a mount of its own, so no new file can take its place: mount its folder",
            path.display()
        )));
    }
    Ok(())
}

/// Returns whether a path is a mount point; false where the system cannot say.
#[cfg(target_os = "linux")]
fn is_mount(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(not(target_os = "linux"))]
fn is_mount(_: &Path) -> bool {
    false
}

/// Returns whether a planted bug leaves out the sync of a file.
#[cfg(planted)]
fn is_planted(path: &Path) -> bool {
    let is_parked = path
        .parent()
        .is_some_and(|folder| folder.ends_with("parked"));
    let is_watched = path.ends_with("watched.ndjson");
    match is_parked {
        true => crate::planted::is("parked-unsynced"),
        false => crate::planted::is("bookmark-unsynced") && !is_watched,
    }
}

/// Opens a regular file, and no other thing: the opening of a pipe waits, and a device may have no
/// end.
///
/// # Errors
///
/// Returns why the file cannot be opened, or that the path is that of no regular file.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let detail = format!("{} is no regular file", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, detail))
        }
        _ => options.open(path),
    }
}

/// Reads a whole regular file, and no other thing.
///
/// # Errors
///
/// As [`open_regular`], and why the file cannot be read.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    open_regular(path, OpenOptions::new().read(true))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Adds a line to the end of a file, durably. The rest of a line that a crash cut short stays a
/// line of its own.
#[expect(clippy::disallowed_methods, reason = "`sync_folder_of` follows")]
pub(crate) fn append_line(path: &Path, line: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    end::may_write()?;
    // Asked before the file is opened, which creates the file.
    let is_new = !path.exists();
    let mut options = OpenOptions::new();
    let mut file = open_regular(path, options.create(true).append(true).read(true))?;
    if file.metadata()?.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        // A crash may have cut the last line short, and this line must not become the rest of that
        // one.
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    file.write_all(line)?;
    file.sync_all()?;
    // Only once the folder is synced does the name of a new file survive a crash.
    if is_new { sync_folder_of(path) } else { Ok(()) }
}

/// Creates a folder, and the folders around this folder, durably.
#[expect(clippy::disallowed_methods, reason = "`sync_folder` follows")]
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder_of(folder);
    create_folder(parent)?;
    match fs::create_dir(folder) {
        // Another process has made the folder meanwhile, and may not have synced the folder's name.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        created => created?,
    }
    sync_folder(parent)
}

/// Renames a file within its folder, durably.
#[expect(clippy::disallowed_methods, reason = "`sync_folder_of` follows")]
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder_of(to)
}

/// Shortens a file, durably.
pub(crate) fn shorten(path: &Path, bytes: u64) -> io::Result<()> {
    #[cfg(test)]
    end::may_write()?;
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(bytes)?;
    file.sync_all()
}

/// Removes a file, durably. Returns whether there was one.
#[expect(clippy::disallowed_methods, reason = "`sync_folder_of` follows")]
pub(crate) fn remove(path: &Path) -> io::Result<bool> {
    #[cfg(test)]
    end::may_write()?;
    let was_there = match fs::remove_file(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    // The folder is synced even if the file was gone: the process that removed the file may have
    // been killed before that process synced the folder.
    sync_folder_of(path)?;
    Ok(was_there)
}

pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    sync_folder(folder_of(path))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns the folder that a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        // The parent of a bare file name is empty.
        _ => Path::new("."),
    }
}

/// Returns the name of one file or folder in a folder, or `None` if the folder is empty, does not
/// exist, or has an item of the name `mark`.
pub(crate) fn foreign_in(folder: &Path, mark: &str) -> io::Result<Option<String>> {
    let items = match fs::read_dir(folder) {
        Ok(items) => items,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut found = None;
    for item in items {
        let name = item?.file_name().to_string_lossy().into_owned();
        if name == mark {
            return Ok(None);
        }
        // The root of a file system has this folder.
        if name != "lost+found" {
            found.get_or_insert(name);
        }
    }
    Ok(found)
}

/// Returns the path of the file to which symbolic links lead, because a save replaces the file and
/// not the link. The file need not exist yet.
pub(crate) fn behind_links(path: &Path) -> io::Result<PathBuf> {
    match fs::read_link(path) {
        Ok(target) => match fs::canonicalize(path) {
            // `canonicalize` needs a file, and the link may lead to one that is still to be made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                behind_links(&folder_of(path).join(target))
            }
            found => found,
        },
        // No link, or no file yet.
        Err(_) => Ok(path.into()),
    }
}

/// Returns an error that names its file.
pub(crate) fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Returns the time now.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.unwrap_or_default().as_micros();
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

/// A disk that accepts no more writes, as if the process had ended.
#[cfg(test)]
pub(crate) mod end {
    use std::{cell::Cell, io};

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Allows this thread `writes` more writes; `None` means no bound.
    pub(crate) fn after(writes: Option<u32>) {
        LEFT.set(writes);
    }

    pub(super) fn may_write() -> io::Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the process has ended")),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}
