//! The index of ids: the position of each id, in sorted files beside sled that are made from the
//! commits.
//!
//! Shell: files below `<data>/ids`, and a thread that merges them. As keys of sled, ids would be
//! scattered over all pages: every append of n entries would change n pages, and the memory for
//! pages would grow with the entries. Here each entry costs an insert into a table in memory:
//!
//! ```text
//! commits ──► fresh ids (a table) ──► sealed (sorted, in memory) ──► runs (files), merged by and by
//! ```
//!
//! Sealed ids and runs have a filter, which excludes most absent ids without a search. All ids of a
//! batch go through one filter before the next.
//!
//! A run is at least about as large as all newer runs together, so there are few runs. A run names
//! its commits and the chain hash after them. A run of another log, a damaged run, or a run that a
//! power cut kept from the disk is made again from the commits: at the opening, or when the damage
//! is found.

use std::{
    collections::HashMap,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use simplefeed_core::{
    commit::{Change, Commit},
    digest::Digest,
    feed::{CommitNumber, EntryId, FeedKey, Position},
    history::ChainHash,
};
use tracing::warn;

use filter::Filter;
use run::IdRun;

use crate::durable::create_private_folder;

mod filter;
mod run;

/// Number of fresh ids from which on the table is sealed. Small in unit tests, so that they see
/// many runs.
pub(super) const FRESH_IDS: usize = if cfg!(test) { 8 } else { 32 * 1024 };

/// First half of a SHA-256 over feed and id; stands for the id in the index.
pub(super) type Fingerprint = [u8; 16];

/// Returns the fingerprint of an id within a feed.
fn fingerprint_of(feed: FeedKey, id: &EntryId) -> Fingerprint {
    Digest::of_parts(&[feed.0.as_bytes(), id.as_str().as_bytes()]).half()
}

/// Returns the first and the second half of a fingerprint.
fn fingerprint_halves(fingerprint: &Fingerprint) -> (u64, u64) {
    let whole = u128::from_be_bytes(*fingerprint);
    let half = |half: u128| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(u64::MAX);
    (half(whole >> 64), half(whole))
}

fn is_damage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// An id and the position of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdPlace {
    fingerprint: Fingerprint,
    at: Position,
}

/// The commits whose ids a segment holds, and the chain hash after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CommitSpan {
    first: CommitNumber,
    last: CommitNumber,
    chain: ChainHash,
}

/// The ids of some commits, sorted.
#[derive(Debug)]
enum Segment {
    Sealed(CommitSpan, Vec<IdPlace>, Filter),
    Run(IdRun),
}

impl Segment {
    fn span(&self) -> CommitSpan {
        match self {
            Self::Sealed(span, ..) => *span,
            Self::Run(run) => run.span,
        }
    }

    fn ids(&self) -> u64 {
        match self {
            Self::Sealed(_, ids, _) => u64::try_from(ids.len()).unwrap_or(u64::MAX),
            Self::Run(run) => run.ids,
        }
    }

    fn filter(&self) -> &Filter {
        match self {
            Self::Sealed(.., filter) => filter,
            Self::Run(run) => &run.filter,
        }
    }

    fn find(&self, wanted: &Fingerprint) -> io::Result<Option<Position>> {
        match self {
            Self::Sealed(_, ids, _) => {
                let found = ids.binary_search_by_key(wanted, |placed| placed.fingerprint);
                let found = found.ok().and_then(|index| ids.get(index));
                Ok(found.map(|placed| placed.at))
            }
            Self::Run(run) => run.find(wanted),
        }
    }

    fn iter(&self) -> Box<dyn Iterator<Item = io::Result<IdPlace>> + '_> {
        match self {
            Self::Sealed(_, ids, _) => Box::new(ids.iter().copied().map(Ok)),
            Self::Run(run) => Box::new(run.iter()),
        }
    }
}

/// Index of all ids of a log up to a commit.
#[derive(Debug)]
pub(super) struct IdIndex {
    folder: PathBuf,
    /// Oldest first; each begins where the one before ends.
    segments: Vec<Arc<Segment>>,
    fresh: HashMap<Fingerprint, Position>,
    /// Number of fresh ids from which on these ids are sealed.
    fresh_max: usize,
    /// The last commit whose ids are here, and the chain hash after that commit.
    covered: (CommitNumber, ChainHash),
    merging: Option<SegmentMerge>,
    damaged: AtomicBool,
}

/// Segments on their way into one run.
#[derive(Debug)]
struct SegmentMerge {
    place: Range<usize>,
    thread: JoinHandle<io::Result<IdRun>>,
}

impl IdIndex {
    /// Opens the runs in `folder` that fit the log with the chain hashes `chain`. The caller adds
    /// the ids of commits after those [covered](Self::covered). Once there are `fresh_max` of these
    /// ids, they become a run.
    ///
    /// # Errors
    ///
    /// Returns why the folder cannot be used.
    #[expect(
        clippy::disallowed_methods,
        reason = "the next opening removes a run that comes back"
    )]
    pub(super) fn open(
        folder: &Path,
        fresh_max: usize,
        chain: impl Fn(CommitNumber) -> Option<ChainHash>,
    ) -> io::Result<Self> {
        create_private_folder(folder)?;
        let (mut runs, mut rest) = (vec![], vec![]);
        for item in fs::read_dir(folder)? {
            let path = item?.path();
            let is_run = path.extension().is_some_and(|extension| extension == "run");
            let run = is_run.then(|| IdRun::open(&path).ok()).flatten();
            match run.filter(|run| chain(run.span.last) == Some(run.span.chain)) {
                Some(run) => runs.push(run),
                None => rest.push(path),
            }
        }
        // A crash during a merge can leave the inputs beside the output. Of runs with the same
        // beginning, the longest comes first and is kept.
        runs.sort_by_key(|run| (run.span.first, std::cmp::Reverse(run.span.last)));
        let mut covered = (CommitNumber(0), ChainHash::START);
        let mut segments = vec![];
        for run in runs {
            if run.span.first == covered.0.next() {
                covered = (run.span.last, run.span.chain);
                segments.push(Arc::new(Segment::Run(run)));
            } else {
                rest.push(run.path().into());
            }
        }
        // These files are of another log, damaged, unfinished, or covered by a longer run. None of
        // them is used again.
        for path in rest {
            fs::remove_file(path)?;
        }
        Ok(Self {
            folder: folder.into(),
            segments,
            fresh: HashMap::new(),
            fresh_max,
            covered,
            merging: None,
            damaged: AtomicBool::new(false),
        })
    }

    /// Returns the folder that holds the runs.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether a damaged run was found. The run's file is removed by then, so the next
    /// opening of the index reads the run's ids from the commits.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    /// Removes the file of a damaged run. Any other error, such as a failing read, removes nothing.
    #[expect(
        clippy::disallowed_methods,
        reason = "the next opening removes a run that comes back"
    )]
    fn remove_damaged(&self, run: &IdRun, error: &io::Error) {
        if is_damage(error) {
            warn!(%error, "some of the index of ids is made again");
            // Another lookup may have removed the file already.
            let _gone = fs::remove_file(run.path());
            // After the removal: a repair that sees the flag opens the folder without the run.
            self.damaged.store(true, Ordering::Release);
        }
    }

    /// Returns the last commit whose ids are here.
    pub(super) fn covered(&self) -> CommitNumber {
        self.covered.0
    }

    /// Adds the ids of the next commit; `chain` is the hash after that commit.
    pub(super) fn add(&mut self, commit: &Commit, chain: ChainHash) {
        let ids = commit.changes.iter().filter_map(|change| match change {
            Change::Entry { feed, id, at, .. } => Some((*feed, id, *at)),
            _ => None,
        });
        self.add_ids(commit.number, chain, ids);
    }

    /// Adds the ids of the next commit, which has the given number.
    pub(super) fn add_ids<'i>(
        &mut self,
        number: CommitNumber,
        chain: ChainHash,
        ids: impl Iterator<Item = (FeedKey, &'i EntryId, Position)>,
    ) {
        let placed = ids.map(|(feed, id, at)| (fingerprint_of(feed, id), at));
        self.fresh.extend(placed);
        self.covered = (number, chain);
        // Commits without entries are sealed, too, or every opening would look through them.
        let commits = number.0 - self.sealed_up_to().0;
        let commits = usize::try_from(commits).unwrap_or(usize::MAX);
        if self.fresh.len() >= self.fresh_max || commits >= self.fresh_max {
            self.seal_segment();
            // A finished merge is taken first, because there is only one at a time.
            self.take_merged();
            self.begin_merge();
        }
    }

    /// Returns the ids that have an entry, each with its position, in any order.
    ///
    /// # Errors
    ///
    /// Returns why a file cannot be read, or that some files are damaged. The lookup removes all
    /// damaged files that it meets, so that one repair is enough.
    pub(super) fn find<'i>(
        &self,
        feed: FeedKey,
        ids: &[&'i EntryId],
    ) -> io::Result<Vec<(&'i EntryId, Position)>> {
        let wanted = ids.iter().map(|id| {
            let fingerprint = fingerprint_of(feed, id);
            (*id, fingerprint, self.fresh.get(&fingerprint).copied())
        });
        let mut wanted: Vec<_> = wanted.collect();
        let mut damage = None;
        // Newest first: of an id that occurs twice, the newer place counts.
        for segment in self.segments.iter().rev() {
            let fingerprints = wanted.iter().map(|(_, fingerprint, _)| fingerprint);
            let may_have = segment.filter().may_have(fingerprints);
            for ((_, fingerprint, at), may_have) in wanted.iter_mut().zip(may_have) {
                if at.is_some() || !may_have {
                    continue;
                }
                match (segment.find(fingerprint), &**segment) {
                    (Ok(found), _) => *at = found,
                    (Err(error), Segment::Run(run)) if is_damage(&error) => {
                        self.remove_damaged(run, &error);
                        damage = Some(error);
                        break;
                    }
                    (Err(error), _) => return Err(error),
                }
            }
        }
        let found = wanted.into_iter().filter_map(|(id, _, at)| Some((id, at?)));
        damage.map_or_else(|| Ok(found.collect()), Err)
    }

    /// Writes the ids in memory to a run, so that the next opening need not read their commits.
    pub(super) fn close(mut self) {
        // There is only one merge at a time.
        self.wait();
        if self.covered.0 > self.sealed_up_to() {
            self.seal_segment();
            self.begin_merge();
            self.wait();
        }
    }

    /// Waits for a merge under way.
    pub(super) fn wait(&mut self) {
        while let Some(merging) = &self.merging {
            if !merging.thread.is_finished() {
                // `take_merged` does not wait for the end of a merge, because appends call it, too.
                // So this loop waits.
                std::thread::park_timeout(Duration::from_millis(1));
            }
            self.take_merged();
        }
    }

    /// Returns the last commit whose ids are sealed.
    fn sealed_up_to(&self) -> CommitNumber {
        let last = self.segments.last().map(|segment| segment.span().last);
        last.unwrap_or(CommitNumber(0))
    }

    fn seal_segment(&mut self) {
        let fresh = self.fresh.drain();
        let mut ids: Vec<IdPlace> = fresh
            .map(|(fingerprint, at)| IdPlace { fingerprint, at })
            .collect();
        // Sorted by fingerprint, as runs are, so that lookups are a binary search and a merge reads
        // each input once.
        ids.sort_unstable_by_key(|placed| placed.fingerprint);
        let mut filter = Filter::for_ids(u64::try_from(ids.len()).unwrap_or(u64::MAX));
        for placed in &ids {
            filter.add(&placed.fingerprint);
        }
        let (last, chain) = self.covered;
        let first = self.sealed_up_to().next();
        let span = CommitSpan { first, last, chain };
        self.segments
            .push(Arc::new(Segment::Sealed(span, ids, filter)));
    }

    /// Replaces the inputs of a finished merge by the new run.
    #[expect(
        clippy::disallowed_methods,
        reason = "the next opening removes a run that comes back"
    )]
    fn take_merged(&mut self) {
        let Some(SegmentMerge { place, thread }) =
            self.merging.take_if(|merging| merging.thread.is_finished())
        else {
            return;
        };
        match thread.join() {
            Ok(Ok(run)) => {
                let merged = [Arc::new(Segment::Run(run))];
                // The inputs are removed last: the merged run is durable by now.
                for segment in self.segments.splice(place, merged) {
                    if let Segment::Run(run) = &*segment
                        && let Err(error) = fs::remove_file(run.path())
                    {
                        warn!(%error, path = %run.path().display(), "a merged run cannot be removed");
                    }
                }
            }
            Ok(Err(error)) if is_damage(&error) => {
                // The merge does not return which input is damaged, so all of them are read again.
                for segment in self.segments.get(place).unwrap_or_default() {
                    if let Segment::Run(run) = &**segment
                        && let Some(Err(error)) = run.iter().find(Result::is_err)
                    {
                        self.remove_damaged(run, &error);
                    }
                }
            }
            Ok(Err(error)) => {
                warn!(%error, "ids cannot be written; they are kept in memory, and it is tried again");
            }
            Err(_) => warn!("merging ids failed; it is tried again"),
        }
    }

    /// Begins to merge the newest segments, unless others are being merged.
    fn begin_merge(&mut self) {
        if self.merging.is_some() {
            return;
        }
        let place = self.wanted_merge();
        let inputs: Vec<Arc<Segment>> = self
            .segments
            .get(place.clone())
            .unwrap_or_default()
            .to_vec();
        let folder = self.folder.clone();
        let thread = std::thread::Builder::new()
            .name("ids".into())
            .spawn(move || merge_segments(&folder, &inputs));
        match thread {
            // New segments are only added behind, so `place` stays right until the merge ends.
            Ok(thread) => self.merging = Some(SegmentMerge { place, thread }),
            Err(error) => warn!(%error, "ids cannot be merged; they are kept in memory"),
        }
    }

    /// Returns the newest segments that become one run: those in memory, and every run not larger
    /// than all newer segments together.
    fn wanted_merge(&self) -> Range<usize> {
        let mut newer = 0;
        let count = self.segments.iter().rev().take_while(|segment| {
            let joins = matches!(***segment, Segment::Sealed(..)) || segment.ids() <= newer;
            newer += segment.ids();
            joins
        });
        self.segments.len() - count.count()..self.segments.len()
    }
}

/// Writes segments, oldest first, as one run. Of an id that occurs twice, the newer place counts.
fn merge_segments(folder: &Path, segments: &[Arc<Segment>]) -> io::Result<IdRun> {
    let (Some(oldest), Some(newest)) = (segments.first(), segments.last()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let CommitSpan { last, chain, .. } = newest.span();
    let span = CommitSpan {
        first: oldest.span().first,
        last,
        chain,
    };
    let ids_max = segments.iter().map(|segment| segment.ids()).sum();
    let mut sources: Vec<_> = segments
        .iter()
        .rev()
        .map(|segment| segment.iter().peekable())
        .collect();
    let next = std::iter::from_fn(move || {
        let mut least: Option<Fingerprint> = None;
        for source in &mut sources {
            match source.peek() {
                Some(Ok(placed)) => {
                    let fingerprint = placed.fingerprint;
                    least = Some(least.map_or(fingerprint, |least| least.min(fingerprint)));
                }
                // An unreadable input ends the merge: a run without some ids would let entries be
                // stored twice.
                Some(Err(_)) => return source.next(),
                None => {}
            }
        }
        let least = least?;
        let is_it = |placed: &io::Result<IdPlace>| {
            placed
                .as_ref()
                .is_ok_and(|placed| placed.fingerprint == least)
        };
        // Sources are newest first, so the first place counts. All of them are collected, because
        // each must pass the id.
        let found = sources
            .iter_mut()
            .filter_map(|source| source.next_if(is_it));
        found.collect::<Vec<_>>().into_iter().next()
    });
    IdRun::write(folder, span, ids_max, next)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use simplefeed_core::timestamp::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn feed(number: u64) -> FeedKey {
        FeedKey(Uuid::from_u64_pair(0, number))
    }

    fn id(number: u64) -> EntryId {
        EntryId::parse(&format!("urn:example:{number}")).unwrap()
    }

    /// The chain hash after a commit of the log that is tried.
    fn chain(number: CommitNumber) -> ChainHash {
        ChainHash(Digest::of(&number.0.to_be_bytes()))
    }

    fn open(folder: &Path) -> IdIndex {
        IdIndex::open(folder, FRESH_IDS, |number| Some(chain(number))).unwrap()
    }

    /// A commit with an entry for each `id`, in feed 0 or 1.
    fn commit(number: u64, ids: Range<u64>) -> Commit {
        let entry = |number| Change::Entry {
            feed: feed(number % 2),
            at: Position(number),
            id: id(number),
            sent: Digest::of(b""),
            fragment: Bytes::new(),
            digest: Digest::of(b""),
        };
        Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(0),
            changes: ids.map(entry).collect(),
        }
    }

    /// Checks that the index has the first `ids` ids and no other, one at a time and all at once.
    fn check(index: &IdIndex, ids: u64) {
        let numbers: Vec<u64> = (0..ids + 10).collect();
        let all: Vec<EntryId> = numbers.iter().map(|number| id(*number)).collect();
        for of in 0..2 {
            let wanted = numbers
                .iter()
                .filter(|number| **number < ids && **number % 2 == of);
            let wanted: Vec<u64> = wanted.copied().collect();
            let mut found: Vec<u64> = vec![];
            for (number, id) in numbers.iter().zip(&all) {
                for (same, at) in index.find(feed(of), &[id]).unwrap() {
                    assert_eq!((same, at), (id, Position(*number)));
                    found.push(at.0);
                }
            }
            assert_eq!(found, wanted, "one at a time");
            let mut found = index
                .find(feed(of), &all.iter().collect::<Vec<_>>())
                .unwrap();
            found.sort_by_key(|(_, at)| *at);
            let expected = wanted.iter().zip(wanted.iter().map(|number| id(*number)));
            let expected: Vec<(EntryId, Position)> = expected
                .map(|(number, id)| (id, Position(*number)))
                .collect();
            let found: Vec<(EntryId, Position)> =
                found.into_iter().map(|(id, at)| (id.clone(), at)).collect();
            assert_eq!(found, expected, "all at once");
        }
    }

    /// Adds the commits that are missing, as an opening does.
    fn catch_up(index: &mut IdIndex, commits: &[Commit]) {
        for commit in commits {
            if commit.number > index.covered() {
                index.add(commit, chain(commit.number));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        /// Goal: wherever the index was closed, and whatever was merged by then, every id is found,
        /// and no other.
        #[test]
        fn every_id_is_found_after_any_stops(
            sizes in prop::collection::vec(0_u64..20, 1..60),
            stops in prop::collection::vec((0_usize..60, any::<bool>()), 0..6),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let (mut commits, mut ids) = (vec![], 0);
            let mut index = open(folder.path());
            for (at, size) in sizes.iter().enumerate() {
                commits.push(commit(u64::try_from(at).unwrap() + 1, ids..ids + size));
                ids += size;
                catch_up(&mut index, &commits);
                if let Some((_, merge)) = stops.iter().find(|(stop, _)| *stop == at) {
                    if *merge {
                        index.wait();
                    }
                    index.close();
                    index = open(folder.path());
                    catch_up(&mut index, &commits);
                }
                check(&index, ids);
            }
            index.wait();
            check(&index, ids);
        }
    }

    /// Goal: there are few runs, however many ids.
    #[test]
    fn runs_are_merged() {
        let folder = tempfile::tempdir().unwrap();
        let mut index = open(folder.path());
        for number in 0..1_000 {
            let commit = commit(number + 1, number * 8..number * 8 + 8);
            index.add(&commit, chain(commit.number));
            index.wait();
        }
        let runs = fs::read_dir(folder.path()).unwrap().count();
        assert!(runs <= 10, "{runs} runs");
        check(&index, 8_000);
    }

    /// Goal: an opening looks through few commits, whatever is in them.
    #[test]
    fn commits_without_entries_are_covered() {
        let folder = tempfile::tempdir().unwrap();
        let mut index = open(folder.path());
        for number in 1..=100 {
            index.add(&commit(number, 0..0), chain(CommitNumber(number)));
        }
        index.close();
        assert_eq!(open(folder.path()).covered(), CommitNumber(100));
    }

    /// Goal: a run whose blocks are damaged is found out, and made again; a merge that was cut off
    /// is not believed, however whole it looks.
    #[test]
    fn damaged_blocks_are_made_again() {
        let commits: Vec<Commit> = (0..40).map(|n| commit(n + 1, n * 8..n * 8 + 8)).collect();
        // A bit of a block is wrong, or the file ends within a block, or is empty.
        let wrong = |bytes: &mut Vec<u8>| bytes[4_096 + 5] ^= 1;
        let within = |bytes: &mut Vec<u8>| bytes.truncate(4_096 + 100);
        let damages: [fn(&mut Vec<u8>); 3] = [wrong, within, Vec::clear];
        for (looks, damage) in [true, false]
            .into_iter()
            .flat_map(|looks| damages.map(|damage| (looks, damage)))
        {
            let folder = tempfile::tempdir().unwrap();
            let mut index = open(folder.path());
            catch_up(&mut index, &commits[..20]);
            index.wait();
            let runs = fs::read_dir(folder.path()).unwrap();
            let run = runs.map(|run| run.unwrap().path()).next().unwrap();
            fs::copy(&run, folder.path().join("run.partial")).unwrap();
            let mut bytes = fs::read(&run).unwrap();
            damage(&mut bytes);
            fs::write(&run, bytes).unwrap();
            // Found by a look for an id, or by a merge.
            if looks {
                assert!((0..160).any(|n| index.find(feed(n % 2), &[&id(n)]).is_err()));
            } else {
                for commit in &commits[20..] {
                    index.add(commit, chain(commit.number));
                    index.wait();
                }
            }
            assert!(index.is_damaged());
            index.close();
            let mut index = open(folder.path());
            assert!(index.covered() < CommitNumber(20));
            catch_up(&mut index, &commits);
            check(&index, 320);
        }
    }

    /// Goal: one repair is enough, however many runs a batch finds damaged.
    #[test]
    fn a_batch_finds_all_damaged_runs() {
        let commits: Vec<Commit> = (0..40).map(|n| commit(n + 1, n * 8..n * 8 + 8)).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut index = open(folder.path());
        for commit in &commits {
            index.add(commit, chain(commit.number));
            index.wait();
        }
        let runs = || {
            fs::read_dir(folder.path())
                .unwrap()
                .map(|run| run.unwrap().path())
        };
        assert!(runs().count() > 1);
        for run in runs() {
            let mut bytes = fs::read(&run).unwrap();
            // In each block of ids; the filter is shorter than a block.
            for block in bytes.chunks_exact_mut(4_096).skip(1) {
                block[5] ^= 1;
            }
            fs::write(&run, bytes).unwrap();
        }
        let ids: Vec<EntryId> = (0..320).map(id).collect();
        assert!(
            index
                .find(feed(0), &ids.iter().collect::<Vec<_>>())
                .is_err()
        );
        assert_eq!(runs().count(), 0);
        assert!(index.is_damaged());
        let mut index = open(folder.path());
        catch_up(&mut index, &commits);
        check(&index, 320);
    }

    /// Goal: a new id hardly ever costs a search, wherever the other ids are.
    #[test]
    fn filters_exclude_most_absent_ids() {
        let folder = tempfile::tempdir().unwrap();
        let mut index = open(folder.path());
        for number in 0..40 {
            index.add(
                &commit(number + 1, number * 8..number * 8 + 8),
                chain(CommitNumber(number + 1)),
            );
            if number == 20 {
                index.wait();
            }
        }
        let absent: Vec<Fingerprint> = (1_000..6_000)
            .map(|n| fingerprint_of(feed(0), &id(n)))
            .collect();
        let is_run = |segment: &&Arc<Segment>| matches!(***segment, Segment::Run(_));
        let runs = index.segments.iter().filter(is_run).count();
        assert!(runs > 0 && runs < index.segments.len(), "{runs} runs");
        for segment in &index.segments {
            let may = segment.filter().may_have(absent.iter()).into_iter();
            let may = may.filter(|may| *may).count();
            assert!(may < 200, "{may} of 5,000");
        }
        index.wait();
    }

    /// Goal: what another log, an older one or a broken disk has left is not believed.
    #[test]
    fn what_is_not_of_this_log_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let commits: Vec<Commit> = (0..40).map(|n| commit(n + 1, n * 8..n * 8 + 8)).collect();
        let mut index = open(folder.path());
        for commit in &commits {
            index.add(commit, chain(commit.number));
            index.wait();
        }
        index.close();
        let other = |number: CommitNumber| Some(chain(CommitNumber(number.0 + 1)));
        let runs = || {
            let runs = fs::read_dir(folder.path()).unwrap();
            let mut runs: Vec<PathBuf> = runs.map(|run| run.unwrap().path()).collect();
            runs.sort();
            runs
        };
        let found = runs();
        assert!(found.len() > 1, "{found:?}");

        let mut bytes = fs::read(&found[0]).unwrap();
        bytes[9] ^= 1;
        fs::write(&found[0], bytes).unwrap();
        fs::write(folder.path().join("1-40.partial"), "half").unwrap();
        let mut index = open(folder.path());
        assert!(index.covered() < CommitNumber(40));
        catch_up(&mut index, &commits);
        check(&index, 320);
        index.close();

        let mut index = IdIndex::open(folder.path(), FRESH_IDS, other).unwrap();
        assert_eq!(index.covered(), CommitNumber(0));
        assert!(runs().is_empty(), "another log's runs are removed");
        catch_up(&mut index, &commits);
        check(&index, 320);
    }
}
