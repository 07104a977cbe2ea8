//! HTTP as a consumer uses it: what to ask, and what an answer means.
//!
//! Pure, but for handing the request to the transport.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use data_encoding::BASE64;
use simplefeed_core::{
    index::IndexBlock,
    limits::{CLIENT_DOCUMENT_BYTES_MAX, REDIRECTS_MAX},
    reader::{Document, ReadError},
    replay::Validators,
};
use url::{Origin, Url};

use crate::transport::{Answer, Method, Request, Transport, TransportError};

mod answer;

pub use answer::Freshness;
use answer::{check_type, last_modified, redirect, successful};
pub(crate) use answer::{problem_detail, retry_after};

const ATOM_TYPES: &str = "application/atom+xml, application/xml;q=0.5";
const INDEX_TYPE: &str = "application/json";

/// Why a document could not be had.
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
    /// There was no answer.
    #[error("cannot fetch {url}")]
    Transport {
        /// What was asked for.
        url: Url,
        /// What went wrong on the way.
        source: TransportError,
    },
    /// The document does not exist, or not any more.
    #[error("there is nothing at {url} (status {status})")]
    Missing {
        /// What was asked for.
        url: Url,
        /// 404 or 410.
        status: u16,
    },
    /// The server wants to know who asks, or does not want this one to.
    #[error("not authorised to read {url} (status {status})")]
    Unauthorized {
        /// What was asked for.
        url: Url,
        /// 401 or 403.
        status: u16,
    },
    /// The server answered something else than the document.
    #[error("{url} answered with status {status}: {detail}")]
    Status {
        /// What was asked for.
        url: Url,
        /// The status.
        status: u16,
        /// What the server says about it.
        detail: String,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// The answer is no feed document.
    #[error("{url} is not a feed document")]
    Malformed {
        /// Where it came from.
        url: Url,
        /// What is wrong with it.
        source: ReadError,
    },
    /// The answer is no archive index.
    #[error("{url} is not an archive index")]
    NotAnIndex {
        /// Where it came from.
        url: Url,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// One redirect led to the next.
    #[error("more than {max} redirects, the last to {url}")]
    Redirects {
        /// Where the last one led.
        url: Url,
        /// The bound.
        max: usize,
    },
    /// The answer is of another kind: an HTML page, for instance.
    #[error("{url} is {found}, not a feed document")]
    OtherType {
        /// Where it came from.
        url: Url,
        /// Its media type.
        found: String,
    },
}

impl FetchError {
    /// Returns whether the same request may succeed later with nothing changed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Transport { source, .. } => source.transient,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            // A body cut short looks like this, too; a page for people does not.
            Self::Malformed { source, .. } => !matches!(source, ReadError::NotAFeed { .. }),
            Self::Missing { .. }
            | Self::Unauthorized { .. }
            | Self::NotAnIndex { .. }
            | Self::Redirects { .. }
            | Self::OtherType { .. } => false,
        }
    }

    /// Returns how long the server asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// A document, or the news that the one known has not changed.
///
/// # Examples
///
/// ```no_run
/// use simplefeed_client::{fetch::{Fetched, Fetcher}, transport};
/// use simplefeed_core::replay::Validators;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let fetcher = Fetcher::new(transport::ready_made()?);
/// let url = "https://example.org/feeds/orders".parse()?;
/// let known = Validators { etag: Some("\"abc\"".into()), last_modified: None };
/// match fetcher.document(&url, &known, false).await? {
///     Fetched::NotModified { .. } => println!("nothing new"),
///     Fetched::Document { document, freshness, .. } => {
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
pub enum Fetched {
    /// 304.
    NotModified {
        /// How long what is known stays fresh.
        freshness: Freshness,
    },
    /// A document.
    Document {
        /// Where it came from, after redirects.
        url: Url,
        /// What it says.
        document: Document,
        /// What it can be recognised by.
        validators: Validators,
        /// How long it stays fresh.
        freshness: Freshness,
    },
}

/// Fetches documents: follows redirects, and tells its token only to whom it belongs.
///
/// # Examples
///
/// ```no_run
/// use simplefeed_client::{fetch::Fetcher, transport};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "https://example.org/feeds/orders".parse()?;
/// let fetcher = Fetcher::new(transport::ready_made()?).document_bytes_max(1024 * 1024);
/// let bytes = fetcher.bytes(&url).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Fetcher {
    transport: Arc<dyn Transport>,
    document_bytes_max: usize,
    token: Option<Token>,
}

/// A secret for one origin.
#[derive(Clone)]
struct Token {
    origin: Origin,
    /// The value of the header field.
    value: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Returns a fetcher over a transport.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self {
            transport,
            document_bytes_max: CLIENT_DOCUMENT_BYTES_MAX,
            token: None,
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

    /// Sends a bearer token (RFC 6750) with every request to the origin of `url`, and with no other:
    /// neither a redirect nor a link can lead it elsewhere.
    #[must_use]
    pub fn bearer_token(self, url: &Url, token: impl Into<String>) -> Self {
        self.authorization(url, format!("Bearer {}", token.into()))
    }

    /// Sends a name and a password (RFC 7617) as [`bearer_token`](Self::bearer_token) sends a token.
    #[must_use]
    pub(crate) fn password(self, url: &Url, name: &str, password: &str) -> Self {
        let credentials = BASE64.encode(format!("{name}:{password}").as_bytes());
        self.authorization(url, format!("Basic {credentials}"))
    }

    fn authorization(self, url: &Url, value: String) -> Self {
        let origin = url.origin();
        Self {
            token: Some(Token { origin, value }),
            ..self
        }
    }

    /// Fetches a feed document; `again` past all caches.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub async fn document(
        &self,
        url: &Url,
        known: &Validators,
        again: bool,
    ) -> Result<Fetched, FetchError> {
        let mut headers = vec![("accept", ATOM_TYPES.into())];
        if let Some(etag) = &known.etag {
            headers.push(("if-none-match", etag.clone()));
        } else if let Some(date) = &known.last_modified {
            headers.push(("if-modified-since", date.clone()));
        }
        if again {
            headers.push(("cache-control", "no-cache".into()));
        }
        let (url, answer) = self.get(url, headers).await?;
        let freshness = Freshness::of(&answer);
        if answer.status == 304 && *known != Validators::default() {
            return Ok(Fetched::NotModified { freshness });
        }
        let answer = successful(&url, answer)?;
        check_type(&url, &answer)?;
        let validators = Validators {
            etag: answer.header("etag").map(Into::into),
            last_modified: last_modified(&answer),
        };
        match Document::read(answer.body, &url) {
            Ok(document) => Ok(Fetched::Document {
                url,
                document,
                validators,
                freshness,
            }),
            Err(source) => Err(FetchError::Malformed { url, source }),
        }
    }

    /// Fetches a block of an archive index. Returns where it came from, too.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub async fn index(&self, url: &Url) -> Result<(Url, IndexBlock), FetchError> {
        let (url, answer) = self.get(url, vec![("accept", INDEX_TYPE.into())]).await?;
        let answer = successful(&url, answer)?;
        match IndexBlock::read(&answer.body) {
            Ok(block) => Ok((url, block)),
            Err(source) => Err(FetchError::NotAnIndex { url, source }),
        }
    }

    /// Fetches anything as it is.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub async fn bytes(&self, url: &Url) -> Result<Bytes, FetchError> {
        let (url, answer) = self.get(url, vec![]).await?;
        Ok(successful(&url, answer)?.body)
    }

    /// Asks, and follows redirects. Returns where the answer came from, too.
    async fn get(
        &self,
        url: &Url,
        headers: Vec<(&'static str, String)>,
    ) -> Result<(Url, Answer), FetchError> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let request = self.request(&url, &headers);
            let answer = self.transport.send(request).await;
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
            max: REDIRECTS_MAX,
        })
    }

    fn request(&self, url: &Url, headers: &[(&'static str, String)]) -> Request {
        let mut headers = headers.to_vec();
        if let Some(token) = self
            .token
            .as_ref()
            .filter(|token| token.origin == url.origin())
        {
            headers.push(("authorization", token.value.clone()));
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

#[cfg(test)]
mod tests;
