//! Goal: what a provider shows is in the updates feed, whatever is killed on the way, and no provider is asked too much.
//! Method: the real programs, and a provider that fails and counts.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    dice::Dice,
    harness::{
        Server, free_address, is_long, pause, program, run, run_command, signal, simplefeed, text,
        wait_for, workspace,
    },
    http::Request,
    postgres::Postgres,
    provider::{Manner, Provider},
};

/// First id: beyond 2^53, where a number of JavaScript loses digits.
const FIRST: u64 = 9_007_199_254_740_993;

const EASY: Manner = Manner {
    limit: 1_000_000,
    window: Duration::from_secs(10),
    is_faulty: false,
    delay: Duration::ZERO,
};

/// A server, a provider, and a folder for queues and settings.
struct Scene {
    folder: tempfile::TempDir,
    address: String,
    server: Option<Server>,
    provider: Provider,
}

impl Scene {
    fn new(manner: Manner) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        let server = Server::start_at(&address, &folder.path().join("data"), &[]);
        let scene = Self {
            folder,
            address,
            server: Some(server),
            provider: Provider::new(manner),
        };
        scene.write("intervals.toml", "\"30d\" = \"1s\"\n");
        let Manner { limit, window, .. } = manner;
        let limit = limit.min(100_000);
        let seconds = window.as_secs();
        scene.write(
            "credentials.toml",
            &format!(
                "[[credential]]\nname = \"one\"\nheader = \"Authorization: one\"\nlimit = {limit}\nwindow = \"{seconds}s\"\n\
                 [[credential]]\nname = \"two\"\nheader = \"Authorization: two\"\nlimit = {limit}\nwindow = \"{seconds}s\"\n"
            ),
        );
        scene
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn url(&self, feed: &str) -> String {
        format!("http://{}/feeds/{feed}", self.address)
    }

    /// Publishes items that were born now.
    fn publish(&self, numbers: Range<u64>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = now.as_secs();
        let lines = numbers.fold(String::new(), |lines, number| {
            let id = FIRST + number;
            lines + &format!("{{\"id\":\"urn:post:{id}\",\"content\":{{\"post\":{{\"id\":{id},\"at\":{now}}}}}}}\n")
        });
        simplefeed(&["append", &self.url("posts"), "--quiet"], lines.as_bytes());
    }

    /// Starts a worker.
    fn refresh(&self, queue: &str, more: &[&str]) -> Worker {
        let lookup = self.provider.url("/posts?ids={ids}");
        let mut command = Command::new(program("simplefeed"));
        command.args(["refresh", &self.url("posts"), "--item-id", "/post/id"]);
        command.args([
            "--born", "/post/at", "--lookup", &lookup, "--items", "/data",
        ]);
        command.args([
            "--into",
            &self.url("likes"),
            "--queue",
            queue,
            "--buffer",
            "1s",
        ]);
        command.args(["--intervals", &self.path("intervals.toml")]);
        command.args(["--credentials", &self.path("credentials.toml")]);
        command
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Worker(command.spawn().unwrap())
    }

    /// Events of the updates feed, oldest first: item, and likes or nothing if it has ended.
    fn events(&self) -> Vec<(String, Option<u64>)> {
        let output = run("simplefeed", &["replay", &self.url("likes")], b"");
        let printed = text(&output.stdout);
        let event = |line: &str| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let id = event["title"].as_str().unwrap().to_owned();
            (id, event["content"]["likes"].as_u64())
        };
        printed.lines().map(event).collect()
    }

    /// Waits until the updates feed has the newest value of all items.
    fn settle(&self, items: usize, seconds: u64) {
        self.provider.freeze();
        let began = Instant::now();
        loop {
            let newest: BTreeMap<String, Option<u64>> = self.events().into_iter().collect();
            let likes = self.provider.likes();
            let is_newest = |(id, likes): (&String, &u64)| newest.get(id) == Some(&Some(*likes));
            let fresh = likes.iter().filter(|one| is_newest(*one)).count();
            if fresh == items && likes.len() == items {
                return;
            }
            assert!(
                began.elapsed() < Duration::from_secs(seconds),
                "{fresh} of {items} items are fresh, the provider knows {}",
                likes.len()
            );
            pause(Duration::from_millis(500));
        }
    }

    /// Checks all that must hold of requests and events.
    fn check(&self) {
        assert_eq!(self.provider.complaints(), [""; 0]);
        let mut newest: BTreeMap<String, u64> = BTreeMap::new();
        for (id, likes) in self.events() {
            let likes = likes.unwrap();
            assert!(
                self.provider.shown(&id).contains(&likes),
                "{id} never had {likes}"
            );
            // Likes only grow, so that an older value after a newer one would show.
            let before = newest.insert(id.clone(), likes).unwrap_or(0);
            assert!(before <= likes, "{id} had {before} before {likes}");
        }
    }
}

/// Asks about a queue.
fn ask(args: &[&str], queue: &str) -> String {
    let mut all = vec!["refresh", args[0], "--queue", queue];
    all.extend(&args[1..]);
    simplefeed(&all, b"")
}

/// Items in the queue, and how many of them are dead.
fn counts(queue: &str) -> (u64, u64) {
    let counts = ask(&["status", "--json"], queue);
    let counts: serde_json::Value = serde_json::from_str(&counts).unwrap();
    let count = |name: &str| counts[name].as_u64().unwrap();
    let dead = count("dead");
    (
        count("waiting") + count("due") + count("leased") + dead,
        dead,
    )
}

/// A running `simplefeed refresh`. It is killed when dropped.
struct Worker(Child);

impl Worker {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Asks it to end. Returns its exit code.
    fn stop(mut self) -> Option<i32> {
        signal("TERM", self.0.id());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.0.kill().is_err();
        self.0.wait().unwrap();
    }
}

/// Starts a consumer of the updates feed, which appends what it gets to the file `taken`.
fn consume(scene: &Scene, subcommand: &[&str]) -> Command {
    let exec = format!("cat >> {}", scene.path("taken"));
    let mut command = Command::new(program("simplefeed"));
    command.args(subcommand).arg(scene.url("likes"));
    command.args(["--state", &scene.path("state"), "--exec", &exec]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Items feed, refresher, updates feed, consumer: server, refresher and consumer are killed at random. Every newest value
/// is published, nothing else is, and the consumer has every event.
#[test]
fn no_change_is_lost_whatever_is_killed() {
    let manner = Manner {
        limit: 300,
        is_faulty: true,
        ..EASY
    };
    let mut scene = Scene::new(manner);
    let kills = if is_long() { 100 } else { 15 };
    let queue = scene.path("queue");
    let workers = ["--workers", "4"];
    let tail = ["tail", "--since", "oldest"];
    let mut dice = Dice::new(3);
    scene.publish(0..20);
    let mut worker = Some(scene.refresh(&queue, &workers));
    // It needs the feed, which the first event makes.
    wait_for("something is published", || {
        let output = run("simplefeed", &["replay", &scene.url("likes")], b"");
        output.status.success().then_some(())
    });
    let mut consumer = Some(Worker(consume(&scene, &tail).spawn().unwrap()));
    for kill in 0..kills {
        scene.publish(20 + kill..21 + kill);
        pause(Duration::from_millis(
            200 + u64::try_from(dice.below(1_500)).unwrap(),
        ));
        match dice.below(3) {
            0 => {
                worker.take().unwrap().kill();
                worker = Some(scene.refresh(&queue, &workers));
            }
            1 => {
                consumer.take().unwrap().kill();
                consumer = Some(Worker(consume(&scene, &tail).spawn().unwrap()));
            }
            _ => {
                scene.server.take().unwrap().kill();
                let data = scene.folder.path().join("data");
                scene.server = Some(Server::start_at(&scene.address, &data, &[]));
            }
        }
    }
    let items = 20 + kills;
    scene.settle(usize::try_from(items).unwrap(), 120);
    scene.check();
    assert_eq!(counts(&queue), (items, 0));
    assert_eq!(worker.unwrap().stop(), Some(0));
    consumer.unwrap().kill();
    let ended = consume(&scene, &["replay"]).status().unwrap();
    assert!(ended.success());
    let taken = std::fs::read_to_string(scene.path("taken")).unwrap();
    let id = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["id"].as_str().unwrap().to_owned()
    };
    let taken: HashSet<String> = taken.lines().map(id).collect();
    let all = simplefeed(&["replay", &scene.url("likes"), "--format", "id"], b"");
    let all: HashSet<String> = all.lines().map(str::to_owned).collect();
    assert_eq!(taken, all);
}

/// Lets processes work for a while. They publish of each item what the provider showed of it, once and in order: what one
/// worker would.
fn publish_what_is_shown(queue: &str, processes: usize, more: &[&str]) {
    const ITEMS: u64 = 200;
    let scene = Scene::new(Manner {
        delay: Duration::from_millis(50),
        ..EASY
    });
    scene.publish(0..ITEMS);
    let workers: Vec<Worker> = (0..processes).map(|_| scene.refresh(queue, more)).collect();
    wait_for("values are shown", || {
        let (requests, _) = scene.provider.requests();
        (requests > 60).then_some(())
    });
    scene.settle(usize::try_from(ITEMS).unwrap(), 60);
    for worker in workers {
        assert_eq!(worker.stop(), Some(0));
    }
    let mut published: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (id, likes) in scene.events() {
        published.entry(id).or_default().push(likes.unwrap());
    }
    assert_eq!(published.len(), usize::try_from(ITEMS).unwrap());
    for (id, values) in published {
        let shown: Vec<u64> = scene.provider.shown(&id).into_iter().collect();
        assert_eq!(values, shown, "{id}");
    }
    assert_eq!(scene.provider.complaints(), [""; 0]);
}

#[test]
fn threads_publish_what_one_worker_does() {
    let folder = tempfile::tempdir().unwrap();
    let queue = folder.path().join("queue");
    let more = ["--workers", "4", "--batch", "20"];
    publish_what_is_shown(queue.to_str().unwrap(), 1, &more);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn postgres_processes_publish_what_one_worker_does() {
    let postgres = Postgres::start();
    publish_what_is_shown(&postgres.url(), 4, &["--batch", "20"]);
}

/// A password need not stand in the URL, where every user of the machine would see it.
#[test]
#[ignore = "needs PostgreSQL"]
fn postgres_asks_for_the_password_of_the_environment() {
    let postgres = Postgres::start();
    let url = postgres.protect("jobs", "s3cret");
    let status = |password: &str| {
        let mut command = Command::new(program("simplefeed"));
        command.args(["refresh", "status", "--queue", &url]);
        run_command(command.env("PGPASSWORD", password), b"").status
    };
    assert!(status("s3cret").success());
    assert!(!status("other").success());
}

/// Kills one of some processes every second, and lets others take their place. All that must hold is checked at the end.
/// Returns what was done.
fn kill_workers(
    queue: &str,
    processes: usize,
    more: &[&str],
    mut other: impl FnMut(u64, u64),
) -> String {
    let (items, kills) = if is_long() { (20_000, 300) } else { (300, 10) };
    let manner = Manner {
        limit: 2_000,
        is_faulty: true,
        ..EASY
    };
    let scene = Scene::new(manner);
    scene.publish(0..items);
    let mut all: Vec<Worker> = (0..processes).map(|_| scene.refresh(queue, more)).collect();
    let mut dice = Dice::new(5);
    for kill in 0..kills {
        pause(Duration::from_secs(1));
        let index = dice.below(all.len());
        all.swap_remove(index).kill();
        other(kill, kills);
        all.push(scene.refresh(queue, more));
    }
    // What a killed worker had may be leased for a minute.
    scene.settle(usize::try_from(items).unwrap(), 300);
    scene.check();
    assert_eq!(counts(queue), (items, 0));
    let (requests, ids) = scene.provider.requests();
    let events = scene.events().len();
    for worker in all {
        assert_eq!(worker.stop(), Some(0));
    }
    format!("{items} items, {kills} kills, {requests} requests with {ids} ids, {events} events")
}

/// Any number of processes share a queue in PostgreSQL, are killed, and PostgreSQL with them.
#[test]
#[ignore = "needs PostgreSQL"]
fn postgres_workers_are_killed_and_lose_nothing() {
    let mut postgres = Postgres::start();
    let processes = if is_long() { 8 } else { 4 };
    let url = postgres.url();
    let done = kill_workers(&url, processes, &[], |kill, kills| {
        if kill == kills / 3 || is_long() && kill == kills * 2 / 3 {
            postgres.restart();
        }
    });
    eprintln!("{done}");
}

/// The threads of one process share a queue in a file, and are killed together.
#[test]
fn workers_of_a_file_are_killed_and_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let queue = folder.path().join("queue");
    let queue = queue.to_str().unwrap();
    let done = kill_workers(queue, 1, &["--workers", "4"], |_, _| {});
    eprintln!("{done}");
}

/// One more worker is one more command, and the rate of requests rises.
#[test]
#[ignore = "needs PostgreSQL"]
fn postgres_workers_raise_the_rate() {
    let manner = Manner {
        delay: Duration::from_millis(300),
        ..EASY
    };
    let scene = Scene::new(manner);
    let postgres = Postgres::start();
    scene.publish(0..40);
    let more = ["--batch", "2"];
    let mut workers = vec![scene.refresh(&postgres.url(), &more)];
    let time_of = |requests: usize| {
        let (before, _) = scene.provider.requests();
        let began = Instant::now();
        wait_for("requests are made", || {
            let (now, _) = scene.provider.requests();
            (now >= before + requests).then_some(())
        });
        began.elapsed()
    };
    time_of(5);
    let alone = time_of(15);
    workers.extend((0..2).map(|_| scene.refresh(&postgres.url(), &more)));
    time_of(15);
    let together = time_of(30);
    // Thrice the workers: half of that is enough on a busy machine.
    assert!(together < alone * 4 / 3, "{together:?} {alone:?}");
}

/// An item that is gone ends, and one that the provider refuses can be dropped, while a worker has the queue.
#[test]
fn items_end_and_are_dropped() {
    let scene = Scene::new(EASY);
    let queue = scene.path("queue");
    scene.publish(0..3);
    let id = |number: u64| (FIRST + number).to_string();
    scene.provider.poison(&id(1), true);
    scene.provider.vanish(&id(2));
    let metrics = free_address();
    let worker = scene.refresh(&queue, &["--batch", "1", "--metrics-listen", &metrics]);
    wait_for("an item ends", || {
        let events = scene.events();
        events.contains(&(id(2), None)).then_some(())
    });
    // The queue is open in the worker, which answers at its socket.
    wait_for("two items are left", || {
        (counts(&queue).0 == 2).then_some(())
    });
    ask(&["drop", &id(1)], &queue);
    assert_eq!(counts(&queue), (1, 0));
    let scraped = Request::get("/metrics").send(&metrics).unwrap();
    assert!(
        scraped
            .header("content-type")
            .starts_with("application/openmetrics-text")
    );
    let of_dead = "\nsimplefeed_refresh_dead 0\n";
    assert!(scraped.text().contains(of_dead), "{}", scraped.text());
    assert_eq!(Request::get("/").send(&metrics).unwrap().status, 404);
    assert_eq!(worker.stop(), Some(0));
    assert!(!Path::new(&format!("{queue}.sock")).exists());
    assert_eq!(counts(&queue), (1, 0));
    assert_eq!(scene.provider.complaints(), [""; 0]);
}

/// Dead items are listed with the reason, and looked up again or dropped by hand.
#[test]
fn dead_items_are_listed_retried_and_dropped() {
    let scene = Scene::new(EASY);
    let queue = scene.path("queue");
    kill_items(Path::new(&queue), &["a", "b", "c"]);
    assert_eq!(counts(&queue), (3, 3));
    let listed = ask(&["dead"], &queue);
    let first: serde_json::Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(
        first,
        serde_json::json!({"id": "a", "failures": 1, "reason": "no such parcel"})
    );
    assert_eq!(listed.lines().count(), 3);
    ask(&["retry", "b"], &queue);
    assert_eq!(counts(&queue), (3, 2));
    ask(&["drop", "--all-dead"], &queue);
    assert_eq!(counts(&queue), (1, 0));
    let status = ask(&["status"], &queue);
    assert!(
        status.starts_with("0 waiting, 1 due, 0 in work, 0 dead"),
        "{status}"
    );
}

/// Makes dead items, which takes a quarter of an hour otherwise.
fn kill_items(queue: &Path, ids: &[&str]) {
    use simplefeed_queue::{
        Clock, Due, Existing, JobFailure, Namespace, NewJob, Queue as _, TakeOutcome, Want,
        redb::Redb,
    };
    let name = Namespace::new("refresh").unwrap();
    let now = Due::After(Duration::ZERO);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let queue = Redb::open(queue, Clock::Real).unwrap();
        let jobs = ids.iter().map(|id| NewJob::new(&name, *id, now)).collect();
        queue.schedule(jobs, Existing::Keep).await.unwrap();
        let want = Want {
            max: ids.len(),
            buffer: Duration::ZERO,
            lease: Duration::from_mins(1),
        };
        let TakeOutcome::Leased(leases) = queue.take(&name, want).await.unwrap() else {
            panic!("no jobs");
        };
        let failure = |lease: simplefeed_queue::Lease| JobFailure {
            token: lease.token,
            retry: now,
            attempts: 1,
            reason: "no such parcel".to_owned(),
        };
        let failures = leases.into_iter().map(failure).collect();
        queue.fail(failures).await.unwrap();
    });
}

/// Each wrong use is refused with the reason.
#[test]
fn wrong_uses_are_explained() {
    let scene = Scene::new(EASY);
    let queue = scene.path("queue");
    let refused = |args: &[&str], words: &str| {
        // One that is not refused works for ever.
        let mut command = Command::new("timeout");
        command.arg("30").arg(program("simplefeed")).args(args);
        let output = run_command(&mut command, b"");
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains(words),
            "{args:?}: {said}"
        );
    };
    let (posts, likes) = (scene.url("posts"), scene.url("likes"));
    let lookup = scene.provider.url("/posts?ids={ids}");
    let base = ["refresh", &posts, "--into", &likes, "--queue", &queue];
    let with = |more: &[&str], words: &str| refused(&[base.as_slice(), more].concat(), words);
    with(&[], "--lookup");
    with(&["--lookup", "http://127.0.0.1/x"], "{ids}");
    with(
        &["--lookup", "ftp://127.0.0.1/{ids}"],
        "neither http nor https",
    );
    with(&["--lookup", &lookup, "--post"], "in the body");
    with(
        &["--lookup", &lookup, "--item-id", "number"],
        "JSON pointer",
    );
    with(&["--lookup", &lookup, "--items", "data"], "begins with /");
    with(&["--lookup", &lookup, "--batch", "20000"], "at most 10000");
    with(&["--lookup", &lookup, "--name", "a b"], "namespace");
    with(
        &["--lookup", &lookup, "--intervals", &scene.path("none")],
        "cannot read",
    );
    let same = [
        "refresh", &posts, "--into", &posts, "--queue", &queue, "--lookup", &lookup,
    ];
    refused(&same, "itself");
    refused(
        &["refresh", "status", "--queue", &scene.path("typo")],
        "there is no queue",
    );
    assert!(!Path::new(&scene.path("typo")).exists());
    refused(&["refresh", "retry", "--queue", &queue], "--all-dead");
    scene.write("text", "no queue at all, but a text\n");
    refused(
        &["refresh", "status", "--queue", &scene.path("text")],
        "opening the queue",
    );

    // Two pairs of feeds under one name would publish into each other's.
    scene.publish(0..1);
    let worker = scene.refresh(&queue, &[]);
    let socket = format!("{queue}.sock");
    wait_for("the worker has the file", || {
        Path::new(&socket).exists().then_some(())
    });
    let other = [base.as_slice(), &["--lookup", &lookup]].concat();
    refused(&other, "open in another process");
    assert_eq!(worker.stop(), Some(0));
    let other = [
        "refresh", &likes, "--into", &posts, "--queue", &queue, "--lookup", &lookup,
    ];
    refused(&other, "another --name");
}

/// The examples of the page are run as they stand there, but for addresses and the first interval.
#[test]
#[ignore = "needs PostgreSQL"]
fn postgres_and_the_page_of_the_refresher_are_true() {
    let page = std::fs::read_to_string(workspace().join("docs/refresher.md")).unwrap();
    let postgres = Postgres::start();
    let mut examples = 0;
    for block in page.split("```sh try").skip(1) {
        let (_, script) = block.split_once('\n').unwrap();
        let script = script.split("```").next().unwrap();
        let scene = Scene::new(EASY);
        let script = script
            .replace(
                "http://127.0.0.1:8080",
                &format!("http://{}", scene.address),
            )
            .replace("https://api.example", scene.provider.url("").as_str())
            .replace("postgres://jobs@db.example/jobs", &postgres.url())
            .replace("\"2m\"", "\"1s\"");
        let into = script.split("--into ").nth(1).unwrap();
        let into = into.split_whitespace().next().unwrap().to_owned();
        let programs = program("simplefeed").parent().unwrap().to_owned();
        let script = format!("PATH={}:$PATH\n{script}", programs.display());
        let child = Command::new("sh")
            .args(["-euc", &script])
            .process_group(0)
            .current_dir(scene.folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let items = script.matches("for id in").count() * 2 + 1;
        wait_for("the example publishes", || {
            let output = run("simplefeed", &["replay", &into, "--format", "id"], b"");
            (text(&output.stdout).lines().count() >= items).then_some(())
        });
        // The shell and all that it started.
        let group = child.id();
        let ended = Command::new("sh")
            .args(["-c", &format!("kill -TERM -{group}")])
            .status();
        assert!(ended.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert!(!said.contains("error:"), "{said}");
        examples += 1;
    }
    assert_eq!(examples, 3);
}
