//! The starter: items of a feed become jobs.
//!
//! Shell: the feed and the queue. One process at a time reads the feed. The right to read is the
//! lease of a job, and the job's note is the bookmark. If the process dies, the lease expires, and
//! another process goes on from the bookmark.

use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use simplefeed_client::{
    Bookmark, Consumer, Delivery,
    consumer::Builder,
    refresher::{RefreshItem, Refresher},
};
use simplefeed_core::digest::Digest;
use simplefeed_queue::{
    Due, Existing, Extension, Finish, Lease, Namespace, NewJob, Queue, QueueError, ScheduleOutcome,
    Successor, TokenStanding, Want,
};
use tokio::{sync::watch, time::Instant};

use super::items::ItemParts;
use crate::{
    exit::{self, Usage},
    replay::Warnings,
    say,
};

/// Time for which the right to read lasts without an extension.
const LEASE: Duration = Duration::from_secs(9);
/// A lease that ends later than this from now was set by a wrong clock.
const LEASE_AHEAD: Duration = Duration::from_mins(2);
/// Time after which a reader that waits extends the lease.
const EXTEND: Duration = Duration::from_secs(3);
/// Pause after an error of the queue.
const PAUSE: Duration = Duration::from_secs(5);
/// Pause after an error of the feed.
const PAUSE_OF_FEED: Duration = Duration::from_secs(30);
/// Time after which an error no longer counts as a fault of the command line.
const BEGUN: Duration = Duration::from_secs(10);
/// Largest number of items that are started together.
const ITEMS_MAX: usize = 1_000;
/// Key of the job whose lease is the right to read.
const BOOKMARK: &str = "bookmark";

/// Content of the job's payload, and of the job's note: the bookmark from which the next reader
/// goes on.
#[derive(Debug, Default, Serialize, Deserialize)]
struct StarterPlace {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bookmark: Option<Bookmark>,
}

/// Reads the items feed.
pub(super) struct Starter<Q> {
    queue: Q,
    refresher: Refresher<Q>,
    /// Namespace of the job with the bookmark.
    name: Namespace,
    places: ItemParts,
    stop: watch::Receiver<bool>,
}

/// Claims a name in the queue for the feeds of this process, which `feeds` names. Fails if the name
/// belongs to other feeds.
pub(super) async fn claim<Q: Queue>(queue: &Q, name: &str, feeds: &str) -> anyhow::Result<()> {
    let of = Namespace::new(&format!("{name}:feeds"))?;
    // A job that is never due stands for a pair of feeds.
    let key = Digest::of(feeds.as_bytes()).to_string();
    let job = NewJob::new(&of, key.clone(), Due::After(Duration::MAX));
    let scheduled = queue.schedule(vec![job], Existing::Keep).await?;
    // A pair that has the name already is `Kept`, and so keeps the name, even while another process
    // claims the name for another pair.
    if scheduled == [ScheduleOutcome::Added] && queue.stats(&of).await?.waiting > 1 {
        queue.remove(&of, vec![key]).await?;
        return Err(Usage(format!(
            "the jobs of --name {name} in this queue belong to other feeds: give these feeds another --name"
        ))
        .into());
    }
    Ok(())
}

impl<Q: Queue> Starter<Q> {
    pub(super) fn new(
        queue: Q,
        refresher: Refresher<Q>,
        name: &str,
        places: ItemParts,
        stop: watch::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            queue,
            refresher,
            name: Namespace::new(&format!("{name}:items"))?,
            places,
            stop,
        })
    }

    /// Reads the feed whenever no other process reads the feed, until a stop. `consumer` begins a
    /// consumer of the feed.
    pub(super) async fn run(
        self,
        consumer: impl Fn() -> anyhow::Result<Builder>,
    ) -> anyhow::Result<()> {
        let mut has_read = false;
        loop {
            let began = Instant::now();
            let turn = self.take_turn(&consumer, &mut has_read).await;
            has_read |= began.elapsed() > BEGUN;
            let pause = match turn {
                Err(error) if is_of_queue(&error) => {
                    say::warning(&format!("the queue failed; trying again: {error:#}"));
                    PAUSE
                }
                // A proxy's page, or a right that is taken away for a while, must not end workers
                // that have begun.
                Err(error) if has_read && !is_final(&error) => {
                    say::warning(&format!(
                        "the items cannot be read; trying again: {error:#}"
                    ));
                    PAUSE_OF_FEED
                }
                turn => turn.map(|()| Duration::ZERO)?,
            };
            let mut stop = self.stop.clone();
            let told = stop.wait_for(|is_told| *is_told);
            let _told = tokio::time::timeout(pause, told).await.is_ok();
            if *self.stop.borrow() {
                return Ok(());
            }
        }
    }

    /// Waits until no other process reads, and then reads until a stop, or until another process
    /// has the lease.
    async fn take_turn(
        &self,
        consumer: &impl Fn() -> anyhow::Result<Builder>,
        has_read: &mut bool,
    ) -> anyhow::Result<()> {
        let job = NewJob::new(&self.name, BOOKMARK, Due::After(Duration::ZERO));
        self.queue.schedule(vec![job], Existing::Keep).await?;
        // The job is always due. If the job is due later, or leased for longer than `LEASE_AHEAD`,
        // a wrong clock has set the time.
        let (due, lease) = (Duration::ZERO, LEASE_AHEAD);
        self.queue.bring_forward(&self.name, due, lease).await?;
        let want = Want {
            max: 1,
            buffer: Duration::ZERO,
            lease: LEASE,
        };
        let mut stop = self.stop.clone();
        let told = async move { drop(stop.wait_for(|is_told| *is_told).await) };
        let leased = self.queue.lease_until(&self.name, want, told).await?;
        let Some(lease) = leased.into_iter().flatten().next() else {
            return Ok(());
        };
        let mut place = place_of(&lease)?;
        let mut builder = consumer()?.follow(true).observer(Warnings::default());
        if let Some(bookmark) = place.bookmark.clone() {
            builder = builder.resume(bookmark);
        }
        let read = self.read_items(builder.build()?, &lease, &mut place, has_read);
        let read = read.await;
        // Also after an error: `place` is the place behind the last items that were started.
        let payload = Some(serde_json::to_vec(&place)?);
        let due = Due::After(Duration::ZERO);
        let again = Finish::new(lease.token, Successor::Again { due, payload });
        self.queue.finish(vec![again]).await?;
        read
    }

    /// Reads until a stop, or until another process reads.
    async fn read_items(
        &self,
        mut items: Consumer,
        lease: &Lease,
        place: &mut StarterPlace,
        has_read: &mut bool,
    ) -> anyhow::Result<()> {
        loop {
            let Some(first) = self.next_entry(&mut items, lease, place).await? else {
                return Ok(());
            };
            *has_read = true;
            let mut deliveries = vec![first];
            while deliveries.len() < ITEMS_MAX && items.ready() > 0 {
                deliveries.extend(items.next().await?);
            }
            let started: Vec<RefreshItem> = deliveries
                .iter()
                .filter_map(|one| self.item_of(one))
                .collect();
            #[cfg(planted)]
            if crate::planted::is("place-first") {
                place.bookmark = deliveries.last().map(|last| last.bookmark());
                self.extend_lease(lease, place).await?;
            }
            // Before the place moves: after a crash between the two, the items are started again
            // and keep their jobs.
            if !started.is_empty() {
                self.refresher.start(started).await?;
            }
            if let Some(last) = deliveries.last() {
                place.bookmark = Some(last.bookmark());
                items.accept(last).await?;
            }
            if !self.extend_lease(lease, place).await? {
                return Ok(());
            }
        }
    }

    /// Returns the next entry; `None` at a stop, or if another process reads. During the wait, the
    /// lease is extended: a document may take longer to come than a lease lasts.
    async fn next_entry(
        &self,
        items: &mut Consumer,
        lease: &Lease,
        place: &StarterPlace,
    ) -> anyhow::Result<Option<Delivery>> {
        let mut stop = self.stop.clone();
        let mut next = std::pin::pin!(items.next());
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|is_told| *is_told) => return Ok(None),
                read = &mut next => return Ok(read?),
                () = tokio::time::sleep(EXTEND) => {}
            }
            if !self.extend_lease(lease, place).await? {
                return Ok(None);
            }
        }
    }

    /// Extends the lease, and stores the place. Returns whether this process still reads.
    async fn extend_lease(&self, lease: &Lease, place: &StarterPlace) -> anyhow::Result<bool> {
        let extension = Extension {
            token: lease.token.clone(),
            lease: LEASE,
            note: Some(serde_json::to_vec(place)?),
        };
        let is_held = self.queue.extend(vec![extension]).await? == [TokenStanding::Yes];
        if !is_held {
            say::warning(
                "another process reads the items now: this one was too slow to keep its turn",
            );
        }
        Ok(is_held)
    }

    fn item_of(&self, delivery: &Delivery) -> Option<RefreshItem> {
        let item = self.places.item(delivery);
        if let Err(why) = &item {
            // An id of a foreign feed can be as long as the document.
            let id: String = delivery.id().chars().take(200).collect();
            say::warning(&format!("entry {id} is no item: {why:#}"));
        }
        item.ok()
    }
}

/// Returns whether an error is one of a queue that may come back, such as a PostgreSQL that
/// restarts.
fn is_of_queue(error: &anyhow::Error) -> bool {
    let of_queue = error.chain().find_map(|cause| cause.downcast_ref());
    matches!(
        of_queue,
        // A failed file answers the next call with `Failed`, which ends the command.
        Some(QueueError::Storage { .. } | QueueError::Lost { .. })
    )
}

/// Returns whether only a person can mend the error: entries are gone, the history has changed, or
/// the feed is another one.
fn is_final(error: &anyhow::Error) -> bool {
    let code = exit::code_of(error);
    [exit::GAP, exit::INTEGRITY, exit::ANOTHER_FEED].contains(&code)
}

/// Returns the newest place: the note of a dead reader, or else the payload of the last reader's
/// finish.
fn place_of(lease: &Lease) -> anyhow::Result<StarterPlace> {
    let bytes = [&lease.job.note, &lease.job.payload];
    match bytes.into_iter().find(|bytes| !bytes.is_empty()) {
        Some(bytes) => serde_json::from_slice(bytes).context("the bookmark in the queue is none"),
        None => Ok(StarterPlace::default()),
    }
}
