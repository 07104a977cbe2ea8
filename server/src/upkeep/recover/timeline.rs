//! Commits the found entries again, in their original order.
//!
//! Shell: the old archive and the old log, which hold the bytes, and the new log. The instants of
//! entries stay the same. Entries of one old commit make one commit again, if no entry between them
//! is lost.

use std::collections::HashMap;

use bytes::Bytes;
use simplefeed_core::{
    commit::{Change, Commit},
    digest::Digest,
    feed::{CommitNumber, EntryId, Epoch, Position},
    limits::{BATCH_ENTRIES_MAX, BODY_BYTES_MAX},
    plan::FeedHead,
    reader::Document,
    timestamp::Timestamp,
};
use simplefeed_log::{
    Append as _, Commits as _, LogError,
    sled::{quietly, salvage::Remains, sled_log::SledLog},
};
use simplefeed_views::documents::{
    archive::{Archive, SalvageRemains},
    sidecar::Sidecar,
};
use url::Url;

use super::{
    found::{EntrySource, FoundDocument, FoundEntry, FoundFeed},
    recorded::TimelineFacts,
};

/// Maximum length of all archived documents that are kept in memory while their entries are
/// committed, in bytes. With more bytes, all documents are removed from memory.
const LOADED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// An event in the old log, such as the opening of a document or the append of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OldEvent {
    instant: Timestamp,
    kind: EventKind,
    /// Epoch of a foundation; the first one for other events.
    epoch: Epoch,
    feed: usize,
    document: usize,
    /// Index of the entry in the document, or of the recorded change; 0 for other events.
    entry: usize,
}

/// Kinds of events. Events of one instant are committed in the order of their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    /// A feed came into being, in an earlier epoch than the epoch in which the feed's first
    /// document was opened again.
    Foundation,
    /// A feed came into being, in the commit of this instant.
    Creation,
    /// A timeline, or the server's proposals, changed. The change applies to the entries of that
    /// instant and to later entries.
    Recorded,
    /// An entry was appended. The entry opens the document, unless an event before has opened the
    /// document.
    Entry,
    /// A document was opened, behind any entries of the same instant. The event stands for an
    /// opening that is not that of the document's first entry: this entry is lost, entries of the
    /// document before are lost, or an epoch has renamed the document.
    Opening,
}

/// Commits all entries and openings of `feeds`, and all recorded changes, to `new`.
///
/// # Errors
///
/// Returns which entry cannot be read any more, or why the new log cannot be written.
pub(super) fn replay(
    feeds: &[FoundFeed],
    recorded: &TimelineFacts,
    old: Option<&Remains>,
    archive: &Archive,
    new: &SledLog,
) -> Result<(), LogError> {
    let mut events = vec![];
    for (feed, found) in feeds.iter().enumerate() {
        events_of(feed, found, &mut events);
        events.extend(foundation_of(feed, feeds));
    }
    for (index, (instant, _)) in recorded.changes.iter().enumerate() {
        events.push(OldEvent {
            instant: *instant,
            kind: EventKind::Recorded,
            epoch: Epoch::FIRST,
            feed: 0,
            document: 0,
            entry: index,
        });
    }
    // A commit may concern several feeds, so the events of all feeds are merged by instant.
    events.sort_unstable();
    let mut replay = RecoverReplay {
        feeds,
        recorded,
        bytes: FoundBytes {
            old,
            archive,
            loaded: HashMap::new(),
            loaded_bytes: 0,
        },
        new,
        epoch: new.head().epoch,
        heads: vec![None; feeds.len()],
        opened: vec![0; feeds.len()],
        group: NewCommit::begun_at(Timestamp::MIN),
    };
    for event in events {
        replay.take_event(event)?;
    }
    for feed in 0..feeds.len() {
        replay.finish_feed(feed)?;
    }
    replay.begin_group(replay.new.head().last.plus_micros(1))?;
    replay.group.changes = recorded.restarts();
    replay.commit_group()
}

fn events_of(feed: usize, found: &FoundFeed, events: &mut Vec<OldEvent>) {
    let mut newest = Timestamp::MIN;
    let mut broken = false;
    for (document, found_here) in found.documents.iter().enumerate() {
        let mut happened = |instant, kind, entry| {
            events.push(OldEvent {
                instant,
                kind,
                epoch: Epoch::FIRST,
                feed,
                document,
                entry,
            });
        };
        let (first, opened) = (found_here.entries.first(), found_here.opened);
        // The entry that opened the document, if that entry is left and its instant is no guess.
        let begins = first.filter(|first| first.at == found_here.first && !first.guessed);
        // An epoch renames a document that an earlier recovery has left without entries, before the
        // first entry comes.
        let is_renamed = |begins: &FoundEntry| begins.document.epoch > found_here.linked.epoch;
        if document == 0 && begins.is_none_or(|begins| opened < begins.instant) {
            happened(opened, EventKind::Creation, 0);
        } else if document > 0 && (broken || begins.is_none_or(is_renamed)) {
            // The opening closes the document before, so no entry of that document may come later.
            happened(opened.max(newest), EventKind::Opening, 0);
        }
        for (index, entry) in found_here.entries.iter().enumerate() {
            happened(entry.instant, EventKind::Entry, index);
            newest = newest.max(entry.instant);
        }
        // A loss is recorded before the next document is opened, so the next opening is an event of
        // its own.
        let next = found.documents.get(document + 1);
        broken = next.is_some_and(|next| found_here.lacks_entries(next.first));
    }
}

/// Returns the creation of a feed that was without entries when an epoch began. `None` if that
/// epoch has no event up to the last opening of the feed's first document. A document can be opened
/// more than once, because new settings open a document without entries again.
fn foundation_of(feed: usize, feeds: &[FoundFeed]) -> Option<OldEvent> {
    let first = feeds.get(feed)?.documents.first()?;
    let epoch = first.linked.epoch;
    if first.name.epoch <= epoch {
        return None;
    }
    let documents = feeds.iter().flat_map(|found| &found.documents);
    let begins = documents.filter_map(|document| {
        let opened = (document.linked.epoch > epoch).then_some(document.opened);
        let entries = document.entries.iter();
        let mut of_epoch = entries.filter(|entry| entry.document.epoch > epoch);
        opened
            .into_iter()
            .chain(of_epoch.next().map(|entry| entry.instant))
            .min()
    });
    let instant = begins.min().filter(|begins| *begins <= first.opened)?;
    Some(OldEvent {
        instant,
        kind: EventKind::Foundation,
        epoch,
        feed,
        document: 0,
        entry: 0,
    })
}

struct RecoverReplay<'a> {
    feeds: &'a [FoundFeed],
    recorded: &'a TimelineFacts,
    bytes: FoundBytes<'a>,
    new: &'a SledLog,
    epoch: Epoch,
    heads: Vec<Option<FeedHead>>,
    /// Number of documents of each feed that have been opened so far.
    opened: Vec<usize>,
    group: NewCommit,
}

/// A commit in the making.
struct NewCommit {
    instant: Timestamp,
    /// Old commit of the entries in this commit; `None` while there are no entries.
    was: Option<CommitNumber>,
    changes: Vec<Change>,
    entries: usize,
    bytes: usize,
}

impl NewCommit {
    fn begun_at(instant: Timestamp) -> Self {
        Self {
            instant,
            was: None,
            changes: vec![],
            entries: 0,
            bytes: 0,
        }
    }

    /// Returns the instant that the next entry of this commit gets.
    fn next_instant(&self) -> Timestamp {
        let entries = u64::try_from(self.entries).unwrap_or(u64::MAX);
        self.instant.plus_micros(entries)
    }

    fn takes_entry(&self, entry: &FoundEntry) -> bool {
        // Entry i of a commit has the commit's instant plus i microseconds. Entries of two old
        // commits never share a new one.
        self.next_instant() == entry.instant
            && self.was.is_none_or(|was| was == entry.commit)
            && self.entries < BATCH_ENTRIES_MAX
            && self.bytes < 2 * BODY_BYTES_MAX
    }
}

impl RecoverReplay<'_> {
    fn take_event(&mut self, event: OldEvent) -> Result<(), LogError> {
        if event.kind == EventKind::Recorded {
            return self.take_recorded(event);
        }
        let Some(feed) = self.feeds.get(event.feed) else {
            return Ok(());
        };
        let Some(document) = feed.documents.get(event.document) else {
            return Ok(());
        };
        let entry = match event.kind {
            EventKind::Foundation => {
                if self.group.instant != event.instant || self.group.entries > 0 {
                    self.begin_group(event.instant.max(self.group.next_instant()))?;
                }
                self.found_feed(event.feed, feed, document);
                return Ok(());
            }
            EventKind::Creation | EventKind::Opening => {
                // A creation is the first change of a commit: entries before the creation would
                // make its instant later.
                if self.group.instant != document.opened
                    || event.kind == EventKind::Creation && self.group.entries > 0
                {
                    self.begin_group(document.opened.max(self.group.next_instant()))?;
                }
                // A feed that was founded in an earlier epoch has an open document, which gets a
                // name of this epoch. The last name of that document may be of a later epoch, which
                // has not begun here yet.
                if event.kind == EventKind::Creation {
                    self.rename_open(event.feed, document.name.epoch.min(self.epoch));
                }
                self.open_up_to(event.feed, event.document);
                return Ok(());
            }
            EventKind::Entry => document.entries.get(event.entry),
            EventKind::Recorded => None,
        };
        let Some(entry) = entry else { return Ok(()) };
        let Some((id, sent, fragment)) = self.bytes.content_of(feed, document, entry) else {
            let (name, at) = (&feed.name, entry.at);
            let what = format!("entry {at} of feed {name} cannot be read any more");
            return Err(LogError::Damaged { what });
        };
        if !self.group.takes_entry(entry) {
            self.begin_group(entry.instant)?;
        }
        // The order matters: each step starts from the head that the step before has left.
        self.group.was = Some(entry.commit);
        self.open_up_to(event.feed, event.document);
        self.rename_open(event.feed, entry.document.epoch);
        self.skip_to(event.feed, entry.at);
        self.group.bytes += fragment.len();
        self.push_change(
            event.feed,
            Change::Entry {
                feed: feed.key,
                at: entry.at,
                id,
                sent,
                digest: Digest::of(&fragment),
                fragment,
            },
        );
        self.group.entries += 1;
        Ok(())
    }

    /// Commits a recorded change again, with the instant that the change had.
    fn take_recorded(&mut self, event: OldEvent) -> Result<(), LogError> {
        let Some((instant, change)) = self.recorded.changes.get(event.entry) else {
            return Ok(());
        };
        if self.group.next_instant() != *instant {
            self.begin_group((*instant).max(self.group.next_instant()))?;
        }
        self.group.changes.push(change.clone());
        Ok(())
    }

    /// Commits the group, and begins another one.
    fn begin_group(&mut self, instant: Timestamp) -> Result<(), LogError> {
        self.commit_group()?;
        self.group = NewCommit::begun_at(instant);
        Ok(())
    }

    fn commit_group(&mut self) -> Result<(), LogError> {
        let changes = std::mem::take(&mut self.group.changes);
        if changes.is_empty() {
            return Ok(());
        }
        // The log takes only commits that are later than the last one.
        let head = self.new.head();
        self.new
            .append(&Commit {
                number: head.number.next(),
                instant: self.group.instant.max(head.last.plus_micros(1)),
                changes,
            })
            .map(drop)
    }

    fn push_change(&mut self, feed: usize, change: Change) {
        let instant = self.group.next_instant();
        if let Change::Epoch { epoch } = &change {
            self.epoch = *epoch;
        }
        if let Some(head) = self.heads.get_mut(feed) {
            // The first settings of a feed create the feed.
            if let (None, Change::Settings { settings, .. }) = (&head, &change) {
                *head = Some(FeedHead::create(settings, instant, self.epoch));
            }
            if let Some(head) = head {
                head.apply(&change, self.group.instant, instant, self.epoch);
            }
        }
        self.group.changes.push(change);
    }

    fn feed_head(&self, feed: usize) -> Option<&FeedHead> {
        self.heads.get(feed)?.as_ref()
    }

    /// Opens the documents of a feed that are not open yet, up to index `document`, and ends the
    /// document before each of them.
    fn open_up_to(&mut self, feed: usize, document: usize) {
        let Some(found) = self.feeds.get(feed) else {
            return;
        };
        let opened = self.opened.get(feed).copied().unwrap_or(0);
        for (index, next) in found.documents.iter().enumerate() {
            if index < opened || index > document {
                continue;
            }
            if let Some(before) = index.checked_sub(1).and_then(|at| found.documents.get(at)) {
                // An epoch may have renamed the document before, while that document was open.
                self.rename_open(feed, before.name.epoch);
                self.end_document(feed, before, next);
            }
            // The epoch names the document, so the epoch comes before the opening. The epoch also
            // comes before the first settings, which open the feed's first document.
            if next.linked.epoch > self.epoch {
                let epoch = next.linked.epoch;
                self.push_change(feed, Change::Epoch { epoch });
            }
            self.record_settings(feed, found, next);
            self.push_change(
                feed,
                Change::Opened {
                    feed: found.key,
                    document: next.name.number,
                    first: next.first,
                    revision: next.revision,
                },
            );
        }
        if let Some(opened) = self.opened.get_mut(feed) {
            *opened = (*opened).max(document + 1);
        }
    }

    /// Records that a document has lost entries, if it has, before the next document is opened.
    fn end_document(&mut self, feed: usize, document: &FoundDocument, next: &FoundDocument) {
        let Some(head) = self.feed_head(feed) else {
            return;
        };
        if !document.lacks_entries(next.first) && !head.open.lost {
            return;
        }
        // The next document's own hash is used, so that the header of that document comes out as
        // before.
        let lost = Change::Lost {
            feed: head.feed,
            next: next.first,
            history: next.before.unwrap_or(head.history),
        };
        self.push_change(feed, lost);
    }

    /// Records that the entries before `at` are lost, unless the feed reaches up to there.
    fn skip_to(&mut self, feed: usize, at: Position) {
        let Some(head) = self.feed_head(feed).filter(|head| head.next < at) else {
            return;
        };
        let lost = Change::Lost {
            feed: head.feed,
            next: at,
            history: head.history,
        };
        self.push_change(feed, lost);
    }

    /// Gives the open document the name of a later epoch.
    fn rename_open(&mut self, feed: usize, epoch: Epoch) {
        let Some(head) = self.feed_head(feed) else {
            return;
        };
        if head.open.opening.name.epoch >= epoch {
            return;
        }
        let renamed = head.renamed();
        // The new name takes the epoch of the log.
        if self.epoch < epoch {
            self.push_change(feed, Change::Epoch { epoch });
        }
        self.push_change(feed, renamed);
    }

    /// Creates a feed whose first document is opened again later. The feed gets the settings before
    /// those of that document, if earlier settings are left.
    fn found_feed(&mut self, feed: usize, found: &FoundFeed, document: &FoundDocument) {
        let before = found.settings.range(..document.revision).next_back();
        let revision = before.map_or(document.revision, |(revision, _)| *revision);
        let founded = FoundDocument {
            revision,
            ..document.clone()
        };
        // The epoch comes first, as in `open_up_to`.
        let epoch = founded.linked.epoch;
        if epoch > self.epoch {
            self.push_change(feed, Change::Epoch { epoch });
        }
        self.record_settings(feed, found, &founded);
        self.push_change(
            feed,
            Change::Opened {
                feed: found.key,
                document: founded.name.number,
                first: founded.first,
                revision,
            },
        );
    }

    /// Records the settings with which a document was opened, and all earlier settings.
    fn record_settings(&mut self, feed: usize, found: &FoundFeed, document: &FoundDocument) {
        let known = self.feed_head(feed).map(|head| head.revision);
        // Older revisions are recorded, too, so that every revision that is left can be read in the
        // new log.
        for (revision, settings) in found.settings.range(..=document.revision) {
            if known.is_none_or(|known| *revision > known) {
                self.push_change(
                    feed,
                    Change::Settings {
                        feed: found.key,
                        revision: *revision,
                        settings: settings.clone(),
                    },
                );
            }
        }
    }

    /// Records the settings that a feed got after its last entry.
    fn finish_feed(&mut self, feed: usize) -> Result<(), LogError> {
        let Some(found) = self.feeds.get(feed) else {
            return Ok(());
        };
        // Settings behind the last entry have no instant of their own, so they go into a later
        // commit.
        self.begin_group(self.new.head().last.plus_micros(1))?;
        let Some(last) = found.documents.last() else {
            return Ok(());
        };
        self.rename_open(feed, last.name.epoch);
        let newest = found.settings.last_key_value();
        let newest = newest.map_or(last.revision, |(revision, _)| *revision);
        let last = FoundDocument {
            revision: newest,
            ..last.clone()
        };
        self.record_settings(feed, found, &last);
        Ok(())
    }
}

/// Reads the bytes of found entries, from the archive or the old log.
struct FoundBytes<'a> {
    old: Option<&'a Remains>,
    archive: &'a Archive,
    loaded: HashMap<(String, String), (Document, Option<Sidecar<'static>>)>,
    loaded_bytes: usize,
}

impl FoundBytes<'_> {
    /// Returns an entry's id, the digest of the form in which the entry was sent, and the fragment.
    fn content_of(
        &mut self,
        feed: &FoundFeed,
        document: &FoundDocument,
        entry: &FoundEntry,
    ) -> Option<(EntryId, Digest, Bytes)> {
        match document.source {
            EntrySource::Archive => self.archived_content(feed, document, entry),
            EntrySource::Log => {
                let range = entry.at..entry.at.next();
                // sled may panic over a damaged page.
                let read = quietly(|| Some(self.old?.entries_in(feed.key, &range)));
                let entry = read.flatten()?.pop()?;
                Some((entry.id, entry.sent, entry.fragment))
            }
        }
    }

    fn archived_content(
        &mut self,
        feed: &FoundFeed,
        found: &FoundDocument,
        entry: &FoundEntry,
    ) -> Option<(EntryId, Digest, Bytes)> {
        let key = (feed.name.to_string(), found.name.to_string());
        if !self.loaded.contains_key(&key) {
            let SalvageRemains { bytes, sidecar, .. } =
                self.archive.salvage(&feed.name, found.name);
            self.loaded_bytes += bytes.as_ref().map_or(0, Bytes::len);
            if self.loaded_bytes > LOADED_BYTES_MAX {
                // Entries come in the order of time, so documents loaded long ago are rarely needed
                // again.
                self.loaded.clear();
                self.loaded_bytes = bytes.as_ref().map_or(0, Bytes::len);
            }
            let (_, settings) = feed.settings.first_key_value()?;
            let url = Url::parse(&settings.document_url(found.name)).ok()?;
            let document = Document::read(bytes?, &url).ok()?;
            self.loaded.insert(key.clone(), (document, sidecar));
        }
        let (document, sidecar) = self.loaded.get(&key)?;
        let oldest = usize::try_from(entry.at.0 - found.first.0).ok()?;
        // Documents list the newest entry first.
        let index = document.len().checked_sub(oldest + 1)?;
        let (id, fragment) = (document.entry(index)?.id, document.fragment(index)?);
        let told = sidecar
            .as_ref()
            .and_then(|sidecar| sidecar.entries.get(oldest));
        let sent = told.map(|told| told.sent).or_else(|| {
            let range = entry.at..entry.at.next();
            let logged = quietly(|| Some(self.old?.entries_in(feed.key, &range)));
            let logged = logged.flatten()?.pop()?;
            // The digest counts only for the same entry: another log may have another entry at this
            // position.
            (logged.fragment == fragment).then_some(logged.sent)
        });
        // Without the digest of the sent form, a repeat is recognised by the completed fragment.
        let sent = sent.unwrap_or_else(|| Digest::of(&fragment));
        Some((EntryId::parse(id)?, sent, fragment))
    }
}
