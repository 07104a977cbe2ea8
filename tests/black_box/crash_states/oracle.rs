//! Whether a server over a crash state keeps what was promised before the power failed.
//!
//! Shell: servers. The recording says what was acknowledged and shown by then, and its last state what each feed
//! became; a crash state must show a beginning of that which is long enough.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use super::{
    changes,
    disk::Moment,
    programs::Programs,
    record::{Exchange, Recording, Setup, copy, scratch, serve_args},
    states::Moments,
};
use crate::{
    harness::{Server, pause, run_command, text},
    http::{Request, Response},
};

/// How long a server may answer that it cannot, before the answer counts as final.
const PATIENCE: Duration = Duration::from_secs(3);
/// Folders that only their owner may read.
const PRIVATE: [&str; 6] = ["journal", "sled", "ids", "closed", "sidecars", "views"];

/// Outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Sound,
    /// Nothing was promised yet, and nothing is there.
    Nothing,
    /// It was sound after a while in which the server could not answer.
    Momentary(String),
    Broken(String),
}

/// How much of a state is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// A server over it.
    Quick,
    /// All that was published is repeated, and `verify` looks at what the server leaves at its end.
    Repeated,
    /// `verify` comes first, whose repairs may hide something from the server, and last.
    Verified,
}

/// Compares crash states with what was promised.
pub(super) trait Oracle: Sync {
    /// Checks the state in `root`, which it may change.
    fn check(&self, root: &Path, moments: Moments, depth: Depth) -> Verdict;

    /// Returns how many states are checked at a time for each core.
    fn checks_per_core(&self) -> usize {
        2
    }
}

/// What is compared of a server.
#[derive(Debug)]
pub(super) struct ServerOracle<'a> {
    recording: &'a Recording,
    /// Entries of each feed at the end, oldest first.
    became: BTreeMap<String, Vec<String>>,
    /// Positions of those entries.
    positions: HashMap<String, HashMap<String, usize>>,
    timelines: BTreeSet<String>,
    /// Entries that no request of the recording has published.
    before: BTreeMap<String, usize>,
    /// Whether they were there at the start. Else a command of the recording brings them.
    began_with_log: bool,
    /// Lengths of each feed at which no batch is torn.
    ends: BTreeMap<String, BTreeSet<usize>>,
}

impl<'a> ServerOracle<'a> {
    /// Learns what the feeds and timelines of a recording became.
    pub(super) fn new(recording: &'a Recording, feeds: &[String], timelines: &[String]) -> Self {
        let names: Vec<String> = feeds.iter().chain(timelines).cloned().collect();
        let look = |root: &Path| {
            let folder = scratch();
            let copied = folder.path().join("root");
            copy(root, &copied);
            let opened = Opened::start(recording, &copied).unwrap();
            let walk = |name: &String| {
                let found = opened.walk(name).unwrap()?;
                Some((name.clone(), found))
            };
            names.iter().filter_map(walk).collect::<BTreeMap<_, _>>()
        };
        let became = look(&recording.root());
        for exchange in &recording.ledger {
            let is_stored = exchange
                .response
                .as_ref()
                .is_some_and(|response| response.status == 201);
            let stored = exchange.published.as_ref().filter(|_| is_stored);
            assert!(
                stored.is_none_or(|(feed, _)| !names.contains(feed) || became.contains_key(feed)),
                "a feed is gone at the end: {stored:?}"
            );
        }
        let positions = became.iter().map(|(name, fragments)| {
            let each = fragments
                .iter()
                .enumerate()
                .map(|(at, fragment)| (fragment.clone(), at));
            (name.clone(), each.collect())
        });
        let mut oracle = Self {
            positions: positions.collect(),
            timelines: timelines.iter().cloned().collect(),
            before: BTreeMap::new(),
            began_with_log: recording.start().join("data/journal").exists(),
            ends: BTreeMap::new(),
            recording,
            became,
        };
        oracle.find_ends();
        oracle
    }

    /// Finds where each batch lies in its feed.
    fn find_ends(&mut self) {
        for (feed, fragments) in &self.became {
            let ends = self.ends.entry(feed.clone()).or_default();
            let ids: HashMap<&str, usize> = fragments
                .iter()
                .enumerate()
                .map(|(at, text)| (id_of(text), at))
                .collect();
            for exchange in &self.recording.ledger {
                let Some((_, sent)) = exchange.published.as_ref().filter(|(of, _)| of == feed)
                else {
                    continue;
                };
                let places: Vec<usize> = sent
                    .iter()
                    .filter_map(|id| ids.get(id.as_str()).copied())
                    .collect();
                let in_order = places.windows(2).all(|pair| pair[0] + 1 == pair[1]);
                assert!(
                    in_order && (places.is_empty() || places.len() == sent.len()),
                    "a batch of {feed} is torn at the end: {places:?}"
                );
                ends.extend(places.last().map(|last| last + 1));
                ends.extend(places.first());
            }
            // Entries of a timeline are published to other feeds.
            let is_timeline = self.timelines.contains(feed);
            // All that no request of the recording has published came before, at once.
            let published = |id: &&str| {
                let mut batches = self
                    .recording
                    .ledger
                    .iter()
                    .filter_map(|exchange| exchange.published.as_ref());
                batches.any(|(of, sent)| {
                    (is_timeline || of == feed) && sent.iter().any(|sent| sent == id)
                })
            };
            let before = ids.keys().filter(|id| !published(id)).count();
            ends.extend([0, before]);
            self.before.insert(feed.clone(), before);
        }
    }

    /// Returns whether the log is one that a command makes of another.
    fn is_of_copy(&self) -> bool {
        !self.began_with_log && self.recording.makes_a_folder()
    }

    /// Returns whether the recording reads windows of updates.
    fn has_updates(&self) -> bool {
        let is_of_updates = |exchange: &Exchange| exchange.request.path.starts_with("/sup");
        self.recording.ledger.iter().any(is_of_updates)
    }

    /// Returns how many entries a feed must have by a moment.
    fn promised(&self, feed: &str, moment: Moment) -> usize {
        // A folder that a command makes is whole or absent.
        let is_there = self.began_with_log || self.is_of_copy();
        let mut least = if is_there { self.before[feed] } else { 0 };
        let prefix = format!("/feeds/{feed}/");
        for (exchange, response) in self.recording.answered(moment) {
            if published_to(exchange, feed) {
                least = least.max(positions(response).last().map_or(0, |last| last + 1));
            } else if is_document(exchange, &prefix) && response.status == 200 {
                for fragment in fragments(&response.text()) {
                    let place = self.positions[feed].get(fragment);
                    let place = place.unwrap_or_else(|| {
                        panic!("the recording contradicts itself: {prefix}: {fragment}")
                    });
                    least = least.max(place + 1);
                }
            }
        }
        least
    }

    fn try_check(&self, root: &Path, moment: Moment, depth: Depth) -> Result<Verdict, String> {
        let data = root.join("data");
        let ended = self.recording.ended(moment).any(|run| run.code == Some(0));
        let has_promises = self.began_with_log
            || (ended && self.recording.makes_a_folder())
            || self
                .recording
                .answered(moment)
                .any(|(_, response)| response.status < 400);
        if !has_promises && !data.exists() {
            return Ok(Verdict::Nothing);
        }
        let rebuild = self
            .recording
            .runs
            .iter()
            .find(|run| run.args[0] == "rebuild");
        let rebuilt = rebuild.map(|run| run.ended <= moment);
        check_modes(&data)?;
        if depth == Depth::Verified && has_promises && rebuilt != Some(false) {
            verify(&self.recording.programs, &data)?;
        }
        let opened = Opened::start(self.recording, root)?;
        for feed in self.became.keys() {
            self.check_feed(&opened, feed, moment)?;
        }
        changes::check(self.recording, &opened, moment)?;
        if self.has_updates() {
            check_updates(&opened)?;
        }
        self.check_frozen(&opened, &data, moment)?;
        self.check_goes_on(&opened, moment, depth)?;
        let momentary = opened.momentary();
        let said = opened.end(depth)?;
        // Before it is rebuilt, a damaged log stays one.
        if rebuilt != Some(false) {
            if self.is_clock_accepted(moment) {
                check_log(&said)?;
            }
            if depth != Depth::Quick {
                verify(&self.recording.programs, &data)?;
            }
        }
        Ok(momentary.map_or(Verdict::Sound, Verdict::Momentary))
    }

    fn check_feed(&self, opened: &Opened, feed: &str, moment: Moment) -> Result<(), String> {
        let least = self.promised(feed, moment);
        let became = &self.became[feed];
        let Some(found) = opened.walk(feed)? else {
            if least == 0 && !self.was_made(feed, moment) {
                return Ok(());
            }
            return Err(format!("{feed} is gone, and had {least} entries"));
        };
        if found.len() < least {
            return Err(format!("{feed} has {} entries of {least}", found.len()));
        }
        if let Some(at) = (0..found.len()).find(|at| became.get(*at) != found.get(*at)) {
            return Err(format!("entry {at} of {feed} is another one"));
        }
        if !self.timelines.contains(feed) && !self.ends[feed].contains(&found.len()) {
            return Err(format!("a batch of {feed} is torn at {}", found.len()));
        }
        // The log that it was copied from goes on, so that names of its own would lead to other contents there.
        if self.is_of_copy() {
            let recent = opened.get(&format!("/feeds/{feed}/recent.atom"))?.text();
            let name = recent.split("rel=\"via\" href=\"").nth(1);
            let name = name.and_then(|rest| rest.split('"').next()).unwrap_or("");
            if !name.contains('-') {
                return Err(format!("no epoch has begun: {feed} has {name}"));
            }
        }
        Ok(())
    }

    /// Returns whether a feed had settings of its own by a moment.
    fn was_made(&self, feed: &str, moment: Moment) -> bool {
        let path = format!("/feeds/{feed}");
        let mut answered = self.recording.answered(moment);
        answered.any(|(exchange, response)| {
            exchange.request.method == "PUT"
                && exchange.request.path == path
                && response.status < 400
        })
    }

    /// Everything that was ever called immutable is there, with the time that a web server sends.
    fn check_frozen(&self, opened: &Opened, data: &Path, moment: Moment) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for (exchange, response) in self.recording.answered(moment) {
            let path = &exchange.request.path;
            let mut is_new = || seen.insert(path.clone());
            if exchange.request.method != "GET" || !response.is_immutable() || !is_new() {
                continue;
            }
            let found = opened.get(path)?;
            if found.status != 200 || found.body != response.body {
                return Err(format!("{path} was immutable, and is {} now", found.status));
            }
            let file = data.join("www").join(path.trim_start_matches('/'));
            let modified = fs::metadata(file).and_then(|found| found.modified()).ok();
            // It is not shown before its second is over.
            let shown = response.maybe("last-modified");
            let shown = shown.map(|shown| httpdate::parse_http_date(shown).unwrap());
            let is_other = |(time, shown)| whole_seconds(time) != whole_seconds(shown);
            if modified.zip(shown).is_some_and(is_other) {
                return Err(format!(
                    "the file of {path} has another time than was shown"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether `clock accept` had ended, if the recording has one.
    fn is_clock_accepted(&self, moment: Moment) -> bool {
        let mut runs = self.recording.runs.iter();
        let accept = runs.find(|run| run.args[0] == "clock");
        accept.is_none_or(|run| run.ended <= moment)
    }

    /// A repeat is known, and a new entry follows. Mostly, only the first publication and the last one are repeated.
    fn check_goes_on(&self, opened: &Opened, moment: Moment, depth: Depth) -> Result<(), String> {
        let published = self
            .recording
            .ledger
            .iter()
            .filter_map(|exchange| exchange.published.as_ref());
        let feeds: BTreeSet<&String> = published.map(|(feed, _)| feed).collect();
        for feed in feeds {
            let answered = self.recording.answered(moment);
            let stored: Vec<_> = answered
                .filter(|(exchange, response)| {
                    published_to(exchange, feed) && response.status == 201
                })
                .collect();
            let last = stored.len().saturating_sub(1);
            let is_due = |(at, _): &(usize, _)| depth == Depth::Repeated || *at == 0 || *at == last;
            for (_, (exchange, response)) in stored.iter().enumerate().filter(is_due) {
                let again = opened.send(&exchange.request)?;
                if again.status != 200 || positions(&again) != positions(response) {
                    return Err(format!(
                        "a repeat to {feed} gives {} {}",
                        again.status,
                        again.text()
                    ));
                }
            }
        }
        let feed = self
            .became
            .keys()
            .find(|feed| !self.timelines.contains(*feed));
        // Before, the server refuses to publish.
        let is_accepted = self.is_clock_accepted(moment);
        let Some(feed) = feed.filter(|_| is_accepted) else {
            return Ok(());
        };
        let before = opened.walk(feed)?.unwrap_or_default().len();
        let path = format!("/feeds/{feed}");
        let post = Request::post(&path, "application/json", r#"{"id":"urn:t:after"}"#);
        let answer = opened.send(&post)?;
        if answer.status == 201 && positions(&answer) == [before] {
            return Ok(());
        }
        Err(format!(
            "a new entry of {feed} gives {} {}",
            answer.status,
            answer.text()
        ))
    }
}

impl Oracle for ServerOracle<'_> {
    fn check(&self, root: &Path, moments: Moments, depth: Depth) -> Verdict {
        let checked = self.try_check(root, moments.last, depth);
        checked.unwrap_or_else(Verdict::Broken)
    }
}

/// Every window of updates that is linked to is there.
fn check_updates(opened: &Opened) -> Result<(), String> {
    let mut at = url::Url::parse("http://server/sup.json").expect("it is a URL");
    let mut seen = BTreeSet::new();
    loop {
        if !seen.insert(at.clone()) {
            return Err(format!("{at} is linked to in a circle"));
        }
        let began = Instant::now();
        let answer = loop {
            let answer = opened.server.get(at.path());
            // The server still reads the commits before its start; a busy machine takes long.
            if answer.status != 503 || began.elapsed() > 10 * PATIENCE {
                break answer;
            }
            pause(Duration::from_millis(10));
        };
        if answer.status != 200 {
            return Err(format!("{at} gives {} {}", answer.status, answer.text()));
        }
        let links = answer.maybe("link").unwrap_or_default();
        let mut links = links.split(',').map(str::trim);
        let previous = links.find_map(|link| {
            let link = link.strip_suffix(r#"; rel="prev-archive""#)?;
            link.trim_matches(['<', '>']).to_owned().into()
        });
        let Some(previous) = previous else {
            return Ok(());
        };
        at = at.join(&previous).map_err(|error| error.to_string())?;
    }
}

/// What is private was never open to others while there was something in it.
fn check_modes(data: &Path) -> Result<(), String> {
    for name in PRIVATE {
        let folder = data.join(name);
        let has_files = fs::read_dir(&folder).is_ok_and(|mut items| items.next().is_some());
        let mode = fs::metadata(&folder).map(|found| found.permissions().mode() & 0o777);
        if has_files && mode.is_ok_and(|mode| mode != 0o700) {
            return Err(format!("{name} can be read by others"));
        }
    }
    Ok(())
}

/// Refuses warnings: a power cut leaves no damage that an operator has to mend.
fn check_log(said: &[String]) -> Result<(), String> {
    let is_warning = |line: &&String| {
        let is_one = [" WARN ", " ERROR ", "panicked at"];
        // The machine is slow, and not the state wrong.
        is_one.iter().any(|mark| line.contains(mark)) && !line.contains("a flush takes long")
    };
    let warning = said.iter().find(is_warning);
    warning.map_or(Ok(()), |line| Err(format!("the server says {line}")))
}

/// Runs `verify`, which must find nothing.
pub(super) fn verify(programs: &Programs, data: &Path) -> Result<(), String> {
    let mut command = programs.command("simplefeed-server");
    let output = run_command(command.arg("verify").arg("--data").arg(data), b"");
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "verify: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    ))
}

/// A server over a crash state.
pub(super) struct Opened {
    server: Server,
    connection: RefCell<TcpStream>,
    /// Answers that the server could not give at once.
    failed: RefCell<Vec<String>>,
}

impl Opened {
    fn start(recording: &Recording, root: &Path) -> Result<Self, String> {
        Self::over(&recording.programs, &recording.setup, &root.join("data"))
    }

    /// Starts a server over a data folder: the real one, unless its clock is another one.
    pub(super) fn over(programs: &Programs, setup: &Setup, data: &Path) -> Result<Self, String> {
        let listen = "127.0.0.1:0";
        let command = if setup.clock_ahead == 0 {
            let mut command = programs.command("simplefeed-server");
            command.args(serve_args(data, setup, listen));
            command
        } else {
            let entries = setup.document_entries.to_string();
            let url = format!("http://{}", setup.address);
            let mut command = programs.command("simplefeed-test-server");
            command.arg(data);
            command.args(["honest", &entries, "100000000", listen, "100000", &url]);
            command.envs([setup.clock()]);
            command
        };
        let server = Server::try_spawn(command);
        let server = server.map_err(|said| format!("does not open: {}", said.join(" | ")))?;
        let connection = TcpStream::connect(&server.address).map_err(|error| error.to_string())?;
        // Small requests would wait for the answers to others.
        connection
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            server,
            connection: RefCell::new(connection),
            failed: RefCell::default(),
        })
    }

    pub(super) fn get(&self, path: &str) -> Result<Response, String> {
        self.send(&Request::get(path))
    }

    /// Sends a request, again while the server cannot answer it.
    pub(super) fn send(&self, request: &Request) -> Result<Response, String> {
        let began = Instant::now();
        loop {
            let mut connection = self.connection.borrow_mut();
            let answer = request.send_and_keep(&mut connection, &self.server.address);
            let answer = answer.map_err(|error| format!("{}: {error}", request.path))?;
            if answer.status < 500 {
                return Ok(answer);
            }
            let said = format!("{} gives {} {}", request.path, answer.status, answer.text());
            if began.elapsed() > PATIENCE {
                return Err(said);
            }
            self.failed.borrow_mut().push(said);
            pause(Duration::from_millis(10));
        }
    }

    /// Returns the first answer that the server could not give at once.
    fn momentary(&self) -> Option<String> {
        self.failed.borrow().first().cloned()
    }

    /// Returns the entries of a feed, oldest first; `None` if there is no such feed.
    pub(super) fn walk(&self, feed: &str) -> Result<Option<Vec<String>>, String> {
        let mut path = format!("/feeds/{feed}/recent.atom");
        let mut documents = vec![];
        loop {
            let answer = self.get(&path)?;
            match answer.status {
                200 => documents.push(answer.text()),
                404 if documents.is_empty() => return Ok(None),
                status => return Err(format!("{path} gives {status} {}", answer.text())),
            }
            let newest = documents.last().expect("one was just added");
            match previous(newest) {
                Some(previous) => path = format!("/feeds/{feed}/{previous}"),
                None => break,
            }
        }
        let oldest_first = documents.iter().rev();
        let entries = oldest_first.flat_map(|document| {
            let newest_first = fragments(document);
            newest_first.into_iter().rev().map(str::to_owned)
        });
        Ok(Some(entries.collect()))
    }

    /// Ends the server: by a request, which must succeed, or by a kill. Returns all that it logged.
    pub(super) fn end(self, depth: Depth) -> Result<Vec<String>, String> {
        if depth == Depth::Quick {
            return Ok(self.server.end("KILL")?.1);
        }
        match self.server.end("TERM")? {
            (Some(0), said) => Ok(said),
            (code, said) => Err(format!("the stop ends with {code:?}: {said:?}")),
        }
    }
}

fn published_to(exchange: &Exchange, feed: &str) -> bool {
    exchange
        .published
        .as_ref()
        .is_some_and(|(of, _)| of == feed)
}

fn is_document(exchange: &Exchange, prefix: &str) -> bool {
    let path = &exchange.request.path;
    let is_atom = Path::new(path)
        .extension()
        .is_some_and(|kind| kind == "atom");
    exchange.request.method == "GET" && path.starts_with(prefix) && is_atom
}

/// Returns the positions that an answer to a publication names.
fn positions(response: &Response) -> Vec<usize> {
    if !matches!(response.status, 200 | 201) {
        return vec![];
    }
    let answer = response.json();
    let results = answer["results"].as_array().cloned().unwrap_or_default();
    let position = |result: &serde_json::Value| result["position"].as_u64();
    let positions = results.iter().filter_map(position);
    positions
        .map(|position| usize::try_from(position).unwrap())
        .collect()
}

/// Returns the entries of a document, in its order.
pub(super) fn fragments(document: &str) -> Vec<&str> {
    const END: &str = "</entry>";
    // A test's own code is slow over megabytes; this is a library's.
    let begins = memchr::memmem::find_iter(document.as_bytes(), "<entry");
    let whole = begins.filter_map(|at| {
        let rest = document.get(at..)?;
        let end = memchr::memmem::find(rest.as_bytes(), END.as_bytes())? + END.len();
        rest.get(..end)
    });
    whole.collect()
}

fn id_of(fragment: &str) -> &str {
    let rest = fragment.split_once("<id>").map_or("", |(_, rest)| rest);
    rest.split_once("</id>").map_or("", |(id, _)| id)
}

/// Returns the document that a document's `prev-archive` names, relative to it.
fn previous(document: &str) -> Option<&str> {
    let at = memchr::memmem::find(document.as_bytes(), b"rel=\"prev-archive\"")?;
    let (_, rest) = document.get(at..)?.split_once("href=\"")?;
    Some(rest.split_once('"')?.0)
}

fn whole_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
