//! A PostgreSQL of the test's own, on loopback.
//!
//! Shell: processes.

use std::{path::Path, process::Child};

use tempfile::TempDir;

use crate::{
    harness::{free_address, signal, wait_for},
    installed::{command, make_cluster},
};

/// A PostgreSQL with a database. It ends with this value.
pub(crate) struct Postgres {
    folder: TempDir,
    port: String,
    child: Child,
}

fn spawn(folder: &Path, port: &str) -> Child {
    let mut server = command("postgres", folder);
    server.args(["-D", "data", "-k", "", "-c", "listen_addresses=127.0.0.1"]);
    server.args(["-p", port]).spawn().unwrap()
}

impl Postgres {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_cluster(folder.path());
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

    /// Makes a user that needs a password. Returns the URL of its database, without the password.
    pub(crate) fn protect(&self, user: &str, password: &str) -> String {
        let rules = self.folder.path().join("data/pg_hba.conf");
        let trust = std::fs::read_to_string(&rules).unwrap();
        std::fs::write(
            &rules,
            format!("host all {user} all scram-sha-256\n{trust}"),
        )
        .unwrap();
        let mut make = command("psql", self.folder.path());
        make.args(["-q", "-d", &self.url(), "-c"]);
        make.arg(format!("CREATE ROLE {user} LOGIN PASSWORD '{password}'"));
        make.args(["-c", &format!("CREATE DATABASE {user} OWNER {user}")]);
        make.args(["-c", "SELECT pg_reload_conf()"]);
        assert!(make.status().unwrap().success());
        format!("postgres://{user}@127.0.0.1:{}/{user}", self.port)
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
