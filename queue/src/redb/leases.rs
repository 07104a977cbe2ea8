//! Leases of this process: jobs, tokens and deadlines.

use std::collections::{BTreeSet, HashMap, HashSet};

use chrono::{DateTime, Utc};

use crate::{
    job::{Extension, Namespace, Token, later},
    queue::Taken,
};

/// Tokens of one opening of the file.
const TOKENS_OF_OPENING: u32 = 40;

/// A leased job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leased {
    /// Number of its token.
    pub(super) number: i64,
    /// Its due time, by which it stands in the file.
    pub(super) due: i64,
    until: DateTime<Utc>,
}

/// Where a search for due jobs starts: due time and key.
type From = (i64, String);

/// Leases of all namespaces.
#[derive(Debug, Default)]
pub(super) struct Leases {
    number: i64,
    of: HashMap<Namespace, OfNamespace>,
}

/// Leases of a namespace.
#[derive(Debug, Default)]
pub(super) struct OfNamespace {
    held: HashMap<String, Leased>,
    by_end: BTreeSet<(DateTime<Utc>, String)>,
    /// Every job that stands before this in the order of due times is leased, so that a search need not pass them.
    from: From,
}

impl OfNamespace {
    /// Makes jobs available again whose leases have expired.
    fn expire(&mut self, now: DateTime<Utc>) {
        while let Some((until, key)) = self.by_end.pop_first() {
            if until > now {
                self.by_end.insert((until, key));
                return;
            }
            if let Some(leased) = self.held.remove(&key) {
                self.offer(leased.due, &key);
            }
        }
    }

    /// Notes that a job may be leased.
    pub(super) fn offer(&mut self, due: i64, key: &str) {
        if (due, key) < (self.from.0, self.from.1.as_str()) {
            self.from = (due, key.to_owned());
        }
    }

    /// Notes that a search found no job before this one that is not leased.
    pub(super) fn pass(&mut self, due: i64, key: &str) {
        self.from = (due, key.to_owned());
    }

    /// Returns where a search starts.
    pub(super) fn from(&self) -> (i64, &str) {
        (self.from.0, &self.from.1)
    }

    /// Returns the lease of a job.
    pub(super) fn of_key(&self, key: &str) -> Option<Leased> {
        self.held.get(key).copied()
    }

    /// Returns the lease that a token names.
    pub(super) fn of_token(&self, token: &Token) -> Option<Leased> {
        self.of_key(&token.key)
            .filter(|leased| leased.number == token.number)
    }

    /// Leases a job, or extends its lease.
    pub(super) fn lease(&mut self, key: &str, number: i64, due: i64, until: DateTime<Utc>) {
        self.end(key);
        self.held
            .insert(key.to_owned(), Leased { number, due, until });
        self.by_end.insert((until, key.to_owned()));
    }

    /// Ends the lease of a job, if there is one.
    pub(super) fn end(&mut self, key: &str) {
        if let Some(leased) = self.held.remove(key) {
            self.by_end.remove(&(leased.until, key.to_owned()));
        }
    }

    /// Returns the end of the first lease to expire.
    pub(super) fn first_end(&self) -> Option<DateTime<Utc>> {
        self.by_end.first().map(|(until, _)| *until)
    }

    /// Returns the keys of leased jobs.
    pub(super) fn keys(&self) -> HashSet<String> {
        self.held.keys().cloned().collect()
    }
}

impl Leases {
    /// Returns those of a file that was opened so many times, whose tokens no earlier opening gave.
    pub(super) fn of_opening(opening: i64) -> Self {
        Self {
            number: opening << TOKENS_OF_OPENING,
            of: HashMap::new(),
        }
    }

    /// Returns the number of a new token.
    pub(super) fn next_number(&mut self) -> i64 {
        self.number += 1;
        self.number
    }

    /// Returns the leases of a namespace that have not expired.
    pub(super) fn of(&mut self, namespace: &Namespace, now: DateTime<Utc>) -> &mut OfNamespace {
        let leases = self.of.entry(namespace.clone()).or_default();
        leases.expire(now);
        leases
    }

    /// Extends a lease, and returns it, if the token is valid.
    pub(super) fn extend(&mut self, extension: &Extension, now: DateTime<Utc>) -> Option<Leased> {
        let Extension { token, lease, .. } = extension;
        let leases = self.of(&token.namespace, now);
        let leased = leases.of_token(token)?;
        leases.lease(&token.key, leased.number, leased.due, later(now, *lease));
        Some(leased)
    }

    /// Ends leases whose worker has gone before it got them.
    pub(super) fn give_back(&mut self, taken: Taken) {
        let Taken::Leased(leases) = taken else {
            return;
        };
        for lease in leases {
            if let Some(of) = self.of.get_mut(&lease.token.namespace)
                && let Some(leased) = of.of_token(&lease.token)
            {
                of.end(&lease.token.key);
                of.offer(leased.due, &lease.token.key);
            }
        }
    }
}
