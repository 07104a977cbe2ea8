//! Peers that tell a reader at once: Redis, PostgreSQL and NATS.
//!
//! Shell: sockets. Redis and PostgreSQL sync each append before they acknowledge it, as we do; NATS keeps nothing, and
//! acknowledges by answering a ping.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use postgres::{Client, NoTls, fallible_iterator::FallibleIterator as _};

use super::{Latencies, paced};
use crate::process::{Program, folder};

/// A peer of the latency.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) measure: fn(u64) -> anyhow::Result<Latencies>,
}

pub(super) const ALL: [Peer; 3] = [
    Peer {
        name: "Redis XREAD BLOCK",
        measure: redis,
    },
    Peer {
        name: "PostgreSQL LISTEN",
        measure: postgresql,
    },
    Peer {
        name: "NATS, which keeps nothing",
        measure: nats,
    },
];

/// A payload as large as our events, with a serial number.
fn payload(serial: u64) -> String {
    format!("<{serial}>{}", "x".repeat(340))
}

/// Returns the first serial number in a text of a peer, and the rest of the text.
fn serial_in(text: &str) -> Option<(u64, &str)> {
    let (_, rest) = text.split_once('<')?;
    let (serial, rest) = rest.split_once('>')?;
    Some((serial.parse().ok()?, rest))
}

fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads until a text has come.
fn read_until(stream: &mut TcpStream, end: &str) -> anyhow::Result<String> {
    let (mut read, mut piece) = (vec![], [0; 4_096]);
    loop {
        let count = stream.read(&mut piece)?;
        anyhow::ensure!(count > 0, "a peer closed its connection");
        read.extend_from_slice(piece.get(..count).unwrap_or_default());
        let text = String::from_utf8_lossy(&read);
        if text.contains(end) {
            return Ok(text.into_owned());
        }
    }
}

fn redis(count: u64) -> anyhow::Result<Latencies> {
    let data = folder()?;
    let server = Program::redis(data.path())?;
    let (tell, handled) = mpsc::channel();
    let mut reading = connect(&server.address)?;
    let reader = thread::spawn(move || -> anyhow::Result<()> {
        let mut last = "$".to_owned();
        for serial in 0..count {
            let command = format!("XREAD BLOCK 0 STREAMS s {last}\r\n");
            reading.write_all(command.as_bytes())?;
            let text = read_until(&mut reading, &format!("<{serial}>"))?;
            let at = Instant::now();
            // The id of the entry is the line before its fields.
            let id = text
                .lines()
                .find(|line| line.contains('-') && !line.starts_with('$'));
            id.unwrap_or("$").clone_into(&mut last);
            // The rest of the payload may still be on its way.
            if !text.ends_with("x\r\n") {
                read_until(&mut reading, "x\r\n")?;
            }
            let _gone = tell.send((serial, at));
        }
        Ok(())
    });
    thread::park_timeout(Duration::from_millis(500));
    let mut writing = connect(&server.address)?;
    let latencies = paced(0..count, &handled, |serial| {
        let command = format!("XADD s * v {}\r\n", payload(serial));
        writing.write_all(command.as_bytes())?;
        read_until(&mut writing, "\r\n")?;
        Ok(())
    })?;
    drop(reader.join());
    server.stop()?;
    Ok(latencies)
}

fn postgresql(count: u64) -> anyhow::Result<Latencies> {
    let data = folder()?;
    let server = Program::postgres(data.path())?;
    let url = format!("host=127.0.0.1 port={} user=postgres", server.port());
    let mut writing = Client::connect(&url, NoTls)?;
    writing.batch_execute("CREATE TABLE entries (id bigserial PRIMARY KEY, v text NOT NULL)")?;
    let mut reading = Client::connect(&url, NoTls)?;
    reading.batch_execute("LISTEN entries")?;
    let (tell, handled) = mpsc::channel();
    let reader = thread::spawn(move || -> anyhow::Result<()> {
        for serial in 0..count {
            let told = reading.notifications().blocking_iter().next()?;
            // As our consumer, it reads the entry, which need not fit into a notification.
            let number: i64 = told.map_or(Ok(0), |told| told.payload().parse())?;
            reading.query_one("SELECT v FROM entries WHERE id = $1", &[&number])?;
            let _gone = tell.send((serial, Instant::now()));
        }
        Ok(())
    });
    let insert = writing.prepare(
        "WITH added AS (INSERT INTO entries (v) VALUES ($1) RETURNING id) \
         SELECT pg_notify('entries', id::text) FROM added",
    )?;
    let latencies = paced(0..count, &handled, |serial| {
        writing.query(&insert, &[&payload(serial)])?;
        Ok(())
    })?;
    drop(reader.join());
    drop(writing);
    server.stop()?;
    Ok(latencies)
}

fn nats(count: u64) -> anyhow::Result<Latencies> {
    let data = folder()?;
    let server = Program::nats(data.path())?;
    let (tell, handled) = mpsc::channel();
    let mut reading = connect(&server.address)?;
    reading.write_all(b"CONNECT {\"verbose\":false}\r\nSUB s 1\r\nPING\r\n")?;
    read_until(&mut reading, "PONG\r\n")?;
    let reader = thread::spawn(move || -> anyhow::Result<()> {
        let mut serial = 0;
        while serial < count {
            let text = read_until(&mut reading, "x\r\n")?;
            let mut rest = text.as_str();
            while let Some((found, behind)) = serial_in(rest) {
                let _gone = tell.send((found, Instant::now()));
                (serial, rest) = (found + 1, behind);
            }
        }
        Ok(())
    });
    let mut writing = connect(&server.address)?;
    writing.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n")?;
    read_until(&mut writing, "PONG\r\n")?;
    let latencies = paced(0..count, &handled, |serial| {
        let payload = payload(serial);
        let command = format!("PUB s {}\r\n{payload}\r\nPING\r\n", payload.len());
        writing.write_all(command.as_bytes())?;
        read_until(&mut writing, "PONG\r\n")?;
        Ok(())
    })?;
    drop(reader.join());
    server.stop()?;
    Ok(latencies)
}
