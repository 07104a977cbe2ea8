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
    /// Place of the leased job in the file.
    pub(super) place: DuePlace,
    pub(super) until: DateTime<Utc>,
}

/// Place of a job in the order of due times: due time and number of the job.
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
    /// Numbers of tokens, and of their jobs.
    tokens: HashMap<i64, u64>,
    /// Ends of leases, and how many end then.
    ends: BTreeMap<DateTime<Utc>, usize>,
    /// Jobs that a transaction under way changes. The committed file still has them at their old
    /// places.
    changing: HashSet<u64>,
    /// Every job before this place is leased or changing, so that a look need not pass them.
    from: DuePlace,
    /// First job that became free since the last look began, which may not have seen the job.
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

    /// Ends at most `max` leases that last beyond an instant. Returns how many.
    pub(super) fn shorten(&mut self, end: DateTime<Utc>, max: usize) -> usize {
        let is_long = |(_, leased): &(&u64, &JobLease)| leased.until > end;
        let long = self.held.iter().filter(is_long).take(max);
        // The ends of the leases change `held`, which is being read here.
        let long: Vec<DuePlace> = long.map(|(_, leased)| leased.place).collect();
        for place in &long {
            self.end(place.1);
            self.offer_job(*place);
        }
        long.len()
    }

    /// Notes that a job may be leased.
    fn offer_job(&mut self, place: DuePlace) {
        // A look under way does not read this place again, so the next look must start here at the
        // latest.
        self.from = self.from.min(place);
        self.freed = Some(self.freed.map_or(place, |freed| freed.min(place)));
    }

    /// Notes that the transaction under way changes a job. No worker leases the job before the
    /// commit.
    pub(super) fn change(&mut self, job: u64) {
        self.changing.insert(job);
    }

    /// Returns whether a job that the file has may be leased.
    pub(super) fn is_free(&self, job: u64) -> bool {
        !self.is_leased(job) && !self.changing.contains(&job)
    }

    /// Returns whether a job is leased.
    pub(super) fn is_leased(&self, job: u64) -> bool {
        self.held.contains_key(&job)
    }

    /// Begins a look at the jobs, which is the only look under way. Returns the place where the
    /// look starts.
    pub(super) fn begin_look(&mut self) -> DuePlace {
        self.freed = None;
        self.from
    }

    /// Notes that the look found no free job up to this place.
    fn pass_to(&mut self, place: DuePlace) {
        // A job that became free during the look may stand before the place.
        self.from = self.freed.map_or(place, |freed| freed.min(place));
    }

    /// Returns the lease that a token names.
    pub(super) fn of_token(&self, token: &LeaseToken) -> Option<JobLease> {
        let job = self.tokens.get(&token.number)?;
        self.held.get(job).copied()
    }

    /// Leases the first free job.
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
    /// Returns the leases of a file that was opened so many times. No earlier opening gave tokens
    /// with the same numbers.
    pub(super) fn of_opening(opening: i64) -> Self {
        Self {
            // The file stores no tokens, and its number of openings only grows. An `i64` has room
            // for 2^23 openings.
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
        // The committed file still shows the job as waiting, and nothing else keeps a look from the
        // job.
        of.change(place.1);
        Some(place)
    }

    /// Notes that the transaction under way is committed, and the first place of moved jobs in each
    /// namespace.
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

    /// Ends leases whose worker has gone before the answer.
    pub(super) fn give_back(&mut self, taken: TakeOutcome) {
        let TakeOutcome::Leased(leases) = taken else {
            return;
        };
        for lease in leases {
            if let Some(of) = self.of.get_mut(&lease.token.namespace)
                // A lease that has expired meanwhile may be another worker's.
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

    /// Goal: a job whose lease ends while a look is under way is found by the next one.
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
