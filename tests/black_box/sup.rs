//! SUP with the real programs: what is told of many feeds, to whom, and what a watcher makes of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use simplefeed_core::sup::rules::check;

use crate::{
    harness::{Server, copy_folder, files, pause, program, run, simplefeed, text, wait_for},
    http::{Request, Response},
    site::{Site, answer},
};

/// A server that is told about itself every two seconds.
fn quick(data: &Path) -> Server {
    Server::start(data, &["--sup-periods", "2,60"])
}

fn publish(server: &Server, feed: &str, id: &str) {
    let answer = server.publish(feed, &format!("{{\"id\":\"{id}\",\"content\":1}}"));
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// Returns the pairs of a document.
fn pairs(document: &Response) -> Vec<(String, String)> {
    let json = document.json();
    let updates = json["updates"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    updates
        .iter()
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect()
}

/// Waits until a document tells of so many feeds.
fn told(server: &Server, path: &str, feeds: usize) -> Response {
    wait_for(&format!("{path} does not tell of {feeds} feeds"), || {
        let document = server.get(path);
        (document.status == 200 && pairs(&document).len() == feeds).then_some(document)
    })
}

fn sup_id(answer: &Response) -> &str {
    answer.header("x-sup-id")
}

/// SUP-A1 to SUP-A4: every answer of a feed announces the same.
#[test]
fn every_answer_of_a_feed_tells_its_sup_id() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "1"]);
    let created = server.publish(
        "a",
        "{\"id\":\"urn:1\"}\n{\"id\":\"urn:2\"}\n{\"id\":\"urn:3\"}",
    );
    let own = sup_id(&created).to_owned();
    let (document, id) = own.split_once('#').unwrap();
    assert_eq!(document, server.url("/sup.json"));
    assert!(
        id.len() == 8
            && id
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    );
    server.wait_until_frozen("/feeds/a/1.atom");
    for path in [
        "/feeds/a",
        "/feeds/a/recent.atom",
        "/feeds/a/1.atom",
        "/feeds/a/3.atom",
        "/feeds/a/entries/0.atom",
        "/feeds/a/index.json",
    ] {
        for method in ["GET", "HEAD"] {
            for _ in 0..2 {
                let answer = server.send(&Request::new(method, path));
                assert_eq!(sup_id(&answer), own, "{method} {path}");
            }
        }
        let tag = server.get(path).maybe("etag").map(str::to_owned);
        if let Some(tag) = tag {
            let known = server.send(&Request::get(path).header("If-None-Match", &tag));
            assert_eq!((known.status, sup_id(&known)), (304, &*own), "{path}");
        }
    }
    let settings = server.send(&Request::put("/feeds/a", "{\"title\":\"A\"}"));
    assert_eq!(sup_id(&settings), own);
    let link = format!(
        "<link rel=\"http://api.friendfeed.com/2008/03#sup\" href=\"{own}\" type=\"application/json\"/>"
    );
    for (path, has) in [("recent.atom", true), ("3.atom", false), ("1.atom", false)] {
        let document = server.get(&format!("/feeds/a/{path}"));
        assert_eq!(document.text().contains(&link), has, "{path}");
    }
    // SUP-A5: nothing of a request is reflected.
    let asked = Request::get("/feeds/nothing/recent.atom").header("X-SUP-ID", "http://evil/#x");
    assert_eq!(server.send(&asked).maybe("x-sup-id"), None);
}

/// Lets a thread end, whatever comes of its test.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// SUP-P1 to SUP-P7: windows, validators, codings, lifetimes, and what is refused; the reference's validator
/// has nothing to say while entries arrive.
#[test]
fn the_document_is_clean_while_entries_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                publish(&server, &format!("f{}", n % 50), &format!("urn:{n}"));
            }
        });
        let _stopping = StopAtEnd(&stop);
        // The first of all commits may be seen before it is taken into account.
        wait_for("nothing is told", || {
            (server.get("/sup.json").status == 200).then_some(())
        });
        let mut last: HashMap<String, String> = HashMap::new();
        for _ in 0..8 {
            let document = server.get("/sup.json");
            assert_eq!(check(&document.body), None, "{}", document.text());
            for (feed, update) in pairs(&document) {
                let before = last.insert(feed, update.clone());
                assert!(before.is_none_or(|before| before <= update), "ids increase");
            }
            let said = run(
                "simplefeed",
                &["sup", "check", &server.url("/sup.json")],
                b"",
            );
            assert_eq!(
                (said.status.code(), text(&said.stdout).trim()),
                (Some(0), "fine")
            );
            pause(Duration::from_millis(400));
        }
    });
    let document = told(&server, "/sup.json", 50);
    assert_eq!(document.header("content-type"), "application/json");
    assert_eq!(document.header("cache-control"), "public, max-age=6");
    let known = Request::get("/sup.json").header("If-None-Match", document.header("etag"));
    let again = server.send(&known);
    assert!(again.status == 304 || again.header("etag") != document.header("etag"));
    let packed = server.send(&Request::get("/sup.json").header("Accept-Encoding", "gzip"));
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.body.len() < document.body.len());
    for (query, period, age) in [
        ("?seconds=60", 60, 6),
        ("?seconds=300", 300, 30),
        ("?seconds=3600", 3_600, 360),
    ] {
        let document = server.get(&format!("/sup.json{query}"));
        let json = document.json();
        assert_eq!(json["period"], period);
        assert_eq!(
            json["available_periods"][period.to_string()],
            server.url(&format!("/sup.json?seconds={period}"))
        );
        assert_eq!(
            document.header("cache-control"),
            format!("public, max-age={age}")
        );
        let instant = |name: &str| {
            simplefeed_core::timestamp::Timestamp::parse(json[name].as_str().unwrap()).unwrap()
        };
        let window = instant("updated_time").second() - instant("since_time").second();
        assert!(window >= period + 10, "{window}");
    }
    for query in [
        "?seconds=61",
        "?seconds=",
        "?seconds=060",
        "?seconds=60&a=b",
        "?x",
        "?seconds=60%27--",
    ] {
        let refused = server.get(&format!("/sup.json{query}"));
        assert_eq!(refused.status, 400, "{query}");
        assert_eq!(refused.header("cache-control"), "no-store");
    }
    assert_eq!(server.get("/sup/1.json").status, 404);
    assert_eq!(
        server
            .send(&Request::post("/sup.json", "application/json", "{}"))
            .status,
        405
    );
}

/// Goal: a restart answers the same windows as before, also one that nobody was asked about.
#[test]
fn a_restart_forgets_no_update() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for feed in 0..20 {
        publish(&server, &format!("f{feed}"), "urn:1");
    }
    let before = pairs(&told(&server, "/sup.json?seconds=300", 20));
    server.kill();
    let server = Server::start(folder.path(), &[]);
    let after = told(&server, "/sup.json?seconds=300", 20);
    assert_eq!(pairs(&after), before);
    server.stop();
    let server = Server::start(folder.path(), &[]);
    publish(&server, "f7", "urn:2");
    let later = wait_for("the update is not told", || {
        let later = pairs(&told(&server, "/sup.json?seconds=600", 20));
        (later != before).then_some(later)
    });
    let changed: Vec<_> = later.iter().filter(|pair| !before.contains(pair)).collect();
    assert_eq!(changed.len(), 1);
}

/// Goal: nobody is told of a feed that it may not see, and who may is.
#[test]
fn closed_feeds_are_told_to_who_may_see_them() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let new = |right: &str, feeds: &str| {
        let tokens = tokens.to_str().unwrap();
        let args = [
            "token", "new", "t", "--right", right, "--feeds", feeds, "--tokens", tokens,
        ];
        text(&run("simplefeed-server", &args, b"").stdout)
            .trim()
            .to_owned()
    };
    let (admin, reader, other) = (
        new("admin", "*"),
        new("read", "secret"),
        new("read", "else"),
    );
    let data = folder.path().join("data");
    let tokens = tokens.to_str().unwrap().to_owned();
    let server = Server::start(&data, &["--tokens", &tokens, "--sup-periods", "2,60"]);
    let ask = |request: Request, token: &str| {
        server.send(&request.header("Authorization", &format!("Bearer {token}")))
    };
    for (feed, closed) in [("secret", true), ("open", false)] {
        let settings = format!("{{\"closed\":{closed}}}");
        let created = ask(Request::put(&format!("/feeds/{feed}"), &settings), &admin);
        assert_eq!(created.status, 201);
    }
    let recent = ask(Request::get("/feeds/secret/recent.atom"), &reader);
    let (document, secret) = sup_id(&recent).split_once('#').unwrap();
    assert_eq!(document, server.url("/sup-closed.json"));
    let open = server.get("/feeds/open/recent.atom");
    let open = sup_id(&open).split_once('#').unwrap().1.to_owned();
    let seen = |path: &str, token: Option<&str>| {
        let request = Request::get(path);
        let answer = match token {
            Some(token) => ask(request, token),
            None => server.send(&request),
        };
        assert_eq!(answer.status, 200);
        let cached_by = answer
            .header("cache-control")
            .split(',')
            .next()
            .unwrap()
            .to_owned();
        let ids: BTreeSet<String> = pairs(&answer).into_iter().map(|(id, _)| id).collect();
        (ids, cached_by)
    };
    wait_for("the open feed is not told", || {
        seen("/sup.json", None).0.contains(&open).then_some(())
    });
    for token in [None, Some(&*reader), Some(&*admin)] {
        let (ids, cached_by) = seen("/sup.json", token);
        assert_eq!(
            (ids, &*cached_by),
            (BTreeSet::from([open.clone()]), "public")
        );
    }
    for (token, sees) in [
        (None, false),
        (Some(&*other), false),
        (Some(&*reader), true),
        (Some(&*admin), true),
    ] {
        let (ids, cached_by) = seen("/sup-closed.json", token);
        assert_eq!(
            (ids.contains(secret), &*cached_by),
            (sees, "private"),
            "{token:?}"
        );
        assert!(!ids.contains(&open));
    }
    // Who mistypes a token is not told that there is nothing.
    for path in ["/sup-closed.json", "/sup-closed/1.json"] {
        let mistaken = ask(Request::get(path), "sft_mistyped");
        assert_eq!(mistaken.status, 401, "{path}");
        assert!(
            mistaken
                .header("www-authenticate")
                .contains("invalid_token")
        );
    }
    assert_eq!(ask(Request::get("/sup.json"), "sft_mistyped").status, 200);

    // Once it is opened, everybody is told, and where it was told it stays.
    let opened = ask(Request::put("/feeds/secret", "{\"closed\":false}"), &admin);
    assert_eq!(sup_id(&opened), sup_id(&recent));
    assert!(seen("/sup-closed.json", None).0.contains(secret));
}

/// Goal: an append to a feed is an update of each timeline that follows it, and of no other, in a document of their own; so
/// is what a follow brings along. A restart forgets none.
#[test]
fn timelines_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = quick(&data);
    for feed in ["a", "b"] {
        publish(&server, feed, "urn:0");
    }
    let mut ids = HashMap::new();
    for (timeline, feed) in [("home", "a"), ("too", "a"), ("other", "b")] {
        let settings = format!("{{\"kind\":\"timeline\",\"following\":[\"{feed}\"]}}");
        let created = server.send(&Request::put(&format!("/feeds/{timeline}"), &settings));
        assert_eq!(created.status, 201);
        let (document, id) = sup_id(&created).split_once('#').unwrap();
        assert_eq!(document, server.url("/sup-timelines.json"));
        let recent = server.get(&format!("/feeds/{timeline}/recent.atom"));
        assert_eq!(sup_id(&recent), sup_id(&created));
        assert!(recent.text().contains(sup_id(&created)));
        ids.insert(timeline, id.to_owned());
    }
    // Each is told of once, with its last update.
    let path = "/sup-timelines.json?seconds=60";
    let changed = |server: &Server, before: &[(String, String)], count: usize| {
        wait_for("not all is told", || {
            let mut now = pairs(&told(server, path, 3));
            let all = now.clone();
            now.retain(|pair| !before.contains(pair));
            let found: BTreeSet<String> = now.into_iter().map(|(id, _)| id).collect();
            (found.len() == count).then_some((found, all))
        })
    };
    let named = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| ids[name].clone()).collect()
    };
    let (_, all) = changed(&server, &[], 3);
    let feeds_before = pairs(&told(&server, "/sup.json?seconds=60", 2));
    publish(&server, "a", "urn:1");
    let (found, all) = changed(&server, &all, 2);
    assert_eq!(found, named(&["home", "too"]));
    let feeds = wait_for("the feed is not told", || {
        let now = pairs(&told(&server, "/sup.json?seconds=60", 2));
        (now != feeds_before).then_some(now)
    });
    assert!(feeds.iter().all(|(id, _)| !ids.values().any(|of| of == id)));
    let follow = Request::put("/feeds/other/following/a", "{\"backfill\":2}");
    assert_eq!(server.send(&follow).status, 200);
    let (found, all) = changed(&server, &all, 1);
    assert_eq!(found, named(&["other"]));
    server.stop();

    let server = quick(&data);
    wait_for("a restart forgets something", || {
        let document = server.get(path);
        (document.status == 200).then_some(())
    });
    assert_eq!(pairs(&told(&server, path, 3)), all);
    publish(&server, "b", "urn:2");
    let (found, _) = changed(&server, &all, 1);
    assert_eq!(found, named(&["other"]));
    let document = server.get(path).json();
    assert_eq!(document["prev_archive"], serde_json::Value::Null);
    assert_eq!(server.get("/sup-timelines/1.json").status, 404);
}

/// Goal: what comes into a timeline is handed over by a watcher, soon, by its document and with no look at other timelines.
#[test]
fn timelines_are_watched() {
    let folder = tempfile::tempdir().unwrap();
    let server = quick(&folder.path().join("data"));
    let (mut urls, mut expected) = (vec![], BTreeMap::new());
    for number in 0..10 {
        let feed = format!("f{number}");
        let settings = format!("{{\"kind\":\"timeline\",\"following\":[\"{feed}\"]}}");
        assert_eq!(
            server
                .send(&Request::put(&format!("/feeds/{feed}"), "{}"))
                .status,
            201
        );
        let created = server.send(&Request::put(&format!("/feeds/t{number}"), &settings));
        assert_eq!(created.status, 201);
        publish(&server, &feed, "urn:first");
        let url = server.url(&format!("/feeds/t{number}"));
        expected.insert(url.clone(), vec!["urn:first".to_owned()]);
        urls.push(url);
    }
    let list = list_of(folder.path(), urls);
    let state = folder.path().join("state");
    let watcher = Watcher::start(&list, &state, &["--since", "oldest"]);
    wait_for("not every timeline is looked at", || {
        (watcher.seen() == expected).then_some(())
    });
    for number in 1..=20 {
        let feed = number * 7 % 3;
        let id = format!("urn:{number:02}");
        publish(&server, &format!("f{feed}"), &id);
        let url = server.url(&format!("/feeds/t{feed}"));
        expected.get_mut(&url).unwrap().push(id);
    }
    wait_for("not everything is seen", || {
        (watcher.seen() == expected).then_some(())
    });
    let said = watcher.stop();
    assert_eq!(count_of(&said, " by interval"), 0, "{said}");
    assert!(count_of(&said, " after news") > 0, "{said}");
}

/// Goal: a server that tells nothing of updates has no trace of it.
#[test]
fn sup_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--sup-periods", "none"]);
    let created = server.publish("a", "{\"id\":\"urn:1\"}");
    assert_eq!(created.maybe("x-sup-id"), None);
    let recent = server.get("/feeds/a/recent.atom");
    assert_eq!(recent.maybe("x-sup-id"), None);
    assert!(!recent.text().contains("sup"));
    assert_eq!(server.get("/sup.json").status, 404);
    server.stop();
    // It begins with the next entry: the header of a document is fixed.
    let server = Server::start(folder.path(), &[]);
    publish(&server, "a", "urn:2");
    assert!(
        server
            .get("/feeds/a/recent.atom")
            .text()
            .contains("sup.json#")
    );
}

/// A watcher, and what it has printed.
struct Watcher {
    child: Child,
    lines: Arc<Mutex<Vec<serde_json::Value>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Watcher {
    fn start(list: &Path, state: &Path, more: &[&str]) -> Self {
        let mut child = Command::new(program("simplefeed"))
            .arg("watch")
            .arg(list)
            .arg("--state")
            .arg(state)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        let lines = Arc::<Mutex<Vec<serde_json::Value>>>::default();
        let kept = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in std::io::BufRead::lines(stdout).map_while(Result::ok) {
                // A kill may cut the last line.
                if let Ok(event) = serde_json::from_str(&line) {
                    kept.lock().unwrap().push(event);
                }
            }
        });
        Self {
            child,
            lines,
            reader: Some(reader),
        }
    }

    /// Returns the ids of each feed's entries, in the order they came in.
    fn seen(&self) -> BTreeMap<String, Vec<String>> {
        let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in self.lines.lock().unwrap().iter() {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            seen.entry(text("feed")).or_default().push(text("id"));
        }
        seen
    }

    fn memory_peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Kills it. All that it had written is in `lines` afterwards: what is left in the pipe counts as handed over.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
    }

    /// Ends it as an operator does. Returns what it said.
    fn stop(mut self) -> String {
        crate::harness::signal("TERM", self.child.id());
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{said}");
        said
    }
}

fn list_of(folder: &Path, urls: impl IntoIterator<Item = String>) -> PathBuf {
    let path = folder.join("feeds.txt");
    let urls: Vec<String> = urls.into_iter().collect();
    fs::write(&path, urls.join("\n")).unwrap();
    path
}

/// Goal: a watcher hands over every entry of every feed, in its feed's order, however often it is killed.
#[test]
fn a_watcher_that_is_killed_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = quick(&folder.path().join("data"));
    let feeds: Vec<String> = (0..30).map(|feed| format!("f{feed}")).collect();
    for feed in &feeds {
        publish(&server, feed, "urn:0");
    }
    let list = list_of(
        folder.path(),
        feeds
            .iter()
            .map(|feed| server.url(&format!("/feeds/{feed}"))),
    );
    let state = folder.path().join("state");
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |watcher: &Watcher| {
        for (feed, ids) in watcher.seen() {
            seen.entry(feed).or_default().extend(ids);
        }
        seen.values().flatten().collect::<BTreeSet<_>>().len()
    };
    let mut number = 0;
    for life in 0..12 {
        let mut watcher = Watcher::start(&list, &state, &["--since", "oldest"]);
        for _ in 0..15 {
            number += 1;
            publish(
                &server,
                &feeds[number * 7 % 30],
                &format!("urn:{number:04}"),
            );
            pause(Duration::from_millis(20 + life * 17));
        }
        pause(Duration::from_millis(300 * (life % 3)));
        watcher.kill();
        add(&watcher);
    }
    let watcher = Watcher::start(&list, &state, &[]);
    let mut before = 0;
    wait_for("not everything is seen", || {
        let lines = watcher.lines.lock().unwrap().len();
        if lines == before {
            pause(Duration::from_millis(100));
        }
        before = lines;
        let mut all = seen_together(&seen, &watcher);
        all.retain(|id| id != "urn:0");
        (all.len() == number).then_some(())
    });
    for (feed, ids) in watcher.seen() {
        seen.entry(feed).or_default().extend(ids);
    }
    for (feed, ids) in &seen {
        // What comes again comes in order, too: after each kill from the last place that was kept.
        let mut newest = String::new();
        let mut known = BTreeSet::new();
        for id in ids {
            assert!(
                !known.insert(id.clone()) || *id >= newest,
                "{feed}: {ids:?}"
            );
            newest = newest.max(id.clone());
        }
    }
    let said = watcher.stop();
    // None but what was looked at before the first document came. A process that needs long to end is ended without a word.
    if said.contains(" by interval") {
        assert!(count_of(&said, " by interval") <= feeds.len(), "{said}");
    }
}

/// Returns the number that stands before something in what a watcher says at its end.
fn count_of(said: &str, what: &str) -> usize {
    let (before, _) = said.split_once(what).unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

fn seen_together(seen: &BTreeMap<String, Vec<String>>, watcher: &Watcher) -> BTreeSet<String> {
    let now = watcher.seen();
    seen.values()
        .chain(now.values())
        .flatten()
        .cloned()
        .collect()
}

/// Goal: 10,000 feeds are followed with a request now and then, in little memory; what was told is archived,
/// and who was away looks at those feeds only that changed.
#[test]
#[ignore = "takes long"]
fn ten_thousand_feeds_are_few_requests() {
    const FEEDS: usize = 10_200;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = quick(&data);
    std::thread::scope(|threads| {
        for part in 0..32 {
            let server = &server;
            threads.spawn(move || {
                for feed in (part..FEEDS).step_by(32) {
                    publish(server, &format!("f{feed}"), "urn:0");
                }
            });
        }
    });
    // More than 10,000 feeds are a window of their own, once there is a later second.
    pause(Duration::from_millis(1_100));
    publish(&server, "f1", "urn:1");
    let archived = server.wait_until_frozen("/sup/1.json");
    assert!(pairs(&archived).len() >= 10_000);
    assert_eq!(archived.json()["prev_archive"], serde_json::Value::Null);
    let file = data.join("www/sup/1.json");
    assert_eq!(fs::read(&file).unwrap(), archived.body);
    let current = wait_for("the archive is not linked", || {
        let current = server.get("/sup.json");
        (current.json()["prev_archive"] == "sup/1.json").then_some(current)
    });
    assert_eq!(current.header("link"), "<sup/1.json>; rel=\"prev-archive\"");
    let packed = server.send(&Request::get("/sup/1.json").header("Accept-Encoding", "gzip"));
    assert_eq!(
        packed.body,
        fs::read(data.join("www/sup/1.json.gz")).unwrap()
    );

    let list = list_of(
        folder.path(),
        (0..FEEDS).map(|feed| server.url(&format!("/feeds/f{feed}"))),
    );
    let state = folder.path().join("state");
    // What has changed just before the first look is looked at again, the last time after the interval.
    let watcher = Watcher::start(&list, &state, &["--interval", "10s"]);
    let book = state.join("watched.ndjson");
    wait_for("not every feed is at rest", || {
        let book = fs::read_to_string(&book).unwrap_or_default();
        let mut at_rest = BTreeSet::new();
        for line in book.lines().filter(|line| line.starts_with("{\"feed\"")) {
            let feed = line.split('"').nth(3).unwrap_or_default();
            if line.contains("\"sup\"") {
                at_rest.insert(feed);
            } else {
                at_rest.remove(feed);
            }
        }
        pause(Duration::from_millis(500));
        (at_rest.len() >= FEEDS && book.contains("sup_document")).then_some(())
    });
    publish(&server, "f77", "urn:news");
    wait_for("the news are not seen", || {
        (!watcher.seen().is_empty()).then_some(())
    });
    let peak = watcher.memory_peak_kib();
    assert!(peak < 200 * 1024, "{peak} KiB");
    println!("10,200 feeds take {} MiB", peak / 1024);
    pause(Duration::from_secs(6));
    watcher.stop();

    // While it is away, 30 feeds change.
    for feed in 0..30 {
        publish(&server, &format!("f{}", feed * 300), "urn:later");
    }
    let watcher = Watcher::start(&list, &state, &[]);
    wait_for("not everything is seen", || {
        (watcher.seen().len() == 30).then_some(())
    });
    let said = watcher.stop();
    // Besides those 30 only such as were being looked at, or were to be looked at again, when it was stopped.
    let looks = [
        " first ones",
        " after news in a SUP document",
        " by interval",
    ];
    let looks: usize = looks.iter().map(|what| count_of(&said, what)).sum();
    assert!((30..300).contains(&looks), "{said}");
    assert!(said.contains(" 0 gaps, 0 of them"), "{said}");

    // Views are functions of commits.
    server.stop();
    let before = files(&data.join("www/sup"));
    fs::remove_dir_all(data.join("www/sup")).unwrap();
    fs::remove_dir_all(data.join("views/sup")).unwrap();
    let server = quick(&data);
    let www = data.join("www/sup");
    wait_for("the archive is not made again", || {
        (www.exists() && files(&www) == before).then_some(())
    });
    server.stop();
    fs::write(&file, b"damage").unwrap();
    let verified = run(
        "simplefeed-server",
        &["verify", "--data", data.to_str().unwrap()],
        b"",
    );
    let faults = text(&verified.stdout);
    assert_eq!(verified.status.code(), Some(15), "{faults}");
    assert!(faults.contains(file.to_str().unwrap()), "{faults}");
    let copy = folder.path().join("copy");
    copy_folder(&data, &copy);
    crate::harness::check_folder("rebuild", &data);
    assert_eq!(files(&data.join("www/sup")), before);
}

/// Goal: a feed that was empty when it was first looked at is not taken for read.
#[test]
fn the_first_entry_of_an_empty_feed_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let server = quick(&folder.path().join("data"));
    let created = server.send(&Request::put("/feeds/a", "{}"));
    assert_eq!(created.status, 201);
    let list = list_of(folder.path(), [server.url("/feeds/a")]);
    let state = folder.path().join("state");
    for (number, id) in ["urn:first", "urn:second"].into_iter().enumerate() {
        let watcher = Watcher::start(&list, &state, &[]);
        if number == 0 {
            let book = state.join("watched.ndjson");
            wait_for("the feed is not known", || {
                fs::read_to_string(&book)
                    .is_ok_and(|book| book.contains("sup_document"))
                    .then_some(())
            });
        }
        publish(&server, "a", id);
        wait_for("the entry is not seen", || {
            let seen = watcher.seen();
            (seen.values().next()? == &[id]).then_some(())
        });
        watcher.stop();
    }
}

/// A feed of a foreign publisher, whose updates are told in the reference's form.
fn foreign_feed(site: &str, entries: usize, link: &str) -> Vec<u8> {
    let entries: String = (0..entries)
        .rev()
        .map(|n| format!("<entry><id>urn:e{n}</id><title>t</title><updated>2026-01-01T00:00:{n:02}Z</updated></entry>"))
        .collect();
    format!(
        "<feed xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:f</id><title>f</title><updated>2026-01-01T00:00:00Z</updated>\
         <link rel=\"self\" href=\"{site}/feed\"/>{link}{entries}</feed>"
    )
    .into_bytes()
}

/// SUP-A3, SUP-C8, SUP-C9: foreign publishers are watched, in all three ways they announce it; a document that
/// is broken does no harm, and one that works again is believed again.
#[test]
fn foreign_publishers_are_watched() {
    for announced in ["header", "link", "updates"] {
        let state = Arc::new(Mutex::new((1_usize, 0_u64, true)));
        let shared = Arc::clone(&state);
        let site = Site::new(move |asked, stream| {
            let (entries, second, works) = *shared.lock().unwrap();
            let home = asked
                .head
                .lines()
                .find_map(|line| line.strip_prefix("Host: ").or(line.strip_prefix("host: ")));
            let home = format!("http://{}", home.unwrap_or_default().trim());
            let own = format!("{home}/sup.json#276b6c46");
            let (mut headers, mut link) = (
                "Content-Type: application/atom+xml\r\n".to_owned(),
                String::new(),
            );
            match announced {
                "header" => headers += &format!("X-SUP-ID: {own}\r\n"),
                "link" => {
                    link = format!(
                        "<link rel=\"http://api.friendfeed.com/2008/03#sup\" href=\"{own}\" type=\"application/json\"/>"
                    )
                }
                _ => {
                    link = format!(
                        "<link rel=\"updates\" title=\"Updates Document\" href=\"{own}\" type=\"application/json\"/>"
                    )
                }
            }
            let reply = if asked.path != "/sup.json" {
                answer("200 OK", &headers, &foreign_feed(&home, entries, &link))
            } else if works {
                let update = format!(
                    "{{\"updated_time\":\"2009-01-06T01:{:02}:{:02}Z\",\"since_time\":\"2009-01-06T01:00:00Z\",\"period\":1,\"available_periods\":{{}},\"updates\":[[\"276b6c46\",\"v{entries}\"],[\"other\",\"x\"]]}}",
                    second / 60 + 10,
                    second % 60
                );
                answer(
                    "200 OK",
                    "Content-Type: application/json\r\n",
                    update.as_bytes(),
                )
            } else {
                answer(
                    "200 OK",
                    "Content-Type: application/json\r\n",
                    b"{\"updated_time\":\"2009-01-06T01:1",
                )
            };
            // Whoever has gone away needs no answer.
            let _gone = stream.write_all(&reply).is_err();
        });
        let folder = tempfile::tempdir().unwrap();
        let list = list_of(folder.path(), [site.url("/feed")]);
        let watcher = Watcher::start(&list, &folder.path().join("state"), &["--since", "oldest"]);
        let sees = |entries: usize| {
            wait_for(
                &format!("{announced}: {entries} entries are not seen"),
                || {
                    state.lock().unwrap().1 += 1;
                    pause(Duration::from_millis(100));
                    let seen = watcher.seen();
                    let ids = seen.values().next()?;
                    (ids.len() == entries).then_some(())
                },
            );
        };
        sees(1);
        state.lock().unwrap().0 = 3;
        sees(3);
        state.lock().unwrap().2 = false;
        pause(Duration::from_millis(1_500));
        *state.lock().unwrap() = (4, 1_000, true);
        sees(4);
        let asked = site.asked();
        let looks = asked.iter().filter(|path| *path == "/feed").count();
        assert!(looks < 20, "{announced}: {looks} looks");
        let said = watcher.stop();
        assert!(said.contains("is not a SUP document"), "{said}");
    }
}

/// Goal: nonsense is told at once and in words.
#[test]
fn a_list_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list");
    for (content, said) in [
        ("", "there is no feed in what was given"),
        ("nonsense", "line 1 is no URL: nonsense"),
        ("<rss/>", "is not OPML"),
        ("ftp://example.org/feed", "neither http nor https"),
    ] {
        fs::write(&path, content).unwrap();
        let output = run("simplefeed", &["watch", path.to_str().unwrap()], b"");
        assert!(!output.status.success());
        assert!(
            text(&output.stderr).contains(said),
            "{}",
            text(&output.stderr)
        );
    }
    let opml =
        "<opml version=\"2.0\"><body><outline xmlUrl=\"http://127.0.0.1:9/feed\"/></body></opml>";
    fs::write(&path, opml).unwrap();
    let args = ["watch", path.to_str().unwrap(), "--for", "1s"];
    let output = run("simplefeed", &args, b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("warning: http://127.0.0.1:9/feed: cannot fetch"));
}

/// Goal: what is watched can be published again.
#[test]
fn what_is_watched_can_be_published() {
    let folder = tempfile::tempdir().unwrap();
    let server = quick(folder.path());
    publish(&server, "a", "urn:1");
    let args = [
        "watch",
        &server.url("/feeds/a"),
        "--since",
        "oldest",
        "--limit",
        "1",
    ];
    let watched = run("simplefeed", &args, b"");
    assert!(text(&watched.stdout).contains(&format!("\"feed\":\"{}\"", server.url("/feeds/a"))));
    let said = simplefeed(&["append", &server.url("/feeds/b")], &watched.stdout);
    assert!(said.contains("urn:1"), "{said}");
}
