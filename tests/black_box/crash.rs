//! Nothing acknowledged is lost, doubled or changed: the server is killed, again and again.
//!
//! Several writers publish single entries and batches to several feeds while the server is killed at
//! random instants and in the middle of each step of the log's work, also while it starts and recovers. After each restart
//! what is there is compared with what was acknowledged, and frozen documents with every copy seen
//! before. `tests/run --long` does it five hundred times.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    dice::Dice,
    harness::{Server, check_folder, is_long, pause, simplefeed},
    http::Request,
};

const WRITERS: usize = 6;
const FEEDS: usize = 3;
/// Frozen documents looked at again after each restart; at the end, all are.
const FROZEN_LOOKED_AT: usize = 100;
/// The check after the last round.
const LAST: usize = usize::MAX;

/// One request, and what became of it.
#[derive(Clone, Debug)]
struct Sent {
    feed: usize,
    ids: Vec<String>,
    /// The positions and the commit, if it was acknowledged.
    acknowledged: Option<(Vec<u64>, u64)>,
}

/// What the outside knows.
#[derive(Default)]
struct Ledger {
    /// Requests of the round before, to be looked for.
    sent: Vec<Sent>,
    /// Every id found in a feed, by feed and position.
    found: BTreeMap<(usize, u64), String>,
    ids: HashSet<String>,
    /// Bytes of everything that was ever called immutable.
    frozen: HashMap<String, Vec<u8>>,
    acknowledged: usize,
}

impl Ledger {
    /// Compares what a server shows with what is known, and learns from it.
    fn check(&mut self, server: &Server, folder: &Path, round: usize) {
        for feed in 0..FEEDS {
            self.learn(server, folder, feed, round);
        }
        let places: HashMap<&String, (usize, u64)> =
            self.found.iter().map(|(place, id)| (id, *place)).collect();
        let mut commits: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
        for sent in &self.sent {
            let found: Vec<_> = sent.ids.iter().filter_map(|id| places.get(id)).collect();
            assert!(
                found.is_empty() || found.len() == sent.ids.len(),
                "round {round}: a batch is torn: {} of {} entries",
                found.len(),
                sent.ids.len()
            );
            let in_order = found.windows(2).all(|pair| pair[0].1 + 1 == pair[1].1);
            assert!(
                in_order,
                "round {round}: a batch is out of order: {found:?}"
            );
            if let Some((positions, commit)) = &sent.acknowledged {
                let expected: Vec<_> = positions.iter().map(|at| (sent.feed, *at)).collect();
                let found: Vec<_> = found.into_iter().copied().collect();
                assert_eq!(
                    found, expected,
                    "round {round}: acknowledged entries are elsewhere"
                );
                self.acknowledged += positions.len();
                commits
                    .entry(sent.feed)
                    .or_default()
                    .push((positions[0], *commit));
            }
        }
        for mut commits in commits.into_values() {
            commits.sort_unstable();
            let ordered = commits.windows(2).all(|pair| pair[0].1 <= pair[1].1);
            assert!(
                ordered,
                "round {round}: the order is not that of the commits"
            );
        }
        self.sent.clear();
        let last = round == LAST;
        self.check_frozen(server, if last { usize::MAX } else { FROZEN_LOOKED_AT });
    }

    /// Reads what a feed has gained since the round before.
    fn learn(&mut self, server: &Server, folder: &Path, feed: usize, round: usize) {
        let url = server.url(&format!("/feeds/f{feed}"));
        if server.get(&format!("/feeds/f{feed}")).status == 404 {
            let known = self.found.range((feed, 0)..(feed + 1, 0)).count();
            assert_eq!(known, 0, "round {round}: feed {feed} is gone");
            return;
        }
        // The bookmark checks the history of everything before; now and then all is read again.
        let bookmark = folder.join(format!("bookmark-{feed}"));
        if round % 50 == 49 || round == LAST {
            let _absent = std::fs::remove_file(&bookmark);
            let gone = self.found.split_off(&(feed, 0));
            for id in gone.range((feed, 0)..(feed + 1, 0)).map(|(_, id)| id) {
                self.ids.remove(id);
            }
            self.found
                .extend(gone.into_iter().filter(|((of, _), _)| *of != feed));
        }
        let printed = simplefeed(
            &["replay", &url, "--bookmark", bookmark.to_str().unwrap()],
            b"",
        );
        for line in printed.lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let id = event["id"].as_str().unwrap().to_owned();
            let at = event["position"].as_u64().unwrap();
            assert_eq!(
                event["content"],
                content(&id),
                "round {round}: {id} was changed"
            );
            assert!(
                self.ids.insert(id.clone()),
                "round {round}: {id} is there twice"
            );
            let next = self.found.range((feed, 0)..(feed + 1, 0)).next_back();
            let next = next.map_or(0, |((_, at), _)| at + 1);
            assert_eq!(at, next, "round {round}: positions have a hole");
            self.found.insert((feed, at), id);
        }
    }

    /// What was ever called immutable is called so with the same bytes: `most` of it, spread over all.
    fn check_frozen(&mut self, server: &Server, most: usize) {
        let step = self.frozen.len().div_ceil(most).max(1);
        for (url, bytes) in self.frozen.iter().step_by(step) {
            let now = server.get(url);
            assert!(
                now.status == 200 && now.body == *bytes,
                "{url} was immutable and changed"
            );
        }
        for feed in 0..FEEDS {
            let known = self
                .frozen
                .keys()
                .filter(|url| url.contains(&format!("/f{feed}/")))
                .count();
            for number in known + 1.. {
                let url = format!("/feeds/f{feed}/{number}.atom");
                let response = server.get(&url);
                if response.status != 200 || !response.is_immutable() {
                    break;
                }
                self.frozen.insert(url, response.body);
            }
        }
    }
}

/// The content of an entry follows from its id, so that any change shows.
fn content(id: &str) -> serde_json::Value {
    let text = id.repeat(1 + id.len() % 7);
    serde_json::json!({ "id": id, "text": text })
}

/// Publishes until the server is gone. Returns what was sent.
fn write(address: &str, writer: usize, round: usize, stop: &AtomicBool) -> Vec<Sent> {
    let mut dice = Dice::new(u64::try_from(round * 100 + writer).unwrap());
    let mut all = vec![];
    for request in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let feed = dice.below(FEEDS);
        let size = [1, 1, 1, 3, 12][dice.below(5)];
        let ids: Vec<_> = (0..size)
            .map(|n| format!("urn:t:{round}-{writer}-{request}-{n}"))
            .collect();
        let body: String = ids
            .iter()
            .map(|id| {
                format!(
                    "{}\n",
                    serde_json::json!({"id": id, "content": content(id)})
                )
            })
            .collect();
        let post = Request::post(&format!("/feeds/f{feed}"), "application/x-ndjson", body);
        let answer = post.send(address);
        let acknowledged = match &answer {
            Ok(response) if response.status == 201 => {
                let json = response.json();
                let results = json["results"].as_array().unwrap();
                let positions = results
                    .iter()
                    .map(|r| r["position"].as_u64().unwrap())
                    .collect();
                Some((positions, json["commit"].as_u64().unwrap()))
            }
            _ => None,
        };
        let answered = acknowledged.is_some();
        all.push(Sent {
            feed,
            ids,
            acknowledged,
        });
        if !answered {
            break;
        }
    }
    all
}

/// A note of a slow disk: its place in the marker, and the mark.
pub(crate) type Step = (usize, u8);
/// Steps of a running server: a sync of the journal, and what the settler is at.
pub(crate) const STEPS: [(&str, Step); 5] = [
    ("sync of the journal", (0, b'1')),
    ("rotation", (1, b'r')),
    ("settling", (1, b's')),
    ("reopening", (1, b'o')),
    ("recycling", (1, b'c')),
];
/// Steps of a start.
pub(crate) const OPENING: Step = (1, b'p');

/// Whether a slow disk is at a step.
pub(crate) fn is_at(marker: &Path, (place, mark): Step) -> bool {
    std::fs::read(marker).is_ok_and(|marks| marks.get(place) == Some(&mark))
}

/// Waits until a slow disk comes to a step; not for ever, since the load may be too small for it.
pub(crate) fn await_step(marker: &Path, step: Step) {
    let deadline = Instant::now() + Duration::from_secs(3);
    while !is_at(marker, step) && Instant::now() < deadline {
        pause(Duration::from_micros(50));
    }
}

/// Goal: a `kill -9` at any instant loses, doubles, changes and tears nothing.
/// Method: see the head of this file. Seven servers of eight have a slow disk, which notes its steps, and small chapters.
/// Of their kills, five of six are aimed at a step; every fourth start is killed, too.
#[test]
fn kills_lose_nothing() {
    let rounds = if is_long() { 500 } else { 30 };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let marker = folder.path().join("barrier");
    let mut ledger = Ledger::default();
    let mut dice = Dice::new(1);
    let (mut at_steps, mut at_start) = ([0; STEPS.len()], 0);
    for round in 0..rounds {
        // Killed while it starts, or recovers from the kill before.
        if dice.below(4) == 0 {
            Server::start_and_kill(&data, &marker, || {
                await_step(&marker, OPENING);
                let within = u64::try_from(dice.below(20_000)).unwrap();
                pause(Duration::from_micros(within));
            });
            at_start += usize::from(is_at(&marker, OPENING));
            std::fs::remove_file(&marker).unwrap();
        }
        let is_marked = round % 8 != 7;
        let server = if is_marked {
            Server::start_marked(&data, &marker, 20)
        } else {
            Server::start(&data, &["--document-entries", "20"])
        };
        ledger.check(&server, folder.path(), round);
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(Mutex::new(vec![]));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (address, stop, sent) =
                    (server.address.clone(), Arc::clone(&stop), Arc::clone(&sent));
                std::thread::spawn(move || {
                    let all = write(&address, writer, round, &stop);
                    sent.lock().unwrap().extend(all);
                })
            })
            .collect();
        let time = 5 + dice.below(400);
        pause(Duration::from_millis(u64::try_from(time).unwrap()));
        // The sixth kill is at random.
        if let Some((_, step)) = STEPS.get(round % 6).filter(|_| is_marked) {
            await_step(&marker, *step);
            // A step takes some time, all of which matters.
            pause(Duration::from_micros(
                u64::try_from(dice.below(3_000)).unwrap(),
            ));
        }
        server.kill();
        for (count, (_, step)) in at_steps.iter_mut().zip(STEPS) {
            *count += usize::from(is_at(&marker, step));
        }
        stop.store(true, Ordering::Release);
        for writer in writers {
            writer.join().unwrap();
        }
        ledger.sent = std::mem::take(&mut *sent.lock().unwrap());
        let _absent = std::fs::remove_file(&marker);
    }
    let server = Server::start(&data, &[]);
    ledger.check(&server, folder.path(), LAST);
    server.stop();
    check_folder("verify", &data);
    let Ledger {
        acknowledged,
        frozen,
        ..
    } = &ledger;
    let steps: Vec<String> = STEPS
        .iter()
        .zip(at_steps)
        .map(|((name, _), count)| format!("{count} in a {name}"))
        .collect();
    eprintln!(
        "kills: {rounds} rounds, {acknowledged} acknowledged entries; {}, {at_start} in an opening; {} frozen documents; \
         nothing lost, doubled, changed or torn",
        steps.join(", "),
        frozen.len()
    );
    assert!(
        *acknowledged >= 200 * rounds,
        "the load was too small: {acknowledged}"
    );
    assert!(
        at_steps.iter().sum::<usize>() * 3 >= rounds
            // Of few rounds, none may meet a short step.
            && (!is_long() || at_steps.iter().all(|count| *count > 0))
            && at_start > 0,
        "too few kills in steps: {at_steps:?}, in openings: {at_start}"
    );
}
