//! `closed`: whether the time of a 404 tells a closed feed from one that is not there.
//!
//! Shell. Names come in pairs, one of a closed feed and one of none. Each is asked for 15 times, in an order by chance. The
//! slower one is guessed to be that of the closed feed. Too many right guesses, or too few, reveal it.

use std::{fs, path::Path, process::Command, time::Instant};

use anyhow::{Context as _, ensure};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use simplefeed_http::endpoint::{Endpoint, Needs, Query};
use simplefeed_server::endpoints::{ALL, Site};

use crate::{
    load::{Connection, event},
    process::{ANY_PORT, Program, folder, release_program},
    table::{Must, Row, Table, median},
};

/// Pairs of names.
const PAIRS: usize = 200;
/// Requests for each name.
const REQUESTS: usize = 15;
/// Chance at which a server that tells nothing may fail, over all routes.
const CHANCE: f64 = 0.01;
/// Timeline that the stranger may change.
const OWN: &str = "own";
/// Requests of the stranger that name a feed in their bodies. `own-new` is not there, and never created.
const BODIES: [(&str, &str, &str); 4] = [
    ("POST", "/feeds/own/following", "{\"follow\":[\"{name}\"]}"),
    (
        "POST",
        "/feeds/own/following",
        "{\"unfollow\":[\"{name}\"]}",
    ),
    (
        "PUT",
        "/feeds/own-new",
        "{\"kind\":\"timeline\",\"following\":[\"{name}\"]}",
    ),
    (
        "PUT",
        "/feeds/own-new",
        "{\"kind\":\"timeline\",\"owner\":\"{name}\"}",
    ),
];

/// A way to ask for a feed by its name.
struct Way {
    what: String,
    method: String,
    /// Path and query, with `{name}` where the name stands.
    target: String,
    token: Option<String>,
    body: &'static str,
}

/// Names of a closed feed and of none.
struct Pair {
    closed: String,
    absent: String,
}

pub(crate) fn measure(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let folder = folder()?;
    let tokens = folder.path().join("tokens");
    let admin = token(&tokens, "admin", "*")?;
    let stranger = token(&tokens, "admin", &format!("{OWN}*"))?;
    let file = tokens.to_str().context("a folder has a name in UTF-8")?;
    let data = folder.path().join("data");
    let ours = Program::simplefeed_at(ANY_PORT, &data, &["--tokens", file])?;
    let mut random = StdRng::seed_from_u64(58);
    let pairs = make(&ours, &admin, &mut random)?;
    let ways = ways(&stranger);
    let count = f64::from(u32::try_from(ways.len())?);
    for way in &ways {
        let (mut chances, mut right) = (vec![], vec![]);
        for _ in 0..rounds {
            let (slower, all) = guesses(&ours, way, &pairs, &mut random)?;
            chances.push(chance(all, slower));
            right.push(format!("{slower} of {all}"));
        }
        table.add(Row {
            what: format!("{}: right {}", way.what, right.join(", ")),
            unit: "p",
            ours: chances,
            peer: "0.01 over all routes".into(),
            theirs: vec![CHANCE / count; rounds],
            must: Some(Must::AtLeast(1.0)),
        });
    }
    ours.stop()
}

/// Returns a new token of a file.
fn token(file: &Path, right: &str, feeds: &str) -> anyhow::Result<String> {
    let mut command = Command::new(release_program("simplefeed-server")?);
    command.args([
        "token", "new", "someone", "--right", right, "--feeds", feeds,
    ]);
    let output = command.arg("--tokens").arg(file).output()?;
    ensure!(output.status.success(), "no token was made");
    ensure!(fs::exists(file)?, "the token is in no file");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Creates closed feeds. Returns their names with as many others, which are as long.
fn make(ours: &Program, admin: &str, random: &mut StdRng) -> anyhow::Result<Vec<Pair>> {
    let bearer = format!("Bearer {admin}");
    let headers = [("Authorization", &*bearer)];
    let mut connection = Connection::open(&ours.address)?;
    let own = "{\"kind\":\"timeline\"}";
    let own = connection.request("PUT", &format!("/feeds/{OWN}"), &headers, own)?;
    ensure!(own.0 == 201, "{own:?}");
    let mut pairs = vec![];
    for number in 0..PAIRS {
        let [closed, absent] = [0; 2].map(|_| format!("n{:015x}", random.random::<u64>() >> 4));
        let path = format!("/feeds/{closed}");
        // Each other one is a timeline.
        let is_timeline = number % 2 == 1;
        let kind = if is_timeline {
            ",\"kind\":\"timeline\""
        } else {
            ""
        };
        let settings = format!("{{\"closed\":true{kind}}}");
        let made = connection.request("PUT", &path, &headers, &settings)?;
        ensure!(made.0 == 201, "{made:?}");
        if !is_timeline {
            let line = event(u64::try_from(number)?);
            let published = connection.request("POST", &path, &headers, &line)?;
            ensure!(published.0 == 201, "{published:?}");
        }
        pairs.push(Pair { closed, absent });
    }
    Ok(pairs)
}

/// Returns every way by which strangers may ask for a feed: each route that names one, with each of its methods, without a
/// token and with one for another feed.
fn ways(stranger: &str) -> Vec<Way> {
    let mut ways = vec![];
    for endpoint in ALL.iter().copied().flatten() {
        for target in targets(endpoint) {
            let is_own = target.contains(OWN);
            for verb in endpoint.methods {
                let method = verb.method.as_str();
                for (who, token) in [("no token", None), ("a stranger's", Some(stranger))] {
                    // Without the right to the timeline, nothing of it is asked.
                    if is_own && token.is_none() && matches!(verb.needs, Needs::Right(_)) {
                        continue;
                    }
                    ways.push(Way {
                        what: format!("{method} {target}, {who}"),
                        method: method.to_owned(),
                        target: target.clone(),
                        token: token.map(ToOwned::to_owned),
                        body: "",
                    });
                }
            }
        }
    }
    ways.extend(BODIES.map(|(method, target, body)| Way {
        what: format!("{method} {target} {body}"),
        method: method.to_owned(),
        target: target.to_owned(),
        token: Some(stranger.to_owned()),
        body,
    }));
    ways
}

/// Returns paths and queries of an endpoint that name a feed.
fn targets(endpoint: &Endpoint<Site>) -> Vec<String> {
    let mut targets = vec![];
    let numbered = |path: &str| {
        let numbers = ["{document}", "{block}"];
        let path = numbers
            .iter()
            .fold(path.to_owned(), |path, number| path.replace(number, "1"));
        path.replace("{position}", "0")
    };
    if endpoint.path.contains("{item}") {
        let path = endpoint.path.replace("{feed}", OWN);
        return vec![path.replace("{item}", "{name}")];
    }
    if endpoint.path.contains("{feed}") {
        targets.push(numbered(&endpoint.path.replace("{feed}", "{name}")));
    }
    if endpoint.query == Query::Named {
        let path = numbered(&endpoint.path.replace("{feed}", OWN));
        targets.push(format!("{path}?after={{name}}"));
    }
    targets
}

/// Returns how often the closed feed's answers took longer, and of how many pairs.
fn guesses(
    ours: &Program,
    way: &Way,
    pairs: &[Pair],
    random: &mut StdRng,
) -> anyhow::Result<(u32, u32)> {
    let (mut slower, mut all) = (0, 0);
    for pair in pairs {
        let mut connection = Connection::open(&ours.address)?;
        let (mut closed, mut absent) = (vec![], vec![]);
        for _ in 0..REQUESTS {
            let closed_first = random.random::<bool>();
            for is_closed in [closed_first, !closed_first] {
                let (name, took) = if is_closed {
                    (&pair.closed, &mut closed)
                } else {
                    (&pair.absent, &mut absent)
                };
                took.push(way.ask(&mut connection, name, ours)?);
            }
        }
        let (closed, absent) = (median(&closed), median(&absent));
        slower += u32::from(closed > absent);
        all += u32::from(closed.total_cmp(&absent).is_ne());
    }
    Ok((slower, all))
}

impl Way {
    /// Asks for a name. Returns the microseconds until the answer.
    fn ask(&self, connection: &mut Connection, name: &str, ours: &Program) -> anyhow::Result<f64> {
        let [target, body] = [&*self.target, self.body].map(|text| text.replace("{name}", name));
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = bearer
            .iter()
            .map(|bearer| ("Authorization", &**bearer))
            .collect();
        let began = Instant::now();
        let answer = connection.request(&self.method, &target, &headers, &body);
        let took = began.elapsed().as_secs_f64() * 1e6;
        let (status, head) = answer.with_context(|| self.what.clone())?;
        ensure!(status < 500, "{}: {head}", self.what);
        if head.contains("connection: close") {
            *connection = Connection::open(&ours.address)?;
        }
        Ok(took)
    }
}

/// Returns the chance that as many of fair guesses are as far from the half: a binomial test of two sides.
fn chance(all: u32, right: u32) -> f64 {
    let far = right.abs_diff(all - right);
    // The logarithm of a binomial coefficient, step by step.
    let mut log = -f64::from(all) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    for found in 0..=all {
        if found > 0 {
            log += f64::from(all - found + 1).ln() - f64::from(found).ln();
        }
        if found.abs_diff(all - found) >= far {
            sum += log.exp();
        }
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the test is that of a fair coin, on both sides.
    #[test]
    fn chances_are_those_of_a_coin() {
        assert!((chance(200, 100) - 1.0).abs() < 1e-9);
        assert!((chance(10, 10) - 2.0 / 1_024.0).abs() < 1e-12);
        assert!((chance(10, 0) - chance(10, 10)).abs() < 1e-15);
        // 192 of 200 were right before the right was asked first.
        assert!(chance(200, 192) < 1e-40);
        assert!((chance(0, 0) - 1.0).abs() < 1e-9);
    }
}
