//! Futures that are dropped at any of their awaits.
//!
//! Pure. For tests. A test polls a future n times and drops the future, for every n up to the end
//! of the future, so that a drop happens at each await. For each n the same work begins again, is
//! dropped once more, and then runs to the end.

use std::{fmt, future::poll_fn, pin::pin, task::Poll};

use tokio::task::yield_now;

use crate::transport::{Answer, Answering, Request, Transport};

/// Polls a future at most `times` times. Returns `None` if the future was dropped before the end.
pub(crate) async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), times);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Awaits a future that is made again after each of two drops. Sets `$was_dropped` if there was a
/// drop.
macro_rules! dropped {
    ($times:expr, $was_dropped:expr, $future:expr) => {{
        let mut drops = 0;
        loop {
            if drops == 2 {
                break $future.await;
            }
            match $crate::drops::polled($times, $future).await {
                Some(done) => break done,
                None => (drops, $was_dropped) = (drops + 1, true),
            }
        }
    }};
}
pub(crate) use dropped;

/// A transport that waits before the request goes out, and before the answer comes.
pub(crate) struct Hesitant<F>(pub(crate) F);

impl<F> fmt::Debug for Hesitant<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hesitant").finish_non_exhaustive()
    }
}

impl<F: Fn(&Request) -> Answer + Send + Sync> Transport for Hesitant<F> {
    fn send(&self, request: Request) -> Answering<'_> {
        Box::pin(async move {
            // A drop here comes before the server has the request. A drop at the next wait comes
            // after the server has the request.
            yield_now().await;
            let answer = (self.0)(&request);
            yield_now().await;
            Ok(answer)
        })
    }
}
