//! Every state that a power cut can leave: the disk of a recorded program, at each of its operations.
//!
//! strace records every file operation of the real programs, sled's included. A model of the disk builds the states
//! that a power cut at any instant may leave, and the real program is started over each: what was acknowledged, shown
//! or reported by then must be there. `docs/testing.md` tells what is promised, and how to repeat a state.
#![expect(
    clippy::print_stderr,
    reason = "the figures stand in the output of the test"
)]

mod changes;
mod consumers;
mod content;
mod disk;
mod kept;
mod oracle;
mod order;
mod planted;
mod programs;
mod record;
mod run;
mod states;
mod trace;
mod tree;
mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
    sync::mpsc::sync_channel,
    time::{Instant, SystemTime},
};

use self::{
    disk::Model,
    oracle::Depth,
    planted::{BUGS, Bug},
    programs::Programs,
    run::{Report, Sample},
    states::{Family, History, Ignored},
    workloads::{Recorded, WORKLOADS, Workload, workload},
};
use crate::{dice::Dice, harness::is_long};

/// Seed of the samples of `tests/run`.
const SEED: u64 = 55;
/// Second crashes and kills that `tests/run --long` records.
const SECOND_CRASHES: usize = 20;
/// Planted bugs that `tests/run` looks for, by turns.
const BUGS_AT_A_TIME: usize = 3;
/// States in which a fault is enough.
const FAULTS_MAX: usize = 10;
/// How deep checks go: most of them quickly, since the others take twice as long.
const DEPTHS: &[Depth] = {
    use Depth::{Quick, Repeated, Verified};
    &[
        Quick, Quick, Quick, Quick, Verified, Quick, Quick, Quick, Quick, Repeated,
    ]
};

/// Returns whether programs can be traced. Without, nothing is found, so it is an error unless somebody wants it so.
fn is_traceable() -> bool {
    if std::env::var_os("SIMPLEFEED_NO_PTRACE").is_some_and(|set| set == "1") {
        eprintln!("NOT RUN: crash states (SIMPLEFEED_NO_PTRACE=1)");
        return false;
    }
    let strace = std::process::Command::new("strace")
        .args(["-f", "--seccomp-bpf", "-o", "/dev/null", "true"])
        .output();
    let strace = strace.expect("strace is installed");
    assert!(
        strace.status.success(),
        "no program can be traced ({}); SIMPLEFEED_NO_PTRACE=1 leaves the crash states out",
        String::from_utf8_lossy(&strace.stderr).trim()
    );
    true
}

/// Returns the seed of the samples: fixed, or the date where there is time to try another one each day.
fn seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let day = since.map_or(0, |since| since.as_secs() / 86_400);
    let seed = if is_long() { day } else { SEED };
    eprintln!("crash states: seed {seed}");
    seed
}

/// Returns a setting of the environment, for runs that are larger than a test.
fn setting<T: FromStr>(name: &str) -> Option<T> {
    let set = std::env::var(name).ok()?;
    let parsed = set.parse().ok();
    Some(parsed.unwrap_or_else(|| panic!("{name}={set:?} is nothing like that")))
}

fn sample_of(workload: &Workload, seed: u64) -> Sample {
    let [long, short] = workload.states;
    Sample {
        states: if is_long() { long } else { short },
        operations: if is_long() {
            usize::MAX
        } else {
            workload.operations
        },
        seed,
        faults: FAULTS_MAX,
        depths: DEPTHS,
    }
}

/// Prints the figures of all workloads by family, and fails if there is a fault.
fn conclude(began: Instant, reports: &[(String, Report)]) {
    let mut families: BTreeMap<Family, usize> = BTreeMap::new();
    let (mut checked, mut trivial, mut faults) = (0, 0, 0);
    let mut workloads: BTreeMap<&str, BTreeMap<Family, usize>> = BTreeMap::new();
    for (workload, report) in reports {
        checked += report.checked();
        trivial += report.trivial;
        faults += report.faults.len();
        let of_workload = workloads.entry(workload).or_default();
        for (family, count) in &report.checked {
            *families.entry(*family).or_default() += count;
            *of_workload.entry(*family).or_default() += count;
        }
    }
    for (workload, families) in workloads {
        eprintln!("{workload}: by family: {families:?}");
    }
    let seconds = began.elapsed().as_secs_f64();
    let rate = f64::from(u32::try_from(checked).unwrap()) / seconds;
    eprintln!(
        "crash states: {checked} different states checked ({trivial} before anything was promised) in {seconds:.0} s, \
         {rate:.1} a second; by family: {families:?}; {faults} faults"
    );
    assert_eq!(
        faults, 0,
        "states that break a promise are in target/crash-states"
    );
}

/// Goal and method: see the head of this file. A sample of `tests/run`, or all states of `small` and a large sample of
/// the rest; of so many recordings of each workload as `CRASH_STATES_RECORDINGS` says, or of the workload
/// `CRASH_STATES_WORKLOAD` only.
#[test]
#[ignore = "needs strace"]
fn every_state_keeps_what_was_promised() {
    if !is_traceable() {
        return;
    }
    let (began, seed) = (Instant::now(), seed());
    let recordings: u64 = setting("CRASH_STATES_RECORDINGS").unwrap_or(1);
    let only: Option<String> = setting("CRASH_STATES_WORKLOAD");
    let only = only.map(|only| workload(&only).name);
    let is_due = |workload: &&Workload| only.is_none_or(|only| only == workload.name);
    let mut reports = vec![];
    let (sender, recorded) = sync_channel(1);
    std::thread::scope(|threads| {
        // One recording ahead of the checks: most of its time, it waits.
        threads.spawn(move || {
            for workload in WORKLOADS.iter().filter(is_due) {
                for recording in 0..recordings {
                    let recorded = workload.record(&Programs::real());
                    let seed = seed.wrapping_add(recording);
                    if sender.send((workload, seed, recorded)).is_err() {
                        return;
                    }
                }
            }
        });
        for (workload, seed, recorded) in recorded {
            check_recording(workload, &*recorded, seed, &mut reports);
        }
    });
    conclude(began, &reports);
}

/// Checks states of a recording; in a long run, also of servers that go on over what a crash or a kill has left, and
/// whose power fails again.
fn check_recording(
    workload: &Workload,
    recorded: &dyn Recorded,
    seed: u64,
    reports: &mut Vec<(String, Report)>,
) {
    let name = workload.name;
    let report = kept::check(recorded, Model::Weak, sample_of(workload, seed));
    eprintln!("{name}: {report}");
    reports.push((name.to_owned(), report));
    let again = if is_long() {
        workload.second_crashes
    } else {
        0
    };
    for second in 0..again {
        let mut dice = Dice::new(seed.wrapping_add(second));
        let again = recorded.crashed_again(&mut dice);
        let sample = Sample {
            states: SECOND_CRASHES,
            ..sample_of(workload, seed)
        };
        let report = kept::check(&*again, Model::Weak, sample);
        eprintln!("{name}, second crash {second}: {report}");
        reports.push((format!("{name}-again"), report));
    }
}

/// Goal: the checks find what is lost on a disk that ignores syncs.
/// Method: of recordings of the real programs, syncs of some files count for nothing.
#[test]
#[ignore = "needs strace"]
fn a_disk_that_ignores_syncs_is_found() {
    if !is_traceable() {
        return;
    }
    let of_files = |workload, path| {
        let is_folder = false;
        (workload, Ignored { path, is_folder })
    };
    let of_folder = |workload, path| {
        let is_folder = true;
        (workload, Ignored { path, is_folder })
    };
    let controls = [
        of_files("small", "data/journal/"),
        of_folder("small", "data/journal"),
        of_files("small", "data/www/"),
        of_folder("small", "data/www/feeds/a"),
        of_files("small", "data/sidecars/"),
        of_files("small", "data/views/"),
        of_files("settle", "data/witness"),
        of_folder("settle", "data/sled"),
        of_files("settle", "data/sled/snap"),
        of_files("ids", "data/ids/"),
        of_files("state", "parked/"),
        of_files("bookmark", "bookmark"),
        of_files("output", "output"),
        of_folder("tokens", ""),
    ];
    let mut recorded: Vec<(&str, Box<dyn Recorded>)> = vec![];
    for (name, ignored) in controls {
        if recorded.last().is_none_or(|(last, _)| *last != name) {
            recorded.push((name, workload(name).record(&Programs::real())));
        }
        let (_, recorded) = recorded.last().expect("it was just recorded");
        let history = History {
            ignored: Some(ignored),
            ..recorded.recording().history(Model::Weak)
        };
        let sample = Sample {
            states: 1_000,
            operations: usize::MAX,
            seed: SEED,
            faults: 1,
            // Quick checks do not miss what is made of the log again.
            depths: &[Depth::Verified, Depth::Repeated],
        };
        let report = run::check(history, &*recorded.oracle(), sample);
        let first = report.faults.first();
        let first = first.map_or("", |fault| fault.problem.as_str());
        let first: String = first.chars().take(150).collect();
        let path = ignored.path;
        eprintln!("without syncs of {path:?} in {name}: {report}; {first}");
        assert!(
            !report.faults.is_empty(),
            "{name} without syncs of {path:?}: no fault is found"
        );
    }
}

/// Looks for a planted bug in a recording of its own. Returns whether it is found.
fn finds(bug: Bug, seed: u64) -> bool {
    let workload = workload(bug.workload);
    let programs = Programs::with_bug(bug.name);
    let recorded = std::panic::catch_unwind(|| workload.record(&programs));
    let Ok(recorded) = recorded else {
        eprintln!("{} in {}: the recording fails", bug.name, bug.workload);
        return bug.fails_recordings;
    };
    let sample = Sample {
        faults: 1,
        ..sample_of(workload, seed)
    };
    let report = run::check(
        recorded.recording().history(Model::Weak),
        &*recorded.oracle(),
        sample,
    );
    let first = report
        .faults
        .first()
        .map_or("", |fault| fault.problem.as_str());
    let first: String = first.chars().take(150).collect();
    eprintln!("{} in {}: {report}; {first}", bug.name, bug.workload);
    !report.faults.is_empty()
}

/// Goal: a mistake in the order of writes and syncs is found.
/// Method: a second build has some, one of which is at work. `tests/run` looks for some of them by turns; a long run
/// for all, as often as `CRASH_STATES_ROUNDS` says.
#[test]
#[ignore = "needs strace"]
fn planted_bugs_are_found() {
    if !is_traceable() {
        return;
    }
    let rounds: u64 = setting("CRASH_STATES_ROUNDS").unwrap_or(1);
    let only: Option<String> = setting("CRASH_STATES_BUG");
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let day = usize::try_from(since.unwrap_or_default().as_secs() / 86_400).unwrap();
    let is_due = |(number, bug): &(usize, &Bug)| match &only {
        Some(only) => only == bug.name,
        None => is_long() || (number + BUGS.len() - day % BUGS.len()) % BUGS.len() < BUGS_AT_A_TIME,
    };
    let due: Vec<Bug> = BUGS
        .iter()
        .enumerate()
        .filter(is_due)
        .map(|(_, bug)| *bug)
        .collect();
    assert!(!due.is_empty(), "there is no bug {only:?}");
    // Else a fault of the second build itself, or of a check, would pass for each of its bugs.
    let workloads: BTreeSet<&str> = due.iter().map(|bug| bug.workload).collect();
    for name in workloads {
        let workload = workload(name);
        let recorded = workload.record(&Programs::with_bug("none"));
        let history = recorded.recording().history(Model::Weak);
        let report = run::check(history, &*recorded.oracle(), sample_of(workload, SEED));
        eprintln!("no bug in {name}: {report}");
        assert!(report.faults.is_empty(), "{:?}", report.faults);
    }
    let mut missed = vec![];
    for bug in due {
        let found = (0..rounds).filter(|round| finds(bug, SEED + round)).count();
        eprintln!("{}: found in {found} of {rounds} recordings", bug.name);
        if u64::try_from(found).unwrap() * 20 < rounds * 19 {
            missed.push(bug.name);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Goal: what is released has no planted bug.
#[test]
#[ignore = "needs strace"]
fn no_program_has_a_planted_bug() {
    for name in ["simplefeed-server", "simplefeed"] {
        let has_bugs = |programs: &Programs| {
            let bytes = std::fs::read(programs.path(name)).unwrap();
            let variable = programs::BUG.as_bytes();
            memchr::memmem::find(&bytes, variable).is_some()
        };
        assert!(
            !has_bugs(&Programs::real()),
            "{name} knows the variable that names a bug"
        );
        assert!(
            has_bugs(&Programs::with_bug("none")),
            "the control has bugs"
        );
    }
}

/// Repeats a fault that was kept: `CRASH_STATE=target/crash-states/NAME`.
#[test]
#[ignore = "repeats a fault that was kept"]
fn replay_crash_state() {
    if let Some(kept) = std::env::var_os("CRASH_STATE") {
        let kept = std::path::PathBuf::from(kept);
        let kept = crate::harness::workspace().join(kept);
        kept::replay(&*workloads::load(&kept), &kept);
    }
}
