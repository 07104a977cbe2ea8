//! Push through real proxies: events come at once, waits work, and nobody waits behind a waiter.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    thread,
    time::{Duration, Instant},
};

use crate::{
    access::{Guarded, paths},
    caddy::Caddy,
    event_stream::EventStream,
    harness::pause,
    http::Request,
    nginx::Nginx,
    packaging::Varnish,
    proxies::{Kind, Proxy},
};

/// Longest time for an event to pass a proxy. One that keeps answers back until its buffer is full never passes it on.
const PASSED_WITHIN: Duration = Duration::from_secs(3);

/// Checks a proxy at `address` in front of the server; in the end, without it.
fn check(guarded: Guarded, address: &str, proxy: &str) {
    check_before(&guarded, address, proxy);
    guarded.server.kill();
    let away = "/feeds/open/events";
    let mut later = EventStream::open(address, away, &[]).unwrap();
    assert_eq!(later.status, 200, "{proxy}: {}", later.head);
    assert!(
        later.head.contains("access-control-allow-origin: *"),
        "{proxy}"
    );
    assert!(
        later.head.contains("text/event-stream"),
        "{proxy}: {}",
        later.head
    );
    assert_eq!(later.next().unwrap(), None, "{proxy}");
    assert!(
        later.body.ends_with(b"retry: 10000\n\n"),
        "{proxy}: {:?}",
        later.body
    );
    let wait = Request::get("/feeds/open/recent.atom?wait=5")
        .send(address)
        .unwrap();
    assert!(wait.status >= 500, "{proxy}: {}", wait.status);
}

fn check_before(guarded: &Guarded, address: &str, proxy: &str) {
    // Every read has the status that the server gives it.
    for (path, endpoint) in paths("open") {
        let get = "GET".parse().unwrap();
        let is_for_some = endpoint.label == "health" || path.contains("-closed");
        if endpoint.verb(&get).is_none() || is_for_some || path == "/feeds/open" {
            continue;
        }
        let direct = guarded.ask(Request::get(&path), None);
        let through = Request::get(&path).send(address).unwrap();
        assert_eq!(through.status, direct.status, "{proxy} {path}");
        let kind = through.maybe("content-type");
        assert_eq!(kind, direct.maybe("content-type"), "{proxy} {path}");
    }
    let publish = |title: &str| {
        let event = format!("{{\"id\":\"urn:{title}\"}}");
        let event = Request::post("/feeds/open", "application/x-ndjson", event);
        assert_eq!(guarded.ask(event, Some(&guarded.admin)).status, 201);
    };
    let all = "/feeds/open/events?since=oldest";
    let mut stream = EventStream::open(address, all, &[]).unwrap();
    stream.take(8);
    let mut slowest = Duration::ZERO;
    for round in 0..10 {
        let began = Instant::now();
        publish(&format!("{proxy}-{round}"));
        assert!(stream.take(1)[0].data.contains(&format!("{proxy}-{round}")));
        slowest = slowest.max(began.elapsed());
    }
    assert!(slowest < PASSED_WITHIN, "{proxy}: {slowest:?}");

    let recent = "/feeds/open/recent.atom";
    let wait = |seconds: u32, tag: &str| {
        let path = format!("{recent}?wait={seconds}");
        let wait = Request::get(&path).header("If-None-Match", tag);
        let wait = wait.header("Accept-Encoding", "gzip");
        let began = Instant::now();
        (wait.send(address).unwrap(), began.elapsed())
    };
    // Each coding has its own tag.
    let tag = Request::get(recent).header("Accept-Encoding", "gzip");
    let tag = tag.header("Cache-Control", "no-cache");
    let tag = tag.send(address).unwrap();
    let tag = tag.header("etag");
    let (answer, took) = wait(1, tag);
    assert_eq!(answer.status, 304, "{proxy}");
    assert!(took >= Duration::from_secs(1), "{proxy}: {took:?}");
    // Longer than a proxy waits for anything else; meanwhile, others read.
    let read_for = |time: Duration| {
        let mut reads = vec![];
        let began = Instant::now();
        while began.elapsed() < time {
            let began = Instant::now();
            let plain = Request::get(recent).send(address).unwrap();
            assert_eq!(plain.status, 200, "{proxy}");
            reads.push(began.elapsed());
            pause(Duration::from_millis(10));
        }
        reads.sort_unstable();
        reads[reads.len() * 99 / 100]
    };
    let without = read_for(Duration::from_secs(6));
    let (answer, beside) = thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(60, tag));
        let beside = read_for(Duration::from_secs(12));
        assert!(!waiting.is_finished(), "{proxy}");
        publish(&format!("{proxy}-waited-for"));
        (waiting.join().unwrap().0, beside)
    });
    assert_eq!(answer.status, 200, "{proxy}");
    assert_ne!(answer.header("etag"), tag, "{proxy}");
    let mut figures = std::io::stdout().lock();
    let told = writeln!(
        figures,
        "{proxy}: p99 of reads {without:?}, beside a waiter {beside:?}; slowest event {slowest:?}"
    );
    told.unwrap();
    drop(figures);
    // Behind a lock of the cache, a read would take as long as the wait.
    assert!(
        beside < 10 * without + Duration::from_secs(2),
        "{proxy}: {without:?} {beside:?}"
    );
    // No cache gives the answer of a waiter to somebody else.
    let (answer, _) = wait(1, tag);
    assert_eq!(answer.status, 200, "{proxy}");
    let frozen = Request::get("/feeds/open/1.atom");
    assert!(frozen.send(address).unwrap().is_immutable(), "{proxy}");
    // Frozen documents are cached as before.
    let again = frozen.send(address).unwrap();
    if let Some(status) = again
        .maybe("cache-status")
        .filter(|status| !status.is_empty())
    {
        assert_eq!(status, "nginx; hit");
    }
    if let Some(transactions) = again.maybe("x-varnish") {
        // Two of them: the one that filled the cache, too.
        assert_eq!(transactions.split(' ').count(), 2);
    }
}

#[test]
#[ignore = "needs nginx"]
fn push_passes_nginx() {
    for config in ["cache.conf", "archives.conf"] {
        let guarded = Guarded::start(&[]);
        let www = guarded.data().join("www");
        let nginx = Nginx::start(config, guarded.folder.path(), &guarded.server.address, &www);
        check(guarded, &nginx.address, "nginx");
    }
}

#[test]
#[ignore = "needs varnishd"]
fn push_passes_varnish() {
    let guarded = Guarded::start(&[]);
    let folder = guarded.folder.path();
    // Its worker is another user.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let varnish = Varnish::start(folder, &guarded.server.address);
    check(guarded, &varnish.address, "varnish");
}

#[test]
#[ignore = "needs caddy"]
fn push_passes_caddy() {
    let guarded = Guarded::start(&[]);
    let www = guarded.data().join("www");
    let caddy = Caddy::start(guarded.folder.path(), &guarded.server.address, &www);
    check(guarded, &caddy.address, "caddy");
}

#[test]
#[ignore = "needs haproxy"]
fn push_passes_haproxy() {
    let (guarded, haproxy) = behind(Kind::Haproxy);
    check(guarded, &haproxy.address, "haproxy");
}

/// Without a server, its answer is an error: it has no other one for a path.
#[test]
#[ignore = "needs apache2"]
fn push_passes_apache() {
    let (guarded, apache) = behind(Kind::Apache);
    check_before(&guarded, &apache.address, "apache");
}

/// As for Apache.
#[test]
#[ignore = "needs squid"]
fn push_passes_squid() {
    let (guarded, squid) = behind(Kind::Squid);
    check_before(&guarded, &squid.address, "squid");
}

fn behind(kind: Kind) -> (Guarded, Proxy) {
    let guarded = Guarded::start(&[]);
    let (folder, www) = (guarded.folder.path(), guarded.data().join("www"));
    let proxy = Proxy::start(kind, folder, &guarded.server.address, &www);
    (guarded, proxy)
}
