//! A way out of a flush that sled forgets about.
//!
//! Shell: a thread beside the log. Where one of sled's own threads cannot write, the error is noted,
//! but not everybody who waits is woken (sled 0.34, `exit_reservation`). Whoever flushes after that finds
//! the error and wakes all, so a flush that takes long is followed by another one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use sled::Db;
use tracing::warn;

/// How long a flush may take before it is looked after.
const PATIENCE: Duration = Duration::from_secs(1);

/// Flushes a database, and returns the error if that fails, whatever sled does.
#[derive(Debug)]
pub(super) struct Flusher {
    /// Counts beginnings and ends: odd while a flush is under way.
    turns: Arc<AtomicU64>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Flusher {
    /// Starts the thread.
    pub(super) fn new(db: &Db) -> std::io::Result<Self> {
        let turns = Arc::new(AtomicU64::new(0));
        let (end, ended) = channel();
        let (db, watched) = (db.clone(), Arc::clone(&turns));
        let thread = std::thread::Builder::new()
            .name("nudge".into())
            .spawn(move || nudge(&db, &watched, &ended))?;
        Ok(Self {
            turns,
            thread: Some((end, thread)),
        })
    }

    /// Writes everything that was stored to the file system, which may keep it in memory.
    pub(super) fn flush(&self, db: &Db) -> sled::Result<()> {
        self.turns.fetch_add(1, Ordering::AcqRel);
        let flushed = db.flush();
        self.turns.fetch_add(1, Ordering::AcqRel);
        flushed.map(drop)
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        // The database can only be closed once the thread has let go of it.
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            drop(thread.join());
        }
    }
}

fn nudge(db: &Db, turns: &AtomicU64, ended: &Receiver<()>) {
    let mut before = 0;
    while ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        let now = turns.load(Ordering::Acquire);
        if now == before && !now.is_multiple_of(2) {
            warn!("a flush takes long");
            let db = db.clone();
            // It may come to wait, too; the next one then wakes both.
            std::thread::spawn(move || drop(db.flush()));
        }
        before = now;
    }
}
