//! Recovery of logs with records that are missing, or only partly written.

use bytes::Bytes;
use simplefeed_core::{commit::Commit, entry::Entry, feed::DocumentNumber};
use simplefeed_log::{
    Append as _, Series,
    barrier::DiskBarrier,
    fixtures::{script, settings},
    memory::MemoryLog,
    sled::opening::OpenedLog,
};

use super::*;

/// Feeds of the script that have entries.
const FEEDS: [u128; 2] = [1, 2];

/// Records of sled, by key.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Everything that is final: documents, and entries by feed and position.
type Final = (
    BTreeMap<(u128, DocumentName), Bytes>,
    BTreeMap<(u128, u64), Entry>,
);

fn key_of(feed: u128) -> FeedKey {
    settings(feed).id.key()
}

/// Opens a log that settles each commit once the next one comes, or none.
fn open(folder: &Path, chapter_bytes: u64) -> OpenedLog {
    let disk = Disk {
        chapter_bytes,
        ..Disk::behind(DiskBarrier::new().unwrap())
    };
    open_with(folder, &disk).unwrap()
}

fn append(opened: &OpenedLog, commits: &[Commit]) {
    for commit in commits {
        opened.log.append(commit).unwrap();
    }
}

fn sled_of(folder: &Path) -> sled::Db {
    let config = sled::Config::new().path(folder.join("sled"));
    config.mode(sled::Mode::LowSpace).open().unwrap()
}

fn records_of(folder: &Path) -> Records {
    let pairs = sled_of(folder).iter().map(Result::unwrap);
    pairs
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

/// Gives the record of a key another value, or takes it away.
fn put(folder: &Path, records: &[(&Vec<u8>, Option<&Vec<u8>>)]) {
    let db = sled_of(folder);
    for (key, value) in records {
        match value {
            Some(value) => db.insert(key, value.as_slice()),
            None => db.remove(key),
        }
        .unwrap();
    }
    db.flush().unwrap();
}

/// Copies the folders of a closed log.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let to = to.join(item.file_name());
        if item.file_type().unwrap().is_dir() {
            copy(&item.path(), &to);
        } else {
            fs::copy(item.path(), to).unwrap();
        }
    }
}

fn final_in(log: &impl Series) -> Final {
    let (mut documents, mut entries) = (BTreeMap::new(), BTreeMap::new());
    for feed in FEEDS {
        for number in (1..=9).filter_map(DocumentNumber::new) {
            if let Some(frozen) = FrozenDocument::render(log, key_of(feed), number).unwrap() {
                documents.insert((feed, frozen.opening.name), frozen.bytes);
            }
        }
        for entry in log
            .entries(key_of(feed), Position(0)..Position(999))
            .unwrap()
        {
            entries.insert((feed, entry.at.0), entry);
        }
    }
    (documents, entries)
}

fn final_of(folder: &Path) -> Final {
    let opened = open(folder, u64::MAX);
    let found = final_in(&opened.log);
    opened.close().unwrap();
    found
}

/// Makes a log of which all but the last commit is settled.
fn settled_log(folder: &Path) {
    let opened = open(folder, 1);
    append(&opened, &script());
    opened.close().unwrap();
}

fn is_same(found: &Entry, entry: &Entry) -> bool {
    (&found.id, found.sent, &found.fragment, found.instant)
        == (&entry.id, entry.sent, &entry.fragment, entry.instant)
}

/// Goal: of a log without archive, too, nothing that was final comes out as something else, whichever record is gone;
/// and each loss is named.
/// Method: each record is removed in turn.
#[test]
fn a_record_that_is_gone_changes_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: String| folder.path().join(name);
    let whole = path("whole".into());
    settled_log(&whole);
    let (documents, entries) = final_of(&whole);
    let keys: Vec<Vec<u8>> = records_of(&whole).into_keys().collect();
    assert!(documents.len() >= 3 && keys.len() > 20);
    let mut unharmed = 0;
    for (number, key) in keys.iter().enumerate() {
        let (damaged, to) = (
            path(format!("damaged{number}")),
            path(format!("to{number}")),
        );
        copy(&whole, &damaged);
        put(&damaged, &[(key, None)]);
        let report = recover(&damaged, None, &to).unwrap();
        let what = format!("{:?}: {:?}", String::from_utf8_lossy(key), report.missing);
        let (now, left) = final_of(&to);
        let mut lost = 0;
        for (name, bytes) in &documents {
            let found = now.get(name);
            assert!(
                found.is_none_or(|found| found == bytes),
                "{name:?} of {what}"
            );
            lost += usize::from(found.is_none());
        }
        for (at, entry) in &entries {
            let found = left.get(at);
            assert!(
                found.is_none_or(|found| is_same(found, entry)),
                "{at:?} of {what}"
            );
            lost += usize::from(found.is_none());
        }
        assert!(lost == 0 || !report.missing.is_empty(), "{lost} of {what}");
        unharmed += usize::from(lost == 0);
    }
    let all = keys.len();
    assert!(unharmed > 3 && unharmed < all, "{unharmed} of {all}");
}

/// Goal: a log whose settling broke off is recovered whole.
/// Method: sled has only some of the records of the settling, whichever they are; the journal has all commits still.
#[test]
fn a_log_is_recovered_from_a_settling_that_broke_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: String| folder.path().join(name);
    let (before, after) = (path("before".into()), path("after".into()));
    let (commits, memory) = (script(), MemoryLog::default());
    for commit in &commits {
        memory.append(commit).unwrap();
    }
    let opened = open(&before, u64::MAX);
    append(&opened, &commits);
    opened.close().unwrap();
    settled_log(&after);
    let (old, new) = (records_of(&before), records_of(&after));
    let changed = |(key, value): &(&Vec<u8>, &Vec<u8>)| old.get(*key) != Some(*value);
    let new: Vec<_> = new.iter().filter(changed).collect();
    assert!(new.len() > 20);
    let (_, entries) = final_in(&memory);
    for count in 0..=new.len() {
        for (order, some) in [("first", new.get(..count)), ("last", new.get(count..))] {
            let (damaged, to) = (
                path(format!("{order}{count}")),
                path(format!("to-{order}{count}")),
            );
            copy(&before, &damaged);
            let some: Vec<_> = some
                .unwrap()
                .iter()
                .map(|(key, value)| (*key, Some(*value)))
                .collect();
            put(&damaged, &some);
            let report = recover(&damaged, None, &to).unwrap();
            let what = format!("{order} {count}: {:?}", report.missing);
            let (_, left) = final_of(&to);
            assert_eq!(left.len(), entries.len(), "{what}");
            for (at, entry) in &entries {
                assert!(
                    left.get(at).is_some_and(|found| is_same(found, entry)),
                    "{at:?} of {what}"
                );
            }
        }
    }
}
