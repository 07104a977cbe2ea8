//! One feed with ever more followers, in a world of a million timelines.
//!
//! Shell. A delivery is one entry for one follower. Ours are gathered behind the publisher's back, and so the CPU of a
//! fan-out is that of the whole server, less what the same appends cost without a follower.

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rand_distr::{Distribution as _, Zipf};
use simplefeed_core::timestamp::Timestamp;

use super::{
    Scale, against, alone, bytes_below,
    peers::{FanOut, connect, postgres_fan_out, postgres_followers, redis_fan_out},
};
use crate::{
    load::{Connection, at_once, event},
    plots::{Axes, Line, draw},
    process::{ANY_PORT, Program, folder, free_port},
    table::{Must, Table, median},
};

/// Follows of each timeline, besides the popular feeds.
const FOLLOWS: usize = 10;
/// Deliveries of a round. The CPU's clock shows 10 ms, which is to be little beside them.
const DELIVERIES: u64 = 4_000_000;
/// Entries of a request, and most requests, where the cost of a delivery is compared from few followers to many. The cost
/// falls with the entries that come together.
const ENTRIES_OF_EVEN: u64 = 4;
const EVEN_REQUESTS_MAX: u64 = 40;
/// Threads that do what an append leaves to be done for followers.
const BEHIND: [&str; 2] = ["timelines", "sup"];
/// Entries that a peer fans out in a round, at most.
const ENTRIES_OF_PEERS: u64 = 100;
/// Timelines that are looked at after an append.
const LOOKS: usize = 20;

/// Our server, and the address of its metrics.
pub(super) struct Served {
    pub(super) program: Program,
    metrics: String,
    data: PathBuf,
}

impl Served {
    pub(super) fn start(data: &Path, model: &str) -> anyhow::Result<Self> {
        let metrics = format!("127.0.0.1:{}", free_port()?);
        let more = ["--fan-out", model, "--metrics-listen", &metrics];
        let program = Program::simplefeed_at(ANY_PORT, data, &more)?;
        let data = data.to_path_buf();
        Ok(Self {
            program,
            metrics,
            data,
        })
    }

    /// Waits until the fan-out has come to the end of the log.
    pub(super) fn wait_until_gathered(&self) -> anyhow::Result<()> {
        let line = "simplefeed_view_lag_commits{view=\"timelines\"} 0\n";
        let began = Instant::now();
        let mut connection = Connection::open(&self.metrics)?;
        while began.elapsed() < Duration::from_mins(10) {
            match connection.get("/metrics") {
                Ok((_, body)) if String::from_utf8_lossy(&body).contains(line) => return Ok(()),
                Ok(_) => {}
                // The listener of metrics keeps no connection for long.
                Err(_) => connection = Connection::open(&self.metrics)?,
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        bail!("the fan-out did not come to its end")
    }
}

pub(super) fn measure(table: &mut Table, rounds: usize, scale: &Scale) -> anyhow::Result<()> {
    let folder = folder()?;
    let data = folder.path().join("data");
    let counts: Vec<u32> = (0..=6)
        .map(|power| 10_u32.pow(power))
        .filter(|count| *count <= scale.timelines)
        .collect();
    let made = Served::start(&data, "write")?;
    make_world(table, &made.program, &counts, scale)?;
    made.wait_until_gathered()?;
    made.program.stop()?;
    let began = Instant::now();
    let ours = Served::start(&data, "write")?;
    let opened = began.elapsed().as_secs_f64();
    let mut connection = Connection::open(&ours.program.address)?;
    connection.get("/feeds/t0/recent.atom")?;
    ours.wait_until_gathered()?;
    let memory = ours.program.memory_mib()?;
    let what = format!("{} timelines after a restart", scale.timelines);
    let budget = |limit| (vec![limit], Some(Must::AtMost(1.0)));
    let (limit, must) = budget(5.0);
    table.add(against(
        &what,
        "s to open",
        &[opened],
        "the budget",
        limit,
        must,
    ));
    let (limit, must) = budget(2_048.0);
    table.add(against(
        &what,
        "MiB resident",
        &[memory],
        "the budget",
        limit,
        must,
    ));
    let most = counts.last().copied().context("there are followers")?;
    acknowledged(table, &ours, most, rounds, scale)?;
    told(table, &ours, most)?;
    even(table, &ours, &counts, rounds)?;
    ramp(table, &ours, &counts, rounds, scale)?;
    ours.wait_until_gathered()?;
    let memory = ours.program.memory_mib()?;
    table.add(alone(
        "the same after the fan-out",
        "MiB resident",
        vec![memory],
    ));
    Ok(())
}

/// Creates feeds and timelines, through the API.
fn make_world(
    table: &mut Table,
    ours: &Program,
    counts: &[u32],
    scale: &Scale,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(&ours.address)?;
    for popular in counts.iter().chain(&[0]) {
        connection.publish(&format!("pop-{popular}"), &event(u64::from(*popular)))?;
    }
    let put = |path: &str, body: &str, connection: &mut Connection| -> anyhow::Result<()> {
        match connection.json("PUT", path, body)? {
            201 => Ok(()),
            status => bail!("{path} was refused: {status}"),
        }
    };
    at_once(scale.feeds, &ours.address, |feed, _, connection| {
        put(&format!("/feeds/f{feed}"), "{}", connection)
    })?;
    let popularity = Zipf::new(f64::from(scale.feeds), 1.0)?;
    let began = Instant::now();
    at_once(
        scale.timelines,
        &ours.address,
        |timeline, random, connection| {
            let followed: Vec<String> = (0..FOLLOWS)
                .map(|_| format!("\"f{:.0}\"", popularity.sample(random) - 1.0))
                .chain(
                    counts
                        .iter()
                        .filter(|count| timeline < **count)
                        .map(|count| format!("\"pop-{count}\"")),
                )
                .collect();
            let body = format!(
                "{{\"kind\":\"timeline\",\"following\":[{}]}}",
                followed.join(",")
            );
            put(&format!("/feeds/t{timeline}"), &body, connection)
        },
    )?;
    let rate = f64::from(scale.timelines) / began.elapsed().as_secs_f64();
    let what = format!("timelines with {FOLLOWS} follows or more");
    table.add(alone(what, "created/s", vec![rate]));
    Ok(())
}

/// Serial numbers of events that no other stage uses.
fn serials(count: u64) -> std::ops::Range<u64> {
    use std::sync::atomic::AtomicU64;
    static NEXT: AtomicU64 = AtomicU64::new(1_000_000_000);
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    first..first + count
}

/// An append to the feed with most followers against one to a feed without any, and the timelines afterwards.
fn acknowledged(
    table: &mut Table,
    ours: &Served,
    most: u32,
    rounds: usize,
    scale: &Scale,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(&ours.program.address)?;
    let mut random = StdRng::seed_from_u64(7);
    let (mut popular, mut lonely, mut fanned_out) = (vec![], vec![], vec![]);
    for round in 0..=4 * rounds {
        for feed in [0, most] {
            ours.wait_until_gathered()?;
            let serial = serials(1).start;
            let began = Instant::now();
            connection.publish(&format!("pop-{feed}"), &event(serial))?;
            let took = began.elapsed().as_secs_f64() * 1e6;
            if feed == 0 {
                lonely.push(took);
                continue;
            }
            popular.push(took);
            let id = event(serial);
            let id = id.split('"').nth(3).context("an event has an id")?;
            for _ in 0..LOOKS {
                let timeline = random.random_range(0..most.min(scale.timelines));
                let path = format!("/feeds/t{timeline}/page.json?limit=1");
                let (_, body) = connection.get(&path)?;
                if !String::from_utf8_lossy(&body).contains(id) {
                    bail!("timeline {timeline} does not show what was acknowledged");
                }
            }
            ours.wait_until_gathered()?;
            fanned_out.push(began.elapsed().as_secs_f64());
        }
        if round == 0 {
            // The first ones are slower.
            (popular, lonely, fanned_out) = (vec![], vec![], vec![]);
        }
    }
    let by_round = |all: &[f64]| all.chunks(4).map(median).collect::<Vec<_>>();
    let what = format!("an append to a feed with {most} followers");
    table.add(against(
        format!("{what}, at once in {LOOKS} timelines"),
        "µs until acknowledged",
        &by_round(&popular),
        "one without",
        by_round(&lonely),
        Some(Must::AtMost(1.1)),
    ));
    let fanned_out = by_round(&fanned_out);
    let limit = vec![2.0; fanned_out.len()];
    let must = Some(Must::AtMost(1.0));
    table.add(against(
        what,
        "s until fanned out",
        &fanned_out,
        "the budget",
        limit,
        must,
    ));
    Ok(())
}

/// Time until the SUP document has all followers, and the growth of the document of feeds.
fn told(table: &mut Table, ours: &Served, most: u32) -> anyhow::Result<()> {
    // Earlier updates are out of the window then. A connection that is idle for so long would be closed.
    std::thread::park_timeout(Duration::from_secs(75));
    let mut connection = Connection::open(&ours.program.address)?;
    // Counted in the text: to parse a million pairs takes longer than to make them.
    let mut pairs = |path: &str| -> anyhow::Result<(usize, i64)> {
        let (_, body) = connection.get(path)?;
        let text = String::from_utf8_lossy(&body);
        let member = |name: &str| text.split_once(name).map(|(_, rest)| rest);
        let until = member("\"updated_time\":\"").and_then(|rest| rest.split('"').next());
        let until = until.and_then(Timestamp::parse);
        let updates = member("\"updates\":").context("a document has updates")?;
        let until = until.context("a document has a time")?;
        Ok((updates.matches("\",\"").count(), until.second()))
    };
    let (feeds, _) = pairs("/sup.json")?;
    let mut publisher = Connection::open(&ours.program.address)?;
    publisher.publish(&format!("pop-{most}"), &event(serials(1).start))?;
    let began = Instant::now();
    let second = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let second = i64::try_from(second.as_secs())?;
    let is_over = Duration::from_secs(1).saturating_sub(Duration::from_micros(u64::from(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)?
            .subsec_micros(),
    )));
    let (mut count, mut until) = (0, 0);
    while (until < second || count < usize::try_from(most)?) && began.elapsed().as_secs() < 30 {
        (count, until) = pairs("/sup-timelines.json")?;
    }
    let took = began.elapsed().saturating_sub(is_over).as_secs_f64();
    let what = format!("{count} SUP pairs of an append, told after its second");
    let must = Some(Must::AtMost(1.0));
    table.add(against(what, "s", &[took], "the budget", vec![1.0], must));
    let (after, _) = pairs("/sup.json")?;
    let grown = f64::from(u32::try_from(after.saturating_sub(feeds))?);
    table.add(alone("/sup.json meanwhile", "more pairs", vec![grown]));
    Ok(())
}

/// Cost of one delivery, where the requests are equal and each is fanned out before the next one.
fn even(table: &mut Table, ours: &Served, counts: &[u32], rounds: usize) -> anyhow::Result<()> {
    let counts: Vec<u32> = counts.iter().copied().filter(|one| *one >= 1_000).collect();
    let mut connection = Connection::open(&ours.program.address)?;
    let mut cpu_micros = |followers: u32, requests: u64| -> anyhow::Result<f64> {
        ours.wait_until_gathered()?;
        let of_all = || {
            let each = BEHIND.iter().map(|name| ours.program.cpu_micros_of(name));
            each.sum::<anyhow::Result<f64>>()
        };
        let before = of_all()?;
        for _ in 0..requests {
            let batch: String = serials(ENTRIES_OF_EVEN).map(event).collect();
            connection.publish(&format!("pop-{followers}"), &batch)?;
            ours.wait_until_gathered()?;
        }
        // SUP pairs come a little later.
        std::thread::park_timeout(Duration::from_millis(300));
        Ok(of_all()? - before)
    };
    let mut all = vec![vec![]; counts.len()];
    for round in 0..=rounds {
        for (count, all) in counts.iter().zip(&mut all) {
            let deliveries = u64::from(*count) * ENTRIES_OF_EVEN;
            let requests = (DELIVERIES / deliveries).clamp(4, EVEN_REQUESTS_MAX);
            let micros = cpu_micros(*count, requests)? - cpu_micros(0, requests)?;
            // The first round is slower.
            if round > 0 {
                let deliveries = f64::from(u32::try_from(requests * deliveries)?);
                all.push(micros * 1e3 / deliveries);
            }
        }
    }
    let fewest = all.first().cloned().unwrap_or_default();
    for (count, nanos) in counts.iter().zip(&all) {
        table.add(against(
            format!("{count} followers, {ENTRIES_OF_EVEN} entries a request"),
            "ns a delivery",
            nanos,
            "1000 followers",
            fewest.clone(),
            (*count > 1_000).then_some(Must::AtMost(1.15)),
        ));
    }
    Ok(())
}

/// Appends entries to a popular feed, and waits until all followers have them.
fn fan_out(ours: &Served, followers: u32, entries: u64) -> anyhow::Result<FanOut> {
    let mut connection = Connection::open(&ours.program.address)?;
    // The scrubber works at its own pace, whatever is appended.
    let cpu_micros =
        || anyhow::Ok(ours.program.cpu_micros()? - ours.program.cpu_micros_of("scrub")?);
    let (before, began) = (cpu_micros()?, Instant::now());
    let batch: String = serials(entries).map(event).collect();
    connection.publish(&format!("pop-{followers}"), &batch)?;
    ours.wait_until_gathered()?;
    let micros = began.elapsed().as_secs_f64() * 1e6;
    // Other work of the commit, such as SUP, ends soon, too.
    std::thread::park_timeout(Duration::from_millis(300));
    let cpu_micros = cpu_micros()? - before;
    Ok(FanOut { micros, cpu_micros })
}

/// Cost of one of our deliveries, without the CPU that the same appends take without a follower.
fn of_ours(ours: &Served, followers: u32, entries: u64) -> anyhow::Result<FanOut> {
    let alone = fan_out(ours, 0, entries)?;
    let mine = fan_out(ours, followers, entries)?;
    let deliveries = f64::from(followers) * f64::from(u32::try_from(entries)?);
    Ok(FanOut {
        micros: mine.micros,
        cpu_micros: (mine.cpu_micros - alone.cpu_micros) / deliveries,
    })
}

fn of_redis(redis: &Program, followers: u32, entries: u64) -> anyhow::Result<FanOut> {
    let all: anyhow::Result<Vec<FanOut>> = serials(entries.min(ENTRIES_OF_PEERS))
        .map(|entry| redis_fan_out(redis, followers, entry))
        .collect();
    Ok(mean(&all?, followers))
}

fn of_postgres(
    postgres: &Program,
    client: &mut postgres::Client,
    followers: u32,
    entries: u64,
) -> anyhow::Result<FanOut> {
    let all: anyhow::Result<Vec<FanOut>> = serials(entries.min(ENTRIES_OF_PEERS))
        .map(|entry| postgres_fan_out(postgres, client, followers, i64::try_from(entry)?))
        .collect();
    Ok(mean(&all?, followers))
}

/// Returns the time of an entry, and the CPU of each of its deliveries.
fn mean(all: &[FanOut], followers: u32) -> FanOut {
    let count = f64::from(u32::try_from(all.len()).unwrap_or(1));
    let cpu_micros: f64 = all.iter().map(|one| one.cpu_micros).sum();
    FanOut {
        micros: all.iter().map(|one| one.micros).sum::<f64>() / count,
        cpu_micros: cpu_micros / count / f64::from(followers),
    }
}

/// Cost of one delivery with ever more followers.
fn ramp(
    table: &mut Table,
    ours: &Served,
    counts: &[u32],
    rounds: usize,
    scale: &Scale,
) -> anyhow::Result<()> {
    let (redis_folder, postgres_folder) = (folder()?, folder()?);
    let redis = Program::redis_in_memory(redis_folder.path())?;
    let postgres = Program::postgres(postgres_folder.path())?;
    let mut client = connect(&postgres)?;
    postgres_followers(&mut client, counts)?;
    let runs = ours.data.join("views/timelines/runs");
    let (bytes_before, mut deliveries) = (bytes_below(&runs)?, 0.0);
    let names = [
        "Simplefeed",
        "Redis LPUSH and LTRIM",
        "PostgreSQL INSERT … SELECT",
    ];
    let mut lines = names.map(|name| Line {
        name,
        points: vec![],
    });
    for count in counts {
        let entries = (DELIVERIES / u64::from(*count)).clamp(1, 1_000);
        let mut all: [Vec<FanOut>; 3] = Default::default();
        for round in 0..=rounds {
            let one = [
                of_ours(ours, *count, entries)?,
                of_redis(&redis, *count, entries)?,
                of_postgres(&postgres, &mut client, *count, entries)?,
            ];
            deliveries += f64::from(*count) * f64::from(u32::try_from(entries)?);
            // The first round is slower.
            if round > 0 {
                for (all, one) in all.iter_mut().zip(one) {
                    all.push(one);
                }
            }
        }
        for (line, all) in lines.iter_mut().zip(&all) {
            let micros: Vec<f64> = all.iter().map(|one| one.micros).collect();
            line.points.push((f64::from(*count), median(&micros)));
        }
        add_rates(table, *count, &all);
    }
    ours.wait_until_gathered()?;
    let bytes = (bytes_below(&runs)? - bytes_before) / deliveries;
    let what = format!("{deliveries:.0} deliveries");
    let must = Some(Must::AtMost(1.0));
    table.add(against(
        what,
        "bytes each on the disk",
        &[bytes],
        "the budget",
        vec![12.0],
        must,
    ));
    if let Some(plots) = &scale.plots {
        let axes = (
            "followers",
            "µs until all have an entry, or a batch of up to 1,000",
        );
        draw(
            &plots.join("followers.svg"),
            "An entry for every follower",
            axes,
            Axes::Logarithmic,
            &lines,
        )?;
    }
    Ok(())
}

fn add_rates(table: &mut Table, count: u32, all: &[Vec<FanOut>; 3]) {
    let per_second = |all: &[FanOut]| -> Vec<f64> {
        // The CPU's clock does not show less than a tick.
        all.iter()
            .map(|one| 1e6 / one.cpu_micros.max(0.001))
            .collect()
    };
    let [ours, redis, postgres] = all;
    let ours = per_second(ours);
    let what = format!("{count} followers");
    let must = |least| (count >= 1_000).then_some(Must::AtLeast(least));
    let unit = "deliveries/s and core";
    let limit = vec![1e6; ours.len()];
    for (peer, theirs, must) in [
        ("the budget", limit, must(1.0)),
        ("Redis", per_second(redis), must(3.0)),
        ("PostgreSQL", per_second(postgres), must(10.0)),
    ] {
        table.add(against(what.clone(), unit, &ours, peer, theirs, must));
    }
}
