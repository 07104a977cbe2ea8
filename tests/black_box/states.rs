//! What a consumer ends in: each state with its own words and exit code, never as another.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    harness::{
        Server, copy_folder, events, pause, program, run, signal, simplefeed, text, wait_for,
    },
    http::Request,
    nginx::{Nginx, replace},
    proxy::stubborn,
    site::{Site, answer},
};

const SIZE: [&str; 2] = ["--document-entries", "3"];

/// A server with entries 0 to 9 in documents of 3, and a bookmark of a consumer that has seen some.
struct Scene {
    folder: tempfile::TempDir,
    server: Server,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&folder.path().join("data"), &SIZE);
        server.publish_ids("a", (0..10).map(|n| n.to_string()));
        Self { folder, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn bookmark(&self) -> String {
        self.path("bookmark").to_str().unwrap().into()
    }

    /// Reads so many entries and remembers.
    fn read(&self, count: usize) {
        let (limit, bookmark) = (count.to_string(), self.bookmark());
        let feed = self.server.url("/feeds/a");
        simplefeed(
            &["replay", &feed, "--limit", &limit, "--bookmark", &bookmark],
            b"",
        );
    }

    /// Goes on from the bookmark at `feed`; returns exit code, stdout and stderr.
    fn resume(&self, feed: &str) -> (i32, String, String) {
        let bookmark = self.bookmark();
        let args = ["replay", feed, "--bookmark", &bookmark, "--format", "id"];
        let before = fs::read(self.path("bookmark")).unwrap();
        let output = run("simplefeed", &args, b"");
        let code = output.status.code().unwrap();
        if code != 0 {
            let after = fs::read(self.path("bookmark")).unwrap();
            assert_eq!(before, after, "a failure moved the bookmark");
        }
        (code, text(&output.stdout), text(&output.stderr))
    }
}

/// A server on another folder, and the URL of its feed. The one before still answers where the
/// bookmark was made, which must lead nobody there.
fn other(data: &Path) -> (Server, String) {
    let server = Server::start(data, &SIZE);
    let feed = server.url("/feeds/a/recent.atom");
    (server, feed)
}

#[track_caller]
fn check(found: (i32, String, String), code: i32, printed: &str, said: &str) {
    let (found_code, stdout, stderr) = found;
    assert_eq!((found_code, stdout.as_str()), (code, printed), "{stderr}");
    if said.is_empty() {
        assert_eq!(stderr, "");
    }
    assert!(stderr.contains(said), "{stderr}");
}

#[test]
fn caught_up_and_behind() {
    let scene = Scene::new();
    scene.read(8);
    let feed = scene.server.url("/feeds/a");
    check(scene.resume(&feed), 0, "urn:t:8\nurn:t:9\n", "");
    check(scene.resume(&feed), 0, "", "");
}

/// The server was rolled back to yesterday's backup, and has gone on since.
#[test]
fn a_rolled_back_server_is_a_changed_history() {
    // The bookmarked entry in an archived document, and in the growing one; few and many others.
    for (kept, seen, grown) in [(3, 5, 9), (3, 10, 9), (8, 10, 6)] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server = Server::start(&data, &SIZE);
        server.publish_ids("a", (0..kept).map(|n| n.to_string()));
        server.stop();
        let backup = folder.path().join("backup");
        copy_folder(&data, &backup);
        let server = Server::start(&data, &SIZE);
        server.publish_ids("a", (kept..10).map(|n| n.to_string()));
        let scene = Scene { folder, server };
        scene.read(seen);
        let (rolled_back, feed) = other(&backup);
        rolled_back.publish_ids("a", (0..grown).map(|n| format!("other{n}")));
        check(scene.resume(&feed), 15, "", "history changed");
    }
}

/// A server that lost its newest entries and has fewer others yet cannot be told from an old copy.
#[test]
fn a_server_that_lost_its_end_is_no_gap() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &SIZE);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    server.stop();
    let backup = folder.path().join("backup");
    copy_folder(&data, &backup);
    let server = Server::start(&data, &SIZE);
    server.publish_ids("a", (5..10).map(|n| n.to_string()));
    let scene = Scene { folder, server };
    scene.read(10);
    let (rolled_back, feed) = other(&backup);
    let stale = "ends before what was read earlier";
    check(scene.resume(&feed), 14, "", stale);
    // Nor can one that has some others; one that has as many can.
    rolled_back.publish_ids("a", (0..3).map(|n| format!("other{n}")));
    check(scene.resume(&feed), 14, "", stale);
    rolled_back.publish_ids("a", (3..5).map(|n| format!("other{n}")));
    check(scene.resume(&feed), 15, "", "history changed");
}

/// A server rebuilt from nothing has another feed under the old name; with the old id, another
/// history; with the old entries, the same.
#[test]
fn a_rebuilt_server_is_another_feed_or_another_history() {
    let scene = Scene::new();
    scene.read(7);
    let id = scene.server.get("/feeds").json()["feeds"][0]["id"].clone();

    let (rebuilt, feed) = other(&scene.path("rebuilt"));
    rebuilt.publish_ids("a", (0..10).map(|n| n.to_string()));
    check(scene.resume(&feed), 16, "", "another feed");

    let (rebuilt, feed) = other(&scene.path("same id"));
    let put = Request::put("/feeds/a", &format!("{{\"id\":{id}}}"));
    assert_eq!(rebuilt.send(&put).status, 201);
    rebuilt.publish_ids("a", (0..10).map(|n| n.to_string()));
    check(scene.resume(&feed), 15, "", "history changed");

    let (rebuilt, feed) = other(&scene.path("same entries"));
    assert_eq!(rebuilt.send(&put).status, 201);
    let entries = simplefeed(
        &["replay", &scene.server.url("/feeds/a"), "--format", "atom"],
        b"",
    );
    simplefeed(&["append", &rebuilt.url("/feeds/a")], entries.as_bytes());
    check(scene.resume(&feed), 0, "urn:t:7\nurn:t:8\nurn:t:9\n", "");
}

#[test]
fn an_entry_that_is_gone_is_a_gap() {
    let scene = Scene::new();
    scene.read(5);
    let kept = fs::read_to_string(scene.path("bookmark")).unwrap();
    let mut bookmark: serde_json::Value = serde_json::from_str(&kept).unwrap();
    bookmark["entry"] = "urn:t:gone".into();
    for member in ["position", "history", "document", "etag", "last_modified"] {
        bookmark.as_object_mut().unwrap().remove(member);
    }
    fs::write(scene.path("bookmark"), bookmark.to_string()).unwrap();
    let feed = scene.server.url("/feeds/a");
    check(scene.resume(&feed), 13, "", "gap: entry urn:t:gone");
    let since = ["replay", &feed, "--since", "urn:t:gone"];
    let output = run("simplefeed", &since, b"");
    assert_eq!(output.status.code(), Some(13), "{}", text(&output.stderr));
}

/// An archive that lost a document has a gap, whoever serves it.
#[test]
#[ignore = "needs nginx"]
fn a_document_that_is_gone_is_a_gap() {
    let scene = Scene::new();
    scene.server.wait_until_frozen("/feeds/a/3.atom");
    scene.read(2);
    let export = scene.path("export");
    let (data, to) = (scene.path("data"), export.to_str().unwrap().to_owned());
    let Scene { folder, server } = scene;
    server.stop();
    let args = ["export", "--data", data.to_str().unwrap(), "--to", &to];
    assert!(run("simplefeed-server", &args, b"").status.success());
    let server = Server::start(&data, &SIZE);
    let scene = Scene { folder, server };
    for name in ["2.atom", "2.atom.gz"] {
        fs::remove_file(export.join("feeds/a").join(name)).unwrap();
    }
    // Nothing is asked of the server; the tree is all there is.
    let nowhere = "127.0.0.1:1";
    let nginx = Nginx::start_edited(
        "archives.conf",
        scene.folder.path(),
        nowhere,
        &export,
        |site| {
            let site = replace(site, "try_files $uri @simplefeed", "try_files $uri =404");
            replace(
                &site,
                "try_files /nothing @simplefeed",
                "default_type application/atom+xml; try_files $uri =404",
            )
        },
    );
    check(
        scene.resume(&nginx.url("/feeds/a/recent.atom")),
        13,
        "",
        "gap: there is no document at",
    );
}

/// Goal: an old copy is never a gap, a rollback or an end to who has a bookmark.
#[test]
#[ignore = "needs nginx"]
fn a_stale_cache_is_a_stale_copy() {
    let scene = Scene::new();
    let (data, address) = (scene.path("data"), scene.server.address.clone());
    let nginx = Nginx::start_edited("cache.conf", scene.folder.path(), &address, &data, stubborn);
    // The cache keeps what it sees now.
    simplefeed(&["replay", &nginx.url("/feeds/a")], b"");
    scene
        .server
        .publish_ids("a", (10..14).map(|n| n.to_string()));
    scene.read(14);
    let feed = nginx.url("/feeds/a/recent.atom");
    check(scene.resume(&feed), 14, "", "stale copy");
    // The server itself knows better.
    check(scene.resume(&scene.server.url("/feeds/a")), 0, "", "");
}

#[test]
fn a_server_that_is_away_is_unavailable() {
    let scene = Scene::new();
    scene.read(5);
    let feed = scene.server.url("/feeds/a");
    let Scene { folder, server } = scene;
    server.stop();
    let bookmark = folder.path().join("bookmark");
    let before = fs::read(&bookmark).unwrap();
    let output = run(
        "simplefeed",
        &["replay", &feed, "--bookmark", bookmark.to_str().unwrap()],
        b"",
    );
    assert_eq!(output.status.code(), Some(14), "{}", text(&output.stderr));
    assert_eq!(before, fs::read(&bookmark).unwrap());
}

/// Goal: a consumer that stops anywhere resumes; nothing is lost and nothing comes twice.
/// Method: runs of one to four entries, by documents of three, while the server grows, is killed and
/// started again.
#[test]
fn runs_of_any_length_are_one_history() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let bookmark = folder.path().join("bookmark");
    let bookmark = bookmark.to_str().unwrap();
    let mut server = Some(Server::start(&data, &SIZE));
    let (mut published, mut read) = (0, String::new());
    for round in 0..24 {
        if round == 9 {
            server.take().unwrap().kill();
            server = Some(Server::start(&data, &SIZE));
        }
        let server = server.as_ref().unwrap();
        let more = [3, 0, 1, 2][round % 4];
        server.publish_ids("a", (published..published + more).map(|n| n.to_string()));
        published += more;
        let limit = (1 + round % 4).to_string();
        let feed = server.url("/feeds/a");
        read += &simplefeed(
            &[
                "replay",
                &feed,
                "--bookmark",
                bookmark,
                "--limit",
                &limit,
                "--format",
                "id",
            ],
            b"",
        );
    }
    let feed = server.as_ref().unwrap().url("/feeds/a");
    read += &simplefeed(
        &["replay", &feed, "--bookmark", bookmark, "--format", "id"],
        b"",
    );
    let expected: String = (0..published).map(|n| format!("urn:t:{n}\n")).collect();
    assert_eq!(read, expected);
}

/// Goal: a consumer killed at any moment repeats at most what it had not settled, and skips nothing.
#[test]
fn a_killed_consumer_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &["--document-entries", "20"]);
    simplefeed(
        &["append", &server.url("/feeds/a")],
        events(2_000).as_bytes(),
    );
    let bookmark = folder.path().join("bookmark");
    let feed = server.url("/feeds/a");
    let (mut runs, mut next) = (0, 0);
    loop {
        // Each run has a little longer to live.
        let mut consumer = Command::new(program("simplefeed"))
            .args(["replay", &feed, "--format", "id", "--bookmark"])
            .arg(&bookmark)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        pause(Duration::from_millis(20 + 5 * runs));
        consumer.kill().unwrap();
        let output = consumer.wait_with_output().unwrap();
        let printed = text(&output.stdout);
        // A line may be cut by the kill.
        let whole = printed.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let numbers: Vec<usize> = whole
            .lines()
            .map(|line| line.strip_prefix("urn:event:").unwrap().parse().unwrap())
            .collect();
        if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
            assert!(*first <= next, "entries {next} to {first} were skipped");
            assert!(next - first <= 20, "more than a document was repeated");
            assert_eq!(numbers.len(), last - first + 1);
            next = last + 1;
        }
        let kept = fs::read_to_string(&bookmark).unwrap_or_default();
        if !kept.is_empty() {
            let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
            // Before the first entry it has no position.
            let kept = kept["position"].as_u64().map_or(0, |position| position + 1);
            assert!(
                usize::try_from(kept).unwrap() <= next,
                "the bookmark is ahead of what was printed"
            );
        }
        runs += 1;
        if next == 2_000 {
            break;
        }
        assert!(runs < 500, "no end");
    }
    assert!(runs > 1, "it was never killed");
}

/// The bookmark of a waiting `tail` is behind what was printed, without anything more to come.
#[test]
fn a_waiting_tail_has_settled() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let bookmark = folder.path().join("bookmark");
    server.publish_ids("a", ["1".into(), "2".into()]);
    let mut tail = Command::new(program("simplefeed"))
        .args([
            "tail",
            &server.url("/feeds/a"),
            "--since",
            "oldest",
            "--bookmark",
        ])
        .arg(&bookmark)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let settled = (0..1_000).any(|_| {
        pause(Duration::from_millis(20));
        fs::read_to_string(&bookmark).is_ok_and(|kept| kept.contains("urn:t:2"))
    });
    tail.kill().unwrap();
    tail.wait().unwrap();
    assert!(settled, "{:?}", fs::read_to_string(&bookmark));
}

/// A consumer that is left alone with a server that is down when it begins, comes, goes, and comes again.
#[test]
fn a_tail_outlives_its_server() {
    let scene = Scene::new();
    let address = scene.server.address.clone();
    let feed = scene.server.url("/feeds/a");
    let (data, seen) = (scene.path("data"), scene.path("seen"));
    let Scene { folder, server } = scene;
    server.stop();
    let exec = format!("echo $SIMPLEFEED_ID >> {}", seen.display());
    let mut tail = Command::new(program("simplefeed"))
        .args(["tail", &feed, "--since", "oldest", "--exec", &exec])
        .arg("--state")
        .arg(folder.path().join("state"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    pause(Duration::from_millis(500));
    let seen = || fs::read_to_string(&seen).unwrap_or_default();
    let wait = |count: usize| {
        wait_for(&format!("not {count} entries: {}", seen()), || {
            (seen().lines().count() >= count).then_some(())
        });
    };
    let server = Server::start_at(&address, &data, &SIZE);
    wait(10);
    server.kill();
    let server = Server::start_at(&address, &data, &SIZE);
    server.publish_ids("a", (10..20).map(|n| n.to_string()));
    wait(20);
    signal("TERM", tail.id());
    assert_eq!(tail.wait().unwrap().code(), Some(0));
    let all: String = (0..20).fold(String::new(), |all, n| all + &format!("urn:t:{n}\n"));
    assert_eq!(seen(), all);
}

/// A feed that has moved for good: at the same origin it is followed, elsewhere only if that is allowed.
#[test]
fn a_moved_feed_is_followed_where_that_is_allowed() {
    let scene = Scene::new();
    scene.read(4);
    let new = scene.server.url("/feeds/a/recent.atom");
    let moved = Site::new(move |_, stream| {
        let moved = format!("Location: {new}\r\n");
        let _gone = stream
            .write_all(&answer("301 Moved Permanently", &moved, b""))
            .is_err();
    });
    let old = moved.url("/feeds/a");
    check(scene.resume(&old), 1, "", "at another origin");
    let bookmark = scene.bookmark();
    let args = ["replay", &old, "--bookmark", &bookmark, "--format", "id"];
    let refused = run("simplefeed", &args, b"");
    assert!(text(&refused.stderr).contains("hint: to follow links and redirects there"));
    let origin = scene.server.url("");
    let allowed = [&args[..], &["--allow-origin", &origin]].concat();
    let rest: String = (4..10).fold(String::new(), |rest, n| rest + &format!("urn:t:{n}\n"));
    assert_eq!(simplefeed(&allowed, b""), rest);
    assert_eq!(simplefeed(&allowed, b""), "");

    // At its own origin nobody need say so: /feeds/a redirects to where the feed is.
    let scene = Scene::new();
    scene.read(4);
    check(scene.resume(&scene.server.url("/feeds/a")), 0, &rest, "");
}

/// What monitoring is told of each state.
#[test]
fn status_tells_each_state() {
    let scene = Scene::new();
    let state = scene.path("state");
    let state = state.to_str().unwrap();
    let feed = scene.server.url("/feeds/a");
    let status = |url: &str, more: &[&str]| {
        let args = [&["status", url, "--state", state], more].concat();
        let output = run("simplefeed", &args, b"");
        (
            output.status.code().unwrap(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, _, said) = status(&feed, &[]);
    assert_eq!(
        (code, said.contains("nothing is remembered")),
        (3, true),
        "{said}"
    );
    simplefeed(&["replay", &feed, "--state", state, "--limit", "2"], b"");
    let (code, printed, _) = status(&feed, &["--json"]);
    let found: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (code, &found["entries"], &found["documents"]),
        (0, &8.into(), &4.into()),
        "{printed}"
    );
    assert_eq!(
        (&found["position"], &found["parked"]),
        (&1.into(), &0.into())
    );
    for (limits, code) in [
        (&["--warn", "entries=8", "--crit", "entries=20"][..], 0),
        (&["--warn", "entries=7", "--crit", "entries=20"], 1),
        (&["--warn", "entries=1", "--crit", "entries=7"], 2),
        (&["--crit", "documents=3"], 2),
        (
            &[
                "--warn",
                "parked=0",
                "--warn",
                "seconds=86400",
                "--crit",
                "idle=3600",
            ],
            0,
        ),
    ] {
        assert_eq!(status(&feed, limits).0, code, "{limits:?}");
    }
    assert_eq!(status(&feed, &["--warn", "sheep=3"]).0, 2);
    simplefeed(&["replay", &feed, "--state", state], b"");
    let (code, printed, _) = status(&feed, &["--warn", "entries=0"]);
    assert_eq!(
        (code, printed.starts_with("lag           caught up\n")),
        (0, true),
        "{printed}"
    );

    // Another feed, a server that is away.
    let (another, other_feed) = other(&scene.path("another"));
    another.publish_ids("a", ["x".to_owned()]);
    assert_eq!(status(&other_feed, &[]).0, 2);
    another.stop();
    assert_eq!(status(&other_feed, &[]).0, 3);
}
