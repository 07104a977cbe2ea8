//! A consumer as a stream of items, each with its own acknowledgement.
//!
//! Shell: the bookmark. Combinators such as `buffered` read a stream far ahead of its handlers, so an item counts
//! as handled only after [`Item::accept`].

use std::{
    collections::BTreeMap,
    io,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_core::Stream;
use simplefeed_core::replay::Bookmark;
use tokio::time;

use super::{ACCEPT_EVERY, Consumer, ConsumerError};
use crate::{bookmark::BookmarkStore, delivery::Delivery};

/// An entry of a [stream](Consumer::into_stream), not accepted yet.
///
/// # Examples
///
/// Handlers that work side by side, and a bookmark that moves only behind those that are done:
///
/// ```no_run
/// use futures_util::{StreamExt as _, TryStreamExt as _};
/// use simplefeed_client::{Consumer, ConsumerError, consumer::Item};
///
/// async fn ship(entry: Item) -> Result<(), ConsumerError> {
///     println!("{}", entry.id());
///     entry.accept()
/// }
///
/// # async fn run() -> Result<(), ConsumerError> {
/// let orders = Consumer::builder("https://example.org/feeds/orders").build()?;
/// let shipped = orders.into_stream().map_ok(ship).try_buffered(16);
/// shipped.try_for_each(async |()| Ok(())).await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Item {
    delivery: Delivery,
    ledger: Arc<Ledger>,
}

impl Item {
    /// Remembers that this entry need not be delivered again. The bookmark moves behind it once all entries before
    /// it are accepted, too; it is kept once a second, and when nothing is left to accept.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::Bookmark`].
    pub fn accept(&self) -> Result<(), ConsumerError> {
        self.ledger.accept(&self.delivery)
    }

    /// Returns the entry alone. Dropping it accepts nothing.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }
}

impl Deref for Item {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}

/// Accepted places and the store of the bookmark. A consumer shares it with the items of its stream.
#[derive(Debug)]
pub(super) struct Ledger(Mutex<Accepted>);

struct Accepted {
    store: Option<Box<dyn BookmarkStore>>,
    /// The number of the newest entry read.
    delivered: u64,
    /// All entries up to this number are accepted.
    done: u64,
    /// Entries that were accepted before one in front of them. (A bookmark of each would be as long as its document.)
    ahead: BTreeMap<u64, Delivery>,
    /// The last entry up to `done`, while the store does not have its place.
    unkept: Option<Delivery>,
    kept_at: time::Instant,
}

impl std::fmt::Debug for Accepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accepted")
            .field("delivered", &self.delivered)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl Ledger {
    pub(super) fn new(store: Option<Box<dyn BookmarkStore>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Accepted {
            store,
            delivered: 0,
            done: 0,
            ahead: BTreeMap::new(),
            unkept: None,
            kept_at: time::Instant::now(),
        })))
    }

    /// Counts an entry that was read. Returns its number, from 1.
    pub(super) fn deliver(&self) -> u64 {
        let mut accepted = self.lock();
        accepted.delivered += 1;
        accepted.delivered
    }

    pub(super) fn has_delivered(&self) -> bool {
        self.lock().delivered > 0
    }

    /// Whether everything that was read is accepted.
    pub(super) fn is_all_accepted(&self) -> bool {
        let accepted = self.lock();
        accepted.done == accepted.delivered
    }

    /// Accepts an entry and all before it, durably. Returns whether it was not accepted before.
    pub(super) fn accept_up_to(&self, delivery: &Delivery) -> Result<bool, ConsumerError> {
        let mut accepted = self.lock();
        if delivery.number <= accepted.done {
            return Ok(false);
        }
        // Saved before `done` moves: after a failure the entry counts as not accepted.
        accepted.save_after(delivery)?;
        accepted.done = delivery.number;
        accepted.unkept = None;
        Ok(true)
    }

    /// Keeps the place before the first entry. Returns whether there is a store.
    pub(super) fn begin(&self, place: &Bookmark) -> Result<bool, ConsumerError> {
        let Some(store) = &mut self.lock().store else {
            return Ok(false);
        };
        let kept = store.begin(place);
        kept.map(|()| true).map_err(not_kept)
    }

    /// Keeps a place behind everything that was read.
    pub(super) fn keep(&self, place: &Bookmark) -> Result<(), ConsumerError> {
        // Held during the write, so that no older place is saved after this one.
        let mut accepted = self.lock();
        accepted.save(place)?;
        accepted.unkept = None;
        Ok(())
    }

    pub(super) fn caught_up(&self) {
        if let Some(store) = &mut self.lock().store {
            store.caught_up();
        }
    }

    /// Saves the latest accepted place.
    fn save_accepted(&self) -> Result<(), ConsumerError> {
        self.lock().save_accepted()
    }

    fn accept(&self, delivery: &Delivery) -> Result<(), ConsumerError> {
        let mut accepted = self.lock();
        if delivery.number > accepted.done {
            accepted.ahead.insert(delivery.number, delivery.clone());
        }
        // Only without holes: an entry that is still being handled stops the bookmark.
        let next = |accepted: &mut Accepted| accepted.ahead.remove(&(accepted.done + 1));
        while let Some(delivery) = next(&mut accepted) {
            accepted.done += 1;
            accepted.unkept = Some(delivery);
        }
        // A save for each entry would wait for the disk each time.
        let is_due =
            accepted.done == accepted.delivered || accepted.kept_at.elapsed() >= ACCEPT_EVERY;
        if is_due {
            accepted.save_accepted()
        } else {
            Ok(())
        }
    }

    fn lock(&self) -> MutexGuard<'_, Accepted> {
        // A panic inside a store leaves the ledger whole. The next start reads the store's own state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accepted {
    fn save_accepted(&mut self) -> Result<(), ConsumerError> {
        // Set before the save: a store that fails is not asked again at once.
        self.kept_at = time::Instant::now();
        if let Some(delivery) = self.unkept.clone() {
            self.save_after(&delivery)?;
            self.unkept = None;
        }
        Ok(())
    }

    fn save_after(&mut self, delivery: &Delivery) -> Result<(), ConsumerError> {
        if self.store.is_none() {
            return Ok(());
        }
        self.save(&delivery.bookmark())
    }

    fn save(&mut self, place: &Bookmark) -> Result<(), ConsumerError> {
        let Some(store) = &mut self.store else {
            return Ok(());
        };
        store.save(place).map_err(not_kept)
    }
}

fn not_kept(source: io::Error) -> ConsumerError {
    ConsumerError::Bookmark {
        action: "kept",
        source,
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        // `drop` has no way to return an error. An unsaved place is delivered again.
        let _kept = self.save_accepted().is_ok();
    }
}

impl Consumer {
    /// Returns the entries as a stream of items. The bookmark moves only behind entries that were
    /// [accepted](Item::accept), and before it none that was not, so that any number of them may be on their way
    /// through `buffered` or `for_each_concurrent`. An entry that is dropped without being accepted is delivered
    /// again by the next consumer.
    ///
    /// The stream goes on after a transient error and ends after any other.
    pub fn into_stream(self) -> impl Stream<Item = Result<Item, ConsumerError>> + Send {
        futures_util::stream::unfold(Some(self), |consumer| async {
            let mut consumer = consumer?;
            // Before the wait for the server, which may be long.
            if consumer.ready() == 0
                && let Err(error) = consumer.ledger.save_accepted()
            {
                return Some((Err(error), None));
            }
            match consumer.next().await {
                Ok(delivery) => {
                    let ledger = Arc::clone(&consumer.ledger);
                    let delivery = delivery?;
                    Some((Ok(Item { delivery, ledger }), Some(consumer)))
                }
                Err(error) => {
                    let goes_on = error.is_transient();
                    Some((Err(error), Some(consumer).filter(|_| goes_on)))
                }
            }
        })
    }
}
