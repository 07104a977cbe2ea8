//! Entries set aside.
//!
//! Shell: the disk. Each entry has a file of its own, which is there as a whole or not at all.
//! Numbers give the order of the entries. A new entry gets the number behind the highest one that
//! is left.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use simplefeed_core::replay::Bookmark;

use crate::{bookmark::Attempt, delivery::Delivery, files};

/// The version of the files' form.
const VERSION: u32 = 1;

/// An entry set aside.
///
/// # Examples
///
/// A list of the parked entries, without the lock, so that the worker may run:
///
/// ```
/// use simplefeed_client::state::parked;
///
/// let folder = tempfile::tempdir()?;
/// for parked in parked::iter(folder.path())? {
///     let parked = parked?;
///     println!("{} {}: {:?}", parked.number, parked.delivery().id(), parked.error);
/// }
/// assert_eq!(parked::list(folder.path())?.len(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ParkedEntry {
    version: u32,
    /// Number of the entry in this folder; entries with lower numbers were set aside earlier.
    pub number: u64,
    /// Key of the entry, if entries have keys.
    pub key: Option<String>,
    /// Whether the entry only waits behind an entry with the same key, and was never tried.
    pub waits: bool,
    /// Number of attempts at the entry.
    pub attempts: u32,
    /// Error of the last attempt; none while the entry waits or is tried again.
    pub error: Option<String>,
    /// Time at which the entry was set aside, RFC 3339.
    pub at: String,
    /// Bookmark after the entry, for its delivery.
    place: Bookmark,
    /// The entry, as it was delivered.
    entry: String,
}

/// An entry about to be set aside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewParkedEntry<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) key: Option<&'a str>,
    pub(crate) waits: bool,
    pub(crate) attempts: u32,
    pub(crate) error: Option<&'a str>,
}

impl ParkedEntry {
    /// Returns the entry for another hand-over, with the place after the entry.
    pub fn delivery(&self) -> Delivery {
        Delivery::kept(self.entry.clone().into(), self.place.clone())
    }

    /// Returns the place after the entry, if the entry was parked after this attempt.
    pub(super) fn place_if_given_up(&self, attempt: &Attempt) -> Option<&Bookmark> {
        let same = self.place.entry.as_ref() == Some(&attempt.entry)
            && self.place.position == attempt.position
            && self.attempts == attempt.count;
        same.then_some(&self.place)
    }

    /// Returns whether this is the parked form of an entry.
    pub(crate) fn is_of(&self, delivery: &Delivery) -> bool {
        self.entry.as_bytes() == &delivery.raw()[..] && self.place.position == delivery.position()
    }
}

/// Returns the entries set aside in a state folder, oldest first, one after the other: there may be
/// more than fit into memory.
///
/// # Errors
///
/// Returns why the entries cannot be read.
pub fn iter(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<ParkedEntry>> + use<>> {
    let folder = folder.to_path_buf();
    let numbers = parked_numbers(&folder)?.into_iter();
    // `None` means that the file has been removed since: the worker may run meanwhile.
    Ok(numbers.filter_map(move |number| read_parked(&path_of(&folder, number)).transpose()))
}

/// Returns the entries set aside in a state folder, oldest first.
///
/// # Errors
///
/// Returns why the entries cannot be read.
pub fn list(folder: &Path) -> io::Result<Vec<ParkedEntry>> {
    iter(folder)?.collect()
}

/// Returns the numbers of the entries set aside, in their order.
fn parked_numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let parked = folder.join("parked");
    let found = match fs::read_dir(&parked) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(files::about(&parked, &error)),
    };
    let mut numbers = vec![];
    for file in found {
        let name = file?.file_name();
        // Temporary files end in `.json.new`, and are no entries.
        let number = name.to_str().and_then(|name| name.strip_suffix(".json"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads a parked entry; `None` if the file is gone.
fn read_parked(path: &Path) -> io::Result<Option<ParkedEntry>> {
    let text = match files::read_regular(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(files::about(path, &error)),
    };
    let parked: ParkedEntry =
        serde_json::from_slice(&text).map_err(|error| files::about(path, &error.into()))?;
    if parked.version != VERSION {
        let detail = format!("version {} is not known", parked.version);
        let error = io::Error::new(io::ErrorKind::InvalidData, detail);
        return Err(files::about(path, &error));
    }
    Ok(Some(parked))
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("parked/{number:012}.json"))
}

/// Parked entries of a folder that this process has locked.
#[derive(Debug)]
pub(super) struct ParkedEntries {
    folder: PathBuf,
    /// Keys of the parked entries, by their numbers.
    keys: BTreeMap<u64, Option<String>>,
}

impl ParkedEntries {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let keys = iter(folder)?.map(|parked| parked.map(|one| (one.number, one.key)));
        Ok(Self {
            folder: folder.into(),
            keys: keys.collect::<io::Result<_>>()?,
        })
    }

    pub(super) fn list(&self) -> io::Result<Vec<ParkedEntry>> {
        list(&self.folder)
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.keys.keys().copied().collect()
    }

    pub(super) fn read(&self, number: u64) -> io::Result<Option<ParkedEntry>> {
        read_parked(&path_of(&self.folder, number))
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn holds_key(&self, key: &str) -> bool {
        // A scan is enough: the number of parked entries has a bound.
        self.keys.values().any(|held| held.as_deref() == Some(key))
    }

    /// Returns the entry parked last.
    pub(super) fn last(&mut self) -> io::Result<Option<ParkedEntry>> {
        match self.keys.last_key_value() {
            Some((number, _)) => read_parked(&path_of(&self.folder, *number)),
            None => Ok(None),
        }
    }

    pub(super) fn add(&mut self, parked: &NewParkedEntry<'_>) -> io::Result<()> {
        // The lock keeps other writers away, so the number behind the last is free.
        let last = self.keys.last_key_value().map_or(0, |(number, _)| *number);
        // Documents are UTF-8 once they are read, so this fails for no entry of a feed.
        let entry = String::from_utf8(parked.delivery.raw().to_vec());
        let parked = ParkedEntry {
            version: VERSION,
            number: last + 1,
            key: parked.key.map(Into::into),
            waits: parked.waits,
            attempts: parked.attempts,
            error: parked.error.map(Into::into),
            at: files::now().to_string(),
            place: parked.delivery.bookmark(),
            entry: entry.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
        };
        // The file is written first: a key without a file would hold later entries back for
        // nothing.
        self.update(&parked)?;
        self.keys.insert(parked.number, parked.key);
        Ok(())
    }

    pub(super) fn update(&mut self, parked: &ParkedEntry) -> io::Result<()> {
        let path = path_of(&self.folder, parked.number);
        let written = files::replace(&path, &serde_json::to_vec(parked)?);
        written.map_err(|error| files::about(&path, &error))
    }

    pub(super) fn remove(&mut self, number: u64) -> io::Result<()> {
        let path = path_of(&self.folder, number);
        // The file is removed first: while the file is there, the key must hold later entries back.
        files::remove(&path).map_err(|error| files::about(&path, &error))?;
        self.keys.remove(&number);
        Ok(())
    }
}
