//! The queue behind `--queue`: a file of this process, or PostgreSQL.
//!
//! Shell: the queue's file, or PostgreSQL.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use simplefeed_queue::{Clock, QueueError, postgres::Postgres, redb::Redb};
use tokio::time::Instant;

/// Longest time for which `status` and the other questions hold a file without a worker.
pub(super) const MOMENT: Duration = Duration::from_secs(3);

/// Queue of `--queue`, opened by this process.
pub(super) enum Keeper {
    /// A file, which belongs to this process now.
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
                // A command holds the file for a moment; a worker that holds the file for longer is
                // the error.
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
