//! A running server: the log, the writer, the views and the listener, put together and taken apart.
//!
//! Shell: threads, sockets, signals. The server ends in the order in which data flows: first no
//! more requests come, then no more commits. Then everything committed is archived, and the log is
//! closed.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use simplefeed_core::{feed::Epoch, timestamp::Timestamp};
use simplefeed_http::pipeline::Pipeline;
use simplefeed_log::{
    EntryLog, LogError, WritableLog,
    durable::{create_folders, sync_names},
    held::visible_path,
    moment::{self, MomentNote},
    sled::folder::{failed, keep_to_ourselves},
    store::LogStore,
    watermark::Watermark,
};
use simplefeed_process::{
    clock::{self, Clock, ClockReading, ClockStanding},
    lack::ask_for_threads,
    stop::Stop,
    threads::Threads,
    workers::Workers,
};
use simplefeed_publish as publish;
use simplefeed_publish::WriterHandle;
use simplefeed_views::{
    Views,
    catalogue::Catalogue,
    documents::{archive::Archive, reading::Documents},
    folders::Folders,
    follower::follow,
    push::Push,
    scrub::scrub,
    shown::ShownLog,
    timelines::{Timelines, fan_out::Keeping, following, merged::MergedLog},
};
use tracing::{info, warn};
use url::Url;

use crate::{
    config::{Config, Ui},
    control::{self, Ground},
    endpoints::{self, Handles, Site},
    error::ServeError,
    follows::TimelineFollows,
    listening::{Gates, Listening},
    metrics::Metrics,
    socket,
    upkeep::restoration::begin_epoch,
    views::{FileViews, ServedViews},
};

/// Pause between two reads of the clock, while the server waits for the next second.
const PART_OF_SECOND: Duration = Duration::from_millis(50);
/// Longest time for work that was cut off to end. After that time, the server ends without that
/// work.
const CUT_OFF: Duration = Duration::from_secs(5);
/// Number of threads that the server may need beside those of the workers, threads for merging and
/// settling included.
const THREADS: usize = 24;

/// A server that is ready to take connections.
pub struct Server {
    listening: Listening,
    config: Config,
    gates: Gates,
    metrics: Arc<Metrics>,
    public_url: Url,
    pipeline: Arc<Pipeline<Site>>,
    publisher: WriterHandle,
    writer: JoinHandle<()>,
    stop: Stop,
    /// Threads that the stop ends: followers of the log, which first apply all commits, the
    /// scrubber, and the threads of the clock and of the catalogue.
    followers: Vec<JoinHandle<()>>,
    control: Option<JoinHandle<()>>,
    store: Box<dyn LogStore>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// Starts everything behind the listener; connections wait until [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// See [`ServeError`]. The log is not closed then, so the next start checks the log with more
    /// care.
    pub fn start(
        config: &Config,
        listening: Listening,
        store: impl LogStore + 'static,
    ) -> Result<Self, ServeError> {
        // The threads are tried first, because a runtime panics where the system gives no thread.
        ask_for_threads(THREADS + Workers::threads()).map_err(ServeError::Start)?;
        Self::start_by(config, listening, store, clock::system)
    }

    /// Starts a server like [`start`](Self::start), with the clocks that `read` reads.
    ///
    /// # Errors
    ///
    /// See [`ServeError`].
    pub fn start_by(
        config: &Config,
        listening: Listening,
        store: impl LogStore + 'static,
        read: fn() -> ClockReading,
    ) -> Result<Self, ServeError> {
        // The tokens are read first, so that a wrong file of tokens ends the start before an epoch
        // begins or a thread runs.
        let gates = Gates::new(config)?;
        let public_url = public_url(config, &listening);
        let watermark = Arc::new(store.watermark().map_err(ServeError::Folder)?);
        let writable = store.log();
        let log: Arc<dyn EntryLog> = Arc::<dyn WritableLog>::clone(&writable);
        let folders = folders_of(config, &store)?;
        let views = views_of(config, &log, &folders)?;
        let followed = views.all();
        let shown: Arc<dyn ShownLog> = Arc::new(MergedLog::new(Arc::clone(&views.timelines)));
        let clock = begin_serving(&*writable, &followed, &store, &watermark, read)?;
        let synced = |tree: &Path| sync_names(tree).map_err(failed("sync", tree));
        keep_to_ourselves(folders.data())
            .and_then(|()| folders.trees().into_iter().try_for_each(synced))
            .map_err(|error| ServeError::Folder(error.into()))?;
        let beside = Beside::default();
        let mut followers = spawn_followers(&followed, &shown, &beside)?;
        let ground = Ground {
            log: Arc::clone(&log),
            shown: Arc::clone(&shown),
            views: FileViews::of_upkeep_beside(&folders, &views.files).all(),
            clock: clock.clone(),
            moment: store.moment(),
        };
        let control = spawn_control(store.control_socket(), ground, &beside)?;
        followers.push(spawn_clock(&clock, store.moment(), &beside)?);
        let metrics = Arc::new(Metrics::new(
            Arc::clone(&log),
            followed.clone(),
            folders.data().into(),
            clock.clone(),
            beside.threads.clone(),
        ));
        let (publisher, writer) = publish::start(
            writable,
            Arc::new(TimelineFollows(Arc::clone(&views.timelines))),
            config.defaults(&public_url),
            clock.clone(),
            Arc::clone(&watermark),
            Arc::<Metrics>::clone(&metrics),
        )?;
        let catalogue = Arc::new(Catalogue::new(Arc::clone(&log)));
        let handles = Handles {
            documents: documents_of(&log, &shown, &views, &catalogue),
            log,
            catalogue: Arc::clone(&catalogue),
            shown,
            publisher: publisher.clone(),
            views,
            followed,
            watermark,
            metrics: Arc::clone(&metrics),
            clock,
            threads: beside.threads.clone(),
        };
        let pipeline = Arc::new(build_pipeline(config, &public_url, handles));
        // Behind the listener which keeps the catalogue current, so that no commit is missed.
        followers.push(spawn_catalogue(catalogue, &beside)?);
        Ok(Self {
            pipeline,
            listening,
            config: config.clone(),
            gates,
            metrics,
            public_url,
            publisher,
            writer,
            stop: beside.stop,
            followers,
            control,
            store: Box::new(store),
        })
    }

    /// Returns the listeners, with the addresses that they really have.
    pub fn listening(&self) -> &Listening {
        &self.listening
    }

    /// Returns the URL at which clients see the server, with a slash at its end.
    pub fn public_url(&self) -> &Url {
        &self.public_url
    }

    /// Returns a handle to the writer, and the runtime on which to wait for the writer's answers.
    pub fn publisher(&self) -> (WriterHandle, tokio::runtime::Handle) {
        (self.publisher.clone(), self.listening.runtime())
    }

    /// Serves until `until` completes, then ends in order.
    ///
    /// # Errors
    ///
    /// [`ServeError::Close`] if the log could not be closed cleanly, [`ServeError::Start`] if the
    /// workers could not be started, [`ServeError::Log`] if a document beside the log is of another
    /// log, and [`ServeError::Displaced`].
    #[expect(
        clippy::disallowed_methods,
        reason = "the next start replaces a socket that comes back"
    )]
    pub fn run(self, until: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self {
            listening,
            config,
            gates,
            metrics,
            public_url,
            pipeline,
            publisher,
            writer,
            stop,
            followers,
            control,
            store,
        } = self;
        info!(address = %listening.address(), %public_url, "started");
        let until = async {
            until.await;
            // Work in the background ends at once, because a publisher may wait for a settling, and
            // the stop waits for the publisher.
            store.end_work();
        };
        let served = listening.serve(&config, gates, &pipeline, &metrics, until, CUT_OFF);
        // The writer ends with the last clone of the publisher, and the pipeline has such a clone.
        drop((pipeline, metrics, publisher));
        drop(writer.join());
        // No more commits come, so the followers end once they have applied all commits.
        stop.request();
        store.log().announcements().end();
        for thread in followers {
            drop(thread.join());
        }
        // Reading ends only after the followers, which still had to read. This breaks off a task of
        // the control socket.
        store.end_reading();
        drop(control.map(JoinHandle::join));
        if let Some(socket) = store.control_socket() {
            let _removed = std::fs::remove_file(socket);
        }
        let replaced_by = store.log().replaced_by();
        let is_displaced = store.log().is_displaced();
        if !store.close().map_err(ServeError::Close)? {
            warn!("the log is still in use and not closed");
        }
        served.map_err(ServeError::Start)?;
        if let Some(document) = replaced_by {
            return Err(LogError::replaced_beside(&document).into());
        }
        if is_displaced {
            return Err(ServeError::Displaced);
        }
        info!("stopped");
        Ok(())
    }
}

/// Returns the URL at which clients see the server, with a slash at its end.
fn public_url(config: &Config, listening: &Listening) -> Url {
    let own = format!("http://{}/", listening.address());
    let own = Url::parse(&own).expect("an address makes a URL");
    config.public_url.clone().unwrap_or(own)
}

/// Returns the folders of a server, locked against other servers.
fn folders_of(config: &Config, store: &impl LogStore) -> Result<Folders, ServeError> {
    let folders = store.folder().map_or_else(
        || Folders::new(config.data(), config.www.as_deref()),
        |held| Folders::held(&held, config.www.as_deref()),
    );
    // A folder that cannot be made is reported by the archive, which needs the folder.
    let _unmade = create_folders(&[&folders.www]).is_err();
    let locked = folders.locked();
    locked.map_err(|error| ServeError::Folder(error.into()))
}

/// Returns the pipeline over all endpoints.
fn build_pipeline(config: &Config, public_url: &Url, handles: Handles) -> Pipeline<Site> {
    let (metrics, clock) = (Arc::clone(&handles.metrics), handles.clock.clone());
    let site = Site::new(config, public_url, handles);
    let table = endpoints::table(config.ui == Ui::On);
    Pipeline::new(site, table, public_url, config.limits(), metrics, clock)
}

/// Makes the documents of all feeds, and connects them with the log. A commit first invalidates
/// documents, and then urges the follower that wakes readers. A reader of a timeline wakes the
/// follower that archives.
fn documents_of(
    log: &Arc<dyn EntryLog>,
    shown: &Arc<dyn ShownLog>,
    views: &ServedViews,
    catalogue: &Arc<Catalogue>,
) -> Arc<Documents> {
    wake_with(log, &views.files.archive);
    let archive = Archive::clone(&views.files.archive);
    let documents = Arc::new(Documents::new(Arc::<dyn ShownLog>::clone(shown), archive));
    prepare_with(&views.push, &documents);
    invalidate_with(log, &views.timelines, &documents, catalogue);
    // This listener comes after the calls that invalidate copies in memory, because the urged
    // follower reads documents.
    let urged = Arc::clone(&views.push);
    log.announcements()
        .listen(move |commit| urged.committed(commit));
    documents
}

/// Lets readers of timelines wake the follower that archives.
fn wake_with(log: &Arc<dyn EntryLog>, archive: &Archive) {
    let waking = Arc::downgrade(log);
    archive.when_wanted(move || {
        if let Some(log) = waking.upgrade() {
            log.announcements().wake();
        }
    });
}

/// Makes documents ready before the readers that wait for them are woken.
fn prepare_with(push: &Push, documents: &Arc<Documents>) {
    let preparing = Arc::downgrade(documents);
    push.prepare_with(move |feed, coding| {
        if let Some(documents) = preparing.upgrade() {
            documents.prepare(feed, coding);
        }
    });
}

/// Lets each commit invalidate the copies in memory of the feeds that it changes, as soon as
/// readers see the commit. So publishers find their own entries at once, and no reader of a
/// document sees less than before.
fn invalidate_with(
    log: &Arc<dyn EntryLog>,
    timelines: &Arc<Timelines>,
    documents: &Arc<Documents>,
    catalogue: &Arc<Catalogue>,
) {
    // The references are weak: the documents hold the log, so strong references back would keep
    // both for ever.
    let (documents, catalogue) = (Arc::downgrade(documents), Arc::downgrade(catalogue));
    let timelines = Arc::downgrade(timelines);
    log.announcements().invalidate_with(move |commit| {
        // The timelines come first, because documents of timelines are made from them.
        if let Some(timelines) = timelines.upgrade() {
            timelines.committed(commit);
        }
        if let Some(documents) = documents.upgrade() {
            documents.committed(commit);
        }
    });
    // The catalogue has a listener and no invalidator, because it waits for a lock, and nobody can
    // read the log while an invalidator runs.
    log.announcements().listen(move |commit| {
        if let Some(catalogue) = catalogue.upgrade() {
            catalogue.committed(commit);
        }
    });
}

/// Prepares a log to be served, unless readers were shown another log. Returns the clock of the
/// server.
fn begin_serving(
    log: &dyn WritableLog,
    views: &Views,
    store: &dyn LogStore,
    watermark: &Watermark,
    read: fn() -> ClockReading,
) -> Result<Clock, ServeError> {
    // Checked before anything is written: if readers were shown another log, the next commits would
    // be archived under URLs that have other contents.
    log.check_seen()?;
    // The note of the newest shown commit may have been put back together with an older log, so the
    // views are asked, too.
    views.check_log(log)?;
    let clock = Clock::new(read, known_moment(log, store));
    // An epoch is numbered by the clock, and a number that is too high could not be taken back.
    if store.is_restored() {
        let now = clock.system();
        if let ClockStanding::Refused { known } = clock.standing() {
            return Err(ServeError::Clock { known, now });
        }
        if now.second() < Epoch::NONE_BEFORE {
            return Err(ServeError::EarlyClock { now });
        }
    }
    log.note_seen()?;
    store.begin_work();
    // The epoch begins before any view or reader, because it renames the open documents.
    begin_epoch_if_restored(log, store, watermark, &clock)?;
    // An earlier server may have sent the second of the last commit as `Last-Modified`.
    watermark.begin_after(log.head().last);
    Ok(clock)
}

/// Returns the views of a server.
fn views_of(
    config: &Config,
    log: &Arc<dyn EntryLog>,
    folders: &Folders,
) -> Result<ServedViews, LogError> {
    let graph = folders.of_view(following::NAME);
    let keeping = Keeping {
        fan_out: config.fan_out,
        memory: config.fan_out_memory,
    };
    let timelines = Timelines::new(Arc::clone(log), Some(&graph), keeping)?;
    let longest = config.sup_periods.iter().copied().max();
    Ok(ServedViews::new(folders, timelines.into(), longest))
}

/// Returns the last moment that a store knows: the instant of the last commit, or a later moment at
/// which a server ran.
fn known_moment(log: &dyn EntryLog, store: &dyn LogStore) -> Option<Timestamp> {
    let head = log.head();
    let newest = (head.number.0 > 0).then_some(head.last);
    newest.max(store.moment().and_then(|note| note.read()))
}

/// Begins an epoch, if the log was restored and has not been served after that.
fn begin_epoch_if_restored(
    log: &dyn WritableLog,
    store: &dyn LogStore,
    watermark: &Watermark,
    clock: &Clock,
) -> Result<(), ServeError> {
    if store.is_restored() {
        let newest = i64::from(log.head().epoch.0);
        let mut instant = watermark.stamp(clock.now(), Timestamp::MIN);
        // If the newest epoch has the number of this second, a start that broke off has taken the
        // number. So this start waits for the next second.
        while instant.second() == newest {
            watermark.release();
            std::thread::park_timeout(PART_OF_SECOND);
            instant = watermark.stamp(clock.now(), Timestamp::MIN);
        }
        let begun = Instant::now();
        let epoch = begin_epoch(log, instant).map_err(ServeError::Epoch)?;
        watermark.release();
        // `recover` may lose the commit that begins the epoch. The recovered log must not begin an
        // epoch of the same second, so the server waits until that second is over.
        while let Some(rest) = Duration::from_secs(1).checked_sub(begun.elapsed()) {
            std::thread::park_timeout(rest);
        }
        // The mark of a restored log is removed last: after a crash before this line, the next
        // start begins the epoch again.
        store.epoch_has_begun().map_err(ServeError::Close)?;
        info!(%epoch, "the log was restored: an epoch begins");
    }
    Ok(())
}

/// Threads beside the writer, and the token that ends them.
#[derive(Default)]
struct Beside {
    threads: Threads,
    stop: Stop,
}

/// Starts a thread for each view, and the thread of the scrubber.
fn spawn_followers(
    views: &Views,
    log: &Arc<dyn ShownLog>,
    beside: &Beside,
) -> Result<Vec<JoinHandle<()>>, ServeError> {
    let mut threads = vec![];
    for (view, progress) in views.iter() {
        let (view, progress) = (Arc::clone(view), Arc::clone(progress));
        let log = Arc::clone(log);
        threads.push(spawn_beside(view.name(), beside, move |stop| {
            follow(&*view, &*log, &progress, stop);
        })?);
    }
    let (views, log) = (views.clone(), Arc::clone(log));
    threads.push(spawn_beside("scrub", beside, move |stop| {
        scrub(&views, &*log, stop);
    })?);
    Ok(threads)
}

/// Starts the thread that watches the clock.
fn spawn_clock(
    clock: &Clock,
    note: Option<MomentNote>,
    beside: &Beside,
) -> Result<JoinHandle<()>, ServeError> {
    let clock = clock.clone();
    spawn_beside("clock", beside, move |stop| {
        moment::keep(&clock, note.as_ref(), stop);
    })
}

/// Starts the thread that reads the names of all feeds, before somebody waits for them.
fn spawn_catalogue(
    catalogue: Arc<Catalogue>,
    beside: &Beside,
) -> Result<JoinHandle<()>, ServeError> {
    spawn_beside("catalogue", beside, move |stop| {
        if let Err(error) = catalogue.read(|| !stop.is_requested()) {
            let error: &(dyn std::error::Error + 'static) = &error;
            warn!(
                error,
                "the names of the feeds cannot be read; lists try again"
            );
        }
    })
}

/// Starts a thread beside the writer. The thread ends when the server stops, and begins again after
/// a panic.
fn spawn_beside(
    name: &str,
    beside: &Beside,
    work: impl FnMut(&Stop) + Send + 'static,
) -> Result<JoinHandle<()>, ServeError> {
    let Beside { threads, stop } = beside;
    threads.spawn(name, stop, work).map_err(ServeError::Start)
}

/// Starts the thread that carries out the tasks of the control socket. A server without that socket
/// serves all the same.
fn spawn_control(
    path: Option<PathBuf>,
    ground: Ground,
    beside: &Beside,
) -> Result<Option<JoinHandle<()>>, ServeError> {
    let Some(path) = path else {
        return Ok(None);
    };
    match socket::bind(&path, 0o600) {
        Ok(listener) => spawn_beside("control", beside, move |stop| {
            control::serve(&listener, &ground, stop);
        })
        .map(Some),
        Err(error) => {
            warn!(%error, path = %visible_path(&path).display(), "no control socket: upkeep needs the server stopped");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
