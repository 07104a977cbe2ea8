//! Runs of gathered entries: few of them, found again after a stop, gathered again after damage.

use std::fs::File;

use super::*;

/// A world with a followed feed and many entries.
fn busy(entries: usize) -> World {
    let mut world = World::new();
    for timeline in 0..TIMELINES {
        let change = FollowChange {
            follow: vec![Item::Pattern(FeedPattern::parse("*").unwrap())],
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

/// Gathers all, and writes the files that are due.
fn gather(kept: &Kept) {
    let gathering = &kept.timelines.gathering;
    let head = kept.timelines.log.head().number;
    // A full memory waits for a file.
    while gathering.runs().reached().commit < head {
        kept.timelines.keep(|| true).unwrap();
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
    let sound: Vec<(PathBuf, Vec<u8>)> = files(&kept)
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    assert!(!sound.is_empty());
    let mut noticed = [0, 0];
    for (path, bytes) in &sound {
        for at in (0..bytes.len()).step_by(37) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            put_back(&sound);
            fs::write(path, &damaged).unwrap();
            kept.restart(&world, FanOut::Write);
            let (in_files, _) = kept.timelines.gathering.sizes();
            let at_opening = in_files < sound.len();
            gather(&kept);
            kept.compare(&world, &[]);

            put_back(&sound);
            kept.restart(&world, FanOut::Write);
            gather(&kept);
            let is_used = files(&kept).contains(path);
            // With the same inode, as on a failing disk.
            fs::write(path, &damaged).unwrap();
            kept.compare(&world, &[]);
            let reached = kept.timelines.gathering.runs().reached().commit;
            let by_reader = reached == CommitNumber(0);
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
    let before: Vec<(PathBuf, Vec<u8>)> = files(&kept)
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    let mut longer = busy(400);
    kept.restart(&longer, FanOut::Write);
    gather(&kept);
    // The inputs of merges beside their outputs, and half a file.
    for (path, bytes) in &before {
        fs::write(path, bytes).unwrap();
    }
    File::create(kept.folder.path().join(RUNS).join("run.partial")).unwrap();
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
