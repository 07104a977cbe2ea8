//! Commits that are applied again, since the log could not be read at first.

use std::slice;

use simplefeed_log::fixtures::{Alteration, AlteredLog, Call};

use super::*;

/// Reads of entries that succeed first, and those that fail then.
struct Flaky(Mutex<(usize, usize)>);

impl Alteration for Flaky {
    fn before(&self, call: Call<'_>, _: &MemoryLog) -> Result<(), LogError> {
        let mut left = self.0.lock();
        match (call, *left) {
            (Call::Entries, (0, fails)) if fails > 0 => {
                left.1 = fails - 1;
                return Err(LogError::Stopped);
            }
            (Call::Entries, (succeeds, _)) if succeeds > 0 => left.0 = succeeds - 1,
            _ => {}
        }
        Ok(())
    }
}

fn following(
    timeline: usize,
    follow: &[FollowItem],
    unfollow: &[FollowItem],
    backfill: u32,
) -> Change {
    let change = FollowChange {
        follow: follow.to_vec(),
        unfollow: unfollow.to_vec(),
        backfill,
    };
    Change::Following {
        feed: timeline_key(timeline),
        change: change.into(),
    }
}

fn settings_of_feed(feed: usize, name: &str, closed: bool, revision: Revision) -> Change {
    let choices = Choices {
        closed: Some(closed),
        ..Choices::default()
    };
    Change::Settings {
        feed: key(feed),
        revision,
        settings: settings_for(key(feed), name, choices),
    }
}

fn entry(feed: usize, at: u64) -> Change {
    let fragment = Bytes::from(format!(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:{feed}:{at}</id></entry>"
    ));
    Change::Entry {
        feed: key(feed),
        at: Position(at),
        id: EntryId::parse(&format!("urn:{feed}:{at}")).unwrap(),
        sent: Digest::of(b""),
        digest: Digest::of(&fragment),
        fragment,
    }
}

/// Goal: a commit that is applied again gives what it gives at once (S-D5): no follow brings along what came after it,
/// and no feed that appears is missed, wherever in the commit the log fails.
#[test]
fn a_commit_that_is_applied_again_changes_nothing_twice() {
    let mut world = World::new();
    for _ in 0..100 {
        world.take(&Step::Append(vec![1, 2, CLOSED]));
    }
    let (one, two) = (FollowItem::Feed(key(1)), FollowItem::Feed(key(2)));
    let pattern = FollowItem::Pattern(FeedPattern::parse("x-*").unwrap());
    // This one follows a pattern before, and so a feed that appears.
    let of_before = FollowItem::Pattern(FeedPattern::parse("x-l*").unwrap());
    world.commit(vec![following(1, slice::from_ref(&of_before), &[], 0)]);
    world.commit(vec![
        following(0, slice::from_ref(&two), &[], 4),
        following(1, slice::from_ref(&one), &[], 1),
        following(1, &[], slice::from_ref(&one), 0),
        following(0, &[pattern], &[], 12),
        entry(1, 100),
        settings_of_feed(FEEDS, "x-later", false, Revision::FIRST),
        Change::Opened {
            feed: key(FEEDS),
            document: DocumentNumber::OLDEST,
            first: Position(0),
            revision: Revision::FIRST,
        },
        entry(FEEDS, 0),
        settings_of_feed(CLOSED, "x-closed", false, Revision::FIRST.next()),
        following(0, &[], slice::from_ref(&two), 0),
        entry(2, 100),
        following(0, &[two], &[], 70),
        following(1, &[one], &[], 25),
    ]);
    world.commit(vec![
        entry(1, 101),
        entry(2, 101),
        entry(CLOSED, 100),
        entry(FEEDS, 1),
    ]);
    let outlines = world.log.outlines(CommitNumber(1), 1_000).unwrap();
    let apply_all = |fails: usize, after: usize| {
        let flaky = Flaky(Mutex::new((after, fails)));
        let flaky = AlteredLog::new(&world.log, flaky);
        let (mut graph, mut failures) = (Graph::default(), 0);
        for outline in &outlines {
            // Each time, nothing is in memory.
            while graph
                .apply(outline, &flaky, &EntryCache::default())
                .is_err()
            {
                failures += 1;
            }
        }
        (graph, failures)
    };
    let (expected, _) = apply_all(0, 0);
    let mut retried = 0;
    for after in 0..12 {
        let (graph, failures) = apply_all(2, after);
        assert!(graph == expected, "after {after} reads");
        retried += failures;
    }
    assert!(retried >= 8, "{retried}");
}
