//! `lists`: the cost of a page of names, in lists of ever more names.
//!
//! Shell. One server gets ever more feeds, and another one feeds and timelines that follow them. A page has 1,000 names at
//! most, so the page of a longer list must cost as much as that of a list of 1,000 names.
//!
//! Names are in another order than their feeds, and followers are read again from the disk: what a page shows lies anywhere
//! in the memory.

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
    /// Feeds of one server, and timelines of another one, which follow the same feed
    #[arg(long, default_value_t = 1_000_000, value_parser = parse_names)]
    names: u32,
}

/// Step from the number in a name to the one in the next name, a prime number.
const STEP: u64 = 7_919;

fn parse_names(text: &str) -> Result<u32, &'static str> {
    let names = text.parse().ok().ok_or("that is no number")?;
    if !(20_000..=1_000_000).contains(&names) {
        return Err("20000 to 1000000 names can be made");
    }
    // Else one name would be made several times.
    if u64::from(names).is_multiple_of(STEP) {
        return Err("a multiple of 7919 cannot be made");
    }
    Ok(names)
}

/// Names with numbers, in the order in which they are made.
#[derive(Clone, Copy)]
struct Scattered(u32);

impl Scattered {
    /// Returns the number in the name that is made after so many others.
    fn number(self, made: u32) -> u64 {
        let all = u64::from(self.0);
        all + u64::from(made) * STEP % all
    }
}

/// A list of names.
struct List {
    route: &'static str,
    path: String,
    names: u32,
    /// Lua expression of a query, from the number of a request. Behind its place, there is a page of names.
    place: Option<String>,
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
    let mut cost = |ours: &Program, list: &List, base: &mut Base| -> anyhow::Result<()> {
        let costs = list.costs(ours, rounds, seconds)?;
        table.add_all(list.rows(&costs, base));
        Ok(())
    };
    let folder = folder()?;
    let feeds = folder.path().join("feeds");
    let ours = Program::simplefeed(&feeds)?;
    Connection::open(&ours.address)?.publish("plain", &event(1))?;
    of_feeds(size.names, &ours, &mut |list, base| cost(&ours, list, base))?;
    ours.stop()?;
    let timelines = folder.path().join("timelines");
    let ours = Program::simplefeed(&timelines)?;
    Connection::open(&ours.address)?.publish("plain", &event(1))?;
    follow(size.names, &ours)?;
    ours.stop()?;
    let ours = Program::simplefeed(&timelines)?;
    // The first list waits until all names are read.
    Connection::open(&ours.address)?.get("/feeds")?;
    of_timelines(size.names, &mut |list, base| cost(&ours, list, base))?;
    ours.stop()
}

/// Measures a list, which others may be compared with.
type Cost<'c> = &'c mut dyn FnMut(&List, &mut Base) -> anyhow::Result<()>;
/// Measures the list of a server's feeds.
fn of_feeds(most: u32, ours: &Program, cost: Cost<'_>) -> anyhow::Result<()> {
    let (scattered, mut base, mut made) = (Scattered(most), Base::default(), 0);
    // A server has a million feeds at most, and the measurement makes some besides.
    let longest = most - most / 100;
    for names in LENGTHS.into_iter().chain([longest]) {
        at_once(names - made, &ours.address, |number, _, connection| {
            let name = scattered.number(made + number);
            put(&format!("/feeds/f{name}"), "{}", connection)
        })?;
        made = names;
        // They are scattered over the numbers of all.
        let places = u64::from(most) * u64::from(names - PAGE.min(names)) / u64::from(names);
        let place = format!("'?after=f' .. {most} + n * {STEP} % {places}");
        let list = List {
            route: "/feeds",
            path: "/feeds".into(),
            names,
            place: (names > PAGE).then_some(place),
        };
        cost(&list, &mut base)?;
    }
    Ok(())
}

/// Measures the lists of timelines.
fn of_timelines(most: u32, cost: Cost<'_>) -> anyhow::Result<()> {
    let lengths: Vec<u32> = LENGTHS.into_iter().chain([most]).collect();
    let mut base = Base::default();
    for names in lengths {
        let places = names - PAGE.min(names);
        let place = format!("'?after=t' .. {most} + n * {STEP} % {places} * {STEP} % {most}");
        let list = List {
            route: "followers.json",
            path: format!("/feeds/pop{names}/followers.json"),
            names,
            place: (names > PAGE).then_some(place),
        };
        cost(&list, &mut base)?;
    }
    for route in ["following.json", OPML, FRIENDS] {
        let mut base = Base::default();
        for names in LENGTHS {
            let has_places = route == "following.json" && names > PAGE;
            let places = names - PAGE.min(names);
            let place = format!("'?after=f' .. n * {STEP} % {places}");
            let list = List {
                route,
                path: format!("/feeds/of{names}/{route}"),
                names,
                place: has_places.then_some(place),
            };
            cost(&list, &mut base)?;
        }
    }
    Ok(())
}

/// Creates feeds, and timelines, so that feeds have followers and timelines have follows, as many as each of the lengths.
fn follow(most: u32, ours: &Program) -> anyhow::Result<()> {
    let lengths: Vec<u32> = LENGTHS.into_iter().chain([most]).collect();
    let mut connection = Connection::open(&ours.address)?;
    // In their order, since lists of follows have it: places of names are computed.
    for number in 0..LENGTHS.into_iter().max().unwrap_or(0) {
        put(&format!("/feeds/f{number}"), "{}", &mut connection)?;
    }
    for length in &lengths {
        put(&format!("/feeds/pop{length}"), "{}", &mut connection)?;
    }
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
        let name = Scattered(most).number(number);
        put(&format!("/feeds/t{name}"), &body, connection)
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
        for round in 0..=rounds {
            let ready = read(ours, &self.path, &[], seconds)?.cpu_micros;
            let of_list = known(ours, &self.path, seconds)?;
            let plain = known(ours, PLAIN, seconds)?;
            let changed = self.after_changes(ours)?;
            let anywhere = self
                .place
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
