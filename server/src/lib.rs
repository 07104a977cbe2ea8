//! The Simplefeed server: publishes entries into a durable log and shows it as Atom documents.
//!
//! Shell: threads, sockets, signals, files. **publish → commit → views → bytes → HTTP**, and no
//! arrow points back. The rooms are crates of their own, internal to this crate:
//!
//! - `simplefeed-process`: time, threads, and the limits of the system.
//! - `simplefeed-log`: the entry log: the contract, and two implementations.
//! - `simplefeed-publish`: the single writer, with group commit. A publish begins there.
//! - `simplefeed-resource`: representations that can be sent, between views and HTTP.
//! - `simplefeed-views`: documents, archive files, the archive index and updates, computed from
//!   commits.
//! - `simplefeed-http`: the pipeline: connections, access, conditional requests, codings, problems.
//!   A read begins there.
//!
//! This crate puts them together. The modules, in the order to read them:
//!
//! - [`endpoints`]: the URLs, in one file per subject.
//! - [`views`]: the views that a server has.
//! - [`metrics`]: metrics of the server, for Prometheus.
//! - [`config`]: settings by flag, environment and file.
//! - [`error`]: reasons why a server cannot run.
//! - [`listening`]: sockets and signals.
//! - [`serve`]: all of these put together, as a running server.
//! - [`upkeep`]: verification, repair, copies and recovery of a log. While a server runs,
//!   [`control`] takes orders for these tasks, except recovery, at a [`socket`].
//! - [`health`]: whether a server is ready.
//! - [`logging`]: lines on stderr, which no work waits for.
//! - [`exit`]: the exit codes of the program.
#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "no test needs a name beyond its end"
    )
)]

pub mod metrics;
pub mod endpoints;
pub mod views;
mod follows;
pub mod config;
pub mod error;
pub mod listening;
pub mod serve;
pub mod upkeep;
pub mod control;
pub mod socket;
pub mod health;
pub mod logging;
pub mod stdout;
pub mod exit;
