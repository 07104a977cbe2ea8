//! The promises of a log, tested on both kinds; and the in-memory model of a power cut.
#![expect(clippy::format_push_string, reason = "a dump for a test")]

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use simplefeed_core::{
    commit::{Change, Commit},
    feed::{CommitNumber, DocumentNumber, EntryId, FeedName, Position, Revision},
};

use crate::Append as _;

use crate::fixtures::{entry, script, settings};
use crate::{
    Commits as _, Ids as _, LogError, LogRoom as _, Series as _, WritableLog,
    barrier::{Barrier, DiskBarrier, LogStep},
    memory::MemoryLog,
    sled::{
        folder::copy_folder,
        opening::{Disk, OpenedLog, SledStore, open, open_with},
    },
    store::LogStore as _,
};

/// Everything that can be looked up, as text.
fn dump(log: &dyn WritableLog) -> String {
    let mut seen = format!("{:?}\n", log.head());
    for number in 0..=log.head().number.0 + 1 {
        seen += &format!("{:?}\n", log.chain(CommitNumber(number)).unwrap());
    }
    seen += &format!("{:?}\n", log.commits(CommitNumber(1), 100).unwrap());
    seen += &format!("{:?}\n", log.commits(CommitNumber(3), 2).unwrap());
    seen += &format!("{:?}\n", log.outlines(CommitNumber(2), 3).unwrap());
    seen += &format!("{:?}\n", log.feeds(None, 10).unwrap());
    seen += &format!(
        "{:?}\n",
        log.feeds(FeedName::parse("feed1").as_ref(), 10).unwrap()
    );
    for revision in 1..=3 {
        seen += &format!("{:?}\n", log.defaults(Revision(revision)).unwrap());
    }
    for feed in 1..=4 {
        let key = settings(feed).id.key();
        seen += &format!("{:?}\n", log.feed(key).unwrap());
        seen += &format!("{:?}\n", log.named(&settings(feed).name).unwrap());
        for (from, to) in [
            (0, 1_000),
            (1, 3),
            (2, 3),
            (4, 9),
            (399, 401),
            (5, 5),
            (398, 420),
            (405, 411),
            (900, 901),
        ] {
            seen += &format!(
                "{:?}\n",
                log.entries(key, Position(from)..Position(to)).unwrap()
            );
        }
        let id = |at| EntryId::parse(&format!("urn:{feed}:{at}")).unwrap();
        let ids = [0, 1, 5, 399, 400, 5].map(id);
        for id in &ids {
            seen += &format!("{:?}\n", log.find(key, id).unwrap());
        }
        let found = log.find_all(key, &ids.each_ref()).unwrap();
        let found: BTreeMap<&str, _> = found
            .iter()
            .map(|(id, known)| (id.as_str(), known))
            .collect();
        seen += &format!("{found:?}\n");
        for number in 1..=4 {
            let document = DocumentNumber::new(number).unwrap();
            seen += &format!("{:?}\n", log.opening(key, document).unwrap());
            let revision = Revision(u32::try_from(number).unwrap());
            seen += &format!("{:?}\n", log.settings(key, revision).unwrap());
        }
    }
    seen
}

/// Goal: both kinds of log show the same after the same commits, also after reopening, and whether the log on the disk
/// reads the heads of feeds or is given them.
#[test]
fn both_logs_agree() {
    for knows_heads in [false, true] {
        agree(knows_heads);
    }
}

fn agree(knows_heads: bool) {
    let folder = tempfile::tempdir().unwrap();
    let memory = MemoryLog::default();
    let mut opened = open(folder.path()).unwrap();
    for commit in script() {
        let keys = (1..=4).map(|feed| settings(feed).id.key());
        let heads = keys.filter_map(|key| Some((key, memory.feed(key).unwrap()?)));
        let before = heads.filter(|_| knows_heads).collect();
        let chain = memory.append(&commit).unwrap();
        assert_eq!(opened.log.append_after(&commit, &before).unwrap(), chain);
        assert_eq!(dump(&memory), dump(&opened.log), "commit {}", commit.number);
        // Once cleanly, once as after a crash: the process ends, the folder is copied and checked.
        if commit.number.0 % 2 == 0 {
            opened.close().unwrap();
        } else {
            drop(opened);
        }
        opened = open(folder.path()).unwrap();
        assert_eq!(
            dump(&memory),
            dump(&opened.log),
            "commit {} reopened",
            commit.number
        );
    }
}

/// Goal: a reader that sees a commit finds everything stale that was made before it, and nothing is stale without the
/// commit. Else a reader could keep an older state behind a newer one, and the next one would go back.
/// Method: an invalidator counts, and takes its time before and after; readers hold the count against what they see.
#[test]
fn a_commit_is_seen_in_one_step_with_what_it_invalidates() {
    let folder = tempfile::tempdir().unwrap();
    let memory = MemoryLog::default();
    let opened = open(folder.path()).unwrap();
    let logs: [&dyn WritableLog; 2] = [&memory, &opened.log];
    for log in logs {
        let counted = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&counted);
        log.announcements().invalidate_with(move |commit| {
            std::thread::sleep(Duration::from_millis(2));
            counter.store(commit.number.0, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        });
        let ended = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    let before = counted.load(Ordering::SeqCst);
                    let seen = log.head().number.0;
                    let after = counted.load(Ordering::SeqCst);
                    assert!(before <= seen, "commit {before} is counted, {seen} is seen");
                    assert!(seen <= after, "commit {seen} is seen, {after} is counted");
                }
            });
            for commit in script() {
                log.append(&commit).unwrap();
            }
            ended.store(true, Ordering::SeqCst);
        });
        assert_eq!(counted.load(Ordering::SeqCst), log.head().number.0);
    }
    opened.close().unwrap();
}

/// The chain is for ever: this hash is in every log that holds these commits. Recomputed from the
/// definition by `tests/independent_chain.py`.
#[test]
fn golden_chain() {
    let log = MemoryLog::default();
    let commits = script();
    log.append(&commits[0]).unwrap();
    let chain = log.append(&commits[1]).unwrap();
    assert_eq!(chain.to_string(), GOLDEN);
}

/// As above, for what timelines are made of.
#[test]
fn golden_chain_of_a_timeline() {
    let log = MemoryLog::default();
    let commits = script();
    log.append(&commits[0]).unwrap();
    let makes_timeline = |commit: &&Commit| {
        let mut changes = commit.changes.iter();
        changes.any(|change| matches!(change, Change::Defaults { .. }))
    };
    let timeline = Commit {
        number: CommitNumber(2),
        instant: commits[1].instant,
        changes: commits.iter().find(makes_timeline).unwrap().changes.clone(),
    };
    let chain = log.append(&timeline).unwrap();
    assert_eq!(chain.to_string(), GOLDEN_TIMELINE);
}

const GOLDEN_TIMELINE: &str = "d2d794e7210a330cc0f0f96ca7379e7c699cc41d35d1ba299bade9f35df26b90";
const GOLDEN: &str = "de07b8f6860037d7d2f6c271f908a4b89f6f3e60965a5806db84042d90968274";

#[test]
fn a_commit_out_of_order_is_a_programming_error() {
    let log = MemoryLog::default();
    let append = std::panic::AssertUnwindSafe(|| log.append(&script()[1]));
    assert!(std::panic::catch_unwind(append).is_err());
}

/// A disk that keeps only what was synced: a sync copies the folder to where a power cut cannot
/// reach.
struct Cached {
    folder: PathBuf,
    durable: PathBuf,
    works: Arc<AtomicBool>,
}

impl Barrier for Cached {
    fn sync(&self, _file: &fs::File) -> std::io::Result<()> {
        if !self.works.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.durable.exists() {
            fs::remove_dir_all(&self.durable)?;
        }
        copy_folder(&self.folder, &self.durable)
    }
}

/// Goal: what `append` returned from survives a power cut, at every point of a scripted run; and
/// the same test fails without the barrier.
#[test]
fn what_was_appended_survives_a_power_cut() {
    for works in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (live, durable) = (folder.path().join("live"), folder.path().join("durable"));
        let switch = Arc::new(AtomicBool::new(true));
        let disk = Disk::behind(Cached {
            folder: live.clone(),
            durable: durable.clone(),
            works: Arc::clone(&switch),
        });
        let opened = open_with(&live, &disk).unwrap();
        let mut lost = 0;
        for commit in script() {
            // The first commit makes a log that a lying disk then falls behind of.
            switch.store(works || commit.number.0 == 1, Ordering::Release);
            opened.log.append(&commit).unwrap();
            let after = folder.path().join(format!("after{}", commit.number));
            copy_folder(&durable, &after).unwrap();
            let found = open(&after).unwrap();
            lost += u64::from(found.log.head().number < commit.number);
            drop(found);
        }
        assert_eq!(lost == 0, works, "{lost} commits lost, barrier {works}");
    }
}

/// A disk that fails after the sync of the opening.
struct Failing(AtomicBool);

impl Barrier for Failing {
    fn sync(&self, _file: &fs::File) -> std::io::Result<()> {
        if self.0.swap(true, Ordering::AcqRel) {
            return Err(std::io::Error::other("injected failure"));
        }
        Ok(())
    }
}

/// Goal: after a failed sync nothing more is taken, and readers go on with what they saw before.
#[test]
fn a_failed_barrier_is_final() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).unwrap();
    let commits = script();
    opened.log.append(&commits[0]).unwrap();
    opened.close().unwrap();

    let OpenedLog { log, .. } = open_with(
        folder.path(),
        &Disk::behind(Failing(AtomicBool::new(false))),
    )
    .unwrap();
    let before = (log.head(), log.feed(settings(1).id.key()).unwrap());
    assert!(matches!(log.append(&commits[1]), Err(LogError::Io { .. })));
    assert!(matches!(log.append(&commits[1]), Err(LogError::Stopped)));
    assert!(!log.is_open());
    assert_eq!(
        (log.head(), log.feed(settings(1).id.key()).unwrap()),
        before
    );
    assert_eq!(log.commits(CommitNumber(1), 9).unwrap().len(), 1);
}

/// A disk at which each settling panics, as sled does when a sync fails while it is closed.
struct Panicking(DiskBarrier);

impl Barrier for Panicking {
    fn sync(&self, file: &fs::File) -> std::io::Result<()> {
        self.0.sync(file)
    }

    fn begins(&self, step: LogStep) {
        assert!(step != LogStep::Reopening, "injected");
    }
}

/// Goal: a settling that panics stops the log, and takes nothing; the next start settles again.
#[test]
fn a_settling_that_panics_stops_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk {
        chapter_bytes: 1_000,
        ..Disk::behind(Panicking(DiskBarrier::new().unwrap()))
    };
    let OpenedLog { log, folder: data } = open_with(folder.path(), &disk).unwrap();
    let mut stored = 0;
    for commit in script() {
        match log.append(&commit) {
            Ok(_) => stored = commit.number.0,
            Err(error) => {
                assert!(matches!(error, LogError::Stopped), "{error}");
                break;
            }
        }
        log.wait_for_settling();
    }
    assert!(!log.is_open() && stored > 0);
    let all = log.commits(CommitNumber(1), 100).unwrap();
    assert_eq!(all.len(), usize::try_from(stored).unwrap());
    OpenedLog { log, folder: data }.close().unwrap();
    let again = open(folder.path()).unwrap();
    again.log.settle_all();
    assert_eq!(again.log.commits(CommitNumber(1), 100).unwrap(), all);
}

/// Goal: whoever only looks at a log does not settle what a server has left, and a server does.
#[test]
fn a_mere_look_settles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = |chapter_bytes| Disk {
        chapter_bytes,
        ..Disk::behind(DiskBarrier::new().unwrap())
    };
    let OpenedLog { log, folder: data } = open_with(folder.path(), &disk(1_000)).unwrap();
    log.end_settling();
    for commit in script() {
        log.append(&commit).unwrap();
    }
    OpenedLog { log, folder: data }.close().unwrap();
    let journal = || {
        let items = fs::read_dir(folder.path().join("journal")).unwrap();
        let mut names: Vec<_> = items.map(|item| item.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = journal();
    assert!(before.len() > 2, "{before:?}");
    let OpenedLog { log, folder: data } = open_with(folder.path(), &disk(u64::MAX)).unwrap();
    log.wait_for_settling();
    assert_eq!(journal(), before);
    let store = SledStore::from(OpenedLog { log, folder: data });
    store.begin_work();
    store.wait_for_settling();
    assert!(journal().len() <= 2, "{:?}", journal());
    assert!(Box::new(store).close().unwrap());
}

/// Goal: a commit that is lost is damage, and never the end of the log; what comes before it can be read.
#[test]
fn a_lost_commit_is_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk {
        chapter_bytes: u64::MAX,
        ..Disk::behind(DiskBarrier::new().unwrap())
    };
    let opened = open_with(folder.path(), &disk).unwrap();
    for commit in script() {
        opened.log.append(&commit).unwrap();
    }
    let log = &opened.log;
    log.lose(CommitNumber(4));
    let damaged = |error| matches!(error, LogError::Damaged { .. });
    assert_eq!(log.outlines(CommitNumber(2), 10).unwrap().len(), 2);
    assert!(damaged(log.outlines(CommitNumber(4), 10).unwrap_err()));
    assert!(damaged(log.commits(CommitNumber(2), 10).unwrap_err()));
    assert!(damaged(log.chain(CommitNumber(4)).unwrap_err()));
    let behind = log.head().number.next();
    assert_eq!(log.outlines(behind, 10).unwrap(), []);
}

/// Goal: rot in the index of ids costs time, and no id, also while the log is in use.
#[test]
fn a_damaged_index_of_ids_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let open = || open(folder.path()).unwrap();
    let opened = open();
    for commit in script() {
        opened.log.append(&commit).unwrap();
    }
    opened.close().unwrap();
    let OpenedLog { log, .. } = open();
    let run = fs::read_dir(folder.path().join("ids")).unwrap().next();
    let run = run.unwrap().unwrap().path();
    let mut bytes = fs::read(&run).unwrap();
    // In every block but the head.
    for block in bytes.chunks_mut(4_096).skip(1) {
        block[7] ^= 1;
    }
    // In place, so that whoever has it open sees it.
    let mut file = fs::OpenOptions::new().write(true).open(&run).unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    let key = settings(1).id.key();
    let ids = (0..400_u64).map(|at| {
        let Change::Entry { id, .. } = entry(1, at, 0) else {
            panic!()
        };
        id
    });
    let ids: Vec<EntryId> = ids.collect();
    let found = log.find_all(key, &ids.iter().collect::<Vec<_>>()).unwrap();
    for (at, id) in (0..).zip(&ids) {
        assert_eq!(found.get(id).map(|known| known.at), Some(Position(at)));
    }
}
