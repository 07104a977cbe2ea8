//! What is asked of servers while they are recorded.
//!
//! Shell: servers. Each workload is short, since its states are many; together they reach every kind of file.

use std::{path::Path, time::Duration};

use super::{
    consumers::{self, Consumer},
    disk::{Call, Disk, Model, Operation},
    oracle::{Oracle, ServerOracle},
    programs::Programs,
    record::{Recorder, Recording, scratch},
    states::{self, State},
};
use crate::{
    dice::Dice,
    harness::{Server, pause, wait_for},
    http::Request,
};

/// Bytes of a chapter that is never full.
const NEVER: u32 = 1 << 28;

/// A workload and the states that are checked of its recording.
pub(super) struct Workload {
    pub(super) name: &'static str,
    make: fn(&Programs) -> Box<dyn Recorded>,
    /// Most states: of `tests/run --long`, and otherwise; without any, it is left out.
    pub(super) states: [usize; 2],
    /// Most operations whose states are listed in a short run. Listing those of large files takes long.
    pub(super) operations: usize,
    /// Recordings of a long run that begin with a crash of this one.
    pub(super) second_crashes: u64,
}

const fn workload_of(
    name: &'static str,
    make: fn(&Programs) -> Box<dyn Recorded>,
    states: [usize; 2],
    operations: usize,
    second_crashes: u64,
) -> Workload {
    Workload {
        name,
        make,
        states,
        operations,
        second_crashes,
    }
}

/// All of them: first those whose checks or recordings take longest, meanwhile others are recorded.
pub(super) const WORKLOADS: &[Workload] = &[
    workload_of("watch", consumers::watch, [usize::MAX, 40], usize::MAX, 0),
    workload_of("sup", sup, [300, 4], 20, 0),
    workload_of("small", small, [usize::MAX, 190], 75, 6),
    workload_of("settle", settle, [4_000, 160], 90, 6),
    workload_of("writers", writers, [2_000, 40], 30, 2),
    workload_of("fresh", fresh, [1_000, 40], 60, 2),
    workload_of("begun", first_start, [usize::MAX, 100], usize::MAX, 0),
    workload_of("rotation", rotation, [1_000, 80], 80, 0),
    workload_of("killed", killed, [1_000, 40], 60, 0),
    workload_of("accept", accept, [usize::MAX, 40], 60, 0),
    workload_of("ids", ids, [2_000, 80], 80, 0),
    workload_of("closed", closed, [2_000, 60], 80, 2),
    workload_of("timelines", timelines, [3_000, 60], 80, 2),
    workload_of("rates", rates, [1_000, 40], 60, 0),
    workload_of("rebuild", rebuild, [1_000, 40], 60, 0),
    workload_of("backup", backup, [1_000, 100], 60, 0),
    workload_of("recover", recover, [1_000, 100], 60, 0),
    workload_of("window", window, [300, 0], 20, 0),
    workload_of("reuse", reuse, [500, 6], 20, 0),
    workload_of(
        "bookmark",
        consumers::bookmark,
        [usize::MAX, 50],
        usize::MAX,
        0,
    ),
    workload_of("output", consumers::output, [usize::MAX, 50], usize::MAX, 0),
    workload_of("state", consumers::state, [2_000, 80], usize::MAX, 0),
    workload_of("skipped", consumers::skipped, [1_000, 40], usize::MAX, 0),
    workload_of("mirror", consumers::mirror, [usize::MAX, 80], usize::MAX, 0),
    workload_of("queue", consumers::queue, [usize::MAX, 80], usize::MAX, 0),
    workload_of("tokens", consumers::tokens, [usize::MAX, 40], usize::MAX, 0),
];

/// Returns the workload of a name.
pub(super) fn workload(name: &str) -> &'static Workload {
    let found = WORKLOADS.iter().find(|workload| workload.name == name);
    found.unwrap_or_else(|| panic!("there is no workload {name}"))
}

impl Workload {
    pub(super) fn record(&self, programs: &Programs) -> Box<dyn Recorded> {
        (self.make)(programs)
    }
}

/// A recording and what its states are compared with.
pub(super) trait Recorded: Send {
    fn recording(&self) -> &Recording;

    fn oracle(&self) -> Box<dyn Oracle + '_>;

    /// Keeps all in a folder, for [`load`].
    fn keep(&self, folder: &Path);

    /// Returns a recording that goes on over what a crash of this one has left.
    fn crashed_again(&self, dice: &mut Dice) -> Box<dyn Recorded>;
}

/// Loads a recording that was kept.
pub(super) fn load(kept: &Path) -> Box<dyn Recorded> {
    if kept.join("consumer.json").exists() {
        return Box::new(Consumer::load(kept));
    }
    let text = std::fs::read(kept.join("feeds.json")).unwrap();
    let (feeds, timelines) = serde_json::from_slice(&text).unwrap();
    Box::new(Served {
        recording: Recording::load(kept),
        feeds,
        timelines,
    })
}

/// A recording of servers, and the feeds that it made.
#[derive(Debug)]
struct Served {
    recording: Recording,
    feeds: Vec<String>,
    timelines: Vec<String>,
}

impl Recorded for Served {
    fn recording(&self) -> &Recording {
        &self.recording
    }

    fn oracle(&self) -> Box<dyn Oracle + '_> {
        Box::new(ServerOracle::new(
            &self.recording,
            &self.feeds,
            &self.timelines,
        ))
    }

    fn keep(&self, folder: &Path) {
        self.recording.keep(folder);
        let names = (&self.feeds, &self.timelines);
        std::fs::write(
            folder.join("feeds.json"),
            serde_json::to_vec(&names).unwrap(),
        )
        .unwrap();
    }

    fn crashed_again(&self, dice: &mut Dice) -> Box<dyn Recorded> {
        let operations = self.recording.operations.len();
        if dice.below(2) == 0 {
            return Box::new(after_kill(self, dice.below(operations), GoingOn::default()));
        }
        let listed = states::list(self.recording.history(Model::Weak), usize::MAX, dice);
        let listed = listed.expect("the recording followed itself");
        let state = &listed.states[dice.below(listed.states.len())];
        Box::new(after_crash(self, state))
    }
}

/// Publishes groups of new entries to feeds.
struct Publisher {
    published: usize,
    entry_bytes: usize,
}

impl Publisher {
    fn new(entry_bytes: usize) -> Self {
        Self {
            published: 0,
            entry_bytes,
        }
    }

    fn publish(&mut self, recorder: &Recorder, feed: &str, groups: &[usize]) {
        for group in groups {
            let numbers = self.published..self.published + group;
            let entry = |n| (format!("urn:t:{feed}:{n}"), self.entry_bytes);
            recorder.publish(feed, &numbers.map(entry).collect::<Vec<_>>());
            self.published += group;
        }
    }
}

/// Begins to record a server over an empty folder.
fn begun(name: &str, programs: &Programs, document_entries: u32) -> Recorder {
    let recorder = Recorder::new(name, programs, document_entries);
    std::fs::create_dir(recorder.data()).unwrap();
    recorder.begin();
    recorder
}

/// Ends a recording of a server.
fn ended(recorder: Recorder, feeds: &[&str], timelines: &[&str]) -> Box<dyn Recorded> {
    Box::new(served(recorder, feeds, timelines))
}

fn served(recorder: Recorder, feeds: &[&str], timelines: &[&str]) -> Served {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Served {
        recording: recorder.finish(),
        feeds: owned(feeds),
        timelines: owned(timelines),
    }
}

/// Begins to record a server over a log that was filled before, which counts as durable.
fn prepared(
    name: &str,
    programs: &Programs,
    document_entries: u32,
    chapter_bytes: u32,
    fill: impl FnOnce(&Server),
) -> Recorder {
    let recorder = Recorder::new(name, programs, document_entries);
    let mut command = Programs::real().command("simplefeed-test-server");
    command.arg(recorder.data()).args([
        "honest",
        &document_entries.to_string(),
        &chapter_bytes.to_string(),
        &recorder.setup.address,
    ]);
    let server = Server::try_spawn(command).unwrap();
    fill(&server);
    server.stop();
    recorder.begin();
    recorder
}

fn lines(feed: &str, numbers: std::ops::Range<usize>, entry_bytes: usize) -> String {
    let line = |n| super::record::event(&format!("urn:t:{feed}:{n}"), entry_bytes);
    numbers.map(line).collect()
}

/// First start, single entries, groups, archiving, a stop, a start, a kill, a start; chapters of 2,500 bytes.
fn small(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("small", programs, 3);
    let mut publisher = Publisher::new(0);
    recorder.start_settling(2_500);
    publisher.publish(&recorder, "a", &[1, 1, 1, 1, 4]);
    recorder.get("/feeds/a/recent.atom");
    publisher.publish(&recorder, "b", &[1, 2, 2]);
    for path in ["/feeds/a/1.atom", "/feeds/a/2.atom", "/feeds/b/1.atom"] {
        recorder.wait_until_frozen(path);
    }
    recorder.get("/feeds/a/index.json");
    publisher.publish(&recorder, "a", &[1, 1]);
    recorder.stop();
    recorder.start_settling(2_500);
    publisher.publish(&recorder, "a", &[1, 3]);
    recorder.get("/feeds/a/recent.atom");
    pause(Duration::from_millis(300));
    recorder.kill();
    recorder.start_settling(2_500);
    publisher.publish(&recorder, "b", &[2, 1]);
    recorder.wait_until_frozen("/feeds/b/1.atom");
    recorder.wait_until_frozen("/feeds/b/2.atom");
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// The first start of a server, and one entry.
fn first_start(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("begun", programs, 3);
    recorder.start_settling(2_500);
    Publisher::new(0).publish(&recorder, "a", &[1]);
    recorder.kill();
    ended(recorder, &["a"], &[])
}

/// A server is killed between the rename of a new file of the journal and the sync of its name, and started again.
fn rotation(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("rotation", programs, 100);
    let mut publisher = Publisher::new(300);
    recorder.start_settling(2_500);
    publisher.publish(&recorder, "a", &[4, 4, 4, 4]);
    recorder.stop();
    let before = served(recorder, &["a"], &[]);
    let is_rotation = |operation: &Operation| matches!(&operation.call, Call::Rename { from, .. } if from == "data/journal/spare");
    let operations = &before.recording.operations;
    let last = operations.iter().rposition(is_rotation);
    let last = last.expect("the journal has more than one file");
    Box::new(after_kill(&before, last, GoingOn::default()))
}

/// A server is killed between the write of an append and its sync, and started again: it shows the entry that it reads back.
fn killed(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("killed", programs, 100);
    recorder.start_settling(100_000);
    Publisher::new(300).publish(&recorder, "a", &[1, 2, 1]);
    recorder.stop();
    let before = served(recorder, &["a"], &[]);
    let operations = &before.recording.operations;
    let file_of = |operation: &Operation| match &operation.call {
        Call::Write { file, .. } => Some(*file),
        Call::Sync { file, .. } => *file,
        _ => None,
    };
    let is_append = |at: &usize| {
        let pair = &operations[*at..=*at + 1];
        let is_journal = |call: &Call| matches!(call, Call::Open { path, file, .. } if path.starts_with("data/journal/") && Some(*file) == file_of(&pair[0]));
        matches!(pair[0].call, Call::Write { .. })
            && matches!(pair[1].call, Call::Sync { .. })
            && file_of(&pair[0]) == file_of(&pair[1])
            && operations
                .iter()
                .any(|operation| is_journal(&operation.call))
    };
    let last = (0..operations.len() - 1).rev().find(is_append);
    let last = last.expect("an append is a write and a sync");
    Box::new(after_kill(&before, last, GoingOn::default()))
}

/// A log that rested for more than five years, until an operator vouched for the clock, and an entry.
///
/// The log is of some months ago, but after 2025, before which no time counts. The clock of the servers is so far ahead
/// of that of the command that they refuse the log, and accept the moment that the command noted.
fn accept(programs: &Programs) -> Box<dyn Recorded> {
    const DAY: i64 = 86_400 * 1_000_000;
    let mut recorder = Recorder::new("accept", programs, 3);
    recorder.setup.clock_ahead = -300 * DAY;
    let start = |recorder: &Recorder| {
        let mut command = Programs::real().command("simplefeed-test-server");
        command.arg(recorder.data()).args(["honest", "3", "100000"]);
        command.envs([recorder.setup.clock()]);
        Server::try_spawn(command).unwrap()
    };
    let server = start(&recorder);
    assert_eq!(server.publish("a", &lines("a", 0..2, 0)).status, 201);
    server.stop();
    recorder.setup.clock_ahead = (5 * 365 - 150) * DAY;
    let server = start(&recorder);
    assert_eq!(server.publish("a", &lines("a", 2..3, 0)).status, 503);
    server.stop();
    recorder.begin();
    recorder.accept_clock();
    recorder.start_settling(100_000);
    recorder.publish("a", &[("urn:t:a:2".to_owned(), 0)]);
    recorder.stop();
    ended(recorder, &["a"], &[])
}

/// The real program, with chapters of its own size, in a folder that it makes itself.
fn fresh(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = Recorder::new("fresh", programs, 3);
    recorder.begin();
    recorder.start(&[]);
    let mut publisher = Publisher::new(0);
    publisher.publish(&recorder, "a", &[1, 1, 1, 1, 5]);
    let mut publisher = Publisher::new(70_000);
    publisher.publish(&recorder, "b", &[1, 3]);
    recorder.wait_until_frozen("/feeds/a/1.atom");
    recorder.get("/feeds/a/recent.atom");
    recorder.get("/sup.json");
    recorder.kill();
    recorder.start(&[]);
    publisher.publish(&recorder, "b", &[1, 2]);
    recorder.wait_until_frozen("/feeds/b/1.atom");
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// Chapters of 100 kB and entries of 9 kB: files of the journal are used again, and sled has several segments.
fn settle(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("settle", programs, 20);
    let mut publisher = Publisher::new(9_000);
    recorder.start_settling(100_000);
    for request in 0..60 {
        let feed = ["a", "b"][request % 2];
        publisher.publish(&recorder, feed, &[[1, 1, 4][request % 3]]);
        if request % 20 == 19 {
            recorder.get(&format!("/feeds/{feed}/recent.atom"));
        }
    }
    recorder.wait_until_frozen("/feeds/a/1.atom");
    recorder.wait_until_frozen("/feeds/b/1.atom");
    recorder.kill();
    recorder.start_settling(100_000);
    publisher.publish(&recorder, "a", &[1; 10]);
    pause(Duration::from_millis(300));
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// A log of many settlings: sled has many segments, and writes some of them again, also several times within one
/// settling.
fn reuse(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = prepared("reuse", programs, 100, 600_000, |server| {
        for request in 0..160 {
            let feed = ["a", "b"][request / 2 % 2];
            let numbers = 1_000 * request..1_000 * request + 30;
            let body = lines(feed, numbers, [600, 3_000][request % 2]);
            assert_eq!(server.publish(feed, &body).status, 201);
        }
    });
    let mut publisher = Publisher::new(3_000);
    publisher.published = 900_000;
    recorder.start_settling(100_000);
    for request in 0..30 {
        publisher.publish(&recorder, ["a", "b"][request % 2], &[10]);
    }
    pause(Duration::from_millis(500));
    recorder.kill();
    // A chapter of many of sled's segments: it frees some of them and writes them again before it is flushed.
    recorder.start_settling(2_000_000);
    publisher.publish(&recorder, "a", &[80, 80, 80, 80, 80, 80, 80, 80, 80]);
    pause(Duration::from_secs(1));
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// Several writers at once, a kill while they write, and again.
fn writers(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("writers", programs, 5);
    for round in 0..2 {
        recorder.start_settling(20_000);
        std::thread::scope(|threads| {
            for writer in 0..4 {
                let recorder = &recorder;
                threads.spawn(move || {
                    let feed = ["a", "b"][writer % 2];
                    // Two writers send the same, so that repeats meet what is not stored yet.
                    let sender = if writer == 3 { 1 } else { writer };
                    for request in 0..12 {
                        let entry =
                            |n: usize| (format!("urn:t:{round}:{sender}:{request}:{n}"), 300);
                        let group: Vec<_> = (0..=request % 3).map(entry).collect();
                        // The last requests meet a kill.
                        let _killed = recorder.publish_somehow(feed, &group);
                    }
                });
            }
            wait_for("nobody publishes", || {
                (recorder.exchanges() > 40 * (round + 1)).then_some(())
            });
            recorder.kill_now();
        });
        recorder.bury();
    }
    recorder.start_settling(20_000);
    recorder.get("/feeds/a/recent.atom");
    recorder.get("/feeds/b/recent.atom");
    recorder.wait_until_frozen("/feeds/a/1.atom");
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// Timelines by names and by a pattern, their archived documents, and one that follows no more.
fn timelines(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("timelines", programs, 3);
    recorder.start_settling(20_000);
    for timeline in ["t", "u"] {
        recorder.put(
            &format!("/feeds/{timeline}"),
            r#"{"kind":"timeline","document_entries":3}"#,
            201,
        );
    }
    for feed in ["a", "b", "x1", "x2"] {
        recorder.put(&format!("/feeds/{feed}"), "{}", 201);
    }
    for follow in ["t/following/a", "t/following/b", "u/following/x*"] {
        let answer = recorder.send(&Request::new("PUT", &format!("/feeds/{follow}")));
        assert!(answer.is_some_and(|answer| answer.status < 300));
    }
    let mut publisher = Publisher::new(300);
    for request in 0..30 {
        let feed = ["a", "b", "x1", "x2"][request % 4];
        publisher.publish(&recorder, feed, &[[1, 3][request % 2]]);
        if request % 8 == 7 {
            for path in ["t/recent.atom", "t/1.atom", "u/recent.atom", "u/1.atom"] {
                recorder.get(&format!("/feeds/{path}"));
            }
        }
    }
    let ended_follow = recorder.send(&Request::new("DELETE", "/feeds/t/following/b"));
    assert!(ended_follow.is_some_and(|answer| answer.status < 300));
    for path in [
        "/feeds/t/1.atom",
        "/feeds/u/1.atom",
        "/feeds/t/2.atom",
        "/feeds/u/2.atom",
    ] {
        recorder.wait_until_frozen(path);
    }
    recorder.kill();
    recorder.start_settling(20_000);
    publisher.publish(&recorder, "a", &[1]);
    publisher.publish(&recorder, "x1", &[1]);
    recorder.get("/feeds/t/recent.atom");
    recorder.wait_until_frozen("/feeds/t/3.atom");
    recorder.stop();
    ended(recorder, &["a", "b", "x1", "x2"], &["t", "u"])
}

/// A closed feed with archived documents is opened: its files move to the open tree. Its settings change.
fn closed(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("closed", programs, 3);
    recorder.start_settling(20_000);
    recorder.put("/feeds/c", r#"{"closed":true}"#, 201);
    let mut publisher = Publisher::new(200);
    publisher.publish(&recorder, "c", &[1; 8]);
    recorder.wait_until_frozen("/feeds/c/1.atom");
    recorder.wait_until_frozen("/feeds/c/2.atom");
    recorder.put("/feeds/c", r#"{"closed":false}"#, 200);
    publisher.publish(&recorder, "c", &[1; 6]);
    for document in 1..5 {
        recorder.wait_until_frozen(&format!("/feeds/c/{document}.atom"));
    }
    recorder.put("/feeds/c", r#"{"title":"other"}"#, 200);
    publisher.publish(&recorder, "c", &[1]);
    recorder.get("/feeds/c/recent.atom");
    pause(Duration::from_millis(300));
    recorder.kill();
    recorder.start_settling(20_000);
    publisher.publish(&recorder, "c", &[1]);
    recorder.stop();
    ended(recorder, &["c"], &[])
}

/// Enough ids for runs to be written and merged while entries come: 40 in memory become one.
fn ids(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("ids", programs, 100);
    recorder.fresh_ids = Some(40);
    let mut publisher = Publisher::new(0);
    recorder.start_settling(100_000);
    publisher.publish(&recorder, "a", &[1, 30, 1, 15, 1]);
    pause(Duration::from_millis(200));
    publisher.publish(&recorder, "a", &[25, 1, 20, 1]);
    pause(Duration::from_millis(200));
    publisher.publish(&recorder, "b", &[30, 20, 1]);
    recorder.kill();
    recorder.start_settling(100_000);
    publisher.publish(&recorder, "b", &[1, 30, 20, 1]);
    pause(Duration::from_millis(200));
    publisher.publish(&recorder, "a", &[1]);
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// 10,000 feeds: a window of updates is archived.
fn sup(programs: &Programs) -> Box<dyn Recorded> {
    Box::new(updates("sup", programs))
}

/// A server is killed when the files of a window have their names and it is not noted that they are durable.
fn window(programs: &Programs) -> Box<dyn Recorded> {
    let before = updates("window", programs);
    let is_named = |operation: &Operation| matches!(&operation.call, Call::Rename { to, .. } if to == "data/www/sup/1.json");
    let named = before.recording.operations.iter().position(is_named);
    let named = named.expect("a window is archived");
    let going_on = GoingOn {
        chapter_bytes: NEVER,
        frozen: "/sup/1.json",
    };
    Box::new(after_kill(&before, named, going_on))
}

fn updates(name: &str, programs: &Programs) -> Served {
    let mut recorder = prepared(name, programs, 3, NEVER, |server| {
        std::thread::scope(|threads| {
            for publisher in 0..6 {
                threads.spawn(move || {
                    for feed in (publisher..9_990).step_by(6) {
                        let feed = format!("f{feed:05}");
                        assert_eq!(server.publish(&feed, &lines(&feed, 0..1, 0)).status, 201);
                    }
                });
            }
        });
    });
    let mut publisher = Publisher::new(0);
    recorder.start_settling(NEVER);
    for feed in 0..12 {
        publisher.publish(&recorder, &format!("g{feed}"), &[1]);
    }
    // Behind a start, commits are stamped with the next second, and only the one after it closes the window.
    pause(Duration::from_millis(2_100));
    publisher.publish(&recorder, "g0", &[1]);
    recorder.wait_until_frozen("/sup/1.json");
    recorder.get("/sup.json");
    publisher.publish(&recorder, "g0", &[1]);
    recorder.kill();
    recorder.start_settling(NEVER);
    publisher.publish(&recorder, "g0", &[1]);
    recorder.wait_until_frozen("/sup/1.json");
    recorder.stop();
    served(recorder, &["g0", "g1", "g11"], &[])
}

/// Entries counted over time, over a kill and a rebuild.
fn rates(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = begun("rates", programs, 3);
    let counted = |recorder: &Recorder, feed: &str, entries: u64| {
        let path = format!("/feeds/{feed}/rates.json");
        wait_for("entries are not counted", || {
            // A server that is counting says that it is busy.
            let answer = recorder.send(&Request::get(&path))?;
            let rates = (answer.status == 200).then(|| answer.json())?;
            let counts = rates["counts"].as_array()?;
            let total: u64 = counts.iter().filter_map(|count| count[1].as_u64()).sum();
            (total == entries).then_some(())
        });
    };
    recorder.start_settling(20_000);
    let mut publisher = Publisher::new(0);
    publisher.publish(&recorder, "a", &[5, 1, 1]);
    publisher.publish(&recorder, "b", &[2]);
    counted(&recorder, "a", 7);
    counted(&recorder, "b", 2);
    recorder.kill();
    recorder.start_settling(20_000);
    publisher.publish(&recorder, "a", &[4]);
    counted(&recorder, "a", 11);
    recorder.stop();
    recorder.upkeep("rebuild", &[]);
    recorder.start_settling(20_000);
    publisher.publish(&recorder, "b", &[1]);
    counted(&recorder, "b", 3);
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// A log whose files of views are damaged is rebuilt.
fn rebuild(programs: &Programs) -> Box<dyn Recorded> {
    let mut recorder = prepared("rebuild", programs, 3, 20_000, |server| {
        for feed in ["a", "b"] {
            for n in 0..8 {
                assert_eq!(
                    server.publish(feed, &lines(feed, n..n + 1, 300)).status,
                    201
                );
            }
            server.wait_until_frozen(&format!("/feeds/{feed}/2.atom"));
        }
    });
    recorder.change_start(|data| {
        std::fs::remove_file(data.join("www/feeds/a/1.atom")).unwrap();
        std::fs::write(data.join("www/feeds/b/1.atom"), "damaged").unwrap();
    });
    recorder.upkeep("rebuild", &[]);
    recorder.start(&[]);
    recorder.wait_until_frozen("/feeds/a/1.atom");
    recorder.wait_until_frozen("/feeds/b/1.atom");
    let mut publisher = Publisher::new(0);
    publisher.published = 100;
    publisher.publish(&recorder, "a", &[1]);
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// A backup takes the place of a log, and is served.
fn backup(programs: &Programs) -> Box<dyn Recorded> {
    copied("backup", programs)
}

/// A recovered log takes the place of the damaged one, and is served.
fn recover(programs: &Programs) -> Box<dyn Recorded> {
    copied("recover", programs)
}

fn copied(how: &'static str, programs: &Programs) -> Box<dyn Recorded> {
    let source = scratch();
    let from = source.path().join("source");
    let server = Server::start_settling(&from, 3, 20_000);
    for feed in ["a", "b"] {
        for n in 0..8 {
            assert_eq!(
                server.publish(feed, &lines(feed, n..n + 1, 300)).status,
                201
            );
        }
        server.wait_until_frozen(&format!("/feeds/{feed}/2.atom"));
    }
    server.stop();
    let mut recorder = Recorder::new(how, programs, 3);
    recorder.begin();
    let (from, to) = (from.to_str().unwrap(), recorder.data());
    let args = [how, "--data", from, "--to", to.to_str().unwrap()];
    let run = recorder.run("simplefeed-server", &args, "");
    assert_eq!(run.code, Some(0), "{}", run.output);
    recorder.start(&[]);
    let mut publisher = Publisher::new(300);
    publisher.published = 100;
    publisher.publish(&recorder, "a", &[1, 3]);
    recorder.get("/feeds/a/recent.atom");
    recorder.wait_until_frozen("/feeds/b/1.atom");
    recorder.stop();
    ended(recorder, &["a", "b"], &[])
}

/// How a server goes on over what a crash has left.
#[derive(Clone, Copy, Debug)]
struct GoingOn {
    chapter_bytes: u32,
    /// Path of a document that must be a frozen file then; empty if there is none.
    frozen: &'static str,
}

impl Default for GoingOn {
    fn default() -> Self {
        Self {
            chapter_bytes: 2_500,
            frozen: "",
        }
    }
}

/// A server goes on over a crash state of another recording, and is killed.
fn after_crash(before: &Served, state: &State) -> Served {
    let recording = &before.recording;
    let mut recorder = Recorder::like(recording, "after-crash");
    let mut is_built = false;
    let visited = states::visit(
        recording.history(Model::Weak),
        |operation, _, _| operation == state.operation,
        |disk, found, survivors| {
            if found.name == state.name {
                is_built = true;
                disk.after(&survivors)
                    .write_to(&recorder.root())
                    .map_err(|error| error.to_string())?;
            }
            Ok(())
        },
    );
    assert!(is_built, "there is no state {}: {visited:?}", state.name);
    recorder.begin();
    go_on(&mut recorder, before, GoingOn::default());
    Served {
        recording: recorder.finish(),
        feeds: before.feeds.clone(),
        timelines: before.timelines.clone(),
    }
}

/// The server of a recording is killed behind an operation, which leaves what it wrote to the system, and started again.
fn after_kill(before: &Served, operation: usize, going_on: GoingOn) -> Served {
    let recording = &before.recording;
    let mut disk = Disk::load(Model::Weak, recording.start()).unwrap();
    for operation in &recording.operations[..=operation] {
        disk.step(operation).unwrap();
    }
    let mut recorder = Recorder::like(recording, "after-kill");
    disk.current().write_to(&recorder.root()).unwrap();
    recorder.follow(recording, operation);
    go_on(&mut recorder, before, going_on);
    let mut recording = recorder.finish();
    recording.from = operation + 1;
    Served {
        recording,
        feeds: before.feeds.clone(),
        timelines: before.timelines.clone(),
    }
}

fn go_on(recorder: &mut Recorder, before: &Served, going_on: GoingOn) {
    let mut publisher = Publisher::new(200);
    publisher.published = 70_000;
    let feed = before.feeds[0].as_str();
    recorder.start_settling(going_on.chapter_bytes);
    get_if_there(recorder, feed);
    publisher.publish(recorder, feed, &[1, 2]);
    if !going_on.frozen.is_empty() {
        recorder.wait_until_frozen(going_on.frozen);
    }
    recorder.get(&format!("/feeds/{feed}/recent.atom"));
    pause(Duration::from_millis(400));
    publisher.publish(recorder, feed, &[1]);
    recorder.kill();
    recorder.start(&[]);
    publisher.publish(recorder, feed, &[1]);
    for timeline in &before.timelines {
        get_if_there(recorder, timeline);
    }
    recorder.stop();
}

/// Reads a feed that the crash may have come before.
fn get_if_there(recorder: &Recorder, feed: &str) {
    let answer = recorder.send(&Request::get(&format!("/feeds/{feed}/recent.atom")));
    let status = answer.map(|answer| answer.status);
    assert!(matches!(status, Some(200 | 404)), "{feed}: {status:?}");
}
