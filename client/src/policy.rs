//! Treatment of entries that cannot be handled.
//!
//! Pure.

use std::{num::NonZeroU32, time::Duration};

use crate::patience::back_off;

/// Action of a [`Worker`](crate::Worker) for an entry whose handler fails.
///
/// No policy loses an entry: each entry is handled, or stands in the record, or is among the parked
/// ones.
///
/// # Examples
///
/// ```
/// use simplefeed_client::{Policy, policy::UnknownPolicy};
///
/// assert_eq!("park-by-key".parse(), Ok(Policy::ParkByKey));
/// assert_eq!("sheep".parse::<Policy>(), Err(UnknownPolicy));
/// assert_eq!(Policy::default().to_string(), "block");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Tries again, with growing pauses, until the handler succeeds. Until then no later entry is
    /// handled or, with several handlers, no later entry with the same key.
    #[default]
    Block,
    /// Tries a limited number of times, records the failure, and goes on with the next entry.
    Skip,
    /// Tries a limited number of times, sets the entry aside, and goes on with the next entry.
    Park,
    /// As [`Park`](Self::Park); later entries with the same key are set aside, too, so that the
    /// entries of each key stay in order.
    ParkByKey,
}

impl Policy {
    const NAMES: [(Self, &str); 4] = [
        (Self::Block, "block"),
        (Self::Skip, "skip"),
        (Self::Park, "park"),
        (Self::ParkByKey, "park-by-key"),
    ];

    /// Decides about an entry after `tried` failed attempts, `here` of them by this process. A new
    /// process begins with short pauses again, because the cause may be mended.
    pub(crate) fn after(self, tried: u32, here: u32, attempts: NonZeroU32) -> PolicyDecision {
        let pause = match (tried, here) {
            (0, _) => Duration::ZERO,
            (_, here) => back_off(here.saturating_sub(1), None),
        };
        match self {
            _ if tried < attempts.get() => PolicyDecision::Try(pause),
            // `attempts` is no bound for `Block`, which never gives up.
            Self::Block => PolicyDecision::Try(pause),
            Self::Skip => PolicyDecision::Skip,
            Self::Park | Self::ParkByKey => PolicyDecision::Park,
        }
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut names = Self::NAMES.iter();
        let name = names.find(|(policy, _)| policy == self);
        // Every policy has a name, so the fallback is never used.
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl std::str::FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(policy, _)| *policy).ok_or(UnknownPolicy)
    }
}

/// A name that no policy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy is block, skip, park or park-by-key")]
pub struct UnknownPolicy;

/// Next step for an entry whose handler failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyDecision {
    /// Try the entry after a pause.
    Try(Duration),
    /// Pass over the entry, and record the failure.
    Skip,
    /// Set the entry aside, with the last error.
    Park,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_gives_up_in_its_own_way() {
        let three = NonZeroU32::new(3).unwrap();
        let seconds = |seconds| PolicyDecision::Try(Duration::from_secs(seconds));
        for (policy, want) in [
            (Policy::Block, [seconds(0), seconds(2), seconds(4)]),
            (Policy::Skip, [seconds(0), seconds(2), PolicyDecision::Skip]),
            (Policy::Park, [seconds(0), seconds(2), PolicyDecision::Park]),
            (
                Policy::ParkByKey,
                [seconds(0), seconds(2), PolicyDecision::Park],
            ),
        ] {
            let found = [0, 2, 3].map(|tried| policy.after(tried, tried, three));
            assert_eq!(found, want, "{policy}");
        }
        let never_ends = Policy::Block.after(u32::MAX, u32::MAX, three);
        assert_eq!(never_ends, PolicyDecision::Try(Duration::from_mins(1)));
        assert_eq!(Policy::Block.after(100, 0, three), seconds(1));
        assert_eq!(Policy::Park.after(100, 0, three), PolicyDecision::Park);
    }
}
