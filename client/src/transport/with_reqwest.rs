//! The default transport: reqwest.
//!
//! Shell: the network.

use std::{
    error::Error,
    future,
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use futures_util::{TryStreamExt as _, stream};
use hyper_util::client::proxy::matcher::Matcher;
use simplefeed_core::push::EVENTS_TYPE;

use super::{
    Answer, Answering, Method, Request, StreamedAnswer, Streaming, Timeouts, Transport,
    TransportError,
};

/// Number of compressed bytes that are decoded between two checks of the bound. This number of
/// bytes decodes to about 1 MiB at most.
const PACKED_BYTES: usize = 1024;

/// Initial capacity for a body, in bytes: most bodies are shorter.
const BODY_BYTES: usize = 64 * 1024;

/// A transport over reqwest, with rustls and the system's proxies.
///
/// # Examples
///
/// With more patience than the default:
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use simplefeed_client::{
///     Consumer,
///     transport::{Timeouts, with_reqwest::ReqwestTransport},
/// };
///
/// let patient = Timeouts { read: Duration::from_mins(1), ..Timeouts::default() };
/// let transport = ReqwestTransport::new(patient)?;
/// let feed = Consumer::builder("https://example.org/feeds/orders").transport(Arc::new(transport));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReqwestTransport {
    client: reqwest::Client,
    total: Duration,
    /// Proxies that the client uses by itself, for error messages.
    proxies: Arc<Matcher>,
}

impl ReqwestTransport {
    /// Returns a transport with these timeouts.
    ///
    /// # Errors
    ///
    /// Returns why reqwest cannot be set up.
    pub fn new(timeouts: Timeouts) -> Result<Self, TransportError> {
        // A process has one provider of cryptography. A program that chooses another one does so
        // before; then this call fails, and changes nothing.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = reqwest::Client::builder()
            .connect_timeout(timeouts.connect)
            .read_timeout(timeouts.read)
            // The fetcher follows redirects itself, because a token may not go everywhere.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("simplefeed/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(request_error)?;
        Ok(Self {
            client,
            total: timeouts.total,
            proxies: Arc::new(Matcher::from_system()),
        })
    }

    /// Returns the proxy that the environment names for a URL, without the proxy's password.
    fn proxy_for(&self, url: &str) -> Option<String> {
        let proxy = self.proxies.intercept(&url.parse().ok()?)?;
        let (scheme, authority) = (proxy.uri().scheme_str()?, proxy.uri().authority()?);
        let host = authority.as_str().rsplit('@').next()?;
        Some(format!("{scheme}://{host}"))
    }

    /// Sends a request, and returns the head of the answer.
    async fn begin_request(
        &self,
        request: Request,
        limit: Option<Duration>,
    ) -> Result<Incoming, TransportError> {
        let method = match request.method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
        };
        let through = self.proxy_for(request.url.as_str());
        let mut outgoing = self.client.request(method, request.url);
        let chosen = |(name, _): &(&str, String)| name.eq_ignore_ascii_case("accept-encoding");
        // A caller may ask for another coding, such as `identity`.
        if !request.headers.iter().any(chosen) {
            outgoing = outgoing.header("accept-encoding", "gzip");
        }
        for (name, value) in request.headers {
            outgoing = outgoing.header(name, value);
        }
        if !request.body.is_empty() {
            outgoing = outgoing.body(request.body);
        }
        if let Some(limit) = limit {
            outgoing = outgoing.timeout(limit);
        }
        let response = outgoing.send().await;
        let response = response.map_err(|error| {
            // A proxy may be the cause of a failed connection, so the message names the proxy.
            let through = through.filter(|_| error.is_connect());
            let mut error = request_error(error);
            if let Some(proxy) = through {
                error.detail = format!("{} through the proxy {proxy}", error.detail);
            }
            error
        })?;
        let status = response.status().as_u16();
        // Lossy, because a field value may have any bytes (RFC 9110, 5.5: `obs-text`).
        let headers = response.headers().iter().map(|(name, value)| {
            (
                name.as_str().into(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        });
        let mut headers: Vec<(String, String)> = headers.collect();
        let is_packed = |(name, value): &(String, String)| {
            let value = value.trim().to_ascii_lowercase();
            name == "content-encoding" && matches!(value.as_str(), "gzip" | "x-gzip")
        };
        let body = ResponseBody::new(request.answer_bytes_max, headers.iter().any(is_packed));
        // Length and coding describe the packed body, not the unpacked one.
        let is_packed = body.is_packed();
        headers.retain(|(name, _)| {
            !is_packed || !matches!(name.as_str(), "content-encoding" | "content-length")
        });
        Ok(Incoming {
            status,
            headers,
            response,
            body,
        })
    }

    async fn send_whole(&self, request: Request) -> Result<Answer, TransportError> {
        let mut incoming = self.begin_request(request, Some(self.total)).await?;
        let is_endless = incoming.headers.iter().any(|(name, value)| {
            name == "content-type" && value.to_ascii_lowercase().starts_with(EVENTS_TYPE)
        });
        if is_endless {
            return Err(TransportError {
                detail: "this is a stream of events, which has no end; give the URL of the feed"
                    .into(),
                transient: false,
                source: None,
            });
        }
        while let Some(chunk) = incoming.response.chunk().await.map_err(request_error)? {
            incoming.body.add_chunk(&chunk)?;
        }
        let mut body = incoming.body.end_body()?;
        // A document keeps its body, and should not keep unused memory with it.
        if body.len() < body.capacity() / 2 {
            body.shrink_to_fit();
        }
        Ok(Answer {
            status: incoming.status,
            headers: incoming.headers,
            body: body.into(),
        })
    }

    async fn send_in_pieces(&self, request: Request) -> Result<StreamedAnswer, TransportError> {
        let incoming = self.begin_request(request, None).await?;
        let (status, headers) = (incoming.status, incoming.headers);
        let rest = Some((incoming.response, incoming.body));
        let body = Box::pin(stream::try_unfold(rest, async |rest| {
            let Some((mut response, mut body)) = rest else {
                return Ok(None);
            };
            Ok(match response.chunk().await.map_err(request_error)? {
                Some(chunk) => {
                    body.add_chunk(&chunk)?;
                    let piece = body.take_ready()?;
                    Some((piece, Some((response, body))))
                }
                None => Some((body.end_body()?.into(), None)),
            })
        }));
        // A piece may unpack to nothing yet, and the end of a body may bring nothing more.
        let body = body.try_filter(|piece: &Bytes| future::ready(!piece.is_empty()));
        Ok(StreamedAnswer {
            status,
            headers,
            body: Box::pin(body),
        })
    }
}

/// An answer of which the head has come.
struct Incoming {
    status: u16,
    headers: Vec<(String, String)>,
    response: reqwest::Response,
    body: ResponseBody,
}

/// The body of an answer, unpacked as it comes.
struct ResponseBody {
    bytes: UnpackedBody,
    /// Bytes that were taken already.
    taken: usize,
    max: usize,
}

#[expect(clippy::large_enum_variant, reason = "one of it lives per answer")]
enum UnpackedBody {
    Plain(Vec<u8>),
    Gzip {
        decoder: MultiGzDecoder<Vec<u8>>,
        is_empty: bool,
    },
}

impl ResponseBody {
    fn new(max: usize, is_packed: bool) -> Self {
        // Most bodies need one allocation, however large the bound is.
        let bytes = Vec::with_capacity(BODY_BYTES.min(max));
        let bytes = if is_packed {
            // This decoder reads several members (RFC 1952, 2.2): some servers pack the parts of a
            // body separately.
            UnpackedBody::Gzip {
                decoder: MultiGzDecoder::new(bytes),
                is_empty: true,
            }
        } else {
            UnpackedBody::Plain(bytes)
        };
        Self {
            bytes,
            taken: 0,
            max,
        }
    }

    fn is_packed(&self) -> bool {
        matches!(self.bytes, UnpackedBody::Gzip { .. })
    }

    fn add_chunk(&mut self, chunk: &[u8]) -> Result<(), TransportError> {
        let (taken, max) = (self.taken, self.max);
        match &mut self.bytes {
            UnpackedBody::Plain(bytes) => {
                check_size(taken + bytes.len() + chunk.len(), max)?;
                bytes.extend_from_slice(chunk);
            }
            UnpackedBody::Gzip { decoder, is_empty } => {
                for piece in chunk.chunks(PACKED_BYTES) {
                    *is_empty = false;
                    decoder.write_all(piece).map_err(broken_off)?;
                    check_size(taken + decoder.get_ref().len(), max)?;
                }
            }
        }
        Ok(())
    }

    /// Takes out the bytes that can be unpacked by now.
    fn take_ready(&mut self) -> Result<Bytes, TransportError> {
        let bytes = match &mut self.bytes {
            UnpackedBody::Plain(bytes) => bytes,
            UnpackedBody::Gzip { decoder, .. } => {
                // The decoder keeps up to 32 KiB back until a flush.
                decoder.flush().map_err(broken_off)?;
                decoder.get_mut()
            }
        };
        let bytes = std::mem::take(bytes);
        self.taken += bytes.len();
        check_size(self.taken, self.max)?;
        Ok(bytes.into())
    }

    /// Returns the bytes that were not taken, if the body is complete.
    fn end_body(self) -> Result<Vec<u8>, TransportError> {
        let bytes = match self.bytes {
            UnpackedBody::Plain(bytes) => bytes,
            // A 304 has `Content-Encoding` and no body.
            UnpackedBody::Gzip { is_empty: true, .. } => vec![],
            UnpackedBody::Gzip { mut decoder, .. } => {
                decoder.try_finish().map_err(broken_off)?;
                // The end may unpack to more than the bound allows.
                check_size(self.taken + decoder.get_ref().len(), self.max)?;
                decoder.finish().map_err(broken_off)?
            }
        };
        Ok(bytes)
    }
}

fn check_size(bytes: usize, max: usize) -> Result<(), TransportError> {
    if bytes <= max {
        return Ok(());
    }
    Err(TransportError {
        detail: format!("the answer is longer than {max} bytes"),
        transient: false,
        source: None,
    })
}

/// A body that does not unpack counts as truncated, so the request is retried.
fn broken_off(error: io::Error) -> TransportError {
    TransportError {
        detail: "the answer broke off".into(),
        transient: true,
        source: Some(Box::new(error)),
    }
}

impl Transport for ReqwestTransport {
    fn send(&self, request: Request) -> Answering<'_> {
        Box::pin(self.send_whole(request))
    }

    fn stream(&self, request: Request) -> Streaming<'_> {
        Box::pin(self.send_in_pieces(request))
    }
}

/// Returns the error of a request. A request that failed on the way may succeed later; a request
/// that could not be made will not.
fn request_error(error: reqwest::Error) -> TransportError {
    let is_no_tls = is_no_tls(&error);
    let transient = !error.is_builder() && !is_no_tls;
    let detail = if is_no_tls {
        "the server does not speak TLS at this address"
    } else if error.is_connect() {
        "cannot connect"
    } else if error.is_timeout() {
        "the server took too long"
    } else if error.is_decode() || error.is_body() {
        "the answer broke off"
    } else {
        "the request failed"
    };
    TransportError {
        detail: detail.into(),
        transient,
        source: Some(Box::new(error.without_url())),
    }
}

/// Returns whether the other side sent something else than TLS.
fn is_no_tls(error: &dyn Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(rustls::Error::InvalidMessage(_)) = error.downcast_ref() {
            return true;
        }
        // `source` of an I/O error skips the error inside, and returns the source of that error.
        let held = error.downcast_ref().and_then(io::Error::get_ref);
        cause = held.map_or_else(|| error.source(), |held| Some(held));
    }
    false
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use super::*;

    /// Goal: a small answer that unpacks to a large one is given up at the bound.
    #[tokio::test]
    async fn an_answer_is_bounded_as_it_unpacks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url: url::Url = format!("http://{}/", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
        packed.write_all(&vec![b' '; 4_000_000]).unwrap();
        let packed = packed.finish().unwrap();
        assert!(packed.len() < 10_000);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _request = stream.read(&mut [0; 4_096]).unwrap();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    packed.len()
                );
                stream.write_all(head.as_bytes()).unwrap();
                // The other side may have had enough.
                let _given_up = stream.write_all(&packed);
            }
        });
        let transport = ReqwestTransport::new(Timeouts::default()).unwrap();
        let request = |answer_bytes_max| Request {
            method: Method::Get,
            url: url.clone(),
            headers: vec![],
            body: Bytes::new(),
            answer_bytes_max,
        };
        let error = transport.send(request(3_999_999)).await.unwrap_err();
        assert!(
            !error.transient && error.detail.contains("3999999 bytes"),
            "{error}"
        );
        assert_eq!(
            transport.send(request(4_000_000)).await.unwrap().body.len(),
            4_000_000
        );
    }

    /// Goal: a streamed answer comes piece by piece, plain or packed; it has no bound in time, but
    /// one in bytes.
    #[tokio::test]
    async fn a_stream_comes_as_it_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url: url::Url = format!("http://{}/", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let (went_on, go_on) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            for coding in ["identity", "gzip", "identity"] {
                let (mut stream, _) = listener.accept().unwrap();
                let _request = stream.read(&mut [0; 4_096]).unwrap();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).unwrap();
                let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
                for text in ["one", "two"] {
                    // Only now: the reader has seen the head, or the piece before.
                    go_on.recv().unwrap();
                    if coding == "gzip" {
                        packed.write_all(text.as_bytes()).unwrap();
                        packed.flush().unwrap();
                        stream.write_all(&std::mem::take(packed.get_mut())).unwrap();
                    } else {
                        stream.write_all(text.as_bytes()).unwrap();
                    }
                }
                let rest = packed.finish().unwrap();
                if coding == "gzip" {
                    stream.write_all(&rest).unwrap();
                }
            }
        });
        // No time at all for a whole answer: a stream must not heed this timeout.
        let timeouts = Timeouts {
            total: Duration::ZERO,
            ..Timeouts::default()
        };
        let transport = ReqwestTransport::new(timeouts).unwrap();
        let request = |answer_bytes_max| Request {
            method: Method::Get,
            url: url.clone(),
            headers: vec![],
            body: Bytes::new(),
            answer_bytes_max,
        };
        for _ in ["plain", "packed"] {
            let mut answer = transport.stream(request(6)).await.unwrap();
            assert_eq!(answer.status, 200);
            for text in ["one", "two"] {
                went_on.send(()).unwrap();
                let piece = answer.body.try_next().await.unwrap().unwrap();
                assert_eq!(piece, text);
            }
            assert!(answer.body.try_next().await.unwrap().is_none());
        }
        let mut answer = transport.stream(request(5)).await.unwrap();
        went_on.send(()).unwrap();
        assert_eq!(answer.body.try_next().await.unwrap().unwrap(), "one");
        went_on.send(()).unwrap();
        let too_long = answer.body.try_next().await.unwrap_err();
        assert!(too_long.detail.contains("5 bytes"), "{too_long}");
    }

    /// Some servers pack each part of an answer separately (RFC 1952, 2.2).
    #[tokio::test]
    async fn an_answer_of_several_members_is_unpacked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let pack = |text: &str| {
            let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
            packed.write_all(text.as_bytes()).unwrap();
            packed.finish().unwrap()
        };
        let whole = [pack("one, "), pack("two")].concat();
        std::thread::spawn(move || {
            for cut in [0, 9] {
                let (mut stream, _) = listener.accept().unwrap();
                let _request = stream.read(&mut [0; 4_096]).unwrap();
                let packed = &whole[..whole.len() - cut];
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    packed.len()
                );
                stream
                    .write_all(&[head.as_bytes(), packed].concat())
                    .unwrap();
            }
        });
        let transport = ReqwestTransport::new(Timeouts::default()).unwrap();
        let request = || Request {
            method: Method::Get,
            url: url.parse().unwrap(),
            headers: vec![],
            body: Bytes::new(),
            answer_bytes_max: 100,
        };
        let answer = transport.send(request()).await.unwrap();
        assert_eq!(&answer.body[..], b"one, two");
        assert_eq!(answer.header("content-encoding"), None);
        let cut_short = transport.send(request()).await.unwrap_err();
        assert!(cut_short.transient, "{cut_short}");
    }
}
