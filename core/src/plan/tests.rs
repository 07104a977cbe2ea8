use super::*;
use crate::{
    cut::Period,
    event::from_ndjson,
    feed::{FeedId, FeedName},
    refusal::RefusalKind,
    sup::SupId,
};

/// A feed, and what a log would know of it.
struct Feed {
    state: FeedState,
    known: HashMap<EntryId, KnownEntry>,
    defaults: Arc<Defaults>,
    now: Timestamp,
}

impl Feed {
    fn new(choices: Choices) -> Self {
        let defaults = Arc::new(Defaults::new("https://example.org"));
        let settings = Settings {
            name: FeedName::parse("orders").unwrap(),
            id: FeedId::parse("urn:feed").unwrap(),
            choices: choices.into(),
            defaults: defaults.clone(),
            sup_id: SupId::parse("4496672d"),
            was_closed: false,
            timeline: None,
        };
        let now = Timestamp::parse("2026-01-01T00:30:00Z").unwrap();
        let state = plan_creation(settings, stamp(now)).state;
        Self {
            state,
            known: HashMap::new(),
            defaults,
            now,
        }
    }

    fn of_documents(entries: u32) -> Self {
        Self::new(Choices {
            document_entries: Some(entries),
            ..Choices::default()
        })
    }

    /// Plans a publish of events, one a line, without storing it.
    fn offer(&self, events: &str) -> Result<Plan, Refusal> {
        let mut drafts = from_ndjson(events.as_bytes()).unwrap();
        give_ids(&mut drafts, self.state.head.feed, Some("key"), Uuid::now_v7);
        plan(
            &self.state,
            &drafts,
            &self.known,
            &self.defaults,
            stamp(self.now),
        )
    }

    /// Stores events. Returns what became of each: its position, its document, and whether it is a duplicate.
    fn publish(&mut self, events: &str) -> Vec<(u64, u64, bool)> {
        let plan = self.offer(events).unwrap();
        for change in &plan.changes {
            if let Change::Entry {
                at,
                id,
                sent,
                digest,
                ..
            } = change
            {
                let outcome = plan.results.iter().find(|outcome| outcome.id == *id);
                let known = KnownEntry {
                    at: *at,
                    document: outcome.unwrap().document,
                    sent: *sent,
                    fragment: *digest,
                };
                self.known.insert(id.clone(), known);
            }
        }
        self.state = plan.state;
        self.now = self.now.plus_micros(1_000_000);
        let results = plan.results.into_iter();
        results
            .map(|result| {
                (
                    result.position.0,
                    result.document.number.get(),
                    result.duplicate,
                )
            })
            .collect()
    }

    /// The positions at which documents begin in what a publish would store.
    fn cuts(&self, events: &str) -> Vec<u64> {
        let plan = self.offer(events).unwrap();
        let cuts = plan.changes.iter().filter_map(|change| match change {
            Change::Opened { first, .. } => Some(first.0),
            _ => None,
        });
        cuts.collect()
    }
}

fn stamp(instant: Timestamp) -> Stamp {
    Stamp {
        instant,
        entries_before: 0,
        epoch: Epoch::default(),
    }
}

/// Events with these ids, one a line.
fn events(ids: std::ops::Range<u32>) -> String {
    ids.fold(String::new(), |lines, id| {
        lines + &format!("{{\"id\":\"urn:{id}\",\"title\":\"{id}\"}}\n")
    })
}

/// The same id is the same entry, for ever: sent as before it is a duplicate, anything else a conflict.
#[test]
fn an_id_stands_for_one_content() {
    let first = "{\"id\":\"urn:1\",\"title\":\"a\",\"content\":{\"n\":1}}";
    for (again, duplicate) in [
        (first, true),
        // Members in another order, and white space.
        (
            "{\"title\":\"a\", \"content\":{\"n\":1}, \"id\":\"urn:1\"}",
            true,
        ),
        (
            "{\"id\":\"urn:1\",\"title\":\"b\",\"content\":{\"n\":1}}",
            false,
        ),
        (
            "{\"id\":\"urn:1\",\"title\":\"a\",\"content\":{\"n\":2}}",
            false,
        ),
        ("{\"id\":\"urn:1\",\"title\":\"a\"}", false),
    ] {
        // In the feed, and within one batch.
        let mut feed = Feed::of_documents(100);
        assert_eq!(feed.publish(first), [(0, 1, false)]);
        let in_feed = feed.offer(again);
        let in_batch = Feed::of_documents(100).offer(&format!("{first}\n{again}"));
        for (outcome, entry) in [(in_feed, 0), (in_batch, 1)] {
            if duplicate {
                let plan = outcome.unwrap();
                let last = plan.results.last().unwrap();
                assert!(last.duplicate && last.position == Position(0), "{again}");
            } else {
                let refusal = outcome.unwrap_err();
                assert_eq!(refusal.kind, RefusalKind::Conflict, "{again}");
                let [conflict] = &refusal.conflicts[..] else {
                    panic!("{refusal:?}");
                };
                assert_eq!((conflict.entry, conflict.id.as_str()), (entry, "urn:1"));
            }
        }
    }
}

/// A batch is stored as a whole or not at all, and all its conflicts are told.
#[test]
fn a_conflict_refuses_its_batch() {
    let mut feed = Feed::of_documents(100);
    feed.publish(&events(0..3));
    let offered = format!(
        "{}{}",
        events(7..8),
        events(0..3).replace("title\":\"", "title\":\"!")
    );
    let refusal = feed.offer(&offered).unwrap_err();
    let entries: Vec<usize> = refusal
        .conflicts
        .iter()
        .map(|conflict| conflict.entry)
        .collect();
    assert_eq!(entries, [1, 2, 3]);
}

/// Nothing new stores nothing, and changes nothing.
#[test]
fn duplicates_store_nothing() {
    let mut feed = Feed::of_documents(2);
    let first = feed.publish(&events(0..5));
    assert_eq!(
        first.iter().map(|place| place.1).collect::<Vec<_>>(),
        [1, 1, 2, 2, 3]
    );
    // New proposals of the server wait for the next new entry.
    Arc::make_mut(&mut feed.defaults).author = "Somebody".into();
    let again = feed.offer(&events(0..5)).unwrap();
    assert!(again.changes.is_empty());
    assert_eq!(again.state.head, feed.state.head);
    let places = again
        .results
        .iter()
        .map(|result| (result.position.0, result.document.number.get(), true));
    let expected = first
        .iter()
        .map(|(position, document, _)| (*position, *document, true));
    assert!(places.eq(expected));
}

/// A document is cut by its entries, its bytes, its period, and by settings that its header lacks; a document without
/// entries is never cut.
#[test]
fn documents_are_cut_where_a_bound_is_reached() {
    let mut feed = Feed::of_documents(3);
    assert_eq!(feed.cuts(&events(0..7)), [3, 6]);
    feed.publish(&events(0..2));
    assert_eq!(feed.cuts(&events(2..4)), [3], "the open document counts");

    let long = |id: u32| {
        format!(
            "{{\"id\":\"urn:{id}\",\"title\":\"{}\"}}\n",
            "x".repeat(1_000)
        )
    };
    let feed = Feed::new(Choices {
        document_bytes: Some(2_000),
        ..Choices::default()
    });
    let lines = (0..3).fold(String::new(), |lines, id| lines + &long(id));
    assert_eq!(
        feed.cuts(&lines),
        [1, 2],
        "two of them have more than 2,000 bytes"
    );
    let huge = format!("{{\"id\":\"urn:9\",\"title\":\"{}\"}}\n", "x".repeat(9_000));
    assert_eq!(
        feed.cuts(&huge),
        [0; 0],
        "one entry may be larger than a document"
    );

    let mut feed = Feed::new(Choices {
        document_period: Some(Period::Hour),
        ..Choices::default()
    });
    feed.publish(&events(0..1));
    assert_eq!(feed.cuts(&events(1..2)), [0; 0]);
    feed.now = Timestamp::parse("2026-01-01T01:00:00Z").unwrap();
    assert_eq!(feed.cuts(&events(1..3)), [1]);

    let mut feed = Feed::of_documents(100);
    feed.publish(&events(0..1));
    Arc::make_mut(&mut feed.defaults).author = "Somebody".into();
    let plan = feed.offer(&events(1..2)).unwrap();
    assert!(matches!(
        plan.changes[..],
        [
            Change::Settings { .. },
            Change::Opened {
                first: Position(1),
                ..
            },
            Change::Entry { .. }
        ]
    ));
}

/// Entries of one commit have instants of their own, in their order.
#[test]
fn each_entry_has_its_instant() {
    let feed = Feed::of_documents(100);
    let mut drafts = from_ndjson(events(0..3).as_bytes()).unwrap();
    give_ids(&mut drafts, feed.state.head.feed, None, Uuid::now_v7);
    let stamp = Stamp {
        entries_before: 10,
        ..stamp(feed.now)
    };
    let plan = plan(&feed.state, &drafts, &feed.known, &feed.defaults, stamp).unwrap();
    assert_eq!(plan.state.head.updated, feed.now.plus_micros(12));
    assert_eq!(plan.state.head.next, Position(3));
}

/// A repeated request with its key gives the same ids, in every feed others; without a key they are random.
#[test]
fn ids_are_derived_from_the_key() {
    let ids = |feed: &str, key: Option<&str>| -> Vec<EntryId> {
        let feed = FeedId::parse(feed).unwrap().key();
        let mut drafts = from_ndjson(b"{}\n{\"id\":\"urn:given\"}\n{}\n").unwrap();
        give_ids(&mut drafts, feed, key, Uuid::now_v7);
        drafts.into_iter().map(|draft| draft.id.unwrap()).collect()
    };
    let first = ids("urn:a", Some("k"));
    assert_eq!(first, ids("urn:a", Some("k")));
    assert_eq!(first[1].as_str(), "urn:given");
    assert_ne!(first[0], first[2]);
    for (feed, key) in [("urn:b", Some("k")), ("urn:a", Some("l")), ("urn:a", None)] {
        let other = ids(feed, key);
        assert!(
            first[0] != other[0] && first[2] != other[2],
            "{feed} {key:?}"
        );
    }
    assert_ne!(ids("urn:a", None)[0], ids("urn:a", None)[0]);
}

/// Settings that change nothing store nothing; an open document without entries gets the new header at once.
#[test]
fn settings_take_effect_with_the_next_header() {
    let title = |title: &str| Choices {
        title: Some(title.into()),
        ..Choices::default()
    };
    let mut feed = Feed::new(title("a"));
    let set =
        |feed: &Feed, choices| plan_settings(&feed.state, choices, &feed.defaults, stamp(feed.now));
    assert!(set(&feed, title("a")).unwrap().changes.is_empty());
    let changes = set(&feed, title("b")).unwrap().changes;
    assert!(matches!(
        changes[..],
        [Change::Settings { .. }, Change::Opened { .. }]
    ));
    feed.publish(&events(0..1));
    let plan = set(&feed, title("b")).unwrap();
    assert!(matches!(plan.changes[..], [Change::Settings { .. }]));
    feed.state = plan.state;
    assert_eq!(feed.cuts(&events(1..2)), [1]);
    let closed = Choices {
        closed: Some(true),
        ..Choices::default()
    };
    assert_eq!(
        set(&feed, closed).unwrap_err().kind,
        RefusalKind::Unacceptable
    );
}

/// The bytes that completion adds are bounded before they are added.
#[test]
fn a_batch_is_bounded_as_it_is_completed() {
    let many: String = (0..10_000).map(|_| "{}\n").collect();
    assert!(
        Feed::of_documents(100).offer(&many).is_ok(),
        "ordinary authors fit"
    );
    let feed = Feed::new(Choices {
        author: Some("x".repeat(COMPLETED_BATCH_BYTES_MAX / 10_000)),
        ..Choices::default()
    });
    assert_eq!(feed.offer(&many).unwrap_err().kind, RefusalKind::TooLarge);
}
