//! Names that survive a power cut: folders made, files renamed and removed, each followed by the sync of its folder.
//!
//! Shell: the file system. A name is durable once the folder that holds it was synced. Whoever calls the functions of
//! `std::fs` instead says why the name may be lost; clippy finds those who do not.
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
        // That of a name without a folder is empty.
        _ => Path::new("."),
    }
}

/// Creates a folder and those around it. One that is there already counts as durable.
///
/// # Errors
///
/// Returns why a folder cannot be created, or its name not be synced.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    create_folders(&[folder]).map_err(|(_, error)| error)
}

/// Creates folders and those around them, which share their syncs.
///
/// # Errors
///
/// Names the first folder that cannot be created or synced.
pub fn create_folders<'p>(folders: &[&'p Path]) -> Result<(), (&'p Path, io::Error)> {
    let mut parents = BTreeMap::new();
    let created = folders.iter().try_for_each(|folder| {
        let created = create_unsynced(folder, &mut parents);
        created.map_err(|error| (*folder, error))
    });
    // Also those before a failure: later on, a folder that is there counts as durable.
    let opened: Vec<&File> = parents.values().collect();
    let first = parents.keys().next().copied().unwrap_or(Path::new(""));
    let synced = sync_files(&opened, &opened).map_err(|error| (first, error));
    created.and(synced)
}

/// Creates a folder and those around it. Adds the folders in which names are new.
fn create_unsynced<'p>(folder: &'p Path, parents: &mut BTreeMap<&'p Path, File>) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = parent_of(folder);
    create_unsynced(parent, parents)?;
    if !parents.contains_key(parent) {
        parents.insert(parent, regular::open_folder(parent)?);
    }
    match fs::create_dir(folder) {
        // A folder that somebody made meanwhile may lack its sync, so it gets one.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        created => created,
    }
}

/// Creates a folder that only its owner may read, or takes the one that is there from others. Its name and its mode
/// are durable then, also if an earlier process was killed before it synced them.
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
    sync_folder(folder)?;
    sync_folder(parent_of(folder))
}

/// Renames a file or folder, which takes the place of one of that name.
///
/// # Errors
///
/// Returns why it cannot be renamed, or its folder not be synced.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(parent_of(to))
}

/// Removes a file.
///
/// # Errors
///
/// Returns why it cannot be removed, or its folder not be synced.
pub fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_folder(parent_of(path))
}

/// Makes the names in a folder durable, and those in the folders directly below: a process that made them may have been
/// killed before it synced them, and what is there counts as durable.
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
                // Beside ours there may be folders of others, who remove them.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                synced => synced?,
            }
        }
    }
    sync_if_ours(folder)
}

/// Makes the names in a folder that was there durable, unless no process of ours can have made them: it could read the
/// folder, and sync it.
///
/// # Errors
///
/// Returns why the folder cannot be synced.
pub fn sync_if_ours(folder: &Path) -> io::Result<()> {
    match sync_folder(folder) {
        // The last two are of file systems that know no sync of a folder, and of those that nobody writes to.
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
