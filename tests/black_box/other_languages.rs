//! The consumers of `docs/consumers` in other languages, against a real server.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{
    access::Guarded,
    harness::{Server, free_address, pause, wait_for, workspace},
};

/// A consumer in a language, and its program.
#[derive(Clone, Copy)]
struct Language {
    program: &'static str,
    file: &'static str,
}

const PYTHON: Language = Language {
    program: "python3",
    file: "consume.py",
};
const NODE: Language = Language {
    program: "node",
    file: "consume.mjs",
};

impl Language {
    fn command(self, url: &str, place: &Path) -> Command {
        let mut command = Command::new(self.program);
        let file = workspace().join("docs/consumers").join(self.file);
        command.arg(file).arg(url).arg(place).stderr(Stdio::piped());
        command
    }
}

/// A consumer that runs, and prints to a file. It is killed when dropped.
struct Running(Child);

impl Running {
    fn start(language: Language, url: &str, folder: &Path, output: &Path) -> Self {
        let mut command = language.command(url, &folder.join("place"));
        Self(
            command
                .stdout(File::create(output).unwrap())
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Goal: wrong arguments end a consumer with a word, and so does the first failure of a server that is not there.
fn says_what_is_wrong(language: Language) {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    for url in ["example.org/feeds/a", "ftp://127.0.0.1/feeds/a", ""] {
        let output = language.command(url, &place).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{url}");
        assert!(!output.stderr.is_empty());
    }
    let file = workspace().join("docs/consumers").join(language.file);
    let output = Command::new(language.program).arg(file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let url = format!("http://{}/feeds/a", free_address());
    let mut away = language.command(&url, &place).spawn().unwrap();
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(away.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
    away.kill().unwrap();
    away.wait().unwrap();
    assert!(said.contains("trying again"), "{said}");
}

#[test]
fn python_says_what_is_wrong() {
    says_what_is_wrong(PYTHON);
}

#[test]
fn node_consumes_each_entry_or_says_what_is_wrong() {
    says_what_is_wrong(NODE);
}

fn printed(output: &Path) -> Vec<usize> {
    let text = fs::read_to_string(output).unwrap();
    // A kill may have cut the last line.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let number = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["id"]
            .as_str()
            .unwrap()
            .strip_prefix("urn:n:")
            .unwrap()
            .parse()
            .unwrap()
    };
    whole.lines().map(number).collect()
}

/// Each entry is printed, in order, over kills of the consumer and of the server; and each state ends it with its code.
fn check(language: Language) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let (data, address) = (path("data"), free_address());
    let mut server = Server::start_at(&address, &data, &[]);
    let url = format!("http://{address}/feeds/a");
    let publish = |server: &Server, numbers: std::ops::Range<usize>| {
        let lines = numbers.map(|number| format!("{{\"id\":\"urn:n:{number}\"}}\n"));
        assert_eq!(server.publish("a", &lines.collect::<String>()).status, 201);
    };
    publish(&server, 0..100);
    let mut next = 0;
    for run in 0..6 {
        let output = path(&format!("{run}.ndjson"));
        let running = Running::start(language, &url, folder.path(), &output);
        publish(&server, 100 * run + 100..100 * run + 150);
        if run % 2 == 1 {
            server.kill();
            pause(Duration::from_millis(300));
            server = Server::start_at(&address, &data, &[]);
        }
        publish(&server, 100 * run + 150..100 * run + 200);
        let end = 100 * run + 200;
        wait_for(
            &format!("{} does not print entry {end}", language.file),
            || (printed(&output).last() == Some(&(end - 1))).then_some(()),
        );
        let numbers = printed(&output);
        // It may repeat the entry whose place was not kept.
        assert!(
            numbers[0] <= next && numbers[0] + 1 >= next,
            "{next}: {numbers:?}"
        );
        assert!(numbers.iter().copied().eq(numbers[0]..end), "{numbers:?}");
        next = end;
        drop(running);
    }
    // States: there is no such feed; another history.
    let absent = format!("http://{address}/feeds/none");
    let code = |url: &str, place: &str| {
        let ended = language.command(url, &path(place)).output().unwrap();
        assert!(!ended.stderr.is_empty() && ended.stdout.is_empty());
        ended.status.code()
    };
    assert_eq!(code(&absent, "nowhere"), Some(10));
    server.stop();
    fs::remove_dir_all(&data).unwrap();
    let server = Server::start_at(&address, &data, &[]);
    publish(&server, 10_000..10_900);
    assert_eq!(code(&url, "place"), Some(15));
    drop(server);
    let guarded = Guarded::start(&[]);
    let shut = format!("http://{}/feeds/shut", guarded.server.address);
    assert_eq!(code(&shut, "nowhere"), Some(10));
    let mut command = language.command(&shut, &path("shut"));
    let output = path("shut.ndjson");
    command.env("SIMPLEFEED_TOKEN", &guarded.reader);
    let running = Running(
        command
            .stdout(File::create(&output).unwrap())
            .spawn()
            .unwrap(),
    );
    wait_for("a token does not count", || {
        (fs::read_to_string(&output).unwrap().lines().count() == 8).then_some(())
    });
    drop(running);
}

#[test]
fn python_consumes_each_entry() {
    check(PYTHON);
}

#[test]
#[ignore = "needs node"]
fn node_consumes_each_entry() {
    check(NODE);
}
