//! A PostgreSQL of the test's own, on loopback.
//!
//! Shell: processes.

use std::{
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::harness::{free_address, signal, wait_for};

/// A PostgreSQL with a database. It ends with this value.
pub(crate) struct Postgres {
    folder: TempDir,
    port: String,
    child: Child,
}

/// Returns a program of the newest PostgreSQL, which Debian puts into a folder for its version.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let programs = versions
        .into_iter()
        .flatten()
        .flatten()
        .map(|item| item.path().join("bin").join(name));
    let newest = programs.filter(|path| path.exists()).max();
    newest.unwrap_or_else(|| panic!("{name} is missing: apt-get install postgresql"))
}

/// The user and group of PostgreSQL, if the test may become them: PostgreSQL refuses to run as root.
fn user() -> Option<(u32, u32)> {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2).map(|field| field.parse().unwrap());
    Some((fields.next()?, fields.next()?))
}

fn command(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(program(name));
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn spawn(folder: &Path, port: &str) -> Child {
    let mut server = command("postgres", folder);
    server.args(["-D", "data", "-k", "", "-c", "listen_addresses=127.0.0.1"]);
    server.args(["-p", port]).spawn().unwrap()
}

impl Postgres {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        if let Some((user, group)) = user() {
            std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let mut init = command("initdb", folder.path());
        init.args(["-A", "trust", "-U", "postgres", "-D", "data"]);
        assert!(init.status().unwrap().success());
        let address = free_address();
        let port = address.rsplit(':').next().unwrap().to_owned();
        let child = spawn(folder.path(), &port);
        let server = Self {
            folder,
            port,
            child,
        };
        server.wait();
        server
    }

    /// Ends it at once, and starts it again.
    pub(crate) fn restart(&mut self) {
        signal("QUIT", self.child.id());
        self.child.wait().unwrap();
        self.child = spawn(self.folder.path(), &self.port);
        self.wait();
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    fn wait(&self) {
        wait_for("PostgreSQL is not ready", || {
            let mut ready = command("pg_isready", self.folder.path());
            ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port]);
            ready.status().unwrap().success().then_some(())
        });
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // At once, but not by SIGKILL, which leaves shared memory behind.
        signal("QUIT", self.child.id());
        self.child.wait().unwrap();
    }
}
