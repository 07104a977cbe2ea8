//! A running server: the log, the writer, the views and the listener, put together and taken apart.
//!
//! Shell: threads, sockets, signals. The end goes in the order of the data: no more requests, no more commits, then
//! everything committed is archived, and the log is closed.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use simplefeed_core::instant::Instant;
use tracing::{info, warn};
use url::Url;

use crate::{
    config::Config,
    control,
    error::ServeError,
    http::handler::Handler,
    listening::{Gates, Listening},
    log::{
        Commits as _, EntryLog,
        folder::{DataFolder, keep_to_ourselves},
        opening::OpenedLog,
        sled_log::SledLog,
    },
    metrics::Metrics,
    publish::{self, Publisher},
    restoration::begin_epoch,
    socket,
    stop::Stop,
    sup::Sup,
    views::{archive_files::Archive, documents::Documents, sup_files::SupFiles, watch::watch},
    watermark::Watermark,
};

/// Longest time that work which was cut off may go on, before the server ends without it.
const CUT_OFF: Duration = Duration::from_secs(5);

/// A server that is ready to take connections.
#[derive(Debug)]
pub struct Server {
    listening: Listening,
    config: Config,
    gates: Gates,
    metrics: Arc<Metrics>,
    public_url: Url,
    handler: Arc<Handler>,
    publisher: Publisher,
    writer: JoinHandle<()>,
    stop: Stop,
    archivist: JoinHandle<()>,
    watchman: JoinHandle<()>,
    teller: Option<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
    log: Arc<SledLog>,
    folder: DataFolder,
}

/// Returns the time on the machine's clock.
pub fn now() -> Instant {
    // A clock before 1970 counts as 1970: commits are in order all the same.
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Instant::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

impl Server {
    /// Starts everything behind the listener; connections wait until [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// See [`ServeError`]. The log is not closed then, so the next start opens it the careful way.
    pub fn start(
        config: &Config,
        listening: Listening,
        opened: OpenedLog,
    ) -> Result<Self, ServeError> {
        // First, so a wrong file of tokens ends the start before an epoch begins or a thread runs.
        let gates = Gates::new(config)?;
        let own = format!("http://{}/", listening.address());
        let own = Url::parse(&own).expect("an address makes a URL");
        let public_url = config.public_url.clone().unwrap_or(own);

        let OpenedLog { log, folder } = opened;
        let watermark = Watermark::open(&config.data.join("watermark"));
        let watermark = Arc::new(watermark.map_err(ServeError::Start)?);
        // Before any view or reader, because an epoch renames the open documents.
        begin_epoch_if_restored(&log, &folder, &watermark)?;
        // The server before may have given out the log's last second as `Last-Modified`.
        watermark.begin_after(log.head().last);
        let log = Arc::new(log);
        let shared: Arc<dyn EntryLog> = Arc::<SledLog>::clone(&log);
        keep_to_ourselves(&config.data).map_err(ServeError::Start)?;
        let archive = Archive::new(&config.data, config.www.as_deref());
        let documents = Arc::new(Documents::new(
            Arc::<dyn EntryLog>::clone(&shared),
            archive.clone(),
        ));
        let stop = Stop::default();
        let (watched, kept) = (archive.clone(), archive.clone());
        let files = archive.sup_files();
        let (followed, followed_by) = (archive.clone(), archive);
        let archivist = spawn("archivist", &shared, &stop, move |log, stop| {
            followed.follow(log, stop);
        })?;
        let watchman = spawn("watchman", &shared, &stop, move |log, stop| {
            watch(&watched, &**log, stop);
        })?;
        let keeper = spawn_keeper(&folder, &shared, &stop, kept)?;
        let sup = tell_updates(config, &shared, &watermark, files, &public_url)?;
        invalidate_with(&shared, &documents);
        let metrics = Metrics::new(Arc::clone(&shared), followed_by, config.data.clone());
        let metrics = Arc::new(metrics);
        let (publisher, writer) = publish::start(
            Arc::clone(&shared),
            config.defaults(&public_url),
            now,
            Arc::clone(&watermark),
            Arc::clone(&metrics),
        );
        let teller = spawn_teller(sup.as_ref(), &shared, &stop)?;
        let handler = Handler::new(
            Arc::clone(&shared),
            documents,
            publisher.clone(),
            config.recent_max_age,
            &public_url,
            config.limits,
            Arc::clone(&metrics),
            watermark,
            now,
        );
        let handler = Arc::new(handler.telling(sup));
        Ok(Self {
            listening,
            config: config.clone(),
            gates,
            metrics,
            public_url,
            handler,
            publisher,
            writer,
            stop,
            archivist,
            watchman,
            teller,
            keeper,
            log,
            folder,
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

    /// Returns the publisher into its log, and the runtime to wait on it.
    pub fn publisher(&self) -> (Publisher, tokio::runtime::Handle) {
        (self.publisher.clone(), self.listening.runtime())
    }

    /// Serves until `until` completes, then ends in order.
    ///
    /// # Errors
    ///
    /// [`ServeError::Close`] if the log could not be closed cleanly.
    pub fn run(self, until: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self {
            listening,
            config,
            gates,
            metrics,
            public_url,
            handler,
            publisher,
            writer,
            stop,
            archivist,
            watchman,
            teller,
            keeper,
            log,
            folder,
        } = self;
        info!(address = %listening.address(), %public_url, "started");
        let runtime = listening.serve(&config, gates, &handler, &metrics, until);
        // The writer ends with the last clone of its publisher, and the handler has one.
        drop((handler, metrics));
        // Requests that were cut off have clones, too, and go here.
        runtime.shutdown_timeout(CUT_OFF);
        drop(publisher);
        let writer = writer.join();
        // No commit comes any more, so the followers end once they have seen all.
        stop.request();
        log.announcements().end();
        let (archivist, watchman) = (archivist.join(), watchman.join());
        let teller = teller.map_or(Ok(()), JoinHandle::join);
        // Behind the archive, which still had to read. A task of the control socket is broken off by this.
        log.end_reading();
        let keeper = keeper.map_or(Ok(()), JoinHandle::join);
        let _removed = std::fs::remove_file(folder.control_socket());
        if [writer, archivist, watchman, teller, keeper]
            .iter()
            .any(Result::is_err)
        {
            return Err(ServeError::Failed);
        }
        // The log can be closed only by its last owner.
        if let Ok(log) = Arc::try_unwrap(log) {
            OpenedLog { log, folder }.close()?;
        } else {
            warn!("the log is still in use and not closed");
        }
        info!("stopped");
        Ok(())
    }
}

/// Lets each commit invalidate what is kept in memory of its feeds. The log calls this on the writer's thread, before
/// the publisher is answered, so a publisher finds its own entries at once.
fn invalidate_with(log: &Arc<dyn EntryLog>, documents: &Arc<Documents>) {
    // The documents hold the log: a strong reference back would keep both for ever.
    let documents = Arc::downgrade(documents);
    log.announcements().listen(move |commit| {
        if let Some(documents) = documents.upgrade() {
            documents.committed(commit);
        }
    });
}

/// Begins an epoch, if the log was restored and not served since.
fn begin_epoch_if_restored(
    log: &SledLog,
    folder: &DataFolder,
    watermark: &Watermark,
) -> Result<(), ServeError> {
    if folder.is_restored() {
        let epoch = begin_epoch(log, watermark.stamp(now(), Instant::MIN))?;
        watermark.settled();
        // The mark goes last: after a crash before this line, the next start begins the epoch again.
        folder.epoch_has_begun()?;
        info!(%epoch, "the log was restored: an epoch begins");
    }
    Ok(())
}

/// Returns the source of SUP documents, unless the configuration has no periods.
fn tell_updates(
    config: &Config,
    log: &Arc<dyn EntryLog>,
    watermark: &Arc<Watermark>,
    files: SupFiles,
    public_url: &Url,
) -> Result<Option<Arc<Sup>>, ServeError> {
    if config.sup_periods.is_empty() {
        return Ok(None);
    }
    let public_url = public_url.as_str().trim_end_matches('/');
    let (log, watermark) = (Arc::clone(log), Arc::clone(watermark));
    let sup = Sup::new(log, watermark, files, &config.sup_periods, public_url, now)?;
    Ok(Some(Arc::new(sup)))
}

/// Starts the thread behind the SUP documents, if the server offers them.
fn spawn_teller(
    sup: Option<&Arc<Sup>>,
    log: &Arc<dyn EntryLog>,
    stop: &Stop,
) -> Result<Option<JoinHandle<()>>, ServeError> {
    let Some(sup) = sup.map(Arc::clone) else {
        return Ok(None);
    };
    spawn("sup", log, stop, move |_, stop| sup.follow(stop)).map(Some)
}

/// Starts a thread beside the writer, which ends when the server stops.
fn spawn(
    name: &str,
    log: &Arc<dyn EntryLog>,
    stop: &Stop,
    work: impl FnOnce(&Arc<dyn EntryLog>, &Stop) + Send + 'static,
) -> Result<JoinHandle<()>, ServeError> {
    let (log, stop) = (Arc::clone(log), stop.clone());
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || work(&log, &stop))
        .map_err(ServeError::Start)
}

/// Starts the thread that carries out the tasks of the control socket. A server without that socket serves all the
/// same.
fn spawn_keeper(
    folder: &DataFolder,
    log: &Arc<dyn EntryLog>,
    stop: &Stop,
    archive: Archive,
) -> Result<Option<JoinHandle<()>>, ServeError> {
    let path = folder.control_socket();
    match socket::bind(&path, 0o600) {
        Ok(listener) => spawn("keeper", log, stop, move |log, stop| {
            control::serve(&listener, log, &archive, stop);
        })
        .map(Some),
        Err(error) => {
            warn!(%error, path = %path.display(), "no control socket: upkeep needs the server stopped");
            Ok(None)
        }
    }
}
