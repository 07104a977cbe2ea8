//! Users who read, scroll, post, follow, unfollow and look for friends.
//!
//! Shell. The workload of the feed service that timelines come from: virtual users take up sessions of real ones, one
//! action after the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _, distr::Alphanumeric, rngs::StdRng};
use rand_distr::{Distribution as _, Geometric, Zipf, weighted::WeightedIndex};

use super::{Scale, alone, followers::Served};
use crate::{
    load::{Connection, at_once},
    process::folder,
    table::{Table, percentile},
};

/// Virtual users.
const AT_ONCE: u64 = 16;
/// Feeds that a user follows at the beginning.
const FOLLOWS: usize = 20;
/// Seconds of the workload for each second of other measurements.
const LENGTH: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Read,
    Scroll,
    Post,
    Follow,
    Unfollow,
    FriendsOfFriends,
}

/// Actions with their weights.
const WEIGHTS: [(Action, u32); 6] = [
    (Action::Read, 50),
    (Action::Scroll, 20),
    (Action::Post, 10),
    (Action::Follow, 5),
    (Action::Unfollow, 5),
    (Action::FriendsOfFriends, 10),
];

/// Follows of each user.
type Follows = Vec<Mutex<BTreeSet<u32>>>;

pub(super) fn measure(table: &mut Table, seconds: u64, scale: &Scale) -> anyhow::Result<()> {
    let folder = folder()?;
    let server = Served::start(&folder.path().join("data"), "auto")?;
    let address = &server.program.address;
    let follows: Follows = (0..scale.users).map(|_| Mutex::default()).collect();
    let popularity = Zipf::new(f64::from(scale.users), 1.0)?;
    at_once(scale.users, address, |user, _, connection| {
        publish(connection, user, "hello")
    })?;
    at_once(scale.users, address, |user, random, connection| {
        let mut followed = lock(&follows, user)?;
        followed.extend((0..FOLLOWS).map(|_| user_of(popularity.sample(random))));
        followed.remove(&user);
        let names: Vec<String> = followed.iter().map(|user| format!("\"u{user}\"")).collect();
        let body = format!(
            "{{\"kind\":\"timeline\",\"owner\":\"u{user}\",\"following\":[{}]}}",
            names.join(",")
        );
        expect(
            connection.json("PUT", &format!("/feeds/h{user}"), &body)?,
            201,
        )
    })?;
    let until = Instant::now() + Duration::from_secs(seconds * LENGTH);
    let all = Mutex::new(BTreeMap::<Action, Vec<f64>>::new());
    std::thread::scope(|threads| {
        let (all, follows) = (&all, &follows);
        let users: Vec<_> = (0..AT_ONCE)
            .map(|seed| {
                threads.spawn(move || -> anyhow::Result<()> {
                    let took = sessions(address, seed, follows, until)?;
                    let mut all = all.lock().ok().context("nobody panicked")?;
                    for (action, micros) in took {
                        all.entry(action).or_default().push(micros);
                    }
                    Ok(())
                })
            })
            .collect();
        users
            .into_iter()
            .try_for_each(|user| user.join().ok().context("a user panicked")?)
    })?;
    let all = all.into_inner().ok().context("nobody panicked")?;
    let count: usize = all.values().map(Vec::len).sum();
    let rate = f64::from(u32::try_from(count)?) / f64::from(u32::try_from(seconds * LENGTH)?);
    let what = format!("{} users, {AT_ONCE} at once", scale.users);
    table.add(alone(what, "actions/s", vec![rate]));
    for (action, mut micros) in all {
        micros.sort_by(f64::total_cmp);
        for (unit, share) in [("p50 µs", 0.5), ("p99 µs", 0.99)] {
            let value = percentile(&micros, share);
            table.add(alone(
                format!("{action:?}, {} times", micros.len()),
                unit,
                vec![value],
            ));
        }
    }
    Ok(())
}

fn user_of(sample: f64) -> u32 {
    // Samples are whole numbers from 1 on.
    format!("{:.0}", sample - 1.0).parse().unwrap_or(0)
}

fn lock(follows: &Follows, user: u32) -> anyhow::Result<std::sync::MutexGuard<'_, BTreeSet<u32>>> {
    let of_user = follows.get(usize::try_from(user)?);
    of_user
        .and_then(|of_user| of_user.lock().ok())
        .context("there is such a user")
}

fn expect(status: u16, expected: u16) -> anyhow::Result<()> {
    if status != expected {
        bail!("a request was answered with {status}");
    }
    Ok(())
}

fn publish(connection: &mut Connection, user: u32, text: &str) -> anyhow::Result<()> {
    let body = format!("{{\"content\":\"{text}\"}}");
    let status = connection.send(&format!("u{user}"), "application/json", &body)?;
    expect(status, 201)
}

/// Takes up sessions until the time is over. Returns what was done, with the microseconds that it took.
fn sessions(
    address: &str,
    seed: u64,
    follows: &Follows,
    until: Instant,
) -> anyhow::Result<Vec<(Action, f64)>> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut connection = Connection::open(address)?;
    let (length, chosen) = (
        Geometric::new(0.1)?,
        WeightedIndex::new(WEIGHTS.map(|(_, weight)| weight))?,
    );
    let users = u32::try_from(follows.len())?;
    let popularity = Zipf::new(f64::from(users), 1.0)?;
    let mut all = vec![];
    while Instant::now() < until {
        let user = random.random_range(0..users);
        // Where this session has scrolled to.
        let mut older = None;
        for _ in 0..=length.sample(&mut random) {
            let Some((action, _)) = WEIGHTS.get(chosen.sample(&mut random)) else {
                continue;
            };
            let other = user_of(popularity.sample(&mut random));
            let letters = random.random_range(10..=139);
            let text: String = (&mut random)
                .sample_iter(Alphanumeric)
                .take(letters)
                .map(char::from)
                .collect();
            let began = Instant::now();
            let is_done = act(
                *action,
                &mut connection,
                user,
                other,
                &text,
                &mut older,
                follows,
            )?;
            if is_done {
                all.push((*action, began.elapsed().as_secs_f64() * 1e6));
            }
        }
    }
    Ok(all)
}

/// Does something as a user. Returns false if there was nothing to do.
fn act(
    action: Action,
    connection: &mut Connection,
    user: u32,
    other: u32,
    text: &str,
    older: &mut Option<String>,
    follows: &Follows,
) -> anyhow::Result<bool> {
    let home = format!("/feeds/h{user}");
    match action {
        Action::Read => drop(page(connection, &format!("{home}/page.json?limit=50"))?),
        Action::Scroll => {
            let path = older
                .take()
                .unwrap_or_else(|| format!("{home}/page.json?limit=50"));
            *older = page(connection, &path)?;
        }
        Action::Post => publish(connection, user, text)?,
        Action::Follow => {
            let mut followed = lock(follows, user)?;
            if other == user || !followed.insert(other) {
                return Ok(false);
            }
            let path = format!("{home}/following/u{other}");
            expect(connection.json("PUT", &path, "{\"backfill\":10}")?, 200)?;
        }
        Action::Unfollow => {
            let mut followed = lock(follows, user)?;
            let Some(other) = followed.pop_first() else {
                return Ok(false);
            };
            let path = format!("{home}/following/u{other}");
            expect(connection.json("DELETE", &path, "")?, 200)?;
        }
        Action::FriendsOfFriends => {
            let (head, _) = connection.get(&format!("{home}/friends-of-friends.json"))?;
            if !head.starts_with("http/1.1 200") {
                bail!("{head}");
            }
        }
    }
    Ok(true)
}

/// Reads a page. Returns the path of the next older one.
fn page(connection: &mut Connection, path: &str) -> anyhow::Result<Option<String>> {
    let (head, body) = connection.get(path)?;
    if !head.starts_with("http/1.1 200") {
        bail!("{path}: {head}");
    }
    let page: serde_json::Value = serde_json::from_slice(&body)?;
    let next = page.get("next").and_then(|next| next.as_str());
    // It is relative to this page.
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    Ok(next.map(|next| format!("{folder}/{next}")))
}
