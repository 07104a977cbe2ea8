//! `import`: from files, from a live feed of ours and from an archive of somebody else, again and again.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    harness::{Server, events, pause, program, run, simplefeed, text},
    http::Response,
};

/// A web server of somebody else, which serves these documents.
fn elsewhere(documents: HashMap<&'static str, &'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = head.next().unwrap().unwrap();
            while head.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let path = request.split(' ').nth(1).unwrap();
            let (status, body) = match documents.get(path) {
                Some(body) => ("200 OK", *body),
                None => ("404 Not Found", ""),
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/atom+xml\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            );
            let _gone = stream.write_all(answer.as_bytes());
        }
    });
    address
}

fn feed_id(server: &Server, feed: &str) -> String {
    let recent = server.get(&format!("/feeds/{feed}/recent.atom")).text();
    let (_, id) = recent.split_once("<id>").unwrap();
    id.split_once("</id>").unwrap().0.into()
}

fn entry(server: &Server, feed: &str, at: usize) -> Response {
    server.get(&format!("/feeds/{feed}/entries/{at}.atom"))
}

/// Goal: a feed that moves is the same feed with the same entries, whatever interrupts the move.
/// Method: the command is killed again and again; then it goes on from a bookmark.
#[test]
fn a_feed_that_moves_keeps_its_id_and_its_entries() {
    const ENTRIES: usize = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let from = Server::start(&folder.path().join("from"), &[]);
    let to = Server::start(&folder.path().join("to"), &[]);
    simplefeed(
        &["append", &from.url("/feeds/a")],
        events(ENTRIES).as_bytes(),
    );
    let (source, target) = (from.url("/feeds/a"), to.url("/feeds/b"));
    let bookmark = folder.path().join("bookmark").to_str().unwrap().to_owned();
    let args = ["import", &target, &source, "--bookmark", &bookmark];
    for round in 0..6 {
        let mut child = Command::new(program("simplefeed"))
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        pause(Duration::from_millis(40 * round));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    simplefeed(&args, b"");
    assert_eq!(feed_id(&to, "b"), feed_id(&from, "a"));
    let replay = |url: &str| simplefeed(&["replay", url, "--format", "id"], b"");
    assert_eq!(replay(&target), replay(&source));
    assert_eq!(replay(&target).lines().count(), ENTRIES);
    for at in [0, 17, ENTRIES - 1] {
        assert_eq!(entry(&to, "b", at).body, entry(&from, "a", at).body);
    }
    // Only what is new is fetched again; without a bookmark, everything, and nothing is stored twice.
    from.publish_ids("a", ["new".to_owned()]);
    assert_eq!(
        simplefeed(&args, b""),
        format!("appended\t{ENTRIES}\turn:t:new\n")
    );
    let again = simplefeed(&["import", &target, &source], b"");
    assert_eq!(again.lines().count(), ENTRIES + 1);
    assert!(again.lines().all(|line| line.starts_with("duplicate\t")));
    // A second feed of one server cannot have the id, and is told so.
    let output = run("simplefeed", &["import", &to.url("/feeds/c"), &source], b"");
    assert!(output.status.success() && text(&output.stderr).contains("an id of its own"));
    assert_ne!(feed_id(&to, "c"), feed_id(&to, "b"));
}

/// Goal: an archive by RFC 5005 that we did not write is imported from its oldest entry on, with what its
/// references and languages mean; revisions do not replace what was stored first, and are counted.
#[test]
fn an_archive_of_somebody_else_is_imported() {
    let address = elsewhere(HashMap::from([
        (
            "/blog/feed.atom",
            "<feed xmlns='http://www.w3.org/2005/Atom' xml:lang='de'><id>urn:blog</id>\
             <title>Blog</title><updated>2026-01-03T00:00:00Z</updated>\
             <author><name>Alice</name></author>\
             <link rel='self' href='feed.atom'/><link rel='prev-archive' href='2.atom'/>\
             <entry><id>urn:4</id><title>Vier</title><updated>2026-01-03T00:00:00Z</updated>\
             <link href='posts/4.html'/></entry>\
             <entry><id>urn:2</id><title>Two, revised</title><updated>2026-01-03T00:00:00Z</updated>\
             <content>New</content></entry></feed>",
        ),
        (
            "/blog/2.atom",
            "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:x='urn:x'><id>urn:blog</id>\
             <title>Blog</title><updated>2026-01-02T00:00:00Z</updated>\
             <link rel='prev-archive' href='1.atom'/><link rel='current' href='feed.atom'/>\
             <entry><id>urn:3</id><title>Three</title><updated>2026-01-02T00:00:00Z</updated>\
             <x:note>kept</x:note><content>3</content></entry>\
             <entry><id>urn:2</id><title>Two</title><updated>2026-01-01T00:00:00Z</updated>\
             <content>Old</content></entry></feed>",
        ),
        (
            "/blog/1.atom",
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:blog</id><title>Blog</title>\
             <updated>2026-01-01T00:00:00Z</updated><link rel='current' href='feed.atom'/>\
             <entry><id>urn:1</id><title>One</title><updated>2026-01-01T00:00:00Z</updated>\
             <content>1</content></entry></feed>",
        ),
    ]));
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let target = server.url("/feeds/blog");
    let output = run(
        "simplefeed",
        &["import", &target, &format!("{address}/blog/feed.atom")],
        b"",
    );
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("1 entry was there with another content"),
        "{said}"
    );
    assert_eq!(feed_id(&server, "blog"), "urn:blog");
    let ids = simplefeed(&["replay", &target, "--format", "id"], b"");
    assert_eq!(ids, "urn:1\nurn:2\nurn:3\nurn:4\n");
    assert!(entry(&server, "blog", 1).text().contains("Old"));
    assert!(
        entry(&server, "blog", 2)
            .text()
            .contains("<x:note>kept</x:note>")
    );
    let fourth = entry(&server, "blog", 3).text();
    assert!(
        fourth.contains(&format!("xml:base=\"{address}/blog/\"")),
        "{fourth}"
    );
    assert!(fourth.contains("xml:lang=\"de\""), "{fourth}");
    assert!(fourth.contains("<name>Alice</name>"), "{fourth}");
}

/// Goal: of several revisions in one document, the newest is imported, from a URL as from a file, with one warning.
#[test]
fn of_revisions_in_one_document_the_newest_is_imported() {
    const FEED: &str = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id><title>F</title>\
        <updated>2026-01-03T00:00:00Z</updated><author><name>A</name></author>\
        <entry><id>urn:1</id><title>1</title><updated>2026-01-02T00:00:00Z</updated><content>second</content></entry>\
        <entry><id>urn:1</id><title>1</title><updated>2026-01-03T00:00:00Z</updated><content>third</content></entry>\
        <entry><id>urn:1</id><title>1</title><updated>2026-01-01T00:00:00Z</updated><content>first</content></entry>\
        </feed>";
    let address = elsewhere(HashMap::from([("/feed.atom", FEED)]));
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let file = folder.path().join("feed.atom");
    fs::write(&file, FEED).unwrap();
    for (feed, source) in [
        ("url", format!("{address}/feed.atom")),
        ("file", file.to_str().unwrap().to_owned()),
    ] {
        let target = server.url(&format!("/feeds/{feed}"));
        for _ in ["once", "again"] {
            let output = run("simplefeed", &["import", &target, &source], b"");
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{said}");
            let told = said.matches("2 entries have the ids of newer ones").count();
            assert_eq!(told, 1, "{said}");
        }
        let stored = entry(&server, feed, 0).text();
        assert!(stored.contains("third"), "{stored}");
        assert_eq!(
            server.get(&format!("/feeds/{feed}/entries/1.atom")).status,
            404
        );
    }
}

/// Goal: neither a page of a feed nor a link that leads nowhere is imported as if it were the whole feed.
#[test]
fn a_part_of_a_feed_is_not_imported_as_the_whole() {
    let page = |link: &str| {
        format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id><title>F</title>\
             <updated>2026-01-03T00:00:00Z</updated><author><name>A</name></author>{link}\
             <entry><id>urn:1</id><title>1</title><updated>2026-01-02T00:00:00Z</updated></entry></feed>"
        )
    };
    let paged: &'static str = page("<link rel='next' href='?page=2'/>").leak();
    let broken: &'static str = page("<link rel='prev-archive' href='http://[::1'/>").leak();
    let address = elsewhere(HashMap::from([
        ("/paged.atom", paged),
        ("/broken.atom", broken),
    ]));
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for (name, why) in [
        ("paged", "one page of its feed"),
        ("broken", "leads nowhere"),
    ] {
        let (target, source) = (server.url("/feeds/a"), format!("{address}/{name}.atom"));
        let copy = folder.path().join(name);
        for args in [
            vec!["import", &target, &source],
            vec!["mirror", &source, copy.to_str().unwrap()],
            vec!["replay", &source],
            vec!["replay", &source, "--on-gap", "go-on"],
        ] {
            let output = run("simplefeed", &args, b"");
            let said = text(&output.stderr);
            // Behind a page, a consumer may go on if it is told to.
            let goes_on = name == "paged" && args.contains(&"go-on");
            let code = if goes_on { 0 } else { 13 };
            assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
            assert!(said.contains(why), "{args:?}: {said}");
        }
        assert!(
            !copy.join(format!("{name}.atom")).exists(),
            "nothing is published"
        );
        let output = run("simplefeed", &["lint", &source], b"");
        let found = text(&output.stdout);
        let rule = if name == "paged" { "FH-1 " } else { "FH-5 " };
        assert!(found.contains(rule), "{found}");
    }
}

/// Goal: files are imported once, however often it is tried.
#[test]
fn files_are_imported_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let lines = file(
        "events.ndjson",
        "{\"content\":1.0}\n\n{\"content\":1.0}\n{\"id\":\"urn:own\"}\n",
    );
    let feed = server.url("/feeds/lines");
    for times in ["appended", "duplicate"] {
        let printed = simplefeed(&["import", &feed, &lines], b"");
        assert_eq!(printed.lines().count(), 3, "{printed}");
        assert!(
            printed.lines().all(|line| line.starts_with(times)),
            "{printed}"
        );
    }
    let kept = simplefeed(&["replay", &feed], b"");
    assert!(kept.contains("\"content\":1.0"), "{kept}");

    let atom = |id: &str, entry: &str| {
        format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:moved</id><title>M</title>\
             <updated>2026-01-01T00:00:00Z</updated><entry><id>{id}</id><title>{entry}</title>\
             <updated>2026-01-01T00:00:00Z</updated></entry></feed>"
        )
    };
    let (one, two) = (
        file("1.atom", &atom("urn:1", "One")),
        file("2.atom", &atom("urn:2", "Two")),
    );
    let feed = server.url("/feeds/moved");
    simplefeed(&["import", &feed, &one, &two], b"");
    assert_eq!(feed_id(&server, "moved"), "urn:moved");
    assert_eq!(
        simplefeed(&["replay", &feed, "--format", "id"], b""),
        "urn:1\nurn:2\n"
    );
    for (sources, why) in [
        (vec!["/no/such/file"], "cannot import /no/such/file"),
        (vec![&one, "http://127.0.0.1:1/"], "one URL at a time"),
        (vec![&one, "--bookmark", "b"], "need no bookmark"),
    ] {
        let output = run(
            "simplefeed",
            &[vec!["import", &feed], sources].concat(),
            b"",
        );
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains(why),
            "{}",
            text(&output.stderr)
        );
    }
}
