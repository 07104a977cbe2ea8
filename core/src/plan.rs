//! Every decision of a publish: what is new, what is a duplicate or a conflict, where documents
//! are cut, and what each entry finally says.
//!
//! Pure. The writer shows what the log knows, this decides, the writer stores what was decided.
//!
//! ```text
//! entry known?   no ──────────────► appended
//!                yes, same bytes ─► duplicate: its first place is the answer
//!                yes, other bytes ► conflict: nothing of the batch is stored
//! ```

use std::{collections::HashMap, sync::Arc};

use uuid::Uuid;

use crate::{
    commit::Change,
    cut::Fill,
    digest::Digest,
    entry::Draft,
    feed::{DocumentName, DocumentNumber, EntryId, Epoch, FeedKey, Position, Revision},
    history::HistoryHash,
    instant::Instant,
    limits::COMPLETED_BATCH_BYTES_MAX,
    refusal::{Conflict, Refusal},
    settings::{Choices, Defaults, Settings},
};

/// What the log knows of a feed's end: enough to decide the next publish and to head the open
/// document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedHead {
    /// The feed.
    pub feed: FeedKey,
    /// The newest settings.
    pub revision: Revision,
    /// The position the next entry gets: the number of entries.
    pub next: Position,
    /// The history hash after all entries.
    pub history: HistoryHash,
    /// The document that takes the next entry, unless that entry cuts it.
    pub open: OpenDocument,
    /// The instant of the newest entry; of the feed's creation, while it has none.
    pub updated: Instant,
}

/// The recorded facts of a document: what its header is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Its number and epoch.
    pub name: DocumentName,
    /// The name that its predecessor links to: its own, unless it was open when an epoch began, which
    /// gave it another.
    pub linked: DocumentName,
    /// The document before it.
    pub previous: Option<DocumentName>,
    /// The position of its oldest entry.
    pub first: Position,
    /// The history hash before that entry.
    pub before: HistoryHash,
    /// The settings its header is made of.
    pub revision: Revision,
    /// The instant of the commit that opened it, hence closed its predecessor. A new name changes
    /// nothing about that.
    pub opened: Instant,
    /// Whether entries of its predecessor were lost, so that nobody is ever shown that one.
    pub after_loss: bool,
    /// Where the document began that was open when its epoch began: what an earlier epoch had in that
    /// document and later ones may be lost.
    pub since: Position,
}

/// The open document of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDocument {
    /// How it was opened.
    pub opening: Opening,
    /// The bytes of its entries so far.
    pub bytes: u64,
    /// Whether entries behind the newest one were lost.
    pub lost: bool,
}

impl OpenDocument {
    /// Returns the document that takes this one's place: the next one, or this one again, because it is
    /// empty or because an epoch has begun.
    fn succeeded_by(
        &self,
        name: DocumentName,
        first: Position,
        history: HistoryHash,
        instant: Instant,
    ) -> Self {
        let mut open = self.opening;
        if open.name.epoch != name.epoch {
            open.since = first;
        }
        if open.name.number == name.number {
            // Only a feed's first document, while it is empty, has not been seen by anybody.
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
    /// What was lost may have been frozen under its old name, so nothing else ever is.
    pub fn renamed(&self) -> Change {
        Change::Opened {
            feed: self.feed,
            document: self.open.opening.name.number,
            first: self.open.opening.first,
            revision: self.revision,
        }
    }

    /// Returns the head of a feed that a commit at `instant` creates.
    pub fn create(settings: &Settings, instant: Instant, epoch: Epoch) -> Self {
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

    /// Returns how full the open document is.
    pub fn fill(&self) -> Fill {
        Fill {
            entries: self.next.0 - self.open.opening.first.0,
            bytes: self.open.bytes,
            newest: self.updated,
        }
    }

    /// Takes a change of this feed, made by a commit at `instant`, into account. `entry_instant`
    /// is the instant of the entry, if the change is one.
    pub fn apply(
        &mut self,
        change: &Change,
        instant: Instant,
        entry_instant: Instant,
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
                self.open = self.open.succeeded_by(name, *first, self.history, instant);
                self.open.opening.revision = *revision;
            }
            Change::Entry {
                fragment, digest, ..
            } => {
                self.history = self.history.extend_with_digest(*digest);
                self.next = self.next.next();
                self.open.bytes += bytes_of(fragment);
                self.updated = entry_instant;
            }
            Change::Lost { next, history, .. } => {
                self.next = *next;
                self.history = *history;
                self.open.lost = true;
            }
            Change::Epoch { .. } => {}
        }
    }
}

fn bytes_of(fragment: &[u8]) -> u64 {
    u64::try_from(fragment.len()).expect("a fragment's length fits into 64 bits")
}

/// An entry that exists already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its place.
    pub at: Position,
    /// The document it is in.
    pub document: DocumentName,
    /// The digest of what was sent.
    pub sent: Digest,
    /// The digest of its fragment.
    pub fragment: Digest,
}

/// The moment of a publish within its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The instant of the commit.
    pub instant: Instant,
    /// The entries that the commit has already.
    pub entries_before: u64,
    /// The epoch of the log.
    pub epoch: Epoch,
}

impl Moment {
    fn of_entry(&self, index: u64) -> Instant {
        self.instant.plus_micros(self.entries_before + index)
    }
}

/// A feed as a publish finds it.
#[derive(Clone, Debug)]
pub struct FeedState {
    /// Its end.
    pub head: FeedHead,
    /// Its newest settings.
    pub settings: Arc<Settings>,
}

/// What is to be stored, and what to tell the publisher.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The changes to commit; none if all entries were duplicates.
    pub changes: Vec<Change>,
    /// The feed as it is after them.
    pub state: FeedState,
    /// One result for each entry, in order.
    pub results: Vec<Outcome>,
}

/// What became of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its id, given or sent.
    pub id: EntryId,
    /// Its place, the first one if it is a duplicate.
    pub position: Position,
    /// The document that place is in.
    pub document: DocumentName,
    /// Whether it was there before.
    pub duplicate: bool,
}

/// Gives an id to every draft that has none: derived from the request's idempotency key, so that a
/// repeated request gives the same ids, or else from `random`.
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
            Some(key) => Uuid::new_v5(&feed.0, format!("{key}\0{index}").as_bytes()),
            None => random(),
        };
        draft.id = Some(EntryId::of_uuid(uuid));
    }
}

/// Decides a publish of `drafts`, all of which have ids, to the feed in `state`.
///
/// `known` tells what the feed holds under the ids of the drafts. `defaults` are what the server
/// proposes now; if they change what the feed looks like, the change is recorded first.
///
/// # Errors
///
/// `Conflict` if an id stands for another content already, in the feed or in the batch; `TooLarge`
/// if a completed entry is. Nothing is to be stored then.
pub fn plan(
    state: &FeedState,
    drafts: &[Draft],
    known: &HashMap<EntryId, Known, impl std::hash::BuildHasher>,
    defaults: &Defaults,
    moment: Moment,
) -> Result<Plan, Refusal> {
    let mut planning = Planning {
        plan: Plan {
            changes: vec![],
            state: state.clone(),
            results: vec![],
        },
        moment,
        entries: 0,
    };
    check_completed(drafts, state.settings.author())?;
    let mut batch: HashMap<&EntryId, Known> = HashMap::new();
    let mut conflicts = vec![];
    let new = drafts.iter().any(|draft| !known.contains_key(id_of(draft)));
    if new {
        planning.propose(defaults);
    }
    for (index, draft) in drafts.iter().enumerate() {
        let id = id_of(draft);
        if let Some(earlier) = batch.get(id).or_else(|| known.get(id)) {
            if planning.same_content(draft, id, earlier)? {
                planning.plan.results.push(Outcome {
                    id: id.clone(),
                    position: earlier.at,
                    document: earlier.document,
                    duplicate: true,
                });
            } else {
                let (stored, offered) = (earlier.sent, draft.sent);
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
            .append(draft, id)
            .map_err(|refusal| refusal.at_entry(index))?;
        batch.insert(id, appended);
    }
    if conflicts.is_empty() {
        Ok(planning.plan)
    } else {
        Err(Refusal::conflict(conflicts))
    }
}

/// Bounds the completed bytes of a batch before any entry is built: completion can multiply short entries.
fn check_completed(drafts: &[Draft], author: &str) -> Result<(), Refusal> {
    let bytes: usize = drafts.iter().map(|draft| draft.size(author)).sum();
    if bytes <= COMPLETED_BATCH_BYTES_MAX {
        return Ok(());
    }
    let detail = format!(
        "the entries have, with what they inherit and lack, more than {COMPLETED_BATCH_BYTES_MAX} bytes; \
         send fewer at once"
    );
    Err(Refusal::too_large(detail))
}

/// Decides a change of settings. Returns no changes if the feed already is as asked.
///
/// # Errors
///
/// Returns why the feed cannot have them, see [`Settings::with`].
pub fn plan_settings(
    state: &FeedState,
    choices: Choices,
    defaults: &Defaults,
    moment: Moment,
) -> Result<Plan, Refusal> {
    let plan = Plan {
        changes: vec![],
        state: state.clone(),
        results: vec![],
    };
    let mut planning = Planning {
        plan,
        moment,
        entries: 0,
    };
    let chosen = state.settings.with(choices)?;
    let settled = chosen.as_ref().unwrap_or(&state.settings);
    let changed = settled.under(defaults).or_else(|| chosen.clone());
    if let Some(settings) = changed {
        planning.settle(settings);
    }
    Ok(planning.plan)
}

/// Decides the creation of a feed with `settings`.
pub fn plan_creation(settings: Settings, moment: Moment) -> Plan {
    let head = FeedHead::create(&settings, moment.instant, moment.epoch);
    let feed = head.feed;
    let changes = vec![
        Change::Settings {
            feed,
            revision: Revision::FIRST,
            settings: settings.clone(),
        },
        Change::Opened {
            feed,
            document: DocumentNumber::OLDEST,
            first: Position(0),
            revision: Revision::FIRST,
        },
    ];
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
    moment: Moment,
    entries: u64,
}

impl Planning {
    fn propose(&mut self, defaults: &Defaults) {
        if let Some(settings) = self.plan.state.settings.under(defaults) {
            self.settle(settings);
        }
    }

    /// Records settings. A document without entries is opened anew, since nobody was promised its
    /// header; any other keeps its header, and the next entry opens another.
    fn settle(&mut self, settings: Settings) {
        let head = &self.plan.state.head;
        let (feed, revision) = (head.feed, head.revision.next());
        self.plan.state.settings = Arc::new(settings.clone());
        self.record(Change::Settings {
            feed,
            revision,
            settings,
        });
        if self.plan.state.head.fill().entries == 0 {
            let document = self.plan.state.head.open.opening.name.number;
            self.open(document);
        }
    }

    fn open(&mut self, document: DocumentNumber) {
        let head = &self.plan.state.head;
        let (feed, first, revision) = (head.feed, head.next, head.revision);
        self.record(Change::Opened {
            feed,
            document,
            first,
            revision,
        });
    }

    fn record(&mut self, change: Change) {
        let entry_instant = self.moment.of_entry(self.entries);
        self.plan.state.head.apply(
            &change,
            self.moment.instant,
            entry_instant,
            self.moment.epoch,
        );
        self.plan.changes.push(change);
    }

    fn append(&mut self, draft: &Draft, id: &EntryId) -> Result<Known, Refusal> {
        let instant = self.moment.of_entry(self.entries);
        let fragment = draft.complete(id, instant, self.plan.state.settings.author())?;
        let head = &self.plan.state.head;
        let policy = self.plan.state.settings.cut_policy();
        let outdated = head.revision != head.open.opening.revision;
        if outdated
            || head.open.lost
            || policy.cuts_before(head.fill(), bytes_of(&fragment), instant)
        {
            let document = head.open.opening.name.number.next();
            self.open(document);
        }
        let head = &self.plan.state.head;
        let (feed, at, document) = (head.feed, head.next, head.open.opening.name);
        let (sent, digest) = (draft.sent, Digest::of(&fragment));
        self.record(Change::Entry {
            feed,
            at,
            id: id.clone(),
            sent,
            fragment,
            digest,
        });
        self.entries += 1;
        self.plan.results.push(Outcome {
            id: id.clone(),
            position: at,
            document,
            duplicate: false,
        });
        Ok(Known {
            at,
            document,
            sent,
            fragment: digest,
        })
    }

    /// Whether a draft is what is there already: in the form it was sent in, or in the form it
    /// would be stored in.
    fn same_content(&self, draft: &Draft, id: &EntryId, earlier: &Known) -> Result<bool, Refusal> {
        if draft.sent == earlier.sent || draft.sent == earlier.fragment {
            return Ok(true);
        }
        let instant = self.moment.of_entry(self.entries);
        let fragment = draft.complete(id, instant, self.plan.state.settings.author())?;
        let digest = Digest::of(&fragment);
        Ok(digest == earlier.fragment || digest == earlier.sent)
    }
}

#[cfg(test)]
mod tests;
