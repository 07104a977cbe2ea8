//! `sup`: one document instead of a thousand polls.
//!
//! Shell. The seed's headline is simulated: the real view and the real schedule, by a clock of their own, with
//! 80,000 feeds over a day. Then the real programs by the real clock: a watcher of 1,000 feeds; what an append
//! costs with SUP on; what the document costs with 100,000 updates in it, against nginx serving the same bytes
//! with the same headers, and against our own files.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{ChildStdout, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, channel},
    },
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, bail};
use simplefeed_core::watch::Pace;
use simplefeed_resource::gzip::{SMALLEST, gzip};
use url::Url;

use crate::{
    load::{Connection, Load, append, create, read, wait_until_frozen},
    process::{ANY_PORT, Program, folder, release_program, same_fields},
    table::{Must, Row, Table},
};

mod world;

use world::{Dice, Fair, Follower, Publisher, Telling, live};

const FEEDS: u32 = 80_000;
/// Pairs of rounds of appending, for each of the others.
const PAIRS: usize = 12;
/// The document that has all of them.
const BUSY: &str = "/sup.json?seconds=3600";
/// One that never changes.
const FROZEN: &str = "/feeds/bench0/1.atom";
const WATCHED: u32 = 1_000;
const UPDATES: u32 = 1_200;
const DAY: Duration = Duration::from_hours(24);
/// How often a feed is updated on the average: of 45,754 people whose photos were polled 2.9 million times a
/// day, at most 6,721 had any to show (the seed's comments).
const FEED_UPDATES: Duration = Duration::from_mins(9_800);

pub(crate) fn measure(table: &mut Table, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    table.add_all(headline()?);
    for period in [60, 600, 3_600] {
        let [plain, packed] = sizes(period)?;
        let bounded = |unit, ours: f64, budget: f64| Row {
            what: format!("10,000 feeds updated within {period} s"),
            unit,
            ours: vec![ours],
            peer: "budget".into(),
            theirs: vec![budget],
            must: Some(Must::AtMost(1.0)),
        };
        table.add(bounded("bytes/update", plain, 21.1));
        table.add(bounded("bytes/update, gzip", packed, 8.0));
    }
    table.add_all(watching()?);
    table.add_all(appending(rounds)?);
    table.add_all(serving(rounds, seconds)?);
    Ok(())
}

/// What a day of following 80,000 feeds takes.
struct Followed {
    requests: f64,
    background: f64,
    median: f64,
}

fn follow(telling: Telling, sup_interval: Duration) -> anyhow::Result<Followed> {
    let pace = Pace {
        interval: Duration::from_mins(30),
        sup_interval,
    };
    let mut publisher = Publisher::new(FEEDS, telling, 1)?;
    let mut follower = Follower::new(FEEDS, pace, 1)?;
    let mut dice = Dice(80_000);
    let mean = FEED_UPDATES / FEEDS;
    // Until everything has found its pace.
    live(
        &mut publisher,
        &mut follower,
        &mut Fair,
        &mut dice,
        mean,
        Duration::ZERO,
        DAY,
    )?;
    let before = follower.tally();
    follower.delays.clear();
    live(
        &mut publisher,
        &mut follower,
        &mut Fair,
        &mut dice,
        mean,
        DAY,
        2 * DAY,
    )?;
    let tally = follower.tally();
    let mut delays = std::mem::take(&mut follower.delays);
    delays.sort_unstable();
    let looks =
        |tally: simplefeed_core::watch::WatchTally| tally.first + tally.pings + tally.background;
    let requests = looks(tally) + tally.documents - looks(before) - before.documents;
    let median = delays
        .get(delays.len() / 2)
        .context("some updates are seen")?;
    Ok(Followed {
        requests: f64::from(u32::try_from(requests)?),
        background: f64::from(u32::try_from(tally.background - before.background)?),
        median: median.as_secs_f64(),
    })
}

fn headline() -> anyhow::Result<Vec<Row>> {
    let polling = follow(Telling::Nothing, Duration::ZERO)?;
    let three_minutes = Duration::from_mins(3);
    let ways = [
        (
            "SUP every 3 min, polls every 300",
            Telling::Windows,
            three_minutes,
        ),
        (
            "SUP with archives, every 3 min",
            Telling::Archived,
            three_minutes,
        ),
        (
            "SUP with archives, every 48 s",
            Telling::Archived,
            Duration::ZERO,
        ),
    ];
    let mut rows = vec![];
    for (what, telling, sup_interval) in ways {
        let ours = follow(telling, sup_interval)?;
        let row = |unit, ours: f64, theirs: f64, must| Row {
            what: format!("80,000 feeds: {what}"),
            unit,
            ours: vec![ours],
            peer: "polling every 30 min".into(),
            theirs: vec![theirs],
            must: Some(must),
        };
        rows.push(row(
            "requests/day",
            ours.requests,
            polling.requests,
            Must::AtMost(0.1),
        ));
        rows.push(row(
            "median s until seen",
            ours.median,
            polling.median,
            Must::AtMost(0.1),
        ));
        let none = if telling == Telling::Archived {
            0.0
        } else {
            0.1
        };
        rows.push(row(
            "polls/day in the background",
            ours.background,
            polling.background,
            Must::AtMost(none),
        ));
    }
    Ok(rows)
}

/// Returns the bytes of an update, as it is and compressed: of 10,000 feeds updated once within a period.
fn sizes(period: u32) -> anyhow::Result<[f64; 2]> {
    let mut publisher = Publisher::new(10_000, Telling::Archived, 1)?;
    let mut dice = Dice(3);
    let mut feeds: Vec<u32> = (0..10_000).collect();
    for index in (1..feeds.len()).rev() {
        let other = usize::try_from(dice.below(u64::try_from(index)? + 1))?;
        feeds.swap(index, other);
    }
    let mut now = Duration::ZERO;
    for feed in feeds {
        now += dice.pause(Duration::from_secs(period.into()) / 10_000);
        publisher.update(&[feed], now)?;
    }
    let url = Url::parse(&format!("https://feeds.example/sup.json?seconds={period}"))?;
    let document = publisher
        .document(&url, now + Duration::from_secs(2))
        .context("a document")?;
    let packed = gzip(&document, SMALLEST);
    let each = |bytes: &[u8]| anyhow::Ok(f64::from(u32::try_from(bytes.len())?) / 10_000.0);
    Ok([each(&document)?, each(&packed)?])
}

/// The real programs by the real clock: 1,000 feeds, 10 updates a second for two minutes.
fn watching() -> anyhow::Result<Vec<Row>> {
    let folder = folder()?;
    let server = Program::simplefeed(&folder.path().join("data"))?;
    let mut connection = Connection::open(&server.address)?;
    let mut list = vec![];
    for feed in 0..WATCHED {
        connection.publish(&format!("w{feed}"), "{\"content\":\"first\"}")?;
        list.push(format!("http://{}/feeds/w{feed}", server.address));
    }
    let path = folder.path().join("feeds.txt");
    fs::write(&path, list.join("\n"))?;
    let mut watcher = Command::new(release_program("simplefeed")?)
        .arg("watch")
        .arg(&path)
        .arg("--state")
        .arg(folder.path().join("state"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let seen = listen(watcher.stdout.take().context("a pipe")?);
    // Every feed is looked at once, to find out where its updates are told.
    std::thread::park_timeout(Duration::from_secs(20));
    let delays = delays(update(&mut connection)?, &seen)?;
    terminate(&watcher)?;
    let mut said = String::new();
    let stderr = watcher.stderr.take().context("a pipe")?;
    BufReader::new(stderr).read_to_string(&mut said)?;
    watcher.wait()?;
    let [documents, first, pings, background] = counts(&said);
    let at = |part: usize| delays.get((delays.len() - 1) * part / 100).copied();
    let bounded = |unit, ours: f64, peer: &str, theirs: f64| Row {
        what: "1,000 feeds, 1,200 updates in 2 min".into(),
        unit,
        ours: vec![ours],
        peer: peer.into(),
        theirs: vec![theirs],
        must: Some(Must::AtMost(1.0)),
    };
    let plain = |unit, ours: f64| Row {
        theirs: vec![],
        must: None,
        ..bounded(unit, ours, "", 0.0)
    };
    let last = at(100).unwrap_or(f64::NAN);
    Ok(vec![
        bounded("s until the last is seen", last, "1.2 periods", 72.0),
        plain("median s until seen", at(50).unwrap_or(f64::NAN)),
        plain("requests for SUP documents", documents),
        plain("looks at feeds, first ones", first),
        plain("looks at feeds because of pings", pings),
        plain("looks at feeds in the background", background),
    ])
}

/// Notes when each line comes.
fn listen(stdout: ChildStdout) -> Receiver<(SystemTime, String)> {
    let (tell, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if tell.send((SystemTime::now(), line)).is_err() {
                return;
            }
        }
    });
    lines
}

/// Updates feeds, ten a second. Returns the ids and when they were acknowledged.
fn update(connection: &mut Connection) -> anyhow::Result<HashMap<String, SystemTime>> {
    let mut made = HashMap::new();
    let (began, mut dice) = (Instant::now(), Dice(5));
    for number in 0..UPDATES {
        let id = format!("urn:update:{number}");
        let feed = dice.below(u64::from(WATCHED));
        let event = format!("{{\"id\":\"{id}\",\"content\":1}}");
        connection.publish(&format!("w{feed}"), &event)?;
        made.insert(id, SystemTime::now());
        let due = began + number * Duration::from_millis(100);
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
    Ok(made)
}

/// Returns how long it took until each was seen, in seconds, the shortest first.
fn delays(
    mut made: HashMap<String, SystemTime>,
    seen: &Receiver<(SystemTime, String)>,
) -> anyhow::Result<Vec<f64>> {
    let mut delays = vec![];
    while !made.is_empty() {
        let Ok((at, line)) = seen.recv_timeout(Duration::from_mins(2)) else {
            bail!("{} updates were never seen", made.len());
        };
        let event: serde_json::Value = serde_json::from_str(&line)?;
        let id = event.get("id").and_then(serde_json::Value::as_str);
        if let Some(published) = made.remove(id.unwrap_or_default()) {
            let delay = at.duration_since(published).unwrap_or_default();
            delays.push(delay.as_secs_f64());
        }
    }
    delays.sort_by(f64::total_cmp);
    Ok(delays)
}

/// Returns the numbers that a watcher tells when it ends, in their order.
fn counts(said: &str) -> [f64; 4] {
    let line = said.lines().last().unwrap_or_default();
    let words = line.split(|c: char| !c.is_ascii_digit());
    let mut numbers = words.filter_map(|word| word.parse().ok());
    [0; 4].map(|_| numbers.next().unwrap_or(f64::NAN))
}

/// Asks a process to end.
fn terminate(child: &std::process::Child) -> anyhow::Result<()> {
    let ended = Command::new("kill").arg(child.id().to_string()).status()?;
    anyhow::ensure!(ended.success(), "the watcher cannot be ended");
    Ok(())
}

/// Appends with and without SUP, in turn. With it, somebody asks for the document all the time.
fn appending(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let folder = folder()?;
    let with = Program::simplefeed(&folder.path().join("with"))?;
    let without = Program::simplefeed_at(
        ANY_PORT,
        &folder.path().join("without"),
        &["--sup-periods", "none"],
    )?;
    let one = |program: &Program, seconds| append(program, "\"f\" .. (n % 1000)", 64, 1, seconds);
    let asking = AtomicBool::new(true);
    let measured = std::thread::scope(|threads| {
        let asker = threads.spawn(|| ask(&with, &asking));
        let all = || -> anyhow::Result<Vec<(Load, Load)>> {
            one(&with, 1)?;
            one(&without, 1)?;
            // Many short rounds: what is to be told apart is less than what the machine does beside.
            (0..PAIRS * rounds)
                .map(|round| {
                    // Who begins has it better or worse.
                    if round % 2 == 0 {
                        let load = one(&with, 1)?;
                        return Ok((load, one(&without, 1)?));
                    }
                    let load = one(&without, 1)?;
                    Ok((one(&with, 1)?, load))
                })
                .collect()
        };
        let measured = all();
        asking.store(false, Ordering::Release);
        match asker.join() {
            Ok(asked) => asked.and(measured),
            Err(_) => bail!("whoever asks for the document failed"),
        }
    })?;
    let (own, all) = (with.cpu_micros_of("sup")?, with.cpu_micros()?);
    let row = |unit, pick: fn(&Load) -> f64, must| Row {
        what: "an append with SUP".into(),
        unit,
        ours: measured.iter().map(|(with, _)| pick(with)).collect(),
        peer: "without".into(),
        theirs: measured.iter().map(|(_, without)| pick(without)).collect(),
        must,
    };
    Ok(vec![
        row(
            "CPU µs/entry, 64 connections",
            |load| load.cpu_micros,
            Some(Must::AtMost(1.05)),
        ),
        row("durable entries/s", |load| load.per_second, None),
        Row {
            what: "an append with SUP".into(),
            unit: "CPU s of its thread",
            ours: vec![own / 1_000_000.0],
            peer: "all of the server".into(),
            theirs: vec![all / 1_000_000.0],
            must: Some(Must::AtMost(0.05)),
        },
    ])
}

fn ask(server: &Program, asking: &AtomicBool) -> anyhow::Result<()> {
    let mut connection = Connection::open(&server.address)?;
    while asking.load(Ordering::Acquire) {
        connection.get("/sup.json")?;
        std::thread::park_timeout(Duration::from_secs(1));
    }
    Ok(())
}

/// The document with 100,000 updates in it, against nginx serving the same bytes.
fn serving(rounds: usize, seconds: u64) -> anyhow::Result<Vec<Row>> {
    let folder = folder()?;
    let ours = Program::simplefeed(&folder.path().join("data"))?;
    create(&ours, 100_000)?;
    wait_until_frozen(&ours, FROZEN)?;
    std::thread::park_timeout(Duration::from_secs(2));
    let began = Instant::now();
    let (head, document) = Connection::open(&ours.address)?.get(BUSY)?;
    let first = began.elapsed().as_secs_f64() * 1_000.0;
    let count = document
        .windows(3)
        .filter(|window| window == b"],[")
        .count()
        + 1;
    eprintln!(
        "The document has {count} updates and {} bytes; the first request took {first:.0} ms.",
        document.len()
    );
    let www = folder.path().join("www");
    fs::create_dir_all(&www)?;
    fs::write(www.join("sup.json"), &document)?;
    fs::write(www.join("sup.json.gz"), gzip(&document, SMALLEST))?;
    let nginx = Program::nginx(
        folder.path(),
        &format!(
            "root {}; gzip_static on; gzip_vary on; types {{ application/json json; }}{}",
            www.display(),
            same_fields(&head),
        ),
    )?;
    let mut rows = vec![];
    for what in ["as it is", "gzip", "304"] {
        let theirs = ("nginx", &nginx, BUSY);
        rows.push(served(what, &ours, theirs, rounds, seconds)?);
    }
    let frozen = ("304 on an archived document", &ours, FROZEN);
    rows.push(served("304", &ours, frozen, rounds, seconds)?);
    Ok(rows)
}

fn served(
    what: &str,
    ours: &Program,
    (peer, theirs, path): (&str, &Program, &str),
    rounds: usize,
    seconds: u64,
) -> anyhow::Result<Row> {
    let one = |(program, path): (&Program, &str), seconds| -> anyhow::Result<Load> {
        let headers = match what {
            "gzip" => vec![("Accept-Encoding", "gzip".to_owned())],
            "304" => vec![("If-None-Match", tag(program, path)?)],
            _ => vec![],
        };
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        read(program, path, &headers, seconds)
    };
    let (ours, theirs) = ((ours, BUSY), (theirs, path));
    one(ours, 1)?;
    one(theirs, 1)?;
    let mut pairs = vec![];
    for _ in 0..rounds {
        pairs.push((one(ours, seconds)?, one(theirs, seconds)?));
    }
    Ok(Row {
        what: format!("/sup.json, 100,000 updates, {what}"),
        unit: "CPU µs/request",
        ours: pairs.iter().map(|(ours, _)| ours.cpu_micros).collect(),
        peer: peer.into(),
        theirs: pairs.iter().map(|(_, theirs)| theirs.cpu_micros).collect(),
        must: Some(Must::AtMost(1.0)),
    })
}

/// Returns the entity tag of a document.
fn tag(program: &Program, path: &str) -> anyhow::Result<String> {
    let (head, _) = Connection::open(&program.address)?.get(path)?;
    Ok(header(&head, "etag").context("a tag")?.to_owned())
}

fn header<'a>(head: &'a str, wanted: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case(wanted).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests;
