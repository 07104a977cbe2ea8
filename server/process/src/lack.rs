//! Missing resources of a process: rights, file handles, memory, threads, room on a disk, a file
//! that is in use.
//!
//! Shell: the limits of the process. A missing resource is no fault of a file, whatever was being
//! done.

use std::{error::Error, io, sync::Arc};

use parking_lot::RwLock;
use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// Largest amount of memory that is asked for at once, in bytes. If a process has come closer to
/// its limit than this amount, memory may have been refused.
const NEAR_BYTES: u64 = 64 * 1024 * 1024;

/// Returns the first error in a chain of causes that stands for a lack of a resource.
pub fn lack_in<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let found = error.downcast_ref::<io::Error>();
        if let Some(found) = found.filter(|found| is_lack(found)) {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// Returns the value that was read, or `None` if the file is at fault.
///
/// # Errors
///
/// Returns the error if the process lacks a resource, such as file handles or memory.
pub fn unless_lacking<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if is_lack(&error) => Err(error),
        read => Ok(read.ok()),
    }
}

fn is_lack(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let kinds = [
        Kind::FileTooLarge,
        Kind::OutOfMemory,
        Kind::PermissionDenied,
        Kind::QuotaExceeded,
        Kind::ReadOnlyFilesystem,
        Kind::ResourceBusy,
        Kind::StorageFull,
        // The error of a thread that cannot be started.
        Kind::WouldBlock,
    ];
    kinds.contains(&error.kind()) || is_of_handles(error)
}

fn is_of_handles(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE].contains(&errno))
}

/// Returns whether an error stands for a lack that may be over in a moment: a lack of file handles,
/// or of memory.
pub fn is_momentary(error: &(dyn Error + 'static)) -> bool {
    let is_short =
        |lack: &io::Error| lack.kind() == io::ErrorKind::OutOfMemory || is_of_handles(lack);
    lack_in(error).is_some_and(is_short)
}

/// Returns a copy of an error of the system.
pub fn copy_of(error: &io::Error) -> io::Error {
    error
        .raw_os_error()
        .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Lets this process open as many files as the system allows, and checks that at least `least` more
/// may be opened.
///
/// # Errors
///
/// Returns that the process may not open enough files, and how to change that.
pub fn raise_files(least: u64) -> io::Result<()> {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    let allowed = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limits.maximum,
        Err(_) => limits.current,
    };
    // Files that were handed over to the process are open already, and count.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let open = u64::try_from(open).unwrap_or(u64::MAX);
    match allowed {
        Some(allowed) if allowed.saturating_sub(open) < least => Err(io::Error::other(format!(
            "a process may have only {allowed} files open here, {open} are, and {least} more are needed: raise \
             `ulimit -n`, or LimitNOFILE= of its unit"
        ))),
        _ => Ok(()),
    }
}

/// Makes a write fail with an error where a file may not become longer. Without this call, a signal
/// ends the process there.
pub fn survive_long_files() {
    // The call fails only for signals that no process may handle.
    let _handled = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Opens `count` files at the same time, and closes them.
///
/// # Errors
///
/// Returns why the system does not give the handles.
pub fn ask_for_files(count: usize) -> io::Result<()> {
    let open = |_| open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let opened: Result<Vec<_>, _> = (0..count).map(open).collect();
    opened.map(drop).map_err(io::Error::from)
}

/// Checks that this process never came near its limit of memory.
///
/// Some libraries panic without memory, and the panic does not tell why.
///
/// # Errors
///
/// Returns that this process has taken nearly as much address space as the limit allows.
pub fn check_memory() -> io::Result<()> {
    let Some(most) = getrlimit(Resource::As).current else {
        return Ok(());
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| {
        let rest = line.strip_prefix("VmPeak:")?.trim().strip_suffix(" kB")?;
        rest.parse::<u64>().ok()
    });
    let is_short = peak.is_some_and(|peak| peak * 1024 + NEAR_BYTES > most);
    if is_short {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Ok(())
}

/// Starts `count` threads at the same time, and ends them.
///
/// Some libraries panic or wait for ever where the system gives them no thread.
///
/// # Errors
///
/// Returns why the system does not give the threads.
pub fn ask_for_threads(count: usize) -> io::Result<()> {
    // The gate keeps each thread alive until the last one has started.
    let gate = RwLock::new(());
    std::thread::scope(|scope| {
        let closed = gate.write();
        let wait = || drop(gate.read());
        let threads = (0..count).map(|_| std::thread::Builder::new().spawn_scoped(scope, wait));
        let begun: io::Result<Vec<_>> = threads.collect();
        drop(closed);
        // The threads count against the limit until they have ended.
        for thread in begun? {
            drop(thread.join());
        }
        Ok(())
    })
}

/// Returns the remedy for an error of the system, if one is known.
pub fn advice(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    Some(match error.kind() {
        Kind::FileTooLarge => {
            "a file may not become so long: raise `ulimit -f`, or LimitFSIZE= of its unit"
        }
        Kind::OutOfMemory => "memory is short: raise `ulimit -v`, or MemoryMax= of its unit",
        Kind::StorageFull => "the disk is full: `df` and `df -i` show which one",
        Kind::QuotaExceeded => "the quota of the disk is exhausted: `quota` shows it",
        Kind::ReadOnlyFilesystem => "the file system is mounted for reading only",
        Kind::WouldBlock => {
            "the system gives no more threads: raise `ulimit -u`, or TasksMax= of its unit"
        }
        _ => match Errno::from_io_error(error)? {
            Errno::MFILE => {
                "the process has too many files open: raise `ulimit -n`, or LimitNOFILE= of its unit"
            }
            Errno::NFILE => {
                "all processes together have too many files open: raise fs.file-max (sysctl)"
            }
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of another room.
    #[derive(Debug, thiserror::Error)]
    #[error("it cannot be read")]
    struct Above(#[source] Box<dyn Error + Send + Sync>);

    /// Goal: a missing resource is found below other errors, and a fault of a file is none.
    #[test]
    fn a_lack_is_no_fault_of_a_file() {
        for errno in [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::ACCESS,
            Errno::PERM,
            Errno::ROFS,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::FBIG,
        ] {
            let error = || io::Error::from(errno);
            let below = Above(error().into());
            assert!(lack_in(&below).is_some(), "{errno:?}");
            let storage = Above(Above(error().into()).into());
            assert!(lack_in(&storage).is_some(), "{errno:?}");
            assert!(unless_lacking::<()>(Err(error())).is_err());
            assert_eq!(copy_of(&error()).kind(), error().kind());
            let is_right = !matches!(errno, Errno::ACCESS | Errno::PERM);
            assert_eq!(advice(&error()).is_some(), is_right, "{errno:?}");
        }
        for errno in [Errno::NOENT, Errno::IO, Errno::NOTDIR, Errno::ISDIR] {
            let error = io::Error::from(errno);
            assert!(unless_lacking::<()>(Err(error)).unwrap().is_none());
        }
        // sled copies an error without its number.
        let copied = io::Error::new(io::ErrorKind::FileTooLarge, "code: 27");
        assert!(lack_in(&copied).is_some() && advice(&copied).is_some());
        assert!(lack_in(&Above("damaged".into())).is_none());
        assert_eq!(unless_lacking(Ok(1)).unwrap(), Some(1));
        assert!(is_momentary(&io::Error::from(Errno::MFILE)));
        assert!(!is_momentary(&io::Error::from(Errno::ACCESS)));
    }
}
