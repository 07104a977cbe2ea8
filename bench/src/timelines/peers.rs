//! Redis and PostgreSQL as feed services.
//!
//! Shell: sockets.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Instant,
};

use anyhow::{Context as _, bail};
use postgres::{Client, NoTls, Statement};

use crate::process::Program;

/// Newest entries of a timeline that Redis keeps.
const KEPT: usize = 800;
/// Followers whose commands go out together.
const PIPELINED: u32 = 10_000;

/// Cost of a fan-out: microseconds until its end, and CPU of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct FanOut {
    pub(super) micros: f64,
    pub(super) cpu_micros: f64,
}

/// Pushes an entry into the list of each follower, and cuts each list, pipelined.
pub(super) fn redis_fan_out(redis: &Program, followers: u32, entry: u64) -> anyhow::Result<FanOut> {
    let mut stream = TcpStream::connect(&redis.address)?;
    let (before, began) = (redis.cpu_micros()?, Instant::now());
    let mut answers = vec![0; 64 * 1024];
    for first in (0..followers).step_by(usize::try_from(PIPELINED)?) {
        let last = followers.min(first + PIPELINED);
        let mut commands = String::new();
        for follower in first..last {
            let (list, end) = (format!("t:{follower}"), (KEPT - 1).to_string());
            let reference = format!("pop:{entry}");
            for command in [
                &["LPUSH", &list, &reference][..],
                &["LTRIM", &list, "0", &end],
            ] {
                write!(commands, "*{}\r\n", command.len())?;
                for word in command {
                    write!(commands, "${}\r\n{word}\r\n", word.len())?;
                }
            }
        }
        let mut reader = stream.try_clone()?;
        let wanted = 2 * usize::try_from(last - first)?;
        // Answers are read meanwhile: a full socket would stop both.
        std::thread::scope(|threads| -> anyhow::Result<()> {
            let answers = &mut answers;
            let reading = threads.spawn(move || -> anyhow::Result<()> {
                let mut lines = 0;
                while lines < wanted {
                    let read = reader.read(answers)?;
                    let bytes = answers.get(..read).unwrap_or_default();
                    if read == 0 || bytes.first() == Some(&b'-') {
                        bail!("Redis refused");
                    }
                    lines += bytes.split(|byte| *byte == b'\n').count() - 1;
                }
                Ok(())
            });
            stream.write_all(commands.as_bytes())?;
            reading.join().ok().context("the reader panicked")?
        })?;
    }
    Ok(FanOut {
        micros: began.elapsed().as_secs_f64() * 1e6,
        cpu_micros: redis.cpu_micros()? - before,
    })
}

/// A connection to PostgreSQL.
pub(super) fn connect(postgres: &Program) -> anyhow::Result<Client> {
    let port = postgres.port();
    let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    Ok(Client::connect(&config, NoTls)?)
}

/// Makes followers, the first `n` of whom follow the feed `n`.
pub(super) fn postgres_followers(client: &mut Client, counts: &[u32]) -> anyhow::Result<()> {
    client.batch_execute(
        "CREATE TABLE followers (feed int, follower int, PRIMARY KEY (feed, follower));
         CREATE TABLE timelines (follower int, at bigint, feed int, PRIMARY KEY (follower, at));",
    )?;
    for count in counts {
        client.batch_execute(&format!(
            "INSERT INTO followers SELECT {count}, n FROM generate_series(0, {count} - 1) n"
        ))?;
    }
    client.batch_execute("ANALYZE")?;
    Ok(())
}

/// Inserts an entry into the timeline of each follower.
pub(super) fn postgres_fan_out(
    postgres: &Program,
    client: &mut Client,
    followers: u32,
    entry: i64,
) -> anyhow::Result<FanOut> {
    let (before, began) = (postgres.cpu_micros()?, Instant::now());
    let feed = i32::try_from(followers)?;
    let inserted = client.execute(
        "INSERT INTO timelines SELECT follower, $2, feed FROM followers WHERE feed = $1",
        &[&feed, &entry],
    )?;
    if inserted != u64::from(followers) {
        bail!("PostgreSQL inserted {inserted}");
    }
    Ok(FanOut {
        micros: began.elapsed().as_secs_f64() * 1e6,
        cpu_micros: postgres.cpu_micros()? - before,
    })
}

/// Feeds with entries of `bytes` bytes, as ours have them, and timelines that follow them.
pub(super) fn postgres_feeds(
    client: &mut Client,
    feeds: u32,
    entries: u32,
    body: &str,
    follows: &[(i32, Vec<i32>)],
) -> anyhow::Result<()> {
    client.batch_execute(&format!(
        "CREATE TABLE entries (feed int, at bigint, body text, PRIMARY KEY (feed, at));
         CREATE TABLE follows (timeline int, feed int, PRIMARY KEY (timeline, feed));
         INSERT INTO entries SELECT n % {feeds}, n, '{}' FROM generate_series(0, {}) n;",
        body.replace('\'', "''"),
        u64::from(feeds) * u64::from(entries) - 1
    ))?;
    for (timeline, feeds) in follows {
        client.execute(
            "INSERT INTO follows SELECT $1, unnest($2::int[])",
            &[timeline, feeds],
        )?;
    }
    client.batch_execute("VACUUM ANALYZE")?;
    Ok(())
}

/// Two ways to ask for the newest hundred entries of a timeline: a join, and the newest of each feed.
const READS: [&str; 2] = [
    "SELECT body FROM entries JOIN follows USING (feed) WHERE timeline = $1 ORDER BY at DESC LIMIT 100",
    "SELECT body FROM follows CROSS JOIN LATERAL (SELECT at, body FROM entries \
     WHERE entries.feed = follows.feed ORDER BY at DESC LIMIT 100) newest \
     WHERE timeline = $1 ORDER BY at DESC LIMIT 100",
];

/// Reads the newest hundred entries of timelines, in the way that is faster for the first of them. Returns the
/// microseconds that each took.
pub(super) fn postgres_reads(
    client: &mut Client,
    timelines: impl Iterator<Item = i32>,
) -> anyhow::Result<Vec<f64>> {
    let [join, lateral] = READS;
    let ways = [client.prepare(join)?, client.prepare(lateral)?];
    let mut read = |way: &Statement, timeline: i32| -> anyhow::Result<f64> {
        let began = Instant::now();
        let rows = client.query(way, &[&timeline])?;
        let took = began.elapsed().as_secs_f64() * 1e6;
        if rows.is_empty() {
            bail!("PostgreSQL has no entry of timeline {timeline}");
        }
        Ok(took)
    };
    let timelines: Vec<i32> = timelines.collect();
    let first = *timelines.first().context("there are timelines")?;
    let mut least = |way| -> anyhow::Result<f64> {
        let took = [read(way, first)?, read(way, first)?, read(way, first)?];
        Ok(took.into_iter().fold(f64::INFINITY, f64::min))
    };
    let [join, lateral] = &ways;
    let way = if least(join)? <= least(lateral)? {
        join
    } else {
        lateral
    };
    timelines
        .into_iter()
        .map(|timeline| read(way, timeline))
        .collect()
}
