//! What `recover` makes of a damaged folder: everything that was archived, byte for byte, and the names
//! of what is missing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    dice::Dice,
    harness::{
        Server, check_folder, copy_folder, files, is_long, pause, program, run, simplefeed, text,
    },
    http::{Request, Response},
};

const SIZE: [&str; 2] = ["--document-entries", "5"];

/// Recovers, and returns the new folder with what is told to be missing.
pub(crate) fn recover(data: &Path, to: &Path) -> Vec<String> {
    let before = files(data);
    let args = [
        "recover",
        "--data",
        data.to_str().unwrap(),
        "--to",
        to.to_str().unwrap(),
    ];
    let output = run("simplefeed-server", &args, b"");
    let missing: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    let expected = if missing.is_empty() { 0 } else { 15 };
    assert_eq!(
        output.status.code(),
        Some(expected),
        "{}",
        text(&output.stderr)
    );
    let unlocked = |files: Vec<(PathBuf, Vec<u8>)>| {
        let files = files.into_iter();
        files
            .filter(|(path, _)| !path.ends_with("lock"))
            .collect::<Vec<_>>()
    };
    assert!(
        unlocked(before) == unlocked(files(data)),
        "the old folder was changed"
    );
    check_folder("verify", to);
    missing
}

/// What matters of an answer that caches may keep: status, body, some header fields.
type Facts = (u16, Vec<u8>, Vec<String>);

fn facts(answer: &Response) -> Facts {
    let names = ["etag", "last-modified", "cache-control", "repr-digest"];
    let kept = names.map(|name| answer.maybe(name).unwrap_or_default().to_owned());
    (answer.status, answer.body.clone(), kept.into())
}

/// A server's folder with everything that shapes frozen bytes: feeds created by an entry and by `PUT`,
/// batches over several documents, single entries in turn, changed settings, a restoration.
struct World {
    folder: tempfile::TempDir,
    data: PathBuf,
    /// The archived documents and index, as they were served.
    shown: Vec<(String, Facts)>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (first, data) = (folder.path().join("first"), folder.path().join("data"));
        let server = Server::start(&first, &SIZE);
        let address = server.address.clone();
        put(&server, "b", "{\"title\":\"One\"}");
        put(&server, "b", "{\"title\":\"Two & <more>\"}");
        for n in 0..8 {
            server.publish_ids("a", [format!("a{n}")]);
            server.publish_ids("b", [format!("b{n}")]);
        }
        let batch: String = (0..13)
            .map(|n| format!("{{\"id\":\"urn:t:batch{n}\"}}\n"))
            .collect();
        assert_eq!(server.publish("a", &batch).status, 201);
        put(&server, "b", "{\"title\":\"Three\",\"document_entries\":3}");
        server.publish_ids("b", (8..12).map(|n| format!("b{n}")));
        simplefeed_server("backup", &first, &data);
        server.stop();
        // Some commits are settled into sled, and the newest are in the journal.
        let server = Server::start_settling_at(&address, &data, 5, 10_000);
        server.publish_ids("a", (8..20).map(|n| format!("a{n}")));
        server.publish_ids("b", (12..20).map(|n| format!("b{n}")));
        put(&server, "empty", "{}");
        publish_at_once(&server);
        publish_to_one_chapter(&server, &data);
        // A start finishes the second of the newest commit, so commits right behind it are dated up to a second ahead,
        // and have no `Last-Modified` until then.
        pause(std::time::Duration::from_millis(2_300));
        let mut world = Self {
            folder,
            data,
            shown: vec![],
        };
        world.shown = world.show(&server);
        server.stop();
        let mut snapshots = fs::read_dir(world.data.join("sled")).unwrap().flatten();
        let is_settled = |item: fs::DirEntry| {
            let name = item.file_name().into_string().unwrap();
            name.starts_with("snap.") && item.metadata().unwrap().len() > 1_000
        };
        assert!(snapshots.any(is_settled), "nothing is settled");
        assert!(world.shown.len() > 10, "{}", world.shown.len());
        world
    }

    /// Returns all frozen documents, and the indexes.
    fn show(&self, server: &Server) -> Vec<(String, Facts)> {
        let feeds = ["a", "b"].into_iter();
        feeds
            .flat_map(|feed| {
                let names = fs::read_dir(self.data.join("www/feeds").join(feed)).unwrap();
                let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
                let documents = names.filter(|name| name.strip_suffix(".gz").is_none());
                let paths = documents.chain(["index.json".into()]);
                paths
                    .map(move |name| format!("/feeds/{feed}/{name}"))
                    .collect::<Vec<_>>()
            })
            .map(|path| {
                let answer = server.get(&path);
                (path, facts(&answer))
            })
            .collect()
    }

    /// Returns the path of an entry of the second epoch.
    fn renamed(&self, feed: &str, position: u64) -> String {
        let names = self
            .shown
            .iter()
            .filter_map(|(path, _)| path.split_once('-'));
        let epoch = names
            .map(|(_, rest)| rest.replace(".atom", ""))
            .next()
            .unwrap();
        format!("/feeds/{feed}/entries/{position}-{epoch}.atom")
    }

    /// Returns a copy of the folder without some of its parts.
    fn without(&self, name: &str, parts: &[&str]) -> PathBuf {
        let copy = self.folder.path().join(name);
        copy_folder(&self.data, &copy);
        for part in parts {
            let path = copy.join(part);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
        copy
    }

    fn new_folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}-recovered"))
    }
}

/// Publishes from many clients, so that entries of two feeds share commits.
fn publish_at_once(server: &Server) {
    std::thread::scope(|scope| {
        for client in 0..16 {
            scope.spawn(move || {
                let feed = ["a", "b"][client % 2];
                let ids = (0..3).map(|n| format!("at-once-{client}-{n}"));
                server.publish_ids(feed, ids);
            });
        }
    });
}

/// Publishes until the newest chapter, which only the journal has, holds entries of both feeds.
fn publish_to_one_chapter(server: &Server, data: &Path) {
    let newest = || {
        let names = fs::read_dir(data.join("journal")).unwrap();
        let names = names.map(|name| name.unwrap().file_name());
        names.filter(|name| name != "spare").max()
    };
    for round in 0.. {
        let before = newest();
        server.publish_ids("a", [format!("last-a{round}")]);
        server.publish_ids("b", [format!("last-b{round}")]);
        if newest() == before {
            return;
        }
    }
}

fn put(server: &Server, feed: &str, settings: &str) {
    let put = Request::put(&format!("/feeds/{feed}"), settings);
    let answer = server.send(&put);
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
}

fn simplefeed_server(task: &str, data: &Path, to: &Path) {
    let args = [
        task,
        "--data",
        data.to_str().unwrap(),
        "--to",
        to.to_str().unwrap(),
    ];
    let output = run("simplefeed-server", &args, b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Returns the positions and ids of a feed's entries, those behind a gap included.
fn replayed(server: &Server, feed: &str) -> Vec<(u64, String)> {
    let url = server.url(&format!("/feeds/{feed}"));
    let lines = simplefeed(&["replay", "--on-gap", "go-on", &url], b"");
    lines
        .lines()
        .map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let id = event["id"].as_str().unwrap().to_owned();
            (event["position"].as_u64().unwrap(), id)
        })
        .collect()
}

/// Goal: from the log alone, from the archive alone, and from halves of each, what was archived comes
/// out the same with all that caches keep of it; ids and positions stay; a lost tail is named.
#[test]
fn what_was_archived_is_recovered() {
    let world = World::new();
    let server = Server::start(&world.data, &SIZE);
    let (all_a, all_b) = (replayed(&server, "a"), replayed(&server, "b"));
    server.stop();
    let no_log = ["journal", "sled", "witness"];
    let no_archive = ["www", "sidecars", "views"];
    let no_files = [
        "www/feeds/a/1.atom",
        "www/feeds/a/2.atom.gz",
        "views",
        "journal",
        "sled",
    ];
    let no_sidecar = [
        "sidecars/a/2.json",
        "sidecars/b/1.json",
        "journal",
        "sled",
        "views",
    ];
    for (name, parts, tail_is_lost) in [
        ("intact", &[][..], false),
        ("no-log", &no_log, true),
        ("no-journal", &["journal"], true),
        ("one-sidecar", &["sidecars/a/1.json"], false),
        ("no-archive", &no_archive, false),
        ("no-files", &no_files, true),
        ("no-sidecar", &no_sidecar, true),
    ] {
        let damaged = world.without(name, parts);
        let to = world.new_folder(name);
        let missing = recover(&damaged, &to);
        let server = Server::start(&to, &SIZE);
        for (path, shown) in &world.shown {
            let now = facts(&server.get(path));
            let same = match (name, path.ends_with("index.json")) {
                // Nothing but the sidecar or the log tells exactly when a document was closed.
                ("no-sidecar", false) => (now.0, &now.1) == (shown.0, &shown.1),
                // The index that grows tells when a document was opened, which may have been with the
                // entries of another feed that are lost.
                (_, true) if tail_is_lost => now.0 == shown.0,
                _ => now == *shown,
            };
            assert!(same, "{name}: {path} was {:?}, is {:?}", shown.2, now.2);
        }
        for (feed, all) in [("a", &all_a), ("b", &all_b)] {
            let now = replayed(&server, feed);
            assert_eq!(now, all[..now.len()], "{name}");
            assert_eq!(now.len() < all.len(), tail_is_lost, "{name}: {}", now.len());
            let told = missing
                .iter()
                .any(|line| line.contains(&format!("feed {feed}: ")));
            assert_eq!(told, tail_is_lost, "{name}: {missing:?}");
        }
        // Ids are remembered, with the digest of what was sent.
        let again = "{\"id\":\"urn:t:a3\",\"content\":{\"n\":\"a3\"}}";
        let answer = server.publish("a", again).json();
        assert_eq!(
            answer["results"][0]["status"], "duplicate",
            "{name}: {answer}"
        );
        assert_eq!(answer["results"][0]["position"], 3);
        assert_eq!(
            server
                .publish("a", "{\"id\":\"urn:t:a3\",\"title\":\"other\"}")
                .status,
            409
        );
        server.publish_ids("a", ["new".to_owned()]);
        server.stop();
        eprintln!("{name}");
        check_folder("verify", &to);
    }
}

/// Goal: a healthy log is recovered whole, also where feeds began in later epochs, and where an earlier recovery has left
/// documents without entries.
#[test]
fn a_log_of_several_epochs_is_recovered_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let server = Server::start(&at("data"), &SIZE);
    for feed in ["a", "b"] {
        server.publish_ids(feed, (0..12).map(|n| n.to_string()));
        server.wait_until_frozen(&format!("/feeds/{feed}/2.atom"));
    }
    server.stop();
    for part in ["journal", "sled"] {
        fs::remove_dir_all(at("data").join(part)).unwrap();
    }
    let mut from = at("recovered");
    assert!(!recover(&at("data"), &from).is_empty());
    for round in 0..3 {
        let server = Server::start(&from, &SIZE);
        let new = format!("new-{round}");
        for feed in [&new, "a", "b"] {
            for part in 0..4 {
                server.publish_ids(feed, (0..4).map(|n| format!("{round}-{part}-{n}")));
            }
        }
        let feeds = [&new, "a", "b"];
        let before = feeds.map(|feed| replayed(&server, feed));
        server.stop();
        let to = at(&format!("recovered-{round}"));
        assert_eq!(recover(&from, &to), Vec::<String>::new(), "round {round}");
        for (path, bytes) in files(&from.join("www")) {
            let made = fs::read(to.join(path.strip_prefix(&from).unwrap()));
            assert!(made.is_ok_and(|made| made == bytes), "{}", path.display());
        }
        let server = Server::start(&to, &SIZE);
        assert_eq!(feeds.map(|feed| replayed(&server, feed)), before);
        server.stop();
        from = to;
    }
}

/// Goal: a feed that was without entries when a backup was made is recovered whole from the restored one.
/// Method: new settings open its document again, after another feed has published in the new epoch.
#[test]
fn a_feed_without_entries_at_a_restoration_is_recovered_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let settings = |server: &Server, title: &str| {
        let answer = server.send(&Request::put(
            "/feeds/c",
            &format!("{{\"title\":\"{title}\"}}"),
        ));
        assert!(answer.status < 300, "{}", answer.text());
    };
    let server = Server::start(&at("data"), &SIZE);
    server.publish_ids("g", (0..8).map(|n| n.to_string()));
    settings(&server, "one");
    settings(&server, "two");
    server.stop();
    let [data, backup] = ["data", "backup"].map(|name| at(name).to_str().unwrap().to_owned());
    let arguments = ["backup", "--data", &data, "--to", &backup];
    assert!(run("simplefeed-server", &arguments, b"").status.success());
    let server = Server::start(&at("backup"), &SIZE);
    server.publish_ids("g", (8..16).map(|n| n.to_string()));
    settings(&server, "three");
    server.publish_ids("c", (0..12).map(|n| n.to_string()));
    let before = ["g", "c"].map(|feed| replayed(&server, feed));
    server.stop();
    let to = at("recovered");
    assert_eq!(recover(&at("backup"), &to), Vec::<String>::new());
    is_the_same(&at("backup"), &to);
    let server = Server::start(&to, &SIZE);
    assert_eq!(["g", "c"].map(|feed| replayed(&server, feed)), before);
    server.stop();
}

/// Goal: feeds that began in epochs without any entry are recovered whole, with the documents that later settings opened
/// again.
#[test]
fn feeds_of_quiet_epochs_are_recovered_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let restored = |from: &str, to: &str| {
        let [from, into] = [from, to].map(|name| at(name).to_str().unwrap().to_owned());
        let arguments = ["backup", "--data", &from, "--to", &into];
        assert!(run("simplefeed-server", &arguments, b"").status.success());
        Server::start(&at(to), &SIZE)
    };
    let settings = |server: &Server, feed: &str, title: &str| {
        let settings = format!("{{\"title\":\"{title}\"}}");
        let answer = server.send(&Request::put(&format!("/feeds/{feed}"), &settings));
        assert!(answer.status < 300, "{}", answer.text());
    };
    let server = Server::start(&at("one"), &SIZE);
    // Its name comes last, and its epoch first.
    settings(&server, "z", "one");
    server.stop();
    let server = restored("one", "two");
    settings(&server, "c", "two");
    server.stop();
    let server = restored("two", "three");
    server.publish_ids("g", (0..8).map(|n| n.to_string()));
    for feed in ["c", "z"] {
        settings(&server, feed, "three");
        server.publish_ids(feed, (0..8).map(|n| n.to_string()));
    }
    let before = ["g", "c", "z"].map(|feed| replayed(&server, feed));
    server.stop();
    let to = at("recovered");
    assert_eq!(recover(&at("three"), &to), Vec::<String>::new());
    is_the_same(&at("three"), &to);
    let server = Server::start(&to, &SIZE);
    assert_eq!(["g", "c", "z"].map(|feed| replayed(&server, feed)), before);
    server.stop();
}

/// Goal: a feed that is made after another one's settings changed, between two epochs, keeps its documents.
/// Method: the epoch begins with nothing but settings, and the next one renames the documents that are open.
#[test]
fn settings_between_two_epochs_are_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let size = [
        "--document-entries",
        "2",
        "--public-url",
        "http://127.0.0.1:9",
    ];
    let settings = |server: &Server, feed: &str| {
        let answer = server.send(&Request::put(
            &format!("/feeds/{feed}"),
            "{\"title\":\"x\"}",
        ));
        assert!(answer.status < 300, "{}", answer.text());
    };
    let server = Server::start(&at("one"), &size);
    for feed in ["f0", "f1", "f2"] {
        settings(&server, feed);
    }
    server.stop();
    assert_eq!(recover(&at("one"), &at("two")), Vec::<String>::new());
    let server = Server::start(&at("two"), &size);
    server.publish_ids("f2", (0..5).map(|n| n.to_string()));
    let answer = server.send(&Request::put("/feeds/f1", "{\"title\":\"y\"}"));
    assert!(answer.status < 300, "{}", answer.text());
    settings(&server, "f3");
    server.stop();
    assert_eq!(recover(&at("two"), &at("three")), Vec::<String>::new());
    let server = Server::start(&at("three"), &size);
    server.publish_ids("f3", (0..6).map(|n| n.to_string()));
    server.stop();
    assert_eq!(recover(&at("three"), &at("four")), Vec::<String>::new());
    is_the_same(&at("three"), &at("four"));
}

/// Checks that the documents in one folder are in another one, and when each was opened.
#[track_caller]
fn is_the_same(from: &Path, to: &Path) {
    for (path, bytes) in files(&from.join("www")) {
        let made = fs::read(to.join(path.strip_prefix(from).unwrap()));
        assert!(made.is_ok_and(|made| made == bytes), "{}", path.display());
    }
    let opened = |sidecar: &[u8]| {
        // The first line; a checksum follows.
        let facts = sidecar.split(|byte| *byte == b'\n').next().unwrap();
        let facts: serde_json::Value = serde_json::from_slice(facts).unwrap();
        facts["opened"].clone()
    };
    for (path, bytes) in files(&from.join("sidecars")) {
        let made = fs::read(to.join(path.strip_prefix(from).unwrap())).unwrap();
        assert_eq!(opened(&made), opened(&bytes), "{}", path.display());
        assert!(opened(&made).is_string());
    }
}

/// Goal: without sled, the journal and the archive give all they have, each entry where it was, and the rest is named.
#[test]
fn the_journal_alone_is_recovered() {
    let world = World::new();
    let server = Server::start(&world.data, &SIZE);
    let all = replayed(&server, "a");
    server.stop();
    let damaged = world.without("no-sled", &["sled"]);
    let to = world.new_folder("no-sled");
    let missing = recover(&damaged, &to);
    let server = Server::start(&to, &SIZE);
    let now = replayed(&server, "a");
    assert!(now.iter().all(|found| all.contains(found)), "{now:?}");
    // More may be named than is missing: commits that cannot be read may have had anything. The newest entry is missing
    // where a chapter ended just behind it, so that it is in sled.
    let told = missing.iter().any(|line| line.contains("feed a: "));
    assert!(now == all || told, "{missing:?}");
    server.stop();
}

/// Goal: entries that only the journal has are named also where nothing tells their feed's name and settings.
#[test]
fn entries_of_a_feed_without_settings_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = Command::new(program("simplefeed-test-server"));
    command.arg(&data).args(["honest", "5", "2500"]);
    let server = Server::try_spawn(command).unwrap();
    server.publish_ids("quiet", ["first".to_owned()]);
    // Until the settings of both feeds are settled.
    publish_to_one_chapter(&server, &data);
    for round in 0..40 {
        server.publish_ids("a", [format!("more-{round}")]);
    }
    server.publish_ids("quiet", ["last".to_owned()]);
    server.stop();
    fs::remove_dir_all(data.join("sled")).unwrap();
    let named = ": its name and its settings are lost; position 1 is missing; the old log has 1 of its entries";
    let missing = recover(&data, &folder.path().join("to"));
    assert!(
        missing.iter().any(|line| line.contains(named)),
        "{missing:?}"
    );
    // Where no feed is left at all, too.
    for name in ["www", "sidecars", "closed"] {
        fs::remove_dir_all(data.join(name)).unwrap();
    }
    let to = folder.path().join("nothing");
    let [from, to] = [&data, &to].map(|path| path.to_str().unwrap());
    let output = run(
        "simplefeed-server",
        &["recover", "--data", from, "--to", to],
        b"",
    );
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(10), "{said}");
    assert!(
        said.lines()
            .any(|line| line.starts_with("feed with the id urn:uuid:") && line.ends_with(named)),
        "{said}"
    );
}

/// Goal: a document that is nowhere leaves a hole that is named, and everything around it stays.
#[test]
fn a_lost_document_is_a_hole_with_a_name() {
    let world = World::new();
    let parts = [
        "journal",
        "sled",
        "www/feeds/a/2.atom",
        "www/feeds/a/2.atom.gz",
        "www/feeds/a/3.atom",
        "www/feeds/a/3.atom.gz",
        "sidecars/a/3.json",
    ];
    let damaged = world.without("hole", &parts);
    let to = world.new_folder("hole");
    let missing = recover(&damaged, &to);
    assert!(
        missing
            .iter()
            .any(|line| line.contains("positions 5 to 9 are missing, of 2.atom")),
        "{missing:?}"
    );
    assert!(
        missing
            .iter()
            .any(|line| line.contains("positions 10 to 14 are missing, of 3.atom")),
        "{missing:?}"
    );
    let server = Server::start(&to, &SIZE);
    for (path, shown) in &world.shown {
        let lost = ["/feeds/a/2.atom", "/feeds/a/3.atom"].contains(&path.as_str());
        let now = facts(&server.get(path));
        if lost {
            assert_eq!(now.0, 404, "{path}");
        } else if !path.ends_with("index.json") {
            assert_eq!(now, *shown, "{path}");
        }
    }
    // The index does not lead there, and nobody passes over it unaware.
    let index = server.get("/feeds/a/index.json");
    assert!(
        index.text().contains("\"1.atom\"") && !index.text().contains("\"2.atom\""),
        "{} {:?}",
        index.text(),
        server.said()
    );
    let url = server.url("/feeds/a");
    let from_oldest = run("simplefeed", &["replay", &url, "--format", "id"], b"");
    assert!(!from_oldest.status.success());
    assert_eq!(
        text(&from_oldest.stdout).lines().count(),
        5,
        "{}",
        text(&from_oldest.stderr)
    );
    let tail = run(
        "simplefeed",
        &[
            "replay",
            &url,
            "--since",
            "id:urn:t:batch7",
            "--format",
            "id",
        ],
        b"",
    );
    assert!(tail.status.success(), "{}", text(&tail.stderr));
    server.publish_ids("a", (100..120).map(|n| n.to_string()));
    server.stop();
    check_folder("verify", &to);
    check_folder("rebuild", &to);
    fs::remove_dir_all(to.join("views")).unwrap();
    check_folder("rebuild", &to);
    check_folder("verify", &to);
}

/// Goal: where only the last group is lost, that is noticed, and recovery gives all the others, also if
/// that group had closed a document, and however far that had got into the archive.
#[test]
fn a_lost_last_group_is_noticed_and_the_rest_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let (data, before) = (folder.path().join("data"), folder.path().join("before"));
    let server = Server::start(&data, &SIZE);
    server.publish_ids("a", (0..12).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    copy_folder(&data.join("journal"), &before);
    // Seen at another URL now, so that the next entry opens a document.
    let server = Server::start(&data, &SIZE);
    server.publish_ids("a", ["last".to_owned()]);
    let closed = server.wait_until_frozen("/feeds/a/3.atom");
    server.kill();
    fs::remove_dir_all(data.join("journal")).unwrap();
    copy_folder(&before, &data.join("journal"));
    let refused = run(
        "simplefeed-server",
        &["verify", "--data", data.to_str().unwrap()],
        b"",
    );
    assert_eq!(refused.status.code(), Some(15), "{}", text(&refused.stderr));
    // In the order in which an archivist that is killed has not come to them.
    let steps = [
        "views/archive-files/a.manifest",
        "sidecars/a/3.json",
        "www/feeds/a/3.atom",
        "www/feeds/a/3.atom.gz",
    ];
    for step in 0..=steps.len() {
        let damaged = folder.path().join(format!("damaged{step}"));
        copy_folder(&data, &damaged);
        for gone in &steps[..step] {
            fs::remove_file(damaged.join(gone)).unwrap();
        }
        let to = folder.path().join(format!("to{step}"));
        let missing = recover(&damaged, &to);
        let told = "ended with commit 13, and can be read up to commit 12";
        assert!(
            missing.iter().any(|line| line.contains(told)),
            "{missing:?}"
        );
        let server = Server::start(&to, &SIZE);
        let third = server.get("/feeds/a/3.atom");
        let kept = third.status == 200 && third.body == closed.body;
        assert!(
            kept || third.status == 307,
            "step {step}: {}, {missing:?}",
            third.status
        );
        assert!(kept || step > 2, "step {step}: what had been shown is gone");
        let url = server.url("/feeds/a");
        let entries = simplefeed(&["replay", &url, "--format", "id"], b"");
        assert_eq!(entries.lines().count(), 12, "step {step}: {missing:?}");
        let new = server.publish("a", "{\"id\":\"urn:new\"}").json();
        assert_eq!(new["results"][0]["position"], 12, "step {step}");
        server.stop();
        check_folder("verify", &to);
    }
}

#[test]
fn nothing_is_recovered_from_nothing_or_from_a_running_server() {
    let folder = tempfile::tempdir().unwrap();
    let (data, empty, to) = (
        folder.path().join("data"),
        folder.path().join("empty"),
        folder.path().join("to"),
    );
    fs::create_dir(&empty).unwrap();
    let _server = Server::start(&data, &[]);
    let absent = folder.path().join("absent");
    for (from, code, why) in [
        (&absent, 10, "nothing is left"),
        (&empty, 10, "nothing is left"),
        (&data, 11, "in use by another process"),
    ] {
        let args = [
            "recover",
            "--data",
            from.to_str().unwrap(),
            "--to",
            to.to_str().unwrap(),
        ];
        let output = run("simplefeed-server", &args, b"");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!to.exists());
    }
    assert!(!absent.exists());
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
}

/// Goal: whatever is damaged, no URL that was final shows anything else, nothing moves, and what is not
/// there any more is named.
/// Method: random files are damaged or deleted, with and without the log.
#[test]
fn recovery_changes_nothing_that_was_final() {
    let cases = if is_long() { 200 } else { 14 };
    let world = World::new();
    let server = Server::start(&world.data, &SIZE);
    let all = ["a", "b"].map(|feed| replayed(&server, feed));
    server.stop();
    let mut dice = Dice::new(5);
    let (mut whole, mut shown) = (0, 0);
    for case in 0..cases {
        let name = format!("case{case}");
        let lost_log: &[&str] = if dice.below(2) == 0 {
            &["journal"]
        } else {
            &[]
        };
        let damaged = world.without(&name, lost_log);
        let mut what = format!("case {case}, {lost_log:?}");
        let mut paths: Vec<_> = files(&damaged).into_iter().map(|(path, _)| path).collect();
        paths.retain(|path| {
            !path.ends_with("lock")
                && !path.starts_with(damaged.join("sled"))
                && !path.starts_with(damaged.join("journal"))
        });
        for _ in 0..=dice.below(6) {
            let path = &paths[dice.below(paths.len())];
            what += &format!(", {}", path.strip_prefix(&damaged).unwrap().display());
            let bytes = fs::read(path).unwrap_or_default();
            if dice.below(2) == 0 || bytes.is_empty() {
                let _gone_already = fs::remove_file(path);
            } else {
                let mut bytes = bytes;
                let at = dice.below(bytes.len());
                bytes[at] ^= 1 << dice.below(8);
                fs::write(path, bytes).unwrap();
            }
        }
        let to = world.new_folder(&name);
        let missing = recover(&damaged, &to);
        let server = Server::start(&to, &SIZE);
        for (path, before) in world
            .shown
            .iter()
            .filter(|(path, _)| !path.ends_with("index.json"))
        {
            let now = server.get(path);
            let feed = path.split('/').nth(2).unwrap();
            let named = missing
                .iter()
                .any(|line| line.contains(&format!("feed {feed}: ")));
            let same = (now.status, &now.body) == (before.0, &before.1);
            assert!(
                same || now.status == 404 && named,
                "{what}: {path}: {missing:?}"
            );
            shown += usize::from(same);
        }
        for (feed, all) in ["a", "b"].iter().zip(&all) {
            let named = missing
                .iter()
                .any(|line| line.contains(&format!("feed {feed}: ")));
            let mut there = 0;
            for (position, id) in all {
                let entries = format!("/feeds/{feed}/entries/");
                let numbered = [
                    format!("{entries}{position}.atom"),
                    world.renamed(feed, *position),
                ];
                let found = numbered.iter().map(|path| server.get(path));
                let found: Vec<_> = found.filter(|answer| answer.status == 200).collect();
                assert!(found.len() <= 1);
                if let Some(found) = found.first() {
                    assert!(
                        found.text().contains(&format!("<id>{id}</id>")),
                        "{what}: {feed} {position}"
                    );
                    there += 1;
                }
            }
            assert!(
                there == all.len() || named,
                "{what}: {there} of {}",
                all.len()
            );
            whole += usize::from(there == all.len());
        }
        server.stop();
        fs::remove_dir_all(&damaged).unwrap();
        fs::remove_dir_all(&to).unwrap();
    }
    eprintln!("recover: {cases} cases, {shown} documents the same, {whole} feeds whole");
    assert!(whole > 0 && shown > cases);
}
