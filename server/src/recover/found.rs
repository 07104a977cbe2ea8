//! What is left of a feed: its documents, and where each of their entries can be had.
//!
//! Shell over the old archive and what sled gives. An archived document whose bytes are what they were
//! comes before what the log says of it, because others have seen it.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
};

use bytes::Bytes;
use simplefeed_core::{
    digest::Digest,
    feed::{
        CommitNumber, DocumentName, DocumentNumber, Epoch, FeedKey, FeedName, Position, Revision,
    },
    header::{Form, header},
    history::HistoryHash,
    instant::Instant,
    plan::{FeedHead, Opening},
    reader::Document,
    settings::Settings,
};
use url::Url;

use crate::{
    log::{opening::quietly, sled_log::SledLog},
    views::{
        archive_files::{Archive, Salvaged},
        manifest::Archived as Record,
        sidecar::Sidecar,
    },
};

/// What is left of a feed.
#[derive(Debug)]
pub(super) struct FoundFeed {
    pub(super) name: FeedName,
    pub(super) key: FeedKey,
    /// At least one.
    pub(super) settings: BTreeMap<Revision, Settings>,
    /// All there were, from the first to the open one, be there anything left of them or not.
    pub(super) documents: Vec<FoundDocument>,
    /// The position that the next entry would have got, if the log still tells.
    pub(super) told_end: Option<Position>,
}

/// What is left of a document.
#[derive(Clone, Debug)]
pub(super) struct FoundDocument {
    pub(super) name: DocumentName,
    pub(super) linked: DocumentName,
    pub(super) first: Position,
    /// The history hash before its first entry, where that is told.
    pub(super) before: Option<HistoryHash>,
    pub(super) revision: Revision,
    pub(super) opened: Instant,
    /// Those of its entries that are left, oldest first.
    pub(super) entries: Vec<FoundEntry>,
    pub(super) source: Source,
    /// The digest of its bytes, where anything tells.
    pub(super) expected: Option<Digest>,
    /// Whether nobody may be shown it, because it cannot be made again as it was, or nobody knows.
    pub(super) distrusted: bool,
    /// Whether nothing tells any more what was sent for its entries.
    pub(super) unsent: bool,
}

/// Where the entries of a document are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In its file or its twin.
    Archive,
    /// In the log, as far as they are anywhere.
    Log,
}

/// What is known of an entry besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundEntry {
    pub(super) at: Position,
    pub(super) instant: Instant,
    /// The commit that it was in; 0 if nobody knows.
    pub(super) commit: CommitNumber,
    /// The document that it was appended to.
    pub(super) document: DocumentName,
    /// Whether the instant is a guess.
    pub(super) guessed: bool,
}

impl FoundDocument {
    /// Returns the position after its last entry that is left.
    pub(super) fn end(&self) -> Position {
        self.entries
            .last()
            .map_or(self.first, |entry| entry.at.next())
    }

    /// Whether it is not what it was, if the next document begins at `next`. One without entries was
    /// lost as a whole, and nobody may know where it began.
    pub(super) fn lacks_entries(&self, next: Position) -> bool {
        self.distrusted || self.entries.is_empty() || !self.holes(next).is_empty()
    }

    /// Returns the positions that are missing, if the next document begins at `next`.
    pub(super) fn holes(&self, next: Position) -> Vec<Range<Position>> {
        let mut holes = vec![];
        let mut expected = self.first;
        let ends = self.entries.iter().map(|entry| entry.at).chain([next]);
        for at in ends {
            if at > expected {
                holes.push(expected..at);
            }
            expected = at.next();
        }
        holes
    }
}

/// The file and the sidecar of a document, as far as they are left.
struct Archived {
    name: DocumentName,
    bytes: Option<Bytes>,
    /// Whether the bytes are what they were.
    proven: bool,
    document: Option<Document>,
    sidecar: Option<Sidecar<'static>>,
    record: Option<Record>,
}

/// All sources for one feed.
struct Sources {
    archived: BTreeMap<DocumentNumber, Archived>,
    openings: BTreeMap<DocumentNumber, Opening>,
    settings: BTreeMap<Revision, Settings>,
    /// Of the log, in order.
    entries: Vec<FoundEntry>,
    head: Option<FeedHead>,
}

impl FoundFeed {
    /// Puts a feed together; `None` if nothing tells what its documents look like.
    pub(super) fn find(
        name: &FeedName,
        key: Option<FeedKey>,
        old: Option<&SledLog>,
        archive: &Archive,
    ) -> Option<Self> {
        let mut sources = Sources {
            archived: archived(name, archive),
            openings: BTreeMap::new(),
            settings: BTreeMap::new(),
            entries: vec![],
            head: None,
        };
        for sidecar in sources
            .archived
            .values()
            .filter_map(|file| file.sidecar.as_ref())
        {
            let revision = Revision(sidecar.revision);
            sources
                .settings
                .insert(revision, sidecar.settings.clone().into_owned());
        }
        let told = sources.settings.values().next();
        let key = told.map(|settings| settings.id.key()).or(key)?;
        if let Some(old) = old {
            sources.ask(old, key);
        }
        sources.settings.first_key_value()?;
        sources.read_documents();
        let told_end = sources.head.as_ref().map(|head| head.next);
        let documents = sources.documents();
        Some(Self {
            name: name.clone(),
            key,
            settings: sources.settings,
            documents,
            told_end,
        })
    }
}

fn archived(name: &FeedName, archive: &Archive) -> BTreeMap<DocumentNumber, Archived> {
    let mut archived: BTreeMap<DocumentNumber, Archived> = BTreeMap::new();
    // Of two that have a number, the one of the later epoch counts, unless nothing is left of it.
    for document in archive.documents(name) {
        let Salvaged {
            bytes,
            proven,
            sidecar,
            record,
        } = archive.salvage(name, document);
        if bytes.is_some() || !archived.contains_key(&document.number) {
            let file = Archived {
                name: document,
                bytes,
                proven,
                document: None,
                sidecar,
                record,
            };
            archived.insert(document.number, file);
        }
    }
    archived
}

impl Sources {
    /// Asks the old log. sled may panic over what is damaged.
    fn ask(&mut self, old: &SledLog, key: FeedKey) {
        for (revision, settings) in quietly(|| old.salvage_settings(key)).unwrap_or_default() {
            self.settings.entry(revision).or_insert(settings);
        }
        let openings = quietly(|| old.salvage_openings(key));
        self.openings.extend(openings.unwrap_or_default());
        self.head = quietly(|| old.salvage_head(key)).flatten();
        let _panicked = quietly(|| {
            old.salvage_entries(key, |entry| {
                self.entries.push(FoundEntry {
                    at: entry.at,
                    instant: entry.instant,
                    commit: entry.commit,
                    document: entry.document,
                    guessed: false,
                });
            });
        });
    }

    /// Reads the archived documents, which needs the feed's settings: they tell where it was. What nothing
    /// else proves, the history hash before the next document does.
    fn read_documents(&mut self) {
        let Some((_, settings)) = self.settings.last_key_value() else {
            return;
        };
        for file in self.archived.values_mut() {
            let url = Url::parse(&settings.document_url(file.name)).ok();
            let bytes = file.bytes.clone();
            let document = bytes
                .zip(url)
                .and_then(|(bytes, url)| Document::read(bytes, &url).ok());
            file.document = document.filter(|document| document.history.is_some());
        }
        let mut before: BTreeMap<DocumentNumber, HistoryHash> = self
            .openings
            .iter()
            .map(|(number, opening)| (*number, opening.before))
            .collect();
        let proven = self.archived.iter().filter(|(_, file)| file.proven);
        let told =
            proven.filter_map(|(number, file)| Some((number, file.document.as_ref()?.history?)));
        before.extend(told.map(|(number, (_, before))| (*number, before)));
        for (number, file) in &mut self.archived {
            let after = file.document.as_ref().and_then(history_after);
            let expected = before.get(&number.next()).copied();
            if !file.proven && (after.is_none() || after != expected) {
                file.document = None;
            }
        }
        // What is left of a document that was about to be archived says nothing, not even that it was
        // closed: nobody was told so.
        self.archived.retain(|_, file| {
            file.document.is_some() || file.sidecar.is_some() || file.record.is_some()
        });
    }

    fn documents(&self) -> Vec<FoundDocument> {
        let archived = self.archived.keys().map(|number| number.next());
        let appended = self.entries.iter().map(|entry| entry.document.number);
        let last = archived
            .chain(self.openings.keys().copied())
            .chain(appended);
        let last = last.max().unwrap_or(DocumentNumber::OLDEST);
        let mut documents: Vec<FoundDocument> = vec![];
        for number in (1..=last.get()).filter_map(DocumentNumber::new) {
            let document = self.document(number, documents.last());
            documents.push(document);
        }
        place_unknown(&mut documents);
        split_open(&mut documents);
        documents
    }

    /// Returns what is told of a document: by its file, the log, its sidecar, its record, or its
    /// neighbours.
    fn document(&self, number: DocumentNumber, previous: Option<&FoundDocument>) -> FoundDocument {
        let file = self.archived.get(&number);
        let opening = self.openings.get(&number);
        let sidecar = file.and_then(|file| file.sidecar.as_ref());
        let record = file.and_then(|file| file.record.as_ref());
        let read = file.and_then(|file| file.document.as_ref());
        let before = self.before(number);
        let logged = self.logged(number);
        let told = read.and_then(|document| document.history);

        let epoch = previous.map_or(Epoch::FIRST, |previous| previous.name.epoch);
        let name = self.name(number, &logged);
        let name = name.unwrap_or(DocumentName { number, epoch });
        let opened = sidecar
            .and_then(|sidecar| Instant::parse(&sidecar.opened))
            .or(opening.map(|opening| opening.opened))
            .or(record.map(|record| record.opened))
            .or(before.closed())
            .or(logged.first().map(|entry| entry.instant))
            .or(previous.map(|previous| {
                let newest = previous.entries.last().map(|entry| entry.instant);
                newest.unwrap_or(previous.opened).plus_micros(1)
            }));
        let first = told
            .map(|(first, _)| first)
            .or(opening.map(|opening| opening.first))
            .or(record.map(|record| record.first))
            .or(sidecar.and_then(first_of))
            .or(before.end())
            .or(logged.first().map(|entry| entry.at));
        let expected = sidecar
            .map(|sidecar| sidecar.sha256)
            .or(record.map(|record| record.identity.digest))
            .or(file
                .filter(|_| read.is_some())
                .and_then(|file| Some(Digest::of(file.bytes.as_ref()?))));
        let exact = opening.is_some_and(|opening| self.settings.contains_key(&opening.revision));
        let mut found = FoundDocument {
            name,
            linked: self.linked(number).unwrap_or(name),
            // Where nothing tells, a place is found once its neighbours are known.
            first: first.unwrap_or(UNKNOWN),
            before: told
                .map(|(_, before)| before)
                .or(opening.map(|opening| opening.before)),
            revision: self.revision(sidecar, opening, previous),
            opened: opened.unwrap_or_default(),
            source: Source::Log,
            expected,
            // What nothing can be compared with must be known exactly, and where it ends.
            distrusted: expected.is_none()
                && !(exact && self.openings.contains_key(&number.next())),
            unsent: read.is_some() && sidecar.is_none() && logged.is_empty(),
            entries: logged,
        };
        if let Some(document) = read {
            found.source = Source::Archive;
            found.entries = entries_of(&found, document, sidecar);
            if sidecar.is_none() && opening.is_none() {
                found.revision = self.revision_that_gives(&found, document, previous);
            }
        }
        found
    }

    fn before(&self, number: DocumentNumber) -> Neighbour<'_> {
        let before = number.previous();
        Neighbour(before.and_then(|number| self.archived.get(&number)))
    }

    /// Returns what a document is called.
    fn name(&self, number: DocumentNumber, logged: &[FoundEntry]) -> Option<DocumentName> {
        let told = |file: &&Archived| {
            file.document.is_some() || file.sidecar.is_some() || file.record.is_some()
        };
        let file = self.archived.get(&number).filter(told);
        let opening = self.openings.get(&number);
        let after = Neighbour(self.archived.get(&number.next()));
        file.map(|file| file.name)
            .or(opening.map(|opening| opening.name))
            .or(after.link("prev-archive"))
            .or(logged.last().map(|entry| entry.document))
            .or(self.before(number).link("next-archive"))
    }

    /// Returns what its predecessor calls a document.
    fn linked(&self, number: DocumentNumber) -> Option<DocumentName> {
        let file = self.archived.get(&number);
        let sidecar = file.and_then(|file| file.sidecar.as_ref());
        let opening = self.openings.get(&number);
        let before = self.before(number);
        let closed_in = before.closed_in();
        before
            .link("next-archive")
            .or(sidecar.and_then(|sidecar| DocumentName::of_file(sidecar.linked.as_ref()?)))
            .or(opening.map(|opening| opening.linked))
            .or(closed_in.map(|epoch| DocumentName { number, epoch }))
    }

    fn revision(
        &self,
        sidecar: Option<&Sidecar<'_>>,
        opening: Option<&Opening>,
        previous: Option<&FoundDocument>,
    ) -> Revision {
        let told = sidecar
            .map(|sidecar| Revision(sidecar.revision))
            .or(opening.map(|opening| opening.revision))
            .or(previous.map(|previous| previous.revision));
        let told = told.unwrap_or(Revision::FIRST);
        let known = self.settings.range(..=told).next_back();
        known
            .or(self.settings.first_key_value())
            .map_or(told, |(revision, _)| *revision)
    }

    /// Returns the settings under which the header is what it is.
    fn revision_that_gives(
        &self,
        found: &FoundDocument,
        document: &Document,
        previous: Option<&FoundDocument>,
    ) -> Revision {
        let next = document.link("next-archive").and_then(name_of);
        let opening = Opening {
            name: found.name,
            linked: found.linked,
            previous: previous.map(|previous| previous.name),
            first: found.first,
            before: found.before.unwrap_or(HistoryHash(Digest([0; 32]))),
            revision: found.revision,
            opened: found.opened,
            after_loss: false,
            since: document.since,
        };
        let gives = |settings: &Settings| {
            let form = Form::Archived {
                next: next.unwrap_or(found.name),
            };
            let updated = document.updated.unwrap_or_default();
            let header = header(&opening, settings, form, updated);
            let file = self.archived.get(&found.name.number);
            let bytes = file.and_then(|file| file.bytes.as_ref());
            bytes.is_some_and(|bytes| bytes.starts_with(header.as_bytes()))
        };
        let mut known = self.settings.iter();
        let giving = known.find(|(_, settings)| gives(settings));
        giving.map_or(found.revision, |(revision, _)| *revision)
    }

    /// Returns the entries of a document that the log still has.
    fn logged(&self, number: DocumentNumber) -> Vec<FoundEntry> {
        let begin = self
            .entries
            .partition_point(|entry| entry.document.number < number);
        let entries = self.entries.iter().skip(begin);
        entries
            .take_while(|entry| entry.document.number == number)
            .copied()
            .collect()
    }
}

/// Returns what is known of the entries of an archived document. Where neither its sidecar nor the log
/// tells, instants are guessed, but that of the newest one.
fn entries_of(
    found: &FoundDocument,
    document: &Document,
    sidecar: Option<&Sidecar<'_>>,
) -> Vec<FoundEntry> {
    let length = u64::try_from(document.len()).unwrap_or(0);
    let end = found.first.0.saturating_add(length);
    let mut told: BTreeMap<Position, FoundEntry> = found
        .entries
        .iter()
        .map(|entry| (entry.at, *entry))
        .collect();
    for entry in sidecar.iter().flat_map(|sidecar| &sidecar.entries) {
        if let Some(instant) = Instant::parse(&entry.instant) {
            let at = Position(entry.position);
            let epoch = entry.epoch.unwrap_or(found.name.epoch);
            let known = FoundEntry {
                at,
                instant,
                commit: CommitNumber(entry.commit),
                document: DocumentName {
                    epoch,
                    ..found.name
                },
                guessed: false,
            };
            told.insert(at, known);
        }
    }
    let newest = document.updated.unwrap_or(found.opened);
    let guess = |at: u64| {
        let age = i64::try_from(end - 1 - at).unwrap_or(0);
        FoundEntry {
            at: Position(at),
            instant: Instant::from_micros(newest.micros() - age),
            commit: CommitNumber(0),
            document: found.name,
            guessed: at + 1 < end,
        }
    };
    (found.first.0..end)
        .map(|at| {
            told.get(&Position(at))
                .copied()
                .unwrap_or_else(|| guess(at))
        })
        .collect()
}

/// What the archive tells of a document's neighbour.
struct Neighbour<'a>(Option<&'a Archived>);

impl Neighbour<'_> {
    fn link(&self, rel: &str) -> Option<DocumentName> {
        name_of(self.0?.document.as_ref()?.link(rel)?)
    }

    /// Returns when it was closed.
    fn closed(&self) -> Option<Instant> {
        let file = self.0?;
        let sidecar = file.sidecar.as_ref();
        sidecar
            .and_then(|sidecar| Instant::parse(&sidecar.closed))
            .or(file.record.map(|record| record.closed))
    }

    fn closed_in(&self) -> Option<Epoch> {
        self.0?.record.map(|record| record.closed_in)
    }

    /// Returns the position after its last entry.
    fn end(&self) -> Option<Position> {
        let file = self.0?;
        let sidecar = file.sidecar.as_ref();
        let last = sidecar.and_then(|sidecar| sidecar.entries.last());
        last.map(|entry| Position(entry.position).next()).or(file
            .record
            .map(|record| Position(record.first.0 + record.entries)))
    }
}

fn first_of(sidecar: &Sidecar<'_>) -> Option<Position> {
    sidecar
        .entries
        .first()
        .map(|entry| Position(entry.position))
}

/// Returns the history hash after a document.
fn history_after(document: &Document) -> Option<HistoryHash> {
    let (_, before) = document.history?;
    let oldest_first = (0..document.len()).rev();
    let entries = oldest_first.filter_map(|index| document.entry(index));
    Some(entries.fold(before, |hash, entry| hash.extend(entry.fragment)))
}

/// Moves guessed instants to where nothing is known to have happened, so that they displace nothing.
pub(super) fn free_guesses(feeds: &mut [FoundFeed]) {
    let entries = |feed: &FoundFeed| {
        let entries = feed.documents.iter().flat_map(|document| &document.entries);
        entries.copied().collect::<Vec<_>>()
    };
    let mut taken: HashSet<Instant> = feeds
        .iter()
        .flat_map(entries)
        .filter(|entry| !entry.guessed)
        .map(|entry| entry.instant)
        .collect();
    let documents = feeds.iter_mut().flat_map(|feed| &mut feed.documents);
    for document in documents {
        let mut later: Option<Instant> = None;
        for entry in document.entries.iter_mut().rev() {
            while entry.guessed
                && (later.is_some_and(|later| entry.instant >= later)
                    || taken.contains(&entry.instant))
            {
                entry.instant = Instant::from_micros(entry.instant.micros() - 1);
            }
            taken.insert(entry.instant);
            later = Some(entry.instant);
        }
    }
}

/// Gives documents of which nothing is told a place: behind the one before, if all of that is left, or
/// else where the next one begins; but never before what is left of the one before.
fn place_unknown(documents: &mut [FoundDocument]) {
    let mut follows = Some(Position(0));
    for document in documents.iter_mut() {
        if document.first == UNKNOWN {
            document.first = follows.unwrap_or(UNKNOWN);
        }
        let whole = document.source == Source::Archive;
        follows = whole.then(|| document.end());
    }
    let mut next = None;
    for document in documents.iter_mut().rev() {
        if document.first == UNKNOWN {
            document.first = next.unwrap_or(UNKNOWN);
        }
        next = Some(document.first);
    }
    let mut end = Position(0);
    for document in documents {
        if document.first == UNKNOWN {
            document.first = end;
        }
        end = document.end().max(end);
    }
}

/// A place that nothing tells.
const UNKNOWN: Position = Position(u64::MAX);

/// Cuts the open document at its holes: a document that lacks entries is never shown.
fn split_open(documents: &mut Vec<FoundDocument>) {
    while let Some(open) = documents.last_mut() {
        let broken = |pair: &[FoundEntry]| match pair {
            [one, next] => one.at.next() != next.at,
            _ => false,
        };
        let starts_late = open
            .entries
            .first()
            .is_some_and(|entry| entry.at > open.first);
        let cut = if starts_late {
            Some(0)
        } else {
            open.entries
                .windows(2)
                .position(broken)
                .map(|index| index + 1)
        };
        let Some(cut) = cut else { return };
        let rest = open.entries.split_off(cut);
        let Some(begin) = rest.first() else { return };
        let name = DocumentName {
            number: open.name.number.next(),
            epoch: begin.document.epoch,
        };
        let next = FoundDocument {
            name,
            linked: name,
            first: begin.at,
            before: None,
            opened: begin.instant,
            expected: None,
            entries: rest.clone(),
            ..open.clone()
        };
        documents.push(next);
    }
}

fn name_of(url: &Url) -> Option<DocumentName> {
    DocumentName::of_file(url.path_segments()?.next_back()?)
}
