//! The queue in a file.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use redb::{Database, Durability, TableDefinition};
use simplefeed_queue::{Clock, Namespace, redb::Redb};

use super::{BATCH, WORKERS, fill, key, payload, per_second, row, runtime, turn_over};
use crate::{
    process::{Program, folder},
    table::{Must, Table},
};

/// Measures jobs in a file, beside `redb` itself with the same writes, and beanstalkd.
pub(super) fn measure(
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
