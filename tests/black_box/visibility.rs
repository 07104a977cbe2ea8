//! Invariant 6: no reader ever sees an entry before an older one of its feed.
//!
//! Writers publish and readers look while the server is killed, or the power is cut, again and again.
//! What any reader saw at a position is there for ever; no look goes back; a document never begins
//! where the one before it does not end.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use simplefeed_core::reader::Document;

use crate::{
    dice::Dice,
    harness::{Server, is_long, pause},
    http::Request,
};

const WRITERS: usize = 8;
const READERS: usize = 8;
const FEEDS: usize = 2;

/// What readers saw, and what was wrong with it.
#[derive(Default)]
pub(crate) struct Seen {
    entries: Mutex<BTreeMap<(usize, u64), String>>,
    violations: Mutex<Vec<String>>,
    looks: Mutex<usize>,
}

impl Seen {
    fn violation(&self, what: String) {
        self.violations.lock().unwrap().push(what);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap().clone()
    }

    /// Takes note of a document: at each position the entry that anybody ever saw there.
    fn note(&self, feed: usize, document: &Document) -> Option<(u64, u64)> {
        let (first, _) = document.history?;
        let end = first.0 + u64::try_from(document.len()).unwrap();
        let mut entries = self.entries.lock().unwrap();
        for index in 0..document.len() {
            let at = end - 1 - u64::try_from(index).unwrap();
            let id = document.entry(index).unwrap().id;
            let known = entries.entry((feed, at)).or_insert_with(|| id.to_owned());
            if known != id {
                self.violation(format!("feed {feed}, position {at}: {known} became {id}"));
            }
        }
        *self.looks.lock().unwrap() += 1;
        Some((first.0, end))
    }

    /// Compares with a server that was started again: what was seen is there, in its place.
    pub(crate) fn check(&self, server: &Server) {
        for feed in 0..FEEDS {
            let mut next = format!("/feeds/v{feed}/recent.atom");
            let mut end = None;
            while let Some(document) = get(&server.address, &next) {
                let span = self.note(feed, &document).unwrap();
                end.get_or_insert(span.1);
                match document.link("prev-archive") {
                    Some(previous) => previous.path().clone_into(&mut next),
                    None => break,
                }
            }
            let entries = self.entries.lock().unwrap();
            let seen = entries.range((feed, 0)..(feed + 1, 0)).next_back();
            let seen = seen.map_or(0, |((_, at), _)| at + 1);
            if end.unwrap_or(0) < seen {
                self.violation(format!(
                    "feed {feed}: {seen} entries were seen, {end:?} are there"
                ));
            }
        }
    }
}

fn get(address: &str, path: &str) -> Option<Document> {
    let response = Request::get(path).send(address).ok()?;
    let url = format!("http://h{path}").parse().unwrap();
    let whole = response.status == 200;
    // A server that is killed may leave an answer cut short, which is none.
    Document::read(response.body.into(), &url)
        .ok()
        .filter(|_| whole)
}

/// Looks at the feeds until told to stop.
fn look(address: &str, reader: usize, seen: &Seen, stop: &AtomicBool) {
    let mut ends: HashMap<usize, u64> = HashMap::new();
    let mut dice = Dice::new(u64::try_from(reader).unwrap());
    while !stop.load(Ordering::Acquire) {
        let feed = dice.below(FEEDS);
        let Some(document) = get(address, &format!("/feeds/v{feed}/recent.atom")) else {
            continue;
        };
        let (first, end) = seen.note(feed, &document).unwrap();
        let before = ends.insert(feed, end).unwrap_or(0);
        if end < before {
            seen.violation(format!(
                "feed {feed}: a look went back from {before} to {end}"
            ));
        }
        // The one before must be there, and end where this one begins.
        let Some(previous) = document.link("prev-archive") else {
            continue;
        };
        if let Some(previous) = get(address, previous.path()) {
            let (_, end) = seen.note(feed, &previous).unwrap();
            if end != first {
                seen.violation(format!(
                    "feed {feed}: documents end at {end} and begin at {first}"
                ));
            }
        }
    }
}

/// Publishes until told to stop or refused.
fn write(address: &str, name: &str, stop: &AtomicBool) {
    let mut dice = Dice::new(u64::try_from(name.len()).unwrap());
    for request in 0.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let size = [1, 2, 7][dice.below(3)];
        let body: String = (0..size)
            .map(|n| format!("{{\"id\":\"urn:t:{name}:{request}:{n}\"}}\n"))
            .collect();
        let post = Request::post(
            &format!("/feeds/v{}", dice.below(FEEDS)),
            "application/x-ndjson",
            body,
        );
        if !post
            .send(address)
            .is_ok_and(|response| response.status == 201)
        {
            return;
        }
    }
}

/// Lets writers and readers at a server for a while, then calls `end` while they are still at it.
pub(crate) fn crowd(
    server: &Arc<Server>,
    round: usize,
    seen: &Arc<Seen>,
    time: Duration,
    end: impl FnOnce(),
) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = vec![];
    for n in 0..WRITERS.max(READERS) {
        let (at, stopped) = (Arc::clone(server), Arc::clone(&stop));
        if n < WRITERS {
            let name = format!("{round}-{n}");
            threads.push(std::thread::spawn(move || {
                write(&at.address, &name, &stopped)
            }));
        }
        let (at, stopped, seen) = (Arc::clone(server), Arc::clone(&stop), Arc::clone(seen));
        if n < READERS {
            threads.push(std::thread::spawn(move || {
                look(&at.address, n, &seen, &stopped)
            }));
        }
    }
    pause(time);
    end();
    stop.store(true, Ordering::Release);
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Goal: see the head of this file. Method: kills; the power is cut in `power_cut`.
#[test]
fn nothing_is_seen_before_what_is_older() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let seen = Arc::new(Seen::default());
    let total = Duration::from_secs(if is_long() { 60 } else { 6 });
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < total {
        let server = Arc::new(Server::start(&data, &["--document-entries", "50"]));
        seen.check(&server);
        crowd(&server, rounds, &seen, Duration::from_millis(1_500), || {
            server.kill_now()
        });
        rounds += 1;
    }
    seen.check(&Server::start(&data, &[]));
    let (entries, looks) = (
        seen.entries.lock().unwrap().len(),
        *seen.looks.lock().unwrap(),
    );
    eprintln!(
        "visibility: {WRITERS} writers, {READERS} readers, {} s, {rounds} kills, {entries} entries, {looks} looks",
        began.elapsed().as_secs()
    );
    assert_eq!(seen.violations(), Vec::<String>::new());
    assert!(
        entries > 100 * rounds && looks > 10 * rounds,
        "too little happened"
    );
}
