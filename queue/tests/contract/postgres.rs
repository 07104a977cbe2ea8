//! A PostgreSQL of the test's own, on loopback.

use std::{
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use simplefeed_queue::{Manual, postgres::Postgres};
use tempfile::TempDir;

/// A running PostgreSQL, which ends with this value.
pub(crate) struct Server {
    child: Child,
    _folder: TempDir,
    port: u16,
}

/// Returns a program of the newest PostgreSQL, which Debian puts into a folder for its version.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let programs = versions
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

impl Server {
    /// Starts one in a new folder.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        if let Some((user, group)) = user() {
            std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let mut init = command("initdb", folder.path());
        init.args(["-A", "trust", "-U", "postgres", "-D", "data"]);
        assert!(init.status().unwrap().success());
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut server = command("postgres", folder.path());
        server.args(["-D", "data", "-k", "", "-c", "listen_addresses=127.0.0.1"]);
        // What the contract promises does not depend on the disk; `fsync=off` makes the tests quicker.
        server.args(["-c", "fsync=off", "-p", &port.to_string()]);
        let child = server.spawn().unwrap();
        let server = Self {
            child,
            _folder: folder,
            port,
        };
        while !server.answers().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns whether a query works: one that starts accepts connections before.
    async fn answers(&self) -> bool {
        let Ok((client, connection)) =
            tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await
        else {
            return false;
        };
        let connection = tokio::spawn(connection);
        let answer = client.batch_execute("SELECT 1").await;
        connection.abort();
        answer.is_ok()
    }

    /// Does something in the database.
    pub(crate) async fn execute(&self, statement: &str) {
        let (client, connection) = tokio_postgres::connect(&self.url(), tokio_postgres::NoTls)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(statement).await.unwrap();
        connection.abort();
    }

    /// Returns a new queue in a schema of its own.
    pub(crate) async fn queue(&self, schema: &str, clock: &Manual) -> Postgres {
        self.execute(&format!("CREATE SCHEMA {schema}")).await;
        let url = format!("{}?options=-csearch_path%3D{schema}", self.url());
        Postgres::open(&url, clock.clone().into()).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // At once, but not by SIGKILL, which leaves shared memory behind.
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::QUIT).unwrap();
        self.child.wait().unwrap();
    }
}

/// All cases, each in a schema of its own.
#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn postgres_keeps_the_contract() {
    let server = Server::start().await;
    crate::all_cases(&server).await;
}
