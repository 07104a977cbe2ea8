//! Feeds: entries, documents, and a consumer's replay.
//!
//! Pure. Every function depends on nothing but the arguments. There is no I/O, no clock, no
//! randomness and no async, so that the server, the client and every test decide alike from the
//! same facts.
//!
//! The modules, in the order to read them:
//!
//! - [`limits`]: every bound, by name.
//! - [`feed`]: the vocabulary: names, positions, numbers of documents and commits.
//! - [`sight`]: the closed feeds that somebody may see.
//! - [`timestamp`], [`digest`], [`history`]: time, SHA-256, and the hashes that chain entries.
//! - [`settings`], [`cut`]: settings that shape a feed's bytes, and the decision to close a
//!   document.
//! - [`refusal`]: reasons for refusing a publication.
//! - [`xml`]: strict XML, with byte ranges; [`scanner`]: posted Atom into drafts;
//!   [`event`]: JSON events into drafts and back; [`syndication`]: `atom_syndication::Entry`.
//! - [`entry`]: drafts, and how the gate completes them into fragments.
//! - [`follow`]: requests to follow and unfollow.
//! - [`commit`]: the content of the log, and the encoding of commits for the chain hash.
//! - [`plan`]: every decision of a publish.
//! - [`header`], [`document`], [`index`], [`json_feed`]: the bytes that a reader gets.
//! - [`reader`]: the bytes of a document, which may be a foreign feed's, into entries and links.
//! - [`timeline`]: which entries of the followed feeds a timeline has.
//! - [`sup`]: one document that lists which of many feeds have changed; [`watch`]: the schedule of
//!   looks at many feeds; [`opml`]: lists of feeds.
//! - [`refresh`]: the times at which items are looked up again, and the answers that are published.
//! - [`replay`]: the walk back to the bookmark and the delivery of newer entries, as a state
//!   machine that asks for documents.
//! - [`push`]: streams of events, which wake readers that wait for entries.
//! - [`rates`]: the number of entries in each minute, hour, day or month.

pub mod limits;
pub mod feed;
pub mod sight;
pub mod timestamp;
pub mod digest;
pub mod history;
pub mod cut;
pub mod settings;
pub mod refusal;
pub mod xml;
pub mod entry;
pub mod scanner;
pub mod event;
pub mod syndication;
pub mod follow;
pub mod commit;
pub mod plan;
pub mod header;
pub mod document;
pub mod index;
pub mod reader;
pub mod json_feed;
pub mod replay;
pub mod refresh;
pub mod timeline;
pub mod sup;
pub mod opml;
pub mod watch;
pub mod push;
pub mod rates;
