//! Threads that answer connections, one for each processor.
//!
//! Shell: threads. Each has a runtime of its own, and a connection stays where it was put: a request wakes one thread,
//! and no work is moved between processors. A new connection goes where the fewest are open.

use std::{
    cell::RefCell,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::{Semaphore, oneshot},
    task::JoinError,
};

/// Threads of all workers that read files and take large bodies. More would not make a disk quicker, and each keeps
/// memory of its own.
const BLOCKING_MAX: usize = 16;
/// Of these threads, those of one worker that do long work at the same time. Reads get the others.
const LONG_MAX: usize = 2;

thread_local! {
    /// Tasks of the worker whose thread this is.
    static OPEN: RefCell<Option<Arc<AtomicUsize>>> = const { RefCell::new(None) };
    /// Permits for the long work of this thread's tasks.
    static LONG: Arc<Semaphore> = Arc::new(Semaphore::new(LONG_MAX));
}

/// Runs work that takes a processor for long, such as reading a large body, on another thread. It waits its turn,
/// so that reads need not wait for it.
///
/// # Errors
///
/// Returns the panic of the work.
pub async fn long<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let turn = LONG.with(Arc::clone).acquire_owned().await;
    tokio::task::spawn_blocking(move || {
        let done = work();
        drop(turn);
        done
    })
    .await
}

/// Returns whether the running task is the only one of its worker, so that it may block the thread.
pub fn is_alone() -> bool {
    OPEN.with_borrow(|open| {
        open.as_ref()
            .is_some_and(|open| open.load(Ordering::Relaxed) == 1)
    })
}

/// Threads that answer connections.
#[derive(Debug)]
pub struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    /// Tasks that have not ended.
    open: Arc<AtomicUsize>,
    end: oneshot::Sender<Duration>,
    thread: JoinHandle<()>,
}

/// A task that counts as open until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Starts a thread for each processor.
    ///
    /// # Errors
    ///
    /// Returns why the system gives no thread.
    pub fn start() -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let blocking = (BLOCKING_MAX / processors).max(4);
        let workers = (0..processors).map(|_| Worker::start(blocking));
        let workers: io::Result<Vec<Worker>> = workers.collect();
        Ok(Self(workers?))
    }

    /// Runs a task on the thread that has the fewest.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let open = |worker: &&Worker| worker.open.load(Ordering::Relaxed);
        let Some(worker) = self.0.iter().min_by_key(open) else {
            return;
        };
        worker.open.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&worker.open));
        drop(worker.runtime.spawn(async move {
            task.await;
            drop(counted);
        }));
    }

    /// Ends the threads. Tasks are dropped where they wait; one that blocks its thread gets so much time.
    pub fn end(self, time: Duration) {
        let threads: Vec<_> = self
            .0
            .into_iter()
            .map(|worker| {
                // A thread that is gone needs no end.
                let _gone = worker.end.send(time);
                worker.thread
            })
            .collect();
        for thread in threads {
            drop(thread.join());
        }
    }
}

impl Worker {
    fn start(blocking: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(blocking)
            .enable_all()
            .build()?;
        let (end, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        let open: Arc<AtomicUsize> = Arc::default();
        let counted = Arc::clone(&open);
        let thread = std::thread::Builder::new()
            .name("worker".into())
            .spawn(move || {
                OPEN.set(Some(counted));
                // The tasks run while this waits.
                let time = runtime.block_on(ended).unwrap_or_default();
                runtime.shutdown_timeout(time);
            })?;
        Ok(Self {
            runtime: handle,
            open,
            end,
            thread,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Goal: whoever sends many large bodies does not keep others from reading.
    #[test]
    fn long_work_leaves_threads_for_reads() {
        let workers = Workers::start().unwrap();
        let (ended, release) = (
            Arc::new(parking_lot::RwLock::new(())),
            Duration::from_secs(30),
        );
        let held = ended.write();
        let count = 2 * BLOCKING_MAX.max(4 * workers.0.len());
        for _ in 0..count {
            let ended = Arc::clone(&ended);
            workers.spawn(async move {
                long(move || drop(ended.read())).await.unwrap();
            });
        }
        let (tell, read) = mpsc::channel();
        for _ in &workers.0 {
            let tell = tell.clone();
            workers.spawn(async move {
                tokio::task::spawn_blocking(move || tell.send(()).unwrap())
                    .await
                    .unwrap();
            });
        }
        let reads = workers.0.iter().map(|_| read.recv_timeout(release));
        let all: Result<Vec<()>, _> = reads.collect();
        drop(held);
        workers.end(release);
        assert!(all.is_ok(), "a read waited for long work");
    }
}
