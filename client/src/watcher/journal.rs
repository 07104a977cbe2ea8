//! The watcher's memory: one file for all feeds.
//!
//! Shell: the disk. Each line is a note about one feed, about one SUP document, or about the token
//! and the allowed origins. Of several lines about the same subject, the last one counts. A file
//! that is more than 1 MiB longer than twice the current lines is replaced as a whole.
//!
//! A power cut may leave any part of the last write on the disk. In place of the rest there may be
//! other bytes, even old lines of the file. So each line is sealed with a place and a checksum. The
//! place is the number of the write, the number of the line within the write, and the number of
//! lines of the write. Only whole writes count, up to the first line that is not whole or not the
//! next one by its place. Such a line is damage if no power cut can be the reason: a later write
//! follows, or the line is of the first write of the file. A power cut never leaves a part of the
//! first write, because the name of the file becomes durable only after that write.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::PathBuf,
};

use serde::{Deserialize, Serialize, de::IgnoredAny};
use simplefeed_core::{digest::Digest, replay::Bookmark, sup::SupAddress, timestamp::Timestamp};
use url::{Origin, Url};

use crate::{
    files,
    state::{StateError, StateFolder},
};

/// Name of the file within the state folder.
const FILE: &str = "watched.ndjson";
/// Length in bytes by which a file may exceed twice the length of the current lines before the file
/// is replaced.
const SMALL_BYTES: u64 = 1024 * 1024;

/// Note of the journal: the content of a line without the seal.
#[expect(clippy::large_enum_variant, reason = "nearly all are of feeds")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum JournalNote {
    Feed {
        feed: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bookmark: Option<Bookmark>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sup: Option<SupAddress>,
        /// Id of the SUP update that was handled last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        update: Option<Box<str>>,
    },
    Heard {
        sup_document: Url,
        /// Timestamp up to which all updates are known, RFC 3339.
        updated: String,
    },
    /// Digest of the token and the allowed origins. With another token or other origins, SUP
    /// documents may list other feeds.
    Asker { asker: String },
}

impl JournalNote {
    /// Returns a feed's note: the place, the SUP address of the feed's updates, and the update that
    /// was handled last.
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
pub(super) struct FeedMemory {
    pub(super) place: Option<Bookmark>,
    pub(super) sup: Option<SupAddress>,
    pub(super) update: Option<Box<str>>,
    /// URL with name and password, if the caller gave any; not from the journal.
    pub(super) given: Option<String>,
    pub(super) origin: Option<Origin>,
    /// Length of the feed's line in the journal, in bytes.
    bytes: usize,
}

impl FeedMemory {
    /// Returns the feed's SUP address, if the feed was read at least once.
    pub(super) fn told(&self) -> Option<&SupAddress> {
        self.sup.as_ref().filter(|_| self.place.is_some())
    }
}

/// Notes that the journal has when the watcher starts.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) feeds: HashMap<String, FeedMemory>,
    pub(super) heard: HashMap<Url, Timestamp>,
    asker: Option<String>,
}

/// Open file of notes, and its length.
#[derive(Debug)]
pub(super) struct NoteJournal {
    /// Holds the folder's lock for the lifetime of the journal.
    folder: StateFolder,
    path: PathBuf,
    bytes: u64,
    /// Number of the last write.
    writes: u64,
    /// Length in bytes above which the file is replaced.
    too_many: u64,
    /// Whether the last write failed. The file may end with a partial line then.
    is_torn: bool,
}

impl NoteJournal {
    /// Opens and reads the journal in a folder.
    pub(super) fn open(folder: StateFolder) -> Result<(Self, Notes), StateError> {
        let path = folder.path().join(FILE);
        let text = match files::read_regular(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            Err(error) => return Err(folder.failed(files::about(&path, &error))),
        };
        let mut notes = Notes::default();
        let read = read_lines(&text, &mut notes);
        // A damaged line is an error, and is not skipped: without this line, an older state of the
        // feed would count.
        let read = read.map_err(|damaged| {
            let error = io::Error::new(io::ErrorKind::InvalidData, damaged);
            folder.failed(files::about(&path, &error))
        })?;
        let (whole, writes) = read;
        let bytes = u64::try_from(whole).unwrap_or(u64::MAX);
        if whole < text.len() {
            // The write that is cut off never succeeded, so no caller relies on that write.
            let cut = files::shorten(&path, bytes);
            cut.map_err(|error| folder.failed(files::about(&path, &error)))?;
        }
        let said: usize = notes.feeds.values().map(|known| known.bytes).sum();
        let journal = Self {
            bytes,
            writes,
            too_many: too_many(u64::try_from(said).unwrap_or(u64::MAX)),
            is_torn: false,
            folder,
            path,
        };
        Ok((journal, notes))
    }

    /// Writes notes, durably. `all` returns the complete state, for the case that the file is
    /// replaced.
    pub(super) fn note(
        &mut self,
        notes: &[JournalNote],
        all: impl FnOnce() -> Vec<JournalNote>,
    ) -> Result<(), StateError> {
        if notes.is_empty() {
            return Ok(());
        }
        self.writes += 1;
        let added = lines_of(notes, self.writes);
        // Nothing is appended to a partial line: the file is replaced, which removes that line.
        let written = if !self.is_torn && self.bytes == 0 {
            self.bytes = line_length(&added);
            files::replace(&self.path, &added)
        } else if !self.is_torn && self.bytes + line_length(&added) <= self.too_many {
            self.bytes += line_length(&added);
            files::append_line(&self.path, &added)
        } else {
            let all = lines_of(&all(), self.writes);
            self.bytes = line_length(&all);
            self.too_many = too_many(self.bytes);
            files::replace(&self.path, &all)
        };
        // After a failure the end of the file is unknown, so the next write replaces the file.
        self.is_torn = written.is_err();
        written.map_err(|error| self.folder.failed(files::about(&self.path, &error)))
    }
}

fn line_length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn too_many(said: u64) -> u64 {
    said.saturating_mul(2).saturating_add(SMALL_BYTES)
}

/// Adds the notes of whole writes that follow each other. Returns the length of these writes, and
/// the number of the last one.
///
/// # Errors
///
/// Names a line that is damaged, or that another version of the program wrote.
fn read_lines(text: &[u8], notes: &mut Notes) -> Result<(usize, u64), String> {
    let (mut whole, mut writes, mut torn): (usize, Option<u64>, Option<usize>) = (0, None, None);
    let (mut last, mut read, mut count) = (None, vec![], 0);
    for (number, line) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
        count = number;
        match unseal_line(line) {
            Some((at, note)) if torn.is_none() && at.follows_line(last) => {
                read.push((note, line.len()));
                last = Some(at);
                if at.ends_its_write() {
                    writes = Some(at.write);
                    for (note, bytes) in read.drain(..) {
                        whole += bytes;
                        notes.add_note(note, bytes);
                    }
                }
            }
            // Behind a torn write there may be more lines of that write, and old lines, but no
            // later write.
            Some((at, _)) if writes.is_some_and(|writes| at.write > writes + 1) => {
                return Err(format!("line {} is damaged", torn.unwrap_or(number)));
            }
            // Before the first whole write, a line without a seal is of another version of the
            // program. If such lines were ignored, feeds would begin at their newest entries.
            // Behind a whole write, a line without a seal is earlier content of the disk.
            None if writes.is_none() && is_unsealed_note(line) => {
                return Err(format!(
                    "line {number} is of another version of this program"
                ));
            }
            _ => {
                torn.get_or_insert(number);
            }
        }
    }
    match writes {
        // The first write of a file is durable before the file's name, so no power cut leaves a
        // part of that write.
        None if !text.is_empty() => Err(format!("line {} is damaged", torn.unwrap_or(count))),
        writes => Ok((whole, writes.unwrap_or(0))),
    }
}

/// Returns whether a line is a JSON object without any part of a seal.
fn is_unsealed_note(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Seal {
        at: Option<IgnoredAny>,
        sum: Option<IgnoredAny>,
    }
    let seal = serde_json::from_slice::<Seal>(line);
    seal.is_ok_and(|seal| seal.at.is_none() && seal.sum.is_none())
}

/// Place of a line in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)")]
struct LinePlace {
    /// Number of the write.
    write: u64,
    /// Number of the line within the write.
    line: u64,
    /// Number of lines of the write.
    lines: u64,
}

impl From<(u64, u64, u64)> for LinePlace {
    fn from((write, line, lines): (u64, u64, u64)) -> Self {
        Self { write, line, lines }
    }
}

impl From<LinePlace> for (u64, u64, u64) {
    fn from(LinePlace { write, line, lines }: LinePlace) -> Self {
        (write, line, lines)
    }
}

impl LinePlace {
    fn ends_its_write(self) -> bool {
        self.line + 1 == self.lines
    }

    /// Returns whether this place comes directly after `last`. The first write of a file may have
    /// any number.
    fn follows_line(self, last: Option<Self>) -> bool {
        match last {
            None => self.line == 0,
            Some(last) if last.ends_its_write() => (self.write, self.line) == (last.write + 1, 0),
            Some(last) => {
                let next = (last.write, last.line + 1, last.lines);
                (self.write, self.line, self.lines) == next
            }
        }
    }
}

/// A line without the checksum.
#[derive(Serialize, Deserialize)]
struct JournalLine<N> {
    #[serde(flatten)]
    note: N,
    at: LinePlace,
}

/// Text before the checksum at the end of a line. `SUM_BYTES` is the length of this text together
/// with the 8 digits of the checksum, the quotation mark, the brace and the newline.
const SUM: &str = ",\"sum\":\"";
const SUM_BYTES: usize = SUM.len() + 11;

fn lines_of(notes: &[JournalNote], write: u64) -> Vec<u8> {
    let mut lines = vec![];
    let count = u64::try_from(notes.len()).unwrap_or(u64::MAX);
    for (line, note) in (0..).zip(notes) {
        let at = LinePlace {
            write,
            line,
            lines: count,
        };
        let line = serde_json::to_vec(&JournalLine { note, at }).expect("a note has a JSON form");
        let sum = sum_of(&line);
        // The last byte is the brace of the object: the checksum goes before the brace.
        lines.extend_from_slice(line.split_last().map_or(&[][..], |(_brace, line)| line));
        lines.extend_from_slice(format!("{SUM}{sum}\"}}\n").as_bytes());
    }
    lines
}

/// Returns the place and the note of a line, if the line is whole.
fn unseal_line(line: &[u8]) -> Option<(LinePlace, JournalNote)> {
    let (line, end) = line.split_at_checked(line.len().checked_sub(SUM_BYTES)?)?;
    let line = [line, b"}"].concat();
    if *end != *format!("{SUM}{}\"}}\n", sum_of(&line)).as_bytes() {
        return None;
    }
    let JournalLine { note, at } = serde_json::from_slice(&line).ok()?;
    Some((at, note))
}

/// Returns the checksum of a line: 8 hexadecimal digits.
fn sum_of(line: &[u8]) -> String {
    let mut digits = Digest::of(line).to_string();
    digits.truncate(8);
    digits
}

impl Notes {
    /// Forgets the SUP addresses of all feeds if they were learnt for another `asker`. Returns the
    /// notes to write to the journal.
    pub(super) fn are_for(&mut self, asker: &str) -> Vec<JournalNote> {
        if self.asker.as_deref() == Some(asker) {
            return vec![];
        }
        let mut notes = vec![];
        for (feed, known) in &mut self.feeds {
            if known.sup.take().is_some() {
                notes.push(JournalNote::feed(feed, known.place.as_ref(), None));
            }
        }
        let asker = asker.into();
        notes.push(JournalNote::Asker { asker });
        notes
    }

    /// Forgets feeds. Returns the notes to write to the journal.
    pub(super) fn forget(&mut self, urls: &HashSet<String>) -> Vec<JournalNote> {
        let known = urls.iter().filter(|url| self.feeds.remove(*url).is_some());
        known
            .map(|url| JournalNote::feed(url, None, None))
            .collect()
    }

    /// Returns a note with the place of each feed that is left, without a SUP address. The second
    /// list has only the notes of those feeds that had a SUP address.
    pub(super) fn of_others(self) -> (Vec<JournalNote>, Vec<JournalNote>) {
        let (mut others, mut were_told) = (vec![], vec![]);
        for (feed, known) in self.feeds {
            // The note omits the SUP address, because a feed that is not watched misses updates.
            let note = JournalNote::feed(&feed, known.place.as_ref(), None);
            were_told.extend(known.sup.map(|_| note.clone()));
            others.push(note);
        }
        (others, were_told)
    }

    fn add_note(&mut self, note: JournalNote, bytes: usize) {
        match note {
            JournalNote::Feed {
                feed,
                bookmark,
                sup,
                update,
            } => {
                let known = FeedMemory {
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
            JournalNote::Heard {
                sup_document,
                updated,
            } => {
                // Without a readable date, the SUP document counts as never heard.
                if let Some(updated) = Timestamp::parse(&updated) {
                    self.heard.insert(sup_document, updated);
                }
            }
            JournalNote::Asker { asker } => self.asker = Some(asker),
        }
    }
}
