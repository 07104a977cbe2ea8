//! A consumer for programs without an asynchronous runtime.
//!
//! Shell: a runtime of its own, on the calling thread.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::{
    consumer::{Consumer, ConsumerError},
    delivery::Delivery,
};

/// A consumer whose calls block.
///
/// The iterator ends when a consumer that does not follow is caught up; the next call looks again.
///
/// # Examples
///
/// ```no_run
/// use simplefeed_client::{Blocking, Consumer, FileBookmark};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let feed = Consumer::builder("https://example.org/feeds/orders")
///     .bookmark(FileBookmark::open("orders.bookmark")?)
///     .build()?;
/// let mut feed: Blocking = feed.blocking()?;
/// while let Some(delivery) = feed.next() {
///     let delivery = delivery?;
///     println!("{}", delivery.id());
///     feed.accept(&delivery)?; // durable when it returns
/// }
/// println!("{:?}", feed.consumer().remaining());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Blocking {
    consumer: Consumer,
    /// `None` only during the drop.
    runtime: Option<Runtime>,
}

impl Consumer {
    /// Returns a consumer whose calls block, for a program without a runtime.
    ///
    /// # Errors
    ///
    /// Returns why the system refuses a runtime, or that this thread belongs to a runtime, as a
    /// thread of `spawn_blocking` does. A thread of `std::thread` may block.
    pub fn blocking(self) -> io::Result<Blocking> {
        // On a thread that runs tasks, tokio would panic at the first call.
        if Handle::try_current().is_ok() {
            return Err(io::Error::other(
                "this thread belongs to a tokio runtime; await the consumer, or block on a thread of std::thread",
            ));
        }
        // Requests need the I/O of the runtime, and pauses need the timer.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Blocking {
            consumer: self,
            runtime: Some(runtime),
        })
    }
}

impl Drop for Blocking {
    /// Drops the requests that are on their way. On a thread that runs tasks, a plain drop of the
    /// runtime would panic.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Blocking {
    /// Accepts an entry and all earlier entries. The bookmark is durable when this returns.
    ///
    /// # Errors
    ///
    /// See [`ConsumerError`].
    pub fn accept(&mut self, delivery: &Delivery) -> Result<(), ConsumerError> {
        // Only the drop takes the runtime out.
        let runtime = self.runtime.as_ref().expect("it is not dropped yet");
        runtime.block_on(self.consumer.accept(delivery))
    }

    /// Returns the consumer, to be asked about its state.
    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }
}

impl Iterator for Blocking {
    type Item = Result<Delivery, ConsumerError>;

    /// Returns the next entry, once there is one; see [`Consumer::next`].
    fn next(&mut self) -> Option<Self::Item> {
        let runtime = self.runtime.as_ref().expect("it is not dropped yet");
        runtime.block_on(self.consumer.next()).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::transport::{Answer, Answering, Request, Transport};

    #[derive(Debug)]
    struct TwoEntries;

    impl Transport for TwoEntries {
        fn send(&self, _: Request) -> Answering<'_> {
            let feed = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
                <entry><id>urn:2</id></entry><entry><id>urn:1</id></entry></feed>";
            let headers = vec![("content-type".into(), "application/atom+xml".into())];
            Box::pin(async move {
                Ok(Answer {
                    status: 200,
                    headers,
                    body: feed.into(),
                })
            })
        }
    }

    fn feed() -> Consumer {
        let feed = Consumer::builder("https://example.org/f").transport(Arc::new(TwoEntries));
        feed.build().unwrap()
    }

    #[test]
    fn a_program_without_a_runtime_reads_a_feed() {
        let mut feed = feed().blocking().unwrap();
        let mut ids = vec![];
        while let Some(delivery) = feed.next() {
            let delivery = delivery.unwrap();
            feed.accept(&delivery).unwrap();
            ids.push(delivery.id().to_owned());
        }
        assert_eq!(ids, ["urn:1", "urn:2"]);
    }

    #[test]
    fn it_can_be_dropped_on_a_thread_of_a_runtime() {
        let feed = feed().blocking().unwrap();
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async move { drop(feed) });
    }

    #[tokio::test]
    async fn a_thread_of_a_runtime_is_not_blocked() {
        let refused = feed().blocking().unwrap_err();
        assert!(refused.to_string().contains("runtime"), "{refused}");
    }
}
