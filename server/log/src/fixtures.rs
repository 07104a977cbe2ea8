//! Commits for tests of a log and its views, and a log that answers otherwise.
#![expect(clippy::unwrap_used, reason = "only tests use it")]

use std::{collections::HashMap, ops::Range, sync::Arc};

use bytes::Bytes;
use simplefeed_core::{
    commit::{Change, Commit},
    digest::Digest,
    entry::Entry,
    feed::{
        CommitNumber, DocumentNumber, EntryId, Epoch, FeedId, FeedKey, FeedName, FeedPattern,
        Position, Revision,
    },
    follow::{FollowChange, FollowItem},
    history::{ChainHash, HistoryHash},
    plan::{FeedHead, KnownEntry, Opening},
    settings::{Choices, Defaults, OwnEntries, Settings, TimelineKind},
    timestamp::Timestamp,
};
use uuid::Uuid;

use crate::{
    Append, Commits, FeedHeads, Ids, LogError, LogHead, LogRoom, Series,
    announcements::Announcements, memory::MemoryLog,
};

/// Returns the settings of a feed.
pub fn settings(feed: u128) -> Settings {
    Settings {
        name: FeedName::parse(&format!("feed{feed}")).unwrap(),
        id: FeedId::of_uuid(Uuid::from_u128(feed)),
        choices: Choices::default().into(),
        defaults: Defaults::new("http://h").into(),
        sup_id: None,
        was_closed: false,
        timeline: None,
    }
}

/// Returns an entry with so many bytes of content.
pub fn entry(feed: u128, at: u64, bytes: usize) -> Change {
    let id = EntryId::parse(&format!("urn:{feed}:{at}")).unwrap();
    let fragment = format!("<entry><id>{id}</id>{}</entry>", "x".repeat(bytes));
    Change::Entry {
        feed: settings(feed).id.key(),
        at: Position(at),
        id,
        sent: Digest::of(&at.to_be_bytes()),
        digest: Digest::of(fragment.as_bytes()),
        fragment: Bytes::from(fragment),
    }
}

/// Returns the changes that create a feed.
pub fn create(feed: u128) -> Vec<Change> {
    let (settings, feed) = (settings(feed), settings(feed).id.key());
    let revision = Revision::FIRST;
    vec![
        Change::Settings {
            feed,
            revision,
            settings,
        },
        Change::Opened {
            feed,
            document: DocumentNumber::OLDEST,
            first: Position(0),
            revision,
        },
    ]
}

fn create_timeline(feed: u128) -> Vec<Change> {
    let mut changes = create(feed);
    for change in &mut changes {
        if let Change::Settings { settings, .. } = change {
            let owner = FeedName::parse("feed1");
            settings.timeline = Some(TimelineKind::new(owner, OwnEntries::Include));
        }
    }
    changes
}

/// A timeline follows so many feeds, and a pattern.
fn following(feed: u128, count: u128) -> Change {
    let feeds = (1..=count).map(|feed| FollowItem::Feed(FeedKey(Uuid::from_u128(feed))));
    let pattern = FeedPattern::parse("feed*").unwrap();
    Change::Following {
        feed: settings(feed).id.key(),
        change: Arc::new(FollowChange {
            follow: feeds.chain([FollowItem::Pattern(pattern)]).collect(),
            unfollow: vec![FollowItem::Feed(settings(2).id.key())],
            backfill: 1_000,
        }),
    }
}

/// Returns the change that opens a document of a feed.
pub fn open_document(feed: u128, document: u64, first: u64) -> Change {
    Change::Opened {
        feed: settings(feed).id.key(),
        document: DocumentNumber::new(document).unwrap(),
        first: Position(first),
        revision: Revision::FIRST,
    }
}

/// Commits of every kind: creation, small and huge entries, cuts, several feeds at once, settings.
pub fn script() -> Vec<Commit> {
    let later = Settings {
        choices: Arc::new(Choices {
            title: Some("Later".into()),
            ..Choices::default()
        }),
        ..settings(1)
    };
    let changes = vec![
        create(1),
        vec![entry(1, 0, 10), entry(1, 1, 0)],
        [
            create(2),
            vec![entry(2, 0, 30_000), entry(1, 2, 5), entry(2, 1, 7_400)],
        ]
        .concat(),
        vec![
            open_document(1, 2, 3),
            entry(1, 3, 100),
            entry(1, 4, 100),
            open_document(1, 3, 5),
            entry(1, 5, 1),
        ],
        vec![Change::Settings {
            feed: settings(1).id.key(),
            revision: Revision(2),
            settings: later,
        }],
        (6..400).map(|at| entry(1, at, 50)).collect(),
        vec![
            Change::Epoch { epoch: Epoch(2) },
            open_document(1, 3, 5),
            open_document(2, 1, 0),
        ],
        vec![entry(1, 400, 10), open_document(2, 2, 2), entry(2, 2, 10)],
        vec![Change::Lost {
            feed: settings(1).id.key(),
            next: Position(410),
            history: HistoryHash(Digest::of(b"lost")),
        }],
        vec![open_document(1, 4, 410), entry(1, 410, 10)],
        [
            vec![Change::Defaults {
                revision: Revision::FIRST,
                defaults: Defaults::new("http://h"),
            }],
            create_timeline(3),
            vec![following(3, 2)],
        ]
        .concat(),
        // More than a record of facts has room for.
        vec![entry(2, 3, 1), following(3, 3_000), entry(2, 4, 1)],
        vec![Change::Defaults {
            revision: Revision(2),
            defaults: Defaults {
                author: "a".repeat(9_000),
                ..Defaults::new("http://other")
            },
        }],
    ];
    (1..)
        .zip(changes)
        .map(|(number, changes)| Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(1_000_000 * i64::try_from(number).unwrap()),
            changes,
        })
        .collect()
}

/// Call of a log, as far as tests want to answer otherwise.
#[derive(Debug)]
pub enum Call<'c> {
    /// The end of the log, or commits.
    Commits,
    /// Entries of a feed.
    Entries,
    /// The head of a feed, by name.
    Named(&'c FeedName),
    /// Settings of a feed.
    Settings(FeedKey, Revision),
    /// Entries by their ids.
    Ids,
    /// The append of a commit, with the heads that the writer knows.
    Append(Option<&'c FeedHeads>),
}

/// What a test wants to be otherwise in a log.
pub trait Alteration: Send + Sync {
    /// Called before the log answers. A test may wait or panic here.
    ///
    /// # Errors
    ///
    /// Returns the error that the caller gets in place of an answer.
    fn before(&self, call: Call<'_>, log: &MemoryLog) -> Result<(), LogError>;

    /// Returns whether the log takes commits.
    fn is_open(&self) -> bool {
        true
    }

    /// Returns whether the files of the log are not where they were.
    fn is_displaced(&self) -> bool {
        false
    }
}

/// A log in memory, with an alteration.
#[derive(Debug)]
pub struct AlteredLog<A> {
    /// The log that answers.
    pub log: Arc<MemoryLog>,
    /// What is otherwise.
    pub alteration: A,
    announcements: Arc<Announcements>,
}

impl<A> AlteredLog<A> {
    /// Returns a log whose commits another writer may append, too: these are announced here.
    pub fn new(log: &Arc<MemoryLog>, alteration: A) -> Self {
        let announcements = Arc::new(Announcements::default());
        let ours = Arc::clone(&announcements);
        log.announcements()
            .invalidate_with(move |commit| ours.invalidate(commit));
        let ours = Arc::clone(&announcements);
        log.announcements()
            .listen(move |commit| ours.announce(commit));
        Self {
            log: Arc::clone(log),
            alteration,
            announcements,
        }
    }
}

impl<A: Alteration> AlteredLog<A> {
    fn answer(&self, call: Call<'_>) -> Result<&MemoryLog, LogError> {
        self.alteration.before(call, &self.log)?;
        Ok(&self.log)
    }
}

impl<A: Alteration> Commits for AlteredLog<A> {
    fn announcements(&self) -> &Announcements {
        &self.announcements
    }

    fn head(&self) -> LogHead {
        let answering = self.answer(Call::Commits);
        answering.expect("a head has no error").head()
    }

    fn commits(&self, from: CommitNumber, max: usize) -> Result<Vec<Commit>, LogError> {
        self.answer(Call::Commits)?.commits(from, max)
    }

    fn chain(&self, number: CommitNumber) -> Result<Option<ChainHash>, LogError> {
        self.log.chain(number)
    }
}

impl<A: Alteration> Append for AlteredLog<A> {
    fn append(&self, commit: &Commit) -> Result<ChainHash, LogError> {
        self.answer(Call::Append(None))?.append(commit)
    }

    fn append_after(&self, commit: &Commit, before: &FeedHeads) -> Result<ChainHash, LogError> {
        self.answer(Call::Append(Some(before)))?.append(commit)
    }
}

impl<A: Alteration> Series for AlteredLog<A> {
    fn entries(&self, feed: FeedKey, range: Range<Position>) -> Result<Vec<Entry>, LogError> {
        self.answer(Call::Entries)?.entries(feed, range)
    }

    fn feed(&self, feed: FeedKey) -> Result<Option<FeedHead>, LogError> {
        self.log.feed(feed)
    }

    fn named(&self, name: &FeedName) -> Result<Option<FeedHead>, LogError> {
        self.answer(Call::Named(name))?.named(name)
    }

    fn settings(&self, feed: FeedKey, revision: Revision) -> Result<Option<Settings>, LogError> {
        let call = Call::Settings(feed, revision);
        self.answer(call)?.settings(feed, revision)
    }

    fn defaults(&self, revision: Revision) -> Result<Option<Defaults>, LogError> {
        self.log.defaults(revision)
    }

    fn opening(&self, feed: FeedKey, at: DocumentNumber) -> Result<Option<Opening>, LogError> {
        self.log.opening(feed, at)
    }

    fn feeds(
        &self,
        after: Option<&FeedName>,
        max: usize,
    ) -> Result<Vec<(FeedName, FeedHead)>, LogError> {
        self.log.feeds(after, max)
    }
}

impl<A: Alteration> Ids for AlteredLog<A> {
    fn find_all(
        &self,
        feed: FeedKey,
        ids: &[&EntryId],
    ) -> Result<HashMap<EntryId, KnownEntry>, LogError> {
        self.answer(Call::Ids)?.find_all(feed, ids)
    }
}

impl<A: Alteration> LogRoom for AlteredLog<A> {
    fn is_open(&self) -> bool {
        self.alteration.is_open()
    }

    fn is_displaced(&self) -> bool {
        self.alteration.is_displaced()
    }
}
