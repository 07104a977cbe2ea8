//! A provider to look items up at, which counts, fails, and notes what it showed.
//!
//! Shell: sockets. Values grow as counts of likes do: fast at first, then ever more slowly.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    io::Write as _,
    net::TcpStream,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::{
    dice::Dice,
    harness::pause,
    site::{Asked, Site, answer},
};

/// Most ids of a request.
const IDS_MAX: usize = 100;
/// Thousandths of requests that fail, each in one of the ways.
const FAULTS: usize = 100;

/// What a test tells a provider.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// Requests in a window that each credential may make.
    pub(crate) limit: usize,
    pub(crate) window: Duration,
    /// Whether some requests fail, are slow, are answered in part, or break off.
    pub(crate) is_faulty: bool,
    /// Time for each answer.
    pub(crate) delay: Duration,
}

/// A provider on loopback.
pub(crate) struct Provider {
    site: Site,
    state: Arc<Mutex<State>>,
}

struct State {
    manner: Manner,
    dice: Dice,
    likes: BTreeMap<String, u64>,
    /// Values that were shown of each item.
    shown: BTreeMap<String, BTreeSet<u64>>,
    /// Items that the last answer left out.
    left_out: HashSet<String>,
    vanished: HashSet<String>,
    poisoned: HashSet<String>,
    /// Whether values stay as they are.
    is_frozen: bool,
    /// Instants of requests in the window, by credential.
    made: BTreeMap<String, VecDeque<Instant>>,
    requests: usize,
    ids: usize,
    /// Promises that a worker broke.
    complaints: Vec<String>,
}

impl Provider {
    pub(crate) fn new(manner: Manner) -> Self {
        let state = Arc::new(Mutex::new(State {
            manner,
            dice: Dice::new(22),
            likes: BTreeMap::new(),
            shown: BTreeMap::new(),
            left_out: HashSet::new(),
            vanished: HashSet::new(),
            poisoned: HashSet::new(),
            is_frozen: false,
            made: BTreeMap::new(),
            requests: 0,
            ids: 0,
            complaints: Vec::new(),
        }));
        let of_site = Arc::clone(&state);
        let site = Site::new(move |asked, stream| {
            let (body, delay) = of_site.lock().unwrap().respond(asked);
            pause(delay);
            write(&body, stream);
        });
        Self { site, state }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        self.site.url(path)
    }

    /// Lets no value change any more, and no request fail.
    pub(crate) fn freeze(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_frozen = true;
        state.manner.is_faulty = false;
    }

    /// Values as they are now.
    pub(crate) fn likes(&self) -> BTreeMap<String, u64> {
        self.state.lock().unwrap().likes.clone()
    }

    /// Values that were shown of an item.
    pub(crate) fn shown(&self, id: &str) -> BTreeSet<u64> {
        let state = self.state.lock().unwrap();
        state.shown.get(id).cloned().unwrap_or_default()
    }

    /// Requests, and their ids in sum.
    pub(crate) fn requests(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.requests, state.ids)
    }

    /// Leaves an item out from now on.
    pub(crate) fn vanish(&self, id: &str) {
        self.state.lock().unwrap().vanished.insert(id.to_owned());
    }

    /// Refuses each request with this item from now on, or no longer.
    pub(crate) fn poison(&self, id: &str, is_poisoned: bool) {
        let mut state = self.state.lock().unwrap();
        if is_poisoned {
            state.poisoned.insert(id.to_owned());
        } else {
            state.poisoned.remove(id);
        }
    }

    /// Promises that a worker broke.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.state.lock().unwrap().complaints.clone()
    }
}

fn write(body: &[u8], stream: &mut TcpStream) {
    // Whoever has gone away needs no answer.
    let _gone = stream.write_all(body).is_err();
}

impl State {
    /// Returns the bytes of the answer, and how long they take.
    fn respond(&mut self, asked: &Asked) -> (Vec<u8>, Duration) {
        let list = asked.path.split("ids=").nth(1).unwrap_or_default();
        let ids: Vec<String> = list.split(',').map(str::to_owned).collect();
        let name = |line: &str| line.strip_prefix("authorization: ").map(str::to_owned);
        let credential = asked.head.lines().find_map(name).unwrap_or_default();
        let left = self.count(&credential, &ids);
        let Some(left) = left else {
            let wait = "Retry-After: 1\r\n";
            return (
                answer("429 Too Many Requests", wait, b"{}"),
                self.manner.delay,
            );
        };
        if ids.iter().any(|id| self.poisoned.contains(id)) {
            let why = br#"{"error":"an id is wrong"}"#;
            return (answer("400 Bad Request", "", why), self.manner.delay);
        }
        let is_faulty = self.manner.is_faulty && self.dice.below(1_000) < FAULTS;
        let fault = is_faulty.then(|| self.dice.below(5));
        let mut delay = self.manner.delay;
        match fault {
            Some(0) => return (answer("500 Internal Server Error", "", b"oh"), delay),
            Some(1) => {
                let wait = "Retry-After: 1\r\n";
                return (answer("503 Service Unavailable", wait, b""), delay);
            }
            Some(2) => delay += Duration::from_millis(700),
            _ => {}
        }
        let body = self.body(&ids, fault == Some(3));
        let reset = self.manner.window.as_secs();
        let quota = format!(
            "Content-Type: application/json\r\nX-RateLimit-Remaining: {left}\r\nX-RateLimit-Reset: {reset}\r\n"
        );
        let mut whole = answer("200 OK", &quota, body.as_bytes());
        if fault == Some(4) {
            whole.truncate(whole.len() / 2);
        }
        (whole, delay)
    }

    /// Counts a request. Returns how many the credential may still make, or nothing if it is one too many.
    fn count(&mut self, credential: &str, ids: &[String]) -> Option<usize> {
        self.requests += 1;
        self.ids += ids.len();
        let distinct: BTreeSet<&String> = ids.iter().collect();
        if ids.len() > IDS_MAX || distinct.len() < ids.len() || ids[0].is_empty() {
            self.complaints
                .push(format!("a request with {} ids", ids.len()));
        }
        let Manner { limit, window, .. } = self.manner;
        let now = Instant::now();
        let made = self.made.entry(credential.to_owned()).or_default();
        while made
            .front()
            .is_some_and(|first| now.duration_since(*first) >= window)
        {
            made.pop_front();
        }
        if made.len() >= limit {
            self.complaints
                .push(format!("a request over the quota of {credential:?}"));
            return None;
        }
        made.push_back(now);
        Some(limit - made.len())
    }

    /// Returns the answers, in any order; some of them if `is_part`.
    fn body(&mut self, ids: &[String], is_part: bool) -> String {
        let mut answers = Vec::new();
        let mut left_out = HashSet::new();
        for id in ids {
            // Never twice in a row, since three times would be an end.
            let is_left_out = is_part && !self.left_out.contains(id) && self.dice.below(3) == 0;
            if self.vanished.contains(id) || is_left_out {
                left_out.insert(id.clone());
                continue;
            }
            let likes = self.likes.entry(id.clone()).or_default();
            if !self.is_frozen && self.dice.below(usize::try_from(*likes).unwrap() / 4 + 1) == 0 {
                *likes += 1;
            }
            self.shown.entry(id.clone()).or_default().insert(*likes);
            answers.push(format!("{{\"id\": {id}, \"likes\": {likes}}}"));
        }
        self.left_out.retain(|id| !ids.contains(id));
        self.left_out.extend(left_out);
        if !answers.is_empty() {
            let turn = self.dice.below(answers.len());
            answers.rotate_left(turn);
        }
        format!("{{\"data\": [{}]}}", answers.join(", "))
    }
}
