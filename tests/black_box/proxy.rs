//! Behind a real nginx: what a cache saves, what it hides, and what it must not hide.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    harness::{Server, events, pause, program, run, simplefeed, text, workspace},
    http::Request,
    nginx::{Counter, Nginx, replace},
    proxies::{Kind, Proxy},
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

    // A query asks for nothing else.
    let queried = Request::get("/feeds/a/7.atom?x=1").header("Accept-Encoding", "gzip");
    assert_eq!(
        queried.send(&nginx.address).unwrap().header("cache-status"),
        "nginx; hit"
    );
    assert_eq!(counter.archives_asked(20)["/feeds/a/7.atom"], 1);
    only_readers_pass(&nginx);
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
            "content-security-policy",
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
    only_readers_pass(&nginx);
    // Another proxy in between gets compressed documents, too.
    let via = Request::get("/feeds/a/7.atom")
        .header("Accept-Encoding", "gzip")
        .header("Via", "1.1 x");
    assert_eq!(
        via.send(&nginx.address).unwrap().header("content-encoding"),
        "gzip"
    );
}

/// Nobody publishes or changes anything through the proxy.
fn only_readers_pass(nginx: &Nginx) {
    for path in [
        "/feeds/a",
        "/feeds/a/7.atom",
        "/feeds/a/999.atom",
        "/feeds/a/index-9.json",
        "/feeds",
    ] {
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            let request = Request::new(method, path).body("{}");
            assert_eq!(
                request.send(&nginx.address).unwrap().status,
                403,
                "{method} {path}"
            );
        }
        let head = Request::new("HEAD", path).send(&nginx.address).unwrap();
        assert_ne!(head.status, 403, "HEAD {path}");
    }
}

/// Goal: an answer that takes long is waited for, by all, and asked for once.
#[test]
#[ignore = "needs nginx"]
fn a_slow_answer_is_one_request() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = served(&data);
    let counter = Counter::slow(&server.address, Duration::from_secs(7));
    let nginx = Nginx::start_edited(
        "cache.conf",
        folder.path(),
        &counter.address,
        &data,
        |site| {
            // Slower than nginx waits by default for the one that asks.
            replace(site, "proxy_read_timeout 5s;", "proxy_read_timeout 60s;")
        },
    );
    let askers: Vec<_> = (0..10)
        .map(|_| {
            let address = nginx.address.clone();
            std::thread::spawn(move || {
                Request::get("/feeds/a/5.atom")
                    .send(&address)
                    .unwrap()
                    .status
            })
        })
        .collect();
    for asker in askers {
        assert_eq!(asker.join().unwrap(), 200);
    }
    assert_eq!(counter.archives_asked(20)["/feeds/a/5.atom"], 1);
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
        let feed = nginx.url("/feeds/a");
        let before = replay(&feed);
        assert_eq!(
            (text(&before.stdout), text(&before.stderr)),
            (ids(103), String::new())
        );
        // First it hangs, then it is gone.
        for end in ["STOP", "KILL"] {
            server.signal(end);
            // The copy of the recent document must be past its time to be noticed as such.
            pause(Duration::from_millis(2_500));
            let after = replay(&feed);
            let said = text(&after.stderr);
            assert_eq!(
                (after.status.code(), text(&after.stdout)),
                (Some(0), ids(103)),
                "{config}, {end}: {said}"
            );
            assert!(
                said.contains("could not ask the server"),
                "{config}, {end}: {said}"
            );
        }
        // Who follows is told, too.
        let mut tail = Command::new(program("simplefeed"))
            .args(["tail", &feed])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(tail.stderr.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        tail.kill().unwrap();
        tail.wait().unwrap();
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

/// Goal: with the server down, the other proxies show what docs/operations.md says, and a consumer notices old copies.
#[test]
#[ignore = "needs varnishd, caddy, haproxy, apache2 and squid"]
fn what_other_proxies_show_without_a_server() {
    for kind in Kind::ALL {
        if matches!(kind, Kind::Nginx | Kind::NginxWithFiles) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server = served(&data);
        let proxy = Proxy::start(kind, folder.path(), &server.address, &data.join("www"));
        let feed = format!("http://{}/feeds/a/recent.atom", proxy.address);
        let before = replay(&feed);
        assert_eq!(text(&before.stdout), ids(103), "{kind:?}");
        server.kill();
        // The copy of the recent document must be past its time to be noticed as such.
        pause(Duration::from_millis(2_500));
        if matches!(kind, Kind::Caddy | Kind::Haproxy) {
            let recent = Request::get("/feeds/a/recent.atom").send(&proxy.address);
            assert!(recent.unwrap().status >= 500, "{kind:?}");
        } else {
            let after = replay(&feed);
            let said = text(&after.stderr);
            let whole = (Some(0), ids(103));
            assert_eq!((after.status.code(), text(&after.stdout)), whole, "{said}");
            assert!(
                said.contains("could not ask the server"),
                "{kind:?}: {said}"
            );
        }
        let frozen = Request::get("/feeds/a/7.atom").header("Accept-Encoding", "gzip");
        let frozen = frozen.send(&proxy.address).unwrap();
        assert!(frozen.is_immutable(), "{kind:?}");
    }
}

/// What docs/operations.md says for an nginx that compresses by itself.
const BY_ITSELF: &str =
    "proxy_set_header Accept-Encoding \"\"; gzip on; gzip_proxied any; gzip_types *;";

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
            replace(
                site,
                "proxy_set_header Accept-Encoding $simplefeed_coding;",
                BY_ITSELF,
            )
        },
    );
    let page = std::fs::read_to_string(workspace().join("docs/operations.md")).unwrap();
    assert!(page.contains(BY_ITSELF));
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
    let past = " $simplefeed_past_caches;";
    let site = replace(
        &site,
        &format!("proxy_cache_bypass $http_authorization{past}"),
        "",
    );
    let keep = keep.replace("ignore_headers", "ignore_headers Vary");
    replace(&site, "proxy_cache simplefeed;", &keep)
}

/// Publishes a hundred entries a second until it is ended.
struct Load {
    stop: Arc<AtomicBool>,
    posters: Vec<std::thread::JoinHandle<usize>>,
}

impl Load {
    fn on(server: &Server) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let began = Instant::now();
        let posters = (0..4).map(|poster| {
            let (address, stop) = (server.address.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Acquire) {
                    let due =
                        Duration::from_millis(10 * (4 * u64::try_from(count).unwrap() + poster));
                    pause(due.saturating_sub(began.elapsed()));
                    let line = format!("{{\"id\":\"urn:load:{poster}:{count}\"}}");
                    let post = Request::post("/feeds/a", "application/x-ndjson", line);
                    assert_eq!(post.send(&address).unwrap().status, 201);
                    count += 1;
                }
                count
            })
        });
        let posters = posters.collect();
        Self { stop, posters }
    }

    fn end(self) -> usize {
        self.stop.store(true, Ordering::Release);
        self.posters
            .into_iter()
            .map(|poster| poster.join().unwrap())
            .sum()
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
    let look = Request::get("/feeds/a/recent.atom").header("Accept-Encoding", "gzip");
    assert_eq!(look.send(&nginx.address).unwrap().status, 200);
    let began = Instant::now();
    let load = Load::on(&server);
    for _ in 0..3 {
        let slow = Counter::slow(&server.address, Duration::from_millis(25));
        let before = entries(&server);
        let replaying = start_replay(&format!("http://{}/feeds/a/recent.atom", slow.address));
        // The look at the recent document is over once anything else is asked for.
        while slow.asked().len() < 2 {
            pause(Duration::from_millis(5));
        }
        let looked = entries(&server);
        let output = replaying.wait_with_output().unwrap();
        let after = entries(&server);
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(printed.starts_with(&ids(103)));
        let end = printed.lines().count();
        assert!(
            (before..=looked).contains(&end),
            "{before} <= {end} <= {looked}"
        );
        assert!(looked < after, "the feed did not grow meanwhile");
        let distinct: std::collections::HashSet<_> = printed.lines().collect();
        assert_eq!(distinct.len(), end);

        // The old copy ends at entry 103; its documents have grown since.
        let output = replay(&old);
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(0), ids(103)),
            "{}",
            text(&output.stderr)
        );
    }
    let (count, time) = (load.end(), began.elapsed());
    eprintln!(
        "pinned end: {count} entries appended in {} ms",
        time.as_millis()
    );
}

fn entries(server: &Server) -> usize {
    let catalogue = server.get("/feeds").json();
    usize::try_from(catalogue["feeds"][0]["entries"].as_u64().unwrap()).unwrap()
}
