//! Faults that are found: each is made smaller, and kept with its recording, so that it can be repeated.
//!
//! Shell: `target/crash-states`.
#![expect(
    clippy::print_stderr,
    reason = "a fault stands in the output of the test"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use super::{
    disk::{Model, Survivors},
    oracle::{Depth, Oracle, Verdict},
    record::scratch,
    run::{self, Drawn, Fault, Report, Sample},
    states::{self, History, Moments, State},
    workloads::Recorded,
};
use crate::harness::program;

/// Checks states of a recording. The first fault is made smaller and kept.
pub(super) fn check(recorded: &dyn Recorded, drawn: Drawn, sample: Sample) -> Report {
    let history = recorded.recording().history(Model::Weak);
    let oracle = recorded.oracle();
    let report = run::check(history, drawn, &*oracle, sample);
    for fault in &report.faults {
        eprintln!("{}: {}", fault.state.name, fault.problem);
    }
    if let Some(fault) = report.faults.first() {
        let folder = keep(recorded, fault);
        // A fault of both is no doubt about the order of names.
        let ext4 = recorded.recording().history(Model::Ext4);
        let repeated = repeat(ext4, &*oracle, &fault.state.name, fault.state.moments);
        let is_of_both = matches!(repeated, Some(Repeated::Broken(..)));
        let label = if is_of_both { "" } else { " (weak only)" };
        eprintln!("kept in {}{label}", folder.display());
        shrink(history, &*oracle, &fault.state);
    }
    report
}

/// Keeps a fault and its recording. Returns the folder.
fn keep(recorded: &dyn Recorded, fault: &Fault) -> PathBuf {
    let name = format!("{}-{}", recorded.recording().name, fault.state.name);
    let name = name.replace(['/', ':'], "-");
    let target = program("")
        .parent()
        .expect("programs are in target")
        .join("crash-states");
    let folder = target.join(name);
    let _before = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    recorded.keep(&folder);
    let Moments { first, last } = fault.state.moments;
    let text = format!(
        "{}\n{first} {last}\n{}\n{}\n",
        fault.state.name,
        fault.problem,
        fault.changes.join("\n")
    );
    fs::write(folder.join("fault"), text).unwrap();
    folder
}

/// Checks the state of a fault that was kept, and makes it smaller.
pub(super) fn replay(recorded: &dyn Recorded, kept: &Path) {
    let text = fs::read_to_string(kept.join("fault")).unwrap();
    let mut lines = text.lines();
    let name = lines.next().expect("it begins with the name of the state");
    let moments = lines.next().and_then(|line| line.split_once(' '));
    let (first, last) = moments.expect("the moments follow");
    let moments = Moments {
        first: first.parse().unwrap(),
        last: last.parse().unwrap(),
    };
    let history = recorded.recording().history(Model::Weak);
    let oracle = recorded.oracle();
    match repeat(history, &*oracle, name, moments) {
        None => panic!("the recording has no state {name}"),
        Some(Repeated::Sound) => eprintln!("{name} is sound"),
        Some(Repeated::Broken(state, problem)) => {
            shrink(history, &*oracle, &state);
            panic!("{name}: {problem}");
        }
    }
}

/// What a state is found to be when it is built and checked once more.
enum Repeated {
    Sound,
    Broken(State, String),
}

/// Builds and checks one state; `None` if there is none of that name.
fn repeat(
    history: History<'_>,
    oracle: &dyn Oracle,
    name: &str,
    moments: Moments,
) -> Option<Repeated> {
    let operation: usize = name.split('/').next()?.parse().ok()?;
    let mut repeated = None;
    let visited = states::visit(
        history,
        |index, _, _| index == operation,
        |disk, state, survivors| {
            if state.name == name {
                let state = State { moments, ..state };
                let problem = problem(disk, oracle, &state, &survivors);
                repeated = Some(
                    problem.map_or(Repeated::Sound, |problem| Repeated::Broken(state, problem)),
                );
            }
            Ok(())
        },
    );
    visited.expect("the recording followed itself");
    repeated
}

fn problem(
    disk: &super::disk::Disk,
    oracle: &dyn Oracle,
    state: &State,
    survivors: &Survivors,
) -> Option<String> {
    let check = |depth| {
        let folder = scratch();
        let root = folder.path().join("root");
        disk.after(survivors).write_to(&root).unwrap();
        match oracle.check(&root, state.moments, depth) {
            Verdict::Broken(problem) | Verdict::Momentary(problem) => Some(problem),
            Verdict::Sound | Verdict::Nothing => None,
        }
    };
    check(Depth::Repeated).or_else(|| check(Depth::Verified))
}

/// Brings lost changes back as long as the state stays broken. Prints those that are left: losing them is enough.
fn shrink(history: History<'_>, oracle: &dyn Oracle, state: &State) {
    let visited = states::visit(
        history,
        |index, _, _| index == state.operation,
        |disk, found, mut survivors| {
            if found.name != state.name {
                return Ok(());
            }
            for pending in disk.pending() {
                if survivors
                    .changes
                    .iter()
                    .any(|there| there.number == pending.number)
                {
                    continue;
                }
                let mut more = survivors.clone();
                more.changes.push(Rc::clone(pending));
                more.changes.sort_by_key(|there| there.number);
                if problem(disk, oracle, state, &more).is_some() {
                    survivors = more;
                }
            }
            eprintln!(
                "{}: it is enough to lose, of the changes not synced:",
                state.name
            );
            for line in run::described(disk, &survivors) {
                if !line.starts_with('x') || line.contains("Torn") || survivors.torn.is_some() {
                    eprintln!("  {line}");
                }
            }
            Ok(())
        },
    );
    visited.expect("the recording followed itself");
}
