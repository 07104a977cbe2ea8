//! Answers kept ready, which need no further lookup, formatting or hashing.
//!
//! Shell: a clock, and a cache that all threads share. An answer about a final resource stays right
//! for ever. An answer about a growing resource stays right until the resource grows.

use std::{
    convert::identity,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use hyper::HeaderMap;
use quick_cache::{Equivalent, Weighter, sync::Cache};
use simplefeed_core::timestamp::Timestamp;
use simplefeed_process::clock::Clock;
use simplefeed_resource::{Coding, Resource};

use super::{
    answers::{Answer, answer_to, problem_answer},
    coding::negotiate,
    conditional::Verdict,
    kernel_copies::{KernelCopies, Registration},
    reply::Reply,
};
use crate::access::Audience;

/// Upper bound of the bytes of all kept bodies and headers together.
const READY_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Memory of an answer without its body, in bytes; an estimate.
const HEADERS_BYTES: usize = 2 * 1024;

/// Complete answer for one URL in one coding.
#[derive(Debug)]
pub struct ReadyAnswer {
    /// Resource of the answer.
    pub resource: Resource,
    /// Label of the requests in the metrics.
    pub label: &'static str,
    /// Headers of the answer. If there is a body, they include those that depend on the bytes.
    pub reply: Reply,
    /// Bytes of the answer, if they were sent before.
    pub body: Option<Bytes>,
    /// Registration of the kernel's copy of the bytes, made at the second request for them.
    pub copy: OnceLock<Registration>,
    /// Time at which the answer was made.
    pub made: Timestamp,
    /// Whether other readers may get other bytes from the same URL.
    pub depends_on_reader: bool,
}

impl ReadyAnswer {
    /// Returns whether a later answer has the same headers as long as the resource is unchanged. An
    /// answer without the date of its resource is not final: a later one has the date.
    fn is_final(&self) -> bool {
        self.reply.is_stable() || self.resource.modified.is_none()
    }
}

/// Key of a ready answer: coding, readers, and path, with the query where the answer depends on the
/// query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReadyKey {
    coding: Coding,
    audience: Audience,
    url: Box<str>,
}

/// Borrowed form of a key, for a lookup that copies no path.
#[derive(Hash)]
struct BorrowedKey<'a> {
    coding: Coding,
    audience: Audience,
    url: &'a str,
}

impl Equivalent<ReadyKey> for BorrowedKey<'_> {
    fn equivalent(&self, key: &ReadyKey) -> bool {
        self.coding == key.coding && self.audience == key.audience && *self.url == *key.url
    }
}

#[derive(Clone)]
struct ReadyWeight;

impl Weighter<ReadyKey, Arc<ReadyAnswer>> for ReadyWeight {
    fn weight(&self, key: &ReadyKey, ready: &Arc<ReadyAnswer>) -> u64 {
        let body = ready.body.as_ref().map_or(0, Bytes::len);
        // The resource may hold its bytes in both codings, and the body is then one of these.
        let body = body.max(ready.resource.source().held_bytes());
        u64::try_from(key.url.len() + HEADERS_BYTES + body).unwrap_or(u64::MAX)
    }
}

/// The answers that are ready.
pub struct ReadyAnswers {
    kept: Cache<ReadyKey, Arc<ReadyAnswer>, ReadyWeight>,
    copies: Arc<KernelCopies>,
    clock: Clock,
}

impl std::fmt::Debug for ReadyAnswers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyAnswers").finish_non_exhaustive()
    }
}

impl ReadyAnswers {
    /// Returns a cache without any answer, which takes the time from `clock`.
    pub fn new(clock: Clock) -> Self {
        let kept = Cache::with_weighter(10_000, READY_BYTES_MAX, ReadyWeight);
        Self {
            kept,
            copies: Arc::default(),
            clock,
        }
    }

    /// Returns the bodies that the kernel has copies of.
    pub fn copies(&self) -> &Arc<KernelCopies> {
        &self.copies
    }

    /// Returns the ready answer to a read of a URL, with the label, if that answer is still right.
    /// `audience` returns the group of the reader, and is not called for an answer that every
    /// reader gets.
    pub fn answer(
        &self,
        url: &str,
        headers: &HeaderMap,
        audience: impl FnOnce() -> Option<Audience>,
    ) -> Option<(&'static str, Answer)> {
        let coding = negotiate(headers)?;
        let ready = match self.get(url, coding, Audience::Strangers) {
            Some(ready) if !ready.depends_on_reader => ready,
            found => match audience()? {
                Audience::Strangers => found?,
                Audience::Everyone => self.get(url, coding, Audience::Everyone)?,
            },
        };
        let verdict = ready.reply.verdict(headers);
        if verdict == Verdict::Send {
            // Without a body, only 304s were sent so far, and the handler has to read the bytes.
            let body = ready.body.as_ref()?;
            // A copy of bytes that change would seldom be used often enough to pay.
            if ready.resource.is_final()
                && ready.copy.get().is_none()
                && let Some(copy) = self.copies.copy(body)
            {
                ready.copy.get_or_init(|| copy);
            }
        }
        let answer = answer_to(verdict, &ready.reply, ready.body.as_ref());
        let answer = answer.map_or_else(|problem| problem_answer(&problem), identity);
        Some((ready.label, answer))
    }

    fn get(&self, url: &str, coding: Coding, audience: Audience) -> Option<Arc<ReadyAnswer>> {
        let wanted = BorrowedKey {
            coding,
            audience,
            url,
        };
        let ready = self.kept.get(&wanted)?;
        // An answer without `Last-Modified` serves the rest of the second in which it was made, so
        // that all waiters that a change wakes share the answer.
        let is_right = ready.resource.is_current()
            && (ready.is_final() || self.clock.now().second() == ready.made.second());
        is_right.then_some(ready)
    }

    /// Keeps an answer for an audience. For an answer that depends on no reader, the caller passes
    /// [`Audience::Strangers`].
    pub fn keep(&self, url: &str, coding: Coding, audience: Audience, ready: ReadyAnswer) {
        // Other resources are not kept: nothing could tell later whether they are still current.
        if ready.resource.may_be_kept() {
            let key = ReadyKey {
                coding,
                audience,
                url: url.into(),
            };
            self.kept.insert(key, Arc::new(ready));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::reply::NO_STORE;
    use simplefeed_process::clock::ClockReading;
    use simplefeed_resource::Validity;

    /// Goal: a final body that is read again has a copy in the kernel, as long as the answer is
    /// kept.
    #[test]
    #[cfg(target_os = "linux")]
    fn only_final_answers_that_are_kept_have_copies() {
        let answers = ReadyAnswers::new(clock());
        let keep = |url: &str, is_final| {
            let bytes = Bytes::from(vec![b'x'; 20_000]);
            let resource = if is_final {
                Resource::frozen("text/plain", now(), bytes.clone(), Bytes::new())
            } else {
                let later = std::time::Duration::from_mins(10);
                Resource::renewed("text/plain", bytes.clone(), later)
            };
            let ready = ReadyAnswer {
                reply: Reply::new(&resource, Coding::Identity, NO_STORE, vec![], now(), 0),
                resource,
                label: "document",
                body: Some(bytes),
                copy: OnceLock::new(),
                made: now(),
                depends_on_reader: false,
            };
            answers.keep(url, Coding::Identity, Audience::Strangers, ready);
        };
        let copies_after = |url| {
            assert!(answers.answer(url, &HeaderMap::new(), || None).is_some());
            answers.copies().count()
        };
        keep("/growing", false);
        assert_eq!(copies_after("/growing"), 0);
        keep("/final", true);
        assert_eq!(answers.copies().count(), 0, "it was sent once");
        assert_eq!(copies_after("/final"), 1);
        assert_eq!(copies_after("/final"), 1);
        keep("/final", true);
        assert_eq!(answers.copies().count(), 0, "another one took its place");
    }

    static SECOND: AtomicI64 = AtomicI64::new(0);

    fn clock() -> Clock {
        let read = || ClockReading {
            wall: now(),
            boot: 0,
        };
        Clock::new(read, None)
    }

    fn now() -> Timestamp {
        Timestamp::from_micros(SECOND.load(Ordering::SeqCst) * 1_000_000)
    }

    /// Goal: an answer without `Last-Modified` (rule H-4) serves readers in the second in which the
    /// answer was made. Later readers get the date.
    #[test]
    fn h_4_an_answer_without_its_date_serves_for_its_second() {
        let answers = ReadyAnswers::new(clock());
        let bytes = Bytes::from_static(b"grows");
        let later = std::time::Instant::now() + std::time::Duration::from_mins(10);
        let modified = Some(Timestamp::from_micros(7_000_000));
        let (coding, validity) = (Coding::Identity, Validity::Until(later));
        let resource = Resource::of_bytes("text/plain", modified, validity, bytes.clone());
        SECOND.store(7, Ordering::SeqCst);
        let ready = |over| ReadyAnswer {
            resource: resource.clone(),
            label: "document",
            reply: Reply::new(&resource, coding, NO_STORE, vec![], now(), over),
            body: Some(bytes.clone()),
            copy: OnceLock::new(),
            made: now(),
            depends_on_reader: false,
        };
        let is_ready = || answers.answer("/a", &HeaderMap::new(), || None).is_some();
        assert!(!is_ready());
        let undated = ready(6);
        assert!(!undated.reply.is_stable());
        answers.keep("/a", coding, Audience::Strangers, undated);
        assert!(is_ready());
        SECOND.store(8, Ordering::SeqCst);
        assert!(!is_ready());
        answers.keep("/a", coding, Audience::Strangers, ready(7));
        SECOND.store(100, Ordering::SeqCst);
        assert!(is_ready());
    }

    /// Goal: an answer that depends on its reader goes to readers of its audience only, and to no
    /// holder of a token.
    #[test]
    fn what_depends_on_the_reader_is_for_equal_ones() {
        let answers = ReadyAnswers::new(clock());
        let later = std::time::Duration::from_mins(10);
        let keep = |url: &str, audience, text: &'static str, depends_on_reader| {
            let bytes = Bytes::from_static(text.as_bytes());
            let resource = Resource::renewed("text/plain", bytes.clone(), later);
            let coding = Coding::Identity;
            let ready = ReadyAnswer {
                reply: Reply::new(&resource, coding, NO_STORE, vec![], now(), 0),
                resource,
                label: "list",
                body: Some(bytes),
                copy: OnceLock::new(),
                made: now(),
                depends_on_reader,
            };
            answers.keep(url, coding, audience, ready);
        };
        let length = |url, audience| {
            let (_, answer) = answers.answer(url, &HeaderMap::new(), || audience)?;
            hyper::body::Body::size_hint(answer.body()).exact()
        };
        keep("/all", Audience::Strangers, "1", false);
        keep("/list", Audience::Strangers, "22", true);
        keep("/list", Audience::Everyone, "333", true);
        keep("/other", Audience::Everyone, "4444", true);
        let each = [None, Some(Audience::Strangers), Some(Audience::Everyone)];
        assert_eq!(each.map(|one| length("/all", one)), [Some(1); 3]);
        assert_eq!(
            each.map(|one| length("/list", one)),
            [None, Some(2), Some(3)]
        );
        assert_eq!(each.map(|one| length("/other", one)), [None, None, Some(4)]);
    }
}
