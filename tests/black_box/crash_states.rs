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
    sync::{Mutex, mpsc::sync_channel},
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
/// States that a long run checks of each recording that begins with a crash or a kill.
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
    // Not into /dev/null: where that is a plain file, later programs read the trace as their input.
    let trace = tempfile::NamedTempFile::new().unwrap();
    let strace = std::process::Command::new("strace")
        .args(["-f", "--seccomp-bpf", "-o"])
        .arg(trace.path())
        .arg("true")
        .output();
    let strace = strace.expect("strace is installed");
    assert!(
        strace.status.success(),
        "no program can be traced ({}); SIMPLEFEED_NO_PTRACE=1 leaves the crash states out",
        String::from_utf8_lossy(&strace.stderr).trim()
    );
    true
}

/// Returns the seed of the samples: `CRASH_STATES_SEED`, else fixed, or the date where there is time to try another one
/// each day.
fn seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let day = since.map_or(0, |since| since.as_secs() / 86_400);
    let seed = setting("CRASH_STATES_SEED").unwrap_or(if is_long() { day } else { SEED });
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
    let [_, short] = workload.states;
    let only: Option<String> = setting("CRASH_STATES_WORKLOAD");
    // A workload that is named has states also where the short sample has none.
    let is_named = short == 0 && only.is_some_and(|only| only == workload.name);
    if is_long() || is_named {
        return long_sample_of(workload, seed);
    }
    Sample {
        states: short,
        operations: workload.operations,
        ..long_sample_of(workload, seed)
    }
}

/// Returns the sample of a long run.
fn long_sample_of(workload: &Workload, seed: u64) -> Sample {
    Sample {
        states: workload.states[0],
        operations: usize::MAX,
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
    assert!(recordings > 0, "nothing is recorded");
    let only: Option<String> = setting("CRASH_STATES_WORKLOAD");
    let only = only.map(|only| workload(&only).name);
    let is_due = |workload: &&Workload| match only {
        Some(only) => only == workload.name,
        None => sample_of(workload, seed).states > 0,
    };
    let mut reports = vec![];
    let due = WORKLOADS.iter().filter(is_due);
    let due = due.flat_map(|workload| (0..recordings).map(move |recording| (workload, recording)));
    let due = Mutex::new(due);
    let (sender, recorded) = sync_channel(4);
    std::thread::scope(|threads| {
        // Ahead of the checks, and two at a time: recordings wait most of their time, and so do some checks.
        for sender in [sender.clone(), sender] {
            let due = &due;
            threads.spawn(move || {
                let next = || due.lock().unwrap().next();
                while let Some((workload, recording)) = next() {
                    let recorded = workload.record(&Programs::real());
                    let sample = sample_of(workload, seed.wrapping_add(recording));
                    let drawn = run::draw(recorded.recording().history(Model::Weak), sample);
                    if sender.send((workload, recorded, drawn, sample)).is_err() {
                        return;
                    }
                }
            });
        }
        for (workload, recorded, drawn, sample) in recorded {
            let report = kept::check(&*recorded, drawn, sample);
            eprintln!("{}: {report}", workload.name);
            let is_full = report.checked() == sample.states.min(report.different);
            assert!(is_full || !report.faults.is_empty(), "states are left out");
            reports.push((workload.name.to_owned(), report));
            if is_long() {
                crash_again(workload, &*recorded, sample, &mut reports);
            }
        }
    });
    conclude(began, &reports);
}

/// Checks states of servers that go on over what a crash or a kill of a recording has left, and whose power fails again.
fn crash_again(
    workload: &Workload,
    recorded: &dyn Recorded,
    sample: Sample,
    reports: &mut Vec<(String, Report)>,
) {
    let name = workload.name;
    for second in 0..workload.second_crashes {
        let mut dice = Dice::new(sample.seed.wrapping_add(second));
        let again = recorded.crashed_again(&mut dice);
        let sample = Sample {
            states: SECOND_CRASHES,
            ..sample
        };
        let drawn = run::draw(again.recording().history(Model::Weak), sample);
        let report = kept::check(&*again, drawn, sample);
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
        let report = run::check(
            history,
            run::draw(history, sample),
            &*recorded.oracle(),
            sample,
        );
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
    let sample = if bug.is_rare {
        long_sample_of(workload, seed)
    } else {
        sample_of(workload, seed)
    };
    let sample = Sample {
        faults: 1,
        ..sample
    };
    let history = recorded.recording().history(Model::Weak);
    let drawn = run::draw(history, sample);
    let report = run::check(history, drawn, &*recorded.oracle(), sample);
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
        let sample = sample_of(workload, SEED);
        let drawn = run::draw(history, sample);
        let report = run::check(history, drawn, &*recorded.oracle(), sample);
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
