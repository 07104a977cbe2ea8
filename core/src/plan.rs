//! Every decision of a publish: new entries, duplicates, conflicts, cuts of documents, and the
//! final bytes of each entry.
//!
//! Pure. The writer passes in the log's state, this module decides, and the writer stores the
//! decision.
//!
//! ```text
//! entry known?   no ────────────────► appended
//!                yes, same content ─► duplicate: the answer is the known entry's position
//!                yes, other content ► conflict: nothing of the batch is stored
//! ```

use std::{collections::HashMap, sync::Arc};

use uuid::Uuid;

use bytes::Bytes;

use crate::{
    commit::Change,
    cut::Fill,
    digest::Digest,
    entry::Draft,
    feed::{DocumentName, DocumentNumber, EntryId, Epoch, FeedKey, Position, Revision},
    history::HistoryHash,
    limits::COMPLETED_BATCH_BYTES_MAX,
    refusal::{Conflict, Refusal},
    settings::{Choices, Defaults, Settings},
    timestamp::Timestamp,
};

/// A feed's end in the log: all that the next publish and the header of the open document need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedHead {
    /// Feed that this head belongs to.
    pub feed: FeedKey,
    /// Revision of the feed's newest settings; the open document may have an older revision.
    pub revision: Revision,
    /// The position of the next entry, which is also the number of entries so far, lost entries
    /// included.
    pub next: Position,
    /// The history hash after all entries.
    pub history: HistoryHash,
    /// The document that takes the next entry, unless that entry causes a cut.
    pub open: OpenDocument,
    /// The instant of the newest entry, or of the feed's creation while there is no entry.
    pub updated: Timestamp,
}

/// Recorded facts of a document, from which the header is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Number and epoch of the document.
    pub name: DocumentName,
    /// Name under which the predecessor links to this document. This name differs from `name` if an
    /// epoch began while the document was open, and renamed the document.
    pub linked: DocumentName,
    /// Name of the document before; `None` for the feed's first document.
    pub previous: Option<DocumentName>,
    /// The position of the document's oldest entry.
    pub first: Position,
    /// The history hash before that entry.
    pub before: HistoryHash,
    /// Revision of the settings in the header.
    pub revision: Revision,
    /// Instant of the commit that opened the document, and so closed the predecessor. A new name
    /// does not change this instant.
    pub opened: Timestamp,
    /// Whether entries of the predecessor were lost. If so, the server never shows the predecessor.
    pub after_loss: bool,
    /// First position of the document that was open when this document's epoch began. Entries that
    /// earlier epochs had at or behind this position may be lost.
    pub since: Position,
}

/// The open document of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDocument {
    /// Facts recorded when the document was opened.
    pub opening: Opening,
    /// Total size of the document's entries so far, in bytes.
    pub bytes: u64,
    /// Whether entries behind the document's newest entry were lost.
    pub lost: bool,
}

impl OpenDocument {
    /// Returns the document that replaces this document as the open document: the next document,
    /// or, if this document is empty or an epoch has begun, this document with a new header.
    fn succeeded_by(
        &self,
        name: DocumentName,
        first: Position,
        history: HistoryHash,
        instant: Timestamp,
    ) -> Self {
        let mut open = self.opening;
        if open.name.epoch != name.epoch {
            open.since = first;
        }
        if open.name.number == name.number {
            // Only an empty first document gets a new instant, because no reader has been promised
            // that document.
            let unseen = open.previous.is_none() && open.name.epoch == name.epoch;
            let opening = Opening {
                name,
                opened: if unseen { instant } else { open.opened },
                ..open
            };
            return Self { opening, ..*self };
        }
        let opening = Opening {
            name,
            linked: name,
            previous: Some(open.name),
            first,
            before: history,
            opened: instant,
            after_loss: self.lost,
            ..open
        };
        Self {
            opening,
            bytes: 0,
            lost: false,
        }
    }
}

impl FeedHead {
    /// Returns the change that gives the open document the name of the epoch that has begun.
    ///
    /// Lost entries may have been frozen under the old name, so no other bytes may be frozen under
    /// that name.
    pub fn renamed(&self) -> Change {
        Change::Opened {
            feed: self.feed,
            document: self.open.opening.name.number,
            first: self.open.opening.first,
            revision: self.revision,
        }
    }

    /// Returns the head of a feed that a commit at `instant` creates.
    pub fn create(settings: &Settings, instant: Timestamp, epoch: Epoch) -> Self {
        let history = HistoryHash::start(&settings.id);
        let name = DocumentName {
            number: DocumentNumber::OLDEST,
            epoch,
        };
        let opening = Opening {
            name,
            linked: name,
            previous: None,
            first: Position(0),
            before: history,
            revision: Revision::FIRST,
            opened: instant,
            after_loss: false,
            since: Position(0),
        };
        Self {
            feed: settings.id.key(),
            revision: Revision::FIRST,
            next: Position(0),
            history,
            open: OpenDocument {
                opening,
                bytes: 0,
                lost: false,
            },
            updated: instant,
        }
    }

    /// Returns the fill of the open document, which the cut policy judges.
    pub fn fill(&self) -> Fill {
        Fill {
            entries: self.next.0 - self.open.opening.first.0,
            bytes: self.open.bytes,
            newest: self.updated,
        }
    }

    /// Applies a change of this feed from a commit at `instant`. `entry_instant` is the entry's own
    /// instant, if the change is an entry.
    pub fn apply(
        &mut self,
        change: &Change,
        instant: Timestamp,
        entry_instant: Timestamp,
        epoch: Epoch,
    ) {
        match change {
            Change::Settings { revision, .. } => self.revision = *revision,
            Change::Opened {
                document,
                first,
                revision,
                ..
            } => {
                let name = DocumentName {
                    number: *document,
                    epoch,
                };
                // `succeeded_by` keeps the old revision, so the new revision is set below.
                self.open = self.open.succeeded_by(name, *first, self.history, instant);
                self.open.opening.revision = *revision;
            }
            Change::Entry {
                fragment, digest, ..
            } => {
                // The digest is already known, so the fragment is not hashed again.
                self.history = self.history.extend_with_digest(*digest);
                self.next = self.next.next();
                self.open.bytes += bytes_of(fragment);
                self.updated = entry_instant;
            }
            Change::Lost { next, history, .. } => {
                self.next = *next;
                self.history = *history;
                // The document has a hole behind the newest entry, so the next entry must open
                // another document.
                self.open.lost = true;
            }
            // A document gets the new epoch when the document is opened or renamed, not here.
            // Changes of follows and of the server's proposals change nothing in a head.
            Change::Epoch { .. } | Change::Following { .. } | Change::Defaults { .. } => {}
        }
    }
}

fn bytes_of(fragment: &[u8]) -> u64 {
    u64::try_from(fragment.len()).expect("a fragment's length fits into 64 bits")
}

/// Entry that the feed already holds, or that the batch has just added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownEntry {
    /// Position of the entry in the feed.
    pub at: Position,
    /// Document that shows the entry.
    pub document: DocumentName,
    /// Digest of the sent form of the entry.
    pub sent: Digest,
    /// Digest of the stored fragment.
    pub fragment: Digest,
}

/// Instant and epoch of a publish, and where in the commit the entries of the publish begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The instant of the commit.
    pub instant: Timestamp,
    /// Number of entries already in the commit.
    pub entries_before: u64,
    /// The epoch of the log.
    pub epoch: Epoch,
}

impl Stamp {
    fn of_entry(&self, index: u64) -> Timestamp {
        self.instant.plus_micros(self.entries_before + index)
    }
}

/// State of a feed before or after a publish.
#[derive(Clone, Debug)]
pub struct FeedState {
    /// End of the feed in the log.
    pub head: FeedHead,
    /// Newest settings, shared because most publishes do not change them.
    pub settings: Arc<Settings>,
}

/// Changes to store, and results for the publisher.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The changes to commit; none if nothing changes, as when all entries are duplicates.
    pub changes: Vec<Change>,
    /// State of the feed after the changes.
    pub state: FeedState,
    /// One result for each entry, in order.
    pub results: Vec<EntryResult>,
}

/// Result for one entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryResult {
    /// The entry's id, sent or generated.
    pub id: EntryId,
    /// The entry's position; for a duplicate, the position of the repeated entry.
    pub position: Position,
    /// Document that shows the entry at that position.
    pub document: DocumentName,
    /// Whether the entry repeats an entry of the feed, or an earlier entry of the batch.
    pub duplicate: bool,
}

/// Gives an id to every draft without an id. If the request has an idempotency key, the ids are
/// derived from the key, so that a repeated request gives the same ids. Otherwise the ids come from
/// `random`.
pub fn give_ids(
    drafts: &mut [Draft],
    feed: FeedKey,
    key: Option<&str>,
    mut random: impl FnMut() -> Uuid,
) {
    for (index, draft) in drafts.iter_mut().enumerate() {
        if draft.id.is_some() {
            continue;
        }
        let uuid = match key {
            // The separator keeps key "a1" with index 0 apart from key "a" with index 10.
            Some(key) => Uuid::new_v5(&feed.0, format!("{key}\0{index}").as_bytes()),
            None => random(),
        };
        draft.id = Some(EntryId::of_uuid(uuid));
    }
}

/// Plans a publish of `drafts`, all of which have ids, to the feed in `state`.
///
/// `known` holds the feed's entries under the ids of the drafts. `defaults` are the server's
/// current proposals. If an entry is new, and the proposals change the feed's documents, the plan
/// records new settings before the entries.
///
/// # Errors
///
/// `Conflict` if the feed or the batch has other content under an id; `TooLarge` if a completed
/// entry is too large, or all completed entries together may be. Nothing of the batch is stored
/// then.
pub fn plan(
    state: &FeedState,
    drafts: &[Draft],
    known: &HashMap<EntryId, KnownEntry, impl std::hash::BuildHasher>,
    defaults: &Arc<Defaults>,
    stamp: Stamp,
) -> Result<Plan, Refusal> {
    let mut planning = Planning {
        plan: Plan {
            changes: vec![],
            state: state.clone(),
            results: vec![],
        },
        stamp,
        entries: 0,
    };
    // The check comes before any entry is built, because building can multiply short drafts.
    check_completed(drafts, &state.settings)?;
    let mut batch: HashMap<&EntryId, KnownEntry> = HashMap::new();
    let mut conflicts = vec![];
    // A batch of duplicates appends nothing, and so records no settings either.
    let new = drafts.iter().any(|draft| !known.contains_key(id_of(draft)));
    if new {
        planning.propose_defaults(defaults);
    }
    for (index, draft) in drafts.iter().enumerate() {
        let id = id_of(draft);
        // The batch is searched, too, because entries of the batch are not in `known` yet.
        if let Some(earlier) = batch.get(id).or_else(|| known.get(id)) {
            if planning.same_content(draft, id, earlier)? {
                planning.plan.results.push(EntryResult {
                    id: id.clone(),
                    position: earlier.at,
                    document: earlier.document,
                    duplicate: true,
                });
            } else {
                let (stored, offered) = (earlier.sent, draft.sent);
                // The loop goes on after a conflict, so that one answer shows the publisher all
                // conflicts.
                conflicts.push(Conflict {
                    entry: index,
                    id: id.clone(),
                    stored,
                    offered,
                });
            }
            continue;
        }
        let appended = planning
            .append_draft(draft, id)
            .map_err(|refusal| refusal.at_entry(index))?;
        batch.insert(id, appended);
    }
    // The plan is discarded as a whole: one conflict refuses the batch.
    if conflicts.is_empty() {
        Ok(planning.plan)
    } else {
        Err(Refusal::conflict(conflicts))
    }
}

/// Checks the bound on the completed size of a batch before any entry is built, because completion
/// can multiply short entries.
fn check_completed(drafts: &[Draft], settings: &Settings) -> Result<(), Refusal> {
    let (author, alternate) = (settings.author(), settings.alternate_bytes());
    let bytes: usize = drafts
        .iter()
        .map(|draft| draft.size(author, alternate))
        .sum();
    if bytes <= COMPLETED_BATCH_BYTES_MAX {
        return Ok(());
    }
    let detail = format!(
        "the entries have, with what they inherit and lack, more than {COMPLETED_BATCH_BYTES_MAX} bytes; \
         send fewer at once"
    );
    Err(Refusal::too_large(detail))
}

/// Plans a change of settings. The plan has no changes if the feed already has these settings.
///
/// # Errors
///
/// Returns the reason why the feed cannot have these choices, see [`Settings::with`].
pub fn plan_settings(
    state: &FeedState,
    choices: Choices,
    defaults: &Arc<Defaults>,
    stamp: Stamp,
) -> Result<Plan, Refusal> {
    let plan = Plan {
        changes: vec![],
        state: state.clone(),
        results: vec![],
    };
    let mut planning = Planning {
        plan,
        stamp,
        entries: 0,
    };
    let chosen = state.settings.with(choices)?;
    let newest = chosen.as_ref().unwrap_or(&state.settings);
    // One revision holds both the choices and the defaults. Defaults of timelines are recorded for
    // all timelines at once.
    let proposed = newest
        .under(defaults)
        .filter(|settings| !settings.is_timeline());
    let changed = proposed.or_else(|| chosen.clone());
    if let Some(settings) = changed {
        planning.change_settings(settings);
    }
    Ok(planning.plan)
}

/// Plans the creation of a feed with `settings`.
pub fn plan_creation(settings: Settings, stamp: Stamp) -> Plan {
    // The revision and the opening below must match those of `FeedHead::create`, because that
    // function does not apply these changes.
    let head = FeedHead::create(&settings, stamp.instant, stamp.epoch);
    let feed = head.feed;
    let mut changes = vec![Change::Settings {
        feed,
        revision: Revision::FIRST,
        settings: settings.clone(),
    }];
    // A timeline's documents follow from the timeline's entries, so the log records no opening.
    if !settings.is_timeline() {
        changes.push(Change::Opened {
            feed,
            document: DocumentNumber::OLDEST,
            first: Position(0),
            revision: Revision::FIRST,
        });
    }
    Plan {
        changes,
        state: FeedState {
            head,
            settings: Arc::new(settings),
        },
        results: vec![],
    }
}

fn id_of(draft: &Draft) -> &EntryId {
    draft
        .id
        .as_ref()
        .expect("ids are given before a publish is planned")
}

struct Planning {
    plan: Plan,
    stamp: Stamp,
    entries: u64,
}

impl Planning {
    fn propose_defaults(&mut self, defaults: &Arc<Defaults>) {
        if let Some(settings) = self.plan.state.settings.under(defaults) {
            self.change_settings(settings);
        }
    }

    /// Records settings. A document with entries keeps the old header, and the next entry opens
    /// another document.
    fn change_settings(&mut self, settings: Settings) {
        let head = &self.plan.state.head;
        let (feed, revision) = (head.feed, head.revision.next());
        // The settings go into the commit; the plan keeps a clone for the entries that follow.
        self.plan.state.settings = Arc::new(settings.clone());
        self.record_change(Change::Settings {
            feed,
            revision,
            settings,
        });
        let state = &self.plan.state;
        // A document without entries is opened anew: no reader has been promised that header.
        if state.head.fill().entries == 0 && !state.settings.is_timeline() {
            let document = self.plan.state.head.open.opening.name.number;
            self.open_document(document);
        }
    }

    fn open_document(&mut self, document: DocumentNumber) {
        let head = &self.plan.state.head;
        let (feed, first, revision) = (head.feed, head.next, head.revision);
        self.record_change(Change::Opened {
            feed,
            document,
            first,
            revision,
        });
    }

    fn record_change(&mut self, change: Change) {
        // This instant counts only if the change is an entry; `apply` ignores the instant
        // otherwise.
        let entry_instant = self.stamp.of_entry(self.entries);
        self.plan
            .state
            .head
            .apply(&change, self.stamp.instant, entry_instant, self.stamp.epoch);
        self.plan.changes.push(change);
    }

    fn append_draft(&mut self, draft: &Draft, id: &EntryId) -> Result<KnownEntry, Refusal> {
        let instant = self.stamp.of_entry(self.entries);
        // The entry is completed before the cut, because the final size decides whether the entry
        // fits.
        let mut fragment = self.complete_fragment(draft, id, instant)?;
        let head = &self.plan.state.head;
        let policy = self.plan.state.settings.cut_policy();
        // A header is fixed when the document is opened, so new settings need a new document.
        let outdated = head.revision != head.open.opening.revision;
        if outdated
            || head.open.lost
            || policy.cuts_before(head.fill(), bytes_of(&fragment), instant)
        {
            let (document, epoch) = (
                head.open.opening.name.number.next(),
                head.open.opening.name.epoch,
            );
            self.open_document(document);
            if self.plan.state.head.open.opening.name.epoch != epoch {
                // The link to the entry's page contains the document's epoch, which the opening has
                // changed.
                fragment = self.complete_fragment(draft, id, instant)?;
            }
        }
        // The opening may have changed the head.
        let head = &self.plan.state.head;
        let (feed, at, document) = (head.feed, head.next, head.open.opening.name);
        let (sent, digest) = (draft.sent, Digest::of(&fragment));
        self.record_change(Change::Entry {
            feed,
            at,
            id: id.clone(),
            sent,
            fragment,
            digest,
        });
        self.entries += 1;
        self.plan.results.push(EntryResult {
            id: id.clone(),
            position: at,
            document,
            duplicate: false,
        });
        Ok(KnownEntry {
            at,
            document,
            sent,
            fragment: digest,
        })
    }

    /// Returns the fragment of the next entry, in the document that is open.
    fn complete_fragment(
        &self,
        draft: &Draft,
        id: &EntryId,
        instant: Timestamp,
    ) -> Result<Bytes, Refusal> {
        let FeedState { head, settings } = &self.plan.state;
        let additions = settings.additions(head.next, head.open.opening.name.epoch);
        draft.complete(id, instant, &additions)
    }

    /// Returns whether a draft equals the stored entry in the sent form or in the stored form.
    fn same_content(
        &self,
        draft: &Draft,
        id: &EntryId,
        earlier: &KnownEntry,
    ) -> Result<bool, Refusal> {
        // A publisher may send back an entry that was read from a document: the stored fragment.
        if draft.sent == earlier.sent || draft.sent == earlier.fragment {
            return Ok(true);
        }
        // A draft without `updated` gets the instant of this publish, and so cannot match here.
        let instant = self.stamp.of_entry(self.entries);
        let settings = &self.plan.state.settings;
        let additions = settings.additions(earlier.at, earlier.document.epoch);
        let fragment = draft.complete(id, instant, &additions)?;
        let digest = Digest::of(&fragment);
        Ok(digest == earlier.fragment || digest == earlier.sent)
    }
}

#[cfg(test)]
mod tests;
