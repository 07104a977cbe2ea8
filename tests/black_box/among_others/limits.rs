//! Limits of a process: open files, length of files, memory, threads.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use super::{DEADLINE, Running};
use crate::{
    harness::{
        Server, check_folder, free_address, ids, is_long, pause, program, run_command, signal,
        text, wait_for,
    },
    http::Request,
};

/// Longest time in which a request has its answer, on a machine that others use.
const ANSWER: Duration = Duration::from_secs(30);

/// A limit that the system sets a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Files,
    Length,
    Memory,
    Threads,
}

const LIMITS: [Limit; 4] = [Limit::Files, Limit::Length, Limit::Memory, Limit::Threads];

impl Limit {
    /// Option of `prlimit`.
    fn option(self) -> &'static str {
        match self {
            Self::Files => "--nofile",
            Self::Length => "--fsize",
            Self::Memory => "--as",
            Self::Threads => "--nproc",
        }
    }

    /// How a message says to raise it.
    fn remedy(self) -> &'static str {
        match self {
            Self::Files => "ulimit -n",
            Self::Length => "ulimit -f",
            Self::Memory => "ulimit -v",
            Self::Threads => "ulimit -u",
        }
    }

    /// Limits from nothing to enough, for a start. With the last one, it works.
    fn values(self) -> Vec<u64> {
        let every = |short: usize| if is_long() { 1 } else { short };
        match self {
            Self::Files => (4..72).step_by(every(16)).collect(),
            Self::Length => (0..26).step_by(every(6)).map(|bits| 1 << bits).collect(),
            Self::Memory => (3..24)
                .step_by(every(5))
                .map(|half| (1 << (20 + half / 2)) * (2 + half % 2))
                .collect(),
            Self::Threads => {
                // Some are for each processor.
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                let enough = 64 + 4 * u64::try_from(processors).unwrap();
                (1..64).step_by(every(15)).chain([enough]).collect()
            }
        }
    }

    /// Holds the outcome of a command under this limit against the promises.
    fn judge(self, value: u64, code: i32, said: &str, task: &[&str]) {
        let what = format!("{self:?} {value} {task:?}: {code}: {said}");
        assert!(code == 0 || Some(&value) != self.values().last(), "{what}");
        // Of the loader, or of an allocation that failed.
        if self == Self::Memory && [127, 134, 137, 139].contains(&code) {
            return;
        }
        assert!(!said.contains("damage"), "{what}");
        assert!(!said.contains("panicked"), "{what}");
        assert!(
            code == 0 || code == 1 && said.contains(self.remedy()),
            "{what}"
        );
    }
}

/// Returns a user that nobody else is: the system counts the threads of all processes of a user.
fn somebody() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    10_000 + std::process::id() % 5_000 * 10 + NEXT.fetch_add(1, Ordering::Relaxed) % 10
}

/// Gives a folder and all in it to a user.
fn give(folder: &Path, user: u32) {
    let mut command = Command::new("chown");
    command.arg("-R").arg(user.to_string()).arg(folder);
    assert!(run_command(&mut command, b"").status.success());
}

/// Returns a program that runs as a user, under a limit.
fn command_of(user: u32, limit: Option<(Limit, u64)>, name: &str) -> Command {
    let user = user.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    if let Some((limit, value)) = limit {
        command.args(["prlimit", &format!("{}={value}", limit.option())]);
    }
    command.arg(program(name)).current_dir("/");
    command
}

/// Returns an exit code, or that of a signal as shells count it.
fn code_of(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// Runs a command to its end. Returns its exit code and its messages.
fn run_to_end(mut command: Command) -> (i32, String) {
    let began = Instant::now();
    let output = run_command(&mut command, b"");
    assert!(began.elapsed() < DEADLINE, "{command:?} hangs");
    (code_of(output.status), text(&output.stderr))
}

/// Starts a server that publishes, if it starts at all, and ends. Returns its exit code, its messages, and whether an entry
/// was acknowledged.
fn serve_once(mut command: Command, data: &Path) -> (i32, String, bool) {
    let address = free_address();
    command
        .args(["serve", "--listen", &address, "--data"])
        .arg(data)
        .stderr(Stdio::piped());
    let mut running = Running::spawn(&mut command);
    let mut stderr = running.0.stderr.take().unwrap();
    let messages = std::thread::spawn(move || {
        let mut messages = vec![];
        stderr.read_to_end(&mut messages).map(|_| text(&messages))
    });
    let is_up = wait_for("the server neither ends nor listens", || {
        let has_ended = running.0.try_wait().unwrap().is_some();
        let is_up = || {
            Request::get("/healthz")
                .send_within(&address, ANSWER)
                .is_ok()
        };
        (has_ended || is_up()).then_some(!has_ended)
    });
    let mut is_stored = false;
    if is_up {
        let request = Request::post("/feeds/a", "application/x-ndjson", "{}");
        let answer = request.send_within(&address, ANSWER);
        is_stored = answer.is_ok_and(|answer| answer.status == 201);
        signal("TERM", running.0.id());
    }
    let code = running.ended("the server");
    (code, messages.join().unwrap().unwrap(), is_stored)
}

/// Goal: under each limit, a command that starts does its work, or says which limit to raise. It neither hangs nor panics, and
/// calls nothing damaged. (An allocation that fails may abort it.) Nothing acknowledged is lost.
#[test]
#[ignore = "needs root, to become somebody else"]
fn no_limit_breaks_a_start() {
    let (folder, user) = (tempfile::tempdir().unwrap(), somebody());
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--document-entries", "2"]);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    let mut stored = 5;
    let (data, to) = (data.to_str().unwrap(), folder.path().join("new"));
    let tasks: [&[&str]; 5] = [
        &["verify", "--data", data],
        &["rebuild", "--data", data],
        &["recover", "--data", data, "--to", to.to_str().unwrap()],
        &["backup", "--data", data, "--to", to.to_str().unwrap()],
        &["export", "--data", data, "--to", to.to_str().unwrap()],
    ];
    for limit in LIMITS {
        for value in limit.values() {
            give(folder.path(), user);
            let command = || command_of(user, Some((limit, value)), "simplefeed-server");
            for task in tasks {
                let mut command = command();
                command.args(task);
                let (code, said) = run_to_end(command);
                limit.judge(value, code, &said, task);
                let _none_made = fs::remove_dir_all(&to);
            }
            let (code, said, is_stored) = serve_once(command(), Path::new(data));
            stored += usize::from(is_stored);
            limit.judge(value, code, &said, &["serve"]);
        }
    }
    check_folder("verify", Path::new(data));
    let server = Server::start(Path::new(data), &[]);
    assert!(ids(&server, "a").len() >= stored, "{stored}");
    server.stop();
}

/// Goal: the control of the test above: without a limit, the same user starts each command.
#[test]
#[ignore = "needs root, to become somebody else"]
fn without_a_limit_a_start_is_well() {
    let (folder, user) = (tempfile::tempdir().unwrap(), somebody());
    let data = folder.path().join("data");
    Server::start(&data, &[]).stop();
    give(folder.path(), user);
    let command = command_of(user, None, "simplefeed-server");
    let (code, said, is_stored) = serve_once(command, &data);
    assert!(code == 0 && is_stored, "{code}: {said}");
}

/// Goal: a client's command under a limit does its work, or says which limit to raise.
#[test]
#[ignore = "needs root, to become somebody else"]
fn no_limit_breaks_a_command() {
    let (folder, user) = (tempfile::tempdir().unwrap(), somebody());
    let server = Server::start(&folder.path().join("data"), &["--document-entries", "2"]);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    let url = server.url("/feeds/a");
    let kept = folder.path().join("kept");
    fs::create_dir(&kept).unwrap();
    give(folder.path(), user);
    let mark = kept.join("mark");
    let tasks: [&[&str]; 4] = [
        &["replay", &url, "--bookmark", mark.to_str().unwrap()],
        &["tail", &url, "--since", "oldest", "--limit", "2"],
        &["get", &url],
        &["append", &url],
    ];
    for limit in LIMITS {
        for value in limit.values() {
            for task in tasks {
                let mut command = command_of(user, Some((limit, value)), "simplefeed");
                command.args(task);
                let (code, said) = run_to_end(command);
                limit.judge(value, code, &said, task);
                let _none_made = fs::remove_file(&mark);
            }
        }
    }
}

/// Runs `prlimit` on a server, as the server's user: nobody else may without a privilege.
fn prlimit(server: &Server, user: u32, args: &[&str]) -> String {
    let mut command = Command::new("setpriv");
    let user = user.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["prlimit", "--pid", &server.process().to_string()]);
    let output = run_command(command.args(args), b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

fn number(server: &Server, name: &str) -> u64 {
    server.status(name).parse().unwrap()
}

fn has_ended(server: &Server) -> bool {
    server.status("State:") == "Z"
}

/// Statuses that a request may have under a limit: that of its success, or a refusal that says to come again.
const ANSWERS: [u16; 4] = [200, 201, 503, 507];

/// Sends requests of many kinds. Returns how many entries were acknowledged, and how many requests had no answer in time.
fn ask(address: &str, rounds: u32, time: Duration) -> [usize; 2] {
    let (mut stored, mut late) = (0, 0);
    let publish = || Request::post("/feeds/a", "application/x-ndjson", "{}");
    let reads = [
        "/feeds/a/recent.atom",
        "/feeds/a/1.atom",
        "/feeds",
        "/sup.json",
        "/readyz",
    ];
    for _ in 0..rounds {
        for request in std::iter::once(publish()).chain(reads.map(Request::get)) {
            match request.send_within(address, time) {
                Ok(answer) => {
                    let status = answer.status;
                    assert!(ANSWERS.contains(&status), "{status}: {}", answer.text());
                    stored += usize::from(status == 201);
                }
                Err(error) => {
                    let kind = error.kind();
                    late += usize::from(matches!(
                        kind,
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ));
                }
            }
        }
    }
    [stored, late]
}

/// Starts a server as a user. With `settles`, its chapters are short, and are settled all the time.
fn start_as(user: u32, data: &Path, settles: bool) -> Server {
    let name = if settles {
        "simplefeed-test-server"
    } else {
        "simplefeed-server"
    };
    let mut command = command_of(user, None, name);
    if settles {
        command
            .arg(data)
            .args(["honest", "2", "4096", "127.0.0.1:0"]);
    } else {
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        command
            .args(["--document-entries", "2", "--data"])
            .arg(data);
    }
    Server::try_spawn(command).unwrap()
}

/// Goal: a limit that a running server meets ends no more than the requests that it meets; without the limit, all goes on
/// without a restart. (An allocation that fails may abort it.) Nothing acknowledged is lost.
#[test]
#[ignore = "needs root, to become somebody else"]
fn no_limit_breaks_a_running_server() {
    for limit in LIMITS {
        meet(limit, false);
    }
}

/// Goal: the same for a server that settles all the time: sled opens files and writes them.
#[test]
#[ignore = "needs root, to become somebody else"]
fn no_limit_breaks_a_settling() {
    for limit in LIMITS {
        meet(limit, true);
    }
}

fn meet(limit: Limit, settles: bool) {
    let (folder, user) = (tempfile::tempdir().unwrap(), somebody());
    let data = folder.path().join("data");
    give(folder.path(), user);
    let server = start_as(user, &data, settles);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    let option = limit.option();
    let shown = [option, "--raw", "--noheadings", "--output", "SOFT"];
    let (mut stored, before) = (5, prlimit(&server, user, &shown));
    let set = |to: &str| prlimit(&server, user, &[&format!("{option}={to}:")]);
    for more in if is_long() { 0..8 } else { 0..2 } {
        let tight = match limit {
            Limit::Files => u64::try_from(server.open_files()).unwrap() + more,
            Limit::Length => 1_000 * more,
            Limit::Memory => number(&server, "VmSize:") * 1_024 + (more << 20),
            Limit::Threads => number(&server, "Threads:") + more,
        };
        set(&tight.to_string());
        // A server without a handle for a connection cannot answer it.
        let time = match limit {
            Limit::Files => Duration::from_secs(1),
            _ => ANSWER,
        };
        let [answered, late] = ask(&server.address, 20, time);
        assert!(late == 0 || limit == Limit::Files, "{limit:?} {more}");
        stored += answered;
        let mut backup = Command::new(program("simplefeed-server"));
        let to = folder.path().join(format!("copy{more}"));
        backup.args(["backup", "--data"]).arg(&data);
        let messages = folder.path().join("messages");
        backup.arg("--to").arg(to);
        backup.stderr(fs::File::create(&messages).unwrap());
        let mut backup = Running::spawn(&mut backup);
        pause(Duration::from_secs(1));
        set(&before);
        let code = backup.ended("a backup");
        let said = text(&fs::read(messages).unwrap());
        // A library may end in any way where an allocation fails.
        let is_right = [0, 1].contains(&code) || limit == Limit::Memory;
        assert!(is_right, "{limit:?} {more}: {code} {said}");
        // A settling that was put off has its rest.
        let is_stored = wait_for("nothing is stored again", || {
            let next = Request::post("/feeds/a", "application/x-ndjson", "{}");
            let Ok(answer) = next.send_within(&server.address, ANSWER) else {
                return Some(false);
            };
            let is_right = [201, 503].contains(&answer.status);
            assert!(
                is_right,
                "{limit:?} {more}: {} {:?}",
                answer.text(),
                server.said()
            );
            (answer.status == 201).then_some(true)
        });
        // An allocation may have failed.
        if limit == Limit::Memory && !is_stored {
            wait_for("the server neither answers nor ends", || {
                has_ended(&server).then_some(())
            });
            break;
        }
        assert!(is_stored, "{limit:?} {more}: {:?}", server.said());
        stored += 1;
        wait_for("the server is not ready again", || {
            let ready = Request::get("/readyz").send_within(&server.address, ANSWER);
            assert!(ready.is_ok(), "{limit:?} {more}: {:?}", server.said());
            (ready.unwrap().status == 200).then_some(())
        });
    }
    let said = server.said().join("\n");
    let is_well = !said.contains("damage") && !said.contains("panicked");
    assert!(is_well || limit == Limit::Memory, "{limit:?}: {said}");
    if !has_ended(&server) {
        server.stop_somehow();
    }
    check_folder("verify", &data);
    let server = Server::start(&data, &[]);
    assert!(ids(&server, "a").len() >= stored, "{limit:?}");
    server.stop();
}

/// Goal: a lack of handles is never called damage, whatever is being done; the message names the limit.
#[test]
fn a_lack_of_handles_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--document-entries", "2"]);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    let data = data.to_str().unwrap();
    let to = folder.path().join("new");
    let to = to.to_str().unwrap();
    // With some more, commands work.
    let most = 24;
    let tasks: [&[&str]; 5] = [
        &["serve", "--listen", "127.0.0.1:0", "--data", data],
        &["verify", "--data", data],
        &["recover", "--data", data, "--to", to],
        &["backup", "--data", data, "--to", to],
        &["export", "--data", data, "--to", to],
    ];
    for task in tasks {
        for files in (5..most).step_by(if is_long() { 1 } else { 6 }) {
            let script = format!("ulimit -n {files}; exec \"$@\"");
            let mut command = Command::new("sh");
            command
                .args(["-c", &script, "sh"])
                .arg(program("simplefeed-server"));
            let Output { status, stderr, .. } = run_command(command.args(task), b"");
            let said = text(&stderr);
            assert_eq!(status.code(), Some(1), "{files} {task:?}: {said}");
            assert!(said.contains("ulimit -n"), "{files} {task:?}: {said}");
            assert!(
                !said.contains("damage") && !said.contains("recover"),
                "{said}"
            );
        }
    }
    check_folder("verify", Path::new(data));
}

/// Goal: a limit on the length of files is told as what it is, and ends nothing: when it is raised, all goes on.
#[test]
fn a_limit_on_the_length_of_files_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &[]);
    server.publish_ids("a", ["1".into()]);
    // Less than sled may need to settle what is there.
    server.limit_files_to(4 << 20);
    let refused = server.publish("a", "{}");
    assert_eq!(refused.status, 507);
    assert!(refused.text().contains("LimitFSIZE"), "{}", refused.text());
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("LimitFSIZE"), "{}", ready.text());
    // Not even the few bytes of the watermark.
    server.limit_files_to(0);
    assert_eq!(server.get("/sup.json").status, 503);
    server.limit_files_to(1 << 40);
    server.publish_ids("a", ["2".into()]);
    assert_eq!(server.get("/readyz").status, 200);
    server.stop();
    // A start under the limit refuses entries, and no more.
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -f 4096; exec \"$@\"", "sh"]);
    command.arg(program("simplefeed-server"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]);
    let server = Server::try_spawn({
        command.arg(&data);
        command
    })
    .unwrap();
    assert_eq!(server.publish("a", "{}").status, 507);
    assert_eq!(ids(&server, "a").len(), 2);
    server.stop();
    check_folder("verify", &data);
}

/// Goal: a lack of file handles under a running server is never damage, loses nothing, and is over when the limit is raised.
#[test]
fn a_lack_of_handles_under_a_server_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--document-entries", "2"]);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    let mut stored = 5;
    for more in [1, 2, 4, 8] {
        server.limit_handles_to(server.open_files() + more);
        for _ in 0..20 {
            let request = Request::post("/feeds/a", "application/x-ndjson", "{}");
            // Without a handle for the connection there is no answer.
            let answered = request.send_within(&server.address, Duration::from_secs(2));
            stored += usize::from(answered.is_ok_and(|answer| answer.status == 201));
        }
        server.limit_handles_to(10_000);
        assert_eq!(server.get("/readyz").status, 200, "{more}");
    }
    assert_eq!(server.publish("a", "{}").status, 201);
    wait_for("the archive does not go on", || {
        let documents = (ids(&server, "a").len() - 1) / 2;
        let last = format!("/feeds/a/{documents}.atom");
        server.get(&last).is_immutable().then_some(())
    });
    // Some were stored for which there was no answer.
    assert!(ids(&server, "a").len() > stored);
    let said = server.said().join("\n");
    assert!(!said.contains("damage"), "{said}");
    server.stop();
    check_folder("verify", &data);
}

/// Opens so many connections, each with a request behind it.
fn idle_connections(server: &Server, count: usize) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(ANSWER)).unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        stream
    };
    (0..count).map(connect).collect()
}

/// Goal: where few files may be open, half of them are for connections.
#[test]
fn few_handles_are_for_many_connections() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("prlimit");
    command.args(["--nofile=256:256"]);
    command.arg(program("simplefeed-server"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]);
    let server = Server::try_spawn({
        command.arg(folder.path().join("data"));
        command
    })
    .unwrap();
    let idle = idle_connections(&server, 80);
    // None of them has given way.
    let has_ended = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        std::iter::repeat_with(|| stream.read(&mut [0; 512]))
            .find_map(|read| match read {
                Ok(0) => Some(true),
                Ok(_) => None,
                Err(error) => Some(error.kind() != io::ErrorKind::WouldBlock),
            })
            .unwrap()
    };
    assert_eq!(server.get("/readyz").status, 200);
    assert_eq!(idle.iter().filter(|stream| has_ended(stream)).count(), 0);
    server.stop();
}

/// Goal: a connection for which there is no handle gets that of one that is idle, and the log says what to raise, once.
#[test]
fn an_idle_connection_gives_its_handle_away() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let idle = idle_connections(&server, 40);
    server.limit_handles_to(server.open_files());
    // More than there are free numbers below the limit. Idle connections end by themselves after a longer time.
    let began = Instant::now();
    let more = idle_connections(&server, 30);
    assert!(began.elapsed() < ANSWER);
    drop((idle, more));
    server.limit_handles_to(10_000);
    let said = server.said();
    let told = said
        .iter()
        .filter(|line| line.contains("cannot be accepted"));
    let told: Vec<_> = told.collect();
    assert!(
        told.len() == 1 && told.iter().all(|line| line.contains("ulimit -n")),
        "{told:?}"
    );
    server.stop();
}

/// Goal: a settling that finds no handles ends nothing: entries are taken until the journal has grown too large, what is stored
/// can be read, `/readyz` tells it, and all goes on once there are handles: in the same process, or in the next one.
#[test]
fn a_settling_without_handles_is_put_off() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let start = || {
        let mut command = Command::new(program("simplefeed-test-server"));
        command
            .arg(&data)
            .args(["honest", "2", "4096", "127.0.0.1:0"]);
        Server::try_spawn(command).unwrap()
    };
    let mut stored = 0;
    for end in ["stop", "kill", "kill later", "goes on", "kill", "stop"] {
        let server = start();
        // Whatever it does at first, it has the handles for.
        assert_eq!(server.publish("b", "{}").status, 201);
        pause(Duration::from_secs(1));
        // A settling asks for eight: in the first round, that is the first one. Other files leave some handles for connections.
        let mut open = server.open_files();
        server.limit_handles_to(open + 7);
        let publish = || Request::post("/feeds/a", "application/x-ndjson", "{}");
        // Sometimes something else has the handle that a connection needs.
        let answer_to = |request: Request| {
            wait_for("there is no answer", || {
                let answer = request.send_within(&server.address, Duration::from_secs(5));
                answer.ok()
            })
        };
        let refused = wait_for("entries are taken for ever", || {
            let answer = answer_to(publish());
            stored += usize::from(answer.status == 201);
            // A file that was closed meanwhile would leave a settling its eight.
            open = open.min(server.open_files());
            server.limit_handles_to(open + 7);
            (answer.status != 201).then_some(answer)
        });
        assert_eq!(refused.status, 503, "{}", refused.text());
        assert!(refused.text().contains("ulimit -n"), "{}", refused.text());
        let ready = answer_to(Request::get("/readyz"));
        assert_eq!(ready.status, 503);
        assert!(ready.text().contains("lacks"), "{}", ready.text());
        // The settings of one are in sled alone, but for the first round. If there were handles for a moment, sled may be closed.
        let settings = answer_to(Request::get("/feeds/b/settings.json"));
        assert!([200, 503].contains(&settings.status), "{}", settings.text());
        let said = server.said();
        // Sometimes the next file of the journal lacks its handle first.
        let is_told = |line: &&String| {
            let told = ["it is tried again", "cannot begin a file of the journal"];
            told.iter().any(|told| line.contains(told)) && line.contains("ulimit -n")
        };
        assert!(said.iter().any(|line| is_told(&line)), "{said:#?}");
        match end {
            "stop" => server.stop_somehow(),
            "kill" => server.kill(),
            _ => {
                server.limit_handles_to(10_000);
                if end == "kill later" {
                    // Before, within or behind the next try.
                    pause(Duration::from_secs(1));
                    server.kill();
                    continue;
                }
                wait_for("the server is not ready again", || {
                    (server.get("/readyz").status == 200).then_some(())
                });
                server.publish_ids("a", ["next".into()]);
                stored += 1;
                server.stop_somehow();
            }
        }
    }
    let server = start();
    // Some were stored for which there was no answer.
    assert!(ids(&server, "a").len() >= stored);
    server.stop_somehow();
    check_folder("verify", &data);
}

/// Goal: a task of upkeep that a server cannot take now says that it waits, and is done when the server can take it.
#[test]
fn a_task_that_is_not_taken_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &[]);
    server.publish_ids("a", ["1".into()]);
    // Without a handle for the connection, it is not taken.
    server.limit_handles_to(1);
    let mut command = Command::new(program("simplefeed-server"));
    command.args(["backup", "--data"]).arg(&data);
    command.arg("--to").arg(folder.path().join("copy"));
    let mut backup = Running::spawn(command.stderr(Stdio::piped()));
    let mut lines = BufReader::new(backup.0.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("Waiting for the server"), "{first}");
    server.limit_handles_to(10_000);
    assert_eq!(backup.ended("a backup"), 0);
    server.stop();
    check_folder("verify", &folder.path().join("copy"));
}
