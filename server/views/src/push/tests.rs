//! Tests of the view on a log in memory.

use simplefeed_core::{
    digest::Digest,
    feed::{DocumentNumber, EntryId, FeedId},
    settings::{Choices, Defaults, Settings},
    timestamp::Timestamp,
};
use simplefeed_log::{Append as _, Series as _, memory::MemoryLog};
use uuid::Uuid;

use super::*;

/// A log with one feed.
struct Growing {
    log: MemoryLog,
    feed: FeedKey,
    name: FeedName,
    commit: u64,
    next: u64,
}

impl Growing {
    fn new() -> Self {
        let settings = Settings {
            name: FeedName::parse("a").unwrap(),
            id: FeedId::of_uuid(Uuid::from_u128(1)),
            choices: Choices::default().into(),
            defaults: Defaults::new("http://h").into(),
            sup_id: None,
            was_closed: false,
            timeline: None,
        };
        let (feed, revision) = (settings.id.key(), Revision::FIRST);
        let mut growing = Self {
            log: MemoryLog::default(),
            feed,
            name: settings.name.clone(),
            commit: 0,
            next: 0,
        };
        let opened = growing.opened(1);
        let settings = Change::Settings {
            feed,
            revision,
            settings,
        };
        growing.append(vec![settings, opened]);
        growing
    }

    fn feed(&self) -> (FeedKey, &FeedName) {
        (self.feed, &self.name)
    }

    fn opened(&self, document: u64) -> Change {
        Change::Opened {
            feed: self.feed,
            document: DocumentNumber::new(document).unwrap(),
            first: Position(self.next),
            revision: Revision::FIRST,
        }
    }

    fn append(&mut self, changes: Vec<Change>) -> Outline {
        self.commit += 1;
        let commit = Commit {
            number: CommitNumber(self.commit),
            instant: Timestamp::from_micros(i64::try_from(self.commit).unwrap() * 1_000_000),
            changes,
        };
        self.log.append(&commit).unwrap();
        Outline::of(&commit)
    }

    /// Appends entries of a size, every 100 of them in a document of their own.
    fn grow(&mut self, count: u64, size: usize) -> Outline {
        let mut changes = vec![];
        for _ in 0..count {
            if self.next > 0 && self.next.is_multiple_of(100) {
                changes.push(self.opened(self.next / 100 + 1));
            }
            let id = format!("urn:{}", self.next);
            let fragment = format!(
                "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>{id}</id><title>{}</title></entry>",
                "t".repeat(size)
            );
            changes.push(Change::Entry {
                feed: self.feed,
                at: Position(self.next),
                id: EntryId::parse(&id).unwrap(),
                sent: Digest::of(id.as_bytes()),
                digest: Digest::of(fragment.as_bytes()),
                fragment: fragment.into(),
            });
            self.next += 1;
        }
        self.append(changes)
    }
}

/// A reader as streams are: it takes what is at hand, and reads the past where that is not enough.
struct Reader {
    watching: Watching,
    at: Position,
    begin: Option<Begin>,
    read: Vec<u8>,
    of_the_past: usize,
}

impl Reader {
    fn new(view: &Push, growing: &Growing, at: u64) -> Self {
        Self {
            watching: view
                .watch(growing.feed(), Interest::Entries, &growing.log)
                .unwrap(),
            at: Position(at),
            begin: None,
            read: vec![],
            of_the_past: 0,
        }
    }

    /// Takes one step. Returns whether there may be more.
    fn step(&mut self, view: &Push, growing: &Growing) -> bool {
        if self.at >= self.watching.news().next() {
            return false;
        }
        let events = self.watching.at_hand(self.at);
        for event in &events {
            self.read.extend_from_slice(event);
            self.at = self.at.next();
            self.begin = None;
        }
        if events.is_empty() {
            let (feed, log) = (growing.feed, &growing.log);
            let begin = self.begin.or_else(|| match self.at.0.checked_sub(1) {
                Some(before) => view.behind(feed, Position(before), log).unwrap(),
                None => view.beginning(feed, log).unwrap(),
            });
            let Past::Stretch(stretch) = view.past(feed, self.at, &begin.unwrap(), log).unwrap()
            else {
                panic!("nothing is missing");
            };
            self.read.extend_from_slice(&stretch.bytes);
            (self.at, self.begin) = (stretch.next, Some(stretch.end));
            self.of_the_past += 1;
        }
        true
    }
}

/// Goal: however entries come and however slowly it reads, a reader gets each event once, in order and with the same id.
#[test]
fn each_event_comes_once_in_order() {
    let (view, mut growing) = (Push::default(), Growing::new());
    view.begin(&growing.log).unwrap();
    growing.grow(150, 10);
    let mut readers: Vec<Reader> = [0, 77, 150]
        .map(|at| Reader::new(&view, &growing, at))
        .into();
    let mut late = vec![];
    let mut chance: u64 = 7;
    let mut dice = move |sides: u64| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (chance >> 33) % sides
    };
    for _ in 0..300 {
        let (count, size) = match dice(20) {
            0 => (600, 10),
            1 => (3, 200_000),
            _ => (1 + dice(5), 50),
        };
        late.push(growing.grow(count, size));
        if dice(3) > 0 {
            for outline in late.drain(..) {
                view.apply(&outline, &growing.log).unwrap();
            }
        }
        for reader in &mut readers {
            for _ in 0..dice(4) {
                reader.step(&view, &growing);
            }
        }
    }
    for outline in late {
        view.apply(&outline, &growing.log).unwrap();
    }
    for reader in &mut readers {
        while reader.step(&view, &growing) {}
        assert_eq!(reader.at, Position(growing.next));
        assert!(reader.of_the_past > 3);
    }
    let [all, middle, newest] = &readers[..] else {
        unreachable!()
    };
    assert!(all.read.ends_with(&middle.read) && middle.read.ends_with(&newest.read));
    let text = String::from_utf8_lossy(&all.read);
    let ids = text.lines().filter(|line| line.starts_with("id: "));
    for (position, id) in ids.enumerate() {
        assert!(id.starts_with(&format!("id: {position}-")), "{id}");
    }
    // The last id is that of the feed's end, whose hash the log keeps.
    let head = growing.log.feed(growing.feed).unwrap().unwrap();
    let mark = simplefeed_core::push::Mark::of_history(&head.history);
    let last = format!("id: {}-{mark}\n", growing.next - 1);
    assert!(text.contains(&last), "{last}");
}

/// Goal: what nobody watches any more takes no memory, however many come and go together.
#[test]
fn hubs_go_with_their_last_watcher() {
    let (view, growing) = (Push::default(), Growing::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..2_000 {
                    let interest = [Interest::Place, Interest::Entries][round % 2];
                    let first = view.watch(growing.feed(), interest, &growing.log);
                    let second = view.join(growing.feed, Interest::Entries);
                    drop((first, second));
                }
            });
        }
    });
    assert!(!view.is_watched() && view.0.hubs.lock().timelines.is_empty());
    assert!(view.join(growing.feed, Interest::Place).is_none());
}

/// Goal: a watcher is woken by a commit of its feed and by no other.
#[tokio::test]
async fn only_what_is_watched_wakes() {
    let (view, mut growing) = (Push::default(), Growing::new());
    let mut watching = view
        .watch(growing.feed(), Interest::Place, &growing.log)
        .unwrap();
    assert_eq!(watching.news().newest, None);
    let outline = growing.append(vec![Change::Epoch {
        epoch: simplefeed_core::feed::Epoch(7),
    }]);
    view.apply(&outline, &growing.log).unwrap();
    let short = Duration::from_millis(20);
    assert!(
        tokio::time::timeout(short, watching.changed())
            .await
            .is_err()
    );
    let outline = growing.grow(2, 1);
    view.apply(&outline, &growing.log).unwrap();
    watching.changed().await;
    assert_eq!(watching.news().next(), Position(2));
    assert!(
        tokio::time::timeout(short, watching.changed())
            .await
            .is_err()
    );
}

/// Goal: the follower sleeps through commits that nobody waits for, and is awake at once for one that somebody does.
#[test]
fn commits_elsewhere_leave_the_follower_asleep() {
    let (view, growing) = (Push::default(), Growing::new());
    let commit_of = |feed: FeedKey| Commit {
        number: CommitNumber(1),
        instant: Timestamp::default(),
        changes: vec![Change::Opened {
            feed,
            document: DocumentNumber::new(1).unwrap(),
            first: Position(0),
            revision: Revision::FIRST,
        }],
    };
    let (ours, other) = (growing.feed, FeedKey(Uuid::from_u128(2)));
    let is_urgent = |feed| {
        view.committed(&commit_of(feed));
        std::mem::take(&mut *view.0.is_urgent.lock())
    };
    assert!(!is_urgent(ours), "nobody watches");
    let watching = view
        .watch(growing.feed(), Interest::Place, &growing.log)
        .unwrap();
    assert!(is_urgent(ours) && !is_urgent(other));
    // A timeline may concern any commit.
    Arc::make_mut(&mut view.0.hubs.lock().timelines).insert(1, other);
    assert!(is_urgent(FeedKey(Uuid::from_u128(3))));
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        // It has come before the pause, and ends it all the same.
        view.committed(&commit_of(ours));
        view.pause(&Stop::default());
    }
    assert!(begun.elapsed() < PACE * 20);
    view.pause(&Stop::default());
    assert!(begun.elapsed() >= PACE);
    drop(watching);
}

/// Goal: whoever was woken before a commit was announced, and found an older document in memory, is woken again.
#[tokio::test]
async fn a_commit_wakes_once_it_is_announced() {
    let (view, mut growing) = (Push::default(), Growing::new());
    let watch = |growing: &Growing| {
        let log = &growing.log;
        view.watch(growing.feed(), Interest::Place, log).unwrap()
    };
    let mut first = watch(&growing);
    let outline = growing.grow(1, 1);
    // Another one comes between the commit and its announcement, and sees it.
    let mut second = watch(&growing);
    first.changed().await;
    assert_eq!(second.news().next(), Position(1));
    view.0.announced.store(outline.number.0, Ordering::SeqCst);
    view.apply(&outline, &growing.log).unwrap();
    for watching in [&mut first, &mut second] {
        watching.changed().await;
    }
    // One look for all that have been announced is enough.
    let outlines = [growing.grow(1, 1), growing.grow(1, 1)];
    view.0
        .announced
        .store(outlines[1].number.0, Ordering::SeqCst);
    view.apply(&outlines[0], &growing.log).unwrap();
    first.changed().await;
    view.apply(&outlines[1], &growing.log).unwrap();
    let again = tokio::time::timeout(Duration::from_millis(20), first.changed());
    assert!(again.await.is_err());
}
