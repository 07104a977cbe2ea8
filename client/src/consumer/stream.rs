//! A consumer as a stream of items, each with its own acknowledgement.
//!
//! Shell: the bookmark. Combinators such as `buffered` read a stream far ahead of its handlers, so
//! an item counts as handled only after [`StreamItem::accept`].

use std::{
    collections::BTreeMap,
    io,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_core::Stream;
use futures_util::FutureExt as _;
use simplefeed_core::{limits::UNACCEPTED_MAX, replay::Bookmark};
use tokio::time;

use super::{ACCEPT_EVERY, Consumer, ConsumerError};
use crate::{bookmark::AnyStore, delivery::Delivery};

/// An entry of a [stream](Consumer::into_stream), not accepted yet.
///
/// # Examples
///
/// Handlers that work side by side, and a bookmark that moves only over entries whose handlers are
/// done:
///
/// ```no_run
/// use futures_util::{StreamExt as _, TryStreamExt as _};
/// use simplefeed_client::{Consumer, ConsumerError, consumer::StreamItem};
///
/// async fn ship(entry: StreamItem) -> Result<(), ConsumerError> {
///     println!("{}", entry.id());
///     entry.accept().await
/// }
///
/// # async fn run() -> Result<(), ConsumerError> {
/// let orders = Consumer::builder("https://example.org/feeds/orders").build()?;
/// let shipped = orders.into_stream().map_ok(ship).try_buffered(16);
/// shipped.try_for_each(async |()| Ok(())).await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StreamItem {
    delivery: Delivery,
    ledger: Arc<Ledger>,
}

impl StreamItem {
    /// Remembers that this entry need not be delivered again. The bookmark moves behind the entry
    /// once all entries before are accepted, too. The store keeps the bookmark once a second, and
    /// when nothing is left to accept. (So a program that ends in between gets the entries of up to
    /// a second again.)
    ///
    /// Cancel safe: the first poll accepts the entry, and the next save keeps a place that this
    /// call did not keep.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::Bookmark`] if the bookmark cannot be kept. [`ConsumerError::NeverAccepted`]
    /// if an item far in front of this one was dropped, or is still being handled: this entry is
    /// accepted, but the bookmark cannot move.
    pub async fn accept(&self) -> Result<(), ConsumerError> {
        self.ledger.accept(&self.delivery).await
    }

    /// Returns the entry alone. A drop of the entry accepts nothing.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }
}

impl Deref for StreamItem {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}

/// Accepted places and the store of the bookmark, shared by a consumer and the items of the stream.
///
/// The store is locked before the places are, and stays locked during a whole save. So no older
/// place is saved after a newer one.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Number of the consumer, which all deliveries of the consumer bear.
    consumer: u64,
    places: Mutex<StreamPlaces>,
    store: tokio::sync::Mutex<Store>,
}

/// Store of the bookmark, if the consumer has one.
struct Store(Option<Box<dyn AnyStore>>);

#[derive(Debug)]
struct StreamPlaces {
    /// The number of the newest entry read.
    delivered: u64,
    /// All entries up to this number are accepted.
    done: u64,
    /// Runs of accepted entries behind an entry that is not accepted: the last entry of each run,
    /// by the number of the run's first entry. (A delivery holds the whole document, so the map has
    /// one delivery for each run and not for each entry.)
    ahead: BTreeMap<u64, Delivery>,
    /// Last entry up to `done`, while the store does not have the place after that entry.
    unkept: Option<Delivery>,
    kept_at: time::Instant,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store").finish_non_exhaustive()
    }
}

impl Ledger {
    pub(super) fn new(store: Option<Box<dyn AnyStore>>) -> Arc<Self> {
        static CONSUMERS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            // Relaxed, because the numbers need only differ.
            consumer: CONSUMERS.fetch_add(1, Ordering::Relaxed),
            places: Mutex::new(StreamPlaces {
                delivered: 0,
                done: 0,
                ahead: BTreeMap::new(),
                unkept: None,
                kept_at: time::Instant::now(),
            }),
            store: tokio::sync::Mutex::new(Store(store)),
        })
    }

    /// Returns the bookmark that the store has.
    pub(super) async fn load(&self) -> Result<Option<Bookmark>, ConsumerError> {
        let Store(Some(store)) = &mut *self.store.lock().await else {
            return Ok(None);
        };
        let action = "read";
        let loaded = store.load().await;
        loaded.map_err(|source| ConsumerError::Bookmark { action, source })
    }

    /// Counts an entry that was read. Returns the consumer's number, and the entry's, from 1.
    pub(super) fn deliver(&self) -> (u64, u64) {
        let mut places = self.lock_places();
        places.delivered += 1;
        (self.consumer, places.delivered)
    }

    /// Returns an error for an entry of another consumer: the number of such an entry means another
    /// entry here.
    fn check_consumer(&self, delivery: &Delivery) -> Result<(), ConsumerError> {
        if delivery.consumer == self.consumer {
            return Ok(());
        }
        Err(ConsumerError::NotDelivered {
            entry: delivery.id().into(),
        })
    }

    pub(super) fn has_delivered(&self) -> bool {
        self.lock_places().delivered > 0
    }

    /// Returns whether all entries read are accepted.
    pub(super) fn is_all_accepted(&self) -> bool {
        let places = self.lock_places();
        places.done == places.delivered
    }

    /// Accepts an entry and all earlier entries, durably. Returns whether the entry is newly
    /// accepted.
    pub(super) async fn accept_up_to(&self, delivery: &Delivery) -> Result<bool, ConsumerError> {
        self.check_consumer(delivery)?;
        let mut store = self.store.lock().await;
        if delivery.number <= self.lock_places().done {
            return Ok(false);
        }
        // Saved before `done` moves: after a failure the entry counts as not accepted.
        store.save_after(delivery).await?;
        let mut places = self.lock_places();
        places.done = delivery.number;
        places.unkept = None;
        Ok(true)
    }

    /// Keeps the place before the first entry. Returns whether there is a store.
    pub(super) async fn begin(&self, place: &Bookmark) -> Result<bool, ConsumerError> {
        let Store(Some(store)) = &mut *self.store.lock().await else {
            return Ok(false);
        };
        let kept = store.begin(place).await;
        kept.map(|()| true).map_err(not_kept)
    }

    /// Keeps a place behind everything that was read.
    pub(super) async fn keep(&self, place: &Bookmark) -> Result<(), ConsumerError> {
        let mut store = self.store.lock().await;
        store.save_place(place).await?;
        self.lock_places().unkept = None;
        Ok(())
    }

    pub(super) async fn caught_up(&self) {
        if let Store(Some(store)) = &mut *self.store.lock().await {
            store.caught_up().await;
        }
    }

    /// Saves the latest accepted place, if the store does not have that place.
    async fn save_accepted(&self) -> Result<(), ConsumerError> {
        let mut store = self.store.lock().await;
        let unkept = {
            let mut places = self.lock_places();
            // `kept_at` is set before the save, so that a store that fails is not asked again at
            // once.
            places.kept_at = time::Instant::now();
            places.unkept.clone()
        };
        let Some(delivery) = unkept else {
            return Ok(());
        };
        store.save_after(&delivery).await?;
        let mut places = self.lock_places();
        // Another entry may have been accepted during the save. The place of that entry is not kept
        // yet.
        if matches!(&places.unkept, Some(unkept) if unkept.number == delivery.number) {
            places.unkept = None;
        }
        Ok(())
    }

    pub(super) async fn accept(&self, delivery: &Delivery) -> Result<(), ConsumerError> {
        self.check_consumer(delivery)?;
        let is_due = self.lock_places().accept_entry(delivery)?;
        if is_due {
            self.save_accepted().await
        } else {
            Ok(())
        }
    }

    /// Returns the number of runs of entries that wait for an entry in front of them.
    #[cfg(test)]
    pub(super) fn runs(&self) -> usize {
        self.lock_places().ahead.len()
    }

    fn lock_places(&self) -> MutexGuard<'_, StreamPlaces> {
        // No call of other code happens under this lock, so a panic leaves the places whole.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamPlaces {
    /// Accepts an entry. Returns whether a save is due.
    fn accept_entry(&mut self, delivery: &Delivery) -> Result<bool, ConsumerError> {
        let number = delivery.number;
        let before = self.ahead.range(..=number).next_back();
        let before = before.map(|(first, last)| (*first, last.number));
        let is_known = number <= self.done || before.is_some_and(|(_, last)| last >= number);
        if !is_known {
            // The entry joins the run in front and the run behind.
            let first = before.filter(|(_, last)| last + 1 == number);
            let first = first.map_or(number, |(first, _)| first);
            let behind = self.ahead.remove(&(number + 1));
            self.ahead
                .insert(first, behind.unwrap_or_else(|| delivery.clone()));
        }
        // `done` moves without holes only: an entry that is still being handled stops the bookmark.
        if let Some(delivery) = self.ahead.remove(&(self.done + 1)) {
            self.done = delivery.number;
            self.unkept = Some(delivery);
        }
        // Without this error, an item that was dropped would stop the bookmark for ever, unnoticed.
        let max = UNACCEPTED_MAX;
        if number.saturating_sub(self.done) > max {
            return Err(ConsumerError::NeverAccepted { max });
        }
        // A save for each entry would wait for the disk each time.
        Ok(self.done == self.delivered || self.kept_at.elapsed() >= ACCEPT_EVERY)
    }
}

impl Store {
    async fn save_after(&mut self, delivery: &Delivery) -> Result<(), ConsumerError> {
        if self.0.is_none() {
            return Ok(());
        }
        self.save_place(&delivery.bookmark()).await
    }

    async fn save_place(&mut self, place: &Bookmark) -> Result<(), ConsumerError> {
        let Some(store) = &mut self.0 else {
            return Ok(());
        };
        store.save(place).await.map_err(not_kept)
    }
}

fn not_kept(source: io::Error) -> ConsumerError {
    ConsumerError::Bookmark {
        action: "kept",
        source,
    }
}

impl Drop for Ledger {
    /// Saves the latest accepted place, if the store can save without waiting, as a file can. With
    /// any other store, the place is lost, and the entries before that place are delivered again.
    fn drop(&mut self) {
        // A store that needs tokio may panic outside of a runtime, and a panic in a drop could end
        // the process.
        let save = AssertUnwindSafe(|| self.save_accepted().now_or_never());
        let _kept = catch_unwind(save);
    }
}

impl Consumer {
    /// Returns the entries as a stream of items. The bookmark moves only over entries that were
    /// [accepted](StreamItem::accept), and never past one that was not. So any number of entries
    /// may be on their way through `buffered` or `for_each_concurrent`. An entry that is dropped
    /// without acceptance is delivered again by the next consumer.
    ///
    /// The stream goes on after a transient error and ends after any other.
    pub fn into_stream(self) -> impl Stream<Item = Result<StreamItem, ConsumerError>> + Send {
        futures_util::stream::unfold(Some(self), |consumer| async {
            let mut consumer = consumer?;
            // The save comes before the wait for the server, which may be long.
            if consumer.ready() == 0
                && let Err(error) = consumer.ledger.save_accepted().await
            {
                return Some((Err(error), None));
            }
            match consumer.next().await {
                Ok(delivery) => {
                    let ledger = Arc::clone(&consumer.ledger);
                    let delivery = delivery?;
                    Some((Ok(StreamItem { delivery, ledger }), Some(consumer)))
                }
                Err(error) => {
                    let goes_on = error.is_transient();
                    Some((Err(error), Some(consumer).filter(|_| goes_on)))
                }
            }
        })
    }
}
