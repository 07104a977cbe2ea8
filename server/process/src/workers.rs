//! Threads that answer connections, one for each processor, and at least two.
//!
//! Shell: threads. Each thread has a runtime of its own, and a connection stays on one thread: a
//! request wakes one thread, and no work is moved between processors. A new connection goes to the
//! thread with the fewest connections, but not where a task blocks the thread.

use std::{
    cell::RefCell,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::{Semaphore, oneshot},
    task::JoinError,
};

/// Maximum number of threads, of all workers together, that read files and take large bodies. More
/// threads would not make a disk quicker, and each thread keeps memory of its own. With more than
/// four workers, the number is larger: each worker has at least `BLOCKING_LEAST` threads.
const BLOCKING_MAX: usize = 16;
const BLOCKING_LEAST: usize = 4;
/// Maximum number of threads of one worker that do long work at the same time. Reads get the other
/// threads.
const LONG_MAX: usize = 2;

thread_local! {
    /// Load of the worker that runs on this thread.
    static LOAD: RefCell<Option<Arc<Load>>> = const { RefCell::new(None) };
    /// Permits for the long work of this thread's tasks.
    static LONG: Arc<Semaphore> = Arc::new(Semaphore::new(LONG_MAX));
}

/// Runs work that takes a processor for long, such as reading a large body, on another thread. Long
/// work waits for a permit, so that reads need not wait for long work.
///
/// # Errors
///
/// Returns the panic of the work.
pub async fn long<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let turn = LONG.with(Arc::clone).acquire_owned().await;
    tokio::task::spawn_blocking(move || {
        // The permit is given back after the work, and not with the future, which may be dropped
        // before.
        let done = work();
        drop(turn);
        done
    })
    .await
}

/// Lets the running task block the thread until the result is dropped, if all other tasks of the
/// thread are idle and no other thread has woken one of them. `None` if another task may have work,
/// or outside a worker's thread.
pub fn block_alone() -> Option<BlockingTask> {
    let load = LOAD.with_borrow(Clone::clone)?;
    // The mark comes before the checks, so that a connection that comes during the checks goes to
    // another thread.
    load.is_blocked.store(true, Ordering::SeqCst);
    let blocking = BlockingTask(load);
    let Load { tasks, idle, .. } = &*blocking.0;
    let is_alone = tasks.load(Ordering::SeqCst) - idle.load(Ordering::Relaxed) == 1;
    // A task that another thread has woken stands in this queue. A task whose timer has run out
    // does not: it waits longer, for the time of one commit.
    let is_calm = is_alone && Handle::current().metrics().global_queue_depth() == 0;
    is_calm.then_some(blocking)
}

/// Waits as an idle task: the wait may last longer by the time of one commit, because nobody asks
/// the task for anything. Outside a worker, the function only waits.
pub async fn idle<T>(waiting: impl Future<Output = T>) -> T {
    let _idle = LOAD.with_borrow(Clone::clone).map(Idle::new);
    waiting.await
}

/// Guard of an idle task. The task counts as idle until the guard is dropped.
struct Idle(Arc<Load>);

impl Idle {
    fn new(load: Arc<Load>) -> Self {
        load.idle.fetch_add(1, Ordering::Relaxed);
        Self(load)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.0.idle.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Mark of a worker whose thread a task blocks. New connections go to other workers meanwhile.
#[derive(Debug)]
pub struct BlockingTask(Arc<Load>);

impl Drop for BlockingTask {
    fn drop(&mut self) {
        self.0.is_blocked.store(false, Ordering::Release);
    }
}

/// Work that a worker has.
#[derive(Debug, Default)]
struct Load {
    /// Number of tasks that have not ended.
    tasks: AtomicUsize,
    /// Number of these tasks that are idle. Only the worker's own thread changes and reads the
    /// number.
    idle: AtomicUsize,
    is_blocked: AtomicBool,
}

/// Threads that answer connections.
#[derive(Debug)]
pub struct Workers(Vec<WorkerThread>);

#[derive(Debug)]
struct WorkerThread {
    runtime: Handle,
    load: Arc<Load>,
    end: oneshot::Sender<Duration>,
    thread: JoinHandle<()>,
}

/// Guard of a task. The task counts until the guard is dropped.
struct TaskGuard(Arc<Load>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.tasks.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Workers {
    /// Returns the number of workers.
    fn worker_count() -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // With one worker, a task that blocks the thread would keep all connections waiting.
        processors.max(2)
    }

    /// Returns the number of threads that all workers begin with.
    pub fn threads() -> usize {
        // Each worker has a second thread, for work that waits.
        2 * Self::worker_count()
    }

    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// Returns why the system gives no thread.
    pub fn start() -> io::Result<Self> {
        let count = Self::worker_count();
        let blocking = (BLOCKING_MAX / count).max(BLOCKING_LEAST);
        let workers = (0..count).map(|_| WorkerThread::start_runtime(blocking));
        let workers: io::Result<Vec<WorkerThread>> = workers.collect();
        Ok(Self(workers?))
    }

    /// Runs a task on the thread with the fewest tasks. Threads that a task blocks come last.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let order = |worker: &&WorkerThread| {
            let Load {
                tasks, is_blocked, ..
            } = &*worker.load;
            let is_blocked = is_blocked.load(Ordering::SeqCst);
            (is_blocked, tasks.load(Ordering::Acquire))
        };
        let Some(worker) = self.0.iter().min_by_key(order) else {
            return;
        };
        worker.load.tasks.fetch_add(1, Ordering::SeqCst);
        let counted = TaskGuard(Arc::clone(&worker.load));
        drop(worker.runtime.spawn(async move {
            task.await;
            drop(counted);
        }));
    }

    /// Ends the threads. Tasks are dropped where they wait; work on other threads gets `time` to
    /// end. The call waits for a task that blocks a thread.
    pub fn end(self, time: Duration) {
        let threads: Vec<_> = self
            .0
            .into_iter()
            .map(|worker| {
                // A thread that is gone already need not be told to end.
                let _gone = worker.end.send(time);
                worker.thread
            })
            .collect();
        for thread in threads {
            drop(thread.join());
        }
    }
}

impl WorkerThread {
    fn start_runtime(blocking: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(blocking)
            // Threads are kept for good: where the system gives no further thread, work waits for
            // an existing one.
            .thread_keep_alive(Duration::MAX)
            .enable_all()
            .build()?;
        // tokio panics where the system gives no thread, so the second thread is started here,
        // where the panic is caught. Other processes may have taken threads after the server
        // checked for them.
        catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(|| ()))))
            .map_err(|_panic| io::ErrorKind::WouldBlock)?;
        let (end, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        let load: Arc<Load> = Arc::default();
        let shared = Arc::clone(&load);
        let thread = std::thread::Builder::new()
            .name("worker".into())
            .spawn(move || {
                LOAD.set(Some(shared));
                // The tasks run while `block_on` waits.
                let time = runtime.block_on(ended).unwrap_or_default();
                runtime.shutdown_timeout(time);
            })?;
        Ok(Self {
            runtime: handle,
            load,
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

    /// Runs a task on one worker, and returns its result.
    fn on<T: Send + 'static>(
        worker: &WorkerThread,
        task: impl Future<Output = T> + Send + 'static,
    ) -> mpsc::Receiver<T> {
        worker.load.tasks.fetch_add(1, Ordering::SeqCst);
        let counted = TaskGuard(Arc::clone(&worker.load));
        let (sender, results) = mpsc::channel();
        worker.runtime.spawn(async move {
            let result = task.await;
            drop(counted);
            // The test may have ended.
            let _gone = sender.send(result);
        });
        results
    }

    /// Goal: an append beside streams that wait costs as much as an append alone, and holds up no
    /// task that has work.
    #[test]
    fn a_thread_is_blocked_beside_idle_tasks_alone() {
        let workers = Workers::start().unwrap();
        let (worker, patience) = (&workers.0[0], Duration::from_secs(30));
        let may_block = || {
            let told = on(worker, async { block_alone().is_some() });
            told.recv_timeout(patience).unwrap()
        };
        assert!(may_block());
        let wake = Arc::new(tokio::sync::Notify::new());
        let (woken, waiting) = (Arc::clone(&wake), Arc::clone(&wake));
        let ended = on(worker, async move {
            idle(waiting.notified()).await;
            waiting.notified().await;
        });
        assert!(may_block(), "a task was only idle");
        // The task above, woken by another thread, waits for this task.
        let held_up = on(worker, async move {
            std::thread::spawn(move || woken.notify_one())
                .join()
                .unwrap();
            block_alone().is_some()
        });
        assert!(
            !held_up.recv_timeout(patience).unwrap(),
            "a woken task was held up"
        );
        assert!(!may_block(), "a task was no longer idle");
        wake.notify_one();
        ended.recv_timeout(patience).unwrap();
        assert!(may_block());
        workers.end(patience);
    }
}
