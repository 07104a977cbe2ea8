//! The Simplefeed server: publishes entries into a durable log and shows it as Atom documents.
//!
//! **publish → commit → views → bytes → HTTP**, and no arrow points back. A publish begins at [`publish`], a read at
//! [`http`]. The modules, in the order to read them:
//!
//! - [`log`]: the entry log, its contract and its two kinds.
//! - [`clock`]: the time that commits are stamped by.
//! - [`head_tag`]: entity tags of a feed's open document, for writer and views.
//! - [`publish`]: the single writer, with group commit.
//! - [`views`]: documents, archive files, the archive index and updates, computed from commits; [`watermark`] says up
//!   to which second updates may be published.
//! - [`resource`]: representations that can be sent, between views and HTTP.
//! - [`endpoints`]: the URLs, a file per subject.
//! - [`access`]: tokens and the rights they give.
//! - [`metrics`]: metrics of the server, for Prometheus.
//! - [`http`]: the pipeline: connections, conditional requests, codings, problems.
//! - [`config`]: settings by flag, environment and file.
//! - [`error`]: reasons why a server cannot run.
//! - [`stop`]: the shutdown, as a token that threads share; [`threads`] work until then.
//! - [`listening`]: sockets and signals.
//! - [`serve`]: all of it put together, running.
//! - [`upkeep`]: verification, repair, copies and recovery of a log; [`control`] does them while a server runs, at a
//!   [`socket`].
//! - [`health`]: whether a server is ready.
//! - [`logging`]: lines on stderr, which no work waits for.
//! - [`exit`]: the exit codes of both programs; [`lack`]: what the system keeps from a process.
#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "no test needs a name beyond its end"
    )
)]

#[cfg(planted)]
#[path = "../../tests/planted.rs"]
mod planted;

pub mod codec;
pub mod lack;
pub mod regular;
pub mod clock;
pub mod log;
pub mod views;
pub mod watermark;
pub mod workers;
pub mod head_tag;
pub mod resource;
pub mod publish;
pub mod access;
pub mod metrics;
pub mod http;
pub mod endpoints;
pub mod config;
pub mod error;
pub mod stop;
pub mod threads;
pub mod listening;
pub mod serve;
pub mod upkeep;
pub mod control;
pub mod socket;
pub mod health;
pub mod logging;
pub mod stdout;
pub mod exit;
