//! The watcher's memory: one file for all feeds.
//!
//! Shell: the disk. Each line holds the state of one feed or SUP document; the last line about it counts. A file that
//! has grown to more than twice its current lines is replaced as a whole.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};
use simplefeed_core::{replay::Bookmark, sup::SupAddress, timestamp::Timestamp};
use url::{Origin, Url};

use crate::{
    files,
    state::{StateError, StateFolder},
};

/// The file within the state folder.
const FILE: &str = "watched.ndjson";
/// Bytes beyond twice its current lines that a file may have before it is replaced.
const SMALL_BYTES: u64 = 1024 * 1024;

/// State of one feed or one SUP document: a line of the journal.
#[expect(clippy::large_enum_variant, reason = "nearly all are of feeds")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Note {
    Feed {
        feed: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bookmark: Option<Bookmark>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sup: Option<SupAddress>,
        /// SUP update id that was handled last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        update: Option<Box<str>>,
    },
    Heard {
        sup_document: Url,
        /// Timestamp up to which all updates are known, RFC 3339.
        updated: String,
    },
    /// Digest of the token and the allowed origins. With others, SUP documents may list other feeds.
    Asker { asker: String },
}

impl Note {
    /// Returns a feed's note: its place, the SUP address that lists its updates, and the last update handled.
    pub(super) fn feed(
        url: &str,
        place: Option<&Bookmark>,
        told_by: Option<(SupAddress, Option<&str>)>,
    ) -> Self {
        let (sup, update) = told_by.unzip();
        Self::Feed {
            feed: url.into(),
            bookmark: place.cloned(),
            sup,
            update: update.flatten().map(Into::into),
        }
    }

    /// Returns whether this is a feed's note with a SUP address.
    pub(super) fn is_told(&self) -> bool {
        matches!(self, Self::Feed { sup: Some(_), .. })
    }

    pub(super) fn heard(document: &Url, updated: Timestamp) -> Self {
        Self::Heard {
            sup_document: document.clone(),
            updated: updated.to_string(),
        }
    }
}

/// State of a feed, as the journal has it.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) place: Option<Bookmark>,
    pub(super) sup: Option<SupAddress>,
    pub(super) update: Option<Box<str>>,
    /// Full URL, if it holds a name or a password.
    pub(super) given: Option<String>,
    pub(super) origin: Option<Origin>,
    /// Length of its line in the journal, in bytes.
    bytes: usize,
}

impl Known {
    /// Returns the SUP address of a feed that was read at least once.
    pub(super) fn told(&self) -> Option<&SupAddress> {
        self.sup.as_ref().filter(|_| self.place.is_some())
    }
}

/// State at the end of the last run.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) feeds: HashMap<String, Known>,
    pub(super) heard: HashMap<Url, Timestamp>,
    asker: Option<String>,
}

/// Open file of notes, and its length.
#[derive(Debug)]
pub(super) struct Journal {
    /// Holds the folder's lock for the lifetime of the journal.
    folder: StateFolder,
    path: PathBuf,
    bytes: u64,
    /// Length in bytes above which the file is replaced.
    too_many: u64,
    /// Whether the last write failed, so that the file may end with a partial line.
    is_torn: bool,
}

impl Journal {
    /// Opens the journal in a folder, and reads it.
    pub(super) fn open(folder: StateFolder) -> Result<(Self, Notes), StateError> {
        let path = folder.path().join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            Err(error) => return Err(folder.failed(files::about(&path, &error))),
        };
        let mut notes = Notes::default();
        // A line counts once its newline is on the disk.
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        let (lines, rest) = text.split_at(whole);
        if !rest.is_empty() {
            // A crash cut the last line short. Its write never returned, so no caller relies on it.
            let cut = files::shorten(&path, length(lines));
            cut.map_err(|error| folder.failed(files::about(&path, &error)))?;
        }
        for (number, line) in (1..).zip(lines.split(|byte| *byte == b'\n')) {
            if line.is_empty() {
                continue;
            }
            // An error, not a line to skip: without it an older state of the feed would count.
            let note = serde_json::from_slice(line).map_err(|error| {
                let detail = format!("line {number}: {error}");
                let error = io::Error::new(io::ErrorKind::InvalidData, detail);
                folder.failed(files::about(&path, &error))
            })?;
            notes.add(note, line.len());
        }
        let said: usize = notes.feeds.values().map(|known| known.bytes).sum();
        let journal = Self {
            bytes: length(lines),
            too_many: too_many(u64::try_from(said).unwrap_or(u64::MAX)),
            is_torn: false,
            folder,
            path,
        };
        Ok((journal, notes))
    }

    /// Writes notes, durably. `all` returns the complete state, for a file with many outdated lines.
    pub(super) fn note(
        &mut self,
        notes: &[Note],
        all: impl FnOnce() -> Vec<Note>,
    ) -> Result<(), StateError> {
        if notes.is_empty() {
            return Ok(());
        }
        let added = lines_of(notes);
        // Nothing is appended to a partial line: the replacement removes it.
        let written = if !self.is_torn && self.bytes + length(&added) <= self.too_many {
            self.bytes += length(&added);
            files::append_line(&self.path, &added)
        } else {
            let all = lines_of(&all());
            self.bytes = length(&all);
            self.too_many = too_many(self.bytes);
            files::replace(&self.path, &all)
        };
        self.is_torn = written.is_err();
        written.map_err(|error| self.folder.failed(files::about(&self.path, &error)))
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn too_many(said: u64) -> u64 {
    said.saturating_mul(2).saturating_add(SMALL_BYTES)
}

fn lines_of(notes: &[Note]) -> Vec<u8> {
    let mut lines = vec![];
    for note in notes {
        serde_json::to_writer(&mut lines, note).expect("a note has a JSON form");
        lines.push(b'\n');
    }
    lines
}

impl Notes {
    /// Forgets the SUP addresses of all feeds if they were learnt for another `asker`. Returns the notes to write
    /// then.
    pub(super) fn are_for(&mut self, asker: &str) -> Vec<Note> {
        if self.asker.as_deref() == Some(asker) {
            return vec![];
        }
        let mut notes = vec![];
        for (feed, known) in &mut self.feeds {
            if known.sup.take().is_some() {
                notes.push(Note::feed(feed, known.place.as_ref(), None));
            }
        }
        let asker = asker.into();
        notes.push(Note::Asker { asker });
        notes
    }

    /// Forgets feeds. Returns the notes to write to the journal.
    pub(super) fn forget(&mut self, urls: &HashSet<String>) -> Vec<Note> {
        let known = urls.iter().filter(|url| self.feeds.remove(*url).is_some());
        known.map(|url| Note::feed(url, None, None)).collect()
    }

    /// Returns a note with the place of each feed that is left, and apart those of feeds that also had a SUP address.
    pub(super) fn of_others(self) -> (Vec<Note>, Vec<Note>) {
        let (mut others, mut were_told) = (vec![], vec![]);
        for (feed, known) in self.feeds {
            // Without its SUP address: a feed that is not watched misses updates.
            let note = Note::feed(&feed, known.place.as_ref(), None);
            were_told.extend(known.sup.map(|_| note.clone()));
            others.push(note);
        }
        (others, were_told)
    }

    fn add(&mut self, note: Note, bytes: usize) {
        match note {
            Note::Feed {
                feed,
                bookmark,
                sup,
                update,
            } => {
                let known = Known {
                    place: bookmark,
                    sup,
                    update,
                    given: None,
                    origin: None,
                    bytes,
                };
                // The last line about a feed counts.
                self.feeds.insert(feed, known);
            }
            Note::Heard {
                sup_document,
                updated,
            } => {
                // Without a readable date, the source counts as never heard.
                if let Some(updated) = Timestamp::parse(&updated) {
                    self.heard.insert(sup_document, updated);
                }
            }
            Note::Asker { asker } => self.asker = Some(asker),
        }
    }
}
