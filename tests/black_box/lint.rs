//! `lint` names each fault that is planted, and nothing on a feed of ours but what is documented.

use std::{
    io::Write as _,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    harness::{Server, run, text, workspace},
    site::{Asked, Site, answer},
};

const ATOM: &str = "Content-Type: application/atom+xml\r\n";
const FROZEN: &str = "Cache-Control: public, max-age=31536000, immutable\r\n";
const FRESH: &str = "Cache-Control: max-age=1\r\nETag: \"a\"\r\n";

/// A chain of three documents with nothing wrong, to be spoiled.
#[derive(Clone)]
struct Chain {
    /// `recent`, `2`, `1`: header fields and body.
    documents: Vec<(&'static str, String, String)>,
}

fn entry(number: u32) -> String {
    format!(
        "<entry><id>urn:{number}</id><title>t</title><updated>2026-01-0{number}T00:00:00Z</updated><content>c</content></entry>"
    )
}

fn feed(links: &str, entries: &[u32]) -> String {
    let entries: String = entries.iter().map(|number| entry(*number)).collect();
    format!(
        "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:fh='http://purl.org/syndication/history/1.0'>\
         <id>urn:f</id><title>F</title><updated>2026-01-09T00:00:00Z</updated>\
         <author><name>A</name></author>{links}{entries}</feed>"
    )
}

fn link(rel: &str, to: &str) -> String {
    format!("<link rel='{rel}' href='{to}'/>")
}

impl Chain {
    fn sound() -> Self {
        let archive = |links: &str, entries: &[u32]| {
            let links = format!("<fh:archive/>{}{links}", link("current", "recent"));
            (format!("{ATOM}{FROZEN}"), feed(&links, entries))
        };
        let two = archive(
            &(link("prev-archive", "1") + &link("next-archive", "recent")),
            &[5, 4, 3],
        );
        let one = archive(&link("next-archive", "2"), &[2, 1]);
        let recent = feed(
            &(link("self", "recent") + &link("prev-archive", "2")),
            &[7, 6],
        );
        Self {
            documents: vec![
                ("/recent", format!("{ATOM}{FRESH}"), recent),
                ("/2", two.0, two.1),
                ("/1", one.0, one.1),
            ],
        }
    }

    /// Replaces something that must be there, in one document.
    fn spoilt(mut self, document: usize, from: &str, to: &str) -> Self {
        let (_, headers, body) = &mut self.documents[document];
        let both = format!("{headers}{body}");
        assert!(both.contains(from), "{from}");
        *headers = headers.replace(from, to);
        *body = body.replace(from, to);
        self
    }

    fn site(self) -> Site {
        Site::new(move |asked: &Asked, stream| {
            let found = self.documents.iter().find(|(path, ..)| *path == asked.path);
            let bytes = match found {
                Some((_, headers, _))
                    if headers.contains("ETag")
                        && asked.head.to_lowercase().contains("if-none-match") =>
                {
                    b"HTTP/1.1 304 Not Modified\r\nConnection: close\r\nETag: \"a\"\r\n\r\n"
                        .to_vec()
                }
                Some((_, headers, body)) => answer("200 OK", headers, body.as_bytes()),
                None => answer("404 Not Found", "", b""),
            };
            send(stream, &bytes);
        })
    }
}

fn send(stream: &mut TcpStream, bytes: &[u8]) {
    let _gone = stream.write_all(bytes).is_err();
}

/// Returns what is found: `severity rule path`, one a line, and the whole text.
fn findings(site: &Site, begin: &str) -> (Vec<String>, String) {
    let output = run("simplefeed", &["lint", &site.url(begin), "--json"], b"");
    let lines = text(&output.stdout);
    let found: Vec<String> = lines
        .lines()
        .map(|line| {
            let found: serde_json::Value = serde_json::from_str(line).unwrap();
            let url = found["url"].as_str().unwrap();
            let path = url.strip_prefix(&site.url("")).unwrap_or(url);
            let (severity, rule) = (
                found["severity"].as_str().unwrap(),
                found["rule"].as_str().unwrap(),
            );
            format!("{severity} {rule} {path}")
        })
        .collect();
    let wrong = found.iter().any(|line| !line.starts_with("note"));
    assert_eq!(
        output.status.code(),
        Some(i32::from(wrong)),
        "{lines}{}",
        text(&output.stderr)
    );
    (found, lines)
}

#[test]
fn nothing_is_wrong_where_nothing_is() {
    let (found, lines) = findings(&Chain::sound().site(), "/recent");
    assert!(found.is_empty(), "{lines}");
    // From anywhere in it.
    assert!(findings(&Chain::sound().site(), "/1").0.is_empty());
}

#[test]
fn each_fault_is_named() {
    let spoilt = |document: usize, from: &str, to: &str| Chain::sound().spoilt(document, from, to);
    let cases: Vec<(&str, Chain, &[&str])> = vec![
        (
            "a broken link",
            spoilt(1, "href='1'", "href='gone'"),
            &["error FH-5 /2"],
        ),
        (
            "a loop",
            spoilt(
                2,
                "<fh:archive/>",
                "<fh:archive/><link rel='prev-archive' href='2'/>",
            ),
            &["error FH-16 /1"],
        ),
        (
            "no way forward",
            spoilt(2, &link("next-archive", "2"), ""),
            &["warning FH-6 /1"],
        ),
        (
            "a way forward that leads astray",
            spoilt(2, "href='2'", "href='recent'"),
            &["error FH-6 /1"],
        ),
        (
            "a way forward that leads nowhere",
            spoilt(2, "href='2'", "href='nowhere'"),
            &["error FH-6 /1"],
        ),
        (
            "no current",
            spoilt(1, &link("current", "recent"), ""),
            &["warning FH-7 /2"],
        ),
        (
            "no mark of an archive",
            spoilt(1, "<fh:archive/>", ""),
            &["warning FH-8 /2"],
        ),
        (
            "a recent document that is marked",
            spoilt(0, "<link rel='self'", "<fh:archive/><link rel='self'"),
            &["error FH-8 /recent"],
        ),
        (
            "another feed's id",
            spoilt(1, "<id>urn:f</id>", "<id>urn:g</id>"),
            &["error SF-9 /2"],
        ),
        (
            "no updated",
            spoilt(0, "<updated>2026-01-09T00:00:00Z</updated>", ""),
            &["error A-2 /recent"],
        ),
        (
            "an id again, the same",
            spoilt(2, &entry(2), &entry(4)),
            &["warning FH-13 /1"],
        ),
        (
            "an id again, revised",
            spoilt(2, "<id>urn:2</id>", "<id>urn:4</id>"),
            &["warning FH-10 /1"],
        ),
        (
            "an id again, another content",
            spoilt(2, &entry(2), &entry(4).replace(">c<", ">d<")),
            &["error SF-2 /1"],
        ),
        (
            "oldest first",
            spoilt(
                1,
                &(entry(5) + &entry(4) + &entry(3)),
                &(entry(3) + &entry(4) + &entry(5)),
            ),
            &["error SF-1 /2"],
        ),
        (
            "no title",
            spoilt(1, "<id>urn:3</id><title>t</title>", "<id>urn:3</id>"),
            &["error A-1 /2"],
        ),
        (
            "a bad date",
            spoilt(1, "2026-01-03T00:00:00Z", "yesterday"),
            &["error A-1 /2"],
        ),
        (
            "no author",
            spoilt(2, "<author><name>A</name></author>", ""),
            &["error A-7 /1", "error A-7 /1"],
        ),
        (
            "two alternates",
            spoilt(
                2,
                "<content>c</content>",
                "<link href='/x'/><link href='/y'/>",
            ),
            &["error A-1 /1", "error A-1 /1"],
        ),
        (
            "an archive that is not to be kept",
            spoilt(1, FROZEN, "Cache-Control: no-store\r\n"),
            &["warning SF-11 /2"],
        ),
        ("no policy", spoilt(2, FROZEN, ""), &["warning SF-11 /1"]),
        (
            "a recent document that is kept",
            spoilt(0, "max-age=1\r\n", "max-age=86400\r\n"),
            &["error SF-12 /recent"],
        ),
        (
            "no validator",
            spoilt(0, "ETag: \"a\"\r\n", ""),
            &["warning SF-12 /recent"],
        ),
        (
            "no policy for the recent document",
            spoilt(0, "Cache-Control: max-age=1\r\n", ""),
            &["warning H-21 /recent"],
        ),
        (
            "copies for each agent",
            spoilt(
                1,
                FROZEN,
                &format!("{FROZEN}Vary: Accept-Encoding, User-Agent\r\n"),
            ),
            &["warning H-15 /2"],
        ),
        (
            "another media type",
            spoilt(1, "application/atom+xml", "text/xml"),
            &["warning A-1 /2"],
        ),
    ];
    for (fault, chain, want) in cases {
        let (found, lines) = findings(&chain.site(), "/recent");
        assert_eq!(found, want, "{fault}: {lines}");
    }
}

#[test]
fn what_changes_and_what_is_sent_again_is_named() {
    let chain = Chain::sound();
    let looks = Arc::new(AtomicUsize::new(0));
    let site = Site::new(move |asked: &Asked, stream| {
        let (_, headers, body) = chain
            .documents
            .iter()
            .find(|(path, ..)| *path == asked.path)
            .unwrap();
        let body = match asked.path.as_str() {
            "/1" => body.replace(
                ">c<",
                &format!(">{}<", looks.fetch_add(1, Ordering::SeqCst)),
            ),
            _ => body.clone(),
        };
        send(stream, &answer("200 OK", headers, body.as_bytes()));
    });
    let (found, lines) = findings(&site, "/recent");
    assert_eq!(found, ["warning H-7 /recent", "error FH-4 /1"], "{lines}");
}

#[test]
fn dialects_are_named_for_what_they_are() {
    for (dialect, begin, rules) in [
        ("ict4h", "/recent.atom", &["SF-1", "SF-9"][..]),
        ("atom-hopper", "/events.atom", &["FH-5"]),
        ("overlap", "/feed.atom", &["FH-10", "FH-13"]),
    ] {
        let site = Site::of_folder(&workspace().join("fixtures/foreign").join(dialect));
        let (found, lines) = findings(&site, begin);
        for rule in rules {
            assert!(
                found.iter().any(|line| line.contains(rule)),
                "{dialect}: {lines}"
            );
        }
    }
}

/// Our own server: nothing is wrong, JSON content included.
#[test]
fn our_own_feeds_are_sound() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "3"]);
    server.publish_ids("a", (0..11).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/3.atom");
    for begin in ["/feeds/a", "/feeds/a/2.atom", "/feeds/a/recent.atom"] {
        let output = run("simplefeed", &["lint", &server.url(begin)], b"");
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{printed}");
        assert_eq!(printed, "");
        assert!(
            text(&output.stderr)
                .contains("4 documents, 11 entries: 0 errors, 0 warnings, 0 notes.")
        );
    }
    server.publish("text", "{\"id\":\"urn:1\",\"content\":\"plain\"}");
    let output = run("simplefeed", &["lint", &server.url("/feeds/text")], b"");
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), String::new())
    );
    let nothing = run("simplefeed", &["lint", &server.url("/feeds/none")], b"");
    assert_eq!(nothing.status.code(), Some(10), "{}", text(&nothing.stderr));
}
