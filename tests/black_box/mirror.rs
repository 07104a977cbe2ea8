//! `mirror`: a folder that nobody can tell from the server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    dice::Dice,
    harness::{Server, pause, program, run, simplefeed, text, workspace},
    site::Site,
};

/// A server with a feed of 110 documents, and a folder for its copy.
struct Scene {
    folder: tempfile::TempDir,
    server: Server,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&folder.path().join("data"), &["--document-entries", "10"]);
        simplefeed(
            &["append", &server.url("/feeds/a")],
            events(0..1_095).as_bytes(),
        );
        server.wait_until_frozen("/feeds/a/109.atom");
        Self { folder, server }
    }

    fn copy(&self) -> PathBuf {
        self.folder.path().join("copy")
    }

    fn args(&self) -> [String; 3] {
        let copy = self.copy().to_str().unwrap().to_owned();
        ["mirror".into(), self.server.url("/feeds/a"), copy]
    }

    /// Copies, and returns what is said.
    #[track_caller]
    fn mirror(&self) -> String {
        let output = run("simplefeed", &self.args(), b"");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    }

    /// Every file of the copy is what the server gives, byte for byte. Returns how many there are.
    fn check(&self) -> usize {
        let files: Vec<_> = fs::read_dir(self.copy())
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| !name_of(path).starts_with('.'))
            .collect();
        for path in &files {
            let served = self.server.get(&format!("/feeds/a/{}", name_of(path)));
            assert_eq!(served.status, 200, "{}", path.display());
            assert!(fs::read(path).unwrap() == served.body, "{}", path.display());
        }
        files.len()
    }
}

/// Events with these numbers, one a line.
fn events(numbers: std::ops::Range<u32>) -> String {
    numbers.fold(String::new(), |lines, number| {
        lines + &format!("{{\"id\":\"urn:t:{number}\",\"content\":{{\"n\":{number}}}}}\n")
    })
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().into()
}

/// 110 documents, the newest under two names, and the index.
const FILES: usize = 112;

#[test]
fn a_mirror_is_the_feed_byte_for_byte() {
    let scene = Scene::new();
    assert_eq!(scene.mirror(), "112 files are new.\n");
    assert_eq!(scene.check(), FILES);
    // A consumer of the copy sees the same, begins in the middle, and goes on from one to the other.
    let site = Site::of_folder(&scene.copy());
    let (served, copied) = (scene.server.url("/feeds/a"), site.url("/recent.atom"));
    let replay = |url: &str, more: &[&str]| {
        let args = [&["replay", url, "--format", "atom"][..], more].concat();
        simplefeed(&args, b"")
    };
    assert_eq!(replay(&served, &[]), replay(&copied, &[]));
    let middle = ["--since", "urn:t:500"];
    assert_eq!(replay(&served, &middle), replay(&copied, &middle));
    let bookmark = scene.folder.path().join("bookmark");
    let bookmark = ["--bookmark", bookmark.to_str().unwrap()];
    let first = replay(&copied, &[&bookmark[..], &["--limit", "700"]].concat());
    let rest = replay(&served, &bookmark);
    assert_eq!(first + &rest, replay(&served, &[]));

    // Nothing new costs three requests; what is new is added, and the copy is sound again.
    assert_eq!(scene.mirror(), "0 files are new.\n");
    simplefeed(&["append", &served], events(1_095..1_130).as_bytes());
    scene.server.wait_until_frozen("/feeds/a/112.atom");
    scene.mirror();
    assert_eq!(scene.check(), FILES + 3);
    assert_eq!(replay(&served, &[]), replay(&site.url("/recent.atom"), &[]));
}

/// Goal: a copy that is interrupted is a feed as it once was, or none, and the next run finishes it.
/// Method: killed at random while it copies for the first time, and while it catches up.
#[test]
fn a_mirror_goes_on_after_kills() {
    let scene = Scene::new();
    let site = Site::of_folder(&scene.copy());
    let (served, copied) = (scene.server.url("/feeds/a"), site.url("/recent.atom"));
    let mut dice = Dice::new(3);
    let mut kill = |longest: usize| {
        let mut child = Command::new(program("simplefeed"))
            .args(scene.args())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let after = u64::try_from(15 + dice.below(longest)).unwrap();
        pause(Duration::from_millis(after));
        child.kill().unwrap();
        child.wait().unwrap();
    };
    // Until the first copy is there, there is nothing; some of it is kept from kill to kill.
    let kept = || fs::read_dir(scene.copy()).map_or(0, Iterator::count);
    // A slow machine needs longer to begin.
    for attempt in 0..200 {
        kill(30 + 5 * attempt);
        if kept() > 20 {
            break;
        }
    }
    let kept = kept();
    assert!(kept > 20, "no run has copied anything before it was killed");
    let said = scene.mirror();
    let new: usize = said.split(' ').next().unwrap().parse().unwrap();
    assert!(new < FILES - 10, "{kept} were there, and {said}");
    assert_eq!(scene.check(), FILES);
    let mut end = 1_095;
    for _ in 0..10 {
        simplefeed(&["append", &served], events(end..end + 25).as_bytes());
        end += 25;
        kill(40);
        let replayed = run("simplefeed", &["replay", &copied, "--format", "id"], b"");
        assert_eq!(
            replayed.status.code(),
            Some(0),
            "{}",
            text(&replayed.stderr)
        );
        let printed = text(&replayed.stdout);
        let lines = printed.lines().count();
        assert!(
            (1_095..=usize::try_from(end).unwrap()).contains(&lines),
            "{lines}"
        );
        assert!(
            printed
                .lines()
                .zip(0..)
                .all(|(line, number)| line == format!("urn:t:{number}"))
        );
    }
    // The index grows as long as documents are archived.
    scene.server.wait_until_frozen("/feeds/a/134.atom");
    scene.mirror();
    scene.check();
    let replay = |url: &str| simplefeed(&["replay", url, "--format", "atom"], b"");
    assert_eq!(replay(&served), replay(&copied));
}

/// What is damaged here is fetched again; what changed there is refused and changes nothing.
#[test]
fn a_mirror_is_checked() {
    let scene = Scene::new();
    scene.mirror();
    // Archives among those that are known to be complete are lost and damaged.
    fs::write(scene.copy().join("109.atom"), "<feed").unwrap();
    let damaged = scene.copy().join("57.atom");
    let sound = fs::read_to_string(&damaged).unwrap();
    fs::write(&damaged, sound + " ").unwrap();
    fs::remove_file(scene.copy().join("3.atom")).unwrap();
    assert_eq!(scene.mirror(), "3 files are new.\n");
    assert_eq!(scene.check(), FILES);

    // One at a time.
    let lock = fs::File::open(scene.copy().join(".mirror.lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(
        run("simplefeed", &scene.args(), b"").status.code(),
        Some(11)
    );
    drop(lock);

    let another = Server::start(
        &scene.folder.path().join("other"),
        &["--document-entries", "10"],
    );
    simplefeed(
        &["append", &another.url("/feeds/a")],
        events(0..300).as_bytes(),
    );
    let before = fs::read(scene.copy().join("recent.atom")).unwrap();
    let copy = scene.copy();
    let args = ["mirror", &another.url("/feeds/a"), copy.to_str().unwrap()];
    let output = run("simplefeed", &args, b"");
    assert_eq!(output.status.code(), Some(16), "{}", text(&output.stderr));
    assert_eq!(fs::read(scene.copy().join("recent.atom")).unwrap(), before);
    scene.check();
}

/// Feeds of others, too, but for those that a folder cannot hold.
#[test]
fn a_mirror_of_another_dialect_is_the_same_feed() {
    for (dialect, begin, kept) in [
        ("rfc5005", "feed.atom", true),
        ("ict4h", "recent.atom", true),
        ("atom-hopper", "events.atom", true),
        ("overlap", "feed.atom", true),
        ("xml-base", "feed.atom", true),
        ("link-header", "feed.atom", false),
        ("latin-1", "feed.atom", false),
    ] {
        let original = workspace().join("fixtures/foreign").join(dialect);
        let site = Site::of_folder(&original);
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        let args = [
            "mirror",
            &site.url(&format!("/{begin}")),
            copy.to_str().unwrap(),
        ];
        let output = run("simplefeed", &args, b"");
        assert_eq!(
            output.status.success(),
            kept,
            "{dialect}: {}",
            text(&output.stderr)
        );
        if kept {
            let copied = Site::of_folder(&copy).url(&format!("/{begin}"));
            let replayed = simplefeed(&["replay", &copied, "--format", "id"], b"");
            assert_eq!(
                replayed,
                fs::read_to_string(original.join("order")).unwrap(),
                "{dialect}"
            );
        } else {
            assert!(
                text(&output.stderr).contains("header fields"),
                "{}",
                text(&output.stderr)
            );
            assert!(!copy.join(begin).exists());
        }
    }
}

/// Nothing leads out of the folder.
#[test]
fn a_mirror_stays_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    for evil in [
        "../../evil.atom",
        "/evil.atom",
        "a%2f..%2fb.atom",
        "x.atom?y",
        ".hidden",
        "..%5cevil",
    ] {
        let evil_link = format!("<link rel='prev-archive' href='{evil}'/>");
        let site = Site::new(move |_, stream| {
            let body = format!(
                "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{evil_link}</feed>"
            );
            let bytes = crate::site::answer(
                "200 OK",
                "Content-Type: application/atom+xml\r\n",
                body.as_bytes(),
            );
            let _gone = std::io::Write::write_all(stream, &bytes).is_err();
        });
        let copy = folder.path().join("deep/copy");
        let output = run(
            "simplefeed",
            &[
                "mirror",
                &site.url("/feeds/f/recent.atom"),
                copy.to_str().unwrap(),
            ],
            b"",
        );
        assert_eq!(
            output.status.code(),
            Some(1),
            "{evil}: {}",
            text(&output.stderr)
        );
        let files = fs::read_dir(&copy)
            .unwrap()
            .map(|file| file.unwrap().path());
        let written = files.filter(|path| name_of(path) != ".mirror.lock").count();
        assert_eq!(written, 0, "{evil}");
    }
}

/// A folder that is published may hold no file that a web server runs, and an index no end.
#[test]
fn an_index_leads_a_mirror_nowhere() {
    for (index, code, said) in [
        (
            r#"{"feed":"urn:f","prev":null,"documents":[{"href":"shell.php","first":0,"entries":1,"opened":"","updated":"","sha256":"ZERO"}]}"#,
            1,
            "shell.php",
        ),
        (
            r#"{"feed":"urn:f","prev":"NEXT.json","documents":[]}"#,
            1,
            "more than 50 documents",
        ),
        (
            r#"{"feed":"urn:f","prev":"x.php","documents":[]}"#,
            1,
            "x.php",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let times = std::sync::atomic::AtomicUsize::new(0);
        let index = index.replace("ZERO", &"0".repeat(64));
        let site = Site::new(move |asked, stream| {
            let bytes = if asked.path.contains("json") {
                let next = times
                    .fetch_add(1, std::sync::atomic::Ordering::SeqCst)
                    .to_string();
                let body = index.replace("NEXT", &next);
                crate::site::answer(
                    "200 OK",
                    "Content-Type: application/json\r\n",
                    body.as_bytes(),
                )
            } else {
                let body = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
                            <link rel='index' href='index.json'/></feed>";
                crate::site::answer(
                    "200 OK",
                    "Content-Type: application/atom+xml\r\n",
                    body.as_bytes(),
                )
            };
            let _gone = std::io::Write::write_all(stream, &bytes).is_err();
        });
        let copy = folder.path().join("copy");
        let url = site.url("/feeds/f/recent.atom");
        let args = ["mirror", &url, copy.to_str().unwrap(), "--documents", "50"];
        let output = run("simplefeed", &args, b"");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains(said),
            "{}",
            text(&output.stderr)
        );
        assert!(!copy.join("shell.php").exists());
    }
}

/// Two documents that lead to each other are a loop at once.
#[test]
fn a_circle_is_walked_once() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::new(|asked, stream| {
        let other = if asked.path.ends_with("1.atom") {
            "2.atom"
        } else {
            "1.atom"
        };
        let body = format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
             <link rel='prev-archive' href='{other}'/></feed>"
        );
        let kind = "Content-Type: application/atom+xml\r\n";
        let bytes = crate::site::answer("200 OK", kind, body.as_bytes());
        let _gone = std::io::Write::write_all(stream, &bytes).is_err();
    });
    let copy = folder.path().join("copy");
    let url = site.url("/feeds/f/recent.atom");
    let output = run("simplefeed", &["mirror", &url, copy.to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(15), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("loop"),
        "{}",
        text(&output.stderr)
    );
    assert!(site.asked().len() < 10);
}

/// A mistyped folder keeps what is in it: `5.atom` of somebody else is not replaced.
#[test]
fn a_mirror_is_made_where_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &["--document-entries", "10"]);
    server.publish("a", &events(0..25));
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("recent.atom"), "precious").unwrap();
    let url = server.url("/feeds/a");
    let refused = run(
        "simplefeed",
        &["mirror", &url, other.to_str().unwrap()],
        b"",
    );
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(
        said.contains("no mirror") && said.contains("recent.atom"),
        "{said}"
    );
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    assert_eq!(
        fs::read_to_string(other.join("recent.atom")).unwrap(),
        "precious"
    );
    // The root of a file system, and a mirror that was killed before it had written anything.
    for begun in ["lost+found", ".mirror.lock"] {
        let folder = folder.path().join(begun.trim_start_matches('.'));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(begun), "").unwrap();
        simplefeed(&["mirror", &url, folder.to_str().unwrap()], b"");
        assert!(folder.join("1.atom").exists(), "{begun}");
    }
}
