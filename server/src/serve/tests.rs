use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use parking_lot::Mutex;
use simplefeed_core::feed::{CommitNumber, FeedName};
use simplefeed_log::{
    Append as _, Commits, Series as _,
    fixtures::{Alteration, AlteredLog, Call},
    memory::{MemoryLog, MemoryStore},
    store::StoreError,
};
use simplefeed_views::{error::ViewError, timelines::merged::with_timelines};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::*;
use crate::{
    config::ServeArgs,
    upkeep::{
        rebuild::rebuild,
        verify::{VerifyReport, verify},
    },
};

/// A server that runs until it is dropped.
struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Running {
    fn start(folder: &Path, store: impl LogStore + 'static) -> Self {
        let args = ServeArgs {
            data: Some(folder.into()),
            listen: ([127, 0, 0, 1], 0).into(),
            ..ServeArgs::default()
        };
        let config = Config::new(args, |_| true).unwrap();
        let listening = Listening::bind(&config).unwrap();
        let server = Server::start(&config, listening, store).unwrap();
        let address = server.listening().address();
        let (stop, stopped) = oneshot::channel();
        let ended = std::thread::spawn(move || {
            server.run(async {
                let _asked = stopped.await;
            })
        });
        Self {
            address,
            stop: Some(stop),
            ended: Some(ended),
        }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: \
             application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        BufReader::new(stream)
    }

    /// Returns the status of an answer, and all of the answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut answer = String::new();
        self.send(method, path, body)
            .read_to_string(&mut answer)
            .unwrap();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.unwrap(), answer)
    }

    fn get(&self, path: &str) -> (u16, String) {
        let (status, answer) = self.ask("GET", path, "");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        (status, body.into())
    }

    fn publish(&self, feed: &str, number: u32) {
        let event = format!("{{\"id\":\"urn:e:{number}\",\"title\":\"event {number}\"}}");
        let (status, answer) = self.ask("POST", &format!("/feeds/{feed}"), &event);
        assert_eq!(status, 201, "{answer}");
    }

    /// Waits until an answer satisfies `is_right`.
    fn wait_for(&self, path: &str, is_right: impl Fn(&str) -> bool) -> String {
        for _ in 0..1_000 {
            let (_, answer) = self.ask("GET", path, "");
            if is_right(&answer) {
                return answer;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        panic!("{path} does not become right");
    }

    fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.ended.take().unwrap().join().unwrap().unwrap();
    }
}

fn views_of(folder: &TempDir) -> Views {
    FileViews::of_upkeep(&Folders::new(folder.path(), None)).all()
}

/// Goal: a server needs no more of a log than its contract.
/// Method: the real server over a log in memory, from publishing to frozen files.
#[test]
fn a_server_runs_over_a_log_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = MemoryStore::default();
    let server = Running::start(folder.path(), store.clone());
    let settings = "{\"document_entries\":2}";
    assert_eq!(server.ask("PUT", "/feeds/a", settings).0, 201);
    for number in 0..5 {
        server.publish("a", number);
        let (_, recent) = server.get("/feeds/a/recent.atom");
        assert!(recent.contains(&format!("urn:e:{number}<")), "{recent}");
    }
    for (document, number) in [(1, 0), (2, 3)] {
        let path = format!("/feeds/a/{document}.atom");
        let frozen = server.wait_for(&path, |answer| answer.contains("immutable"));
        assert!(frozen.contains(&format!("urn:e:{number}<")), "{frozen}");
    }
    let (_, index) = server.get("/feeds/a/index.json");
    assert!(index.contains("\"2.atom\""), "{index}");
    assert!(server.get("/feeds").1.contains("\"entries\":5"));
    assert_eq!(server.get("/readyz").0, 200);
    server.wait_for("/sup.json", |answer| answer.contains("\"updates\":[["));
    server.stop();
    let views = views_of(&folder);
    let report = verified(&store, &views).unwrap();
    assert_eq!(report.findings.faults, [""; 0]);
    assert_eq!((report.entries, report.findings.documents), (5, 2));
}

fn verified(store: &MemoryStore, views: &Views) -> Result<VerifyReport, ViewError> {
    let log: Arc<dyn EntryLog> = store.log();
    verify(&*log, &*with_timelines(&log)?, views)
}

/// Goal: a view is its own files, and some lines where views and endpoints are listed: the follower runs it, upkeep looks
/// after it, its endpoints are found, and one of them streams until the server stops.
#[test]
fn a_view_needs_its_files_and_a_few_lines() {
    let folder = tempfile::tempdir().unwrap();
    let store = MemoryStore::default();
    let server = Running::start(folder.path(), store.clone());
    for number in 0..3 {
        server.publish("a", number);
    }
    server.publish("b", 0);
    server.wait_for("/feeds/a/count.txt", |answer| answer.ends_with("\r\n\r\n3"));
    server.wait_for("/feeds/b/count.txt", |answer| answer.ends_with("\r\n\r\n1"));
    server.wait_for("/ui/feeds/a", |answer| answer.contains("<p>3 counted</p>"));
    let mut counts = server.send("GET", "/feeds/a/counts", "").lines();
    // The stream begins behind its head.
    let head = counts.by_ref().map(Result::unwrap);
    assert!(head.take_while(|line| !line.is_empty()).count() > 1);
    server.publish("b", 1);
    let newest = store.0.head().number.to_string();
    assert!(counts.by_ref().any(|line| line.unwrap() == newest));
    server.stop();
    // The last chunk has come: nothing was cut off.
    let rest: Vec<String> = counts.map(Result::unwrap).collect();
    assert_eq!(rest, ["", "0", ""]);

    let views = views_of(&folder);
    let path = folder.path().join("views/counts/entries");
    let right = std::fs::read_to_string(&path).unwrap();
    assert_eq!(verified(&store, &views).unwrap().findings.faults, [""; 0]);
    std::fs::write(&path, right.replace(" 3\n", " 4\n")).unwrap();
    let report = verified(&store, &views).unwrap();
    assert_eq!(report.findings.faults, ["the entries are counted wrong"]);
    let log: Arc<dyn EntryLog> = store.log();
    let rebuilt = rebuild(&*with_timelines(&log).unwrap(), &views).unwrap();
    assert_eq!(rebuilt.different, ["counts/entries"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), right);

    // The next server goes on from the file.
    let again = MemoryStore::default();
    for commit in store.0.commits(CommitNumber(1), 100).unwrap() {
        again.0.append(&commit).unwrap();
    }
    let server = Running::start(folder.path(), again);
    server.publish("a", 3);
    server.wait_for("/feeds/a/count.txt", |answer| answer.ends_with("\r\n\r\n4"));
    server.stop();
}

/// Log that another server writes, and this one only reads.
type Followed = AlteredLog<Faults>;

#[derive(Default)]
struct Faults {
    /// Name of a feed whose settings cannot be read.
    damaged: Option<FeedName>,
    /// Thread that panics at its next look at the log.
    fragile: Mutex<Option<&'static str>>,
    /// Held by a test while nobody finds a feed of the name `hanging`.
    hanging: Mutex<()>,
}

impl Faults {
    fn panic_if_fragile(&self) {
        let mut fragile = self.fragile.lock();
        if fragile.is_some() && std::thread::current().name() == *fragile {
            *fragile = None;
            panic!("this is expected here");
        }
    }
}

impl Alteration for Faults {
    fn before(&self, call: Call<'_>, log: &MemoryLog) -> Result<(), LogError> {
        match call {
            Call::Append(_) => return Err(LogError::Stopped),
            Call::Commits => self.panic_if_fragile(),
            Call::Named(name) if name.as_str() == "hanging" => drop(self.hanging.lock()),
            Call::Settings(feed, revision) => {
                self.panic_if_fragile();
                let settings = log.settings(feed, revision)?;
                if self.damaged.is_some() && self.damaged == settings.map(|all| all.name) {
                    return Err(LogError::damaged("settings"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

struct FollowedStore(Arc<Followed>);

impl LogStore for FollowedStore {
    fn log(&self) -> Arc<dyn WritableLog> {
        Arc::<Followed>::clone(&self.0)
    }

    fn watermark(&self) -> Result<Watermark, StoreError> {
        Ok(Watermark::in_memory())
    }

    fn is_restored(&self) -> bool {
        false
    }

    fn epoch_has_begun(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn control_socket(&self) -> Option<PathBuf> {
        None
    }

    fn end_reading(&self) {}

    fn close(self: Box<Self>) -> Result<bool, StoreError> {
        Ok(true)
    }
}

/// Goal: neither a damaged record of one feed nor a folder that it cannot use holds up the other feeds.
#[test]
fn one_feed_holds_up_no_other() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let store = MemoryStore::default();
    let mut followed = AlteredLog::new(&store.0, Faults::default());
    followed.alteration.damaged = FeedName::parse("damaged");
    // Where the folder of a feed's documents would be.
    let feeds = folders[1].path().join("www/feeds");
    std::fs::create_dir_all(&feeds).unwrap();
    std::fs::write(feeds.join("blocked"), "").unwrap();
    let writer = Running::start(folders[0].path(), store.clone());
    let follower = Running::start(folders[1].path(), FollowedStore(Arc::new(followed)));
    let closed = "{\"document_entries\":1,\"closed\":true}";
    assert_eq!(writer.ask("PUT", "/feeds/damaged", closed).0, 201);
    // Feeds have random keys, so some of the sound ones come behind the others.
    let sound = ["a", "b", "c", "d", "e", "f"];
    for feed in ["blocked"].iter().chain(&sound) {
        let settings = "{\"document_entries\":1}";
        assert_eq!(
            writer.ask("PUT", &format!("/feeds/{feed}"), settings).0,
            201
        );
        writer.publish(feed, 1);
        writer.publish(feed, 2);
    }
    for feed in sound {
        follower.wait_for(&format!("/feeds/{feed}/1.atom"), |answer| {
            answer.contains("immutable")
        });
    }
    let updates = follower.wait_for("/sup.json", |answer| answer.contains("\"updates\":[["));
    assert!(updates.contains("200 OK"), "{updates}");
    follower.stop();
    writer.stop();
}

/// Goal: no thread dies in silence: the server is not ready for a while, says why, counts it, and goes on.
#[test]
fn a_thread_that_dies_is_told_and_begins_again() {
    for name in ["archive-files", "sup", "timelines", "catalogue"] {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let store = MemoryStore::default();
        let writer = Running::start(folders[0].path(), store.clone());
        assert_eq!(
            writer.ask("PUT", "/feeds/a", "{\"document_entries\":1}").0,
            201
        );
        writer.publish("a", 1);
        let followed = Arc::new(AlteredLog::new(&store.0, Faults::default()));
        *followed.alteration.fragile.lock() = Some(name);
        let follower = Running::start(folders[1].path(), FollowedStore(Arc::clone(&followed)));
        writer.publish("a", 2);
        let unwell = follower.wait_for("/readyz", |answer| answer.contains(" 503 "));
        assert!(
            unwell.contains(&format!("the thread {name} failed")),
            "{unwell}"
        );
        // What it does goes on.
        follower.wait_for("/feeds/a/1.atom", |answer| answer.contains("immutable"));
        follower.wait_for("/sup.json", |answer| answer.contains("\"updates\":[["));
        follower.wait_for("/feeds", |answer| answer.contains("\"name\":\"a\""));
        follower.stop();
        writer.stop();
    }
}

/// Goal: a writer that hangs is told, and whoever asks is answered; it is ready again once it goes on.
#[test]
fn a_writer_that_hangs_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let followed = Arc::new(AlteredLog::new(
        &MemoryStore::default().0,
        Faults::default(),
    ));
    let server = Running::start(folder.path(), FollowedStore(Arc::clone(&followed)));
    assert_eq!(server.get("/readyz").0, 200);
    let hangs = followed.alteration.hanging.lock();
    // Two, since the first one is served on the thread of its connection.
    let waiting = [0, 1].map(|_| server.send("POST", "/feeds/hanging", "{}"));
    let unwell = server.wait_for("/readyz", |answer| answer.contains(" 503 "));
    assert!(unwell.contains("no sign of life"), "{unwell}");
    drop(hangs);
    for mut answer in waiting {
        answer.read_to_string(&mut String::new()).unwrap();
    }
    assert!(!server.get("/readyz").1.contains("no sign of life"));
    server.stop();
}

/// Goal: what a server answers follows from commits, whoever has appended them. (Which seconds are over is the
/// writer's knowledge: a store that several processes share has to share the watermark, too.)
#[test]
fn a_server_follows_a_log_that_another_one_writes() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let store = MemoryStore::default();
    let followed = FollowedStore(Arc::new(AlteredLog::new(&store.0, Faults::default())));
    let writer = Running::start(folders[0].path(), store.clone());
    let follower = Running::start(folders[1].path(), followed);
    assert_eq!(follower.get("/feeds/a/recent.atom").0, 404);
    let settings = "{\"document_entries\":3}";
    assert_eq!(writer.ask("PUT", "/feeds/a", settings).0, 201);
    for number in 0..20 {
        writer.publish("a", number);
        // Kept ready since the last round, and outdated by the commit.
        let (status, recent) = follower.get("/feeds/a/recent.atom");
        assert_eq!(status, 200);
        let newest = format!("urn:e:{number}<");
        assert!(recent.contains(&newest), "{number}: {recent}");
        let catalogue = follower.get("/feeds").1;
        let count = format!("\"entries\":{}", number + 1);
        assert!(catalogue.contains(&count), "{catalogue}");
    }
    // Both freeze the same bytes, each in its own folder.
    for document in 1..=6 {
        let path = format!("/feeds/a/{document}.atom");
        let frozen = [&writer, &follower].map(|server| {
            server.wait_for(&path, |answer| answer.contains("immutable"));
            server.get(&path).1
        });
        // The URLs of the follower are those of the writer, because settings are commits.
        assert_eq!(frozen[0], frozen[1]);
    }
    let (status, refused) = follower.ask("POST", "/feeds/a", "{\"title\":\"t\"}");
    assert_eq!(status, 503, "{refused}");
    follower.stop();
    // The end of one server is not the end of the other.
    writer.publish("a", 20);
    writer.wait_for("/feeds/a/7.atom", |answer| {
        answer.contains("immutable") || answer.contains("urn:e:20<")
    });
    writer.stop();
    for folder in &folders {
        let report = verified(&store, &views_of(folder)).unwrap();
        assert_eq!(report.findings.faults, [""; 0]);
    }
}
