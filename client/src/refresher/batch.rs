//! One batch from lease to finish: the steps of a [`RefreshRound`], done with the queue, the
//! provider and the feed.
//!
//! Shell: the queue, the provider and the feed.

use std::{collections::HashMap, pin::pin, sync::atomic::Ordering, time::Duration};

use serde_json::value::RawValue;
use simplefeed_core::{
    event::Event,
    refresh::{
        ItemEvent, ItemState, JobEnding, LeasedItem, RefreshNote, RefreshRound, RoundStep,
        TimeSpan,
        round::{ProviderStanding, RoundRequest},
    },
    timestamp::Timestamp,
};
use simplefeed_queue::{
    Due, Extension, FailureOutcome, Finish, JobFailure, Lease, Queue, QueueError, QuotaReport,
    Reservation, Successor, TokenStanding, limits::LEASE_MIN,
};
use tokio::{sync::watch, time::Instant};

use super::{
    Credential, Lookup, LookupAnswer, LookupError, PAUSE, Refresher, add_count,
    answers::{event_of, value_of},
    core_instant, due_at, pause_for, stop_requested, to_json,
};
use crate::{error::error_text, publisher::PublishError};

/// Time for which a batch is leased. Items of a killed worker are refreshed later by this time at
/// most.
pub(super) const LEASE: Duration = Duration::from_secs(9);
/// Time after which a worker that waits extends its leases.
const EXTEND: Duration = Duration::from_secs(2);
/// Time for an answer of the provider.
const ANSWER: Duration = Duration::from_mins(2);
/// Time for work under way when the worker is asked to stop.
const STOP: Duration = Duration::from_secs(3);
/// Length of a wait for a quota above which the wait is reported.
const LONG_WAIT: Duration = Duration::from_mins(1);
/// Number of failures of a single item after which the item's job is dead.
const ATTEMPTS: u32 = 5;
/// Pause before an item that failed alone is tried again; doubled with each failure.
const RETRY: Duration = Duration::from_mins(1);

/// A batch that a worker has leased.
pub(super) struct LeaseBatch<'r, Q> {
    refresher: &'r Refresher<Q>,
    leases: Vec<Lease>,
    /// Answers of the provider, by item.
    answers: HashMap<String, Box<RawValue>>,
    stop: watch::Receiver<bool>,
}

impl<'r, Q: Queue> LeaseBatch<'r, Q> {
    pub(super) fn new(
        refresher: &'r Refresher<Q>,
        leases: Vec<Lease>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            refresher,
            leases,
            answers: HashMap::new(),
            stop,
        }
    }

    /// Refreshes the leased items, until their round is over or breaks off.
    pub(super) async fn refresh<L: Lookup>(
        mut self,
        lookup: &L,
        standing: &mut ProviderStanding,
    ) -> Result<(), QueueError> {
        self.put_back().await?;
        let items = self.leases.iter().map(leased_item).collect();
        let mut round = RefreshRound::new(items, standing.clone());
        while let Some(step) = round.step() {
            let goes_on = match step {
                RoundStep::Ask(ids) => self.ask_provider(lookup, &ids, &mut round).await?,
                RoundStep::Note(notes) => {
                    let lost = self.store_notes(&notes).await?;
                    round.noted(&lost);
                    true
                }
                RoundStep::Publish(events) => self.publish_events(&events, &mut round).await?,
                RoundStep::Finish(endings) => {
                    self.finish_jobs(endings).await?;
                    round.finished();
                    true
                }
            };
            *standing = round.standing();
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Puts back items that were brought forward although a floor had put them so far ahead. An
    /// item further ahead than [`ItemState::wait_max`] was planned by a wrong clock, and stays in
    /// the batch.
    async fn put_back(&mut self) -> Result<(), QueueError> {
        let intervals = &self.refresher.intervals;
        let is_early = |lease: &mut Lease| {
            let ahead = lease.job.slot - lease.leased;
            let state = leased_item(lease).state;
            // An item with a note was looked up in this slot already, and goes on from there.
            lease.job.note.is_empty()
                && ahead
                    .to_std()
                    .is_ok_and(|ahead| !ahead.is_zero() && ahead <= state.wait_max(intervals))
        };
        let early = self.leases.extract_if(.., is_early);
        let again = |lease: Lease| {
            let (due, payload) = (Due::At(lease.job.slot), None);
            Finish::new(lease.token, Successor::Again { due, payload })
        };
        let early: Vec<Finish> = early.map(again).collect();
        if !early.is_empty() {
            self.refresher.queue.finish(early).await?;
        }
        Ok(())
    }

    /// Asks the provider. Returns whether the round goes on.
    async fn ask_provider<L: Lookup>(
        &mut self,
        lookup: &L,
        ids: &[String],
        round: &mut RefreshRound,
    ) -> Result<bool, QueueError> {
        let Some(credential) = self.reserve_credential().await? else {
            self.give_back().await?;
            return Ok(false);
        };
        add_count(&self.refresher.counters.requests, 1);
        let asked = tokio::time::timeout(ANSWER, lookup.lookup(ids, credential));
        let Some(asked) = self.held_while(asked).await? else {
            return Ok(false);
        };
        let asked = asked.unwrap_or_else(|_elapsed| {
            Err(LookupError::Failed {
                status: None,
                pause: None,
                why: format!("no answer in {ANSWER:?}"),
            })
        });
        let (report, trouble) = self.read_result(round, credential, asked, ids).await?;
        if let Some(trouble) = trouble {
            let pause = report.and_then(|report| report.pause);
            let pause = pause.map_or(String::new(), |pause| {
                let (name, pause) = (&credential.name, whole_seconds(pause));
                format!("; the credential {name} pauses for {pause}")
            });
            self.refresher.report_trouble(&format!("{trouble}{pause}"));
        }
        if let Some(report) = report {
            self.refresher
                .queue
                .report(&credential.name, report)
                .await?;
        }
        Ok(true)
    }

    /// Waits for a credential that may make a request, and returns the credential. Returns `None`
    /// if the worker is to stop.
    async fn reserve_credential(&mut self) -> Result<Option<&'r Credential>, QueueError> {
        let refresher = self.refresher;
        let (mut is_told, mut held) = (false, Instant::now());
        loop {
            let mut least = Duration::MAX;
            for credential in &refresher.credentials {
                let reserved = refresher
                    .queue
                    .reserve(&credential.name, 1, credential.limit);
                match reserved.await? {
                    Reservation::Now => {
                        refresher.counters.note_wait(Duration::ZERO);
                        // The leases are extended if need be, so that nearly all of their time is
                        // left for the request.
                        if held.elapsed() >= EXTEND / 2 {
                            self.hold_leases().await?;
                        }
                        return Ok(Some(credential));
                    }
                    Reservation::After(after) => least = least.min(after),
                }
            }
            refresher.counters.note_wait(least);
            if least > LONG_WAIT && !is_told {
                is_told = true;
                let wait = whole_seconds(least);
                refresher.report_trouble(&format!(
                    "each credential pauses or has used its quota: no request for {wait}"
                ));
            }
            let wait = least.min(EXTEND);
            if held.elapsed() >= EXTEND {
                self.hold_leases().await?;
                held = Instant::now();
            }
            if pause_for(wait.max(Duration::from_millis(1)), &mut self.stop).await {
                refresher.counters.note_wait(Duration::ZERO);
                return Ok(None);
            }
        }
    }

    /// Extends the leases. Returns the indexes, in the batch, of those that are lost.
    async fn hold_leases(&self) -> Result<Vec<usize>, QueueError> {
        let all = (0..self.leases.len()).map(|index| (index, None));
        self.extend_leases(all.collect(), LEASE).await
    }

    /// Does work, and extends the leases meanwhile. Once all leases are lost, the work ends, and
    /// `None` is returned: other workers may have the jobs. The work also ends some time after the
    /// worker is asked to stop; then the jobs are given back.
    async fn held_while<T>(&self, work: impl Future<Output = T>) -> Result<Option<T>, QueueError> {
        let mut work = pin!(work);
        let mut stop = self.stop.clone();
        let mut end = pin!(async {
            stop_requested(&mut stop).await;
            tokio::time::sleep(STOP).await;
        });
        loop {
            // The work stands still while the leases are extended, so that nothing is published
            // without leases.
            tokio::select! {
                biased;
                done = &mut work => return Ok(Some(done)),
                () = &mut end => return self.give_back().await.map(|()| None),
                () = tokio::time::sleep(EXTEND) => {}
            }
            if self.hold_leases().await?.len() == self.leases.len() {
                return Ok(None);
            }
        }
    }

    /// Stores notes. Returns the indexes, in the batch, of the jobs whose leases are lost.
    async fn store_notes(&self, notes: &[(usize, RefreshNote)]) -> Result<Vec<usize>, QueueError> {
        let notes = notes
            .iter()
            .map(|(index, note)| (*index, Some(to_json(note))));
        self.extend_leases(notes.collect(), LEASE).await
    }

    /// Makes all jobs due at once.
    async fn give_back(&self) -> Result<(), QueueError> {
        let all = (0..self.leases.len()).map(|index| (index, None));
        self.extend_leases(all.collect(), LEASE_MIN).await.map(drop)
    }

    /// Extends leases, given by index in the batch. Returns the indexes of those that are lost.
    async fn extend_leases(
        &self,
        which: Vec<(usize, Option<Vec<u8>>)>,
        lease: Duration,
    ) -> Result<Vec<usize>, QueueError> {
        let (mut places, mut extensions) = (Vec::new(), Vec::new());
        for (index, note) in which {
            if let Some(leased) = self.leases.get(index) {
                places.push(index);
                extensions.push(Extension {
                    token: leased.token.clone(),
                    lease,
                    note,
                });
            }
        }
        // A call of the queue needs at least one job.
        if extensions.is_empty() {
            return Ok(places);
        }
        let held = self.refresher.queue.extend(extensions).await?;
        let lost = places.into_iter().zip(held);
        let lost = lost.filter(|(_, held)| *held == TokenStanding::Lost);
        Ok(lost.map(|(index, _)| index).collect())
    }

    /// Passes a lookup's result to the round. Returns the report for the credential's quota, and a
    /// message about a fault, for people.
    async fn read_result(
        &mut self,
        round: &mut RefreshRound,
        credential: &Credential,
        asked: Result<LookupAnswer, LookupError>,
        ids: &[String],
    ) -> Result<(Option<QuotaReport>, Option<String>), QueueError> {
        let request = RoundRequest {
            credential: &credential.name,
            credentials: self.refresher.credentials.len(),
            now: core_instant(self.refresher.queue.now().await?),
            intervals: &self.refresher.intervals,
            jitter: random_jitter(),
        };
        let items = count_of_items(ids.len());
        let (pause, trouble) = match asked {
            Ok(found) => {
                let mut values = HashMap::with_capacity(ids.len());
                let mut answers = found.answers;
                // An item that was not asked for may belong to another request of the round.
                for id in ids {
                    if let Some(answer) = answers.remove(id) {
                        values.insert(id.clone(), value_of(&answer, &self.refresher.ignored));
                        self.answers.insert(id.clone(), answer);
                    }
                }
                // Without this report, a wrong URL, or a command that prints nothing, would refresh
                // nothing, unnoticed.
                let is_empty = values.is_empty();
                let was_empty = self.refresher.is_empty.swap(is_empty, Ordering::Relaxed);
                let is_news = is_empty && !was_empty && ids.len() > 1;
                let trouble = is_news.then(|| format!("the provider's answer has none of {items}"));
                round.asked(&request, values, found.floor);
                let report = Some(found.report).filter(|report| *report != QuotaReport::default());
                return Ok((report, trouble));
            }
            Err(LookupError::Refused { status, detail }) => (
                round.refused(&request, status),
                format!("the provider refused a request for {items} with {status}: {detail}"),
            ),
            Err(LookupError::Failed { status, pause, why }) => {
                let with = status.map_or(String::new(), |status| format!(" with {status}"));
                (
                    Some(round.failed(&request, status, pause)),
                    format!("a request to the provider for {items} failed{with}: {why}"),
                )
            }
        };
        Ok((pause.map(paused_report), Some(trouble)))
    }

    /// Publishes events. Returns whether the round goes on.
    async fn publish_events(
        &mut self,
        events: &[ItemEvent],
        round: &mut RefreshRound,
    ) -> Result<bool, QueueError> {
        match self.held_while(self.append_events(events)).await? {
            Some(Ok(refused)) => {
                let count = events.len().saturating_sub(refused.len());
                add_count(&self.refresher.counters.events, count);
                round.published(refused);
                return Ok(true);
            }
            Some(Err(error)) => {
                let why = error_text(&error);
                self.refresher
                    .report_trouble(&format!("changes cannot be published; trying again: {why}"));
            }
            None => return Ok(false),
        }
        let mut stop = self.stop.clone();
        let mut pauses = pin!(pause_for(PAUSE, &mut stop));
        let lost = loop {
            // The leases are extended within the pause, too, because the pause takes most of a
            // lease's time.
            let lost = self.hold_leases().await?;
            match tokio::time::timeout(EXTEND, &mut pauses).await {
                Ok(true) => return self.give_back().await.map(|()| false),
                Ok(false) => break lost,
                Err(_elapsed) => {}
            }
        };
        round.noted(&lost);
        Ok(true)
    }

    /// Appends events to the feed. Returns which of them are refused for ever, and why. If the feed
    /// takes none of several events, and names none as the one at fault, the feed itself is at
    /// fault: the refusal is an error then.
    async fn append_events(
        &self,
        events: &[ItemEvent],
    ) -> Result<Vec<(usize, String)>, PublishError> {
        let mut parts = vec![events.to_vec()];
        let mut refused = Vec::new();
        let mut is_known = events.len() == 1;
        while let Some(mut part) = parts.pop() {
            // All events are made before the request, because an iterator that borrows cannot cross
            // an await in a task.
            let made: Vec<Event> = part.iter().map(|event| self.event_of(event)).collect();
            let Err(error) = self.refresher.publisher.append(made).await else {
                is_known = true;
                continue;
            };
            // A request is stored as a whole or not at all. With these statuses a repeat is
            // refused, too.
            let PublishError::Refused {
                status: 400 | 409 | 413 | 422,
                detail,
                entry,
                ..
            } = &error
            else {
                return Err(error);
            };
            let why = format!("the feed refused it: {detail}");
            let named = entry.filter(|at| *at < part.len());
            is_known |= named.is_some();
            if let Some(at) = named.or((part.len() == 1).then_some(0)) {
                refused.push((part.remove(at).index, why));
                if !part.is_empty() {
                    parts.push(part);
                }
            } else {
                // Without a named entry, halves are tried until the entry at fault is alone.
                parts.push(part.split_off(part.len() / 2));
                parts.push(part);
            }
            if parts.is_empty() && !is_known {
                return Err(error);
            }
        }
        Ok(refused)
    }

    fn event_of(&self, publication: &ItemEvent) -> Event {
        let lease = self.leases.get(publication.index);
        let related = lease.and_then(|lease| leased_item(lease).state.related);
        let answer = self.answers.get(&publication.id);
        event_of(publication, answer.map(AsRef::as_ref), related)
    }

    /// Reports the outcome of each job to the queue: finished, failed or put off.
    async fn finish_jobs(&mut self, endings: Vec<(usize, JobEnding)>) -> Result<(), QueueError> {
        let (mut finishes, mut failures, mut later) = (Vec::new(), Vec::new(), Vec::new());
        let now = core_instant(self.refresher.queue.now().await?);
        for (index, ending) in endings {
            let Some(lease) = self.leases.get(index) else {
                continue;
            };
            let token = lease.token.clone();
            match ending {
                JobEnding::Again { due, state } => {
                    // The clock may have been set back after `due` was decided.
                    let due = due.min(now.plus(state.wait_max(&self.refresher.intervals)));
                    let (due, payload) = (due_at(due), Some(to_json(&state)));
                    finishes.push(Finish::new(token, Successor::Again { due, payload }));
                }
                JobEnding::Done => finishes.push(Finish::new(token, Successor::Done)),
                JobEnding::Failed(reason) => {
                    let (id, attempt) = (&lease.job.key, lease.job.failures + 1);
                    self.refresher.report_trouble(&format!(
                        "item {id} failed, attempt {attempt} of {ATTEMPTS}: {reason}"
                    ));
                    let retry = Due::After(RETRY * 2_u32.saturating_pow(lease.job.failures.min(8)));
                    let attempts = ATTEMPTS;
                    failures.push(JobFailure {
                        token,
                        retry,
                        attempts,
                        reason,
                    });
                }
                JobEnding::Later(lease) => later.push(Extension {
                    token,
                    lease,
                    note: None,
                }),
            }
        }
        let queue = &self.refresher.queue;
        if !later.is_empty() {
            queue.extend(later).await?;
        }
        if !failures.is_empty() {
            let failed = queue.fail(failures).await?;
            let count = failed
                .iter()
                .filter(|one| **one != FailureOutcome::Lost)
                .count();
            add_count(&self.refresher.counters.failures, count);
        }
        if !finishes.is_empty() {
            let held = queue.finish(finishes).await?;
            let count = held
                .iter()
                .filter(|one| **one == TokenStanding::Yes)
                .count();
            add_count(&self.refresher.counters.items, count);
        }
        Ok(())
    }
}

/// Returns the leased item in the form that the round needs. If the payload is of another program,
/// the item counts as just born.
fn leased_item(lease: &Lease) -> LeasedItem {
    let state = serde_json::from_slice(&lease.job.payload);
    let note: Option<RefreshNote> = serde_json::from_slice(&lease.job.note).ok();
    // A slot that is still to come was set by a wrong clock, so the time of the lease counts
    // instead. A slot in a note goes first, because the events of an earlier worker have that slot.
    let noted = note.and_then(|note| note.slot).map(Timestamp::from_micros);
    let slot = noted.unwrap_or_else(|| core_instant(lease.job.slot.min(lease.leased)));
    LeasedItem {
        id: lease.job.key.clone(),
        slot,
        state: state.unwrap_or_else(|_| ItemState::new(slot, slot)),
        note,
    }
}

/// Returns a count of items in words.
fn count_of_items(count: usize) -> String {
    match count {
        1 => "1 item".to_owned(),
        count => format!("{count} items"),
    }
}

/// Returns a time, rounded up to whole seconds, or to whole minutes from two minutes on, in the
/// form that people write.
fn whole_seconds(time: Duration) -> TimeSpan {
    let rest = u64::from(time.subsec_nanos() > 0);
    let seconds = time.as_secs().saturating_add(rest);
    TimeSpan(match seconds {
        0..120 => Duration::from_secs(seconds),
        _ => Duration::from_mins(seconds.div_ceil(60)),
    })
}

fn paused_report(pause: Duration) -> QuotaReport {
    QuotaReport {
        pause: Some(pause),
        remaining: None,
    }
}

/// Returns a random number, at least 0 and below 1.
fn random_jitter() -> f64 {
    use std::hash::BuildHasher as _;
    // A hasher's random keys are random enough to spread requests.
    let chance = std::hash::RandomState::new().hash_one(()) % 1_024;
    f64::from(u32::try_from(chance).unwrap_or(0)) / 1_024.0
}
