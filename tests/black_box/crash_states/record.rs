//! Records a workload: programs under strace, one after the other, with what was asked of them and answered.
//!
//! Shell: processes and files. A recording checks itself: at the end of each run, the model's tree must be the folder, byte for byte.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::Write as _,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use serde::{Deserialize, Serialize};

use super::{
    disk::{Disk, Model, Moment, Operation, without_numbers},
    order::in_order,
    programs::Programs,
    states::{History, Promise},
    trace::{self, PRINTED, UNTRACED},
};
use crate::{
    harness::{Server, signal, text, wait_for},
    http::{Request, Response},
};

/// A request and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Exchange {
    pub(super) request: Request,
    /// Feed that the request publishes to, and the ids of the entries.
    pub(super) published: Option<(String, Vec<String>)>,
    /// `None` if the server was killed meanwhile.
    pub(super) response: Option<Response>,
    /// When the answer left the server, if it did.
    pub(super) answered: Option<Moment>,
    run: usize,
    port: u16,
}

/// A program that ran to its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) args: Vec<String>,
    /// `None` if it was killed.
    pub(super) code: Option<i32>,
    pub(super) output: String,
    pub(super) ended: Moment,
}

/// How the servers of a recording are started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) document_entries: u32,
    pub(super) address: String,
    /// By how many microseconds the clock of the servers is ahead of that of the commands.
    #[serde(default)]
    pub(super) clock_ahead: i64,
}

impl Setup {
    /// Returns the variable by which a test server gets its clock.
    pub(super) fn clock(&self) -> (&'static str, PathBuf) {
        let ahead = self.clock_ahead;
        let path = std::env::temp_dir().join(format!("simplefeed-test-clock{ahead}"));
        // Whole at any moment: servers read it.
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "{ahead} 0").unwrap();
        file.persist(&path).unwrap();
        ("SIMPLEFEED_TEST_CLOCK", path)
    }
}

/// A recording under way.
pub(super) struct Recorder {
    pub(super) programs: Programs,
    pub(super) setup: Setup,
    /// Ids in memory that become a file; `None` is as in the real server.
    pub(super) fresh_ids: Option<usize>,
    name: String,
    folder: tempfile::TempDir,
    ledger: Mutex<Vec<Exchange>>,
    /// Ports from which the program that runs was asked.
    ports: Mutex<HashSet<u16>>,
    runs: Vec<Run>,
    printed: Vec<(Moment, String)>,
    operations: Vec<Operation>,
    base: Moment,
    server: Option<Server>,
}

/// A recording.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) name: String,
    pub(super) programs: Programs,
    pub(super) setup: Setup,
    folder: tempfile::TempDir,
    start: PathBuf,
    pub(super) operations: Vec<Operation>,
    pub(super) ledger: Vec<Exchange>,
    pub(super) runs: Vec<Run>,
    /// What programs printed, each piece with the moment at which they began to.
    pub(super) printed: Vec<(Moment, String)>,
    promises: Vec<Promise>,
    /// First operation behind which the power may fail.
    pub(super) from: usize,
}

impl Recorder {
    /// Begins a recording on an empty folder.
    pub(super) fn new(name: &str, programs: &Programs, document_entries: u32) -> Self {
        let folder = scratch();
        fs::create_dir(folder.path().join("root")).unwrap();
        Self {
            programs: programs.clone(),
            setup: Setup {
                document_entries,
                address: address(),
                clock_ahead: 0,
            },
            fresh_ids: None,
            name: name.into(),
            folder,
            ledger: Mutex::default(),
            ports: Mutex::default(),
            runs: vec![],
            printed: vec![],
            operations: vec![],
            base: 1,
            server: None,
        }
    }

    /// Returns the recorded folder.
    pub(super) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub(super) fn data(&self) -> PathBuf {
        self.root().join("data")
    }

    fn trace(&self) -> PathBuf {
        self.folder
            .path()
            .join(format!("trace-{}", self.runs.len()))
    }

    /// Takes what is in the folder now for durable.
    pub(super) fn begin(&self) {
        copy(&self.root(), &start_of(self.folder.path()));
    }

    /// Starts a server that settles after each so many bytes of commits.
    pub(super) fn start_settling(&mut self, chapter_bytes: u32) {
        let entries = self.setup.document_entries.to_string();
        let bytes = chapter_bytes.to_string();
        let mut command = self.traced("simplefeed-test-server");
        command
            .arg(self.data())
            .args(["honest", &entries, &bytes, &self.setup.address]);
        command.args(self.fresh_ids.map(|ids| ids.to_string()));
        if self.setup.clock_ahead != 0 {
            command.envs([self.setup.clock()]);
        }
        self.server = Some(spawn(command));
    }

    /// Starts the real server.
    pub(super) fn start(&mut self, more: &[&str]) {
        let mut command = self.traced("simplefeed-server");
        command
            .args(serve_args(&self.data(), &self.setup, &self.setup.address))
            .args(more);
        self.server = Some(spawn(command));
    }

    fn traced(&self, program: &str) -> Command {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-yy", "-xx", "-s", "100000000", "--seccomp-bpf"]);
        strace.args(["-e", "signal=none", "-e"]);
        strace.arg(format!("trace=!{}", UNTRACED.join(",")));
        strace.arg("-o").arg(self.trace());
        strace
            .arg(self.programs.path(program))
            .envs(self.programs.environment());
        // The current folder is never the recorded one.
        strace.current_dir(self.folder.path());
        strace
    }

    /// Begins a recording with the setup of another one.
    pub(super) fn like(recording: &Recording, name: &str) -> Self {
        let entries = recording.setup.document_entries;
        let mut recorder = Self::new(name, &recording.programs, entries);
        recorder.setup = recording.setup.clone();
        // A tree is written there, which makes it.
        fs::remove_dir(recorder.root()).unwrap();
        recorder
    }

    /// Goes on behind an operation of another recording, at whose end its server was killed.
    pub(super) fn follow(&mut self, recording: &Recording, operation: usize) {
        let operations = &recording.operations[..=operation];
        let moment = operations.last().map_or(0, |operation| operation.exit);
        copy(recording.start(), &start_of(self.folder.path()));
        self.operations = operations.to_vec();
        // Those that were not answered by then may have been stored as well.
        let cut_off = |exchange: &Exchange| match exchange.answered {
            Some(answered) if answered <= moment => exchange.clone(),
            _ => Exchange {
                response: None,
                answered: None,
                ..exchange.clone()
            },
        };
        self.ledger = Mutex::new(recording.ledger.iter().map(cut_off).collect());
        self.runs.push(Run {
            args: vec!["kill".into()],
            code: None,
            output: String::new(),
            ended: moment,
        });
        self.base = moment + 1;
        for exchange in self.ledger.lock().unwrap().iter_mut() {
            exchange.run = 0;
        }
    }

    /// Changes the start of a recording that has not begun to run.
    pub(super) fn change_start(&self, change: impl FnOnce(&Path)) {
        change(&self.data());
        fs::remove_dir_all(start_of(self.folder.path())).unwrap();
        self.begin();
    }

    /// Runs an upkeep command on the data folder, which must succeed.
    #[track_caller]
    pub(super) fn upkeep(&mut self, command: &str, more: &[&str]) {
        let data = self.data();
        let data = data.to_str().expect("a temporary folder has a plain path");
        let run = self.run(
            "simplefeed-server",
            &[&[command, "--data", data], more].concat(),
            "",
        );
        assert_eq!(run.code, Some(0), "{command}: {}", run.output);
    }

    /// Vouches for the clock, by which the log is years old.
    pub(super) fn accept_clock(&mut self) {
        let data = self.data();
        let data = data.to_str().expect("a temporary folder has a plain path");
        let run = self.run(
            "simplefeed-server",
            &["clock", "accept", "--data", data],
            "",
        );
        assert_eq!(run.code, Some(0), "{}", run.output);
    }

    /// Returns how many requests were answered, or not.
    pub(super) fn exchanges(&self) -> usize {
        self.ledger.lock().unwrap().len()
    }

    /// Sends a request on a connection of its own.
    pub(super) fn send(&self, request: &Request) -> Option<Response> {
        self.exchange(request, None)
    }

    fn exchange(
        &self,
        request: &Request,
        published: Option<(String, Vec<String>)>,
    ) -> Option<Response> {
        let (stream, port) = self.connect()?;
        let response = request.send_on(stream, &self.setup.address).ok();
        self.ledger.lock().unwrap().push(Exchange {
            request: request.clone(),
            published,
            response: response.clone(),
            answered: None,
            run: self.runs.len(),
            port,
        });
        response
    }

    /// Connects from a port that no other request to this program came from: the trace knows requests by their ports.
    fn connect(&self) -> Option<(TcpStream, u16)> {
        let mut used = vec![];
        loop {
            let stream = TcpStream::connect(&self.setup.address).ok()?;
            let port = stream.local_addr().unwrap().port();
            if self.ports.lock().unwrap().insert(port) {
                return Some((stream, port));
            }
            // While it is open, its port is not given out again.
            used.push(stream);
        }
    }

    /// Sends a request that must be answered with this status.
    #[track_caller]
    pub(super) fn expect(&self, request: &Request, status: u16) -> Response {
        let answer = self.send(request).expect("the server answers");
        let (method, path) = (&request.method, &request.path);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        answer
    }

    #[track_caller]
    pub(super) fn get(&self, path: &str) -> Response {
        self.expect(&Request::get(path), 200)
    }

    #[track_caller]
    pub(super) fn put(&self, path: &str, body: &str, status: u16) {
        self.expect(&Request::put(path, body), status);
    }

    /// Waits until a document is a frozen file; every look at it is recorded.
    pub(super) fn wait_until_frozen(&self, path: &str) {
        // A window of updates is not there before it has ended.
        let frozen = || {
            self.send(&Request::get(path))
                .filter(Response::is_immutable)
        };
        wait_for(&format!("{path} is not frozen"), frozen);
    }

    /// Publishes entries with these ids and sizes in one request.
    #[track_caller]
    pub(super) fn publish(&self, feed: &str, entries: &[(String, usize)]) {
        let answer = self
            .publish_somehow(feed, entries)
            .expect("the server answers");
        assert_eq!(answer.status, 201, "{}", answer.text());
    }

    /// Publishes entries, unless the server is killed meanwhile.
    pub(super) fn publish_somehow(
        &self,
        feed: &str,
        entries: &[(String, usize)],
    ) -> Option<Response> {
        let body: String = entries.iter().map(|(id, size)| event(id, *size)).collect();
        let ids = entries.iter().map(|(id, _)| id.clone()).collect();
        let path = format!("/feeds/{feed}");
        let post = Request::post(&path, "application/x-ndjson", body);
        self.exchange(&post, Some((feed.into(), ids)))
    }

    /// Asks the server to end, which must succeed.
    pub(super) fn stop(&mut self) {
        let server = self.server.take().expect("a server runs");
        signal("TERM", traced_by(server.process()).expect("it runs"));
        let code = server.exit_code();
        assert_eq!(code, Some(0), "the stop of {}", self.name);
        self.close_run("stop", code, String::new());
    }

    pub(super) fn kill(&mut self) {
        self.kill_now();
        self.bury();
    }

    /// Waits for the end of a server that was killed.
    pub(super) fn bury(&mut self) {
        let server = self.server.take().expect("a server ran");
        let _killed = server.exit_code();
        self.close_run("kill", None, String::new());
    }

    /// Kills the server while others still talk to it.
    pub(super) fn kill_now(&self) {
        let server = self.server.as_ref().expect("a server runs");
        let process = traced_by(server.process()).expect("it runs");
        // Stopped first: nobody knows whether a call that a kill interrupts was carried out.
        signal("STOP", process);
        wait_for("the server does not stop", || {
            is_stopped(process).then_some(())
        });
        signal("KILL", process);
    }

    /// Runs a program to its end.
    pub(super) fn run(&mut self, program: &str, args: &[&str], input: &str) -> Run {
        let mut command = self.traced(program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("strace can be started");
        let mut stdin = child.stdin.take().expect("it is piped");
        // A program that refuses early reads no further.
        let _refused = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        self.close_run(&args.join(" "), output.status.code(), said);
        self.runs.last().expect("it was just added").clone()
    }

    /// Returns the file that takes what a program prints.
    pub(super) fn printed(&self) -> PathBuf {
        self.folder.path().join(PRINTED)
    }

    /// Starts a program, waits until `is_due`, and sends it a signal. Its output is a file.
    pub(super) fn run_until(
        &mut self,
        program: &str,
        args: &[&str],
        ends_by: Option<&str>,
        mut is_due: impl FnMut(&str) -> bool,
    ) -> Run {
        let printed = self.printed();
        let mut command = self.traced(program);
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(File::create(&printed).unwrap());
        command.env("PRINTED", &printed).stderr(Stdio::null());
        let mut child = command.spawn().expect("strace can be started");
        if let Some(ends_by) = ends_by {
            wait_for("a program does not get on", || {
                let text = fs::read_to_string(&printed).unwrap();
                is_due(&text).then_some(())
            });
            signal(ends_by, traced_by(child.id()).expect("it runs"));
        }
        let code = child.wait().unwrap().code();
        let said = fs::read_to_string(&printed).unwrap();
        self.close_run(&args.join(" "), code, said);
        self.runs.last().expect("it was just added").clone()
    }

    /// Reads the trace of the program that has ended.
    fn close_run(&mut self, args: &str, code: Option<i32>, output: String) {
        let path = self.trace();
        let text = fs::read_to_string(&path).unwrap();
        let root = self.root();
        let root = root.to_str().expect("a temporary folder has a plain path");
        let trace = trace::parse(&text, root, umask(), self.base);
        let trace = trace
            .unwrap_or_else(|problem| panic!("{}: a call is not understood: {problem}", self.name));
        for exchange in self.ledger.lock().unwrap().iter_mut() {
            if exchange.run == self.runs.len() {
                exchange.answered = trace.answers.get(&exchange.port).copied();
                let (method, path) = (&exchange.request.method, &exchange.request.path);
                assert!(
                    exchange.response.is_none() || exchange.answered.is_some(),
                    "the answer to {method} {path} is not in the trace"
                );
            }
        }
        self.ports.lock().unwrap().clear();
        self.printed.extend(trace.printed);
        self.operations.extend(trace.operations);
        self.take_cut_off(&trace.cut_off);
        self.base = trace.end + 1;
        self.runs.push(Run {
            args: args.split(' ').map(str::to_owned).collect(),
            code,
            output,
            ended: trace.end,
        });
        fs::remove_file(path).unwrap();
    }

    /// Takes the fewest operations that a kill cut off with which the model is the folder. Some, or none, must fit.
    fn take_cut_off(&mut self, cut_off: &[Operation]) {
        // More threads than these do not write at once.
        let count = cut_off.len().min(6);
        let mut subsets: Vec<u32> = (0..1 << count).collect();
        subsets.sort_by_key(|subset| subset.count_ones());
        let of = |subset: u32| -> Vec<Operation> {
            let each = cut_off.iter().enumerate();
            let each = each.filter(|(at, _)| *at < count && subset & (1 << at) != 0);
            each.map(|(_, operation)| operation.clone()).collect()
        };
        let mut differences = String::new();
        let done = subsets.into_iter().map(of).find(|done| {
            let fits = self.is_the_folder_with(done);
            fits.map_err(|found| differences = found).is_ok()
        });
        // Now, and not at the end: later runs may write over a difference.
        let Some(done) = done else {
            panic!("{}: the model is not the folder: {differences}", self.name);
        };
        self.operations.extend(done);
    }

    /// Compares the model of the operations and of more with the folder.
    ///
    /// # Errors
    ///
    /// Returns how they differ.
    fn is_the_folder_with(&self, more: &[Operation]) -> Result<(), String> {
        let start = start_of(self.folder.path());
        let mut disk = Disk::load(Model::Weak, &start).unwrap();
        let all = self.operations.iter().chain(more).cloned().collect();
        for operation in sorted(all, &start) {
            let stepped = disk.step(&operation);
            stepped.map_err(|what| format!("{what} in {operation:?}"))?;
        }
        let differences = disk.current().differences(&self.root()).unwrap();
        if differences.is_empty() {
            Ok(())
        } else {
            Err(format!("{differences:#?}"))
        }
    }

    /// Ends the recording.
    pub(super) fn finish(self) -> Recording {
        assert!(self.server.is_none(), "a server still runs");
        let start = start_of(self.folder.path());
        let operations = sorted(self.operations, &start);
        let ledger = self.ledger.into_inner().unwrap();
        let answers = ledger.iter().filter_map(|exchange| {
            let request = &exchange.request;
            let what = without_numbers(format!("{} {}", request.method, request.path));
            let at = exchange.answered?;
            Some(Promise { at, what })
        });
        let others = self.runs.iter().map(|run| (run.ended, "an end"));
        let others = others.chain(self.printed.iter().map(|(at, _)| (*at, "a line")));
        let others = others.map(|(at, what)| Promise {
            at,
            what: what.into(),
        });
        let mut promises: Vec<Promise> = answers.chain(others).collect();
        promises.sort_unstable_by_key(|promise| promise.at);
        Recording {
            name: self.name,
            programs: self.programs,
            setup: self.setup,
            start,
            folder: self.folder,
            operations,
            ledger,
            runs: self.runs,
            printed: self.printed,
            promises,
            from: 0,
        }
    }
}

fn sorted(mut operations: Vec<Operation>, start: &Path) -> Vec<Operation> {
    operations.sort_by_key(|operation| operation.exit);
    in_order(operations, start)
}

/// A recording without its folders.
#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    bug: Option<String>,
    setup: Setup,
    operations: Vec<Operation>,
    ledger: Vec<Exchange>,
    runs: Vec<Run>,
    printed: Vec<(Moment, String)>,
    promises: Vec<Promise>,
    from: usize,
}

impl Recording {
    /// Keeps the recording in a folder, from which it can be loaded.
    pub(super) fn keep(&self, folder: &Path) {
        copy(&self.root(), &folder.join("root"));
        copy(&self.start, &start_of(folder));
        let record = Record {
            name: self.name.clone(),
            bug: self.programs.bug(),
            setup: self.setup.clone(),
            operations: self.operations.clone(),
            ledger: self.ledger.clone(),
            runs: self.runs.clone(),
            printed: self.printed.clone(),
            promises: self.promises.clone(),
            from: self.from,
        };
        let file = File::create(folder.join("recording.json")).unwrap();
        serde_json::to_writer(std::io::BufWriter::new(file), &record).unwrap();
    }

    /// Loads a recording that was kept.
    pub(super) fn load(kept: &Path) -> Self {
        let text = fs::read(kept.join("recording.json")).unwrap();
        let record: Record = serde_json::from_slice(&text).unwrap();
        let folder = scratch();
        copy(&kept.join("root"), &folder.path().join("root"));
        copy(&start_of(kept), &start_of(folder.path()));
        Self {
            name: record.name,
            programs: record
                .bug
                .map_or_else(Programs::real, |bug| Programs::with_bug(&bug)),
            setup: record.setup,
            start: start_of(folder.path()),
            folder,
            operations: record.operations,
            ledger: record.ledger,
            runs: record.runs,
            printed: record.printed,
            promises: record.promises,
            from: record.from,
        }
    }

    pub(super) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub(super) fn start(&self) -> &Path {
        &self.start
    }

    /// Returns the recording for a walk through its states.
    pub(super) fn history(&self, model: Model) -> History<'_> {
        History {
            start: &self.start,
            operations: &self.operations,
            promises: &self.promises,
            model,
            from: self.from,
            ignored: None,
        }
    }

    /// Returns whether a command makes the data folder.
    pub(super) fn makes_a_folder(&self) -> bool {
        self.runs
            .iter()
            .any(|run| run.args.iter().any(|arg| arg == "--to"))
    }

    /// Returns the runs that had ended by a moment.
    pub(super) fn ended(&self, moment: Moment) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.ended <= moment)
    }

    /// Returns the exchanges whose answers had left by a moment.
    pub(super) fn answered(&self, moment: Moment) -> impl Iterator<Item = (&Exchange, &Response)> {
        let answered = move |exchange: &&Exchange| {
            exchange.answered.is_some_and(|answered| answered <= moment)
        };
        let answered = self.ledger.iter().filter(answered);
        answered.filter_map(|exchange| Some((exchange, exchange.response.as_ref()?)))
    }
}

/// Returns an address of this recording's own. Its servers start there again, and no other program may be given its port
/// meanwhile: the others are at 127.0.0.1.
fn address() -> String {
    static RECORDINGS: AtomicU32 = AtomicU32::new(0);
    let [_, _, first, second] = std::process::id().to_be_bytes();
    let number = RECORDINGS.fetch_add(1, Ordering::Relaxed) % 250 + 2;
    let listener = TcpListener::bind(format!("127.{first}.{second}.{number}:0")).unwrap();
    listener.local_addr().unwrap().to_string()
}

fn start_of(folder: &Path) -> PathBuf {
    folder.join("start")
}

/// Arguments with which the real server runs over a folder of a recording.
pub(super) fn serve_args(data: &Path, setup: &Setup, listen: &str) -> Vec<String> {
    let url = format!("http://{}", setup.address);
    let entries = setup.document_entries.to_string();
    let data = data.to_str().expect("a temporary folder has a plain path");
    [
        "serve",
        "--data",
        data,
        "--listen",
        listen,
        "--public-url",
        &url,
        "--document-entries",
        &entries,
        "--document-bytes",
        "33554432",
    ]
    .map(str::to_owned)
    .into()
}

/// Returns a folder for recordings and states: in memory where there is room, since syncs cost nothing there.
pub(super) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let has_room =
        rustix::fs::statvfs(memory).is_ok_and(|found| found.f_bavail * found.f_frsize > 2 << 30);
    let folder = if has_room {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("crash-")
        .tempdir_in(folder)
        .unwrap()
}

/// Copies a folder with modes, times and sockets.
pub(super) fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(
        copied.unwrap().success(),
        "{} cannot be copied",
        from.display()
    );
}

fn spawn(command: Command) -> Server {
    Server::try_spawn(command).unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
}

/// Returns whether no thread of a process is within a call that changes something.
fn is_stopped(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut states = tasks.map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('T' | 't') | None)
    });
    states.all(|is_stopped| is_stopped)
}

/// Returns the process that strace has started.
fn traced_by(strace: u32) -> Option<u32> {
    let parent_of = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // Behind the name, which may hold anything: the state, then the parent.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(1)?.parse().ok()
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut processes = processes.filter_map(|item| item.file_name().to_str()?.parse().ok());
    processes.find(|process| parent_of(*process) == Some(strace))
}

/// Returns the mode bits that this process, and so each program it starts, takes from new files.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    u32::from_str_radix(line.expect("Linux says so").trim(), 8).unwrap()
}

/// Returns an event as a line of NDJSON. Its content follows from its id, and does not compress.
pub(super) fn event(id: &str, size: usize) -> String {
    let mut content = String::from(id);
    let mut block = simplefeed_core::digest::Digest::of(id.as_bytes());
    while content.len() < size {
        content.push_str(&block.to_string());
        block = simplefeed_core::digest::Digest::of(&block.0);
    }
    format!("{{\"id\":\"{id}\",\"content\":\"{content}\"}}\n")
}
