//! The commands, as a user and a pipeline meet them: messages, exit codes, quiet ends.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::harness::{
    Server, events, pause, program, run, run_command, signal, simplefeed, text, workspace,
};

#[track_caller]
fn check(name: &str, args: &[&str], code: i32, said: &str) {
    let output = run(name, args, b"");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(stderr.contains(said), "{args:?}: {stderr}");
}

#[test]
fn servers_refuse_what_they_cannot_do() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let config = folder.path().join("simplefeed.toml");
    std::fs::write(&config, "documents = 3\n").unwrap();
    let server = |args: &[&str], code, said| check("simplefeed-server", args, code, said);

    server(&["serve"], 2, "data folder is not given");
    server(
        &["serve", "--data", data, "--listen", "nonsense"],
        2,
        "invalid",
    );
    server(
        &["serve", "--data", data, "--document-entries", "0"],
        2,
        "between 1 and 10000",
    );
    server(
        &[
            "serve",
            "--data",
            data,
            "--config",
            config.to_str().unwrap(),
        ],
        2,
        "unknown field `documents`",
    );
    server(
        &["serve", "--data", data, "--listen", "0.0.0.0:0"],
        2,
        "--publish-listen",
    );
    server(
        &[
            "serve",
            "--data",
            data,
            "--public-url",
            "https://example.org",
        ],
        2,
        "--publish-listen",
    );
    server(
        &[
            "serve",
            "--data",
            file.to_str().unwrap(),
            "--listen",
            "127.0.0.1:0",
        ],
        2,
        "is not a folder",
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    server(
        &["serve", "--data", data, "--listen", &address],
        1,
        "cannot listen on",
    );
    server(&["verify", "--data", data], 10, "there is no log");
    assert!(!Path::new(data).exists(), "a refusal leaves nothing behind");
}

#[test]
fn a_data_folder_has_one_server() {
    let folder = tempfile::tempdir().unwrap();
    let _server = Server::start(folder.path(), &[]);
    let data = folder.path().to_str().unwrap();
    check(
        "simplefeed-server",
        &["serve", "--data", data, "--listen", "127.0.0.1:0"],
        11,
        "in use by another process (process ",
    );
    // A server that does not listen there, of an older version say, is not to be talked to.
    std::fs::remove_file(folder.path().join("control.sock")).unwrap();
    check(
        "simplefeed-server",
        &["verify", "--data", data],
        11,
        "in use by another process (process ",
    );
}

/// A server that is asked to end as soon as it says that it listens ends in order.
#[test]
fn a_server_can_be_stopped_as_soon_as_it_listens() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        Server::start(folder.path(), &[]).stop();
    }
}

#[test]
fn clients_tell_what_went_wrong_by_their_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "2"]);
    let feed = server.url("/feeds/a");
    simplefeed(&["append", &feed], events(5).as_bytes());
    let bookmark = folder.path().join("bookmark");
    let bookmark = bookmark.to_str().unwrap();
    let client = |args: &[&str], code, said| check("simplefeed", args, code, said);

    client(&["replay", "not a url"], 2, "is not a URL");
    client(
        &["replay", &feed, "--since", "yesterday"],
        2,
        "neither oldest",
    );
    client(
        &["replay", &server.url("/feeds/none")],
        10,
        "there is nothing at",
    );
    client(
        &["get", &server.url("/feeds/a/99.atom")],
        10,
        "there is nothing at",
    );
    client(&["replay", &server.url("/feeds")], 1, "not a feed document");
    client(&["ls", &feed], 1, "is not a catalogue");
    client(
        &["replay", &feed, "--since", "urn:never"],
        13,
        "gap: entry urn:never",
    );
    client(
        &["replay", &feed, "--bookmark", "/no/such/folder/file"],
        1,
        "cannot use the bookmark",
    );
    client(
        &[
            "append",
            &server.url("/feeds/a/recent.atom"),
            "/no/such/file",
        ],
        1,
        "cannot open",
    );

    simplefeed(&["append", &server.url("/feeds/b")], events(5).as_bytes());
    simplefeed(
        &[
            "replay",
            &server.url("/feeds/b"),
            "--bookmark",
            bookmark,
            "--format",
            "id",
        ],
        b"",
    );
    client(
        &["replay", &feed, "--bookmark", bookmark],
        16,
        "another feed",
    );

    let output = run(
        "simplefeed",
        &["append", &feed],
        b"{\"id\":\"urn:event:1\",\"content\":2}\n",
    );
    assert_eq!(output.status.code(), Some(15), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("exists with other content"));
    let output = run("simplefeed", &["append", &feed], b"{\"no\":1}\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("unknown field `no`"),
        "{}",
        text(&output.stderr)
    );
    let output = run(
        "simplefeed",
        &["append", &server.url("/feeds/a/1.atom")],
        b"{}\n",
    );
    assert!(text(&output.stderr).contains("hint: publish to the feed's own URL"));

    let address = server.address.clone();
    server.stop();
    let gone = format!("http://{address}/feeds/a");
    client(&["replay", &gone, "--limit", "1"], 14, "cannot fetch");
}

#[test]
fn a_broken_pipe_ends_a_replay_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let feed = server.url("/feeds/a");
    simplefeed(&["append", &feed], events(5_000).as_bytes());
    let mut child = Command::new(program("simplefeed"))
        .args(["replay", &feed])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stderr).as_str()),
        (Some(0), "")
    );
}

/// Goal: a replay prints what is wanted of all that it reads, and its bookmark passes over the rest.
#[test]
fn a_replay_prints_what_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "5"]);
    let feed = server.url("/feeds/a");
    let lines = (0..40).map(|number| {
        let term = if number % 4 == 0 { "even" } else { "odd" };
        // One date is a lie.
        let year = if number == 3 { 2090 } else { 2000 + number };
        format!(
            "{{\"id\":\"urn:{number}\",\"updated\":\"{year}-01-01T00:00:00Z\",\"categories\":[\"{term}\",\"all\"]}}\n"
        )
    });
    simplefeed(&["append", &feed], lines.collect::<String>().as_bytes());
    let replay = |more: &[&str]| {
        let args = [&["replay", &feed], more].concat();
        simplefeed(&args, b"")
    };
    let expected = |numbers: &mut dyn Iterator<Item = usize>| -> String {
        numbers.map(|number| format!("urn:{number}\n")).collect()
    };
    let bookmark = folder.path().join("bookmark");
    let even = [
        "--format",
        "id",
        "--category",
        "even",
        "--bookmark",
        bookmark.to_str().unwrap(),
    ];
    assert_eq!(replay(&even), expected(&mut (0..40).step_by(4)));
    assert_eq!(replay(&even), "", "the bookmark is at the end");
    assert_eq!(replay(&["--format", "id", "--category", "none"]), "");
    let until = ["--format", "id", "--until", "2010-01-01"];
    assert_eq!(
        replay(&until),
        expected(&mut (0..10).filter(|number| *number != 3))
    );
    assert_eq!(replay(&["--count"]), "40\n");
    assert_eq!(
        replay(&["--count", "--category", "odd", "--until", "2020-01-01"]),
        "14\n"
    );
    let before = simplefeed(&["replay", &feed, "--count", "--until", "1d"], b"");
    assert_eq!(before, "26\n");
    let newest = ["--format", "id", "--reverse", "--limit", "3"];
    assert_eq!(replay(&newest), "urn:39\nurn:38\nurn:37\n");
    let odd = ["--format", "id", "--reverse", "--category", "odd"];
    let odd_numbers = (0..40).rev().filter(|number| number % 4 != 0);
    assert_eq!(replay(&odd), expected(&mut odd_numbers.into_iter()));
    check(
        "simplefeed",
        &["tail", &feed, "--reverse"],
        2,
        "replay --reverse",
    );
}

/// Goal: a person at a terminal sees when, what and which; a file, or who wants none, gets no colours.
#[test]
fn text_has_colours_on_a_terminal_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let event = r#"{"id":"urn:1","title":"A \u009b31mtitle","updated":"2026-01-01T00:00:00Z","content":"more"}"#;
    assert_eq!(server.publish("a", event).status, 201);
    let feed = server.url("/feeds/a");
    let plain = simplefeed(&["replay", &feed, "--format", "text"], b"");
    // No entry moves the cursor.
    assert_eq!(
        plain,
        "2026-01-01T00:00:00Z  A  31mtitle  urn:1\n    more\n"
    );
    // A terminal, by util-linux.
    let on_a_terminal = |environment: &str| {
        let command = format!(
            "{environment} '{}' replay '{feed}'",
            program("simplefeed").display()
        );
        let output = run_command(
            Command::new("script").args(["-qec", &command, "/dev/null"]),
            b"",
        );
        text(&output.stdout).replace('\r', "")
    };
    let coloured = on_a_terminal("env -u NO_COLOR");
    assert!(
        coloured.contains("\u{1b}[1mA ") && coloured.contains("\u{1b}[2murn:1"),
        "{coloured:?}"
    );
    let without = on_a_terminal("NO_COLOR=1");
    assert_eq!(
        without.lines().collect::<Vec<_>>(),
        plain.lines().collect::<Vec<_>>()
    );
}

/// Goal: JSON of other programs is published as it is, once, however often it is piped.
#[test]
fn raw_json_is_wrapped() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let feed = server.url("/feeds/a");
    let lines = "{\"order\":{\"id\":7},\"total\":1.50}\n{\"order\":{\"id\":\"8\"}}\n";
    let args = ["append", &feed, "--wrap", "--id-from", "/order/id"];
    let first = simplefeed(&args, lines.as_bytes());
    assert_eq!(first.matches("appended").count(), 2, "{first}");
    let again = simplefeed(&args, lines.as_bytes());
    assert_eq!(again.matches("duplicate").count(), 2, "{again}");
    let printed = simplefeed(&["replay", &feed, "--format", "ndjson"], b"");
    assert!(
        printed.contains("\"content\":{\"order\":{\"id\":7},\"total\":1.50}"),
        "{printed}"
    );
    let without = simplefeed(&["append", &feed, "--wrap"], lines.as_bytes());
    assert_eq!(without.matches("appended").count(), 2, "{without}");
    let wrong = run(
        "simplefeed",
        &args,
        b"{\"order\":{\"id\":9}}\n{\"other\":1}\n",
    );
    assert!(!wrong.status.success());
    let said = text(&wrong.stderr);
    assert!(
        said.contains("line 2") && said.contains("/order/id"),
        "{said}"
    );
    check(
        "simplefeed",
        &["append", &feed, "--id-from", "/a"],
        2,
        "--wrap",
    );
}

/// Goal: the URL of a stream, given for a feed, is refused at once.
#[test]
fn a_stream_is_no_document() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish_ids("a", ["1".into()]);
    let url = server.url("/feeds/a/events?since=oldest");
    for command in ["replay", "tail", "get", "lint"] {
        let ended = run("simplefeed", &[command, &url], b"");
        let said = text(&ended.stderr);
        assert!(
            !ended.status.success() && said.contains("stream of events"),
            "{command}: {said}"
        );
    }
}

#[test]
fn tail_prints_what_comes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--recent-max-age", "0"]);
    server.publish_ids("a", ["old".into()]);
    let mut child = Command::new(program("simplefeed"))
        .args([
            "tail",
            &server.url("/feeds/a"),
            "--since",
            "oldest",
            "--format",
            "id",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "urn:t:old");
    server.publish_ids("a", ["new".into()]);
    assert_eq!(lines.next().unwrap().unwrap(), "urn:t:new");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A place can be looked at, moved on purpose, and forgotten; what is damaged is never taken for none.
#[test]
fn bookmarks_are_shown_set_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &["--document-entries", "2"]);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    let path = folder.path().join("bookmark");
    let (file, feed) = (path.to_str().unwrap(), server.url("/feeds/a"));
    let command = |args: &[&str], code, said| check("simplefeed", args, code, said);
    let replay = || {
        let args = ["replay", &feed, "--bookmark", file, "--format", "id"];
        simplefeed(&args, b"")
    };
    command(&["bookmark", "show", file], 10, "there is no bookmark");
    command(&["bookmark", "clear", file], 0, "There was no bookmark");
    command(&["bookmark", "set", file, "--url", &feed], 2, "--newest");

    let set = ["bookmark", "set", file, "--url", &feed];
    for (place, rest) in [("urn:t:0", 1..5), ("urn:t:1", 2..5), ("urn:t:4", 5..5)] {
        command(&[&set[..], &["--entry", place]].concat(), 0, place);
        let shown = simplefeed(&["bookmark", "show", file], b"");
        assert_eq!(shown, std::fs::read_to_string(file).unwrap());
        assert!(shown.contains(&format!("\"entry\":\"{place}\"")), "{shown}");
        let expected: String = rest.map(|n| format!("urn:t:{n}\n")).collect();
        assert_eq!(replay(), expected);
    }
    command(&[&set[..], &["--oldest"]].concat(), 0, "the oldest");
    assert_eq!(replay().lines().count(), 5);
    command(&[&set[..], &["--oldest"]].concat(), 0, "the oldest");
    command(&[&set[..], &["--newest"]].concat(), 0, "urn:t:4");
    assert_eq!(replay(), "");
    let before = std::fs::read(file).unwrap();
    command(&[&set[..], &["--entry", "urn:t:9"]].concat(), 13, "gap");
    assert_eq!(before, std::fs::read(file).unwrap());

    command(&["bookmark", "clear", file], 0, "");
    assert!(!path.exists());
    assert_eq!(replay().lines().count(), 5);
    for damaged in ["{", "", "{\"version\":2,\"feed\":\"urn:f\",\"entry\":null}"] {
        std::fs::write(file, damaged).unwrap();
        command(&["bookmark", "show", file], 15, file);
        command(&["replay", &feed, "--bookmark", file], 15, file);
        assert_eq!(std::fs::read_to_string(file).unwrap(), damaged);
    }
}

/// `tail` begins with what is to come; `replay` with the oldest.
#[test]
fn tail_begins_at_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", ["old".into()]);
    let bookmark = folder.path().join("bookmark");
    let mut child = Command::new(program("simplefeed"))
        .args([
            "tail",
            &server.url("/feeds/a"),
            "--format",
            "id",
            "--bookmark",
        ])
        .arg(&bookmark)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    while !bookmark.exists() {
        pause(Duration::from_millis(10));
    }
    server.publish_ids("a", ["new".into()]);
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, "urn:t:new\n");
}

#[test]
fn get_prints_a_document_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish_ids("a", ["1".into()]);
    let document = simplefeed(&["get", &server.url("/feeds/a/1.atom")], b"");
    assert_eq!(document, server.get("/feeds/a/1.atom").text());
}

#[test]
fn an_export_is_the_tree_as_files() {
    let folder = tempfile::tempdir().unwrap();
    let (data, to) = (folder.path().join("data"), folder.path().join("to"));
    let server = Server::start(&data, &["--document-entries", "2"]);
    simplefeed(&["append", &server.url("/feeds/a")], events(5).as_bytes());
    server.wait_until_frozen("/feeds/a/2.atom");
    let paths = [
        "1.atom",
        "2.atom",
        "3.atom",
        "recent.atom",
        "index.json",
        "entries/0.atom",
        "entries/4.atom",
    ];
    let served = paths.map(|path| (path, server.get(&format!("/feeds/a/{path}")).body));
    server.stop();
    let (data, target) = (data.to_str().unwrap(), to.to_str().unwrap());
    let output = run(
        "simplefeed-server",
        &["export", "--data", data, "--to", target, "--entries"],
        b"",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (path, body) in served {
        assert_eq!(
            std::fs::read(to.join("feeds/a").join(path)).unwrap(),
            body,
            "{path}"
        );
        assert!(to.join(format!("feeds/a/{path}.gz")).exists());
    }
    let include = std::fs::read_to_string(to.join("simplefeed-lifetimes.conf")).unwrap();
    for growing in ["recent.atom", "a/3.atom", "index.json", "entries/4.atom"] {
        assert!(!include.contains(growing), "{include}");
    }
    for frozen in ["a/1.atom", "a/2.atom", "entries/0.atom"] {
        assert!(
            include.contains(&format!("{frozen}\" \"public, max-age=31536000, immutable")),
            "{include}"
        );
    }
}

/// The demo's three curl lines and its tail line must work at once.
#[test]
fn the_demo_says_how_to_look_at_it() {
    let mut child = Command::new(program("simplefeed-server"))
        .arg("demo")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the demo ended");
    }
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("Ctrl-C") {
        assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}");
    }
    let feed = said
        .split_whitespace()
        .find(|word| word.contains("/feeds/demo"))
        .unwrap();
    assert_eq!(said.matches("curl ").count(), 3, "{said}");
    assert!(
        said.contains(&format!("--bin simplefeed -- tail {feed}")),
        "{said}"
    );
    let ids = simplefeed(&["replay", feed, "--format", "id"], b"");
    assert!(ids.lines().count() >= 10, "{ids}");
    signal("TERM", child.id());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{rest}");
}

/// The commands of the README are run as they stand there, but for the port.
#[test]
#[ignore = "needs curl"]
fn the_readme_is_true() {
    let readme = std::fs::read_to_string(workspace().join("README.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let binaries = program("simplefeed").parent().unwrap().to_path_buf();
    let mut commands = 0;
    for block in readme.split("```sh try\n").skip(1) {
        let script = block.split("```").next().unwrap();
        let script = script.replace(
            "http://127.0.0.1:8080",
            &format!("http://{}", server.address),
        );
        let script = script.replace("target/release", binaries.to_str().unwrap());
        let output = Command::new("sh")
            .args(["-euc", &script])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{script}\n{}",
            text(&output.stderr)
        );
        commands += 1;
    }
    assert!(
        commands >= 2,
        "the README shows how to publish and how to consume"
    );
}

/// What a terminal and a script get: completions, a manual, examples, and errors that programs can read.
#[test]
fn the_command_speaks_to_people_and_programs() {
    for shell in ["bash", "zsh", "fish"] {
        let script = simplefeed(&["completions", shell], b"");
        assert!(
            script.contains("simplefeed") && script.contains("parked"),
            "{shell}"
        );
    }
    assert!(simplefeed(&["man"], b"").contains(".TH simplefeed"));
    assert!(simplefeed(&["man", "tail"], b"").contains("park\\-by\\-key"));
    check(
        "simplefeed",
        &["man", "sheep"],
        1,
        "there is no command sheep",
    );
    for command in [
        "append",
        "import",
        "replay",
        "tail",
        "parked",
        "status",
        "lint",
        "mirror",
        "bookmark",
        "ls",
        "get",
        "completions",
        "man",
    ] {
        let help = simplefeed(&[command, "--help"], b"");
        assert!(help.contains("Example"), "{command}: {help}");
    }
    assert!(simplefeed(&["--help"], b"").contains("11 the state is used by another process"));

    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let (feed, none) = (server.url("/feeds/a"), server.url("/feeds/none"));
    simplefeed(&["append", &feed], events(2).as_bytes());
    let output = run("simplefeed", &["replay", &none, "--format", "ndjson"], b"");
    let said: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), &said["exit"]),
        (Some(10), &10.into()),
        "{said}"
    );
    assert!(
        said["error"]
            .as_str()
            .unwrap()
            .contains("there is nothing at")
    );
    let output = run("simplefeed", &["replay", &none], b"");
    assert!(text(&output.stderr).starts_with("error: there is nothing at"));
    // No colours where nobody looks.
    assert!(!output.stderr.contains(&0x1b));
    let quiet = run(
        "simplefeed",
        &["append", &feed, "--quiet"],
        events(2).as_bytes(),
    );
    assert_eq!(text(&quiet.stderr), "");
    let verbose = run("simplefeed", &["replay", &feed, "--verbose"], b"");
    assert!(
        text(&verbose.stderr).contains("note: nothing newer"),
        "{}",
        text(&verbose.stderr)
    );
}

/// Each message of a wrong command line names the way on.
#[test]
fn refusals_name_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let tokens = tokens.to_str().unwrap();
    let new = [
        "token", "new", "shop", "--right", "admin", "--feeds", "*", "--tokens", tokens,
    ];
    assert!(run("simplefeed-server", &new, b"").status.success());
    let server = Server::start(&folder.path().join("data"), &[]);
    let guarded = Server::start(&folder.path().join("guarded"), &["--tokens", tokens]);
    server.publish("a", &events(3));
    let url = server.url("/feeds/a");
    let without = url.trim_start_matches("http://");
    let bookmark = folder.path().join("bookmark");
    let bookmark = bookmark.to_str().unwrap();
    let event = folder.path().join("event.ndjson");
    std::fs::write(&event, "{}").unwrap();
    let event = event.to_str().unwrap();
    for args in [
        ["replay", without],
        ["append", without],
        ["replay", "localhost:8080/a"],
    ] {
        check("simplefeed", &args, 2, "begins with http://");
    }
    check(
        "simplefeed",
        &["append", &guarded.url("/feeds/a"), event],
        12,
        "--token-file",
    );
    for args in [
        &["replay", &url, "--since", "urn:none"][..],
        &[
            "bookmark", "set", bookmark, "--url", &url, "--entry", "urn:none",
        ],
    ] {
        check("simplefeed", args, 13, "--format id");
    }
    let secure = url.replace("http:", "https:");
    check(
        "simplefeed",
        &["append", &secure, event],
        1,
        "does not speak TLS",
    );
}
