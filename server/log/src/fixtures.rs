//! Commits for tests of a log and its views.
#![expect(clippy::unwrap_used, reason = "only tests use it")]

use std::sync::Arc;

use bytes::Bytes;
use simplefeed_core::{
    commit::{Change, Commit},
    digest::Digest,
    feed::{
        CommitNumber, DocumentNumber, EntryId, Epoch, FeedId, FeedKey, FeedName, FeedPattern,
        Position, Revision,
    },
    follow::{FollowChange, FollowItem},
    history::HistoryHash,
    settings::{Choices, Defaults, OwnEntries, Settings, TimelineKind},
    timestamp::Timestamp,
};
use uuid::Uuid;

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
