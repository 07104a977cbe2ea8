//! A model of a plain feed, looked at ten thousand times: entries are edited, moved, put in and deleted,
//! with dates in any order.
//!
//! Pure: every run follows from its seed.

use std::collections::{BTreeMap, BTreeSet};

use super::{simulation::Dice, *};

/// An entry: its number, and the date it has now.
type Shown = (usize, u32);

/// A plain feed: a recent document of so many entries at most, and archives if it keeps them.
struct PlainFeed {
    /// The recent document, newest first.
    recent: Vec<Shown>,
    archives: Vec<Vec<Shown>>,
    window: usize,
    keeps_archives: bool,
    marks_archives: bool,
    next: usize,
    dice: Dice,
}

impl PlainFeed {
    fn new(mut dice: Dice) -> Self {
        let keeps_archives = dice.chance(40);
        Self {
            recent: vec![],
            archives: vec![],
            window: 1 + dice.below(30),
            keeps_archives,
            marks_archives: dice.chance(50),
            next: 0,
            dice,
        }
    }

    fn date(&mut self) -> u32 {
        u32::try_from(self.dice.below(1_000)).unwrap()
    }

    /// One thing that happens to the feed.
    fn change(&mut self) {
        let date = self.date();
        let entries = self.recent.len();
        match self.dice.below(10) {
            0 if entries > 0 => drop(self.recent.remove(self.dice.below(entries))),
            1 if entries > 0 => {
                let moved = self.recent.remove(self.dice.below(entries));
                self.recent.insert(self.dice.below(entries), moved);
            }
            2 if entries > 0 => {
                // Edited where it stands: its date rises or falls.
                self.recent[self.dice.below(entries)].1 = date;
            }
            3 if entries > 0 => {
                let (number, _) = self.recent.remove(self.dice.below(entries));
                self.recent.insert(0, (number, date));
            }
            4 => {
                let at = self.dice.below(entries + 1);
                self.recent.insert(at, (self.next, date));
                self.next += 1;
            }
            _ => {
                self.recent.insert(0, (self.next, date));
                self.next += 1;
            }
        }
        if self.recent.len() > self.window {
            let kept = if self.keeps_archives {
                self.dice.below(self.window + 1)
            } else {
                self.window
            };
            let gone = self.recent.split_off(kept);
            if self.keeps_archives {
                self.archives.push(gone);
            }
        }
    }

    fn get(&self, url: &Url) -> Option<Document> {
        let name = url.as_str().strip_prefix(BASE).unwrap();
        let (entries, previous, archived) = match name {
            RECENT => (&self.recent, self.archives.len(), false),
            name => {
                let number: usize = name.parse().ok()?;
                let entries = self.archives.get(number.checked_sub(1)?)?;
                (entries, number - 1, self.marks_archives)
            }
        };
        let mut text = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>".to_owned();
        let link = format!("<link rel='prev-archive' href='{previous}'/>");
        if previous > 0 {
            text += &link;
        }
        if archived {
            text += "<h:archive xmlns:h='http://purl.org/syndication/history/1.0'/>";
        }
        let text = entries.iter().fold(text, |text, (number, date)| {
            let (minutes, seconds) = (date / 60, date % 60);
            text + &format!(
                "<entry><id>urn:{number}</id>\
                 <updated>2026-01-01T00:{minutes:02}:{seconds:02}Z</updated></entry>"
            )
        });
        Document::read((text + "</feed>").into_bytes().into(), url).ok()
    }

    /// All entries that a consumer could see now.
    fn visible(&self) -> BTreeSet<usize> {
        let all = self.archives.iter().flatten().chain(&self.recent);
        all.map(|(number, _)| *number).collect()
    }
}

/// Entries that a consumer received and accepted.
#[derive(Clone, Default)]
struct Given {
    times: BTreeMap<usize, usize>,
    dates: BTreeMap<usize, u32>,
}

struct Looker {
    replay: Replay,
    revisions: bool,
    given: Given,
    /// The saved bookmark, and the entries received when it was saved.
    kept: Option<(String, Given)>,
    gaps: usize,
}

impl Looker {
    fn replay(start: Start, revisions: bool) -> Replay {
        Replay::new(url(RECENT), start).revisions(revisions)
    }

    fn restart(&mut self) {
        let start = if let Some((kept, given)) = &self.kept {
            self.given = given.clone();
            Start::Bookmark(serde_json::from_str(kept).unwrap())
        } else {
            self.given = Given::default();
            Start::Oldest
        };
        self.replay = Self::replay(start, self.revisions);
    }

    /// One look at the feed. Returns whether it came to its end.
    fn look(&mut self, feed: &mut PlainFeed, seed: u64) -> bool {
        while let Some(ask) = self.replay.ask() {
            let outcome = match feed.get(&ask.url) {
                Some(document) => self.replay.take(document, &ask.url, Validators::default()),
                None => self.replay.missing().map(|()| None),
            };
            match outcome {
                Ok(None) => {}
                Ok(Some(run)) => {
                    for (entry, number) in run.entries.iter().zip(numbers(&run)) {
                        let date = run.document.updated_of(entry.index).unwrap();
                        let date = u32::try_from(date.micros() / 1_000_000 % 3_600).unwrap();
                        let before = self.given.dates.insert(number, date);
                        let times = self.given.times.entry(number).or_default();
                        *times += 1;
                        let revised = self.revisions && before.is_none_or(|before| before < date);
                        assert!(*times == 1 || revised, "seed {seed}: {number} again");
                        if feed.dice.chance(30) {
                            let place = serde_json::to_string(&run.bookmark(entry).unwrap());
                            self.kept = Some((place.unwrap(), self.given.clone()));
                        }
                        if feed.dice.chance(2) {
                            return false;
                        }
                    }
                }
                Err(WalkError::Gap { .. }) if feed.archives.is_empty() => {
                    self.gaps += 1;
                    self.replay.pass_gap();
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        if let Some(place) = self.replay.next_round() {
            let place = serde_json::to_string(&place).unwrap();
            self.kept = Some((place, self.given.clone()));
        }
        true
    }
}

/// Goal: every entry that is visible at a look is handed over exactly once, or the consumer reports a gap and
/// goes on; with revisions, every later date that is visible at a look, too. New entries always come.
/// Method: ten thousand feeds, each looked at again and again, by a consumer that is killed now and then and
/// begins where it had accepted.
#[test]
fn a_plain_feed_is_handed_over_whatever_happens_to_it() {
    let (mut gaps, mut restarts, mut revised, mut entries) = (0, 0, 0, 0);
    for seed in 0..10_000 {
        let mut feed = PlainFeed::new(Dice(seed));
        let revisions = feed.dice.chance(50);
        let mut looker = Looker {
            replay: Looker::replay(Start::Oldest, revisions),
            revisions,
            given: Given::default(),
            kept: None,
            gaps: 0,
        };
        for _ in 0..12 {
            for _ in 0..feed.dice.below(12) {
                feed.change();
            }
            if !looker.look(&mut feed, seed) {
                restarts += 1;
                looker.restart();
                while !looker.look(&mut feed, seed) {
                    looker.restart();
                }
            }
            for number in feed.visible() {
                assert!(
                    looker.given.times.contains_key(&number),
                    "seed {seed}: {number} is lost"
                );
            }
            for (number, date) in feed.recent.iter().filter(|_| revisions) {
                let given = looker.given.dates[number];
                assert!(
                    given >= *date,
                    "seed {seed}: a revision of {number} is lost"
                );
            }
            if feed.dice.chance(20) {
                restarts += 1;
                looker.restart();
            }
        }
        gaps += looker.gaps;
        entries += looker.given.times.len();
        revised += looker
            .given
            .times
            .values()
            .filter(|times| **times > 1)
            .count();
    }
    for (what, times) in [
        ("gap", gaps),
        ("restart", restarts),
        ("revision", revised),
        ("entry", entries),
    ] {
        assert!(times > 1_000, "{what} only {times} times");
    }
}
