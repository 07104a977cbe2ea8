//! Backups, and what is seen after one was restored: nothing acknowledged before it is missing, whoever
//! had seen more is told, and no URL shows two contents.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    harness::{Server, check_folder, ids, pause, run, simplefeed, text, wait_for},
    http::Request,
};

const SIZE: [&str; 2] = ["--document-entries", "7"];
const FEEDS: usize = 3;

/// Publishers that go on until they are stopped, and the ids acknowledged to them, by feed.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<(String, String)>>>,
    publishers: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(address: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(Mutex::new(vec![]));
        let publishers = (0..FEEDS).map(|publisher| {
            let (address, stop, acknowledged) = (
                address.to_owned(),
                Arc::clone(&stop),
                Arc::clone(&acknowledged),
            );
            std::thread::spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    pause(Duration::from_millis(2));
                    let (feed, id) = (format!("f{publisher}"), format!("urn:t:{publisher}-{n}"));
                    let body = format!("{{\"id\":\"{id}\",\"content\":\"{n}\"}}");
                    let post = Request::post(&format!("/feeds/{feed}"), "application/json", body);
                    if post.send(&address).unwrap().status == 201 {
                        acknowledged.lock().unwrap().push((feed, id));
                    }
                }
            })
        });
        let publishers = publishers.collect();
        Self {
            stop,
            acknowledged,
            publishers,
        }
    }

    fn acknowledged(&self) -> Vec<(String, String)> {
        self.acknowledged.lock().unwrap().clone()
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Release);
        for publisher in self.publishers {
            publisher.join().unwrap();
        }
    }
}

fn backup(data: &Path, to: &Path) {
    let (data, to) = (data.to_str().unwrap(), to.to_str().unwrap());
    let output = run(
        "simplefeed-server",
        &["backup", "--data", data, "--to", to],
        b"",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Goal: a command names the unfinished work of a killed command.
#[test]
fn what_a_killed_command_leaves_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    Server::start(&data, &[]).stop();
    let to = folder.path().join("copy");
    let (data, to) = (data.to_str().unwrap(), to.to_str().unwrap());
    let arguments = ["backup", "--data", data, "--to", to];
    let said = || text(&run("simplefeed-server", &arguments, b"").stderr);
    assert!(!said().contains("unfinished work"));
    fs::remove_dir_all(to).unwrap();
    fs::create_dir(folder.path().join(".partial-left")).unwrap();
    let told = said();
    assert!(
        told.contains(".partial-left") && told.contains("unfinished work"),
        "{told}"
    );
}

/// Returns everything that permanent URLs of the feeds show now, up to one too many of each kind.
fn permanent(server: &Server, into: &mut BTreeMap<String, Vec<Vec<u8>>>) {
    for feed in 0..FEEDS {
        let entries = ids(server, &format!("f{feed}")).len();
        let documents = (1..=entries / 7 + 2).map(|n| format!("/feeds/f{feed}/{n}.atom"));
        let single = (0..=entries).map(|n| format!("/feeds/f{feed}/entries/{n}.atom"));
        for path in documents.chain(single) {
            let answer = server.get(&path);
            let seen = into.entry(path).or_default();
            // A document that is open grows; it counts as it is when it is closed.
            if answer.is_immutable() && !seen.contains(&answer.body) {
                seen.push(answer.body);
            }
        }
    }
}

/// Goal: a backup made under load holds all that was acknowledged before it; served elsewhere, it is
/// another epoch, in which no URL shows anything but what it showed before.
#[test]
fn a_backup_under_load_lacks_nothing_and_reuses_no_url() {
    let folder = tempfile::tempdir().unwrap();
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let server = Server::start(&data, &SIZE);
    let address = server.address.clone();
    let load = Load::start(&address);
    while load.acknowledged().len() < 200 {
        pause(Duration::from_millis(5));
    }
    let before = load.acknowledged();
    backup(&data, &copy);
    check_folder("verify", &data);
    let more = load.acknowledged().len() + 200;
    while load.acknowledged().len() < more {
        pause(Duration::from_millis(5));
    }
    load.stop();

    let bookmarks: Vec<_> = ["behind", "ahead"]
        .map(|name| folder.path().join(name).to_str().unwrap().to_owned())
        .into();
    let feed = server.url("/feeds/f0");
    for (bookmark, limit) in [(&bookmarks[0], "20"), (&bookmarks[1], "1000000")] {
        simplefeed(
            &["replay", &feed, "--limit", limit, "--bookmark", bookmark],
            b"",
        );
    }
    let mut seen = BTreeMap::new();
    permanent(&server, &mut seen);
    server.stop();
    check_folder("verify", &copy);

    let server = Server::start_at(&address, &copy, &SIZE);
    let restored = [0, 1, 2].map(|feed| ids(&server, &format!("f{feed}")));
    for (feed, id) in &before {
        let there = restored.iter().any(|ids| ids.contains(id));
        assert!(there, "{feed} lacks {id}");
    }
    permanent(&server, &mut seen);
    // The old world's next documents are other documents in this one.
    for feed in 0..FEEDS {
        for n in 0..40 {
            let body = format!("{{\"id\":\"urn:new:{n}\"}}");
            assert_eq!(server.publish(&format!("f{feed}"), &body).status, 201);
        }
    }
    pause(Duration::from_millis(300));
    permanent(&server, &mut seen);
    let twice: Vec<_> = seen
        .iter()
        .filter(|(_, contents)| contents.len() > 1)
        .collect();
    assert!(twice.is_empty(), "two contents: {:?}", twice[0].0);
    let shown = seen.values().filter(|contents| contents.len() == 1).count();
    assert!(shown > 200, "only {shown} URLs were looked at");

    let resume = |bookmark: &str| {
        let args = ["replay", &feed, "--bookmark", bookmark, "--format", "id"];
        let output = run("simplefeed", &args, b"");
        (output.status.code().unwrap(), text(&output.stdout))
    };
    let (code, printed) = resume(&bookmarks[1]);
    assert_eq!((code, printed.as_str()), (15, ""), "it had seen more");
    let (code, printed) = resume(&bookmarks[0]);
    assert_eq!(code, 0);
    let all = ids(&server, "f0");
    assert_eq!(printed.lines().collect::<Vec<_>>(), all[20..]);
    server.stop();
    check_folder("verify", &copy);
    check_folder("rebuild", &copy);
}

/// Goal: a consumer that had seen more is told so as soon as the restored server is there, before
/// anything new makes up for the loss.
#[test]
fn a_shorter_history_is_a_changed_one() {
    let folder = tempfile::tempdir().unwrap();
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let bookmark = folder.path().join("bookmark").to_str().unwrap().to_owned();
    let server = Server::start(&data, &SIZE);
    let (address, feed) = (server.address.clone(), server.url("/feeds/a"));
    server.publish_ids("a", (0..9).map(|n| n.to_string()));
    backup(&data, &copy);
    server.publish_ids("a", (9..12).map(|n| n.to_string()));
    simplefeed(&["replay", &feed, "--bookmark", &bookmark], b"");
    server.stop();
    let server = Server::start_at(&address, &copy, &SIZE);
    let output = run(
        "simplefeed",
        &["replay", &feed, "--bookmark", &bookmark],
        b"",
    );
    assert_eq!(output.status.code(), Some(15), "{}", text(&output.stderr));
    // The closed document's link leads on to where its successor is now.
    let link = server.get("/feeds/a/2.atom");
    let location = link.header("location").to_owned();
    let renamed = server.get(&format!("/feeds/a/{location}"));
    assert_eq!(renamed.status, 200);
    // A cache keeps it as long as the document, or it would lack it when the server is away.
    assert_eq!(
        (link.status, link.header("cache-control")),
        (307, renamed.header("cache-control"))
    );
    assert!(renamed.text().contains("<id>urn:t:8</id>"));
    assert_eq!(server.get("/feeds/a/3.atom").status, 404);
    // A publisher that repeats itself is told the place as it is called now.
    let again = server.publish("a", "{\"id\":\"urn:t:8\",\"content\":{\"n\":\"8\"}}");
    assert_eq!(again.json()["results"][0]["status"], "duplicate");
    let document = again.json()["results"][0]["document"].clone();
    assert!(
        document
            .as_str()
            .unwrap()
            .ends_with(&format!("/{location}")),
        "{document}"
    );
    // The same backup restored once more is yet another epoch.
    let twice = folder.path().join("twice");
    pause(Duration::from_millis(1_100));
    backup(&data, &twice);
    let other = Server::start(&twice, &SIZE);
    let second = other.get("/feeds/a/2.atom").header("location").to_owned();
    assert_ne!(second, location);
}

/// Goal: everything that looks after a log works while a server has it open, for nobody but its owner.
#[test]
fn a_running_server_is_looked_after_through_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &SIZE);
    server.publish_ids("a", (0..20).map(|n| n.to_string()));
    let first = server.wait_until_frozen("/feeds/a/1.atom");
    let socket = data.join("control.sock");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let damaged = data.join("www/feeds/a/1.atom");
    fs::write(&damaged, "nonsense").unwrap();
    let args = |task: &str, more: &[&str]| {
        let mut args = vec![
            task.to_owned(),
            "--data".into(),
            data.to_str().unwrap().into(),
        ];
        args.extend(more.iter().map(ToString::to_string));
        run("simplefeed-server", &args, b"")
    };
    let verify = args("verify", &[]);
    assert_eq!(verify.status.code(), Some(15), "{}", text(&verify.stderr));
    assert!(
        text(&verify.stdout).contains("feed a: 1.atom"),
        "{}",
        text(&verify.stdout)
    );
    let rebuild = args("rebuild", &[]);
    assert_eq!(text(&rebuild.stdout), "a/1.atom was different\n");
    assert_eq!(fs::read(&damaged).unwrap(), first.body);
    assert_eq!(args("verify", &[]).status.code(), Some(0));
    let to = folder.path().join("static");
    let export = args("export", &["--to", to.to_str().unwrap()]);
    assert!(export.status.success(), "{}", text(&export.stderr));
    assert_eq!(fs::read(to.join("feeds/a/1.atom")).unwrap(), first.body);

    let to = folder.path().join("backup");
    assert!(
        args("backup", &["--to", to.to_str().unwrap()])
            .status
            .success()
    );
    let again = args("backup", &["--to", to.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        text(&again.stderr).contains("is there already"),
        "{}",
        text(&again.stderr)
    );
    let names = fs::read_dir(folder.path()).unwrap();
    let left = names.filter(|name| {
        let name = name.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with(".partial")
    });
    assert_eq!(left.count(), 0);

    // A killed server's socket is in nobody's way.
    server.kill();
    assert_eq!(args("verify", &[]).status.code(), Some(0));
    let server = Server::start(&data, &SIZE);
    assert!(args("verify", &[]).status.success());
    server.stop();
    assert!(!socket.exists());
}

/// Goal: the exported tree of a restored log is one chain, also where an older export was.
#[test]
fn an_export_of_a_restored_log_is_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let export = |data: &Path| {
        let (data, to) = (data.to_str().unwrap(), path("static"));
        let args = ["export", "--data", data, "--to", to.to_str().unwrap()];
        assert!(run("simplefeed-server", &args, b"").status.success());
    };
    let server = Server::start(&path("data"), &SIZE);
    server.publish_ids("a", (0..9).map(|n| n.to_string()));
    backup(&path("data"), &path("copy"));
    server.publish_ids("a", (9..25).map(|n| n.to_string()));
    server.stop();
    export(&path("data"));
    let server = Server::start(&path("copy"), &SIZE);
    server.publish_ids("a", (100..103).map(|n| n.to_string()));
    let expected = ids(&server, "a");
    server.stop();
    export(&path("copy"));
    let tree = path("static/feeds/a");
    assert!(!tree.join("3.atom").exists() && tree.join("2.atom").exists());
    let lifetimes = fs::read_to_string(path("static/simplefeed-lifetimes.conf")).unwrap();
    assert!(
        lifetimes.contains("/a/1.atom\"") && !lifetimes.contains("/a/2.atom\""),
        "{lifetimes}"
    );
    let found = follow_by_hand(|name| fs::read_to_string(tree.join(name)).unwrap());
    assert_eq!(found, expected);
}

fn id_of(entry: &str) -> String {
    let (_, id) = entry.split_once("<id>").unwrap();
    id.split_once("</id>").unwrap().0.to_owned()
}

/// Follows `next-archive` from the oldest document to the end, by text search alone. Returns the ids.
fn follow_by_hand(get: impl Fn(&str) -> String) -> Vec<String> {
    let (mut found, mut name) = (vec![], "1.atom".to_owned());
    loop {
        let document = get(&name);
        let entries = document.split("<entry").skip(1).map(id_of);
        found.extend(entries.collect::<Vec<_>>().into_iter().rev());
        let Some((_, link)) = document.split_once("rel=\"next-archive\" href=\"") else {
            return found;
        };
        link.split_once('"').unwrap().0.clone_into(&mut name);
    }
}

/// Returns a server of a log that was restored, with 12 entries, and their ids.
pub(crate) fn restored(folder: &Path) -> (Server, Vec<String>) {
    let server = Server::start(&folder.join("data"), &SIZE);
    server.publish_ids("a", (0..9).map(|n| n.to_string()));
    backup(&folder.join("data"), &folder.join("copy"));
    server.publish_ids("a", (9..25).map(|n| n.to_string()));
    server.stop();
    let server = Server::start(&folder.join("copy"), &SIZE);
    server.publish_ids("a", (100..103).map(|n| n.to_string()));
    let expected = ids(&server, "a");
    assert_eq!(expected.len(), 12);
    (server, expected)
}

/// A restoration gives a document another name, and the one before it links to the old one for ever. A mirror, which
/// cannot redirect, has it under both.
#[test]
fn a_mirror_of_a_restored_feed_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (server, expected) = restored(folder.path());
    let copy = folder.path().join("mirror");
    let mirror = |url: &str| {
        let output = run("simplefeed", &["mirror", url, copy.to_str().unwrap()], b"");
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let url = server.url("/feeds/a");
    mirror(&url);
    let walk = || follow_by_hand(|name| fs::read_to_string(copy.join(name)).unwrap());
    assert_eq!(walk(), expected);
    // The renamed document grows, and is closed.
    for more in 200..212 {
        server.publish_ids("a", [more.to_string()]);
        if more % 4 == 0 {
            mirror(&url);
            assert_eq!(walk(), ids(&server, "a"));
        }
    }
    mirror(&url);
    let all = ids(&server, "a");
    server.stop();
    assert_eq!(walk(), all);
    let served = crate::site::Site::of_folder(&copy);
    let read = simplefeed(
        &["replay", &served.url("/recent.atom"), "--format", "id"],
        b"",
    );
    assert_eq!(read.lines().collect::<Vec<_>>(), all);
}

/// Behind a cache a restored feed outlives its server as any other does, by our walk and by hand.
#[test]
#[ignore = "needs nginx and varnishd"]
fn a_restored_feed_outlives_its_server_behind_a_cache() {
    for config in ["cache.conf", "archives.conf"] {
        let folder = tempfile::tempdir().unwrap();
        let (server, expected) = restored(folder.path());
        let www = folder.path().join("copy/www");
        let nginx = crate::nginx::Nginx::start(config, folder.path(), &server.address, &www);
        outlives(server, &nginx.address, &expected, config);
    }
    let folder = tempfile::tempdir().unwrap();
    // Its worker is another user.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (server, expected) = restored(folder.path());
    let varnish = crate::packaging::Varnish::start(folder.path(), &server.address);
    outlives(server, &varnish.address, &expected, "varnish");
}

/// Reads feed `a` at a front, kills the server, and reads it there again.
fn outlives(server: Server, front: &str, expected: &[String], what: &str) {
    let get = |name: &str| {
        let mut path = format!("/feeds/a/{name}");
        for _ in 0..3 {
            let answer = Request::get(&path).send(front).unwrap();
            match answer.status {
                200 => return answer.text(),
                307 => path = format!("/feeds/a/{}", answer.header("location")),
                status => panic!("{what}: {path} is {status}"),
            }
        }
        panic!("{what}: redirects from {name}")
    };
    let replay = || {
        let url = format!("http://{front}/feeds/a");
        let ids = simplefeed(&["replay", &url, "--format", "id"], b"");
        ids.lines().map(Into::into).collect::<Vec<String>>()
    };
    assert_eq!(
        (follow_by_hand(get), replay()),
        (expected.into(), expected.into()),
        "{what}"
    );
    server.kill();
    // The caches' copies of growing documents are stale now, and a cache has seen that the server is away.
    pause(Duration::from_millis(2_500));
    wait_for("no stale copy is shown", || {
        let recent = Request::get("/feeds/a/recent.atom").header("Accept-Encoding", "gzip");
        (recent.send(front).unwrap().status == 200).then_some(())
    });
    assert_eq!(
        (follow_by_hand(get), replay()),
        (expected.into(), expected.into()),
        "{what}"
    );
}

/// A web server without us has a document of a restored feed under the name that leads to it, too.
#[test]
fn the_files_of_a_restored_feed_are_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = restored(folder.path());
    server.publish_ids("a", (200..212).map(|n| n.to_string()));
    let expected = ids(&server, "a");
    let www = folder.path().join("copy/www/feeds/a");
    let archived = || {
        let mut found = vec![];
        let mut name = "1.atom".to_owned();
        while let Ok(document) = fs::read_to_string(www.join(&name)) {
            let entries = document.split("<entry").skip(1).map(id_of);
            found.extend(entries.collect::<Vec<_>>().into_iter().rev());
            let (_, link) = document.split_once("rel=\"next-archive\" href=\"")?;
            link.split_once('"')?.0.clone_into(&mut name);
        }
        (found.len() + 4 > expected.len()).then_some(found)
    };
    let found = wait_for("the files are not one chain", archived);
    assert_eq!(found, expected[..found.len()]);
    let renamed = fs::read_dir(&www).unwrap().filter(|item| {
        let name = item.as_ref().unwrap().file_name();
        let name = name.to_string_lossy();
        name.contains('-') && name.ends_with(".atom")
    });
    assert!(renamed.count() > 0, "nothing was renamed");
    server.stop();
    let copy = folder.path().join("copy");
    check_folder("verify", &copy);
    // The second name is checked and mended as all others are.
    let first = fs::read_to_string(www.join("1.atom")).unwrap();
    let (_, link) = first.split_once("rel=\"next-archive\" href=\"").unwrap();
    fs::write(www.join(link.split_once('"').unwrap().0), "nonsense").unwrap();
    let args = ["verify", "--data", copy.to_str().unwrap()];
    assert!(!run("simplefeed-server", &args, b"").status.success());
    check_folder("rebuild", &copy);
    check_folder("verify", &copy);
}

/// Goal: whoever asks for something and does not listen, and what takes long, hold up no stop.
#[test]
fn a_server_that_is_asked_to_stop_breaks_tasks_off() {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
    };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--document-entries", "2"]);
    let lines: String = (0..1_402)
        .map(|n| format!("{{\"id\":\"urn:t:{n}\"}}\n"))
        .collect();
    assert_eq!(server.publish("a", &lines).status, 201);
    server.wait_until_frozen("/feeds/a/700.atom");
    for n in 1..=700 {
        for name in [format!("{n}.atom"), format!("{n}.atom.gz")] {
            fs::write(data.join("www/feeds/a").join(name), "nonsense").unwrap();
        }
    }
    // More is told than a socket holds, and nobody reads it.
    let mut deaf = UnixStream::connect(data.join("control.sock")).unwrap();
    deaf.write_all(b"\"verify\"\n").unwrap();
    // It is asked for without the command, which would make the backup by itself were the server gone
    // before it connects.
    let mut waiting = UnixStream::connect(data.join("control.sock")).unwrap();
    let to = folder.path().join("backup");
    let task = serde_json::json!({"backup": {"to": to}});
    waiting.write_all(format!("{task}\n").as_bytes()).unwrap();
    server.stop();
    let mut told = String::new();
    // The server may have gone without reading it.
    drop(waiting.read_to_string(&mut told));
    assert!(!told.contains("\"exit\":0"), "{told}");
    assert!(!folder.path().join("backup").exists());
    drop(deaf);
    let names = fs::read_dir(folder.path()).unwrap();
    assert_eq!(names.count(), 1, "something of the backup is left");
}
