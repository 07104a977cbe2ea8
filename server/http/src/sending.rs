//! Sending: the answer with a representation, under conditions and codings.
//!
//! Shell: moves disk work off the threads that serve connections.

use std::{
    error::Error as _,
    sync::{Arc, OnceLock},
};

use hyper::header::{HeaderMap, HeaderName};
use simplefeed_core::timestamp::Timestamp;
use simplefeed_process::clock::Clock;
use simplefeed_resource::{CodedBytes, Coding, Resource, Visibility, read_error::ReadError};
use tracing::error;

use super::{
    access::{Access, Audience},
    answers::{Answer, answer_to},
    coding::negotiate,
    conditional::Verdict,
    endpoint::Representation,
    problem::Problem,
    ready::{ReadyAnswer, ReadyAnswers},
    reply::{Reply, for_sites, repr_digest},
};

/// Sender of representations, which keeps the answers ready for other readers.
#[derive(Debug)]
pub(super) struct ResourceSender {
    /// Answers that are ready.
    pub(super) ready: ReadyAnswers,
    clock: Clock,
}

impl ResourceSender {
    /// Returns a sender without any ready answer.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            ready: ReadyAnswers::new(clock.clone()),
            clock,
        }
    }

    /// Answers with a representation of a resource, and keeps the answer for `url`.
    pub(super) async fn send_resource(
        &self,
        url: Option<&str>,
        label: &'static str,
        (headers, access): (&HeaderMap, &Access),
        shown: Representation,
    ) -> Result<Answer, Problem> {
        let coding = negotiate(headers).ok_or_else(Problem::not_acceptable)?;
        let Representation {
            resource,
            visibility,
            policy,
            headers: mut more,
            over,
            depends_on_reader,
        } = shown;
        more.extend(for_sites(visibility));
        let now = self.clock.now();
        let mut reply = Reply::new(&resource, coding, policy, more, now, over);
        if depends_on_reader {
            reply.vary_by_reader();
        }
        // Decided before the body is read, because a 304 needs no body.
        let verdict = reply.verdict(headers);
        let body = match verdict {
            Verdict::Send => {
                let content = content_of(&resource, coding).await?;
                if let Some(digest) = &content.digest {
                    let name = HeaderName::from_static("repr-digest");
                    reply.sent.insert(name, repr_digest(digest));
                }
                Some(content.bytes)
            }
            Verdict::NotModified | Verdict::Failed => None,
        };
        let answer = answer_to(verdict, &reply, body.as_ref())?;
        // Ready answers are sent without a check of tokens, so only an answer that needs no token
        // is kept.
        let audience = if depends_on_reader {
            access.audience(headers)
        } else {
            (visibility == Visibility::Public).then_some(Audience::Strangers)
        };
        if let (Some(audience), Some(url)) = (audience, url) {
            let ready = ReadyAnswer {
                resource,
                label,
                reply,
                body,
                copy: OnceLock::new(),
                made: now,
                depends_on_reader,
            };
            self.ready.keep(url, coding, audience, ready);
        }
        Ok(answer)
    }
}

/// Returns the bytes of a resource. Bytes that are not in memory yet are read or made on another
/// thread.
async fn content_of(resource: &Resource, coding: Coding) -> Result<CodedBytes, Problem> {
    if let Some(content) = resource.source().at_once(coding) {
        return Ok(content);
    }
    let source = Arc::clone(resource.source());
    off_thread(move || source.read(coding)).await
}

/// Returns whether the answer to a read would be a 304.
pub fn is_known(shown: &Representation, headers: &HeaderMap, now: Timestamp) -> bool {
    let Some(coding) = negotiate(headers) else {
        return false;
    };
    let policy = shown.policy.clone();
    // The further header fields of the answer play no part in the conditions.
    let reply = Reply::new(&shown.resource, coding, policy, vec![], now, shown.over);
    reply.verdict(headers) == Verdict::NotModified
}

/// Runs work that may read from the disk, on a thread that serves no connection.
///
/// # Errors
///
/// A problem with status 500 or 503 if the disk or the log cannot be read.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            // Only the log lines of the server tell the cause, which may name paths of files.
            if let Some(error) = error.source() {
                error!(error, "a document cannot be read");
            }
            Err(match error {
                ReadError::NotReady(reason) | ReadError::Momentary { reason, .. } => {
                    Problem::busy_with(reason)
                }
                ReadError::Lasting { reason, .. } => Problem::unavailable(reason),
                ReadError::Failed(_) => Problem::internal(),
            })
        }
        Err(error) => {
            error!(%error, "reading a document failed");
            Err(Problem::internal())
        }
    }
}
