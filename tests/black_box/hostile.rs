//! What is no honest request: smuggled, mutated, slow, or one too many.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    dice::Dice,
    harness::{Server, events, is_long, pause, wait_for, workspace},
    http::Request,
    nginx::{Nginx, replace},
};

/// Sends bytes, and returns what comes back until the peer closes, or says nothing more.
fn send_raw(address: &str, bytes: &[u8]) -> String {
    converse_raw(address, bytes, false)
}

/// Sends bytes, and nothing more, and returns what comes back.
fn send_raw_and_end(address: &str, bytes: &[u8]) -> String {
    converse_raw(address, bytes, true)
}

fn converse_raw(address: &str, bytes: &[u8], ends: bool) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    // A peer that refuses early closes before it has read all.
    let _refused = stream.write_all(bytes);
    if ends {
        let _closed = stream.shutdown(Shutdown::Write);
    }
    // A busy machine begins late. Once it has begun, a pause is the end.
    let mut answer = vec![0; 1];
    let begun = stream.read(&mut answer).unwrap_or(0);
    answer.truncate(begun);
    if !ends {
        stream
            .set_read_timeout(Some(Duration::from_millis(700)))
            .unwrap();
    }
    let _reset = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) fn statuses(answers: &str) -> Vec<u16> {
    let mut found = vec![];
    for part in answers.split("HTTP/1.1 ").skip(1) {
        found.extend(part.get(..3).and_then(|status| status.parse::<u16>().ok()));
    }
    found
}

/// What somebody wants to slip in behind another request.
pub(crate) const SMUGGLED: &str = "POST /feeds/victim HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
    Content-Length: 2\r\n\r\n{}";

/// The head of a request that publishes, and its body; `~` stands for what is to be slipped in. The answer is
/// to be one, and of this status.
pub(crate) const PROBES: &[(&str, u16, &str)] = &[
    (
        "two lengths",
        400,
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}~",
    ),
    ("a list of lengths", 400, "Content-Length: 2, 2\r\n\r\n{}~"),
    ("a signed length", 400, "Content-Length: +2\r\n\r\n{}~"),
    ("a length in hex", 400, "Content-Length: 0x2\r\n\r\n{}~"),
    (
        "an unknown coding",
        400,
        "Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n~",
    ),
    (
        "chunked, then more",
        400,
        "Transfer-Encoding: chunked, identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n~",
    ),
    (
        "compressed, chunked",
        400,
        "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n~",
    ),
    (
        "a space before the colon",
        400,
        "Transfer-Encoding : chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n~",
    ),
    (
        "a vertical tab",
        400,
        "Transfer-Encoding: \x0bchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n~",
    ),
    (
        "a folded line",
        400,
        "X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}~",
    ),
    ("a bare CR", 400, "X: a\rb\r\nContent-Length: 2\r\n\r\n{}~"),
    ("a NUL", 400, "X: a\0b\r\nContent-Length: 2\r\n\r\n{}~"),
    (
        "an endless chunk",
        400,
        "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n~",
    ),
    (
        "chunks without CR",
        400,
        "Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n~",
    ),
    (
        "a chunk extension without CR",
        400,
        "Transfer-Encoding: chunked\r\n\r\n2;\n{}\r\n0\r\n\r\n~",
    ),
    (
        "length and chunks",
        201,
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n~",
    ),
    (
        "another host",
        400,
        "Host: other\r\nContent-Length: 2\r\n\r\n{}~",
    ),
];

/// Goal: nothing is slipped in behind another request (RFC 9112, 11.2), directly and behind nginx.
#[test]
#[ignore = "needs nginx"]
fn no_request_is_smuggled() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let edit = |site: &str| replace(site, "return 403;", "return 418;");
    let www = folder.path().join("data/www");
    let nginx = Nginx::start_edited("cache.conf", folder.path(), &server.address, &www, edit);
    for (number, (what, status, probe)) in PROBES.iter().enumerate() {
        let victim = format!("victim{number}");
        let probe = format!(
            "POST /feeds/a HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{}",
            probe.replace('~', &SMUGGLED.replace("victim", &victim))
        );
        let answers = send_raw(&server.address, probe.as_bytes());
        assert_eq!(statuses(&answers), [*status], "{what}: {answers}");
        let path = format!("/feeds/{victim}");
        assert_eq!(server.get(&path).status, 404, "{what}");
        // nginx may see two requests where we see a broken one; then it answers both. What it sees as one
        // is one to us.
        let answers = send_raw(&nginx.address, probe.as_bytes());
        let seen = statuses(&answers);
        let is_there = server.get(&path).status != 404;
        assert!(
            seen.iter().all(|status| *status < 500 || *status == 501),
            "{what}: {answers}"
        );
        assert_eq!(
            is_there,
            seen == [201, 201],
            "{what}, behind nginx: {answers}"
        );
    }
    for (probe, status) in [
        ("GET /feeds HTTP/1.2\r\nHost: h\r\n\r\n", 400),
        ("GET /feeds HTTP/1.1\r\n\r\n", 400),
        (
            "GET /feeds HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
            400,
        ),
        (
            "POST /feeds/a HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            400,
        ),
        (
            "GET /feeds HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        // What leads nowhere else: the host is not looked at, and no path is taken apart.
        (
            "GET http://other/feeds HTTP/1.1\r\nHost: other\r\n\r\n",
            200,
        ),
        ("GET /feeds/../feeds HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        ("GET /feeds/%2e%2e/feeds HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        ("GET /feeds/\u{e4} HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    ] {
        let answers = send_raw(&server.address, probe.as_bytes());
        assert_eq!(statuses(&answers), [status], "{probe}: {answers}");
        let answers = send_raw(&nginx.address, probe.as_bytes());
        let fine = |status: &u16| *status < 500 || *status == 505;
        assert!(
            statuses(&answers).iter().all(fine),
            "{probe}, behind nginx: {answers}"
        );
    }
    let preface = send_raw(&server.address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(!preface.contains(" 2"), "HTTP/2 is the proxy's: {preface}");
    let long = format!(
        "GET /feeds HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n",
        "x".repeat(20_000)
    );
    assert_eq!(statuses(&send_raw(&server.address, long.as_bytes())), [431]);
    let fields = "x: y\r\n".repeat(200);
    let many = format!("GET /feeds HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    assert_eq!(statuses(&send_raw(&server.address, many.as_bytes())), [431]);
}

/// Returns documents to begin with, good and bad, each with its media type.
fn documents() -> Vec<(&'static str, Vec<u8>)> {
    let mut folders = vec![
        workspace().join("fixtures/malformed"),
        workspace().join("fixtures/infoset"),
    ];
    folders.extend(std::env::var_os("FEEDVALIDATOR").map(PathBuf::from));
    let mut found = vec![];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder).into_iter().flatten() {
            let path = item.unwrap().path();
            match path.extension().and_then(|kind| kind.to_str()) {
                Some("atom" | "xml") => {
                    found.push(("application/atom+xml", fs::read(&path).unwrap()))
                }
                Some("ndjson") => found.push(("application/x-ndjson", fs::read(&path).unwrap())),
                _ if path.is_dir() => folders.push(path),
                _ => {}
            }
        }
    }
    found.push(("application/x-ndjson", events(3).into_bytes()));
    found.sort();
    found
}

/// Changes some bytes somewhere.
fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    const PIECES: &[&str] = &[
        "<",
        ">",
        "&",
        "]]>",
        "<![CDATA[",
        "<!--",
        "<!DOCTYPE x [<!ENTITY a 'b'>]>",
        "xmlns:a=''",
        "\0",
        "\u{feff}",
        "\"",
        "\\u0000",
        "\\ud800",
        "{",
        "[",
        "1e999",
        "\r\n",
        "\r\n\r\n",
        ":",
        "Content-Length: 7\r\n",
        "Transfer-Encoding: chunked\r\n",
        "%00",
        "../",
        " HTTP/1.1",
    ];
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        let to = (at + dice.below(20)).min(bytes.len());
        match dice.below(5) {
            0 if at < bytes.len() => bytes[at] = u8::try_from(dice.below(256)).unwrap(),
            1 => drop(bytes.drain(at..to)),
            2 => {
                let again = bytes[at..to].to_vec();
                bytes.splice(at..at, again);
            }
            3 => bytes.truncate(at),
            _ => {
                let piece = PIECES[dice.below(PIECES.len())];
                bytes.splice(at..at, piece.bytes());
            }
        }
    }
}

/// Goal: a request that would be refused gets no answer that is kept ready, whichever name the server is asked by.
#[test]
fn a_ready_answer_passes_no_check_by() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.publish("a", "{}").status, 201);
    // The first one is the usual name, for which fewer checks are needed.
    for host in [server.address.as_str(), "h"] {
        let ask = |fields: &str| {
            let head = format!(
                "GET /feeds/a/recent.atom HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{fields}\r\n"
            );
            send_raw(&server.address, head.as_bytes())
        };
        for _ in 0..3 {
            assert_eq!(statuses(&ask("")), [200]);
        }
        let again = format!("Host: {host}\r\n");
        for (fields, status) in [
            ("Content-Length: 2\r\n\r\n{}", 400),
            ("Transfer-Encoding: chunked\r\n\r\n0\r\n", 400),
            (
                "Content-Type: text/plain\r\nContent-Type: text/xml\r\n",
                400,
            ),
            (again.as_str(), 400),
            ("Host: other\r\n", 400),
            ("If-Match: \"other\"\r\n", 412),
            ("If-None-Match: *\r\n", 304),
            ("If-None-Match: \"other\"\r\nIf-None-Match: *\r\n", 200),
            ("Accept-Encoding: identity;q=0\r\n", 406),
            ("Content-Length: 0\r\nContent-Type: text/plain\r\n", 200),
        ] {
            let answers = ask(fields);
            assert_eq!(statuses(&answers), [status], "{host}, {fields}: {answers}");
        }
    }
}

/// Goal: nonsense is refused, costs little, and changes nothing; what is stored is all that was acknowledged.
/// Method: mutations of documents, good and bad, and of requests.
#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--idle-timeout", "5"]);
    let documents = documents();
    let count = if is_long() { 40_000 } else { 10_000 };
    let mut dice = Dice::new(6);
    let (mut taken, mut refused) = (0, 0);
    for number in 0..count {
        if number % 4 == 3 {
            let (kind, body) = &documents[dice.below(documents.len())];
            let mut request = format!(
                "POST /feeds/b HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            )
            .into_bytes();
            if dice.below(2) == 0 {
                request = b"GET /feeds/a/recent.atom HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"x\", W/\"y\"\r\n\
                    Accept-Encoding: gzip;q=0.5, *;q=0\r\nIf-Modified-Since: Sat, 21 Nov 2026 20:00:00 GMT\r\n\r\n"
                    .to_vec();
            } else {
                request.extend(body);
            }
            mutate(&mut request, &mut dice);
            let answers = send_raw_and_end(&server.address, &request);
            let fine = statuses(&answers)
                .iter()
                .all(|status| (200..500).contains(status));
            assert!(fine, "{}\n{answers}", String::from_utf8_lossy(&request));
        } else {
            let (kind, body) = &documents[dice.below(documents.len())];
            let mut body = body.clone();
            mutate(&mut body, &mut dice);
            let answer = server.send(&Request::post("/feeds/a", kind, body.clone()));
            match answer.status {
                201 => {
                    let results = answer.json()["results"].as_array().unwrap().clone();
                    taken += results
                        .iter()
                        .filter(|one| one["status"] == "appended")
                        .count();
                }
                200 => {}
                400..=499 => refused += 1,
                status => panic!("{status} for {}", String::from_utf8_lossy(&body)),
            }
        }
    }
    assert!(
        refused > count / 4 && taken > 10,
        "{refused} refused, {taken} taken"
    );
    let feeds = server.get("/feeds").json();
    assert_eq!(feeds["feeds"][0]["entries"], taken);
    for line in server.said() {
        assert!(!line.contains("panic"), "{line}");
    }
    let peak = server.memory_peak_kib();
    assert!(peak < 400 * 1024, "{peak} KiB");
}

/// Lets this process have enough open files.
fn allow_files() -> bool {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    limits.maximum.is_none_or(|maximum| maximum > 11_000)
}

/// Reads one document again and again over 64 connections. Returns the times it took, in order.
fn normal_load(address: &str, path: &str, requests: usize) -> Vec<Duration> {
    let readers: Vec<_> = (0..64)
        .map(|_| {
            let (address, path) = (address.to_owned(), path.to_owned());
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream
                    .set_read_timeout(Some(Duration::from_mins(1)))
                    .unwrap();
                let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
                (0..requests)
                    .map(|_| {
                        let began = Instant::now();
                        stream.write_all(request.as_bytes()).unwrap();
                        read_answer(&mut stream).unwrap();
                        began.elapsed()
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    let mut times: Vec<_> = readers
        .into_iter()
        .flat_map(|reader| reader.join().unwrap())
        .collect();
    times.sort();
    times
}

/// Reads one answer, by its length.
fn read_answer(stream: &mut TcpStream) -> io::Result<()> {
    let (mut seen, mut buffer) = (vec![], vec![0; 64 * 1024]);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        seen.extend_from_slice(&buffer[..read]);
        let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if seen.len() >= end + 4 + length.unwrap().parse::<usize>().unwrap() {
            return Ok(());
        }
    }
}

/// Waits until the peer closes, and returns how long that took from `began` on; `None` if it does not.
fn closed_after(mut stream: TcpStream, began: Instant, patience: Duration) -> Option<Duration> {
    stream.set_read_timeout(Some(patience)).unwrap();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Some(began.elapsed()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Some(began.elapsed());
            }
            Err(_) => return None,
        }
    }
}

/// Goal: whoever is slow, in whichever way, is cut, and nobody else notices.
/// Method: the seven kinds of slowness that were found to hold sockets of a server without bounds.
#[test]
fn slow_connections_are_cut_and_starve_nobody() {
    // A thousand of all seven kinds.
    let each = if allow_files() { 143 } else { 40 };
    let folder = tempfile::tempdir().unwrap();
    let limits = [
        "--idle-timeout",
        "4",
        "--body-timeout",
        "4",
        "--stall-timeout",
        "3",
    ];
    let server = Server::start(folder.path(), &limits);
    let many: String = events(100)
        .lines()
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(server.publish("a", &many).status, 201);
    assert_eq!(server.publish("a", "{}").status, 201);
    let path = "/feeds/a/1.atom";
    server.wait_until_frozen(path);
    // The kernel's copy of it is an open file.
    server.get(path);
    pause(Duration::from_millis(500));
    let before = server.open_files();
    let normal = normal_load(&server.address, path, 500);

    let began = Instant::now();
    let open = || TcpStream::connect(&server.address).unwrap();
    let get = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let begun: [(&str, Vec<u8>); 6] = [
        ("silent", vec![]),
        ("half a preface of HTTP/2", b"PRI * HTTP/2.0\r\n".to_vec()),
        ("half a head", b"GET /feeds HTTP/1.1\r\nHos".to_vec()),
        ("a head drop by drop", b"GET ".to_vec()),
        (
            "half a body",
            b"POST /feeds/b HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
                .to_vec(),
        ),
        ("answers unread", get.repeat(2_000).into_bytes()),
    ];
    let mut slow: Vec<(&str, Vec<TcpStream>)> = begun
        .iter()
        .map(|(kind, bytes)| {
            let streams = (0..each).map(|_| {
                let mut stream = open();
                stream.set_nonblocking(true).unwrap();
                // As much of it as is taken.
                let _rest = stream.write(bytes);
                stream.set_nonblocking(false).unwrap();
                stream
            });
            (*kind, streams.collect())
        })
        .collect();
    let idle = (0..each).map(|_| {
        let mut stream = open();
        stream.write_all(get.as_bytes()).unwrap();
        read_answer(&mut stream).unwrap();
        stream
    });
    slow.push(("idle", idle.collect()));
    let done = AtomicBool::new(false);
    let (meanwhile, drops) = std::thread::scope(|scope| {
        let dripping: Vec<TcpStream> = slow[3]
            .1
            .iter()
            .map(|one| one.try_clone().unwrap())
            .collect();
        let done = &done;
        let dripper = scope.spawn(move || {
            let mut drops = 0;
            while !done.load(Ordering::Relaxed) && drops < 40 {
                for mut stream in &dripping {
                    let _closed = stream.write(b"/");
                }
                drops += 1;
                pause(Duration::from_millis(500));
            }
            drops
        });
        let meanwhile = normal_load(&server.address, path, 500);
        for (kind, streams) in slow {
            for stream in streams {
                // Long before the limits that a server has by default, and long enough for a machine that is busy.
                let cut = closed_after(stream, began, Duration::from_secs(70));
                assert!(cut.is_some(), "{kind} is never cut");
            }
        }
        done.store(true, Ordering::Relaxed);
        (meanwhile, dripper.join().unwrap())
    });
    assert!(drops >= 4, "the drops were cut for what they were");
    for _ in 0..200 {
        if server.open_files() <= before {
            break;
        }
        pause(Duration::from_millis(50));
    }
    assert!(
        server.open_files() <= before,
        "{} files, {before} before",
        server.open_files()
    );
    let p99 = |times: &[Duration]| times[times.len() * 99 / 100];
    println!(
        "slow connections: p99 of 64 normal clients {:?}, and {:?} beside {} slow ones",
        p99(&normal),
        p99(&meanwhile),
        7 * each
    );
    assert!(
        p99(&meanwhile) < p99(&normal) * 20 + Duration::from_secs(1),
        "normal clients were starved"
    );
}

/// Goal: idle connections are cheap, and the one that is longest idle gives way to one more than there may be.
#[test]
fn idle_connections_cost_little_and_give_way() {
    let most = if allow_files() { 10_000 } else { 400 };
    let folder = tempfile::tempdir().unwrap();
    let limit = most.to_string();
    // A slow machine opens them in minutes, and none of them is to end by its time.
    let args = ["--connections", &limit, "--idle-timeout", "3600"];
    let server = Server::start(folder.path(), &args);
    assert_eq!(server.publish("a", "{}").status, 201);
    let request = b"GET /feeds/a/recent.atom HTTP/1.1\r\nHost: h\r\n\r\n";
    let before = server.memory_peak_kib();
    let mut idle = vec![];
    for _ in 0..most {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(request).unwrap();
        read_answer(&mut stream).unwrap();
        idle.push(stream);
    }
    let cost = server.memory_peak_kib() - before;
    println!("idle connections: {most} of them cost {} MiB", cost / 1024);
    assert!(cost < 256 * 1024, "{cost} KiB");
    assert_eq!(server.get("/feeds/a/recent.atom").status, 200);
    // The server notes that an answer is written behind its last byte, so that a thread that is held up there makes the next
    // connection the one that is longest idle.
    let among_first = most / 2;
    let closed = wait_for("no connection gave way", || {
        idle.iter().position(|stream| !is_open(stream))
    });
    assert!(closed < among_first, "the one of number {closed} gave way");
    idle.remove(closed);
    // One place was enough.
    for stream in &mut idle {
        stream.set_nonblocking(false).unwrap();
        stream.write_all(request).unwrap();
        read_answer(stream).unwrap();
    }
}

/// Goal: where each connection is in the middle of a request, one too many is told so, and gets the first place that is free.
#[test]
fn a_connection_beyond_all_busy_ones_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--connections", "3"]);
    let head = "POST /feeds/a HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
    let begin = || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut busy = [begin(), begin(), begin()];
    let refused = wait_for("a busy connection gave way", || {
        let answer = server.get("/feeds/a/recent.atom");
        // The server may not have read from all of them yet.
        for stream in &mut busy {
            let was_cut = !is_open(stream);
            if was_cut {
                *stream = begin();
            }
        }
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.json()["type"], "urn:simplefeed:problem:busy");
    drop(busy);
    wait_for("a place that is free is not given away", || {
        (server.get("/feeds/b/recent.atom").status == 404).then_some(())
    });
}

/// Whether the server has not closed a connection on which it has said nothing.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.peek(&mut [0; 1]);
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Goal: a sender that stops in the middle of its body has its time once, and is told.
#[test]
fn a_stalled_body_is_told_in_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--stall-timeout", "1"]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = "POST /feeds/a HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
    let began = Instant::now();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // A refused body is read on for 10 s, which a stalled one is not.
    assert!(began.elapsed() < Duration::from_secs(8));
}

/// Goal: a client that has sent all it has to say, and closes its half of the connection, as `nc -N` does, gets every
/// answer whole: to reads of documents that nobody has read, to what it publishes, and however slowly it reads.
#[test]
fn a_client_that_has_said_all_gets_every_answer() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "1"]);
    let host = &server.address;
    let long = "x".repeat(900_000);
    let event = |n| format!("{{\"id\":\"urn:t:{n}\",\"content\":\"{long}\"}}");
    for n in 0..5 {
        assert_eq!(server.publish("a", &event(n)).status, 201);
    }
    let body = event(5);
    let length = body.len();
    let publish = format!(
        "POST /feeds/a HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let answer = send_raw_and_end(host, publish.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    let get = |n| format!("GET /feeds/a/{n}.atom HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for n in 1..=3 {
        let answer = send_raw_and_end(host, get(n).as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200"), "{n}");
        assert!(answer.ends_with("</feed>\n"), "{n}: {} bytes", answer.len());
    }

    let mut stream = TcpStream::connect(host).unwrap();
    let all: String = (1..=6).chain(1..=6).map(get).collect();
    stream.write_all(all.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let began = Instant::now();
    let mut answers = vec![];
    let mut piece = vec![0; 100_000];
    loop {
        pause(Duration::from_millis(5));
        match stream.read(&mut piece).unwrap() {
            0 => break,
            read => answers.extend_from_slice(&piece[..read]),
        }
    }
    let answers = String::from_utf8(answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 12);
    assert_eq!(answers.matches("</feed>").count(), 12);
    // Not by a time limit, which would hold the connection.
    assert!(began.elapsed() < Duration::from_secs(30), "it is closed");

    // A reader who waits, or streams, has no other sign that it is gone.
    for path in ["/feeds/a/recent.atom?wait=55", "/feeds/a/events"] {
        let tag = server.get("/feeds/a/recent.atom");
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nIf-None-Match: {}\r\n\r\n",
            tag.header("etag")
        );
        let began = Instant::now();
        let _answer = send_raw_and_end(host, request.as_bytes());
        assert!(began.elapsed() < Duration::from_secs(15), "{path}");
    }
}
