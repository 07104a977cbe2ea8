//! Clients of feeds: consumers, workers for handlers, a watcher, a publisher, a refresher.
//!
//! Shell: the network, the disk and the clock; the header of each module names its part.
//!
//! A consumer walks a feed's documents back to the last accepted entry and replays forward from
//! there; a bookmark is all the memory that a consumer needs. Delivery is at least once: the
//! bookmark moves only after an entry was accepted.
//!
//! ```no_run
//! use simplefeed_client::{Consumer, FileBookmark, Since};
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     order: u64,
//!     total: String,
//! }
//!
//! async fn ship(order: Order) -> Result<(), std::io::Error> {
//!     println!("order {} over {}", order.order, order.total);
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut feed = Consumer::builder("https://example.org/feeds/orders")
//!         .bookmark(FileBookmark::open("orders.bookmark")?) // or .resume(value_from_my_database)
//!         .since(Since::Oldest) // only where no bookmark exists
//!         .follow(true) // false: the end is pinned at start
//!         .build()?;
//!     while let Some(delivery) = feed.next().await? {
//!         // owned: id, position, raw bytes
//!         let order: Order = delivery.json()?; // or .entry()? -> atom_syndication::Entry
//!         ship(order).await?;
//!         feed.accept(&delivery).await?; // durable when it returns; covers all before it
//!     }
//!     Ok(())
//! }
//! ```
//!
//! `delivery.bookmark()` is a plain serde value. A caller that saves this value in one transaction
//! with the effect of the entry gets each effect exactly once.
//!
//! A consumer needs a tokio runtime with time and I/O enabled. Outside of a runtime, tokio panics
//! at the first request. A program without a runtime uses [`Consumer::blocking`]. The crate
//! re-exports every type that the signatures name. Requests, handlers and the batches of a
//! refresher run in [`tracing`](https://docs.rs/tracing) spans.
//!
//! The publisher gives every event an id before the first attempt, so that a retry after a lost
//! answer stores nothing twice:
//!
//! ```no_run
//! use simplefeed_client::{Event, Publisher};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let publisher = Publisher::new("https://example.org/feeds/orders")?;
//! publisher.append([Event::json(&serde_json::json!({"order": 7}))?]).await?;
//! # Ok(()) }
//! ```
//!
//! The modules, in the order to read them:
//!
//! - [`consumer`]: [`Consumer`], with states and errors; the walk itself is
//!   [`simplefeed_core::replay`].
//! - [`delivery`]: the entries that a consumer delivers.
//! - [`blocking`]: a consumer for programs without a runtime.
//! - [`bookmark`]: where bookmarks are kept.
//! - [`worker`]: a consumer with a handler that may fail, [`Worker`]; [`policy`] decides about
//!   failures, and [`state`] is the worker's memory.
//! - [`watcher`]: many feeds at once, [`FeedWatcher`].
//! - [`observer`]: the seam to metrics and logs.
//! - [`publisher`]: the way into a feed, [`Publisher`].
//! - [`timeline`]: timelines and their follows, [`Timeline`].
//! - [`refresher`]: items that are looked up again and again, at intervals by their age,
//!   [`Refresher`](refresher::Refresher).
//! - [`fetch`]: HTTP requests and answers, over any [`Transport`].
//! - [`transport`]: the seam to an HTTP library; `reqwest` by default.
#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "no test needs a name beyond its end"
    )
)]

#[cfg(test)]
mod drops;
#[cfg(planted)]
#[path = "../../tests/planted.rs"]
mod planted;

pub mod consumer;
pub mod delivery;
pub mod blocking;
pub mod bookmark;
pub mod worker;
pub mod policy;
pub mod state;
pub mod observer;
pub mod watcher;
pub mod publisher;
pub mod timeline;
#[cfg(feature = "refresher")]
pub mod refresher;
pub mod fetch;
pub mod transport;
mod error;
mod files;
mod patience;
mod waker;

pub use atom_syndication;
pub use blocking::Blocking;
pub use bookmark::{BookmarkStore, FileBookmark};
pub use bytes::Bytes;
pub use consumer::{Consumer, ConsumerError, OnGap, Since};
pub use delivery::{Delivery, EntryError, TypedDelivery};
pub use error::error_text;
pub use observer::Observer;
pub use policy::Policy;
pub use publisher::{Publication, PublishError, Publisher};
pub use simplefeed_core::{
    digest::Digest,
    event::Event,
    feed::Position,
    index::IndexBlock,
    reader::{Document, ReadError},
    refusal::Refusal,
    replay::{Bookmark, Validators, WalkError},
    sup::{InvalidSup, SupAddress},
    timestamp::Timestamp,
    xml::XmlError,
};
pub use state::StateFolder;
pub use timeline::Timeline;
pub use transport::Transport;
pub use url::Url;
pub use waker::WakeBy;
pub use watcher::FeedWatcher;
pub use worker::Worker;
