//! Ten thousand readers that wait.
//!
//! Shell: sockets of tokio, on one thread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use simplefeed_core::limits::EVENTS_COMMENT_SECONDS;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Builder,
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};

use super::{CROWD, crowded, percentile};
use crate::{
    load::{Connection, event},
    process::{Program, folder},
    table::{Must, Row, Table},
};

/// Connections that are being opened at the same time.
const OPENING: usize = 256;
/// Time of a measurement beside streams: twice that between two comments, which all of them get together.
const TURN: Duration = Duration::from_secs(2 * EVENTS_COMMENT_SECONDS);
const PATIENCE: Duration = Duration::from_mins(1);

/// Many connections.
struct Crowd(Vec<TcpStream>);

/// Returns the length of the answer at the beginning of some bytes, once it is whole.
fn whole(read: &[u8]) -> Option<usize> {
    let end = read.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(read.get(..end)?).to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
    let whole = end + length.unwrap_or(0);
    (read.len() >= whole).then_some(whole)
}

/// Reads one answer.
async fn answer(stream: &mut TcpStream) -> anyhow::Result<Vec<u8>> {
    let (mut read, mut piece) = (Vec::new(), vec![0; 16 * 1024]);
    while whole(&read).is_none() {
        let count = stream.read(&mut piece).await?;
        anyhow::ensure!(count > 0, "a connection of the crowd was closed");
        read.extend_from_slice(piece.get(..count).unwrap_or_default());
    }
    Ok(read)
}

/// Runs something for all connections at the same time.
async fn all<F>(
    crowd: Crowd,
    each: impl Fn(TcpStream) -> F,
) -> anyhow::Result<(Crowd, Vec<Duration>)>
where
    F: Future<Output = anyhow::Result<TcpStream>> + Send + 'static,
{
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for stream in crowd.0 {
        running.spawn(each(stream));
    }
    let (mut streams, mut times) = (vec![], vec![]);
    while let Some(ended) = timeout(PATIENCE, running.join_next()).await? {
        streams.push(ended??);
        times.push(begun.elapsed());
    }
    Ok((Crowd(streams), times))
}

impl Crowd {
    async fn open(server: &Program) -> anyhow::Result<Self> {
        let turns = Arc::new(Semaphore::new(OPENING));
        let mut opening = JoinSet::new();
        for _ in 0..CROWD {
            let (address, turns) = (server.address.clone(), Arc::clone(&turns));
            opening.spawn(async move {
                let _turn = turns.acquire().await?;
                let mut stream = TcpStream::connect(&address).await?;
                stream.set_nodelay(true)?;
                // An idle connection has answered a request before.
                stream
                    .write_all(b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n")
                    .await?;
                answer(&mut stream).await?;
                anyhow::Ok(stream)
            });
        }
        let mut streams = vec![];
        while let Some(opened) = timeout(PATIENCE, opening.join_next()).await? {
            streams.push(opened??);
        }
        Ok(Self(streams))
    }

    /// Sends a request on all connections, and reads the answers.
    async fn ask(self, request: &str) -> anyhow::Result<Self> {
        let request: Arc<str> = request.into();
        let asked = all(self, |mut stream| {
            let request = Arc::clone(&request);
            async move {
                stream.write_all(request.as_bytes()).await?;
                answer(&mut stream).await?;
                Ok(stream)
            }
        });
        Ok(asked.await?.0)
    }

    /// Reads an answer from each connection.
    async fn take(self) -> anyhow::Result<Self> {
        let taken = all(self, |mut stream| async move {
            let answer = answer(&mut stream).await?;
            let is_whole = answer.starts_with(b"HTTP/1.1 200");
            anyhow::ensure!(is_whole, "a reader of the crowd has another answer");
            Ok(stream)
        });
        Ok(taken.await?.0)
    }

    /// Sends a request on all connections, and returns once the server has them all.
    async fn send(&mut self, request: &str) -> anyhow::Result<()> {
        for stream in &mut self.0 {
            stream.write_all(request.as_bytes()).await?;
        }
        answered();
        Ok(())
    }
}

/// Lets the server fill all sockets. Blocks this thread: each answer would wake one that waits for sockets, on the account of
/// the server.
fn answered() {
    std::thread::park_timeout(Duration::from_secs(3));
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: b\r\n{more}\r\n")
}

fn publish(server: &Program, serial: u64) -> anyhow::Result<()> {
    Connection::open(&server.address)?.publish("bench", &event(serial))
}

/// Measurements of a round.
#[derive(Default)]
struct Round {
    idle_kib: f64,
    stream_kib: f64,
    reached_p99_millis: f64,
    /// CPU of the server for each append elsewhere: beside streams, without their comments, beside idle connections, and
    /// beside nobody.
    beside_streams: f64,
    beside_idle: f64,
    alone: f64,
    /// CPU for each waiter: from the append on, and with its request; and for each plain read.
    waiter: f64,
    whole_waiter: f64,
    read: f64,
    waiter_kib: f64,
}

fn each(sum: f64) -> f64 {
    sum / f64::from(CROWD)
}

/// Returns the CPU time of an append to another feed, in microseconds. Other work of the server costs `besides` a second.
async fn elsewhere(server: &Program, besides: f64) -> anyhow::Result<f64> {
    static SERIAL: AtomicU64 = AtomicU64::new(1_000_000);
    let (address, cpu, begun) = (server.address.clone(), server.cpu_micros()?, Instant::now());
    let appended = tokio::task::spawn_blocking(move || -> anyhow::Result<u32> {
        let mut connection = Connection::open(&address)?;
        let mut count = 0;
        while begun.elapsed() < TURN {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            connection.publish("elsewhere", &event(serial))?;
            count += 1;
        }
        Ok(count)
    });
    let count = appended.await??;
    let used = server.cpu_micros()? - cpu - besides * begun.elapsed().as_secs_f64();
    Ok(used / f64::from(count))
}

async fn streams(round: &mut Round) -> anyhow::Result<()> {
    let data = folder()?;
    let server = crowded(data.path())?;
    // Warms up.
    elsewhere(&server, 0.0).await?;
    let alone = elsewhere(&server, 0.0).await?;
    let before = server.memory_mib()?;
    let crowd = Crowd::open(&server).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = server.memory_mib()?;
    round.idle_kib = each((idle - before) * 1_024.0);
    let beside_idle = elsewhere(&server, 0.0).await?;
    let before = before + server.memory_mib()? - idle;

    let (tell, mut told) = mpsc::unbounded_channel::<Instant>();
    let mut reading: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let request: Arc<str> = get("/feeds/bench/events", "").into();
    for mut stream in crowd.0 {
        let (request, tell) = (Arc::clone(&request), tell.clone());
        reading.spawn(async move {
            stream.write_all(request.as_bytes()).await?;
            let mut piece = vec![0; 2_048];
            loop {
                let count = stream.read(&mut piece).await?;
                anyhow::ensure!(count > 0, "a stream has ended");
                let read = piece.get(..count).unwrap_or_default();
                if read.windows(6).any(|window| window == b"data: ") {
                    tell.send(Instant::now())?;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(8)).await;
    round.stream_kib = each((server.memory_mib()? - before) * 1_024.0);

    let mut times = vec![];
    for serial in 0..5 {
        publish(&server, 1_000 + serial)?;
        let acknowledged = Instant::now();
        for _ in 0..CROWD {
            let at = timeout(PATIENCE, told.recv()).await?;
            let at = at.context("a reader of the crowd has ended")?;
            let took = at.saturating_duration_since(acknowledged);
            times.push(took.as_secs_f64() * 1e3);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    round.reached_p99_millis = percentile(&times, 99);

    let begun = server.cpu_micros()?;
    tokio::time::sleep(TURN).await;
    let comments = (server.cpu_micros()? - begun) / TURN.as_secs_f64();
    round.beside_streams = elsewhere(&server, comments).await?;
    reading.abort_all();
    while reading.join_next().await.is_some() {}
    tokio::time::sleep(Duration::from_secs(2)).await;
    // A server becomes slower while its log grows, so the others come before and after the streams.
    let alone_again = elsewhere(&server, 0.0).await?;
    round.alone = f64::midpoint(alone, alone_again);
    let _crowd = Crowd::open(&server).await?;
    let idle_again = elsewhere(&server, 0.0).await?;
    round.beside_idle = f64::midpoint(beside_idle, idle_again);
    server.stop()
}

async fn waiters(round: &mut Round) -> anyhow::Result<()> {
    let data = folder()?;
    let server = crowded(data.path())?;
    let before = server.memory_mib()?;
    let mut crowd = Crowd::open(&server).await?;
    let plain = get("/feeds/bench/recent.atom", "");
    // Warms up.
    crowd = crowd.ask(&plain).await?;
    let cpu = server.cpu_micros()?;
    crowd.send(&plain).await?;
    crowd = crowd.take().await?;
    round.read = each(server.cpu_micros()? - cpu);

    let (head, _) = Connection::open(&server.address)?.get("/feeds/bench/recent.atom")?;
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
    let tag = tag.context("a document has a tag")?;
    let wait = get(
        "/feeds/bench/recent.atom?wait=60",
        &format!("If-None-Match: {tag}\r\n"),
    );
    let asked = server.cpu_micros()?;
    crowd.send(&wait).await?;
    round.waiter_kib = each((server.memory_mib()? - before) * 1_024.0);
    let begun = server.cpu_micros()?;
    publish(&server, 2_000)?;
    answered();
    let crowd = crowd.take().await?;
    let ended = server.cpu_micros()?;
    drop(crowd);
    round.waiter = each(ended - begun);
    round.whole_waiter = each(ended - asked);
    server.stop()
}

pub(super) fn measure(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let mut all = vec![];
    for _ in 0..rounds {
        let mut round = Round::default();
        let runtime = || Builder::new_current_thread().enable_all().build();
        runtime()?.block_on(streams(&mut round))?;
        runtime()?.block_on(waiters(&mut round))?;
        all.push(round);
    }
    report(table, &all);
    Ok(())
}

/// Adds the rows about crowds.
fn report(table: &mut Table, all: &[Round]) {
    let of = |value: fn(&Round) -> f64| all.iter().map(value).collect::<Vec<f64>>();
    let row = |what: &str, unit, ours, peer: &str, theirs, must| Row {
        what: what.into(),
        unit,
        ours,
        peer: peer.into(),
        theirs,
        must,
    };
    let most = |most| Some(Must::AtMost(most));
    table.add(row(
        "10,000 streams, one append reaches all, p99",
        "ms",
        of(|round| round.reached_p99_millis),
        "250 ms",
        vec![250.0; all.len()],
        most(1.0),
    ));
    table.add(row(
        "memory of a stream",
        "KiB",
        of(|round| round.stream_kib),
        "idle connection + 4 KiB",
        of(|round| round.idle_kib + 4.0),
        most(1.0),
    ));
    table.add(row(
        "memory of a waiter",
        "KiB",
        of(|round| round.waiter_kib),
        "idle connection + 4 KiB",
        of(|round| round.idle_kib + 4.0),
        None,
    ));
    table.add(row(
        "10,000 waiters, one append, CPU each",
        "µs",
        of(|round| round.waiter),
        "plain reads",
        of(|round| round.read),
        most(1.3),
    ));
    table.add(row(
        "the same with the requests that wait",
        "µs",
        of(|round| round.whole_waiter),
        "plain reads",
        of(|round| round.read),
        None,
    ));
    let what = "append elsewhere beside 10,000 idle streams, CPU";
    let beside_streams = of(|round| round.beside_streams);
    table.add(row(
        what,
        "µs",
        beside_streams.clone(),
        "beside idle connections",
        of(|round| round.beside_idle),
        most(1.05),
    ));
    let alone = of(|round| round.alone);
    table.add(row(
        what,
        "µs",
        beside_streams,
        "no other connection",
        alone,
        most(1.05),
    ));
}
