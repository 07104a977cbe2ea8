//! An order of a recording's operations in which each finds the names that it uses.
//!
//! Pure, but for the folder at the start. strace lists operations as it sees their returns. A thread may use a name before
//! strace sees the return of another thread's call that made it.

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
        let makes_a_used_name = |later: &Operation| {
            let is_used = |made: &str| uses(&operation.call, made);
            later.enter < exit && made_by(&later.call).is_some_and(is_used)
        };
        let before = operations[at + 1..].iter().position(makes_a_used_name);
        // Each is moved once at most, unless two wait for each other.
        let Some(before) = before.filter(|_| moved < operations.len()) else {
            return operations;
        };
        let before = at + 1 + before;
        // The call had returned by then, and strace saw its return later.
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

    /// Goal: a call comes behind those that make its names, if they had begun by then.
    #[test]
    fn a_name_is_made_before_its_use() {
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
        // A call that began later made no name of an earlier one.
        let later = vec![
            operation(3, 4, open("c", 2, false)),
            operation(5, 6, open("c", 1, true)),
        ];
        assert!(!is_whole(&in_order(later, start.path()), start.path()));
    }
}
