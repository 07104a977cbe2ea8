//! Clocks that are wrong, for a moment or for years: stamps, refusals, messages.
//!
//! The test server adds the numbers of a file to the machine's clocks.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use simplefeed_core::timestamp::Timestamp;
use tempfile::TempDir;

use crate::{
    harness::{Server, check_folder, program, run, text, wait_for},
    http::{Request, Response},
};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// A data folder, and the clocks of the servers over it.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scene = Self { folder };
        scene.set(0, 0);
        scene
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Lets the time of day differ by microseconds, behind so many in which the machine slept.
    fn set(&self, leapt: i64, slept: i64) {
        let (path, new) = (self.file(), self.folder.path().join("new"));
        // Whole at any moment: servers read it.
        std::fs::write(&new, format!("{leapt} {slept}")).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }

    fn try_start(&self, data: &Path) -> Result<Server, Vec<String>> {
        let mut command = Command::new(program("simplefeed-test-server"));
        command.arg(data).args(["honest", "3"]);
        command.env("SIMPLEFEED_TEST_CLOCK", self.file());
        Server::try_spawn(command)
    }

    fn start(&self) -> Server {
        self.try_start(&self.data()).unwrap()
    }

    fn accept(data: &Path) -> String {
        let output = run(
            "simplefeed-server",
            &["clock", "accept", "--data", data.to_str().unwrap()],
            b"",
        );
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    }
}

/// Returns the address of a server's metrics.
fn metrics_of(server: &Server) -> String {
    let line = server.wait_for_log(&["metrics on http://"]);
    let (_, address) = line.split_once("http://").unwrap();
    address.trim_end_matches("/metrics").to_owned()
}

fn has_said(server: &Server, words: &[&str]) -> bool {
    let mut said = server.opening.iter();
    said.any(|line| words.iter().all(|word| line.contains(word)))
}

fn post(server: &Server, id: &str) -> Response {
    server.publish("a", &format!("{{\"id\":\"urn:t:{id}\"}}"))
}

/// Publishes an entry. Returns the instant of its commit, in microseconds.
fn stamped(server: &Server, id: &str) -> i64 {
    let answer = post(server, id);
    assert_eq!(answer.status, 201, "{}", answer.text());
    let feed = server.get("/feeds/a/recent.atom").text();
    let stamp = feed.split("<updated>").nth(1).unwrap();
    let stamp = Timestamp::parse(stamp.split('<').next().unwrap()).unwrap();
    stamp.micros()
}

/// Publishes an entry. Returns how far the instant of its commit is from the machine's time, in microseconds.
fn published(server: &Server, id: &str) -> i64 {
    stamped(server, id) - now()
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap().as_micros()).unwrap()
}

fn is_near(found: i64, expected: i64) -> bool {
    // A busy machine takes its time.
    found.abs_diff(expected) < (10 * 60 * SECOND).unsigned_abs()
}

fn metric(metrics: &str, name: &str) -> f64 {
    let text = Request::get("/metrics").send(metrics).unwrap().text();
    let line = text.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn ready(server: &Server) -> u16 {
    server.get("/readyz").status
}

/// Goal: entries are not stamped by a clock that is wrong for a moment, and by one that is right although it leapt, once
/// an operator says so.
#[test]
fn a_leap_of_years_stamps_nothing() {
    let scene = Scene::new();
    let server = scene.start();
    let metrics = metrics_of(&server);
    assert!(is_near(published(&server, "before"), 0));
    scene.set(72 * YEAR, 0);
    assert!(is_near(published(&server, "within"), 0));
    assert_eq!(ready(&server), 200, "publishing goes on");
    server.wait_for_log(&["ERROR", "leapt ahead", "clock accept"]);
    assert!(metric(&metrics, "simplefeed_clock_ahead_seconds") > 1e9);
    let until = server.get("/sup.json").json();
    let until = Timestamp::parse(until["updated_time"].as_str().unwrap()).unwrap();
    assert!(is_near(until.micros() - now(), 0), "SUP goes by it, too");
    scene.set(0, 0);
    assert!(is_near(published(&server, "after"), 0));
    server.stop();

    scene.set(0, 0);
    let server = scene.start();
    let metrics = metrics_of(&server);
    scene.set(40 * DAY, 0);
    assert!(is_near(published(&server, "unbelieved"), 0));
    assert!(Scene::accept(&scene.data()).contains("The clock is accepted"));
    assert!(is_near(published(&server, "believed"), 40 * DAY));
    assert!(metric(&metrics, "simplefeed_clock_ahead_seconds") < 1.0);
    server.stop();
}

/// Goal: a leap of hours is followed once it has lasted ten minutes; a sleep of days at once.
#[test]
fn a_leap_of_hours_must_last_and_sleep_is_none() {
    let scene = Scene::new();
    let server = scene.start();
    let metrics = metrics_of(&server);
    published(&server, "before");
    scene.set(3 * HOUR, 0);
    assert!(is_near(published(&server, "held"), 0));
    assert_eq!(ready(&server), 200);
    let _said = server.wait_for_log(&["WARN", "ten minutes"]);
    let slept = 11 * 60 * SECOND;
    scene.set(3 * HOUR, slept);
    wait_for("it is never followed", || {
        let found = server.publish("a", "{\"id\":\"urn:t:lasting\"}");
        assert!(found.status < 300);
        (metric(&metrics, "simplefeed_clock_ahead_seconds") < 1.0).then_some(())
    });
    assert!(is_near(published(&server, "followed"), 3 * HOUR + slept));
    scene.set(3 * HOUR, 30 * DAY);
    assert!(is_near(published(&server, "woken"), 3 * HOUR + 30 * DAY));
    server.stop();
}

/// Goal: a virtual machine that is paused and goes on elsewhere, where its clocks stood still and are set later, is ready
/// all the time.
#[test]
fn a_machine_that_was_paused_goes_on() {
    let scene = Scene::new();
    let server = scene.start();
    published(&server, "before");
    for hours in [0, 5, 100] {
        server.signal("STOP");
        scene.set(hours * HOUR, 0);
        server.signal("CONT");
        assert_eq!(ready(&server), 200, "{hours}");
        published(&server, &format!("behind-{hours}"));
    }
    server.stop();
}

/// Goal: publishing goes on with a clock that goes back, and no stamp goes back.
#[test]
fn a_clock_that_is_set_back_keeps_a_server_ready() {
    let scene = Scene::new();
    let server = scene.start();
    let metrics = metrics_of(&server);
    let before = stamped(&server, "before");
    scene.set(-10 * YEAR, 0);
    let within = stamped(&server, "within");
    assert!(within > before, "stamps are in order");
    assert!(is_near(within, now()), "they go on from the last one");
    assert_eq!(ready(&server), 200);
    server.wait_for_log(&["WARN", "is behind"]);
    assert!(metric(&metrics, "simplefeed_clock_behind_seconds") > 3e8);
    // No operator's word takes stamps back.
    let said = Scene::accept(&scene.data());
    assert!(said.contains("stamped just behind it"), "{said}");
    server.stop();
    // Its time comes after the start.
    let server = scene.start();
    assert!(has_said(&server, &["WARN", "is behind"]));
    published(&server, "again");
    scene.set(60 * DAY, 0);
    assert!(is_near(published(&server, "later"), 60 * DAY));
    server.stop();
}

/// Goal: after a rest of years nothing is published before an operator vouches for the clock; reading goes on, and commands
/// that only read do, too.
#[test]
fn a_log_of_long_ago_waits_for_somebody() {
    let scene = Scene::new();
    let server = scene.start();
    published(&server, "before");
    server.stop();
    // A feed that was quiet for four years.
    scene.set(4 * YEAR, 0);
    let server = scene.start();
    assert_eq!(ready(&server), 200);
    server.kill();
    scene.set(6 * YEAR, 0);
    let server = scene.start();
    assert!(has_said(&server, &["ERROR", "five years", "clock accept"]));
    assert_eq!(server.get("/feeds/a/recent.atom").status, 200);
    let refused = post(&server, "refused");
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("simplefeed-server clock accept"));
    let unready = server.get("/readyz");
    assert_eq!(unready.status, 503);
    assert!(unready.text().contains("simplefeed-server clock accept"));
    let said = check_folder("verify", &scene.data());
    assert!(said.contains("0 faults"), "{said}");
    Scene::accept(&scene.data());
    assert_eq!(ready(&server), 200);
    assert!(is_near(published(&server, "accepted"), 6 * YEAR));
    server.stop();
}

/// Goal: a server that ran all the time is not refused for having nothing to publish.
#[test]
fn a_quiet_server_notes_the_time() {
    let scene = Scene::new();
    let server = scene.start();
    published(&server, "before");
    let note = scene.data().join("clock");
    // A clock is noted once it has run for a while.
    scene.set(0, HOUR);
    let first = wait_for("there is no note", || std::fs::read(&note).ok());
    scene.set(0, 4 * YEAR);
    wait_for("the note is not renewed", || {
        (std::fs::read(&note).unwrap() != first).then_some(())
    });
    server.kill();
    scene.set(0, 8 * YEAR);
    let server = scene.start();
    assert_eq!(ready(&server), 200);
    assert!(is_near(published(&server, "after"), 8 * YEAR));
    server.stop();
}

/// Goal: a restored log gets no epoch from a clock that is not accepted, and the message names the way out, which also
/// goes without a server.
#[test]
fn no_epoch_begins_years_later_by_itself() {
    let scene = Scene::new();
    let copy = backed_up(&scene);
    scene.set(6 * YEAR, 0);
    let said = scene.try_start(&copy).err().expect("it is refused");
    let is_way_out = |line: &String| line.contains("simplefeed-server clock accept");
    assert!(said.iter().any(is_way_out), "{said:?}");
    // By the machine's clock, which is not the test server's.
    scene.set(0, 0);
    assert!(Scene::accept(&copy).contains("The clock is accepted"));
    scene.set(4 * YEAR, 0);
    let server = scene.try_start(&copy).unwrap();
    assert_eq!(ready(&server), 200);
    server.stop();
}

/// Goal: a clock before all logs numbers no epoch, because two restorations of one backup could get the same number; the
/// message names the way out.
#[test]
fn no_epoch_begins_before_any_log() {
    let scene = Scene::new();
    let copy = backed_up(&scene);
    scene.set(-6 * YEAR, 0);
    let said = scene.try_start(&copy).err().expect("it is refused");
    assert!(
        said.iter().any(|line| line.contains("set the clock")),
        "{said:?}"
    );
    scene.set(0, 0);
    let server = scene.try_start(&copy).unwrap();
    assert_eq!(ready(&server), 200);
    server.stop();
}

/// Goal: a restoration by a clock that was years ahead hinders none that follows by the right one.
#[test]
fn an_epoch_of_later_years_is_followed_by_others() {
    let scene = Scene::new();
    let server = scene.start();
    published(&server, "before");
    server.stop();
    let [far, now] = ["far", "now"].map(|name| scene.folder.path().join(name));
    back_up(&scene.data(), &far);
    scene.set(4 * YEAR, 0);
    let server = scene.try_start(&far).unwrap();
    published(&server, "far");
    let far_name = server.get("/feeds/a/recent.atom").text();
    server.stop();
    back_up(&far, &now);
    scene.set(0, 0);
    let server = scene.try_start(&now).unwrap();
    assert_eq!(ready(&server), 200);
    published(&server, "now");
    let epoch = |document: &str| -> u32 {
        let (_, rest) = document.split_once("epoch=\"").unwrap();
        rest.split_once('"').unwrap().0.parse().unwrap()
    };
    let recent = server.get("/feeds/a/recent.atom").text();
    assert!(epoch(&recent) > epoch(&far_name));
    server.stop();
}

/// Publishes an entry, and returns a backup of the log.
fn backed_up(scene: &Scene) -> PathBuf {
    let server = scene.start();
    published(&server, "before");
    server.stop();
    let copy = scene.folder.path().join("copy");
    back_up(&scene.data(), &copy);
    copy
}

#[track_caller]
fn back_up(data: &Path, to: &Path) {
    let [data, to] = [data, to].map(|path| path.to_str().unwrap());
    let output = run(
        "simplefeed-server",
        &["backup", "--data", data, "--to", to],
        b"",
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
