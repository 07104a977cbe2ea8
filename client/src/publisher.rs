//! The publisher: entries into a feed, safely repeated until they are there.
//!
//! Shell: the network. Events get their ids before the first attempt, and every request has an
//! idempotency key for entries without an id. So a repeat of a request whose answer was lost stores
//! nothing twice.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use data_encoding::BASE64;
use serde::Deserialize;
use simplefeed_core::{
    event::Event, limits::CLIENT_DOCUMENT_BYTES_MAX, refusal::Refusal, syndication::to_atom,
    xml::ATOM,
};
use tracing::{Instrument as _, debug_span};
use url::Url;
use uuid::Uuid;

use crate::{
    fetch::{problem_detail, problem_entry, retry_after, userinfo_of, without_userinfo},
    patience::{asks_too_much, back_off, jittered},
    transport::{self, Answer, Method, Request, Timeouts, Transport, TransportError},
};

/// The most entries of one request. (No example: a number.)
pub const BATCH_ENTRIES: usize = 1_000;
/// The most bytes of one request, unless a single entry is larger. (No example: a number.)
pub const BATCH_BYTES: usize = 1024 * 1024;
/// Number of attempts at one request. The pauses between them add up to about two minutes.
const ATTEMPTS: u32 = 8;

/// Entry to publish, in one of its forms.
#[derive(Clone, Debug)]
pub enum Publication {
    /// Event; one without an id gets a new id.
    Event(Box<Event>),
    /// One event as a line of NDJSON.
    Line(String),
    /// An Atom entry element, as text.
    Atom(String),
    /// Entry of `atom_syndication`; one with an empty id gets a new id.
    Entry(Box<atom_syndication::Entry>),
}

impl From<Event> for Publication {
    fn from(event: Event) -> Self {
        Self::Event(Box::new(event))
    }
}

impl From<atom_syndication::Entry> for Publication {
    fn from(entry: atom_syndication::Entry) -> Self {
        Self::Entry(Box::new(entry))
    }
}

/// The server's result for one entry.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Id of the entry, as sent or as given by the server.
    pub id: String,
    /// Position in the feed; the oldest entry has 0.
    pub position: u64,
    /// Permanent URL of the entry's document.
    pub document: Url,
    /// Whether the entry was stored by this request or earlier.
    pub status: Status,
}

/// Whether an entry is new.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Stored by this request.
    Appended,
    /// In the feed before this request.
    Duplicate,
}

/// Failure to publish entries. The entries of earlier batches are stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The feed's URL is not a URL.
    #[error("{url:?} is not a URL")]
    Url {
        /// Text that was given as the feed's URL, without a password.
        url: String,
        /// Fault found by the URL parser.
        source: url::ParseError,
    },
    /// An entry cannot be sent as it is.
    #[error("an entry cannot be published")]
    Entry(#[from] Refusal),
    /// An event has no JSON form.
    #[error("an event has no JSON form")]
    Json(#[from] serde_json::Error),
    /// No answer came, after several attempts. Whether the batch is stored is unknown; a repeat is
    /// safe if all entries of the batch have ids.
    #[error("cannot reach {url}")]
    Transport {
        /// URL of the feed, without a password.
        url: Url,
        /// Error of the last attempt.
        source: TransportError,
    },
    /// The answer is a refusal. A server that refuses a batch stores none of the entries. If a
    /// proxy gave the answer, the entries may be stored, as after the statuses 502 and 504.
    #[error("{url} answered with status {status}: {detail}")]
    Refused {
        /// URL of the feed, without a password.
        url: Url,
        /// Status code of the answer.
        status: u16,
        /// Detail of the answer's problem document, or where to publish instead.
        detail: String,
        /// Index of the entry at fault among all entries to be published, from 0; `None` if no
        /// single entry is at fault.
        entry: Option<usize>,
    },
    /// The answer is not that of a Simplefeed server.
    #[error("{url} did not answer like a Simplefeed server")]
    Answer {
        /// URL of the feed, without a password.
        url: Url,
        /// Fault found by the JSON parser.
        source: serde_json::Error,
    },
    /// The answer acknowledges other entries than those of the batch. Whether the batch is stored
    /// is unknown; a repeat is safe if all entries of the batch have ids.
    #[error("{url} did not acknowledge the entries that were sent: {detail}")]
    Unacknowledged {
        /// URL of the feed, without a password.
        url: Url,
        /// First difference between the batch and the acknowledgement, for people.
        detail: String,
    },
}

impl PublishError {
    /// Returns an error about a batch as an error about all entries, of which `before` precede the
    /// batch.
    fn behind_entries(self, before: usize) -> Self {
        match self {
            Self::Refused {
                url,
                status,
                detail,
                entry,
            } => Self::Refused {
                url,
                status,
                detail,
                entry: entry.map(|entry| entry + before),
            },
            other => other,
        }
    }

    /// Returns whether the server may accept the same entries later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Transport { source, .. } => source.transient,
            Self::Refused { status, .. } => is_transient(*status),
            _ => false,
        }
    }
}

fn is_transient(status: u16) -> bool {
    // 507 means a full disk: once there is room again, the request may succeed.
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504 | 507)
}

/// Publishes to one feed.
///
/// # Examples
///
/// Entries of several forms, in one order, with a report about each batch as soon as the batch is
/// durable:
///
/// ```no_run
/// use simplefeed_client::{
///     Event, Publication, PublishError, Publisher,
///     publisher::{Acknowledgement, Status},
/// };
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let publisher = Publisher::new("https://example.org/feeds/orders")?;
/// let entries = [
///     Publication::from(Event::json(&serde_json::json!({"order": 7}))?),
///     Publication::Line(r#"{"id":"urn:order:8","content":{"order":8}}"#.into()),
/// ];
/// let report = |batch: &[Acknowledgement]| {
///     for entry in batch.iter().filter(|entry| entry.status == Status::Appended) {
///         println!("{} is at position {}", entry.id, entry.position);
///     }
/// };
/// let publisher = publisher.on_retry(|error, pause| eprintln!("{error}; trying again in {pause:?}"));
/// match publisher.append_reporting(entries, report).await {
///     Err(PublishError::Refused { status: 409, detail, .. }) => println!("conflict: {detail}"),
///     Err(error) if error.is_transient() => println!("try again later: {error}"),
///     outcome => outcome?,
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Publisher {
    url: Url,
    transport: OnceLock<Arc<dyn Transport>>,
    /// Value of the `authorization` header field.
    authorization: Option<String>,
    retrying: Option<Retrying>,
    /// Tag that the feed's head must have: first the one that the caller gave, then that of the
    /// last answer.
    head: Option<Arc<Mutex<String>>>,
}

/// Callback for a failed request that will be retried.
type Retrying = Arc<dyn Fn(&PublishError, Duration) + Send + Sync>;

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Publisher {
    /// Returns a publisher to the feed at `url`.
    ///
    /// # Errors
    ///
    /// If `url` is no URL.
    pub fn new(url: &str) -> Result<Self, PublishError> {
        let parsed = Url::parse(url);
        let given = parsed.map_err(|source| PublishError::Url {
            url: without_userinfo(url),
            source,
        })?;
        // A password is for the server, and stands in no message.
        let parsed =
            Url::parse(&without_userinfo(given.as_str())).unwrap_or_else(|_| given.clone());
        let authorization = given.password().map(|_| {
            let (name, password) = userinfo_of(&given);
            let credentials = BASE64.encode(format!("{name}:{password}").as_bytes());
            format!("Basic {credentials}")
        });
        Ok(Self {
            url: parsed,
            transport: OnceLock::new(),
            authorization,
            retrying: None,
            head: None,
        })
    }

    /// Replaces the default transport, which is over reqwest.
    #[must_use]
    pub fn transport(self, transport: Arc<dyn Transport>) -> Self {
        let transport = OnceLock::from(transport);
        Self { transport, ..self }
    }

    /// Returns the transport, which is the default one unless the caller gave another.
    fn transport_in_use(&self) -> Result<&Arc<dyn Transport>, TransportError> {
        if let Some(transport) = self.transport.get() {
            return Ok(transport);
        }
        let made = transport::default_transport(Timeouts::default())?;
        // `get_or_init`, because another thread may have made a transport meanwhile.
        Ok(self.transport.get_or_init(|| made))
    }

    /// Calls `told` before each retry, with the reason and the pause until then.
    #[must_use]
    pub fn on_retry(self, told: impl Fn(&PublishError, Duration) + Send + Sync + 'static) -> Self {
        Self {
            retrying: Some(Arc::new(told)),
            ..self
        }
    }

    /// Sends a bearer token (RFC 6750) with every request. No request follows a redirect to another
    /// origin, so no other server sees the token.
    #[must_use]
    pub fn bearer_token(self, token: impl Into<String>) -> Self {
        Self {
            authorization: Some(format!("Bearer {}", token.into())),
            ..self
        }
    }

    /// Appends only as long as nobody else appends. The head of the feed must have this tag (the
    /// `ETag` of `recent.atom`, or of the answer to an append), and after each batch the tag of the
    /// batch's answer. Otherwise the server refuses a batch with status 412, unless the whole batch
    /// is stored already. Clones share the tag.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(tag: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// use simplefeed_client::{Event, PublishError, Publisher};
    ///
    /// let publisher = Publisher::new("https://example.org/feeds/orders")?.if_match(tag);
    /// match publisher.append([Event::json(&serde_json::json!({"order": 7}))?]).await {
    ///     Err(PublishError::Refused { status: 412, .. }) => println!("somebody was quicker"),
    ///     outcome => println!("{} stored; the head is {:?} now", outcome?.len(), publisher.head()),
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn if_match(self, tag: impl Into<String>) -> Self {
        Self {
            head: Some(Arc::new(Mutex::new(tag.into()))),
            ..self
        }
    }

    /// Returns the tag of the feed's head behind the last append, or the one that was given before;
    /// `None` without [`if_match`](Self::if_match), which has an example.
    pub fn head(&self) -> Option<String> {
        let head = self.head.as_ref()?.lock();
        // The tag is whole even if a thread panicked while it held this lock.
        Some(head.unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Returns the settings of the feed, and their tag.
    ///
    /// If the future is dropped, nothing is changed.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]; status 404 if there is no such feed.
    ///
    /// # Examples
    ///
    /// A change that depends on the present settings, and is tried again if somebody else was
    /// quicker:
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), simplefeed_client::PublishError> {
    /// use simplefeed_client::{PublishError, Publisher};
    ///
    /// let feed = Publisher::new("https://example.org/feeds/orders")?;
    /// loop {
    ///     let (settings, tag) = feed.settings().await?;
    ///     let entries = settings["document_entries"].as_u64().unwrap_or(100) * 2;
    ///     let changes = serde_json::json!({"document_entries": entries});
    ///     match feed.change_settings(&changes, Some(&tag)).await {
    ///         Err(PublishError::Refused { status: 412, .. }) => {}
    ///         changed => return changed.map(drop),
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn settings(&self) -> Result<(serde_json::Value, String), PublishError> {
        self.ask_settings(Method::Get, Bytes::new(), None).await
    }

    /// Changes the settings that `changes` names, if the settings of the feed have this tag.
    /// Without a tag, changes them in any case. Returns all settings, and their tag.
    ///
    /// If the future is dropped, the settings may be changed.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]; status 412 if somebody else has changed them since, 404 if there is no
    /// such feed.
    pub async fn change_settings(
        &self,
        changes: &serde_json::Value,
        tag: Option<&str>,
    ) -> Result<(serde_json::Value, String), PublishError> {
        let body = changes.to_string().into();
        self.ask_settings(Method::Put, body, tag).await
    }

    async fn ask_settings(
        &self,
        method: Method,
        body: Bytes,
        tag: Option<&str>,
    ) -> Result<(serde_json::Value, String), PublishError> {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // A slash at the end of the URL is an empty segment, which the new segment replaces.
            segments.pop_if_empty().push("settings.json");
        }
        let mut headers = vec![("content-type", "application/json".to_owned())];
        headers.extend(tag.map(|tag| ("if-match", tag.to_owned())));
        let request = Request {
            method,
            url: url.clone(),
            headers,
            body,
            answer_bytes_max: CLIENT_DOCUMENT_BYTES_MAX,
        };
        let answer = self.send_until_answered(request).await?;
        let settings = serde_json::from_slice(&answer.body);
        let settings = settings.map_err(|source| PublishError::Answer { url, source })?;
        let tag = answer.header("etag").unwrap_or_default().to_owned();
        Ok((settings, tag))
    }

    /// Creates the feed with this `atom:id`, unless the feed exists already. Returns whether a feed
    /// was created.
    ///
    /// If the future is dropped, the feed may have been created. Another call is safe.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]; status 422 if another feed of the server has the id.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), simplefeed_client::PublishError> {
    /// let publisher = simplefeed_client::Publisher::new("https://example.org/feeds/orders")?;
    /// if publisher.create("urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66").await? {
    ///     println!("a new feed with the id of an old one");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn create(&self, id: &str) -> Result<bool, PublishError> {
        let request = |method, body: Bytes| Request {
            method,
            url: self.url.clone(),
            headers: vec![("content-type", "application/json".into())],
            body,
            answer_bytes_max: CLIENT_DOCUMENT_BYTES_MAX,
        };
        let mut look = request(Method::Get, Bytes::new());
        // The feed's URL redirects to its newest document. A proxy may redirect for a feed that
        // does not exist, so only an answer from the target counts.
        if let Ok(Some(target)) = self.leads_to(look.clone()).await {
            look.url = target;
        }
        match self.send_until_answered(look).await {
            Ok(_) => return Ok(false),
            Err(PublishError::Refused { status: 404, .. }) => {}
            Err(error) => return Err(error),
        }
        let settings = serde_json::json!({ "id": id }).to_string();
        let created = request(Method::Put, settings.into());
        self.send_until_answered(created).await.map(|_| true)
    }

    /// Returns the target of a redirect, if the target is at the same origin.
    async fn leads_to(&self, request: Request) -> Result<Option<Url>, TransportError> {
        let span = debug_span!("publish", url = %self.url);
        let transport = self.transport_in_use()?;
        let answer = transport.send(self.with_token(request));
        let answer = answer.instrument(span).await?;
        let location = answer
            .header("location")
            .filter(|_| answer.status / 100 == 3);
        let target = location.and_then(|location| self.url.join(location).ok());
        // Another origin must never see the token.
        Ok(target.filter(|target| target.origin() == self.url.origin()))
    }

    fn with_token(&self, mut request: Request) -> Request {
        if let Some(authorization) = &self.authorization {
            let field = ("authorization", authorization.clone());
            request.headers.push(field);
        }
        request
    }

    /// Appends entries in order, in batches. Returns the result for each entry, once all are
    /// durable.
    ///
    /// If the future is dropped, the batches before the one on the way are stored, and that one may
    /// be stored. To publish the same entries again is safe if they have ids.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]. Batches before the one that failed are stored.
    pub async fn append<P: Into<Publication>>(
        &self,
        entries: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Acknowledgement>, PublishError> {
        let mut published = vec![];
        self.append_reporting(entries, |batch| published.extend_from_slice(batch))
            .await?;
        Ok(published)
    }

    /// Appends entries as [`append`](Self::append) does, and reports the results of each batch as
    /// soon as the batch is durable, so that a later failure hides none of them. A batch on the way
    /// when the future is dropped may be stored, and is not reported.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub async fn append_reporting<P: Into<Publication>>(
        &self,
        entries: impl IntoIterator<Item = P>,
        mut report: impl FnMut(&[Acknowledgement]),
    ) -> Result<(), PublishError> {
        let (mut batch, mut before) = (PublishBatch::default(), 0);
        for entry in entries {
            let item = EntryBody::new(entry.into())?;
            if !batch.has_room_for(&item) {
                let published = self.send_batch(std::mem::take(&mut batch));
                // The server counts within the batch, the caller from the first entry of all.
                let published = published
                    .await
                    .map_err(|error| error.behind_entries(before))?;
                before += published.len();
                report(&published);
            }
            batch.push_item(item);
        }
        if !batch.items.is_empty() {
            let published = self.send_batch(batch).await;
            report(&published.map_err(|error| error.behind_entries(before))?);
        }
        Ok(())
    }

    async fn send_batch(&self, batch: PublishBatch) -> Result<Vec<Acknowledgement>, PublishError> {
        #[derive(Deserialize)]
        struct Appended {
            results: Vec<Acknowledgement>,
        }
        let ids: Vec<Option<String>> = batch.items.iter().map(EntryBody::item_id).collect();
        let (kind, body) = batch.encode_body();
        // One key for all attempts at this batch: a repeat after a lost answer stores nothing
        // twice.
        let mut headers = vec![
            ("content-type", kind.into()),
            ("idempotency-key", Uuid::new_v4().to_string()),
        ];
        headers.extend(self.head().map(|tag| ("if-match", tag)));
        let request = Request {
            method: Method::Post,
            url: self.url.clone(),
            headers,
            body,
            answer_bytes_max: CLIENT_DOCUMENT_BYTES_MAX,
        };
        let answer = self.send_until_answered(request).await?;
        let wrong = |source| PublishError::Answer {
            url: self.url.clone(),
            source,
        };
        let appended: Appended = serde_json::from_slice(&answer.body).map_err(wrong)?;
        // A machine between here and the server may have answered, or have passed on other entries.
        match difference_from(&ids, &appended.results) {
            None => {
                if let (Some(head), Some(tag)) = (&self.head, answer.header("etag")) {
                    let mut head = head.lock().unwrap_or_else(PoisonError::into_inner);
                    tag.clone_into(&mut head);
                }
                Ok(appended.results)
            }
            Some(detail) => Err(PublishError::Unacknowledged {
                url: self.url.clone(),
                detail,
            }),
        }
    }

    /// Returns the URL that is published to, without a password.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    pub(crate) async fn send_until_answered(
        &self,
        request: Request,
    ) -> Result<Answer, PublishError> {
        let request = self.with_token(request);
        let transport = self
            .transport_in_use()
            .map_err(|source| PublishError::Transport {
                url: self.url.clone(),
                source,
            })?;
        let mut attempt = 0;
        loop {
            let last = attempt + 1 == ATTEMPTS;
            let span = debug_span!("publish", url = %self.url, attempt);
            let sent = transport.send(request.clone()).instrument(span);
            let (error, asked) = match sent.await {
                Ok(answer) if matches!(answer.status, 200 | 201) => return Ok(answer),
                // A pause of more than a minute is left to the caller: then this answer is the
                // error.
                Ok(answer)
                    if is_transient(answer.status)
                        && !last
                        && !asks_too_much(retry_after(&answer)) =>
                {
                    (self.refusal_of(&answer), retry_after(&answer))
                }
                Ok(answer) => return Err(self.refusal_of(&answer)),
                // The batch may be stored: ids and the idempotency key make the repeat safe.
                Err(source) if source.transient && !last => {
                    let url = self.url.clone();
                    (PublishError::Transport { url, source }, None)
                }
                Err(source) => {
                    return Err(PublishError::Transport {
                        url: self.url.clone(),
                        source,
                    });
                }
            };
            let pause = jittered(back_off(attempt, asked));
            if let Some(retrying) = &self.retrying {
                retrying(&error, pause);
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    fn refusal_of(&self, answer: &Answer) -> PublishError {
        let (url, status) = (self.url.clone(), answer.status);
        // A POST is not repeated at the target of a redirect: the message shows the target.
        let moved = answer
            .header("location")
            .filter(|_| (300..400).contains(&status));
        let detail = match moved {
            Some(location) => format!("publish to {location} instead"),
            None => problem_detail(answer),
        };
        PublishError::Refused {
            url,
            status,
            detail,
            entry: problem_entry(answer),
        }
    }
}

/// Returns the first difference between an acknowledgement and the sent entries. `sent` has their
/// ids; `None` matches any id.
fn difference_from(sent: &[Option<String>], results: &[Acknowledgement]) -> Option<String> {
    if sent.len() != results.len() {
        let (sent, came) = (sent.len(), results.len());
        return Some(format!(
            "it has results for {came} entries, and {sent} were sent"
        ));
    }
    let pairs = sent.iter().zip(results);
    for (place, (sent, result)) in (1..).zip(pairs) {
        if let Some(sent) = sent
            && *sent != result.id
        {
            let came = &result.id;
            return Some(format!(
                "its result {place} is about {came}, and {sent} was sent"
            ));
        }
    }
    // A duplicate has the position of the stored entry, so only new entries are in order.
    let is_new = |result: &&Acknowledgement| result.status == Status::Appended;
    let new: Vec<u64> = results
        .iter()
        .filter(is_new)
        .map(|result| result.position)
        .collect();
    let is_ordered = new.is_sorted_by(|one, next| one < next);
    (!is_ordered).then(|| "the positions of its results do not rise".into())
}

/// Entry in the form for sending.
enum EntryBody {
    Line(String),
    Element(String),
}

impl EntryBody {
    fn new(publication: Publication) -> Result<Self, PublishError> {
        Ok(match publication {
            Publication::Event(mut event) => {
                // Before the first attempt: a repeat must have the same id.
                event.id.get_or_insert_with(fresh_id);
                Self::Line(serde_json::to_string(&event)?)
            }
            Publication::Line(line) => Self::Line(line),
            Publication::Atom(element) => Self::Element(element),
            Publication::Entry(mut entry) => {
                if entry.id.is_empty() {
                    entry.id = fresh_id();
                }
                Self::Element(to_atom(&entry)?)
            }
        })
    }

    /// Returns the entry's id; `None` if the server is to give one, or will refuse the entry.
    fn item_id(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Identified {
            id: Option<String>,
        }
        match self {
            Self::Line(text) => serde_json::from_str::<Identified>(text).ok()?.id,
            Self::Element(text) => Event::from_entry(text).ok()?.id,
        }
    }

    fn item_text(&self) -> &str {
        match self {
            Self::Line(text) | Self::Element(text) => text,
        }
    }

    fn is_line(&self) -> bool {
        matches!(self, Self::Line(_))
    }
}

fn fresh_id() -> String {
    Uuid::now_v7().urn().to_string()
}

/// Entries of one kind that go into one request.
#[derive(Default)]
struct PublishBatch {
    items: Vec<EntryBody>,
    bytes: usize,
}

impl PublishBatch {
    fn has_room_for(&self, item: &EntryBody) -> bool {
        // An empty batch takes any entry: a single one may be larger than the bound.
        let Some(first) = self.items.first() else {
            return true;
        };
        first.is_line() == item.is_line()
            && self.items.len() < BATCH_ENTRIES
            && self.bytes + item.item_text().len() < BATCH_BYTES
    }

    fn push_item(&mut self, item: EntryBody) {
        self.bytes += item.item_text().len() + 1;
        self.items.push(item);
    }

    /// Returns media type and body. A feed document lists the newest entry first.
    fn encode_body(self) -> (&'static str, Bytes) {
        // Room for the feed element around the entries.
        let mut body = String::with_capacity(self.bytes + 128);
        if self.items.first().is_some_and(EntryBody::is_line) {
            for item in &self.items {
                body.push_str(item.item_text());
                body.push('\n');
            }
            return ("application/x-ndjson", body.into());
        }
        body.push_str("<feed xmlns=\"");
        body.push_str(ATOM);
        body.push_str("\">\n");
        // The newest first: the server takes the entries of a feed document last to first.
        for item in self.items.iter().rev() {
            body.push_str(item.item_text());
            body.push('\n');
        }
        body.push_str("</feed>\n");
        ("application/atom+xml", body.into())
    }
}

#[cfg(test)]
mod tests;
