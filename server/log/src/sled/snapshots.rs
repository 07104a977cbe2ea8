//! Names of sled's snapshots. A snapshot notes the places of sled's pages, on which the rehearsal
//! of an opening rests.
//!
//! Shell: sled's folder. At each opening sled writes a snapshot, renames it into place and removes
//! the one before it, without a sync of the folder in between. A power cut may keep the removal and
//! lose the rename. So the former snapshot has a second name, unknown to sled, until the names are
//! synced.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use simplefeed_process::regular;

use crate::{barrier::sync_folder, durable};

/// Beginning of sled's names; the rest is the position in sled's log at which the snapshot ends, in
/// hexadecimal digits.
const NAME: &str = "snap.";
/// Beginning of the second names.
const KEPT: &str = "kept.";
/// End of the name of a snapshot that sled did not finish.
const UNFINISHED: &str = ".generating";

/// Returns the number in the name of the newest snapshot; 0 if there is none.
///
/// # Errors
///
/// Returns why the folder cannot be read.
pub(super) fn newest_number(folder: &Path) -> io::Result<u64> {
    let numbers = named_files(folder, NAME)?
        .into_iter()
        .map(|(number, _)| number);
    Ok(numbers.max().unwrap_or(0))
}

/// Returns the path of the snapshot with a number.
pub(super) fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{NAME}{number:016X}"))
}

/// Returns the snapshot that sled uses at its next opening, after [`put_back`] if need be.
///
/// # Errors
///
/// Returns why the folder cannot be read.
pub(super) fn find(folder: &Path) -> io::Result<Option<PathBuf>> {
    let found = match named_files(folder, NAME)? {
        found if found.is_empty() => named_files(folder, KEPT)?,
        found => found,
    };
    Ok(found.into_iter().max().map(|(_, path)| path))
}

/// Gives the newest snapshot a second name, durably. Called before each opening of sled.
///
/// # Errors
///
/// Returns why the snapshot cannot be named or synced.
#[expect(clippy::disallowed_methods, reason = "`sync_folder` follows")]
pub(super) fn keep(folder: &Path) -> io::Result<()> {
    let Some((number, path)) = named_files(folder, NAME)?.into_iter().max() else {
        return Ok(());
    };
    let kept = folder.join(format!("{KEPT}{number:016X}"));
    match fs::hard_link(&path, &kept) {
        // An earlier opening that broke off has named the snapshot.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        // Some file systems have no second names.
        Err(_) => {
            // A name without a number, so that a copy that is cut short never counts as a snapshot.
            let copy = folder.join(format!("{KEPT}new"));
            fs::copy(&path, &copy)?;
            regular::open(&copy)?.sync_all()?;
            fs::rename(&copy, &kept)?;
        }
        Ok(()) => {}
    }
    sync_folder(folder)
}

/// Removes the second names. Called once the names that sled has made are durable.
///
/// # Errors
///
/// Returns why a second name cannot be removed.
#[expect(
    clippy::disallowed_methods,
    reason = "a second name that a power cut brings back does no harm"
)]
pub(super) fn release(folder: &Path) -> io::Result<()> {
    let kept = named_files(folder, KEPT)?;
    kept.iter().try_for_each(|(_, path)| fs::remove_file(path))
}

/// Gives the newest snapshot sled's name back, durably, if a power cut has taken the names of all
/// snapshots.
///
/// # Errors
///
/// Returns why the snapshot cannot be renamed or synced.
pub(super) fn put_back(folder: &Path) -> io::Result<()> {
    match find(folder)? {
        Some(path) if named_files(folder, NAME)?.is_empty() => {
            // Only if no snapshot has sled's own name: such a snapshot would be newer.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            durable::rename(&path, &folder.join(name.replacen(KEPT, NAME, 1)))
        }
        _ => Ok(()),
    }
}

/// Removes snapshots that sled did not finish. They are of no use, and would stop every later
/// opening.
///
/// # Errors
///
/// Returns why a file cannot be removed.
#[expect(
    clippy::disallowed_methods,
    reason = "the next opening removes one that a power cut brings back"
)]
pub(super) fn remove_unfinished(folder: &Path) -> io::Result<()> {
    #[cfg(planted)]
    if crate::planted::is("leftovers-kept") {
        return Ok(());
    }
    for item in fs::read_dir(folder)? {
        let item = item?;
        let name = item.file_name();
        let name = name.to_string_lossy();
        // sled's own clean-up looks for another name (sled #1527).
        if name.starts_with(NAME) && name.ends_with(UNFINISHED) {
            fs::remove_file(item.path())?;
        }
    }
    Ok(())
}

/// Returns the files whose names are this beginning and a number.
fn named_files(folder: &Path, beginning: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = vec![];
    for item in fs::read_dir(folder)? {
        let item = item?;
        let name = item.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(beginning));
        let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
        found.extend(number.map(|number| (number, item.path())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let items = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<_> = items
            .map(|item| item.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Method: the names that a power cut can leave within an opening of sled.
    #[test]
    fn a_snapshot_survives_a_lost_rename() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("snap.00000000000000A0"), "old").unwrap();
        keep(folder).unwrap();
        keep(folder).unwrap();
        // sled has removed the old snapshot, and the rename of the new one is lost.
        fs::rename(
            folder.join("snap.00000000000000A0"),
            folder.join("snap.00000000000000B0.generating"),
        )
        .unwrap();
        assert_eq!(newest_number(folder).unwrap(), 0);
        assert!(
            find(folder)
                .unwrap()
                .unwrap()
                .ends_with("kept.00000000000000A0")
        );
        remove_unfinished(folder).unwrap();
        put_back(folder).unwrap();
        assert_eq!(names(folder), ["snap.00000000000000A0"]);
        assert_eq!(newest_number(folder).unwrap(), 0xa0);
        // A whole opening.
        keep(folder).unwrap();
        fs::write(folder.join("snap.00000000000000C0"), "new").unwrap();
        put_back(folder).unwrap();
        assert!(
            find(folder)
                .unwrap()
                .unwrap()
                .ends_with("snap.00000000000000C0")
        );
        release(folder).unwrap();
        assert_eq!(
            names(folder),
            ["snap.00000000000000A0", "snap.00000000000000C0"]
        );
    }
}
