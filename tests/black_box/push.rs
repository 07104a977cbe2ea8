//! Push: waits and streams against the real server, with rights, restarts and lost histories.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use crate::{
    access::{Guarded, bearing, new_token},
    event_stream::EventStream,
    harness::{Server, events, pause, simplefeed, wait_for},
    http::{Request, Response},
};

/// Returns a feed's entries as a replay prints them.
fn replayed(server: &Server, feed: &str) -> Vec<String> {
    let url = server.url(&format!("/feeds/{feed}"));
    let printed = simplefeed(&["replay", &url, "--format", "ndjson"], b"");
    printed.lines().map(Into::into).collect()
}

fn one(title: &str) -> String {
    format!("{{\"id\":\"urn:{title}\",\"title\":\"{title}\"}}")
}

/// Makes a timeline of the feeds `a` and `b`.
fn make_timeline(server: &Server) {
    let made = server.send(&Request::put("/feeds/both", r#"{"kind":"timeline"}"#));
    assert_eq!(made.status, 201, "{}", made.text());
    let follows = Request::post(
        "/feeds/both/following",
        "application/json",
        r#"{"follow":["a","b"]}"#,
    );
    assert_eq!(server.send(&follows).status, 200);
}

/// A stream from anywhere gives each entry once, in order, as a replay prints it, and goes on with new entries.
#[test]
fn a_stream_is_a_replay_that_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "50"]);
    server.publish("a", "");
    server.publish("b", "");
    for feed in ["a", "b"] {
        server.publish(feed, &one(&format!("{feed}-first")));
    }
    make_timeline(&server);
    server.publish("a", &events(1_234));
    for (feed, begins) in [("a", "since=oldest"), ("both", "since=oldest")] {
        let path = format!("/feeds/{feed}/events");
        let expected = replayed(&server, feed);
        let mut stream = EventStream::open(
            &server.address,
            &format!("{path}?{begins}"),
            &[("Accept", "text/event-stream")],
        )
        .unwrap();
        for field in [
            "content-type: text/event-stream",
            "cache-control: no-store",
            "x-accel-buffering: no",
        ] {
            assert!(stream.head.contains(field), "{}", stream.head);
        }
        let told = stream.take(expected.len());
        assert!(told.iter().map(|one| &one.data).eq(&expected), "{feed}");
        assert!(told.iter().all(|one| one.kind == "message"), "{feed}");
        assert!(stream.body.starts_with(b"retry: "), "{feed}");

        let mut newest = EventStream::open(&server.address, &path, &[]).unwrap();
        for round in 0..20 {
            server.publish("a", &one(&format!("{feed}-{round}")));
        }
        let more = stream.take(20);
        assert_eq!(newest.take(20), more, "{feed}");
        let all = replayed(&server, feed);
        let data = told.iter().chain(&more).map(|one| &one.data);
        assert!(data.eq(&all), "{feed}");

        // From every place, and with either name of it.
        for at in [0, 1, 49, 50, 63, 64, 777, told.len() - 1, all.len() - 2] {
            let id = &told.iter().chain(&more).nth(at).unwrap().id;
            let after = format!("{path}?after={id}");
            for (path, headers) in [
                (after.as_str(), vec![]),
                (
                    &format!("{path}?since=oldest"),
                    vec![("Last-Event-ID", id.as_str())],
                ),
            ] {
                let mut stream = EventStream::open(&server.address, path, &headers).unwrap();
                let next = stream.take(1);
                assert_eq!(next[0].data, all[at + 1], "{feed} {at}");
            }
        }
    }
}

/// A stream without content sends the newest place at once and after each change; a batch is one event.
#[test]
fn a_place_alone_is_told_once_for_all_that_came_together() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &one("first"));
    let path = "/feeds/a/events?content=none";
    let mut stream = EventStream::open(&server.address, path, &[]).unwrap();
    let first = stream.take(1).remove(0);
    assert!(
        first.id.starts_with("0-") && first.data.is_empty(),
        "{first:?}"
    );
    server.publish("a", &events(500));
    let next = stream.take(1).remove(0);
    assert!(next.id.starts_with("500-"), "{next:?}");
    let known = [("Last-Event-ID", next.id.as_str())];
    let mut again = EventStream::open(&server.address, path, &known).unwrap();
    server.publish("a", &one("last"));
    assert_eq!(again.take(1), stream.take(1));
    // Its id is the one that a stream of entries has.
    let mut all = EventStream::open(&server.address, "/feeds/a/events?since=oldest", &[]).unwrap();
    assert_eq!(all.take(501).pop().unwrap().id, next.id);
}

/// A reader that comes back before its first event has a place, and misses nothing.
#[test]
fn a_stream_has_a_place_before_its_first_event() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &one("old"));
    let created = server.send(&Request::put("/feeds/empty", "{}"));
    assert_eq!(created.status, 201);
    for feed in ["a", "empty"] {
        let path = format!("/feeds/{feed}/events");
        let mut stream = EventStream::open(&server.address, &path, &[]).unwrap();
        let id = stream.first_id();
        drop(stream);
        server.publish(feed, &one("missed"));
        let last = [("Last-Event-ID", id.as_str())];
        let mut stream = EventStream::open(&server.address, &path, &last).unwrap();
        assert!(stream.take(1)[0].data.contains("urn:missed"), "{feed} {id}");
    }
}

/// Goal: a reader that cannot send a header field goes on by its query, as polyfills of `EventSource` do.
#[test]
fn a_polyfill_goes_on_by_its_query() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &events(6));
    let open = |query: &str, fields: &[(&str, &str)]| {
        let path = format!("/feeds/a/events?{query}");
        EventStream::open(&server.address, &path, fields).unwrap()
    };
    let all = open("since=oldest", &[]).take(6);
    // The browser's own URL stays in front.
    let query = format!("since=oldest&lastEventId={}", all[2].id);
    assert_eq!(open(&query, &[]).take(3), all[3..]);
    // The field is newer than the URL.
    let field = [("Last-Event-ID", all[4].id.as_str())];
    assert_eq!(open(&query, &field).take(1), all[5..]);
    assert_eq!(open("since=oldest&lastEventId=", &[]).take(1), all[..1]);
    for (query, status) in [("lastEventId=end", 204), ("lastEventId=7-zz", 400)] {
        let path = format!("/feeds/a/events?{query}");
        assert_eq!(server.get(&path).status, status, "{query}");
    }
}

/// A place that belongs to another history ends the stream for good, one that is still to come is waited for.
#[test]
fn a_place_that_does_not_fit_ends_in_a_state() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "3"]);
    server.publish("a", &events(10));
    server.publish("b", &events(12));
    let mut other =
        EventStream::open(&server.address, "/feeds/b/events?since=oldest", &[]).unwrap();
    let other = other.take(12);
    for lost in [&other[4].id, &other[9].id, &other[11].id] {
        let mut stream = EventStream::open(
            &server.address,
            "/feeds/a/events",
            &[("Last-Event-ID", lost)],
        )
        .unwrap();
        let state = stream.take(1).remove(0);
        assert_eq!((state.kind.as_str(), state.id.as_str()), ("state", "end"));
        let data: serde_json::Value = serde_json::from_str(&state.data).unwrap();
        assert_eq!(data["state"], "history changed");
        assert_eq!(stream.next().unwrap(), None, "{lost}");
        let back = Request::get("/feeds/a/events").header("Last-Event-ID", "end");
        assert_eq!(server.send(&back).status, 204);
    }
    for wrong in ["no id", "7", "7-zz"] {
        let asked = Request::get("/feeds/a/events").header("Last-Event-ID", wrong);
        assert_eq!(server.send(&asked).status, 400, "{wrong}");
    }
    // A place from a server that is ahead: it may come within seconds.
    let twin = tempfile::tempdir().unwrap();
    let twin = Server::start(twin.path(), &[]);
    // Without links, which have the address of the server, both have the same history.
    let id = r#"{"id":"urn:uuid:00000000-0000-4000-8000-00000000000a","alternate_links":false}"#;
    for server in [&server, &twin] {
        assert_eq!(server.send(&Request::put("/feeds/c", id)).status, 201);
        let first = "{\"id\":\"urn:1\",\"updated\":\"2026-01-01T00:00:00Z\"}";
        server.publish("c", first);
    }
    let second = "{\"id\":\"urn:2\",\"updated\":\"2026-01-01T00:00:00Z\"}";
    twin.publish("c", second);
    let mut stream = EventStream::open(&twin.address, "/feeds/c/events?since=oldest", &[]).unwrap();
    let told = stream.take(2).pop().unwrap();
    let mut ahead = EventStream::open(
        &server.address,
        "/feeds/c/events",
        &[("Last-Event-ID", &told.id)],
    )
    .unwrap();
    pause(Duration::from_millis(300));
    server.publish("c", second);
    server.publish("c", &one("third"));
    assert!(ahead.take(1)[0].data.contains("urn:third"));
}

/// Asks for the recent document with a wait, and returns the answer and how long it took.
fn wait_for_change(
    server: &Server,
    feed: &str,
    seconds: u64,
    tag: Option<&str>,
) -> (Response, Duration) {
    let mut request = Request::get(&format!("/feeds/{feed}/recent.atom?wait={seconds}"));
    if let Some(tag) = tag {
        request = request.header("If-None-Match", tag);
    }
    let began = Instant::now();
    (server.send(&request), began.elapsed())
}

/// A wait ends with a change of the document, or with its time; its answer is that of the plain URL, and kept by nobody.
#[test]
fn a_wait_ends_with_a_change_or_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &one("a"));
    server.publish("b", &one("b"));
    make_timeline(&server);
    for feed in ["a", "both"] {
        let plain = server.get(&format!("/feeds/{feed}/recent.atom"));
        let tag = plain.header("etag").to_owned();
        assert!(
            plain
                .header("link")
                .contains("<recent.atom?wait=15>; rel=\"urn:simplefeed:1#wait\"")
        );
        // A wait with another tag is answered at once.
        let (answer, _) = wait_for_change(&server, feed, 60, Some("\"other\""));
        assert_eq!((answer.status, &answer.body), (200, &plain.body));
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("etag"), tag);
        // Caches keep the plain URL as before.
        let again = server.get(&format!("/feeds/{feed}/recent.atom"));
        let policy = again.header("cache-control");
        assert_eq!(policy, plain.header("cache-control"));
        assert!(policy.contains("max-age"), "{policy}");
        let (answer, took) = wait_for_change(&server, feed, 1, Some(&tag));
        assert_eq!(answer.status, 304, "{feed}");
        assert!(took >= Duration::from_secs(1), "{took:?}");
        // An append elsewhere changes nothing.
        let change = thread::scope(|scope| {
            let waiting = scope.spawn(|| wait_for_change(&server, feed, 60, Some(&tag)));
            pause(Duration::from_millis(300));
            server.publish("elsewhere", &one("x"));
            pause(Duration::from_millis(300));
            assert!(!waiting.is_finished(), "{feed}");
            let began = Instant::now();
            server.publish("a", &one(&format!("news-{feed}")));
            (waiting.join().unwrap().0, began.elapsed())
        });
        assert_eq!(change.0.status, 200, "{feed}");
        let now = server.get(&format!("/feeds/{feed}/recent.atom"));
        assert_eq!(change.0.body, now.body, "{feed}");
        // The waiter had it first, and its answer was for nobody else.
        assert_eq!(change.0.header("cache-control"), "no-store", "{feed}");
        assert_eq!(now.header("cache-control"), policy, "{feed}");
        // Far less than the rest of the wait.
        assert!(change.1 < Duration::from_secs(20), "{feed} {:?}", change.1);
    }
    for wrong in ["0", "61", "x", "01"] {
        let answer = server.get(&format!("/feeds/a/recent.atom?wait={wrong}"));
        assert_eq!(answer.status, 400, "{wrong}");
    }
    let nothing = server.get("/feeds/none/recent.atom?wait=60");
    assert_eq!(nothing.status, 404);
}

/// A wait for updates is answered once a document lists an update after the given second.
#[test]
fn a_wait_for_updates_ends_with_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &one("a"));
    let follow = |answer: &Response| {
        let link = answer.header("link").to_owned();
        let (target, _) = link.split_once("#wait").unwrap();
        let target = target.rsplit('<').next().unwrap();
        format!("/{}", target.split('>').next().unwrap())
    };
    let first = wait_for("the first update is not told", || {
        let answer = server.get("/sup.json");
        let told = answer.status == 200 && !answer.json()["updates"].as_array()?.is_empty();
        told.then_some(answer)
    });
    let path = follow(&first).replace("wait=15", "wait=60");
    let answer = thread::scope(|scope| {
        let waiting = scope.spawn(|| server.get(&path));
        pause(Duration::from_secs(2));
        assert!(!waiting.is_finished());
        server.publish("b", &one("b"));
        waiting.join().unwrap()
    });
    assert_eq!(answer.header("cache-control"), "no-store");
    assert_eq!(answer.json()["updates"].as_array().unwrap().len(), 2);
    // Updates that only the archive lists keep no reader waiting.
    let old = server.get("/sup.json?seconds=60&since=1000&wait=60");
    assert_eq!(old.status, 200);
    for wrong in ["wait=5", "since=7", "since=x&wait=5", "since=7&wait=61"] {
        assert_eq!(
            server.get(&format!("/sup.json?{wrong}")).status,
            400,
            "{wrong}"
        );
    }
}

/// A watcher learns of an update once its second is over, and not at its next poll, after 48 seconds.
#[test]
fn a_watcher_is_told_of_updates() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &one("first"));
    let url = server.url("/feeds/a");
    thread::scope(|scope| {
        let args = [
            "watch", &url, "--since", "oldest", "--limit", "2", "--format", "id",
        ];
        let watching = scope.spawn(move || simplefeed(&args, b""));
        // It reads the feed, and waits for updates.
        pause(Duration::from_secs(8));
        assert!(!watching.is_finished());
        let began = Instant::now();
        server.publish("a", &one("second"));
        assert_eq!(watching.join().unwrap(), "urn:first\nurn:second\n");
        assert!(
            began.elapsed() < Duration::from_secs(25),
            "{:?}",
            began.elapsed()
        );
    });
}

/// Readers without a right to a closed feed, or with a right that ended, get nothing of it.
#[test]
fn who_may_not_read_is_told_nothing() {
    let guarded = Guarded::start(&[]);
    let address = &guarded.server.address;
    let token = format!("Bearer {}", guarded.reader);
    let holder = [("Authorization", token.as_str())];
    for path in [
        "/feeds/shut/events",
        "/feeds/shut/events?content=none",
        "/feeds/shut/recent.atom?wait=5",
    ] {
        assert_eq!(guarded.ask(Request::get(path), None).status, 404, "{path}");
    }
    let mut closed =
        EventStream::open(address, "/feeds/shut/events?since=oldest", &holder).unwrap();
    assert_eq!(closed.status, 200);
    assert!(!closed.head.contains("access-control"), "{}", closed.head);
    closed.take(8);
    let admin = |request: Request| guarded.ask(request, Some(&guarded.admin));
    // A timeline that comes to follow a feed that is closed to its reader ends the stream before its next entry.
    let tokens = guarded.folder.path().join("tokens");
    let reader = format!("Bearer {}", new_token(&tokens, "read", "shut*"));
    guarded.server.signal("HUP");
    let settings = r#"{"kind":"timeline","closed":true}"#;
    assert_eq!(
        admin(Request::put("/feeds/shut-line", settings)).status,
        201
    );
    assert_eq!(
        admin(Request::put("/feeds/secret", r#"{"closed":true}"#)).status,
        201
    );
    let follow = |feed: &str| {
        let path = format!("/feeds/shut-line/following/{feed}");
        assert_eq!(admin(Request::put(&path, "")).status, 200, "{feed}");
    };
    follow("shut");
    let publish = |feed: &str, title: &str| {
        let event = Request::post(
            &format!("/feeds/{feed}"),
            "application/x-ndjson",
            one(title),
        );
        assert_eq!(admin(event).status, 201);
    };
    publish("shut", "seen");
    let headers = [("Authorization", reader.as_str())];
    let path = "/feeds/shut-line/events?since=oldest";
    let mut line = wait_for("the timeline is not seen", || {
        let line = EventStream::open(address, path, &headers).unwrap();
        (line.status == 200).then_some(line)
    });
    assert!(line.take(1)[0].data.contains("urn:seen"));
    assert!(closed.take(1)[0].data.contains("urn:seen"));
    follow("secret");
    publish("secret", "secret");
    assert_eq!(line.next().unwrap(), None);

    let recent = Request::get("/feeds/shut/recent.atom");
    let tag = guarded
        .ask(recent, Some(&guarded.reader))
        .header("etag")
        .to_owned();
    let waits = Request::get("/feeds/shut/recent.atom?wait=60").header("If-None-Match", &tag);
    let waited = thread::scope(|scope| {
        let waiting = scope.spawn(|| guarded.server.send(&bearing(waits, Some(&guarded.reader))));
        pause(Duration::from_secs(1));
        assert!(!waiting.is_finished());
        let lines = fs::read_to_string(&tokens).unwrap();
        let left = lines.lines().filter(|line| !line.contains(":read:shut"));
        fs::write(&tokens, left.collect::<Vec<_>>().join("\n") + "\n").unwrap();
        guarded.server.signal("HUP");
        let began = Instant::now();
        assert_eq!(closed.next().unwrap(), None);
        assert!(began.elapsed() < Duration::from_secs(10));
        let news = Request::post("/feeds/shut", "application/x-ndjson", one("news"));
        assert_eq!(admin(news).status, 201);
        waiting.join().unwrap()
    });
    assert_eq!(waited.status, 404, "{}", waited.text());
}

/// A server that stops ends its streams and waits at once, and each with an answer.
#[test]
fn a_stop_ends_what_waits() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &one("a"));
    let address = server.address.clone();
    let mut stream = EventStream::open(&address, "/feeds/a/events", &[]).unwrap();
    let tag = server.get("/feeds/a/recent.atom").header("etag").to_owned();
    let waiting = thread::spawn(move || {
        let request = Request::get("/feeds/a/recent.atom?wait=60").header("If-None-Match", &tag);
        request.send(&address).unwrap().status
    });
    pause(Duration::from_secs(1));
    assert!(!waiting.is_finished());
    let began = Instant::now();
    server.stop();
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(stream.next().unwrap(), None);
    assert_eq!(waiting.join().unwrap(), 304);
}

/// Waits and streams leave connections to others: beyond their part, a wait is a poll.
#[test]
fn who_waits_leaves_connections_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--connections", "8"]);
    server.publish("a", &one("a"));
    let open = || EventStream::open(&server.address, "/feeds/a/events?content=none", &[]).unwrap();
    let mut streams: Vec<EventStream> = std::iter::repeat_with(open).take(6).collect();
    for stream in &mut streams {
        assert_eq!(stream.status, 200);
        stream.take(1);
    }
    // An error would end a browser's stream for good.
    let mut later = open();
    assert_eq!((later.status, later.next().unwrap()), (200, None));
    assert_eq!(later.body, b"retry: 10000\n\n");
    // Its connection, and the one of the next read, may take a while to end.
    drop(later);
    let tag = server.get("/feeds/a/recent.atom").header("etag").to_owned();
    let (answer, took) = wait_for_change(&server, "a", 60, Some(&tag));
    assert_eq!(answer.status, 304);
    assert!(took < Duration::from_secs(30), "{took:?}");
    drop(streams);
    wait_for("the places are not free again", || {
        open().next().unwrap().map(drop)
    });
}
