//! A delayed job queue: jobs with a due time, leased in batches, finished or rescheduled.
//!
//! Pure: the contract and the model. Shell: the keepers, which use memory, a file or PostgreSQL.
//!
//! Any number of workers share a queue without a master, without a table of workers, and without
//! any lock but that of a job's row. The jobs of a dead worker stay leased until the leases expire;
//! then another worker gets them. The queue assembles the batches, so workers need no buffer, and
//! batches stay full however many workers there are.
//!
//! The contract is [`Queue`]. Three keepers, which store a queue, fulfil the contract:
//!
//! | keeper | for | survives |
//! | --- | --- | --- |
//! | [`Memory`] | tests and simulations; the definition of the contract | nothing |
//! | [`Redb`](redb::Redb) | threads of one process, in one file | a killed process, a power cut |
//! | [`Postgres`](postgres::Postgres) | any number of processes and machines | the same |
//!
//! The modules, in the order to read them:
//!
//! - [`limits`], [`error`]: every bound, and the reasons for which a call fails.
//! - [`job`]: the vocabulary.
//! - [`queue`]: the contract.
//! - [`quota`]: requests that a credential may still make.
//! - [`clock`]: the time of a keeper, which tests set by hand.
//! - [`model`]: the contract as a pure function of the calls; [`memory`] makes a queue of the
//!   model.
//! - [`redb`], [`postgres`]: the durable keepers.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use simplefeed_queue::{Due, Existing, Finish, Memory, Namespace, NewJob, Successor, Queue, Want};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), simplefeed_queue::QueueError> {
//! let queue = Memory::default();
//! let parcels = Namespace::new("parcels")?;
//! let job = NewJob::new(&parcels, "RR123456785DE", Due::After(Duration::ZERO));
//! queue.schedule(vec![job], Existing::Keep).await?;
//!
//! // A full batch at once, or what is due once the oldest job has waited for two seconds.
//! let want = Want { max: 100, buffer: Duration::from_secs(2), lease: Duration::from_secs(60) };
//! for lease in queue.lease(&parcels, want).await? {
//!     // … look it up, store the answer …
//!     let next = Successor::Again { due: Due::After(Duration::from_secs(600)), payload: None };
//!     queue.finish(vec![Finish::new(lease.token, next)]).await?;
//! }
//! # Ok(()) }
//! ```

pub mod limits;
pub mod error;
mod instant;
pub mod job;
pub mod queue;
pub mod quota;
pub mod clock;
pub mod model;
pub mod memory;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "postgres")]
pub mod postgres;

#[doc(inline)]
pub use crate::{
    clock::{Clock, Manual},
    error::QueueError,
    job::{
        Dead, Due, Existing, Extension, FailureOutcome, Finish, Job, JobFailure, Lease, LeaseToken,
        Namespace, NewJob, ScheduleOutcome, Stats, Successor, TokenStanding, Want,
    },
    limits::Limit,
    memory::Memory,
    queue::{Queue, TakeOutcome},
    quota::{QuotaReport, Reservation},
};
