//! Bounds of a queue, and quotas of credentials.
//!
//! Pure.

use std::time::Duration;

/// Bytes of a namespace's name, at most.
pub const NAMESPACE_BYTES_MAX: usize = 100;
/// Bytes of a key, at most. (An index entry of PostgreSQL holds 2,704 bytes.)
pub const KEY_BYTES_MAX: usize = 1_024;
/// Bytes of a payload, and of a note, at most.
pub const PAYLOAD_BYTES_MAX: usize = 64 * 1_024;
/// Bytes of the reason of a failure that are kept.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Jobs of one call, at most.
pub const CALL_JOBS_MAX: usize = 10_000;
/// Shortest lease. (A lease of no time would be void at once.)
pub const LEASE_MIN: Duration = Duration::from_millis(1);
/// Quota of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests in one window, at most.
    pub requests: u32,
    /// Length of a window: more than 0, and at most 366 days.
    pub window: Duration,
}
