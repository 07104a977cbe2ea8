//! Parked entries: another attempt at an entry, or the removal of an entry.
//!
//! Shell: the state folder.

use std::{collections::HashSet, time::Duration};

use super::{HandlerError, HandlerFailure, WorkerError, run};
use crate::{
    bookmark::Attempt,
    delivery::Delivery,
    observer::Observer,
    state::{EntryOutcome, StateError, StateFolder, parked::ParkedEntry},
};

/// Counts of one pass over the parked entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryTally {
    /// Entries that the handler handled. They are no longer parked.
    pub handled: u64,
    /// Entries that failed again. They stay parked.
    pub failed: u64,
    /// Wanted entries that still wait for an attempt: an earlier entry with the same key stays
    /// parked, or the attempt was [interrupted](super::Interruption) and does not count.
    pub waiting: u64,
}

/// Hands the `wanted` parked entries to a handler once more, oldest first. An entry waits while an
/// earlier entry with the same key stays parked. An entry that the handler handles is no longer
/// parked.
///
/// Cancel safe: a dropped future drops the running handler, and the interrupted attempt does not
/// count.
///
/// # Errors
///
/// See [`StateError`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use simplefeed_client::{Observer, StateFolder, worker};
///
/// struct Quiet;
/// impl Observer for Quiet {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let state = StateFolder::open(folder.path())?;
/// let all = |_: &simplefeed_client::state::parked::ParkedEntry| true;
/// let time = Duration::from_mins(1);
/// let retried = worker::retry(&state, all, time, &mut Quiet, async |_| Ok(())).await?;
/// assert_eq!(retried, worker::RetryTally::default());
/// # Ok(()) }
/// ```
pub async fn retry<F>(
    state: &StateFolder,
    wanted: impl Fn(&ParkedEntry) -> bool,
    attempt_time: Duration,
    observer: &mut dyn Observer,
    mut handler: impl FnMut(Delivery) -> F,
) -> Result<RetryTally, WorkerError>
where
    F: Future<Output = Result<(), HandlerError>>,
{
    let mut retried = RetryTally::default();
    let mut held: HashSet<String> = HashSet::new();
    for number in state.parked_numbers() {
        // The list of numbers may be outdated: a clone of this `StateFolder` may have removed the
        // entry since.
        let Some(mut parked) = state.read_parked(number)? else {
            continue;
        };
        let waits = parked.key.as_ref().is_some_and(|key| held.contains(key));
        if wanted(&parked) {
            let tried = if waits {
                RetryOutcome::Not
            } else {
                try_again(state, &mut parked, attempt_time, observer, &mut handler).await?
            };
            match tried {
                RetryOutcome::Handled => {
                    retried.handled += 1;
                    continue;
                }
                RetryOutcome::Failed => retried.failed += 1,
                RetryOutcome::Not => retried.waiting += 1,
            }
        }
        // The entry stays in the folder, so later entries with the same key must wait.
        held.extend(parked.key);
    }
    Ok(retried)
}

/// Outcome of a retry of a parked entry.
enum RetryOutcome {
    /// The handler handled the entry.
    Handled,
    /// The handler failed. The entry stays parked.
    Failed,
    /// The entry was not tried, or the attempt was interrupted.
    Not,
}

/// Tries a parked entry once.
async fn try_again<F>(
    state: &StateFolder,
    parked: &mut ParkedEntry,
    attempt_time: Duration,
    observer: &mut dyn Observer,
    handler: &mut impl FnMut(Delivery) -> F,
) -> Result<RetryOutcome, WorkerError>
where
    F: Future<Output = Result<(), HandlerError>>,
{
    let delivery = parked.delivery();
    let before = RetriedEntry {
        state,
        parked: Some(parked.clone()),
    };
    // The attempt is on the disk before the handler runs, so that an attempt that kills the process
    // counts.
    parked.attempts = parked.attempts.saturating_add(1);
    parked.waits = false;
    parked.error = None;
    state.update(parked)?;
    let error = match run(handler, &delivery, attempt_time).await {
        Ok(()) => {
            // From here on the attempt counts, even if a write below fails.
            before.count_attempt();
            // The record is written first: a crash before the removal repeats the entry, and loses
            // nothing.
            state.record(EntryOutcome::Retried, &delivery, parked.attempts, None)?;
            state.unpark(parked.number)?;
            observer.handled(&delivery);
            return Ok(RetryOutcome::Handled);
        }
        Err(HandlerFailure::Failed(error)) => error,
        Err(HandlerFailure::Interrupted) => return Ok(RetryOutcome::Not),
        Err(HandlerFailure::CannotRun(reason)) => return Err(WorkerError::CannotRun { reason }),
    };
    before.count_attempt();
    parked.error = Some(error.clone());
    state.update(parked)?;
    let attempt = Attempt {
        entry: delivery.id().into(),
        position: delivery.position(),
        count: parked.attempts,
        error: Some(error),
    };
    observer.failed(&delivery, &attempt);
    Ok(RetryOutcome::Failed)
}

/// Parked entry as before an attempt. Unless `count_attempt` was called, the drop writes this entry
/// to the folder again, so that the attempt does not count.
struct RetriedEntry<'a> {
    state: &'a StateFolder,
    parked: Option<ParkedEntry>,
}

impl RetriedEntry<'_> {
    fn count_attempt(mut self) {
        self.parked = None;
    }
}

impl Drop for RetriedEntry<'_> {
    fn drop(&mut self) {
        if let Some(parked) = &self.parked {
            // If this write fails, an attempt too many is counted.
            let _counted = self.state.update(parked).is_err();
        }
    }
}

/// Removes a parked entry that shall never be handled. The record keeps the reason.
///
/// # Errors
///
/// See [`StateError`].
pub fn drop_parked(
    state: &StateFolder,
    parked: &ParkedEntry,
    reason: &str,
) -> Result<(), StateError> {
    let delivery = parked.delivery();
    // The record is written first, so that no entry goes without a trace.
    state.record(
        EntryOutcome::Dropped,
        &delivery,
        parked.attempts,
        Some(reason),
    )?;
    state.unpark(parked.number)
}
