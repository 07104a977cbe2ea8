//! What a watcher remembers: one file for all feeds.
//!
//! Shell: the disk. A line for each feed or SUP document says what is known of it; the last one counts. When
//! the file has grown to more than twice what it says, it is replaced as a whole.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};
use simplefeed_core::{instant::Instant, replay::Bookmark, sup::SupAddress};
use url::{Origin, Url};

use crate::{
    files,
    state::{StateError, StateFolder},
};

/// The file within the state folder.
const FILE: &str = "watched.ndjson";
/// So many bytes are no reason to replace it.
const SMALL_BYTES: u64 = 1024 * 1024;

/// What is known of one feed, or of one SUP document.
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
        /// What was told of it last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        update: Option<Box<str>>,
    },
    Heard {
        sup_document: Url,
        /// RFC 3339.
        updated: String,
    },
    /// What stands for the one who asks: with another token, or where other origins are allowed, others are
    /// told of.
    Asker { asker: String },
}

impl Note {
    /// Says up to where a feed was read, and by what its updates are told: what was told last is handled.
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

    /// Whether it says by what a feed's updates are told.
    pub(super) fn is_told(&self) -> bool {
        matches!(self, Self::Feed { sup: Some(_), .. })
    }

    pub(super) fn heard(document: &Url, updated: Instant) -> Self {
        Self::Heard {
            sup_document: document.clone(),
            updated: updated.to_string(),
        }
    }
}

/// What is known of a feed.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) place: Option<Bookmark>,
    pub(super) sup: Option<SupAddress>,
    pub(super) update: Option<Box<str>>,
    /// The URL as it was given, if it holds a password.
    pub(super) given: Option<String>,
    pub(super) origin: Option<Origin>,
    /// The bytes of its line.
    bytes: usize,
}

impl Known {
    /// Returns by what its updates are told, if it was ever read.
    pub(super) fn told(&self) -> Option<&SupAddress> {
        self.sup.as_ref().filter(|_| self.place.is_some())
    }
}

/// What was known when the program ended last.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) feeds: HashMap<String, Known>,
    pub(super) heard: HashMap<Url, Instant>,
    asker: Option<String>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Book {
    /// Locked as long as it is there.
    folder: StateFolder,
    path: PathBuf,
    bytes: u64,
    /// So many bytes are more than it says.
    too_many: u64,
    /// Whether it may end with something that was not written as a whole.
    is_torn: bool,
}

impl Book {
    /// Opens the book in a folder, and reads it.
    pub(super) fn open(folder: StateFolder) -> Result<(Self, Notes), StateError> {
        let path = folder.path().join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            Err(error) => return Err(folder.failed(files::about(&path, &error))),
        };
        let mut notes = Notes::default();
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        let (lines, rest) = text.split_at(whole);
        if !rest.is_empty() {
            // What a crash has cut short was not promised to anybody.
            let cut = files::shorten(&path, length(lines));
            cut.map_err(|error| folder.failed(files::about(&path, &error)))?;
        }
        for (number, line) in (1..).zip(lines.split(|byte| *byte == b'\n')) {
            if line.is_empty() {
                continue;
            }
            let note = serde_json::from_slice(line).map_err(|error| {
                let detail = format!("line {number}: {error}");
                let error = io::Error::new(io::ErrorKind::InvalidData, detail);
                folder.failed(files::about(&path, &error))
            })?;
            notes.add(note, line.len());
        }
        let said: usize = notes.feeds.values().map(|known| known.bytes).sum();
        let book = Self {
            bytes: length(lines),
            too_many: too_many(u64::try_from(said).unwrap_or(u64::MAX)),
            is_torn: false,
            folder,
            path,
        };
        Ok((book, notes))
    }

    /// Writes notes. They are durable when it returns. `all` returns everything there is to say, for a file
    /// that says much that is no longer so.
    pub(super) fn note(
        &mut self,
        notes: &[Note],
        all: impl FnOnce() -> Vec<Note>,
    ) -> Result<(), StateError> {
        if notes.is_empty() {
            return Ok(());
        }
        let added = lines_of(notes);
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
    /// Forgets by what updates are told, if that was told to somebody else. Returns what to note then.
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

    /// Forgets feeds. Returns the notes to write to the book.
    pub(super) fn forget(&mut self, urls: &HashSet<String>) -> Vec<Note> {
        let known = urls.iter().filter(|url| self.feeds.remove(*url).is_some());
        known.map(|url| Note::feed(url, None, None)).collect()
    }

    /// Returns up to where the feeds that are left were read, and which of them say besides by what their
    /// updates are told.
    pub(super) fn of_others(self) -> (Vec<Note>, Vec<Note>) {
        let (mut others, mut were_told) = (vec![], vec![]);
        for (feed, known) in self.feeds {
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
                self.feeds.insert(feed, known);
            }
            Note::Heard {
                sup_document,
                updated,
            } => {
                if let Some(updated) = Instant::parse(&updated) {
                    self.heard.insert(sup_document, updated);
                }
            }
            Note::Asker { asker } => self.asker = Some(asker),
        }
    }
}
