//! Push through real proxies: events come at once, waits work, and nobody waits behind a waiter.

use std::{
    fs,
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
};

/// Longest time for an event to pass a proxy. One that keeps answers back until its buffer is full never passes it on.
const PASSED_WITHIN: Duration = Duration::from_secs(3);

/// Checks a proxy at `address` in front of the server.
fn check(guarded: &Guarded, address: &str, proxy: &str) {
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
        let began = Instant::now();
        (wait.send(address).unwrap(), began.elapsed())
    };
    // Of the coding that the proxy asks for.
    let tag = Request::get(recent).header("Cache-Control", "no-cache");
    let tag = tag.send(address).unwrap();
    let tag = tag.header("etag");
    let (answer, took) = wait(1, tag);
    assert_eq!(answer.status, 304, "{proxy}");
    assert!(took >= Duration::from_secs(1), "{proxy}: {took:?}");
    // Longer than a proxy waits for anything else; meanwhile, others read.
    let (answer, others) = thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(60, tag));
        let mut others = vec![];
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(12) {
            let began = Instant::now();
            let plain = Request::get(recent).send(address).unwrap();
            assert_eq!(plain.status, 200, "{proxy}");
            others.push(began.elapsed());
            pause(Duration::from_millis(100));
        }
        assert!(!waiting.is_finished(), "{proxy}");
        publish(&format!("{proxy}-waited-for"));
        (waiting.join().unwrap().0, others)
    });
    assert_eq!(answer.status, 200, "{proxy}");
    assert!(
        answer.text().contains(&format!("{proxy}-waited-for")),
        "{proxy}"
    );
    let slow = others.iter().filter(|took| **took > Duration::from_secs(1));
    assert!(slow.count() < others.len() / 10, "{proxy}: {others:?}");
    // No cache gives the answer of a waiter to somebody else.
    let (answer, _) = wait(1, tag);
    assert_eq!(answer.status, 200, "{proxy}");
    let frozen = Request::get("/feeds/open/1.atom").send(address).unwrap();
    assert!(frozen.is_immutable(), "{proxy}");
}

#[test]
#[ignore = "needs nginx"]
fn push_passes_nginx() {
    for config in ["cache.conf", "archives.conf"] {
        let guarded = Guarded::start(&[]);
        let www = guarded.data().join("www");
        let nginx = Nginx::start(config, guarded.folder.path(), &guarded.server.address, &www);
        check(&guarded, &nginx.address, "nginx");
        // What is frozen is kept as before, and asked for once.
        if config == "cache.conf" {
            let again = Request::get("/feeds/open/1.atom")
                .send(&nginx.address)
                .unwrap();
            assert_eq!(again.header("cache-status"), "nginx; hit");
        }
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
    check(&guarded, &varnish.address, "varnish");
    let again = Request::get("/feeds/open/1.atom")
        .send(&varnish.address)
        .unwrap();
    // Two transactions: the one that filled the cache, too.
    assert_eq!(again.header("x-varnish").split(' ').count(), 2);
}

#[test]
#[ignore = "needs caddy"]
fn push_passes_caddy() {
    let guarded = Guarded::start(&[]);
    let www = guarded.data().join("www");
    let caddy = Caddy::start(guarded.folder.path(), &guarded.server.address, &www);
    check(&guarded, &caddy.address, "caddy");
}
