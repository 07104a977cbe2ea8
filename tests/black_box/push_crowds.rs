//! Push with real processes that are killed, and with crowds that wait.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    dice::Dice,
    event_stream::EventStream,
    harness::{Server, free_address, is_long, pause, program, wait_for},
    http::Request,
};

const MEANS: [&str; 3] = ["events", "wait", "poll"];

/// A `tail` whose output goes to a file of its own. It is killed when dropped.
struct Tail(Child);

impl Tail {
    fn start(url: &str, folder: &Path, run: usize) -> Self {
        let output = File::create(folder.join(format!("{run:03}.ids"))).unwrap();
        let child = Command::new(program("simplefeed"))
            .args([
                "tail", url, "--since", "oldest", "--format", "id", "--quiet",
            ])
            .args(["--wait", MEANS[run % MEANS.len()], "--bookmark"])
            .arg(folder.join("bookmark"))
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Returns the numbers of the entries that one `tail` has printed.
fn printed(folder: &Path, run: usize) -> Vec<usize> {
    let text = fs::read_to_string(folder.join(format!("{run:03}.ids"))).unwrap();
    // A kill may have cut the last line.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let number = |line: &str| line.strip_prefix("urn:k:").unwrap().parse().unwrap();
    whole.lines().map(number).collect()
}

/// Guard that sets a flag when a run ends, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Goal: kills of server and consumer lose no entry; a consumer repeats only entries that it had not accepted.
#[test]
fn each_entry_comes_through_kills() {
    let kills = if is_long() { 200 } else { 10 };
    let folder = tempfile::tempdir().unwrap();
    let (data, address) = (folder.path().join("data"), free_address());
    let start = || Server::start_at(&address, &data, &["--document-entries", "7"]);
    let mut server = start();
    let (count, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let url = format!("http://{address}/feeds/k");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let number = count.load(Ordering::SeqCst);
                let event = format!("{{\"id\":\"urn:k:{number}\"}}");
                let event = Request::post("/feeds/k", "application/json", event);
                // Repeated until it is acknowledged: the server may be away.
                if let Ok(answer) = event.send(&address)
                    && matches!(answer.status, 200 | 201)
                {
                    count.store(number + 1, Ordering::SeqCst);
                }
                pause(Duration::from_millis(7));
            }
        });
        // Also after a failure, or the publisher would go on for ever.
        let _over = Over(&is_over);
        let mut dice = Dice::new(23);
        let mut tail = Tail::start(&url, folder.path(), 0);
        let mut run = 0;
        for kill in 0..kills {
            pause(Duration::from_millis(200 + dice.next() % 1_500));
            if kill % 2 == 0 {
                server.kill();
                pause(Duration::from_millis(dice.next() % 500));
                server = start();
            } else {
                drop(tail);
                run += 1;
                tail = Tail::start(&url, folder.path(), run);
            }
        }
        is_over.store(true, Ordering::SeqCst);
        let last = |run| {
            printed(folder.path(), run)
                .last()
                .map_or(0, |last| last + 1)
        };
        // The last one has nothing to print if the one before it had printed all.
        let mut end = (0..run).map(last).max().unwrap_or(0);
        // It may have fallen far behind, since each kill costs it more time than the publisher.
        while end < count.load(Ordering::SeqCst) {
            end = wait_for("no further entry is printed", || {
                Some(last(run)).filter(|last| *last > end)
            });
        }
        let mut next = 0;
        for run in 0..=run {
            let numbers = printed(folder.path(), run);
            let Some(first) = numbers.first() else {
                continue;
            };
            assert!(
                *first <= next,
                "run {run} begins at {first}, and {next} was not printed"
            );
            assert!(
                numbers.iter().copied().eq(*first..first + numbers.len()),
                "run {run}"
            );
            next = next.max(first + numbers.len());
        }
        drop(server);
        assert!(next == end && end > 5 * kills, "{next} {end}");
    });
}

/// Sends a request and leaves its answer where it is.
fn send(address: &str, path: &str, more: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Reads until a text has come.
fn read_until(stream: &mut TcpStream, text: &str) {
    let (mut read, mut piece) = (vec![], vec![0; 16 * 1024]);
    while !String::from_utf8_lossy(&read).contains(text) {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "a connection ended before {text}");
        read.extend_from_slice(&piece[..count]);
    }
}

/// Goal: each reader of a crowd is woken; readers that take nothing cost the others nothing; and once all have left,
/// the server has its memory and its descriptors back.
#[test]
fn a_crowd_comes_and_goes() {
    // A process may have 20,000 descriptors here, or fewer; each side needs one for each of them.
    let crowd = if is_long() { 9_000 } else { 300 };
    let folder = tempfile::tempdir().unwrap();
    let connections = (2 * crowd).to_string();
    let server = Server::start(folder.path(), &["--connections", &connections]);
    let publish = |feed: &str, id: &str, size: usize| {
        let text = "t".repeat(size);
        let event = format!("{{\"id\":\"urn:{id}\",\"content\":\"{text}\"}}");
        let answer = server.publish(feed, &event);
        assert_eq!(answer.status, 201, "{}", answer.text());
    };
    let memory = || server.status("VmRSS:").parse::<u64>().unwrap();
    publish("a", "first", 10);
    publish("large", "first", 10);
    let round = |round: usize| {
        let slow: Vec<TcpStream> = (0..50)
            .map(|_| send(&server.address, "/feeds/large/events?since=oldest", ""))
            .collect();
        let streams = ["/feeds/a/events", "/feeds/a/events?content=none"];
        let mut told: Vec<TcpStream> = (0..crowd / 2)
            .map(|number| send(&server.address, streams[number % 2], ""))
            .collect();
        let tag = server.get("/feeds/a/recent.atom").header("etag").to_owned();
        let known = format!("If-None-Match: {tag}\r\n");
        let path = "/feeds/a/recent.atom?wait=60";
        let mut waiting: Vec<TcpStream> = (0..crowd / 2)
            .map(|_| send(&server.address, path, &known))
            .collect();
        for stream in &mut told {
            read_until(stream, "retry: ");
        }
        // The slow ones could take all of this.
        for number in 0..10 {
            publish("large", &format!("{round}-{number}"), 900_000);
        }
        let began = Instant::now();
        let id = format!("told-{round}");
        publish("a", &id, 10);
        // A stream without content does not show the entry's id.
        for (number, stream) in told.iter_mut().enumerate() {
            let expected = if number % 2 == 0 { &id } else { "data: \n" };
            read_until(stream, expected);
        }
        for stream in &mut waiting {
            read_until(stream, &id);
        }
        assert!(
            began.elapsed() < Duration::from_secs(50),
            "{:?}",
            began.elapsed()
        );
        drop((slow, told, waiting));
    };
    let files = server.open_files();
    round(0);
    let left = |complaint: &str| {
        wait_for(complaint, || {
            (server.open_files() <= files + 2).then_some(())
        });
        pause(Duration::from_secs(1));
        memory()
    };
    let first = left("the descriptors are not back after the first crowd");
    round(1);
    round(2);
    let last = left("the descriptors are not back");
    // Later crowds use the memory of the first one again.
    assert!(last < first + 24 * 1024, "{first} KiB, then {last} KiB");
}

/// Goal: a reader that takes nothing for long does not keep others from the past.
#[test]
fn slow_readers_keep_nobody_from_the_past() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--connections", "400"]);
    let text = "t".repeat(20_000);
    for batch in 0..10 {
        let lines = (0..100)
            .map(|number| format!("{{\"id\":\"urn:{batch}:{number}\",\"content\":\"{text}\"}}\n"));
        let answer = server.publish("a", &lines.collect::<String>());
        assert_eq!(answer.status, 201);
    }
    let path = "/feeds/a/events?since=oldest";
    let files = server.open_files();
    let slow: Vec<TcpStream> = (0..250).map(|_| send(&server.address, path, "")).collect();
    pause(Duration::from_secs(1));
    let mut reader = EventStream::open(&server.address, path, &[]).unwrap();
    let told = reader.take(1_000);
    assert!(told[999].data.contains("urn:9:99"));
    // They are cut off, and have not left.
    wait_for("slow readers stay", || {
        (server.open_files() <= files + 10).then_some(())
    });
    drop(slow);
}
