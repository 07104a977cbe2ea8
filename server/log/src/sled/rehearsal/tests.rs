use std::path::PathBuf;

use super::*;
use crate::sled::{
    folder::copy_folder,
    settled::{SettledPart, quietly},
    snapshots::newest_number,
};

/// Damaged files. `tests/run --long` tries all.
const CASES: [usize; 2] = [1_000, 120];

fn cases() -> usize {
    let [long, short] = CASES;
    if std::env::var_os("SIMPLEFEED_TESTS_LONG").is_some() {
        long
    } else {
        short
    }
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end.max(1)
    }
}

/// Values by their keys.
type Values = BTreeMap<Vec<u8>, Vec<u8>>;

fn value(key: u64, round: u64) -> Vec<u8> {
    let mut numbers = Numbers(key * 1_000 + round);
    (0..1_500 + key % 900)
        .map(|_| u8::try_from(numbers.below(256)).unwrap())
        .collect()
}

/// Files of sled at some instant.
struct State {
    folder: PathBuf,
    /// Number of the snapshot after the last settling.
    snapshot: u64,
    /// What was settled then.
    settled: Values,
    /// What a settling since may have written.
    unsettled: Values,
}

/// Writes rounds of keys, the third of them again, and copies the files after each settling and in the middle of the
/// last one.
fn states(folder: &Path) -> Vec<State> {
    let live = folder.join("live");
    let settled = SettledPart::open(&live).unwrap();
    settled.make_sweeping_tree().unwrap();
    let (mut states, mut values) = (vec![], Values::new());
    for round in 0..4_u64 {
        let mut unsettled = Values::new();
        let keys = (0..1_500_u64).filter(|key| round == 0 || key % 3 == round % 3);
        let keys: Vec<u64> = keys.chain(round * 5_000..round * 5_000 + 900).collect();
        let snapshot = newest_number(&live).unwrap();
        for (count, key) in keys.iter().enumerate() {
            let (key, value) = (key.to_be_bytes().to_vec(), value(*key, round));
            settled.put(&key, &value).unwrap();
            unsettled.insert(key, value);
            if round > 0 && count % 250 == 249 {
                settled.flush().unwrap();
                let copy = folder.join(format!("within {round} {count}"));
                copy_folder(&live, &copy).unwrap();
                let (folder, settled, unsettled) = (copy, values.clone(), unsettled.clone());
                states.push(State {
                    folder,
                    snapshot,
                    settled,
                    unsettled,
                });
            }
        }
        settled.flush().unwrap();
        settled.reopen(|| Ok(())).unwrap();
        values.append(&mut unsettled);
        let copy = folder.join(format!("after {round}"));
        copy_folder(&live, &copy).unwrap();
        states.push(State {
            folder: copy,
            snapshot: newest_number(&live).unwrap(),
            settled: values.clone(),
            unsettled,
        });
    }
    states
}

/// Kinds of damage. Some hit what pages hold, which sled tells when it reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    Nothing,
    BitInHeader,
    BitInBody,
    ZeroedBlock,
    ZeroedHeader,
    ZeroedSegment,
    CutAnywhere,
    CutBySegments,
    CutByALittle,
    SegmentCopiedOver,
    SegmentsSwapped,
    OlderSegment,
    NoSnapshot,
    OlderSnapshot,
    BitInSnapshot,
    GarbageBehind,
    EmptyFile,
    NoFile,
}

const DAMAGES: [Damage; 18] = [
    Damage::Nothing,
    Damage::BitInHeader,
    Damage::BitInBody,
    Damage::ZeroedBlock,
    Damage::ZeroedHeader,
    Damage::ZeroedSegment,
    Damage::CutAnywhere,
    Damage::CutBySegments,
    Damage::CutByALittle,
    Damage::SegmentCopiedOver,
    Damage::SegmentsSwapped,
    Damage::OlderSegment,
    Damage::NoSnapshot,
    Damage::OlderSnapshot,
    Damage::BitInSnapshot,
    Damage::GarbageBehind,
    Damage::EmptyFile,
    Damage::NoFile,
];

impl Damage {
    /// Whether it may hit the bytes of a page that stays where it is.
    fn hits_pages(self) -> bool {
        matches!(self, Self::BitInBody | Self::ZeroedBlock)
    }
}

fn snapshot_of(folder: &Path) -> PathBuf {
    let items = fs::read_dir(folder)
        .unwrap()
        .map(|item| item.unwrap().path());
    let is_snapshot = |path: &PathBuf| path.to_string_lossy().contains("snap.");
    items.filter(is_snapshot).max().unwrap()
}

fn damage(folder: &Path, kind: Damage, older: &Path, numbers: &mut Numbers) {
    let path = folder.join("db");
    let mut bytes = fs::read(&path).unwrap();
    let size = usize::try_from(SEGMENT_BYTES).unwrap();
    let mut pick =
        |end: usize| usize::try_from(numbers.below(u64::try_from(end).unwrap())).unwrap();
    let segments = bytes.len() / size;
    let segment = pick(segments) * size;
    let other = pick(segments) * size;
    match kind {
        Damage::Nothing => {}
        Damage::BitInHeader => bytes[segment + pick(20)] ^= 1 << pick(8),
        Damage::BitInBody => bytes[segment + 20 + pick(size - 20)] ^= 1 << pick(8),
        Damage::ZeroedBlock => {
            let at = segment + pick(size / 4_096 - 1) * 4_096 + 4_096;
            bytes[at..at + 4_096].fill(0);
        }
        Damage::ZeroedHeader => bytes[segment..segment + 4_096].fill(0),
        Damage::ZeroedSegment => bytes[segment..segment + size].fill(0),
        Damage::CutAnywhere => bytes.truncate(pick(bytes.len())),
        Damage::CutBySegments => bytes.truncate(segment),
        Damage::CutByALittle => bytes.truncate(bytes.len() - 1 - pick(4_096)),
        Damage::SegmentCopiedOver => bytes.copy_within(segment..segment + size, other),
        Damage::SegmentsSwapped => {
            let kept = bytes[segment..segment + size].to_vec();
            bytes.copy_within(other..other + size, segment);
            bytes[other..other + size].copy_from_slice(&kept);
        }
        Damage::OlderSegment => {
            let old = fs::read(older.join("db")).unwrap();
            let at = pick(old.len() / size) * size;
            let end = (at + size).min(bytes.len());
            bytes[at..end].copy_from_slice(&old[at..end]);
        }
        Damage::NoSnapshot => fs::remove_file(snapshot_of(folder)).unwrap(),
        Damage::OlderSnapshot => {
            fs::remove_file(snapshot_of(folder)).unwrap();
            let old = snapshot_of(older);
            fs::copy(&old, folder.join(old.file_name().unwrap())).unwrap();
        }
        Damage::BitInSnapshot => {
            let path = snapshot_of(folder);
            let mut snapshot = fs::read(&path).unwrap();
            let at = pick(snapshot.len());
            snapshot[at] ^= 1 << pick(8);
            fs::write(path, snapshot).unwrap();
        }
        Damage::GarbageBehind => {
            bytes.extend((0..1_000 + pick(100_000)).map(|at| at.to_le_bytes()[0]));
        }
        Damage::EmptyFile => bytes.clear(),
        Damage::NoFile => return fs::remove_file(&path).unwrap(),
    }
    fs::write(&path, bytes).unwrap();
}

fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for item in fs::read_dir(folder).unwrap() {
        let path = item.unwrap().path();
        if path.is_file() {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Opens sled, and returns what is wrong with what was settled, and how many keys it cannot read.
fn open_and_look(state: &State, folder: &Path) -> Result<usize, String> {
    let looked = quietly(|| {
        let settled = SettledPart::open(folder).map_err(|error| format!("not opened: {error}"))?;
        let mut unreadable = 0;
        for (key, expected) in &state.settled {
            match settled.raw_value(key) {
                Err(_) => unreadable += 1,
                Ok(Some(found))
                    if found == *expected || state.unsettled.get(key) == Some(&found) => {}
                Ok(found) => {
                    return Err(format!(
                        "{key:?} is {} bytes",
                        found.map_or(0, |found| found.len())
                    ));
                }
            }
        }
        Ok(unreadable)
    });
    looked.unwrap_or_else(|| Err("sled gave up".into()))
}

/// Goal: what the rehearsal accepts, sled opens without harm; without the rehearsal, sled would do harm.
/// Method: damaged files of all kinds, after settlings and in the middle of some. What is refused is opened, too, to
/// see what would have happened.
#[test]
fn what_is_accepted_is_opened_without_harm() {
    let folder = tempfile::tempdir().unwrap();
    let states = states(folder.path());
    let mut numbers = Numbers(20);
    let (mut accepted, mut harmful, mut by_pages) = (BTreeMap::new(), 0, 0);
    for case in 0..cases() {
        let kind = DAMAGES[case % DAMAGES.len()];
        let index =
            usize::try_from(numbers.below(u64::try_from(states.len() - 1).unwrap())).unwrap() + 1;
        let state = &states[index];
        let damaged = folder.path().join("damaged");
        copy_folder(&state.folder, &damaged).unwrap();
        damage(&damaged, kind, &states[index - 1].folder, &mut numbers);
        let before = content(&damaged);
        let rehearsed = rehearse(&damaged, state.snapshot);
        assert!(before == content(&damaged), "the rehearsal changed a file");
        let opened = open_and_look(state, &damaged);
        let what = format!(
            "case {case}: {kind:?} of {}: {opened:?}",
            state.folder.display()
        );
        match rehearsed {
            Ok(_is_whole) => {
                let unreadable = opened.unwrap_or_else(|_| panic!("{what}"));
                assert!(unreadable == 0 || kind.hits_pages(), "{what}");
                *accepted.entry(kind).or_insert(0) += 1;
            }
            Err(refusal) => {
                assert!(kind != Damage::Nothing, "{what}: {refusal}");
                let is_harmed = opened != Ok(0);
                harmful += usize::from(is_harmed);
                let of_pages = refusal.to_string().contains("is not where it was");
                by_pages += usize::from(is_harmed && of_pages);
            }
        }
        fs::remove_dir_all(&damaged).unwrap();
    }
    eprintln!(
        "rehearsal: {} files, accepted {accepted:?}, harm prevented {harmful}",
        cases()
    );
    assert!(harmful * 5 > cases(), "the damage is too small: {harmful}");
    eprintln!("but for the look at each page, {by_pages} of these would have been accepted");
    assert!(by_pages > 0, "the look at each page is for nothing");
}
