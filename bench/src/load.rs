//! Load: wrk, and a connection of our own for what is asked for once.
//!
//! Shell: sockets. Its own CPU is never counted as a server's.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    process::Command,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
};

use anyhow::{Context as _, bail};
use rand::{SeedableRng as _, rngs::StdRng};

use crate::process::{Program, installed};

/// Threads that make worlds.
const MAKERS: u32 = 16;

/// What one measurement gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The requests, or the entries.
    pub(crate) count: f64,
    pub(crate) per_second: f64,
    pub(crate) cpu_micros: f64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
}

impl Load {
    /// Returns the mean of measurements that took the same time; of the cost, by their requests.
    pub(crate) fn of_all(loads: &[Self]) -> Self {
        let count: f64 = loads.iter().map(|load| load.count).sum();
        let cpu: f64 = loads.iter().map(|load| load.cpu_micros * load.count).sum();
        let mean = |pick: fn(&Self) -> f64| {
            let sum: f64 = loads.iter().map(pick).sum();
            sum / f64::from(u32::try_from(loads.len()).unwrap_or(u32::MAX))
        };
        Self {
            count,
            per_second: mean(|load| load.per_second),
            cpu_micros: cpu / count,
            p50_micros: mean(|load| load.p50_micros),
            p99_micros: mean(|load| load.p99_micros),
        }
    }
}

/// Reads a URL over 64 connections for some seconds.
pub(crate) fn read(
    program: &Program,
    path: &str,
    headers: &[(&str, &str)],
    seconds: u64,
) -> anyhow::Result<Load> {
    let mut more = vec![];
    for (name, value) in headers {
        more.extend(["-H".to_owned(), format!("{name}: {value}")]);
    }
    wrk(program, path, 64, seconds, &more)
}

/// Reads a path at many places for some seconds, over few connections: most answers are none that are ready. `place` is a
/// Lua expression over the number `n` of the request, which gives the query.
pub(crate) fn read_places(
    program: &Program,
    path: &str,
    place: &str,
    seconds: u64,
) -> anyhow::Result<Load> {
    let lua = format!(
        r#"
        local n = 0
        function request()
            n = n + 1
            return wrk.format("GET", "{path}" .. {place})
        end
        "#
    );
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("places.lua");
    fs::write(&script, lua)?;
    let script = ["-s".to_owned(), script.display().to_string()];
    wrk(program, path, 4, seconds, &script)
}

/// Publishes over some connections for some seconds, `batch` entries a request, to the feeds that `feed`
/// names: a Lua expression over the number `n` of the request. What is counted are entries.
pub(crate) fn append(
    program: &Program,
    feed: &str,
    connections: usize,
    batch: usize,
    seconds: u64,
) -> anyhow::Result<Load> {
    static SCRIPTS: AtomicU32 = AtomicU32::new(0);
    let script = SCRIPTS.fetch_add(1, Ordering::Relaxed);
    let lua = format!(
        r#"
        local n, serial = 0, 0
        local head = {{ ["Content-Type"] = "application/x-ndjson" }}
        local line = '{EVENT}'
        function request()
            n = n + 1
            local lines = {{}}
            for i = 1, {batch} do
                serial = serial + 1
                lines[i] = string.format(line, {script}, serial, serial, serial % 1000000, serial % 997)
            end
            return wrk.format("POST", "/feeds/" .. {feed}, head, table.concat(lines))
        end
        "#
    );
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("append.lua");
    fs::write(&path, lua)?;
    let script = ["-s".to_owned(), path.display().to_string()];
    let load = wrk(program, "/", connections, seconds, &script)?;
    let entries = f64::from(u32::try_from(batch)?);
    Ok(Load {
        count: load.count * entries,
        per_second: load.per_second * entries,
        cpu_micros: load.cpu_micros / entries,
        ..load
    })
}

fn wrk(
    program: &Program,
    path: &str,
    connections: usize,
    seconds: u64,
    more: &[String],
) -> anyhow::Result<Load> {
    let mut wrk = Command::new(installed("wrk", "wrk")?);
    wrk.args(["-t1", "--latency", "--timeout", "20"])
        .arg(format!("-c{connections}"))
        .arg(format!("-d{seconds}s"))
        .args(more)
        .arg(format!("http://{}{path}", program.address));
    let before = program.cpu_micros()?;
    let output = wrk.output()?;
    let used = program.cpu_micros()? - before;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("Socket errors") || said.contains("Non-2xx") {
        bail!("wrk: {said}");
    }
    let field = |name: &str| {
        said.lines()
            .find_map(|line| line.trim().strip_prefix(name))
            .map(str::trim)
    };
    let requests = said
        .lines()
        .find_map(|line| line.trim().split_once(" requests in"))
        .map(|(count, _)| count);
    let requests: f64 = requests.context("wrk counts")?.parse()?;
    let latency = |name| field(name).and_then(micros).context("wrk tells latencies");
    Ok(Load {
        count: requests,
        per_second: field("Requests/sec:")
            .context("wrk says how many")?
            .parse()?,
        cpu_micros: used / requests,
        p50_micros: latency("50%")?,
        p99_micros: latency("99%")?,
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

    /// Publishes NDJSON.
    pub(crate) fn publish(&mut self, feed: &str, body: &str) -> anyhow::Result<()> {
        let status = self.send(feed, "application/x-ndjson", body)?;
        if status != 201 {
            bail!("an append was refused: {status}");
        }
        Ok(())
    }

    /// Publishes a body of any type. Returns the status of the answer.
    pub(crate) fn send(&mut self, feed: &str, kind: &str, body: &str) -> anyhow::Result<u16> {
        self.status("POST", &format!("/feeds/{feed}"), kind, body)
    }

    /// Sends JSON. Returns the status of the answer.
    pub(crate) fn json(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<u16> {
        self.status(method, path, "application/json", body)
    }

    fn status(&mut self, method: &str, path: &str, kind: &str, body: &str) -> anyhow::Result<u16> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (head, _) = self.answer(request.as_bytes())?;
        let status = head.split(' ').nth(1).context("an answer has a status")?;
        Ok(status.parse()?)
    }

    /// Returns head and body of a document.
    pub(crate) fn get(&mut self, path: &str) -> io::Result<(String, Vec<u8>)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
        self.answer(request.as_bytes())
    }

    /// Returns head and body of the answer to a request with more header fields.
    pub(crate) fn get_with(
        &mut self,
        path: &str,
        headers: &[(&str, String)],
    ) -> io::Result<(String, Vec<u8>)> {
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n");
        for (name, value) in headers {
            request = request + name + ": " + value + "\r\n";
        }
        self.answer((request + "\r\n").as_bytes())
    }

    /// Returns head and body of a document, compressed if the server can.
    pub(crate) fn get_gzip(&mut self, path: &str) -> io::Result<(String, Vec<u8>)> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: gzip\r\n\r\n",
            self.host()?
        );
        self.answer(request.as_bytes())
    }

    /// Sends a body. Returns head and body of the answer.
    pub(crate) fn post(
        &mut self,
        path: &str,
        kind: &str,
        body: &str,
    ) -> io::Result<(String, Vec<u8>)> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            self.host()?,
            body.len()
        );
        self.answer(request.as_bytes())
    }

    /// Sends a request with a body of JSON, or with none. Returns status and head of the answer.
    pub(crate) fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> anyhow::Result<(u16, String)> {
        let fields = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let fields = fields.collect::<String>();
        let kind = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: bench\r\n{fields}{kind}Content-Length: {length}\r\n\r\n{body}"
        );
        let (head, _) = self.answer(request.as_bytes())?;
        let status = head.split(' ').nth(1).context("an answer has a status")?;
        Ok((status.parse()?, head))
    }

    /// Asks for a resource to be deleted.
    pub(crate) fn delete(&mut self, path: &str) -> io::Result<(String, Vec<u8>)> {
        let request = format!("DELETE {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host()?);
        self.answer(request.as_bytes())
    }

    /// Returns the name by which pages take a request: another one may be forged.
    fn host(&self) -> io::Result<String> {
        Ok(self.stream.peer_addr()?.to_string())
    }

    /// Sends a request. Returns the answer's head, names in lower case, and body.
    fn answer(&mut self, request: &[u8]) -> io::Result<(String, Vec<u8>)> {
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

/// An event of about 350 bytes, as C would print it: a number of the load, a serial number, the same, and
/// two numbers.
const EVENT: &str = "{\"id\":\"urn:uuid:%08x-0000-4000-8000-%012x\",\"title\":\"Order placed\",\
    \"updated\":\"2026-01-01T00:00:00Z\",\"content\":{\"order\":%d,\"customer\":\"c-%06d\",\
    \"total\":\"%d.90\",\"lines\":[{\"sku\":\"A-1\",\"n\":2},{\"sku\":\"B-7\",\"n\":1}],\
    \"note\":\"leave it with the neighbours if nobody is in; they know, and the dog does not bite. Ring twice, please\"}}\\n";

/// Returns such an event as a line.
pub(crate) fn event(serial: u64) -> String {
    let event = EVENT
        .replacen("%08x", "ffffffff", 1)
        .replacen("%012x", &format!("{serial:012x}"), 1)
        .replacen("%d", &serial.to_string(), 1)
        .replacen("%06d", &format!("{:06}", serial % 1_000_000), 1)
        .replacen("%d", &(serial % 997).to_string(), 1);
    event.replace("\\n", "\n")
}

/// Appends events to a feed, in any order: over several connections, so that the server has batches to
/// store while others are written.
pub(crate) fn fill(
    program: &Program,
    feed: &str,
    serials: std::ops::Range<u64>,
) -> anyhow::Result<()> {
    const CONNECTIONS: usize = 3;
    const BATCH: u64 = 2_000;
    let next = AtomicU64::new(serials.start);
    let publish_all = || -> anyhow::Result<()> {
        let mut connection = Connection::open(&program.address)?;
        loop {
            let start = next.fetch_add(BATCH, Ordering::Relaxed);
            if start >= serials.end {
                return Ok(());
            }
            let batch: String = (start..serials.end.min(start + BATCH)).map(event).collect();
            connection.publish(feed, &batch)?;
        }
    };
    // The others need not go on after an error.
    let publish = || publish_all().inspect_err(|_| next.store(serials.end, Ordering::Relaxed));
    thread::scope(|threads| {
        let publishers: Vec<_> = (0..CONNECTIONS).map(|_| threads.spawn(publish)).collect();
        publishers
            .into_iter()
            .try_for_each(|publisher| match publisher.join() {
                Ok(published) => published,
                Err(_) => bail!("a publisher panicked"),
            })
    })
}

/// Creates feeds with an entry or two each, and in the first, `bench0`, a document that is closed.
pub(crate) fn create(program: &Program, feeds: u32) -> anyhow::Result<()> {
    let mut requests = 0.0;
    while requests < f64::from(feeds) {
        let feed = format!("'bench' .. (({requests:.0} + n - 1) % {feeds})");
        let sent = append(program, &feed, 64, 1, 1 + u64::from(feeds) / 20_000)?;
        // One of each connection may have been lost when it ended.
        requests += sent.count - 64.0;
    }
    fill(program, "bench0", 0..150)
}

/// Waits until a document is a frozen file.
pub(crate) fn wait_until_frozen(program: &Program, path: &str) -> anyhow::Result<()> {
    let mut connection = Connection::open(&program.address)?;
    for _ in 0..3_000 {
        if connection.get(path)?.0.contains("immutable") {
            return Ok(());
        }
        thread::park_timeout(std::time::Duration::from_millis(20));
    }
    bail!("{path} never became a file")
}

/// Lets makers do numbered things, each with numbers of its own at random.
pub(crate) fn at_once(
    count: u32,
    address: &str,
    make: impl Fn(u32, &mut StdRng, &mut Connection) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let next = AtomicU32::new(0);
    let (next, make) = (&next, &make);
    thread::scope(|threads| {
        let makers: Vec<_> = (0..MAKERS)
            .map(|maker| {
                threads.spawn(move || -> anyhow::Result<()> {
                    let mut random = StdRng::seed_from_u64(maker.into());
                    let mut connection = Connection::open(address)?;
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return Ok(());
                        }
                        make(number, &mut random, &mut connection)?;
                    }
                })
            })
            .collect();
        makers
            .into_iter()
            .try_for_each(|maker| maker.join().ok().context("a maker panicked")?)
    })
}
