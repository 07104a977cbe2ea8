//! Bounds, defaults and pauses that publishers, readers or operators meet, by name.
//!
//! Pure. Such a bound stands here even when only one crate enforces the bound, so that an operator
//! and a reviewer find all of them in one place. A number of one file's own work, such as the steps
//! of a loop, stands in that file. "Configurable" marks a default that an operator may change.

/// The largest entry, in bytes of the fragment.
pub const ENTRY_BYTES_MAX: usize = 1024 * 1024;

/// The largest body of a publishing request, in bytes, and the largest group of one commit.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The most entries one request may carry, and the most one commit takes.
pub const BATCH_ENTRIES_MAX: usize = 10_000;

/// The most requests that share one commit.
pub const GROUP_REQUESTS_MAX: usize = 4_096;

/// The deepest nesting of XML elements or JSON values.
pub const DEPTH_MAX: usize = 64;

/// The most attributes (namespace declarations included) of one XML element.
pub const ATTRIBUTES_MAX: usize = 256;

/// The most namespace declarations in scope at one place.
pub const BINDINGS_MAX: usize = 256;

/// The longest `atom:id`, in bytes.
pub const ENTRY_ID_BYTES_MAX: usize = 2_048;

/// The longest feed title or author name, in bytes.
pub const TITLE_BYTES_MAX: usize = 1_024;

/// The longest `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// The longest `public_url`, in bytes.
pub const PUBLIC_URL_BYTES_MAX: usize = 1_024;

/// The longest feed name, in bytes.
pub const FEED_NAME_BYTES_MAX: usize = 128;

/// The entries of a document in a feed whose owner chose no number. Configurable.
pub const DOCUMENT_ENTRIES_DEFAULT: u32 = 100;

/// The most entries a feed may ask for in one document.
pub const DOCUMENT_ENTRIES_MAX: u32 = 10_000;

/// The bytes of entries in a document in a feed whose owner chose no number. Configurable.
pub const DOCUMENT_BYTES_DEFAULT: u64 = 1024 * 1024;

/// The most bytes of entries a feed may ask for in one document.
///
/// The value is small enough that any document stays below [`CLIENT_DOCUMENT_BYTES_MAX`].
pub const DOCUMENT_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// The most feeds of one server.
pub const FEEDS_MAX: u64 = 1_000_000;

/// The largest entry, in bytes, that a timeline shows as a whole if the owner chose no bound.
pub const EMBED_BYTES_DEFAULT: u32 = 16_384;

/// The largest such bound that a timeline's owner may choose, in bytes: the largest entry.
pub const EMBED_BYTES_MAX: u32 = 1024 * 1024;

/// The bytes of a timeline's document: the entries, times the bytes of the largest entry shown as a
/// whole.
pub const TIMELINE_DOCUMENT_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// The most feeds that a timeline follows by name.
pub const FOLLOWED_FEEDS_MAX: usize = 10_000;

/// The most patterns that a timeline follows.
pub const FOLLOWED_PATTERNS_MAX: usize = 16;

/// The most timelines of one server.
pub const TIMELINES_MAX: u64 = 10_000_000;

/// The most newest entries that a followed feed brings along.
pub const BACKFILL_MAX: u32 = 1_000;

/// The most entries that one request brings along from all feeds.
pub const BACKFILL_TOTAL_MAX: usize = 10_000;

/// The most open connections of one server. Configurable.
pub const CONNECTIONS_MAX: u32 = 4_096;

/// The longest wait that a reader may ask for, in seconds.
pub const WAIT_SECONDS_MAX: u64 = 60;

/// The time between two comments in a stream of events, in seconds: less than the read timeout of
/// any proxy.
pub const EVENTS_COMMENT_SECONDS: u64 = 4;

/// The longest life of a stream of events, in seconds; up to a fifth less, so that streams that
/// began together end apart.
pub const EVENTS_SECONDS_MAX: u64 = 300;

/// The most streams of events that read the past at the same time.
pub const EVENTS_CATCHING_UP_MAX: usize = 64;

/// The longest wait of a stream of events for a place that is still to come, in seconds.
pub const EVENTS_AHEAD_SECONDS: u64 = 5;

/// The time between two polls of a consumer whose stream of events is open, in seconds, besides the
/// pause of the feed.
pub const PUSH_POLL_SECONDS: u64 = 60;

/// The longest wait of a consumer for a stream to open, in seconds; a stream that ends sooner
/// counts as failed.
pub const PUSH_OPEN_SECONDS: u64 = 10;

/// The time after which a consumer asks again for streams or waits that a server did not offer, in
/// seconds.
pub const PUSH_ABSENT_SECONDS: u64 = 600;

/// The most looks for a position that a stream has named; then the consumer goes on without finding
/// that entry.
pub const PUSH_LOOKS_MAX: u32 = 8;

/// The most waits on SUP documents that a watcher has open at the same time.
pub const PUSH_WAITS_MAX: usize = 64;

/// The most entries of a page.
pub const PAGE_ENTRIES_MAX: u64 = 1_000;

/// The bytes of entries at which a page is full.
pub const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The entries of a page whose reader asks for no number.
pub const PAGE_ENTRIES_DEFAULT: i64 = 20;

/// The feeds in one answer of the catalogue.
pub const CATALOGUE_FEEDS_MAX: usize = 1_000;

/// The documents in one closed block of the archive index.
pub const INDEX_BLOCK_DOCUMENTS: u64 = 1_000;

/// The most documents a consumer walks back. Configurable.
pub const WALK_DOCUMENTS_MAX: usize = 1_000_000;

/// The largest document a consumer accepts, in decoded bytes. Configurable.
pub const CLIENT_DOCUMENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The most documents that a consumer fetches ahead: requested, or waiting for their turn.
pub const AHEAD_DOCUMENTS_MAX: usize = 16;

/// The estimated size of all documents fetched ahead, in bytes. The estimate follows from the
/// document read last; the true size is at most twice this bound.
pub const AHEAD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The largest index block that a consumer uses to look ahead, in bytes.
pub const AHEAD_BLOCK_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The most index blocks that a consumer searches for the document at hand.
pub const AHEAD_BLOCKS_MAX: usize = 1_000;

/// Failures in a row to find the next document in the index before a consumer stops asking the
/// index.
pub const AHEAD_MISSES_MAX: usize = 3;

/// The longest URL that a consumer fetches ahead, in bytes.
pub const AHEAD_URL_BYTES_MAX: usize = 2_000;

/// The most links a consumer reads from the head of one document.
pub const DOCUMENT_LINKS_MAX: usize = 1_000;

/// The most bytes that an entry inherits from the surrounding feed document: declarations, base,
/// language, authors.
pub const INHERITED_BYTES_MAX: usize = 16 * 1024;

/// The bytes that all entries of one document may inherit together, however short the document is.
pub const INHERITED_BATCH_BYTES_MIN: usize = 1024 * 1024;

/// The bytes that all entries of one document may inherit together, for each byte of a longer
/// document.
pub const INHERITED_PER_BYTE_MAX: usize = 2;

/// The bytes of bases and declarations that an event may have written out, however short the entry
/// is.
pub const UNFOLDED_BYTES_MIN: usize = 1024 * 1024;

/// The bytes of bases and declarations that an event may have written out, for each byte of a
/// longer entry.
pub const UNFOLDED_PER_BYTE_MAX: usize = 4;

/// The most bytes of completed entries that one request stores.
pub const COMPLETED_BATCH_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

/// The longest link a consumer follows, in bytes.
pub const LINK_BYTES_MAX: usize = 2_048;

/// The most bytes that the URLs of one walk may have together.
pub const WALK_URL_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The most entries of a plain feed's recent document, all of which the bookmark remembers.
pub const KNOWN_WINDOW_MAX: usize = 100_000;

/// The entries of a plain feed that the bookmark remembers besides those of the recent document.
pub const KNOWN_BESIDES_MAX: usize = 1_000;

/// The entries of a plain feed that a running consumer recognises when they come again.
pub const SEEN_ENTRIES_MAX: usize = 100_000;

/// Entries that a caller may accept behind an unaccepted one, before a consumer's stream reports an
/// error.
pub const UNACCEPTED_MAX: u64 = 100_000;

/// The entries that a worker sets aside before it stops. Configurable.
pub const PARKED_MAX: usize = 10_000;

/// The length at which a worker's record is put aside, in bytes.
pub const RECORD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The time between two notes of a worker that all goes well, in seconds.
pub const SUCCESS_SECONDS: u64 = 5;

/// How often an entry is tried before a worker gives up on it. Configurable.
pub const ATTEMPTS_DEFAULT: u32 = 4;

/// Entries in hand of a worker for each handler that may run. So many entries may be finished
/// behind one that takes long.
pub const ENTRIES_PER_HANDLER: usize = 4;

/// How long a handler may take for one entry, in seconds. Configurable.
pub const ATTEMPT_SECONDS_DEFAULT: u64 = 300;

/// The shortest time between two polls of a recent document, in seconds.
pub const POLL_SECONDS_MIN: u64 = 1;

/// Seconds between looks at a plain feed without freshness information. Configurable.
pub const PLAIN_POLL_SECONDS_DEFAULT: u64 = 900;

/// The shortest pause after a failed request, in seconds.
pub const BACK_OFF_SECONDS_MIN: u64 = 1;

/// The longest pause after a failed request, in seconds.
pub const BACK_OFF_SECONDS_MAX: u64 = 60;

/// The longest pause that a consumer accepts from a server (`Retry-After`, `max-age`), in seconds.
pub const PAUSE_SECONDS_MAX: u64 = 86_400;

/// How long a consumer waits for a connection, in seconds. Configurable.
pub const CONNECT_SECONDS: u64 = 5;

/// How long a consumer waits for more bytes of an answer, in seconds. Configurable.
pub const READ_SECONDS: u64 = 20;

/// How long one answer may take as a whole, in seconds. Configurable.
pub const REQUEST_SECONDS: u64 = 120;

/// The most documents marked immutable whose bytes a consumer remembers, to notice a change.
pub const FROZEN_REMEMBERED_MAX: usize = 10_000;

/// The longest id of a feed or an update in a SUP document, in bytes (rule SUP-F6).
pub const SUP_ID_BYTES_MAX: usize = 128;

/// The longest id of an update in a SUP document that a consumer accepts, in bytes.
pub const SUP_UPDATE_BYTES_MAX: usize = 1_024;

/// The most updates of a SUP document that a consumer accepts.
pub const SUP_UPDATES_MAX: usize = 2_000_000;

/// The periods for which a server offers SUP documents, in seconds; the first is the default one.
/// Configurable.
pub const SUP_PERIODS_DEFAULT: [u32; 4] = [60, 300, 600, 3_600];

/// The longest period of a SUP document, in seconds.
pub const SUP_PERIOD_SECONDS_MAX: u32 = 86_400;

/// The excess of a SUP document's window over the period, in seconds (rule SUP-F2).
pub const SUP_OVERLAP_SECONDS: i64 = 10;

/// The longest time between the first and the last update of an archived SUP document, in seconds.
pub const SUP_ARCHIVE_SECONDS: i64 = 3_600;

/// The number of feeds at which an archived SUP document ends with the current second.
pub const SUP_ARCHIVE_FEEDS: usize = 10_000;

/// The feeds that one watcher follows.
pub const WATCHED_FEEDS_MAX: usize = 1_000_000;

/// The feeds that a watcher reads at the same time.
pub const WATCHED_TOGETHER_MAX: usize = 16;

/// The feeds of one origin that a watcher reads at the same time.
pub const WATCHED_PER_ORIGIN_MAX: usize = 8;

/// The most looks that a watcher has at slow feeds of one origin at the same time.
pub const SLOW_PER_ORIGIN_MAX: usize = 3;

/// The most looks that a watcher has at slow feeds of all origins at the same time.
pub const SLOW_TOGETHER_MAX: usize = 8;

/// The SUP documents that a watcher asks for at the same time, besides the looks at feeds.
pub const HEARD_TOGETHER_MAX: usize = 8;

/// Seconds between looks at a feed without SUP. Configurable.
pub const WATCH_SECONDS_DEFAULT: u64 = 1_800;

/// The shortest time between two such looks, in seconds.
pub const WATCH_SECONDS_MIN: u64 = 1;

/// The longest time between two such looks, or two looks at a SUP document, in seconds.
pub const WATCH_SECONDS_MAX: u64 = 366 * 86_400;

/// The archived SUP documents that a watcher walks back over to close a gap.
pub const SUP_WALK_MAX: usize = 50_000;

/// The most redirects a consumer follows for one request. Configurable.
pub const REDIRECTS_MAX: usize = 5;

const _: () = assert!(
    ENTRY_BYTES_MAX <= BODY_BYTES_MAX,
    "the largest entry must fit into a request"
);
const _: () = assert!(
    DOCUMENT_BYTES_MAX + 2 * 1024 * 1024 <= 64 * 1024 * 1024,
    "a consumer must accept every document that a server writes"
);
