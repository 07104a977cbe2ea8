//! Behind a real nginx: what a cache saves, what it hides, and what it must not hide.

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use crate::{
    harness::{Server, events, pause, program, run, simplefeed, text},
    http::Request,
    nginx::{Counter, Nginx, replace},
};

const CONSUMERS: usize = 50;

/// A server with 20 frozen documents of 5 entries, and one that grows.
fn served(data: &Path) -> Server {
    let server = Server::start(data, &["--document-entries", "5"]);
    simplefeed(&["append", &server.url("/feeds/a")], events(103).as_bytes());
    server.wait_until_frozen("/feeds/a/20.atom");
    server
}

fn ids(count: usize) -> String {
    (0..count).map(|n| format!("urn:event:{n}\n")).collect()
}

fn start_replay(url: &str) -> Child {
    Command::new(program("simplefeed"))
        .args(["replay", url, "--format", "id"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Replays as fifty consumers at once, each of which must get everything.
fn replay_as_many(url: &str) {
    let consumers: Vec<_> = (0..CONSUMERS).map(|_| start_replay(url)).collect();
    for consumer in consumers {
        let output = consumer.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), ids(103));
        assert_eq!(text(&output.stderr), "");
    }
}

fn replay(url: &str) -> Output {
    run("simplefeed", &["replay", url, "--format", "id"], b"")
}

/// Goal: readers cost the server nothing that a cache can take.
#[test]
#[ignore = "needs nginx"]
fn fifty_consumers_are_one_request_for_each_frozen_document() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = served(&data);
    let counter = Counter::before(&server.address);
    let nginx = Nginx::start("cache.conf", folder.path(), &counter.address, &data);
    replay_as_many(&nginx.url("/feeds/a"));
    let expected = (1..=20)
        .map(|n| (format!("/feeds/a/{n}.atom"), 1))
        .collect();
    assert_eq!(counter.archives_asked(20), expected);
    // What grows is asked about once a second, not once for each consumer.
    assert!(
        counter.asked()["/feeds/a/recent.atom"] < CONSUMERS,
        "{:?}",
        counter.asked()
    );

    // Nobody publishes through it.
    let post = Request::post("/feeds/a", "application/json", "{}");
    assert_eq!(post.send(&nginx.address).unwrap().status, 403);
}

/// Goal: the folder of frozen documents needs no server.
#[test]
#[ignore = "needs nginx"]
fn frozen_documents_from_the_folder_ask_the_server_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = served(&data);
    let counter = Counter::before(&server.address);
    let www = data.join("www");
    let nginx = Nginx::start("archives.conf", folder.path(), &counter.address, &www);
    replay_as_many(&nginx.url("/feeds/a"));
    assert!(
        counter.archives_asked(20).is_empty(),
        "{:?}",
        counter.asked()
    );
    // Its answers are the server's, but for validators of its own.
    for coding in ["gzip", "identity"] {
        let get = Request::get("/feeds/a/7.atom").header("Accept-Encoding", coding);
        let (ours, its) = (server.send(&get), get.send(&nginx.address).unwrap());
        assert_eq!(ours.body, its.body, "{coding}");
        for field in [
            "content-type",
            "cache-control",
            "last-modified",
            "x-content-type-options",
        ] {
            assert_eq!(ours.header(field), its.header(field), "{coding}");
        }
        assert_eq!(
            ours.maybe("content-encoding"),
            its.maybe("content-encoding"),
            "{coding}"
        );
        assert!(its.header("vary").eq_ignore_ascii_case("accept-encoding"));
    }
    assert!(
        counter.archives_asked(20).is_empty(),
        "{:?}",
        counter.asked()
    );
    let post = Request::post("/feeds/a", "application/json", "{}");
    assert_eq!(post.send(&nginx.address).unwrap().status, 403);
}

/// Goal: with the server down everything seen before is still served, and the consumer says that
/// there may be more.
#[test]
#[ignore = "needs nginx"]
fn a_server_that_is_down_is_still_read() {
    for config in ["cache.conf", "archives.conf"] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server = served(&data);
        let www = data.join("www");
        let nginx = Nginx::start(config, folder.path(), &server.address, &www);
        let feed = nginx.url("/feeds/a/recent.atom");
        let before = replay(&feed);
        assert_eq!(
            (text(&before.stdout), text(&before.stderr)),
            (ids(103), String::new())
        );
        server.kill();
        // The copy of the recent document must be past its time to be noticed as such.
        pause(Duration::from_millis(2_500));
        let after = replay(&feed);
        let said = text(&after.stderr);
        assert_eq!(
            (after.status.code(), text(&after.stdout)),
            (Some(0), ids(103)),
            "{config}: {said}"
        );
        assert!(
            said.contains("could not ask the server"),
            "{config}: {said}"
        );
        // What was never seen is not made up.
        let other = replay(&nginx.url("/feeds/b/recent.atom"));
        let said = text(&other.stderr);
        assert_eq!(other.status.code(), Some(14), "{config}: {said}");
        assert!(
            said.contains("answered with status 502"),
            "{config}: {said}"
        );
    }
}

/// Goal: an nginx that compresses by itself confuses nobody. Its entity tags are weak, and the
/// server's `Repr-Digest` stays on bytes it does not describe any more.
#[test]
#[ignore = "needs nginx"]
fn compression_by_the_proxy_confuses_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = served(&data);
    let nginx = Nginx::start_edited(
        "cache.conf",
        folder.path(),
        &server.address,
        &data,
        |site| {
            let site = replace(
                site,
                "proxy_set_header Accept-Encoding $simplefeed_coding;",
                "proxy_set_header Accept-Encoding \"\"; gzip on; gzip_proxied any; gzip_min_length 1; gzip_types *;",
            );
            replace(&site, "$simplefeed_coding$request_uri", "$request_uri")
        },
    );
    let gzip = Request::get("/feeds/a/3.atom").header("Accept-Encoding", "gzip");
    let coded = gzip.send(&nginx.address).unwrap();
    assert_eq!(coded.header("content-encoding"), "gzip");
    assert!(
        coded.header("etag").starts_with("W/"),
        "{:?}",
        coded.headers
    );
    assert_eq!(
        coded.header("repr-digest"),
        server.get("/feeds/a/3.atom").header("repr-digest")
    );

    let bookmark = folder.path().join("bookmark");
    let bookmark = bookmark.to_str().unwrap();
    let feed = nginx.url("/feeds/a");
    let follow = ["replay", &feed, "--format", "id", "--bookmark", bookmark];
    assert_eq!(simplefeed(&follow, b""), ids(103));
    let kept = std::fs::read_to_string(bookmark).unwrap();
    assert!(kept.contains("W/"), "the weak tag is kept: {kept}");
    assert_eq!(simplefeed(&follow, b""), "");
    // The tag is good at the server, too, for reading and for appending.
    let tag = serde_json::from_str::<serde_json::Value>(&kept).unwrap()["etag"].clone();
    let tag = tag.as_str().unwrap();
    let known = Request::get("/feeds/a/recent.atom").header("If-None-Match", tag);
    assert_eq!(server.send(&known).status, 304);
    let post = Request::post("/feeds/a", "application/json", "{\"id\":\"urn:event:103\"}");
    assert_eq!(
        server.send(&post.clone().header("If-Match", tag)).status,
        201
    );
    pause(Duration::from_millis(2_500));
    simplefeed(&follow, b"");
    assert_eq!(
        simplefeed(&["replay", &feed, "--format", "id"], b""),
        ids(104)
    );
}

/// A cache that keeps everything for an hour, whatever the server says.
pub(crate) fn stubborn(site: &str) -> String {
    let keep = "proxy_cache simplefeed; proxy_ignore_headers Cache-Control Expires; proxy_cache_valid 200 1h;";
    let site = replace(site, "proxy_ignore_headers Vary;", "");
    let keep = keep.replace("ignore_headers", "ignore_headers Vary");
    replace(&site, "proxy_cache simplefeed;", &keep)
}

/// Publishes a hundred entries a second until it is dropped.
struct Load {
    stop: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<usize>>,
}

impl Load {
    fn on(server: &Server) -> Self {
        let address = server.address.clone();
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while stopped.try_recv().is_err() {
                let line = format!("{{\"id\":\"urn:load:{count}\"}}");
                let post = Request::post("/feeds/a", "application/x-ndjson", line);
                assert_eq!(post.send(&address).unwrap().status, 201);
                count += 1;
                pause(Duration::from_millis(8));
            }
            count
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    fn end(mut self) -> usize {
        self.stop.send(()).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

/// Goal: a replay ends where the feed ended when it began, however fast the feed grows, and wherever
/// the first look came from.
#[test]
#[ignore = "needs nginx"]
fn a_pinned_end_is_met() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = served(&data);
    let nginx = Nginx::start_edited(
        "cache.conf",
        folder.path(),
        &server.address,
        &data,
        stubborn,
    );
    // The cache holds the recent document as it is now.
    let old = nginx.url("/feeds/a/recent.atom");
    assert_eq!(
        Request::get("/feeds/a/recent.atom")
            .header("Accept-Encoding", "gzip")
            .send(&nginx.address)
            .unwrap()
            .status,
        200
    );
    let load = Load::on(&server);
    pause(Duration::from_secs(1));
    for _ in 0..5 {
        let before = entries(&server);
        let printed = text(&replay(&server.url("/feeds/a")).stdout)
            .lines()
            .count();
        let after = entries(&server);
        assert!(
            (before..=after).contains(&printed),
            "{before} <= {printed} <= {after}"
        );
        // The old copy ends at entry 103; its documents have grown since.
        let output = replay(&old);
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(0), ids(103)),
            "{}",
            text(&output.stderr)
        );
    }
    assert!(load.end() > 100, "the load was none");
}

fn entries(server: &Server) -> usize {
    let catalogue = server.get("/feeds").json();
    usize::try_from(catalogue["feeds"][0]["entries"].as_u64().unwrap()).unwrap()
}
