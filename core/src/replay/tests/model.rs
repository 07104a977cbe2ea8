//! A model of a plain feed, looked at ten thousand times: entries are edited, moved, put in and deleted,
//! with dates in any order.
//!
//! Pure: every run follows from its seed.

use std::collections::{BTreeMap, BTreeSet};

use super::{super::known::Bounds, simulation::Dice, *};

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
    /// Whether, during a look, the newest archive may take what rolls off the recent document, in place of a new one.
    grows_archives: bool,
    next: usize,
    dice: Dice,
}

impl PlainFeed {
    fn new(mut dice: Dice) -> Self {
        let keeps_archives = dice.chance(40);
        let marks_archives = dice.chance(50);
        Self {
            recent: vec![],
            archives: vec![],
            window: 1 + dice.below(30),
            keeps_archives,
            marks_archives,
            grows_archives: !marks_archives && dice.chance(50),
            next: 0,
            dice,
        }
    }

    fn date(&mut self) -> u32 {
        u32::try_from(self.dice.below(1_000)).unwrap()
    }

    /// One thing that happens to the feed during a look. An archive that grows between looks cannot be told from one that
    /// does not.
    fn change_within_look(&mut self) {
        let before = self.archives.len();
        self.change();
        if self.grows_archives
            && before > 0
            && self.archives.len() > before
            && self.dice.chance(70)
            && let Some(mut newest) = self.archives.pop()
            && let Some(grown) = self.archives.last_mut()
        {
            newest.append(grown);
            *grown = newest;
        }
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
    fn visible(&self) -> BTreeMap<usize, u32> {
        let all = self.archives.iter().flatten().chain(&self.recent);
        all.copied().collect()
    }
}

/// Entries that a consumer received and accepted.
#[derive(Clone, Default)]
struct Given {
    times: BTreeMap<usize, usize>,
    dates: BTreeMap<usize, u32>,
    /// Entries that a look has shown, whether they were received or not, with their latest dates.
    shown: BTreeMap<usize, u32>,
    /// Entries of the recent document at the end of the last look.
    recent: BTreeSet<usize>,
    /// Entries that copies of the recent document have shown during looks. A copy may have been set aside, so one of these
    /// may be reported as deleted at the end of the next look.
    glimpsed: BTreeSet<usize>,
}

impl Given {
    /// Entries that a look has shown and that were not received, or with an earlier date only.
    fn owed(&self, revisions: bool) -> BTreeMap<usize, u32> {
        let is_owed = |(number, date): &(&usize, &u32)| match self.dates.get(number) {
            None => true,
            Some(given) => revisions && given < date,
        };
        let owed = self.shown.iter().filter(is_owed);
        owed.map(|(number, date)| (*number, *date)).collect()
    }
}

struct Looker {
    replay: Replay,
    revisions: bool,
    /// Bounds of memory that are met.
    bounds: Option<Bounds>,
    given: Given,
    /// The saved bookmark, and the entries received when it was saved.
    kept: Option<(String, Given)>,
    gaps: usize,
    deletions: usize,
    /// Entries that were forgotten and came again.
    repeats: usize,
}

impl Looker {
    fn begin(&mut self, start: Start) {
        let replay = Replay::new(url(RECENT), start).revisions(self.revisions);
        self.replay = replay.bounds(self.bounds.unwrap_or_default());
    }

    fn restart(&mut self) {
        let start = if let Some((kept, given)) = &self.kept {
            self.given = given.clone();
            Start::Bookmark(serde_json::from_str(kept).unwrap())
        } else {
            self.given = Given::default();
            Start::Oldest
        };
        self.begin(start);
    }

    /// One look at the feed. Returns whether it came to its end.
    fn look(&mut self, feed: &mut PlainFeed, seed: u64) -> bool {
        let visible = feed.visible();
        self.given.shown.extend(&visible);
        loop {
            while let Some(ask) = self.replay.ask() {
                if ask.url == url(RECENT) {
                    let glimpsed = feed.recent.iter().map(|(number, _)| *number);
                    self.given.glimpsed.extend(glimpsed);
                }
                let outcome = match feed.get(&ask.url) {
                    Some(document) => self.replay.take(document, &ask.url, Validators::default()),
                    None => self.replay.missing().map(|()| None),
                };
                match outcome {
                    Ok(Some(run)) if !self.receive(&run, feed, seed) => return false,
                    Ok(_) => {}
                    Err(WalkError::Gap { .. }) if !self.knows_any_of(feed) => self.pass_gap(feed),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                // Between two requests of one look, unless the look begins again.
                let goes_on = |ask: Ask| ask.kind != AskKind::Recent;
                if feed.dice.chance(3) && self.replay.ask().is_some_and(goes_on) {
                    feed.change_within_look();
                }
            }
            match self.replay.next_round() {
                Ok(Some(place)) => {
                    let place = serde_json::to_string(&place).unwrap();
                    self.kept = Some((place, self.given.clone()));
                    return true;
                }
                Ok(None) => return true,
                Err(WalkError::Deleted { .. }) => {
                    // An entry that is deleted within a look comes from the copy that showed it.
                    let owed = self.given.owed(self.revisions);
                    let glimpsed = self.given.glimpsed.iter();
                    let mut unseen = glimpsed.filter(|it| !self.given.times.contains_key(it));
                    let is_owed = owed.keys().any(|number| !visible.contains_key(number));
                    let is_gone = unseen.any(|number| !feed.visible().contains_key(number));
                    assert!(is_owed || is_gone, "seed {seed}: a gap where none is");
                    self.deletions += 1;
                    self.pass_gap(feed);
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }

    /// Owes nothing after a whole look.
    fn catch_up(&mut self, feed: &PlainFeed) {
        let kept = self.kept.iter_mut().map(|(_, given)| given);
        for given in kept.chain([&mut self.given]) {
            given.shown.clear();
            given.recent = feed.recent.iter().map(|(number, _)| *number).collect();
        }
    }

    fn knows_any_of(&self, feed: &PlainFeed) -> bool {
        let received = |(number, _): &Shown| self.given.times.contains_key(number);
        feed.recent.iter().any(received)
    }

    fn pass_gap(&mut self, feed: &PlainFeed) {
        self.gaps += 1;
        // A report is a receipt, and the look begins again.
        self.given.shown = feed.visible();
        let visible = &self.given.shown;
        self.given
            .glimpsed
            .retain(|number| visible.contains_key(number));
        self.replay.pass_gap();
    }

    /// Takes the entries of a run. Returns whether the consumer lives on.
    fn receive(&mut self, run: &EntryRun, feed: &mut PlainFeed, seed: u64) -> bool {
        if run.url == url(RECENT) {
            // It may show more than it did when the look began, or be the copy of that look.
            let listed = (0..run.document.len()).map(|index| shown_at(&run.document, index));
            let listed: Vec<Shown> = listed.collect();
            self.given.shown.extend(listed);
        }
        for entry in &run.entries {
            let (number, date) = shown_at(&run.document, entry.index);
            let before = self.given.dates.insert(number, date);
            let times = self.given.times.entry(number).or_default();
            *times += 1;
            let revised = self.revisions && before.is_none_or(|before| before < date);
            if *times > 1 && !revised {
                let forgotten = self.bounds.is_some() && !self.given.recent.contains(&number);
                assert!(forgotten, "seed {seed}: {number} again");
                self.repeats += 1;
            }
            if feed.dice.chance(30) {
                let place = serde_json::to_string(&run.bookmark(entry).unwrap());
                self.kept = Some((place.unwrap(), self.given.clone()));
            }
            if feed.dice.chance(2) {
                return false;
            }
        }
        true
    }
}

/// Returns an entry of a document.
fn shown_at(document: &Document, index: usize) -> Shown {
    let date = document.updated_of(index).unwrap();
    let date = u32::try_from(date.micros() / 1_000_000 % 3_600).unwrap();
    (number_of(document, index), date)
}

/// Goal: every entry that is visible at a look is handed over exactly once, or the consumer reports a gap and
/// goes on; with revisions, every later date that is visible at a look, too. New entries always come.
/// Method: ten thousand feeds, each looked at again and again, by a consumer that is killed now and then and
/// begins where it had accepted. In some feeds an archive grows while it is read. The feeds change between looks, within one, and while no consumer runs. Some
/// consumers remember so little that they meet the bounds: those may repeat entries that have left the recent document.
#[test]
fn a_plain_feed_is_handed_over_whatever_happens_to_it() {
    let (mut gaps, mut deletions, mut restarts, mut revised, mut entries) = (0, 0, 0, 0, 0);
    let mut repeats = 0;
    for seed in 0..10_000 {
        let mut feed = PlainFeed::new(Dice(seed));
        let revisions = feed.dice.chance(50);
        let mut looker = Looker {
            replay: Replay::new(url(RECENT), Start::Oldest),
            revisions,
            bounds: feed.dice.chance(30).then(|| Bounds {
                kept: feed.dice.below(8),
                running: feed.dice.below(20),
                ..Bounds::default()
            }),
            given: Given::default(),
            kept: None,
            gaps: 0,
            deletions: 0,
            repeats: 0,
        };
        looker.begin(Start::Oldest);
        for _ in 0..12 {
            for _ in 0..feed.dice.below(12) {
                feed.change();
            }
            while !looker.look(&mut feed, seed) {
                restarts += 1;
                looker.restart();
                for _ in 0..feed.dice.below(4) {
                    feed.change();
                }
            }
            let mut owed = looker.given.owed(revisions);
            // A date that fell within the look is excused.
            let visible = feed.visible();
            owed.retain(|number, date| {
                let given = looker.given.dates.get(number);
                given.is_none_or(|given| given < visible.get(number).unwrap_or(date).min(date))
            });
            assert!(owed.is_empty(), "seed {seed}: {owed:?} are lost");
            looker.catch_up(&feed);
            if feed.dice.chance(20) {
                restarts += 1;
                looker.restart();
            }
        }
        gaps += looker.gaps;
        deletions += looker.deletions;
        repeats += looker.repeats;
        entries += looker.given.times.len();
        revised += looker
            .given
            .times
            .values()
            .filter(|times| **times > 1)
            .count();
    }
    for (what, times, least) in [
        ("gap", gaps, 1_000),
        ("deletion", deletions, 200),
        ("repeat", repeats, 200),
        ("restart", restarts, 1_000),
        ("revision", revised, 1_000),
        ("entry", entries, 1_000),
    ] {
        assert!(times >= least, "{what} only {times} times");
    }
}
