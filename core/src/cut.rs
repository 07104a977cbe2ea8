//! Cuts: the decision to close a document and open the next one.
//!
//! Pure. The policy decides once, when an entry arrives, and the log records the answer as a fact.
//! A recorded cut is never computed again, because the policy may change and an archived document
//! may not. The log records no cuts of timelines: [`cuts`](crate::timeline::cuts) computes these
//! from facts that never change. The entry that does not fit opens the next document, so only an
//! empty feed has an empty document.

use serde::{Deserialize, Serialize};

use crate::{
    limits::{DOCUMENT_BYTES_DEFAULT, DOCUMENT_ENTRIES_DEFAULT},
    timestamp::Timestamp,
};

/// The hour or day, in UTC, in which the instants of all entries of a document lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// Time closes no document.
    #[default]
    None,
    /// A document holds the entries of one hour.
    Hour,
    /// A document holds the entries of one day.
    Day,
}

impl Period {
    /// Returns the number of the period that `instant` lies in; the same number for every instant
    /// if documents have no period.
    fn number_at(self, instant: Timestamp) -> i64 {
        match self {
            Self::None => 0,
            Self::Hour => instant.second().div_euclid(3_600),
            Self::Day => instant.second().div_euclid(86_400),
        }
    }
}

/// Bounds of a document. An entry that would exceed any of them opens the next document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutPolicy {
    /// Maximum number of entries in a document.
    pub entries: u32,
    /// Maximum size of a document's fragments, in bytes. One entry alone may be larger.
    pub bytes: u64,
    /// Hour or day in which the instants of all entries of a document lie.
    pub period: Period,
}

impl Default for CutPolicy {
    fn default() -> Self {
        Self {
            entries: DOCUMENT_ENTRIES_DEFAULT,
            bytes: DOCUMENT_BYTES_DEFAULT,
            period: Period::None,
        }
    }
}

/// How full the open document is; the policy judges this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Number of entries in the document.
    pub entries: u64,
    /// Total size of the fragments of these entries, in bytes.
    pub bytes: u64,
    /// Instant of the document's newest entry; in a timeline, the instant of that entry's place.
    pub newest: Timestamp,
}

impl CutPolicy {
    /// Returns whether an entry of `bytes` bytes and with this instant opens the next document.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::{cut::{CutPolicy, Fill}, timestamp::Timestamp};
    ///
    /// let policy = CutPolicy { entries: 2, ..CutPolicy::default() };
    /// let one = Fill { entries: 1, bytes: 300, newest: Timestamp::default() };
    /// let two = Fill { entries: 2, bytes: 600, newest: Timestamp::default() };
    /// assert!(!policy.cuts_before(one, 300, Timestamp::default()));
    /// assert!(policy.cuts_before(two, 300, Timestamp::default()));
    /// ```
    pub fn cuts_before(&self, open: Fill, bytes: u64, instant: Timestamp) -> bool {
        // Otherwise an entry beyond a bound would leave an empty document behind.
        if open.entries == 0 {
            return false;
        }
        open.entries >= u64::from(self.entries)
            || open.bytes.saturating_add(bytes) > self.bytes
            || self.period.number_at(open.newest) != self.period.number_at(instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn fill(entries: u64, bytes: u64, second: i64) -> Fill {
        Fill {
            entries,
            bytes,
            newest: Timestamp::from_micros(second * SECOND),
        }
    }

    #[track_caller]
    fn check(policy: CutPolicy, open: Fill, bytes: u64, second: i64, want: bool) {
        let instant = Timestamp::from_micros(second * SECOND);
        assert_eq!(policy.cuts_before(open, bytes, instant), want);
    }

    #[test]
    fn an_empty_document_takes_whatever_comes() {
        let tight = CutPolicy {
            entries: 1,
            bytes: 1,
            period: Period::Hour,
        };
        check(tight, fill(0, 0, 0), 1_000_000, 90_000, false);
    }

    #[test]
    fn entries_close_a_document() {
        let policy = CutPolicy {
            entries: 3,
            ..CutPolicy::default()
        };
        check(policy, fill(2, 10, 0), 10, 0, false);
        check(policy, fill(3, 10, 0), 10, 0, true);
    }

    #[test]
    fn bytes_close_a_document_before_they_are_exceeded() {
        let policy = CutPolicy {
            bytes: 100,
            ..CutPolicy::default()
        };
        check(policy, fill(1, 60, 0), 40, 0, false);
        check(policy, fill(1, 60, 0), 41, 0, true);
    }

    #[test]
    fn a_period_closes_a_document_at_its_end_in_utc() {
        let hourly = CutPolicy {
            period: Period::Hour,
            ..CutPolicy::default()
        };
        check(hourly, fill(1, 1, 3_599), 1, 3_599, false);
        check(hourly, fill(1, 1, 3_599), 1, 3_600, true);
        let daily = CutPolicy {
            period: Period::Day,
            ..CutPolicy::default()
        };
        check(daily, fill(1, 1, 3_600), 1, 86_399, false);
        check(daily, fill(1, 1, 86_399), 1, 86_400, true);
    }
}
