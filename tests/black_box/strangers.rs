//! Documents, records and servers of several logs beside one `www`.
//!
//! Shell: processes, files. No shown URL gets other contents, nothing acknowledged is hidden, and what is left out is named.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    displaced::{DOCUMENTS, begun, publish},
    harness::{Server, check_folder, copy_folder, files, ids, pause, program, run, text, wait_for},
    replaced::{ONE_URL, recovered, recovered_with},
};

/// Makes a log of eight entries and its later state of fifteen, in the folders `older` and `later`.
fn older_and_later(folder: &Path) -> [PathBuf; 2] {
    let [older, later] = ["older", "later"].map(|name| folder.join(name));
    let server = Server::start(&later, &ONE_URL);
    server.publish_ids("a", (0..8).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    copy_folder(&later, &older);
    let server = Server::start(&later, &ONE_URL);
    server.publish_ids("a", (0..7).map(|n| format!("later-{n}")));
    server.wait_until_frozen("/feeds/a/4.atom");
    server.stop();
    [older, later]
}

/// Goal: where an older log stands beside later documents that have one copy each, the way out gives no shown URL other
/// contents, and names what it leaves out.
#[test]
fn a_recovery_takes_documents_without_a_second_copy() {
    let folder = tempfile::tempdir().unwrap();
    let [older, later] = older_and_later(folder.path());
    let (number, shown) = (4, later.join("www/feeds/a"));
    for (kept, end) in [("files", ".atom"), ("twins", ".gz")] {
        let data = folder.path().join(kept);
        copy_folder(&older, &data);
        let www = data.join("www/feeds/a");
        for document in 1..=number {
            for end in ["", ".gz"] {
                drop(fs::remove_file(www.join(format!("{document}.atom{end}"))));
            }
            let name = match end {
                ".gz" => format!("{document}.atom.gz"),
                _ => format!("{document}.atom"),
            };
            fs::copy(shown.join(&name), www.join(&name)).unwrap();
        }
        let to = folder.path().join(format!("{kept}-recovered"));
        let (code, said) = recovered(&data, &to);
        assert_eq!(code, Some(15), "{said}");
        let server = Server::start(&to, &ONE_URL);
        for document in 1..=number {
            let found = server.get(&format!("/feeds/a/{document}.atom"));
            let bytes = fs::read(shown.join(format!("{document}.atom"))).unwrap();
            assert!(found.body == bytes, "{kept}: {document}.atom: {said}");
        }
        assert_eq!(ids(&server, "a").len(), 12, "{said}");
        server.stop();
    }
    // One alone is proven by nothing, so it is left out, and its URL gets nothing else.
    let data = folder.path().join("alone");
    copy_folder(&older, &data);
    fs::copy(shown.join("4.atom"), data.join("www/feeds/a/4.atom")).unwrap();
    let server = Server::start(&data, &ONE_URL);
    let went_on = (0..8).take_while(|n| publish(&server, &format!("other-{n}")) == 201);
    assert!(went_on.count() >= 4);
    server.wait_for_log(&["takes no entries", "simplefeed-server recover"]);
    drop(server.end("TERM"));
    let to = folder.path().join("alone-recovered");
    let (code, said) = recovered(&data, &to);
    assert_eq!(code, Some(15), "{said}");
    assert!(
        said.contains("4.atom is of another log, or damaged, and is left out"),
        "{said}"
    );
    let server = Server::start(&to, &ONE_URL);
    assert_eq!(server.get("/feeds/a/4.atom").status, 404);
    server.stop();
}

/// Goal: records of a later log beside an older one hide no entry of the older one, and its documents are found.
/// Method: a copy of an older folder over the later one, of which a feed had no document yet.
#[test]
fn records_of_a_later_log_hide_nothing() {
    let cases = [(false, false), (true, false), (false, true), (true, true)];
    for (has_documents, in_one_request) in cases {
        let folder = tempfile::tempdir().unwrap();
        let [data, older] = ["data", "older"].map(|name| folder.path().join(name));
        let server = Server::start(&data, &ONE_URL);
        server.publish_ids("a", ["0".to_owned(), "1".to_owned()]);
        server.stop();
        copy_folder(&data, &older);
        let server = Server::start(&data, &ONE_URL);
        server.publish_ids("a", (0..8).map(|n| format!("later-{n}")));
        server.wait_until_frozen("/feeds/a/3.atom");
        server.stop();
        if !has_documents {
            fs::remove_dir_all(data.join("www")).unwrap();
            fs::remove_dir_all(data.join("sidecars")).unwrap();
        }
        // As `rsync` without `--delete`.
        let mut copy = Command::new("cp");
        let copied = copy.arg("-a").arg(older.join(".")).arg(&data).status();
        assert!(copied.unwrap().success());
        assert!(data.join("views/archive-files/a.manifest").exists());
        // In the second in which both logs went on they have the same instants.
        pause(Duration::from_millis(1_100));
        let server = Server::start(&data, &ONE_URL);
        let index = server.get("/feeds/a/index.json").text();
        assert!(!index.contains("1.atom"), "{index}");
        let mut acknowledged = vec!["urn:t:0".to_owned(), "urn:t:1".to_owned()];
        let others = (0..15).map(|n| format!("other-{n}"));
        if in_one_request {
            // It closes more documents than there are records.
            let lines = others
                .clone()
                .map(|id| format!("{{\"id\":\"urn:t:{id}\"}}\n"));
            let answer = server.publish("a", &lines.collect::<String>());
            assert_eq!(answer.status, 201, "{}", answer.text());
            acknowledged.extend(others.map(|id| format!("urn:t:{id}")));
        } else {
            let stored = others.filter(|id| publish(&server, id) == 201);
            acknowledged.extend(stored.map(|id| format!("urn:t:{id}")));
        }
        if has_documents {
            server.wait_for_log(&["takes no entries", "simplefeed-server recover"]);
            assert_eq!(ids(&server, "a"), acknowledged);
            let (code, said) = server.end("TERM").unwrap();
            assert_eq!(code, Some(15), "{said:#?}");
        } else {
            assert_eq!(acknowledged.len(), 17);
            server.wait_until_frozen("/feeds/a/5.atom");
            assert_eq!(ids(&server, "a"), acknowledged);
            server.stop();
            check_folder("verify", &data);
        }
    }
}

/// Goal: where another restoration has left documents beside a log, `recover` takes the log's own ones and names the others.
#[test]
fn a_recovery_takes_the_own_documents_first() {
    let folder = tempfile::tempdir().unwrap();
    let [data, backup, www] = ["data", "backup", "www"].map(|name| folder.path().join(name));
    let www_option = ["--www", www.to_str().unwrap()];
    let options = [&ONE_URL[..], &www_option].concat();
    let server = Server::start(&data, &options);
    server.publish_ids("a", (0..4).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/1.atom");
    server.stop();
    let paths = [&data, &www, &backup].map(|path| path.to_str().unwrap());
    let arguments = [
        "backup", "--data", paths[0], "--www", paths[1], "--to", paths[2],
    ];
    let output = run("simplefeed-server", &arguments, b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let server = Server::start(&data, &options);
    server.publish_ids("a", (4..12).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/3.atom");
    server.stop();
    // The older backup is served over the same folder by mistake.
    let server = Server::start(&backup, &options);
    // It reaches further than the right one.
    server.publish_ids("a", (0..20).map(|n| format!("restored-{n}")));
    let written = || (files(&www).len() >= 17).then_some(());
    wait_for("the restored log archives nothing", written);
    server.stop();
    let server = Server::start(&data, &options);
    server.publish_ids("a", (12..15).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/4.atom");
    server.stop();
    let is_of_other = |name: &str| name.contains('-');
    for (is_lost, has_twins) in [(false, true), (true, true), (false, false), (true, false)] {
        if !has_twins {
            // Of the other restoration, one copy is left of each.
            for (path, _) in files(&www) {
                let name = path.strip_prefix(&www).unwrap().to_str().unwrap();
                if is_of_other(name) && name.ends_with("gz") {
                    fs::remove_file(&path).unwrap();
                }
            }
        }
        let (old, to) = (folder.path().join("old"), folder.path().join("new"));
        copy_folder(&data, &old);
        if is_lost {
            for name in ["journal", "sled"] {
                fs::remove_dir_all(old.join(name)).unwrap();
            }
            fs::remove_file(old.join("witness")).unwrap();
        }
        let (code, said) = recovered_with(&old, &www, &to);
        assert_eq!(code, Some(15), "{said}");
        assert!(
            said.contains("2-") && said.contains("is left out"),
            "{said}"
        );
        let server = Server::start(&to, &ONE_URL);
        for document in 1..=4 {
            let found = server.get(&format!("/feeds/a/{document}.atom"));
            let bytes = fs::read(www.join(format!("feeds/a/{document}.atom"))).unwrap();
            assert!(found.body == bytes, "{document}.atom: {said}");
        }
        let entries = if is_lost { 12 } else { 15 };
        assert_eq!(ids(&server, "a").len(), entries, "{said}");
        server.stop();
        fs::remove_dir_all(&old).unwrap();
        fs::remove_dir_all(&to).unwrap();
    }
}

/// Goal: two servers never write documents into one folder.
#[test]
fn a_www_of_another_server_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let [data, other] = ["data", "other"].map(|name| folder.path().join(name));
    let server = begun(&data);
    let www = data.join("www");
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--data"];
    let mut command = Command::new(program("simplefeed-server"));
    command.args(arguments).arg(&other);
    command.arg("--www").arg(&www).args(DOCUMENTS);
    let refused = command.output().unwrap();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(11), "{said}");
    assert!(said.contains("www is in use by another process"), "{said}");
    server.stop();
    // Once it is free, the other one may have it.
    let server = Server::start(&other, &["--www", www.to_str().unwrap()]);
    assert_eq!(publish(&server, "first"), 201);
    server.stop();
}
