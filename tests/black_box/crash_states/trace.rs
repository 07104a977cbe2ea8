//! What strace wrote, as operations on one folder and answers to clients.
//!
//! Pure, but for bytes that a program copied from a file elsewhere. A call that might change the folder and is not known here is an error: a recording that misses a change
//! would prove nothing.

use std::{collections::HashMap, path::PathBuf};

use super::disk::{Call, Handle, Moment, Operation, SyncKind, Target};

/// Calls that change no file, which strace is told to leave alone: stopping at them costs time.
pub(super) const UNTRACED: &[&str] = &[
    "read",
    "pread64",
    "readv",
    "preadv",
    "preadv2",
    "recvfrom",
    "recvmsg",
    "accept",
    "accept4",
    "futex",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "brk",
    "munmap",
    "mprotect",
    "madvise",
    "nanosleep",
    "clock_nanosleep",
    "clock_gettime",
    "gettimeofday",
    "sched_yield",
    "sched_getaffinity",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sigaltstack",
    "stat",
    "fstat",
    "lstat",
    "newfstatat",
    "statx",
    "statfs",
    "fstatfs",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getdents64",
    "getcwd",
    "getrandom",
    "gettid",
    "getpid",
    "getppid",
    "set_robust_list",
    "rseq",
    "prctl",
    "arch_prctl",
    "set_tid_address",
    "prlimit64",
    "uname",
    "sysinfo",
    "exit",
    "exit_group",
    "wait4",
    "waitid",
    "setsockopt",
    "getsockopt",
    "getsockname",
    "getpeername",
    "socket",
    "connect",
    "listen",
    "shutdown",
    "pipe2",
    "eventfd2",
    "timerfd_create",
    "timerfd_settime",
    "kill",
    "tgkill",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "seccomp",
    "membarrier",
    "mremap",
    "restart_syscall",
];

/// Calls that may name the folder and change nothing of it.
const HARMLESS: &[&str] = &[
    "flock",
    "fadvise64",
    "inotify_add_watch",
    "getxattr",
    "lgetxattr",
    "fgetxattr",
    "listxattr",
    "readahead",
    "memfd_create",
];

/// Requests of `ioctl` and `fcntl` that change nothing.
const HARMLESS_REQUESTS: &[&str] = &[
    "F_GETFD",
    "F_GETFL",
    "F_SETFL",
    "F_SETLK",
    "F_SETLKW",
    "F_GETLK",
    "F_OFD_SETLK",
    "F_OFD_GETLK",
    "F_OFD_SETLKW",
    "F_ADD_SEALS",
    "F_GET_SEALS",
    "FIONBIO",
    "FIOCLEX",
    "TCGETS",
    "TIOCGWINSZ",
    "FIONREAD",
];

/// Name of the file that takes the output of a traced program.
pub(super) const PRINTED: &str = "printed";

/// A trace of one process with its children.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) operations: Vec<Operation>,
    /// Operations that a kill cut off: each was done, or was not.
    pub(super) cut_off: Vec<Operation>,
    /// When the first bytes were sent to each peer on this machine, by its port.
    pub(super) answers: HashMap<u16, Moment>,
    /// Text that was written to a file of the name [`PRINTED`], which is not in the folder.
    pub(super) printed: Vec<(Moment, String)>,
    /// Behind the last line.
    pub(super) end: Moment,
}

/// Reads a trace. Moments count from `base`; new files have the modes that `umask` leaves.
///
/// # Errors
///
/// Returns the line that might change the folder and is not understood.
pub(super) fn parse(text: &str, root: &str, umask: u32, base: Moment) -> Result<Trace, String> {
    let mut reader = Reader {
        root: root.to_owned(),
        hidden_root: hexed(root),
        umask,
        tables: HashMap::new(),
        process: String::new(),
        table_of: HashMap::new(),
        cloning: vec![],
        trace: Trace::default(),
        handles: base << 20,
    };
    let mut begun: HashMap<&str, (Moment, String)> = HashMap::new();
    let mut end = base;
    for (line, now) in text.lines().zip(base..) {
        end = now + 1;
        let Some((thread, rest)) = line.split_once(' ') else {
            return Err(format!("not a line of a trace: {line}"));
        };
        let rest = rest.trim_start();
        if rest.starts_with("+++") || rest.starts_with("---") {
            continue;
        }
        let (enter, call) = if let Some(resumed) = rest.strip_prefix("<... ") {
            let (_, more) = resumed
                .split_once(" resumed>")
                .ok_or("a call is resumed oddly")?;
            let Some((enter, head)) = begun.remove(thread) else {
                continue;
            };
            (enter, head + more)
        } else if let Some(head) = rest.strip_suffix(" <unfinished ...>") {
            reader.enters(now, head, thread);
            begun.insert(thread, (now, head.to_owned()));
            continue;
        } else {
            reader.enters(now, rest, thread);
            (now, rest.to_owned())
        };
        let done = reader.exits(enter, now, thread, &call);
        done.map_err(|problem| {
            let shown: String = call.chars().take(300).collect();
            format!("{problem}: {shown}")
        })?;
    }
    // strace does not always see the end of a thread that a kill takes.
    for (thread, (enter, call)) in begun {
        let call = format!("{call}) = ?");
        let done = reader.exits(enter, end, thread, &call);
        done.map_err(|problem| format!("{problem}: {call:.300}"))?;
    }
    reader.trace.end = end;
    Ok(reader.trace)
}

/// An open file of the folder.
#[derive(Clone, Debug)]
struct OpenFile {
    handle: Handle,
    offset: usize,
    appends: bool,
    /// Whether a program that takes the place of this one has it, too.
    is_inherited: bool,
    /// Path of a file that is not in the folder: its bytes may be copied into it.
    elsewhere: Option<PathBuf>,
    /// Path in the folder, under which others may be found through its number.
    path: String,
}

/// Reads lines one after the other.
struct Reader {
    root: String,
    hidden_root: String,
    umask: u32,
    /// Open files of the folder, of each process, by their numbers.
    tables: HashMap<String, HashMap<i64, OpenFile>>,
    /// Process whose call is being read.
    process: String,
    /// Process of each thread.
    table_of: HashMap<String, String>,
    /// Calls that make a thread or a process and whose child was not seen yet: the parent, and whether it is a thread.
    cloning: Vec<(String, bool)>,
    trace: Trace,
    handles: u64,
}

impl Reader {
    /// Returns the process of a thread. A new one may be seen before the call that made it has returned.
    fn process(&mut self, thread: &str) -> String {
        if let Some(process) = self.table_of.get(thread) {
            return process.clone();
        }
        if self.cloning.is_empty() {
            self.table_of.insert(thread.to_owned(), thread.to_owned());
        } else {
            let (parent, is_thread) = self.cloning.remove(0);
            self.begin_child(thread.to_owned(), parent, is_thread);
        }
        self.table_of[thread].clone()
    }

    fn begin_child(&mut self, child: String, parent: String, is_thread: bool) {
        if is_thread {
            self.table_of.insert(child, parent);
        } else {
            let files = self.tables.get(&parent).cloned().unwrap_or_default();
            self.table_of.insert(child.clone(), child.clone());
            self.tables.insert(child, files);
        }
    }

    fn files(&mut self, thread: &str) -> &mut HashMap<i64, OpenFile> {
        let process = self.process(thread);
        self.tables.entry(process).or_default()
    }

    fn enters(&mut self, now: Moment, call: &str, thread: &str) {
        let (name, args) = call.split_once('(').unwrap_or((call, ""));
        match name {
            // The number may be another file's before the call returns.
            "close" => {
                if let Some(number) = number_of(args) {
                    self.files(thread).remove(&number);
                }
            }
            "write" | "writev" | "sendto" | "sendmsg" | "sendfile" => {
                if let Some(port) = peer_port(args) {
                    self.trace.answers.entry(port).or_insert(now);
                }
                let file = args.split_once('>').map_or("", |(file, _)| file);
                if file.ends_with(&hexed(&format!("/{PRINTED}"))) {
                    let text = Args::new(args).strings(1).unwrap_or_default();
                    let text = String::from_utf8_lossy(&text).into_owned();
                    self.trace.printed.push((now, text));
                }
            }
            "clone" | "clone3" | "fork" | "vfork" => {
                let parent = self.process(thread);
                let is_thread = args.contains("CLONE_THREAD");
                self.cloning.push((parent, is_thread));
            }
            _ => {}
        }
    }

    fn exits(
        &mut self,
        enter: Moment,
        exit: Moment,
        thread: &str,
        call: &str,
    ) -> Result<(), String> {
        let (name, rest) = call.split_once('(').ok_or("no call")?;
        let Some((args, result)) = rest.rsplit_once(" = ") else {
            return Ok(());
        };
        self.process = self.process(thread);
        let args = args.trim_end();
        let args = Args::new(args.strip_suffix(')').unwrap_or(args));
        // A call that begins again after a signal did nothing.
        let is_unknown = result.starts_with('?') && !result.contains("ERESTART");
        // Where the end of a process meets a call, strace may take anything for its result. A write of a process that lives
        // on is never short: no recording fills a disk.
        if is_unknown || result.starts_with("-1 (errno ") {
            return self.is_cut_off(enter, exit, thread, (name, &args));
        }
        let Some(result) = number_of(result).filter(|result| *result >= 0) else {
            return Ok(());
        };
        if is_write(name) && args.count().is_some_and(|count| result < count) {
            return self.is_cut_off(enter, exit, thread, (name, &args));
        }
        if let Some(call) = self.understand(name, &args, result, thread)? {
            self.trace.operations.push(Operation { enter, exit, call });
        }
        Ok(())
    }

    /// Takes a call of a thread that was killed within it.
    fn is_cut_off(
        &mut self,
        enter: Moment,
        exit: Moment,
        thread: &str,
        (name, args): (&str, &Args<'_>),
    ) -> Result<(), String> {
        let result = match name {
            // If strace could not read the bytes, they are fewer, and the write is refused.
            _ if is_write(name) => args.count().unwrap_or(i64::MAX),
            "ftruncate" | "mkdir" | "mkdirat" | "unlink" | "unlinkat" | "rename" | "renameat"
            | "renameat2" => 0,
            _ => return Ok(()),
        };
        if let Some(call) = self.understand(name, args, result, thread)? {
            self.trace.cut_off.push(Operation { enter, exit, call });
        }
        Ok(())
    }

    fn understand(
        &mut self,
        name: &str,
        args: &Args<'_>,
        result: i64,
        thread: &str,
    ) -> Result<Option<Call>, String> {
        let opened = |reader: &mut Self, index: usize| {
            let number = args.number(index)?;
            let file = reader.files(thread).get(&number)?;
            file.elsewhere.is_none().then(|| file.clone())
        };
        let size = |number: i64| usize::try_from(number).map_err(|error| error.to_string());
        match name {
            "open" => self.open(args, 0, None, result, thread),
            "openat" => self.open(args, 1, args.folder(0), result, thread),
            "creat" => Err("creat is not expected".into()),
            "write" | "pwrite64" | "writev" | "pwritev" => {
                let Some(file) = opened(self, 0) else {
                    return Ok(None);
                };
                let mut bytes = args.strings(1)?;
                let written = size(result)?;
                if bytes.len() < written {
                    return Err("a write that is not recorded as a whole".into());
                }
                bytes.truncate(written);
                let at = match name {
                    "pwrite64" => Some(size(args.last_number().ok_or("no offset")?)?),
                    "pwritev" => Some(size(args.number(3).ok_or("no offset")?)?),
                    _ if file.appends => None,
                    _ => {
                        self.move_on(thread, file.handle, written);
                        Some(file.offset)
                    }
                };
                let file = file.handle;
                Ok(Some(Call::Write { file, at, bytes }))
            }
            "lseek" => {
                if let Some(file) = opened(self, 0) {
                    let to = size(result)?;
                    self.each_of(thread, file.handle, |file| file.offset = to);
                }
                Ok(None)
            }
            "ftruncate" => {
                let length = size(args.last_number().ok_or("no length")?)?;
                Ok(opened(self, 0).map(|file| Call::Truncate {
                    file: file.handle,
                    length,
                }))
            }
            "fallocate" => {
                let Some(file) = opened(self, 0) else {
                    return Ok(None);
                };
                if args.text(1) != "0" {
                    return Err("an unknown kind of fallocate".into());
                }
                let (from, length) = (args.number(2), args.number(3));
                let (from, length) = from.zip(length).ok_or("no range")?;
                Ok(Some(Call::Allocate {
                    file: file.handle,
                    end: size(from)? + size(length)?,
                }))
            }
            "copy_file_range" => self.copy(args, size(result)?, thread),
            "sendfile" | "splice" => match opened(self, if name == "splice" { 2 } else { 0 }) {
                None => Ok(None),
                Some(_) => Err("bytes that are not recorded".into()),
            },
            "fsync" | "fdatasync" | "syncfs" => {
                let how = match name {
                    "fsync" => SyncKind::All,
                    "fdatasync" => SyncKind::Data,
                    _ => SyncKind::FileSystem,
                };
                Ok(opened(self, 0).map(|file| Call::Sync {
                    file: Some(file.handle),
                    how,
                }))
            }
            "sync" => Ok(Some(Call::Sync {
                file: None,
                how: SyncKind::FileSystem,
            })),
            // The owner stays, and `sync_file_range` promises nothing: neither the length of a file nor the cache of a drive.
            "close" | "sync_file_range" | "fchown" | "chown" | "fchownat" | "lchown" => Ok(None),
            "mmap" => {
                let is_shared = args.text(3).contains("MAP_SHARED");
                let writes = is_shared && args.text(2).contains("PROT_WRITE");
                match opened(self, 4).filter(|_| writes) {
                    None => Ok(None),
                    Some(_) => Err("a shared writable mapping".into()),
                }
            }
            "io_uring_setup" => Err("io_uring".into()),
            "dup" | "dup2" | "dup3" => {
                let is_inherited = name != "dup3" || !args.text(2).contains("CLOEXEC");
                self.duplicate(args, result, thread, is_inherited);
                Ok(None)
            }
            "fcntl" if args.text(1).starts_with("F_DUPFD") => {
                let is_inherited = !args.text(1).contains("CLOEXEC");
                self.duplicate(args, result, thread, is_inherited);
                Ok(None)
            }
            "fcntl" if args.text(1) == "F_SETFD" => {
                let is_inherited = !args.text(2).contains("CLOEXEC");
                if let Some(number) = args.number(0)
                    && let Some(file) = self.files(thread).get_mut(&number)
                {
                    file.is_inherited = is_inherited;
                }
                Ok(None)
            }
            "fcntl" | "ioctl" => {
                let request = args.text(1);
                let is_harmless = HARMLESS_REQUESTS.contains(&request);
                match opened(self, 0).filter(|_| !is_harmless) {
                    None => Ok(None),
                    Some(_) => Err("an unknown request on a file".into()),
                }
            }
            "clone" | "clone3" | "fork" | "vfork" => {
                self.process(&result.to_string());
                Ok(None)
            }
            "execve" => {
                self.files(thread).retain(|_, file| file.is_inherited);
                Ok(None)
            }
            "mkdir" => Ok(self
                .path(args, 0, None)?
                .map(|path| self.folder(path, args.text(1)))),
            "mkdirat" => {
                let path = self.path(args, 1, args.folder(0))?;
                Ok(path.map(|path| self.folder(path, args.text(2))))
            }
            "unlink" | "rmdir" => Ok(self.path(args, 0, None)?.map(|path| Call::Remove { path })),
            "unlinkat" => {
                let path = self.path(args, 1, args.folder(0))?;
                Ok(path.map(|path| Call::Remove { path }))
            }
            "rename" | "link" => {
                change_of_names(name, self.path(args, 0, None)?, self.path(args, 1, None)?)
            }
            "renameat" | "renameat2" | "linkat" => {
                if args.text(4).contains("RENAME_EXCHANGE") {
                    return Err("an exchange of names".into());
                }
                let from = self.path(args, 1, args.folder(0))?;
                let to = self.path(args, 3, args.folder(2))?;
                change_of_names(name, from, to)
            }
            "bind" => {
                let Some((_, path)) = args.all.split_once("sun_path=") else {
                    return Ok(None);
                };
                let path = path.split('}').next().unwrap_or_default();
                let path = self.path(&Args::new(path), 0, None)?;
                let mode = 0o777 & !self.umask;
                Ok(path.map(|path| Call::MakeSocket { path, mode }))
            }
            "chmod" | "fchmod" | "fchmodat" | "fchmodat2" => {
                let (target, at) = match name {
                    "chmod" => (self.path(args, 0, None)?.map(Target::Path), 1),
                    "fchmod" => (opened(self, 0).map(|file| Target::File(file.handle)), 1),
                    _ => (self.path(args, 1, args.folder(0))?.map(Target::Path), 2),
                };
                let mode = octal(args.text(at)).ok_or("no mode")?;
                Ok(target.map(|target| Call::SetMode { target, mode }))
            }
            "utimensat" => {
                let target = match self.path(args, 1, args.folder(0))? {
                    Some(path) => Some(Target::Path(path)),
                    None => opened(self, 0).map(|file| Target::File(file.handle)),
                };
                let Some(target) = target else {
                    return Ok(None);
                };
                let time = modified(args.all)?;
                Ok(Some(Call::SetModified { target, time }))
            }
            "chdir" | "fchdir" => Err("another current folder".into()),
            "umask" => {
                self.umask = octal(args.text(0)).ok_or("no umask")?;
                Ok(None)
            }
            _ if HARMLESS.contains(&name) => Ok(None),
            _ if args.all.contains(&self.hidden_root) => Err(format!("{name} is unknown")),
            _ => Ok(None),
        }
    }

    fn open(
        &mut self,
        args: &Args<'_>,
        at: usize,
        folder: Option<String>,
        result: i64,
        thread: &str,
    ) -> Result<Option<Call>, String> {
        self.files(thread).remove(&result);
        let Some(path) = self.path(args, at, folder)? else {
            let text = args.text(at).trim_matches('"');
            let path = String::from_utf8(unhexed(text)?).map_err(|error| error.to_string())?;
            let file = OpenFile {
                handle: 0,
                offset: 0,
                appends: false,
                is_inherited: false,
                elsewhere: Some(path.into()),
                path: String::new(),
            };
            self.files(thread).insert(result, file);
            return Ok(None);
        };
        let flags = args.text(at + 1);
        let has = |flag: &str| flags.split('|').any(|one| one == flag);
        if has("O_TMPFILE") || has("O_PATH") {
            return Err("a file without a name, or a name without a file".into());
        }
        self.handles += 1;
        let handle = self.handles;
        let appends = has("O_APPEND");
        let offset = 0;
        let file = OpenFile {
            handle,
            offset,
            appends,
            is_inherited: !has("O_CLOEXEC"),
            elsewhere: None,
            path: path.clone(),
        };
        self.files(thread).insert(result, file);
        let mode = has("O_CREAT").then(|| octal(args.text(at + 2)).ok_or("no mode"));
        Ok(Some(Call::Open {
            path,
            file: handle,
            create: mode.transpose()?.map(|mode| mode & !self.umask),
            truncate: has("O_TRUNC"),
        }))
    }

    fn copy(
        &mut self,
        args: &Args<'_>,
        length: usize,
        thread: &str,
    ) -> Result<Option<Call>, String> {
        let file = |reader: &mut Self, at| {
            let number = args.number(at)?;
            reader.files(thread).get(&number).cloned()
        };
        let (from, to) = (file(self, 0), file(self, 2));
        let to = to.filter(|to| length > 0 && to.elsewhere.is_none());
        let Some(to) = to else {
            return Ok(None);
        };
        let from = from.ok_or("a copy from an unknown file")?;
        if args.text(1) != "NULL" || args.text(3) != "NULL" {
            return Err("a copy with offsets".into());
        }
        let numbers = [args.number(0), args.number(2)];
        for number in numbers.into_iter().flatten() {
            if let Some(file) = self.files(thread).get_mut(&number) {
                file.offset += length;
            }
        }
        if let Some(path) = &from.elsewhere {
            // It is as it was: a test changes no file that a program copies.
            let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
            let bytes = bytes
                .get(from.offset..from.offset + length)
                .ok_or("a shorter file")?;
            return Ok(Some(Call::Write {
                file: to.handle,
                at: Some(to.offset),
                bytes: bytes.to_vec(),
            }));
        }
        Ok(Some(Call::Copy {
            from: from.handle,
            from_at: from.offset,
            to: to.handle,
            at: to.offset,
            length,
        }))
    }

    fn duplicate(&mut self, args: &Args<'_>, result: i64, thread: &str, is_inherited: bool) {
        let number = args.number(0);
        let files = self.files(thread);
        files.remove(&result);
        if let Some(file) = number.and_then(|number| files.get(&number)).cloned() {
            let file = OpenFile {
                is_inherited,
                ..file
            };
            files.insert(result, file);
        }
    }

    /// Changes every number of an opening.
    fn each_of(&mut self, thread: &str, handle: Handle, change: impl Fn(&mut OpenFile)) {
        let files = self.files(thread).values_mut();
        files.filter(|file| file.handle == handle).for_each(change);
    }

    fn move_on(&mut self, thread: &str, handle: Handle, bytes: usize) {
        self.each_of(thread, handle, |file| file.offset += bytes);
    }

    fn folder(&self, path: String, mode: &str) -> Call {
        let mode = octal(mode).unwrap_or(0o777) & !self.umask;
        Call::MakeFolder { path, mode }
    }

    /// Returns a path that goes through a number of an open file as one that does not.
    fn without_handle(&self, path: String) -> String {
        let through = path.strip_prefix("/proc/self/fd/");
        let found = through.and_then(|through| {
            let (number, rest) = through.split_once('/').unwrap_or((through, ""));
            let files = self.tables.get(&self.process)?;
            let file = files.get(&number.parse().ok()?)?;
            let is_ours = file.elsewhere.is_none();
            is_ours.then(|| format!("{}/{}/{rest}", self.root, file.path))
        });
        found.unwrap_or(path)
    }

    /// Returns the path in an argument, relative to the folder; `None` if it is elsewhere, or no path.
    fn path(
        &self,
        args: &Args<'_>,
        at: usize,
        folder: Option<String>,
    ) -> Result<Option<String>, String> {
        let text = args.text(at);
        if !text.starts_with('"') {
            return Ok(None);
        }
        let path = String::from_utf8(unhexed(text.trim_matches('"'))?)
            .map_err(|error| error.to_string())?;
        let path = if path.starts_with('/') {
            path
        } else {
            // Relative to the current folder, which is never the recorded one, if no other is named.
            match folder {
                Some(folder) => format!("{folder}/{path}"),
                None => return Ok(None),
            }
        };
        let path = self.without_handle(path);
        let rest = path.strip_prefix(&self.root);
        let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let parts = rest.map(|rest| {
            rest.split('/')
                .filter(|part| !part.is_empty() && *part != ".")
        });
        Ok(parts.map(|parts| parts.collect::<Vec<_>>().join("/")))
    }
}

/// Returns the call for two names that are both in the folder.
fn change_of_names(
    name: &str,
    from: Option<String>,
    to: Option<String>,
) -> Result<Option<Call>, String> {
    match (from, to) {
        (None, None) => Ok(None),
        (Some(from), Some(to)) if name.starts_with("link") => Ok(Some(Call::Link { from, to })),
        (Some(from), Some(to)) => Ok(Some(Call::Rename { from, to })),
        _ => Err("a name that comes from elsewhere, or goes there".into()),
    }
}

/// The arguments of a call, as strace writes them.
struct Args<'a> {
    all: &'a str,
    each: Vec<&'a str>,
}

impl<'a> Args<'a> {
    fn new(all: &'a str) -> Self {
        let (mut each, mut from, mut depth, mut quoted) = (vec![], 0, 0, false);
        for (at, byte) in all.bytes().enumerate() {
            match byte {
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'[' | b'{' | b'(' => depth += 1,
                b']' | b'}' | b')' => depth -= 1,
                b',' if depth == 0 => {
                    each.push(all[from..at].trim());
                    from = at + 1;
                }
                _ => {}
            }
        }
        each.push(all[from..].trim());
        Self { all, each }
    }

    fn text(&self, at: usize) -> &'a str {
        self.each.get(at).copied().unwrap_or("")
    }

    fn number(&self, at: usize) -> Option<i64> {
        number_of(self.text(at))
    }

    fn last_number(&self) -> Option<i64> {
        number_of(self.each.last()?)
    }

    /// Returns how many bytes a write is given.
    fn count(&self) -> Option<i64> {
        self.number(2)
    }

    /// Returns the folder that a number or the current one stands for.
    fn folder(&self, at: usize) -> Option<String> {
        let (_, path) = self.text(at).split_once('<')?;
        let path = path.split('>').next().unwrap_or_default();
        String::from_utf8(unhexed(path).ok()?).ok()
    }

    /// Returns the bytes of all strings from an argument on.
    fn strings(&self, at: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![];
        for text in self.each.iter().skip(at) {
            for (index, part) in text.split('"').enumerate() {
                if index % 2 == 1 {
                    bytes.extend(unhexed(part)?);
                } else if part.contains("...") {
                    return Err("a string that is cut".into());
                }
            }
        }
        Ok(bytes)
    }
}

/// Returns whether a call writes one run of bytes.
fn is_write(name: &str) -> bool {
    matches!(name, "write" | "pwrite64")
}

/// Returns the number that a text begins with.
fn number_of(text: &str) -> Option<i64> {
    let end = text
        .char_indices()
        .find(|(at, letter)| !(letter.is_ascii_digit() || (*at == 0 && *letter == '-')));
    text[..end.map_or(text.len(), |(at, _)| at)].parse().ok()
}

/// Returns the permissions that an octal number gives; a program may add the kind of file.
fn octal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().map(|mode| mode & 0o7777)
}

/// Returns the port of the peer of a TCP socket in an argument.
fn peer_port(args: &str) -> Option<u16> {
    let (_, socket) = args.split_once('<')?;
    let socket = socket.strip_prefix("TCP")?;
    let (_, peer) = socket.split_once("->")?;
    let (peer, _) = peer.split_once(']')?;
    peer.rsplit_once(':')?.1.parse().ok()
}

/// Returns the time of modification that a call of `utimensat` sets.
fn modified(args: &str) -> Result<Option<(i64, u32)>, String> {
    let (_, times) = args.split_once('[').ok_or("no times")?;
    let second = if let Some(rest) = times.strip_prefix("UTIME_OMIT, ") {
        rest
    } else if let Some((_, rest)) = times.split_once("*/, ") {
        rest
    } else {
        return Err("times in an unknown form".into());
    };
    if second.starts_with("UTIME_NOW") {
        return Ok(None);
    }
    let field = |name: &str| {
        let (_, value) = second.split_once(name)?;
        number_of(value)
    };
    let (seconds, nanos) = field("tv_sec=").zip(field("tv_nsec=")).ok_or("no time")?;
    Ok(Some((
        seconds,
        u32::try_from(nanos).map_err(|error| error.to_string())?,
    )))
}

/// Returns a text as strace writes it with `-xx`.
fn hexed(text: &str) -> String {
    text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// Returns the bytes that strace wrote with `-xx`; other text stands for itself.
fn unhexed(text: &str) -> Result<Vec<u8>, String> {
    if !text.starts_with("\\x") {
        return Ok(text.as_bytes().to_vec());
    }
    let (pieces, rest) = text.as_bytes().as_chunks::<4>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |piece: &[u8; 4]| {
        let value = digit(piece[2])? * 16 + digit(piece[3])?;
        u8::try_from(value).ok()
    };
    let bytes: Option<Vec<u8>> = pieces.iter().map(byte).collect();
    bytes
        .filter(|_| rest.is_empty())
        .ok_or_else(|| "a string in an unknown form".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a trace of a process that ends within a write of `ab`, shown as `bytes` and with this result.
    fn ends_within_a_write(bytes: &str, result: &str) -> Result<Trace, String> {
        let hidden = hexed("/r/f");
        let text = format!(
            "1 openat(AT_FDCWD<{}>, \"{hidden}\", O_WRONLY|O_CREAT|O_CLOEXEC, 0644) = 3<{hidden}>\n\
             1 pwrite64(3<{hidden}>, {bytes}, 2, 5) = {result}\n\
             1 +++ killed by SIGKILL +++\n",
            hexed("/"),
        );
        parse(&text, "/r", 0o022, 1)
    }

    /// Goal: a write within which a process was killed is kept apart: it was done, or was not. So is one whose
    /// result cannot be. Without its bytes, nobody knows what it wrote, and the recording is refused.
    #[test]
    fn a_call_that_a_kill_cuts_off_may_be_done() {
        let shown = format!("\"{}\"", hexed("ab"));
        is_kept_apart(&ends_within_a_write(&shown, "?").unwrap());
        is_kept_apart(&ends_within_a_write(&shown, "? <unavailable>").unwrap());
        is_kept_apart(&ends_within_a_write(&shown, "0").unwrap());
        is_kept_apart(&ends_within_a_write(&shown, "-1 (errno 18446744073709551598)").unwrap());
        assert!(ends_within_a_write("0x7ffc00", "?").is_err());
        assert!(ends_within_a_write("0x7ffc00", "0").is_err());
    }

    #[track_caller]
    fn is_kept_apart(trace: &Trace) {
        assert_eq!(trace.operations.len(), 1, "{:?}", trace.operations);
        let [cut] = &trace.cut_off[..] else {
            panic!("{:?}", trace.cut_off)
        };
        let Call::Write { at, bytes, .. } = &cut.call else {
            panic!("{cut:?}")
        };
        assert_eq!((*at, &bytes[..]), (Some(5), &b"ab"[..]));
    }
}
