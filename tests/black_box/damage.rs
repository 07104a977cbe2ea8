//! A damaged log is refused, and the refusal touches nothing.

use std::{fs, path::Path};

use crate::harness::{Server, events, files, run, simplefeed, text};

/// Returns a data folder with some entries, after a clean stop or a kill.
fn data(folder: &Path, clean: bool) {
    let server = Server::start(folder, &["--document-entries", "10"]);
    simplefeed(&["append", &server.url("/feeds/a")], events(500).as_bytes());
    server.wait_until_frozen("/feeds/a/49.atom");
    if clean { server.stop() } else { server.kill() }
}

fn set_length(path: &Path, change: impl Fn(u64) -> u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(change(length)).unwrap();
}

/// Goal: sled never gets to "recover" a log that is not what it was.
/// Method: each kind of damage, after a clean and an unclean stop; the files are compared before
/// and after the refusal.
#[test]
fn a_damaged_log_is_refused_untouched() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 7] = [
        ("cut by a little", |data| {
            set_length(&data.join("sled/db"), |length| {
                // Not to a whole segment, which sled itself does.
                match length - length % 524_288 {
                    0 => length - length / 3,
                    whole => whole - 300_000,
                }
            });
        }),
        ("truncated", |data| {
            set_length(&data.join("sled/db"), |length| length / 2)
        }),
        ("emptied", |data| set_length(&data.join("sled/db"), |_| 0)),
        ("missing", |data| {
            fs::remove_file(data.join("sled/db")).unwrap()
        }),
        ("gone", |data| {
            fs::remove_dir_all(data.join("sled")).unwrap()
        }),
        ("unwitnessed", |data| {
            fs::remove_file(data.join("witness")).unwrap()
        }),
        ("blinded", |data| {
            fs::write(data.join("witness"), [0; 600]).unwrap()
        }),
    ];
    for clean in [true, false] {
        for (name, damage) in damages {
            let folder = tempfile::tempdir().unwrap();
            data(folder.path(), clean);
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
        data(folder.path(), clean);
        fs::write(
            folder.path().join("sled/snap.0000000000000001.generating"),
            b"half",
        )
        .unwrap();
        let server = Server::start(folder.path(), &[]);
        let ids = simplefeed(&["replay", &server.url("/feeds/a"), "--format", "id"], b"");
        assert_eq!(ids.lines().count(), 500);
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
