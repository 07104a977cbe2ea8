//! The epoch that begins when a restored log is served.
//!
//! Shell: the log. A restored backup goes on from an earlier state. Entries that were published
//! after that state may still be known elsewhere: in caches and at consumers, under the very URLs
//! that the server would use next. So every document that was open in that state gets a name that
//! was never used. The predecessor, whose bytes are final, links to the old name; a request for the
//! old name is redirected.
use simplefeed_core::{
    commit::{Change, Commit},
    feed::{Epoch, FeedName},
    limits::BATCH_ENTRIES_MAX,
    timestamp::Timestamp,
};
use simplefeed_log::{LogError, LogHead, WritableLog, settings_of};

/// Begins an epoch at `now`, durably. Returns the epoch.
///
/// Nothing may have been served since the log was restored. If the call fails, it must be repeated
/// before the log is served.
///
/// # Errors
///
/// Returns why the log cannot be read or written.
pub fn begin_epoch(log: &dyn WritableLog, now: Timestamp) -> Result<Epoch, LogError> {
    begin_epoch_in(log, now, BATCH_ENTRIES_MAX)
}

/// Begins an epoch in commits of at most `feeds_max` feeds.
fn begin_epoch_in(
    log: &dyn WritableLog,
    now: Timestamp,
    feeds_max: usize,
) -> Result<Epoch, LogError> {
    let LogHead { epoch, .. } = log.head();
    // Two restorations of the same log begin in different seconds, and so get different numbers.
    let epoch = epoch.next(now);
    let epoch = epoch.ok_or_else(|| LogError::damaged("there is no number for one more epoch"))?;
    // The change of the epoch comes first, because the new names contain the number of the epoch.
    append_changes(log, now, vec![Change::Epoch { epoch }])?;
    let mut after: Option<FeedName> = None;
    loop {
        let feeds = log.feeds(after.as_ref(), feeds_max)?;
        let Some((last, _)) = feeds.last() else {
            return Ok(epoch);
        };
        after = Some(last.clone());
        let mut renamed = vec![];
        for (_, head) in &feeds {
            // The names of a timeline's documents follow from the epochs, so a timeline needs no
            // change.
            if !settings_of(log, head.feed, head.revision)?.is_timeline() {
                renamed.push(head.renamed());
            }
        }
        if !renamed.is_empty() {
            append_changes(log, now, renamed)?;
        }
    }
}

fn append_changes(
    log: &dyn WritableLog,
    now: Timestamp,
    changes: Vec<Change>,
) -> Result<(), LogError> {
    let head = log.head();
    log.append(&Commit {
        number: head.number.next(),
        instant: now.max(head.last.plus_micros(1)),
        changes,
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use simplefeed_core::{
        digest::Digest,
        feed::{DocumentNumber, EntryId, FeedId, FeedKey, Position, Revision},
        settings::{Choices, Defaults, Settings},
    };
    use uuid::Uuid;

    use super::*;
    use simplefeed_log::{
        Commits as _, Series as _,
        barrier::Barrier,
        memory::MemoryLog,
        sled::opening::{Disk, open, open_with},
    };

    const FEEDS: u128 = 5;
    /// A second that is later than the instants of the log's commits.
    const LATER: i64 = 1_795_824_000;

    /// A disk that fails after some syncs.
    struct Failing(AtomicUsize);

    impl Barrier for Failing {
        fn sync(&self, _file: &std::fs::File) -> io::Result<()> {
            let one_less = |left: usize| left.checked_sub(1);
            let left = self
                .0
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
            left.map(drop).map_err(|_none| io::Error::other("injected"))
        }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    /// Creates five feeds, one of them with an entry.
    fn fill(log: &dyn WritableLog) {
        let mut changes = vec![];
        for feed in 1..=FEEDS {
            let settings = Settings {
                name: FeedName::parse(&format!("feed{feed}")).unwrap(),
                id: FeedId::of_uuid(Uuid::from_u128(feed)),
                choices: Choices::default().into(),
                defaults: Defaults::new("http://h").into(),
                sup_id: None,
                was_closed: false,
                timeline: None,
            };
            let (feed, revision) = (settings.id.key(), Revision::FIRST);
            changes.push(Change::Settings {
                feed,
                revision,
                settings,
            });
            changes.push(Change::Opened {
                feed,
                document: DocumentNumber::OLDEST,
                first: Position(0),
                revision,
            });
        }
        changes.push(Change::Entry {
            feed: FeedKey(Uuid::from_u128(3)),
            at: Position(0),
            id: EntryId::parse("urn:1").unwrap(),
            sent: Digest::of(b"1"),
            fragment: "<entry/>".into(),
            digest: Digest::of(b"<entry/>"),
        });
        append_changes(log, second(100), changes).unwrap();
    }

    /// Goal: an epoch has begun for every feed, or another epoch is begun, with a number of its
    /// own.
    /// Method: the disk fails at each commit of the beginning.
    #[test]
    fn an_epoch_begins_for_every_feed_or_once_more() {
        for commits in 0..=4 {
            let folder = tempfile::tempdir().unwrap();
            let opened = open(folder.path()).unwrap();
            fill(&opened.log);
            opened.close().unwrap();
            // The opening syncs once.
            let failing = Failing(AtomicUsize::new(commits + 1));
            let opened = open_with(folder.path(), &Disk::behind(failing)).unwrap();
            let begun = begin_epoch_in(&opened.log, second(LATER), 2);
            assert_eq!(begun.is_ok(), commits == 4, "{commits} commits");
            drop(opened);

            let opened = open(folder.path()).unwrap();
            let epoch = match begun {
                Ok(epoch) => epoch,
                Err(_) => begin_epoch_in(&opened.log, second(LATER + 1), 2).unwrap(),
            };
            assert_eq!(epoch, opened.log.head().epoch);
            assert!(i64::from(epoch.0) >= LATER);
            let heads = opened.log.feeds(None, 9).unwrap();
            assert_eq!(heads.len(), 5);
            for (name, head) in heads {
                let open = head.open.opening;
                assert_eq!(open.name.epoch, epoch, "{name}");
                assert_eq!(open.linked.epoch, Epoch::FIRST, "{name}");
            }
        }
    }

    /// Goal: a clock that was years ahead at one restoration hinders no later restoration. Of
    /// several restorations that follow, the later one has the higher number, by which consumers
    /// and caches tell them apart.
    #[test]
    fn an_epoch_begins_although_the_last_one_is_ahead_of_the_clock() {
        let now = LATER;
        let epochs = [0, 1, 86_400].map(|later| {
            let log = MemoryLog::default();
            fill(&log);
            let far = begin_epoch(&log, second(2 * now)).unwrap();
            let epoch = begin_epoch(&log, second(now + later)).unwrap();
            assert!(epoch > far, "{epoch}");
            assert_eq!(log.head().epoch, epoch);
            epoch
        });
        assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
        let log = MemoryLog::default();
        fill(&log);
        // A machine whose clock begins in 1970 at each start would give two histories the same
        // number.
        begin_epoch(&log, second(5)).unwrap_err();
        begin_epoch(&log, second(i64::from(u32::MAX))).unwrap();
        begin_epoch(&log, second(now)).unwrap_err();
    }

    /// A clock that was ahead once, for one commit, keeps no backup from being served.
    #[test]
    fn an_epoch_begins_although_commits_are_ahead_of_the_clock() {
        let log = MemoryLog::default();
        fill(&log);
        append_changes(&log, second(2 * LATER), vec![]).unwrap();
        let last = log.head().last;
        let epoch = begin_epoch(&log, second(LATER)).unwrap();
        assert_eq!((log.head().epoch, i64::from(epoch.0)), (epoch, LATER));
        assert!(log.head().last > last);
    }
}
