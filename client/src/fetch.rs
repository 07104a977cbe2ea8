//! HTTP for a consumer: requests, and the meaning of answers.
//!
//! Pure, but for handing the request to the transport.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use data_encoding::BASE64;
use percent_encoding::percent_decode_str;
use simplefeed_core::{
    digest::Digest,
    index::IndexBlock,
    limits::{CLIENT_DOCUMENT_BYTES_MAX, REDIRECTS_MAX},
    push::{EVENTS_REL, WAIT_REL},
    rates::RATES_REL,
    reader::{Document, ReadError, to_utf8},
    replay::Validators,
    sup::{InvalidSup, SUP_DRAFT_REL, SUP_HEADER, SUP_REL, SUP_TYPE, SupAddress, SupDocument},
};
use tracing::{Instrument as _, debug_span};
use url::{Origin, Url};

use crate::transport::{Answer, Method, Request, StreamedAnswer, Transport, TransportError};

mod answer;
mod links;

pub use answer::{Freshness, successful};
use answer::{charset, check_type, is_immutable, last_modified, redirect};
pub(crate) use answer::{problem_detail, problem_entry, retry_after};

const ATOM_TYPES: &str = "application/atom+xml, application/xml;q=0.5";
const INDEX_TYPE: &str = "application/json";
/// Beginning of the relations of links that belong to a server and not to a document: a copy works
/// without them.
const SERVER_RELS: &str = "urn:simplefeed:1#";

/// Failure to fetch a document.
///
/// # Examples
///
/// ```
/// use simplefeed_client::fetch::FetchError;
///
/// let url = "https://example.org/feeds/orders".parse()?;
/// let busy = FetchError::Status {
///     url,
///     status: 503,
///     detail: "busy".into(),
///     retry_after: Some(std::time::Duration::from_secs(3)),
/// };
/// assert!(busy.is_transient());
/// assert_eq!(busy.retry_after().unwrap().as_secs(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// No answer came, or only a part of one.
    #[error("cannot fetch {url}")]
    Transport {
        /// URL of the last request, after redirects.
        url: Url,
        /// Error of the transport; only some are transient.
        source: TransportError,
    },
    /// The document does not exist, or not any more.
    #[error("there is nothing at {url} (status {status})")]
    Missing {
        /// URL of the last request, after redirects.
        url: Url,
        /// Status code of the answer: 404 or 410.
        status: u16,
    },
    /// The server asks for credentials, or denies access.
    #[error("not authorised to read {url} (status {status})")]
    Unauthorized {
        /// URL of the last request, after redirects.
        url: Url,
        /// Status code of the answer: 401 or 403.
        status: u16,
    },
    /// The answer has any other status that is no success.
    #[error("{url} answered with status {status}: {detail}")]
    Status {
        /// URL of the last request, after redirects.
        url: Url,
        /// Status code of the answer.
        status: u16,
        /// Detail of the problem document, title of the HTML page, or first line of the body.
        detail: String,
        /// Pause that the server asks for (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The answer is no feed document.
    #[error("{url} is not a feed document")]
    Malformed {
        /// URL of the answer, after redirects.
        url: Url,
        /// Fault found by the reader of documents.
        source: ReadError,
    },
    /// The answer is no archive index.
    #[error("{url} is not an archive index")]
    NotAnIndex {
        /// URL of the answer, after redirects.
        url: Url,
        /// Fault found by the JSON parser.
        source: serde_json::Error,
    },
    /// Redirects went on beyond the bound.
    #[error("more than {max} redirects, the last to {url}")]
    Redirects {
        /// Target of the last redirect, to which no request was sent.
        url: Url,
        /// Number of redirects that one request may follow, from [`Fetcher::redirects_max`].
        max: usize,
    },
    /// The answer is no SUP document.
    #[error("{url} is not a SUP document")]
    NotSup {
        /// URL of the answer, after redirects.
        url: Url,
        /// Fault found by the reader of SUP documents.
        source: InvalidSup,
    },
    /// The URL is at an origin that this consumer may not go to; no request was sent there.
    #[error("{url} is at another origin than the feed")]
    Elsewhere {
        /// Target of the link or redirect.
        url: Url,
    },
    /// A document that was marked immutable has other bytes now.
    #[error("{url} has changed, although it was marked immutable")]
    Changed {
        /// URL of the answer, after redirects.
        url: Url,
    },
    /// The answer has another media type: that of an HTML page, for instance.
    #[error("{url} is {found}, not a feed document")]
    OtherType {
        /// URL of the answer, after redirects.
        url: Url,
        /// Media type of the answer; `an HTML page` where the answer has none.
        found: String,
    },
}

impl FetchError {
    /// Returns whether the same request, repeated without a change, may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Transport { source, .. } => source.transient,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            // A body that was cut short is malformed, too, so a repeat may help. A page for people
            // stays a page.
            Self::Malformed { source, .. } => !matches!(source, ReadError::NotAFeed { .. }),
            Self::NotSup { .. } => true,
            Self::Missing { .. }
            | Self::Unauthorized { .. }
            | Self::NotAnIndex { .. }
            | Self::Redirects { .. }
            | Self::Elsewhere { .. }
            | Self::Changed { .. }
            | Self::OtherType { .. } => false,
        }
    }

    /// Returns the pause that the server asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// A document, or the news that the known copy has not changed.
///
/// # Examples
///
/// ```no_run
/// use simplefeed_client::{fetch::{FetchOutcome, Fetcher}, transport::{self, Timeouts}};
/// use simplefeed_client::Validators;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "https://example.org/feeds/orders".parse()?;
/// let fetcher = Fetcher::new(transport::default_transport(Timeouts::default())?, &url);
/// let known = Validators { etag: Some("\"abc\"".into()), last_modified: None };
/// match fetcher.document(&url, &known, false).await? {
///     FetchOutcome::NotModified { .. } => println!("nothing new"),
///     FetchOutcome::Document { document, freshness, .. } => {
///         println!("{} entries; look again in {:?}", document.len(), freshness.poll_after());
///         if let Some(index) = document.link("index") {
///             let (_, block) = fetcher.index(index).await?;
///             println!("{} frozen documents", block.documents.len());
///         }
///     }
/// }
/// # Ok(()) }
/// ```
#[expect(clippy::large_enum_variant, reason = "one of it lives at a time")]
#[derive(Debug)]
pub enum FetchOutcome {
    /// 304: the known copy is still current.
    NotModified {
        /// Freshness of the known copy from now on.
        freshness: Freshness,
        /// SUP announcement, if the 304 has one.
        sup: Option<SupAddress>,
        /// Links of the server, if the 304 has them.
        links: ServerLinks,
    },
    /// A complete answer, with status 200 or 203.
    Document {
        /// URL of the document, after redirects.
        url: Url,
        /// Parsed document, with the links from header fields.
        document: Document,
        /// Validators for the next conditional request.
        validators: Validators,
        /// Freshness of this copy.
        freshness: Freshness,
        /// SUP announcement, if there is one and the fetcher may follow it.
        sup: Option<SupAddress>,
        /// Links of the server that the fetcher may follow.
        links: ServerLinks,
        /// Digest of the body, if a document without positions is marked immutable.
        frozen: Option<Digest>,
    },
}

/// A SUP document, as it was fetched.
#[derive(Debug)]
pub(crate) struct FetchedSup {
    pub(crate) document: SupDocument,
    /// Entity tag of the answer, for the next conditional request.
    pub(crate) tag: Option<String>,
    /// URL of a request that the server answers once there is an update later than those in the
    /// document.
    pub(crate) wait: Option<Url>,
    /// Whether no cache may keep the answer, as with the answer to a wait.
    pub(crate) is_for_once: bool,
}

/// URLs that a server offers beside a recent document.
///
/// # Examples
///
/// ```
/// use simplefeed_client::fetch::ServerLinks;
///
/// let wakes = |links: &ServerLinks| links.events.is_some() || links.wait.is_some();
/// assert!(!wakes(&ServerLinks::default()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerLinks {
    /// URL of a stream of events that tell the newest place.
    pub events: Option<Url>,
    /// URL of a request that the server answers once the document has changed.
    pub wait: Option<Url>,
    /// URL of the counts of entries over time.
    pub rates: Option<Url>,
}

/// Fetches documents from a home origin and from other allowed origins, and from nowhere else,
/// wherever links and redirects lead. The token goes to the home alone.
///
/// A fetcher at home at `http://h` may go to `https://h`, too: this is the same host, and safer. A
/// dropped future gives the request up, and changes nothing.
///
/// # Examples
///
/// ```no_run
/// use simplefeed_client::{fetch::Fetcher, transport::{self, Timeouts}};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "https://example.org/feeds/orders".parse()?;
/// let transport = transport::default_transport(Timeouts::default())?;
/// let fetcher = Fetcher::new(transport, &url)
///     .allow_origin(&"https://archive.example.org".parse()?)
///     .redirects_max(2)
///     .document_bytes_max(1024 * 1024);
/// let bytes = fetcher.bytes(&url).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Fetcher {
    transport: Arc<dyn Transport>,
    home: Origin,
    others: Vec<Origin>,
    document_bytes_max: usize,
    redirects_max: usize,
    token: Option<Authorization>,
}

/// Value of the `authorization` header field; `Debug` hides it.
#[derive(Clone)]
struct Authorization(String);

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Returns a fetcher over a transport. The fetcher's home is the origin of `home`.
    pub fn new(transport: Arc<dyn Transport>, home: &Url) -> Self {
        Self {
            transport,
            home: home.origin(),
            others: vec![],
            document_bytes_max: CLIENT_DOCUMENT_BYTES_MAX,
            redirects_max: REDIRECTS_MAX,
            token: None,
        }
    }

    /// Allows links and redirects to lead to the origin of `url`, too.
    #[must_use]
    pub fn allow_origin(mut self, url: &Url) -> Self {
        self.others.push(url.origin());
        self
    }

    /// Follows at most this many redirects for one document; 5 by default.
    #[must_use]
    pub fn redirects_max(self, redirects_max: usize) -> Self {
        Self {
            redirects_max,
            ..self
        }
    }

    /// Accepts documents of at most this many decoded bytes; 64 MiB by default.
    #[must_use]
    pub fn document_bytes_max(self, document_bytes_max: usize) -> Self {
        Self {
            document_bytes_max,
            ..self
        }
    }

    /// Returns this fetcher, accepting documents of no more than `bytes` decoded bytes.
    pub(crate) fn with_bytes_max(&self, bytes: usize) -> Self {
        Self {
            document_bytes_max: bytes.min(self.document_bytes_max),
            ..self.clone()
        }
    }

    /// Sends a bearer token (RFC 6750) with every request to the fetcher's home, and with no other:
    /// neither a redirect nor a link can lead the token elsewhere.
    #[must_use]
    pub fn bearer_token(self, token: impl Into<String>) -> Self {
        self.authorization(format!("Bearer {}", token.into()))
    }

    /// Sends a name and a password (RFC 7617) as [`bearer_token`](Self::bearer_token) sends a
    /// token.
    #[must_use]
    pub(crate) fn password(self, name: &str, password: &str) -> Self {
        let credentials = BASE64.encode(format!("{name}:{password}").as_bytes());
        self.authorization(format!("Basic {credentials}"))
    }

    fn authorization(self, value: String) -> Self {
        let token = Some(Authorization(value));
        Self { token, ..self }
    }

    /// Returns the origin of the fetcher's home.
    pub(crate) fn home(&self) -> Origin {
        self.home.clone()
    }

    /// Returns whether the fetcher may send a request to this URL.
    fn may_ask(&self, url: &Url) -> bool {
        let origin = url.origin();
        let is_allowed = |allowed: &Origin| {
            let safer = match (allowed, &origin) {
                // HTTPS instead of HTTP at the same host, between the default ports only.
                (Origin::Tuple(http, host, 80), Origin::Tuple(https, same, 443)) => {
                    http == "http" && https == "https" && host == same
                }
                _ => false,
            };
            *allowed == origin || safer
        };
        matches!(url.scheme(), "http" | "https")
            && (is_allowed(&self.home) || self.others.iter().any(is_allowed))
    }

    /// Fetches a feed document; with `again`, past all caches.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub async fn document(
        &self,
        url: &Url,
        known: &Validators,
        again: bool,
    ) -> Result<FetchOutcome, FetchError> {
        let mut headers = vec![("accept", ATOM_TYPES.into())];
        // The tag alone: servers ignore the date beside a tag (RFC 9110, 13.1.3).
        if let Some(etag) = &known.etag {
            headers.push(("if-none-match", etag.clone()));
        } else if let Some(date) = &known.last_modified {
            headers.push(("if-modified-since", date.clone()));
        }
        if again {
            headers.push(("cache-control", "no-cache".into()));
        }
        let (url, answer) = self.answer(url, headers).await?;
        let freshness = Freshness::of(&answer);
        // A 304 to an unconditional request is a fault, and ends as an unexpected status.
        if answer.status == 304 && *known != Validators::default() {
            let sup = self.sup_announcement(&url, &answer, None);
            let links = self.server_links(&url, &answer);
            return Ok(FetchOutcome::NotModified {
                freshness,
                sup,
                links,
            });
        }
        let answer = successful(&url, answer)?;
        check_type(&url, &answer)?;
        let validators = Validators {
            etag: answer.header("etag").map(Into::into),
            last_modified: last_modified(&answer),
        };
        let document = match document_of(&url, &answer) {
            Ok(document) => document,
            Err(source) => return Err(FetchError::Malformed { url, source }),
        };
        let sup = self.sup_announcement(&url, &answer, document.sup.clone());
        let links = self.server_links(&url, &answer);
        // A document with positions has history hashes, which prove more than a digest.
        let is_frozen = document.history.is_none() && is_immutable(&answer);
        let frozen = is_frozen.then(|| Digest::of(&answer.body));
        Ok(FetchOutcome::Document {
            url,
            document,
            validators,
            freshness,
            sup,
            links,
            frozen,
        })
    }

    /// Returns the links of the server that the fetcher may follow.
    fn server_links(&self, url: &Url, answer: &Answer) -> ServerLinks {
        let mut found = ServerLinks::default();
        for (target, rel) in answer.all("link").flat_map(links::links) {
            let target = url.join(&target).ok().filter(|target| self.may_ask(target));
            match rel.as_str() {
                EVENTS_REL => found.events = target,
                WAIT_REL => found.wait = target,
                RATES_REL => found.rates = target,
                _ => {}
            }
        }
        found
    }

    /// Sends a request whose answer has no end.
    ///
    /// # Errors
    ///
    /// See [`TransportError`].
    pub(crate) async fn stream(
        &self,
        url: &Url,
        media_type: &'static str,
    ) -> Result<StreamedAnswer, TransportError> {
        let headers = [
            ("accept", media_type.into()),
            ("accept-encoding", "identity".into()),
            ("cache-control", "no-cache".into()),
        ];
        let mut request = self.request_for(url, &headers);
        // A bound on all bytes would end a stream that lives long.
        request.answer_bytes_max = usize::MAX;
        self.transport.stream(request).await
    }

    /// Returns the SUP document and id of a feed's updates: from the header fields, else from the
    /// document (rules SUP-A1, SUP-A3, SUP-C1). Returns `None` if the fetcher may not fetch that
    /// SUP document (rule SUP-C10).
    fn sup_announcement(
        &self,
        url: &Url,
        answer: &Answer,
        in_document: Option<SupAddress>,
    ) -> Option<SupAddress> {
        let field = answer.header(SUP_HEADER).map(str::to_owned);
        let links = answer.all("link").flat_map(links::links);
        let of_sup = |rel: &str| rel == SUP_REL || rel == SUP_DRAFT_REL;
        let link = links
            .filter(|(_, rel)| of_sup(rel))
            .map(|(target, _)| target);
        let mut told = field.into_iter().chain(link);
        let told = told.find_map(|text| SupAddress::parse(&text, url));
        // With a token, the SUP document must be at home: elsewhere the token is not sent, so
        // closed feeds are not listed.
        let is_for_us = |document: &Url| {
            let is_home = document.origin() == self.home;
            self.may_ask(document) && (self.token.is_none() || is_home)
        };
        told.or(in_document)
            .filter(|address| is_for_us(&address.document))
    }

    /// Fetches a SUP document, unless its entity tag is still `known`.
    ///
    /// If `again` is true, no cache may answer without asking the server (rule SUP-C12).
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub(crate) async fn sup(
        &self,
        url: &Url,
        known: Option<&str>,
        again: bool,
    ) -> Result<Option<FetchedSup>, FetchError> {
        let mut headers = vec![("accept", SUP_TYPE.into())];
        headers.extend(known.map(|tag| ("if-none-match", tag.into())));
        if again {
            headers.push(("cache-control", "no-cache".into()));
        }
        let (url, answer) = self.answer(url, headers).await?;
        if answer.status == 304 && known.is_some() {
            return Ok(None);
        }
        let answer = successful(&url, answer)?;
        match SupDocument::read(&answer.body) {
            Ok(document) => Ok(Some(FetchedSup {
                document: document.resolved(&url),
                tag: answer.header("etag").map(Into::into),
                wait: self.server_links(&url, &answer).wait,
                is_for_once: answer
                    .all("cache-control")
                    .any(|policy| policy.to_ascii_lowercase().contains("no-store")),
            })),
            Err(source) => Err(FetchError::NotSup { url, source }),
        }
    }

    /// Fetches a block of an archive index. Returns the URL after redirects, and the block.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub async fn index(&self, url: &Url) -> Result<(Url, IndexBlock), FetchError> {
        let (url, answer) = self
            .answer(url, vec![("accept", INDEX_TYPE.into())])
            .await?;
        let answer = successful(&url, answer)?;
        match IndexBlock::read(&answer.body) {
            Ok(block) => Ok((url, block)),
            Err(source) => Err(FetchError::NotAnIndex { url, source }),
        }
    }

    /// Fetches a body of any type, unparsed.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub async fn bytes(&self, url: &Url) -> Result<Bytes, FetchError> {
        let (url, answer) = self.answer(url, vec![]).await?;
        Ok(successful(&url, answer)?.body)
    }

    /// Sends a request and follows redirects. Returns the last URL and the answer from there,
    /// whatever the status.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(fetcher: simplefeed_client::fetch::Fetcher) -> Result<(), Box<dyn std::error::Error>> {
    /// let url = "https://example.org/feeds/orders".parse()?;
    /// let (from, answer) = fetcher.answer(&url, vec![("accept-encoding", "identity".into())]).await?;
    /// println!("{from}: {} {:?}", answer.status, answer.all("link").collect::<Vec<_>>());
    /// # Ok(()) }
    /// ```
    pub async fn answer(
        &self,
        url: &Url,
        headers: Vec<(&'static str, String)>,
    ) -> Result<(Url, Answer), FetchError> {
        let mut url = url.clone();
        // The first request is no redirect, so there is one request more than redirects.
        for _ in 0..=self.redirects_max {
            // Checked before each request: a redirect must not lead to a forbidden origin.
            if !self.may_ask(&url) {
                return Err(FetchError::Elsewhere { url });
            }
            let request = self.request_for(&url, &headers);
            let span = debug_span!("request", %url);
            let answer = self.transport.send(request).instrument(span).await;
            let answer = answer.map_err(|source| FetchError::Transport {
                url: url.clone(),
                source,
            })?;
            match redirect(&url, &answer) {
                Some(next) => url = next,
                None => return Ok((url, answer)),
            }
        }
        Err(FetchError::Redirects {
            url,
            max: self.redirects_max,
        })
    }

    fn request_for(&self, url: &Url, headers: &[(&'static str, String)]) -> Request {
        let mut headers = headers.to_vec();
        // Allowed origins do not get the token.
        if let Some(Authorization(value)) =
            self.token.as_ref().filter(|_| url.origin() == self.home)
        {
            headers.push(("authorization", value.clone()));
        }
        Request {
            method: Method::Get,
            url: url.clone(),
            headers,
            body: Bytes::new(),
            answer_bytes_max: self.document_bytes_max,
        }
    }
}

/// Returns a URL in the form for messages and files: without name and password, even if the text is
/// no valid URL.
pub(crate) fn without_userinfo(url: &str) -> String {
    let start = url.find("://").map_or(0, |scheme| scheme + 3);
    let (scheme, rest) = url.split_at(start);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    // The last `@`: a password may contain others.
    let host = authority.rfind('@').map_or(0, |at| at + 1);
    format!(
        "{scheme}{}{path}",
        authority.get(host..).unwrap_or_default()
    )
}

/// Returns the name and the password in a URL, decoded.
pub(crate) fn userinfo_of(url: &Url) -> (String, String) {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    (
        decoded(url.username()),
        decoded(url.password().unwrap_or_default()),
    )
}

/// Reads the document in an answer from `url`: the body, in the encoding that the media type names,
/// and the links in the header fields (RFC 8288).
///
/// # Errors
///
/// See [`ReadError`].
///
/// # Examples
///
/// ```
/// use simplefeed_client::transport::Answer;
///
/// let body = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id></feed>".into();
/// let headers = vec![("link".into(), "<1>; rel=prev-archive".into())];
/// let url = "https://example.org/news/recent".parse()?;
/// let answer = Answer { status: 200, headers, body };
/// let document = simplefeed_client::fetch::document_of(&url, &answer)?;
/// assert_eq!(document.link("prev-archive").unwrap().as_str(), "https://example.org/news/1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn document_of(url: &Url, answer: &Answer) -> Result<Document, ReadError> {
    // The charset of the media type takes precedence over the declaration in the document. The
    // clone shares the bytes, and copies none.
    let body = to_utf8(answer.body.clone(), charset(answer));
    let mut document = Document::read(body, url)?;
    for (target, rel) in answer.all("link").flat_map(links::links) {
        // Sound links of the server are no links of the document. Broken ones are added, so that
        // they show as faults.
        if !rel.starts_with(SERVER_RELS) || url.join(&target).is_err() {
            // The links of the document itself stay first.
            document.add_link(&rel, url, &target);
        }
    }
    Ok(document)
}

#[cfg(test)]
mod tests;
