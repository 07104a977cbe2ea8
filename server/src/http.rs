//! The HTTP shell: connections in, answers out.
//!
//! Shell: sockets. HTTP/1.1 by hyper's own connection builder with a timer, without which its
//! timeouts are inert; HTTP/2 and TLS are the proxy's. What to answer is decided in the files beside
//! this one, which need no socket.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use simplefeed_core::limits::CONNECTIONS_MAX;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tracing::{debug, warn};

pub mod routes;
pub mod conditional;
pub mod coding;
pub mod problem;
pub mod reply;
pub mod ready;
pub mod publishing;
pub mod handler;

use handler::Handler;

/// Longer than nginx keeps an idle connection to us (60 s), so that it never uses one we just closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long requests in flight may take once the server is asked to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause after a connection could not be accepted, for lack of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `stop` completes, then lets requests in flight finish.
pub async fn serve(listener: TcpListener, handler: Arc<Handler>, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    tokio::pin!(stop);
    loop {
        let accepted = async {
            // Waiting for a slot before accepting leaves the surplus to the system's queue.
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut stop => break,
        };
        let Ok(slot) = slot else { break };
        match accepted {
            Ok((stream, _)) => connect(stream, slot, Arc::clone(&handler), &graceful),
            Err(error) => {
                warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown())
        .await
        .is_err()
    {
        warn!("requests in flight took too long and were cut off");
    }
}

fn connect(
    stream: TcpStream,
    slot: OwnedSemaphorePermit,
    handler: Arc<Handler>,
    graceful: &GracefulShutdown,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "a connection cannot be set up");
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let handler = Arc::clone(&handler);
        async move { Ok::<_, Infallible>(handler.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!(%error, "a connection ended early");
        }
        drop(slot);
    });
}
