//! What is left of a feed: its documents, and where each of their entries can be had.
//!
//! Shell over the old archive and what sled gives. An archived document whose bytes are what they were
//! comes before what the log says of it, because others have seen it.

use std::{collections::BTreeMap, ops::Range};

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
    views::{archive_files::Archive, sidecar::Sidecar},
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
}

/// Where the entries of a document are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In its file or its twin, whose bytes have this digest.
    Archive(Digest),
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
    /// The epoch it was appended in.
    pub(super) epoch: Epoch,
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
        self.entries.is_empty() || !self.holes(next).is_empty()
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
    document: Option<Document>,
    sidecar: Option<Sidecar<'static>>,
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
        let (bytes, sidecar) = archive.salvage(name, document);
        if bytes.is_some() || !archived.contains_key(&document.number) {
            let file = Archived {
                name: document,
                bytes,
                document: None,
                sidecar,
            };
            archived.insert(document.number, file);
        }
    }
    archived
}

impl Sources {
    /// Asks the old log. sled may panic over what is damaged.
    fn ask(&mut self, old: &SledLog, key: FeedKey) {
        let _panicked = quietly(|| {
            for (revision, settings) in old.salvage_settings(key) {
                self.settings.entry(revision).or_insert(settings);
            }
            self.openings.extend(old.salvage_openings(key));
            self.head = old.salvage_head(key);
            old.salvage_entries(key, |entry| {
                self.entries.push(FoundEntry {
                    at: entry.at,
                    instant: entry.instant,
                    commit: entry.commit,
                    epoch: entry.document.epoch,
                });
            });
        });
    }

    /// Reads the archived documents, which needs the feed's settings: they tell where it was.
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
    }

    fn documents(&self) -> Vec<FoundDocument> {
        let archived = self.archived.keys().map(|number| number.next());
        let last = archived.chain(self.openings.keys().copied()).max();
        let last = last.unwrap_or(DocumentNumber::OLDEST);
        let mut documents: Vec<FoundDocument> = vec![];
        for number in (1..=last.get()).filter_map(DocumentNumber::new) {
            let document = self.document(number, documents.last());
            documents.push(document);
        }
        place_unknown(&mut documents);
        let ends: Vec<Option<Position>> = documents
            .iter()
            .skip(1)
            .map(|next| Some(next.first))
            .chain([None])
            .collect();
        for (document, end) in documents.iter_mut().zip(ends) {
            if document.source == Source::Log {
                document.entries = self.logged(document.first, end);
            }
        }
        split_open(&mut documents);
        documents
    }

    /// Returns what is told of a document: by its file, the log, its sidecar, or its neighbour.
    fn document(&self, number: DocumentNumber, previous: Option<&FoundDocument>) -> FoundDocument {
        let file = self.archived.get(&number);
        let opening = self.openings.get(&number);
        let sidecar = file.and_then(|file| file.sidecar.as_ref());
        let read = file.and_then(|file| Some((file.document.as_ref()?, file.bytes.as_ref()?)));
        let before = number
            .previous()
            .and_then(|number| self.archived.get(&number));
        let led_to = before
            .and_then(|file| file.document.as_ref())
            .and_then(|document| document.link("next-archive"))
            .and_then(name_of);
        let closed = before
            .and_then(|file| file.sidecar.as_ref())
            .and_then(|sidecar| Instant::parse(&sidecar.closed));
        let epoch = previous.map_or(Epoch::FIRST, |previous| previous.name.epoch);
        let told = read.and_then(|(document, _)| document.history);
        let name = file
            .filter(|_| read.is_some() || sidecar.is_some())
            .map(|file| file.name)
            .or(opening.map(|opening| opening.name))
            .or(led_to)
            .unwrap_or(DocumentName { number, epoch });
        let linked = led_to
            .or(sidecar.and_then(|sidecar| DocumentName::of_file(sidecar.linked.as_ref()?)))
            .or(opening.map(|opening| opening.linked))
            .unwrap_or(name);
        let opened = sidecar
            .and_then(|sidecar| Instant::parse(&sidecar.opened))
            .or(opening.map(|opening| opening.opened))
            .or(closed)
            .or(previous.map(|previous| {
                let newest = previous.entries.last().map(|entry| entry.instant);
                newest.unwrap_or(previous.opened).plus_micros(1)
            }));
        let first = told
            .map(|(first, _)| first)
            .or(opening.map(|opening| opening.first));
        let first = first.or(sidecar.and_then(|sidecar| {
            sidecar
                .entries
                .first()
                .map(|entry| Position(entry.position))
        }));
        let behind = before
            .and_then(|file| file.sidecar.as_ref())
            .and_then(|sidecar| sidecar.entries.last())
            .map(|entry| Position(entry.position).next());
        let mut found = FoundDocument {
            name,
            linked,
            // Where nothing tells, a place is found once its neighbours are known.
            first: first.or(behind).unwrap_or(UNKNOWN),
            before: told
                .map(|(_, before)| before)
                .or(opening.map(|opening| opening.before)),
            revision: self.revision(sidecar, opening, previous),
            opened: opened.unwrap_or_default(),
            entries: vec![],
            source: Source::Log,
        };
        if let Some((document, bytes)) = read {
            found.source = Source::Archive(Digest::of(bytes));
            found.entries = self.entries_of(&found, document, sidecar);
            if sidecar.is_none() && opening.is_none() {
                found.revision = self.revision_that_gives(&found, document, bytes, previous);
            }
        }
        found
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
        bytes: &[u8],
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
            bytes.starts_with(header(&opening, settings, form, updated).as_bytes())
        };
        let mut known = self.settings.iter();
        let giving = known.find(|(_, settings)| gives(settings));
        giving.map_or(found.revision, |(revision, _)| *revision)
    }

    /// Returns what is known of the entries of an archived document. Without its sidecar and the log,
    /// instants can only be those of its newest entry and a little before.
    fn entries_of(
        &self,
        found: &FoundDocument,
        document: &Document,
        sidecar: Option<&Sidecar<'_>>,
    ) -> Vec<FoundEntry> {
        let length = u64::try_from(document.len()).unwrap_or(0);
        let end = Position(found.first.0.saturating_add(length));
        let told = sidecar.map(|sidecar| {
            let entry = |entry: &crate::views::sidecar::SidecarEntry<'_>| {
                Some(FoundEntry {
                    at: Position(entry.position),
                    instant: Instant::parse(&entry.instant)?,
                    commit: CommitNumber(entry.commit),
                    epoch: entry.epoch.unwrap_or(found.name.epoch),
                })
            };
            sidecar.entries.iter().filter_map(entry).collect()
        });
        let is_whole = |entries: &Vec<FoundEntry>| {
            let positions = (found.first.0..end.0).map(Position);
            entries.iter().map(|entry| entry.at).eq(positions)
        };
        let told = told.filter(is_whole);
        let logged = || Some(self.logged(found.first, Some(end))).filter(is_whole);
        let newest = document.updated.unwrap_or(found.opened);
        let guess = || {
            let age = |at: u64| i64::try_from(end.0 - 1 - at).unwrap_or(0);
            let entry = |at| FoundEntry {
                at: Position(at),
                instant: Instant::from_micros(newest.micros() - age(at)),
                commit: CommitNumber(0),
                epoch: found.name.epoch,
            };
            (found.first.0..end.0).map(entry).collect()
        };
        told.or_else(logged).unwrap_or_else(guess)
    }

    /// Returns the entries that the log still has between two positions.
    fn logged(&self, first: Position, end: Option<Position>) -> Vec<FoundEntry> {
        let begin = self.entries.partition_point(|entry| entry.at < first);
        let entries = self.entries.iter().skip(begin);
        entries
            .take_while(|entry| end.is_none_or(|end| entry.at < end))
            .copied()
            .collect()
    }
}

/// Gives documents of which nothing is told a place: behind the one before, if all of that is left, or
/// else where the next one begins.
fn place_unknown(documents: &mut [FoundDocument]) {
    let mut follows = Some(Position(0));
    for document in documents.iter_mut() {
        if document.first == UNKNOWN {
            document.first = follows.unwrap_or(UNKNOWN);
        }
        let whole = matches!(document.source, Source::Archive(_));
        follows = whole.then(|| document.end());
    }
    let mut next = None;
    for document in documents.iter_mut().rev() {
        if document.first == UNKNOWN {
            document.first = next.unwrap_or(UNKNOWN);
        }
        next = Some(document.first);
    }
    // Nothing is told of the newest ones: they begin where the last one known does.
    let mut last = Position(0);
    for document in documents {
        if document.first == UNKNOWN {
            document.first = last;
        }
        last = document.first;
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
            epoch: begin.epoch,
        };
        let next = FoundDocument {
            name,
            linked: name,
            first: begin.at,
            before: None,
            opened: begin.instant,
            entries: rest.clone(),
            ..open.clone()
        };
        documents.push(next);
    }
}

fn name_of(url: &Url) -> Option<DocumentName> {
    DocumentName::of_file(url.path_segments()?.next_back()?)
}
