//! A note of the last moment that a running server knew. A log that gains no commits does not show
//! how late it has become.
//!
//! Shell: one small file, and the clock.
//!
//! ```text
//! slot (two in turn):  "SFM1" | turn u64 | microseconds since 1970 i64 | CRC-32 u32
//! ```

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use simplefeed_core::timestamp::Timestamp;
use simplefeed_process::{
    clock::{Clock, ClockStanding},
    stop::Stop,
};

use tracing::warn;

use super::slots::{self, SlotBytes, Slots};
use crate::codec::{Reader, RecordWriter, seal, unseal};

const MAGIC: &[u8; 4] = b"SFM1";
const BYTES: usize = 24;
/// Pause between two looks at the clock.
const PAUSE: Duration = Duration::from_secs(1);
/// Least distance between the clock and the noted moment, in either direction, at which the moment
/// is noted anew.
const RENEWED_AFTER: Duration = Duration::from_hours(24);
/// Time for which a clock must have run without a leap before its moment is noted.
const STEADY: Duration = Duration::from_mins(10);
/// Time until a failed write is tried again.
const RETRIED_AFTER: Duration = Duration::from_hours(1);

/// The note, for one server at a time.
#[derive(Clone, Debug)]
pub struct MomentNote(PathBuf);

impl MomentNote {
    /// Returns the note in the file at `path`.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Returns the noted moment, or `None` if the note is missing or unreadable.
    pub fn read(&self) -> Option<Timestamp> {
        slots::read(&self.0, decode_slot)
    }

    /// Notes a moment, durably.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written. The note then has this moment or the earlier one.
    pub fn write(&self, at: Timestamp) -> io::Result<()> {
        // The file is opened for each write, of which there is about one a day, so no handle is
        // held.
        match Slots::open(&self.0, decode_slot) {
            Ok((mut slots, _)) => {
                slots.write(|turn| encode_slot(turn, at))?;
                return slots.sync();
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Slots::create_whole(&self.0, |turn| encode_slot(turn, at))?;
        Ok(())
    }
}

/// Looks at the clock each second until the server stops, and notes the moment about once a day. A
/// moment is noted only once the clock has run for a while without a leap: a clock that is wrong at
/// the start must not be noted.
pub fn keep(clock: &Clock, note: Option<&MomentNote>, stop: &Stop) {
    let mut noted = note.and_then(MomentNote::read);
    let mut not_before: Option<Instant> = None;
    loop {
        let (now, standing, steady) = clock.look();
        // The next start must not trust a reading that is refused, or that is behind an earlier
        // moment.
        let is_accepted = !matches!(
            standing,
            ClockStanding::Behind { .. } | ClockStanding::Refused { .. }
        );
        let is_other = noted.is_none_or(|noted| time_between(noted, now) >= RENEWED_AFTER);
        let may_try = not_before.is_none_or(|then| Instant::now() >= then);
        if let Some(note) = note
            && is_accepted
            && is_other
            && may_try
            && steady >= STEADY
        {
            match note.write(now) {
                Ok(()) => noted = Some(now),
                Err(error) => {
                    warn!(%error, "the last known moment cannot be noted; it is tried again in an hour");
                    // Without a pause, a disk that refuses would fill the server's log with a
                    // warning each second.
                    not_before = Instant::now().checked_add(RETRIED_AFTER);
                }
            }
        }
        if stop.is_requested_within(PAUSE) {
            return;
        }
    }
}

fn time_between(one: Timestamp, other: Timestamp) -> Duration {
    Duration::from_micros(one.micros().abs_diff(other.micros()))
}

fn encode_slot(turn: u64, at: Timestamp) -> Vec<u8> {
    let mut slot = RecordWriter(Vec::with_capacity(BYTES));
    slot.bytes(MAGIC);
    slot.long(turn);
    slot.instant(at);
    seal(slot.0)
}

fn decode_slot(slot: &SlotBytes) -> Option<(u64, Timestamp)> {
    let mut from = Reader(unseal(slot.get(..BYTES)?)?);
    if from.chunk::<4>()? != *MAGIC {
        return None;
    }
    Some((from.long()?, from.instant()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Goal: the note survives its writer, can be replaced by an earlier moment, and counts as
    /// missing once the file is damaged.
    #[test]
    fn the_noted_moment_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("moment");
        let note = MomentNote::new(path.clone());
        assert_eq!(note.read(), None);
        for micros in [5, 9, 7] {
            let at = Timestamp::from_micros(micros);
            note.write(at).unwrap();
            assert_eq!(MomentNote::new(path.clone()).read(), Some(at));
        }
        fs::write(&path, [7; 700]).unwrap();
        assert_eq!(note.read(), None);
        note.write(Timestamp::from_micros(3)).unwrap();
        assert_eq!(note.read(), Some(Timestamp::from_micros(3)));
    }
}
