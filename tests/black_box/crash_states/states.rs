//! Which disks a power cut can leave at an instant of a recording, and which of them are looked at.
//!
//! Pure. Any subset of the pending changes may have survived, which are too many to try; the [`Family`]s are those in
//! which faults hide. Equal disks are one state, held to the newest of the promises made over it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::Path,
    rc::Rc,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::disk::{Call, Change, Disk, Model, Moment, Operation, Pending, Survivors, Torn, Write};
use crate::dice::Dice;

/// Newest pending changes that are also tried one by one.
const SINGLE: usize = 24;
/// Parts of a recording that get equal shares of a sample.
const PARTS: usize = 10;

/// A rule by which pending changes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Family {
    None,
    All,
    OnlyNames,
    OnlyBytes,
    WithoutAttributes,
    OnlyAttributes,
    WithoutFile,
    NamesAndFile,
    WithoutFolder,
    OnlyFolder,
    Prefix,
    Without,
    Only,
    HalfRename,
    TornFirst,
    TornLast,
    TornAmongAll,
    Hole,
    Length,
    OtherBytes,
}

/// A state of the disk: which changes survived behind an operation.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Index of the operation.
    pub(super) operation: usize,
    /// Call of the operation, and kind of its file.
    pub(super) kind: Arc<str>,
    /// Promise that is made behind the operation; empty if there is none.
    pub(super) promised: Arc<str>,
    pub(super) family: Family,
    /// What the change does that the family has singled out; empty if it has none.
    pub(super) subject: Arc<str>,
    /// The operation, the family and its parameters; valid in its recording only.
    pub(super) name: String,
    /// When the disk was so first, and last.
    pub(super) moments: Moments,
}

/// The time in which the power may have failed, for one state of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    /// No more than what was done by then may count as done.
    pub(super) first: Moment,
    /// What was promised by then must hold.
    pub(super) last: Moment,
}

/// Something that was promised by a moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Promise {
    pub(super) at: Moment,
    /// The kind of request that was answered, or another kind of promise.
    pub(super) what: String,
}

/// The operations of a recording with what they began on.
#[derive(Clone, Copy)]
pub(super) struct History<'a> {
    pub(super) start: &'a Path,
    pub(super) operations: &'a [Operation],
    /// When something was promised, in order.
    pub(super) promises: &'a [Promise],
    pub(super) model: Model,
    /// First operation behind which the power may fail.
    pub(super) from: usize,
    /// Syncs that count for nothing, as a control.
    pub(super) ignored: Option<Ignored>,
}

/// A disk that ignores the syncs of some files or of a folder. Of its states, those count that lose something of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ignored {
    /// Part of the paths of files, or the path of a folder.
    pub(super) path: &'static str,
    pub(super) is_folder: bool,
}

impl Ignored {
    fn is_synced_by(self, disk: &Disk, operation: &Operation) -> bool {
        let Call::Sync {
            file: Some(file), ..
        } = operation.call
        else {
            return false;
        };
        disk.path_of(file).is_some_and(|(path, is_folder)| {
            is_folder == self.is_folder
                && if is_folder {
                    path == self.path
                } else {
                    path.contains(self.path)
                }
        })
    }

    fn is_lost(self, disk: &Disk, survivors: &Survivors) -> bool {
        let is_whole = |pending: &Rc<Pending>| {
            let is_torn = |torn: (usize, Torn)| torn.0 == pending.number;
            let mut whole = survivors.changes.iter();
            !survivors.torn.is_some_and(is_torn) && whole.any(|whole| Rc::ptr_eq(whole, pending))
        };
        let mut pending = disk.pending().iter();
        pending.any(|pending| disk.describe(pending).contains(self.path) && !is_whole(pending))
    }
}

impl std::fmt::Debug for History<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History")
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

/// Visits the states behind those operations of a history that are wanted, in order. `is_wanted` is asked with the
/// index, the kind and the promise of each operation behind which a power cut may leave something new.
///
/// # Errors
///
/// Returns why the history cannot be followed.
pub(super) fn visit(
    history: History<'_>,
    mut is_wanted: impl FnMut(usize, &str, &str) -> bool,
    mut visit: impl FnMut(&Disk, State, Survivors) -> Result<(), String>,
) -> Result<(), String> {
    let load = Disk::load(history.model, history.start);
    let mut disk = load.map_err(|error| error.to_string())?;
    let mut promises = history.promises.iter().peekable();
    for (index, operation) in history.operations.iter().enumerate() {
        let ignored = history.ignored;
        if ignored.is_some_and(|ignored| ignored.is_synced_by(&disk, operation)) {
            continue;
        }
        let changed = disk
            .step(operation)
            .map_err(|what| format!("operation {index}: {what}"))?;
        // Promises up to the next operation are made over the same disk.
        let next = history.operations.get(index + 1);
        let until = next.map_or(Moment::MAX, |next| next.exit);
        let mut moment = operation.exit;
        let mut promised = "";
        while let Some(promise) = promises.next_if(|promise| promise.at < until) {
            moment = moment.max(promise.at);
            promised = &promise.what;
        }
        let is_new = changed || !promised.is_empty();
        if index < history.from || !is_new {
            continue;
        }
        let kind: Arc<str> = disk.kind_of(operation).into();
        if !is_wanted(index, &kind, promised) {
            continue;
        }
        let promised: Arc<str> = promised.into();
        let subjects = disk.pending().iter().map(|pending| {
            let subject: Arc<str> = disk.kind_of_change(pending).into();
            (pending.number, subject)
        });
        let subjects: HashMap<usize, Arc<str>> = subjects.collect();
        for (family, label, survivors) in families(disk.pending()) {
            if ignored.is_some_and(|ignored| !ignored.is_lost(&disk, &survivors)) {
                continue;
            }
            let subject = label
                .split(':')
                .nth(1)
                .and_then(|number| number.parse().ok());
            let subject = subject.and_then(|number: usize| subjects.get(&number).cloned());
            let name = format!("{index}/{label}");
            let state = State {
                operation: index,
                kind: Arc::clone(&kind),
                promised: Arc::clone(&promised),
                family,
                subject: subject.unwrap_or_default(),
                name,
                moments: Moments {
                    first: operation.exit,
                    last: moment,
                },
            };
            visit(&disk, state, survivors)?;
        }
    }
    Ok(())
}

/// Different states of a history.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) states: Vec<State>,
    /// States before equal ones were made one.
    pub(super) all: usize,
}

/// Lists the different states of a history, or those behind so many of its operations: a third of them by equal shares
/// for each promise, a third for each kind of operation, the rest for each part of the history.
///
/// # Errors
///
/// Returns why the history cannot be followed.
pub(super) fn list(
    history: History<'_>,
    operations: usize,
    dice: &mut Dice,
) -> Result<Listed, String> {
    let mut listed = Listed::default();
    let mut places: HashMap<u128, usize> = HashMap::new();
    let drawn = draw_operations(history, operations, dice)?;
    visit(
        history,
        |operation, _, _| drawn.contains(&operation),
        |disk, state, survivors| {
            listed.all += 1;
            let digest = disk.after(&survivors).digest();
            if let Some(place) = places.get(&digest) {
                let found = &mut listed.states[*place];
                let before = std::mem::replace(found, state);
                found.moments.first = before.moments.first;
                // It is drawn by its promise: with nothing on the disk, most operations change nothing.
                if found.promised.is_empty() {
                    (found.kind, found.promised) = (before.kind, before.promised);
                }
            } else {
                places.insert(digest, listed.states.len());
                listed.states.push(state);
            }
            Ok(())
        },
    )?;
    Ok(listed)
}

fn draw_operations(
    history: History<'_>,
    count: usize,
    dice: &mut Dice,
) -> Result<HashSet<usize>, String> {
    let mut kinds: BTreeMap<usize, [String; 2]> = BTreeMap::new();
    let note = |operation, kind: &str, promised: &str| {
        kinds.insert(operation, [kind.to_owned(), promised.to_owned()]);
        false
    };
    visit(history, note, |_, _, _| Ok(()))?;
    let all: Vec<usize> = kinds.keys().copied().collect();
    let promising = all.iter().copied();
    let promising: Vec<usize> = promising.filter(|it| !kinds[it][1].is_empty()).collect();
    let share = count.min(all.len()) / 3;
    let by_promise = draw(&promising, share, dice, |operation| {
        kinds[&operation][1].as_str()
    });
    let mut drawn: HashSet<usize> = by_promise.into_iter().collect();
    let rest = |drawn: &HashSet<usize>| -> Vec<usize> {
        let rest = all.iter().copied();
        rest.filter(|operation| !drawn.contains(operation))
            .collect()
    };
    drawn.extend(draw(&rest(&drawn), share, dice, |operation| {
        kinds[&operation][0].as_str()
    }));
    let (from, operations) = (history.from, history.operations.len());
    drawn.extend(draw(
        &rest(&drawn),
        count - drawn.len(),
        dice,
        |operation| part_of(operation - from, operations - from),
    ));
    Ok(drawn)
}

/// Part of a history, a promise, or a kind of operation or change, within a family; `None` takes no part in a share.
type Stratum = Option<(usize, Arc<str>)>;

/// Draws states: by equal shares for each family and each promise that was just made, each part of the history, each kind
/// of operation, and each kind of change that the family has singled out, a quarter of them each. What happens seldom has
/// few states.
pub(super) fn sample(listed: &Listed, count: usize, dice: &mut Dice) -> Vec<State> {
    let operations = || listed.states.iter().map(|state| state.operation);
    let from = operations().min().unwrap_or(0);
    let end = operations().max().unwrap_or(0) + 1;
    let part_of = |state: &State| part_of(state.operation - from, end - from);
    let mut rest: Vec<usize> = (0..listed.states.len()).collect();
    let mut drawn: Vec<usize> = vec![];
    let strata: [&dyn Fn(&State) -> Stratum; 4] = [
        &|state| (!state.promised.is_empty()).then(|| (0, Arc::clone(&state.promised))),
        &|state| Some((part_of(state), Arc::default())),
        &|state| Some((0, Arc::clone(&state.kind))),
        &|state| Some((0, Arc::clone(&state.subject))),
    ];
    for (number, stratum) in strata.into_iter().enumerate() {
        let share = count.saturating_sub(drawn.len()) / (strata.len() - number);
        let among = rest.iter().copied();
        let among: Vec<usize> = among
            .filter(|index| stratum(&listed.states[*index]).is_some())
            .collect();
        let taken = draw(&among, share, dice, |index| {
            let state = &listed.states[index];
            (state.family, stratum(state))
        });
        let is_taken: HashSet<usize> = taken.iter().copied().collect();
        rest.retain(|index| !is_taken.contains(index));
        drawn.extend(taken);
    }
    let state = |index: usize| listed.states[index].clone();
    drawn.into_iter().map(state).collect()
}

/// Returns the part of a history that an operation is in. The first tenth has four parts, each twice as long as the one
/// before: what happens once in the life of a folder happens at its beginning.
fn part_of(operation: usize, operations: usize) -> usize {
    match operation * 8 * PARTS / operations {
        0 => 0,
        1 => 1,
        2..4 => 2,
        4..8 => 3,
        eighths => 3 + eighths / 8,
    }
}

/// Draws items: equal shares for each stratum, as far as it has so many.
fn draw<S: Ord>(
    items: &[usize],
    count: usize,
    dice: &mut Dice,
    stratum_of: impl Fn(usize) -> S,
) -> Vec<usize> {
    let mut strata: BTreeMap<S, Vec<usize>> = BTreeMap::new();
    for item in items {
        strata.entry(stratum_of(*item)).or_default().push(*item);
    }
    let mut strata: Vec<Vec<usize>> = strata.into_values().collect();
    let mut drawn = vec![];
    while drawn.len() < count && !strata.is_empty() {
        // A last round that is not for all takes any of them.
        shuffle(&mut strata, dice);
        for stratum in &mut strata {
            if drawn.len() < count {
                drawn.push(stratum.swap_remove(dice.below(stratum.len())));
            }
        }
        strata.retain(|stratum| !stratum.is_empty());
    }
    drawn
}

pub(super) fn shuffle<T>(items: &mut [T], dice: &mut Dice) {
    for last in (1..items.len()).rev() {
        items.swap(last, dice.below(last + 1));
    }
}

/// The changes of one file or folder.
type Group<'a> = (usize, Vec<&'a Rc<Pending>>);

fn families(pending: &[Rc<Pending>]) -> Vec<(Family, String, Survivors)> {
    let mut all = Families {
        pending,
        found: vec![],
    };
    all.whole_kinds();
    all.whole_files_and_folders();
    all.single_changes();
    all.torn_writes();
    all.found
}

struct Families<'a> {
    pending: &'a [Rc<Pending>],
    found: Vec<(Family, String, Survivors)>,
}

impl<'a> Families<'a> {
    fn add(&mut self, family: Family, label: String, is_there: impl Fn(&Pending) -> bool) {
        let changes = self.pending.iter().filter(|pending| is_there(pending));
        let survivors = Survivors {
            changes: changes.cloned().collect(),
            ..Survivors::default()
        };
        self.found.push((family, label, survivors));
    }

    fn has(&self, is_one: impl Fn(&Change) -> bool) -> bool {
        self.pending.iter().any(|pending| is_one(&pending.change))
    }

    fn whole_kinds(&mut self) {
        let is_name = |change: &Change| matches!(change, Change::Names(_));
        self.add(Family::None, "none".into(), |_| false);
        self.add(Family::All, "all".into(), |_| true);
        if self.has(is_name) && self.has(|change| !is_name(change)) {
            self.add(Family::OnlyNames, "names".into(), |pending| {
                is_name(&pending.change)
            });
            self.add(Family::OnlyBytes, "bytes".into(), |pending| {
                !is_name(&pending.change)
            });
        }
        if self.has(Change::is_attribute) && self.has(|change| !change.is_attribute()) {
            let (without, only) = (Family::WithoutAttributes, Family::OnlyAttributes);
            self.add(without, "without-attributes".into(), |pending| {
                !pending.change.is_attribute()
            });
            self.add(only, "attributes".into(), |pending| {
                pending.change.is_attribute()
            });
        }
    }

    fn whole_files_and_folders(&mut self) {
        let files = self.groups(|change| change.node().into_iter().collect());
        let folders = self.groups(|change| match change {
            Change::Names(names) => names.iter().take(1).map(|name| name.folder).collect(),
            _ => vec![],
        });
        let is_single = files.len() + folders.len() < 2;
        for (first, group) in &files {
            let numbers: BTreeSet<usize> = group.iter().map(|pending| pending.number).collect();
            self.add(
                Family::WithoutFile,
                format!("without-file:{first}"),
                |pending| !numbers.contains(&pending.number),
            );
            if !is_single {
                self.add(
                    Family::NamesAndFile,
                    format!("names+file:{first}"),
                    |pending| {
                        let is_name = matches!(pending.change, Change::Names(_));
                        is_name || numbers.contains(&pending.number)
                    },
                );
            }
        }
        for (first, group) in folders.iter().filter(|_| !is_single) {
            let numbers: BTreeSet<usize> = group.iter().map(|pending| pending.number).collect();
            self.add(
                Family::WithoutFolder,
                format!("without-folder:{first}"),
                |pending| !numbers.contains(&pending.number),
            );
            self.add(Family::OnlyFolder, format!("folder:{first}"), |pending| {
                numbers.contains(&pending.number)
            });
        }
    }

    fn groups(&self, keys: impl Fn(&Change) -> Vec<usize>) -> Vec<Group<'a>> {
        let mut groups: BTreeMap<usize, Vec<&Rc<Pending>>> = BTreeMap::new();
        for pending in self.pending {
            for key in keys(&pending.change) {
                groups.entry(key).or_default().push(pending);
            }
        }
        let groups = groups.into_values();
        groups.map(|group| (group[0].number, group)).collect()
    }

    fn single_changes(&mut self) {
        let newest = &self.pending[self.pending.len().saturating_sub(SINGLE)..];
        for one in newest {
            let number = one.number;
            self.add(Family::Prefix, format!("prefix:{number}"), |pending| {
                pending.number < number
            });
            self.add(Family::Without, format!("without:{number}"), |pending| {
                pending.number != number
            });
            self.add(Family::Only, format!("only:{number}"), |pending| {
                pending.number == number
            });
            let is_move = matches!(&one.change, Change::Names(names)
                if names.len() > 1 && names[0].folder != names[1].folder);
            for (part, label) in ["half", "half-gone"].iter().enumerate().filter(|_| is_move) {
                self.add(Family::HalfRename, format!("{label}:{number}"), |_| true);
                self.last().half = Some((number, part));
            }
        }
    }

    fn last(&mut self) -> &mut Survivors {
        &mut self.found.last_mut().expect("it was just added").2
    }

    fn torn_writes(&mut self) {
        for pending in self.pending {
            let number = pending.number;
            let Change::Write(write) = &pending.change else {
                continue;
            };
            let mut torn = |family, label: String, how, is_there: &dyn Fn(&Pending) -> bool| {
                self.add(family, format!("{label}:{number}"), is_there);
                let (_, label, survivors) = self.found.last_mut().expect("it was just added");
                survivors.torn = Some((number, how));
                let place = match how {
                    Torn::Length => return,
                    Torn::First(place)
                    | Torn::Last(place)
                    | Torn::Hole(place, _)
                    | Torn::Noise(place)
                    | Torn::Stale(place) => place,
                };
                label.push_str(&format!(":{place}"));
            };
            let up_to = |pending: &Pending| pending.number <= number;
            for place in cuts(write) {
                let (first, last) = (Torn::First(place), Torn::Last(place));
                torn(Family::TornFirst, "torn-first".into(), first, &up_to);
                torn(Family::TornLast, "torn-last".into(), last, &up_to);
                torn(Family::TornAmongAll, "torn-first+".into(), first, &|_| true);
                torn(Family::TornAmongAll, "torn-last+".into(), last, &|_| true);
            }
            if let Some((from, to)) = hole(write) {
                torn(Family::Hole, "hole".into(), Torn::Hole(from, to), &up_to);
                torn(Family::Hole, "hole+".into(), Torn::Hole(from, to), &|_| {
                    true
                });
            }
            if write.grows() {
                torn(Family::Length, "length".into(), Torn::Length, &up_to);
                torn(Family::Length, "length+".into(), Torn::Length, &|_| true);
                for place in [Some(write.at), sectors(write)].into_iter().flatten() {
                    let (noise, stale) = (Torn::Noise(place), Torn::Stale(place));
                    torn(Family::OtherBytes, "noise".into(), noise, &up_to);
                    torn(Family::OtherBytes, "noise+".into(), noise, &|_| true);
                    torn(Family::OtherBytes, "stale".into(), stale, &up_to);
                }
            }
        }
    }
}

/// Units in which a write may reach the disk: sectors, and blocks.
const UNITS: [usize; 2] = [512, 4_096];

/// Returns the places at which a write may be torn: the first, the middle and the last boundary within it.
fn cuts(write: &Write) -> BTreeSet<usize> {
    let (first, end) = (write.at, write.end());
    let places = UNITS.iter().flat_map(|unit| {
        let after = (first / unit + 1) * unit;
        let middle = usize::midpoint(first, end) / unit * unit;
        let before = end.saturating_sub(1) / unit * unit;
        [after, middle, before]
    });
    places
        .filter(|place| first < *place && *place < end)
        .collect()
}

/// Returns the boundary of sectors in the middle of a write.
fn sectors(write: &Write) -> Option<usize> {
    let [sector, _] = UNITS;
    let middle = usize::midpoint(write.at, write.end()) / sector * sector;
    (middle > write.at).then_some(middle)
}

/// Returns a unit in the middle of a write, with others on both sides.
fn hole(write: &Write) -> Option<(usize, usize)> {
    let [unit, _] = UNITS;
    let from = usize::midpoint(write.at, write.end()) / unit * unit;
    let to = from + unit;
    (write.at < from && to < write.end()).then_some((from, to))
}
