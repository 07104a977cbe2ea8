//! Load: wrk for reads, threads with kept-alive connections for appends.
//!
//! Shell: sockets. Its own CPU is never counted as a server's.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::process::Program;

/// What one measurement of reads gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    pub(crate) per_second: f64,
    pub(crate) cpu_micros: f64,
    pub(crate) p99_micros: f64,
}

/// Reads a URL over 64 connections for some seconds.
pub(crate) fn read(
    program: &Program,
    path: &str,
    headers: &[(&str, &str)],
    seconds: u64,
) -> anyhow::Result<Reads> {
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", "-c64", "--latency"])
        .arg(format!("-d{seconds}s"));
    for (name, value) in headers {
        wrk.arg("-H").arg(format!("{name}: {value}"));
    }
    let before = program.cpu_micros()?;
    let output = wrk
        .arg(format!("http://{}{path}", program.address))
        .output();
    let output = output.context("wrk is missing: apt-get install wrk")?;
    let used = program.cpu_micros()? - before;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("Socket errors") {
        bail!("wrk: {said}");
    }
    let field = |name: &str| {
        said.lines()
            .find_map(|line| line.trim().strip_prefix(name))
            .map(str::trim)
    };
    let per_second: f64 = field("Requests/sec:")
        .context("wrk says how many")?
        .parse()?;
    let requests = said
        .lines()
        .find_map(|line| line.trim().split_once(" requests in"))
        .map(|(count, _)| count);
    let requests: f64 = requests.context("wrk counts")?.parse()?;
    let p99 = field("99%")
        .and_then(micros)
        .context("wrk tells latencies")?;
    Ok(Reads {
        per_second,
        cpu_micros: used / requests,
        p99_micros: p99,
    })
}

fn micros(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_alphabetic())?;
    let (number, unit) = text.split_at_checked(unit)?;
    let factor = match unit {
        "us" => 1.0,
        "ms" => 1_000.0,
        "s" => 1_000_000.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// A connection that is kept.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: vec![],
        })
    }

    /// Sends a request and reads the whole answer. Returns its head in lower case.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> io::Result<String> {
        self.answer(request).map(|(head, _)| head)
    }

    /// Sends a request. Returns the answer's head, names in lower case, and body.
    pub(crate) fn answer(&mut self, request: &[u8]) -> io::Result<(String, Vec<u8>)> {
        self.stream.write_all(request)?;
        self.buffer.clear();
        let mut chunk = [0; 16 * 1024];
        loop {
            let read = self.stream.read(&mut chunk)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffer
                .extend_from_slice(chunk.get(..read).unwrap_or_default());
            let Some(end) = self
                .buffer
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
            else {
                continue;
            };
            let head = String::from_utf8_lossy(self.buffer.get(..end).unwrap_or_default());
            let fields = head.lines().map(|line| match line.split_once(": ") {
                Some((name, value)) => format!("{}: {value}\n", name.to_ascii_lowercase()),
                None => format!("{}\n", line.to_ascii_lowercase()),
            });
            let head = fields.collect::<Vec<_>>().concat();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let body = self.buffer.get(end + 4..).unwrap_or_default();
            if body.len() >= length.unwrap_or(0_usize) {
                return Ok((head, body.to_vec()));
            }
        }
    }
}

/// Returns the request that publishes NDJSON.
pub(crate) fn publish(feed: &str, body: &str) -> Vec<u8> {
    format!(
        "POST /feeds/{feed} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Appends over `connections` connections for some seconds, `batch` entries a request. Returns the
/// durable entries per second.
pub(crate) fn append(
    address: &str,
    feed: &str,
    connections: usize,
    batch: usize,
    seconds: u64,
) -> anyhow::Result<f64> {
    let (done, serial) = (AtomicU64::new(0), AtomicU64::new(0));
    let started = Instant::now();
    let deadline = started + Duration::from_secs(seconds);
    std::thread::scope(|threads| {
        let work = || -> anyhow::Result<()> {
            let mut connection = Connection::open(address)?;
            while Instant::now() < deadline {
                let body: Vec<String> = (0..batch)
                    .map(|_| event(serial.fetch_add(1, Ordering::Relaxed)))
                    .collect();
                let head = connection.exchange(&publish(feed, &body.concat()))?;
                if !head.starts_with("http/1.1 201") {
                    bail!("an append was refused: {head}");
                }
                done.fetch_add(u64::try_from(batch)?, Ordering::Relaxed);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..connections).map(|_| threads.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(outcome) => outcome,
                Err(_) => bail!("a connection failed"),
            })
    })?;
    let entries = u32::try_from(done.load(Ordering::Relaxed))?;
    Ok(f64::from(entries) / started.elapsed().as_secs_f64())
}

/// Returns an event of about 350 bytes as a line.
pub(crate) fn event(serial: u64) -> String {
    format!(
        "{{\"id\":\"urn:uuid:00000000-0000-4000-8000-{serial:012x}\",\"title\":\"Order placed\",\
         \"updated\":\"2026-01-01T00:00:00Z\",\"content\":{{\"order\":{serial},\"customer\":\"c-{:06}\",\
         \"total\":\"{}.90\",\"lines\":[{{\"sku\":\"A-1\",\"n\":2}},{{\"sku\":\"B-7\",\"n\":1}}],\
         \"note\":\"leave it with the neighbours if nobody is in\"}}}}\n",
        serial % 1_000_000,
        serial % 997
    )
}
