//! `refresh`: how fresh items are and how many requests that costs, and the queue: jobs leased in batches of 100, and
//! finished again with a new due time.
//!
//! In a file, beside `redb` itself with the same writes and beanstalkd; in PostgreSQL, beside a plain table with `SKIP
//! LOCKED` and a job queue of others in the same server.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use simplefeed_queue::{
    Clock, Due, Existing, Finish, Lease, Namespace, NewJob, Queue, Successor, TakeOutcome, Want,
    redb::Redb,
};

use crate::{
    process::{folder, memory_mib},
    table::{Must, Row, Table},
};

mod file;
mod freshness;
mod postgres;

/// Jobs of a batch.
const BATCH: usize = 100;
/// Workers over a file.
const WORKERS: usize = 8;
/// Live items of the process whose memory is measured.
const ITEMS: i64 = 10_000_000;
/// Seconds after 1970 of the first due time. All are in the past, so that there is always work.
const FIRST_DUE: i64 = 1_000_000_000;
const WANT: Want = Want {
    max: BATCH,
    buffer: Duration::ZERO,
    lease: Duration::from_mins(5),
};

/// Where plots go.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Plots {
    /// Folder for plots of requests and of ages, as SVG
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

pub(crate) fn measure(
    table: &mut Table,
    rounds: usize,
    seconds: u64,
    plots: &Plots,
) -> anyhow::Result<()> {
    let time = Duration::from_secs(seconds);
    // First, since memory of other rows would count, too.
    memory(table, time)?;
    freshness::measure(table, 30 * time, plots.plots.as_deref())?;
    for (jobs, least) in [(10_000, 50_000.0), (1_000_000, 20_000.0)] {
        file::measure(table, rounds, time, jobs, least)?;
    }
    postgres::measure(table, rounds, time)
}

/// Memory of a process with very many live items, while workers turn them over.
fn memory(table: &mut Table, time: Duration) -> anyhow::Result<()> {
    let folder = folder()?;
    let runtime = runtime()?;
    let name = Namespace::new("items")?;
    let queue = Redb::open(&folder.path().join("queue"), Clock::Real)?;
    runtime.block_on(fill(&queue, &name, ITEMS))?;
    let turns = Arc::new(AtomicI64::new(ITEMS));
    runtime.block_on(turn_over(&queue, &name, WORKERS, 5 * time, &turns))?;
    let resident = memory_mib(std::process::id(), "VmRSS:").context("this process has memory")?;
    table.add(Row {
        what: format!("{ITEMS} items in a file, one process"),
        unit: "MiB resident",
        ours: vec![resident],
        peer: "the budget".to_owned(),
        theirs: vec![500.0],
        must: Some(Must::AtMost(1.0)),
    });
    Ok(())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    Ok(runtime.enable_all().build()?)
}

fn row(what: String, ours: &[f64], peer: &str, theirs: Vec<f64>, must: Option<Must>) -> Row {
    let (unit, ours, peer) = ("jobs/s", ours.to_vec(), peer.to_owned());
    Row {
        what,
        unit,
        ours,
        peer,
        theirs,
        must,
    }
}

/// Returns the due time of a turn, which grows by a millisecond, so that a finished job goes to the end.
fn due(turn: i64) -> Due {
    let due = chrono::DateTime::from_timestamp_millis(FIRST_DUE * 1_000 + turn);
    Due::At(due.unwrap_or_default())
}

/// Returns the key of a job. Keys have no order in time, as ids of a provider have none.
fn key(number: i64) -> String {
    format!(
        "{:016x}",
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed())
    )
}

/// Schedules jobs.
async fn fill(queue: &impl Queue, name: &Namespace, jobs: i64) -> anyhow::Result<()> {
    let job = |number| NewJob::new(name, key(number), due(number)).payload(payload());
    for begin in (0..jobs).step_by(10_000) {
        let part = (begin..(begin + 10_000).min(jobs)).map(job).collect();
        queue.schedule(part, Existing::Keep).await?;
    }
    Ok(())
}

/// What a job of the refresher has.
fn payload() -> Vec<u8> {
    format!(
        "{{\"born\":1767225600000000,\"last\":\"{}\"}}",
        "0".repeat(64)
    )
    .into_bytes()
}

/// Leases and finishes for some time. Returns jobs per second.
async fn turn_over(
    queue: &impl Queue,
    name: &Namespace,
    workers: usize,
    time: Duration,
    turns: &Arc<AtomicI64>,
) -> anyhow::Result<f64> {
    let (began, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..workers {
        let (queue, name) = (queue.clone(), name.clone());
        let (turns, done) = (Arc::clone(turns), Arc::clone(&done));
        all.spawn(async move {
            while began.elapsed() < time {
                let TakeOutcome::Leased(leases) = queue.take(&name, WANT).await? else {
                    continue;
                };
                let count = u64::try_from(leases.len())?;
                let again = |lease: Lease| {
                    let due = due(turns.fetch_add(1, Ordering::Relaxed));
                    let payload = Some(lease.job.payload);
                    Finish::new(lease.token, Successor::Again { due, payload })
                };
                queue
                    .finish(leases.into_iter().map(again).collect())
                    .await?;
                done.fetch_add(count, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = all.join_next().await {
        ended??;
    }
    Ok(per_second(done.load(Ordering::Relaxed), began))
}

fn per_second(jobs: u64, began: Instant) -> f64 {
    f64::from(u32::try_from(jobs).unwrap_or(u32::MAX)) / began.elapsed().as_secs_f64()
}
