//! The command in pipelines: losses and messages when one end closes.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use crate::{
    harness::{Server, events, ids, program, run, signal, simplefeed, text, wait_for},
    site::{Asked, Site, answer},
};

/// Serves one document for every request.
fn plain(entries: &'static str) -> Site {
    Site::new(move |_: &Asked, stream| {
        let body =
            format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{entries}</feed>");
        let kind = "Content-Type: application/atom+xml\r\n";
        // A client that was killed has gone.
        let _gone = stream.write_all(&answer("200 OK", kind, body.as_bytes()));
    })
}

/// A closed report (`append | head`) stops no publishing and hides no refusal.
#[test]
fn a_closed_report_stops_no_publishing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for (feed, more, code, expected) in [("a", "", 0, 5_000), ("b", "nonsense\n", 1, 5_000)] {
        let mut child = Command::new(program("simplefeed"))
            .args(["append", &server.url(&format!("/feeds/{feed}"))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        // The reader of the report closes the pipe after one line.
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let lines = events(5_000);
        let half = lines.len() / 2;
        input.write_all(&lines.as_bytes()[..half]).unwrap();
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        drop(output);
        input.write_all(&lines.as_bytes()[half..]).unwrap();
        // The nonsense is in a batch of its own, behind all that is stored.
        wait_for("not all is published", || {
            (ids(&server, feed).len() == expected).then_some(())
        });
        input.write_all(more.as_bytes()).unwrap();
        drop(input);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{}", text(&ended.stderr));
        let said = text(&ended.stderr);
        assert!(said.contains("nobody reads"), "{said}");
        assert_eq!(code == 1, said.contains("line 5001"), "{said}");
    }
}

/// A batch counts as handed over when its command has succeeded; until then it comes again, as a whole.
#[test]
fn a_batch_is_accepted_by_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish("a", &events(2_500));
    let (state, out) = (folder.path().join("state"), folder.path().join("out"));
    fs::create_dir(&out).unwrap();
    // It fails at its first attempt, having read all.
    let command = format!(
        "cd {}; n=$(ls | wc -l); cat > part; test \"$n\" -gt 0 || {{ mv part failed; exit 1; }}; mv part ok.$n; \
         echo $SIMPLEFEED_ENTRIES >> ../sizes",
        out.display()
    );
    let replay = |url: &str| {
        run(
            "simplefeed",
            &[
                "replay",
                url,
                "--exec",
                &command,
                "--batch",
                "1000",
                "--state",
                state.to_str().unwrap(),
            ],
            b"",
        )
    };
    let first = replay(&server.url("/feeds/a"));
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert!(
        text(&first.stderr).contains("failed for 1000 entries"),
        "{}",
        text(&first.stderr)
    );
    let sizes = fs::read_to_string(folder.path().join("sizes")).unwrap();
    assert_eq!(
        sizes.split_whitespace().collect::<Vec<_>>(),
        ["1000", "1000", "500"]
    );
    let ids = |name: &str| {
        let text = fs::read_to_string(out.join(name)).unwrap();
        let ids = text.lines().map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            event["position"].as_u64().unwrap()
        });
        ids.collect::<Vec<_>>()
    };
    assert_eq!(ids("failed"), ids("ok.1"), "the same batch again");
    let all: Vec<u64> = ["ok.1", "ok.2", "ok.3"]
        .iter()
        .flat_map(|name| ids(name))
        .collect();
    assert_eq!(all, (0..2_500).collect::<Vec<_>>());
    replay(&server.url("/feeds/a"));
    assert_eq!(
        fs::read_dir(&out).unwrap().count(),
        4,
        "nothing comes twice"
    );
}

/// One unreadable entry is skipped: those behind it are printed, and the exit code is 3.
#[test]
fn an_entry_that_cannot_be_printed_stops_nothing() {
    let site = plain(
        "<entry><id>urn:3</id></entry><entry><id>urn:2</id><x:y/></entry><entry><id>urn:1</id></entry>",
    );
    let folder = tempfile::tempdir().unwrap();
    let bookmark = folder.path().join("b");
    let args = [
        "replay",
        &site.url("/f"),
        "--bookmark",
        bookmark.to_str().unwrap(),
    ];
    let read = run("simplefeed", &args, b"");
    assert_eq!(read.status.code(), Some(3), "{}", text(&read.stderr));
    let printed = text(&read.stdout);
    assert!(
        printed.contains("urn:1") && printed.contains("urn:3") && !printed.contains("urn:2"),
        "{printed}"
    );
    assert!(
        text(&read.stderr).contains("urn:2 is passed over"),
        "{}",
        text(&read.stderr)
    );
    let again = run("simplefeed", &args, b"");
    assert_eq!(
        (again.status.code(), text(&again.stdout)),
        (Some(0), String::new())
    );
}

/// Two programs on one bookmark would hand everything over twice.
#[test]
fn a_bookmark_file_has_one_user() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", ["1".into()]);
    let bookmark = folder.path().join("b");
    let args = [
        "tail",
        &server.url("/feeds/a"),
        "--since",
        "oldest",
        "--bookmark",
        bookmark.to_str().unwrap(),
    ];
    let mut first = Command::new(program("simplefeed"))
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(first.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let second = run("simplefeed", &args, b"");
    assert_eq!(second.status.code(), Some(11), "{}", text(&second.stderr));
    assert!(
        text(&second.stderr).contains("another process"),
        "{}",
        text(&second.stderr)
    );
    // SIGTERM ends it with exit code 0, as documented.
    signal("TERM", first.id());
    assert_eq!(first.wait().unwrap().code(), Some(0));
}

/// Events as people and programs write them: with a mark, in an array, over several lines.
#[test]
fn json_is_taken_as_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let url = server.url("/feeds/a");
    for (input, published) in [
        ("\u{feff}{\"id\":\"urn:t:1\"}\n{\"id\":\"urn:t:2\"}\n", 2),
        ("[\n {\"id\":\"urn:t:3\"},\n {\"id\":\"urn:t:4\"}\n]\n", 2),
        (
            "{\n  \"id\": \"urn:t:5\",\n  \"content\": {\"a\": [1]}\n}\n",
            1,
        ),
    ] {
        let printed = simplefeed(&["append", &url], input.as_bytes());
        assert_eq!(printed.lines().count(), published, "{input}");
    }
    let input = "\n\n{\"id\":\"urn:t:6\"}\n{\"titel\":1}\n";
    let wrong = run("simplefeed", &["append", &url], input.as_bytes());
    assert_eq!(wrong.status.code(), Some(1));
    let said = text(&wrong.stderr);
    assert!(
        said.contains("line 4") && said.contains("titel") && !said.contains("Appended"),
        "{said}"
    );
    let file = folder.path().join("events.json");
    fs::write(
        &file,
        "[{\"id\":\"urn:i:1\"},{\"id\":\"17\"},\n{\"id\":\"urn:i:2\"}]",
    )
    .unwrap();
    let import = |more: &[&str]| {
        let target = server.url("/feeds/imported");
        let args = [&["import", &target, file.to_str().unwrap()], more].concat();
        run("simplefeed", &args, b"")
    };
    assert_eq!(import(&[]).status.code(), Some(1));
    let skipping = import(&["--skip-invalid"]);
    assert_eq!(
        skipping.status.code(),
        Some(3),
        "{}",
        text(&skipping.stderr)
    );
    assert!(
        text(&skipping.stderr).contains("\"17\""),
        "{}",
        text(&skipping.stderr)
    );
    let ids = simplefeed(
        &["replay", &server.url("/feeds/imported"), "--format", "id"],
        b"",
    );
    assert_eq!(ids, "urn:i:1\nurn:i:2\n");
}

/// A gap stops the command, unless `--on-gap go-on` is given.
#[test]
fn a_gap_is_passed_where_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let bookmark = folder.path().join("b");
    let replay = |site: &Site, more: &[&str]| {
        let url = site.url("/f");
        let args = [
            &[
                "replay",
                &url,
                "--format",
                "id",
                "--bookmark",
                bookmark.to_str().unwrap(),
            ],
            more,
        ]
        .concat();
        run("simplefeed", &args, b"")
    };
    assert_eq!(
        text(&replay(&plain("<entry><id>urn:1</id></entry>"), &[]).stdout),
        "urn:1\n"
    );
    let later = plain("<entry><id>urn:9</id></entry>");
    let stopped = replay(&later, &[]);
    assert_eq!(stopped.status.code(), Some(13), "{}", text(&stopped.stderr));
    assert!(
        text(&stopped.stderr).contains("--on-gap go-on"),
        "{}",
        text(&stopped.stderr)
    );
    let gone_on = replay(&later, &["--on-gap", "go-on"]);
    assert_eq!(gone_on.status.code(), Some(0), "{}", text(&gone_on.stderr));
    assert_eq!(text(&gone_on.stdout), "urn:9\n");
    assert!(
        text(&gone_on.stderr).contains("entries may be lost"),
        "{}",
        text(&gone_on.stderr)
    );
}

/// A command that waits for a server prints a warning.
#[test]
fn a_server_that_is_away_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let url = server.url("/feeds/a");
    server.stop();
    let mut child = Command::new(program("simplefeed"))
        .args(["append", &url])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{}\n").unwrap();
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    assert!(
        said.contains("cannot connect") && said.contains("trying again"),
        "{said}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

/// `tail` of a feed that does not exist yet waits, and prints its first entries.
#[test]
fn a_feed_that_is_not_there_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let url = server.url("/feeds/a");
    let mut child = Command::new(program("simplefeed"))
        .args(["tail", &url, "--format", "id", "--limit", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    assert!(
        said.contains("404") && said.contains("trying again"),
        "{said}"
    );
    simplefeed(
        &["append", &url],
        b"{\"id\":\"urn:1\"}\n{\"id\":\"urn:2\"}\n",
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "urn:1\nurn:2\n".to_owned())
    );
}

/// Nobody listens on stderr; that is no reason to fail.
#[test]
fn a_closed_stderr_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let mut child = Command::new(program("simplefeed"))
        .args(["append", &server.url("/feeds/a")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    // The report at the end finds the pipe closed.
    child.stdin.take().unwrap().write_all(b"{}\n").unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stdout));
    assert_eq!(ids(&server, "a").len(), 1);
}

/// What is not UTF-8 is the input's fault, told with its line: not a damaged bookmark, and not a changed history.
#[test]
fn input_that_is_no_text_is_told_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let url = server.url("/feeds/a");
    let list = folder.path().join("list.txt");
    fs::write(&list, b"http://127.0.0.1:1/\xff\n").unwrap();
    let refused = |args: &[&str], input: &[u8], words: &str| {
        let refused = run("simplefeed", args, input);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    };
    let lines = b"{\"id\":\"urn:t:1\"}\n{\"title\":\"\xff\"}\n";
    refused(&["append", &url], lines, "line 2 of the input is not UTF-8");
    refused(&["append", &url], b"<entry>\xff</entry>", "is not UTF-8");
    refused(
        &["watch", list.to_str().unwrap()],
        b"",
        "list.txt is not UTF-8",
    );
    refused(&["watch", "-"], b"\xff", "is not UTF-8");
    assert_eq!(
        ids(&server, "a"),
        ["urn:t:1"],
        "what comes before it is published"
    );
}
