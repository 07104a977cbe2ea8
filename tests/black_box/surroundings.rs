//! Random sequences of what may happen to a server and its folder: kills, copies put back, folders that move, files that
//! vanish, second servers, restored backups, clocks that leap.
//!
//! Shell: processes, files. What was acknowledged is there at the next start, or that start names what is missing; what was
//! shown for ever has the same bytes; no chain of documents has a hole; each refusal names a way out, which the test follows.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tempfile::TempDir;

use crate::{
    dice::Dice,
    harness::{Server, copy_folder, is_long, program, run_command, text},
    http::Response,
};

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;
/// Steps of a sequence.
const STEPS: usize = 12;
/// Sequences of `tests/run`, and of a long run.
const SEQUENCES: [usize; 2] = [24, 200];
/// Refusals of one start that are followed to their way out.
const WAYS_OUT_MAX: usize = 5;
/// Variable that names another server, as a control: its clock is the machine's.
const OTHER: &str = "SEQUENCES_OF";

/// What a server is, and what it has promised.
struct World {
    folder: TempDir,
    dice: Dice,
    server: Option<Server>,
    /// Acknowledged entries by their positions, without those that were named as missing.
    acknowledged: BTreeMap<usize, Acknowledged>,
    /// Bytes of documents that were shown as immutable.
    shown: BTreeMap<String, Vec<u8>>,
    /// Acknowledged entries of the backup that was made last.
    backed_up: Option<BTreeMap<usize, Acknowledged>>,
    published: usize,
    /// Microseconds by which the system clock has leapt, and which the machine has slept.
    clock: (i64, i64),
    /// Whether the running server may refuse to publish: something was done to its folder.
    may_refuse: bool,
    steps: Vec<String>,
    /// What `recover` has named as missing.
    named: String,
}

/// An acknowledged entry.
#[derive(Clone, Debug)]
struct Acknowledged {
    id: String,
    /// Whether the folder was damaged already, so that nothing excuses its loss.
    is_behind_damage: bool,
    /// Name of its document.
    document: String,
}

type Outcome = Result<(), String>;

impl World {
    fn new(seed: u64) -> Self {
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
            dice: Dice::new(seed),
            server: None,
            acknowledged: BTreeMap::new(),
            shown: BTreeMap::new(),
            backed_up: None,
            published: 0,
            clock: (0, 0),
            may_refuse: false,
            steps: vec![],
            named: String::new(),
        };
        world.set_clock();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn data(&self) -> PathBuf {
        self.path("data")
    }

    fn set_clock(&self) {
        let (leapt, slept) = self.clock;
        fs::write(self.path("clock.new"), format!("{leapt} {slept}")).unwrap();
        fs::rename(self.path("clock.new"), self.path("clock")).unwrap();
    }

    /// Returns the program that commands are given to.
    fn program() -> PathBuf {
        std::env::var_os(OTHER).map_or_else(|| program("simplefeed-server"), PathBuf::from)
    }

    fn spawn(&self) -> Result<Server, Vec<String>> {
        if std::env::var_os(OTHER).is_some() {
            let mut command = Command::new(Self::program());
            command.args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--document-entries",
                "3",
            ]);
            return Server::try_spawn(with(command, "--data", &self.data()));
        }
        let mut command = Command::new(program("simplefeed-test-server"));
        command.arg(self.data()).args(["honest", "3", "2500"]);
        command.env("SIMPLEFEED_TEST_CLOCK", self.path("clock"));
        Server::try_spawn(command)
    }

    /// Runs a command over the data folder. Returns its exit code and all that it said.
    fn command(&self, name: &str, to: Option<&Path>) -> (Option<i32>, String) {
        let mut command = Command::new(Self::program());
        command.args(name.split(' '));
        let mut command = with(command, "--data", &self.data());
        if let Some(to) = to {
            command = with(command, "--to", to);
        }
        let output = run_command(&mut command, b"");
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.code(), said)
    }

    /// Starts a server, along the ways out that refusals name, and checks what it has.
    fn start(&mut self) -> Outcome {
        self.may_refuse = false;
        for _ in 0..WAYS_OUT_MAX {
            match self.spawn() {
                Ok(server) => {
                    self.server = Some(server);
                    self.check()?;
                    for entry in self.acknowledged.values_mut() {
                        entry.is_behind_damage = false;
                    }
                    return Ok(());
                }
                Err(said) => self.go_the_way_out(&said.join("\n"))?,
            }
        }
        Err("it does not start, whatever is done that it names".into())
    }

    fn go_the_way_out(&mut self, said: &str) -> Outcome {
        self.steps.push(format!("refused: {said}"));
        if said.contains("simplefeed-server recover") || said.contains("`recover`") {
            let recovered = self.path("recovered");
            let (code, named) = self.command("recover", Some(&recovered));
            self.steps.push(format!("recover: {code:?} {named}"));
            if code == Some(10) && named.contains("nothing is left") {
                let entries = self.acknowledged.values();
                let mut behind = entries.filter(|entry| entry.is_behind_damage);
                if let Some(entry) = behind.next() {
                    return Err(format!("{entry:?} was acknowledged, and nothing is left"));
                }
                let www = self.data().join("www/feeds/a/1.atom");
                if www.exists() {
                    return Err("an archived document is there, and nothing was recovered".into());
                }
                self.begin_again();
                return Ok(());
            }
            if !matches!(code, Some(0 | 15)) {
                return Err(format!("recover ends with {code:?}: {named}"));
            }
            self.forget(&named);
            fs::remove_dir_all(self.data()).unwrap();
            fs::rename(recovered, self.data()).unwrap();
            self.named.push_str(&named);
            self.drop_copy();
            return Ok(());
        }
        if said.contains("set the clock") {
            // The epoch of a restored log would be numbered by a clock without acceptance.
            self.clock.0 = 0;
            self.set_clock();
            return Ok(());
        }
        Err(format!("a refusal names no way out: {said}"))
    }

    /// Restores the backup, or begins a new log: a damage has left nothing, which was said.
    fn begin_again(&mut self) {
        fs::remove_dir_all(self.data()).unwrap();
        self.drop_copy();
        self.acknowledged = self.backed_up.take().unwrap_or_default();
        if self.path("backup").exists() {
            fs::rename(self.path("backup"), self.data()).unwrap();
        } else {
            self.shown.clear();
        }
    }

    /// Takes entries for lost that a command has named as missing. Those that were acknowledged by a server whose folder was
    /// damaged already are not: it could have refused them.
    fn forget(&mut self, named: &str) {
        self.acknowledged
            .retain(|at, entry| entry.is_behind_damage || !is_named(named, *at, entry));
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("a server runs")
    }

    /// Walks the feed, compares what was shown, and looks for what was acknowledged.
    fn check(&mut self) -> Outcome {
        if self.acknowledged.is_empty() && self.shown.is_empty() {
            return Ok(());
        }
        for (path, bytes) in &self.shown {
            let found = self.server().get(path);
            if found.status == 200 && found.body != *bytes {
                return Err(format!("{path} was immutable, and has other bytes"));
            }
        }
        let found = self.walk()?;
        let lost: Vec<_> = self
            .acknowledged
            .iter()
            .filter(|(_, entry)| !found.contains(&entry.id))
            .collect();
        if lost.is_empty() {
            return Ok(());
        }
        Err(format!(
            "acknowledged, and neither there nor named as missing: {lost:?}"
        ))
    }

    /// Returns the ids of all entries, from the newest document back to the first.
    fn walk(&mut self) -> Result<BTreeSet<String>, String> {
        let mut path = "/feeds/a/recent.atom".to_owned();
        let mut ids = BTreeSet::new();
        loop {
            let answer = self.server().get(&path);
            match answer.status {
                200 => {}
                404 if ids.is_empty() && self.acknowledged.is_empty() => return Ok(ids),
                404 if self.is_named(&path) => match self.before(&path) {
                    Some(before) => {
                        path = before;
                        continue;
                    }
                    None => return Ok(ids),
                },
                status => return Err(format!("{path} gives {status}: the chain has a hole")),
            }
            if answer.is_immutable() {
                let bytes = self
                    .shown
                    .entry(path.clone())
                    .or_insert(answer.body.clone());
                if *bytes != answer.body {
                    return Err(format!("{path} was immutable, and has other bytes"));
                }
            }
            let document = answer.text();
            for entry in document.split("<entry").skip(1) {
                let id = entry
                    .split("<id>")
                    .nth(1)
                    .and_then(|id| id.split('<').next());
                if !ids.insert(id.unwrap_or_default().to_owned()) {
                    return Err(format!("{id:?} is there twice"));
                }
            }
            let previous = document.split("rel=\"prev-archive\"").nth(1);
            let previous =
                previous.and_then(|rest| rest.split("href=\"").nth(1)?.split('"').next());
            match previous {
                Some(previous) => path = format!("/feeds/a/{previous}"),
                None => return Ok(ids),
            }
        }
    }

    /// Returns whether a document was named as missing: by the name of any epoch, since the damage may have taken the commit
    /// of the last one.
    fn is_named(&self, path: &str) -> bool {
        let number = |name: &str| split_name(name).map(|(number, _)| number);
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut words = self.named.split([' ', '/', ';', ',', '\n']);
        number(name).is_some() && words.any(|word| number(word) == number(name))
    }

    /// Returns the path of the newest document that can be read before one that cannot: it may have the name of any epoch.
    fn before(&self, path: &str) -> Option<String> {
        let shown: String = self.shown.keys().map(|path| format!("{path} ")).collect();
        let known = [&shown, &self.named, path].into_iter();
        let words = known.flat_map(|text| text.split([' ', '/', ';', ',', '\n']));
        let mut epochs: BTreeSet<&str> =
            words.filter_map(|word| Some(split_name(word)?.1)).collect();
        epochs.insert(".atom");
        let name = path.rsplit('/').next()?;
        let numbers = (1..split_name(name)?.0).rev();
        let mut paths = numbers.flat_map(|number| {
            let of_epoch = move |epoch: &&str| format!("/feeds/a/{number}{epoch}");
            epochs.iter().rev().map(of_epoch)
        });
        paths.find(|path| self.server().get(path).status == 200)
    }

    fn publish(&mut self) -> Outcome {
        for _ in 0..=self.dice.below(3) {
            let count = 1 + self.dice.below(3);
            let numbers = self.published..self.published + count;
            self.published += count;
            let ids: Vec<String> = numbers.map(|number| format!("urn:t:{number}")).collect();
            let lines = ids.iter().map(|id| format!("{{\"id\":\"{id}\"}}\n"));
            let lines: String = lines.collect();
            let mut answer = self.server().publish("a", &lines);
            if answer.status == 503 && answer.text().contains("clock accept") {
                self.mend_clock()?;
                answer = self.server().publish("a", &lines);
            }
            match answer.status {
                201 => self.take(&answer, ids)?,
                503 | 507 if self.may_refuse => {}
                status => return Err(format!("a publication gives {status} {}", answer.text())),
            }
        }
        Ok(())
    }

    /// Takes acknowledged entries.
    fn take(&mut self, answer: &Response, ids: Vec<String>) -> Outcome {
        for ((at, document), id) in acknowledged(answer).into_iter().zip(ids) {
            let entry = Acknowledged {
                id,
                is_behind_damage: self.may_refuse,
                document,
            };
            if let Some(before) = self.acknowledged.insert(at, entry) {
                return Err(format!("{at} is given again, and {before:?} has it"));
            }
        }
        Ok(())
    }

    /// Acts as the operator: sets a wrong clock right, and accepts a right one.
    fn mend_clock(&mut self) -> Outcome {
        if self.clock.0 != 0 {
            self.clock.0 = 0;
            self.set_clock();
            return Ok(());
        }
        let (code, said) = self.command("clock accept", None);
        self.steps.push(format!("clock accept: {said}"));
        if code == Some(0) {
            return Ok(());
        }
        Err(format!("clock accept: {said}"))
    }

    /// Ends the server somehow.
    fn end(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        if self.dice.below(2) == 0 {
            server.kill();
        } else {
            server.stop_somehow();
        }
    }

    fn newest_journal(&self) -> PathBuf {
        let files = fs::read_dir(self.data().join("journal")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let numbered = files.filter(|file| !file.ends_with("spare"));
        numbered.max().expect("a log has a journal")
    }

    /// Does something to a running server, whose publishing may end by it.
    fn damage(&mut self, what: &str) -> Outcome {
        self.may_refuse = true;
        match what {
            "unlink" => fs::remove_file(self.newest_journal()).unwrap(),
            "truncate" => {
                let file = fs::File::options().write(true).open(self.newest_journal());
                file.unwrap().set_len(512).unwrap();
            }
            "move" => fs::rename(self.data(), self.path("moved")).unwrap(),
            what => unreachable!("{what} is no damage"),
        }
        self.publish()?;
        self.end();
        if what == "move" {
            // The server may have made a folder of its own there.
            let _made = fs::remove_dir_all(self.data());
            fs::rename(self.path("moved"), self.data()).unwrap();
        }
        self.start()
    }

    fn copy(&self) {
        let copy = self.path("copy");
        let _before = fs::remove_dir_all(&copy);
        fs::create_dir(&copy).unwrap();
        for part in ["journal", "sled"] {
            if self.data().join(part).exists() {
                copy_folder(&self.data().join(part), &copy.join(part));
            }
        }
        fs::copy(self.data().join("witness"), copy.join("witness")).unwrap();
    }

    /// Forgets the copy: behind a new epoch, it is one of another history.
    fn drop_copy(&self) {
        let _copy = fs::remove_dir_all(self.path("copy"));
    }

    fn put_back(&self) {
        for part in ["journal", "sled"] {
            let _before = fs::remove_dir_all(self.data().join(part));
            if self.path("copy").join(part).exists() {
                copy_folder(&self.path("copy").join(part), &self.data().join(part));
            }
        }
        fs::copy(self.path("copy/witness"), self.data().join("witness")).unwrap();
    }

    fn second_server(&mut self) -> Outcome {
        let _removed = fs::remove_file(self.data().join("lock"));
        let second = match self.spawn() {
            Ok(second) => second,
            Err(said) if said.join("\n").contains("is in use") => return Ok(()),
            Err(said) => return Err(format!("a second server ends with {said:?}")),
        };
        let first = self.server.replace(second);
        self.publish()?;
        self.end();
        self.server = first;
        self.publish()?;
        self.end();
        self.start()
    }

    fn restore(&mut self) -> Outcome {
        let Some(acknowledged) = self.backed_up.take() else {
            let _before = fs::remove_dir_all(self.path("backup"));
            let (code, said) = self.command("backup", Some(&self.path("backup")));
            if code != Some(0) {
                return Err(format!("backup ends with {code:?}: {said}"));
            }
            self.backed_up = Some(self.acknowledged.clone());
            return Ok(());
        };
        self.end();
        fs::remove_dir_all(self.data()).unwrap();
        fs::rename(self.path("backup"), self.data()).unwrap();
        self.acknowledged = acknowledged;
        self.drop_copy();
        self.start()
    }

    fn leap(&mut self) {
        let leaps = [0, 3 * HOUR, -3 * HOUR, 40 * DAY, -10 * YEAR, 72 * YEAR];
        self.clock.0 = leaps[self.dice.below(leaps.len())];
        self.steps.push(format!("to {}", self.clock.0));
        self.set_clock();
    }

    fn step(&mut self) -> Outcome {
        const KINDS: [&str; 13] = [
            "publish",
            "publish",
            "kill",
            "copy",
            "put back",
            "move",
            "unlink",
            "truncate",
            "second server",
            "restore",
            "restore",
            "leap",
            "sleep",
        ];
        let step = KINDS[self.dice.below(KINDS.len())];
        self.steps.push(step.to_owned());
        match step {
            "kill" => {
                self.end();
                self.start()?;
            }
            "copy" => {
                self.end();
                self.copy();
                self.start()?;
            }
            "put back" if self.path("copy").exists() => {
                self.end();
                self.put_back();
                self.start()?;
            }
            "move" | "unlink" | "truncate" => self.damage(step)?,
            "second server" => self.second_server()?,
            "restore" => self.restore()?,
            "leap" => self.leap(),
            "sleep" => {
                self.clock.1 += 30 * DAY;
                self.set_clock();
            }
            _ => {}
        }
        self.publish()?;
        self.check()
    }

    fn run(&mut self) -> Outcome {
        self.start()?;
        self.publish()?;
        for _ in 0..STEPS {
            self.step()?;
        }
        self.end();
        self.start()
    }
}

fn with(mut command: Command, option: &str, path: &Path) -> Command {
    command.arg(option).arg(path);
    command
}

/// Returns the number of a document's name, and the rest of it, which tells the epoch.
fn split_name(word: &str) -> Option<(usize, &str)> {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = word.split_at(digits);
    let is_document = rest.contains(".atom") && number.len() < 6;
    is_document.then(|| Some((number.parse().ok()?, rest)))?
}

/// Returns whether a command has named an entry as missing.
fn is_named(said: &str, at: usize, entry: &Acknowledged) -> bool {
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<usize>().ok()
    };
    let names = |line: &str| {
        // A document that lacks entries is not shown, with the others. In another epoch it has another name.
        let number_of = |word| split_name(word).map(|(number, _)| number);
        let mut named = line.split([' ', ';', ',']).filter_map(number_of);
        if named.any(|number| Some(number) == number_of(&entry.document)) {
            return true;
        }
        if let Some((_, range)) = line.split_once("positions ") {
            let last = range.split_once(" to ").and_then(|(_, last)| number(last));
            let range = number(range).zip(last);
            return range.is_some_and(|(first, last)| (first..=last).contains(&at));
        }
        if let Some((_, rest)) = line.split_once("at position ") {
            return number(rest).is_some_and(|first| at >= first);
        }
        if let Some((_, rest)) = line.split_once(": position ") {
            return number(rest) == Some(at);
        }
        line.contains("feeds are missing") || line.contains("none of its settings")
    };
    let mut lines = said.lines().filter(|line| line.contains("missing"));
    lines.any(names)
}

/// Returns the positions of entries, and the names of their documents.
fn acknowledged(answer: &Response) -> Vec<(usize, String)> {
    let answer = answer.json();
    let results = answer["results"].as_array().unwrap();
    let one = |result: &serde_json::Value| {
        let position = result["position"].as_u64().unwrap();
        let document = result["document"].as_str().unwrap();
        let name = document.rsplit('/').next().unwrap_or_default();
        (usize::try_from(position).unwrap(), name.to_owned())
    };
    results.iter().map(one).collect()
}

/// Goal and method: see the head of this file. `SEQUENCES` and `SEQUENCES_FROM` say which, and `SEQUENCES_OF` names another
/// server, which may fail.
#[test]
fn whatever_happens_around_a_server_it_keeps_its_word() {
    let count = SEQUENCES[usize::from(is_long())];
    let count = std::env::var("SEQUENCES").map_or(count, |count| count.parse().unwrap());
    let first = std::env::var("SEQUENCES_FROM").map_or(0, |first| first.parse().unwrap());
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let published = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                loop {
                    let seed = first + next.fetch_add(1, Ordering::AcqRel);
                    if seed >= first + count {
                        return;
                    }
                    let mut world = World::new(u64::try_from(seed).unwrap());
                    // A server that ends is a fault of its sequence.
                    let run = std::panic::AssertUnwindSafe(|| world.run());
                    let outcome = std::panic::catch_unwind(run);
                    let outcome = outcome.unwrap_or_else(|_| Err("no answer, or no file".into()));
                    published.fetch_add(world.published, Ordering::AcqRel);
                    let Err(problem) = outcome else { continue };
                    let steps = world.steps.join("; ");
                    let fault = format!("sequence {seed}: {problem}\nbehind {steps}");
                    faults.lock().unwrap().push(fault);
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    for fault in &faults {
        eprintln!("{fault}");
    }
    let published = published.into_inner();
    eprintln!(
        "{count} sequences of {published} entries, {} faults",
        faults.len()
    );
    assert!(faults.is_empty(), "promises are broken");
    assert!(published > count * STEPS, "too little is published");
}

/// Goal: the checks find an entry that is not there, and a document that is another one.
#[test]
fn the_oracle_of_sequences_finds_what_is_lost() {
    let started = || {
        let mut world = World::new(1);
        world.start().unwrap();
        world.publish().unwrap();
        world.check().unwrap();
        world
    };
    let mut world = started();
    let (_, entry) = world.acknowledged.pop_first().unwrap();
    let id = "urn:t:never".to_owned();
    world.acknowledged.insert(0, Acknowledged { id, ..entry });
    assert!(world.check().unwrap_err().contains("urn:t:never"));
    // What is named as missing is excused, unless it came behind the damage.
    world.forget("feed a: positions 0 to 5 are missing, of the open document");
    assert!(world.check().is_ok());
    let mut world = started();
    let recent = "/feeds/a/recent.atom".to_owned();
    world.shown.insert(recent, b"another".to_vec());
    assert!(world.check().unwrap_err().contains("other bytes"));
}
