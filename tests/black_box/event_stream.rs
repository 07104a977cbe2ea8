//! A reader of streams of events, by hand.
//!
//! Shell: sockets.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use simplefeed_core::push::{Message, Messages};

/// An open stream.
pub(crate) struct EventStream {
    pub(crate) status: u16,
    pub(crate) head: String,
    connection: BufReader<TcpStream>,
    messages: Messages,
    ready: VecDeque<Message>,
    /// Bytes of the body so far.
    pub(crate) body: Vec<u8>,
}

impl EventStream {
    pub(crate) fn open(address: &str, path: &str, headers: &[(&str, &str)]) -> io::Result<Self> {
        let mut connection = TcpStream::connect(address)?;
        connection.set_read_timeout(Some(Duration::from_mins(1)))?;
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        connection.write_all(request.as_bytes())?;
        let mut connection = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if connection.read_line(&mut head)? == 0 {
                return Err(io::Error::other("no head"));
            }
        }
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        Ok(Self {
            status: status.ok_or_else(|| io::Error::other("no status"))?,
            head: head.to_ascii_lowercase(),
            connection,
            messages: Messages::default(),
            ready: VecDeque::new(),
            body: vec![],
        })
    }

    /// Returns the next event; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            let chunk = self.chunk()?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let read = self.messages.take(&chunk).map_err(io::Error::other)?;
            self.ready.extend(read);
        }
    }

    /// Returns the first id, which may have no event.
    pub(crate) fn first_id(&mut self) -> String {
        loop {
            let text = String::from_utf8_lossy(&self.body).into_owned();
            let id = text.lines().find_map(|line| line.strip_prefix("id: "));
            if let Some(id) = id.filter(|_| text.ends_with("\n\n")) {
                return id.into();
            }
            let chunk = self.chunk().unwrap();
            assert!(!chunk.is_empty(), "the stream has ended");
        }
    }

    /// Reads the next chunk; an empty one is the end.
    fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let length = self.head.split("content-length: ").nth(1);
        if let Some(length) = length.and_then(|rest| rest.split("\r\n").next()) {
            let length: usize = length.parse().map_err(io::Error::other)?;
            let mut rest = vec![0; length - self.body.len()];
            self.connection.read_exact(&mut rest)?;
            self.body.extend_from_slice(&rest);
            return Ok(rest);
        }
        let mut size = String::new();
        self.connection.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; size + 2];
        self.connection.read_exact(&mut chunk)?;
        chunk.truncate(size);
        self.body.extend_from_slice(&chunk);
        Ok(chunk)
    }

    /// Returns the next events, so many of them.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Message> {
        let next = || self.next().unwrap().expect("the stream has ended");
        std::iter::repeat_with(next).take(count).collect()
    }
}
