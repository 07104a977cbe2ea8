//! Leases of this process: jobs, tokens and deadlines.
//!
//! Pure: memory only. A crash forgets the leases, which makes their jobs due again.

use std::{
    collections::{BTreeMap, HashMap, HashSet, btree_map::Entry},
    time::Duration,
};

use chrono::{DateTime, Utc};

use crate::{
    instant::later,
    job::{Extension, LeaseToken, Namespace},
    queue::TakeOutcome,
};

/// Bits of a token's number that count the tokens of one opening of the file.
const TOKENS_OF_OPENING: u32 = 40;

/// Lease of one job, until an instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobLease {
    /// Number of the lease's token.
    number: i64,
    /// Place of the leased job in the order of due times.
    pub(super) place: DuePlace,
    pub(super) until: DateTime<Utc>,
}

/// Place of a job in the order of due times: the due time, in microseconds after 1970, and the
/// number of the job.
pub(super) type DuePlace = (i64, u64);

/// Leases of all namespaces.
#[derive(Debug, Default)]
pub(super) struct Leases {
    number: i64,
    of: HashMap<Namespace, OfNamespace>,
}

/// Leases of a namespace.
#[derive(Debug, Default)]
pub(super) struct OfNamespace {
    held: HashMap<u64, JobLease>,
    /// Number of each valid token, with the number of the token's job.
    tokens: HashMap<i64, u64>,
    /// Ends of leases, each with the number of leases that end at this instant.
    ends: BTreeMap<DateTime<Utc>, usize>,
    /// Jobs that a transaction under way changes. The committed file still has these jobs at their
    /// old places.
    changing: HashSet<u64>,
    /// Place at which the next search for free jobs starts: every job before this place is leased
    /// or changing.
    from: DuePlace,
    /// First place at which a job became free since the last search began. That search may have
    /// passed the place before.
    freed: Option<DuePlace>,
}

impl OfNamespace {
    /// Makes jobs with expired leases available again.
    fn expire_leases(&mut self, now: DateTime<Utc>) {
        // Most calls find no expired lease, and need not read all leases below.
        if self.first_end().is_none_or(|end| end > now) {
            return;
        }
        // A token is void from the deadline on, so an end at `now` is over.
        self.ends = self.ends.split_off(&later(now, Duration::from_micros(1)));
        // An iterator over `held` must end before `offer_job` may change the rest of `self`.
        let expired = self.held.extract_if(|_, leased| leased.until <= now);
        for (_, leased) in expired.collect::<Vec<_>>() {
            self.tokens.remove(&leased.number);
            self.offer_job(leased.place);
        }
    }

    /// Ends at most `max` leases that last beyond an instant. Returns the number of ended leases.
    pub(super) fn shorten(&mut self, end: DateTime<Utc>, max: usize) -> usize {
        let is_long = |(_, leased): &(&u64, &JobLease)| leased.until > end;
        let long = self.held.iter().filter(is_long).take(max);
        // The places are collected first: the loop below changes `held`, which is being read here.
        let long: Vec<DuePlace> = long.map(|(_, leased)| leased.place).collect();
        for place in &long {
            self.end(place.1);
            self.offer_job(*place);
        }
        long.len()
    }

    /// Notes that the job at a place is free.
    fn offer_job(&mut self, place: DuePlace) {
        // A search under way does not read this place again, so the next search must start here at
        // the latest.
        self.from = self.from.min(place);
        self.freed = Some(self.freed.map_or(place, |freed| freed.min(place)));
    }

    /// Notes that the transaction under way changes a job. No worker leases the job before the
    /// commit.
    pub(super) fn change(&mut self, job: u64) {
        self.changing.insert(job);
    }

    /// Returns whether a job in the file is free: neither leased nor changing.
    pub(super) fn is_free(&self, job: u64) -> bool {
        !self.is_leased(job) && !self.changing.contains(&job)
    }

    /// Returns whether a job is leased.
    pub(super) fn is_leased(&self, job: u64) -> bool {
        self.held.contains_key(&job)
    }

    /// Begins a search for free jobs, which is the only search under way. Returns the place where
    /// the search starts.
    pub(super) fn begin_look(&mut self) -> DuePlace {
        self.freed = None;
        self.from
    }

    /// Notes that every job before this place is leased or changing, as far as the search has seen.
    fn pass_to(&mut self, place: DuePlace) {
        // A job that became free during the search may stand before the place.
        self.from = self.freed.map_or(place, |freed| freed.min(place));
    }

    /// Returns the lease that a token names.
    pub(super) fn of_token(&self, token: &LeaseToken) -> Option<JobLease> {
        let job = self.tokens.get(&token.number)?;
        self.held.get(job).copied()
    }

    /// Leases the job at `place`. Every job before that place must be leased or changing.
    pub(super) fn lease(&mut self, number: i64, place: DuePlace, until: DateTime<Utc>) {
        self.put_lease(JobLease {
            number,
            place,
            until,
        });
        self.pass_to(place);
    }

    fn put_lease(&mut self, leased: JobLease) {
        let (_, job) = leased.place;
        // An extension replaces a lease, whose old deadline would stay in `ends`.
        self.end(job);
        self.held.insert(job, leased);
        self.tokens.insert(leased.number, job);
        *self.ends.entry(leased.until).or_default() += 1;
    }

    /// Ends the lease of a job, if there is one.
    pub(super) fn end(&mut self, job: u64) {
        let Some(leased) = self.held.remove(&job) else {
            return;
        };
        self.tokens.remove(&leased.number);
        if let Entry::Occupied(mut ends) = self.ends.entry(leased.until) {
            *ends.get_mut() -= 1;
            // `first_end` must name an instant at which a lease ends.
            if *ends.get() == 0 {
                ends.remove();
            }
        }
    }

    /// Returns the end of the first lease to expire.
    pub(super) fn first_end(&self) -> Option<DateTime<Utc>> {
        self.ends.first_key_value().map(|(until, _)| *until)
    }

    /// Returns the number of leased jobs, and the jobs that are leased or changing.
    pub(super) fn jobs(&self) -> (usize, HashSet<u64>) {
        let not_free = self.held.keys().chain(&self.changing).copied();
        (self.held.len(), not_free.collect())
    }
}

impl Leases {
    /// Returns empty leases for an opening of the file; `opening` is the number of openings so far.
    /// No earlier opening has given tokens with the same numbers.
    pub(super) fn of_opening(opening: i64) -> Self {
        Self {
            // The file stores no tokens, but stores the number of openings, which only grows. So
            // each opening has a range of numbers of its own. An `i64` has room for 2^23 openings.
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
        leases.expire_leases(now);
        leases
    }

    /// Ends the lease that a token names, because the transaction under way changes its job.
    /// Returns the job's place.
    pub(super) fn give_up(&mut self, token: &LeaseToken, now: DateTime<Utc>) -> Option<DuePlace> {
        let of = self.of(&token.namespace, now);
        let JobLease { place, .. } = of.of_token(token)?;
        of.end(place.1);
        // The committed file still shows the job as waiting, and nothing else keeps a search from
        // leasing the job.
        of.change(place.1);
        Some(place)
    }

    /// Notes that the transaction under way is committed. `moved` has, for each namespace, the
    /// first place at which a job may be free now.
    pub(super) fn show(&mut self, moved: Vec<(Namespace, DuePlace)>) {
        // One thread commits, so all changing jobs are those of this transaction.
        self.of.values_mut().for_each(|of| of.changing.clear());
        for (namespace, place) in moved {
            self.of.entry(namespace).or_default().offer_job(place);
        }
    }

    /// Extends a lease, if the token is valid. Returns the lease as it was before.
    pub(super) fn extend(&mut self, extension: &Extension, now: DateTime<Utc>) -> Option<JobLease> {
        let Extension { token, lease, .. } = extension;
        let leases = self.of(&token.namespace, now);
        let leased = leases.of_token(token)?;
        leases.put_lease(JobLease {
            until: later(now, *lease),
            ..leased
        });
        Some(leased)
    }

    /// Ends the leases of a batch whose worker has gone before the answer.
    pub(super) fn give_back(&mut self, taken: TakeOutcome) {
        let TakeOutcome::Leased(leases) = taken else {
            return;
        };
        for lease in leases {
            if let Some(of) = self.of.get_mut(&lease.token.namespace)
                // If the lease has expired meanwhile, the token names no lease, and the job may be
                // another worker's.
                && let Some(leased) = of.of_token(&lease.token)
            {
                of.end(leased.place.1);
                of.offer_job(leased.place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a job whose lease ends while a search is under way is found by the next search.
    #[test]
    fn a_look_passes_no_job_that_becomes_free_meanwhile() {
        let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap();
        let mut leases = OfNamespace::default();
        leases.lease(1, (10, 1), at(60));
        leases.lease(2, (20, 2), at(99));
        assert_eq!(leases.begin_look(), (20, 2));
        leases.expire_leases(at(60));
        leases.lease(3, (30, 3), at(99));
        assert_eq!(leases.begin_look(), (10, 1));
        leases.lease(4, (10, 1), at(99));
        assert_eq!(leases.begin_look(), (10, 1));
    }
}
