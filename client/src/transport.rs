//! The seam to HTTP: one request, and one answer, whole or in pieces.
//!
//! Pure: the trait and its types. An embedder or a test can bring another transport; proxies,
//! connection pools, TLS and content codings are the job of the transport. Redirects are not: the
//! layer above decides where a token may go.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream;
use simplefeed_core::limits::{CONNECT_SECONDS, READ_SECONDS, REQUEST_SECONDS};
use url::Url;

#[cfg(feature = "reqwest")]
pub mod with_reqwest;

/// A request, with its whole body.
#[derive(Clone, Debug)]
pub struct Request {
    /// HTTP method of the request.
    pub method: Method,
    /// URL that the request goes to.
    pub url: Url,
    /// Header fields; names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body, empty for a GET.
    pub body: Bytes,
    /// Greatest length of the answer's body to accept, in decoded bytes.
    pub answer_bytes_max: usize,
}

/// Methods that the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads a document, an index block, settings or a stream.
    Get,
    /// Publishes a batch of entries, or changes the follows of a timeline.
    Post,
    /// Creates a feed or a timeline, or changes settings.
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

/// Future of [`Transport::send`].
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Answer, TransportError>> + Send + 'a>>;

/// An answer whose body is still on its way.
pub struct StreamedAnswer {
    /// Status code, be it of a redirect or an error.
    pub status: u16,
    /// Header fields; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body without its content coding.
    pub body: Pieces,
}

/// Body in pieces, in the order of their arrival. A piece may be of any size, and end anywhere.
pub type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, TransportError>> + Send>>;

/// Future of [`Transport::stream`].
pub type Streaming<'a> =
    Pin<Box<dyn Future<Output = Result<StreamedAnswer, TransportError>> + Send + 'a>>;

impl fmt::Debug for StreamedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamedAnswer")
            .field("status", &self.status)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

impl From<Answer> for StreamedAnswer {
    /// Returns the answer with its whole body as one piece.
    fn from(answer: Answer) -> Self {
        Self {
            status: answer.status,
            headers: answer.headers,
            body: Box::pin(stream::iter([Ok(answer.body)])),
        }
    }
}

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
    /// Sends one request and returns the answer, even if that is a redirect. A drop of the future
    /// gives the request up.
    fn send(&self, request: Request) -> Answering<'_>;

    /// Sends one request and returns the answer as soon as the head has come. A drop of the body
    /// gives up the rest.
    ///
    /// The default waits for the whole answer, as [`send`](Self::send) does. An answer without an
    /// end, such as a stream of events, needs a transport with its own `stream`; the default
    /// transport has one.
    ///
    /// # Examples
    ///
    /// A transport that counts the bytes of the pieces as they pass:
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
    /// use futures_util::TryStreamExt as _;
    /// use simplefeed_client::{
    ///     Transport,
    ///     transport::{Answering, Pieces, Request, StreamedAnswer, Streaming},
    /// };
    ///
    /// #[derive(Debug)]
    /// struct Counting {
    ///     inner: Arc<dyn Transport>,
    ///     bytes: Arc<AtomicUsize>,
    /// }
    ///
    /// impl Transport for Counting {
    ///     fn send(&self, request: Request) -> Answering<'_> {
    ///         self.inner.send(request)
    ///     }
    ///
    ///     fn stream(&self, request: Request) -> Streaming<'_> {
    ///         let bytes = Arc::clone(&self.bytes);
    ///         Box::pin(async move {
    ///             let answer: StreamedAnswer = self.inner.stream(request).await?;
    ///             let count = move |piece: &simplefeed_client::Bytes| {
    ///                 bytes.fetch_add(piece.len(), Ordering::Relaxed);
    ///             };
    ///             let body: Pieces = Box::pin(answer.body.inspect_ok(count));
    ///             Ok(StreamedAnswer { body, ..answer })
    ///         })
    ///     }
    /// }
    /// ```
    ///
    /// A stream, read piece by piece:
    ///
    /// ```no_run
    /// use futures_util::TryStreamExt as _;
    /// use simplefeed_client::{
    ///     Bytes,
    ///     transport::{Method, Request, Timeouts, default_transport},
    /// };
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let request = Request {
    ///     method: Method::Get,
    ///     url: "https://example.org/feeds/orders".parse()?,
    ///     headers: vec![("accept", "text/event-stream".into())],
    ///     body: Bytes::new(),
    ///     answer_bytes_max: usize::MAX,
    /// };
    /// let transport = default_transport(Timeouts::default())?;
    /// let mut answer = transport.stream(request).await?;
    /// while let Some(piece) = answer.body.try_next().await? {
    ///     println!("{} bytes", piece.len());
    /// }
    /// # Ok(()) }
    /// ```
    fn stream(&self, request: Request) -> Streaming<'_> {
        Box::pin(async move { Ok(self.send(request).await?.into()) })
    }
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
    /// Longest time to connect; 5 s by default.
    pub connect: Duration,
    /// Longest time without new bytes, of a streamed answer, too; 20 s by default.
    pub read: Duration,
    /// Longest time until the answer is complete; 2 minutes by default. A
    /// [streamed](Transport::stream) answer has no such bound.
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
/// Returns why the transport cannot be set up on this machine.
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
