//! Names that survive a power cut: new folders, and files that are renamed or removed, each with a
//! sync of the folder after the change.
//!
//! Shell: the file system. A name is durable once the folder that holds the name was synced. Code
//! that calls the functions of `std::fs` directly must give a reason why the name may be lost;
//! clippy finds calls without such a reason.
#![expect(
    clippy::disallowed_methods,
    reason = "each is followed by the sync of its folder here"
)]

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
};

use simplefeed_process::regular;

use super::barrier::{sync_files, sync_folder};

/// Mode of a folder that only its owner may read.
const PRIVATE: u32 = 0o700;

/// Returns the folder that holds a name.
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        // The parent of a name without a folder is empty.
        _ => Path::new("."),
    }
}

/// Creates a folder and the missing folders around it. An existing folder counts as durable.
///
/// # Errors
///
/// Returns why a folder cannot be created, or why a name cannot be synced.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    create_folders(&[folder]).map_err(|(_, error)| error)
}

/// Creates folders and the missing folders around them. All of these share their syncs.
///
/// # Errors
///
/// Returns the first folder that cannot be created, with the error. If a sync fails, the returned
/// folder is the first of the folders in which a name was made, in the order of their paths,
/// whichever sync failed.
pub fn create_folders<'p>(folders: &[&'p Path]) -> Result<(), (&'p Path, io::Error)> {
    let mut parents = BTreeMap::new();
    let created = folders.iter().try_for_each(|folder| {
        let created = create_unsynced(folder, &mut parents);
        created.map_err(|error| (*folder, error))
    });
    // Folders that were created before a failure are synced, too: later on, an existing folder
    // counts as durable.
    let opened: Vec<&File> = parents.values().collect();
    let first = parents.keys().next().copied().unwrap_or(Path::new(""));
    let synced = sync_files(&opened, &opened).map_err(|error| (first, error));
    created.and(synced)
}

/// Creates a folder and the missing folders around it. Adds each folder in which a name was made to
/// `parents`.
fn create_unsynced<'p>(folder: &'p Path, parents: &mut BTreeMap<&'p Path, File>) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = parent_of(folder);
    create_unsynced(parent, parents)?;
    if !parents.contains_key(parent) {
        // Opened before the name is made: `sync_files` may miss a failure of a folder that is
        // opened later.
        parents.insert(parent, regular::open_folder(parent)?);
    }
    match fs::create_dir(folder) {
        // A folder that somebody made meanwhile may lack a sync of the name, so `parents` has its
        // parent all the same.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        created => created,
    }
}

/// Creates a folder that only the owner may read. If the folder exists, others lose their rights to
/// it. Afterwards, the name and the mode are durable, even if an earlier process was killed before
/// the sync.
///
/// # Errors
///
/// Returns why the folder cannot be created, changed or synced.
pub fn create_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    // Others never see the folder with another mode.
    match builder.mode(PRIVATE).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::metadata(folder)?;
            if !found.is_dir() {
                return Err(error);
            }
            if found.permissions().mode() & 0o777 != PRIVATE {
                fs::set_permissions(folder, Permissions::from_mode(PRIVATE))?;
            }
        }
        created => created?,
    }
    // The sync of the folder makes the mode durable, the sync of the parent the name.
    sync_folder(folder)?;
    sync_folder(parent_of(folder))
}

/// Renames a file or folder, and replaces any file that has the new name.
///
/// # Errors
///
/// Returns why the file cannot be renamed, or why the folder with the new name cannot be synced.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(parent_of(to))
}

/// Removes a file.
///
/// # Errors
///
/// Returns why the file cannot be removed, or why the folder cannot be synced.
pub fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_folder(parent_of(path))
}

/// Makes the names in a folder durable, and the names in the folders directly below. For
/// [`create_folder`] and [`create_folders`], an existing name counts as durable. But an earlier
/// process may have been killed after it made the name and before the sync.
///
/// # Errors
///
/// Returns why a folder cannot be synced.
pub fn sync_names(folder: &Path) -> io::Result<()> {
    let items = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        items => items?,
    };
    for item in items {
        let item = item?;
        if item.file_type()?.is_dir() {
            match sync_if_ours(&item.path()) {
                // Others may have folders beside ours, and may remove them.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                synced => synced?,
            }
        }
    }
    sync_if_ours(folder)
}

/// Makes the names in an existing folder durable. A folder that this process may not read, or
/// cannot sync, is left out: our processes make names only in folders that they can read and sync.
///
/// # Errors
///
/// Returns why the folder cannot be synced.
pub(crate) fn sync_if_ours(folder: &Path) -> io::Result<()> {
    match sync_folder(folder) {
        // The last two errors come from file systems without a sync of folders, and from read-only
        // file systems.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}
