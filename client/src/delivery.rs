//! The unit of delivery: one entry, owned.
//!
//! Pure.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use simplefeed_core::{
    event::Event,
    feed::Position,
    replay::{Bookmark, EntryRun, RunEntry},
    timestamp::Timestamp,
    xml::XmlError,
};
use url::Url;

/// A delivered entry, owned.
///
/// # Examples
///
/// ```no_run
/// use simplefeed_client::{Delivery, EntryError};
///
/// #[derive(serde::Deserialize)]
/// struct Order {
///     order: u64,
/// }
///
/// fn look(delivery: &Delivery) -> Result<(), EntryError> {
///     let order: Order = delivery.json()?; // its JSON content
///     let event = delivery.event()?; // everything, as an event
///     let entry = delivery.entry()?; // as atom_syndication sees it
///     println!("{} in {} at {:?}: order {}", delivery.id(), delivery.feed(), delivery.position(), order.order);
///     println!("{:?}, {}, {} bytes", event.title, entry.title.value, delivery.raw().len());
///     println!("read in {:?}, committed by {:?}", delivery.document(), delivery.committed_by());
///     println!("{}", serde_json::to_string(&delivery.bookmark())?); // to be kept with the effect
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Delivery {
    /// Stand-alone element of the entry, built on first use: inherited declarations of a foreign
    /// feed can be many times as long as its entries.
    fragment: OnceLock<Bytes>,
    origin: DeliveryOrigin,
    /// Counts the deliveries of one consumer, from 1.
    pub(crate) number: u64,
    /// Consumer that delivered the entry; 0 for a parked entry.
    pub(crate) consumer: u64,
}

/// Source of a delivered entry.
#[derive(Clone)]
enum DeliveryOrigin {
    /// A document, shared by all deliveries from there, and the entry's place in the document.
    Read(Arc<EntryRun>, RunEntry),
    /// The place after a parked entry. The bytes of the entry are in `fragment`.
    Kept(Arc<Bookmark>),
}

/// A delivered entry, with its JSON content as a `T`.
///
/// An entry with other content is delivered, too: one bad entry must not stop a consumer, and only
/// the caller knows the right treatment.
///
/// # Examples
///
/// ```no_run
/// use simplefeed_client::{Consumer, Delivery, TypedDelivery};
///
/// #[derive(serde::Deserialize)]
/// struct Order {
///     total: String,
/// }
///
/// fn order_in(delivery: Delivery) -> TypedDelivery<Order> {
///     delivery.typed()
/// }
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let mut feed = Consumer::builder("https://example.org/feeds/orders").build()?;
/// while let Some(order) = feed.next_typed().await? {
///     let order: TypedDelivery<Order> = order;
///     match &order.content {
///         Ok(content) => println!("{} over {}", order.delivery.id(), content.total),
///         Err(error) => eprintln!("{} is no order: {error}", order.delivery.id()),
///     }
///     feed.accept(&order.delivery).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TypedDelivery<T> {
    /// The entry as it was delivered.
    pub delivery: Delivery,
    /// Content of the entry, or the reason why the content is no `T`.
    pub content: Result<T, EntryError>,
}

/// Failure to read an entry in the form that the caller asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The entry is not well-formed.
    #[error("the entry is not well-formed")]
    Xml(#[from] XmlError),
    /// The content is not the expected JSON.
    #[error("the entry's content is not the JSON expected")]
    Json(#[from] serde_json::Error),
    /// `atom_syndication` cannot read the entry.
    #[error("the entry cannot be read by atom_syndication")]
    Atom(#[from] atom_syndication::Error),
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id())
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

impl Delivery {
    pub(crate) fn new(run: &Arc<EntryRun>, entry: RunEntry, consumer: u64, number: u64) -> Self {
        Self {
            fragment: OnceLock::new(),
            origin: DeliveryOrigin::Read(Arc::clone(run), entry),
            number,
            consumer,
        }
    }

    /// Returns a parked entry with the place after it.
    pub(crate) fn kept(fragment: Bytes, place: Bookmark) -> Self {
        Self {
            fragment: fragment.into(),
            origin: DeliveryOrigin::Kept(Arc::new(place)),
            number: 0,
            consumer: 0,
        }
    }

    /// Returns the entry's `atom:id`, or a stand-in made of its bytes if a foreign entry has none.
    pub fn id(&self) -> &str {
        match &self.origin {
            DeliveryOrigin::Read(run, entry) => {
                let entry = run.document.entry(entry.index);
                // The index is one of this document's, so the fallback is never used.
                entry.map_or("", |entry| entry.id)
            }
            DeliveryOrigin::Kept(place) => place.entry.as_deref().unwrap_or_default(),
        }
    }

    /// Returns the `atom:id` of the entry's feed.
    pub fn feed(&self) -> &str {
        match &self.origin {
            DeliveryOrigin::Read(run, _) => &run.document.feed,
            DeliveryOrigin::Kept(place) => &place.feed,
        }
    }

    /// Returns the entry's position, if the feed has positions.
    pub fn position(&self) -> Option<Position> {
        match &self.origin {
            DeliveryOrigin::Read(_, entry) => entry.place.map(|(position, _)| position),
            DeliveryOrigin::Kept(place) => place.position,
        }
    }

    /// Returns the permanent URL of the document that the entry was read in. The URL of a parked
    /// entry's document may be unknown.
    pub fn document(&self) -> Option<&Url> {
        match &self.origin {
            DeliveryOrigin::Read(run, _) => Some(&run.url),
            DeliveryOrigin::Kept(place) => place.document.as_ref(),
        }
    }

    /// Returns the instant of the newest commit in the entry's document, if the server publishes
    /// commit instants. This instant is an upper bound of the entry's own commit, independent of
    /// the publisher's date.
    pub fn committed_by(&self) -> Option<Timestamp> {
        match &self.origin {
            // The date of a document without positions is its publisher's, and no commit instant.
            DeliveryOrigin::Read(run, _) => run
                .document
                .updated
                .filter(|_| run.document.history.is_some()),
            // The state folder keeps the entry and the bookmark, and no date of the document.
            DeliveryOrigin::Kept(_) => None,
        }
    }

    /// Returns the entry's bytes as they stand in the document. An entry of a foreign feed gets the
    /// namespace declarations, base, language and authors of the feed, so that the bytes stand
    /// alone.
    pub fn raw(&self) -> &Bytes {
        self.fragment.get_or_init(|| match &self.origin {
            DeliveryOrigin::Read(run, entry) => {
                let alone = run.document.stand_alone(entry.index);
                alone.unwrap_or_default()
            }
            // Never used: a parked entry has its fragment from the start.
            DeliveryOrigin::Kept(_) => Bytes::new(),
        })
    }

    /// Returns the bookmark after this entry, to be saved together with the entry's effect.
    pub fn bookmark(&self) -> Bookmark {
        match &self.origin {
            DeliveryOrigin::Read(run, entry) => {
                let bookmark = run.bookmark(entry);
                bookmark.expect("the entry is one of its document's")
            }
            DeliveryOrigin::Kept(place) => (**place).clone(),
        }
    }

    /// Returns the entry as an event. A foreign entry without an id has [the stand-in](Self::id).
    ///
    /// # Errors
    ///
    /// [`EntryError::Xml`].
    pub fn event(&self) -> Result<Event, EntryError> {
        // Documents are UTF-8 once they are read, so nothing is replaced. The check takes a third
        // of the time of `from_utf8_lossy`.
        let raw = self.raw();
        let mut event = match std::str::from_utf8(raw) {
            Ok(text) => Event::from_entry(text)?,
            Err(_) => Event::from_entry(&String::from_utf8_lossy(raw))?,
        };
        // A blank id names no entry, so the stand-in replaces it, too.
        event.id = event.id.filter(|id| !id.trim().is_empty());
        event.id.get_or_insert_with(|| self.id().into());
        Ok(event)
    }

    /// Returns the entry as one line of JSON, without the line's end: the [event](Self::event) with
    /// the URL of the document, the feed if one is given, and the position. For most entries this
    /// is cheaper than to make the event.
    ///
    /// # Errors
    ///
    /// [`EntryError::Xml`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut feed = simplefeed_client::Consumer::builder("https://example.org/feeds/orders").build()?;
    /// while let Some(delivery) = feed.next().await? {
    ///     println!("{}", delivery.line(None)?);
    ///     feed.accept(&delivery).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn line(&self, feed: Option<&str>) -> Result<String, EntryError> {
        let (document, position) = (self.document().map(Url::as_str), self.position());
        let common = std::str::from_utf8(self.raw())
            .ok()
            .and_then(|text| Event::line_of_common(text, document, feed, position));
        if let Some(line) = common {
            return Ok(line);
        }
        let (document, feed) = (document.map(Into::into), feed.map(Into::into));
        Ok(self.event()?.line(document, feed, position))
    }

    /// Returns the entry's JSON content.
    ///
    /// # Errors
    ///
    /// [`EntryError::Json`] if the entry has no JSON content, or content that is no `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, EntryError> {
        let content = self.event()?.content;
        // An empty text is no JSON, so an entry without content is an error here, too.
        let text = content.as_deref().map_or("", |content| content.get());
        Ok(serde_json::from_str(text)?)
    }

    /// Returns the entry with the JSON content as a `T`, or with the reason why the content is no
    /// `T`.
    #[must_use]
    pub fn typed<T: DeserializeOwned>(self) -> TypedDelivery<T> {
        let content = self.json();
        TypedDelivery {
            delivery: self,
            content,
        }
    }

    /// Returns the entry in the form of `atom_syndication`, which holds less than the bytes.
    ///
    /// # Errors
    ///
    /// [`EntryError::Atom`].
    pub fn entry(&self) -> Result<atom_syndication::Entry, EntryError> {
        Ok(atom_syndication::Entry::read_from(&self.raw()[..])?)
    }
}
