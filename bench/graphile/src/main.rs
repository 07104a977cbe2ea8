//! Jobs that run and add themselves again with a new due time, as the benchmark of the refresher's queue does.
//!
//! `graphile-peer URL JOBS SECONDS` prints jobs per second. Jobs are added if there are none. It has what its guide
//! advises for throughput: a local queue that fetches 100 jobs at a time, and completions in batches.

use std::{
    env,
    error::Error,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime},
};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpecBuilder, LocalQueueConfig, TaskHandler, WorkerContext,
    WorkerContextExt as _, WorkerOptions,
};
use serde::{Deserialize, Serialize};

static DONE: AtomicU64 = AtomicU64::new(0);
static TURN: AtomicI64 = AtomicI64::new(0);

/// A job with as many bytes as one of the refresher has.
#[derive(Clone, Deserialize, Serialize)]
struct Item {
    id: String,
    born: i64,
    last: String,
}

/// Returns a time in the past, which grows, so that a finished job goes to the end.
fn due() -> chrono::DateTime<chrono::Utc> {
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    (past + Duration::from_micros(turn.unsigned_abs())).into()
}

impl TaskHandler for Item {
    const IDENTIFIER: &'static str = "item";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let again = JobSpecBuilder::new().run_at(due()).build();
        context
            .add_job(self, again)
            .await
            .map_err(|error| error.to_string())?;
        DONE.fetch_add(1, Ordering::Relaxed);
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let mut next = || args.next().ok_or("usage: graphile-peer URL JOBS SECONDS");
    let (url, jobs, seconds) = (next()?, next()?.parse::<i64>()?, next()?.parse()?);
    let worker = WorkerOptions::default()
        .database_url(&url)
        .max_pg_conn(8)
        .concurrency(400)
        .complete_job_batch_delay(Duration::from_millis(5))
        .local_queue(LocalQueueConfig::default().with_size(400))
        .listen_os_shutdown_signals(false)
        .define_job::<Item>()
        .init()
        .await?;
    // One that has run before has the jobs.
    let micros = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)?
        .as_micros();
    if jobs > 0 {
        let utils = worker.create_utils();
        for begin in (0..jobs).step_by(1_000) {
            let specs: Vec<_> = (begin..(begin + 1_000).min(jobs))
                .map(|number| {
                    let id = format!("{number:016x}");
                    let (born, last) = (i64::try_from(micros).unwrap_or(0), "0".repeat(64));
                    (
                        Item { id, born, last },
                        JobSpecBuilder::new().run_at(due()).build(),
                    )
                })
                .collect();
            let all: Vec<_> = specs
                .iter()
                .map(|(item, spec)| (item.clone(), spec))
                .collect();
            utils.add_jobs(&all).await?;
        }
    }
    // Behind those of an earlier run: fewer than 100,000 in each second.
    TURN.store(i64::try_from(micros / 10)?, Ordering::Relaxed);
    let time = Duration::from_secs(seconds);
    let began = Instant::now();
    tokio::select! {
        ended = worker.run() => ended?,
        () = tokio::time::sleep(time) => {}
    }
    println!(
        "{}",
        DONE.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
    );
    Ok(())
}
