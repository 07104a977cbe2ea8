//! Runs of gathered entries: few of them, found again after a stop, gathered again after damage.

use std::{
    fs::{self, File},
    time::{Duration, Instant},
};

use super::*;

/// A world with a followed feed and many entries.
fn busy(entries: usize) -> World {
    let mut world = World::new();
    for timeline in 0..TIMELINES {
        let change = FollowChange {
            follow: vec![FollowItem::Pattern(FeedPattern::parse("*").unwrap())],
            ..FollowChange::default()
        };
        world.follow(timeline, change);
    }
    for step in 0..entries {
        world.take(&Step::Append(vec![1 + step % 3]));
    }
    world
}

fn files(kept: &Kept) -> Vec<PathBuf> {
    let folder = kept.folder.path().join(RUNS);
    let files = fs::read_dir(folder).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

fn contents(kept: &Kept) -> Vec<(PathBuf, Vec<u8>)> {
    let files = files(kept).into_iter();
    files
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// Gathers all, and writes the files that are due.
fn gather(kept: &Kept) {
    let gathering = &kept.timelines.gathering;
    let head = kept.timelines.log.head().number;
    // A full memory waits for a file.
    while gathering.runs().reached().commit < head {
        kept.timelines.keep_course(|| false, || true).unwrap();
        gathering.wait();
    }
}

/// Goal: runs stay few, however long the log, and a restart finds those in files.
#[test]
fn runs_are_few_and_found_again() {
    let mut world = busy(0);
    let mut kept = Kept::new(&world, FanOut::Write);
    for step in 0..600 {
        world.take(&Step::Append(vec![1 + step % 3]));
        gather(&kept);
        let (files, in_memory) = kept.timelines.gathering.sizes();
        assert!(files <= 10 && in_memory <= 10, "{files} + {in_memory} runs");
    }
    kept.compare(&world, &[]);
    let (in_files, _) = kept.timelines.gathering.sizes();
    assert_eq!(files(&kept).len(), in_files);
    let reached = kept.timelines.gathering.runs().reached().commit;
    kept.restart(&world, FanOut::Write);
    assert_eq!(kept.timelines.gathering.sizes(), (in_files, 0));
    let found = kept.timelines.gathering.runs().reached().commit;
    assert!(found <= reached && found.0 + 60 > reached.0, "{found}");
    kept.compare(&world, &[]);
    gather(&kept);
    kept.compare(&world, &[]);
}

/// Goal: no damage to a file of a run changes an answer, whether it is there at the start or comes later, and the file
/// is made again.
#[test]
fn damaged_runs_are_gathered_again() {
    let world = busy(60);
    let mut kept = Kept::new(&world, FanOut::Write);
    gather(&kept);
    let sound = contents(&kept);
    assert!(!sound.is_empty());
    let mut noticed = [0, 0];
    for (path, bytes) in &sound {
        for at in (0..bytes.len()).step_by(37) {
            let mut damaged = bytes.clone();
            if at % 2 == 0 {
                damaged[at] ^= 0x10;
            } else {
                damaged.truncate(at);
            }
            put_back(&sound);
            fs::write(path, &damaged).unwrap();
            kept.restart(&world, FanOut::Write);
            let (in_files, _) = kept.timelines.gathering.sizes();
            let at_opening = in_files < sound.len();
            gather(&kept);
            kept.compare(&world, &[]);

            put_back(&sound);
            kept.restart(&world, FanOut::Write);
            // The tail may be long, and files must not be merged.
            let gathering = &kept.timelines.gathering;
            gathering.files.lock().not_before = Some(Instant::now() + Duration::from_mins(1));
            kept.timelines.keep_course(|| false, || true).unwrap();
            let is_used = files(&kept).contains(path);
            // With the same inode, as on a failing disk.
            fs::write(path, &damaged).unwrap();
            kept.compare(&world, &[]);
            let reached = kept.timelines.gathering.runs().reached().commit;
            let by_reader = reached < world.log.head().number;
            assert!(at_opening || by_reader || !is_used, "byte {at}");
            noticed[0] += usize::from(at_opening);
            noticed[1] += usize::from(by_reader);
            gather(&kept);
            kept.compare(&world, &[]);
        }
    }
    // An opening reads the directory, and readers read the rest.
    assert!(noticed.iter().all(|cases| *cases > 0), "{noticed:?}");
}

fn put_back(files: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in files {
        let folder = path.parent().unwrap();
        for other in fs::read_dir(folder).unwrap() {
            let other = other.unwrap().path();
            if !files.iter().any(|(path, _)| *path == other) {
                fs::remove_file(other).unwrap();
            }
        }
        fs::write(path, bytes).unwrap();
    }
}

/// Goal: files that a stop in the midst of a merge leaves, and those of other logs, are not used.
#[test]
fn only_runs_that_fit_are_opened() {
    let world = busy(60);
    let mut kept = Kept::new(&world, FanOut::Write);
    gather(&kept);
    let before = contents(&kept);
    let mut longer = busy(400);
    kept.restart(&longer, FanOut::Write);
    gather(&kept);
    // The inputs of merges beside their outputs, and half a file.
    for (path, bytes) in &before {
        fs::write(path, bytes).unwrap();
    }
    File::create(kept.folder.path().join(RUNS).join("0-7.run.partial")).unwrap();
    kept.restart(&longer, FanOut::Write);
    kept.compare(&longer, &[]);
    assert_eq!(files(&kept).len(), kept.timelines.gathering.sizes().0);
    // Another log with commits of the same numbers and instants.
    let mut other = World::new();
    for _ in 0..402 {
        other.take(&Step::Append(vec![1]));
    }
    kept.restart(&other, FanOut::Write);
    assert_eq!(kept.timelines.gathering.sizes(), (0, 0));
    kept.compare(&other, &[]);
    longer.take(&Step::Append(vec![1]));
    kept.restart(&longer, FanOut::Auto);
    gather(&kept);
    kept.compare(&longer, &[]);
}

/// Goal: readers find everything that was committed before they came, once and in order, whatever goes on beside them:
/// gathering, merges into files, and files that are given up.
#[test]
fn readers_miss_nothing_meanwhile() {
    let mut world = busy(0);
    let kept = Kept::new(&world, FanOut::Write);
    let merged = MergedLog::new(Arc::clone(&kept.timelines));
    let goes_on = AtomicBool::new(true);
    let committed = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for reader in 0..2 {
            let (merged, goes_on, committed) = (&merged, &goes_on, &committed);
            threads.spawn(move || {
                let feed = timeline_key(reader);
                while goes_on.load(Ordering::Acquire) {
                    let least = committed.load(Ordering::Acquire);
                    let page = merged.page(feed, None, 1_000).unwrap();
                    let count = u64::try_from(page.len()).unwrap();
                    assert!(count >= least, "{count} of {least}");
                    assert!(page.is_sorted_by(|one, next| one.place > next.place));
                    let head = merged.feed(feed).unwrap().unwrap();
                    assert!(head.next.0 >= count);
                    let all = Position(0)..head.next;
                    let entries = merged.entries(feed, all).unwrap();
                    assert_eq!(u64::try_from(entries.len()).unwrap(), head.next.0);
                    let oldest = page.iter().rev().map(|placed| &placed.entry.fragment);
                    let first = entries.iter().map(|entry| &entry.fragment);
                    assert!(oldest.zip(first).all(|(one, other)| one == other));
                }
            });
        }
        let (timelines, stops) = (&kept.timelines, &goes_on);
        threads.spawn(move || {
            for round in 0.. {
                if !stops.load(Ordering::Acquire) {
                    return;
                }
                timelines.keep_course(|| false, || true).unwrap();
                let runs = timelines.gathering.runs();
                if round % 20 == 19
                    && let Some(run) = runs.all.get(runs.all.len() / 2)
                {
                    let error = io::ErrorKind::InvalidData.into();
                    timelines.gathering.begin_anew_at(run, &error);
                }
            }
        });
        for step in 0..300 {
            world.take(&Step::Append(vec![2; 1 + step % 3]));
            committed.fetch_add(1, Ordering::Release);
        }
        goes_on.store(false, Ordering::Release);
    });
    kept.compare(&world, &[]);
    gather(&kept);
    kept.compare(&world, &[]);
}
