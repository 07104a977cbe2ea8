//! The seam to HTTP: one request, one answer.
//!
//! Pure: the trait and its types. An embedder or a test can bring another transport; proxies, connection pools, TLS
//! and content codings are its job. Redirects are not: the layer above decides where a token may go.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use simplefeed_core::limits::{CONNECT_SECONDS, READ_SECONDS, REQUEST_SECONDS};
use url::Url;

#[cfg(feature = "reqwest")]
pub mod with_reqwest;

/// A request, with its whole body.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method of the request: read, publish or create.
    pub method: Method,
    /// URL that the request goes to.
    pub url: Url,
    /// Header fields; names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body, empty for a GET.
    pub body: Bytes,
    /// The most decoded bytes of the answer's body to accept.
    pub answer_bytes_max: usize,
}

/// Methods that the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads a document, an index block or a list.
    Get,
    /// Publishes a batch of entries.
    Post,
    /// Creates a feed with an id.
    Put,
}

/// An answer, complete and decoded.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code, be it of a redirect or an error.
    pub status: u16,
    /// Header fields; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body without its content coding.
    pub body: Bytes,
}

impl Answer {
    /// Returns the first header field of this name, given in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Returns all header fields of this name, given in lower case.
    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        // Both are in lower case, so the comparison is exact.
        let named = self.headers.iter().filter(move |(field, _)| field == name);
        named.map(|(_, value)| value.as_str())
    }
}

/// Failure to get an answer.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub struct TransportError {
    /// Message, lower case, without a period.
    pub detail: String,
    /// Whether the same request may succeed later.
    pub transient: bool,
    /// Error of the HTTP library or the network, if there is one.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// An answer to come.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Answer, TransportError>> + Send + 'a>>;

/// Sends requests.
///
/// # Examples
///
/// A feed without a network:
///
/// ```
/// use std::sync::Arc;
/// use simplefeed_client::{
///     Consumer, Transport,
///     transport::{Answer, Answering, Method, Request, TransportError},
/// };
///
/// #[derive(Debug)]
/// struct InMemory(&'static str);
///
/// impl Transport for InMemory {
///     fn send(&self, request: Request) -> Answering<'_> {
///         Box::pin(async move {
///             if request.method != Method::Get {
///                 let detail = "there is only reading here".into();
///                 return Err(TransportError { detail, transient: false, source: None });
///             }
///             let headers = vec![("content-type".into(), "application/atom+xml".into())];
///             let answer = Answer { status: 200, headers, body: self.0.into() };
///             assert_eq!(answer.header("content-type"), Some("application/atom+xml"));
///             Ok(answer)
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let feed = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
///     <entry><id>urn:1</id></entry></feed>";
/// let mut feed = Consumer::builder("https://example.org/feeds/orders")
///     .transport(Arc::new(InMemory(feed)))
///     .build()?;
/// assert_eq!(feed.next().await?.unwrap().id(), "urn:1");
/// assert!(feed.next().await?.is_none());
/// # Ok(()) }
/// ```
pub trait Transport: fmt::Debug + Send + Sync {
    /// Sends one request and returns its answer, be it a redirect. Dropping the future gives it up.
    fn send(&self, request: Request) -> Answering<'_>;
}

/// How long a request may take.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use simplefeed_client::transport::Timeouts;
///
/// let patient = Timeouts { total: Duration::from_mins(10), ..Timeouts::default() };
/// assert_eq!(patient.connect, Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection; 5 s by default.
    pub connect: Duration,
    /// Until there are more bytes; 20 s by default.
    pub read: Duration,
    /// Until the answer is complete; 2 minutes by default.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(CONNECT_SECONDS),
            read: Duration::from_secs(READ_SECONDS),
            total: Duration::from_secs(REQUEST_SECONDS),
        }
    }
}

/// Returns the default transport, which is over reqwest.
///
/// # Errors
///
/// Returns why it cannot be set up on this machine.
#[cfg(feature = "reqwest")]
pub fn default_transport(timeouts: Timeouts) -> Result<Arc<dyn Transport>, TransportError> {
    Ok(Arc::new(with_reqwest::ReqwestTransport::new(timeouts)?))
}

/// Without the feature `reqwest` there is no default transport.
///
/// # Errors
///
/// Always.
#[cfg(not(feature = "reqwest"))]
pub fn default_transport(_: Timeouts) -> Result<Arc<dyn Transport>, TransportError> {
    let detail = "no transport was given, and the feature reqwest is off".into();
    Err(TransportError {
        detail,
        transient: false,
        source: None,
    })
}
