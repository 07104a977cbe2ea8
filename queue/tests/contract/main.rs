//! The contract of queues: what every keeper promises, with the time as a parameter.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cases;
mod installed;
mod like_the_model;
mod postgres;

use chrono::{DateTime, TimeDelta, Utc};
use simplefeed_queue::{Manual, Memory, Queue};

/// Where the clocks of all tests begin: 2026-01-01.
fn beginning() -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_225_600, 0).unwrap()
}

/// Returns the instant so many seconds after the beginning.
fn at(seconds: i64) -> DateTime<Utc> {
    beginning() + TimeDelta::seconds(seconds)
}

/// Makes a test of each case for the keepers that need nothing installed, and a list of all of them for PostgreSQL.
macro_rules! for_each_keeper {
    ($($case:ident),* $(,)?) => {
        mod memory {
            $(
                #[tokio::test]
                async fn $case() {
                    let clock = super::Manual::new(super::beginning());
                    let queue = super::Memory::new(clock.clone().into());
                    super::cases::$case(queue, clock).await;
                }
            )*
        }

        mod redb {
            $(
                #[tokio::test]
                async fn $case() {
                    let clock = super::Manual::new(super::beginning());
                    let folder = tempfile::tempdir().unwrap();
                    let path = folder.path().join("queue");
                    let queue = simplefeed_queue::redb::Redb::open(&path, clock.clone().into());
                    super::cases::$case(queue.unwrap(), clock).await;
                }
            )*
        }

        /// Runs every case in a schema of its own.
        async fn all_cases(server: &postgres::Server) {
            $(
                println!(stringify!($case));
                let clock = Manual::new(beginning());
                let queue = server.queue(stringify!($case), &clock).await;
                cases::$case(queue, clock).await;
            )*
        }
    };
}

for_each_keeper! {
    a_job_is_leased_once_it_is_due,
    what_is_far_ahead_is_brought_forward,
    a_shortened_lease_is_a_change,
    a_repeated_schedule_resets_nothing,
    a_move_changes_what_waits_and_nothing_else,
    equal_keys_in_one_call_are_one_job,
    a_batch_is_full_or_its_oldest_job_has_waited,
    a_lease_expires_and_its_token_is_void,
    a_lease_is_extended_and_a_note_outlives_it,
    equal_tokens_in_one_call_count_in_order,
    again_is_a_new_slot,
    failures_keep_the_slot_until_the_job_is_dead,
    what_comes_with_a_finish_needs_its_token,
    namespaces_do_not_mix,
    a_removed_job_is_gone,
    a_quota_is_shared,
    jobs_are_counted,
    what_is_out_of_bounds_changes_nothing,
    a_worker_that_waits_is_woken_by_a_job,
    a_worker_that_waits_is_woken_by_the_time,
    a_worker_that_goes_away_takes_nothing_with_it,
    workers_never_share_a_job,
    jobs_that_change_are_leased_as_they_are,
}

/// Makes sure that every keeper is one.
fn is_queue(_: impl Queue) {}

#[test]
fn clones_are_the_same_queue() {
    is_queue(Memory::default());
}
