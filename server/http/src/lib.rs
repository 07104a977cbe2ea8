//! The HTTP shell: connections in, answers out.
//!
//! Shell: sockets. hyper's own connection builder speaks HTTP/1.1; a proxy in front may speak
//! HTTP/2 and TLS. This file adds the bounds: the number of connections, their age, the time that a
//! peer may take for a head, and the time that a peer may let an answer wait. Most files beside
//! this one decide the answers, without a socket.
#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests wait where nothing else does"
    )
)]

use std::{
    convert::Infallible,
    io,
    os::fd::AsFd as _,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, StreamExt as _, future, stream::FuturesUnordered};
use http_body_util::Either;
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::RwLock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use simplefeed_process::{
    lack::{advice, is_momentary},
    workers::Workers,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
};
use tokio_io_timeout::TimeoutStream;
use tracing::{debug, error, warn};

pub mod access;
pub mod conditional;
pub mod cookie;
pub mod coding;
pub mod problem;
pub mod reply;
pub mod ready;
pub mod request;
mod explained;
mod half_closed;
pub mod open;
pub mod kernel_copies;
pub mod answers;
pub mod endpoint;
pub mod limits;
pub mod traffic;
pub mod router;
mod gate;
pub mod sending;
pub mod pipeline;
mod progress;

use answers::Answer;
use explained::ExplainingStream;
use half_closed::HalfCloseStream;
use kernel_copies::{KernelCopies, Sending};
use limits::Limits;
use open::OpenConnections;
use progress::ConnectionProgress;
use traffic::Traffic;

use crate::access::Access;

/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest time for requests in flight, once the server is asked to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause after a connection could not be accepted, for lack of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two log lines that tell the same reason why connections cannot be accepted.
const TOLD_AGAIN: Duration = Duration::from_mins(1);
/// Largest number of connections over the limit that are answered at the same time; further ones
/// are closed without an answer.
const TURNED_AWAY_MAX: usize = 64;
/// Longest time for an idle connection to make room for a new one.
const ROOM_TIME: Duration = Duration::from_secs(1);
/// Longest time for a connection over the limit to take the answer.
const TURNED_AWAY_TIME: Duration = Duration::from_secs(1);
/// Answer to a connection over the limit, written without hyper.
const TURNED_AWAY: &str = "HTTP/1.1 503 Service Unavailable\r\n\
    connection: close\r\n\
    retry-after: 1\r\n\
    cache-control: no-store\r\n\
    content-type: application/problem+json\r\n\
    content-length: 127\r\n\r\n\
    {\"type\":\"urn:simplefeed:problem:busy\",\"title\":\"busy\",\"status\":503,\
    \"detail\":\"the server has as many connections as it may have\"}";

/// Source of the connections that a service answers.
#[derive(Debug)]
pub enum Listener {
    /// TCP, at an address and a port.
    Tcp(TcpListener),
    /// Unix socket, at a path in the file system.
    Unix(UnixListener),
}

/// An accepted connection that is not registered with a runtime yet.
enum Connection {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// Both directions of a connection.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

impl Connection {
    /// Gives the connection to the runtime of the running task.
    fn register(self, copies: &Arc<KernelCopies>) -> io::Result<Box<dyn Duplex>> {
        Ok(match self {
            Self::Tcp(stream) => {
                let stream = TcpStream::from_std(stream)?;
                Box::new(Sending::new(stream, Arc::clone(copies)))
            }
            Self::Unix(stream) => Box::new(UnixStream::from_std(stream)?),
        })
    }
}

impl Listener {
    async fn accept_next(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Nagle's algorithm is off: an answer is written whole, so the kernel need not wait
                // for more bytes.
                stream.set_nodelay(true)?;
                // The connection leaves this runtime, because a worker serves the connection on
                // another runtime.
                Ok(Connection::Tcp(stream.into_std()?))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Connection::Unix(stream.into_std()?))
            }
        }
    }

    /// Returns whether a connection waits to be accepted.
    fn has_waiting(&self) -> bool {
        let socket = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        };
        let at_once = Timespec::default();
        let asked = poll(
            &mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)],
            Some(&at_once),
        );
        // An error counts as no waiting connection: no open connection gives way to a newcomer that
        // may not exist.
        asked.is_ok_and(|ready| ready > 0)
    }
}

/// Access rules of a listener, which SIGHUP may replace at any time.
#[derive(Debug)]
pub struct AccessRules(RwLock<Arc<Access>>);

impl AccessRules {
    /// Returns access rules that hold until [`replace`](Self::replace) is called.
    pub fn new(access: Access) -> Self {
        Self(RwLock::new(Arc::new(access)))
    }

    /// Replaces the rules for all requests from now on.
    pub fn replace(&self, access: Access) {
        *self.0.write() = Arc::new(access);
    }

    /// Returns the rules that hold now.
    pub fn now(&self) -> Arc<Access> {
        Arc::clone(&self.0.read())
    }
}

/// End of a connection, which handlers watch and may bring about.
#[derive(Clone, Debug)]
pub struct ConnectionEnd {
    /// Becomes true when the connection is to end: because of age, or because the server stops.
    pub is_near: watch::Receiver<bool>,
    /// Signal that cuts the connection, also in the middle of an answer.
    cut: Arc<Notify>,
    progress: ConnectionProgress,
}

impl ConnectionEnd {
    /// Returns the sender that makes a connection end soon, and the end for the handlers.
    fn begin_pair() -> (watch::Sender<bool>, Self) {
        // Handlers learn of the end early, so that a stream can end with its last chunk.
        let (end, is_near) = watch::channel(false);
        let ending = Self {
            is_near,
            cut: Arc::default(),
            progress: ConnectionProgress::new(),
        };
        (end, ending)
    }

    /// Cuts the connection of a peer that is too slow.
    pub fn cut(&self) {
        self.cut.notify_one();
    }

    /// Notes that the request is complete. The answer then comes even if the peer has closed its
    /// half of the connection.
    pub fn owe_answer(&self) {
        self.progress.owe();
    }
}

/// Part of the server that answers the requests of a listener.
pub trait Answers: Clone + Send + Sync + 'static {
    /// Returns the answer to a request if it is at hand.
    fn at_hand(&self, _request: &Request<Incoming>) -> Option<Answer> {
        None
    }

    /// Answers a request that has no answer at hand.
    fn answer(
        &self,
        request: Request<Incoming>,
        ending: &ConnectionEnd,
    ) -> impl Future<Output = Answer> + Send;

    /// Returns the counters of connections and answers.
    fn traffic(&self) -> &dyn Traffic;

    /// Returns the answer to a request whose handler panicked.
    fn failed(&self) -> Answer;
}

/// Everything that the connections of a listener share.
#[derive(Clone, Debug)]
pub struct Service<A> {
    /// Part of the server that answers the requests.
    pub answers: A,
    /// Bounds on each connection, and on the number of connections.
    pub limits: Limits,
    /// Bodies that the kernel has copies of.
    pub copies: Arc<KernelCopies>,
    /// One permit for each connection that may be open.
    pub slots: Arc<Semaphore>,
    /// Connections that are open now.
    pub open: Arc<OpenConnections>,
    /// Becomes true when the server is to stop.
    pub stopping: watch::Receiver<bool>,
}

/// Serves connections on `workers` until the server is to stop, then lets requests in flight
/// finish.
pub async fn serve<A: Answers>(listener: Listener, service: Service<A>, workers: &Workers) {
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let mut stopping = service.stopping.clone();
    let mut told: Option<(Instant, Option<i32>)> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept_next() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let connection = match accepted {
            Ok(connection) => connection,
            Err(error) => {
                // On Linux, `accept` reserves a file handle before looking for a connection, so a
                // lack of handles may show while no connection waits. In that case, no idle
                // connection has to give way.
                if !is_momentary(&error) || listener.has_waiting() {
                    told = make_room(&error, &service.open, told);
                }
                // Without a pause, a lack of file descriptors would make this loop spin.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Waiting for a slot here would hold up all later connections.
        if let Ok(slot) = Arc::clone(&service.slots).try_acquire_owned() {
            workers.spawn(answer_all(connection, service.clone(), slot));
        } else if let Ok(place) = Arc::clone(&turned_away).try_acquire_owned() {
            let (service, has_idle) = (service.clone(), service.open.end_idlest());
            workers.spawn(async move {
                let room = Arc::clone(&service.slots).acquire_owned();
                if has_idle && let Ok(Ok(slot)) = tokio::time::timeout(ROOM_TIME, room).await {
                    drop(place);
                    return answer_all(connection, service, slot).await;
                }
                debug!("a connection is turned away");
                if let Ok(stream) = connection.register(&service.copies) {
                    turn_away(stream, place).await;
                }
            });
        }
    }
    // New connections are refused from here on, while the open ones drain.
    drop(listener);
    // Every slot is free once the last connection has ended.
    let all = u32::try_from(service.limits.connections).unwrap_or(u32::MAX);
    let ended = tokio::time::timeout(DRAIN_TIMEOUT, service.slots.acquire_many(all)).await;
    if ended.is_err() {
        warn!("requests in flight took too long and were cut off");
    }
}

/// Answers the requests of one connection, which has a slot.
async fn answer_all<A: Answers>(
    connection: Connection,
    service: Service<A>,
    slot: OwnedSemaphorePermit,
) {
    let Service {
        answers,
        limits,
        copies,
        open,
        stopping,
        ..
    } = service;
    answers.traffic().opened();
    match connection.register(&copies) {
        Ok(stream) => serve_connection(stream, limits, stopping, &open, &answers).await,
        Err(error) => warn!(%error, "a connection cannot be served"),
    }
    answers.traffic().closed();
    drop(slot);
}

/// Handles an error of an accept. If the cause is a lack of file handles or memory, which may be
/// over in a moment, lets an idle connection end to make room for the next one. Logs the error,
/// unless the same error was logged a moment ago. Returns the time and the number of the last
/// logged error.
fn make_room(
    error: &io::Error,
    open: &OpenConnections,
    told: Option<(Instant, Option<i32>)>,
) -> Option<(Instant, Option<i32>)> {
    if is_momentary(error) {
        open.end_idlest();
    }
    let (now, number) = (Instant::now(), error.raw_os_error());
    if told.is_some_and(|(at, what)| what == number && now - at <= TOLD_AGAIN) {
        return told;
    }
    let advice = advice(error);
    warn!(%error, advice, "connections cannot be accepted");
    Some((now, number))
}

/// Answers the requests of one connection, until the connection ends, is too old or gives way to
/// another one, or the server is to stop.
async fn serve_connection<S: AsyncRead + AsyncWrite, A: Answers>(
    stream: S,
    limits: Limits,
    mut stopping: watch::Receiver<bool>,
    open: &Arc<OpenConnections>,
    answers: &A,
) {
    let (end, ending) = ConnectionEnd::begin_pair();
    let (cut, progress) = (Arc::clone(&ending.cut), ending.progress.clone());
    let _entered = open.enter(progress.clone(), Arc::clone(&cut));
    let stream = bounded_stream(stream, limits.stall, progress);
    let ending = &ending;
    // The answers are borrowed: clones of values that all connections share would make the
    // processors wait for each other at each request.
    let answering = service_fn(move |request| {
        ending.progress.begin();
        if let Some(answer) = completed_at_once(answers, &request, ending) {
            return future::Either::Left(future::ready(Ok::<_, Infallible>(answer)));
        }
        // The future is boxed. Otherwise, every idle connection would keep memory for the future,
        // and every ready answer would copy that memory.
        let answer = complete_answer(answers, request, ending).map(Ok);
        future::Either::Right(answer.boxed())
    });
    let connection = http1::Builder::new()
        // `late` below bounds the time for a head.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answering);
    let mut connection = pin!(connection);
    // One bound holds for both: an idle connection, and a connection whose head comes slowly.
    let late = ending.progress.head_is_late(limits.idle);
    let late = late.map(|()| ConnectionTurn::IsOver("an idle connection ends"));
    let ends = async {
        tokio::select! {
            () = tokio::time::sleep(limits.age) => ConnectionTurn::Ends,
            _ = stopping.wait_for(|stopping| *stopping) => ConnectionTurn::Ends,
        }
    };
    let is_cut = || cut.notified().map(|()| ConnectionTurn::IsCut).boxed();
    // The set polls a future only when that future is woken, and not with each request.
    let mut turns: FuturesUnordered<_> =
        [late.boxed(), ends.boxed(), is_cut()].into_iter().collect();
    let ended = loop {
        let turn = tokio::select! {
            // The connection is polled first, so that bytes that have come save the connection from
            // the cut below.
            biased;
            ended = connection.as_mut() => break ended,
            Some(turn) = turns.next() => turn,
        };
        match turn {
            ConnectionTurn::Ends => {
                end.send_replace(true);
                connection.as_mut().graceful_shutdown();
                // The last answer has a bound in time, so that the connection ends: a slow peer
                // loses that answer.
                let last =
                    tokio::time::sleep(limits.body).map(|()| ConnectionTurn::IsOver(TOO_SLOW));
                turns.push(last.boxed());
            }
            ConnectionTurn::IsCut if ending.progress.is_wanted_again() => {
                // This connection has work again, so another idle connection has to give way to the
                // newcomer.
                open.end_idlest();
                turns.push(is_cut());
            }
            ConnectionTurn::IsCut => {
                return debug!("a connection is cut: it was idle, or its peer is too slow");
            }
            ConnectionTurn::IsOver(why) => return debug!("{why}"),
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended early");
    }
}

/// Returns a stream that bounds the time in which a peer takes no bytes, explains hyper's refusals,
/// and notes progress.
fn bounded_stream<S: AsyncRead + AsyncWrite>(
    stream: S,
    stall: Duration,
    progress: ConnectionProgress,
) -> HalfCloseStream<ExplainingStream<Pin<Box<TimeoutStream<S>>>>> {
    let mut stream = TimeoutStream::new(stream);
    // hyper has no timeout for a peer that takes no bytes of an answer.
    stream.set_write_timeout(Some(stall));
    let stream = ExplainingStream::new(Box::pin(stream), HEAD_BYTES_MAX);
    HalfCloseStream::new(stream, progress)
}

/// Returns the answer to a request if the answer is at hand. A panic costs one answer, not the
/// connection.
fn completed_at_once<A: Answers>(
    answers: &A,
    request: &Request<Incoming>,
    ending: &ConnectionEnd,
) -> Option<Answer> {
    let at_hand = AssertUnwindSafe(|| answers.at_hand(request));
    let mut answer =
        catch_unwind(at_hand).unwrap_or_else(|_panic| Some(failure_answer(answers)))?;
    note_made(&mut answer, ending);
    Some(answer)
}

/// Answers a request that has no answer at hand. A panic costs one answer, not the connection.
async fn complete_answer<A: Answers>(
    answers: &A,
    request: Request<Incoming>,
    ending: &ConnectionEnd,
) -> Answer {
    let answer = AssertUnwindSafe(async { answers.answer(request, ending).await });
    let answer = answer.catch_unwind().await;
    let mut answer = answer.unwrap_or_else(|_panic| failure_answer(answers));
    note_made(&mut answer, ending);
    answer
}

/// Notes that an answer is made.
fn note_made(answer: &mut Answer, ending: &ConnectionEnd) {
    match answer.body_mut() {
        Either::Left(_) => ending.progress.write(),
        Either::Right(stream) => *stream = ending.progress.stream(std::mem::take(stream)),
    }
}

fn failure_answer(answers: &impl Answers) -> Answer {
    error!("answering a request panicked");
    answers.failed()
}

const TOO_SLOW: &str = "a connection whose peer is too slow is cut";

/// Event in the life of a connection, other than a request.
enum ConnectionTurn {
    /// The connection is old, or the server stops: the connection ends after the current answer.
    Ends,
    /// The connection ends at once, unless the connection has work again.
    IsCut,
    /// The connection ends at once, for this reason.
    IsOver(&'static str),
}

/// Answers a connection over the limit, and closes it without losing the answer.
async fn turn_away<S>(mut stream: S, place: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let told = async {
        stream.write_all(TURNED_AWAY.as_bytes()).await?;
        // Only the sending half ends here, so that the bytes of the peer can still be read.
        stream.shutdown().await?;
        // A close with bytes unread would reset the connection, and the answer would be lost.
        let mut unread = [0; 1024];
        while stream.read(&mut unread).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    if let Ok(Err(error)) = tokio::time::timeout(TURNED_AWAY_TIME, told).await {
        debug!(%error, "a connection did not wait to be turned away");
    }
    drop(place);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;
    use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
    use hyper::{Response, body::Frame};

    use super::*;

    const LIMITS: Limits = Limits {
        connections: 1,
        idle: Duration::from_secs(10),
        body: Duration::from_secs(10),
        stall: Duration::from_secs(10),
        age: Duration::from_secs(10),
    };

    /// Bounds of a connection that ends only because of idleness.
    const LONG_LIVED: Limits = Limits {
        age: Duration::from_secs(1_000),
        ..LIMITS
    };

    /// Answers that a function gives, but for paths below `/ready`, whose answers are at hand.
    #[derive(Clone)]
    struct By<F>(F);

    #[derive(Debug)]
    struct Uncounted;

    impl Traffic for Uncounted {
        fn opened(&self) {}
        fn closed(&self) {}
        fn answered(&self, _: &'static str, _: u16, _: Duration) {}
        fn sent(&self, _: u64) {}
    }

    impl<F, T> Answers for By<F>
    where
        F: Fn(Request<Incoming>, ConnectionEnd) -> T + Clone + Send + Sync + 'static,
        T: Future<Output = Answer> + Send,
    {
        fn at_hand(&self, request: &Request<Incoming>) -> Option<Answer> {
            let which = request.uri().path().strip_prefix("/ready")?;
            assert_eq!(which, "/fine", "this is expected here");
            Some(Response::new(answers::whole("at hand;")))
        }

        fn answer(
            &self,
            request: Request<Incoming>,
            ending: &ConnectionEnd,
        ) -> impl Future<Output = Answer> + Send {
            self.0(request, ending.clone())
        }

        fn traffic(&self) -> &dyn Traffic {
            &Uncounted
        }

        fn failed(&self) -> Answer {
            answers::failed()
        }
    }

    /// Sends requests over one connection. Returns everything that comes back until the connection
    /// is closed.
    async fn answers_to<F, T>(requests: &str, limits: Limits, answer: F) -> String
    where
        F: Fn(Request<Incoming>, ConnectionEnd) -> T + Clone + Send + Sync + 'static,
        T: Future<Output = Answer> + Send,
    {
        let (mut client, server) = tokio::io::duplex(100_000);
        let (_running, stopping) = watch::channel(false);
        let asked = async move {
            client.write_all(requests.as_bytes()).await.unwrap();
            let mut answers = String::new();
            client.read_to_string(&mut answers).await.unwrap();
            answers
        };
        let answers = By(answer);
        let open = Arc::default();
        let served = serve_connection(server, limits, stopping, &open, &answers);
        tokio::join!(asked, served).0
    }

    /// Sends a request over a connection, and returns the first line of the answer.
    async fn ask(stream: &mut TcpStream, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut answer, mut piece) = (vec![], [0; 1_024]);
        // Each body in the test ends with one of these bytes.
        while !answer.ends_with(b";") && !answer.ends_with(b"}") {
            let length = stream.read(&mut piece).await.unwrap();
            assert!(length > 0, "the connection was closed");
            answer.extend_from_slice(&piece[..length]);
        }
        let answer = String::from_utf8(answer).unwrap();
        answer.lines().next().unwrap().to_owned()
    }

    /// Goal: if every slot has a connection, the connection that has been idle longest gives way to
    /// a new one. No connection with work gives way.
    #[tokio::test]
    async fn the_connection_longest_idle_gives_way() {
        const SLOTS: usize = 2;
        let (work, begun) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
        let shared = (Arc::clone(&work), Arc::clone(&begun));
        let answer = move |request: Request<Incoming>, _| {
            let (waits, begun) = shared.clone();
            async move {
                if request.uri().path() == "/slow" {
                    begun.fetch_add(1, Ordering::SeqCst);
                    waits.acquire().await.unwrap().forget();
                }
                Response::new(answers::whole("made;"))
            }
        };
        let (stop, stopping) = watch::channel(false);
        let service = Service {
            answers: By(answer),
            limits: Limits {
                connections: SLOTS,
                ..LONG_LIVED
            },
            copies: Arc::default(),
            slots: Arc::new(Semaphore::new(SLOTS)),
            open: Arc::default(),
            stopping,
        };
        let open = Arc::clone(&service.open);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let workers = Workers::start().unwrap();
        let connect = || async move { TcpStream::connect(address).await.unwrap() };
        let told = async {
            let (mut first, mut second) = (connect().await, connect().await);
            for stream in [&mut first, &mut second] {
                assert_eq!(ask(stream, "/").await, "HTTP/1.1 200 OK");
                open.until_idle(SLOTS).await;
            }
            let mut third = connect().await;
            assert_eq!(ask(&mut third, "/").await, "HTTP/1.1 200 OK");
            let closed = first.read(&mut [0; 8]).await.unwrap();
            assert_eq!(closed, 0, "the first one");
            assert_eq!(ask(&mut second, "/").await, "HTTP/1.1 200 OK");
            open.until_idle(SLOTS).await;
            // The third connection has been idle for longer than the second, but gets work.
            let slow = b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n";
            third.write_all(slow).await.unwrap();
            while begun.load(Ordering::SeqCst) < 1 {
                tokio::task::yield_now().await;
            }
            let mut fourth = connect().await;
            assert_eq!(ask(&mut fourth, "/").await, "HTTP/1.1 200 OK");
            let closed = second.read(&mut [0; 8]).await.unwrap();
            assert_eq!(closed, 0, "the second one");
            fourth.write_all(slow).await.unwrap();
            while begun.load(Ordering::SeqCst) < 2 {
                tokio::task::yield_now().await;
            }
            let refused = ask(&mut connect().await, "/").await;
            assert_eq!(refused, "HTTP/1.1 503 Service Unavailable");
            work.add_permits(2);
            for mut stream in [third, fourth] {
                let mut answer = [0; 15];
                stream.read_exact(&mut answer).await.unwrap();
                assert_eq!(&answer, b"HTTP/1.1 200 OK");
            }
            stop.send_replace(true);
        };
        tokio::join!(serve(Listener::Tcp(listener), service, &workers), told);
        workers.end(Duration::ZERO);
    }

    /// Goal: a connection that gets a request at the moment when asked to give way stays, and the
    /// next idle connection gives way instead.
    #[tokio::test]
    async fn a_connection_that_is_used_again_passes_its_end_on() {
        let work = Semaphore::new(0);
        let work: &'static Semaphore = Box::leak(Box::new(work));
        let answers = By(move |_, _| async move {
            work.acquire().await.unwrap().forget();
            Response::new(answers::whole("made;"))
        });
        // A connection ends only if asked to give way.
        let limits = Limits {
            idle: Duration::from_secs(1_000),
            ..LONG_LIVED
        };
        let (stop, stopping) = watch::channel(false);
        let open = Arc::<OpenConnections>::default();
        let serve = |stream| serve_connection(stream, limits, stopping.clone(), &open, &answers);
        let (mut longest, first) = tokio::io::duplex(1_000);
        let (mut other, second) = tokio::io::duplex(1_000);
        let used = async {
            open.until_idle(2).await;
            let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
            longest.write_all(request).await.unwrap();
            assert!(open.end_idlest());
            assert_eq!(other.read(&mut [0; 1]).await.unwrap(), 0, "it gives way");
            work.add_permits(1);
            let mut answer = [0; 15];
            longest.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200 OK");
            stop.send_replace(true);
        };
        // The first connection begins before the second, and so has been idle for longer.
        let second = async {
            open.until_idle(1).await;
            std::thread::sleep(Duration::from_millis(1));
            serve(second).await;
        };
        tokio::join!(serve(first), second, used);
    }

    #[test]
    fn who_is_turned_away_is_told_the_right_length() {
        let (head, body) = TURNED_AWAY.split_once("\r\n\r\n").unwrap();
        let length = format!("content-length: {}", body.len());
        assert!(head.ends_with(&length), "{length}");
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }

    /// Goal: a request that makes the server panic gets a 500, and the requests after that one get
    /// their answers, in order. That holds for answers at hand and for others.
    #[tokio::test]
    async fn a_panic_is_one_500() {
        let answer = |request: Request<Incoming>, _| async move {
            assert_eq!(request.uri().path(), "/fine", "this is expected here");
            Response::new(answers::whole("made;"))
        };
        let paths = [
            "/",
            "/fine",
            "/ready/not",
            "/ready/fine",
            "/fine",
            "/ready/fine",
        ];
        let requests = paths.map(|path| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let last = "GET /fine HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        let answers = answers_to(&(requests.concat() + last), LIMITS, answer).await;
        let answers = answers.split("HTTP/1.1 ").skip(1);
        let answers: Vec<_> = answers
            .map(|answer| {
                (
                    &answer[..3],
                    answer.rsplit("\r\n").next().unwrap_or_default(),
                )
            })
            .collect();
        let fine = ["made;", "at hand;", "made;", "at hand;", "made;"].map(|body| ("200", body));
        assert!(
            answers[0].0 == "500" && answers[2].0 == "500",
            "{answers:?}"
        );
        let others = [1, 3, 4, 5, 6].map(|index: usize| answers[index]);
        assert_eq!(others, fine);
    }

    /// A head that hyper refuses by itself is answered with a problem document, too.
    #[tokio::test]
    async fn a_head_that_cannot_be_read_is_explained() {
        let long = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(70_000));
        let heads = [
            ("nonsense\r\n\r\n".to_owned(), "400 Bad Request"),
            (
                format!(
                    "GET / HTTP/1.1\r\na: {}\r\n\r\n",
                    "a".repeat(HEAD_BYTES_MAX)
                ),
                "431 ",
            ),
            (
                format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101)),
                "431 ",
            ),
            (long, "4"),
        ];
        for (head, status) in heads {
            let answer = |_, _| async { Response::new(answers::empty()) };
            let answers = answers_to(&head, LIMITS, answer).await;
            assert!(
                answers.starts_with(&format!("HTTP/1.1 {status}")),
                "{answers}"
            );
            let (_, body) = answers.split_once("\r\n\r\n").unwrap();
            let problem: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(answers.contains("application/problem+json"), "{answers}");
            assert!(
                problem["status"]
                    .as_u64()
                    .is_some_and(|status| status >= 400)
            );
        }
    }

    /// Sends each text after a pause of so many seconds, over one connection. Each answer takes
    /// `answer` seconds. Returns the number of answers, and the seconds until the connection was
    /// closed.
    async fn talk(parts: &[(u64, &str)], answer: u64) -> (usize, u64) {
        let (mut client, server) = tokio::io::duplex(100_000);
        let (_running, stopping) = watch::channel(false);
        let began = tokio::time::Instant::now();
        let asked = async move {
            for (pause, part) in parts {
                tokio::time::sleep(Duration::from_secs(*pause)).await;
                // The connection may be closed already.
                let _closed = client.write_all(part.as_bytes()).await;
            }
            let mut answers = String::new();
            client.read_to_string(&mut answers).await.unwrap();
            answers.matches("HTTP/1.1 200").count()
        };
        let answers = By(move |_, _| async move {
            tokio::time::sleep(Duration::from_secs(answer)).await;
            Response::new(answers::whole("a"))
        });
        let served = async {
            serve_connection(server, LONG_LIVED, stopping, &Arc::default(), &answers).await;
            began.elapsed().as_secs()
        };
        tokio::join!(asked, served)
    }

    /// Goal: a peer that sends no head, or sends a head slowly, holds a connection for the idle
    /// time and no longer. No other peer is cut.
    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_for_each_head_as_long_as_it_may_be_idle() {
        let whole = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let halves = ["GET / HTTP/1.1\r\nHos", "t: h\r\n\r\n"];
        assert_eq!(talk(&[], 0).await, (0, 10), "none");
        assert_eq!(
            talk(&[(3, "G"), (3, "E"), (3, "T"), (3, " ")], 0).await,
            (0, 10),
            "slowly"
        );
        assert_eq!(talk(&[(9, whole)], 0).await, (1, 19), "one");
        let often = [(9, whole), (9, whole), (5, halves[0]), (4, halves[1])];
        assert_eq!(talk(&often, 0).await, (3, 37), "several");
        assert_eq!(talk(&[(4, whole)], 25).await, (1, 39), "a slow answer");
        let second_half_is_late = [(4, whole), (9, halves[0]), (2, halves[1])];
        assert_eq!(talk(&second_half_is_late, 0).await, (1, 14), "too late");
    }

    /// Goal: a peer that takes an answer slowly gets all of it, though that takes longer than a
    /// connection may be idle.
    #[tokio::test(start_paused = true)]
    async fn a_connection_is_not_idle_while_an_answer_is_taken() {
        let (mut client, server) = tokio::io::duplex(1_000);
        let (_running, stopping) = watch::channel(false);
        let began = tokio::time::Instant::now();
        let answers = By(|_, _| async { Response::new(answers::whole("a".repeat(20_000))) });
        let asked = async move {
            let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
            client.write_all(request).await.unwrap();
            let (mut space, mut answer) = ([0; 1_000], String::new());
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                match client.read(&mut space).await.unwrap() {
                    0 => break answer,
                    read => answer += std::str::from_utf8(&space[..read]).unwrap(),
                }
            }
        };
        let open = Arc::default();
        let served = serve_connection(server, LONG_LIVED, stopping, &open, &answers);
        let (answer, ()) = tokio::join!(asked, served);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body.len(), 20_000);
        assert!(began.elapsed() < Duration::from_secs(100));
    }

    /// Goal: a connection is not idle while the body of a request comes, nor before an answer that
    /// is at hand.
    #[tokio::test(start_paused = true)]
    async fn a_connection_is_not_idle_while_a_body_comes() {
        let (mut client, server) = tokio::io::duplex(100_000);
        let (_running, stopping) = watch::channel(false);
        let began = tokio::time::Instant::now();
        let answers = By(|request: Request<Incoming>, _| async {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Response::new(answers::whole(body))
        });
        let asked = async move {
            let head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n";
            client.write_all(head).await.unwrap();
            for byte in [b"a", b"b", b"c"] {
                tokio::time::sleep(Duration::from_secs(6)).await;
                client.write_all(byte).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(9)).await;
            let request = b"GET /ready/fine HTTP/1.1\r\nHost: h\r\n\r\n";
            client.write_all(request).await.unwrap();
            let mut answers = String::new();
            client.read_to_string(&mut answers).await.unwrap();
            answers.contains("\r\n\r\nabcHTTP") && answers.ends_with("at hand;")
        };
        let open = Arc::default();
        let served = serve_connection(server, LONG_LIVED, stopping, &open, &answers);
        let (are_whole, ()) = tokio::join!(asked, served);
        assert!(are_whole);
        assert_eq!(began.elapsed().as_secs(), 37);
    }

    /// Goal: after a stream, a connection may be idle as long as after any other answer. In the
    /// middle of a stream, a connection does not count as idle.
    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_for_a_head_after_a_stream() {
        let (mut client, server) = tokio::io::duplex(100_000);
        let (_running, stopping) = watch::channel(false);
        let began = tokio::time::Instant::now();
        let answers = By(|_, _| async {
            let frames = (0..5_u8).collect::<Vec<_>>();
            let frames = futures_util::stream::iter(frames).then(|_| async {
                tokio::time::sleep(Duration::from_secs(12)).await;
                Ok(Frame::data(Bytes::from_static(b"frame;")))
            });
            let body = StreamBody::new(frames);
            Response::new(Either::Right(UnsyncBoxBody::new(body)))
        });
        let asked = async move {
            let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
            client.write_all(request).await.unwrap();
            let mut answers = String::new();
            client.read_to_string(&mut answers).await.unwrap();
            answers.matches("frame;").count()
        };
        let open = Arc::default();
        let served = serve_connection(server, LONG_LIVED, stopping, &open, &answers);
        let (frames, ()) = tokio::join!(asked, served);
        assert_eq!((frames, began.elapsed().as_secs()), (5, 70));
    }

    /// Goal: a connection whose head was refused, and which its peer keeps open, ends by itself and
    /// takes no processor meanwhile.
    #[test]
    fn a_refused_head_shortly_before_the_time_is_over_stops_nobody() {
        let (sender, results) = std::sync::mpsc::channel();
        // The server runs in another thread, because a task that spins would stop the test as well.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                let (mut client, server) = tokio::io::duplex(100_000);
                let (_running, stopping) = watch::channel(false);
                let began = tokio::time::Instant::now();
                let answers = By(|_, _| async { Response::new(answers::whole("a")) });
                let open = Arc::default();
                let served = serve_connection(server, LONG_LIVED, stopping, &open, &answers);
                let asked = async {
                    tokio::time::sleep(Duration::from_secs(9)).await;
                    client.write_all(b"nonsense\r\n\r\n").await.unwrap();
                };
                tokio::join!(asked, served);
                sender.send(began.elapsed().as_secs()).unwrap();
                drop(client);
            });
        });
        let lasted = results.recv_timeout(Duration::from_secs(50));
        assert_eq!(lasted, Ok(11), "two seconds after the refusal");
    }

    /// Goal: a connection that is old enough ends with an answer, and not in the middle of one.
    #[tokio::test(start_paused = true)]
    async fn an_old_connection_ends_after_an_answer() {
        let limits = Limits {
            age: Duration::from_millis(20),
            ..LIMITS
        };
        let answer = |_, _| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Response::new(answers::whole("late"))
        };
        let request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let answers = answers_to(request, limits, answer).await;
        assert!(
            answers.contains("connection: close") && answers.ends_with("late"),
            "{answers}"
        );
    }

    /// Goal: a stream on a connection that is old enough is not cut, and ends with the last chunk.
    #[tokio::test]
    async fn a_stream_on_an_old_connection_is_not_cut_off() {
        let limits = Limits {
            age: Duration::from_millis(20),
            ..LIMITS
        };
        let answer = |_, mut ending: ConnectionEnd| async move {
            let end = async move {
                let ended = ending.is_near.wait_for(|ending| *ending).await;
                Ok(Frame::data(Bytes::from(format!(
                    "ended: {}",
                    ended.is_ok()
                ))))
            };
            let body = StreamBody::new(futures_util::stream::once(end));
            Response::new(Either::Right(UnsyncBoxBody::new(body)))
        };
        let answers = answers_to("GET / HTTP/1.1\r\nHost: h\r\n\r\n", limits, answer).await;
        assert!(answers.contains("ended: true"), "{answers}");
        assert!(answers.ends_with("\r\n0\r\n\r\n"), "{answers}");
    }
}
