use std::sync::{Condvar, Mutex, atomic::AtomicBool};

use simplefeed_core::{
    event, feed::FeedKey, follow::FollowItem, plan::FeedHead, refusal::RefusalKind,
    settings::Choices,
};
use simplefeed_log::{
    Commits, Series,
    fixtures::{Alteration, AlteredLog, Call},
    memory::MemoryLog,
};
use simplefeed_process::{clock::ClockReading, workers::Workers};

use super::*;

/// A log whose appends wait for the test, and fail when it says so.
type Gated = AlteredLog<Gate>;

#[derive(Default)]
struct Gate {
    appends: Mutex<u64>,
    changed: Condvar,
    allowed: Mutex<u64>,
    fails: AtomicBool,
    failed: AtomicBool,
    /// Whether a file of it was cut, so that nothing is found in it.
    cut: AtomicBool,
    /// Threads of the appends.
    threads: Mutex<Vec<String>>,
    /// Feeds whose heads came with each append.
    known: Mutex<Vec<Vec<FeedKey>>>,
}

fn gated() -> Gated {
    AlteredLog::new(&Arc::default(), Gate::default())
}

impl Gate {
    fn appended_by(&self) -> Vec<String> {
        self.threads.lock().unwrap().clone()
    }

    fn allow(&self, appends: u64) {
        *self.allowed.lock().unwrap() = appends;
        self.changed.notify_all();
    }

    /// Waits until the writer is in append `number`.
    fn wait_for_append(&self, number: u64) {
        while *self.appends.lock().unwrap() < number {
            std::thread::yield_now();
        }
    }

    fn pass(&self, before: &FeedHeads, log: &MemoryLog) -> Result<(), LogError> {
        for (feed, head) in before {
            assert_eq!(log.feed(*feed).unwrap().as_ref(), Some(head));
        }
        self.known
            .lock()
            .unwrap()
            .push(before.keys().copied().collect());
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().unwrap().push(thread);
        let number = {
            let mut appends = self.appends.lock().unwrap();
            *appends += 1;
            *appends
        };
        let mut allowed = self.allowed.lock().unwrap();
        while *allowed < number {
            allowed = self.changed.wait(allowed).unwrap();
        }
        drop(allowed);
        if self.fails.load(Ordering::Acquire) {
            // What a failed barrier leaves: stored, and nobody knows.
            self.failed.store(true, Ordering::Release);
            return Err(LogError::Stopped);
        }
        Ok(())
    }
}

impl Alteration for Gate {
    fn before(&self, call: Call<'_>, log: &MemoryLog) -> Result<(), LogError> {
        match call {
            Call::Append(before) => {
                self.pass(before.expect("the writer says which heads it knows"), log)
            }
            Call::Ids if self.cut.load(Ordering::Acquire) => {
                Err(LogError::damaged("a page of sled"))
            }
            _ => Ok(()),
        }
    }

    fn is_open(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    fn is_displaced(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }
}

fn append(lines: &str, if_match: Option<Heads>) -> AppendRequest {
    let feed = FeedName::parse("a").unwrap();
    let drafts = event::from_ndjson(lines.as_bytes()).unwrap();
    AppendRequest {
        feed,
        drafts,
        key: None,
        conditions: Conditions {
            if_match,
            ..Conditions::default()
        },
        room: None,
    }
}

/// Asks, without waiting for the answer.
fn ask(
    publisher: &WriterHandle,
    append: AppendRequest,
) -> oneshot::Receiver<Result<AppendResult, PublishError>> {
    let (reply, answer) = oneshot::channel();
    publisher
        .queue
        .try_send(WriterRequest::Append(append, reply))
        .unwrap();
    answer
}

fn kind(answer: &Result<AppendResult, PublishError>) -> String {
    match answer {
        Ok(appended) => format!("duplicate {}", appended.results[0].duplicate),
        Err(PublishError::Refused(refusal)) => format!("{:?}", refusal.kind),
        Err(error) => error.to_string(),
    }
}

/// A clock that stands.
fn clock() -> Clock {
    let read = || ClockReading {
        wall: Timestamp::from_micros(1),
        boot: 0,
    };
    Clock::new(read, None)
}

#[derive(Debug)]
struct Unobserved;

impl WriterObserver for Unobserved {
    fn committed(&self, _: usize, _: Duration) {}
    fn panicked(&self) {}
}

/// Starts a writer over a log.
fn start_over(log: &Arc<Gated>) -> (WriterHandle, JoinHandle<()>) {
    let shared: Arc<dyn WritableLog> = Arc::<Gated>::clone(log);
    start(
        shared,
        Arc::new(NoTimelines),
        Defaults::new("http://h"),
        clock(),
        Arc::new(Watermark::in_memory()),
        Arc::new(Unobserved),
    )
    .unwrap()
}

/// The log has no timeline.
struct NoTimelines;

impl Follows for NoTimelines {
    fn items(&self, _: FeedKey) -> Option<Vec<FollowItem>> {
        None
    }

    fn head(&self, _: FeedKey) -> Option<FeedHead> {
        None
    }

    fn timelines(&self) -> Option<u64> {
        Some(0)
    }
}

/// Goal: a request is served on the thread of its connection if nobody else waits for that thread, and only then;
/// whoever comes meanwhile is answered by another thread.
#[test]
fn a_lone_request_is_served_on_its_thread() {
    let log = Arc::new(gated());
    let (publisher, writer) = start_over(&log);
    let workers = Workers::start().unwrap();
    let send = |line: String| {
        let (publisher, (done, answer)) = (publisher.clone(), std::sync::mpsc::channel());
        workers.spawn(async move {
            let appended = publisher.append(append(&line, None)).await;
            done.send(appended.is_ok()).unwrap();
        });
        answer
    };
    // Alone on its thread, which it blocks while the log waits for the disk.
    let first = send("{\"id\":\"urn:0\"}".into());
    log.alteration.wait_for_append(1);
    assert_eq!(log.alteration.appended_by(), ["worker"]);
    for _ in 0..8 {
        let (done, ran) = std::sync::mpsc::channel();
        workers.spawn(async move { done.send(()).unwrap() });
        ran.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    // The time that a slow disk takes.
    std::thread::park_timeout(Duration::from_millis(50));
    log.alteration.allow(1);
    assert!(first.recv().unwrap());
    // It took long, so the next one is left to the writer's thread, and so is one that has company.
    let second = send("{\"id\":\"urn:1\"}".into());
    log.alteration.wait_for_append(2);
    assert_eq!(log.alteration.appended_by(), ["worker", "writer"]);
    log.alteration.allow(u64::MAX);
    assert!(second.recv().unwrap());
    // Once commits take little time again, which may be late on a busy machine.
    for n in 2.. {
        assert!(send(format!("{{\"id\":\"urn:{n}\"}}")).recv().unwrap());
        if log
            .alteration
            .appended_by()
            .last()
            .is_some_and(|thread| thread == "worker")
        {
            break;
        }
        assert!(n < 100_000, "no lone request is served on its thread again");
    }
    for _ in 0..2 * std::thread::available_parallelism()
        .map_or(1, usize::from)
        .max(2)
    {
        workers.spawn(std::future::pending());
    }
    let behind = log.alteration.appended_by().len();
    assert!(send("{\"id\":\"urn:last\"}".into()).recv().unwrap());
    assert_eq!(log.alteration.appended_by()[behind..], ["writer"]);
    workers.end(Duration::ZERO);
    drop(publisher);
    writer.join().unwrap();
}

/// Goal: no answer leaves before the barrier that it depends on, and none at all if that fails.
/// Method: while one commit waits for the disk, four requests queue up that become one group: a new
/// entry, its repetition, a conflict with it, and a condition that it breaks.
#[test]
fn a_group_is_answered_behind_its_barrier() {
    for fails in [false, true] {
        let log = Arc::new(gated());
        let commits = Arc::new(Mutex::new(vec![]));
        let seen = Arc::clone(&commits);
        log.announcements()
            .listen(move |commit| seen.lock().unwrap().push(commit.entries()));
        let (publisher, writer) = start_over(&log);
        let first = ask(&publisher, append("{\"id\":\"urn:0\"}", None));
        log.alteration.wait_for_append(1);
        let new = "{\"id\":\"urn:1\",\"content\":1}";
        let other = "{\"id\":\"urn:1\",\"content\":2}";
        let stale = Heads::Tags(vec!["stale".into()]);
        let mut waiting = vec![
            ask(&publisher, append(new, None)),
            ask(&publisher, append(new, None)),
            ask(&publisher, append(other, None)),
            ask(&publisher, append("{\"id\":\"urn:2\"}", Some(stale))),
        ];
        log.alteration.allow(1);
        assert!(first.blocking_recv().unwrap().is_ok());
        log.alteration.wait_for_append(2);
        for answer in &mut waiting {
            assert!(
                answer.try_recv().is_err(),
                "an answer left before the barrier"
            );
        }
        log.alteration.fails.store(fails, Ordering::Release);
        log.alteration.allow(9);
        let answers: Vec<_> = waiting
            .into_iter()
            .map(|answer| answer.blocking_recv().unwrap())
            .collect();
        drop(publisher);
        writer.join().unwrap();
        if fails {
            let unavailable =
                |answer: &Result<_, _>| matches!(answer, Err(PublishError::Unavailable));
            assert!(answers.iter().all(unavailable), "{answers:?}");
            assert_eq!(*commits.lock().unwrap(), [1]);
            continue;
        }
        let kinds: Vec<String> = answers.iter().map(kind).collect();
        let conflict = format!("{:?}", RefusalKind::Conflict);
        let precondition = format!("{:?}", RefusalKind::Precondition);
        assert_eq!(
            kinds,
            [
                "duplicate false",
                "duplicate true",
                &conflict,
                &precondition
            ]
        );
        assert_eq!(
            *commits.lock().unwrap(),
            [1, 1],
            "four requests, one commit"
        );
    }
}

/// Goal: the log gets the heads of feeds as they were before a commit, and none that the commit has changed already.
/// Method: the log of the test compares them with its own. One group begins with entries, the other one with settings.
#[test]
fn the_log_gets_heads_from_before_the_commit() {
    let log = Arc::new(gated());
    let (publisher, writer) = start_over(&log);
    let entry = |n: u32| ask(&publisher, append(&format!("{{\"id\":\"urn:{n}\"}}"), None));
    let settings = |title: &str| {
        let choices = Choices {
            title: Some(title.into()),
            ..Choices::default()
        };
        let (reply, answer) = oneshot::channel();
        let configure = Configure {
            feed: FeedName::parse("a").unwrap(),
            choices,
            id: None,
            expected: SettingsCondition::Anything,
            kind: FeedKindRule::Any,
            wanted: FollowItems::default(),
        };
        let request = WriterRequest::Configure(configure, reply);
        publisher.queue.try_send(request).unwrap();
        answer
    };
    let mut appended = vec![entry(0)];
    log.alteration.wait_for_append(1);
    appended.extend([entry(1), entry(2)]);
    let mut configured = vec![settings("one")];
    appended.push(entry(3));
    log.alteration.allow(1);
    log.alteration.wait_for_append(2);
    configured.push(settings("two"));
    appended.extend([entry(4), entry(5)]);
    log.alteration.allow(2);
    log.alteration.wait_for_append(3);
    appended.push(entry(6));
    log.alteration.allow(9);
    for answer in appended {
        assert!(answer.blocking_recv().unwrap().is_ok());
    }
    for answer in configured {
        assert!(answer.blocking_recv().unwrap().is_ok());
    }
    drop(publisher);
    writer.join().unwrap();
    let name = FeedName::parse("a").unwrap();
    let feed = log.named(&name).unwrap().unwrap().feed;
    let known = log.alteration.known.lock().unwrap().clone();
    assert_eq!(known, [vec![], vec![feed], vec![], vec![feed]]);
}

/// Goal: publishers get the reason of cut log files, whichever part of the server finds them first.
#[test]
fn a_lookup_in_cut_files_names_the_cause() {
    let log = Arc::new(gated());
    let (publisher, writer) = start_over(&log);
    log.alteration.allow(9);
    let publish = |lines| {
        let answer = ask(&publisher, append(lines, None));
        answer.blocking_recv().unwrap().map(drop)
    };
    assert!(publish("{\"id\":\"urn:0\"}").is_ok());
    log.alteration.cut.store(true, Ordering::Release);
    for _ in 0..2 {
        let answer = publish("{\"id\":\"urn:1\"}");
        assert!(matches!(answer, Err(PublishError::Displaced)), "{answer:?}");
    }
    drop(publisher);
    writer.join().unwrap();
}
