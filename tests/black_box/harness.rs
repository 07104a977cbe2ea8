//! The programs, built once, and servers that end with their test.
//!
//! Shell: processes and temporary folders.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex, OnceLock,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::http::{Request, Response};

/// How long a server may take to be ready, on a busy machine.
const START: Duration = Duration::from_mins(3);
/// How long a command may take.
const HANGS: Duration = Duration::from_mins(10);

/// Returns the build tool, without the variables that it gives to a test: with another package's name around it, the
/// build script of `ring` runs again, and all that stands on it is built anew.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// Returns a program of the workspace, building all of them first, once.
///
/// So that a plain `cargo test` in a fresh clone needs nothing to be built before it.
pub(crate) fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let folder = own.parent().and_then(Path::parent).unwrap().to_path_buf();
        let mut build = cargo();
        // All that `cargo test` builds: with fewer packages, dependencies have other features, and are built twice.
        build.args(["build", "--locked", "--quiet", "--workspace"]);
        build.args(["--bins", "--examples", "--tests"]);
        build.arg("--target-dir").arg(folder.parent().unwrap());
        if folder.ends_with("release") {
            build.arg("--release");
        }
        let built = build.current_dir(workspace()).output().unwrap();
        let output = String::from_utf8_lossy(&built.stderr);
        assert!(
            built.status.success(),
            "the programs cannot be built: {output}"
        );
        folder
    });
    folder.join(name)
}

/// Returns an example of the client, built with the programs.
pub(crate) fn example(name: &str) -> PathBuf {
    program("examples").join(name)
}

/// Looks until there is something; after a minute `complaint` is the failure.
pub(crate) fn wait_for<T>(complaint: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6_000 {
        if let Some(found) = look() {
            return found;
        }
        pause(Duration::from_millis(10));
    }
    panic!("{complaint}");
}

/// Returns an address that nobody listens at.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Returns the folder of the workspace.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .into()
}

/// A running server. It is killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// Where it listens: `127.0.0.1:PORT`.
    pub(crate) address: String,
    /// What it logged until it listened.
    pub(crate) opening: Vec<String>,
    log: Mutex<Receiver<String>>,
}

impl Server {
    /// Starts the real server on a data folder, with more arguments.
    pub(crate) fn start(data: &Path, more: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", data, more)
    }

    /// Starts the real server where another one was.
    pub(crate) fn start_at(address: &str, data: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(program("simplefeed-server"));
        command
            .arg("serve")
            .arg("--data")
            .arg(data)
            .args(["--listen", address])
            .args(more);
        Self::spawn(command)
    }

    /// Starts a server whose barrier is broken (see `simplefeed-test-server`).
    pub(crate) fn start_broken(data: &Path, barrier: &str) -> Self {
        let mut command = Command::new(program("simplefeed-test-server"));
        command.arg(data).arg(barrier);
        Self::spawn(command)
    }

    /// Starts a server with a slow disk, which notes in `marker` what is under way, and settles often.
    pub(crate) fn start_marked(data: &Path, marker: &Path, document_entries: u32) -> Self {
        let mut command = Command::new(program("simplefeed-test-server"));
        command
            .arg(data)
            .arg(format!("marked:{}", marker.display()))
            .arg(document_entries.to_string())
            .arg("100000");
        Self::spawn(command)
    }

    /// Starts a server that settles after each so many bytes.
    pub(crate) fn start_settling(data: &Path, document_entries: u32, chapter_bytes: u32) -> Self {
        Self::start_settling_at("127.0.0.1:0", data, document_entries, chapter_bytes)
    }

    /// Starts a server that settles after each so many bytes, where another one was.
    pub(crate) fn start_settling_at(
        address: &str,
        data: &Path,
        document_entries: u32,
        chapter_bytes: u32,
    ) -> Self {
        let mut command = Command::new(program("simplefeed-test-server"));
        command
            .arg(data)
            .arg("honest")
            .arg(document_entries.to_string())
            .arg(chapter_bytes.to_string())
            .arg(address);
        Self::spawn(command)
    }

    /// Starts a server with a slow disk, which notes in `marker` what is under way, and kills it when `due` returns,
    /// wherever its start has come to.
    pub(crate) fn start_and_kill(data: &Path, marker: &Path, due: impl FnOnce()) {
        let mut child = Command::new(program("simplefeed-test-server"))
            .arg(data)
            .arg(format!("marked:{}", marker.display()))
            .args(["20", "100000"])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        due();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn spawn(command: Command) -> Self {
        Self::try_spawn(command)
            .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
    }

    /// Starts a server, or returns what it said.
    pub(crate) fn try_spawn(mut command: Command) -> Result<Self, Vec<String>> {
        let mut child = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut seen = vec![];
        let address = loop {
            let Ok(line) = log.recv_timeout(START) else {
                let _ended = child.kill();
                let _status = child.wait();
                return Err(seen);
            };
            match line.strip_prefix("listening on http://") {
                Some(address) => break address.to_owned(),
                None => seen.push(line),
            }
        };
        Ok(Self {
            child,
            address,
            opening: seen,
            log: Mutex::new(log),
        })
    }

    /// Returns the URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sends a GET.
    pub(crate) fn get(&self, path: &str) -> Response {
        self.send(&Request::get(path))
    }

    /// Sends a request.
    pub(crate) fn send(&self, request: &Request) -> Response {
        request.send(&self.address).unwrap()
    }

    /// Publishes NDJSON; returns the answer.
    pub(crate) fn publish(&self, feed: &str, lines: &str) -> Response {
        let path = format!("/feeds/{feed}");
        self.send(&Request::post(&path, "application/x-ndjson", lines))
    }

    /// Publishes entries with these ids, one request each, and expects all to be new.
    pub(crate) fn publish_ids(&self, feed: &str, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            let line = format!("{{\"id\":\"urn:t:{id}\",\"content\":{{\"n\":\"{id}\"}}}}");
            assert_eq!(self.publish(feed, &line).status, 201, "{id}");
        }
    }

    /// Waits until a document is a frozen file, which happens behind the writer's back.
    pub(crate) fn wait_until_frozen(&self, path: &str) -> Response {
        let frozen = || Some(self.get(path)).filter(Response::is_immutable);
        wait_for(&format!("{path} is not frozen"), frozen)
    }

    /// Waits until the server logs a line with these words. Returns it.
    pub(crate) fn wait_for_log(&self, words: &[&str]) -> String {
        let log = self.log.lock().unwrap();
        loop {
            let line = log.recv_timeout(START);
            let line = line.unwrap_or_else(|_| panic!("nothing is logged about {words:?}"));
            if words.iter().all(|word| line.contains(word)) {
                return line;
            }
        }
    }

    /// Returns what the server logged that was not asked for before.
    pub(crate) fn said(&self) -> Vec<String> {
        self.log.lock().unwrap().try_iter().collect()
    }

    /// Asks the server to end, and waits until it has.
    pub(crate) fn stop(mut self) {
        signal("TERM", self.child.id());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{:?}", self.said());
    }

    /// Returns the id of its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server has ended; returns its exit code.
    pub(crate) fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Ends the server by a signal. Returns its exit code, and all that it logged.
    ///
    /// # Errors
    ///
    /// Returns that it does not end.
    pub(crate) fn end(mut self, by: &str) -> Result<(Option<i32>, Vec<String>), String> {
        match by {
            // Without a process of its own: there are thousands of these.
            "KILL" => self.child.kill().unwrap(),
            _ => signal(by, self.child.id()),
        }
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > START {
                return Err(format!("the server does not end by {by}"));
            }
            pause(Duration::from_millis(1));
        };
        let mut said = std::mem::take(&mut self.opening);
        // Up to the last line: the reader of them ends with the server.
        said.extend(self.log.lock().unwrap().iter());
        Ok((status.code(), said))
    }

    /// Asks the server to end, and waits until it has, well or not.
    pub(crate) fn stop_somehow(mut self) {
        signal("TERM", self.child.id());
        self.child.wait().unwrap();
    }

    /// Kills the server while others still talk to it.
    pub(crate) fn kill_now(&self) {
        signal("KILL", self.child.id());
    }

    /// Sends the server a signal.
    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// Returns the most memory it ever had, in KiB.
    pub(crate) fn memory_peak_kib(&self) -> u64 {
        self.status("VmHWM:").parse().unwrap()
    }

    /// Returns what the system says of it.
    pub(crate) fn status(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name));
        let value = line.unwrap().split_whitespace().nth(1);
        value.unwrap().to_owned()
    }

    /// Returns the number of files and sockets it has open.
    pub(crate) fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        files.unwrap().count()
    }

    /// Limits the length of the files that the server writes, as `ulimit -Sf` does.
    pub(crate) fn limit_files_to(&self, bytes: u64) {
        self.limit(Resource::Fsize, bytes);
    }

    /// Limits the files that the server may have open, as `ulimit -Sn` does.
    pub(crate) fn limit_handles_to(&self, files: usize) {
        self.limit(Resource::Nofile, files.try_into().unwrap());
    }

    /// Sets a limit that may be raised again, up to the hard one, by anybody.
    fn limit(&self, resource: Resource, to: u64) {
        let process = Some(Pid::from_child(&self.child));
        // A limit is changed by giving both, so the hard one is asked for first.
        let before = rustix::process::getrlimit(resource);
        let limit = Rlimit {
            current: Some(before.maximum.map_or(to, |most| most.min(to))),
            maximum: before.maximum,
        };
        prlimit(process, resource, limit).unwrap();
    }

    /// Returns the number of open files that have this in their names.
    pub(crate) fn open_files_named(&self, part: &str) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let names = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        names
            .filter(|name| name.to_string_lossy().contains(part))
            .count()
    }

    /// Kills the server as a power cut would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Whether the tests were asked to take their time: `tests/run --long`.
pub(crate) fn is_long() -> bool {
    std::env::var_os("SIMPLEFEED_TESTS_LONG").is_some()
}

/// Sends a signal to a process that a test started. The shell's own `kill` is always there.
pub(crate) fn signal(name: &str, process: u32) {
    let command = format!("kill -{name} {process}");
    let status = Command::new("sh").args(["-c", &command]).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Waits. Only ever between two looks at something that will happen.
pub(crate) fn pause(time: Duration) {
    let (_sender, receiver) = channel::<()>();
    let _timeout = receiver.recv_timeout(time);
}

/// Runs a program to its end, with `input` on its stdin.
pub(crate) fn run<S: AsRef<OsStr>>(name: &str, args: &[S], input: &[u8]) -> Output {
    run_command(Command::new(program(name)).args(args), input)
}

/// Runs a command to its end, with `input` on its stdin.
pub(crate) fn run_command(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A program that refuses early reads no further.
        let _broken_pipe = stdin.write_all(&input);
    });
    // A program that hangs fails the test that waits for it.
    let (ended, waits) = channel::<()>();
    let process = child.id();
    let watchdog = std::thread::spawn(move || {
        if waits.recv_timeout(HANGS) == Err(RecvTimeoutError::Timeout) {
            signal("KILL", process);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    writer.join().unwrap();
    output
}

/// Replays a feed from its oldest entry. Returns the ids.
pub(crate) fn ids(server: &Server, feed: &str) -> Vec<String> {
    let url = server.url(&format!("/feeds/{feed}"));
    let printed = simplefeed(&["replay", &url, "--format", "id"], b"");
    printed.lines().map(str::to_owned).collect()
}

/// Returns the output of a program as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `simplefeed`, expecting success. Returns its stdout.
#[track_caller]
pub(crate) fn simplefeed(args: &[&str], input: &[u8]) -> String {
    let output = run("simplefeed", args, input);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a check of a data folder, expecting success.
#[track_caller]
pub(crate) fn check_folder(command: &str, data: &Path) -> String {
    let output = run(
        "simplefeed-server",
        &[OsStr::new(command), OsStr::new("--data"), data.as_os_str()],
        b"",
    );
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command}: {said}");
    said
}

/// Returns every file below a folder with its contents, in order of their paths.
pub(crate) fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = vec![];
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                found.push((path.clone(), std::fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Copies every file below a folder.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    for (path, bytes) in files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

/// Returns `count` varied events, one a line: Unicode, numbers that must stay as they are, links.
pub(crate) fn events(count: usize) -> String {
    let mut lines = String::new();
    for n in 0..count {
        let text = ["plain", "é & <ü>", "\\\"quoted\\\"", "日本\\n語", "😀"][n % 5];
        let number = ["1.0", "1e3", "12345678901234567890", "-0", "0.10"][n % 5];
        lines.push_str(&format!(
            "{{\"id\":\"urn:event:{n}\",\"title\":\"{text} {n}\",\"updated\":\"2026-01-01T00:00:{:02}Z\",\
             \"links\":[{{\"rel\":\"alternate\",\"href\":\"https://example.org/{n}?a=1&b=2\"}}],\
             \"content\":{{\"z\":{number},\"a\":[{n},  null],\"text\":\"{text}\"}}}}\n",
            n % 60
        ));
    }
    lines
}
