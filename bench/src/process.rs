//! Programs under measurement, and what they use.
//!
//! Shell: processes and `/proc`. Every program gets a port on loopback and a folder of its own. The
//! folders are removed at the end and not before: ext4 without a journal searches for an inode longer the
//! more were given back in the last minutes, and that would be measured, too.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

/// How often a program is looked at until it is ready: a minute long.
const START_LOOKS: u32 = 3_000;

/// An address on loopback whose port is chosen by the system.
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";

/// A started program. It is ended when dropped.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    /// Where it listens: `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Program {
    /// Starts our server on a data folder.
    pub(crate) fn simplefeed(data: &Path) -> anyhow::Result<Self> {
        Self::simplefeed_at(ANY_PORT, data, &[])
    }

    /// Starts our server on an address, with more arguments.
    pub(crate) fn simplefeed_at(address: &str, data: &Path, more: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(release_program("simplefeed-server")?);
        command
            .args(["--log", "error", "serve", "--listen", address])
            .arg("--data")
            .arg(data)
            .args(more);
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().context("its stderr is a pipe")?;
        let mut said = String::new();
        let mut lines = BufReader::new(stderr).lines();
        while let Some(line) = lines.next() {
            let line = line?;
            if let Some(address) = line.strip_prefix("listening on http://") {
                let address = address.to_owned();
                // A server that says something has a fault, which would be looked for elsewhere.
                thread::spawn(move || {
                    lines
                        .map_while(Result::ok)
                        .filter(|line| !line.starts_with("metrics on"))
                        .for_each(|line| eprintln!("server: {line}"));
                });
                return Ok(Self { child, address });
            }
            said = said + "\n" + &line;
        }
        bail!("the server did not start:{said}")
    }

    /// Starts nginx, one worker per core, with a server block.
    pub(crate) fn nginx(folder: &Path, server: &str) -> anyhow::Result<Self> {
        let program = installed("nginx", "nginx-light")?;
        let port = free_port()?;
        let config = format!(
            "daemon off; worker_processes auto; pid {0}/pid; error_log {0}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 100000000; sendfile on; tcp_nopush on;\n\
             open_file_cache max=1000; types {{ application/atom+xml atom; }}\n\
             client_body_temp_path {0}; proxy_temp_path {0}; fastcgi_temp_path {0}; uwsgi_temp_path {0}; scgi_temp_path {0};\n\
             server {{ listen 127.0.0.1:{port}; {server} }} }}\n",
            folder.display()
        );
        let path = folder.join("nginx.conf");
        fs::write(&path, config)?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&path).arg("-p").arg(folder);
        Self::started(command, port, |address| TcpStream::connect(address).is_ok())
    }

    /// Starts Redis without any file, as a cache.
    pub(crate) fn redis_in_memory(folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(installed("redis-server", "redis-server")?);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--appendonly", "no", "--save", "", "--dir"]);
        command.arg(folder).stdout(Stdio::null());
        Self::started(command, port, |address| answers_ping(address).is_ok())
    }

    /// Starts Redis, which syncs every command before it answers.
    pub(crate) fn redis(folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(installed("redis-server", "redis-server")?);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
        ]);
        // It would be measured with whoever comes next.
        command.args(["--auto-aof-rewrite-percentage", "0"]);
        command.arg("--dir").arg(folder).stdout(Stdio::null());
        Self::started(command, port, |address| answers_ping(address).is_ok())
    }

    /// Starts beanstalkd, which syncs every write to a file before it answers.
    pub(crate) fn beanstalkd(folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let binlog = folder.join("binlog");
        fs::create_dir(&binlog)?;
        let mut command = Command::new(installed("beanstalkd", "beanstalkd")?);
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-f", "0", "-b"]);
        command.arg(binlog);
        Self::started(command, port, |address| TcpStream::connect(address).is_ok())
    }

    /// Starts NATS.
    pub(crate) fn nats(folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(installed("nats-server", "nats-server")?);
        command.args(["-a", "127.0.0.1", "-p", &port.to_string()]);
        command.current_dir(folder).stdout(Stdio::null());
        Self::started(command, port, |address| TcpStream::connect(address).is_ok())
    }

    /// Starts chromedriver, which starts Chromium.
    pub(crate) fn chromedriver(folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(installed("chromedriver", "chromium-driver")?);
        command.arg(format!("--port={port}")).current_dir(folder);
        command.stdout(Stdio::null());
        Self::started(command, port, |address| TcpStream::connect(address).is_ok())
    }

    /// Starts PostgreSQL as Debian configures it, which syncs every commit before it answers.
    pub(crate) fn postgres(folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let data = folder.join("data");
        // It refuses to run as root, so it runs as the user that its package has made.
        let user = user_of_postgres();
        if let Some((user, group)) = user {
            std::os::unix::fs::chown(folder, Some(user), Some(group))?;
            fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        }
        let command = |name: &str| -> anyhow::Result<Command> {
            let mut command = Command::new(postgres_program(name)?);
            if let Some((user, group)) = user {
                command.uid(user).gid(group);
            }
            command.current_dir(folder).stdout(Stdio::null());
            Ok(command)
        };
        let mut init = command("initdb")?;
        init.args(["-A", "trust", "-U", "postgres", "-D"])
            .arg(&data);
        if !init.status()?.success() {
            bail!("initdb failed");
        }
        let mut server = command("postgres")?;
        server.arg("-D").arg(&data).arg("-k").arg(folder);
        server.args([
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "max_connections=300",
        ]);
        server.args(["-p", &port.to_string()]);
        let mut ask = Command::new(postgres_program("pg_isready")?);
        ask.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
        Self::started(server, port, |_| {
            ask.status().is_ok_and(|status| status.success())
        })
    }

    /// Starts a program, and waits until it is ready: one that listens may still refuse everything.
    fn started(
        mut command: Command,
        port: u16,
        mut is_ready: impl FnMut(&str) -> bool,
    ) -> anyhow::Result<Self> {
        let child = command.stderr(Stdio::null()).spawn()?;
        let address = format!("127.0.0.1:{port}");
        let mut program = Self { child, address };
        let name = command.get_program().display();
        for _ in 0..START_LOOKS {
            if let Some(status) = program.child.try_wait()? {
                bail!("{name} ended at its start: {status}");
            }
            if is_ready(&program.address) {
                return Ok(program);
            }
            thread::park_timeout(Duration::from_millis(20));
        }
        bail!("{name} was not ready in a minute")
    }

    /// Returns the port it listens on.
    pub(crate) fn port(&self) -> &str {
        self.address.rsplit(':').next().unwrap_or_default()
    }

    /// Returns the CPU time used so far by the program and its children, in microseconds.
    pub(crate) fn cpu_micros(&self) -> anyhow::Result<f64> {
        let own = self.child.id();
        let mut ticks = 0.0;
        for item in fs::read_dir("/proc")? {
            let Ok(id) = item?.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let Some(stat) = Stat::of(id) else { continue };
            if id == own {
                // Children that have ended are counted here.
                ticks += stat.ticks + stat.ticks_of_ended;
            } else if stat.parent == Some(own) {
                ticks += stat.ticks;
            }
        }
        Ok(ticks * TICK_MICROS)
    }

    /// Returns whether a thread of this name is running.
    pub(crate) fn has_thread(&self, thread: &str) -> anyhow::Result<bool> {
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may end meanwhile.
            let name = fs::read_to_string(task?.path().join("comm"));
            if name.is_ok_and(|name| name.trim() == thread) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the CPU time used so far by the running threads of a name, in microseconds.
    pub(crate) fn cpu_micros_of(&self, thread: &str) -> anyhow::Result<f64> {
        let (mut micros, mut is_found) = (0.0, false);
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm"))?.trim() == thread {
                let times = fs::read_to_string(task.join("schedstat"))?;
                let nanos = times.split(' ').next().context("a thread has times")?;
                micros += nanos.parse::<f64>()? / 1e3;
                is_found = true;
            }
        }
        ensure!(is_found, "there is no thread {thread}");
        Ok(micros)
    }

    /// Returns the memory the program has, in MiB.
    pub(crate) fn memory_mib(&self) -> anyhow::Result<f64> {
        memory_mib(self.child.id(), "VmRSS:").context("a running program has memory")
    }

    /// Stops all threads of the program until [`resume`](Self::resume). Its clock goes on.
    pub(crate) fn pause(&self) -> anyhow::Result<()> {
        self.signal("STOP")
    }

    /// Lets a paused program go on.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.signal("CONT")
    }

    fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let command = format!("kill -{signal} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &command]).status()?;
        ensure!(status.success(), "a program got no {signal}");
        Ok(())
    }

    /// Ends the program in order.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        if !self.has_stopped() {
            bail!("a program did not end in a minute");
        }
        Ok(())
    }

    /// Asks the program to end. Returns whether it has, after a minute at most.
    fn has_stopped(&mut self) -> bool {
        // A paused program handles SIGINT only after SIGCONT.
        let asked = self.signal("INT").and_then(|()| self.resume());
        let patience = if asked.is_ok() { 6_000 } else { 0 };
        (0..patience).any(|_| {
            thread::park_timeout(Duration::from_millis(10));
            matches!(self.child.try_wait(), Ok(Some(_)))
        })
    }

    /// Ends the program as a power cut would.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) || self.has_stopped() {
            return;
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Asks Redis whether it is ready: while it loads its log it answers with an error.
fn answers_ping(address: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    if answer == *b"+PONG" {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// A folder for a measurement. Removed when dropped.
pub(crate) struct Folder(TempDir);

/// Header fields that nginx gives a file by itself.
const OWN_FIELDS: [&str; 7] = [
    "vary",
    "etag",
    "last-modified",
    "date",
    "content-type",
    "content-length",
    "content-encoding",
];

/// Returns the lines of nginx's configuration that give its answers the header fields of an answer of ours.
pub(crate) fn same_fields(head: &str) -> String {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let missing = fields.filter(|(name, _)| !OWN_FIELDS.contains(name));
    let lines = missing.map(|(name, value)| {
        // nginx takes `$` for the beginning of a variable.
        assert!(!value.contains('$'), "{name}: {value}");
        format!(" add_header {name} {value:?};")
    });
    lines.collect()
}

/// Returns a folder for a measurement, beside the programs: what is in `/tmp` may be in memory.
pub(crate) fn folder() -> anyhow::Result<Folder> {
    let programs = std::env::current_exe()?;
    let beside = programs.parent().context("a program is in a folder")?;
    let folder = tempfile::Builder::new()
        .prefix("bench-")
        .tempdir_in(beside)?;
    Ok(Folder(folder))
}

impl Folder {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    /// Removes several files at a time: where the file system discards freed blocks at once, each removal
    /// waits for the disk. (The 300,000 files of 10 million entries took a minute and a half.)
    fn drop(&mut self) {
        const AT_A_TIME: usize = 8;
        let files = files_below(self.path()).unwrap_or_default();
        thread::scope(|threads| {
            for part in files.chunks(files.len().div_ceil(AT_A_TIME).max(1)) {
                threads.spawn(move || part.iter().map(fs::remove_file).for_each(drop));
            }
        });
    }
}

fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = vec![];
    for item in fs::read_dir(folder)? {
        let item = item?;
        if item.file_type()?.is_dir() {
            files.extend(files_below(&item.path())?);
        } else {
            files.push(item.path());
        }
    }
    Ok(files)
}

const TICK_MICROS: f64 = 10_000.0;

/// Some of what `/proc/PID/stat` says.
struct Stat {
    parent: Option<u32>,
    ticks: f64,
    ticks_of_ended: f64,
}

impl Stat {
    fn of(id: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name in parentheses may hold anything; what follows it does not.
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<f64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok(),
            ticks: number(11)? + number(12)?,
            ticks_of_ended: number(13)? + number(14)?,
        })
    }
}

pub(crate) fn memory_mib(id: u32, field: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

/// What a command that ran to its end has used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) memory_mib: f64,
}

/// Runs a command to its end, its output thrown away.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<Used> {
    let own = || Stat::of(std::process::id()).map_or(0.0, |stat| stat.ticks_of_ended);
    let (before, began) = (own(), std::time::Instant::now());
    let mut child = command.stdout(Stdio::null()).spawn()?;
    let mut memory = 0.0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        memory = memory_mib(child.id(), "VmHWM:").unwrap_or(0.0).max(memory);
        thread::park_timeout(Duration::from_millis(2));
    };
    if !status.success() {
        bail!("{} failed: {status}", command.get_program().display());
    }
    Ok(Used {
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: (own() - before) * TICK_MICROS / 1e6,
        memory_mib: memory,
    })
}

/// Returns a program built beside this one.
pub(crate) fn release_program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if cfg!(debug_assertions) || !path.exists() {
        bail!(
            "build everything first: cargo build --release; then run target/release/simplefeed-bench"
        );
    }
    Ok(path)
}

/// Returns a program of the system, or says which package has it.
pub(crate) fn installed(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin"];
    let mut paths = folders.iter().map(|folder| Path::new(folder).join(name));
    let found = paths.find(|path| path.exists());
    found.with_context(|| format!("{name} is missing: apt-get install {package}"))
}

/// Returns a program of the newest PostgreSQL, which Debian puts into a folder for its version.
pub(crate) fn postgres_program(name: &str) -> anyhow::Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let programs = versions
        .flatten()
        .map(|item| item.path().join("bin").join(name));
    let newest = programs.filter(|path| path.exists()).max();
    newest.with_context(|| format!("{name} is missing: apt-get install postgresql"))
}

/// The user and group of PostgreSQL, if we may become them.
fn user_of_postgres() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2).map(str::parse);
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt as _;
        own.uid() == 0
    });
    let user = (fields.next()?.ok()?, fields.next()?.ok()?);
    is_root.then_some(user)
}

/// A port that was free a moment ago: what is started later cannot say which one it got.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
