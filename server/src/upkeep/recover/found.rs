//! The remains of a feed: the documents of the feed, and the source of their entries.
//!
//! Shell: the old archive and the records that sled still returns. Proven bytes of an archived
//! document have precedence over the log's records of the same entries, because consumers have seen
//! these bytes.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::Range,
};

use bytes::Bytes;
use simplefeed_core::{
    digest::Digest,
    feed::{
        CommitNumber, DocumentName, DocumentNumber, Epoch, FeedKey, FeedName, Position, Revision,
    },
    header::{DocumentForm, header},
    history::HistoryHash,
    plan::{FeedHead, Opening},
    reader::Document,
    settings::Settings,
    timestamp::Timestamp,
};
use simplefeed_log::sled::{quietly, salvage::Remains};
use simplefeed_views::documents::{
    archive::{Archive, Evidence, SalvageRemains},
    manifest::ManifestRecord as Record,
    sidecar::Sidecar,
};
use url::Url;

/// The remains of a feed, from all sources.
#[derive(Debug)]
pub(super) struct FoundFeed {
    pub(super) name: FeedName,
    pub(super) key: FeedKey,
    /// Settings that can be read, by revision; at least one.
    pub(super) settings: BTreeMap<Revision, Settings>,
    /// All documents from the first to the open one, including those of which nothing is left.
    pub(super) documents: Vec<FoundDocument>,
    /// Position from which on the log differs from the archived documents, and the number of the
    /// log's entries that are left out for that reason.
    pub(super) parted: Option<(Position, usize)>,
    /// Documents of which some entries are left out, because other documents have their positions;
    /// with the number of these entries.
    pub(super) overlapping: Vec<(DocumentName, usize)>,
    /// Documents of another feed that had this one's name.
    pub(super) foreign: BTreeSet<DocumentName>,
    /// Documents of the time before a restoration. The log does not go on from them.
    pub(super) abandoned: BTreeSet<DocumentName>,
    /// Documents of which one of the two trees, `www` and `closed`, has only other contents.
    pub(super) elsewhere: BTreeSet<DocumentName>,
    /// Documents of another log, or with damage, that are left out.
    pub(super) left_out: BTreeSet<DocumentName>,
    /// Whether the feed is closed according to its last settings although a web server may have
    /// shown its documents.
    pub(super) was_shown: bool,
    /// The log's own feed of this name, if the documents are another feed's.
    pub(super) in_log: Option<FeedKey>,
    /// Position of the next entry according to the log's head; `None` if the head cannot be read.
    pub(super) told_end: Option<Position>,
}

/// The remains of a document.
#[derive(Clone, Debug)]
pub(super) struct FoundDocument {
    pub(super) name: DocumentName,
    pub(super) linked: DocumentName,
    pub(super) first: Position,
    /// History hash before the first entry, if the document's own bytes or the log have that hash.
    pub(super) before: Option<HistoryHash>,
    pub(super) revision: Revision,
    pub(super) opened: Timestamp,
    /// Entries that are left, oldest first.
    pub(super) entries: Vec<FoundEntry>,
    pub(super) source: EntrySource,
    /// Digest that the document's bytes must have, from the sidecar, the record or the found bytes.
    pub(super) expected: Option<Digest>,
    /// Whether the document is never shown again, because the bytes came out different, are
    /// unknown, or are of another feed.
    pub(super) distrusted: bool,
    /// Whether digests of sent forms are lost, so that repeats of the document's entries may count
    /// as conflicts.
    pub(super) unsent: bool,
}

/// Where the entries of a document are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntrySource {
    /// In the document's file, or in the compressed twin.
    Archive,
    /// In the log, as far as the log has them.
    Log,
}

/// Facts about an entry besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundEntry {
    pub(super) at: Position,
    pub(super) instant: Timestamp,
    /// Commit that appended the entry; 0 if unknown.
    pub(super) commit: CommitNumber,
    /// Document to which the entry was appended.
    pub(super) document: DocumentName,
    /// Whether the instant is a guess.
    pub(super) guessed: bool,
}

impl FoundDocument {
    /// Returns the position after the last entry that is left.
    pub(super) fn end(&self) -> Position {
        self.entries
            .last()
            .map_or(self.first, |entry| entry.at.next())
    }

    /// Returns whether the document is incomplete or distrusted, if the next document begins at
    /// `next`. A document without entries was lost as a whole, and its first position may be
    /// unknown.
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

/// The file, the sidecar and the record of a document, as far as they are left.
struct DocumentRemains {
    name: DocumentName,
    bytes: Option<Bytes>,
    /// Evidence for the bytes.
    evidence: Evidence,
    document: Option<Document>,
    sidecar: Option<Sidecar<'static>>,
    record: Option<Record>,
    /// Whether one of the trees has only other bytes under this name.
    is_elsewhere: bool,
    /// Whether a web server may have served the document.
    is_shown: bool,
}

impl DocumentRemains {
    fn is_proven(&self) -> bool {
        self.evidence == Evidence::Proven
    }
}

/// All sources for one feed.
struct FeedSources {
    /// The files that are left, until one file is chosen for each number.
    files: Vec<DocumentRemains>,
    archived: BTreeMap<DocumentNumber, DocumentRemains>,
    openings: BTreeMap<DocumentNumber, Opening>,
    settings: BTreeMap<Revision, Settings>,
    /// Entries that the log still has, by position, with the digests of their fragments.
    entries: Vec<(FoundEntry, Digest)>,
    /// Proven documents of another feed that had this one's name.
    foreign: BTreeSet<DocumentName>,
    /// Documents of the time before a restoration. The log does not go on from them.
    abandoned: BTreeSet<DocumentName>,
    /// Documents of another log, or with damage.
    left_out: BTreeSet<DocumentName>,
    head: Option<FeedHead>,
}

impl FoundFeed {
    /// Puts a feed together; `None` if none of its settings is left.
    pub(super) fn find(
        name: &FeedName,
        key: Option<FeedKey>,
        old: Option<&Remains>,
        archive: &Archive,
    ) -> Option<Self> {
        let mut sources = FeedSources {
            files: files_of(name, archive),
            archived: BTreeMap::new(),
            openings: BTreeMap::new(),
            settings: BTreeMap::new(),
            entries: vec![],
            foreign: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            left_out: BTreeSet::new(),
            head: None,
        };
        // A sidecar has the feed's key even if the log is gone. Sidecars of proven documents come
        // first: a sidecar whose document is gone may be of a feed that had this name before.
        let key_of = |sidecar: &Sidecar<'_>| sidecar.settings.id.key();
        let proven = sources.files.iter().filter(|file| file.is_proven());
        let told = proven.filter_map(|file| file.sidecar.as_ref()).map(key_of);
        let told: Vec<FeedKey> = told.collect();
        // There may be proven documents of several feeds that had this name. If one of them has the
        // log's key, that key counts. Otherwise the key of the newest document counts, because
        // consumers have seen that document.
        let own = key.filter(|key| told.contains(key));
        let told = own.or(told.last().copied());
        let any = sources
            .files
            .iter()
            .filter_map(|file| file.sidecar.as_ref());
        let any = any.map(key_of).next();
        let in_log = key.filter(|key| told.is_some_and(|told| told != *key));
        let key = told.or(key).or(any)?;
        for file in &mut sources.files {
            // A sidecar of another feed says nothing about the documents of this one.
            let sidecar = file.sidecar.take_if(|sidecar| key_of(sidecar) == key);
            if let Some(sidecar) = &sidecar {
                let settings = sidecar.settings.clone().into_owned();
                sources
                    .settings
                    .insert(Revision(sidecar.revision), settings);
            }
            file.sidecar = sidecar;
        }
        if let Some(old) = old {
            sources.read_records(old, key);
        }
        // Without settings, no header can be made.
        sources.settings.first_key_value()?;
        let elsewhere = sources.files.iter().filter(|file| file.is_elsewhere);
        let elsewhere = elsewhere.map(|file| file.name).collect();
        let last = sources.settings.last_key_value();
        let was_shown = last.is_some_and(|(_, settings)| settings.is_closed())
            && sources.files.iter().any(|file| file.is_shown);
        // The order matters: the documents show from where on the log is another one, and the head
        // of another log does not tell the end of this feed.
        sources.read_documents();
        let parted = sources.leave_other_log();
        let told_end = sources.head.as_ref().map(|head| head.next);
        let (documents, overlapping) = sources.list_documents();
        Some(Self {
            name: name.clone(),
            key,
            settings: sources.settings,
            documents,
            parted,
            overlapping,
            foreign: sources.foreign,
            abandoned: sources.abandoned,
            left_out: sources.left_out,
            elsewhere,
            was_shown,
            in_log,
            told_end,
        })
    }
}

/// Returns the files of a feed's documents, in the order of their names.
fn files_of(name: &FeedName, archive: &Archive) -> Vec<DocumentRemains> {
    let documents = archive.documents(name).into_iter();
    let files = documents.map(|document| {
        let SalvageRemains {
            bytes,
            evidence,
            sidecar,
            record,
            is_elsewhere,
            is_shown,
        } = archive.salvage(name, document);
        DocumentRemains {
            name: document,
            bytes,
            evidence,
            document: None,
            sidecar,
            record,
            is_elsewhere,
            is_shown,
        }
    });
    files.collect()
}

impl FeedSources {
    /// Reads the old log's records of a feed. sled may panic over damaged records.
    fn read_records(&mut self, old: &Remains, key: FeedKey) {
        // The settings of a sidecar stay, because the document's header was made of them.
        for (revision, settings) in quietly(|| old.settings(key)).unwrap_or_default() {
            self.settings.entry(revision).or_insert(settings);
        }
        let openings = quietly(|| old.openings(key));
        self.openings.extend(openings.unwrap_or_default());
        self.head = quietly(|| old.feed(key)).flatten();
        let mut found = BTreeMap::new();
        // The entries that were read before a panic are kept. The map removes repeats, because a
        // settling that broke off has left some entries in several places.
        let _panicked = quietly(|| {
            old.entries(key, |entry| {
                let facts = FoundEntry {
                    at: entry.at,
                    instant: entry.instant,
                    commit: entry.commit,
                    document: entry.document,
                    guessed: false,
                };
                found.insert(entry.at, (facts, Digest::of(&entry.fragment)));
            });
        });
        self.entries = found.into_values().collect();
    }

    /// Reads the archived documents. The URL of a document, to which the document's links are
    /// relative, follows from the feed's settings. An unproven document counts only if its
    /// neighbours prove it (see [`prove_by_neighbours`](Self::prove_by_neighbours)).
    fn read_documents(&mut self) {
        let last = self.settings.last_key_value();
        let Some(settings) = last.map(|(_, settings)| settings.clone()) else {
            return;
        };
        for mut file in std::mem::take(&mut self.files) {
            let url = Url::parse(&settings.document_url(file.name)).ok();
            let bytes = file.bytes.clone();
            let document = bytes
                .zip(url)
                .and_then(|(bytes, url)| Document::read(bytes, &url).ok());
            // Without `history`, the positions of a document are unknown.
            let document = document.filter(|document| document.history.is_some());
            let is_own = |document: &Document| document.feed == settings.id.to_string();
            if document.as_ref().is_some_and(|found| !is_own(found)) {
                // Only proven bytes show that another feed had this name. Unproven bytes may just
                // be damaged.
                let of_others = if file.is_proven() {
                    &mut self.foreign
                } else {
                    &mut self.left_out
                };
                of_others.insert(file.name);
            }
            file.document = document.filter(is_own);
            if is_abandoned(&file, &self.openings) {
                self.abandoned.insert(file.name);
                // No fact about an abandoned document is true of the log's document with the same
                // number.
                (file.document, file.sidecar, file.record) = (None, None, None);
            }
            self.choose_file(file);
        }
        self.prove_by_neighbours();
        // A record or a sidecar without a document is dropped if its facts differ from the log's:
        // it belongs to a document of another log.
        for (number, file) in &mut self.archived {
            let Some(opening) = self
                .openings
                .get(number)
                .filter(|_| file.document.is_none())
            else {
                continue;
            };
            let facts = (opening.first, opening.opened);
            file.record = file
                .record
                .filter(|record| (record.first, record.opened) == facts);
            file.sidecar = file.sidecar.take_if(|sidecar| {
                let opened = Timestamp::parse(&sidecar.opened);
                first_of(sidecar)
                    .zip(opened)
                    .is_none_or(|told| told == facts)
            });
        }
        // Unproven bytes without a sidecar and a record are dropped: they are of a document that
        // was about to be archived, or of another log, or damaged.
        self.archived.retain(|_, file| {
            file.document.is_some() || file.sidecar.is_some() || file.record.is_some()
        });
    }

    /// Keeps one of two documents with the same number: the readable one; else the one of this log;
    /// else the one with a sidecar or a record; else the one with more evidence; else the one of
    /// the later epoch.
    fn choose_file(&mut self, file: DocumentRemains) {
        let rank = |file: &DocumentRemains| {
            let document = file.document.as_ref();
            let opening = self.openings.get(&file.name.number);
            let is_own = file.is_proven()
                && opening.is_some_and(|opening| opening.name == file.name)
                && document.is_some_and(|document| self.contradicted_entry(document).is_none());
            let is_told = file.sidecar.is_some() || file.record.is_some();
            let epoch = file.name.epoch;
            // The facts are in the order of their weight: each decides only between documents that
            // are equal in all facts before.
            (document.is_some(), is_own, is_told, file.evidence, epoch)
        };
        let number = file.name.number;
        let other = match self.archived.get(&number) {
            Some(other) if rank(other) > rank(&file) => Some(file),
            _ => self.archived.insert(number, file),
        };
        let other = other.filter(|other| other.document.is_some());
        self.left_out.extend(other.map(|other| other.name));
    }

    /// Leaves out unproven documents that no neighbour proves, and documents of another
    /// restoration. A document is proven if its entries lead to the history hash with which the
    /// next document begins, according to the log or to a proven document. For a document of a
    /// later log, no such hash is known. Then the document must go on from the document before. In
    /// addition, the next document must go on from this one, or the checksum of this one must be
    /// right, or this one must be the last document of that log.
    fn prove_by_neighbours(&mut self) {
        let mut before: BTreeMap<DocumentNumber, HistoryHash> = self
            .openings
            .iter()
            .map(|(number, opening)| (*number, opening.before))
            .collect();
        let proven = self.archived.iter().filter(|(_, file)| file.is_proven());
        let told =
            proven.filter_map(|(number, file)| Some((number, file.document.as_ref()?.history?)));
        // The hash in a proven document has precedence over the hash in the log's opening of that
        // document.
        before.extend(told.filter_map(|(number, (_, before))| Some((*number, before?))));
        let begins = |file: &DocumentRemains| {
            let document = file.document.as_ref()?;
            let own = name_of(document.link("self")?);
            document.history?.1.filter(|_| own == Some(file.name))
        };
        let begun: BTreeMap<DocumentNumber, HistoryHash> = self
            .archived
            .iter()
            .filter_map(|(number, file)| Some((*number, begins(file)?)))
            .collect();
        // Name of the document before, if that document is kept, and the history hash after its
        // entries.
        let mut kept: Option<DocumentName> = None;
        let mut behind: Option<(DocumentNumber, HistoryHash)> = None;
        for (number, file) in &mut self.archived {
            let after = file.document.as_ref().and_then(Document::history_after);
            let next = number.next();
            let is_followed = after.is_some() && before.get(&next) == after.as_ref();
            let begin = begun.get(number).copied();
            let logged = self.openings.get(number).map(|opening| opening.before);
            let previous = behind.filter(|(before, _)| before.next() == *number);
            let previous = previous.map(|(_, hash)| hash);
            let goes_on = begin.is_some() && (begin == previous || begin == logged);
            let has_next = after.is_some() && begun.get(&next) == after.as_ref();
            let is_last_of_others = begin == previous && begin != logged;
            let is_of_others =
                goes_on && (has_next || file.evidence == Evidence::Intact || is_last_of_others);
            // A document of another restoration links to another predecessor.
            let opened = number
                .previous()
                .and_then(|before| self.openings.get(&before));
            let names: Vec<DocumentName> = opened
                .iter()
                .flat_map(|opening| [opening.name, opening.linked])
                .chain(kept.filter(|kept| Some(kept.number) == number.previous()))
                .collect();
            let document = file.document.as_ref();
            let named = document.and_then(|document| name_of(document.link("prev-archive")?));
            let is_told = file.sidecar.is_some() || file.record.is_some();
            let is_apart = !is_told
                && named.is_some_and(|named| {
                    !names.is_empty() && !names.contains(&named) || self.left_out.contains(&named)
                });
            if is_apart || !file.is_proven() && !is_followed && !is_of_others {
                if begin.is_some() {
                    self.left_out.insert(file.name);
                }
                file.document = None;
            }
            kept = file.document.as_ref().map(|_| file.name);
            behind = after
                .filter(|_| kept.is_some())
                .map(|after| (*number, after));
        }
    }

    /// Leaves out entries of the log, from the first entry on that an archived document
    /// contradicts: the served log was another one, and had other entries at these positions.
    /// Returns the position of that first entry, and the number of entries that are left out.
    fn leave_other_log(&mut self) -> Option<(Position, usize)> {
        let documents = self
            .archived
            .values()
            .filter_map(|file| file.document.as_ref());
        let parted = documents
            .filter_map(|document| self.contradicted_entry(document))
            .min()?;
        let kept = self.entries.partition_point(|(entry, _)| entry.at < parted);
        let left_out = self.entries.split_off(kept).len();
        // The head does not count any more: it does not tell how the served log went on behind its
        // documents.
        self.openings.retain(|_, opening| opening.first < parted);
        self.head = None;
        Some((parted, left_out))
    }

    /// Returns the position of the first entry of the log that an archived document contradicts.
    /// Such an entry lies before the document's end and is later than the document's newest entry.
    /// Or it lies in the document and has other bytes, or it is the newest entry there and has
    /// another instant.
    fn contradicted_entry(&self, document: &Document) -> Option<Position> {
        let ((first, _), updated) = (document.history?, document.updated?);
        // Instants rise with positions.
        let late = self
            .entries
            .partition_point(|(entry, _)| entry.instant <= updated);
        let end = first
            .0
            .saturating_add(u64::try_from(document.len()).unwrap_or(0));
        let late = self.entries.get(late).filter(|(entry, _)| entry.at.0 < end);
        let begin = self.entries.partition_point(|(entry, _)| entry.at < first);
        let logged = self.entries.iter().skip(begin);
        let mut logged = logged.take_while(|(entry, _)| entry.at.0 < end);
        let other = logged.find(|(entry, digest)| {
            // Documents list the newest entry first.
            let index = usize::try_from(end - 1 - entry.at.0).unwrap_or(usize::MAX);
            let fragment = document.fragment(index);
            let is_newest = index == 0;
            fragment.is_none_or(|fragment| Digest::of(&fragment) != *digest)
                || is_newest && entry.instant != updated
        });
        let contradicted = [late, other].into_iter().flatten();
        contradicted.map(|(entry, _)| entry.at).min()
    }

    /// Returns the documents, and those of which entries are left out, with the number of these
    /// entries.
    fn list_documents(&self) -> (Vec<FoundDocument>, Vec<(DocumentName, usize)>) {
        // An archived document was closed, so at least one more was opened behind it.
        let archived = self.archived.keys().map(|number| number.next());
        let appended = self.entries.iter();
        let appended = appended.map(|(entry, _)| entry.document.number);
        let last = archived
            .chain(self.openings.keys().copied())
            .chain(appended);
        let last = last.max().unwrap_or(DocumentNumber::OLDEST);
        let mut documents: Vec<FoundDocument> = vec![];
        for number in (1..=last.get()).filter_map(DocumentNumber::new) {
            let document = self.find_document(number, documents.last());
            documents.push(document);
        }
        // The first positions must be known before `split_open`, which compares entries with the
        // beginning of the open document.
        place_unknown(&mut documents);
        let overlapping = bound_places(&mut documents);
        split_open(&mut documents);
        (documents, overlapping)
    }

    /// Returns a document as the file, the log, the sidecar, the record and the neighbours describe
    /// it.
    fn find_document(
        &self,
        number: DocumentNumber,
        previous: Option<&FoundDocument>,
    ) -> FoundDocument {
        let file = self.archived.get(&number);
        let opening = self.openings.get(&number);
        let sidecar = file.and_then(|file| file.sidecar.as_ref());
        let record = file.and_then(|file| file.record.as_ref());
        let read = file.and_then(|file| file.document.as_ref());
        let before = self.neighbour_before(number);
        let logged = self.logged_entries(number);
        let told = read.and_then(|document| document.history);

        let epoch = previous.map_or(Epoch::FIRST, |previous| previous.name.epoch);
        let name = self.document_name(number, &logged);
        let name = name.unwrap_or(DocumentName { number, epoch });
        // In each of these chains of `or`, the sources are in the order of their authority, and
        // guesses come last.
        let first = told
            .map(|(first, _)| first)
            .or(opening.map(|opening| opening.first))
            .or(record.map(|record| record.first))
            .or(sidecar.and_then(first_of))
            .or(before.end_position())
            .or(logged.first().map(|entry| entry.at));
        let expected = sidecar
            .map(|sidecar| sidecar.sha256)
            .or(record.map(|record| record.identity.digest))
            // A document that `read_documents` kept counts as proven, so the digest of the file can
            // be used, too.
            .or(file
                .filter(|_| read.is_some())
                .and_then(|file| Some(Digest::of(file.bytes.as_ref()?))));
        let exact = opening.is_some_and(|opening| self.settings.contains_key(&opening.revision));
        // If entries of this document were lost, an earlier recovery has made this log, and the log
        // holds guesses about this document.
        let was_lost = self
            .openings
            .get(&number.next())
            .is_some_and(|next| next.after_loss);
        let mut found = FoundDocument {
            name,
            linked: self.linked_name(number).unwrap_or(name),
            // Without any source, `place_unknown` finds the position once the neighbours are known.
            first: first.unwrap_or(UNKNOWN),
            before: told
                .and_then(|(_, before)| before)
                .or(opening.map(|opening| opening.before)),
            revision: self.document_revision(sidecar, opening, previous),
            opened: self
                .opening_instant(number, &logged, previous)
                .unwrap_or_default(),
            source: EntrySource::Log,
            expected,
            // Without a digest to compare with, the document is trusted only if the settings and
            // the end of the document are known exactly.
            distrusted: self.foreign.contains(&name)
                || self.left_out.contains(&name)
                || expected.is_none()
                    && (was_lost || !(exact && self.openings.contains_key(&number.next()))),
            unsent: read.is_some_and(|document| sidecar.is_none() && logged.len() < document.len()),
            entries: logged,
        };
        if let Some(document) = read {
            found.source = EntrySource::Archive;
            found.entries = entries_of(&found, document, sidecar);
            // No source names the revision, so the header is compared with the headers that the
            // known revisions give.
            if sidecar.is_none() && opening.is_none() {
                found.revision = self.revision_that_gives(&found, document, previous);
            }
        }
        found
    }

    /// Returns when a document was opened, from the source with the most authority.
    fn opening_instant(
        &self,
        number: DocumentNumber,
        logged: &[FoundEntry],
        previous: Option<&FoundDocument>,
    ) -> Option<Timestamp> {
        let file = self.archived.get(&number);
        let sidecar = file.and_then(|file| file.sidecar.as_ref());
        let record = file.and_then(|file| file.record.as_ref());
        let opening = self.openings.get(&number);
        sidecar
            .and_then(|sidecar| Timestamp::parse(&sidecar.opened))
            .or(opening.map(|opening| opening.opened))
            .or(record.map(|record| record.opened))
            .or(self.neighbour_before(number).closed_at())
            .or(logged.first().map(|entry| entry.instant))
            // A guess: later than everything in the document before.
            .or(previous.map(|previous| {
                let newest = previous.entries.last().map(|entry| entry.instant);
                newest.unwrap_or(previous.opened).plus_micros(1)
            }))
    }

    fn neighbour_before(&self, number: DocumentNumber) -> Neighbour<'_> {
        let before = number.previous();
        Neighbour(before.and_then(|number| self.archived.get(&number)))
    }

    /// Returns the name of a document, from the files, the log or a neighbour's link.
    fn document_name(&self, number: DocumentNumber, logged: &[FoundEntry]) -> Option<DocumentName> {
        let told = |file: &&DocumentRemains| {
            file.document.is_some() || file.sidecar.is_some() || file.record.is_some()
        };
        let file = self.archived.get(&number).filter(told);
        let opening = self.openings.get(&number);
        let after = Neighbour(self.archived.get(&number.next()));
        file.map(|file| file.name)
            .or(opening.map(|opening| opening.name))
            .or(after.linked_name("prev-archive"))
            .or(logged.last().map(|entry| entry.document))
            .or(self.neighbour_before(number).linked_name("next-archive"))
    }

    /// Returns the name in the predecessor's link to a document.
    fn linked_name(&self, number: DocumentNumber) -> Option<DocumentName> {
        let file = self.archived.get(&number);
        let sidecar = file.and_then(|file| file.sidecar.as_ref());
        let opening = self.openings.get(&number);
        // The predecessor's bytes are final, so the link in them comes before all other sources.
        let before = self.neighbour_before(number);
        let closed_in = before.closed_in();
        before
            .linked_name("next-archive")
            .or(sidecar.and_then(|sidecar| DocumentName::of_file(sidecar.linked.as_ref()?)))
            .or(opening.map(|opening| opening.linked))
            .or(closed_in.map(|epoch| DocumentName { number, epoch }))
    }

    fn document_revision(
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
        // That revision may be lost. Then the newest revision before it is the closest guess.
        let known = self.settings.range(..=told).next_back();
        known
            .or(self.settings.first_key_value())
            .map_or(told, |(revision, _)| *revision)
    }

    /// Returns the revision of the settings that give the header of the found bytes.
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
            // The zeros are a guess. If the guess is wrong, no revision gives the found header, and
            // the revision in `found` stays.
            before: found.before.unwrap_or(HistoryHash(Digest([0; 32]))),
            revision: found.revision,
            opened: found.opened,
            after_loss: false,
            since: document.since,
        };
        let gives = |settings: &Settings| {
            let form = DocumentForm::Archived {
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
    fn logged_entries(&self, number: DocumentNumber) -> Vec<FoundEntry> {
        // Entries are sorted by position, and therefore by document, too.
        let begin = self
            .entries
            .partition_point(|(entry, _)| entry.document.number < number);
        let entries = self.entries.iter().skip(begin).map(|(entry, _)| *entry);
        entries
            .take_while(|entry| entry.document.number == number)
            .collect()
    }
}

/// Returns whether a restoration gave the file's document up: the log has opened a document with
/// this number, or an earlier one, in a later epoch. The document's name is taken from its link to
/// itself, because the file may have an older name.
fn is_abandoned(file: &DocumentRemains, openings: &BTreeMap<DocumentNumber, Opening>) -> bool {
    let linked = file.document.as_ref();
    let linked = linked.and_then(|document| name_of(document.link("self")?));
    let own = linked.unwrap_or(file.name);
    let mut openings = openings.range(..=file.name.number);
    openings.any(|(_, opening)| opening.name.epoch > own.epoch)
}

/// Returns the facts about the entries of an archived document. Without sidecar and log, instants
/// are guessed, except that of the newest entry, which is the document's `updated`.
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
    // The sidecar comes second and overrides the log, because the sidecar belongs to these very
    // bytes.
    for entry in sidecar.iter().flat_map(|sidecar| &sidecar.entries) {
        if let Some(instant) = Timestamp::parse(&entry.instant) {
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
        // Guessed instants are a microsecond apart, like those of the entries of one commit.
        let age = i64::try_from(end - 1 - at).unwrap_or(0);
        FoundEntry {
            at: Position(at),
            instant: Timestamp::from_micros(newest.micros() - age),
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

/// An archived document as a source for its neighbour.
struct Neighbour<'a>(Option<&'a DocumentRemains>);

impl Neighbour<'_> {
    fn linked_name(&self, rel: &str) -> Option<DocumentName> {
        name_of(self.0?.document.as_ref()?.link(rel)?)
    }

    /// Returns the instant at which the document was closed.
    fn closed_at(&self) -> Option<Timestamp> {
        let file = self.0?;
        let sidecar = file.sidecar.as_ref();
        sidecar
            .and_then(|sidecar| Timestamp::parse(&sidecar.closed))
            .or(file.record.map(|record| record.closed))
    }

    fn closed_in(&self) -> Option<Epoch> {
        self.0?.record.map(|record| record.closed_in)
    }

    /// Returns the position after the document's last entry.
    fn end_position(&self) -> Option<Position> {
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

/// Moves guessed instants to free microseconds, so that no guess equals the instant of another
/// entry. If sources contradict each other, also moves instants, so that they rise with the
/// positions.
pub(super) fn free_guesses(feeds: &mut [FoundFeed]) {
    let entries = |feed: &FoundFeed| {
        let entries = feed.documents.iter().flat_map(|document| &document.entries);
        entries.copied().collect::<Vec<_>>()
    };
    let mut taken: HashSet<Timestamp> = feeds
        .iter()
        .flat_map(entries)
        .filter(|entry| !entry.guessed)
        .map(|entry| entry.instant)
        .collect();
    let documents = feeds.iter_mut().flat_map(|feed| &mut feed.documents);
    for document in documents {
        let mut later: Option<Timestamp> = None;
        // The loop goes from the newest entry back, because each guess must be earlier than the
        // entry after it.
        for entry in document.entries.iter_mut().rev() {
            while entry.guessed
                && (later.is_some_and(|later| entry.instant >= later)
                    || taken.contains(&entry.instant))
            {
                entry.instant = Timestamp::from_micros(entry.instant.micros() - 1);
            }
            taken.insert(entry.instant);
            later = Some(entry.instant);
        }
    }
    for feed in feeds {
        let mut newest = Timestamp::MIN;
        let documents = feed.documents.iter_mut();
        for entry in documents.flat_map(|document| &mut document.entries) {
            if entry.instant <= newest {
                // A moved instant counts as a guess, because no commit had that instant.
                entry.guessed = true;
                while entry.instant <= newest || taken.contains(&entry.instant) {
                    entry.instant = entry.instant.max(newest).plus_micros(1);
                }
                taken.insert(entry.instant);
            }
            newest = entry.instant;
        }
    }
}

/// Removes overlaps between documents. An archived document has precedence over the log's entries,
/// and the earlier of two archived documents over the later one. Returns the documents that lose
/// entries, with the number of these entries.
fn bound_places(documents: &mut [FoundDocument]) -> Vec<(DocumentName, usize)> {
    let archived = |document: &FoundDocument| document.source == EntrySource::Archive;
    let found: Vec<usize> = documents
        .iter()
        .map(|document| document.entries.len())
        .collect();
    let mut until = None;
    // The loop goes from the newest document back, because the next archived document bounds the
    // log's entries before it.
    for document in documents.iter_mut().rev() {
        if archived(document) {
            until = Some(document.first);
        } else if let Some(until) = until {
            document.entries.retain(|entry| entry.at < until);
            document.first = document.first.min(until);
        }
    }
    let mut end = Position(0);
    for document in documents.iter_mut() {
        if archived(document) && document.first < end {
            document.entries.clear();
            document.distrusted = true;
            document.first = end;
        } else if !archived(document) {
            document.entries.retain(|entry| entry.at >= end);
            document.first = document.first.max(end);
        }
        end = end.max(document.end());
    }
    let kept = documents.iter().zip(found);
    let left_out = kept.map(|(document, found)| (document.name, found - document.entries.len()));
    left_out.filter(|(_, entries)| *entries > 0).collect()
}

/// Gives a first position to each document for which no source tells one: the end of the document
/// before, if that document is complete, or else the first position of the next document.
/// `bound_places` then removes overlaps.
fn place_unknown(documents: &mut [FoundDocument]) {
    let mut follows = Some(Position(0));
    for document in documents.iter_mut() {
        if document.first == UNKNOWN {
            document.first = follows.unwrap_or(UNKNOWN);
        }
        // Only an archived file is known to be complete.
        let whole = document.source == EntrySource::Archive;
        follows = whole.then(|| document.end());
    }
    let mut next = None;
    for document in documents.iter_mut().rev() {
        if document.first == UNKNOWN {
            document.first = next.unwrap_or(UNKNOWN);
        }
        next = Some(document.first);
    }
    // The last documents may have no neighbour with a known position. They begin behind everything
    // that is left.
    let mut end = Position(0);
    for document in documents {
        if document.first == UNKNOWN {
            document.first = end;
        }
        end = document.end().max(end);
    }
}

/// Stands for an unknown position until `place_unknown` replaces it.
const UNKNOWN: Position = Position(u64::MAX);

/// Cuts the open document at its holes, because a document that lacks entries is never shown.
fn split_open(documents: &mut Vec<FoundDocument>) {
    while let Some(open) = documents.last_mut() {
        let broken = |pair: &[FoundEntry]| match pair {
            [one, next] => one.at.next() != next.at,
            _ => false,
        };
        // If the first entries are missing, the old open document keeps no entries.
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
            // No document has begun here before, so no source has a history hash for this
            // beginning.
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
