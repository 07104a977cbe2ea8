//! HTTP/1.1 by hand, so that a test says exactly what is on the wire.
//!
//! Shell: sockets.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    host: bool,
}

impl Request {
    /// A request of any method without a body.
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            headers: vec![],
            body: vec![],
            host: true,
        }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub(crate) fn post(path: &str, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", path)
            .header("Content-Type", kind)
            .body(body)
    }

    pub(crate) fn put(path: &str, body: &str) -> Self {
        Self::new("PUT", path)
            .header("Content-Type", "application/json")
            .body(body)
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..self
        }
    }

    /// Leaves the Host header to the test.
    pub(crate) fn without_host(self) -> Self {
        Self {
            host: false,
            ..self
        }
    }

    pub(crate) fn send(&self, address: &str) -> io::Result<Response> {
        self.send_on(TcpStream::connect(address)?, address)
    }

    fn head(&self, address: &str, connection: &str) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\n{connection}", self.method, self.path);
        if self.host {
            head.push_str(&format!("Host: {address}\r\n"));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        head
    }

    /// Sends the request on a connection that is used again. The answer must have a length.
    pub(crate) fn send_and_keep(
        &self,
        stream: &mut TcpStream,
        address: &str,
    ) -> io::Result<Response> {
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        let mut request = self.head(address, "").into_bytes();
        request.extend_from_slice(&self.body);
        stream.write_all(&request)?;
        let (mut answer, mut piece) = (vec![], vec![0; 64 * 1024]);
        loop {
            let read = read(stream, &mut piece)?;
            if read == 0 {
                return Err(io::Error::other("the connection was closed"));
            }
            answer.extend_from_slice(&piece[..read]);
            if let Some(answer) = Response::parse(&answer) {
                let length = answer.maybe("content-length");
                let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
                if answer.body.len() >= length {
                    return Ok(answer);
                }
            }
        }
    }

    /// Sends the request on a connection to `address`, its only one.
    pub(crate) fn send_on(&self, stream: TcpStream, address: &str) -> io::Result<Response> {
        self.ask(stream, address, Duration::from_mins(1))
    }

    /// Sends it; the answer has to come within some time.
    pub(crate) fn send_within(&self, address: &str, time: Duration) -> io::Result<Response> {
        self.ask(TcpStream::connect(address)?, address, time)
    }

    fn ask(&self, mut stream: TcpStream, address: &str, time: Duration) -> io::Result<Response> {
        let head = self.head(address, "Connection: close\r\n");
        stream.set_read_timeout(Some(time))?;
        stream.write_all(head.as_bytes())?;
        // A server that refuses early closes before it has read all.
        let _refused = stream.write_all(&self.body);
        let mut answer = vec![];
        let mut piece = vec![0; 64 * 1024];
        // Of a stream without an end, only the head counts.
        while !is_event_stream(&answer) {
            match read(&mut stream, &mut piece) {
                Ok(0) => break,
                Ok(read) => answer.extend_from_slice(&piece[..read]),
                Err(error) if answer.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Response::parse(&answer).ok_or_else(|| io::Error::other("no answer"))
    }
}

/// Reads once. A read with a timeout is not resumed by itself when the machine was stopped for a while.
fn read(stream: &mut TcpStream, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Returns whether these bytes begin with the whole head of an endless answer.
fn is_event_stream(answer: &[u8]) -> bool {
    // The head is short. Without this bound, each piece of a large body would be searched again.
    let head = answer.get(..4_096).unwrap_or(answer);
    let end = head.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(head) = end.and_then(|end| head.get(..end)) else {
        return false;
    };
    String::from_utf8_lossy(head).contains("text/event-stream")
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    fn parse(answer: &[u8]) -> Option<Self> {
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&answer[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        });
        Some(Self {
            status,
            headers: headers.collect(),
            body: answer[end + 4..].to_vec(),
        })
    }

    /// Returns a header field that must be there.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        self.maybe(name)
            .unwrap_or_else(|| panic!("no {name} in {:?}", self.headers))
    }

    /// Returns a header field.
    pub(crate) fn maybe(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub(crate) fn is_immutable(&self) -> bool {
        self.status == 200 && self.header("cache-control").contains("immutable")
    }
}
