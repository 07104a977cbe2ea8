//! `push`: how soon a consumer has an entry, and the cost of ten thousand readers that wait.
//!
//! Shell. The consumer is the client crate's own, in this process, and handles each entry once it has it. The crowds are
//! connections of this process, so they share the processors with the server.

use std::{
    ops::Range,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use simplefeed_client::{Consumer, Since, WakeBy};

use crate::{
    load::{Connection, event},
    process::{Program, folder},
    table::{Must, Row, Table},
};

mod crowd;
mod peers;

/// Appends a second, while the latency is measured.
const RATE: u64 = 100;
/// Appends before the measurement.
const WARMING: u64 = 300;
/// Readers that wait.
pub(crate) const CROWD: u32 = 10_000;
/// Entries of the recent document that the crowds read.
const RECENT_ENTRIES: u64 = 50;

/// Times from the acknowledgement of an append to the handler, and those of the appends, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    told: Vec<f64>,
    appended: Vec<f64>,
}

/// Returns a percentile.
fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = sorted.len() * percent / 100;
    let last = sorted.len().saturating_sub(1);
    sorted.get(at.min(last)).copied().unwrap_or(f64::NAN)
}

/// Publishes at a constant rate, and pairs each acknowledgement with the time at which a handler had the entry.
pub(crate) fn paced(
    serials: Range<u64>,
    handled: &mpsc::Receiver<(u64, Instant)>,
    mut publish: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<Latencies> {
    let mut latencies = Latencies::default();
    let begun = Instant::now();
    for (number, serial) in (0..).zip(serials) {
        let due = begun + Duration::from_micros(number * 1_000_000 / RATE);
        thread::park_timeout(due.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        publish(serial)?;
        let acknowledged = Instant::now();
        latencies
            .appended
            .push((acknowledged - sent).as_secs_f64() * 1e3);
        let patience = Duration::from_secs(20);
        let (found, at) = handled
            .recv_timeout(patience)
            .context("an entry did not come")?;
        anyhow::ensure!(found == serial, "entry {found} came in place of {serial}");
        // A handler may have it before the publisher knows that it is there.
        let took = at.saturating_duration_since(acknowledged);
        latencies.told.push(took.as_secs_f64() * 1e3);
    }
    Ok(latencies)
}

/// Measures our own way from an append to a handler.
fn ours(count: u64, means: WakeBy) -> anyhow::Result<Latencies> {
    let data = folder()?;
    let server = Program::simplefeed(data.path())?;
    let mut connection = Connection::open(&server.address)?;
    connection.publish("bench", &event(u64::from(u32::MAX)))?;
    let url = format!("http://{}/feeds/bench", server.address);
    let (tell, handled) = mpsc::channel();
    let consumer = thread::spawn(move || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let consumer = Consumer::builder(url).since(Since::Newest);
            let mut consumer = consumer.follow(true).wake_by(means).build()?;
            let mut serial = 0;
            while let Some(delivery) = consumer.next().await? {
                consumer.accept(&delivery).await?;
                if tell.send((serial, Instant::now())).is_err() {
                    return Ok(());
                }
                serial += 1;
            }
            Ok(())
        })
    });
    // It looks, and opens its stream.
    thread::park_timeout(Duration::from_secs(2));
    // Warms up.
    let first = WARMING;
    paced(0..first, &handled, |serial| {
        connection.publish("bench", &event(serial))
    })?;
    let latencies = paced(first..first + count, &handled, |serial| {
        connection.publish("bench", &event(serial))
    })?;
    drop(handled);
    connection.publish("bench", &event(first + count))?;
    match consumer.join() {
        Ok(ended) => ended?,
        Err(_) => anyhow::bail!("the consumer panicked"),
    }
    server.stop()?;
    Ok(latencies)
}

/// Adds the rows about latency.
fn measure_latency(table: &mut Table, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    let count = RATE * seconds;
    let (mut p50, mut p99, mut allowed, mut waits) = (vec![], vec![], vec![], vec![]);
    let mut peers: Vec<(&str, Vec<f64>)> =
        peers::ALL.iter().map(|peer| (peer.name, vec![])).collect();
    for _ in 0..rounds {
        let latencies = ours(count, WakeBy::Events)?;
        p50.push(percentile(&latencies.told, 50));
        p99.push(percentile(&latencies.told, 99));
        allowed.push(percentile(&latencies.appended, 99) + 3.0);
        waits.push(percentile(&ours(count, WakeBy::Wait)?.told, 50));
        for (peer, (_, all)) in peers::ALL.iter().zip(&mut peers) {
            all.push(percentile(&(peer.measure)(count)?.told, 50));
        }
    }
    let row = |what: &str, ours: &[f64], peer: &str, theirs: Vec<f64>, must| Row {
        what: what.into(),
        unit: "ms",
        ours: ours.to_vec(),
        peer: peer.into(),
        theirs,
        must,
    };
    let most = Some(Must::AtMost(1.0));
    let what = "acknowledgement to handler, events, p50";
    table.add(row(what, &p50, "2 ms", vec![2.0; rounds], most));
    let what99 = "acknowledgement to handler, events, p99";
    table.add(row(what99, &p99, "append's p99 + 3 ms", allowed, most));
    for (name, theirs) in peers {
        table.add(row(what, &p50, name, theirs, None));
    }
    let what = "acknowledgement to handler, waits, p50";
    table.add(row(what, &waits, "2 ms", vec![2.0; rounds], None));
    Ok(())
}

/// Starts a server for crowds, with a recent document of usual size.
pub(crate) fn crowded(data: &std::path::Path) -> anyhow::Result<Program> {
    let connections = (CROWD * 2).to_string();
    let more = ["--connections", &connections, "--connection-age", "3600"];
    let server = Program::simplefeed_at(crate::process::ANY_PORT, data, &more)?;
    let mut connection = Connection::open(&server.address)?;
    let lines: String = (0..RECENT_ENTRIES).map(event).collect();
    connection.publish("bench", &lines)?;
    connection.publish("elsewhere", &lines)?;
    Ok(server)
}

pub(crate) fn measure(table: &mut Table, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    measure_latency(table, rounds, seconds)?;
    crowd::measure(table, rounds)
}
