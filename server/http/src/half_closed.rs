//! Answers for a peer that has sent all its requests and closed its half of the connection.
//!
//! Shell: a stream around a stream. hyper takes the end of the requests for the end of the peer,
//! and drops an answer that is not written yet. So this stream hides the end while an answer is
//! owed. While a handler waits or an answer streams, the end is not hidden: there may be no other
//! sign that the peer is gone. Once a stream has ended, the last bytes count as an owed answer. If
//! the peer is gone altogether, an owed answer is made in vain, but in a bounded time.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::progress::ConnectionProgress;

/// A connection whose peer may close its sending half early.
#[derive(Debug)]
pub(super) struct HalfCloseStream<S> {
    stream: S,
    progress: ConnectionProgress,
    /// Whether the last read met the end of the requests.
    has_ended: bool,
    /// Whether that end is hidden, so that hyper has to be woken later.
    is_hidden: bool,
}

impl<S> HalfCloseStream<S> {
    /// Wraps a stream. `progress` notes whether an answer is owed.
    pub(super) fn new(stream: S, progress: ConnectionProgress) -> Self {
        Self {
            stream,
            progress,
            has_ended: false,
            is_hidden: false,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfCloseStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        if !is_end {
            self.progress.received();
        }
        // At the first read of the end, the handler gets one turn. The second read finds out
        // whether an answer is owed.
        let is_first = !std::mem::replace(&mut self.has_ended, is_end);
        if is_end && self.progress.may_owe() && is_first {
            // In this turn, the handler of a complete request notes that the request is complete.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if is_end && self.progress.owes() {
            // No wake here: `poll_flush` wakes hyper once the answer is written.
            self.is_hidden = true;
            return Poll::Pending;
        }
        self.is_hidden = false;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfCloseStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        // hyper flushes the stream once everything buffered is written.
        if self.progress.written() && std::mem::take(&mut self.is_hidden) {
            // A woken hyper reads again, and meets the end.
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.progress.end();
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Wake, Waker},
    };

    use http_body_util::combinators::UnsyncBoxBody;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Goal: the end is hidden while an answer is owed, and hyper is woken once for a hidden end.
    #[test]
    fn the_end_is_hidden_while_an_answer_is_owed() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut is_shown = |stream: &mut HalfCloseStream<tokio::io::DuplexStream>| {
            let mut space = [0; 10];
            let mut buffer = ReadBuf::new(&mut space);
            let read = Pin::new(stream).poll_read(&mut context, &mut buffer);
            read.is_ready()
        };
        let mut flush_context = Context::from_waker(&waker);
        let mut flush = |stream: &mut HalfCloseStream<tokio::io::DuplexStream>| {
            assert!(Pin::new(stream).poll_flush(&mut flush_context).is_ready());
        };
        let ended = || {
            let (client, server) = tokio::io::duplex(10);
            drop(client);
            let progress = ConnectionProgress::new();
            (HalfCloseStream::new(server, progress.clone()), progress)
        };
        let woken = || wakes.0.swap(0, Ordering::SeqCst);

        let (mut idle, _) = ended();
        assert!(is_shown(&mut idle), "nothing is owed");

        let (mut incomplete, progress) = ended();
        progress.begin();
        assert!(!is_shown(&mut incomplete));
        assert_eq!(woken(), 1, "in the next turn");
        assert!(is_shown(&mut incomplete));

        let (mut whole, progress) = ended();
        progress.begin();
        assert!(!is_shown(&mut whole));
        progress.owe();
        assert!(!is_shown(&mut whole));
        flush(&mut whole);
        progress.write();
        assert_eq!(woken(), 1, "the answer is not written");
        flush(&mut whole);
        assert_eq!(woken(), 1, "it is written");
        flush(&mut whole);
        assert_eq!(woken(), 0, "once");
        assert!(is_shown(&mut whole));

        let (mut stream, progress) = ended();
        progress.begin();
        progress.owe();
        assert!(!is_shown(&mut stream));
        let body = progress.stream(UnsyncBoxBody::default());
        flush(&mut stream);
        assert_eq!(woken(), 1, "a stream begins");
        assert!(is_shown(&mut stream));
        flush(&mut stream);
        assert_eq!(woken(), 0, "it is shown");
        drop(body);
        assert!(!is_shown(&mut stream), "its last bytes are to be written");
        flush(&mut stream);
        assert_eq!(woken(), 1, "they are written");
    }
}
