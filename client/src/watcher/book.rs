//! What a watcher remembers: one file for all feeds.
//!
//! Shell: the disk. A line for each feed or SUP document says what is known of it; the last one counts. When
//! the file has grown to more than twice what it says, it is replaced as a whole.

use std::{collections::HashMap, fs, io, path::PathBuf};

use serde::{Deserialize, Serialize};
use simplefeed_core::{instant::Instant, replay::Bookmark, sup::SupAddress};
use url::Url;

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
    },
    Heard {
        sup_document: Url,
        /// RFC 3339.
        updated: String,
    },
}

impl Note {
    pub(super) fn feed(url: &str, place: Option<&Bookmark>, sup: Option<&SupAddress>) -> Self {
        Self::Feed {
            feed: url.into(),
            bookmark: place.cloned(),
            sup: sup.cloned(),
        }
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
    /// The bytes of its line.
    bytes: usize,
}

/// What was known when the program ended last.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) feeds: HashMap<String, Known>,
    pub(super) heard: HashMap<Url, Instant>,
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
        let damaged = |number: usize, error: &dyn std::fmt::Display| {
            let error = io::Error::new(
                io::ErrorKind::InvalidData,
                format!("line {number}: {error}"),
            );
            folder.failed(files::about(&path, &error))
        };
        let (mut lines, mut number) = (text.split(|byte| *byte == b'\n').peekable(), 0);
        while let Some(line) = lines.next() {
            number += 1;
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(note) => notes.add(note, line.len()),
                // What a crash has cut short was not promised to anybody.
                Err(_) if lines.peek().is_none_or(|rest| rest.is_empty()) => {}
                Err(error) => return Err(damaged(number, &error)),
            }
        }
        let said: usize = notes.feeds.values().map(|known| known.bytes).sum();
        let book = Self {
            bytes: length(&text),
            too_many: too_many(u64::try_from(said).unwrap_or(u64::MAX)),
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
        let written = if self.bytes + length(&added) <= self.too_many {
            self.bytes += length(&added);
            files::append_line(&self.path, &added)
        } else {
            let all = lines_of(&all());
            self.bytes = length(&all);
            self.too_many = too_many(self.bytes);
            files::replace(&self.path, &all)
        };
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
    fn add(&mut self, note: Note, bytes: usize) {
        match note {
            Note::Feed {
                feed,
                bookmark,
                sup,
            } => {
                let known = Known {
                    place: bookmark,
                    sup,
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
        }
    }
}
