//! Sign of life of the writer, by which others find that the writer is stuck.
//!
//! Shell: the clock that cannot be set, read once as the zero of all times.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Longest time without a sign of life, unless the writer stores a commit.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for storing a commit: with a slow disk alone, the writer does not count as stuck.
const PATIENCE_WITH_DISKS: Duration = Duration::from_mins(1);
/// Factor for the time of a stage's beginning, so that the time and the stage share one number.
const STAGES: u64 = 4;

/// Stage of the writer's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriterStage {
    /// Waits for a request.
    Idle,
    /// Plans a group of requests, or answers them.
    Busy,
    /// Stores a commit, which may wait for the disk.
    Storing,
}

/// Sign of life of a writer, which others read without waiting for the writer.
#[derive(Debug)]
pub(super) struct Pulse {
    zero: Instant,
    /// Milliseconds from `zero` until the stage began, times [`STAGES`], plus the number of the
    /// stage.
    stage: AtomicU64,
}

/// A writer has given no sign of life for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterStandstill {
    time: Duration,
    is_storing: bool,
}

impl fmt::Display for WriterStandstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs();
        if self.is_storing {
            write!(f, "a commit has waited {seconds} s for the disk")
        } else {
            write!(f, "the writer has given no sign of life for {seconds} s")
        }
    }
}

impl Pulse {
    pub(super) fn new() -> Self {
        let (zero, stage) = (Instant::now(), AtomicU64::new(0));
        Self { zero, stage }
    }

    fn millis_since(&self, now: Instant) -> u64 {
        let time = now.duration_since(self.zero).as_millis();
        u64::try_from(time).unwrap_or(u64::MAX / STAGES)
    }

    /// Notes a stage that begins at `now`.
    pub(super) fn begin(&self, stage: WriterStage, now: Instant) {
        let stage = match stage {
            WriterStage::Idle => 0,
            WriterStage::Busy => 1,
            WriterStage::Storing => 2,
        };
        // One number, so that no reader combines one stage with the time of another.
        let noted = self.millis_since(now) * STAGES + stage;
        // No other memory is read because of this number, so a relaxed atomic operation is enough.
        self.stage.store(noted, Ordering::Relaxed);
    }

    /// Returns the time without a sign of life, if the writer is stuck.
    pub(super) fn stuck(&self, now: Instant) -> Option<WriterStandstill> {
        let noted = self.stage.load(Ordering::Relaxed);
        let patience = match noted % STAGES {
            // Perhaps no publisher comes: an idle writer may wait for ever.
            0 => return None,
            1 => PATIENCE,
            _ => PATIENCE_WITH_DISKS,
        };
        // The stage may have begun after `now` was read, because no lock orders the two.
        let time = self.millis_since(now).saturating_sub(noted / STAGES);
        let time = Duration::from_millis(time);
        let is_storing = patience == PATIENCE_WITH_DISKS;
        (time > patience).then_some(WriterStandstill { time, is_storing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a stage that lasts too long is reported. Storing may last longer than planning, and an
    /// idle writer may wait for ever.
    #[test]
    fn a_stage_without_an_end_is_told() {
        let pulse = Pulse::new();
        let at = |seconds| pulse.zero + Duration::from_secs(seconds);
        assert_eq!(pulse.stuck(at(1_000_000)), None);
        for (stage, lasts) in [(WriterStage::Busy, 10), (WriterStage::Storing, 60)] {
            pulse.begin(stage, at(100));
            assert_eq!(pulse.stuck(at(100 + lasts)), None, "{stage:?}");
            let stuck = pulse.stuck(at(101 + lasts)).unwrap();
            assert!(stuck.to_string().contains(&format!("{} s", lasts + 1)));
            pulse.begin(stage, at(101 + lasts));
            assert_eq!(pulse.stuck(at(102 + lasts)), None);
        }
        pulse.begin(WriterStage::Idle, at(300));
        assert_eq!(pulse.stuck(at(1_000_000)), None);
    }
}
