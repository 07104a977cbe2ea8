//! Reads of timelines: of ever more feeds, of ever longer histories, and kept ready.
//!
//! Shell. One server for each model, over copies of the same data.

use std::{fs, path::Path, time::Instant};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{
    Scale, against, alone,
    followers::Served,
    peers::{connect, postgres_feeds, postgres_reads},
};
use crate::{
    load::{Connection, at_once, event, read},
    plots::{Axes, Line, draw},
    process::{Program, folder},
    table::{Must, Table, median, percentile},
};

const FEEDS: u32 = 2_048;
const ENTRIES: u32 = 100;
/// Entries of a request: feeds take turns.
const TOGETHER: u32 = 5;
/// Numbers of feeds that timelines follow, the doubling ones for the ramp.
const FOLLOWED: [u32; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 200, 256, 512, 1_024];
/// Timelines of each number, and of those with 200 feeds.
const EACH: u32 = 8;
const OF_200: u32 = 100;
/// Reads of a measurement.
const READS: usize = 300;
/// Histories are of ten to the power of these.
const POWERS: [u32; 5] = [2, 3, 4, 5, 6];
const MODELS: [&str; 3] = ["write", "read", "cache"];

pub(super) fn measure(table: &mut Table, rounds: usize, scale: &Scale) -> anyhow::Result<()> {
    let folders = (folder()?, folder()?);
    let first = folders.0.path().join(MODELS[0]);
    let made = Served::start(&first, MODELS[0])?;
    let follows = make_world(&made.program)?;
    make_histories(&made.program)?;
    made.wait_until_gathered()?;
    made.program.stop()?;
    let mut servers = vec![];
    for model in MODELS.iter().skip(1) {
        copy(&first, &folders.0.path().join(model))?;
    }
    for model in MODELS {
        let server = Served::start(&folders.0.path().join(model), model)?;
        server.wait_until_gathered()?;
        servers.push(server);
    }
    let postgres = Program::postgres(folders.1.path())?;
    let mut client = connect(&postgres)?;
    postgres_feeds(&mut client, FEEDS, ENTRIES, event(7).trim(), &follows)?;
    of_200(table, &servers, &mut client, rounds)?;
    ramp(table, &servers, &mut client, rounds, scale)?;
    histories(table, &servers, rounds)?;
    kept_ready(table, &servers, rounds)
}

/// Number of timelines that follow `count` feeds.
fn timelines_of(count: u32) -> u32 {
    if count == 200 { OF_200 } else { EACH }
}

/// Key of a timeline in PostgreSQL.
fn number_of(count: u32, index: u32) -> anyhow::Result<i32> {
    Ok(i32::try_from(count * 1_000 + index)?)
}

/// Creates feeds and timelines. Returns the follows of each timeline.
fn make_world(ours: &Program) -> anyhow::Result<Vec<(i32, Vec<i32>)>> {
    for turn in 0..ENTRIES / TOGETHER {
        at_once(FEEDS, &ours.address, |feed, _, connection| {
            let first = u64::from((turn * FEEDS + feed) * TOGETHER);
            let batch: String = (first..first + u64::from(TOGETHER)).map(event).collect();
            connection.publish(&format!("f{feed}"), &batch)
        })?;
    }
    let mut random = StdRng::seed_from_u64(3);
    let mut connection = Connection::open(&ours.address)?;
    let mut follows = vec![];
    for count in FOLLOWED {
        for index in 0..timelines_of(count) {
            let feeds = rand::seq::index::sample(
                &mut random,
                usize::try_from(FEEDS)?,
                usize::try_from(count)?,
            );
            let names: Vec<String> = feeds.iter().map(|feed| format!("\"f{feed}\"")).collect();
            let path = format!("/feeds/t{count}-{index}");
            if connection.json("PUT", &path, "{\"kind\":\"timeline\"}")? != 201 {
                bail!("{path} was refused");
            }
            // At most 10,000 entries come along: the newest of all.
            let body = format!("{{\"follow\":[{}],\"backfill\":0}}", names.join(","));
            if connection.json("POST", &format!("{path}/following"), &body)? != 200 {
                bail!("{path} follows nothing");
            }
            let feeds = feeds.iter().map(|feed| i32::try_from(feed).unwrap_or(0));
            follows.push((number_of(count, index)?, feeds.collect()));
        }
    }
    // Later entries come while their feeds are followed; only these are read.
    for turn in 0..ENTRIES / TOGETHER {
        at_once(FEEDS, &ours.address, |feed, _, connection| {
            let first = u64::from((turn * FEEDS + feed) * TOGETHER) + 10_000_000;
            let batch: String = (first..first + u64::from(TOGETHER)).map(event).collect();
            connection.publish(&format!("f{feed}"), &batch)
        })?;
    }
    Ok(follows)
}

/// Creates timelines of ten feeds each with ever more entries.
fn make_histories(ours: &Program) -> anyhow::Result<()> {
    const OF: u32 = 10;
    let mut connection = Connection::open(&ours.address)?;
    for power in POWERS {
        let names: Vec<String> = (0..OF).map(|feed| format!("\"h{power}-{feed}\"")).collect();
        for name in &names {
            let path = format!("/feeds/{}", name.trim_matches('"'));
            if connection.json("PUT", &path, "{}")? != 201 {
                bail!("{path} was refused");
            }
        }
        let body = format!(
            "{{\"kind\":\"timeline\",\"following\":[{}]}}",
            names.join(",")
        );
        if connection.json("PUT", &format!("/feeds/h{power}"), &body)? != 201 {
            bail!("a timeline was refused");
        }
        let entries = 10_u32.pow(power);
        let batch = (entries / OF).min(1_000);
        for number in 0..entries / batch {
            let feed = number % OF;
            let first = u64::from(power) * 100_000_000 + u64::from(number * batch);
            let lines: String = (first..first + u64::from(batch)).map(event).collect();
            connection.publish(&format!("h{power}-{feed}"), &lines)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        let target = to.join(item.file_name());
        if item.file_type()?.is_dir() {
            copy(&item.path(), &target)?;
        } else if item.file_type()?.is_file() {
            fs::copy(item.path(), target)?;
        }
    }
    Ok(())
}

/// Reads the newest hundred entries of timelines in turn. Returns the microseconds of each read, sorted.
fn read_pages(server: &Served, count: u32, random: &mut StdRng) -> anyhow::Result<Vec<f64>> {
    let mut connection = Connection::open(&server.program.address)?;
    let mut all = vec![];
    for _ in 0..READS {
        let index = random.random_range(0..timelines_of(count));
        let path = format!("/feeds/t{count}-{index}/page.atom?limit=100");
        let began = Instant::now();
        let (head, body) = connection.get(&path)?;
        all.push(began.elapsed().as_secs_f64() * 1e6);
        if !head.starts_with("http/1.1 200") || body.len() < 30_000 {
            bail!("{path}: {head}");
        }
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}

fn read_postgres(
    client: &mut postgres::Client,
    count: u32,
    random: &mut StdRng,
) -> anyhow::Result<Vec<f64>> {
    let indexes = (0..READS / 10).map(|_| random.random_range(0..timelines_of(count)));
    let timelines: anyhow::Result<Vec<i32>> =
        indexes.map(|index| number_of(count, index)).collect();
    let mut all = postgres_reads(client, timelines?.into_iter())?;
    all.sort_by(f64::total_cmp);
    Ok(all)
}

/// Timelines of 200 feeds, against the budget and PostgreSQL.
fn of_200(
    table: &mut Table,
    servers: &[Served],
    client: &mut postgres::Client,
    rounds: usize,
) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(1);
    let mut ours = vec![vec![]; servers.len()];
    let mut theirs = vec![];
    for round in 0..=rounds {
        let mut read = vec![];
        for server in servers {
            read.push(read_pages(server, 200, &mut random)?);
        }
        let peer = read_postgres(client, 200, &mut random)?;
        if round > 0 {
            for (all, read) in ours.iter_mut().zip(read) {
                all.push((percentile(&read, 0.5), percentile(&read, 0.99)));
            }
            theirs.push(percentile(&peer, 0.5));
        }
    }
    for (model, all) in MODELS.into_iter().zip(ours) {
        let what = format!("100 entries of 200 feeds, {model}");
        let (p50, p99): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
        let limits = [1_000.0, 5_000.0].map(|limit| vec![limit; p50.len()]);
        let [of_p50, of_p99] = limits;
        let must = Some(Must::AtMost(1.0));
        table.add(against(&what, "p50 µs", &p50, "the budget", of_p50, must));
        table.add(against(&what, "p99 µs", &p99, "the budget", of_p99, must));
        let must = Some(Must::AtMost(0.1));
        let peer = "PostgreSQL, LIMIT 100";
        table.add(against(what, "p50 µs", &p50, peer, theirs.clone(), must));
    }
    Ok(())
}

/// Timelines of ever more feeds.
fn ramp(
    table: &mut Table,
    servers: &[Served],
    client: &mut postgres::Client,
    rounds: usize,
    scale: &Scale,
) -> anyhow::Result<()> {
    let names = ["write", "read", "cache", "PostgreSQL, LIMIT 100"];
    let mut lines = names.map(|name| Line {
        name,
        points: vec![],
    });
    let mut random = StdRng::seed_from_u64(2);
    for count in FOLLOWED {
        let mut medians = vec![vec![]; names.len()];
        for _ in 0..rounds {
            for (server, medians) in servers.iter().zip(&mut medians) {
                medians.push(percentile(&read_pages(server, count, &mut random)?, 0.5));
            }
            let peer = read_postgres(client, count, &mut random)?;
            if let Some(medians) = medians.last_mut() {
                medians.push(percentile(&peer, 0.5));
            }
        }
        for (line, medians) in lines.iter_mut().zip(&medians) {
            line.points.push((f64::from(count), median(medians)));
        }
        if [1, 32, 1_024].contains(&count) {
            let theirs = medians.last().cloned().unwrap_or_default();
            for (model, ours) in MODELS.iter().zip(&medians) {
                let what = format!("100 entries of {count} feeds, {model}");
                let peer = "PostgreSQL, LIMIT 100";
                table.add(against(what, "p50 µs", ours, peer, theirs.clone(), None));
            }
        }
    }
    if let Some(plots) = &scale.plots {
        let axes = ("followed feeds", "µs for the newest 100 entries");
        draw(
            &plots.join("followed.svg"),
            "Reading a timeline",
            axes,
            Axes::Logarithmic,
            &lines,
        )?;
    }
    Ok(())
}

/// Histories of ever more entries: the newest page, and a closed document that nobody has asked for.
fn histories(table: &mut Table, servers: &[Served], rounds: usize) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(4);
    for (model, server) in MODELS.iter().zip(servers) {
        let mut shortest = vec![];
        for power in POWERS {
            let mut connection = Connection::open(&server.program.address)?;
            let mut pages = vec![];
            let mut documents = vec![];
            for _ in 0..rounds {
                let mut took = vec![];
                for _ in 0..READS {
                    let began = Instant::now();
                    connection.get(&format!("/feeds/h{power}/page.atom?limit=100"))?;
                    took.push(began.elapsed().as_secs_f64() * 1e6);
                }
                pages.push(median(&took));
                let last = (10_u32.pow(power) / 100).max(2);
                let number = random.random_range(1..last);
                let began = Instant::now();
                let (head, _) = connection.get(&format!("/feeds/h{power}/{number}.atom"))?;
                if !head.starts_with("http/1.1 200") {
                    bail!("document {number} of h{power}: {head}");
                }
                documents.push(began.elapsed().as_secs_f64() * 1e6);
            }
            let what = format!("newest 100 of 10^{power} entries, {model}");
            if shortest.is_empty() {
                shortest.clone_from(&pages);
            }
            let peer = "of 10^2 entries";
            table.add(against(
                what,
                "p50 µs",
                &pages,
                peer,
                shortest.clone(),
                None,
            ));
            let what = format!("a closed document of 10^{power} entries, {model}");
            table.add(alone(what, "µs at first", documents));
        }
    }
    Ok(())
}

/// The recent document of a timeline against one of a feed with as many bytes.
fn kept_ready(table: &mut Table, servers: &[Served], rounds: usize) -> anyhow::Result<()> {
    let server = &servers.first().context("there is a server")?.program;
    let mut connection = Connection::open(&server.address)?;
    let timeline = "/feeds/t200-0/recent.atom";
    let bytes = connection.get(timeline)?.1.len();
    let entries = 100.min(count_of(&connection.get(timeline)?.1));
    // A feed whose entries are as much longer as `source` and `via` make them.
    let sized = |name: &str, letters: usize, connection: &mut Connection| {
        let pad = "x".repeat(letters);
        let lines: String = (0..entries)
            .map(|number| {
                let line = event(20_000_000 + u64::try_from(number).unwrap_or(0));
                line.replacen("leave it", &format!("{pad}leave it"), 1)
            })
            .collect();
        connection.publish(name, &lines)?;
        anyhow::Ok(
            connection
                .get(&format!("/feeds/{name}/recent.atom"))?
                .1
                .len(),
        )
    };
    let plain = sized("plain", 0, &mut connection)?;
    let more = bytes.saturating_sub(plain) / entries.max(1);
    let alike = sized("alike", more, &mut connection)?;
    eprintln!("The recent document of the timeline has {bytes} bytes, that of the feed {alike}.");
    let feed = "/feeds/alike/recent.atom";
    let tag = |connection: &mut Connection, path: &str| -> anyhow::Result<String> {
        let (head, _) = connection.get(path)?;
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        Ok(tag.context("documents have tags")?.to_owned())
    };
    let tags = (tag(&mut connection, timeline)?, tag(&mut connection, feed)?);
    for known in [false, true] {
        let (mut ours, mut theirs) = (vec![], vec![]);
        for round in 0..=rounds {
            let one = |path: &str, tag: &str| -> anyhow::Result<f64> {
                let headers = [("If-None-Match", tag)];
                let headers: &[_] = if known { &headers } else { &[] };
                Ok(read(server, path, headers, 2)?.cpu_micros)
            };
            let (mine, other) = (one(timeline, &tags.0)?, one(feed, &tags.1)?);
            if round > 0 {
                ours.push(mine);
                theirs.push(other);
            }
        }
        let what = if known { "304" } else { "as it is" };
        let what = format!("recent document of a timeline, kept ready, {what}");
        let must = Some(Must::AtMost(1.05));
        table.add(against(
            what,
            "CPU µs/request",
            &ours,
            "of a feed",
            theirs,
            must,
        ));
    }
    Ok(())
}

/// Returns the number of entries in a document.
fn count_of(document: &[u8]) -> usize {
    String::from_utf8_lossy(document).matches("<entry ").count()
}
