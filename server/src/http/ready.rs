//! Answers kept ready: nothing about them is looked up, formatted or hashed again.
//!
//! Pure, in memory. A final answer stays right for ever, a growing one until its resource has grown.

use std::sync::Arc;

use bytes::Bytes;
use quick_cache::{Equivalent, Weighter, sync::Cache};

use super::reply::Reply;
use crate::views::documents::{Coding, Documents, Resource};

/// The bytes of bodies and headers kept in memory.
const READY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Memory of an answer without its body, in bytes; an estimate.
const HEADERS_BYTES: usize = 2 * 1024;

/// Complete answer for one path in one coding.
#[derive(Debug)]
pub struct Ready {
    resource: Resource,
    /// Its headers, with those that need the bytes.
    pub reply: Reply,
    /// Its bytes, if they were sent before.
    pub body: Option<Bytes>,
}

/// Key of a ready answer: its path and its coding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    coding: Coding,
    path: Box<str>,
}

/// Borrowed form of a key, for a lookup that copies no path.
#[derive(Hash)]
struct Wanted<'a> {
    coding: Coding,
    path: &'a str,
}

impl Equivalent<Key> for Wanted<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.coding == key.coding && *self.path == *key.path
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Arc<Ready>> for Weight {
    fn weight(&self, key: &Key, ready: &Arc<Ready>) -> u64 {
        let body = ready.body.as_ref().map_or(0, Bytes::len);
        // The resource may hold its bytes in both codings, beside the body that is sent.
        let body = body.max(ready.resource.held_bytes());
        u64::try_from(key.path.len() + HEADERS_BYTES + body).unwrap_or(u64::MAX)
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
    /// Returns the answer for a path in a coding, if it is ready and still right.
    pub fn get(&self, path: &str, coding: Coding, documents: &Documents) -> Option<Arc<Ready>> {
        let ready = self.0.get(&Wanted { coding, path })?;
        documents.holds(&ready.resource).then_some(ready)
    }

    /// Keeps an answer, unless the next one may have other headers.
    pub fn keep(
        &self,
        path: &str,
        coding: Coding,
        resource: Resource,
        reply: Reply,
        body: Option<Bytes>,
    ) {
        // Without its date the answer is not final: the date comes once its second is over.
        let is_settled = reply.is_settled() || resource.modified.is_none();
        if !(resource.lasts() && is_settled) {
            return;
        }
        let key = Key {
            coding,
            path: path.into(),
        };
        let ready = Ready {
            resource,
            reply,
            body,
        };
        self.0.insert(key, Arc::new(ready));
    }
}
