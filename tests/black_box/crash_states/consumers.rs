//! What consumers and commands remember in files: bookmark, state folder, memory of `watch`, mirror, queue, tokens.
//!
//! Shell: commands. The command is recorded while a server that is not recorded has all entries. Over each crash state
//! it is run again: what was handed over before and what is handed over then must be all, and what an ended run had
//! accepted comes no second time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader},
    ops::Range,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    disk::Moment,
    oracle::{Depth, Oracle, Verdict},
    programs::Programs,
    record::{Recorder, Recording, Run, copy, scratch},
    states::Moments,
    workloads::Recorded,
};
use crate::dice::Dice;
use crate::harness::{Server, pause, run_command, text};

/// Items that the queue has at the end of its first run.
const FIRST_ITEMS: u64 = 4;
/// How long a command may take that has no end of its own.
const PATIENCE: Duration = Duration::from_secs(30);
/// A handler that fails for some entries. It notes each one that it begins.
const HANDLER: &str =
    r#"echo $SIMPLEFEED_ID >> "$PRINTED"; case $SIMPLEFEED_ID in *3|*7) exit 1;; esac"#;
/// A handler that takes one of these, tried again.
const TRIED_AGAIN: &str = "case $SIMPLEFEED_ID in *3) exit 1;; esac";

/// A recorded consumer, with the server that has its entries.
pub(super) struct Consumer {
    recording: Recording,
    server: Server,
    data: tempfile::TempDir,
    kind: Kind,
    /// All ids of each feed, oldest first.
    all: BTreeMap<String, Vec<String>>,
    /// The recorded folder as each run left it.
    after_runs: Vec<(tempfile::TempDir, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Bookmark,
    Output,
    State,
    Skipped,
    Watch,
    Mirror,
    Queue,
    Tokens,
}

/// A consumer that is being recorded.
struct Scene {
    recorder: Recorder,
    server: Server,
    data: tempfile::TempDir,
    all: BTreeMap<String, Vec<String>>,
    after_runs: Vec<(tempfile::TempDir, PathBuf)>,
}

impl Scene {
    fn new(name: &str, programs: &Programs) -> Self {
        let data = scratch();
        let server = Server::start(&data.path().join("data"), &["--document-entries", "3"]);
        let recorder = Recorder::new(name, programs, 3);
        recorder.begin();
        Self {
            recorder,
            server,
            data,
            all: BTreeMap::new(),
            after_runs: vec![],
        }
    }

    fn publish(&mut self, feed: &str, numbers: Range<usize>) {
        publish(&self.server, &mut self.all, feed, numbers);
    }

    /// Returns the feeds that are watched.
    fn watched(&self) -> [String; 3] {
        ["a", "b", "c"].map(|feed| self.url(feed))
    }

    fn url(&self, feed: &str) -> String {
        self.server.url(&format!("/feeds/{feed}"))
    }

    fn path(&self, name: &str) -> String {
        let path = self.recorder.root().join(name);
        path.to_str()
            .expect("a temporary folder has a plain path")
            .to_owned()
    }

    /// Runs the command to its end, which must be with this exit code.
    #[track_caller]
    fn run(&mut self, program: &str, args: &[&str], code: i32) {
        let run = self.recorder.run_until(program, args, None, |_| true);
        assert_eq!(run.code, Some(code), "{args:?}: {}", run.output);
        let kept = scratch();
        let to = kept.path().join("root");
        copy(&self.recorder.root(), &to);
        self.after_runs.push((kept, to));
    }

    fn finish(self, kind: Kind) -> Box<dyn Recorded> {
        Box::new(Consumer {
            recording: self.recorder.finish(),
            server: self.server,
            data: self.data,
            kind,
            all: self.all,
            after_runs: self.after_runs,
        })
    }
}

/// Publishes new entries to a feed, and adds their ids to those of all feeds.
fn publish(
    server: &Server,
    all: &mut BTreeMap<String, Vec<String>>,
    feed: &str,
    numbers: Range<usize>,
) {
    let ids = numbers
        .map(|n| format!("urn:t:{feed}:{n}"))
        .collect::<Vec<_>>();
    let line = |id: &String| super::record::event(id, 0);
    let answer = server.publish(feed, &ids.iter().map(line).collect::<String>());
    assert_eq!(answer.status, 201, "{}", answer.text());
    all.entry(feed.to_owned()).or_default().extend(ids);
}

/// A consumer with a bookmark, over several runs and a kill.
pub(super) fn bookmark(programs: &Programs) -> Box<dyn Recorded> {
    let mut scene = Scene::new("bookmark", programs);
    let (url, bookmark) = (scene.url("a"), scene.path("bookmark"));
    let replay = ["replay", &url, "--bookmark", &bookmark, "--format", "id"];
    scene.publish("a", 0..4);
    scene.run("simplefeed", &replay, 0);
    scene.publish("a", 4..9);
    scene.run("simplefeed", &[&replay[..], &["--limit", "2"]].concat(), 0);
    let tail = ["tail", &url, "--bookmark", &bookmark, "--format", "id"];
    scene
        .recorder
        .run_until("simplefeed", &tail, Some("KILL"), |text| {
            text.lines().count() > 2
        });
    scene.publish("a", 9..12);
    scene.run("simplefeed", &replay, 0);
    scene.finish(Kind::Bookmark)
}

/// Appends the ids of new entries to a file.
const APPEND: &str = r#""$0" replay "$1" --bookmark "$2" --format id >> "$3""#;

/// A consumer with a bookmark whose output is a file, over several runs.
pub(super) fn output(programs: &Programs) -> Box<dyn Recorded> {
    let mut scene = Scene::new("output", programs);
    let (url, bookmark, output) = (scene.url("a"), scene.path("bookmark"), scene.path("output"));
    let program = programs.path("simplefeed");
    let program = program.to_str().expect("a target folder has a plain path");
    for (first, end) in [(0, 4), (4, 9), (9, 40)] {
        scene.publish("a", first..end);
        let args = ["-c", APPEND, program, &url, &bookmark, &output];
        let run = scene.recorder.run("/bin/sh", &args, "");
        assert_eq!(run.code, Some(0), "{}", run.output);
    }
    scene.finish(Kind::Output)
}

/// A worker whose handler fails for some entries, which are parked, tried again and dropped.
pub(super) fn state(programs: &Programs) -> Box<dyn Recorded> {
    let mut scene = Scene::new("state", programs);
    let (url, state) = (scene.url("a"), scene.path("made/by/us"));
    let run = [
        "replay",
        &url,
        "--state",
        &state,
        "--exec",
        HANDLER,
        "--policy",
        "park",
        "--attempts",
        "1",
    ];
    scene.publish("a", 0..5);
    scene.run("simplefeed", &run, 3);
    scene.publish("a", 5..9);
    scene.run("simplefeed", &run, 3);
    let retry = ["parked", "retry", "--state", &state, "--exec", TRIED_AGAIN];
    scene.run("simplefeed", &retry, 3);
    let reason = ["--reason", "a test order"];
    let drop = ["parked", "drop", "--state", &state, "urn:t:a:3"];
    scene.run("simplefeed", &[&drop[..], &reason].concat(), 0);
    scene.publish("a", 9..12);
    scene.run("simplefeed", &run, 0);
    scene.finish(Kind::State)
}

/// A worker that skips entries for which its handler fails.
pub(super) fn skipped(programs: &Programs) -> Box<dyn Recorded> {
    let mut scene = Scene::new("skipped", programs);
    let (url, state) = (scene.url("a"), scene.path("made/by/us"));
    let run = skip_args(&url, &state);
    for (first, end) in [(0, 5), (5, 9)] {
        scene.publish("a", first..end);
        scene.run("simplefeed", &run, 3);
    }
    scene.finish(Kind::Skipped)
}

fn skip_args<'a>(url: &'a str, state: &'a str) -> [&'a str; 12] {
    [
        "replay",
        url,
        "--state",
        state,
        "--since",
        "oldest",
        "--exec",
        HANDLER,
        "--policy",
        "skip",
        "--attempts",
        "1",
    ]
}

/// A watcher of three feeds that is ended, killed and started again. While it runs, two of them get entries at once.
pub(super) fn watch(programs: &Programs) -> Box<dyn Recorded> {
    let mut scene = Scene::new("watch", programs);
    let (urls, state) = (scene.watched(), scene.path("watched"));
    let watch = watch_args(&urls, &state);
    scene.publish("a", 0..4);
    scene.publish("b", 0..2);
    scene.publish("c", 0..1);
    let Scene {
        recorder,
        server,
        all,
        ..
    } = &mut scene;
    let mut is_published = false;
    recorder.run_until("simplefeed", &watch, Some("TERM"), |text| {
        let lines = text.lines().count();
        if lines == 7 && !is_published {
            is_published = true;
            publish(server, all, "c", 1..3);
            publish(server, all, "a", 4..5);
        }
        lines == 10
    });
    scene.publish("a", 5..7);
    scene
        .recorder
        .run_until("simplefeed", &watch, Some("KILL"), |text| {
            text.lines().count() >= 2
        });
    scene.publish("b", 2..6);
    scene
        .recorder
        .run_until("simplefeed", &watch, Some("TERM"), |text| {
            text.lines().count() >= 4
        });
    // Ends that no recorded run has seen. The third feed has none, so that nothing calls it to mind.
    scene.publish("a", 7..8);
    scene.publish("b", 6..7);
    scene.finish(Kind::Watch)
}

fn watch_args<'a>([a, b, c]: &'a [String; 3], state: &'a str) -> [&'a str; 12] {
    [
        "watch",
        a,
        b,
        c,
        "--state",
        state,
        "--since",
        "oldest",
        "--interval",
        "1s",
        "--format",
        "id",
    ]
}

/// A static copy of a feed that grows.
pub(super) fn mirror(programs: &Programs) -> Box<dyn Recorded> {
    let mut scene = Scene::new("mirror", programs);
    let (url, copy) = (scene.url("a"), scene.path("made/by/us"));
    let mirror = ["mirror", &url, &copy];
    scene.publish("a", 0..7);
    scene.server.wait_until_frozen("/feeds/a/2.atom");
    scene.run("simplefeed", &mirror, 0);
    scene.publish("a", 7..13);
    scene.server.wait_until_frozen("/feeds/a/4.atom");
    scene.run("simplefeed", &mirror, 0);
    scene.finish(Kind::Mirror)
}

/// A refresher with its queue in a file.
pub(super) fn queue(programs: &Programs) -> Box<dyn Recorded> {
    let mut scene = Scene::new("queue", programs);
    let (items, into, queue) = (scene.url("items"), scene.url("into"), scene.path("queue"));
    let intervals = intervals_of(&scene.data);
    fs::write(&intervals, "\"1h\" = \"1s\"\n").unwrap();
    let refresh = refresh_args(&items, &into, &queue, &intervals);
    scene.publish("items", 0..usize::try_from(FIRST_ITEMS).unwrap());
    let lookups = |text: &str, count| text.lines().collect::<BTreeSet<_>>().len() >= count;
    scene
        .recorder
        .run_until("simplefeed", &refresh, Some("TERM"), |text| {
            lookups(text, 4)
        });
    scene.publish("items", 4..8);
    scene
        .recorder
        .run_until("simplefeed", &refresh, Some("KILL"), |text| {
            lookups(text, 4)
        });
    scene.finish(Kind::Queue)
}

/// Returns the file that says how often items are looked up.
fn intervals_of(data: &tempfile::TempDir) -> String {
    let path = data.path().join("intervals.toml");
    path.to_str()
        .expect("a temporary folder has a plain path")
        .to_owned()
}

fn refresh_args<'a>(
    items: &'a str,
    into: &'a str,
    queue: &'a str,
    intervals: &'a str,
) -> [&'a str; 12] {
    [
        "refresh",
        items,
        "--into",
        into,
        "--queue",
        queue,
        "--buffer",
        "1s",
        "--intervals",
        intervals,
        "--lookup-exec",
        r#"tee -a "$PRINTED" | sed 's/.*/{"id":"&","n":1}/'"#,
    ]
}

/// Tokens that are given and revoked.
pub(super) fn tokens(programs: &Programs) -> Box<dyn Recorded> {
    let mut scene = Scene::new("tokens", programs);
    let file = scene.path("tokens");
    let give = |name| {
        [
            "token", "new", "--tokens", &file, name, "--right", "publish", "--feeds", "a*",
        ]
    };
    let revoke = |name| ["token", "revoke", "--tokens", &file, name];
    scene.run("simplefeed-server", &give("shop"), 0);
    scene.run("simplefeed-server", &give("other"), 0);
    scene.run("simplefeed-server", &revoke("shop"), 0);
    scene.run("simplefeed-server", &give("third"), 0);
    scene.run("simplefeed-server", &revoke("other"), 0);
    scene.finish(Kind::Tokens)
}

impl Recorded for Consumer {
    fn recording(&self) -> &Recording {
        &self.recording
    }

    fn oracle(&self) -> Box<dyn Oracle + '_> {
        Box::new(Checked(self))
    }

    fn keep(&self, folder: &Path) {
        self.recording.keep(folder);
        copy(&self.data.path().join("data"), &folder.join("server"));
        for (number, (_, root)) in self.after_runs.iter().enumerate() {
            copy(root, &folder.join(format!("after-run-{number}")));
        }
        let kept = (self.kind, &self.all, &self.server.address);
        fs::write(
            folder.join("consumer.json"),
            serde_json::to_vec(&kept).unwrap(),
        )
        .unwrap();
    }

    fn crashed_again(&self, _dice: &mut Dice) -> Box<dyn Recorded> {
        unreachable!("only servers go on over a crash state")
    }
}

impl Consumer {
    /// Loads a consumer that was kept. Its server is where it was.
    pub(super) fn load(kept: &Path) -> Self {
        let text = fs::read(kept.join("consumer.json")).unwrap();
        let (kind, all, address): (Kind, _, String) = serde_json::from_slice(&text).unwrap();
        let data = scratch();
        copy(&kept.join("server"), &data.path().join("data"));
        let server = Server::start_at(
            &address,
            &data.path().join("data"),
            &["--document-entries", "3"],
        );
        let roots = (0..).map(|number| kept.join(format!("after-run-{number}")));
        let after_runs = roots.take_while(|root| root.exists()).map(|root| {
            let folder = scratch();
            let to = folder.path().join("root");
            copy(&root, &to);
            (folder, to)
        });
        Self {
            recording: Recording::load(kept),
            server,
            data,
            kind,
            all,
            after_runs: after_runs.collect(),
        }
    }

    fn programs(&self) -> &Programs {
        &self.recording.programs
    }

    fn url(&self, feed: &str) -> String {
        self.server.url(&format!("/feeds/{feed}"))
    }

    /// Returns the lines that were printed by a moment.
    fn printed(&self, moment: Moment) -> Vec<String> {
        let printed = self
            .recording
            .printed
            .iter()
            .filter(|(at, _)| *at <= moment);
        let text: String = printed.map(|(_, text)| text.as_str()).collect();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the lines of runs that had ended by themselves by a moment.
    fn accepted(&self, moment: Moment) -> Vec<String> {
        let runs = self
            .recording
            .ended(moment)
            .filter(|run| run.code.is_some_and(|code| code < 4));
        let ended = runs.map(|run| run.ended).max();
        ended.map_or_else(Vec::new, |ended| self.printed(ended))
    }

    /// Runs a command to its end, which must be with one of these exit codes. Returns its output.
    fn run(&self, args: &[&str], root: &Path, codes: &[i32]) -> Result<String, String> {
        let mut command = self.programs().command("simplefeed");
        command.args(args).env("PRINTED", printed_in(root));
        let output = run_command(&mut command, b"");
        let code = output.status.code().unwrap_or(-1);
        if codes.contains(&code) {
            return Ok(text(&output.stdout));
        }
        Err(format!(
            "{args:?} ends with {code}: {}",
            text(&output.stderr)
        ))
    }

    fn try_check(&self, root: &Path, moments: Moments) -> Result<(), String> {
        match self.kind {
            Kind::Bookmark => self.check_bookmark(root, moments),
            Kind::Output => self.check_output(root),
            Kind::State => self.check_state(root, moments),
            Kind::Skipped => self.check_skipped(root, moments.first),
            Kind::Watch => self.check_watch(root, moments),
            Kind::Mirror => self.check_mirror(root, moments.last),
            Kind::Queue => self.check_queue(root, moments.last),
            Kind::Tokens => self.check_tokens(root, moments.last),
        }
    }

    fn check_bookmark(&self, root: &Path, moments: Moments) -> Result<(), String> {
        let (url, bookmark) = (self.url("a"), path(root, "bookmark"));
        let args = ["replay", &url, "--bookmark", &bookmark, "--format", "id"];
        let again = self.run(&args, root, &[0])?;
        self.compare(
            "a",
            moments,
            &again.lines().map(str::to_owned).collect::<Vec<_>>(),
        )
    }

    /// Entries that the file lacks come again, each in a line of its own.
    fn check_output(&self, root: &Path) -> Result<(), String> {
        let (url, output) = (self.url("a"), root.join("output"));
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", APPEND]);
        shell.arg(self.programs().path("simplefeed"));
        shell.args([&url, &path(root, "bookmark")]).arg(&output);
        let ran = run_command(&mut shell, b"");
        if !ran.status.success() {
            return Err(format!("{}: {}", ran.status, text(&ran.stderr)));
        }
        let lines = fs::read(&output).unwrap();
        let lines = String::from_utf8_lossy(&lines).into_owned();
        let there: BTreeSet<&str> = lines.lines().collect();
        let lost = self.all["a"].iter().find(|id| !there.contains(id.as_str()));
        lost.map_or(Ok(()), |id| {
            Err(format!("{id} is in no line of the output"))
        })
    }

    /// The entries of a feed that come again must be its end, and that must begin in the right place.
    fn compare(&self, feed: &str, moments: Moments, again: &[String]) -> Result<(), String> {
        let all = &self.all[feed];
        let count = |lines: Vec<String>| {
            let places = lines
                .iter()
                .filter_map(|line| all.iter().position(|id| id == line));
            places.max().map_or(0, |place| place + 1)
        };
        let (least, most) = (
            count(self.accepted(moments.last)),
            count(self.printed(moments.first)),
        );
        let from = all.len().saturating_sub(again.len());
        if all.get(from..) != Some(again) {
            return Err(format!(
                "{feed}: {again:?} comes again, which is no end of the feed"
            ));
        }
        if (least..=most).contains(&from) {
            return Ok(());
        }
        Err(format!(
            "{feed} goes on at {from}; {least} entries were accepted and {most} handed over"
        ))
    }

    fn check_state(&self, root: &Path, moments: Moments) -> Result<(), String> {
        let (url, state) = (self.url("a"), path(root, "made/by/us"));
        let args = [
            "replay",
            &url,
            "--state",
            &state,
            "--exec",
            HANDLER,
            "--policy",
            "park",
            "--attempts",
            "1",
        ];
        // Without a state, the worker would begin at the newest entry.
        let from_oldest = [&args[..], &["--since", "oldest"]].concat();
        self.run(&from_oldest, root, &[0, 3])?;
        let again = fs::read_to_string(printed_in(root)).unwrap_or_default();
        let again: BTreeSet<&str> = again.lines().collect();
        let parked = self.run(&["parked", "list", "--state", &state], root, &[0])?;
        let before: BTreeSet<String> = self.printed(moments.first).into_iter().collect();
        let accepted: BTreeSet<String> = self.accepted(moments.last).into_iter().collect();
        // The runs that do away with a parked entry, each with the end of its id: whether it had begun, and had ended.
        let done = [("drop", ":3"), ("retry", ":7")].map(|(command, id)| {
            let is_of = |run: &&Run| run.args.iter().any(|arg| arg == command);
            let run = self.recording.runs.iter().find(is_of);
            let began = run.is_some_and(|run| self.began(run.ended) <= moments.first);
            (id, began, run.is_some_and(|run| run.ended <= moments.last))
        });
        for id in &self.all["a"] {
            let fails = id.ends_with('3') || id.ends_with('7');
            let is_parked = parked
                .lines()
                .any(|line| line.split_whitespace().any(|word| word == id));
            if accepted.contains(id) && again.contains(id.as_str()) {
                return Err(format!("{id} was done with and comes again"));
            }
            // Who was handed an entry when the power failed may be the reason, so the entry may be parked.
            let is_handled = !fails && (before.contains(id) || again.contains(id.as_str()));
            let is_done = |(end, began, _): &(&str, bool, bool)| *began && id.ends_with(end);
            let may_be_gone = done.iter().any(is_done);
            if !is_handled && !is_parked && !may_be_gone {
                return Err(format!("{id} is neither handled nor parked: {parked}"));
            }
            let is_done = |(end, _, ended): &(&str, bool, bool)| *ended && id.ends_with(end);
            if done.iter().any(is_done) && is_parked {
                return Err(format!(
                    "{id} was dropped, or handled in the end, and is parked"
                ));
            }
        }
        // A line that the power cut off may have any bytes.
        let record = fs::read(Path::new(&state).join("record.ndjson")).unwrap_or_default();
        let record = String::from_utf8_lossy(&record);
        let [(_, _, dropped), (_, _, retried)] = done;
        let lines = record.lines();
        let lines: Vec<serde_json::Value> = lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let has = |what: &str, id: &str| {
            let mut lines = lines.iter();
            lines.any(|line| line["what"] == what && line["id"] == id)
        };
        let listed = parked.split_whitespace();
        let mut listed = listed.filter(|word| self.all["a"].iter().any(|id| id == word));
        if let Some(id) = listed.find(|id| !has("parked", id)) {
            return Err(format!("{id} is parked, and not in the record: {record}"));
        }
        if dropped && !(has("dropped", "urn:t:a:3") && record.contains("a test order")) {
            return Err(format!(
                "it is not recorded why an entry was dropped: {record}"
            ));
        }
        if retried && !has("retried", "urn:t:a:7") {
            return Err(format!("no entry is recorded as tried again: {record}"));
        }
        let id = parked
            .split_whitespace()
            .find(|word| word.starts_with("urn:"));
        id.map_or(Ok(()), |id| self.check_record_goes_on(root, &state, id))
    }

    /// Each entry is handled, or stands in the record.
    fn check_skipped(&self, root: &Path, moment: Moment) -> Result<(), String> {
        let (url, state) = (self.url("a"), path(root, "made/by/us"));
        self.run(&skip_args(&url, &state), root, &[0, 3])?;
        let again = fs::read_to_string(printed_in(root)).unwrap_or_default();
        let again: BTreeSet<&str> = again.lines().collect();
        let before: BTreeSet<String> = self.printed(moment).into_iter().collect();
        let record = fs::read(Path::new(&state).join("record.ndjson")).unwrap_or_default();
        let record = String::from_utf8_lossy(&record);
        for id in &self.all["a"] {
            let fails = id.ends_with('3') || id.ends_with('7');
            let is_handled = !fails && (before.contains(id) || again.contains(id.as_str()));
            // One that was being handled when the power failed may be the reason, and is skipped.
            if !is_handled && !record.contains(&format!("{id}\"")) {
                return Err(format!(
                    "{id} is neither handled nor in the record: {record}"
                ));
            }
        }
        Ok(())
    }

    /// The next record has a line of its own, also behind a line that the crash has torn.
    fn check_record_goes_on(&self, root: &Path, state: &str, id: &str) -> Result<(), String> {
        const REASON: &str = "behind a crash";
        let drop = ["parked", "drop", "--state", state, id, "--reason", REASON];
        self.run(&drop, root, &[0])?;
        let record = fs::read(Path::new(state).join("record.ndjson")).unwrap_or_default();
        let mut lines = record.split(|byte| *byte == b'\n');
        let is_of_drop = |line: &[u8]| {
            let line = serde_json::from_slice::<serde_json::Value>(line);
            line.is_ok_and(|line| line.to_string().contains(REASON))
        };
        if lines.any(is_of_drop) {
            return Ok(());
        }
        let record = String::from_utf8_lossy(&record);
        Err(format!(
            "no line of the record says that {id} was dropped: {record}"
        ))
    }

    /// Returns when the run began that ended at a moment.
    fn began(&self, ended: Moment) -> Moment {
        let before = self.recording.runs.iter().filter(|run| run.ended < ended);
        before.map(|run| run.ended).max().unwrap_or(0)
    }

    fn check_watch(&self, root: &Path, moments: Moments) -> Result<(), String> {
        let urls = ["a", "b", "c"].map(|feed| self.url(feed));
        let state = path(root, "watched");
        let mut command = self.programs().command("simplefeed");
        command.args(watch_args(&urls, &state));
        let last = |feed: &str| self.all[feed].last().cloned().unwrap_or_default();
        let mut wanted = vec![last("a"), last("b")];
        let before = self.printed(moments.first);
        wanted.extend(
            self.all["c"]
                .iter()
                .filter(|id| !before.contains(id))
                .cloned(),
        );
        let again = printed_until(command, |lines| wanted.iter().all(|id| lines.contains(id)))?;
        for feed in ["a", "b"] {
            let of_feed = |line: &&String| line.starts_with(&format!("urn:t:{feed}:"));
            let again: Vec<String> = again.iter().filter(of_feed).cloned().collect();
            self.compare(feed, moments, &again)?;
        }
        // Later runs find each saved place, also behind a line that the crash has torn.
        let mut saved = BTreeSet::new();
        for _ in 0..2 {
            let args = [&watch_args(&urls, &state)[..], &["--for", "1s"]].concat();
            let printed = self.run(&args, root, &[0])?;
            if let Some(again) = printed
                .lines()
                .find(|line| !saved.insert((*line).to_owned()))
            {
                return Err(format!("{again} comes again, although its place was saved"));
            }
        }
        Ok(())
    }

    fn check_mirror(&self, root: &Path, moment: Moment) -> Result<(), String> {
        let promised = self.recording.ended(moment).count();
        if let Some((_, left)) = promised
            .checked_sub(1)
            .and_then(|run| self.after_runs.get(run))
        {
            compare_archives(&left.join("made/by/us"), &root.join("made/by/us"))?;
        }
        let (url, copy) = (self.url("a"), path(root, "made/by/us"));
        self.run(&["mirror", &url, &copy], root, &[0])?;
        let (_, whole) = self.after_runs.last().expect("a mirror was made");
        compare_archives(&whole.join("made/by/us"), Path::new(&copy))?;
        let same = |name| {
            let [left, right] = [&whole.join("made/by/us"), Path::new(&copy)]
                .map(|folder| fs::read(folder.join(name)).unwrap_or_default());
            left == right
        };
        if same("recent.atom") {
            return Ok(());
        }
        Err("the recent document of the mirror is another".into())
    }

    /// The queue has the items of runs that have ended. It has all others, or learns of them: their feed is read on from
    /// where the queue was.
    fn check_queue(&self, root: &Path, moment: Moment) -> Result<(), String> {
        let (items, into) = (self.url("items"), self.url("into"));
        let queue = path(root, "queue");
        let jobs_now = || {
            let mut status = self.programs().command("simplefeed");
            status.args(["refresh", "status", "--queue", &queue, "--json"]);
            let output = run_command(&mut status, b"");
            let found: serde_json::Value =
                serde_json::from_slice(&output.stdout).unwrap_or_default();
            let count = |name: &str| found[name].as_u64().unwrap_or(0);
            count("waiting") + count("due") + count("leased") + count("dead")
        };
        let jobs = jobs_now();
        if self.recording.ended(moment).next().is_some() && jobs < FIRST_ITEMS {
            return Err(format!("the queue has {jobs} of {FIRST_ITEMS} items"));
        }
        let mut command = self.programs().command("simplefeed");
        let intervals = intervals_of(&self.data);
        command
            .args(refresh_args(&items, &into, &queue, &intervals))
            .env("PRINTED", printed_in(root));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let began = Instant::now();
        let wanted = self.all["items"].len();
        let outcome = loop {
            let jobs = jobs_now();
            if jobs == u64::try_from(wanted).unwrap() {
                break Ok(());
            }
            if let Ok(Some(code)) = child.try_wait() {
                break Err(format!("refresh ends with {code}"));
            }
            if began.elapsed() > PATIENCE {
                break Err(format!("the queue has {jobs} of {wanted} items"));
            }
            pause(Duration::from_millis(20));
        };
        let _killed = child.kill();
        let _status = child.wait();
        outcome
    }

    fn check_tokens(&self, root: &Path, moment: Moment) -> Result<(), String> {
        let file = root.join("tokens");
        let mut holders: BTreeMap<&str, bool> = BTreeMap::new();
        let mut changing = None;
        for run in &self.recording.runs {
            let name = run
                .args
                .iter()
                .find(|arg| ["shop", "other", "third"].contains(&arg.as_str()));
            let name = name.expect("each run names a holder").as_str();
            let is_new = run.args.contains(&"new".to_owned());
            let began = self.began(run.ended);
            // Whoever sees the token may use it from then on.
            let is_printed = |(at, _): &(Moment, String)| (began..=moment).contains(at);
            if run.ended > moment && !(is_new && self.recording.printed.iter().any(is_printed)) {
                changing = Some(name);
                break;
            }
            holders.insert(name, is_new);
        }
        if !file.exists() && holders.values().any(|is_there| *is_there) {
            return Err("the tokens are gone".into());
        }
        if file.exists() {
            self.check_holders(&file, &holders, changing)?;
        }
        // The next change keeps the others.
        let mut command = self.programs().command("simplefeed-server");
        command.args(["token", "new", "--tokens"]).arg(&file);
        let output = run_command(
            command.args(["later", "--right", "publish", "--feeds", "a*"]),
            b"",
        );
        if !output.status.success() {
            return Err(format!("no token is given: {}", text(&output.stderr)));
        }
        holders.insert("later", true);
        self.check_holders(&file, &holders, changing)
    }

    /// Checks the holders of tokens.
    fn check_holders(
        &self,
        file: &Path,
        holders: &BTreeMap<&str, bool>,
        changing: Option<&str>,
    ) -> Result<(), String> {
        let mode = fs::metadata(file)
            .map_err(|error| error.to_string())?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            return Err(format!("others can read the tokens: {mode:o}"));
        }
        let mut command = self.programs().command("simplefeed-server");
        let output = run_command(command.args(["token", "list", "--tokens"]).arg(file), b"");
        let listed = text(&output.stdout);
        if !output.status.success() {
            return Err(format!(
                "the tokens cannot be read: {}",
                text(&output.stderr)
            ));
        }
        for (name, is_there) in holders {
            let found = listed
                .lines()
                .any(|line| line.split('\t').next() == Some(*name));
            if found != *is_there && changing != Some(*name) {
                return Err(format!(
                    "{name} has a token: {found}, and it must be {is_there}"
                ));
            }
        }
        Ok(())
    }
}

/// Checks states of a consumer.
struct Checked<'a>(&'a Consumer);

impl Oracle for Checked<'_> {
    fn check(&self, root: &Path, moments: Moments, _: Depth) -> Verdict {
        match self.0.try_check(root, moments) {
            Ok(()) => Verdict::Sound,
            Err(problem) => Verdict::Broken(problem),
        }
    }

    fn checks_per_core(&self) -> usize {
        match self.0.kind {
            // Most of their time they wait.
            Kind::Watch | Kind::Queue => 6,
            _ => 1,
        }
    }
}

fn path(root: &Path, name: &str) -> String {
    root.join(name)
        .to_str()
        .expect("a temporary folder has a plain path")
        .to_owned()
}

/// Returns the file in which a handler notes entries while a state is checked.
fn printed_in(root: &Path) -> PathBuf {
    root.join("printed")
}

/// Runs a command until its lines are those that are waited for, and ends it.
fn printed_until(
    mut command: Command,
    is_all: impl Fn(&[String]) -> bool,
) -> Result<Vec<String>, String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let out = BufReader::new(child.stdout.take().expect("it is piped"));
    let (sender, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut lines = vec![];
    let outcome = loop {
        if is_all(&lines) {
            break Ok(());
        }
        match received.recv_timeout(PATIENCE) {
            Ok(line) => lines.push(line),
            Err(_) => break Err(format!("no more than {lines:?} is printed")),
        }
    };
    let _killed = child.kill();
    let said = child
        .wait_with_output()
        .map(|output| text(&output.stderr))
        .unwrap_or_default();
    outcome
        .map(|()| lines)
        .map_err(|problem| format!("{problem}: {said}"))
}

/// Archived documents are there, with their bytes and times.
fn compare_archives(expected: &Path, found: &Path) -> Result<(), String> {
    for item in fs::read_dir(expected)
        .map_err(|error| error.to_string())?
        .flatten()
    {
        let name = item.file_name().to_string_lossy().into_owned();
        let bytes = fs::read(item.path()).unwrap_or_default();
        if !String::from_utf8_lossy(&bytes).contains("fh:archive") {
            continue;
        }
        let file = found.join(&name);
        if fs::read(&file).ok() != Some(bytes) {
            return Err(format!("{name} of the mirror is not what it was"));
        }
        let time = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
        if time(&file) != time(&item.path()) {
            return Err(format!("{name} of the mirror has another time"));
        }
    }
    Ok(())
}
