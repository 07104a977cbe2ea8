//! A PostgreSQL of the test's own, on loopback.

use std::{process::Child, time::Duration};

use simplefeed_queue::{
    Due, Existing, Manual, Namespace, NewJob, Queue as _, TakeOutcome, Want, postgres::Postgres,
};
use tempfile::TempDir;

use crate::{
    at, beginning,
    installed::{command, make_cluster},
};

/// A running PostgreSQL, which ends with this value.
pub(crate) struct Server {
    child: Child,
    _folder: TempDir,
    port: u16,
}

impl Server {
    /// Starts one in a new folder.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_cluster(folder.path());
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
        self.open(schema, clock).await
    }

    /// Opens the queue of a schema, as one more process does.
    async fn open(&self, schema: &str, clock: &Manual) -> Postgres {
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

/// A job that another process puts before those that were leased last is leased at the next poll, at the latest.
#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn postgres_passes_no_job_for_long() {
    let server = Server::start().await;
    let clock = Manual::new(beginning());
    let ours = server.queue("passed", &clock).await;
    let theirs = server.open("passed", &clock).await;
    let name = Namespace::new("things").unwrap();
    let job = |key: &str, due| NewJob::new(&name, key, Due::At(at(due)));
    let want = Want {
        max: 1,
        buffer: Duration::ZERO,
        lease: Duration::from_mins(1),
    };
    let take = async || match ours.take(&name, want).await.unwrap() {
        TakeOutcome::Leased(leases) => leases[0].job.key.clone(),
        TakeOutcome::Wait { .. } => panic!("no job"),
    };
    let jobs = ["a", "b", "c", "d"].map(|key| job(key, -10));
    ours.schedule(jobs.to_vec(), Existing::Keep).await.unwrap();
    assert_eq!(take().await, "a");
    let early = vec![job("early", -20)];
    theirs.schedule(early, Existing::Keep).await.unwrap();
    clock.advance(ours.poll());
    assert_eq!(take().await, "early");
    // One of our own is seen at once.
    let early = vec![job("earlier", -30)];
    ours.schedule(early, Existing::Keep).await.unwrap();
    assert_eq!(take().await, "earlier");
}
