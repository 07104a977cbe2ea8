//! `refresh`: how fresh items are and how many requests that costs, and the queue: jobs leased in batches of 100, and
//! finished again with a new due time.
//!
//! In a file, beside `redb` itself with the same writes and beanstalkd; in PostgreSQL, beside a plain table with `SKIP
//! LOCKED` and a job queue of others in the same server.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use redb::{Database, Durability, TableDefinition};
use simplefeed_queue::{
    Clock, Due, Existing, Finish, Lease, Namespace, NewJob, Next, Queue, Taken, Want,
    postgres::Postgres, redb::Redb,
};

mod freshness;

use crate::{
    process::{Program, folder, memory_mib},
    table::{Must, Row, Table},
};

/// Jobs of a batch.
const BATCH: usize = 100;
/// Workers over the file.
const WORKERS: usize = 8;
/// Workers over PostgreSQL.
const WORKERS_OF_POSTGRES: usize = 4;
/// Jobs that wait in PostgreSQL.
const JOBS_OF_POSTGRES: i64 = 100_000;
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
        in_a_file(table, rounds, time, jobs, least)?;
    }
    in_postgres(table, rounds, time)
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
                let Taken::Leased(leases) = queue.take(&name, WANT).await? else {
                    continue;
                };
                let count = u64::try_from(leases.len())?;
                let again = |lease: Lease| {
                    let due = due(turns.fetch_add(1, Ordering::Relaxed));
                    let payload = Some(lease.job.payload);
                    Finish::new(lease.token, Next::Again { due, payload })
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

fn in_a_file(
    table: &mut Table,
    rounds: usize,
    time: Duration,
    jobs: i64,
    least: f64,
) -> anyhow::Result<()> {
    let folder = folder()?;
    let runtime = runtime()?;
    let name = Namespace::new("items")?;
    let queue = Redb::open(&folder.path().join("queue"), Clock::Real)?;
    runtime.block_on(fill(&queue, &name, jobs))?;
    let bare = Bare::open(&folder.path().join("bare"), jobs)?;
    let beanstalkd = Beanstalkd::start(folder.path())?;
    let turns = Arc::new(AtomicI64::new(jobs));
    let (mut ours, mut theirs, mut beans) = (vec![], vec![], vec![]);
    for round in 0..=rounds {
        let one = runtime.block_on(turn_over(&queue, &name, WORKERS, time, &turns))?;
        let other = bare.turn_over(time)?;
        let bean = beanstalkd.turn_over(time)?;
        // The first round is slower.
        if round > 0 {
            ours.push(one);
            theirs.push(other);
            beans.push(bean);
        }
    }
    let what = format!("{jobs} jobs in a file, leased and finished again");
    let limit = vec![least; ours.len()];
    table.add(row(
        what.clone(),
        &ours,
        "the budget",
        limit,
        Some(Must::AtLeast(1.0)),
    ));
    table.add(row(
        what.clone(),
        &ours,
        "redb, the same writes",
        theirs,
        Some(Must::AtLeast(0.6)),
    ));
    table.add(row(
        what,
        &ours,
        "beanstalkd, 10,000 jobs, synced",
        beans,
        None,
    ));
    Ok(())
}

/// The same writes without a queue: a job is taken out of the order of due times and put to its end, and its place noted.
struct Bare {
    database: Database,
    next: AtomicI64,
    jobs: i64,
}

type Job<'j> = (&'j str, i64, u32, &'j [u8], &'j [u8]);
const ORDER: TableDefinition<'_, (&str, i64, u64), Job<'_>> = TableDefinition::new("order");
const PLACES: TableDefinition<'_, u64, Option<i64>> = TableDefinition::new("places");

impl Bare {
    fn open(path: &std::path::Path, jobs: i64) -> anyhow::Result<Self> {
        let database = redb::Builder::new()
            .set_cache_size(64 * 1024 * 1024)
            .create(path)?;
        let bare = Self {
            database,
            next: AtomicI64::new(0),
            jobs,
        };
        for begin in (0..jobs).step_by(10_000) {
            bare.write(begin..(begin + 10_000).min(jobs), false)?;
        }
        Ok(bare)
    }

    fn write(&self, numbers: std::ops::Range<i64>, moves: bool) -> anyhow::Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut order = transaction.open_table(ORDER)?;
            let mut places = transaction.open_table(PLACES)?;
            let payload = payload();
            for number in numbers {
                let job = number % self.jobs;
                let (key, job) = (key(job), job.unsigned_abs());
                if moves {
                    order.remove(("items", number - self.jobs, job))?;
                }
                let row = (key.as_str(), number, 0, payload.as_slice(), &b""[..]);
                order.insert(("items", number, job), row)?;
                places.insert(job, Some(number))?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// As many jobs in a commit as the workers of the queue have together.
    fn turn_over(&self, time: Duration) -> anyhow::Result<f64> {
        let together = i64::try_from(BATCH * WORKERS)?;
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < time {
            let begin = self.jobs + self.next.fetch_add(together, Ordering::Relaxed);
            self.write(begin..begin + together, true)?;
            done += u64::try_from(together)?;
        }
        Ok(per_second(done, began))
    }
}

/// A beanstalkd that syncs each write.
struct Beanstalkd(Program);

impl Beanstalkd {
    fn start(folder: &std::path::Path) -> anyhow::Result<Self> {
        let program = Program::beanstalkd(folder)?;
        let mut connection = TcpStream::connect(&program.address)?;
        let mut answers = BufReader::new(connection.try_clone()?);
        // As one segment each, or every put waits for a delayed acknowledgement.
        let text = String::from_utf8(payload())?;
        let put = format!("put 0 0 600 {}\r\n{text}\r\n", text.len());
        for _ in 0..10_000 {
            connection.write_all(put.as_bytes())?;
            answers.read_line(&mut String::new())?;
        }
        Ok(Self(program))
    }

    /// Each of the workers reserves a job and releases it, again and again.
    fn turn_over(&self, time: Duration) -> anyhow::Result<f64> {
        let (began, done) = (Instant::now(), AtomicU64::new(0));
        let work = || -> anyhow::Result<()> {
            let mut connection = TcpStream::connect(&self.0.address)?;
            connection.set_nodelay(true)?;
            let mut answers = BufReader::new(connection.try_clone()?);
            while began.elapsed() < time {
                connection.write_all(b"reserve\r\n")?;
                let mut answer = String::new();
                answers.read_line(&mut answer)?;
                let mut words = answer.split_whitespace().skip(1);
                let id = words.next().context("a reserved job has an id")?.to_owned();
                answers.read_line(&mut String::new())?;
                connection.write_all(format!("release {id} 0 0\r\n").as_bytes())?;
                answers.read_line(&mut String::new())?;
                done.fetch_add(1, Ordering::Relaxed);
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

fn in_postgres(table: &mut Table, rounds: usize, time: Duration) -> anyhow::Result<()> {
    let folder = folder()?;
    let server = Program::postgres(folder.path())?;
    let url = format!("postgres://postgres@{}/postgres", server.address);
    let runtime = runtime()?;
    let name = Namespace::new("items")?;
    let queue = runtime.block_on(Postgres::open(&url, Clock::Real))?;
    runtime.block_on(fill(&queue, &name, JOBS_OF_POSTGRES))?;
    let plain = Plain::open(&url)?;
    let turns = Arc::new(AtomicI64::new(JOBS_OF_POSTGRES));
    let (mut ours, mut theirs) = (vec![], vec![]);
    for round in 0..=rounds {
        let one = runtime.block_on(turn_over(&queue, &name, WORKERS_OF_POSTGRES, time, &turns))?;
        let other = plain.turn_over(time)?;
        if round > 0 {
            ours.push(one);
            theirs.push(other);
        }
    }
    let what = format!("{JOBS_OF_POSTGRES} jobs in PostgreSQL, leased and finished again");
    let peer = "a plain table with SKIP LOCKED";
    table.add(row(what, &ours, peer, theirs, Some(Must::AtLeast(1.0))));
    Ok(())
}

/// A table as one writes it by hand: a number, a due time, a lock.
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
            INSERT INTO plain SELECT md5(n::text), n, NULL, '{text}' FROM generate_series(0, {JOBS_OF_POSTGRES} - 1) AS n;
            CREATE INDEX ON plain (due) WHERE locked_until IS NULL;
            ANALYZE plain"
        ))?;
        Ok(Self {
            url: url.to_owned(),
            next: AtomicI64::new(JOBS_OF_POSTGRES),
        })
    }

    fn turn_over(&self, time: Duration) -> anyhow::Result<f64> {
        let (began, done) = (Instant::now(), AtomicU64::new(0));
        let work = || -> anyhow::Result<()> {
            let mut client = Self::client(&self.url)?;
            let lock = client.prepare(
                "UPDATE plain SET locked_until = 1 WHERE id IN (
                    SELECT id FROM plain WHERE locked_until IS NULL ORDER BY due LIMIT 100 FOR UPDATE SKIP LOCKED
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
            let workers: Vec<_> = (0..WORKERS_OF_POSTGRES)
                .map(|_| scope.spawn(work))
                .collect();
            for worker in workers {
                worker
                    .join()
                    .map_err(|_panic| anyhow::anyhow!("a worker failed"))??;
            }
            Ok(per_second(done.load(Ordering::Relaxed), began))
        })
    }
}
