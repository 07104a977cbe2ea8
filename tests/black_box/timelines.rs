//! Timelines: follows as commits, documents that freeze, refusals.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use simplefeed_http::endpoint::Needs;
use simplefeed_server::endpoints::ALL;

use crate::{
    harness::{
        Server, check_folder, free_address, is_long, pause, run, simplefeed, text, wait_for,
    },
    http::Request,
};

/// Starts a server with three feeds of three entries each, and a timeline of small documents that follows the first.
fn start(folder: &Path) -> Server {
    start_at(&free_address(), folder)
}

fn start_at(address: &str, folder: &Path) -> Server {
    let server = Server::start_at(address, folder, &[]);
    for feed in ["a", "b", "c"] {
        server.publish_ids(feed, (1..=3).map(|number| format!("{feed}:{number}")));
    }
    let created = server.send(&Request::put(
        "/feeds/home",
        r#"{"kind":"timeline","title":"Home","following":["a"],"document_entries":2}"#,
    ));
    assert_eq!(created.status, 201, "{}", created.text());
    server
}

fn follow(server: &Server, item: &str, body: &str) -> serde_json::Value {
    let answer = server.send(&Request::put(
        &format!("/feeds/home/following/{item}"),
        body,
    ));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The ids in a timeline, oldest first, by its documents.
fn ids(server: &Server) -> Vec<String> {
    let mut ids = vec![];
    for number in 1.. {
        let document = server.get(&format!("/feeds/home/{number}.atom"));
        if document.status == 404 {
            break;
        }
        let text = document.text();
        let mut found: Vec<String> = text
            .split("<entry ")
            .skip(1)
            .map(|entry| {
                let id = entry.split("<id>").nth(1).unwrap();
                let id = id.split("</id>").next().unwrap();
                id.strip_prefix("urn:t:").unwrap().to_owned()
            })
            .collect();
        found.reverse();
        ids.extend(found);
    }
    ids
}

/// Every URL of the timeline with its bytes, once all of its documents are frozen.
fn all_bytes(server: &Server) -> BTreeMap<String, Vec<u8>> {
    let entries = ids(server).len();
    wait_for("the documents freeze", || {
        let closed = (entries - 1) / 2;
        let frozen = (1..=closed).all(|number| {
            let document = server.get(&format!("/feeds/home/{number}.atom"));
            document.is_immutable()
        });
        frozen.then_some(())
    });
    let documents = (1..=entries.div_ceil(2)).map(|number| format!("{number}.atom"));
    let singles = (0..entries).map(|at| format!("entries/{at}.atom"));
    let others = [
        "recent.atom",
        "index.json",
        "following.json",
        "following.opml",
    ];
    documents
        .chain(singles)
        .chain(others.map(str::to_owned))
        .map(|name| {
            let answer = server.get(&format!("/feeds/home/{name}"));
            assert_eq!(answer.status, 200, "{name}");
            (name, answer.body)
        })
        .collect()
}

/// Goal: an entry is in a timeline if its feed was followed when it came, or if a follow brought it along, once, and
/// what is unfollowed stays.
/// S-D2, S-D3 and the behaviours 1, 2 and 11 of SPECS 2.10.
#[test]
fn a_timeline_has_what_it_followed() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    assert_eq!(ids(&server), [""; 0]);
    server.publish_ids("a", ["a:4".to_owned()]);
    server.publish_ids("b", ["b:4".to_owned()]);
    assert_eq!(ids(&server), ["a:4"]);
    let told = follow(&server, "b", r#"{"backfill":2}"#);
    assert_eq!(
        (&told["changed"], &told["followed"]),
        (&true.into(), &true.into())
    );
    assert_eq!(follow(&server, "b", "")["changed"], false);
    assert_eq!(ids(&server), ["a:4", "b:3", "b:4"]);
    let gone = server.send(&Request::new("DELETE", "/feeds/home/following/a"));
    assert_eq!(gone.status, 200);
    assert!(
        gone.text().contains("entries that came before stay"),
        "{}",
        gone.text()
    );
    server.publish_ids("a", ["a:5".to_owned()]);
    server.publish_ids("b", ["b:5".to_owned()]);
    // What comes again is not there twice.
    follow(&server, "a", r#"{"backfill":9}"#);
    let expected = ["a:4", "b:3", "b:4", "b:5", "a:1", "a:2", "a:3", "a:5"];
    assert_eq!(ids(&server), expected);
    // A pattern takes feeds that come later.
    follow(&server, "n*", "");
    server.publish_ids("new", ["new:1".to_owned()]);
    assert_eq!(ids(&server).last().unwrap(), "new:1");
    server.stop();
}

/// Goal: frozen documents of a timeline are the same bytes after a restart, a kill and a rebuild, and nothing stored
/// has a fault.
#[test]
fn frozen_documents_of_a_timeline_never_change() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let server = start_at(&address, folder.path());
    follow(&server, "b", r#"{"backfill":3}"#);
    server.publish_ids("a", (4..9).map(|number| format!("a:{number}")));
    let before = all_bytes(&server);
    assert_eq!(before.len(), 4 + 8 + 4);
    server.kill();
    let server = Server::start_at(&address, folder.path(), &[]);
    assert!(all_bytes(&server) == before);
    server.stop();
    assert!(check_folder("verify", folder.path()).contains(": 0 faults"));
    fs::remove_dir_all(folder.path().join("www")).unwrap();
    let rebuilt = check_folder("rebuild", folder.path());
    assert!(
        rebuilt.contains("3 were missing, 0 were different"),
        "{rebuilt}"
    );
    let server = Server::start_at(&address, folder.path(), &[]);
    assert!(all_bytes(&server) == before);
    server.stop();
    // A web server shows what is in the folder, also if nothing says any more that it should be there.
    fs::remove_file(folder.path().join("views/archive-files/home.manifest")).unwrap();
    fs::write(folder.path().join("www/feeds/home/2.atom"), "damaged").unwrap();
    let data = folder.path().to_str().unwrap();
    let verified = run("simplefeed-server", &["verify", "--data", data], b"");
    assert_eq!(verified.status.code(), Some(15));
    let found = text(&verified.stdout);
    assert!(found.contains("feed home: 2.atom has no record"), "{found}");
    check_folder("rebuild", folder.path());
    assert!(check_folder("verify", folder.path()).contains("3 archived documents: 0 faults"));
    let server = Server::start_at(&address, folder.path(), &[]);
    assert!(all_bytes(&server) == before);
    server.stop();
}

/// Goal: changed defaults are one change for all timelines, and shape what comes after them only.
#[test]
fn changed_defaults_reach_timelines_at_their_next_entry() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    server.publish_ids("a", ["a:4".to_owned()]);
    let before = server.get("/feeds/home/1.atom").text();
    server.stop();
    // At another address, which is its public URL.
    let server = Server::start(folder.path(), &[]);
    server.publish_ids("a", ["a:5".to_owned()]);
    let old = server.get("/feeds/home/1.atom").text();
    let head = |document: &str| {
        document
            .split("<link rel=\"current\"")
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(head(&old), head(&before));
    assert!(!old.contains(&server.url("/")), "{old}");
    let new = server.get("/feeds/home/2.atom").text();
    assert!(new.contains(&server.url("/feeds/home/2.atom")), "{new}");
    assert!(
        new.contains(&server.url("/feeds/a/entries/4.atom")),
        "{new}"
    );
    server.stop();
}

/// Goal: each wrong request is told what is wrong with it, and changes nothing.
#[test]
fn wrong_follows_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    server.send(&Request::put("/feeds/other", r#"{"kind":"timeline"}"#));
    server.send(&Request::put("/feeds/shut", r#"{"closed":true}"#));
    let follow =
        |item: &str, body: &str| Request::put(&format!("/feeds/home/following/{item}"), body);
    let change = |body: &str| Request::post("/feeds/home/following", "application/json", body);
    let opml = |body: &str| Request::post("/feeds/home/following", "text/x-opml", body);
    let put = |feed: &str, body: &str| Request::put(&format!("/feeds/{feed}"), body);
    let many: Vec<String> = (0..17).map(|number| format!("\"p{number}*\"")).collect();
    let patterns = format!("{{\"follow\":[{}]}}", many.join(","));
    // The bound holds before anything is made of the names.
    let names = vec!["\"b*\""; 10_017].join(",");
    let too_many = format!("{{\"unfollow\":[{names}]}}");
    let created = format!("{{\"kind\":\"timeline\",\"following\":[{names}]}}");
    let before = server.get("/feeds/home/following.json").text();
    for (request, status, words) in [
        (follow("home", ""), 409, "cannot follow itself"),
        (follow("b", "").header("If-Match", "*"), 412, "If-Match"),
        (
            change(r#"{"follow":["b"]}"#).header("If-Match", "\"x\""),
            412,
            "If-Match",
        ),
        (
            Request::new("DELETE", "/feeds/home/following/a").header("If-Match", "\"x\""),
            412,
            "If-Match",
        ),
        (follow("other", ""), 409, "other is a timeline"),
        (follow("nobody", ""), 404, "no feed nobody"),
        (follow("shut", ""), 404, "no feed shut"),
        (follow("b", r#"{"backfill":1001}"#), 422, "at most 1000"),
        (follow("b", r#"{"backfill":-1}"#), 422, "invalid value"),
        (follow("b", r#"{"count":1}"#), 422, "unknown field"),
        (follow("b", "{"), 400, "not JSON"),
        (follow("B", ""), 404, "nothing at"),
        (
            Request::put("/feeds/a/following/b", ""),
            404,
            "no timeline a",
        ),
        (
            Request::put("/feeds/none/following/b", ""),
            404,
            "no timeline none",
        ),
        (
            change(r#"{"follow":["b","nobody"]}"#),
            422,
            "no feed nobody",
        ),
        (
            change(r#"{"follow":["b"],"unfollow":["b"]}"#),
            422,
            "at once",
        ),
        (change(r#"{"follow":["B!"]}"#), 422, "no name of a feed"),
        (change(&patterns), 422, "at most 16 patterns"),
        (opml("<opml><body>"), 400, "not OPML"),
        (
            opml("<opml><body><outline xmlUrl=\"https://elsewhere.org/feeds/b\"/></body></opml>"),
            422,
            "no feed of this server",
        ),
        (
            Request::post("/feeds/home", "application/json", "{}"),
            405,
            "publish to the feeds",
        ),
        (put("a", r#"{"kind":"timeline"}"#), 422, "never becomes"),
        (
            put("home", r#"{"kind":"timeline","owner":"b"}"#),
            422,
            "chosen at the creation",
        ),
        (
            put("home", r#"{"closed":true}"#),
            422,
            "chosen at its creation",
        ),
        (put("home", r#"{"embed":0}"#), 422, "embed is neither"),
        (
            put("home", r#"{"document_bytes":9}"#),
            422,
            "only with embed",
        ),
        (
            put("home", r#"{"embed":1000000,"document_entries":1000}"#),
            422,
            "at most 33",
        ),
        (put("a", r#"{"embed":5}"#), 422, "of timelines only"),
        (put("x", r#"{"kind":"stream"}"#), 422, "unknown variant"),
        (put("x", r#"{"owner":"a"}"#), 422, "needs kind timeline"),
        (
            put("x", r#"{"kind":"timeline","own":"include"}"#),
            422,
            "feed of an owner",
        ),
        (
            put("home", r#"{"kind":"feed"}"#),
            422,
            "never becomes a feed",
        ),
        (change(r#"[["b"],[],1]"#), 422, "not an array"),
        (change(&too_many), 422, "at most 10016"),
        (put("x", &created), 422, "at most 10016"),
        (
            put("x", r#"{"kind":"timeline","owner":"nobody"}"#),
            404,
            "no feed nobody",
        ),
        (
            put("x", r#"{"kind":"timeline","following":["home"]}"#),
            409,
            "home is a timeline",
        ),
        (Request::get("/feeds/a/following.json"), 404, "no timeline"),
    ] {
        let answer = server.send(&request);
        assert_eq!(answer.status, status, "{}: {}", words, answer.text());
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
    }
    assert_eq!(server.get("/feeds/home/following.json").text(), before);
    assert_eq!(server.get("/feeds/x").status, 404);
    server.stop();
}

/// Goal: whoever asks for the end of a long timeline does not hold up the archive of a feed.
/// Method: the order in which the files came, by the time of their last change of state.
#[test]
fn a_long_timeline_does_not_hold_up_the_feeds() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    for (feed, settings) in [
        (
            "long",
            r#"{"kind":"timeline","following":["a"],"document_entries":1}"#,
        ),
        ("other", r#"{"document_entries":1}"#),
    ] {
        let created = server.send(&Request::put(&format!("/feeds/{feed}"), settings));
        assert_eq!(created.status, 201);
    }
    server.publish_ids("a", (4..=2_100).map(|number| format!("a:{number}")));
    assert_eq!(server.get("/feeds/long/2000.atom").status, 200);
    let first = folder.path().join("www/feeds/long/1.atom");
    wait_for("the first files come", || first.exists().then_some(()));
    server.publish_ids("other", ["other:1", "other:2"].map(str::to_owned));
    server.wait_until_frozen("/feeds/long/2000.atom");
    server.wait_until_frozen("/feeds/other/1.atom");
    let came = |file: &str| {
        let found = fs::metadata(folder.path().join("www/feeds").join(file)).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    assert!(came("other/1.atom") < came("long/2000.atom"));
    server.stop();
}

/// Goal: what a PUT does not give stays as it is.
#[test]
fn a_timeline_keeps_what_is_not_given() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let put = |settings: &str| server.send(&Request::put("/feeds/own", settings));
    let made = put(r#"{"kind":"timeline","owner":"c","own":"include"}"#);
    assert_eq!(made.status, 201);
    let titled = put(r#"{"kind":"timeline","title":"Own"}"#);
    assert_eq!(titled.status, 200);
    assert_eq!(
        (&titled.json()["owner"], &titled.json()["own"]),
        (&"c".into(), &"include".into())
    );
    server.stop();
}

/// Goal: long lists come in parts, each of which says how long the list is and where it goes on, for readers with and
/// without a right to closed timelines.
#[test]
fn lists_of_follows_come_in_parts() {
    const FEEDS: usize = 1_005;
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let new = |name: &str, feeds: &str| {
        let file = tokens.to_str().unwrap();
        let args = [
            "token", "new", name, "--right", "admin", "--feeds", feeds, "--tokens", file,
        ];
        let output = run("simplefeed-server", &args, b"");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    };
    let (all, some) = (new("all", "*"), new("some", "t-1*"));
    let server = Server::start(
        &folder.path().join("data"),
        &["--tokens", tokens.to_str().unwrap()],
    );
    let ask = |request: Request, token: Option<&str>| {
        server.send(&match token {
            Some(token) => request.header("Authorization", &format!("Bearer {token}")),
            None => request,
        })
    };
    let names: Vec<String> = (0..FEEDS).map(|n| format!("f-{n}")).collect();
    for name in &names {
        let made = ask(Request::put(&format!("/feeds/{name}"), "{}"), Some(&all));
        assert_eq!(made.status, 201);
    }
    let follows = serde_json::json!({"kind": "timeline", "following": names}).to_string();
    assert_eq!(
        ask(Request::put("/feeds/home", &follows), Some(&all)).status,
        201
    );
    // Half of the followers are closed.
    for n in 0..20 {
        let settings = format!(
            r#"{{"kind":"timeline","following":["f-7"],"closed":{}}}"#,
            n % 2 == 0
        );
        let made = ask(
            Request::put(&format!("/feeds/t-{n}"), &settings),
            Some(&all),
        );
        assert_eq!(made.status, 201);
    }
    let parts = |path: &str, token: Option<&str>| {
        let (mut listed, mut counts, mut lengths) = (vec![], vec![], vec![]);
        let mut next = Some(path.to_owned());
        while let Some(path) = next {
            let part = ask(Request::get(&path), token).json();
            let feeds = part["feeds"].as_array().unwrap();
            listed.extend(
                feeds
                    .iter()
                    .map(|feed| feed["name"].as_str().unwrap().to_owned()),
            );
            counts.push(part["count"].as_u64().unwrap());
            lengths.push(feeds.len());
            next = part["next"].as_str().map(|next| {
                let (_, path) = next.split_once("/feeds/").unwrap();
                format!("/feeds/{path}")
            });
        }
        (listed, counts, lengths)
    };
    let (listed, counts, lengths) = parts("/feeds/home/following.json", None);
    assert_eq!((listed, counts), (names, vec![1_005; 2]));
    assert_eq!(lengths, [1_000, 5]);
    for (token, closed) in [(None, 0), (Some(&*some), 5), (Some(&*all), 10)] {
        let (listed, counts, _) = parts("/feeds/f-7/followers.json", token);
        // Home, the ten open ones, and the closed ones that the token shows.
        assert_eq!(listed.len(), 11 + closed, "{listed:?}");
        assert_eq!(counts, [11 + u64::try_from(closed).unwrap()]);
    }
    for after in ["nobody", "t-0"] {
        let path = format!("/feeds/home/following.json?after={after}");
        assert_eq!(ask(Request::get(&path), None).status, 400, "{after}");
    }
    // A feed of the other kind has no place in a list.
    for path in [
        "home/following.json?after=home",
        "f-7/followers.json?after=f-7",
    ] {
        let path = format!("/feeds/{path}");
        assert_eq!(ask(Request::get(&path), None).status, 400, "{path}");
    }
    server.stop();
}

/// Goal: an OPML list of the server's own feeds is followed, and is given back.
#[test]
fn a_list_of_feeds_goes_in_and_out() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let list = server.get("/feeds/home/following.opml").text();
    assert!(list.contains(&server.url("/feeds/a/recent.atom")), "{list}");
    server.send(&Request::put(
        "/feeds/copy",
        r#"{"kind":"timeline","title":"Copy"}"#,
    ));
    let list = list.replace("feeds/a/recent.atom", "feeds/c/recent.atom");
    let taken = server.send(&Request::post("/feeds/copy/following", "text/x-opml", list));
    assert_eq!(taken.json()["followed"], 1, "{}", taken.text());
    let following = server.get("/feeds/copy/following.json").json();
    assert_eq!(following["feeds"][0]["name"], "c");
    let followers = server.get("/feeds/c/followers.json").json();
    assert_eq!(
        (&followers["count"], &followers["feeds"][0]["name"]),
        (&1.into(), &"copy".into())
    );
    server.stop();
}

/// Goal: friends of friends are the feeds of those whom a timeline follows, most followed first, without its own.
#[test]
fn friends_of_friends_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    for feed in ["d", "e"] {
        server.publish_ids(feed, [format!("{feed}:1")]);
    }
    for (name, body) in [
        (
            "of-a",
            r#"{"kind":"timeline","owner":"a","following":["c","d"]}"#,
        ),
        (
            "of-b",
            r#"{"kind":"timeline","owner":"b","following":["a","d","e"]}"#,
        ),
        (
            "mine",
            r#"{"kind":"timeline","owner":"e","following":["a","b"]}"#,
        ),
    ] {
        assert_eq!(
            server
                .send(&Request::put(&format!("/feeds/{name}"), body))
                .status,
            201
        );
    }
    let friends = server.get("/feeds/mine/friends-of-friends.json").json();
    let found: Vec<(String, u64)> = friends["feeds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|feed| {
            let name = feed["name"].as_str().unwrap().to_owned();
            (name, feed["followed_by"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, [("d".to_owned(), 2), ("c".to_owned(), 1)]);
    server.stop();
}

/// Goal: pages by anchor lead over all entries and back, none lost or repeated, in steps of 7 over 1,000 entries; for
/// feeds and timelines alike. SPECS 2.4, and behaviour 3 of 2.10.
#[test]
fn pages_lead_over_all_entries_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    server.publish_ids("a", (4..=600).map(|number| format!("a:{number}")));
    follow(&server, "b", r#"{"backfill":3}"#);
    server.publish_ids("b", (4..=400).map(|number| format!("b:{number}")));
    for (feed, count) in [("home", 597 + 3 + 397), ("a", 600)] {
        let folder = format!("{feed}/");
        let mut url = Some(format!("/feeds/{feed}/page.json?limit=7"));
        let (mut seen, mut last) = (vec![], None);
        while let Some(next) = url {
            let page = server.get(&next).json();
            let items = page["items"].as_array().unwrap();
            assert!((1..=7).contains(&items.len()));
            seen.extend(
                items
                    .iter()
                    .map(|item| item["id"].as_str().unwrap().to_owned()),
            );
            url = page["next"]
                .as_str()
                .map(|name| format!("/feeds/{folder}{name}"));
            last = Some(page);
        }
        assert_eq!(seen.len(), count, "{feed}");
        let mut back = vec![];
        let mut page = last.unwrap();
        loop {
            let items = page["items"].as_array().unwrap();
            let ids = items
                .iter()
                .map(|item| item["id"].as_str().unwrap().to_owned());
            back.splice(0..0, ids);
            let Some(name) = page["previous"].as_str() else {
                break;
            };
            page = server.get(&format!("/feeds/{folder}{name}")).json();
        }
        assert_eq!(back, seen, "{feed}");
        let atom = server
            .get(&format!("/feeds/{feed}/page.atom?limit=2"))
            .text();
        assert_eq!(atom.matches("<entry ").count(), 2);
        assert!(
            atom.contains("rel=\"next\"") && !atom.contains("rel=\"previous\""),
            "{atom}"
        );
        assert!(
            !atom.contains("fh:archive") && !atom.contains("<history"),
            "{atom}"
        );
        // Any well-formed anchor is one, a limit of 0 is an empty page, and nothing is newer than the newest.
        for (query, items) in [
            ("?limit=0", 0),
            ("?limit=-5", 0),
            ("?anchor=1&limit=-5", 5),
            ("?anchor=1", 0),
        ] {
            let page = server
                .get(&format!("/feeds/{feed}/page.json{query}"))
                .json();
            assert_eq!(
                page["items"].as_array().unwrap().len(),
                items,
                "{feed}{query}"
            );
        }
    }
    for query in [
        "?limit=1001",
        "?limit=x",
        "?anchor=01",
        "?limit=1&limit=1",
        "?size=1",
        "?",
    ] {
        let status = if query == "?" { 200 } else { 400 };
        let page = server.get(&format!("/feeds/home/page.json{query}"));
        assert_eq!(page.status, status, "{query}: {}", page.text());
    }
    server.stop();
}

/// Goal: `recover` brings timelines back with what they followed, under names that no document had before; and a backup
/// renames the open document only.
#[test]
fn a_recovered_timeline_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (data, to) = (folder.path().join("data"), folder.path().join("new"));
    let (address, copied) = (free_address(), folder.path().join("copy"));
    let server = start_at(&address, &data);
    follow(&server, "b", r#"{"backfill":2}"#);
    server.publish_ids("a", (4..7).map(|number| format!("a:{number}")));
    let (had, frozen) = (ids(&server), server.wait_until_frozen("/feeds/home/1.atom"));
    assert_eq!(had.len(), 5);
    let bookmark = folder.path().join("bookmark");
    let url = server.url("/feeds/home");
    let resume = ["replay", &url, "--bookmark", bookmark.to_str().unwrap()];
    assert_eq!(run("simplefeed", &resume, b"").status.code(), Some(0));
    server.stop();
    for (command, target) in [("backup", &copied), ("recover", &to)] {
        let args = [
            "--data",
            data.to_str().unwrap(),
            "--to",
            target.to_str().unwrap(),
        ];
        let args = [&[command], &args[..]].concat();
        let done = run("simplefeed-server", &args, b"");
        assert!(done.status.success(), "{}", text(&done.stderr));
        let is_told = text(&done.stderr).contains("1 timelines begin anew");
        assert_eq!(is_told, command == "recover");
    }
    let server = Server::start_at(&address, &copied, &[]);
    assert!(server.wait_until_frozen("/feeds/home/1.atom").body == frozen.body);
    let open = server.get("/feeds/home/recent.atom").text();
    assert!(open.contains(" since=\"4\"/>"), "{open}");
    // Whether the entries up to the bookmark are those that it counted, nothing proves.
    assert_eq!(run("simplefeed", &resume, b"").status.code(), Some(15));
    server.stop();
    let server = Server::start_at(&address, &to, &[]);
    assert_eq!(server.get("/feeds/home/1.atom").status, 404);
    let open = server.get("/feeds/home/recent.atom").text();
    assert!(open.contains(" since=\"0\"/>"), "{open}");
    let replayed = simplefeed(
        &["replay", &server.url("/feeds/home"), "--format", "id"],
        b"",
    );
    let replayed: Vec<&str> = replayed.lines().map(|id| &id["urn:t:".len()..]).collect();
    assert_eq!(replayed, had);
    server.publish_ids("b", ["b:9".to_owned()]);
    let replayed = simplefeed(
        &["replay", &server.url("/feeds/home"), "--format", "id"],
        b"",
    );
    assert!(replayed.ends_with("urn:t:b:9\n"), "{replayed}");
    server.stop();
    assert!(check_folder("verify", &to).contains(": 0 faults"));
}

const PUBLISHERS: usize = 8;

/// Publishes events to a feed until told otherwise, and notes the number of the last one that was acknowledged.
fn publish(address: &str, feed: usize, acknowledged: &AtomicU64, goes_on: &AtomicBool) {
    let mut next = acknowledged.load(Ordering::Acquire) + 1;
    while goes_on.load(Ordering::Acquire) {
        let body = format!("{{\"id\":\"urn:p:{feed}:{next}\",\"content\":{next}}}");
        let path = format!("/feeds/p{feed}");
        let answer = Request::post(&path, "application/json", body).send(address);
        // While the server is away, the same event is sent again.
        if answer.is_ok_and(|answer| answer.status == 201 || answer.status == 200) {
            acknowledged.store(next, Ordering::Release);
            next += 1;
        }
    }
}

/// Looks at the newest entries of a timeline: none that was acknowledged before is missing, none is there twice, and
/// all stand in the order of their instants. Returns whether there was an answer.
fn look(address: &str, timeline: &str, acknowledged: &[AtomicU64]) -> bool {
    let before: Vec<u64> = acknowledged
        .iter()
        .map(|one| one.load(Ordering::Acquire))
        .collect();
    let path = format!("/feeds/{timeline}/page.json?limit=1000");
    let Ok(answer) = Request::get(&path).send(address) else {
        return false;
    };
    if answer.status != 200 {
        assert_eq!(answer.status, 503, "{}", answer.text());
        return false;
    }
    let page = answer.json();
    let items = page["items"].as_array().unwrap();
    let dates: Vec<&str> = items
        .iter()
        .map(|item| item["updated"].as_str().unwrap())
        .collect();
    assert!(
        dates.is_sorted_by(|newer, older| newer > older),
        "{dates:?}"
    );
    let mut newest: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for item in items {
        let id = item["id"].as_str().unwrap().strip_prefix("urn:p:").unwrap();
        let (feed, number) = id.split_once(':').unwrap();
        let numbers = newest.entry(feed.parse().unwrap()).or_default();
        numbers.push(number.parse().unwrap());
    }
    for (feed, before) in before.into_iter().enumerate() {
        let numbers = newest.remove(&feed).unwrap_or_default();
        let is_dense = numbers.windows(2).all(|pair| pair[0] == pair[1] + 1);
        assert!(is_dense, "feed {feed}: {numbers:?}");
        let has = numbers.first().copied().unwrap_or(0);
        assert!(
            has >= before,
            "feed {feed}: {has} is seen, {before} was acknowledged"
        );
    }
    true
}

/// Goal: no read of a timeline after an acknowledgement lacks the entry, shows it twice or out of order, while the
/// server is killed again and again, and starts with another model each time. Behaviours 1, 4 and 9 of SPECS 2.10; S-D3,
/// S-D5, S-D6 and S-D8 of 2.11.
#[test]
fn an_acknowledged_entry_is_in_every_timeline_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let server = Server::start_at(&address, folder.path(), &[]);
    // The other one is of so many feeds that its newest entries are kept.
    for idle in 0..110 {
        let created = server.send(&Request::put(&format!("/feeds/idle-{idle}"), "{}"));
        assert_eq!(created.status, 201);
    }
    for (timeline, pattern) in [("all", "p*"), ("wide", "*")] {
        let settings = format!("{{\"kind\":\"timeline\",\"following\":[\"{pattern}\"]}}");
        let created = server.send(&Request::put(&format!("/feeds/{timeline}"), &settings));
        assert_eq!(created.status, 201);
    }
    let acknowledged: Vec<AtomicU64> = (0..PUBLISHERS).map(|_| AtomicU64::new(0)).collect();
    let (goes_on, looks) = (AtomicBool::new(true), AtomicU64::new(0));
    let kills = if is_long() { 500 } else { 8 };
    let mut server = Some(server);
    std::thread::scope(|threads| {
        for (feed, one) in acknowledged.iter().enumerate() {
            let (address, goes_on) = (&address, &goes_on);
            threads.spawn(move || publish(address, feed, one, goes_on));
            let (acknowledged, looks) = (&acknowledged, &looks);
            threads.spawn(move || {
                let timeline = ["all", "wide"][feed % 2];
                while goes_on.load(Ordering::Acquire) {
                    if look(address, timeline, acknowledged) {
                        looks.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for kill in 0..kills {
            pause(Duration::from_millis(300 + kill * 37 % 400));
            server.take().unwrap().kill();
            let model = ["write", "auto", "cache", "read"][usize::try_from(kill).unwrap() % 4];
            let args = ["--fan-out", model];
            server = Some(Server::start_at(&address, folder.path(), &args));
        }
        pause(Duration::from_millis(500));
        goes_on.store(false, Ordering::Release);
    });
    let published: u64 = acknowledged
        .iter()
        .map(|one| one.load(Ordering::Acquire))
        .sum();
    eprintln!(
        "{published} entries, {} looks, {kills} kills",
        looks.load(Ordering::Relaxed)
    );
    assert!(looks.load(Ordering::Relaxed) > 20 && published > 50);
    // The whole of it, walked by a consumer: each entry once.
    let [all, wide] = ["all", "wide"].map(|timeline| {
        let url = format!("http://{address}/feeds/{timeline}");
        simplefeed(&["replay", &url, "--format", "id"], b"")
    });
    assert!(all == wide);
    let mut ids: Vec<&str> = all.lines().collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    assert!(u64::try_from(count).unwrap() >= published);
    server.unwrap().stop();
}

/// Makes a token with some grants, the first one by the program.
fn token(file: &Path, right: &str, feeds: &[&str]) -> String {
    let args = [
        "token", "new", "someone", "--right", right, "--feeds", feeds[0], "--tokens",
    ];
    let args = [&args[..], &[file.to_str().unwrap()]].concat();
    let made = run("simplefeed-server", &args, b"");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let mut all = fs::read_to_string(file).unwrap();
    let own = all.lines().last().unwrap().to_owned();
    for more in &feeds[1..] {
        let line = own.replace(
            &format!(":{right}:{}", feeds[0]),
            &format!(":{right}:{more}"),
        );
        all.push_str(&line);
        all.push('\n');
    }
    fs::write(file, all).unwrap();
    text(&made.stdout).trim().to_owned()
}

/// Goal: no byte, count or status of a timeline tells a caller what is closed to it.
/// Method: eight kinds of callers, every route of three timelines: an open one that follows an open feed and a pattern
/// which a closed feed matches, a closed one that follows a closed feed, and a closed one that follows the pattern.
#[test]
fn nobody_learns_of_closed_feeds_through_timelines() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let admin = token(&tokens, "admin", &["*"]);
    let callers = [
        ("nobody", None, [false; 3]),
        ("wrong", Some("sft_wrong".to_owned()), [false; 3]),
        (
            "stranger",
            Some(token(&tokens, "admin", &["elsewhere"])),
            [false; 3],
        ),
        (
            "of timelines",
            Some(token(&tokens, "read", &["home-*"])),
            [false; 3],
        ),
        (
            "of feeds",
            Some(token(&tokens, "read", &["shut", "p-*"])),
            [true, false, false],
        ),
        (
            "of both",
            Some(token(&tokens, "publish", &["home-*", "shut"])),
            [true, true, false],
        ),
        (
            "of one match",
            Some(token(&tokens, "read", &["home-*", "p-shut"])),
            [false; 3],
        ),
        (
            "of the pattern",
            Some(token(&tokens, "read", &["home-*", "p-*"])),
            [false, false, true],
        ),
        ("admin", Some(admin.clone()), [true; 3]),
    ];
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--tokens", tokens.to_str().unwrap()]);
    let ask = |request: Request, token: Option<&str>| {
        server.send(&match token {
            Some(token) => request.header("Authorization", &format!("Bearer {token}")),
            None => request,
        })
    };
    let admin = Some(&*admin);
    for (feed, closed) in [("open", false), ("shut", true), ("p-shut", true)] {
        let path = format!("/feeds/{feed}");
        let settings = format!("{{\"closed\":{closed},\"title\":\"secret {feed}\"}}");
        assert_eq!(ask(Request::put(&path, &settings), admin).status, 201);
    }
    for (timeline, settings) in [
        ("home-open", r#""following":["open","p-*"]"#),
        ("home-shut", r#""closed":true,"following":["open","shut"]"#),
        ("home-pattern", r#""closed":true,"following":["p-*"]"#),
    ] {
        let settings = format!("{{\"kind\":\"timeline\",\"document_entries\":1,{settings}}}");
        let created = ask(
            Request::put(&format!("/feeds/{timeline}"), &settings),
            admin,
        );
        assert_eq!(created.status, 201, "{}", created.text());
    }
    for feed in ["open", "shut", "p-shut"] {
        let lines = format!("{{\"id\":\"urn:{feed}:1\"}}\n{{\"id\":\"urn:{feed}:2\"}}");
        let request = Request::post(&format!("/feeds/{feed}"), "application/x-ndjson", lines);
        assert_eq!(ask(request, admin).status, 201);
    }
    // A closed timeline whose owner everybody may follow.
    for (timeline, settings) in [
        (
            "home-secret",
            r#""closed":true,"owner":"open","following":["far"]"#,
        ),
        ("asks", r#""following":["open"]"#),
    ] {
        let far = ask(Request::put("/feeds/far", "{}"), admin);
        assert!(far.status < 300);
        let settings = format!("{{\"kind\":\"timeline\",{settings}}}");
        let created = ask(
            Request::put(&format!("/feeds/{timeline}"), &settings),
            admin,
        );
        assert_eq!(created.status, 201, "{}", created.text());
    }
    let sup_id = |timeline: &str| {
        let path = format!("/feeds/{timeline}/recent.atom");
        let address = ask(Request::get(&path), admin)
            .header("x-sup-id")
            .to_owned();
        address.split_once('#').unwrap().1.to_owned()
    };
    let sup_ids = ["home-open", "home-shut", "home-pattern"].map(sup_id);
    let told = |path: &str, token: Option<&str>| {
        let answer = ask(Request::get(path), token);
        let has = |id: &String| answer.text().contains(&format!("[\"{id}\","));
        (answer.status, sup_ids.each_ref().map(has))
    };
    wait_for("the updates of timelines are not told", || {
        let (_, open) = told("/sup-timelines.json?seconds=3600", admin);
        let (_, closed) = told("/sup-timelines-closed.json?seconds=3600", admin);
        (open == [true, false, false] && closed == [false, true, true]).then_some(())
    });
    let mut asked = 0;
    for (who, token, [sees_shut, reads_shut, reads_pattern]) in &callers {
        let token = token.as_deref();
        for (timeline, reads) in [
            ("home-open", true),
            ("home-shut", *reads_shut),
            ("home-pattern", *reads_pattern),
            ("home-none", false),
        ] {
            for endpoint in ALL.iter().copied().flatten() {
                // Settings are for those who publish.
                let verb = endpoint.verb(&"GET".parse().unwrap());
                let is_read = verb.is_some_and(|verb| !matches!(verb.needs, Needs::Right(_)));
                // A timeline has no rates.
                let has_one =
                    endpoint.path.starts_with("/feeds/{feed}") && endpoint.label != "rates";
                if !is_read || !has_one {
                    continue;
                }
                let path = endpoint.path.replace("{feed}", timeline);
                let path = path.replace("{document}", "1").replace("{position}", "0");
                let answer = ask(Request::get(&path.replace("{block}", "1")), token);
                let what = format!("{path} by {who}: {} {}", answer.status, answer.text());
                let is_there = reads && !path.contains("{block}");
                // The way to a page, which says nothing of a feed.
                let is_way = endpoint.path.ends_with("/entries/{position}");
                let expected: &[u16] = match (is_there, is_way) {
                    (_, true) => &[307],
                    (true, false) => &[200, 307],
                    (false, false) => &[404],
                };
                assert!(expected.contains(&answer.status), "{what}");
                let shows_shut =
                    answer.text().contains("urn:shut") || answer.text().contains("secret shut");
                assert!(*sees_shut || !shows_shut, "{what}");
                let shows_match = answer.text().contains("p-shut");
                assert!(
                    *reads_pattern || *who == "of feeds" || !shows_match,
                    "{what}"
                );
                asked += 1;
            }
        }
        // Nor by what is told of updates.
        let open = told("/sup-timelines.json?seconds=3600", token);
        assert_eq!(open, (200, [true, false, false]), "{who}");
        let closed = told("/sup-timelines-closed.json?seconds=3600", token);
        let expected = if *who == "wrong" {
            (401, [false; 3])
        } else {
            (200, [false, *reads_shut, *reads_pattern])
        };
        assert_eq!(closed, expected, "{who}");
        // Nor by what friends follow.
        let friends = ask(Request::get("/feeds/asks/friends-of-friends.json"), token);
        let of_timelines = ["of timelines", "of both", "of one match", "of the pattern"];
        let sees_secret = *who == "admin" || of_timelines.contains(who);
        assert_eq!(friends.text().contains("\"far\""), sees_secret, "{who}");
        // Nor by a pattern that takes entries for somebody else.
        let follow = ask(Request::put("/feeds/home-shut/following/s*", ""), token);
        let expected: &[u16] = if *who == "admin" { &[200] } else { &[401, 403] };
        assert!(
            expected.contains(&follow.status),
            "{who}: {}",
            follow.text()
        );
        // Nor by the lists of others.
        for path in [
            "/feeds",
            "/feeds/open/followers.json",
            "/feeds/home-open/following.json",
        ] {
            let listed = ask(Request::get(path), token).text();
            let shows = |name: &str| listed.contains(&format!("\"{name}\""));
            assert_eq!(
                shows("home-shut"),
                *reads_shut && !path.contains("home-open"),
                "{who}: {listed}"
            );
            assert!(*reads_pattern || !shows("home-pattern"), "{who}: {listed}");
        }
    }
    assert!(asked > 400, "{asked}");
    // Who may publish to a timeline and not see a feed is told that there is no such feed.
    let publisher = callers[5].1.as_deref();
    for feed in ["p-shut", "nothing"] {
        let path = format!("/feeds/home-shut/following/{feed}");
        let answer = ask(Request::put(&path, ""), publisher);
        assert_eq!((answer.status, answer.text().replace(feed, "x")), {
            let absent = ask(Request::put("/feeds/home-shut/following/x", ""), publisher);
            (404, absent.text())
        });
        let gone = ask(Request::new("DELETE", &path), publisher);
        assert_eq!(gone.json()["changed"], false);
    }
    server.stop();
}

/// Goal: a follow that is refused leaves no empty timeline behind; one that is not makes the timeline with its feeds.
#[test]
fn a_refused_follow_makes_no_timeline() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.publish("a", "{\"id\":\"urn:1\"}").status, 201);
    let home = server.url("/feeds/home");
    let follow = |feeds: &[&str]| {
        let args = [&["follow", &*home], feeds].concat();
        run("simplefeed", &args, b"")
    };
    let refused = follow(&["a", "nobody"]);
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("there is no feed nobody"), "{said}");
    let listed = || server.get("/feeds/home/following.json");
    assert_eq!(listed().status, 404);
    let made = follow(&["a", "b-*"]);
    let said = text(&made.stderr);
    assert!(
        made.status.success() && said.contains("is a new timeline"),
        "{said}"
    );
    let listed = listed().text();
    assert!(
        listed.contains("\"a\"") && listed.contains("\"b-*\""),
        "{listed}"
    );
    // Nor is the timeline blamed once it is there.
    let said = text(&follow(&["nobody"]).stderr);
    assert!(said.contains("there is no feed nobody"), "{said}");
}
