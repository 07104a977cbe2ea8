//! The queue behind `--queue`: a file of this process, or PostgreSQL.
//!
//! Shell: the queue's file, or PostgreSQL.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use simplefeed_queue::{Clock, QueueError, postgres::Postgres, redb::Redb};
use tokio::time::Instant;

/// Time for which a process waits for a file that another process has open. `status` and the other
/// questions hold the file for less time.
pub(super) const MOMENT: Duration = Duration::from_secs(3);

/// Queue of `--queue`, opened by this process.
pub(super) enum Keeper {
    /// A file that only this process has open, and the path of the file.
    File(Redb, PathBuf),
    Postgres(Postgres),
}

/// Returns whether the text is the URL of a PostgreSQL.
pub(super) fn is_postgres(queue: &str) -> bool {
    queue.starts_with("postgres://") || queue.starts_with("postgresql://")
}

impl Keeper {
    /// Opens a queue, or makes a new one.
    pub(super) async fn open(queue: &str) -> Result<Self, QueueError> {
        if is_postgres(queue) {
            return Postgres::open(queue, Clock::Real).await.map(Self::Postgres);
        }
        let path = PathBuf::from(queue);
        let opened = Redb::open(&path, Clock::Real)?;
        Ok(Self::File(opened, path))
    }

    /// Opens a queue to work on. Another command may have the file for a moment.
    pub(super) async fn open_for_work(queue: &str) -> Result<Self, QueueError> {
        let began = Instant::now();
        loop {
            match Self::open(queue).await {
                // A question has the file for a moment. If the file stays in use, a worker has the
                // file, which is an error.
                Err(QueueError::InUse(_)) if began.elapsed() < MOMENT => {
                    tokio::time::sleep(MOMENT / 20).await;
                }
                opened => return opened,
            }
        }
    }
}

/// Returns the path of the socket at which the process with the file answers.
pub(super) fn socket_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".sock");
    name.into()
}
