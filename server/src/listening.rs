//! Listeners of a server, and the signals that the server obeys.
//!
//! Shell: sockets, signals, the system's limits.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::future::{OptionFuture, join_all};
use listenfd::ListenFd;
use rustix::{
    net::sockopt::socket_acceptconn,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag::register_conditional_shutdown,
};
use simplefeed_http as http;
use simplefeed_http::{
    AccessRules, Listener, Service,
    access::Access,
    kernel_copies::COPIES_MAX,
    limits::Limits,
    pipeline::{ListenerPipeline, Pipeline},
};
use simplefeed_process::workers::Workers;
use tokio::{
    net::{TcpListener, UnixListener},
    runtime::{Builder, Handle, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::{Semaphore, watch},
};
use tracing::{error, info, warn};

use crate::{
    config::{Config, ConfigError, ListenAddress},
    endpoints::{Site, metrics::Scrapes},
    error::ServeError,
    exit,
    metrics::Metrics,
    socket,
};

/// File descriptors that are kept for files of the log and the views, and for copies of bodies,
/// beside those of connections.
const FILES: usize = 256 + COPIES_MAX;
/// Descriptors among these without which nothing is served.
const FILES_LEAST: usize = 24;
/// Maximum number of connections that the listener for metrics takes at the same time.
const METRICS_CONNECTIONS: usize = 16;
/// Maximum number of sockets that systemd may hand over.
const SOCKETS_MAX: u64 = 256;
/// Mode of the socket for publishing: the owner and the group may connect.
const PUBLISHERS: u32 = 0o660;

/// Bound listeners. They are bound before the log is opened, so a busy port leaves the log alone.
#[derive(Debug)]
pub struct Listening {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    /// Further listeners that systemd has bound.
    others: Vec<(TcpListener, SocketAddr)>,
    publishing: Option<(Listener, ListenAddress)>,
    metrics: Option<(TcpListener, SocketAddr)>,
    hangup: Signal,
}

impl Listening {
    /// Binds the listeners of a configuration; port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// See [`ServeError`].
    pub fn bind(config: &Config) -> Result<Self, ServeError> {
        // This runtime is for listeners and signals; connections go to the workers.
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ServeError::Start)?;
        // tokio's sockets and signals belong to the runtime that is entered.
        let entered = runtime.enter();
        // systemd may have bound the listeners for the server, so that no client is refused during
        // the start.
        let mut listeners = activated_sockets()?;
        if listeners.is_empty() {
            listeners.push(bind_address(config.listen)?);
        }
        // The real addresses are checked, because those that systemd has bound may be beyond
        // loopback.
        for (_, address) in &listeners {
            config.check_at(*address)?;
        }
        let (listener, address) = listeners.remove(0);
        let publishing = config.publish_listen.as_ref().map(bind_door).transpose()?;
        let metrics = config.metrics_listen.map(bind_address).transpose()?;
        // From here on, SIGHUP no longer ends the process.
        let hangup = signal(SignalKind::hangup()).map_err(ServeError::Start)?;
        drop(entered);
        Ok(Self {
            runtime,
            listener,
            address,
            others: listeners,
            publishing,
            metrics,
            hangup,
        })
    }

    /// Handles the signals that ask the process to end. Must be called before the server is
    /// announced, so that the server always ends in order.
    ///
    /// # Errors
    ///
    /// Returns why signals cannot be received.
    pub fn stop_signals(&self) -> Result<StopSignals, ServeError> {
        // A second signal ends the process at once. No acknowledged entry is lost then.
        let asked = Arc::new(AtomicBool::new(false));
        for (signal, code) in [(SIGTERM, exit::TERMINATED), (SIGINT, exit::INTERRUPTED)] {
            let code = code.into();
            // The handlers are registered in this order. In the other order, the first signal would
            // set the flag, and then end the process.
            register_conditional_shutdown(signal, code, Arc::clone(&asked))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
                .map_err(ServeError::Start)?;
        }
        let _runtime = self.runtime.enter();
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate()).map_err(ServeError::Start)?,
            interrupt: signal(SignalKind::interrupt()).map_err(ServeError::Start)?,
        })
    }

    /// Returns the address of the main listener, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the addresses of further listeners for the same requests.
    pub fn others(&self) -> impl Iterator<Item = SocketAddr> {
        self.others.iter().map(|(_, address)| *address)
    }

    /// Returns the listener for publishing requests, if there is a separate one.
    pub fn publishing(&self) -> Option<&ListenAddress> {
        self.publishing.as_ref().map(|(_, door)| door)
    }

    /// Returns the address of the listener for metrics, if there is one.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, address)| *address)
    }

    /// Returns the runtime of the listeners, which runs while they serve.
    pub fn runtime(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// Serves until `stop` completes and the requests in flight are answered, or cut off. Work that
    /// blocks a thread then has the time `cut_off` to end.
    pub(crate) fn serve(
        self,
        config: &Config,
        gates: Gates,
        pipeline: &Arc<Pipeline<Site>>,
        metrics: &Arc<Metrics>,
        stop: impl Future<Output = ()>,
        cut_off: Duration,
    ) -> io::Result<()> {
        let workers = Workers::start()?;
        let mut limits = config.limits();
        let doors = 1 + usize::from(self.publishing.is_some());
        limits.connections = allow_connections(limits.connections, doors);
        let (stopping, stopped) = watch::channel(false);
        let feeds = |rules: &Arc<AccessRules>| Service {
            answers: ListenerPipeline {
                pipeline: Arc::clone(pipeline),
                rules: Arc::clone(rules),
            },
            limits,
            copies: Arc::clone(pipeline.copies()),
            // Each service has slots of its own, so readers cannot take the slots of publishers.
            slots: Arc::new(Semaphore::new(limits.connections)),
            open: Arc::default(),
            stopping: stopped.clone(),
        };
        let scrapes = Service {
            answers: Scrapes {
                metrics: Arc::clone(metrics),
                hosts: pipeline.hosts().clone(),
            },
            limits: Limits {
                connections: METRICS_CONNECTIONS,
                ..limits
            },
            copies: Arc::default(),
            slots: Arc::new(Semaphore::new(METRICS_CONNECTIONS)),
            open: Arc::default(),
            stopping: stopped.clone(),
        };
        // All sockets for readers have one service, so that they share the slots.
        let reading = feeds(&gates.reading);
        let others = self.others.into_iter().map(|(listener, _)| listener);
        let readers = std::iter::once(self.listener).chain(others);
        let readers = readers.map(|listener| (Listener::Tcp(listener), reading.clone()));
        let publishing = self.publishing;
        let publishers = publishing.map(|(listener, _)| (listener, feeds(&gates.publishing)));
        let scraped = self
            .metrics
            .map(|(listener, _)| http::serve(Listener::Tcp(listener), scrapes, &workers));
        self.runtime.block_on(async {
            let reload = gates.reload_tokens(config.clone(), self.hangup);
            let stop = async {
                stop.await;
                info!("stopping");
                stopping.send_replace(true);
            };
            let serving = readers.chain(publishers);
            let serving =
                serving.map(|(listener, service)| http::serve(listener, service, &workers));
            // `stop` only raises the flag; each listener then drains by itself.
            let served = async {
                tokio::join!(join_all(serving), OptionFuture::from(scraped), stop);
            };
            // The reload does not run as a task, because a task that panics would end in silence.
            tokio::select! {
                () = served => {}
                () = reload => {}
            }
        });
        // The workers end first: nothing waits for tasks of the listeners' runtime when that is
        // dropped.
        workers.end(cut_off);
        Ok(())
    }
}

/// Access rules of the listeners, shared with their connections.
#[derive(Debug)]
pub(crate) struct Gates {
    reading: Arc<AccessRules>,
    publishing: Arc<AccessRules>,
}

impl Gates {
    /// Returns the rules of a configuration, with the tokens.
    ///
    /// # Errors
    ///
    /// Returns the problems of the file of tokens.
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        let (reading, publishing) = config.access_at_start()?;
        Ok(Self {
            reading: Arc::new(AccessRules::new(reading)),
            // Without a listener for publishing, no request ever gets to these rules.
            publishing: Arc::new(AccessRules::new(publishing.unwrap_or(Access::Readers))),
        })
    }

    /// Reads the file of tokens again on each SIGHUP. A wrong file changes nothing.
    async fn reload_tokens(self, config: Config, mut hangup: Signal) {
        while hangup.recv().await.is_some() {
            match config.access() {
                Ok((reading, publishing)) => {
                    self.reading.replace(reading);
                    self.publishing
                        .replace(publishing.unwrap_or(Access::Readers));
                    info!("the tokens are read again");
                }
                Err(error) => error!(%error, "the tokens stay as they were"),
            }
        }
        // No more signals can come, but the server goes on, so this future must not end.
        std::future::pending::<()>().await;
    }
}

/// Returns the sockets that systemd has bound for this process, in the order in which systemd
/// passes them.
fn activated_sockets() -> Result<Vec<(TcpListener, SocketAddr)>, ServeError> {
    let count = std::env::var_os("LISTEN_FDS").and_then(|count| count.to_str()?.parse().ok());
    if count.is_some_and(|count: u64| count > SOCKETS_MAX) {
        let problem = format!("LISTEN_FDS names more than {SOCKETS_MAX} sockets");
        return Err(ConfigError::of(problem).into());
    }
    let mut given = ListenFd::from_env();
    (0..given.len())
        .map(|number| {
            let unusable = |problem: &dyn std::fmt::Display| {
                let number = 3 + number;
                ConfigError::of(format!(
                    "the socket that was handed over as file descriptor {number} cannot be served: {problem}; only TCP \
                     sockets that listen can, and `publish-listen` takes the path of a Unix socket"
                ))
            };
            let listener = given.take_tcp_listener(number);
            let listener = listener.map_err(|error| unusable(&error))?;
            let listener = listener.ok_or_else(|| unusable(&"it was taken before"))?;
            if !socket_acceptconn(&listener).unwrap_or(true) {
                return Err(unusable(&"it does not listen").into());
            }
            taken_over(listener).map_err(|error| unusable(&error).into())
        })
        .collect()
}

fn bind_address(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let failed = |source| ServeError::Listen {
        door: ListenAddress::Address(address),
        source,
    };
    std::net::TcpListener::bind(address)
        .and_then(taken_over)
        .map_err(failed)
}

fn taken_over(listener: std::net::TcpListener) -> io::Result<(TcpListener, SocketAddr)> {
    // tokio requires this; a blocking `accept` would hold up a thread of the runtime.
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}

fn bind_door(door: &ListenAddress) -> Result<(Listener, ListenAddress), ServeError> {
    match door {
        ListenAddress::Address(address) => {
            let (listener, address) = bind_address(*address)?;
            Ok((Listener::Tcp(listener), ListenAddress::Address(address)))
        }
        ListenAddress::Socket(path) => {
            let failed = |source| ServeError::Listen {
                door: door.clone(),
                source,
            };
            let listener = socket::bind(path, PUBLISHERS).map_err(failed)?;
            let listener = UnixListener::from_std(listener).map_err(failed)?;
            Ok((Listener::Unix(listener), door.clone()))
        }
    }
}

/// Raises the limit on open files, for `connections` at each of `doors` listeners. Returns the
/// number of connections that the limit allows at each listener.
fn allow_connections(connections: usize, doors: usize) -> usize {
    let limits = getrlimit(Resource::Nofile);
    let needed = connections.saturating_mul(doors).saturating_add(FILES);
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    if limits.current.is_none_or(|current| current >= needed) {
        return connections;
    }
    // The hard limit cannot be raised without privileges.
    let allowed = limits.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = Rlimit {
        current: Some(allowed),
        ..limits
    };
    let allowed = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => allowed,
        Err(_) => limits.current.unwrap_or(needed),
    };
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    // If there are few descriptors, somewhat less than half of them are for connections.
    let left = allowed.saturating_sub(FILES.min(allowed / 2 + FILES_LEAST));
    // At least one connection is allowed, or nothing would be served.
    let fewer = connections.min((left / doors).max(1));
    if fewer < connections {
        warn!(
            allowed,
            connections = fewer,
            "the system allows too few open files for all connections: raise `ulimit -n`, or LimitNOFILE= of its unit"
        );
    }
    fewer
}

/// SIGTERM and SIGINT, from the call of [`Listening::stop_signals`] on: a signal that comes before
/// [`received`](Self::received) is called is not lost.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Completes when the process is asked to end. Returns true for SIGINT, from a terminal, and
    /// false for SIGTERM.
    pub async fn received(mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => true,
        }
    }
}
