//! A data folder that is moved, replaced or changed under a running server.
//!
//! Shell: processes, files. What a server acknowledges, the next start on the same path must find; what it writes, it writes
//! into the folder that it has opened.

use std::{
    ffi::OsString,
    fs,
    io::Write as _,
    os::unix::fs::{FileExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    damage::wait_until_settled,
    faults::library,
    harness::{Server, check_folder, copy_folder, files, ids, pause, program, run, text, wait_for},
};

pub(crate) const DOCUMENTS: [&str; 2] = ["--document-entries", "3"];
/// Exit code of a server whose folder was displaced.
const DISPLACED: i32 = 16;

/// Returns a server over a new folder with entries and archived documents.
pub(crate) fn begun(data: &Path) -> Server {
    let server = Server::start(data, &DOCUMENTS);
    server.publish_ids("a", (0..8).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server
}

/// Returns the status of one more publication.
pub(crate) fn publish(server: &Server, id: &str) -> u16 {
    let line = format!("{{\"id\":\"urn:t:{id}\",\"content\":{{\"n\":\"{id}\"}}}}");
    server.publish("a", &line).status
}

/// Checks that a server takes no entries, says so, goes on answering, and ends with a code of its own.
fn check_displaced(server: Server, why: &str) {
    let line = "{\"id\":\"urn:t:more\",\"content\":{}}";
    let answer = server.publish("a", line);
    assert_eq!(answer.status, 503, "{}", answer.text());
    let again = server.publish("a", line);
    assert!(
        again
            .text()
            .contains("the data folder is not what the server opened"),
        "{}",
        again.text()
    );
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("data folder"), "{}", ready.text());
    assert_eq!(server.get("/healthz").status, 200);
    let (code, said) = server.end("TERM").unwrap();
    assert_eq!(code, Some(DISPLACED), "{said:#?}");
    assert!(said.iter().any(|line| line.contains(why)), "{said:#?}");
}

/// Goal: a folder that is moved away takes all of its server's files along, and one that gets its name gets none of them: a
/// second server may serve a restored backup there.
#[test]
fn a_folder_that_is_moved_away_takes_its_files_along() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let server = begun(&path("data"));
    let arguments = [
        "backup",
        "--data",
        path("data").to_str().unwrap(),
        "--to",
        path("backup").to_str().unwrap(),
    ]
    .map(str::to_owned);
    assert!(run("simplefeed-server", &arguments, b"").status.success());
    // These close documents, whose files are written once the folder is elsewhere.
    server.publish_ids("a", (8..20).map(|n| n.to_string()));
    fs::rename(path("data"), path("moved")).unwrap();
    fs::rename(path("backup"), path("data")).unwrap();
    let second = Server::start(&path("data"), &DOCUMENTS);
    second.publish_ids("a", (100..110).map(|n| n.to_string()));
    check_displaced(server, "does not lead to it");
    second.stop();
    check_folder("verify", &path("data"));
    check_folder("verify", &path("moved"));
    let server = Server::start(&path("moved"), &DOCUMENTS);
    // A request that was refused may be stored.
    assert!((20..=21).contains(&ids(&server, "a").len()));
    server.stop();
}

/// Goal: the link that the server was given decides, not the folder that it led to.
#[test]
fn a_link_that_leads_elsewhere_ends_publishing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    symlink(path("first"), path("data")).unwrap();
    fs::create_dir(path("first")).unwrap();
    let server = begun(&path("data"));
    copy_folder(&path("first"), &path("second"));
    fs::remove_file(path("data")).unwrap();
    symlink(path("second"), path("data")).unwrap();
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(server.get("/feeds/a/recent.atom").status, 200);
    check_displaced(server, "does not lead to it");
}

/// Goal: nothing is acknowledged into a file that the next start does not find, or finds damaged.
#[test]
fn a_journal_that_is_not_there_ends_publishing() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("unlinked", |file| fs::remove_file(file).unwrap()),
        ("renamed", |file| {
            fs::rename(file, file.with_extension("old")).unwrap()
        }),
        ("replaced", |file| {
            fs::copy(file, file.with_extension("new")).unwrap();
            fs::rename(file.with_extension("new"), file).unwrap();
        }),
        ("truncated", |file| {
            fs::File::options()
                .write(true)
                .open(file)
                .unwrap()
                .set_len(600)
                .unwrap()
        }),
        ("extended", |file| {
            fs::File::options()
                .append(true)
                .open(file)
                .unwrap()
                .write_all(b"x")
                .unwrap()
        }),
    ];
    for (name, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server = begun(&data);
        let journal = fs::read_dir(data.join("journal")).unwrap();
        let journal: Vec<PathBuf> = journal.map(|file| file.unwrap().path()).collect();
        assert_eq!(journal.len(), 1);
        damage(&journal[0]);
        // The path is followed once in 10 ms of publishing: a commit behind that is refused, whoever else has looked.
        pause(Duration::from_millis(20));
        assert_eq!(publish(&server, "gone"), 503, "{name}");
        let answer = server.get("/readyz");
        assert_eq!(answer.status, 503, "{name}");
        check_displaced(server, "was removed, replaced, cut or moved");
        // A copy with the same bytes is as good.
        if name == "replaced" {
            let server = Server::start(&data, &DOCUMENTS);
            assert_eq!(ids(&server, "a").len(), 8);
            server.stop();
            continue;
        }
        let (code, said) = refused(&data);
        assert_eq!(code, Some(15), "{name}: {said}");
        assert!(said.contains("simplefeed-server recover"), "{name}: {said}");
    }
}

/// Goal: a file that was cut does not get its length back from a commit that needs more room, nor is it left behind by one
/// that needs another file.
#[test]
fn a_journal_that_was_cut_takes_no_more_commits() {
    for (chapter_bytes, entry_bytes) in [(100_000_000, 100_000), (2_500, 10)] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut command = Command::new(program("simplefeed-test-server"));
        command
            .arg(&data)
            .args(["honest", "3", &chapter_bytes.to_string()]);
        let server = Server::try_spawn(command).unwrap();
        let content = "x".repeat(2_000);
        let entry = |id: &str, content: &str| {
            format!("{{\"id\":\"urn:t:{id}\",\"content\":{{\"n\":\"{content}\"}}}}\n")
        };
        // The chapter is full, and the next commit begins another one.
        assert_eq!(server.publish("a", &entry("1", &content)).status, 201);
        assert_eq!(server.publish("a", &entry("2", &content)).status, 201);
        let journal = fs::read_dir(data.join("journal")).unwrap();
        let journal = journal.map(|file| file.unwrap().path());
        let newest = journal.filter(|file| !file.ends_with("spare")).max();
        let newest = fs::File::options().write(true).open(newest.unwrap());
        newest.unwrap().set_len(600).unwrap();
        let answer = server.publish("a", &entry("3", &"y".repeat(entry_bytes)));
        assert_eq!(answer.status, 503, "{entry_bytes}: {}", answer.text());
        server.kill();
    }
}

/// Returns the exit code and the words of a server that must not start.
pub(crate) fn refused(data: &Path) -> (Option<i32>, String) {
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data",
        data.to_str().unwrap(),
    ];
    let output = run("simplefeed-server", &arguments, b"");
    (output.status.code(), text(&output.stderr))
}

/// Goal: a settling does not give up the journal's copy of commits for a copy that the next start does not find.
#[test]
fn settled_files_that_are_not_there_end_publishing() {
    for gone in ["sled/db", "sled", "witness"] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start_settling(folder.path(), 10, 20_000);
        server.publish_ids("a", (0..100).map(|n| n.to_string()));
        fs::rename(folder.path().join(gone), folder.path().join("gone")).unwrap();
        let mut acknowledged = 100;
        while publish(&server, &acknowledged.to_string()) == 201 {
            acknowledged += 1;
            assert!(acknowledged < 2_000, "{gone}: publishing goes on");
        }
        assert_eq!(server.get("/readyz").status, 503, "{gone}");
        server.kill();
        let place = folder.path().join(gone);
        if place.is_dir() {
            fs::remove_dir_all(&place).unwrap();
        }
        fs::rename(folder.path().join("gone"), place).unwrap();
        let server = Server::start_settling(folder.path(), 10, 20_000);
        assert!(ids(&server, "a").len() >= acknowledged, "{gone}");
        server.stop();
    }
}

/// Goal: a settled file that the next start would refuse ends publishing, also where nothing is settled for long.
#[test]
fn settled_files_that_are_cut_end_publishing() {
    let cut = |path: &Path, parts: u64| {
        let file = fs::File::options().write(true).open(path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length * parts / 8).unwrap();
    };
    let snapshot = |data: &Path| {
        let items = fs::read_dir(data.join("sled")).unwrap();
        let mut paths = items.map(|item| item.unwrap().path());
        let is_snapshot = |path: &PathBuf| path.to_string_lossy().contains("/snap.");
        paths.find(is_snapshot).unwrap()
    };
    for case in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server = Server::start_settling(&data, 10, 20_000);
        server.publish_ids("a", (0..400).map(|n| n.to_string()));
        // The next one settles nothing: its chapters are longer, and none is left in the middle of a settling.
        wait_until_settled(&data);
        server.stop();
        let server = Server::start(&data, &DOCUMENTS);
        assert_eq!(publish(&server, "before"), 201);
        assert_eq!(server.get("/readyz").status, 200);
        match case {
            0 => cut(&data.join("sled/db"), 0),
            1 => cut(&data.join("sled/db"), 3),
            2 => cut(&data.join("witness"), 4),
            3 => cut(&snapshot(&data), 4),
            _ => fs::remove_file(snapshot(&data)).unwrap(),
        }
        pause(Duration::from_millis(1_100));
        check_displaced(server, "was removed, replaced, cut or moved");
        let mut command = Command::new(program("simplefeed-server"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]);
        // One of the two halves of the witness is as good as both.
        if let Ok(server) = {
            command.arg(&data).args(DOCUMENTS);
            Server::try_spawn(command)
        } {
            assert_eq!((case, ids(&server, "a").len()), (2, 401));
            server.stop();
        }
    }
}

/// Goal: a journal in which a reader finds damage takes no more commits, since the next start refuses it.
#[test]
fn a_journal_with_damage_ends_publishing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = begun(&data);
    let journal = fs::read_dir(data.join("journal")).unwrap().next().unwrap();
    let file = fs::File::options()
        .write(true)
        .open(journal.unwrap().path());
    file.unwrap().write_all_at(&[0; 4_096], 600).unwrap();
    let mut acknowledged = 0;
    while publish(&server, &format!("more-{acknowledged}")) == 201 {
        acknowledged += 1;
        assert!(acknowledged < 2_000, "publishing goes on");
        pause(Duration::from_millis(10));
    }
    check_displaced(server, "holds damaged records");
    let (code, said) = refused(&data);
    assert_eq!(code, Some(15), "{said}");
}

/// Goal: a spare file that has another name, too, is not written to.
#[test]
fn a_spare_file_of_somebody_else_is_left_alone() {
    for is_hard in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server = Server::start_settling(&data, 10, 20_000);
        server.publish_ids("a", (0..100).map(|n| n.to_string()));
        let (spare, other) = (data.join("journal/spare"), folder.path().join("other"));
        fs::write(&other, "of somebody else").unwrap();
        for number in 0..300 {
            // The server makes one, too.
            let _gone = fs::remove_file(&spare).is_ok();
            let _made = if is_hard {
                fs::hard_link(&other, &spare)
            } else {
                symlink(&other, &spare)
            };
            server.publish_ids("a", [format!("more-{number}")]);
        }
        server.kill();
        assert_eq!(fs::read_to_string(&other).unwrap(), "of somebody else");
        let server = Server::start_settling(&data, 10, 20_000);
        assert_eq!(ids(&server, "a").len(), 400);
        server.stop();
    }
}

/// Puts a pipe in the place of a file.
fn put_pipe(path: &Path) {
    let _gone = fs::remove_file(path);
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

/// Goal: a pipe in the place of a file holds up no start.
#[test]
fn a_start_does_not_wait_for_what_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start_settling(&data, 10, 20_000);
    server.publish_ids("a", (0..400).map(|n| n.to_string()));
    server.stop();
    // A view that is made again does not hold up a start, nor a stop.
    let cursor = data.join("views/archive-files/cursor");
    put_pipe(&cursor);
    let server = Server::start_settling(&data, 10, 20_000);
    assert_eq!(ids(&server, "a").len(), 400);
    server.stop();
    let items = fs::read_dir(data.join("sled")).unwrap();
    let mut paths = items.map(|item| item.unwrap().path());
    let snapshot = paths.find(|path| path.to_string_lossy().contains("/snap."));
    let snapshot = snapshot.unwrap();
    put_pipe(&snapshot);
    let (code, said) = refused(&data);
    assert_eq!(code, Some(15), "{said}");
    assert!(said.contains("snapshot is no file"), "{said}");
    let target = folder.path().join("recovered");
    let arguments = [
        "recover",
        "--data",
        data.to_str().unwrap(),
        "--to",
        target.to_str().unwrap(),
    ]
    .map(str::to_owned);
    let output = run("simplefeed-server", &arguments, b"");
    assert!(output.status.code().is_some(), "{}", text(&output.stderr));
}

/// Goal: two servers never write the same files under two names, whether anything is settled or not.
/// Method: a copy of the folder by hard links, without its lock file.
#[test]
fn a_folder_of_the_same_files_is_in_use() {
    for (entries, is_settled) in [(400, true), (1, false)] {
        let folder = tempfile::tempdir().unwrap();
        let [data, twin] = ["data", "twin"].map(|name| folder.path().join(name));
        let server = Server::start_settling(&data, 10, 20_000);
        server.publish_ids("a", (0..entries).map(|n| n.to_string()));
        assert_eq!(
            data.join("journal/00000000000000000001").exists(),
            !is_settled
        );
        let (mut server, mut later) = (Some(server), 0);
        // A copy of two moments, with a settling between them, is none of the folder.
        wait_for("the folder has the same files for a moment", || {
            if is_settled {
                wait_until_settled(&data);
            }
            let old = server.take().unwrap();
            drop(fs::remove_dir_all(&twin));
            let linked = Command::new("cp").arg("-al").args([&data, &twin]).status();
            if !linked.unwrap().success() {
                // A file that was being written is gone.
                server = Some(old);
                return None;
            }
            fs::remove_file(twin.join("lock")).unwrap();
            let (code, said) = refused(&twin);
            assert_eq!(code, Some(11), "{said}");
            old.publish_ids("a", [format!("later-{later}")]);
            later += 1;
            old.kill();
            let names = |folder: &Path| {
                let names = ["journal", "sled"].map(|part| names_in(&folder.join(part)));
                names.concat()
            };
            if names(&data) == names(&twin) {
                return Some(());
            }
            server = Some(Server::start_settling(&data, 10, 20_000));
            None
        });
        // After the end of the other server, the copy may be served.
        let server = Server::start_settling(&twin, 10, 20_000);
        assert_eq!(ids(&server, "a").len(), entries + later);
        server.stop();
    }
}

/// Returns the names in a folder, sorted.
fn names_in(folder: &Path) -> Vec<OsString> {
    let items = fs::read_dir(folder).unwrap();
    let mut names: Vec<OsString> = items.map(|item| item.unwrap().file_name()).collect();
    names.sort();
    names
}

/// Goal: pipes in the place of the views' files hold up neither a reader nor a stop.
#[test]
fn a_stop_does_not_wait_for_what_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = begun(&data);
    let found = [files(&data.join("views")), files(&data.join("www"))].concat();
    assert!(found.len() >= 6, "{}", found.len());
    for (path, _) in found {
        put_pipe(&path);
    }
    // More documents, and an answer that wants files.
    for number in 0..20 {
        publish(&server, &format!("more-{number}"));
    }
    for path in [
        "/feeds/a/1.atom",
        "/feeds/a/recent.atom",
        "/feeds/a/index.json",
    ] {
        let answer = server.get(path);
        assert_ne!(answer.status, 0, "{path}");
    }
    let began = std::time::Instant::now();
    server.end("TERM").unwrap();
    // A second of grace, and the machine's load; a pipe would wait for ever.
    assert!(began.elapsed() < Duration::from_mins(1));
}

/// Goal: a refusal because of a pipe in the place of a file has a hint.
#[test]
fn a_file_that_cannot_be_used_has_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    begun(&data).stop();
    for name in ["lock", "ids", "views/seen", "witness"] {
        let (path, aside) = (data.join(name), folder.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        put_pipe(&path);
        let (code, said) = refused(&data);
        assert!(matches!(code, Some(1 | 15)), "{name}: {code:?} {said}");
        assert!(said.contains("hint: "), "{name}: {said}");
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    Server::start(&data, &DOCUMENTS).stop();
}

/// Goal: two servers never write one folder, whoever removes its lock file, which is made again.
#[test]
fn a_folder_has_one_server_without_its_lock_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = begun(&data);
    fs::remove_file(data.join("lock")).unwrap();
    assert_eq!(refused(&data).0, Some(11));
    // Whoever started it may have made the file, and holds it no more.
    assert_eq!(server.get("/readyz").status, 200);
    server.wait_for_log(&["the lock file was removed or replaced"]);
    let lock = fs::read_to_string(data.join("lock")).unwrap();
    assert_eq!(lock, format!("process {}\n", server.process()));
    assert_eq!(publish(&server, "more"), 201);
    // A program that holds the file may be one that writes the folder.
    fs::remove_file(data.join("lock")).unwrap();
    let other = fs::File::create(data.join("lock")).unwrap();
    other.lock().unwrap();
    assert_eq!(server.get("/readyz").status, 503);
    check_displaced(server, "another process has locked");
}

/// Goal: where no folder can be locked, as on NFS, the lock file keeps a second server away, and the log says so.
#[test]
#[ignore = "needs cc"]
fn a_folder_that_cannot_be_locked_has_one_server() {
    let (_built, library) = library();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let start = || {
        let mut command = Command::new(program("simplefeed-test-server"));
        command.arg(&data).args(["honest", "3", "2500"]);
        command
            .env("LD_PRELOAD", &library)
            .env("FAULT_UNLOCKED", "1");
        Server::try_spawn(command)
    };
    let server = start().unwrap();
    let is_told = |line: &String| line.contains("the folder cannot be locked");
    assert!(server.opening.iter().any(is_told));
    server.publish_ids("a", (0..40).map(|n| n.to_string()));
    let said = start().err().expect("another server is there");
    assert!(said.iter().any(|line| line.contains("in use")), "{said:?}");
    // Longer than the time between two looks at the folder.
    pause(Duration::from_millis(1_100));
    assert_eq!(publish(&server, "later"), 201);
    assert_eq!(server.get("/readyz").status, 200);
    server.kill();
    let server = start().unwrap();
    assert_eq!(ids(&server, "a").len(), 41);
    server.stop();
}

/// Goal: a snapshot of the folder, with all that is in it at one moment, is served anywhere, beside the first one.
#[test]
fn a_snapshot_is_served_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let [data, elsewhere] = ["data", "elsewhere"].map(|name| folder.path().join(name));
    let server = begun(&data);
    // As between two writes: a stopped process writes none.
    server.signal("STOP");
    let copied = Command::new("cp")
        .arg("-a")
        .args([&data, &elsewhere])
        .status();
    assert!(copied.unwrap().success());
    server.signal("CONT");
    let copy = Server::start(&elsewhere, &DOCUMENTS);
    for server in [&server, &copy] {
        assert_eq!(server.get("/readyz").status, 200);
        assert_eq!(publish(server, "more"), 201);
        assert_eq!(ids(server, "a").len(), 9);
    }
    server.stop();
    copy.stop();
    assert!(check_folder("verify", &elsewhere).contains("0 faults"));
}

/// Goal: a service with a user of its own (`DynamicUser`), whose folder gets another owner at each start and is behind
/// a link, is served.
#[test]
#[ignore = "needs root, to be another user"]
fn a_folder_may_get_another_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(at("private/log")).unwrap();
    symlink(at("private/log"), at("log")).unwrap();
    // The user may not look into the folder of the build.
    fs::copy(program("simplefeed-test-server"), at("server")).unwrap();
    for (start, user) in ["61184", "61185", "61184"].into_iter().enumerate() {
        let owned = Command::new("chown")
            .args(["-R", user])
            .arg(at("private"))
            .status();
        assert!(owned.unwrap().success());
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        command
            .arg(at("server"))
            .arg(at("log"))
            .args(["honest", "3", "2500"]);
        let server = Server::try_spawn(command).unwrap();
        server.publish_ids("a", (0..20).map(|n| format!("{start}-{n}")));
        assert_eq!(server.get("/readyz").status, 200);
        assert_eq!(ids(&server, "a").len(), 20 * (start + 1));
        if start == 1 {
            server.kill();
        } else {
            server.stop();
        }
    }
}

/// A server in a namespace of its own, which mounts something first.
const MOUNTED: &str = r#"eval "$1" && shift && exec "$@""#;

/// Goal: a data folder may be mounted in any way, and the server takes entries over a stop, a kill and a settling.
#[test]
#[ignore = "needs root, to mount folders"]
fn a_data_folder_may_be_a_mount_or_behind_a_link() {
    let mounts = [
        ("bind", "mkdir -p real data && mount --bind real data"),
        (
            "overlay",
            "mkdir -p disk && mount -t tmpfs tmpfs disk && mkdir -p disk/lower disk/upper disk/work data && mount -t overlay overlay -o lowerdir=disk/lower,upperdir=disk/upper,workdir=disk/work data",
        ),
        ("link", "mkdir -p real && ln -sfn real data"),
        (
            "link below a bind",
            "mkdir -p real/deep top && mount --bind real top && ln -sfn top/deep data",
        ),
        ("tmpfs", "mkdir -p data && mount -t tmpfs tmpfs data"),
    ];
    for (name, mount) in mounts {
        let folder = tempfile::tempdir().unwrap();
        let start = || {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", MOUNTED, "sh", mount]);
            command.arg(program("simplefeed-test-server"));
            command
                .args(["data", "honest", "3", "2500"])
                .current_dir(folder.path());
            Server::try_spawn(command).unwrap_or_else(|said| panic!("{name}: {said:#?}"))
        };
        let server = start();
        server.publish_ids("a", (0..40).map(|n| n.to_string()));
        server.wait_until_frozen("/feeds/a/9.atom");
        assert_eq!(server.get("/readyz").status, 200, "{name}");
        // Longer than the time between two looks at the folder.
        pause(Duration::from_millis(1_100));
        assert_eq!(publish(&server, "later"), 201, "{name}");
        server.kill();
        // What was in a namespace of its own is gone with it.
        let kept = if name == "tmpfs" || name == "overlay" {
            0
        } else {
            41
        };
        let server = start();
        assert_eq!(
            if kept == 0 {
                0
            } else {
                ids(&server, "a").len()
            },
            kept,
            "{name}"
        );
        assert_eq!(publish(&server, "last"), 201, "{name}");
        server.stop();
    }
}

/// Goal: files without which nothing is lost may go.
#[test]
fn publishing_goes_on_without_files_that_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = begun(&data);
    for gone in ["ids", "views", "sidecars", "www", "watermark"] {
        let path = data.join(gone);
        // The server may write a file there meanwhile.
        wait_for("it cannot be removed", || {
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            (removed.is_ok() || !path.exists()).then_some(())
        });
        assert_eq!(publish(&server, gone), 201, "{gone}");
        assert_eq!(server.get("/readyz").status, 200, "{gone}");
    }
    server.stop_somehow();
    let server = Server::start(&data, &DOCUMENTS);
    assert_eq!(ids(&server, "a").len(), 13);
    server.stop();
    assert!(!files(&data).is_empty());
}
