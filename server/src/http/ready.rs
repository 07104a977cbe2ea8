//! Answers kept ready: nothing about them is looked up, formatted or hashed again.
//!
//! Pure, in memory. A final answer stays right for ever, a growing one until its resource has grown.

use std::sync::Arc;

use bytes::Bytes;
use quick_cache::{Equivalent, Weighter, sync::Cache};

use super::reply::Reply;
use crate::resource::{Coding, Resource};

/// The bytes of bodies and headers kept in memory.
const READY_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Memory of an answer without its body, in bytes; an estimate.
const HEADERS_BYTES: usize = 2 * 1024;

/// Complete answer for one URL in one coding.
#[derive(Debug)]
pub struct Ready {
    /// Resource of the answer.
    pub resource: Resource,
    /// Label of its requests in the metrics.
    pub label: &'static str,
    /// Its headers, with those that need the bytes.
    pub reply: Reply,
    /// Its bytes, if they were sent before.
    pub body: Option<Bytes>,
}

/// Key of a ready answer: its path, with the query where the answer depends on it, and its coding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    coding: Coding,
    url: Box<str>,
}

/// Borrowed form of a key, for a lookup that copies no path.
#[derive(Hash)]
struct Wanted<'a> {
    coding: Coding,
    url: &'a str,
}

impl Equivalent<Key> for Wanted<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.coding == key.coding && *self.url == *key.url
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Arc<Ready>> for Weight {
    fn weight(&self, key: &Key, ready: &Arc<Ready>) -> u64 {
        let body = ready.body.as_ref().map_or(0, Bytes::len);
        // The resource may hold its bytes in both codings, beside the body that is sent.
        let body = body.max(ready.resource.source().held_bytes());
        u64::try_from(key.url.len() + HEADERS_BYTES + body).unwrap_or(u64::MAX)
    }
}

/// The answers that are ready.
pub struct ReadyAnswers(Cache<Key, Arc<Ready>, Weight>);

impl std::fmt::Debug for ReadyAnswers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyAnswers").finish_non_exhaustive()
    }
}

impl Default for ReadyAnswers {
    fn default() -> Self {
        Self(Cache::with_weighter(10_000, READY_BYTES_MAX, Weight))
    }
}

impl ReadyAnswers {
    /// Returns the answer for a URL in a coding, if it is ready and still right.
    pub fn get(&self, url: &str, coding: Coding) -> Option<Arc<Ready>> {
        let ready = self.0.get(&Wanted { coding, url })?;
        ready.resource.is_current().then_some(ready)
    }

    /// Keeps an answer, unless the next one may have other headers.
    pub fn keep(&self, url: &str, coding: Coding, ready: Ready) {
        // Without its date the answer is not final: the date comes once its second is over.
        let is_stable = ready.reply.is_stable() || ready.resource.modified.is_none();
        if ready.resource.may_be_kept() && is_stable {
            let url = url.into();
            self.0.insert(Key { coding, url }, Arc::new(ready));
        }
    }
}
