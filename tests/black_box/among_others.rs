//! A process among others: who reads its log, hands it sockets, mounts its files, or sets its limits.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _},
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::{
    harness::{Server, free_address, is_long, pause, program, run_command, signal, text, wait_for},
    http::Request,
    site::{Asked, Site, answer},
};

mod limits;

/// Longest time in which anything has to end, on a machine that others use.
const DEADLINE: Duration = Duration::from_mins(2);

/// Fate of stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stderr {
    /// Its reader goes away.
    Closed,
    /// It is a file on a full disk.
    Full,
    /// Its reader stands still.
    Stalled,
    /// Its reader stands still, and a write that would wait is refused.
    Refusing,
}

const ALL: [Stderr; 4] = [
    Stderr::Closed,
    Stderr::Full,
    Stderr::Stalled,
    Stderr::Refusing,
];

/// A reader of stderr that is not there, or does nothing.
struct Log(Option<PipeReader>);

impl Stderr {
    fn open(self) -> (Stdio, Log) {
        if self == Self::Full {
            let full = File::options().write(true).open("/dev/full").unwrap();
            return (full.into(), Log(None));
        }
        let (reader, writer): (PipeReader, PipeWriter) = std::io::pipe().unwrap();
        if self != Self::Closed {
            // Full from the beginning: even the first line has to wait.
            let flags = fcntl_getfl(&writer).unwrap();
            fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
            let mut filled = &writer;
            while filled.write(&[b'\n'; 4_096]).is_ok() {}
            if self == Self::Stalled {
                fcntl_setfl(&writer, flags).unwrap();
            }
        }
        let reader = (self != Self::Closed).then_some(reader);
        (writer.into(), Log(reader))
    }
}

impl Log {
    /// Reads from here on. Returns the lines that are not empty.
    fn read(self) -> impl Iterator<Item = String> {
        let lines = self.0.map(|reader| BufReader::new(reader).lines());
        let lines = lines.into_iter().flatten().map_while(Result::ok);
        lines.filter(|line| !line.is_empty())
    }
}

/// A process that ends with its test.
struct Running(Child);

impl Running {
    fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Waits for its end. Returns the exit code, or that of the signal that ended it as shells count it.
    fn ended(&mut self, what: &str) -> i32 {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status
                    .code()
                    .unwrap_or_else(|| 128 + status.signal().unwrap());
            }
            assert!(began.elapsed() < DEADLINE, "{what} hangs");
            pause(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Starts a server whose stderr nobody reads as they should.
fn serve(data: &Path, address: &str, stderr: Stdio, level: &str) -> Running {
    let mut command = Command::new(program("simplefeed-server"));
    command
        .args(["serve", "--log", level, "--listen", address, "--data"])
        .arg(data)
        .stdout(Stdio::null())
        .stderr(stderr);
    let server = Running::spawn(&mut command);
    wait_for("the server does not listen", || {
        Request::get("/healthz").send(address).ok()
    });
    server
}

fn publish(address: &str, feed: &str) -> u16 {
    let path = format!("/feeds/{feed}");
    let request = Request::post(&path, "application/x-ndjson", "{}");
    request.send(address).unwrap().status
}

fn status_of(address: &str, path: &str) -> u16 {
    Request::get(path).send(address).unwrap().status
}

/// Goal: whatever becomes of stderr, a server takes entries, does tasks of upkeep, is ready and ends in order; what was lost
/// of the log is counted, and told once somebody reads again.
#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    for stderr in ALL {
        let folder = tempfile::tempdir().unwrap();
        let (data, address) = (folder.path().join("data"), free_address());
        let (pipe, log) = stderr.open();
        let mut server = serve(&data, &address, pipe, "debug");
        // More lines than a pipe holds: each new feed is logged.
        for number in 0..600 {
            assert_eq!(publish(&address, &format!("f{number}")), 201, "{stderr:?}");
        }
        assert_eq!(status_of(&address, "/readyz"), 200, "{stderr:?}");
        let mut backup = Command::new(program("simplefeed-server"));
        backup.args(["backup", "--data"]).arg(&data);
        backup.arg("--to").arg(folder.path().join("copy"));
        assert!(run_command(&mut backup, b"").status.success(), "{stderr:?}");
        if stderr == Stderr::Stalled {
            let mut lines = log.read();
            assert!(lines.any(|line| line.contains("f599")), "it goes on");
        }
        signal("TERM", server.0.id());
        assert_eq!(server.ended("the server"), 0, "{stderr:?}");
    }
}

/// Goal: lines that are dropped are counted, and the log says so once somebody reads again.
#[test]
fn dropped_lines_are_counted_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let (address, metrics) = (free_address(), free_address());
    let (pipe, log) = Stderr::Stalled.open();
    let mut command = Command::new(program("simplefeed-server"));
    command
        .args(["serve", "--log", "trace", "--listen", &address])
        .args(["--metrics-listen", &metrics, "--data"])
        .arg(folder.path())
        .stderr(pipe);
    let mut server = Running::spawn(&mut command);
    let dropped = || {
        let answer = Request::get("/metrics").send(&metrics).ok()?;
        let metrics = answer.text();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("simplefeed_log_lines_dropped_total "))?;
        line.rsplit(' ').next()?.parse::<u64>().ok()
    };
    assert_eq!(wait_for("the server does not listen", dropped), 0);
    let mut number = 0;
    wait_for("no line is dropped", || {
        for _ in 0..500 {
            number += 1;
            assert_eq!(publish(&address, &format!("f{number}")), 201);
        }
        dropped().filter(|dropped| *dropped > 0)
    });
    let mut lines = log.read();
    let told = lines.find_map(|line| {
        let (count, _) = line.split_once(" lines of the log were dropped")?;
        count.parse().ok()
    });
    let (told, counted): (u64, _) = (told.unwrap(), dropped().unwrap());
    assert!((1..=counted).contains(&told), "{told} of {counted}");
    signal("TERM", server.0.id());
    std::thread::spawn(move || lines.for_each(drop));
    assert_eq!(server.ended("the server"), 0);
}

/// Runs a program with a stderr that nobody reads, and returns its exit code and what it printed.
fn run_with(stderr: Stderr, args: &[&str], prints: usize) -> (i32, String) {
    let (name, rest) = args.split_first().unwrap();
    let (pipe, _log) = stderr.open();
    let mut command = Command::new(program(name));
    command.args(rest).stdout(Stdio::piped()).stderr(pipe);
    let mut running = Running::spawn(&mut command);
    let mut out = running.0.stdout.take().unwrap();
    let mut printed = String::new();
    if prints > 0 {
        // Of a command without an end.
        let mut lines = BufReader::new(out).lines();
        for _ in 0..prints {
            printed += &lines.next().unwrap().unwrap();
        }
        signal("TERM", running.0.id());
    } else {
        out.read_to_string(&mut printed).unwrap();
    }
    (running.ended(args[1]), printed)
}

/// Goal: no command waits for the reader of its messages: it does its work, and its exit code is the one that it always has.
#[test]
fn messages_that_nobody_reads_stop_no_command() {
    let kinds = if is_long() { &ALL[..] } else { &ALL[..3] };
    for stderr in kinds {
        let folder = tempfile::tempdir().unwrap();
        let (data, path) = (folder.path().join("data"), |name: &str| {
            folder.path().join(name).to_str().unwrap().to_owned()
        });
        let server = Server::start(&data, &[]);
        server.publish_ids("a", ["1".into(), "2".into()]);
        let url = server.url("/feeds/a");
        let commands: [(&[&str], i32, usize); 5] = [
            (&["simplefeed", "replay", &url, "--format", "id"], 0, 0),
            (&["simplefeed", "tail", &url, "--since", "oldest"], 0, 2),
            (&["simplefeed", "watch", &url, "--since", "oldest"], 0, 2),
            (
                &["simplefeed", "replay", "http://127.0.0.1:1/feeds/a"],
                14,
                0,
            ),
            (
                &["simplefeed", "status", &url, "--state", &path("none")],
                3,
                0,
            ),
        ];
        for (args, code, prints) in commands {
            let (found, printed) = run_with(*stderr, args, prints);
            assert_eq!(found, code, "{stderr:?} {args:?}: {printed}");
        }
        server.stop();
        let data = data.to_str().unwrap();
        let (export, copy, new) = (path("export"), path("copy"), path("new"));
        let commands: [&[&str]; 5] = [
            &["verify", "--data", data],
            &["rebuild", "--data", data],
            &["export", "--data", data, "--to", &export],
            &["backup", "--data", data, "--to", &copy],
            &["recover", "--data", data, "--to", &new],
        ];
        for args in commands {
            let args = [&["simplefeed-server"], args].concat();
            assert_eq!(run_with(*stderr, &args, 0).0, 0, "{stderr:?} {args:?}");
        }
    }
}

/// Goal: a refresher goes on, and ends in order, with each fate of its messages.
#[test]
fn messages_that_nobody_reads_stop_no_refresher() {
    let kinds = if is_long() { &ALL[..] } else { &ALL[1..3] };
    for stderr in kinds {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&folder.path().join("data"), &[]);
        server.publish_ids("items", ["1".into(), "2".into()]);
        let (pipe, _log) = stderr.open();
        let intervals = folder.path().join("intervals.toml");
        fs::write(&intervals, "\"1h\" = \"1s\"").unwrap();
        let mut command = Command::new(program("simplefeed"));
        command.args(["refresh", &server.url("/feeds/items"), "--verbose"]);
        command.arg("--intervals").arg(intervals);
        command.args(["--into", &server.url("/feeds/news"), "--buffer", "0s"]);
        command.arg("--queue").arg(folder.path().join("queue"));
        // Each answer is another one, and one item is not known.
        let lookup = "grep 1$ | sed \"s/.*/{\\\"id\\\":\\\"&\\\",\\\"at\\\":1$(date +%N)}/\"";
        command.args(["--lookup-exec", lookup]).stderr(pipe);
        let mut running = Running::spawn(command.stdout(Stdio::null()));
        wait_for("nothing is refreshed", || {
            let news = server.get("/feeds/news/recent.atom");
            news.text().contains("<entry").then_some(())
        });
        signal("TERM", running.0.id());
        assert_eq!(running.ended("the refresher"), 0, "{stderr:?}");
        server.stop();
    }
}

/// Goal: what cannot be shown is not made, and no command panics where its output cannot be written.
#[test]
fn output_that_cannot_be_written_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let (data, file) = (folder.path().join("data"), tokens.to_str().unwrap());
    Server::start(&data, &[]).stop();
    let run = |args: &[&str], stdout: Stdio| {
        let mut command = Command::new(program("simplefeed-server"));
        let output = command.args(args).stdout(stdout).output().unwrap();
        let said = text(&output.stderr);
        assert!(!said.contains("panicked"), "{args:?}: {said}");
        (output.status.code().unwrap(), said)
    };
    let full = || {
        File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
            .into()
    };
    let closed = || {
        let (_reader, writer) = std::io::pipe().unwrap();
        Stdio::from(writer)
    };
    let new = [
        "token", "new", "a", "--right", "read", "--feeds", "*", "--tokens", file,
    ];
    for stdout in [full(), closed()] {
        let (code, said) = run(&new, stdout);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("cannot print the token"), "{said}");
        assert_eq!(fs::read_to_string(&tokens).unwrap_or_default(), "");
    }
    assert_eq!(run(&new, Stdio::null()).0, 0);
    let data = data.to_str().unwrap();
    let shown: [&[&str]; 2] = [
        &["token", "list", "--tokens", file],
        &["config", "show", "--data", data],
    ];
    for args in shown {
        assert_eq!(run(args, full()).0, 1, "{args:?}");
        // A reader such as `head` closes the pipe early.
        assert_eq!(run(args, closed()).0, 0, "{args:?}");
    }
}

/// Goal: a command that cannot write its output names stdout and the full disk.
#[test]
fn a_full_stdout_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", ["1".into()]);
    let url = server.url("/feeds/a");
    let commands: [&[&str]; 5] = [
        &["replay", &url],
        &["tail", &url, "--since", "oldest"],
        &["watch", &url, "--since", "oldest"],
        &["get", &url],
        &["ls", &server.url("/feeds")],
    ];
    for args in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(program("simplefeed"));
        let output = command.args(args).stdout(full).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("cannot write to stdout"), "{args:?}: {said}");
        assert!(said.contains("the disk is full"), "{args:?}: {said}");
    }
}

/// Goal: a stdout that is open for reading only is an error: the command fails, and the
/// bookmark stays.
#[test]
fn a_stdout_for_reading_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", ["1".into()]);
    let url = server.url("/feeds/a");
    let mark = folder.path().join("mark");
    let kept = mark.to_str().unwrap();
    let commands: [&[&str]; 6] = [
        &["replay", &url, "--bookmark", kept],
        &["replay", &url, "--count"],
        &["tail", &url, "--since", "oldest", "--bookmark", kept],
        &["watch", &url, "--since", "oldest"],
        &["get", &url],
        &["ls", &server.url("/feeds")],
    ];
    for args in commands {
        let mut command = Command::new(program("simplefeed"));
        let output = command.args(args).stdout(File::open("/dev/null").unwrap());
        let output = output.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("for reading only"), "{args:?}: {said}");
        assert!(!mark.exists(), "{args:?}");
    }
    server.stop();
}

/// Goal: a bookmark or a lock that is a pipe is refused at once; its opening would wait for ever.
#[test]
fn a_pipe_for_a_bookmark_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", ["1".into()]);
    let url = server.url("/feeds/a");
    let in_folder = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let pipe = |name: &str| {
        assert!(
            run_command(Command::new("mkfifo").arg(in_folder(name)), b"")
                .status
                .success()
        );
    };
    pipe("mark");
    pipe(".free.lock");
    let state = in_folder("state");
    let mut command = Command::new(program("simplefeed"));
    command.args(["replay", &url, "--state", &state, "--exec", "true"]);
    assert!(run_command(&mut command, b"").status.success());
    fs::remove_file(in_folder("state/lock")).unwrap();
    pipe("state/lock");
    let tasks: [&[&str]; 6] = [
        &["replay", &url, "--bookmark", &in_folder("mark")],
        &["replay", &url, "--bookmark", &in_folder("free")],
        &["replay", &url, "--state", &state, "--exec", "true"],
        &["tail", &url, "--bookmark", &in_folder("mark")],
        &["bookmark", "show", &in_folder("mark")],
        &["bookmark", "show", "/dev/zero"],
    ];
    for args in tasks {
        let mut command = Command::new(program("simplefeed"));
        let mut running = Running::spawn(command.args(args).stderr(Stdio::piped()));
        let code = running.ended(&args.join(" "));
        let mut said = String::new();
        running
            .0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(code, 1, "{args:?}: {said}");
        assert!(said.contains("no regular file"), "{args:?}: {said}");
    }
    server.stop();
}

/// Goal: a usage error waits for no reader of stderr that stands still.
#[test]
fn a_usage_error_waits_for_nobody() {
    for name in ["simplefeed", "simplefeed-server"] {
        for args in [&["nonsense"][..], &[]] {
            let (stderr, _log) = Stderr::Stalled.open();
            let mut command = Command::new(program(name));
            let mut running = Running::spawn(command.args(args).stderr(stderr));
            assert_eq!(running.ended(name), 2, "{name} {args:?}");
        }
    }
}

/// Goal: a service manager that takes no notification holds no server up, neither at its start nor at its end.
#[test]
fn a_manager_that_stands_still_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let filling = UnixDatagram::unbound().unwrap();
    filling.set_nonblocking(true).unwrap();
    while filling.send_to(b"X=1", &path).is_ok() {}
    let mut command = Command::new(program("simplefeed-server"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]);
    command
        .arg(folder.path().join("data"))
        .env("NOTIFY_SOCKET", &path);
    let server = Server::try_spawn(command).unwrap();
    server.publish_ids("a", ["1".into()]);
    server.stop();
    drop(manager);
}

/// Goal: a non-blocking pipe loses nothing: the command waits for its reader.
#[test]
fn a_stdout_that_does_not_wait_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    // More than a pipe holds.
    let lines = "{\"content\":\"some words to fill the pipe with, and some more\"}\n".repeat(3_000);
    assert_eq!(server.publish("a", &lines).status, 201);
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    let mut command = Command::new(program("simplefeed"));
    command.args(["replay", &server.url("/feeds/a")]);
    let mut replay = Running::spawn(command.stdout(writer));
    // The command holds another writer until it is dropped.
    drop(command);
    wait_for("the pipe is not filled", || {
        (rustix::io::ioctl_fionread(&reader).unwrap() > 32 * 1_024).then_some(())
    });
    // So is the rest soon, unless the command has ended.
    pause(Duration::from_millis(100));
    assert_eq!(BufReader::new(reader).lines().count(), 3_000);
    assert_eq!(replay.ended("replay"), 0);
    server.stop();
}

/// What systemd does: sockets as file descriptors from 3 on, and who they are for. Prints the port of each.
const ACTIVATE: &str = "import os,socket,sys\n\
    S,I,J=socket.SOCK_STREAM,socket.AF_INET,socket.AF_INET6\n\
    def new(kind):\n\
    \x20 if kind=='tcp': s=socket.socket(I,S); s.bind(('127.0.0.1',0)); s.listen()\n\
    \x20 if kind=='tcp6': s=socket.socket(J,S); s.bind(('::1',0)); s.listen()\n\
    \x20 if kind=='bound': s=socket.socket(I,S); s.bind(('127.0.0.1',0))\n\
    \x20 if kind=='udp': s=socket.socket(I,socket.SOCK_DGRAM); s.bind(('127.0.0.1',0))\n\
    \x20 if kind=='unix': s=socket.socket(socket.AF_UNIX,S); s.bind(sys.argv[2]+'.socket'); s.listen()\n\
    \x20 return s\n\
    made=[new(kind) for kind in sys.argv[1].split(',')]\n\
    ports=[s.getsockname()[1] if s.family!=socket.AF_UNIX else 0 for s in made]\n\
    print(*ports,flush=True)\n\
    high=[os.dup2(s.fileno(),50+n) for n,s in enumerate(made)]\n\
    for n,fd in enumerate(high): os.dup2(fd,3+n); os.set_inheritable(3+n,True)\n\
    os.environ.update(LISTEN_FDS=str(len(made)),LISTEN_PID=str(os.getpid()))\n\
    os.execv(sys.argv[3],sys.argv[3:])\n";

fn activated(kinds: &str, data: &Path) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", ACTIVATE, kinds]).arg(data);
    command.arg(program("simplefeed-server"));
    command.args(["serve", "--listen", "127.0.0.1:1", "--data"]);
    command.arg(data);
    command
}

/// Goal: all sockets that systemd hands over are served, in any order; a server that cannot serve one says so, and does not
/// start.
#[test]
fn every_socket_that_is_handed_over_is_served() {
    let has_v6 = TcpListener::bind("[::1]:0").is_ok();
    if !has_v6 {
        eprintln!("NOT RUN: sockets of IPv6 (this system has none)");
    }
    for kinds in ["tcp,tcp6", "tcp6,tcp", "tcp,tcp,tcp6"] {
        let kinds = &if has_v6 {
            kinds.into()
        } else {
            kinds.replace("tcp6", "tcp")
        };
        let folder = tempfile::tempdir().unwrap();
        let mut command = activated(kinds, &folder.path().join("data"));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Running::spawn(&mut command);
        let mut ports = String::new();
        let mut stdout = BufReader::new(server.0.stdout.take().unwrap());
        stdout.read_line(&mut ports).unwrap();
        for (kind, port) in kinds.split(',').zip(ports.split_whitespace()) {
            let host = if kind == "tcp6" { "[::1]" } else { "127.0.0.1" };
            let address = format!("{host}:{port}");
            assert_eq!(status_of(&address, "/readyz"), 200, "{address} of {kinds}");
            assert_eq!(publish(&address, &format!("f{port}")), 201);
        }
        signal("TERM", server.0.id());
        assert_eq!(server.ended("the server"), 0);
    }
    for (kinds, problem) in [
        ("tcp,unix", "descriptor 4 cannot be served"),
        ("udp,tcp", "descriptor 3 cannot be served"),
        (
            "tcp,bound",
            "descriptor 4 cannot be served: it does not listen",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let refused = run_command(&mut activated(kinds, &data), b"");
        assert_eq!(refused.status.code(), Some(2), "{kinds}");
        let said = text(&refused.stderr);
        assert!(said.contains(problem), "{kinds}: {said}");
        assert!(!data.exists(), "nothing is touched");
    }
}

/// Goal: `health` says in words what it could not do.
#[test]
fn health_says_what_it_could_not_do() {
    let health = |address: &str| {
        let mut command = Command::new(program("simplefeed-server"));
        let output = run_command(command.args(["health", "--listen", address]), b"");
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let nobody = free_address();
    let said = health(&nobody);
    assert!(
        said.contains(&format!("nobody listens at {nobody}")),
        "{said}"
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let said = health(&silent);
    assert!(said.contains("gives no answer within 15 s"), "{said}");
    let other = std::thread::spawn(move || {
        // The one that `health` has given up waits before it.
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            // Else the close would be a reset, and the answer be lost.
            let _asked = stream.read(&mut [0; 1_000]);
            let _gone = stream.write_all(b"SSH-2.0-x\r\n\r\n");
        }
    });
    let said = health(&silent);
    assert!(said.contains("is no HTTP server"), "{said}");
    other.join().unwrap();
}

/// Runs a shell command in a mount namespace of its own, in a folder.
fn run_mounted(folder: &Path, script: &str, args: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh"]);
    let programs = ["simplefeed-server", "simplefeed"].map(program);
    for name in programs {
        command.arg(name);
    }
    run_command(command.args(args).current_dir(folder), b"")
}

/// Goal: a file that is a mount of its own, as in a container, is refused before the first entry, with the way out; nothing is
/// left behind.
#[test]
#[ignore = "needs root, to mount files"]
fn a_file_that_is_a_mount_is_refused_first() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", ["1".into(), "2".into()]);
    let url = server.url("/feeds/a");
    let there = |name: &str| folder.path().join(name).exists();
    // A bookmark from before, so that nothing has to be saved before the first entry.
    let replay = "$2 replay \"$3\" --format id --bookmark place/mark";
    fs::create_dir(folder.path().join("place")).unwrap();
    assert!(run_mounted(folder.path(), replay, &[&url]).status.success());
    server.publish_ids("a", ["3".into()]);
    let mounted = "touch mark; cp place/mark mark; mount --bind mark place/mark;";
    let refused = run_mounted(folder.path(), &format!("{mounted} {replay}"), &[&url]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("mount its folder"), "{said}");
    assert_eq!(text(&refused.stdout), "", "no entry is handed over");
    assert!(!there("place/mark.new"));
    // The way out.
    let mounted = "mkdir -p marks; cp place/mark marks; mount --bind marks place;";
    let goes = run_mounted(folder.path(), &format!("{mounted} {replay}"), &[&url]);
    assert_eq!(text(&goes.stdout), "urn:t:3\n", "{}", text(&goes.stderr));
    // Tokens.
    let new = "$1 token new a --right read --feeds '*' --tokens tokens;";
    assert!(run_mounted(folder.path(), new, &[]).status.success());
    let tokens = || fs::read_to_string(folder.path().join("tokens")).unwrap();
    let before = tokens();
    let revoke = "cp tokens t; mount --bind t tokens; $1 token revoke a --tokens tokens";
    let refused = run_mounted(folder.path(), revoke, &[]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("mount its folder"), "{said}");
    assert_eq!(tokens(), before);
    assert!(!there("tokens.new"));
    server.stop();
}

/// Goal: a log on a file system that is mounted for reading only is no damage, and the message names two ways out, which
/// work.
#[test]
#[ignore = "needs root, to mount folders"]
fn a_log_that_cannot_be_written_says_what_to_copy() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &["--document-entries", "2"]);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    let read_only = "mount --bind data data; mount -o remount,bind,ro data;";
    let verify = "$1 verify --data";
    for task in [
        verify,
        "$1 backup --to copy --data",
        "$1 export --to files --data",
    ] {
        let refused = run_mounted(folder.path(), &format!("{read_only} {task} data"), &[]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(
            said.contains("cp -a") && said.contains("mount -t overlay"),
            "{said}"
        );
    }
    let copied = format!("{read_only} cp -a data copied; {verify} copied");
    let layered = format!(
        "{read_only} mkdir layer m; mount -t tmpfs tmpfs layer; mkdir layer/u layer/w; mount -t overlay overlay -o \
         lowerdir=data,upperdir=layer/u,workdir=layer/w m; {verify} m"
    );
    for way in [copied, layered] {
        let checked = run_mounted(folder.path(), &way, &[]);
        let said = text(&checked.stderr);
        assert!(checked.status.success(), "{said}");
        assert!(said.contains("2 archived documents: 0 faults"), "{said}");
    }
}

/// Goal: a place on a read-only file system is called that.
#[test]
#[ignore = "needs root, to mount folders"]
fn a_place_for_reading_only_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", ["1".into()]);
    let url = server.url("/feeds/a");
    fs::create_dir(folder.path().join("kept")).unwrap();
    let read_only = "mount --bind kept kept; mount -o remount,bind,ro kept;";
    for task in [
        "$1 token new a --right read --feeds '*' --tokens kept/tokens",
        "$2 replay $3 --bookmark kept/mark",
        "$2 replay $3 --state kept/state",
    ] {
        let refused = run_mounted(folder.path(), &format!("{read_only} {task}"), &[&url]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{task}: {said}");
        assert!(said.contains("mounted for reading only"), "{task}: {said}");
        assert!(!said.contains("data folder"), "{task}: {said}");
    }
    server.stop();
}

/// Runs a server's command as a user without rights.
fn run_as_nobody(args: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg(program("simplefeed-server")).args(args);
    run_command(command.current_dir("/"), b"")
}

/// Returns all files and folders of a folder, and the folder itself.
fn all_in(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![folder.to_path_buf()];
    for item in fs::read_dir(folder).unwrap() {
        let item = item.unwrap();
        if item.file_type().unwrap().is_dir() {
            all.extend(all_in(&item.path()));
        } else {
            all.push(item.path());
        }
    }
    all
}

/// Goal: what may not be read is called neither damaged nor lost, whichever file or folder it is; faults that are found beside
/// it are told.
#[test]
#[ignore = "needs root, to become somebody else"]
fn what_may_not_be_read_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--document-entries", "2"]);
    server.publish_ids("a", (0..7).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/3.atom");
    server.stop();
    let mut owned = Command::new("chown");
    owned.args(["-R", "65534:65534"]).arg(folder.path());
    assert!(run_command(&mut owned, b"").status.success());
    let (to, text_of) = (folder.path().join("new"), |path: &Path| {
        path.to_str().unwrap().to_owned()
    });
    let (data_text, to) = (text_of(&data), text_of(&to));
    for path in all_in(&data) {
        let mode = fs::metadata(&path).unwrap().permissions();
        for task in [
            &["verify", "--data", &data_text][..],
            &["recover", "--data", &data_text, "--to", &to],
        ] {
            // Each time: a log keeps private folders to its owner, who may read them again then.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
            let Output { status, stderr, .. } = run_as_nobody(task);
            let said = text(&stderr);
            let what = format!("{} {}: {said}", task[0], path.display());
            match status.code() {
                // What is made again need not be read.
                Some(0) => assert_eq!(task[0], "verify", "{what}"),
                Some(1) => assert!(said.contains("Permission denied"), "{what}"),
                code => panic!("{code:?} {what}"),
            }
        }
        fs::set_permissions(&path, mode).unwrap();
    }
    let documents = data.join("www/feeds/a");
    fs::write(documents.join("1.atom"), "rot").unwrap();
    fs::set_permissions(documents.join("3.atom"), fs::Permissions::from_mode(0o0)).unwrap();
    let checked = run_as_nobody(&["verify", "--data", &data_text]);
    assert_eq!(checked.status.code(), Some(15));
    assert!(
        text(&checked.stdout).contains("1.atom"),
        "{}",
        text(&checked.stdout)
    );
    let said = text(&checked.stderr);
    assert!(
        said.contains("Checking ended there") && said.contains("Permission denied"),
        "{said}"
    );
}

/// Goal: a warning says when something is tried again, and an error through which proxy a connection went, without the
/// password in its URL.
#[test]
fn a_warning_says_when_and_through_what() {
    let busy = Site::new(|_: &Asked, stream| {
        let answer = answer("503 Service Unavailable", "Retry-After: 86400\r\n", b"");
        let _gone = stream.write_all(&answer);
    });
    let mut command = Command::new(program("simplefeed"));
    command
        .args(["tail", &busy.url("/feeds/a")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut tail = Running::spawn(&mut command);
    let mut lines = BufReader::new(tail.0.stderr.take().unwrap()).lines();
    let said = lines.next().unwrap().unwrap();
    // Up to a quarter more, so that not all come back together.
    assert!(said.contains("trying again in 1 d"), "{said}");
    signal("TERM", tail.0.id());
    assert_eq!(tail.ended("tail"), 0);
    let mut command = Command::new(program("simplefeed"));
    command
        .args(["get", "http://feeds.invalid/feeds/a"])
        .env("http_proxy", "http://me:secret@127.0.0.1:1");
    let failed = run_command(&mut command, b"");
    let said = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(14), "{said}");
    assert!(
        said.contains("through the proxy http://127.0.0.1:1"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
}

/// Goal: a full folder for temporary files is named, with the bytes that were to be kept there.
#[test]
#[ignore = "needs root, to mount a small disk"]
fn a_full_folder_for_temporary_files_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let long = "x".repeat(100_000);
    for number in 0..20 {
        let line = format!("{{\"id\":\"urn:t:{number}\",\"content\":\"{long}\"}}");
        assert_eq!(server.publish("a", &line).status, 201);
    }
    let script = "mkdir tmp; mount -t tmpfs -o size=1m tmpfs tmp; TMPDIR=$PWD/tmp $2 replay --reverse \"$3\"";
    let failed = run_mounted(folder.path(), script, &[&server.url("/feeds/a")]);
    let said = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(
        said.contains("/tmp,") && said.contains("TMPDIR") && said.contains("bytes"),
        "{said}"
    );
}

/// Goal: a command whose stdout was closed before it began prints nothing, and neither moves a bookmark nor makes a token.
#[test]
fn a_closed_stdout_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", ["1".into()]);
    let run = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]);
        command
            .arg(program("simplefeed-server"))
            .arg(program("simplefeed"));
        command.arg(server.url("/feeds/a"));
        run_command(command.current_dir(folder.path()), b"")
    };
    for script in [
        "$2 replay $3 --bookmark mark --format id >&-",
        "$1 token new a --right read --feeds '*' --tokens tokens >&-",
    ] {
        let refused = run(script);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{script}: {said}");
        assert!(said.contains("stdout is closed"), "{script}: {said}");
    }
    assert!(!folder.path().join("tokens").exists());
    let replayed = run("$2 replay $3 --bookmark mark --format id");
    assert_eq!(text(&replayed.stdout), "urn:t:1\n");
    // An explicit null device is no closed stdout.
    assert_eq!(
        run("$2 replay $3 --format id >/dev/null").status.code(),
        Some(0)
    );
    server.stop();
}

/// Goal: a file of tokens that is none is refused, and holds up neither a running server nor a command.
#[test]
fn a_pipe_for_tokens_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let (data, tokens) = (folder.path().join("data"), folder.path().join("tokens"));
    let file = tokens.to_str().unwrap();
    let new = [
        "token", "new", "a", "--right", "read", "--feeds", "*", "--tokens", file,
    ];
    let run = |args: &[&str]| {
        let mut command = Command::new(program("simplefeed-server"));
        run_command(command.args(args), b"")
    };
    assert!(run(&new).status.success());
    let server = Server::start(&data, &["--tokens", file]);
    fs::remove_file(&tokens).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &tokens, rustix::fs::Mode::RWXU).unwrap();
    server.signal("HUP");
    server.wait_for_log(&["the tokens stay as they were"]);
    assert_eq!(server.get("/healthz").status, 200);
    server.stop();
    for args in [&new[..], &["token", "list", "--tokens", file]] {
        assert_eq!(run(args).status.code(), Some(1), "{args:?}");
    }
}
