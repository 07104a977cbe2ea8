//! `--exec --batch`: a command for many entries at a time, which reads all of them from stdin.
//!
//! Shell: processes and signals. The bookmark moves past a batch once the command has exited with 0
//! (success). After a kill at any moment, entries come again and none is lost.

use std::time::Duration;

use simplefeed_client::{
    Consumer, ConsumerError, Delivery, EntryError, error_text, worker::CannotRun,
};
use tokio::time;

use crate::{exit, format::Format, handler::Handler, say, signals::Ends};

/// How long a batch waits for more entries.
const QUIET: Duration = Duration::from_secs(1);
/// Longest pause after a failed run of the command.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Hands entries to a command, batch by batch.
pub(crate) struct Batches {
    pub(crate) consumer: Consumer,
    pub(crate) handler: Handler,
    pub(crate) format: Format,
    /// Largest number of entries in a batch.
    pub(crate) size: usize,
    pub(crate) follow: bool,
}

/// Entries for one run of the command.
#[derive(Default)]
struct CommandBatch {
    input: Vec<u8>,
    entries: usize,
    first: String,
    /// Last entry that was read for the batch, even if the format cannot print that entry.
    last: Option<Delivery>,
    /// The end of the feed, or the error, that came after the entries of the batch.
    ended: Option<Result<(), ConsumerError>>,
}

impl Batches {
    /// Runs until a signal, or until the end of the feed, which never comes in a followed feed.
    /// Returns the exit code.
    pub(crate) async fn run(mut self, ends: &mut Ends) -> anyhow::Result<u8> {
        let mut skipped = 0_u64;
        loop {
            let batch = tokio::select! {
                // A signal drops the batch. The entries of a dropped batch are not accepted, and
                // come again.
                batch = self.gather_batch(&mut skipped) => batch,
                code = ends.told() => return Ok(code),
            };
            if batch.entries > 0
                && let Some(code) = self.hand_over(&batch, ends).await?
            {
                return Ok(code);
            }
            // Only after the command has succeeded: a crash before this line repeats the batch.
            if let Some(last) = &batch.last {
                self.consumer.accept(last).await?;
            }
            // After the hand-over: the entries before an error are sound, and the command must get
            // them.
            match batch.ended {
                None => {}
                Some(Ok(())) if skipped > 0 => return Ok(exit::PARTIAL),
                Some(Ok(())) => return Ok(exit::OK),
                Some(Err(error)) if self.follow && error.is_transient() => {
                    let again = say::again_in(self.consumer.retries_in());
                    say::warning(&format!("{}{again}", error_text(&error)));
                }
                Some(Err(error)) => return Err(error.into()),
            }
            // A signal may have come while none of the waits above listened for signals.
            if let Some(code) = ends.was_told().await {
                return Ok(code);
            }
        }
    }

    /// Reads entries until the batch is full, or until no entry comes for a while.
    async fn gather_batch(&mut self, skipped: &mut u64) -> CommandBatch {
        let mut batch = CommandBatch::default();
        while batch.entries < self.size {
            // The first entry may take any time. A later entry must not delay those that the batch
            // already has.
            let next = if batch.last.is_none() {
                Ok(self.consumer.next().await)
            } else {
                time::timeout(QUIET, self.consumer.next()).await
            };
            match next {
                Ok(Ok(Some(delivery))) => {
                    if !batch.add_entry(&delivery, self.format) {
                        *skipped += 1;
                    }
                    // Even if the entry cannot be printed: the bookmark moves past such an entry
                    // with the batch.
                    batch.last = Some(delivery);
                }
                Ok(Ok(None)) => {
                    batch.ended = Some(Ok(()));
                    break;
                }
                Ok(Err(error)) => {
                    batch.ended = Some(Err(error));
                    break;
                }
                Err(_quiet) => break,
            }
        }
        batch
    }

    /// Runs the command again and again until a run succeeds, and then returns `None`. If a signal
    /// comes first, returns the exit code of the signal.
    async fn hand_over(&self, batch: &CommandBatch, ends: &mut Ends) -> anyhow::Result<Option<u8>> {
        let mut pause = Duration::from_secs(1);
        loop {
            let variables = [
                ("SIMPLEFEED_ENTRIES", batch.entries.to_string()),
                ("SIMPLEFEED_ID", batch.first.clone()),
            ];
            let mut run = std::pin::pin!(self.handler.run(&batch.input, &variables));
            let mut ended_by = None;
            let run = loop {
                tokio::select! {
                    run = &mut run => break run,
                    code = ends.told() => {
                        if ended_by.is_some() {
                            // Dropping the run kills the command and its process group.
                            return Ok(Some(code));
                        }
                        say::note("Waiting for the command to end. Send the signal once more, and it is killed.");
                        ended_by = Some(code);
                    }
                }
            };
            let Err(error) = run else {
                return Ok(None);
            };
            // The batch failed and is not accepted, so the next start repeats it.
            if let Some(code) = ended_by {
                return Ok(Some(code));
            }
            // A command that cannot be run at all would fail at every try.
            if error.is::<CannotRun>() {
                return Err(anyhow::anyhow!(error));
            }
            say::warning(&format!(
                "the command failed for {}, the first of them {}: {error}; trying again in {} s",
                say::count(batch.entries, "entry", "entries"),
                batch.first,
                pause.as_secs()
            ));
            tokio::select! {
                () = time::sleep(pause) => {}
                code = ends.told() => return Ok(Some(code)),
            }
            // The pause grows: a failure that lasts must not cost a process each second.
            pause = PAUSE_MAX.min(pause * 2);
        }
    }
}

impl CommandBatch {
    /// Adds an entry. Returns whether the format can print the entry.
    fn add_entry(&mut self, delivery: &Delivery, format: Format) -> bool {
        let before = self.input.len();
        if let Err(error) = format.write(delivery, &mut self.input) {
            // The format may have written part of the entry.
            self.input.truncate(before);
            say::skipped(delivery.id(), &error);
            return false;
        }
        if self.entries == 0 {
            self.first = delivery.id().into();
        }
        self.entries += 1;
        true
    }
}

/// Returns whether an error is about one entry, and not about the output.
pub(crate) fn is_of_entry(error: &anyhow::Error) -> bool {
    error.downcast_ref::<EntryError>().is_some()
}
