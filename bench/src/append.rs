//! `append`: durable appends, against bare sled with the same barrier, batches and id index.
//!
//! Shell. The floor does no HTTP, XML, hashing or checking: it shows what the storage leaves to win.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use simplefeed_server::log::barrier::{Barrier as _, DiskBarrier};

use crate::{
    load::{append, event},
    process::Program,
    table::{Row, Table},
};

pub(crate) fn measure(rounds: usize, seconds: u64) -> anyhow::Result<Table> {
    let mut rows = vec![];
    for (connections, batch) in [(1, 1), (64, 1), (256, 1), (1, 1_000), (2, 1_000)] {
        let (mut ours, mut peer) = (vec![], vec![]);
        for _ in 0..rounds {
            let folder = tempfile::tempdir()?;
            let server = Program::simplefeed(folder.path())?;
            ours.push(append(
                &server.address,
                "bench",
                connections,
                batch,
                seconds,
            )?);
            drop(server);
            let folder = tempfile::tempdir()?;
            peer.push(bare_sled(folder.path(), connections * batch, seconds)?);
        }
        let what = match batch {
            1 => format!("single entries, {connections} connections"),
            _ => format!("batches of {batch}, {connections} connections"),
        };
        rows.push(Row {
            what,
            unit: "durable entries/s",
            ours,
            peer,
        });
    }
    Ok(Table {
        peer: "bare sled",
        rows,
    })
}

/// Writes groups of `group` entries with their ids, each group synced like ours. Returns entries/s.
fn bare_sled(folder: &Path, group: usize, seconds: u64) -> anyhow::Result<f64> {
    let db = sled::Config::new()
        .path(folder.join("sled"))
        .cache_capacity(128 * 1024 * 1024)
        .flush_every_ms(Some(500))
        .mode(sled::Mode::LowSpace)
        .open()?;
    let barrier = DiskBarrier::new(folder)?;
    let (started, mut serial) = (Instant::now(), 0_u32);
    while started.elapsed() < Duration::from_secs(seconds) {
        let mut batch = sled::Batch::default();
        for _ in 0..group {
            let line = event(u64::from(serial));
            // Scattered like hashes are.
            let scattered =
                u128::from(serial).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let mut key = vec![b'e'];
            key.extend_from_slice(&serial.to_be_bytes());
            batch.insert(key, line.as_bytes());
            let mut key = vec![b'i'];
            key.extend_from_slice(&scattered.to_be_bytes());
            batch.insert(key, &serial.to_be_bytes());
            serial += 1;
        }
        batch.insert(b"head", &serial.to_be_bytes());
        db.apply_batch(batch)?;
        db.flush()?;
        barrier.sync()?;
    }
    Ok(f64::from(serial) / started.elapsed().as_secs_f64())
}
