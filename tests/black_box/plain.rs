//! A plain feed under the real command: entries are edited, moved, put in and deleted between runs, and runs are
//! cut short. (The same model stands in `core`, with ten thousand feeds and a consumer that crashes.)

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::{
    dice::Dice,
    harness::{run, text},
    site::Site,
};

const GAP: i32 = 13;

/// A plain feed in a folder: a recent document of so many entries at most, and archives if it keeps them.
struct PlainFeed {
    /// Entries and their dates, newest first.
    recent: Vec<(usize, usize)>,
    archives: Vec<Vec<(usize, usize)>>,
    window: usize,
    keeps_archives: bool,
    next: usize,
}

impl PlainFeed {
    fn change(&mut self, dice: &mut Dice) {
        let (entries, date) = (self.recent.len(), dice.below(3_600));
        match dice.below(8) {
            0 if entries > 0 => drop(self.recent.remove(dice.below(entries))),
            1 if entries > 0 => {
                let moved = self.recent.remove(dice.below(entries));
                self.recent.insert(dice.below(entries), moved);
            }
            2 if entries > 0 => self.recent[dice.below(entries)].1 = date,
            3 if entries > 0 => {
                let (entry, _) = self.recent.remove(dice.below(entries));
                self.recent.insert(0, (entry, date));
            }
            kind => {
                let at = if kind == 4 {
                    dice.below(entries + 1)
                } else {
                    0
                };
                self.recent.insert(at, (self.next, date));
                self.next += 1;
            }
        }
        if self.recent.len() > self.window {
            let kept = if self.keeps_archives {
                dice.below(self.window + 1)
            } else {
                self.window
            };
            let gone = self.recent.split_off(kept);
            if self.keeps_archives {
                self.archives.push(gone);
            }
        }
    }

    fn write(&self, folder: &Path) {
        for (number, archive) in self.archives.iter().enumerate() {
            fs::write(
                folder.join((number + 1).to_string()),
                document(archive, number),
            )
            .unwrap();
        }
        let recent = document(&self.recent, self.archives.len());
        fs::write(folder.join("recent"), recent).unwrap();
    }

    fn visible(&self) -> BTreeSet<String> {
        let all = self.archives.iter().flatten().chain(&self.recent);
        all.map(|(entry, _)| format!("urn:{entry}")).collect()
    }
}

fn document(entries: &[(usize, usize)], previous: usize) -> String {
    let mut text = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>".to_owned();
    if previous > 0 {
        text += &format!("<link rel='prev-archive' href='/{previous}'/>");
    }
    for (entry, date) in entries {
        let (minutes, seconds) = (date / 60, date % 60);
        text += &format!(
            "<entry><id>urn:{entry}</id><updated>2026-01-01T00:{minutes:02}:{seconds:02}Z</updated></entry>"
        );
    }
    text + "</feed>"
}

/// Every entry that is visible at a run comes exactly once, or the command reports a gap and goes on from there.
#[test]
fn a_plain_feed_is_handed_over_by_the_command() {
    let (mut gaps, mut cuts, mut entries) = (0, 0, 0);
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let folder = tempfile::tempdir().unwrap();
        let site = Site::of_folder(folder.path());
        let bookmark = folder.path().join("bookmark");
        let (url, bookmark) = (site.url("/recent"), bookmark.to_str().unwrap());
        let revisions = dice.below(2) == 0;
        let mut feed = PlainFeed {
            recent: vec![],
            archives: vec![],
            window: 1 + dice.below(30),
            keeps_archives: dice.below(2) == 0,
            next: 0,
        };
        let mut given = BTreeMap::<String, usize>::new();
        let mut owed = BTreeSet::new();
        for _ in 0..6 {
            for _ in 0..dice.below(16) {
                feed.change(&mut dice);
            }
            feed.write(folder.path());
            let limit = (dice.below(2) == 0).then(|| 1 + dice.below(6));
            let replay = |given: &mut BTreeMap<String, usize>, more: &[&str]| {
                let mut args = vec!["replay", &url, "--format", "id", "--bookmark", bookmark];
                args.extend(revisions.then_some("--revisions"));
                let output = run("simplefeed", &[&args, more].concat(), b"");
                let ids: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
                for id in &ids {
                    *given.entry(id.clone()).or_default() += 1;
                }
                (output.status.code(), ids.len(), text(&output.stderr))
            };
            let count = limit.map(|limit| limit.to_string());
            let arguments = count.as_ref().map(|count| ["--limit", count]);
            let arguments = arguments.as_ref().map_or(&[][..], |limit| &limit[..]);
            let recent = feed.recent.iter().map(|(entry, _)| format!("urn:{entry}"));
            let is_known = recent.into_iter().any(|id| given.contains_key(&id));
            let (mut code, mut printed, mut said) = replay(&mut given, arguments);
            if code == Some(GAP) {
                gaps += 1;
                assert!(said.contains("gap:"), "{seed}: {said}");
                let is_there = |id: &String| feed.visible().contains(id);
                let owes = !owed.iter().all(is_there);
                // (A revision that was shown may be gone as well. The model in `core` knows about those.)
                assert!(
                    owes || !is_known || revisions,
                    "{seed}: a gap where none is"
                );
                owed.clear();
                let more = [&["--on-gap", "go-on"], arguments].concat();
                (code, printed, said) = replay(&mut given, &more);
            }
            assert_eq!(code, Some(0), "{seed}: {said}");
            owed.extend(feed.visible());
            owed.retain(|id| !given.contains_key(id));
            if limit == Some(printed) {
                cuts += 1;
            } else {
                assert!(owed.is_empty(), "{seed}: {owed:?} are lost");
            }
            let again = given.iter().find(|(_, times)| **times > 1);
            assert!(revisions || again.is_none(), "{seed}: {again:?}");
        }
        entries += given.len();
    }
    assert!(
        gaps > 20 && cuts > 150 && entries > 1_500,
        "{gaps} {cuts} {entries}"
    );
}
