//! What a feed service owes its users, as a checklist (SPECS 2.10), and the defects of the reference that must not come
//! back (SPECS 2.11), over the real programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use crate::{
    dice::Dice,
    harness::{
        Server, check_folder, copy_folder, files, free_address, is_long, program, run, simplefeed,
        text, wait_for, workspace,
    },
    http::Request,
    site::Site,
};

const MODELS: [&str; 4] = ["write", "auto", "read", "cache"];

fn put(server: &Server, path: &str, body: &str) -> serde_json::Value {
    let answer = server.send(&Request::put(path, body));
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    answer.json()
}

/// The ids on a page, and the anchor of its last item.
fn page(server: &Server, feed: &str, query: &str) -> (Vec<String>, Option<String>) {
    let page = server.get(&format!("/feeds/{feed}/page.json?{query}"));
    assert_eq!(page.status, 200, "{}", page.text());
    let page = page.json();
    let items = page["items"].as_array().unwrap().clone();
    let text = |item: &serde_json::Value, member: &str| item[member].as_str().unwrap().to_owned();
    let ids = items.iter().map(|item| text(item, "id")).collect();
    (ids, items.last().map(|item| text(item, "anchor")))
}

/// Behaviour 3, S-D12: a page has what was asked for, in each model, for feeds and timelines; no limit is cut silently.
#[test]
fn a_page_has_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let expected: Vec<String> = (0..1_200).map(|number| format!("urn:{number}")).collect();
    for model in MODELS {
        let args = ["--fan-out", model];
        let server = Server::start_at(&address, folder.path(), &args);
        if model == MODELS[0] {
            put(&server, "/feeds/a", "{}");
            put(
                &server,
                "/feeds/home",
                r#"{"kind":"timeline","following":["a"]}"#,
            );
            let lines: String = expected
                .iter()
                .map(|id| format!("{{\"id\":\"{id}\"}}\n"))
                .collect();
            assert_eq!(server.publish("a", &lines).status, 201);
        }
        for feed in ["a", "home"] {
            let mut newest = expected[200..].to_vec();
            newest.reverse();
            let (ids, last) = page(&server, feed, "limit=1000");
            assert_eq!(ids, newest, "{model}");
            let (ids, _) = page(
                &server,
                feed,
                &format!("limit=1000&anchor={}", last.unwrap()),
            );
            assert_eq!(ids.len(), 200, "{model}");
            // Any instant is a place.
            let (ids, _) = page(&server, feed, "limit=-1000&anchor=1");
            let mut oldest = expected[..1_000].to_vec();
            oldest.reverse();
            assert_eq!(ids, oldest, "{model}");
            assert_eq!(page(&server, feed, "limit=0").0, [""; 0]);
            for limit in ["1001", "-1001", "x"] {
                let refused = server.get(&format!("/feeds/{feed}/page.json?limit={limit}"));
                assert_eq!(refused.status, 400, "{limit}");
            }
        }
        server.stop();
    }
}

/// Behaviour 7: what a timeline only links is found at the link, whole.
#[test]
fn what_is_linked_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    put(&server, "/feeds/a", "{}");
    let settings = r#"{"kind":"timeline","following":["a"],"embed":600}"#;
    put(&server, "/feeds/home", settings);
    let long = "long ".repeat(500);
    let event = format!("{{\"id\":\"urn:1\",\"type\":\"text\",\"content\":\"{long}\"}}");
    assert_eq!(server.publish("a", &event).status, 201);
    let recent = server.get("/feeds/home/recent.atom").text();
    assert!(!recent.contains("long long"), "{recent}");
    let linked = recent.split("src=\"").nth(1).unwrap();
    let url = linked.split('"').next().unwrap();
    let path = url.strip_prefix(&server.url("")).unwrap();
    let entry = server.get(path);
    assert_eq!(entry.status, 200);
    assert!(entry.text().contains(long.trim_end()));
}

/// Behaviours 11 and 12, S-D9, S-D10 and S-D14: both sides of a follow tell the same, however often it is asked for or
/// taken back, and nobody's settings are written over.
#[test]
fn both_sides_of_a_follow_tell_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for feed in ["a", "b"] {
        put(&server, &format!("/feeds/{feed}"), "{}");
    }
    let settings = r#"{"kind":"timeline","title":"Home","following":["b"]}"#;
    put(&server, "/feeds/home", settings);
    let sides = |feed: &str| {
        let following = server.get("/feeds/home/following.json").json();
        let followers = server.get(&format!("/feeds/{feed}/followers.json")).json();
        for list in [&following, &followers] {
            let listed = list["feeds"].as_array().unwrap().len();
            assert_eq!(list["count"], listed);
        }
        (following["count"].clone(), followers["count"].clone())
    };
    let one = "/feeds/home/following/a";
    for changed in [true, false, false] {
        assert_eq!(put(&server, one, "{}")["changed"], changed);
        assert_eq!(sides("a"), (2.into(), 1.into()));
    }
    for changed in [true, false, false] {
        let answer = server.send(&Request::new("DELETE", one)).json();
        assert_eq!(answer["changed"], changed);
        assert_eq!(sides("a"), (1.into(), 0.into()));
        assert_eq!(sides("b"), (1.into(), 1.into()));
    }
    // It is there already: nothing is written over.
    let again = put(&server, "/feeds/home", r#"{"kind":"timeline"}"#);
    assert_eq!(again["title"], "Home");
    assert_eq!(sides("b"), (1.into(), 1.into()));
    let refused = server.send(&Request::put(
        "/feeds/home",
        r#"{"kind":"timeline","following":["a"]}"#,
    ));
    assert_eq!(refused.status, 422);
    assert_eq!(sides("a"), (1.into(), 0.into()));
}

/// Behaviour 2, S-D11: no publisher's date orders anything.
#[test]
fn no_date_of_a_publisher_orders_anything() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    put(
        &server,
        "/feeds/home",
        r#"{"kind":"timeline","following":["*"]}"#,
    );
    let dates = ["2030-01-01", "2001-01-01", "2020-01-01", "1970-01-01"];
    for (number, date) in dates.iter().enumerate() {
        let event = format!("{{\"id\":\"urn:{number}\",\"updated\":\"{date}T00:00:00Z\"}}");
        let feed = ["a", "b"][number % 2];
        assert_eq!(server.publish(feed, &event).status, 201);
    }
    let (ids, _) = page(&server, "home", "limit=10");
    assert_eq!(ids, ["urn:3", "urn:2", "urn:1", "urn:0"]);
    let replayed = simplefeed(
        &["replay", &server.url("/feeds/home"), "--format", "id"],
        b"",
    );
    assert_eq!(replayed, "urn:0\nurn:1\nurn:2\nurn:3\n");
}

/// S-D1, S-D4: every closed document is full, and follows the one before, whoever writes at the same time.
#[test]
fn documents_are_full_whoever_writes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let settings = r#"{"kind":"timeline","following":["*"],"document_entries":7}"#;
    put(&server, "/feeds/home", settings);
    std::thread::scope(|threads| {
        for feed in ["a", "b", "c", "d"] {
            let server = &server;
            threads.spawn(move || {
                server.publish_ids(feed, (0..25).map(|number| format!("{feed}{number}")));
            });
        }
    });
    let mut all = BTreeSet::new();
    for number in 1..=15 {
        let document = server.get(&format!("/feeds/home/{number}.atom"));
        assert_eq!(document.status, 200);
        let document = document.text();
        let first = format!("first=\"{}\"", 7 * (number - 1));
        assert!(document.contains(&first), "{first}: {document}");
        let ids: Vec<&str> = document.split("<id>urn:t:").skip(1).collect();
        assert_eq!(ids.len(), if number < 15 { 7 } else { 2 });
        all.extend(
            ids.iter()
                .map(|id| id.split('<').next().unwrap().to_owned()),
        );
    }
    assert_eq!(all.len(), 100);
    assert_eq!(server.get("/feeds/home/16.atom").status, 404);
}

/// Behaviour 13: a wrong model ends the start, and the key is named.
#[test]
fn a_wrong_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let args = ["serve", "--data", data, "--fan-out", "push"];
    let refused = run("simplefeed-server", &args, b"");
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(
        said.contains("--fan-out") && said.contains("auto, read, write, cache"),
        "{said}"
    );
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "fan_out = \"push\"\nfan_out_memory = -1\n").unwrap();
    let args = [
        "config",
        "check",
        "--data",
        data,
        "--config",
        file.to_str().unwrap(),
    ];
    let refused = run("simplefeed-server", &args, b"");
    assert_ne!(refused.status.code(), Some(0));
    let said = text(&refused.stdout) + &text(&refused.stderr);
    assert!(
        said.contains("fan_out") && said.contains("fan_out_memory"),
        "{said}"
    );
}

/// A timeline of two feeds whose entries have the same ids, in small documents, all but the newest of them frozen.
fn of_twins(folder: &std::path::Path, model: &str) -> Server {
    let server = Server::start(folder, &["--recent-max-age", "0", "--fan-out", model]);
    for feed in ["a", "b"] {
        server.publish_ids(feed, (0..3).map(|number| number.to_string()));
    }
    put(
        &server,
        "/feeds/home",
        r#"{"kind":"timeline","document_entries":3}"#,
    );
    for feed in ["a", "b"] {
        put(
            &server,
            &format!("/feeds/home/following/{feed}"),
            r#"{"backfill":2}"#,
        );
    }
    for number in 3..7 {
        server.publish_ids("a", [number.to_string()]);
        server.publish_ids("b", [number.to_string()]);
    }
    for number in 1..=3 {
        server.wait_until_frozen(&format!("/feeds/home/{number}.atom"));
    }
    server
}

/// Ids of the timeline of twins, as its consumers get them.
fn ids_of_twins() -> String {
    let brought = ["1", "2", "1", "2"].map(str::to_owned);
    let gained = (3..7).flat_map(|number| [number.to_string(), number.to_string()]);
    let ids = brought.into_iter().chain(gained);
    ids.map(|id| format!("urn:t:{id}\n")).collect()
}

/// Goal: a consumer resumes after every entry of a timeline, though ids come twice.
#[test]
fn a_timeline_is_resumed_after_every_entry() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["write", "read"] {
        let server = of_twins(&folder.path().join(model), model);
        let url = server.url("/feeds/home");
        let whole = ids_of_twins();
        assert_eq!(simplefeed(&["replay", &url, "--format", "id"], b""), whole);
        for seen in 1..=whole.lines().count() {
            let bookmark = folder.path().join(format!("{model}-{seen}"));
            let bookmark = bookmark.to_str().unwrap();
            let limit = seen.to_string();
            let args = ["replay", &url, "--format", "id", "--bookmark", bookmark];
            let first = simplefeed(&[&args[..], &["--limit", &limit]].concat(), b"");
            let rest = simplefeed(&args, b"");
            assert_eq!(first + &rest, whole, "{seen}");
            assert_eq!(simplefeed(&args, b""), "", "{seen}");
        }
        server.stop();
    }
}

/// Goal: a timeline is tailed, mirrored and checked like any feed.
#[test]
fn a_timeline_is_tailed_mirrored_and_sound() {
    let folder = tempfile::tempdir().unwrap();
    let server = of_twins(&folder.path().join("data"), "auto");
    let url = server.url("/feeds/home");
    let linted = run("simplefeed", &["lint", &url], b"");
    let said = text(&linted.stdout) + &text(&linted.stderr);
    assert_eq!(linted.status.code(), Some(0), "{said}");
    assert!(
        said.contains("4 documents, 12 entries: 0 errors, 0 warnings, 0 notes."),
        "{said}"
    );

    let copy = folder.path().join("copy");
    simplefeed(&["mirror", &url, copy.to_str().unwrap()], b"");
    let mut compared = 0;
    for (path, bytes) in files(&copy) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_document = path.extension().is_some_and(|kind| kind == "atom");
        if is_document && name != "recent.atom" {
            let served = server.get(&format!("/feeds/home/{name}"));
            assert_eq!(served.body, bytes, "{name}");
            compared += 1;
        }
    }
    assert!(compared >= 3, "{compared}");
    let site = Site::of_folder(&copy);
    let replayed = simplefeed(
        &["replay", &site.url("/recent.atom"), "--format", "id"],
        b"",
    );
    assert_eq!(replayed, ids_of_twins());

    let mut child = Command::new(program("simplefeed"))
        .args(["tail", &url, "--since", "oldest", "--format", "id"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for id in ids_of_twins().lines() {
        assert_eq!(lines.next().unwrap().unwrap(), id);
    }
    server.publish_ids("b", ["new".into()]);
    assert_eq!(lines.next().unwrap().unwrap(), "urn:t:new");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Goal: a walk through a timeline gives what walks through its sources give, merged.
/// Method: `independent_timeline.py` walks all of them with Python's standard library only.
#[test]
#[ignore = "needs python3"]
fn an_independent_walk_gives_the_merge_of_the_sources() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["write", "read"] {
        let server = Server::start(
            &folder.path().join(model),
            &["--document-entries", "4", "--fan-out", model],
        );
        put(&server, "/feeds/a", "{}");
        put(
            &server,
            "/feeds/home",
            r#"{"kind":"timeline","following":["a","b*"],"document_entries":5}"#,
        );
        for number in 0..40 {
            let feed = ["a", "b-one", "b-two", "a", "elsewhere"][number % 5];
            server.publish_ids(feed, [format!("{}", number / 2)]);
        }
        let urls = ["home", "a", "b-one", "b-two"]
            .map(|feed| server.url(&format!("/feeds/{feed}/recent.atom")));
        let output = Command::new("python3")
            .arg(workspace().join("tests/independent_timeline.py"))
            .args(urls)
            .output()
            .unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said, "32 entries\n");
        server.stop();
    }
}

/// Goal: feedparser, which most Python readers are made of, reads a timeline, with the source of each entry.
#[test]
#[ignore = "needs python3-feedparser"]
fn feedparser_reads_a_timeline() {
    let folder = tempfile::tempdir().unwrap();
    let server = of_twins(folder.path(), "auto");
    let output = Command::new(crate::independent::python_with("feedparser"))
        .arg(workspace().join("tests/independent_feedparser.py"))
        .arg(server.url("/feeds/home"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let entries: Vec<serde_json::Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut ids: Vec<&str> = entries
        .iter()
        .map(|entry| entry["id"].as_str().unwrap())
        .collect();
    ids.reverse();
    assert_eq!(ids, ids_of_twins().lines().collect::<Vec<_>>());
    let sources: BTreeSet<&str> = entries
        .iter()
        .map(|entry| entry["source"].as_str().unwrap())
        .collect();
    assert_eq!(sources, BTreeSet::from(["a", "b"]));
}

/// Reads a feed as a library for feed readers stores it.
const READER: &str = r#"
import sys
from reader import make_reader
reader = make_reader(":memory:")
reader.add_feed(sys.argv[1])
reader.update_feed(sys.argv[1])
for entry in reader.get_entries():
    print(entry.id, entry.source.url, entry.link)
"#;

/// Goal: `reader`, a library that feed readers are made of, takes a timeline over, with the source of each entry.
#[test]
#[ignore = "needs a python3 with the modules reader and sgmllib3k"]
fn reader_stores_a_timeline() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let settings = r#"{"kind":"timeline","following":["p-*"]}"#;
    let created = server.send(&Request::put("/feeds/home", settings));
    assert_eq!(created.status, 201, "{}", created.text());
    let mut expected = BTreeSet::new();
    for n in 0..20 {
        let feed = format!("p-{}", n % 3);
        let id = format!("urn:n:{n}");
        // Without a link of its own, an entry leads to its page.
        let (link, links) = if n % 2 == 0 {
            let link = format!("http://example.org/{n}");
            (link.clone(), format!(r#","links":[{{"href":"{link}"}}]"#))
        } else {
            (
                server.url(&format!("/feeds/{feed}/entries/{}", n / 3)),
                String::new(),
            )
        };
        let line = format!(r#"{{"id":"{id}","content":"<b>{n}</b>","type":"html"{links}}}"#);
        assert_eq!(server.publish(&feed, &line).status, 201);
        let source = server.url(&format!("/feeds/{feed}/recent.atom"));
        expected.insert(format!("{id} {source} {link}"));
    }
    let output = Command::new(crate::independent::python_with("reader, sgmllib"))
        .args(["-c", READER, &server.url("/feeds/home/recent.atom")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let stored: BTreeSet<String> = printed.lines().map(str::to_owned).collect();
    assert_eq!(stored, expected);
}

/// Timelines of the history that all models show alike, with the number of entries of a document.
const ALIKE: [(&str, &str, u64); 3] = [
    ("some", r#""a","b""#, 7),
    ("all", r#""*""#, 50),
    ("own", r#""f-*""#, 100),
];

/// Makes commits of all kinds, from `first` on.
fn make_history(server: &Server, commits: std::ops::Range<usize>) {
    let mut dice = Dice::new(u64::try_from(commits.start).unwrap() + 1);
    for number in commits {
        let feed = ["a", "b", "f-1", "f-2", "f-3"][dice.below(5)];
        match number % 97 {
            50 => {
                let (timeline, ..) = ALIKE[dice.below(3)];
                let path = format!("/feeds/{timeline}/following/{feed}");
                put(server, &path, r#"{"backfill":3}"#);
            }
            60 => {
                let (timeline, ..) = ALIKE[dice.below(3)];
                let path = format!("/feeds/{timeline}/following/{feed}");
                assert_eq!(server.send(&Request::new("DELETE", &path)).status, 200);
            }
            70 => drop(put(
                server,
                &format!("/feeds/{feed}"),
                &format!("{{\"title\":\"{number}\"}}"),
            )),
            80 => {
                let (timeline, _, entries) = ALIKE[dice.below(3)];
                let settings = format!(
                    "{{\"kind\":\"timeline\",\"document_entries\":{},\"embed\":{}}}",
                    entries + u64::try_from(number % 3).unwrap(),
                    600 + number % 5
                );
                put(server, &format!("/feeds/{timeline}"), &settings);
            }
            _ => server.publish_ids(feed, [number.to_string()]),
        }
    }
}

/// Digests of all documents, blocks of the index and pages, and of some entries, once what is closed is frozen.
fn all_alike(server: &Server) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut note = |path: String| {
        let answer = server.get(&path);
        assert_eq!(answer.status, 200, "{path}");
        let tag = answer.maybe("etag").map(str::to_owned);
        let digest = simplefeed_core::digest::Digest::of(&answer.body);
        found.insert(path, format!("{digest} {tag:?}"));
        answer
    };
    for (timeline, ..) in ALIKE {
        let base = format!("/feeds/{timeline}");
        // A server without the file of the graph reads all commits first.
        wait_for("the follows are not read", || {
            let recent = server.get(&format!("{base}/recent.atom"));
            (recent.status == 200).then_some(())
        });
        let mut newest = 0_u64;
        while server.get(&format!("{base}/{}.atom", newest + 1)).status == 200 {
            newest += 1;
        }
        for number in 1..newest {
            server.wait_until_frozen(&format!("{base}/{number}.atom"));
        }
        for number in 1..=newest {
            note(format!("{base}/{number}.atom"));
        }
        for name in [
            "recent.atom",
            "index.json",
            "following.json",
            "following.opml",
        ] {
            note(format!("{base}/{name}"));
        }
        for block in 1..=newest.saturating_sub(1) / 1_000 {
            note(format!("{base}/index-{block}.json"));
        }
        let mut next = Some("page.json?limit=1000".to_owned());
        let mut entries = 0;
        while let Some(path) = next {
            let page = note(format!("{base}/{path}")).json();
            entries += page["items"].as_array().unwrap().len();
            next = page["next"].as_str().map(str::to_owned);
        }
        for entry in (0..entries).step_by(23) {
            note(format!("{base}/entries/{entry}.atom"));
        }
    }
    found
}

/// Behaviour 4: one history gives the same bytes under every URL in each model, after a change of model in its midst,
/// after kills, and after everything but the log was made again.
#[test]
fn every_model_shows_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let commits = if is_long() { 100_000 } else { 700 };
    let address = free_address();
    let data = folder.path().join("data");
    let start = |data: &std::path::Path, model: &str| {
        Server::start_at(&address, data, &["--fan-out", model])
    };
    let server = start(&data, "write");
    for feed in ["a", "b", "f-1", "f-2", "f-3"] {
        put(&server, &format!("/feeds/{feed}"), "{}");
    }
    for (timeline, following, entries) in ALIKE {
        let settings = format!(
            "{{\"kind\":\"timeline\",\"owner\":\"f-1\",\"following\":[{following}],\"document_entries\":{entries}}}"
        );
        put(&server, &format!("/feeds/{timeline}"), &settings);
    }
    make_history(&server, 0..commits / 2);
    server.kill();
    let server = start(&data, "auto");
    make_history(&server, commits / 2..commits);
    let expected = all_alike(&server);
    server.kill();
    assert!(expected.len() > commits / 20, "{}", expected.len());
    for model in MODELS {
        let copy = folder.path().join(model);
        copy_folder(&data, &copy);
        for made in ["views", "www"] {
            std::fs::remove_dir_all(copy.join(made)).unwrap();
        }
        // Under a new log nothing was ever archived, so all is made again.
        check_folder("rebuild", &copy);
        let server = start(&copy, model);
        let found = all_alike(&server);
        for (path, digest) in &expected {
            assert_eq!(found.get(path), Some(digest), "{model}: {path}");
        }
        assert_eq!(found.len(), expected.len());
        server.stop();
    }
    eprintln!(
        "{} URLs of {commits} commits, {} models",
        expected.len(),
        MODELS.len()
    );
}
