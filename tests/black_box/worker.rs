//! Handlers on the command line, with real processes: what fails, hangs, crashes and kills the consumer.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use crate::{
    dice::Dice,
    harness::{Server, example, pause, program, run, signal, simplefeed, text, wait_for},
};

/// A feed of six orders from two customers, and a folder for the state.
struct Scene {
    folder: tempfile::TempDir,
    server: Server,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&folder.path().join("data"), &["--document-entries", "2"]);
        let scene = Self { folder, server };
        scene.publish(1..=6);
        scene
    }

    fn publish(&self, orders: impl Iterator<Item = u32>) {
        let lines: String = orders.fold(String::new(), |lines, order| {
            let customer = order % 2;
            lines
                + &format!(
                    "{{\"id\":\"urn:{order}\",\"content\":{{\"customer\":{customer}}},\
                     \"categories\":[{{\"term\":\"{customer}\",\"scheme\":\"urn:customer\"}}]}}\n"
                )
        });
        simplefeed(&["append", &self.feed()], lines.as_bytes());
    }

    fn feed(&self) -> String {
        self.server.url("/feeds/orders")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Runs a handler to the end of the feed. It notes each entry it begins in `begun`, then does what it is
    /// told; if it kills the consumer, another one goes on.
    fn run(&self, handler: &str, more: &[&str]) -> Output {
        let begun = self.path("begun");
        let exec = format!(
            "n=${{SIMPLEFEED_ID#urn:}}; echo $n >> {}; {handler}",
            begun.display()
        );
        let (feed, state) = (self.feed(), self.path("state"));
        let state = state.to_str().unwrap();
        let mut args = vec!["replay", &feed, "--state", state, "--exec", &exec];
        args.extend(more);
        for _ in 0..20 {
            let output = run("simplefeed", &args, b"");
            if output.status.code().is_some() {
                return output;
            }
        }
        panic!("it never comes to an end");
    }

    /// The entries begun, in order.
    fn begun(&self) -> String {
        self.text("begun").replace('\n', " ").trim().into()
    }

    fn parked(&self) -> String {
        let state = self.path("state");
        let args = [
            "parked",
            "list",
            "--json",
            "--state",
            state.to_str().unwrap(),
        ];
        let lines = simplefeed(&args, b"");
        let ids = lines.lines().map(|line| {
            let parked: serde_json::Value = serde_json::from_str(line).unwrap();
            let id = parked["id"].as_str().unwrap().to_owned();
            let waits = if parked["waits"] == true { "w" } else { "" };
            format!("{}{waits}", id.strip_prefix("urn:").unwrap())
        });
        ids.collect::<Vec<_>>().join(" ")
    }

    /// What the record says: `what` and number.
    fn record(&self) -> String {
        let text = self.text("state/record.ndjson");
        let lines = text.lines().map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let id = line["id"].as_str().unwrap().strip_prefix("urn:").unwrap();
            format!("{} {id}", line["what"].as_str().unwrap())
        });
        lines.collect::<Vec<_>>().join(", ")
    }
}

/// Each kind of failure at entry 2, and what it is called.
const FAULTS: [(&str, &str); 4] = [
    ("exit 3", "exit status: 3"),
    ("sleep 600", "took longer than 3s"),
    ("kill -SEGV $$", "SIGSEGV"),
    ("kill -KILL $PPID; sleep 1", "the process ended during it"),
];

const PATIENCE: [&str; 4] = ["--attempts", "2", "--attempt-timeout", "3s"];

fn failing(fault: &str) -> String {
    format!("test $n != 2 || {{ {fault}; }}")
}

#[test]
fn what_fails_is_skipped_and_recorded() {
    for (fault, why) in FAULTS {
        let scene = Scene::new();
        let output = scene.run(
            &failing(fault),
            &[&["--policy", "skip"][..], &PATIENCE].concat(),
        );
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        assert_eq!(scene.begun(), "1 2 2 3 4 5 6", "{fault}");
        assert_eq!(
            (scene.record(), scene.parked()),
            ("skipped 2".into(), String::new())
        );
        let record = scene.text("state/record.ndjson");
        assert!(record.contains(why), "{record}");
        // It is done with.
        let output = scene.run(&failing(fault), &["--policy", "skip"]);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(scene.begun(), "1 2 2 3 4 5 6", "{fault}");
    }
}

#[test]
fn what_fails_is_parked_and_can_be_retried() {
    for (fault, why) in FAULTS {
        let scene = Scene::new();
        let output = scene.run(
            &failing(fault),
            &[&["--policy", "park"][..], &PATIENCE].concat(),
        );
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        assert_eq!(scene.begun(), "1 2 2 3 4 5 6", "{fault}");
        assert_eq!(
            (scene.record(), scene.parked()),
            ("parked 2".into(), "2".into())
        );
        let state = scene.path("state");
        let parked = |command: &str, more: &[&str]| {
            let state = state.to_str().unwrap();
            let args = [&["parked", command, "--state", state], more].concat();
            run("simplefeed", &args, b"")
        };
        let listed = text(&parked("list", &[]).stdout);
        assert!(listed.contains(why), "{listed}");
        assert_eq!(text(&parked("show", &["--format", "id"]).stdout), "urn:2\n");
        let failed = parked("retry", &["--exec", "exit 1"]);
        assert_eq!(failed.status.code(), Some(3), "{}", text(&failed.stderr));
        let retried = parked("retry", &["urn:2", "--exec", "cat", "--format", "id"]);
        assert_eq!(
            (retried.status.code(), text(&retried.stdout)),
            (Some(0), "urn:2\n".into())
        );
        assert_eq!(scene.parked(), "");
        assert_eq!(scene.record(), "parked 2, retried 2");
        let gone = parked("drop", &["urn:2", "--reason", "x"]);
        assert_eq!(gone.status.code(), Some(1));
        assert!(text(&gone.stderr).contains("entry urn:2 is not parked"));
    }
}

/// The key is a JSON pointer or the scheme of a category.
#[test]
fn what_has_the_key_of_what_is_parked_waits_behind_it() {
    for key in ["/customer", "urn:customer"] {
        for (fault, _) in FAULTS {
            let scene = Scene::new();
            let policy = ["--policy", "park-by-key", "--key", key];
            scene.run(&failing(fault), &[&policy[..], &PATIENCE].concat());
            assert_eq!(scene.begun(), "1 2 2 3 5", "{fault}");
            assert_eq!(scene.parked(), "2 4w 6w");
            assert_eq!(scene.record(), "parked 2, waits 4, waits 6");
            // Across restarts, too.
            scene.publish(7..=8);
            scene.run("true", &policy);
            assert_eq!(
                (scene.begun(), scene.parked()),
                ("1 2 2 3 5 7".into(), "2 4w 6w 8w".into())
            );
            if key.starts_with('/') && fault == "exit 3" {
                let state = scene.path("state");
                let state = state.to_str().unwrap();
                let drop = [
                    "parked", "drop", "--state", state, "urn:2", "--reason", "no order",
                ];
                simplefeed(&drop, b"");
                let retry = [
                    "parked", "retry", "--state", state, "--exec", "cat", "--format", "id",
                ];
                assert_eq!(simplefeed(&retry, b""), "urn:4\nurn:6\nurn:8\n");
                assert!(
                    scene
                        .record()
                        .ends_with("dropped 2, retried 4, retried 6, retried 8")
                );
            }
        }
    }
}

/// It is tried again until it succeeds, and nothing behind it is begun before.
#[test]
fn what_fails_blocks() {
    for (fault, _) in FAULTS {
        let scene = Scene::new();
        let tried = scene.path("tried");
        let handler = format!(
            "test $n != 2 || test -e {0} || {{ touch {0}; {fault}; }}",
            tried.display()
        );
        let output = scene.run(&handler, &["--attempt-timeout", "3s"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(scene.begun(), "1 2 2 3 4 5 6", "{fault}");
        assert_eq!(
            (scene.record(), scene.parked()),
            (String::new(), String::new())
        );
    }
}

/// A command that ends has ended, whoever still holds its stdin.
#[test]
fn a_command_need_not_read_and_may_leave_somebody_behind() {
    let scene = Scene::new();
    let large = "x".repeat(200_000);
    let line = format!("{{\"id\":\"urn:7\",\"content\":\"{large}\"}}");
    simplefeed(&["append", &scene.feed()], line.as_bytes());
    let handler = "exec 3<&0; sleep 20 <&3 >/dev/null 2>&1 & exit 0";
    let output = scene.run(handler, &["--policy", "skip", "--attempt-timeout", "10s"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(scene.begun(), "1 2 3 4 5 6 7");
}

/// What clap takes and we do not is usage, too, and leaves nothing behind.
#[test]
fn rules_that_make_no_sense_are_refused() {
    let scene = Scene::new();
    for (rules, said) in [
        (&["--policy", "park-by-key"][..], "park-by-key needs --key"),
        (&["--key", "/customer"], "--key is for --policy park-by-key"),
        (
            &["--policy", "park-by-key", "--key", "customer"],
            "neither a JSON pointer",
        ),
        (
            &["--policy", "sheep"],
            "a policy is block, skip, park or park-by-key",
        ),
    ] {
        let output = scene.run("true", rules);
        assert_eq!(output.status.code(), Some(2), "{rules:?}");
        assert!(
            text(&output.stderr).contains(said),
            "{}",
            text(&output.stderr)
        );
        assert!(!scene.path("state").exists());
    }
}

/// A second signal kills the command, also that of a batch. The state then has a beginning and no success.
#[test]
fn a_second_signal_kills_the_command() {
    for batch in [&[][..], &["--batch", "3"]] {
        let scene = Scene::new();
        let begun = scene.path("begun");
        let exec = format!("echo x >> {0}; sleep 30; echo y >> {0}", begun.display());
        let feed = scene.feed();
        let mut child = Command::new(program("simplefeed"))
            .args(["tail", &feed, "--since", "oldest", "--exec", &exec])
            .args(batch)
            .arg("--state")
            .arg(scene.path("state"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for("it never begins", || fs::read_to_string(&begun).ok());
        signal("INT", child.id());
        pause(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none());
        signal("INT", child.id());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130));
        assert!(text(&ended.stderr).contains("once more, and it is killed"));
        assert_eq!(scene.text("begun"), "x\n");
        assert!(scene.path("state/bookmark").exists());
        assert!(!scene.path("state/succeeded").exists());
        scene.run("true", &[]);
        assert_eq!(scene.begun(), "x 1 2 3 4 5 6");
    }
}

#[test]
fn a_handler_is_told_what_an_entry_is() {
    let scene = Scene::new();
    let handler =
        "cat > /dev/null; echo \"$SIMPLEFEED_POSITION $SIMPLEFEED_TYPE ${SIMPLEFEED_UPDATED%%-*}\"";
    let output = scene.run(handler, &[]);
    let first = text(&output.stdout).lines().next().unwrap().to_owned();
    assert!(first.starts_with("0 application/json 20"), "{first}");
    let scene = Scene::new();
    let output = scene.run("cat", &["--format", "atom"]);
    assert_eq!(text(&output.stdout).matches("<entry").count(), 6);
}

#[test]
fn a_state_folder_has_one_user() {
    let scene = Scene::new();
    let (feed, state) = (scene.feed(), scene.path("state"));
    let state = state.to_str().unwrap();
    let args = [
        "tail", &feed, "--since", "oldest", "--state", state, "--exec", "sleep 5",
    ];
    let mut first = Command::new(program("simplefeed"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = || fs::read_to_string(scene.path("state/bookmark")).ok();
    wait_for("it never begins", begun);
    for second in [
        &args[..],
        &["replay", &feed, "--state", state],
        &["parked", "retry", "--state", state, "--exec", "true"],
    ] {
        let output = run("simplefeed", second, b"");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(11), "{said}");
        assert!(said.contains(&format!("process {}", first.id())), "{said}");
    }
    // Who only looks is let in.
    let looking = run("simplefeed", &["status", &feed, "--state", state], b"");
    assert_eq!(looking.status.code(), Some(0), "{}", text(&looking.stderr));
    assert!(
        text(&looking.stdout).contains("6 entries in 3 documents"),
        "{}",
        text(&looking.stdout)
    );
    first.kill().unwrap();
    first.wait().unwrap();
    let output = run(
        "simplefeed",
        &["replay", &feed, "--state", state, "--format", "id"],
        b"",
    );
    assert_eq!(text(&output.stdout).lines().count(), 6);
}

/// Goal: a command that does not exist, or may not be run, stops the consumer, and no entry is given up for it.
#[test]
fn a_command_that_does_not_exist_gives_nothing_up() {
    let scene = Scene::new();
    let plain_file = scene.path("no-program");
    fs::write(&plain_file, "").unwrap();
    let state = scene.path("state");
    for command in [
        "./typo",
        plain_file.to_str().unwrap(),
        "exit 126",
        "true; ./typo",
    ] {
        for more in [
            &["--policy", "skip"][..],
            &["--policy", "park"],
            &["--batch", "2"],
            &[],
        ] {
            let (feed, state) = (scene.feed(), state.to_str().unwrap());
            let args = ["replay", &feed, "--state", state, "--exec", command];
            let output = run("simplefeed", &[&args[..], more].concat(), b"");
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command}: {said}");
            assert!(said.contains("no such command"), "{said}");
            assert_eq!(scene.record(), "");
        }
    }
    assert!(scene.run("true", &[]).status.success());
    assert_eq!(scene.begun(), "1 2 3 4 5 6");
}

/// Goal: a parked entry whose command does not exist stays parked, and its attempt does not count.
#[test]
fn a_retry_by_a_command_that_does_not_exist_counts_for_nothing() {
    let scene = Scene::new();
    scene.run(&failing("exit 3"), &["--policy", "park", "--attempts", "1"]);
    let state = scene.path("state");
    let state = state.to_str().unwrap();
    let list = ["parked", "list", "--json", "--state", state];
    let before = simplefeed(&list, b"");
    let retry = ["parked", "retry", "--state", state, "--exec", "./typo"];
    let output = run("simplefeed", &retry, b"");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(simplefeed(&list, b""), before);
}

/// Goal: a service manager that signals the command, too, makes no consumer give an entry up, however often it restarts.
/// Method: the command gets the signal first, and ends by it, as a JVM does, or with an error.
#[test]
fn a_stop_of_command_and_consumer_gives_nothing_up() {
    for by in ["kill -TERM $$", "exit 143", "exit 1"] {
        let scene = Scene::new();
        let (begun, state) = (scene.path("begun"), scene.path("state"));
        let exec = format!("echo x >> {}; kill -TERM $PPID; {by}", begun.display());
        for _ in 0..3 {
            let output = Command::new(program("simplefeed"))
                .args(["tail", &scene.feed(), "--since", "oldest", "--exec", &exec])
                .args(["--policy", "skip", "--attempts", "2", "--state"])
                .arg(&state)
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        }
        assert_eq!(scene.record(), "", "{by}");
        assert_eq!(scene.text("begun"), "x\nx\nx\n");
        scene.run("true", &[]);
        assert_eq!(scene.begun(), "x x x 1 2 3 4 5 6");
    }
}

/// Who is asked to end lets the command come to its end, and remembers it.
#[test]
fn a_stop_waits_for_the_command() {
    for (signal_name, code) in [("TERM", 0), ("INT", 130)] {
        let scene = Scene::new();
        let begun = scene.path("begun");
        let exec = format!("echo x >> {0}; sleep 1; echo y >> {0}", begun.display());
        let (feed, state) = (scene.feed(), scene.path("state"));
        let mut child = Command::new(program("simplefeed"))
            .args([
                "tail", &feed, "--since", "oldest", "--exec", &exec, "--state",
            ])
            .arg(&state)
            .spawn()
            .unwrap();
        wait_for("it never begins", || fs::read_to_string(&begun).ok());
        signal(signal_name, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(scene.text("begun"), "x\ny\n");
        scene.run("true", &[]);
        assert_eq!(scene.begun(), "x y 2 3 4 5 6");
    }
}

/// systemd and XDG say where state is; each URL has a folder of its own.
#[test]
fn state_has_a_home() {
    let scene = Scene::new();
    for (variable, under) in [
        ("STATE_DIRECTORY", ""),
        ("XDG_STATE_HOME", "simplefeed"),
        ("HOME", ".local/state/simplefeed"),
    ] {
        let home = scene.path(variable);
        let run = |args: &[&str]| {
            let mut command = Command::new(program("simplefeed"));
            command
                .env_remove("STATE_DIRECTORY")
                .env_remove("XDG_STATE_HOME");
            command.env(variable, &home).args(args).output().unwrap()
        };
        let output = run(&["replay", &scene.feed(), "--exec", "true"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let folder = fs::read_dir(home.join(under))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        let name = folder.file_name().into_string().unwrap();
        assert!(name.contains("feeds_orders-"), "{name}");
        let status = run(&["status", &scene.feed()]);
        assert!(
            text(&status.stdout).contains("caught up"),
            "{}",
            text(&status.stderr)
        );
    }
}

/// Goal: exactly once, where effect and bookmark share a transaction.
/// Method: the example of the client, with a real database, is killed two hundred times while it adds up
/// orders; then it is left alone.
#[test]
fn the_example_counts_every_order_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let feed = server.url("/feeds/orders");
    let published = std::cell::Cell::new(0_u32);
    let publish = |more: u32| {
        let orders = published.get()..published.get() + more;
        published.set(orders.end);
        let lines = orders.fold(String::new(), |lines, order| {
            let customer = order % 7;
            lines
                + &format!(
                    "{{\"id\":\"urn:{order}\",\"content\":{{\"customer\":\"c{customer}\",\"cents\":{order}}}}}\n"
                )
        });
        simplefeed(&["append", &feed], lines.as_bytes());
    };
    publish(20_000);
    let database = folder.path().join("totals.db");
    let count = || {
        let mut command = Command::new(example("exactly_once"));
        command.arg(&feed).arg(&database).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let (mut dice, mut kills, mut longest) = (Dice::new(7), 0, 40);
    let mut counted = 0;
    while kills < 200 {
        let mut child = count();
        let after = 5 + u64::try_from(dice.below(longest)).unwrap();
        pause(Duration::from_millis(after));
        child.kill().unwrap();
        if child.wait().unwrap().code().is_some() {
            // It came to its end first.
            publish(2_000);
            longest = longest / 2 + 1;
            continue;
        }
        kills += 1;
        if kills % 20 == 0 {
            let now = totals(&database).0;
            // A slow machine needs longer to begin.
            longest = if now < counted + 100 {
                longest * 2
            } else {
                longest
            };
            counted = now;
        }
    }
    let before = totals(&database);
    let last = text(&count().wait_with_output().unwrap().stdout);
    let orders = published.get();
    let all: u64 = (0..u64::from(orders)).sum();
    assert_eq!(totals(&database), (orders, all), "after {before:?}");
    println!(
        "200 kills, {} orders counted among them, then {last}",
        before.0
    );
    assert!(before.0 > 200, "the kills came too early: {before:?}");
}

/// The orders and cents that the database holds.
fn totals(database: &Path) -> (u32, u64) {
    let database = rusqlite::Connection::open(database).unwrap();
    let sums = "SELECT TOTAL(orders), TOTAL(cents) FROM totals";
    let found = database.query_row(sums, [], |row| Ok((row.get(0)?, row.get(1)?)));
    // Before the first run has come so far, there is no table.
    let (orders, cents): (f64, f64) = found.unwrap_or_default();
    let whole = |number: f64| format!("{number:.0}");
    (
        whole(orders).parse().unwrap(),
        whole(cents).parse().unwrap(),
    )
}

/// A consumer that is paused by nothing but its rate.
#[test]
fn entries_can_be_spread_over_time() {
    let scene = Scene::new();
    let began = std::time::Instant::now();
    let feed = scene.feed();
    let printed = simplefeed(&["replay", &feed, "--rate", "5", "--format", "id"], b"");
    assert_eq!(printed.lines().count(), 6);
    assert!(
        began.elapsed() >= Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
}

/// A mistyped folder is not made a state folder: nothing of somebody else's is read as state, or replaced.
#[test]
fn state_is_kept_where_nothing_else_is() {
    let scene = Scene::new();
    let feed = scene.feed();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("lock"), "precious").unwrap();
    let other = folder.path().to_str().unwrap();
    for args in [
        &["replay", &feed, "--state", other][..],
        &["replay", &feed, "--state", other, "--exec", "cat"],
        &[
            "replay", &feed, "--state", other, "--exec", "cat", "--batch", "9",
        ],
        &["watch", &feed, "--state", other],
    ] {
        let refused = run("simplefeed", args, b"");
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("holds no state, but \"lock\""), "{said}");
        let left = fs::read_dir(other).unwrap().count();
        let lock = fs::read_to_string(folder.path().join("lock")).unwrap();
        assert_eq!((left, &*lock), (1, "precious"), "{args:?}");
    }
}
