//! A running server: the log, the writer, the views and the listener, put together and taken apart.
//!
//! Shell: threads, sockets, signals. Taking apart goes in the order of the data: first no more
//! requests, then no more commits, then everything committed is archived, then the log is closed.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use simplefeed_core::instant::Instant;
use tracing::{info, warn};
use url::Url;

use crate::{
    config::{Config, ConfigError, Door},
    control,
    http::handler::Handler,
    listening::{Gates, Listening},
    log::{
        EntryLog,
        folder::{DataFolder, OpenError, keep_to_ourselves},
        opening::OpenedLog,
        sled_log::SledLog,
    },
    metrics::Metrics,
    publish::{self, Publisher},
    restoration::{RestorationError, begin_epoch},
    socket,
    sup::Sup,
    views::{
        CommitQueue,
        archive_files::{Archive, ArchiveError},
        documents::Documents,
        sup_files::SupFiles,
        watch::watch,
    },
    watermark::Watermark,
};

/// How long work that was cut off may go on before the server ends without it.
const CUT_OFF: Duration = Duration::from_secs(5);

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is in use or not ours.
    #[error("cannot listen on {door}")]
    Listen {
        /// Where.
        door: Door,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The system does not give a server what it needs.
    #[error("cannot start")]
    Start(#[source] std::io::Error),
    /// The file of tokens cannot be used. Nothing was served.
    #[error("the tokens cannot be used")]
    Tokens(#[from] ConfigError),
    /// The epoch of a restored log cannot begin. Nothing was served.
    #[error("the epoch of a restored log cannot begin")]
    Epoch(#[from] RestorationError),
    /// What was told of updates cannot be read.
    #[error("the records of updates cannot be read")]
    Sup(#[from] ArchiveError),
    /// A thread panicked. Nothing is lost.
    #[error("a thread failed, so the log is not closed; nothing is lost")]
    Failed,
    /// The log cannot be closed cleanly. Nothing is lost.
    #[error("cannot close the log cleanly; nothing is lost, the next start takes longer")]
    Close(#[from] OpenError),
}

/// A server that is ready.
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
    queue: Arc<CommitQueue>,
    archivist: JoinHandle<()>,
    watchman: JoinHandle<()>,
    teller: Option<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
    log: Arc<SledLog>,
    folder: DataFolder,
}

/// Returns the time on the machine's clock.
pub fn now() -> Instant {
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
    /// See [`ServeError`]. The log is left to be opened the careful way.
    pub fn start(
        config: &Config,
        listening: Listening,
        opened: OpenedLog,
    ) -> Result<Self, ServeError> {
        let gates = Gates::new(config)?;
        let own = format!("http://{}/", listening.address());
        let own = Url::parse(&own).expect("an address makes a URL");
        let public_url = config.public_url.clone().unwrap_or(own);

        let OpenedLog { log, folder } = opened;
        let watermark = Watermark::open(&config.data.join("watermark"));
        let watermark = Arc::new(watermark.map_err(ServeError::Start)?);
        begin_epoch_if_restored(&log, &folder, &watermark)?;
        watermark.begin_after(log.head().last);
        let log = Arc::new(log);
        let shared: Arc<dyn EntryLog> = Arc::<SledLog>::clone(&log);
        keep_to_ourselves(&config.data).map_err(ServeError::Start)?;
        let archive = Archive::new(&config.data, config.www.as_deref());
        let documents = Arc::new(Documents::new(Arc::clone(&shared), archive.clone()));
        let queue = Arc::new(CommitQueue::default());
        let (watched, kept) = (archive.clone(), archive.clone());
        let files = archive.sup_files();
        let (followed, followed_by) = (archive.clone(), archive);
        let archivist = spawn("archivist", &shared, &queue, move |log, queue| {
            followed.follow(log, queue);
        })?;
        let watchman = spawn("watchman", &shared, &queue, move |log, queue| {
            watch(&watched, &**log, queue);
        })?;
        let keeper = spawn_keeper(&folder, &shared, &queue, kept)?;
        let sup = tell_updates(config, &shared, &watermark, files, &public_url)?;
        let (shown, followers) = (Arc::clone(&documents), Arc::clone(&queue));
        let on_commit = Box::new(move |commit: &Arc<_>| {
            shown.committed(commit);
            followers.push(Arc::clone(commit));
        });
        let metrics = Metrics::new(Arc::clone(&shared), followed_by, config.data.clone());
        let metrics = Arc::new(metrics);
        let (publisher, writer) = publish::start(
            Arc::clone(&shared),
            config.defaults(&public_url),
            now,
            Arc::clone(&watermark),
            on_commit,
            Arc::clone(&metrics),
        );
        let teller = spawn_teller(sup.as_ref(), &shared, &queue)?;
        let handler = Handler::new(
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
            queue,
            archivist,
            watchman,
            teller,
            keeper,
            log,
            folder,
        })
    }

    /// Returns where it listens.
    pub fn listening(&self) -> &Listening {
        &self.listening
    }

    /// Returns the URL at which clients see it, with a slash at its end.
    pub fn public_url(&self) -> &Url {
        &self.public_url
    }

    /// Returns the way into its log that publishing requests take, and the runtime to wait on it.
    pub fn publisher(&self) -> (Publisher, tokio::runtime::Handle) {
        (self.publisher.clone(), self.listening.runtime())
    }

    /// Serves until `stop` completes, then ends in order.
    ///
    /// # Errors
    ///
    /// [`ServeError::Close`] if the log could not be closed cleanly.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self {
            listening,
            config,
            gates,
            metrics,
            public_url,
            handler,
            publisher,
            writer,
            queue,
            archivist,
            watchman,
            teller,
            keeper,
            log,
            folder,
        } = self;
        info!(address = %listening.address(), %public_url, "started");
        let runtime = listening.serve(&config, gates, &handler, &metrics, stop);
        drop((handler, metrics));
        runtime.shutdown_timeout(CUT_OFF);
        drop(publisher);
        let writer = writer.join();
        queue.close();
        let (archivist, watchman) = (archivist.join(), watchman.join());
        let teller = teller.map_or(Ok(()), JoinHandle::join);
        log.end_reading();
        let keeper = keeper.map_or(Ok(()), JoinHandle::join);
        let _removed = std::fs::remove_file(folder.control_socket());
        if [writer, archivist, watchman, teller, keeper]
            .iter()
            .any(Result::is_err)
        {
            return Err(ServeError::Failed);
        }
        if let Ok(log) = Arc::try_unwrap(log) {
            OpenedLog { log, folder }.close()?;
        } else {
            warn!("the log is still in use and not closed");
        }
        info!("stopped");
        Ok(())
    }
}

/// Begins an epoch, if the log was restored.
fn begin_epoch_if_restored(
    log: &SledLog,
    folder: &DataFolder,
    watermark: &Watermark,
) -> Result<(), ServeError> {
    if folder.is_restored() {
        let epoch = begin_epoch(log, watermark.stamp(now(), Instant::MIN))?;
        watermark.settled();
        folder.epoch_has_begun()?;
        info!(%epoch, "the log was restored: an epoch begins");
    }
    Ok(())
}

/// Returns what tells of updates, if anything is to.
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

/// Starts the thread that follows what is to be told of updates, if anything is.
fn spawn_teller(
    sup: Option<&Arc<Sup>>,
    log: &Arc<dyn EntryLog>,
    queue: &Arc<CommitQueue>,
) -> Result<Option<JoinHandle<()>>, ServeError> {
    let Some(sup) = sup.map(Arc::clone) else {
        return Ok(None);
    };
    spawn("sup", log, queue, move |_, queue| sup.follow(queue)).map(Some)
}

/// Starts a thread beside the writer, which ends when the queue is closed.
fn spawn(
    name: &str,
    log: &Arc<dyn EntryLog>,
    queue: &Arc<CommitQueue>,
    work: impl FnOnce(&Arc<dyn EntryLog>, &CommitQueue) + Send + 'static,
) -> Result<JoinHandle<()>, ServeError> {
    let (log, queue) = (Arc::clone(log), Arc::clone(queue));
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || work(&log, &queue))
        .map_err(ServeError::Start)
}

/// Starts the thread that does what is asked for at the control socket. A server without that socket
/// serves all the same.
fn spawn_keeper(
    folder: &DataFolder,
    log: &Arc<dyn EntryLog>,
    queue: &Arc<CommitQueue>,
    archive: Archive,
) -> Result<Option<JoinHandle<()>>, ServeError> {
    let path = folder.control_socket();
    match socket::bind(&path, 0o600) {
        Ok(listener) => spawn("keeper", log, queue, move |log, queue| {
            control::serve(&listener, log, &archive, queue);
        })
        .map(Some),
        Err(error) => {
            warn!(%error, path = %path.display(), "no control socket: upkeep needs the server stopped");
            Ok(None)
        }
    }
}
