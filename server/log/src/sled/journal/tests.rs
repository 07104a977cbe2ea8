use std::sync::atomic::AtomicUsize;

use super::*;

/// A disk that counts its syncs.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Barrier for Counting {
    fn sync(&self, _file: &File) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

fn item(number: u64, bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let body = vec![u8::try_from(number % 251).unwrap(); bytes];
    vec![(
        crate::sled::record::commit_key(CommitNumber(number)),
        seal(body),
    )]
}

fn chain(number: u64) -> ChainHash {
    ChainHash::START.extend(&number.to_be_bytes())
}

/// Returns a journal with commits of these sizes.
fn written(folder: &Path, first: u64, sizes: &[usize]) -> Journal {
    let number = CommitNumber(first);
    let mut journal = Journal::create(
        folder,
        Arc::new(Counting::default()),
        number,
        chain(first - 1),
    )
    .unwrap();
    for (number, bytes) in (first..).zip(sizes) {
        append(&mut journal, number, *bytes);
    }
    journal
}

fn append(journal: &mut Journal, number: u64, bytes: usize) {
    let appended = journal.append(
        CommitNumber(number),
        &chain(number - 1),
        &item(number, bytes),
        |_| Ok(()),
    );
    appended.unwrap();
}

/// Returns the commits of the newest file, and whether its end is sound.
fn read(folder: &Path) -> (Vec<u64>, Result<(), LogError>) {
    let files = open_files(folder).unwrap();
    let file = files.last().unwrap();
    let mut found = vec![];
    let end = file.scan(|record| {
        assert!(record.follows(&chain(record.number.0 - 1)));
        let item = record.items().next().unwrap().unwrap();
        assert_eq!(file.value(item.place).unwrap(), unseal(item.value).unwrap());
        found.push(record.number.0);
        Ok(())
    });
    let next = CommitNumber(file.first.0 + u64::try_from(found.len()).unwrap());
    (found, file.check_end(end.unwrap(), next))
}

fn newest(folder: &Path) -> PathBuf {
    open_files(folder).unwrap().pop().unwrap().path
}

const SIZES: [usize; 6] = [10, 3_000, 1, 70_000, 2_500_000, 40];

#[test]
fn what_was_appended_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    drop(written(folder.path(), 1, &SIZES));
    let (found, end) = read(folder.path());
    assert_eq!(found, [1, 2, 3, 4, 5, 6]);
    end.unwrap();
}

/// Goal: a commit that a crash has torn never was; one that is followed by another is damage.
/// Method: a byte of each record is changed in turn, then the file is cut in the middle of each.
#[test]
fn only_the_last_record_may_be_torn() {
    for torn in 0..SIZES.len() {
        for is_cut in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let mut journal = written(folder.path(), 1, &SIZES[..torn]);
            let begin = journal.bytes();
            for (number, bytes) in (1..).zip(SIZES).skip(torn) {
                append(&mut journal, number, bytes);
            }
            drop(journal);
            let file = OpenOptions::new()
                .write(true)
                .open(newest(folder.path()))
                .unwrap();
            if is_cut {
                file.set_len(begin + 30).unwrap();
            } else {
                file.write_all_at(&[0xee], begin + 27).unwrap();
            }
            let (found, end) = read(folder.path());
            assert_eq!(found.len(), torn, "{is_cut}");
            let is_last = torn == SIZES.len() - 1;
            assert_eq!(
                end.is_ok(),
                is_last && !is_cut,
                "record {torn}, cut {is_cut}"
            );
        }
    }
}

/// Goal: a record of which a power cut kept the second sector alone was never acknowledged, and is no damage.
/// Method: the head of the last record lies in two sectors; the first has the bytes of an earlier use of the file.
#[test]
fn a_head_that_two_sectors_share_may_be_torn() {
    for bytes in 20..600 {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = written(folder.path(), 1, &[bytes]);
        let begin = journal.bytes();
        let rest = SECTOR_BYTES - begin % SECTOR_BYTES;
        if rest >= NUMBERED_BYTES {
            continue;
        }
        append(&mut journal, 2, 1_000);
        drop(journal);
        let file = OpenOptions::new().write(true).open(newest(folder.path()));
        let old = vec![0xee; usize::try_from(rest).unwrap()];
        file.unwrap().write_all_at(&old, begin).unwrap();
        let (found, end) = read(folder.path());
        assert_eq!(found, [1]);
        end.unwrap();
        return;
    }
    unreachable!("records begin at each multiple of 8 bytes");
}

/// Goal: a file used again does not bring back what was in it.
#[test]
fn what_was_in_a_file_before_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = written(folder.path(), 1, &[100; 50]);
    let old = Arc::clone(journal.file());
    journal.rotate(CommitNumber(51), chain(50)).unwrap();
    old.recycle(u64::MAX);
    assert!(folder.path().join(SPARE).exists());
    append(&mut journal, 51, 100);
    journal.rotate(CommitNumber(52), chain(51)).unwrap();
    // The same length as before, so that old records follow right behind the new ones.
    append(&mut journal, 52, 100);
    let (found, end) = read(folder.path());
    assert_eq!(found, [52]);
    end.unwrap();
}

/// Until it is settled, an older file is the only place of its commits.
#[test]
fn an_older_file_that_was_cut_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = written(folder.path(), 1, &[100; 5]);
    let older = Arc::clone(journal.file());
    journal.rotate(CommitNumber(6), ChainHash::START).unwrap();
    assert!(older.is_in(folder.path()));
    older.file.set_len(600).unwrap();
    assert!(!older.is_in(folder.path()));
    // Nor is it left behind.
    journal.file.file.set_len(600).unwrap();
    let left = journal.rotate(CommitNumber(6), ChainHash::START);
    assert!(matches!(left, Err(LogError::Displaced { .. })), "{left:?}");
}

/// Goal: a file that was cut, damaged, or has lost a name takes no commit more. One that was moved takes none once the look
/// for its name is due.
/// Method: damage between two commits. The last look has just been, is due, or has never been.
#[test]
fn a_file_that_is_not_whole_takes_no_commits() {
    type Damage = fn(&JournalFile);
    let second = |file: &JournalFile| file.path.with_extension("second");
    let damages: [(&str, Damage, bool); 7] = [
        ("none", |_| {}, false),
        ("cut", |file| file.file.set_len(600).unwrap(), true),
        ("longer", |file| file.file.set_len(1 << 20).unwrap(), true),
        (
            "damaged",
            |file| file.is_damaged.store(true, Ordering::Release),
            true,
        ),
        ("removed", |file| fs::remove_file(&file.path).unwrap(), true),
        (
            "replaced",
            |file| {
                fs::copy(&file.path, file.path.with_extension("new")).unwrap();
                fs::rename(file.path.with_extension("new"), &file.path).unwrap();
            },
            true,
        ),
        (
            "moved",
            |file| fs::rename(&file.path, file.path.with_extension("old")).unwrap(),
            false,
        ),
    ];
    // However slow this test is: a look of the future is never due.
    let ages = [
        Some(Instant::now() + Duration::from_hours(1)),
        Instant::now().checked_sub(LOOK_EVERY),
        None,
    ];
    for (name, damage, is_seen_at_once) in damages {
        for (case, at) in ages.into_iter().enumerate() {
            for names in [1, 2] {
                let folder = tempfile::tempdir().unwrap();
                let mut journal = written(folder.path(), 1, &[100; 2]);
                if names == 2 {
                    fs::hard_link(&journal.file.path, second(&journal.file)).unwrap();
                }
                append(&mut journal, 3, 100);
                assert!(journal.looked.is_some());
                journal.looked = at.map(|at| NameCheck { at, names });
                damage(&journal.file);
                let mut is_seen = false;
                let appended = journal.append(CommitNumber(4), &chain(3), &item(4, 100), |_| {
                    is_seen = true;
                    Ok(())
                });
                let is_refused = matches!(appended, Err(LogError::Displaced { .. }));
                let expected = is_seen_at_once || (case > 0 && name != "none");
                assert_eq!(is_refused, expected, "{name} {case}: {appended:?}");
                assert_eq!(is_seen, !expected, "{name} {case}");
            }
        }
    }
}

/// Goal: what is known of a file of the journal is not taken for known of the next one.
#[test]
fn a_new_file_that_is_moved_takes_no_commits() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = written(folder.path(), 1, &[100; 2]);
    append(&mut journal, 3, 100);
    // However slow this test is: a look of the future is never due.
    let at = Instant::now() + Duration::from_hours(1);
    journal.looked = Some(NameCheck { at, names: 1 });
    journal.rotate(CommitNumber(4), chain(3)).unwrap();
    let path = journal.file.path.clone();
    fs::rename(&path, path.with_extension("old")).unwrap();
    let appended = journal.append(CommitNumber(4), &chain(3), &item(4, 100), |_| Ok(()));
    assert!(
        matches!(appended, Err(LogError::Displaced { .. })),
        "{appended:?}"
    );
}

/// Goal: a reader that is slower than the settler reads what it asked for.
#[test]
fn a_file_that_is_read_is_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = written(folder.path(), 1, &[100; 5]);
    let mut places = vec![];
    let file = Arc::clone(journal.file());
    file.scan(|record| {
        places.push(record.items().next().unwrap().unwrap().place);
        Ok(())
    })
    .unwrap();
    let reader = Arc::clone(&file);
    journal.rotate(CommitNumber(6), chain(5)).unwrap();
    file.recycle(u64::MAX);
    journal.rotate(CommitNumber(6), chain(5)).unwrap();
    for number in 6..12 {
        append(&mut journal, number, 100);
    }
    assert_eq!(reader.value(places[2]).unwrap()[0], 3);
}

/// Goal: a commit costs one sync. (Another one comes each time that zeros are written ahead.)
#[test]
fn a_commit_is_one_sync() {
    let folder = tempfile::tempdir().unwrap();
    let barrier = Arc::new(Counting::default());
    let shared: Arc<dyn Barrier> = Arc::<Counting>::clone(&barrier);
    let mut journal =
        Journal::create(folder.path(), shared, CommitNumber(1), ChainHash::START).unwrap();
    let before = barrier.0.load(Ordering::Acquire);
    for number in 1..=1_000 {
        append(&mut journal, number, 600);
    }
    let syncs = barrier.0.load(Ordering::Acquire) - before;
    assert!((1_000..1_010).contains(&syncs), "{syncs} syncs");
}

/// Goal: of a damaged journal, every whole record is found.
#[test]
fn whole_records_are_found_around_damage() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = written(folder.path(), 1, &SIZES[..2]);
    let begin = journal.bytes();
    for (number, bytes) in (1..).zip(SIZES).skip(2) {
        append(&mut journal, number, bytes);
    }
    let file = OpenOptions::new()
        .write(true)
        .open(newest(folder.path()))
        .unwrap();
    file.write_all_at(&[0xee], begin + 27).unwrap();
    file.write_all_at(&[0xee; 48], 0).unwrap();
    let mut found = vec![];
    for file in open_remains(folder.path()).unwrap() {
        file.scan_remains(|record| found.push(record.number.0));
    }
    assert_eq!(found, [1, 2, 4, 5, 6]);
}

/// Goal: what is left of an earlier use of a file costs one look, whatever numbers and lengths are in it.
/// Method: each few bytes begins what could be the head of a later record, millions of bytes long: as binary numbers, and
/// as text that a publisher may send.
#[test]
fn old_content_costs_one_look() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = written(folder.path(), 1, &[10]);
    let (length, number) = (0x007f_ffff_1234_5678_u64, 0x007f_ffff_u64);
    let decoy = [length.to_be_bytes(), number.to_be_bytes()].concat();
    let text = b"\x00\x7fAABBBBCCCCCCCCDDDDDDDD\tcCCCCCCCC      ";
    let old = [
        decoy.repeat(2 * 1024 * 1024),
        text.repeat(512 * 1024),
        decoy.repeat(512 * 1024),
    ];
    let old = old.concat();
    let appended = journal.append(
        CommitNumber(2),
        &chain(1),
        &[(crate::sled::record::commit_key(CommitNumber(2)), seal(old))],
        |_| Ok(()),
    );
    appended.unwrap();
    let old = Arc::clone(journal.file());
    journal.rotate(CommitNumber(3), chain(2)).unwrap();
    old.recycle(u64::MAX);
    journal.rotate(CommitNumber(3), chain(2)).unwrap();
    append(&mut journal, 3, 100);
    drop(journal);
    // One look takes a fraction of a second; a checksum at each place would take an hour.
    let began = Instant::now();
    let (found, end) = read(folder.path());
    assert_eq!(found, [3]);
    end.unwrap();
    let mut remains = vec![];
    for file in open_remains(folder.path()).unwrap() {
        file.scan_remains(|record| remains.push(record.number.0));
    }
    assert_eq!(remains.last(), Some(&3));
    assert!(began.elapsed() < Duration::from_mins(1));
}

/// Goal: a file that has grown far beyond a chapter takes no time at later starts.
#[test]
fn a_spare_file_is_no_longer_than_a_chapter() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = written(folder.path(), 1, &[2_000_000]);
    let old = Arc::clone(journal.file());
    journal.rotate(CommitNumber(2), chain(1)).unwrap();
    old.recycle(100_000);
    assert_eq!(
        fs::metadata(folder.path().join(SPARE)).unwrap().len(),
        131_072
    );
}
