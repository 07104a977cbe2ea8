//! Request smuggling through every proxy: one side may take bytes for a body, and the other side for a request.

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    access::{Guarded, bearing},
    hostile::{PROBES, SMUGGLED, statuses},
    http::{Request, Response},
    nginx::Counter,
    proxies::{Kind, Proxy},
    routes::content,
};

/// Chunked bodies of a request that publishes, with rubbish that some parsers take and others refuse; `~` stands for
/// another request.
const CHUNKS: &[&str] = &[
    "2;\r\n{}\r\n0\r\n\r\n~",
    "2 \r\n{}\r\n0\r\n\r\n~",
    "2\t\r\n{}\r\n0\r\n\r\n~",
    "2 ;\r\n{}\r\n0\r\n\r\n~",
    "2;#x\r\n{}\r\n0\r\n\r\n~",
    "2;a=\"\r\n{}\r\n0\r\n\r\n~",
    "2;a\rb\r\n{}\r\n0\r\n\r\n~",
    "2;a\0b\r\n{}\r\n0\r\n\r\n~",
    " 2\r\n{}\r\n0\r\n\r\n~",
    "00000000000000002\r\n{}\r\n0\r\n\r\n~",
    "0x2\r\n{}\r\n0\r\n\r\n~",
    "-2\r\n{}\r\n0\r\n\r\n~",
    "2\r\n{}\r\n0;\r\n\r\n~",
    "2\r\n{}\r\n0 \r\n\r\n~",
    "2\r\n{}\r\n0\r\nContent-Length: 99\r\n\r\n~",
    "2\r\n{}\r\n0\r\nX : y\r\n\r\n~",
    "2\r\n{}\r\n0\r\n~",
    "2\r\n{}0\r\n\r\n~",
    "2\r\n{}xx0\r\n\r\n~",
];

/// Targets of a GET with rubbish in or beside them.
const TARGETS: &[&str] = &[
    "/feeds/open/1.atom#x",
    "/feeds/open/1.atom#/../../victim",
    "/feeds/open/2.atom?#x",
    "/feeds/open/1.atom?x#?y",
    "#x",
    "/feeds/open/1.atom ",
    "/feeds/open/1.atom x",
    "/feeds/open/1.atom\t",
    "/feeds/open/1.atom\0",
    "/feeds/open/1.atom\u{e4}",
    "/feeds/open\\1.atom",
    "//feeds/open/1.atom",
    "/feeds/open/1.atom%0d%0aX:%20y",
    "/feeds/open/1.atom%20HTTP/1.1%0d%0a%0d%0aPOST%20/feeds/victim",
    "http://other/feeds/open/1.atom",
    "http://other/feeds/open/1.atom#x",
    "*",
];

/// Time after which a proxy that waits for more of a request is left alone.
const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy, the server behind it, and the faults that were found.
struct Attack<'a> {
    proxy: &'a str,
    origin: &'a str,
    token: &'a str,
    number: usize,
    stored: usize,
    found: Vec<String>,
}

impl Attack<'_> {
    /// Sends every request of the corpus.
    fn try_all(&mut self) {
        for (_, _, probe) in PROBES {
            self.publish(probe, true);
        }
        for chunks in CHUNKS {
            let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{chunks}");
            self.publish(&chunked, true);
        }
        self.publish_hidden();
        self.break_off("Content-Length: 3\r\n\r\n{}");
        self.break_off("Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n");
        for target in TARGETS {
            self.send(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n~"), true);
        }
        let get = "GET /feeds/open/2.atom HTTP/1.1\r\nHost: h\r\n";
        self.send(&format!("{get}Content-Length: LENGTH\r\n\r\n~"), false);
        let chunked = "Transfer-Encoding: chunked\r\n\r\n2;\r\n{}\r\n0\r\n\r\n~";
        self.send(&format!("{get}{chunked}"), true);
    }

    /// Sends a request as a body.
    fn publish_hidden(&mut self) {
        for rest in [
            "Content-Length: LENGTH\r\n\r\n~",
            "Transfer-Encoding: chunked\r\n\r\nHEX\r\n~\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\nHEX;\r\n~\r\n0\r\n\r\n",
        ] {
            self.publish(rest, false);
        }
    }

    fn publish(&mut self, rest: &str, may_be_stored: bool) {
        let token = self.token;
        let head = format!(
            "POST /feeds/own HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\n"
        );
        self.send(&(head + rest), may_be_stored);
    }

    /// Sends a probe, then a request with the same connection and some with others. `LENGTH` and `HEX` stand for the
    /// length of what is to be slipped in.
    fn send(&mut self, probe: &str, may_be_stored: bool) {
        self.number += 1;
        let number = self.number;
        let names = [format!("own{number}"), format!("victim{number}")];
        let [own, victim] = &names;
        let token = format!("\r\nAuthorization: Bearer {}\r\nContent-Type", self.token);
        let slipped_in = SMUGGLED.replace("\r\nContent-Type", &token);
        let slipped_in = slipped_in.replace("victim", victim);
        let bytes = probe
            .replace("/own", &format!("/{own}"))
            .replace("LENGTH", &slipped_in.len().to_string())
            .replace("HEX", &format!("{:x}", slipped_in.len()))
            .replace('~', &slipped_in);
        let last = format!("last{number}");
        let bytes = format!(
            "{bytes}GET /feeds/{last}/recent.atom HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        );
        // Caddy knows of no other host.
        let bytes = bytes.replace("Host: h\r", &format!("Host: {}\r", self.proxy));
        let absent = format!("feed {last} has no such document");
        let answers = converse(self.proxy, bytes.as_bytes(), &absent);
        let stored = names.iter().filter(|name| self.is_there(name)).count();
        self.stored += stored;
        let told = statuses(&answers);
        let told_of = told.iter().filter(|status| **status == 201).count();
        if told_of != stored || stored > 0 && !may_be_stored {
            self.complain(probe, &format!("{stored} are stored, told {told:?}"));
        }
        // The only question with this answer.
        let others = answers.replace(&absent, "");
        if others.contains("has no such document") && !others.contains("feed open has") {
            self.complain(probe, &format!("the answer to something else: {others}"));
        }
        if self.found.is_empty() {
            self.ask_others(probe);
        }
    }

    /// Asks with other connections; each must get the answer to its own question.
    fn ask_others(&mut self, probe: &str) {
        for next in 0..6 {
            let name = format!("next{}-{next}", self.number);
            let answer = self.ask(&format!("/feeds/{name}/recent.atom"));
            let text = answer.text();
            let own = format!("feed {name} has no such document");
            if answer.status != 404 || !text.contains(&own) {
                let status = answer.status;
                self.complain(probe, &format!("{name} gets {status}: {text}"));
            }
        }
    }

    /// Sends the beginning of a request, and goes away.
    fn break_off(&mut self, rest: &str) {
        self.number += 1;
        let own = format!("own{}", self.number);
        let mut stream = TcpStream::connect(self.proxy).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "POST /feeds/{own} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\n{rest}",
            self.proxy, self.token
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // The proxy sees the end, and answers or closes.
        let _rest = stream.read_to_end(&mut vec![]);
        self.ask_others(rest);
        if self.is_there(&own) {
            self.complain(rest, "what broke off is stored");
        }
    }

    fn ask(&self, path: &str) -> Response {
        Request::get(path).send(self.proxy).unwrap()
    }

    fn is_there(&self, feed: &str) -> bool {
        let request = Request::get(&format!("/feeds/{feed}/recent.atom"));
        let answer = bearing(request, Some(self.token)).send(self.origin);
        answer.unwrap().status == 200
    }

    fn complain(&mut self, probe: &str, about: &str) {
        self.found.push(format!("{probe:?}: {about}"));
    }
}

/// Sends bytes, and returns the answers up to the one that has `last`, or until the peer closes.
fn converse(address: &str, bytes: &[u8], last: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A peer that refuses early closes before it has read all.
    let _refused = stream.write_all(bytes);
    let (mut answers, mut piece) = (vec![], vec![0; 64 * 1024]);
    loop {
        let read = match stream.read(&mut piece) {
            // A read with a timeout is not resumed by itself when the machine was stopped for a while.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        answers.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&answers);
        if read == 0 || text.contains(last) {
            return text.into_owned();
        }
    }
}

/// Goal: nothing is slipped in behind another request through a proxy, and each client gets the answer to its own
/// question: also where the server takes chunk lines and targets with rubbish.
#[track_caller]
fn check(kinds: &[Kind]) {
    for kind in kinds {
        let guarded = Guarded::start(&[]);
        let folder = guarded.folder.path();
        let counter = Counter::before(&guarded.server.address);
        let proxy = Proxy::start(*kind, folder, &counter.address, &guarded.data().join("www"));
        let mut attack = Attack {
            proxy: &proxy.address,
            origin: &guarded.server.address,
            token: &guarded.admin,
            number: 0,
            stored: 0,
            found: vec![],
        };
        attack.try_all();
        for path in ["/feeds/open/1.atom", "/feeds/open/2.atom"] {
            let (through, direct) = (attack.ask(path), guarded.server.get(path));
            if (through.status, content(&through)) != (direct.status, content(&direct)) {
                attack.complain(path, &through.text());
            }
        }
        let found = &attack.found;
        assert!(found.is_empty(), "{kind:?}: {found:#?}");
        // Beside `open` and `shut`, none came later either.
        let feeds = guarded.ask(Request::get("/feeds"), Some(&guarded.admin));
        let feeds = feeds.json()["feeds"].as_array().unwrap().len();
        assert_eq!(feeds, 2 + attack.stored, "{kind:?}");
        assert!(attack.stored > 10, "{kind:?}: {}", attack.stored);
        // With a connection for each request, nothing could go wrong.
        let asked: usize = counter.asked().values().sum();
        let connections = counter.connections();
        assert!(2 * connections < asked, "{kind:?}: {connections}, {asked}");
    }
}

/// Goal: as [`check`] says, through nginx.
#[test]
#[ignore = "needs nginx"]
fn nothing_is_slipped_in_through_nginx() {
    check(&[Kind::Nginx, Kind::NginxWithFiles]);
}

/// Goal: as [`check`] says, through Varnish.
#[test]
#[ignore = "needs varnishd"]
fn nothing_is_slipped_in_through_varnish() {
    check(&[Kind::Varnish]);
}

/// Goal: as [`check`] says, through Caddy.
#[test]
#[ignore = "needs caddy"]
fn nothing_is_slipped_in_through_caddy() {
    check(&[Kind::Caddy]);
}

/// Goal: as [`check`] says, through `HAProxy`.
#[test]
#[ignore = "needs haproxy"]
fn nothing_is_slipped_in_through_haproxy() {
    check(&[Kind::Haproxy]);
}

/// Goal: as [`check`] says, through Apache.
#[test]
#[ignore = "needs apache2"]
fn nothing_is_slipped_in_through_apache() {
    check(&[Kind::Apache]);
}

/// Goal: as [`check`] says, through Squid.
#[test]
#[ignore = "needs squid"]
fn nothing_is_slipped_in_through_squid() {
    check(&[Kind::Squid]);
}

/// Starts a server that knows of no bodies: it takes each line of one that looks like it for a request.
fn start_naive() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let feeds = Arc::<Mutex<BTreeSet<String>>>::default();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let feeds = Arc::clone(&feeds);
            std::thread::spawn(move || serve_naively(&client, &feeds));
        }
    });
    address
}

fn serve_naively(mut client: &TcpStream, feeds: &Mutex<BTreeSet<String>>) {
    let lines = BufReader::new(client).split(b'\n');
    let mut lines = lines.map_while(Result::ok).peekable();
    while let Some(line) = lines.next() {
        let line = String::from_utf8_lossy(&line).into_owned();
        let Some(request) = line.trim_end().strip_suffix(" HTTP/1.1") else {
            continue;
        };
        // A head ends with an empty line.
        let head: Vec<Vec<u8>> = lines.by_ref().take_while(|line| line != b"\r").collect();
        let is_last = head
            .iter()
            .any(|line| line.eq_ignore_ascii_case(b"Connection: close\r"));
        let (method, path) = request.split_once(' ').unwrap_or_default();
        let name = path.split('/').nth(2).unwrap_or_default();
        let is_new = method == "POST" && feeds.lock().unwrap().insert(name.to_owned());
        if method == "POST" {
            // Caddy sends no more of a body that is answered.
            let _begun = lines.peek();
        }
        let (status, body) = if is_new {
            ("201 Created", String::new())
        } else if path == "/healthz" || feeds.lock().unwrap().contains(name) {
            ("200 OK", String::new())
        } else {
            ("404 Not Found", format!("feed {name} has no such document"))
        };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nCache-Control: no-store\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        if client.write_all(answer.as_bytes()).is_err() || is_last {
            break;
        }
    }
    let _closed = client.shutdown(Shutdown::Both);
}

/// Goal: a server that does not see where a body ends is found through each proxy: it is the control of the tests above.
#[test]
#[ignore = "needs nginx, varnishd, caddy, haproxy, apache2 and squid"]
fn a_naive_server_is_found_through_each_proxy() {
    for kind in Kind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let origin = start_naive();
        let proxy = Proxy::start(kind, folder.path(), &origin, folder.path());
        let mut attack = Attack {
            proxy: &proxy.address,
            origin: &origin,
            token: "t",
            number: 0,
            stored: 0,
            found: vec![],
        };
        attack.publish_hidden();
        assert!(!attack.found.is_empty(), "{kind:?}");
    }
}

/// Goal: a body without a right costs a proxy no memory, and is refused at its first byte. A body that is too large is
/// answered with 413: without an answer, its sender would send it again.
#[test]
#[ignore = "needs all proxies"]
fn bodies_that_are_not_taken_are_told() {
    let guarded = Guarded::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let www = guarded.data().join("www");
    let token = format!("Authorization: Bearer {}\r\n", guarded.admin);
    for kind in Kind::ALL {
        let proxy = Proxy::start(kind, folder.path(), &guarded.server.address, &www);
        let status = |token: &str, announced: usize, sent: usize| {
            let mut stream = TcpStream::connect(&proxy.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let head = format!(
                "POST /feeds/open HTTP/1.1\r\nHost: {}\r\n{token}Content-Type: application/json\r\n\
                 Content-Length: {announced}\r\n\r\n",
                proxy.address
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut line = String::new();
            let read = std::thread::scope(|threads| {
                let mut body = stream.try_clone().unwrap();
                // A server that has answered may read no more of it.
                threads.spawn(move || body.write_all(&vec![b' '; sent]));
                BufReader::new(&stream).read_line(&mut line)
            });
            assert!(read.is_ok(), "{kind:?}, {sent} of {announced}: {read:?}");
            line
        };
        // nginx passes on a body without a token, too, once it is whole.
        if !kind.lets_all_writes_through() {
            let announced = 1_000_000;
            // Apache reads it first, and keeps nothing of it.
            let sent = if kind == Kind::Apache { announced } else { 1 };
            let refused = status("", announced, sent);
            assert!(refused.contains(" 403 "), "{kind:?}: {refused}");
        }
        let size = (16 << 20) + 1;
        let large = status(&token, size, size);
        assert!(large.contains(" 413 "), "{kind:?}: {large}");
    }
}
