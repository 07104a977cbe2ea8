//! A damaged log is refused, and the refusal touches nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    dice::Dice,
    harness::{
        Server, check_folder, copy_folder, events, files, is_long, program, run, simplefeed, text,
        wait_for,
    },
    http::Request,
    recover::recover,
};

/// Returns a data folder with some entries, after a clean stop or a kill.
fn data(folder: &Path, clean: bool) {
    let server = Server::start(folder, &["--document-entries", "10"]);
    simplefeed(&["append", &server.url("/feeds/a")], events(500).as_bytes());
    server.wait_until_frozen("/feeds/a/49.atom");
    if clean { server.stop() } else { server.kill() }
}

/// Returns a data folder whose journal is settled, but for the last entries.
fn settled_data(folder: &Path, clean: bool) {
    let server = Server::start_settling(folder, 10, 60_000);
    simplefeed(&["append", &server.url("/feeds/a")], events(400).as_bytes());
    for _ in 0..4 {
        simplefeed(&["append", &server.url("/feeds/b")], events(100).as_bytes());
    }
    wait_until_settled(folder);
    simplefeed(&["append", &server.url("/feeds/c")], events(20).as_bytes());
    if clean { server.stop() } else { server.kill() }
}

/// Waits until only one file of the journal is in use.
pub(crate) fn wait_until_settled(folder: &Path) {
    wait_for("the journal is not settled", || {
        let files = fs::read_dir(folder.join("journal")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let used: Vec<String> = names.filter(|name| name != "spare").collect();
        (used.len() == 1 && !used[0].ends_with("00001")).then_some(())
    });
}

/// Returns the newest file of the journal.
fn journal_file(data: &Path) -> PathBuf {
    let files = fs::read_dir(data.join("journal")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths.filter(|path| !path.ends_with("spare")).max().unwrap()
}

fn set_length(path: &Path, change: impl Fn(u64) -> u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(change(length)).unwrap();
}

/// Goal: a log that is not what it was is refused, and sled never gets to "recover" it.
/// Method: each kind of damage to the journal, to sled and to the witness, after a clean and an unclean stop; the files
/// are compared before and after the refusal.
#[test]
fn a_damaged_log_is_refused_untouched() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 9] = [
        ("cut by a little", |data| {
            set_length(&journal_file(data), |length| length - 1_000)
        }),
        ("cut by a lot", |data| {
            set_length(&journal_file(data), |length| length.min(200_000) / 2)
        }),
        ("emptied", |data| set_length(&journal_file(data), |_| 0)),
        ("one bit", |data| {
            let path = journal_file(data);
            let mut bytes = fs::read(&path).unwrap();
            bytes[2_000] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("last bit", |data| {
            let path = journal_file(data);
            let mut bytes = fs::read(&path).unwrap();
            let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
            bytes[last] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("missing", |data| {
            fs::remove_file(journal_file(data)).unwrap()
        }),
        ("gone", |data| {
            fs::remove_dir_all(data.join("journal")).unwrap()
        }),
        ("unwitnessed", |data| {
            fs::remove_file(data.join("witness")).unwrap()
        }),
        ("blinded", |data| {
            fs::write(data.join("witness"), [0; 600]).unwrap()
        }),
    ];
    let of_sled: [Damage; 6] = [
        ("sled cut by a little", |data| {
            set_length(&data.join("sled/db"), |length| {
                length - length % 524_288 - 300_000
            })
        }),
        ("sled truncated", |data| {
            set_length(&data.join("sled/db"), |length| length / 2)
        }),
        ("sled emptied", |data| {
            set_length(&data.join("sled/db"), |_| 0)
        }),
        ("sled missing", |data| {
            fs::remove_file(data.join("sled/db")).unwrap()
        }),
        ("sled gone", |data| {
            fs::remove_dir_all(data.join("sled")).unwrap()
        }),
        ("sled without its snapshot", |data| {
            for file in fs::read_dir(data.join("sled")).unwrap() {
                let path = file.unwrap().path();
                if path.to_string_lossy().contains("snap.") {
                    fs::remove_file(path).unwrap();
                }
            }
        }),
    ];
    for clean in [true, false] {
        for (name, damage) in damages.into_iter().chain(of_sled) {
            let folder = tempfile::tempdir().unwrap();
            if name.contains("sled") {
                settled_data(folder.path(), clean);
            } else {
                data(folder.path(), clean);
            }
            damage(folder.path());
            let before = files(folder.path());
            let data = folder.path().to_str().unwrap();
            let output = run(
                "simplefeed-server",
                &["serve", "--data", data, "--listen", "127.0.0.1:0"],
                b"",
            );
            let said = text(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(15),
                "{name}, clean {clean}: {said}"
            );
            assert!(said.contains("is damaged"), "{said}");
            assert!(
                before == files(folder.path()),
                "{name}, clean {clean}: a refusal changed a file"
            );
        }
    }
}

#[test]
fn a_server_killed_again_and_again_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = 0;
    for round in 0..5 {
        let server = Server::start(folder.path(), &["--document-entries", "3"]);
        server.publish_ids("a", (0..4).map(|n| format!("{round}-{n}")));
        expected += 4;
        let ids = simplefeed(&["replay", &server.url("/feeds/a"), "--format", "id"], b"");
        assert_eq!(ids.lines().count(), expected);
        server.kill();
    }
}

/// A leftover of an interrupted snapshot stops sled for ever unless it is removed.
#[test]
fn an_interrupted_snapshot_is_harmless() {
    for clean in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        settled_data(folder.path(), clean);
        fs::write(
            folder.path().join("sled/snap.0000000000000001.generating"),
            b"half",
        )
        .unwrap();
        let server = Server::start(folder.path(), &[]);
        let ids = simplefeed(&["replay", &server.url("/feeds/a"), "--format", "id"], b"");
        assert_eq!(ids.lines().count(), 400);
    }
}

#[test]
fn verify_finds_what_is_wrong_with_the_archive() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 5] = [
        ("www/feeds/a/7.atom", |path| {
            fs::write(path, b"<feed/>").unwrap()
        }),
        ("www/feeds/a/7.atom", |path| fs::remove_file(path).unwrap()),
        ("www/feeds/a/7.atom.gz", |path| {
            fs::write(path, b"gzip?").unwrap()
        }),
        ("sidecars/a/7.json", |path| fs::write(path, b"{}").unwrap()),
        ("views/archive-files/a.manifest", |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[6 * 160 + 50] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
    ];
    let folder = tempfile::tempdir().unwrap();
    data(folder.path(), true);
    let data = folder.path().to_str().unwrap();
    for (name, damage) in damages {
        damage(&folder.path().join(name));
        let output = run("simplefeed-server", &["verify", "--data", data], b"");
        let (faults, said) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(15), "{name}: {said}");
        assert!(
            faults.lines().count() >= 1 && faults.contains('7'),
            "{name}: {faults}"
        );
        let rebuilt = run("simplefeed-server", &["rebuild", "--data", data], b"");
        assert!(
            rebuilt.status.success(),
            "{name}: {}",
            text(&rebuilt.stderr)
        );
        let output = run("simplefeed-server", &["verify", "--data", data], b"");
        assert_eq!(
            output.status.code(),
            Some(0),
            "{name}: {}",
            text(&output.stdout)
        );
    }
}

/// Goal: a damaged record of a feed without news is a fault, also while the archive is behind with another feed. What the
/// archive makes again is none.
#[test]
fn verify_forgives_what_the_archive_makes_again() {
    let folder = tempfile::tempdir().unwrap();
    data(folder.path(), true);
    let server = Server::start(folder.path(), &["--document-entries", "10"]);
    simplefeed(&["append", &server.url("/feeds/b")], events(5).as_bytes());
    server.stop();
    let views = folder.path().join("views/archive-files");
    let manifest = fs::read(views.join("a.manifest")).unwrap();
    assert_eq!(manifest.len(), 49 * 160);
    let cursor = fs::read_to_string(views.join("cursor")).unwrap();
    let (end, rest) = cursor.split_once(' ').unwrap();
    let (chain, _) = rest.split_once(' ').unwrap();
    let end: u64 = end.parse().unwrap();
    let write_cursor = |cursor: u64| {
        // That of no commit is zeros.
        let chain = if cursor == end {
            chain.to_owned()
        } else {
            "0".repeat(64)
        };
        let cursor = format!("{cursor} {chain}");
        let mut sum = flate2::Crc::new();
        sum.update(cursor.as_bytes());
        fs::write(
            views.join("cursor"),
            format!("{cursor} {:08x}\n", sum.sum()),
        )
        .unwrap();
    };
    let args = ["verify", "--data", folder.path().to_str().unwrap()];
    // Of one write, which has 32 records at most, a power cut may take any.
    for (record, code_without_cursor) in [(17, 15), (18, 0), (41, 0), (49, 0)] {
        let mut damaged = manifest.clone();
        damaged[(record - 1) * 160 + 50] ^= 1;
        fs::write(views.join("a.manifest"), damaged).unwrap();
        for (cursor, code) in [(end, 15), (0, code_without_cursor)] {
            write_cursor(cursor);
            let verified = run("simplefeed-server", &args, b"");
            assert_eq!(
                verified.status.code(),
                Some(code),
                "record {record}, cursor {cursor}: {}",
                text(&verified.stdout)
            );
        }
    }
    fs::write(views.join("a.manifest"), &manifest[..30 * 160]).unwrap();
    write_cursor(end);
    let verified = run("simplefeed-server", &args, b"");
    assert_eq!(verified.status.code(), Some(15), "a manifest cut in half");
    // A damaged cursor costs time, and does not make the log count as replaced.
    fs::write(views.join("a.manifest"), manifest).unwrap();
    fs::write(views.join("cursor"), cursor.replacen(|_| true, "9", 1)).unwrap();
    let verified = run("simplefeed-server", &args, b"");
    assert_eq!(
        verified.status.code(),
        Some(0),
        "{}",
        text(&verified.stdout)
    );
}

/// Goal: what is damaged is never served; what the log can still give is.
#[test]
fn a_damaged_archive_file_is_served_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "10"]);
    simplefeed(&["append", &server.url("/feeds/a")], events(25).as_bytes());
    let before = server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    fs::write(folder.path().join("www/feeds/a/2.atom"), b"<feed/>").unwrap();
    let server = Server::start(folder.path(), &[]);
    let after = server.get("/feeds/a/2.atom");
    assert_eq!((after.status, after.body), (200, before.body.clone()));
    assert_eq!(
        after.headers.iter().find(|(name, _)| name == "etag"),
        before.headers.iter().find(|(name, _)| name == "etag")
    );
}

/// Goal: what stands in the place of a file and is larger than the memory is not read.
#[test]
fn a_huge_file_in_the_place_of_another_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "10"]);
    simplefeed(&["append", &server.url("/feeds/a")], events(25).as_bytes());
    let before = server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    for name in [
        "www/feeds/a/2.atom",
        "www/feeds/a/2.atom.gz",
        "views/archive-files/cursor",
        "views/archive-files/replaced",
    ] {
        // Without contents, so that it takes no room.
        let file = fs::File::create(folder.path().join(name)).unwrap();
        file.set_len(1 << 40).unwrap();
    }
    let server = Server::start(folder.path(), &[]);
    for coding in ["identity", "gzip"] {
        let get = Request::get("/feeds/a/2.atom").header("Accept-Encoding", coding);
        assert_eq!(server.send(&get).status, 200, "{coding}");
    }
    assert_eq!(server.get("/feeds/a/2.atom").body, before.body);
    assert!(
        server.memory_peak_kib() < 200 * 1024,
        "{}",
        server.memory_peak_kib()
    );
    server.stop();
    let data = folder.path().to_str().unwrap();
    let rebuilt = run("simplefeed-server", &["rebuild", "--data", data], b"");
    assert!(rebuilt.status.success(), "{}", text(&rebuilt.stderr));
    check_folder("verify", folder.path());
}

/// What a server showed before the damage: path, coding, decoded body.
type Shown = Vec<(String, &'static str, Vec<u8>)>;

/// Everything a reader can ask for of the feeds in `base`.
fn show(server: &Server) -> Shown {
    let documents = (1..=7).map(|n| format!("/feeds/a/{n}.atom"));
    let entries = [0, 17, 33, 64].map(|n| format!("/feeds/a/entries/{n}.atom"));
    let others = [
        "/feeds/a/recent.atom",
        "/feeds/b/1.atom",
        "/feeds/b/recent.atom",
    ];
    let paths = documents.chain(entries).chain(others.map(Into::into));
    paths
        .flat_map(|path| ["identity", "gzip"].map(|coding| (path.clone(), coding)))
        .filter_map(|(path, coding)| {
            let get = Request::get(&path).header("Accept-Encoding", coding);
            let response = get.send(&server.address).ok()?;
            if response.status != 200 {
                return None;
            }
            let body = match response.maybe("content-encoding") {
                Some("gzip") => gunzip(&response.body),
                _ => response.body,
            };
            Some((path, coding, body))
        })
        .collect()
}

fn gunzip(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    let mut decoder = flate2::read::GzDecoder::new(body);
    std::io::Read::read_to_end(&mut decoder, &mut bytes).map_or(vec![], |_| bytes)
}

/// A data folder with small and large entries, 65 in one feed, and what is served from it. Most of it is settled, or
/// nothing.
fn base(folder: &Path, clean: bool, settled: bool) -> Shown {
    let server = if settled {
        Server::start_settling(folder, 10, 20_000)
    } else {
        Server::start(folder, &["--document-entries", "10"])
    };
    simplefeed(&["append", &server.url("/feeds/a")], events(60).as_bytes());
    let large: String = (0..5)
        .map(|n| {
            format!(
                "{{\"id\":\"urn:large:{n}\",\"content\":\"{}\"}}\n",
                "large ".repeat(7_000)
            )
        })
        .collect();
    assert_eq!(server.publish("a", &large).status, 201);
    assert_eq!(server.publish("b", "{\"id\":\"urn:b\"}").status, 201);
    server.wait_until_frozen("/feeds/a/6.atom");
    if settled {
        wait_until_settled(folder);
    }
    let shown = show(&server);
    assert_eq!(shown.len(), 28);
    if clean {
        server.stop()
    } else {
        server.kill()
    }
    shown
}

/// Damages a random file in a random way. Returns what was done.
fn damage(folder: &Path, dice: &mut Dice) -> String {
    let mut paths: Vec<_> = files(folder).into_iter().map(|(path, _)| path).collect();
    paths.retain(|path| !path.ends_with("lock"));
    // The log is two files of many, and those that matter most.
    let path = match dice.below(3) {
        0 => folder.join("sled/db"),
        1 => journal_file(folder),
        _ => paths[dice.below(paths.len())].clone(),
    };
    let mut bytes = fs::read(&path).unwrap();
    let at = dice.below(bytes.len().max(1));
    let what = match dice.below(4) {
        0 if !bytes.is_empty() => {
            bytes[at] ^= 1 << dice.below(8);
            fs::write(&path, bytes).unwrap();
            "a bit is flipped"
        }
        1 => {
            let end = bytes.len().min(at + 4_096);
            bytes[at..end].fill(0);
            fs::write(&path, bytes).unwrap();
            "a block is zeroed"
        }
        2 => {
            fs::write(&path, &bytes[..at]).unwrap();
            "its end is cut off"
        }
        _ => {
            fs::remove_file(&path).unwrap();
            "it is deleted"
        }
    };
    format!(
        "{} at {at}: {what}",
        path.strip_prefix(folder).unwrap().display()
    )
}

/// Recovers a damaged folder, and checks that everything archived is there as it was `before`, under the
/// same ids and positions.
fn check_recovery(what: &str, damaged: &Path, before: &Shown) {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let missing = recover(damaged, &to);
    let server = Server::start(&to, &["--document-entries", "10"]);
    let after = show(&server);
    for shown in before {
        let (path, ..) = shown;
        let archived = (1..=6).any(|n| *path == format!("/feeds/a/{n}.atom"));
        let entry = path.contains("/entries/") && !path.ends_with("/64.atom");
        if archived || entry {
            assert!(
                after.contains(shown),
                "{what}: {path} is not recovered: {missing:?}"
            );
        }
    }
    let answer = server.publish("a", &events(60)).json();
    let results = answer["results"].as_array().unwrap();
    for (position, result) in results.iter().enumerate() {
        assert_eq!(result["status"], "duplicate", "{what}: {result}");
        assert_eq!(result["position"], position, "{what}: {result}");
    }
    let printed = simplefeed(&["replay", &server.url("/feeds/a"), "--format", "id"], b"");
    let entries = printed.lines().count();
    let named = missing.iter().any(|line| line.contains("feed a"));
    assert!(
        entries == 65 || named,
        "{what}: {entries} entries, {missing:?}"
    );
}

/// Returns whether a server on a folder serves all that was shown before, with the same bytes.
fn serves_all(folder: &Path, before: &Shown) -> bool {
    let server = Server::start(folder, &[]);
    let now = show(&server);
    server.stop();
    before.iter().all(|shown| now.contains(shown))
}

/// Goal: damage is found when the log is opened or by `verify`, or it is harmless; it is never served,
/// and a refusal makes nothing worse. `recover` gives back all that was archived.
/// Method: random damage to a random file, after a clean and an unclean stop.
#[test]
fn damage_is_found_or_harmless_and_never_served() {
    let cases = if is_long() { 600 } else { 60 };
    let mut dice = Dice::new(11);
    let (mut refused, mut found, mut harmless) = (0, 0, 0);
    let kinds = [(true, false), (false, false), (true, true), (false, true)];
    let bases = kinds.map(|(clean, settled)| {
        let folder = tempfile::tempdir().unwrap();
        let shown = base(folder.path(), clean, settled);
        (folder, shown)
    });
    for case in 0..cases {
        let (base, before) = &bases[case % 4];
        let folder = tempfile::tempdir().unwrap();
        copy_folder(base.path(), folder.path());
        let what = damage(folder.path(), &mut dice);
        let what = format!(
            "case {case}, clean and settled {:?}, {what}",
            kinds[case % 4]
        );
        let damaged = files(folder.path());
        let data = folder.path().to_str().unwrap();
        let mut command = Command::new(program("simplefeed-server"));
        command.args(["serve", "--data", data, "--listen", "127.0.0.1:0"]);
        let Ok(server) = Server::try_spawn(command) else {
            let unlocked = |files: Vec<(PathBuf, Vec<u8>)>| {
                files
                    .into_iter()
                    .filter(|(path, _)| !path.ends_with("lock"))
                    .collect::<Vec<_>>()
            };
            let now = files(folder.path());
            assert!(
                unlocked(damaged) == unlocked(now),
                "{what}: a refusal changed a file"
            );
            refused += 1;
            if is_long() || refused % 4 == 1 {
                check_recovery(&what, folder.path(), before);
            }
            continue;
        };
        let after = show(&server);
        for (path, coding, body) in &after {
            let right = before
                .iter()
                .find(|(of, as_, _)| of == path && as_ == coding);
            let right = right.map(|(.., body)| body);
            assert!(
                right == Some(body),
                "{what}: {path} ({coding}) is served wrong"
            );
        }
        let complete = after.len() == before.len();
        server.stop_somehow();
        let output = run("simplefeed-server", &["verify", "--data", data], b"");
        match output.status.code() {
            Some(0) => {
                // The archive may have made a record again just after the look.
                assert!(
                    complete || serves_all(folder.path(), before),
                    "{what}: something is not served, and nothing is found"
                );
                harmless += 1;
            }
            Some(15) => {
                found += 1;
                if is_long() || found % 4 == 1 {
                    check_recovery(&what, folder.path(), before);
                }
            }
            code => panic!(
                "{what}: verify ended with {code:?}: {}",
                text(&output.stderr)
            ),
        }
    }
    eprintln!(
        "damage: {cases} cases, {refused} refused at the start, {found} found by verify, {harmless} harmless"
    );
    assert!(refused > 0 && found > 0);
}

/// Goal: what is damaged in the folder that a web server may read itself is noticed while the server
/// runs, and nothing else is called damaged.
#[test]
fn damaged_archive_files_are_noticed() {
    for (name, damage) in [("2.atom", b"<feed/>".as_slice()), ("1.atom.gz", b"gzip?")] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), &["--document-entries", "10"]);
        simplefeed(&["append", &server.url("/feeds/a")], events(25).as_bytes());
        server.wait_until_frozen("/feeds/a/2.atom");
        server.stop();
        fs::write(folder.path().join("www/feeds/a").join(name), damage).unwrap();
        let server = Server::start(folder.path(), &[]);
        server.wait_for_log(&["the archive is damaged", &format!("/{name} is not what")]);
        server.stop();
    }
}

/// Starts a server on a folder that it must refuse. Returns the exit code, and its words.
fn refused(data: &Path, args: &[&str]) -> (Option<i32>, String) {
    let data = data.to_str().unwrap();
    let output = run(
        "simplefeed-server",
        &[args, &["--data", data]].concat(),
        b"",
    );
    (output.status.code(), text(&output.stderr))
}

const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];

/// Returns a folder with documents that are archived.
fn archived(folder: &Path) -> PathBuf {
    let data = folder.join("data");
    let server = Server::start(&data, &["--document-entries", "3"]);
    server.publish_ids("a", (0..8).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    server.stop();
    data
}

/// Goal: where a log is gone, no new one begins among its documents: it would serve them as its own, or write over them.
#[test]
fn a_lost_log_is_not_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let data = archived(folder.path());
    let log = ["journal", "sled", "witness"];
    let all_but_www = ["ids", "views", "sidecars", "watermark", "lock"];
    for (name, is_emptied, gone) in [
        ("gone", false, log.to_vec()),
        ("emptied", true, log.to_vec()),
        ("www", false, [&log[..], &all_but_www].concat()),
        (
            "ids",
            false,
            [&log[..], &["www", "views", "sidecars"]].concat(),
        ),
    ] {
        let copy = folder.path().join(name);
        copy_folder(&data, &copy);
        for part in gone {
            let path = copy.join(part);
            if path.is_dir() {
                fs::remove_dir_all(&path).unwrap();
                if is_emptied {
                    fs::create_dir(&path).unwrap();
                }
            } else if path.exists() {
                fs::remove_file(&path).unwrap();
            }
        }
        let before = files(&copy);
        let (code, said) = refused(&copy, &SERVE);
        assert_eq!(code, Some(15), "{name}: {said}");
        assert!(said.contains("its log is missing"), "{name}: {said}");
        let unlocked = |files: Vec<(PathBuf, Vec<u8>)>| -> Vec<_> {
            let files = files.into_iter();
            files.filter(|(path, _)| !path.ends_with("lock")).collect()
        };
        assert!(unlocked(before) == unlocked(files(&copy)), "{name}");
    }
    // Folders and files that a web server was given before are no history.
    let new = folder.path().join("new");
    fs::create_dir_all(new.join("www/feeds")).unwrap();
    fs::write(new.join("www/robots.txt"), "User-agent: *").unwrap();
    Server::start(&new, &[]).stop();
}

/// Goal: a log that was put back from an older copy, beside what its lost end has left, is not served, also if it has grown
/// past that end: the same URLs would get other contents. `recover` is the way out.
#[test]
fn an_older_copy_of_a_log_is_refused() {
    const DOCUMENTS: [&str; 2] = ["--document-entries", "3"];
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let data = archived(folder.path());
    copy_folder(&data, &path("older"));
    copy_folder(&data, &path("grown"));
    let server = Server::start(&data, &DOCUMENTS);
    server.publish_ids("a", (8..20).map(|n| n.to_string()));
    let shown = server.wait_until_frozen("/feeds/a/6.atom").body;
    // This one closes no document, so no file shows it.
    server.publish_ids("a", ["last".to_owned()]);
    server.kill();
    let server = Server::start(&path("grown"), &DOCUMENTS);
    for n in 100..130 {
        server.publish_ids("a", [n.to_string()]);
    }
    server.stop();
    for (from, why) in [
        ("grown", "is not the one that readers have seen"),
        ("older", "and readers have seen commit"),
    ] {
        for part in ["journal", "sled"] {
            fs::remove_dir_all(data.join(part)).unwrap();
            copy_folder(&path(from).join(part), &data.join(part));
        }
        fs::copy(path(from).join("witness"), data.join("witness")).unwrap();
        let (copy, tree) = (path("copy"), path("tree"));
        let (copy, tree) = (copy.to_str().unwrap(), tree.to_str().unwrap());
        let serve = SERVE.as_slice();
        let tasks: [&[&str]; 4] = [
            serve,
            &["rebuild"],
            &["backup", "--to", copy],
            &["export", "--to", tree],
        ];
        for (task, mark) in tasks
            .into_iter()
            .chain([serve])
            .zip([false, false, false, false, true])
        {
            if mark {
                fs::write(data.join("restored"), "").unwrap();
            }
            let (code, said) = refused(&data, task);
            assert_eq!(code, Some(15), "{task:?}: {said}");
            assert!(
                said.contains(why) && said.contains("simplefeed-server recover"),
                "{task:?}: {said}"
            );
        }
        fs::remove_file(data.join("restored")).unwrap();
        let verified = run(
            "simplefeed-server",
            &["verify", "--data", data.to_str().unwrap()],
            b"",
        );
        assert_eq!(verified.status.code(), Some(15));
        assert!(
            text(&verified.stdout).contains(why),
            "{}",
            text(&verified.stdout)
        );
    }
    let recovered = path("recovered");
    let arguments = [
        "recover",
        "--data",
        data.to_str().unwrap(),
        "--to",
        recovered.to_str().unwrap(),
    ];
    let said = run("simplefeed-server", &arguments, b"");
    assert_eq!(said.status.code(), Some(15));
    let said = text(&said.stdout);
    assert!(said.contains("the log ended with commit"), "{said}");
    let server = Server::start(&recovered, &DOCUMENTS);
    assert_eq!(server.wait_until_frozen("/feeds/a/6.atom").body, shown);
    server.publish_ids("a", (30..40).map(|n| n.to_string()));
    // Of 17 entries: at another port, the server has another URL, with which a document begins.
    let expected = (0..17).chain(30..40).map(|n| format!("urn:t:{n}"));
    assert_eq!(
        crate::harness::ids(&server, "a"),
        expected.collect::<Vec<_>>()
    );
    server.stop();
    check_folder("verify", &recovered);
}

/// Goal: an older log is refused beside documents of later commits, also where the note of what was seen is as old or gone.
#[test]
fn an_older_log_beside_later_documents_is_refused() {
    const DOCUMENTS: [&str; 2] = ["--document-entries", "3"];
    let folder = tempfile::tempdir().unwrap();
    let older = folder.path().join("older");
    let data = archived(folder.path());
    copy_folder(&data, &older);
    let server = Server::start(&data, &DOCUMENTS);
    server.publish_ids("a", (8..20).map(|n| n.to_string()));
    server.wait_until_frozen("/feeds/a/6.atom");
    server.stop();
    for part in ["journal", "sled"] {
        fs::remove_dir_all(data.join(part)).unwrap();
        copy_folder(&older.join(part), &data.join(part));
    }
    fs::copy(older.join("witness"), data.join("witness")).unwrap();
    for is_old in [true, false] {
        let _gone = fs::remove_file(data.join("views/seen"));
        if is_old {
            fs::copy(older.join("views/seen"), data.join("views/seen")).unwrap();
        }
        for task in [SERVE.as_slice(), &["rebuild"]] {
            let (code, said) = refused(&data, task);
            assert_eq!(code, Some(15), "{task:?}: {said}");
            assert!(
                said.contains("documents of commit") && said.contains("simplefeed-server recover"),
                "{task:?}: {said}"
            );
        }
    }
    // Grown past them, it is another log still.
    let later = folder.path().join("later");
    copy_folder(&data.join("views/archive-files"), &later);
    for part in ["views", "www", "sidecars"] {
        fs::remove_dir_all(data.join(part)).unwrap();
    }
    let server = Server::start(&data, &DOCUMENTS);
    for number in 0..20 {
        server.publish_ids("a", [format!("other-{number}")]);
    }
    server.stop();
    fs::remove_dir_all(data.join("views")).unwrap();
    copy_folder(&later, &data.join("views/archive-files"));
    let (code, said) = refused(&data, &SERVE);
    assert_eq!(code, Some(15), "{said}");
    assert!(
        said.contains("is not the one whose documents are beside it"),
        "{said}"
    );
    let recovered = folder.path().join("recovered");
    let (code, said) = refused(&data, &["recover", "--to", recovered.to_str().unwrap()]);
    assert_eq!(code, Some(15), "{said}");
}

/// Goal: what has no content may have any length.
#[test]
fn a_spare_file_of_any_length_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_settling(folder.path(), 10, 20_000);
    server.publish_ids("a", (0..200).map(|n| n.to_string()));
    server.stop();
    let spare = folder.path().join("journal/spare");
    for length in [0, 1, 65_537, 69_632, 1_000_000] {
        fs::File::create(&spare).unwrap().set_len(length).unwrap();
        let server = Server::start_settling(folder.path(), 10, 20_000);
        server.publish_ids("a", (0..40).map(|n| format!("{length}-{n}")));
        server.stop();
        check_folder("verify", folder.path());
    }
}

/// Goal: no task writes into the data folder, where its files would count as the log's.
#[test]
fn a_task_makes_no_folder_within_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let data = archived(folder.path());
    std::os::unix::fs::symlink(data.join("www"), folder.path().join("link")).unwrap();
    let before = files(&data);
    for to in ["data", "data/www", "data/new/er", "link/new"] {
        let to = folder.path().join(to);
        for task in ["export", "backup", "recover"] {
            let (code, said) = refused(&data, &[task, "--to", to.to_str().unwrap()]);
            assert_eq!(code, Some(2), "{task}: {said}");
            assert!(said.contains("within the data folder"), "{task}: {said}");
        }
    }
    assert!(before == files(&data));
}

/// Goal: where a file or a folder is of another kind, the server starts all the same or says which one it is; it never
/// waits for a pipe.
#[test]
fn a_file_of_another_kind_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--document-entries", "2"]);
    server.publish_ids("a", (0..5).map(|at| at.to_string()));
    server.wait_until_frozen("/feeds/a/1.atom");
    server.stop();
    fs::write(data.join("clock"), "").unwrap();
    let is_folder = |name: &str| data.join(name).is_dir();
    let names = [
        "www",
        "closed",
        "sidecars",
        "views",
        "ids",
        "journal",
        "sled",
        "witness",
        "watermark",
        "lock",
        "clock",
    ];
    for (name, is_pipe) in names
        .into_iter()
        .flat_map(|name| [(name, false), (name, true)])
    {
        let damaged = folder.path().join("damaged");
        copy_folder(&data, &damaged);
        let path = damaged.join(name);
        // Empty folders are not copied.
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap();
        } else if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        if is_pipe {
            let made = Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(made.success());
        } else if is_folder(name) {
            fs::write(&path, "a file").unwrap();
        } else {
            fs::create_dir(&path).unwrap();
        }
        let mut command = Command::new(program("simplefeed-server"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(&damaged);
        match Server::try_spawn(command) {
            Ok(server) => {
                server.publish_ids("a", ["after".to_owned()]);
                server.stop();
            }
            Err(said) => {
                let said = said.join("\n");
                let shown = path.to_str().unwrap();
                // A pipe in the place of the witness is an unreadable one.
                assert!(
                    said.contains(shown) || said.contains("its witness"),
                    "{name}: {said}"
                );
            }
        }
        fs::remove_dir_all(&damaged).unwrap();
    }
}
