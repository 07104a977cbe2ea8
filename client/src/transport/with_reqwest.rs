//! The default transport: reqwest.
//!
//! Shell: the network.

use std::{
    error::Error,
    io::{self, Write as _},
};

use flate2::write::MultiGzDecoder;

use super::{Answer, Answering, Method, Request, Timeouts, Transport, TransportError};

/// The packed bytes that are unpacked at a time, before the bound is looked at: at most a thousand times as many.
const PACKED_BYTES: usize = 1024;

/// The bytes that most bodies have at most, unpacked.
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
}

impl ReqwestTransport {
    /// Returns a transport with these timeouts.
    ///
    /// # Errors
    ///
    /// Returns why reqwest cannot be set up.
    pub fn new(timeouts: Timeouts) -> Result<Self, TransportError> {
        // Another part of the program may have chosen its provider; ours is as good.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = reqwest::Client::builder()
            .connect_timeout(timeouts.connect)
            .read_timeout(timeouts.read)
            .timeout(timeouts.total)
            // The fetcher follows redirects itself, because a token may not go everywhere.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("simplefeed/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(failed)?;
        Ok(Self { client })
    }

    async fn exchange(&self, request: Request) -> Result<Answer, TransportError> {
        let method = match request.method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
        };
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
        let mut incoming = outgoing.send().await.map_err(failed)?;
        let status = incoming.status().as_u16();
        let headers = incoming.headers().iter().map(|(name, value)| {
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
        let mut body = Body::new(request.answer_bytes_max, headers.iter().any(is_packed));
        // Length and coding describe the packed body, not the unpacked one.
        let is_told = body.is_packed();
        headers.retain(|(name, _)| {
            !is_told || !matches!(name.as_str(), "content-encoding" | "content-length")
        });
        while let Some(chunk) = incoming.chunk().await.map_err(failed)? {
            body.add(&chunk)?;
        }
        Ok(Answer {
            status,
            headers,
            body: body.end()?.into(),
        })
    }
}

/// The body of an answer as it comes.
#[expect(clippy::large_enum_variant, reason = "one of it lives per answer")]
enum Body {
    Plain {
        bytes: Vec<u8>,
        max: usize,
    },
    Packed {
        bytes: MultiGzDecoder<Vec<u8>>,
        max: usize,
        is_empty: bool,
    },
}

impl Body {
    fn new(max: usize, is_packed: bool) -> Self {
        // Most bodies need one allocation, however large the bound is.
        let bytes = Vec::with_capacity(BODY_BYTES.min(max));
        if is_packed {
            // Of several members, too (RFC 1952, 2.2): some servers pack a header and a body apart.
            let bytes = MultiGzDecoder::new(bytes);
            let is_empty = true;
            return Self::Packed {
                bytes,
                max,
                is_empty,
            };
        }
        Self::Plain { bytes, max }
    }

    fn is_packed(&self) -> bool {
        matches!(self, Self::Packed { .. })
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), TransportError> {
        match self {
            Self::Plain { bytes, max } => {
                check(bytes.len() + chunk.len(), *max)?;
                bytes.extend_from_slice(chunk);
            }
            Self::Packed {
                bytes,
                max,
                is_empty,
            } => {
                for piece in chunk.chunks(PACKED_BYTES) {
                    *is_empty = false;
                    bytes.write_all(piece).map_err(broken)?;
                    check(bytes.get_ref().len(), *max)?;
                }
            }
        }
        Ok(())
    }

    fn end(self) -> Result<Vec<u8>, TransportError> {
        let mut body = match self {
            Self::Plain { bytes, .. } => bytes,
            // A 304 has `Content-Encoding` and no body.
            Self::Packed { is_empty: true, .. } => vec![],
            Self::Packed { mut bytes, max, .. } => {
                bytes.try_finish().map_err(broken)?;
                check(bytes.get_ref().len(), max)?;
                bytes.finish().map_err(broken)?
            }
        };
        // A document keeps its body, and should not keep unused memory with it.
        if body.len() < body.capacity() / 2 {
            body.shrink_to_fit();
        }
        Ok(body)
    }
}

fn check(bytes: usize, max: usize) -> Result<(), TransportError> {
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
fn broken(error: io::Error) -> TransportError {
    TransportError {
        detail: "the answer broke off".into(),
        transient: true,
        source: Some(Box::new(error)),
    }
}

impl Transport for ReqwestTransport {
    fn send(&self, request: Request) -> Answering<'_> {
        Box::pin(self.exchange(request))
    }
}

/// A request that failed on the way may succeed later; one that could not be made will not.
fn failed(error: reqwest::Error) -> TransportError {
    let is_no_tls = is_no_tls(&error);
    let transient = !error.is_builder() && !is_no_tls;
    let detail = if is_no_tls {
        "the server does not speak TLS there, as https has it"
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
        // The source of an I/O error is that of the error it holds.
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
            body: bytes::Bytes::new(),
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

    /// Some servers pack each part of an answer apart (RFC 1952, 2.2).
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
            body: bytes::Bytes::new(),
            answer_bytes_max: 100,
        };
        let answer = transport.send(request()).await.unwrap();
        assert_eq!(&answer.body[..], b"one, two");
        assert_eq!(answer.header("content-encoding"), None);
        let cut_short = transport.send(request()).await.unwrap_err();
        assert!(cut_short.transient, "{cut_short}");
    }
}
