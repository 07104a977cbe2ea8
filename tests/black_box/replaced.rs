//! A log beside the documents of another one: an older copy, a feed that was made again, another server's `www`.
//!
//! Shell: processes, files. Documents are immutable: whoever's they are, no log gives their URLs other contents.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    displaced::{DOCUMENTS, begun, publish, refused},
    harness::{Server, check_folder, copy_folder, files, ids, run, text, wait_for},
    http::Request,
};

/// Note that a log has met a document of another one.
const NOTE: &str = "views/archive-files/replaced";

/// Goal: an older log overwrites no immutable file of a later one, also where only `www` is later.
#[test]
fn an_older_log_overwrites_no_file_of_a_later_one() {
    // The older one goes on with documents of the same length, and of others.
    for length in ["3", "2", "5"] {
        an_older_log_goes_on(length);
    }
}

fn an_older_log_goes_on(length: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [data, older] = ["data", "older"].map(|name| folder.path().join(name));
    // Documents contain the public URL, and their bytes are compared.
    let options = [&DOCUMENTS[..], &["--public-url", "http://127.0.0.1:9"]].concat();
    let server = Server::start(&data, &options);
    server.publish_ids("a", (0..8).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    copy_folder(&data, &older);
    let server = Server::start(&data, &options);
    server.publish_ids("a", (0..8).map(|n| format!("later-{n}")));
    server.wait_until_frozen("/feeds/a/4.atom");
    server.stop();
    let shown = data.join("www/feeds/a");
    let served = files(&shown);
    fs::remove_dir_all(older.join("www")).unwrap();
    fs::rename(data.join("www"), older.join("www")).unwrap();
    fs::rename(&data, folder.path().join("later")).unwrap();
    fs::rename(&older, &data).unwrap();
    let others = [
        "--document-entries",
        length,
        "--public-url",
        "http://127.0.0.1:9",
    ];
    let first = Server::start(&data, &others);
    // Some of them come too late.
    let other: Vec<_> = (0..4)
        .map(|n| format!("other-{n}"))
        .take_while(|id| publish(&first, id) == 201)
        .collect();
    first.wait_for_log(&["takes no entries", "simplefeed-server recover"]);
    assert_eq!(publish(&first, "more"), 503);
    let ready = first.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(
        ready.text().contains("simplefeed-server recover"),
        "{}",
        ready.text()
    );
    let (code, said) = first.end("TERM").unwrap();
    assert_eq!(code, Some(15), "{said:#?}");
    // Nothing more is acknowledged by a log that has to be recovered.
    let (code, said) = refused(&data);
    assert_eq!(code, Some(15), "{said}");
    assert!(said.contains("has other contents"), "{said}");
    for (path, bytes) in &served {
        let found = fs::read(path).unwrap();
        assert!(found == *bytes, "{} was overwritten", path.display());
    }
    let command = |name: &str, more: &[&str]| {
        let arguments = [&[name, "--data", data.to_str().unwrap()], more].concat();
        let output = run("simplefeed-server", &arguments, b"");
        (
            output.status.code(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };
    let (code, said) = command("rebuild", &[]);
    assert_eq!(code, Some(15), "{said}");
    assert!(said.contains("simplefeed-server recover"), "{said}");
    let recovered = folder.path().join("recovered");
    let (code, said) = command("recover", &["--to", recovered.to_str().unwrap()]);
    assert_eq!(code, Some(15), "{said}");
    assert!(!said.contains("unfinished work"), "{said}");
    let server = Server::start(&recovered, &options);
    let found = ids(&server, "a");
    // The documents of the later log are shown, and the other entries of the older log are named and can be read.
    let later = (0..8)
        .map(|n| n.to_string())
        .chain((0..7).map(|n| format!("later-{n}")));
    let later: Vec<_> = later.map(|id| format!("urn:t:{id}")).collect();
    assert_eq!(found, later, "{length}: {said}");
    let told = format!("its {} entries from there on are left out", other.len());
    assert!(said.contains(&told), "{length}: {said}");
    let copy = folder.path().join("copy");
    copy_folder(&data, &copy);
    fs::remove_dir_all(copy.join("www")).unwrap();
    let read = Server::start(&copy, &options);
    let found = ids(&read, "a");
    assert!(
        other
            .iter()
            .all(|id| found.contains(&format!("urn:t:{id}")))
    );
    read.stop();
    for (path, bytes) in served {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.extension().is_some_and(|end| end == "atom") {
            assert_eq!(
                server.get(&format!("/feeds/a/{name}")).body,
                bytes,
                "{name}"
            );
        }
    }
    server.stop();
    // The note is void for the right log.
    let right = folder.path().join("later");
    fs::rename(data.join("www"), right.join("www")).unwrap();
    fs::copy(data.join(NOTE), right.join(NOTE)).unwrap();
    let server = Server::start(&right, &options);
    assert_eq!(ids(&server, "a").len(), 16);
    server.stop();
}

/// Goal: a feed that is made again overwrites no document of the former one, and `recover` names these.
#[test]
fn a_feed_that_is_made_again_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [data, again, recovered] =
        ["data", "again", "recovered"].map(|name| folder.path().join(name));
    begun(&data).stop();
    let www = data.join("www");
    let served = files(&www);
    let options = [&DOCUMENTS[..], &["--www", www.to_str().unwrap()]].concat();
    let server = Server::start(&again, &options);
    let acknowledged = (0..8).take_while(|n| publish(&server, &format!("again-{n}")) == 201);
    let acknowledged = acknowledged.count();
    assert!(acknowledged >= 4, "{acknowledged}");
    server.wait_for_log(&["takes no entries", "simplefeed-server recover"]);
    assert_eq!(publish(&server, "more"), 503);
    let (code, said) = server.end("TERM").unwrap();
    assert_eq!(code, Some(15), "{said:#?}");
    assert!(files(&www) == served, "a document was overwritten");
    let listen = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data",
        again.to_str().unwrap(),
    ];
    let output = run("simplefeed-server", &[&listen[..], &options].concat(), b"");
    assert_eq!(output.status.code(), Some(15), "{}", text(&output.stderr));
    let (code, said) = recovered_with(&again, &www, &recovered);
    assert_eq!(code, Some(15), "{said}");
    for document in ["1.atom", "2.atom"] {
        let named = format!("{document} is of another feed that had this name");
        let line = said.lines().find(|line| line.contains(&named));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains("3 entries are only in the log"), "{line}");
    }
    let server = Server::start(&recovered, &options);
    for document in ["1.atom", "2.atom"] {
        let answer = server.get(&format!("/feeds/a/{document}"));
        assert_eq!(answer.status, 404, "{document}");
    }
    // The document that was open in the recovered log has a second name, which the former feed has given a document.
    server.publish_ids("a", (0..8).map(|n| format!("since-{n}")));
    let has_grown = || (files(&www).len() >= served.len() + 6).then_some(());
    wait_for("no document of the recovered log is written", has_grown);
    server.stop();
    unchanged(&served);
    // With its own documents, the log is the right one, and goes on.
    let server = Server::start(&again, &DOCUMENTS);
    assert_eq!(ids(&server, "a").len(), acknowledged);
    server.publish_ids("a", (0..8).map(|n| format!("own-{n}")));
    server.wait_until_frozen("/feeds/a/4.atom");
    server.stop();
    check_folder("verify", &again);
}

/// Options of servers that start at one folder: another URL at each start would cut documents.
pub(crate) const ONE_URL: [&str; 4] = [
    DOCUMENTS[0],
    DOCUMENTS[1],
    "--public-url",
    "http://127.0.0.1:9",
];

fn set_closed(server: &Server, is_closed: bool) {
    let settings = format!("{{\"closed\":{is_closed}}}");
    let answer = server.send(&Request::put("/feeds/a", &settings));
    assert!(answer.status < 300, "{}", answer.text());
}

/// Makes two logs that part: in the first one, a closed feed is opened and goes on; in the older one it stays closed, and
/// goes on with other entries.
fn opened_later(folder: &tempfile::TempDir) -> [PathBuf; 2] {
    let [data, older] = ["data", "older"].map(|name| folder.path().join(name));
    let server = Server::start(&data, &ONE_URL);
    set_closed(&server, true);
    server.publish_ids("a", (0..5).map(|n| n.to_string()));
    wait_for_file(&data.join("closed/feeds/a/1.atom"));
    server.stop();
    copy_folder(&data, &older);
    let server = Server::start(&data, &ONE_URL);
    set_closed(&server, false);
    server.publish_ids("a", (0..8).map(|n| format!("later-{n}")));
    server.wait_until_frozen("/feeds/a/4.atom");
    server.stop();
    // It shows nothing.
    assert!(!older.join("www/feeds").exists());
    let server = Server::start(&older, &ONE_URL);
    server.publish_ids("a", (0..3).map(|n| format!("other-{n}")));
    wait_for_file(&older.join("closed/feeds/a/2.atom"));
    server.stop();
    [data, older]
}

/// Goal: a closed feed of an older log overwrites nothing when it is opened.
#[test]
fn a_closed_feed_that_is_opened_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [data, older] = opened_later(&folder);
    let to = folder.path().join("to");
    let _nothing = fs::remove_dir_all(older.join("www"));
    fs::rename(data.join("www"), older.join("www")).unwrap();
    let served = files(&older.join("www/feeds/a"));
    let server = Server::start(&older, &ONE_URL);
    set_closed(&server, false);
    refuses_entries(server);
    unchanged(&served);
    // What was shown counts, and the documents that were closed are named.
    let (code, said) = recovered(&older, &to);
    assert_eq!(code, Some(15), "{said}");
    for told in [
        "from position 5 on, the log is not the one whose documents were shown: its 3 entries",
        "has 2.atom with other contents, which are left out",
    ] {
        assert!(said.contains(told), "{said}");
    }
    for (path, bytes) in &served {
        let made = fs::read(to.join(path.strip_prefix(&older).unwrap()));
        assert!(
            made.is_ok_and(|made| made == *bytes),
            "{}: {said}",
            path.display()
        );
    }
}

/// Goal: a recovery keeps what was shown of a feed that is still closed in the older log, and says so, also where the later
/// log's facts came along, or the older one's own files are lost.
#[test]
fn what_was_shown_of_a_closed_feed_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let [data, older] = opened_later(&folder);
    let _nothing = fs::remove_dir_all(older.join("www"));
    copy_folder(&data.join("www"), &older.join("www"));
    for (name, with_sidecars, loses) in [
        ("plain", false, false),
        ("facts", true, false),
        ("lost", false, true),
    ] {
        let from = folder.path().join(name);
        copy_folder(&older, &from);
        if with_sidecars {
            fs::remove_dir_all(from.join("sidecars")).unwrap();
            copy_folder(&data.join("sidecars"), &from.join("sidecars"));
        }
        if loses {
            fs::remove_file(from.join("closed/feeds/a/2.atom")).unwrap();
            fs::remove_file(from.join("closed/feeds/a/2.atom.gz")).unwrap();
        }
        let to = folder.path().join(format!("{name}-to"));
        let (code, said) = recovered(&from, &to);
        assert_eq!(code, Some(15), "{name}: {said}");
        // The later log's facts have its settings, by which the feed is open.
        assert_eq!(
            said.contains("documents of it were shown"),
            !with_sidecars,
            "{said}"
        );
        let tree = if with_sidecars { "www" } else { "closed" };
        for (path, bytes) in files(&from.join("www/feeds/a")) {
            if path.extension().is_some_and(|end| end == "atom") {
                let made = fs::read(
                    to.join(tree)
                        .join("feeds/a")
                        .join(path.file_name().unwrap()),
                );
                assert!(
                    made.is_ok_and(|made| made == bytes),
                    "{name}: {}: {said}",
                    path.display()
                );
            }
        }
    }
}

/// Goal: a document with rot, whose twin is gone, is damage in the log that made it, also where that has forgotten its
/// records.
#[test]
fn rot_without_a_twin_is_no_other_log() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    begun(&data).stop();
    let own = files(&data.join("www/feeds/a"));
    let path = data.join("www/feeds/a/1.atom");
    let rotten = fs::read_to_string(&path)
        .unwrap()
        .replacen("urn:t:0", "urn:t:x", 1);
    fs::write(&path, rotten).unwrap();
    fs::remove_file(path.with_extension("atom.gz")).unwrap();
    fs::remove_dir_all(data.join("views")).unwrap();
    let server = Server::start(&data, &DOCUMENTS);
    server.publish_ids("a", (0..8).map(|n| format!("more-{n}")));
    server.stop();
    unchanged(&own);
    check_folder("verify", &data);
}

/// Goal: an older log overwrites no document of a later one whose compressed twin is gone, or is no file.
#[test]
fn an_older_log_overwrites_no_file_without_its_twin() {
    for is_pipe in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let [data, older] = ["data", "older"].map(|name| folder.path().join(name));
        let server = Server::start(&data, &DOCUMENTS);
        server.publish_ids("b", ["0".to_owned()]);
        server.stop();
        copy_folder(&data, &older);
        let server = Server::start(&data, &DOCUMENTS);
        server.publish_ids("a", (0..8).map(|n| format!("later-{n}")));
        server.wait_until_frozen("/feeds/a/2.atom");
        server.stop();
        let _nothing = fs::remove_dir_all(older.join("www"));
        fs::rename(data.join("www"), older.join("www")).unwrap();
        let mut served = files(&older.join("www/feeds/a"));
        served.retain(|(path, _)| path.extension().is_some_and(|end| end == "atom"));
        for (path, _) in &served {
            let twin = path.with_extension("atom.gz");
            fs::remove_file(&twin).unwrap();
            if is_pipe {
                let made = std::process::Command::new("mkfifo").arg(&twin).status();
                assert!(made.unwrap().success());
            }
        }
        let server = Server::start(&older, &DOCUMENTS);
        let other = (0..8).take_while(|n| publish(&server, &format!("other-{n}")) == 201);
        assert!(other.count() >= 4);
        server.wait_for_log(&["takes no entries"]);
        let (code, said) = server.end("TERM").unwrap();
        assert_eq!(code, Some(15), "{said:#?}");
        unchanged(&served);
    }
}

/// Makes two logs that part behind two documents, and puts the documents of the first one beside the older one, for which
/// `goes_on` is called before with a folder of its own. Returns the older one, and the documents of the first.
fn beside_later_documents(
    folder: &tempfile::TempDir,
    goes_on: impl FnOnce(&Path),
) -> (PathBuf, Vec<(PathBuf, Vec<u8>)>) {
    let [data, older] = ["data", "older"].map(|name| folder.path().join(name));
    let server = Server::start(&data, &ONE_URL);
    server.publish_ids("a", (0..8).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    copy_folder(&data, &older);
    let server = Server::start(&data, &ONE_URL);
    server.publish_ids("a", (0..12).map(|n| format!("later-{n}")));
    server.wait_until_frozen("/feeds/a/6.atom");
    server.stop();
    goes_on(&older);
    fs::remove_dir_all(older.join("www")).unwrap();
    fs::rename(data.join("www"), older.join("www")).unwrap();
    let served = files(&older.join("www/feeds/a"));
    (older, served)
}

/// Waits until a server takes no more entries because of another log's document, and ends it. It may have said so before it
/// listened.
#[track_caller]
fn refuses_entries(server: Server) {
    wait_for("it goes on", || {
        (server.get("/readyz").status == 503).then_some(())
    });
    let (code, said) = server.end("TERM").unwrap();
    assert_eq!(code, Some(15), "{said:#?}");
}

/// Checks that a log refuses to go on, and has overwritten nothing.
#[track_caller]
fn goes_on_over_nothing(older: &Path, served: &[(PathBuf, Vec<u8>)]) {
    let server = Server::start(older, &ONE_URL);
    for n in 0..4 {
        publish(&server, &format!("other-{n}"));
    }
    refuses_entries(server);
    let (code, said) = refused(older);
    assert_eq!(code, Some(15), "{said}");
    unchanged(served);
}

/// Goal: an older log overwrites no document of a later one of which one copy is damaged or gone.
#[test]
fn an_older_log_overwrites_no_copy_that_is_left() {
    for damage in ["lost", "rotten", "unreadable", "other twin", "empty twin"] {
        let folder = tempfile::tempdir().unwrap();
        let (older, mut served) = beside_later_documents(&folder, |_| {});
        for (path, bytes) in &mut served {
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_later = ["3.atom", "4.atom", "5.atom", "6.atom"].contains(&name);
            let twin = path.with_extension("atom.gz");
            if is_later && damage == "lost" {
                fs::remove_file(&*path).unwrap();
            } else if is_later && damage == "other twin" {
                fs::copy(twin.with_file_name("2.atom.gz"), twin).unwrap();
            } else if is_later && damage == "empty twin" {
                let mut none = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
                none.try_finish().unwrap();
                fs::write(twin, none.finish().unwrap()).unwrap();
            } else if is_later {
                let rot = if damage == "rotten" { b'x' } else { 1 };
                let at = bytes
                    .windows(6)
                    .position(|piece| piece == b"urn:t:")
                    .unwrap();
                bytes[at + 6] = rot;
                fs::write(&*path, bytes).unwrap();
            }
        }
        // These twins were not shown.
        served.retain(|(path, _)| {
            let is_twin = path.extension().is_some_and(|end| end == "gz");
            path.exists() && !(is_twin && damage.ends_with("twin"))
        });
        goes_on_over_nothing(&older, &served);
    }
}

/// Goal: an older log that was served with a folder of its own overwrites no document of a later one, though its sidecars
/// tell of its own; and `recover` names such a document. The twin alone proves it, since it has a checksum.
#[test]
fn a_sidecar_excuses_no_whole_document() {
    for has_file in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (older, mut served) = beside_later_documents(&folder, |older| {
            let server = Server::start(older, &ONE_URL);
            server.publish_ids("a", (0..2).map(|n| format!("other-{n}")));
            server.wait_until_frozen("/feeds/a/3.atom");
            server.stop();
            fs::remove_dir_all(older.join("views")).unwrap();
        });
        if !has_file {
            fs::remove_file(older.join("www/feeds/a/3.atom")).unwrap();
            served.retain(|(path, _)| path.exists());
        }
        let (code, said) = recovered(&older, &folder.path().join("to"));
        assert_eq!(code, Some(15), "{said}");
        assert!(said.contains("3.atom"), "{said}");
        goes_on_over_nothing(&older, &served);
    }
}

/// Returns the exit code and the messages of a recovery.
pub(crate) fn recovered(data: &Path, to: &Path) -> (Option<i32>, String) {
    recovery(data, to, &[])
}

/// Returns the exit code and the messages of a recovery from a log, and from documents elsewhere.
pub(crate) fn recovered_with(data: &Path, www: &Path, to: &Path) -> (Option<i32>, String) {
    recovery(data, to, &["--www", www.to_str().unwrap()])
}

fn recovery(data: &Path, to: &Path, more: &[&str]) -> (Option<i32>, String) {
    let paths = [data, to].map(|path| path.to_str().unwrap());
    let arguments = [&["recover", "--data", paths[0], "--to", paths[1]], more].concat();
    let output = run("simplefeed-server", &arguments, b"");
    let said = text(&output.stdout) + &text(&output.stderr);
    (output.status.code(), said)
}

/// Makes a backup of a log of two whole documents and two entries, and serves it. Returns the log, and the restored one.
fn restored_once(folder: &tempfile::TempDir, www: &str) -> [PathBuf; 2] {
    let [data, restored] = ["data", "restored"].map(|name| folder.path().join(name));
    let server = Server::start(&data, &ONE_URL);
    server.publish_ids("a", (0..8).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    let [from, to] = [&data, &restored].map(|path| path.to_str().unwrap());
    let arguments = ["backup", "--data", from, "--to", to];
    assert!(run("simplefeed-server", &arguments, b"").status.success());
    let options = [&ONE_URL[..], &["--www", www]].concat();
    let server = Server::start(&restored, &options);
    server.publish_ids("a", (0..6).map(|n| format!("restored-{n}")));
    wait_for_file(&Path::new(www).join("feeds/a/3.atom.gz"));
    server.stop();
    [data, restored]
}

/// Whether a path is that of one of the first three documents, under any of its names; the recent one and the index go on.
fn is_of_first_three(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.starts_with(['1', '2', '3'])
}

/// Goal: the second name of a document of a restored log, by which its predecessor leads to it, is overwritten neither by the
/// log that was restored nor by another restoration.
#[test]
fn the_second_name_of_a_restored_document_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let www = folder.path().join("www");
    let [data, _] = restored_once(&folder, www.to_str().unwrap());
    let mut served = files(&www.join("feeds/a"));
    served.retain(|(path, _)| is_of_first_three(path));
    assert!(served.iter().any(|(path, _)| path.ends_with("3.atom")));
    // Another restoration of the same moment leaves it alone.
    let again = folder.path().join("again");
    let [from, to] = [&data, &again].map(|path| path.to_str().unwrap());
    let arguments = ["backup", "--data", from, "--to", to];
    assert!(run("simplefeed-server", &arguments, b"").status.success());
    let options = [&ONE_URL[..], &["--www", www.to_str().unwrap()]].concat();
    let server = Server::start(&again, &options);
    server.publish_ids("a", (0..6).map(|n| format!("again-{n}")));
    server.wait_for_log(&["another document has this name, and is left alone"]);
    server.stop();
    unchanged(&served);
    // The log that was restored has no place, though its sidecar tells of its own document, and the file is alone.
    let server = Server::start(&data, &ONE_URL);
    server.publish_ids("a", (0..2).map(|n| format!("own-{n}")));
    server.wait_until_frozen("/feeds/a/3.atom");
    server.stop();
    fs::remove_dir_all(data.join("views")).unwrap();
    fs::remove_file(www.join("feeds/a/3.atom.gz")).unwrap();
    let served: Vec<_> = served
        .into_iter()
        .filter(|(path, _)| path.exists())
        .collect();
    let server = Server::start(&data, &options);
    for n in 0..4 {
        publish(&server, &format!("other-{n}"));
    }
    refuses_entries(server);
    unchanged(&served);
}

/// Goal: the second name of a closed feed's document of a restored log goes over no document that another one has shown: the
/// log goes on without it where that is a second name, too, and a recovery names the other one.
#[test]
fn the_second_name_of_a_closed_document_gives_way() {
    let folder = tempfile::tempdir().unwrap();
    let [data, first, again, www] =
        ["data", "first", "again", "www"].map(|name| folder.path().join(name));
    let server = Server::start(&data, &ONE_URL);
    set_closed(&server, true);
    server.publish_ids("a", (0..8).map(|n| n.to_string()));
    wait_for_file(&data.join("closed/feeds/a/2.atom.gz"));
    server.stop();
    let options = [&ONE_URL[..], &["--www", www.to_str().unwrap()]].concat();
    let kept = folder.path().join("kept");
    for restored in [&first, &again, &kept] {
        let [from, to] = [&data, restored].map(|path| path.to_str().unwrap());
        let arguments = ["backup", "--data", from, "--to", to];
        assert!(run("simplefeed-server", &arguments, b"").status.success());
    }
    let close_third = |data: &Path, name: &str| {
        let server = Server::start(data, &options);
        server.publish_ids("a", (0..3).map(|n| format!("{name}-{n}")));
        wait_for_file(&data.join("closed/feeds/a/3.atom.gz"));
        server
    };
    let open = |server: &Server| {
        set_closed(server, false);
        server.wait_until_frozen("/feeds/a/2.atom");
    };
    let server = close_third(&first, "first");
    open(&server);
    server.stop();
    let mut served = files(&www.join("feeds/a"));
    served.retain(|(path, _)| is_of_first_three(path));
    let server = close_third(&again, "again");
    open(&server);
    assert_eq!(publish(&server, "more"), 201);
    server.stop();
    unchanged(&served);

    // The log that was restored shows a document of its own under that name.
    fs::remove_dir_all(&www).unwrap();
    close_third(&kept, "kept").stop();
    let server = close_third(&data, "own");
    open(&server);
    server.stop();
    assert!(www.join("feeds/a/3.atom").exists());
    for has_views in [true, false] {
        let closed = folder.path().join(format!("closed-{has_views}"));
        copy_folder(&kept, &closed);
        if !has_views {
            fs::remove_dir_all(closed.join("views")).unwrap();
        }
        let to = folder.path().join(format!("to-{has_views}"));
        let (code, said) = recovered_with(&closed, &www, &to);
        assert_eq!(code, Some(15), "{said}");
        for told in [
            "3.atom is of the time before a restoration",
            "has 3.atom with other contents",
        ] {
            assert!(said.contains(told), "{said}");
        }
    }
}

/// Goal: the second name of a document stands in for it in a recovery without records.
#[test]
fn a_second_name_hides_no_document() {
    let folder = tempfile::tempdir().unwrap();
    let www = folder.path().join("restored/www");
    let [_, restored] = restored_once(&folder, www.to_str().unwrap());
    let shown = files(&www.join("feeds/a"));
    let is_renamed = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("3-")
    };
    for (path, _) in shown.iter().filter(|(path, _)| is_renamed(path)) {
        fs::remove_file(path).unwrap();
    }
    fs::remove_dir_all(restored.join("views")).unwrap();
    let to = folder.path().join("to");
    let (code, said) = recovered(&restored, &to);
    assert_eq!(code, Some(0), "{said}");
    for (path, bytes) in shown {
        if is_of_first_three(&path) {
            let made = fs::read(to.join("www/feeds/a").join(path.file_name().unwrap()));
            let is_same = made.is_ok_and(|made| made == bytes);
            assert!(is_same, "{}: {said}", path.display());
        }
    }
}

/// Goal: where the move of an opened feed was cut off, rot in one of the copies stops no log; a twin alone overwrites no
/// document of another log.
#[test]
fn a_move_that_was_cut_off_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &ONE_URL);
    set_closed(&server, true);
    server.publish_ids("a", (0..8).map(|n| n.to_string()));
    wait_for_file(&data.join("closed/feeds/a/2.atom.gz"));
    server.stop();
    let (closed, www) = (data.join("closed/feeds/a"), data.join("www/feeds/a"));
    let other = folder.path().join("other");
    let server = Server::start(&other, &ONE_URL);
    server.publish_ids("a", (0..8).map(|n| format!("other-{n}")));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();

    let cut = folder.path().join("cut");
    copy_folder(&data, &cut);
    let from = cut.join("closed/feeds/a");
    fs::create_dir_all(cut.join("www/feeds/a")).unwrap();
    fs::copy(from.join("1.atom.gz"), cut.join("www/feeds/a/1.atom.gz")).unwrap();
    let rotten = fs::read_to_string(from.join("1.atom")).unwrap();
    fs::write(
        from.join("1.atom"),
        rotten.replacen("urn:t:0", "urn:t:x", 1),
    )
    .unwrap();
    let server = Server::start(&cut, &ONE_URL);
    set_closed(&server, false);
    server.wait_until_frozen("/feeds/a/2.atom");
    assert_eq!(publish(&server, "more"), 201);
    server.stop();

    // A pair that is no document of its place gives way; a right twin whose file is not moved yet does not.
    for (there, is_right) in [("2.atom", false), ("1.atom.gz", true)] {
        let cut = folder.path().join(there);
        copy_folder(&data, &cut);
        let [from, to] = ["closed/feeds/a", "www/feeds/a"].map(|part| cut.join(part));
        fs::create_dir_all(&to).unwrap();
        if is_right {
            fs::copy(from.join(there), to.join(there)).unwrap();
            let twin = fs::read(from.join(there)).unwrap();
            fs::write(from.join(there), &twin[..twin.len() / 2]).unwrap();
        } else {
            for end in ["", ".gz"] {
                let place = to.join(format!("1.atom{end}"));
                fs::copy(from.join(format!("{there}{end}")), place).unwrap();
            }
        }
        let server = Server::start(&cut, &ONE_URL);
        set_closed(&server, false);
        server.wait_until_frozen("/feeds/a/2.atom");
        server.stop();
        for name in ["1.atom", "1.atom.gz", "2.atom", "2.atom.gz"] {
            let found = fs::read(to.join(name)).unwrap();
            assert!(
                found == fs::read(closed.join(name)).unwrap(),
                "{there}: {name}"
            );
        }
    }

    // The open tree has the right document, and the copies in the closed one are of no use.
    for damage in ["rotten", "cut"] {
        let cut = folder.path().join(damage);
        copy_folder(&data, &cut);
        let from = cut.join("closed/feeds/a");
        fs::create_dir_all(cut.join("www/feeds/a")).unwrap();
        for name in ["1.atom", "1.atom.gz"] {
            fs::copy(from.join(name), cut.join("www/feeds/a").join(name)).unwrap();
        }
        let right = files(&cut.join("www/feeds/a"));
        fs::write(
            from.join("1.atom"),
            rotten.replacen("urn:t:0", "urn:t:x", 1),
        )
        .unwrap();
        if damage == "cut" {
            for name in ["1.atom", "1.atom.gz"] {
                let bytes = fs::read(from.join(name)).unwrap();
                fs::write(from.join(name), &bytes[..bytes.len() / 2]).unwrap();
            }
        }
        let server = Server::start(&cut, &ONE_URL);
        set_closed(&server, false);
        server.wait_until_frozen("/feeds/a/2.atom");
        assert_eq!(publish(&server, "more"), 201);
        server.stop();
        unchanged(&right);
    }

    fs::create_dir_all(&www).unwrap();
    for name in ["2.atom", "2.atom.gz"] {
        fs::copy(other.join("www/feeds/a").join(name), www.join(name)).unwrap();
    }
    fs::remove_file(closed.join("2.atom")).unwrap();
    let served = files(&www);
    let server = Server::start(&data, &ONE_URL);
    set_closed(&server, false);
    refuses_entries(server);
    unchanged(&served);
}

/// Goal: a recovery that gives a shown URL other contents says so, as the log has them from before.
#[test]
fn a_recovery_names_whole_documents_that_it_leaves_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut own = vec![];
    let (older, _) = beside_later_documents(&folder, |older| {
        let server = Server::start(older, &ONE_URL);
        server.publish_ids("a", (0..2).map(|n| format!("other-{n}")));
        server.wait_until_frozen("/feeds/a/3.atom");
        server.stop();
        own = files(&older.join("www/feeds/a"));
    });
    let www = older.join("www/feeds/a");
    let third = ["3.atom", "3.atom.gz"].map(|name| (name, fs::read(www.join(name)).unwrap()));
    fs::remove_dir_all(&www).unwrap();
    fs::create_dir_all(&www).unwrap();
    for (path, bytes) in own {
        fs::write(path, bytes).unwrap();
    }
    for (name, bytes) in third {
        fs::write(www.join(name), bytes).unwrap();
    }
    let (code, said) = recovered(&older, &folder.path().join("to"));
    assert_eq!(code, Some(15), "{said}");
    assert!(
        said.contains("has 3.atom with other contents, which are left out"),
        "{said}"
    );
}

/// Goal: a feed that is closed in an older log gives no other contents to the URLs of a later log's open one.
#[test]
fn a_closed_feed_overwrites_no_open_one() {
    let folder = tempfile::tempdir().unwrap();
    let [data, older, to] = ["data", "older", "to"].map(|name| folder.path().join(name));
    let options = [&DOCUMENTS[..], &["--public-url", "http://127.0.0.1:9"]].concat();
    let server = Server::start(&data, &options);
    server.publish_ids("b", ["0".to_owned()]);
    server.stop();
    copy_folder(&data, &older);
    let server = Server::start(&data, &options);
    server.publish_ids("a", (0..8).map(|n| format!("later-{n}")));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    let _nothing = fs::remove_dir_all(older.join("www"));
    fs::remove_dir_all(older.join("views")).unwrap();
    fs::rename(data.join("www"), older.join("www")).unwrap();
    let served = files(&older.join("www/feeds/a"));
    let server = Server::start(&older, &options);
    let answer = server.send(&Request::put("/feeds/a", "{\"closed\":true}"));
    assert!(answer.status < 300, "{}", answer.text());
    let other = (0..8).take_while(|n| publish(&server, &format!("other-{n}")) == 201);
    assert!(other.count() >= 4);
    server.wait_for_log(&["takes no entries"]);
    let (code, said) = server.end("TERM").unwrap();
    assert_eq!(code, Some(15), "{said:#?}");
    unchanged(&served);
    let (code, said) = recovered(&older, &to);
    assert_eq!(code, Some(15), "{said}");
    assert!(
        said.contains("1.atom is of another feed that had this name"),
        "{said}"
    );
}

/// Goal: documents of another server that were copied over those of the right log are damage, which `rebuild` mends.
#[test]
fn rebuild_mends_what_was_copied_over_documents() {
    let folder = tempfile::tempdir().unwrap();
    let [data, other] = ["data", "other"].map(|name| folder.path().join(name));
    begun(&data).stop();
    begun(&other).stop();
    let own = files(&data.join("www/feeds/a"));
    for (path, _) in &own {
        let name = path.file_name().unwrap();
        fs::copy(other.join("www/feeds/a").join(name), path).unwrap();
    }
    let arguments = ["rebuild", "--data", data.to_str().unwrap()];
    let output = run("simplefeed-server", &arguments, b"");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    unchanged(&own);
    check_folder("verify", &data);
}

/// Goal: `recover` takes the log's own entries, and no documents that a restoration gave up.
/// Method: a restored backup is served with the documents of the time after the backup.
#[test]
fn a_recovery_leaves_out_what_a_restoration_gave_up() {
    // The new epoch archives no document, or some of the same numbers.
    for own in [2, 8] {
        a_restoration_gives_documents_up(own);
    }
}

fn a_restoration_gives_documents_up(own: usize) {
    let folder = tempfile::tempdir().unwrap();
    let [data, backup, www, to] =
        ["data", "backup", "www", "to"].map(|name| folder.path().join(name));
    let options = [&DOCUMENTS[..], &["--www", www.to_str().unwrap()]].concat();
    let command = |name: &str, data: &Path, to: &Path| {
        let paths = [data, &www, to].map(|path| path.to_str().unwrap());
        let arguments = [
            name, "--data", paths[0], "--www", paths[1], "--to", paths[2],
        ];
        let output = run("simplefeed-server", &arguments, b"");
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.code(), said)
    };
    let server = Server::start(&data, &options);
    server.publish_ids("a", (0..7).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    let (code, said) = command("backup", &data, &backup);
    assert_eq!(code, Some(0), "{said}");
    let server = Server::start(&data, &options);
    server.publish_ids("a", (0..9).map(|n| format!("lost-{n}")));
    server.wait_until_frozen("/feeds/a/5.atom");
    server.stop();
    let served = files(&www.join("feeds/a"));
    let server = Server::start(&backup, &options);
    server.publish_ids("a", (0..own).map(|n| format!("own-{n}")));
    let acknowledged = ids(&server, "a");
    assert_eq!(acknowledged.len(), 7 + own);
    if own > 2 {
        let archived = || (files(&www.join("feeds/a")).len() >= served.len() + 4).then_some(());
        wait_for("no document of the new epoch is written", archived);
    }
    server.stop();
    unchanged(&served);
    let paths = [&backup, &www].map(|path| path.to_str().unwrap());
    let arguments = ["verify", "--data", paths[0], "--www", paths[1]];
    let verified = run("simplefeed-server", &arguments, b"");
    assert!(verified.status.success(), "{}", text(&verified.stdout));
    let (code, said) = command("recover", &backup, &to);
    assert_eq!(code, Some(15), "{said}");
    for document in ["3.atom", "4.atom", "5.atom"] {
        let named = format!("{document} is of the time before a restoration");
        assert!(said.contains(&named), "{own}: {said}");
    }
    let server = Server::start(&to, &DOCUMENTS);
    assert_eq!(ids(&server, "a"), acknowledged, "{said}");
    server.stop();
}

fn unchanged(served: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in served {
        let found = fs::read(path).unwrap();
        assert!(found == *bytes, "{} was overwritten", path.display());
    }
}

fn wait_for_file(path: &Path) {
    let complaint = format!("{} is not written", path.display());
    wait_for(&complaint, || path.exists().then_some(()));
}
