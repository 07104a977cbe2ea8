//! `lists`: the cost of a page of names, in lists of ever more names.
//!
//! Shell. One server that grows: feeds first, then timelines, which all follow. A page has 1,000 names at most, so the page
//! of a longer list must cost as much as that of a list of 1,000 names.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

use anyhow::{Context as _, bail};
use clap::Args;

use crate::{
    load::{Connection, at_once, event, read, read_places},
    process::{Program, folder},
    table::{Must, Row, Table, median},
};

/// Names in a page.
const PAGE: u32 = 1_000;
/// Lengths of lists of follows. The last one is their bound.
const LENGTHS: [u32; 3] = [10, PAGE, 10_000];
/// CPU time of a page, in microseconds.
const PAGE_MICROS: f64 = 500.0;
/// Most of the difference between pages of short lists and of long ones.
const EQUAL: Option<Must> = Some(Must::AtMost(1.15));
/// Changes in a round. After each, a list is read.
const CHANGES: usize = 100;
/// Routes whose response is one for all names.
const OPML: &str = "following.opml";
const FRIENDS: &str = "friends-of-friends.json";
/// Feed whose recent document a 304 is compared with.
const PLAIN: &str = "/feeds/plain/recent.atom";

/// Sizes of the measurement.
#[derive(Args, Clone, Debug)]
pub(crate) struct Names {
    /// Timelines, which are the followers of the feed with most of them
    #[arg(long, default_value_t = 1_000_000)]
    timelines: u32,
}

/// A list of names.
struct List {
    route: &'static str,
    path: String,
    names: u32,
    /// Letter of the names in it, which are numbered.
    letter: char,
}

impl List {
    /// Number of pages of which one response consists.
    fn pages(&self) -> f64 {
        if self.route == OPML {
            f64::from(self.names.div_ceil(PAGE))
        } else {
            1.0
        }
    }

    /// Returns a Lua expression of a place in the list, from the number of a request.
    fn place(&self) -> Option<String> {
        let has_places = self.route != OPML && self.route != FRIENDS && self.names > PAGE;
        // Behind the last places, fewer names than a page has are left.
        let places = self.names - PAGE.min(self.names);
        has_places.then(|| format!("'?after={}' .. (n * 7919 % {places})", self.letter))
    }
}

/// Costs of the pages that others of a route are compared with, one of each round.
#[derive(Default)]
struct Base {
    changed: Vec<f64>,
    anywhere: Vec<f64>,
}

/// Costs of a list, one of each round.
#[derive(Default)]
struct Costs {
    ready: Vec<f64>,
    changed: Vec<f64>,
    anywhere: Vec<f64>,
    known: Vec<f64>,
    plain: Vec<f64>,
}

pub(crate) fn measure(
    table: &mut Table,
    rounds: usize,
    seconds: u64,
    size: &Names,
) -> anyhow::Result<()> {
    let folder = folder()?;
    let ours = Program::simplefeed(&folder.path().join("data"))?;
    Connection::open(&ours.address)?.publish("plain", &event(1))?;
    let mut cost = |list: &List, base: &mut Base| -> anyhow::Result<()> {
        let costs = list.costs(&ours, rounds, seconds)?;
        table.add_all(list.rows(&costs, base));
        Ok(())
    };
    let mut of_feeds = Base::default();
    let feeds = |names, letter| List {
        route: "/feeds",
        path: "/feeds".into(),
        names,
        letter,
    };
    let mut made = 0;
    for length in LENGTHS {
        make_feeds(&ours, made..length)?;
        made = length;
        cost(&feeds(length, 'f'), &mut of_feeds)?;
    }
    let lengths: Vec<u32> = LENGTHS.into_iter().chain([size.timelines]).collect();
    follow(&ours, &lengths)?;
    cost(&feeds(size.timelines, 't'), &mut of_feeds)?;
    let mut of_followers = Base::default();
    for names in &lengths {
        let list = List {
            route: "followers.json",
            path: format!("/feeds/pop{names}/followers.json"),
            names: *names,
            letter: 't',
        };
        cost(&list, &mut of_followers)?;
    }
    for route in ["following.json", OPML, FRIENDS] {
        let mut of_follows = Base::default();
        for names in LENGTHS {
            let path = format!("/feeds/of{names}/{route}");
            let list = List {
                route,
                path,
                names,
                letter: 'f',
            };
            cost(&list, &mut of_follows)?;
        }
    }
    ours.stop()
}

/// Creates feeds.
fn make_feeds(ours: &Program, numbers: std::ops::Range<u32>) -> anyhow::Result<()> {
    let first = numbers.start;
    // In their order, since lists of follows have it: places of names are computed.
    let mut connection = Connection::open(&ours.address)?;
    for number in first..numbers.end {
        put(&format!("/feeds/f{number}"), "{}", &mut connection)?;
    }
    Ok(())
}

/// Creates timelines, so that feeds have followers and timelines have follows, as many as each of the lengths.
fn follow(ours: &Program, lengths: &[u32]) -> anyhow::Result<()> {
    let mut connection = Connection::open(&ours.address)?;
    for length in lengths {
        put(&format!("/feeds/pop{length}"), "{}", &mut connection)?;
    }
    let most = lengths.last().copied().context("there are lengths")?;
    at_once(most, &ours.address, |number, _, connection| {
        let popular = lengths.iter().filter(|length| number < **length);
        let names: Vec<String> = popular.map(|length| format!("\"pop{length}\"")).collect();
        // Friends are owners of timelines that are feeds.
        let owner = if LENGTHS.iter().any(|length| number < *length) {
            format!(",\"owner\":\"f{number}\"")
        } else {
            String::new()
        };
        let names = names.join(",");
        let body = format!("{{\"kind\":\"timeline\",\"following\":[{names}]{owner}}}");
        put(&format!("/feeds/t{number}"), &body, connection)
    })?;
    // The one above has been idle for long.
    let mut connection = Connection::open(&ours.address)?;
    for length in LENGTHS {
        let names: Vec<String> = (0..length).map(|number| format!("\"f{number}\"")).collect();
        let names = names.join(",");
        let body = format!("{{\"kind\":\"timeline\",\"following\":[{names}]}}");
        put(&format!("/feeds/of{length}"), &body, &mut connection)?;
    }
    Ok(())
}

fn put(path: &str, body: &str, connection: &mut Connection) -> anyhow::Result<()> {
    match connection.json("PUT", path, body)? {
        201 => Ok(()),
        status => bail!("{path} was refused: {status}"),
    }
}

impl List {
    fn costs(&self, ours: &Program, rounds: usize, seconds: u64) -> anyhow::Result<Costs> {
        let mut costs = Costs::default();
        let place = self.place();
        for round in 0..=rounds {
            let ready = read(ours, &self.path, &[], seconds)?.cpu_micros;
            let of_list = known(ours, &self.path, seconds)?;
            let plain = known(ours, PLAIN, seconds)?;
            let changed = self.after_changes(ours)?;
            let anywhere = place
                .as_ref()
                .map(|place| read_places(ours, &self.path, place, seconds))
                .transpose()?;
            // The first ones are slower.
            if round > 0 {
                costs.ready.push(ready / self.pages());
                costs.known.push(of_list);
                costs.plain.push(plain);
                costs.changed.push(changed / self.pages());
                costs.anywhere.extend(anywhere.map(|load| load.cpu_micros));
            }
        }
        Ok(costs)
    }

    /// Returns the microseconds of the first read after a change of names, as the median of many.
    fn after_changes(&self, ours: &Program) -> anyhow::Result<f64> {
        static CHANGED: AtomicU32 = AtomicU32::new(0);
        let mut connection = Connection::open(&ours.address)?;
        let mut took = vec![];
        for _ in 0..CHANGES {
            let number = CHANGED.fetch_add(1, Ordering::Relaxed);
            // Behind all other names.
            put(&format!("/feeds/z{number}"), "{}", &mut connection)?;
            let began = Instant::now();
            let (head, _) = connection.get(&self.path)?;
            took.push(began.elapsed().as_secs_f64() * 1e6);
            if !head.starts_with("http/1.1 200") {
                bail!("{}: {head}", self.path);
            }
        }
        Ok(median(&took))
    }

    fn rows(&self, costs: &Costs, base: &mut Base) -> Vec<Row> {
        let what = format!("{} of {} names", self.route, self.names);
        let row = |case: &str, unit, ours: &[f64], peer: &str, theirs: Vec<f64>, must| Row {
            what: format!("{what}, {case}"),
            unit,
            ours: ours.to_vec(),
            peer: peer.into(),
            theirs,
            must,
        };
        let budget = |count: usize| vec![PAGE_MICROS; count];
        let cpu = "CPU µs/page";
        let most = Some(Must::AtMost(1.0));
        let mut rows = vec![row(
            "kept ready",
            cpu,
            &costs.ready,
            "the budget",
            budget(costs.ready.len()),
            most,
        )];
        if self.names >= PAGE && base.changed.is_empty() {
            base.changed.clone_from(&costs.changed);
        }
        // A shorter list has less than a page. Of friends, all follows are counted, up to a bound.
        let must = EQUAL.filter(|_| self.names > PAGE && self.route != FRIENDS);
        rows.push(row(
            "first read after a change",
            "p50 µs/page",
            &costs.changed,
            "of 1000 names",
            base.changed.clone(),
            must,
        ));
        if !costs.anywhere.is_empty() {
            if base.anywhere.is_empty() {
                base.anywhere.clone_from(&costs.anywhere);
            }
            let limit = budget(costs.anywhere.len());
            let case = "pages of all places";
            rows.push(row(case, cpu, &costs.anywhere, "the budget", limit, most));
            let others = base.anywhere.clone();
            rows.push(row(
                case,
                cpu,
                &costs.anywhere,
                "of 10000 names",
                others,
                EQUAL,
            ));
        }
        rows.push(row(
            "304",
            "CPU µs/request",
            &costs.known,
            "304 on a recent document",
            costs.plain.clone(),
            Some(Must::AtMost(2.0)),
        ));
        rows
    }
}

/// Returns the CPU time of a 304, in microseconds.
fn known(ours: &Program, path: &str, seconds: u64) -> anyhow::Result<f64> {
    let (head, _) = Connection::open(&ours.address)?.get(path)?;
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
    let tag = tag.with_context(|| format!("{path} has a tag"))?;
    Ok(read(ours, path, &[("If-None-Match", tag)], seconds)?.cpu_micros)
}
