//! Decisions of the refresher, which keeps copies of items fresh: young items are looked up often,
//! old items seldom.
//!
//! Pure: no queue, no network, no clock. A worker leases a batch of jobs, and a [`RefreshRound`]
//! names the steps for the batch one by one. So the client and a simulation take the same steps.
//!
//! - [`intervals`]: how often an item is refreshed, by the item's age.
//! - [`item`]: state of an item, and the meaning of an answer about an item.
//! - [`round`]: one batch from lease to finish.

pub mod intervals;
pub mod item;
pub mod round;

pub use self::{
    intervals::{IntervalLine, Intervals, IntervalsError, SpanError, TimeSpan},
    item::{
        EventContent, ItemDecision, ItemEvent, ItemPresence, ItemState, LeasedItem, RefreshNote,
        Value,
    },
    round::{JobEnding, RefreshRound, RoundStep},
};
