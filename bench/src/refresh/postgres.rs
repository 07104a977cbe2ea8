//! The queue in PostgreSQL.

use std::{
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use simplefeed_queue::{Clock, Namespace, postgres::Postgres};

use super::{fill, payload, per_second, row, runtime, turn_over};
use crate::{
    process::{Program, folder},
    table::{Must, Table},
};

/// Workers.
const WORKERS: usize = 4;
/// Jobs that wait.
const JOBS: i64 = 100_000;

/// Measures jobs in PostgreSQL, beside a plain table and a job queue of others in the same server.
pub(super) fn measure(table: &mut Table, rounds: usize, time: Duration) -> anyhow::Result<()> {
    let folder = folder()?;
    let server = Program::postgres(folder.path())?;
    let url = format!("postgres://postgres@{}/postgres", server.address);
    let runtime = runtime()?;
    let name = Namespace::new("items")?;
    let queue = runtime.block_on(Postgres::open(&url, Clock::Real))?;
    runtime.block_on(fill(&queue, &name, JOBS))?;
    let plain = Plain::open(&url)?;
    let graphile = Graphile::build(&url)?;
    let turns = Arc::new(AtomicI64::new(JOBS));
    let (mut ours, mut theirs, mut graphiles) = (vec![], vec![], vec![]);
    for round in 0..=rounds {
        let one = runtime.block_on(turn_over(&queue, &name, WORKERS, time, &turns))?;
        let other = plain.turn_over(time)?;
        let graphile = graphile.turn_over(time, round == 0)?;
        if round > 0 {
            ours.push(one);
            theirs.push(other);
            graphiles.push(graphile);
        }
    }
    let what = format!("{JOBS} jobs in PostgreSQL, leased and finished again");
    let peer = "a plain table with SKIP LOCKED";
    let must = Some(Must::AtLeast(1.0));
    table.add(row(what.clone(), &ours, peer, theirs, must));
    table.add(row(what, &ours, "graphile_worker", graphiles, None));
    Ok(())
}

/// The job queue `graphile_worker`, in a program of its own, which is built first.
struct Graphile {
    program: PathBuf,
    url: String,
}

impl Graphile {
    fn build(url: &str) -> anyhow::Result<Self> {
        let programs = std::env::current_exe()?;
        let target = programs.ancestors().nth(2).context("no target folder")?;
        let project = target.parent().context("no folder of the project")?;
        let manifest = project.join("bench/graphile/Cargo.toml");
        let target = target.join("graphile");
        let mut build = Command::new("cargo");
        build.args(["build", "--quiet", "--release", "--locked"]);
        build.arg("--manifest-path").arg(manifest);
        build.arg("--target-dir").arg(&target);
        anyhow::ensure!(
            build.status()?.success(),
            "cargo cannot build graphile-peer"
        );
        Ok(Self {
            program: target.join("release/graphile-peer"),
            url: url.to_owned(),
        })
    }

    fn turn_over(&self, time: Duration, is_first: bool) -> anyhow::Result<f64> {
        let jobs = if is_first { JOBS } else { 0 };
        let mut run = Command::new(&self.program);
        run.arg(&self.url).arg(jobs.to_string());
        let output = run.arg(time.as_secs().to_string()).output()?;
        let rate = String::from_utf8(output.stdout)?;
        rate.trim().parse().context("graphile-peer has no rate")
    }
}

/// A table as one writes it by hand: a number, a due time, a lock. As for ours, a lock need not be synced.
struct Plain {
    url: String,
    next: AtomicI64,
}

impl Plain {
    fn client(url: &str) -> anyhow::Result<postgres::Client> {
        Ok(postgres::Client::connect(url, postgres::NoTls)?)
    }

    fn open(url: &str) -> anyhow::Result<Self> {
        let text = String::from_utf8(payload())?;
        Self::client(url)?.batch_execute(&format!(
            "CREATE TABLE plain (id text PRIMARY KEY, due bigint NOT NULL, locked_until bigint, payload text NOT NULL);
            INSERT INTO plain SELECT md5(n::text), n, NULL, '{text}' FROM generate_series(0, {JOBS} - 1) AS n;
            CREATE INDEX ON plain (due) WHERE locked_until IS NULL;
            ANALYZE plain"
        ))?;
        Ok(Self {
            url: url.to_owned(),
            next: AtomicI64::new(JOBS),
        })
    }

    fn turn_over(&self, time: Duration) -> anyhow::Result<f64> {
        let (began, done) = (Instant::now(), AtomicU64::new(0));
        let work = || -> anyhow::Result<()> {
            let mut client = Self::client(&self.url)?;
            let lock = client.prepare(
                "UPDATE plain SET locked_until = 1 WHERE id IN (
                    SELECT id FROM plain
                    WHERE locked_until IS NULL AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
                    ORDER BY due LIMIT 100 FOR UPDATE SKIP LOCKED
                ) RETURNING id, payload",
            )?;
            let finish = client.prepare(
                "UPDATE plain SET locked_until = NULL, due = given.due, payload = given.payload
                FROM unnest($1::text[], $2::bigint[], $3::text[]) AS given (id, due, payload) WHERE plain.id = given.id",
            )?;
            while began.elapsed() < time {
                let rows = client.query(&lock, &[])?;
                let (mut ids, mut dues, mut payloads) = (vec![], vec![], vec![]);
                for row in &rows {
                    ids.push(row.get::<_, String>(0));
                    dues.push(self.next.fetch_add(1, Ordering::Relaxed));
                    payloads.push(row.get::<_, String>(1));
                }
                client.execute(&finish, &[&ids, &dues, &payloads])?;
                done.fetch_add(u64::try_from(rows.len())?, Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                worker
                    .join()
                    .map_err(|_panic| anyhow::anyhow!("a worker failed"))??;
            }
            Ok(per_second(done.load(Ordering::Relaxed), began))
        })
    }
}
