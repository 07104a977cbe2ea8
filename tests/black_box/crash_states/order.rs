//! The order of a recording's operations, where what strace saw first came second.
//!
//! Pure, but for the folder that it begins with. Operations are listed as their returns were seen. One thread may use a
//! name that the call of another has made before that call was seen to return.

use std::path::Path;

use super::disk::{Call, Disk, Model, Operation, Target};

/// Returns the operations in an order in which each finds the names that it uses. One that cannot be put in order stays
/// where it is.
pub(super) fn in_order(mut operations: Vec<Operation>, start: &Path) -> Vec<Operation> {
    let mut disk = Disk::load(Model::Weak, start).expect("the start can be read");
    let (mut at, mut moved) = (0, 0);
    while let Some(operation) = operations.get(at) {
        if disk.step(operation).is_ok() {
            at += 1;
            continue;
        }
        let exit = operation.exit;
        let makes_what_it_uses = |later: &Operation| {
            let is_used = |made: &str| uses(&operation.call, made);
            later.enter < exit && made_by(&later.call).is_some_and(is_used)
        };
        let before = operations[at + 1..].iter().position(makes_what_it_uses);
        // Each is moved once at most, unless two wait for each other.
        let Some(before) = before.filter(|_| moved < operations.len()) else {
            return operations;
        };
        let before = at + 1 + before;
        // It had returned by then, whenever that was seen.
        operations[before].exit = exit;
        operations[at..=before].rotate_right(1);
        moved += 1;
    }
    operations
}

/// Returns the name that a call makes.
fn made_by(call: &Call) -> Option<&str> {
    match call {
        Call::Open {
            path,
            create: Some(_),
            ..
        }
        | Call::MakeFolder { path, .. }
        | Call::MakeSocket { path, .. }
        | Call::Rename { to: path, .. }
        | Call::Link { to: path, .. } => Some(path),
        _ => None,
    }
}

/// Returns whether a call uses a name, or one in the folder of that name.
fn uses(call: &Call, name: &str) -> bool {
    let is_used = |path: &str| {
        let rest = path.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match call {
        Call::Open { path, .. }
        | Call::MakeFolder { path, .. }
        | Call::MakeSocket { path, .. }
        | Call::Remove { path }
        | Call::SetMode {
            target: Target::Path(path),
            ..
        }
        | Call::SetModified {
            target: Target::Path(path),
            ..
        } => is_used(path),
        Call::Rename { from, to } | Call::Link { from, to } => is_used(from) || is_used(to),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(enter: u64, exit: u64, call: Call) -> Operation {
        Operation { enter, exit, call }
    }

    fn open(path: &str, file: u64, create: bool) -> Call {
        Call::Open {
            path: path.into(),
            file,
            create: create.then_some(0o644),
            truncate: false,
        }
    }

    fn is_whole(operations: &[Operation], start: &Path) -> bool {
        let mut disk = Disk::load(Model::Weak, start).unwrap();
        operations.iter().all(|next| disk.step(next).is_ok())
    }

    /// Goal: a file that is opened, and a folder that is written to, before the calls that made them were seen to return.
    #[test]
    fn what_is_used_comes_first() {
        let start = tempfile::tempdir().unwrap();
        let folder = Call::MakeFolder {
            path: "a".into(),
            mode: 0o755,
        };
        let seen = vec![
            operation(3, 4, open("a/b", 2, false)),
            operation(2, 5, open("a/b", 1, true)),
            operation(1, 6, folder),
        ];
        assert!(!is_whole(&seen, start.path()));
        let ordered = in_order(seen.clone(), start.path());
        assert!(is_whole(&ordered, start.path()), "{ordered:?}");
        let exits: Vec<u64> = ordered.iter().map(|operation| operation.exit).collect();
        assert!(exits.is_sorted(), "{exits:?}");
        // A call that began later made nothing that was used before.
        let later = vec![
            operation(3, 4, open("c", 2, false)),
            operation(5, 6, open("c", 1, true)),
        ];
        assert!(!is_whole(&in_order(later, start.path()), start.path()));
    }
}
