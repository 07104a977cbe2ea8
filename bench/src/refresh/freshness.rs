//! Items that are born at a changing rate, refreshed by a real refresher by the real clock.
//!
//! Shell: a server, a queue in a file, a provider in this process. Intervals are a sixtieth of the usual ones: a second
//! stands for a minute.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use chrono::Utc;
use simplefeed_client::{
    Publisher, Timestamp,
    refresher::{
        Credential, IntervalLine, Intervals, Lookup, LookupAnswer, LookupError, RefreshItem,
        Refresher,
    },
};
use simplefeed_queue::{Clock, Limit, Namespace, redb::Redb};

use crate::{
    plots::{self, Axes},
    process::{Program, folder},
    table::{Must, Row, Table},
};

/// Items of a full request.
const BATCH: usize = 100;
/// Time that an item waits for a full request.
const BUFFER: Duration = Duration::from_secs(2);
/// Time that an answer takes.
const ANSWER: Duration = Duration::from_millis(50);
const WORKERS: usize = 4;
/// Requests of a window.
const LIMIT: Limit = Limit {
    requests: 600,
    window: Duration::from_secs(10),
};
/// Ages up to which an interval holds, in seconds.
const LINES: [(u64, u64); 3] = [(18, 2), (60, 5), (3_600, 60)];
/// Seconds of a point of the plot of requests.
const BIN: f64 = 5.0;

/// Requests and refreshes, as the provider counts them. Times are seconds after the begin.
#[derive(Default)]
struct Log {
    /// Time of the last answer of each item.
    answered: HashMap<String, f64>,
    /// Time, ids, and whether its oldest item had waited for the whole buffer.
    requests: Vec<(f64, usize, bool)>,
    /// Of each refresh: age at the answer before, time since then, and by how much that is more than the interval.
    refreshes: Vec<(f64, f64, f64)>,
}

/// A provider of items whose ids are their births.
#[derive(Clone)]
struct Provider {
    began: Instant,
    log: Arc<Mutex<Log>>,
}

/// Returns the interval of an item of this age.
fn interval(age: f64) -> f64 {
    let line = LINES.iter().find(|(until, _)| age <= seconds(*until));
    seconds(line.map_or(60, |(_, interval)| *interval))
}

fn seconds(whole: u64) -> f64 {
    Duration::from_secs(whole).as_secs_f64()
}

fn count(items: usize) -> f64 {
    f64::from(u32::try_from(items).unwrap_or(u32::MAX))
}

impl Provider {
    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn with<T>(&self, look: impl FnOnce(&mut Log) -> T) -> T {
        look(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes a request.
    fn asked(&self, ids: &[String]) {
        let now = self.now();
        self.with(|log| {
            let mut latest = 0.0_f64;
            for id in ids {
                let (born, _) = id.split_once('-').unwrap_or((id, ""));
                let born: f64 = born.parse().unwrap_or(now);
                let Some(before) = log.answered.get(id) else {
                    continue;
                };
                let since = now - before;
                let late = since - interval(before - born);
                latest = latest.max(late);
                log.refreshes.push((before - born, since, late));
            }
            let has_waited = latest >= BUFFER.as_secs_f64();
            log.requests.push((now, ids.len(), has_waited));
        });
    }
}

impl Lookup for Provider {
    async fn lookup(&self, ids: &[String], _: &Credential) -> Result<LookupAnswer, LookupError> {
        self.asked(ids);
        tokio::time::sleep(ANSWER).await;
        let now = self.now();
        let mut found = LookupAnswer::default();
        for id in ids {
            // It changes every ten seconds or so.
            let value = (now / 10.0).floor();
            found.insert(id.as_str(), &serde_json::json!({ "value": value }))?;
        }
        self.with(|log| {
            for id in ids {
                log.answered.insert(id.clone(), now);
            }
        });
        Ok(found)
    }
}

/// Runs the refresher for some time. Returns the provider's log.
async fn run(folder: &Path, address: &str, time: Duration) -> anyhow::Result<Log> {
    let queue = Redb::open(&folder.join("queue"), Clock::Real)?;
    let publisher = Publisher::new(&format!("http://{address}/feeds/updates"))?;
    let line = |(until, interval): (u64, u64)| IntervalLine {
        until: Duration::from_secs(until),
        interval: Duration::from_secs(interval),
    };
    let refresher = Refresher::new(queue, Namespace::new("items")?, publisher)
        .credential(Credential::new("key", LIMIT))
        .batch(BATCH, BUFFER)
        .intervals(Intervals::new(LINES.into_iter().map(line).collect())?);
    let provider = Provider {
        began: Instant::now(),
        log: Arc::default(),
    };
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let (refresher, provider) = (refresher.clone(), provider.clone());
        tasks.spawn(async move {
            let end = tokio::time::sleep(time);
            refresher.work_until(&provider, end).await
        });
    }
    let mut number = 0.0;
    while provider.began.elapsed() < time {
        // A day and a night in each minute: 20 to 100 births a second.
        let now = provider.now();
        let rate = 60.0 + 40.0 * (now * std::f64::consts::TAU / 60.0).sin();
        let mut items = Vec::new();
        for _ in 0..20 {
            number += 1.0;
            let born = Timestamp::from_micros(Utc::now().timestamp_micros());
            items.push(RefreshItem::new(format!("{now:.3}-{number}"), born)?);
        }
        refresher.start(items).await?;
        tokio::time::sleep(Duration::from_secs_f64(20.0 / rate)).await;
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(provider.with(std::mem::take))
}

/// Returns the most requests of any window.
fn most_of_a_window(requests: &[(f64, usize, bool)]) -> f64 {
    let window = LIMIT.window.as_secs_f64();
    let of_window = |(index, (begin, ..)): (usize, &(f64, usize, bool))| {
        let behind = requests.iter().skip(index);
        count(behind.take_while(|(at, ..)| at - begin < window).count())
    };
    requests
        .iter()
        .enumerate()
        .map(of_window)
        .fold(0.0, f64::max)
}

pub(super) fn measure(
    table: &mut Table,
    time: Duration,
    plots: Option<&Path>,
) -> anyhow::Result<()> {
    let folder = folder()?;
    let server = Program::simplefeed(&folder.path().join("data"))?;
    let runtime = super::runtime()?;
    let mut log = runtime.block_on(run(folder.path(), &server.address, time))?;
    log.requests.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut add = |what: &str, unit, ours: f64, peer: &str, theirs: f64, must| {
        table.add(Row {
            what: what.to_owned(),
            unit,
            ours: vec![ours],
            peer: peer.to_owned(),
            theirs: vec![theirs],
            must,
        });
    };
    let filled = log.requests.iter().filter(|(_, _, waited)| !waited);
    let filled: Vec<f64> = filled.map(|(_, ids, _)| count(*ids)).collect();
    add(
        "items of a request that did not wait for the whole buffer",
        "mean",
        filled.iter().sum::<f64>() / count(filled.len()),
        "a full request",
        count(BATCH),
        Some(Must::AtLeast(0.99)),
    );
    let ids: f64 = log.requests.iter().map(|(_, ids, _)| count(*ids)).sum();
    add(
        "requests",
        "in all",
        count(log.requests.len()),
        "the least possible",
        ids / count(BATCH),
        None,
    );
    add(
        "most requests of a window",
        "in 10 s",
        most_of_a_window(&log.requests),
        "the quota",
        f64::from(LIMIT.requests),
        Some(Must::AtMost(1.0)),
    );
    let latest = log.refreshes.iter().map(|(_, _, late)| *late);
    add(
        "latest refresh after its interval",
        "s",
        latest.fold(0.0, f64::max),
        "the buffer and a second",
        BUFFER.as_secs_f64() + 1.0,
        Some(Must::AtMost(1.0)),
    );
    if let Some(plots) = plots {
        draw(plots, &log)?;
    }
    Ok(())
}

/// Returns the bin of a value, as a number for a map.
fn bin(value: f64, width: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::as_conversions,
        reason = "values are seconds of a measurement"
    )]
    let bin = (value / width) as u32;
    bin
}

/// Draws requests against the least possible, and ages against intervals.
fn draw(plots: &Path, log: &Log) -> anyhow::Result<()> {
    std::fs::create_dir_all(plots)?;
    let mut bins: std::collections::BTreeMap<u32, (f64, f64)> = std::collections::BTreeMap::new();
    for (at, ids, _) in &log.requests {
        let (requests, items) = bins.entry(bin(*at, BIN)).or_default();
        *requests += 1.0;
        *items += count(*ids);
    }
    let line = |name, value: fn(&(f64, f64)) -> f64| plots::Line {
        name,
        points: bins
            .iter()
            .map(|(bin, sums)| (f64::from(*bin) * BIN, value(sums) / BIN))
            .collect(),
    };
    plots::draw(
        &plots.join("requests.svg"),
        "Requests a second, while 20 to 100 items are born a second",
        ("seconds", "requests a second"),
        Axes::Linear,
        &[
            line("requests", |(requests, _)| *requests),
            line("the least possible", |(_, items)| items / count(BATCH)),
        ],
    )?;
    // By age, the time since the answer before: median and most.
    let mut ages: std::collections::BTreeMap<u32, Vec<f64>> = std::collections::BTreeMap::new();
    for (age, since, _) in &log.refreshes {
        ages.entry(bin(*age, 2.0)).or_default().push(*since);
    }
    for since in ages.values_mut() {
        since.sort_by(f64::total_cmp);
    }
    let line = |name, value: fn(&f64, &[f64]) -> f64| plots::Line {
        name,
        points: ages
            .iter()
            .map(|(bin, since)| {
                let age = f64::from(*bin) * 2.0 + 1.0;
                (age, value(&age, since))
            })
            .collect(),
    };
    plots::draw(
        &plots.join("ages.svg"),
        "Seconds between two refreshes of an item, by its age at the first",
        ("age in seconds", "seconds until the next refresh"),
        Axes::Linear,
        &[
            line("the interval of the age", |age, _| interval(*age)),
            line("median", |_, since| {
                since.get(since.len() / 2).copied().unwrap_or(f64::NAN)
            }),
            line("the longest", |_, since| {
                since.last().copied().unwrap_or(f64::NAN)
            }),
        ],
    )
}
