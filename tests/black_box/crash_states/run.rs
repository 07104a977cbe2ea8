//! Builds states of a recording and has each checked.
//!
//! Shell: folders and threads. One thread builds, some for each core check.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    time::{Duration, Instant},
};

use super::{
    disk::{Disk, Survivors},
    oracle::{Depth, Oracle, Verdict},
    record::scratch,
    states::{self, Family, History, State},
};
use crate::dice::Dice;

/// Which states are checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// At most so many, drawn as [`states::sample`] tells.
    pub(super) states: usize,
    /// Operations behind which states are listed.
    pub(super) operations: usize,
    pub(super) seed: u64,
    /// Faults after which no more states are checked.
    pub(super) faults: usize,
    /// How deep the checks go, in turn.
    pub(super) depths: &'static [Depth],
}

/// A state that does not keep the promises.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) state: State,
    pub(super) problem: String,
    /// Pending changes in words, with `x` before those on the disk.
    pub(super) changes: Vec<String>,
}

/// Outcome of a sample.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// States behind the operations that were drawn.
    pub(super) all: usize,
    /// Those that differ from each other.
    pub(super) different: usize,
    pub(super) checked: BTreeMap<Family, usize>,
    /// States in which nothing was promised and nothing is there.
    pub(super) trivial: usize,
    pub(super) faults: Vec<Fault>,
    listing: Duration,
    checking: Duration,
    building: Duration,
}

impl Report {
    pub(super) fn checked(&self) -> usize {
        self.checked.values().sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, different, checked) = (self.all, self.different, self.checked());
        let seconds = self.checking.as_secs_f64();
        let rate = f64::from(u32::try_from(checked).unwrap_or(0)) / seconds.max(0.001);
        write!(
            f,
            "{all} states, {different} different, listed in {:.1} s; {checked} checked in {seconds:.1} s, {rate:.1}/s \
             ({} trivial, {:.1} s building), {} faults",
            self.listing.as_secs_f64(),
            self.trivial,
            self.building.as_secs_f64(),
            self.faults.len()
        )
    }
}

/// A state that was written into a folder.
struct Built {
    state: State,
    folder: PathBuf,
    changes: Vec<String>,
    depth: Depth,
}

/// States that are to be checked.
#[derive(Debug)]
pub(super) struct Drawn {
    states: Vec<State>,
    all: usize,
    different: usize,
    listing: Duration,
}

/// Lists the states of a history, and draws those of a sample.
pub(super) fn draw(history: History<'_>, sample: Sample) -> Drawn {
    let began = Instant::now();
    let mut dice = Dice::new(sample.seed);
    let listed = states::list(history, sample.operations, &mut dice);
    let listed = listed.expect("the recording followed itself to its end");
    Drawn {
        states: states::sample(&listed, sample.states, &mut dice),
        all: listed.all,
        different: listed.states.len(),
        listing: began.elapsed(),
    }
}

/// Checks states of a history.
pub(super) fn check(
    history: History<'_>,
    drawn: Drawn,
    oracle: &dyn Oracle,
    sample: Sample,
) -> Report {
    let report = Report {
        all: drawn.all,
        different: drawn.different,
        listing: drawn.listing,
        ..Report::default()
    };
    let began = Instant::now();
    let mut dice = Dice::new(sample.seed);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let workers = cores * oracle.checks_per_core();
    let (sender, receiver) = sync_channel::<Built>(2 * workers);
    let (receiver, found) = (Mutex::new(receiver), Mutex::new(report));
    let faults = AtomicUsize::new(0);
    let folder = scratch();
    let building = std::thread::scope(|threads| {
        for _ in 0..workers {
            threads.spawn(|| work(&receiver, oracle, &found, &faults));
        }
        let mut wanted: HashMap<(usize, String), State> = drawn
            .states
            .into_iter()
            .map(|state| ((state.operation, state.name.clone()), state))
            .collect();
        let operations: std::collections::HashSet<usize> =
            wanted.keys().map(|(operation, _)| *operation).collect();
        // Small samples get all depths by turns, too.
        let (mut count, mut building) = (dice.below(sample.depths.len()), Duration::ZERO);
        let built = states::visit(
            history,
            |operation, _, _| operations.contains(&operation),
            |disk, state, survivors| {
                let Some(state) = wanted.remove(&(state.operation, state.name)) else {
                    return Ok(());
                };
                if faults.load(Ordering::Acquire) >= sample.faults {
                    return Err("enough".into());
                }
                let began = Instant::now();
                let folder = folder.path().join(count.to_string());
                let tree = disk.after(&survivors);
                tree.write_to(&folder)
                    .map_err(|error| format!("{}: {error}", state.name))?;
                building += began.elapsed();
                count += 1;
                let built = Built {
                    changes: described(disk, &survivors),
                    depth: sample.depths[count % sample.depths.len()],
                    state,
                    folder,
                };
                sender.send(built).map_err(|unsent| unsent.to_string())
            },
        );
        drop(sender);
        match built {
            Ok(()) => assert!(wanted.is_empty(), "states that were listed are gone"),
            Err(problem) => assert!(faults.load(Ordering::Acquire) >= sample.faults, "{problem}"),
        }
        building
    });
    let mut report = found.into_inner().unwrap();
    (report.building, report.checking) = (building, began.elapsed());
    report.faults.sort_by_key(|fault| fault.state.operation);
    report
}

fn work(
    built: &Mutex<Receiver<Built>>,
    oracle: &dyn Oracle,
    report: &Mutex<Report>,
    faults: &AtomicUsize,
) {
    loop {
        let next = built.lock().unwrap().recv();
        let Ok(built) = next else {
            return;
        };
        let check = || oracle.check(&built.folder, built.state.moments, built.depth);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        let verdict = checked.unwrap_or_else(|_| Verdict::Broken("the check panics".into()));
        let mut report = report.lock().unwrap();
        *report.checked.entry(built.state.family).or_default() += 1;
        let problem = match verdict {
            Verdict::Sound => None,
            Verdict::Nothing => {
                report.trivial += 1;
                None
            }
            Verdict::Momentary(problem) => Some(format!("for a moment: {problem}")),
            Verdict::Broken(problem) => Some(problem),
        };
        if let Some(problem) = problem {
            faults.fetch_add(1, Ordering::AcqRel);
            report.faults.push(Fault {
                state: built.state,
                problem,
                changes: built.changes,
            });
        }
        drop(report);
        let _gone = std::fs::remove_dir_all(&built.folder);
    }
}

pub(super) fn described(disk: &Disk, survivors: &Survivors) -> Vec<String> {
    let is_there = |number| {
        survivors
            .changes
            .iter()
            .any(|pending| pending.number == number)
    };
    let each = disk.pending().iter().map(|pending| {
        let mark = if is_there(pending.number) { 'x' } else { ' ' };
        let torn = survivors
            .torn
            .filter(|(number, _)| *number == pending.number);
        let torn = torn.map_or_else(String::new, |(_, torn)| format!(" {torn:?}"));
        format!("{mark} {} {}{torn}", pending.number, disk.describe(pending))
    });
    each.collect()
}
