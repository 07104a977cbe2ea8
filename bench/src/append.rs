//! `append`: durable appends, against databases that sync every commit, and against bare sled with the
//! same barrier, batches and an id index.
//!
//! Shell. Everybody stores the same 350 bytes, and all but Redis under a unique id. Bare sled does no HTTP,
//! XML, hashing or checking: it shows what the storage leaves to win. It begins anew each round, while all
//! others grow.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use simplefeed_log::barrier::{Barrier as _, DiskBarrier};
use tempfile::TempDir;

use crate::{
    load::{Load, append, event},
    process::{Program, folder, installed, postgres_program},
    table::{Must, Row, Table},
};

pub(crate) fn measure(table: &mut Table, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    // Removed at the end only; see `process`.
    let mut folders = vec![];
    let mut new_folder = || -> anyhow::Result<PathBuf> {
        let folder = folder()?;
        let path = folder.path().to_path_buf();
        folders.push(folder);
        Ok(path)
    };
    let postgres = Program::postgres(&new_folder()?)?;
    create_table(&postgres)?;
    let redis = Program::redis(&new_folder()?)?;
    for (connections, batch) in [(1, 1), (64, 1), (256, 1), (1, 1_000), (2, 1_000)] {
        let server = Program::simplefeed(&new_folder()?)?;
        append(&server, "'bench'", connections, batch, 1)?;
        if batch == 1 {
            let warm = postgres_inserts(&postgres, connections, seconds.max(3));
            or_nothing("pgbench", warm);
            or_nothing("redis-benchmark", redis_adds(&redis, connections, 1));
        }
        let (mut loads, mut sled) = (vec![], vec![]);
        let (mut inserts, mut adds) = (vec![], vec![]);
        for _ in 0..rounds {
            loads.push(append(&server, "'bench'", connections, batch, seconds)?);
            if batch == 1 {
                inserts.push(or_nothing(
                    "pgbench",
                    postgres_inserts(&postgres, connections, seconds),
                ));
                adds.push(or_nothing(
                    "redis-benchmark",
                    redis_adds(&redis, connections, seconds),
                ));
            }
            let folder = new_folder()?;
            sled.push(or_nothing(
                "sled",
                bare_sled(&folder, connections * batch, seconds),
            ));
        }
        let what = match batch {
            1 => format!("single entries, {connections} connections"),
            _ => format!("batches of {batch}, {connections} connections"),
        };
        let of_postgres = match connections {
            1 => Some(Must::AtLeast(0.8)),
            64 => Some(Must::AtLeast(1.8)),
            _ => None,
        };
        let of_sled = (batch > 1).then_some(Must::AtLeast(1.5));
        let ours: Vec<f64> = loads.iter().map(|load| load.per_second).collect();
        for (peer, theirs, must) in [
            ("PostgreSQL INSERT", inserts, of_postgres),
            ("Redis XADD, appendfsync always", adds, None),
            ("bare sled", sled, of_sled),
        ] {
            if !theirs.is_empty() {
                table.add(Row {
                    what: what.clone(),
                    unit: "durable entries/s",
                    ours: ours.clone(),
                    peer: peer.into(),
                    theirs,
                    must,
                });
            }
        }
        table.add_all(costs(&what, &loads));
    }
    Ok(())
}

/// Rows that have no peer.
fn costs(what: &str, loads: &[Load]) -> [Row; 3] {
    let alone = |unit, pick: fn(&Load) -> f64| Row {
        what: what.into(),
        unit,
        ours: loads.iter().map(pick).collect(),
        peer: String::new(),
        theirs: vec![],
        must: None,
    };
    [
        alone("CPU µs/entry", |load| load.cpu_micros),
        alone("p50 µs/request", |load| load.p50_micros),
        alone("p99 µs/request", |load| load.p99_micros),
    ]
}

/// Returns a peer's rate. A peer that manages nothing in its time has none, and ends no measurement of ours.
fn or_nothing(peer: &str, measured: anyhow::Result<f64>) -> f64 {
    measured.unwrap_or_else(|error| {
        eprintln!("{peer} managed nothing: {error:#}");
        f64::NAN
    })
}

/// A command against PostgreSQL.
fn of_postgres(program: &str, postgres: &Program) -> anyhow::Result<Command> {
    let mut command = Command::new(postgres_program(program)?);
    command.args(["-h", "127.0.0.1", "-p", postgres.port(), "-U", "postgres"]);
    Ok(command)
}

fn create_table(postgres: &Program) -> anyhow::Result<()> {
    let sql = "CREATE TABLE entries (id uuid PRIMARY KEY, body text NOT NULL)";
    let created = of_postgres("psql", postgres)?
        .args(["-q", "-c", sql])
        .status()?;
    if !created.success() {
        bail!("PostgreSQL has no table");
    }
    Ok(())
}

/// Prepared inserts, one per transaction, for some seconds. Returns inserts/s.
fn postgres_inserts(postgres: &Program, connections: usize, seconds: u64) -> anyhow::Result<f64> {
    let folder = TempDir::new()?;
    let script = folder.path().join("insert.sql");
    let body = event(7);
    let sql = format!(
        "INSERT INTO entries VALUES (gen_random_uuid(), '{}');\n",
        body.trim()
    );
    // A colon would name a variable of the script.
    std::fs::write(&script, sql.replace(':', "="))?;
    let output = of_postgres("pgbench", postgres)?
        .args(["-n", "-M", "prepared", "-j", "1"])
        .args(["-c", &connections.to_string(), "-T", &seconds.to_string()])
        .arg("-f")
        .arg(&script)
        .arg("postgres")
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let tps = said.lines().find_map(|line| line.strip_prefix("tps = "));
    let tps = tps.and_then(|tps| tps.split(' ').next());
    Ok(tps
        .with_context(|| format!("pgbench: {output:?}"))?
        .parse()?)
}

/// Adds to a stream for about some seconds. Returns additions/s.
fn redis_adds(redis: &Program, connections: usize, seconds: u64) -> anyhow::Result<f64> {
    let a_second = if connections == 1 { 4_000 } else { 50_000 };
    let output = Command::new(installed("redis-benchmark", "redis-server")?)
        .args(["-p", redis.port(), "-c", &connections.to_string(), "--csv"])
        .args(["-n", &(a_second * seconds).to_string()])
        .args(["XADD", "entries", "*", "body", event(7).trim()])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().unwrap_or_default();
    // From the end, since the command comes first and has commas: the rate, and six latencies.
    let rate = last.rsplit("\",\"").nth(6);
    Ok(rate
        .with_context(|| format!("redis-benchmark: {output:?}"))?
        .parse()?)
}

/// Writes groups of `group` entries with their ids, each group synced like ours. Returns entries/s.
fn bare_sled(folder: &Path, group: usize, seconds: u64) -> anyhow::Result<f64> {
    let db = sled::Config::new()
        .path(folder.join("sled"))
        .cache_capacity(128 * 1024 * 1024)
        .flush_every_ms(Some(500))
        .mode(sled::Mode::LowSpace)
        .open()?;
    let barrier = DiskBarrier::new()?;
    let file = std::fs::File::open(folder.join("sled/db"))?;
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
        barrier.sync(&file)?;
    }
    Ok(f64::from(serial) / started.elapsed().as_secs_f64())
}
