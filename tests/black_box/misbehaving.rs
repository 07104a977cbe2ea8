//! A server that does everything wrong, and a consumer that must bear it: with the right error, in bounded
//! time and memory, with its bookmark where it was, and without a request to anybody else.
//!
//! | fault | what must become of it |
//! | --- | --- |
//! | archive links in a loop | integrity (15), the loop is named |
//! | a chain without an end | stopped at `--documents` (1) |
//! | a body of 10 GB, with its length, in chunks | stopped at `--document-bytes` (1) |
//! | a small gzip body that unpacks to 10 GB | stopped at `--document-bytes` (1) |
//! | authors of a megabyte that 5,000 entries inherit | not read (14) |
//! | a head, or a body, a byte at a time | given up at `--request-timeout` (14) |
//! | no answer at all | given up at `--read-timeout` (14) |
//! | redirects to another scheme, host, port, or a private address | not followed, says where to (1) |
//! | redirects in a circle, or without end | stopped at `--redirects` (1) |
//! | archive links to another origin | not followed (1); with `--allow-origin` they are |
//! | 304 to somebody who has never seen a body | an error (1), no empty feed |
//! | a body shorter or longer than its length; one that ends with its connection in the middle | tried again, then 14 |
//! | a complete body that ends with its connection | read |
//! | chunks that break off; gzip that breaks off | tried again, then 14 |
//! | an HTML page with 200, as HTML and as Atom | an error (1), no empty feed |
//! | XML that is no feed, a feed without ids, a DOCTYPE with entities | an error |
//! | a document marked immutable that changes | integrity (15) |
//! | a feed that turns into another one | another feed (16) |

use std::{
    io::Write as _,
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use flate2::{Compression, write::GzEncoder};

use crate::{
    harness::{pause, program, text},
    site::{Asked, Site, answer},
};

/// The most that any of it may take. (On a quiet machine it is a tenth.)
const LONGEST: Duration = Duration::from_secs(90);

/// The most memory that any of it may take, in KiB.
const MOST_KIB: u64 = 150 * 1024;

const ATOM: &str = "Content-Type: application/atom+xml\r\n";
const GIB_10: u64 = 10 * 1024 * 1024 * 1024;

/// What one run of `replay` came to.
struct Run {
    code: i32,
    printed: String,
    said: String,
}

/// Replays `url` with tight bounds and a bookmark that must stay where it is unless all goes well.
fn replay(url: &str, more: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let bookmark = folder.path().join("bookmark");
    let began = Instant::now();
    let mut child = Command::new(program("simplefeed"))
        .args(["replay", url, "--format", "id"])
        .args([
            "--document-bytes",
            "2000000",
            "--documents",
            "50",
            "--redirects",
            "3",
        ])
        .args(["--read-timeout", "2s", "--request-timeout", "3s"])
        .arg("--bookmark")
        .arg(&bookmark)
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        // The last reading counts: the first may be of this process, which the child was before it became
        // another program.
        peak = peak_kib(child.id()).unwrap_or(peak);
        pause(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(began.elapsed() < LONGEST, "{url}: {said}");
    assert!(peak < MOST_KIB, "{url}: {peak} KiB");
    let code = output.status.code().unwrap();
    let printed = text(&output.stdout);
    assert!(
        code == 0 || printed.is_empty() != bookmark.exists(),
        "{url}: {said}"
    );
    Run {
        code,
        printed,
        said,
    }
}

/// The most memory a process has had, on Linux.
fn peak_kib(process: u32) -> Option<u64> {
    let status =
        std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("status"));
    let status = status.ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[track_caller]
fn check(url: &str, more: &[&str], code: i32, said: &str) {
    let run = replay(url, more);
    assert_eq!(run.code, code, "{url}: {}", run.said);
    assert!(run.said.contains(said), "{url}: {}", run.said);
    assert_eq!(run.printed, "", "{url}");
}

fn feed(links: &str, ids: &[u32]) -> Vec<u8> {
    let entries: String = ids.iter().fold(String::new(), |entries, id| {
        entries + &format!("<entry><id>urn:{id}</id><title>t</title></entry>")
    });
    format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{links}{entries}</feed>")
        .into_bytes()
}

fn document(links: &str, ids: &[u32]) -> Vec<u8> {
    answer("200 OK", ATOM, &feed(links, ids))
}

fn prev(to: &str) -> String {
    format!("<link rel='prev-archive' href='{to}'/>")
}

/// A site that gives every request the same bytes.
fn always(bytes: Vec<u8>) -> Site {
    Site::new(move |_, stream| send(stream, &bytes))
}

fn send(stream: &mut TcpStream, bytes: &[u8]) {
    // The consumer may have had enough.
    let _gone = stream.write_all(bytes).is_err();
}

/// Somebody else on this machine, at another address of it, as a service of the private network would be.
fn somebody_else() -> Site {
    Site::at("127.0.0.2:0", |_, stream| {
        send(stream, &document("", &[666]))
    })
}

#[test]
fn links_without_an_end_are_left() {
    let circle = Site::new(|asked: &Asked, stream| {
        let links = if asked.path == "/1" {
            prev("2")
        } else {
            prev("1")
        };
        send(stream, &document(&links, &[1]));
    });
    check(&circle.url("/feed"), &[], 15, "the archive links lead to");
    let endless = Site::new(|asked: &Asked, stream| {
        let number: u64 = asked.path.trim_start_matches("/n").parse().unwrap_or(0);
        send(stream, &document(&prev(&format!("n{}", number + 1)), &[1]));
    });
    check(&endless.url("/feed"), &[], 1, "more than 50 documents");
    assert!(endless.asked().len() <= 55, "{}", endless.asked().len());
    // What differs only behind a # is the same document.
    let disguised = Site::new(|_, stream| {
        let fragment = format!("/x#{:?}", Instant::now()).replace(['{', '}', ' '], "");
        send(stream, &document(&prev(&fragment), &[1]));
    });
    check(
        &disguised.url("/feed"),
        &[],
        15,
        "the archive links lead to",
    );
}

#[test]
fn what_is_too_large_is_left() {
    let chunk = vec![b' '; 64 * 1024];
    let endless = |head: &'static str, framed: bool| {
        let chunk = chunk.clone();
        Site::new(move |_, stream| {
            send(stream, head.as_bytes());
            let mut left = GIB_10;
            while left > 0 {
                let size = format!("{:x}\r\n", chunk.len());
                let framing: [&[u8]; 2] = if framed {
                    [size.as_bytes(), b"\r\n"]
                } else {
                    [b"", b""]
                };
                let piece = [framing[0], &chunk, framing[1]].concat();
                if stream.write_all(&piece).is_err() {
                    return;
                }
                left -= u64::try_from(chunk.len()).unwrap();
            }
        })
    };
    let measured = endless(
        "HTTP/1.1 200 OK\r\nContent-Type: application/atom+xml\r\nContent-Length: 10737418240\r\n\r\n",
        false,
    );
    let chunked = endless(
        "HTTP/1.1 200 OK\r\nContent-Type: application/atom+xml\r\nTransfer-Encoding: chunked\r\n\r\n",
        true,
    );
    let closing = endless(
        "HTTP/1.0 200 OK\r\nContent-Type: application/atom+xml\r\n\r\n",
        false,
    );
    for site in [measured, chunked, closing] {
        check(&site.url("/feed"), &[], 1, "longer than 2000000 bytes");
    }
}

#[test]
fn a_bomb_is_not_unpacked() {
    // A megabyte of it, over and over: gzip members one after the other unpack one after the other.
    let mut member = GzEncoder::new(vec![], Compression::best());
    member.write_all(&vec![b' '; 64 * 1024 * 1024]).unwrap();
    let member = member.finish().unwrap();
    let times = usize::try_from(GIB_10 / (64 * 1024 * 1024)).unwrap();
    let packed = member.repeat(times);
    assert!(packed.len() < 20 * 1024 * 1024);
    let headers = format!("{ATOM}Content-Encoding: gzip\r\n");
    let site = always(answer("200 OK", &headers, &packed));
    check(&site.url("/feed"), &[], 1, "longer than 2000000 bytes");
}

/// What entries inherit is written onto each of them: a little of it, or a small answer would fill the memory.
#[test]
fn a_feed_that_blows_up_its_entries_is_left() {
    let author = format!("<author><name>{}</name></author>", "a".repeat(1_000_000));
    let ids: Vec<u32> = (0..5_000).collect();
    let mut packed = GzEncoder::new(vec![], Compression::best());
    packed.write_all(&feed(&author, &ids)).unwrap();
    let packed = packed.finish().unwrap();
    assert!(packed.len() < 50_000);
    let headers = format!("{ATOM}Content-Encoding: gzip\r\n");
    let site = always(answer("200 OK", &headers, &packed));
    check(
        &site.url("/feed"),
        &[],
        14,
        "what its entries inherit from the feed is too long",
    );
}

#[test]
fn who_is_too_slow_is_left() {
    let whole = document("", &[1]);
    let head = whole
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    let drip = |from: usize| {
        let bytes = whole.clone();
        Site::new(move |_, stream| {
            send(stream, &bytes[..from]);
            for byte in &bytes[from..] {
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
                pause(Duration::from_millis(300));
            }
        })
    };
    let silent = Site::new(|_, _| pause(Duration::from_secs(30)));
    std::thread::scope(|scope| {
        for site in [drip(0), drip(head + 4), silent] {
            scope.spawn(move || check(&site.url("/feed"), &[], 14, "took too long"));
        }
    });
}

#[test]
fn nobody_else_is_asked_whatever_leads_there() {
    let other = somebody_else();
    let port = other.address.rsplit(':').next().unwrap().to_owned();
    let elsewhere = [
        format!("http://{}/feed", other.address),
        format!("//{}/feed", other.address),
        format!("\\\\{}\\feed", other.address),
        format!("http://name:secret@{}/feed", other.address),
        // Other spellings of the same address.
        format!("http://0x7f000002:{port}/feed"),
        format!("http://2130706434:{port}/feed"),
        format!("http://127.2:{port}/feed"),
        format!("https://{}/feed", other.address),
        "file:///etc/passwd".into(),
        "ftp://127.0.0.2/feed".into(),
        "gopher://127.0.0.2/".into(),
        "http://169.254.169.254/latest/meta-data".into(),
        "http://[::1]/feed".into(),
    ];
    for to in &elsewhere {
        let moved = always(answer("302 Found", &format!("Location: {to}\r\n"), b""));
        check(&moved.url("/feed"), &[], 1, "at another origin");
        // What no consumer can ask for is no link at all.
        let (code, told) = match to.split_once(':') {
            Some(("ftp" | "gopher", _)) => (13, "leads nowhere"),
            _ => (1, "at another origin"),
        };
        let links = [prev(to), format!("<link rel='current' href='{to}'/>")];
        for link in links {
            let site = always(document(&link, &[1]));
            check(&site.url("/feed"), &[], code, told);
        }
        // In a base, or in a header field.
        let based = format!("<link rel='prev-archive' href='x' xml:base='{to}'/>");
        let site = always(document(&based, &[1]));
        check(&site.url("/feed"), &[], code, told);
        let headers = format!("{ATOM}Link: <{to}>; rel=\"prev-archive\"\r\n");
        let site = always(answer("200 OK", &headers, &feed("", &[1])));
        check(&site.url("/feed"), &[], code, told);
    }
    assert_eq!(other.connections(), 0);

    // It is asked if the user says so.
    let site = always(document(&prev(&elsewhere[0]), &[1]));
    let allowed = format!("http://{}", other.address);
    let run = replay(&site.url("/feed"), &["--allow-origin", &allowed]);
    assert_eq!(
        (run.code, run.printed.as_str()),
        (0, "urn:666\nurn:1\n"),
        "{}",
        run.said
    );
}

#[test]
fn redirects_end() {
    let circle = always(answer("302 Found", "Location: /feed\r\n", b""));
    check(&circle.url("/feed"), &[], 1, "more than 3 redirects");
    assert_eq!(circle.asked().len(), 4);
    let nowhere = always(answer("302 Found", "", b""));
    check(&nowhere.url("/feed"), &[], 1, "status 302");
}

#[test]
fn a_304_out_of_the_blue_is_no_empty_feed() {
    let site =
        always(b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nConnection: close\r\n\r\n".to_vec());
    check(&site.url("/feed"), &[], 1, "status 304");
}

#[test]
fn half_a_document_is_none() {
    let body = feed("", &[3, 2, 1]);
    let length = body.len();
    let head = |length: usize| {
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{ATOM}Content-Length: {length}\r\n\r\n")
    };
    let half = &body[..body.len() / 2];
    // It ends right behind an entry, where a careless reader sees a shorter feed.
    let entry = body.windows(8).position(|w| w == b"</entry>").unwrap() + 8;
    let mut packed = GzEncoder::new(vec![], Compression::fast());
    packed.write_all(&body).unwrap();
    let packed = packed.finish().unwrap();
    let chunked = "HTTP/1.1 200 OK\r\nContent-Type: application/atom+xml\r\nTransfer-Encoding: chunked\r\n\r\n";
    let broken = [
        [head(length).as_bytes(), half].concat(),
        [head(entry).as_bytes(), &body[..entry]].concat(),
        [head(length + 100).as_bytes(), &body].concat(),
        [head(length - 3).as_bytes(), &body].concat(),
        [format!("HTTP/1.0 200 OK\r\n{ATOM}\r\n").as_bytes(), half].concat(),
        [
            format!("HTTP/1.0 200 OK\r\n{ATOM}\r\n").as_bytes(),
            &body[..entry],
        ]
        .concat(),
        [
            chunked.as_bytes(),
            format!("{entry:x}\r\n").as_bytes(),
            &body[..entry],
            b"\r\n",
        ]
        .concat(),
        answer(
            "200 OK",
            &format!("{ATOM}Content-Encoding: gzip\r\n"),
            &packed[..packed.len() / 2],
        ),
    ];
    // Each is tried for a while.
    std::thread::scope(|scope| {
        for bytes in broken {
            scope.spawn(|| check(&always(bytes).url("/feed"), &[], 14, ""));
        }
    });
    // A whole one may end with its connection: its last tag says that it is whole.
    let whole = [format!("HTTP/1.0 200 OK\r\n{ATOM}\r\n").as_bytes(), &body].concat();
    let run = replay(&always(whole).url("/feed"), &[]);
    assert_eq!(
        (run.code, run.printed.as_str()),
        (0, "urn:1\nurn:2\nurn:3\n"),
        "{}",
        run.said
    );
}

#[test]
fn a_page_for_people_is_no_feed() {
    let page = b"<!DOCTYPE html><html><body>Please log in</body></html>";
    let html = answer("200 OK", "Content-Type: text/html; charset=utf-8\r\n", page);
    check(&always(html).url("/feed"), &[], 1, "text/html");
    let none = answer("200 OK", "", page);
    check(&always(none).url("/feed"), &[], 1, "not a feed document");
    for (body, said) in [
        (&b"<html><body>Please log in</body></html>"[..], "the root element is html"),
        (b"<rss version='2.0'/>", "the root element is rss"),
        (b"<feed xmlns='http://www.w3.org/2005/Atom'><entry/></feed>", "feed has no id"),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><feed xmlns='http://www.w3.org/2005/Atom'><id>&a;</id></feed>", "DOCTYPE"),
        (b"", "no document"),
    ] {
        let run = replay(&always(answer("200 OK", ATOM, body)).url("/feed"), &[]);
        assert!(matches!(run.code, 1 | 14), "{said}: {}", run.code);
        assert!(run.said.contains(said), "{}", run.said);
        assert_eq!(run.printed, "");
    }
}

/// An archive that says that it never changes, and is another one at the second look.
#[test]
fn what_is_immutable_may_not_change() {
    let times = AtomicUsize::new(0);
    let site = Site::new(move |asked: &Asked, stream| {
        let frozen = format!("{ATOM}Cache-Control: public, max-age=31536000, immutable\r\n");
        let bytes = match asked.path.as_str() {
            "/3" => answer("200 OK", &frozen, &feed(&prev("2"), &[3])),
            "/2" => {
                let looks = u32::try_from(times.fetch_add(1, Ordering::SeqCst)).unwrap();
                answer("200 OK", &frozen, &feed(&prev("1"), &[20 + looks]))
            }
            "/1" => answer(
                "200 OK",
                &frozen,
                &feed("<link rel='next-archive' href='2'/>", &[1]),
            ),
            _ => document(&prev("3"), &[4]),
        };
        send(stream, &bytes);
    });
    let run = replay(&site.url("/feed"), &[]);
    assert_eq!(run.code, 15, "{}", run.said);
    assert!(
        run.said.contains("although it was marked immutable"),
        "{}",
        run.said
    );
    assert_eq!(run.printed, "urn:1\n");
}

/// A document of another feed among the archives.
#[test]
fn a_feed_may_not_turn_into_another() {
    let site = Site::new(|asked: &Asked, stream| {
        let bytes = match asked.path.as_str() {
            "/1" => {
                let body = String::from_utf8(feed("", &[1])).unwrap();
                answer(
                    "200 OK",
                    ATOM,
                    body.replace("<id>urn:f<", "<id>urn:g<").as_bytes(),
                )
            }
            _ => document(&prev("1"), &[2]),
        };
        send(stream, &bytes);
    });
    check(&site.url("/feed"), &[], 16, "another feed");
}

/// What goes wrong on the way does not move a bookmark that is there.
#[test]
fn a_bookmark_survives_it_all() {
    let folder = tempfile::tempdir().unwrap();
    let bookmark = folder.path().join("bookmark");
    let broken = Arc::new(AtomicUsize::new(0));
    let kind = Arc::clone(&broken);
    let site = Site::new(move |asked: &Asked, stream| {
        let bytes = match (asked.path.as_str(), kind.load(Ordering::SeqCst)) {
            (_, 1) => answer("200 OK", "Content-Type: text/html\r\n", b"<html/>"),
            (_, 2) => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<feed".to_vec(),
            (_, 3) => b"nonsense\r\n\r\n".to_vec(),
            (_, 4) => document("", &[9, 8]),
            (_, 5) => answer("500 Internal Server Error", "", b"oops"),
            (_, 6) => answer("404 Not Found", "", b""),
            (_, 7) => answer("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", b""),
            (_, after) => document("", if after == 0 { &[2, 1] } else { &[3, 2, 1] }),
        };
        send(stream, &bytes);
    });
    let url = site.url("/feed");
    let args = [
        "replay",
        &url,
        "--format",
        "id",
        "--read-timeout",
        "2s",
        "--bookmark",
        bookmark.to_str().unwrap(),
    ];
    let run = || crate::harness::run("simplefeed", &args, b"");
    assert_eq!(text(&run().stdout), "urn:1\nurn:2\n");
    let kept = std::fs::read(&bookmark).unwrap();
    for (fault, code) in [(1, 1), (2, 14), (3, 14), (4, 13), (5, 14), (6, 10), (7, 12)] {
        broken.store(fault, Ordering::SeqCst);
        let output = run();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{fault}: {}",
            text(&output.stderr)
        );
        assert_eq!(std::fs::read(&bookmark).unwrap(), kept, "{fault}");
        assert!(output.stdout.is_empty());
    }
    broken.store(8, Ordering::SeqCst);
    assert_eq!(text(&run().stdout), "urn:3\n");
}
