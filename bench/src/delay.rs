//! A proxy that makes every request take longer, and counts.
//!
//! Shell: sockets, a thread for each direction of a connection.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What has passed a proxy.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Requests for anything but the archive index.
    pub(crate) requests: AtomicU64,
    /// Requests for the archive index.
    pub(crate) index_requests: AtomicU64,
    /// Bytes of answers.
    pub(crate) bytes: AtomicU64,
    /// How long each request is held up, in milliseconds.
    pub(crate) delay_millis: AtomicU64,
}

impl Passed {
    /// Begins to count again.
    pub(crate) fn reset(&self) {
        for counter in [&self.requests, &self.index_requests, &self.bytes] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// Starts a proxy in front of `address`. Returns its own address; it ends with the process.
pub(crate) fn start(address: &str) -> std::io::Result<(String, Arc<Passed>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let own = listener.local_addr()?.to_string();
    let passed = Arc::new(Passed::default());
    let (address, counted) = (address.to_owned(), Arc::clone(&passed));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&address) else {
                continue;
            };
            let _as_is = client
                .set_nodelay(true)
                .and_then(|()| server.set_nodelay(true));
            let (Ok(to_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else {
                continue;
            };
            let (asking, answering) = (Arc::clone(&counted), Arc::clone(&counted));
            std::thread::spawn(move || requests(client, server, &asking));
            std::thread::spawn(move || answers(from_server, to_client, &answering));
        }
    });
    Ok((own, passed))
}

fn requests(mut from: TcpStream, mut to: TcpStream, passed: &Passed) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let chunk = buffer.get(..read).unwrap_or_default();
        if chunk.starts_with(b"GET ") {
            let line = chunk
                .split(|byte| *byte == b'\r')
                .next()
                .unwrap_or_default();
            let is_index = line.windows(6).any(|window| window == b"/index");
            let counter = if is_index {
                &passed.index_requests
            } else {
                &passed.requests
            };
            counter.fetch_add(1, Ordering::Relaxed);
            let delay = passed.delay_millis.load(Ordering::Relaxed);
            std::thread::park_timeout(Duration::from_millis(delay));
        }
        if to.write_all(chunk).is_err() {
            break;
        }
    }
    let _ended_already = to.shutdown(Shutdown::Both);
}

fn answers(mut from: TcpStream, mut to: TcpStream, passed: &Passed) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let chunk = buffer.get(..read).unwrap_or_default();
        passed
            .bytes
            .fetch_add(u64::try_from(read).unwrap_or(0), Ordering::Relaxed);
        if to.write_all(chunk).is_err() {
            break;
        }
    }
    let _ended_already = to.shutdown(Shutdown::Both);
}
