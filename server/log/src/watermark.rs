//! The watermark: the last second of which all updates are published.
//!
//! Shell: one small file. A SUP document promises that no update of its seconds comes later. So the
//! writer takes the instant of each commit from here: that instant is later than every published
//! second, whatever the clock does. The file keeps that promise across restarts.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use simplefeed_core::timestamp::Timestamp;
use simplefeed_process::regular;

use crate::durable::create_folder;
use tracing::warn;

/// Least time between two publications of the newest commit's own second while the clock is behind
/// that second. Each such publication moves the next commit to a later second. With this pause
/// between the publications, the clock catches up, however often a client asks.
const AHEAD_EVERY: Duration = Duration::from_secs(10);

/// Seconds published, and the commit that is on its way.
#[derive(Debug)]
pub struct Watermark(Mutex<Marks>);

#[derive(Debug)]
struct Marks {
    /// The last second that was published.
    published: i64,
    /// The last second that [`Watermark::leave`] or [`Watermark::begin_after`] finished: no later
    /// commit gets an instant in this second or before. This second is kept in memory only.
    left: i64,
    /// The instant of the commit that readers do not see yet.
    stamped: Option<Timestamp>,
    /// When a second ahead of the clock was published last.
    moved_on: Option<Instant>,
    file: Option<File>,
}

impl Watermark {
    /// Returns the watermark that is kept in the file at `path`.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be used.
    #[expect(
        clippy::disallowed_methods,
        reason = "the instants of commits are later than it, unless the clock is set back"
    )]
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            create_folder(folder)?;
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = regular::open_as(path, options)?;
        let mut record = [0; 16];
        // A new file, or a file that was cut short, has no whole record, and so names no published
        // second.
        let is_read = file.read_exact_at(&mut record, 0).is_ok();
        let published = is_read.then(|| published_in(record)).flatten();
        Ok(Self(Mutex::new(Marks {
            published: published.unwrap_or(i64::MIN),
            left: i64::MIN,
            stamped: None,
            moved_on: None,
            file: Some(file),
        })))
    }

    /// Returns a watermark that lasts as long as the program.
    pub fn in_memory() -> Self {
        Self(Mutex::new(Marks {
            published: i64::MIN,
            left: i64::MIN,
            stamped: None,
            moved_on: None,
            file: None,
        }))
    }

    /// Finishes the second of the newest commit. Called at the start: an earlier server may have
    /// published that second as `Last-Modified`, and [`leave`](Self::leave) stores nothing.
    pub fn begin_after(&self, newest: Timestamp) {
        let mut marks = self.lock_marks();
        marks.left = marks.left.max(newest.second());
    }

    /// Finishes the seconds that are over, and returns the last finished second: no later commit
    /// gets an instant in that second or before. No second after that of the `newest` commit is
    /// finished, even if the clock jumps ahead. The function stores nothing, so reading leaves no
    /// trace on the disk.
    pub fn leave(&self, clock: Timestamp, newest: Timestamp) -> i64 {
        let mut marks = self.lock_marks();
        // The second that the clock shows may still get commits.
        let over = newest.second().min(clock.second() - 1);
        // The second of a commit on its way is not over: readers do not see that commit yet.
        let possible = marks
            .stamped
            .map_or(over, |stamped| over.min(stamped.second() - 1));
        marks.left = marks.left.max(possible);
        marks.left
    }

    /// Returns the instant of the next commit: the time on the clock, or later if necessary. The
    /// instant is after every second that is published or finished, and at least two microseconds
    /// after `last`, the instant of the last entry: changes that follow that entry in its commit
    /// have the microsecond in between. Until [`release`](Self::release), the second of the
    /// returned instant is neither published nor finished.
    pub fn stamp(&self, clock: Timestamp, last: Timestamp) -> Timestamp {
        let mut marks = self.lock_marks();
        let before = marks.published.max(marks.left);
        let after = before.saturating_add(1).saturating_mul(1_000_000);
        let instant = clock
            .max(last.plus_micros(2))
            .max(Timestamp::from_micros(after));
        marks.stamped = Some(instant);
        instant
    }

    /// Notes that readers see the stamped commit, or never will.
    pub fn release(&self) {
        self.lock_marks().stamped = None;
    }

    /// Publishes as many seconds as possible, and returns the last published second: readers see
    /// all commits up to the end of that second, because no later commit gets an instant in or
    /// before that second. `None` if no second is published yet, because the file cannot be
    /// written. `newest` is the instant of the newest commit that readers see, or of an older one.
    ///
    /// Usually, the published second is the one before the second on the clock, so that the next
    /// commit can have the time on the clock. If the clock is behind the log, the published second
    /// is the one before the newest commit's second, and now and then the newest commit's own
    /// second.
    pub fn publish(&self, clock: Timestamp, newest: Timestamp) -> Option<i64> {
        let mut marks = self.lock_marks();
        let wanted = if newest.second() <= clock.second() {
            clock.second() - 1
        } else if marks.may_move_on() {
            newest.second()
        } else {
            newest.second() - 1
        };
        // The second of a commit on its way is not over: readers do not see that commit yet.
        let possible = marks
            .stamped
            .map_or(wanted, |stamped| wanted.min(stamped.second() - 1));
        // The file gets the second before readers do, so that after a restart no commit is stamped
        // in that second or before.
        if possible > marks.published && marks.save_published(possible) {
            marks.published = possible;
            if possible > clock.second() {
                marks.moved_on = Some(Instant::now());
            }
        }
        (marks.published > i64::MIN).then_some(marks.published)
    }

    fn lock_marks(&self) -> MutexGuard<'_, Marks> {
        self.0.lock()
    }
}

impl Marks {
    fn may_move_on(&self) -> bool {
        self.moved_on.is_none_or(|at| at.elapsed() >= AHEAD_EVERY)
    }

    /// Writes the published second to the file, and returns whether the write succeeded. The write
    /// needs no sync: a kill loses nothing, and a power cut matters only if the clock is set back
    /// meanwhile.
    fn save_published(&self, published: i64) -> bool {
        let Some(file) = &self.file else { return true };
        // The complement takes the place of a checksum: a torn write leaves no pair that fits.
        let record = [published.to_be_bytes(), (!published).to_be_bytes()];
        match file.write_all_at(record.as_flattened(), 0) {
            Ok(()) => true,
            Err(error) => {
                warn!(%error, "the watermark (last published second) cannot be written");
                false
            }
        }
    }
}

/// Returns the second of a record, if the record is whole.
fn published_in(record: [u8; 16]) -> Option<i64> {
    let (second, rest) = record.split_first_chunk::<8>()?;
    let (check, _) = rest.split_first_chunk::<8>()?;
    let second = i64::from_be_bytes(*second);
    (second == !i64::from_be_bytes(*check)).then_some(second)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(millis * 1_000)
    }

    /// Goal: a second that cannot be kept is not published.
    #[test]
    fn nothing_is_published_that_cannot_be_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watermark");
        fs::write(&path, "").unwrap();
        let unwritable = File::open(&path).unwrap();
        let mark = Watermark::in_memory();
        mark.lock_marks().file = Some(unwritable);
        assert_eq!(mark.publish(at(10_999), at(10_500)), None);
        mark.lock_marks().file = None;
        assert_eq!(mark.publish(at(10_999), at(10_500)), Some(9));
        mark.lock_marks().file = Some(File::open(&path).unwrap());
        assert_eq!(mark.publish(at(20_999), at(10_500)), Some(9));
    }

    #[test]
    fn only_seconds_that_are_over_are_published() {
        let mark = Watermark::in_memory();
        assert_eq!(mark.publish(at(10_999), at(10_500)), Some(9));
        assert_eq!(
            mark.stamp(at(10_999), at(10_500)),
            at(10_999),
            "no commit is delayed"
        );
        mark.release();
        assert_eq!(mark.publish(at(11_000), at(10_999)), Some(10));
    }

    /// SUP-P5: a second is not published while a commit of that second, or of an earlier one, is on
    /// its way.
    #[test]
    fn a_commit_on_its_way_holds_its_second_back() {
        let mark = Watermark::in_memory();
        mark.stamp(at(10_900), at(0));
        assert_eq!(mark.publish(at(12_000), at(5_000)), Some(9));
        mark.release();
        assert_eq!(mark.publish(at(12_000), at(10_900)), Some(11));
    }

    /// SUP-P5: after the clock was set back, no commit gets an instant in a published second, and
    /// later commits are published all the same.
    #[test]
    fn a_clock_that_is_set_back_hides_nothing() {
        let mark = Watermark::in_memory();
        assert_eq!(mark.publish(at(100_000), at(90_000)), Some(99));
        let late = mark.stamp(at(50_000), at(90_000));
        assert_eq!(late, at(100_000));
        mark.release();
        assert_eq!(mark.publish(at(50_000), late), Some(100));
        assert!(mark.stamp(at(50_000), late) >= at(101_000));
    }

    /// A finished second stays finished: with a pending commit, a clock that is set back, a
    /// restart.
    #[test]
    fn no_commit_comes_in_a_second_that_was_left() {
        let mark = Watermark::in_memory();
        mark.stamp(at(10_900), at(0));
        assert_eq!(mark.leave(at(12_000), at(10_100)), 9, "one is on its way");
        mark.release();
        assert_eq!(
            mark.leave(at(99_000), at(10_900)),
            10,
            "the clock was ahead"
        );
        assert_eq!(mark.stamp(at(5_000), at(10_900)), at(11_000));
        mark.release();
        assert_eq!(mark.leave(at(5_000), at(11_000)), 10);
        let restarted = Watermark::in_memory();
        restarted.begin_after(at(12_000));
        assert_eq!(restarted.leave(at(12_300), at(12_000)), 12);
        assert_eq!(restarted.stamp(at(12_300), at(12_000)), at(13_000));
    }

    /// Goal: however often a client asks, the instants of commits do not run away from the clock.
    #[test]
    fn time_does_not_run_away_from_a_clock_that_is_behind() {
        let mark = Watermark::in_memory();
        let (clock, mut last) = (at(50_000), at(90_000));
        for _ in 0..1_000 {
            mark.publish(clock, last);
            last = mark.stamp(clock, last);
            mark.release();
        }
        assert!(last < at(93_000), "{last}");
    }

    #[test]
    fn what_was_published_holds_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sup/watermark");
        Watermark::open(&path).unwrap().publish(at(100_000), at(0));
        let mark = Watermark::open(&path).unwrap();
        assert_eq!(mark.stamp(at(7), at(0)), at(100_000));
        fs::write(&path, b"torn").unwrap();
        let mark = Watermark::open(&path).unwrap();
        assert_eq!(mark.stamp(at(7), at(0)), at(7));
    }
}
