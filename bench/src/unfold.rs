//! `unfold`: bodies that are small and unfold to much, against ordinary entries; and another publisher beside them.
//!
//! Shell. A cost is the server's CPU time per byte sent, whether it stores the body or refuses it.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{
    families::{FAMILIES, Family},
    load::{Connection, event},
    process::{Program, folder},
    table::{Must, Row, Table},
};

/// The sizes of the bodies of one measurement, in bytes: if a cost is not linear, the largest one shows it.
const SIZES: [usize; 4] = [100_000, 300_000, 1_000_000, 3_000_000];
/// The pause of the other publisher between two entries.
const PACE: Duration = Duration::from_millis(5);

pub(crate) fn measure(table: &mut Table, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    let folder = folder()?;
    let server = Program::simplefeed(&folder.path().join("data"))?;
    let feeds = AtomicU32::new(0);
    let ordinary: Family = ("ordinary", "application/x-ndjson", events);
    let send = |family: &Family| send(&server, &feeds, family);
    send(&ordinary)?;
    let mut theirs = vec![];
    let mut families = vec![vec![]; FAMILIES.len()];
    for _ in 0..rounds {
        theirs.push(send(&ordinary)?);
        for (family, costs) in FAMILIES.iter().zip(&mut families) {
            costs.push(send(family)?);
        }
    }
    for ((name, ..), ours) in FAMILIES.iter().zip(families) {
        table.add(Row {
            what: (*name).into(),
            unit: "CPU ns/byte",
            ours,
            peer: "events of 350 bytes".into(),
            theirs: theirs.clone(),
            must: Some(Must::AtMost(3.0)),
        });
    }
    let (mut alone, mut beside) = (vec![], vec![]);
    for _ in 0..rounds {
        alone.push(publish(&server, &feeds, || {
            let end = Instant::now() + Duration::from_secs(seconds);
            while Instant::now() < end {
                thread::park_timeout(PACE);
            }
            Ok(())
        })?);
        beside.push(publish(&server, &feeds, || {
            FAMILIES
                .iter()
                .try_for_each(|family| send(family).map(drop))
        })?);
    }
    table.add(Row {
        what: "another publisher beside all of them".into(),
        unit: "p99 ms",
        ours: beside,
        peer: "the same, alone".into(),
        theirs: alone,
        must: Some(Must::AtMost(4.0)),
    });
    Ok(())
}

/// Ordinary events, of about so many bytes.
fn events(bytes: usize) -> String {
    let count = u64::try_from(bytes / event(0).len()).unwrap_or(u64::MAX);
    (0..count.clamp(1, 9_999)).map(event).collect()
}

/// Sends a family's bodies, each to a feed of its own. Returns the server's CPU time per byte, in nanoseconds.
fn send(server: &Program, feeds: &AtomicU32, (name, kind, make): &Family) -> anyhow::Result<f64> {
    let bodies = SIZES.map(make);
    let before = server.cpu_micros()?;
    for body in &bodies {
        let feed = feeds.fetch_add(1, Ordering::Relaxed);
        let mut connection = Connection::open(&server.address)?;
        let status = connection.send(&format!("unfold{feed}"), kind, body)?;
        if status >= 500 {
            bail!("{name}: {status}");
        }
    }
    let bytes: usize = bodies.iter().map(String::len).sum();
    let micros = server.cpu_micros()? - before;
    Ok(micros * 1_000.0 / f64::from(u32::try_from(bytes)?))
}

/// Publishes one entry after the other while something else happens. Returns the 99th percentile of its times, in
/// milliseconds.
fn publish(
    server: &Program,
    feeds: &AtomicU32,
    meanwhile: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let done = AtomicBool::new(false);
    let feed = format!("beside{}", feeds.fetch_add(1, Ordering::Relaxed));
    let mut times = thread::scope(|threads| {
        let publisher = threads.spawn(|| -> anyhow::Result<Vec<f64>> {
            let mut connection = Connection::open(&server.address)?;
            let mut times = vec![];
            while !done.load(Ordering::Acquire) {
                let began = Instant::now();
                connection.publish(&feed, "{}\n")?;
                times.push(began.elapsed().as_secs_f64() * 1_000.0);
                thread::park_timeout(PACE);
            }
            Ok(times)
        });
        let other = meanwhile();
        done.store(true, Ordering::Release);
        match publisher.join() {
            Ok(times) => other.and(times),
            Err(_) => bail!("the publisher failed"),
        }
    })?;
    times.sort_by(f64::total_cmp);
    let at = times.len().saturating_sub(1) * 99 / 100;
    times.get(at).copied().context("something was published")
}
