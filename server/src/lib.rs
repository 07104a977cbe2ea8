//! The Simplefeed server: publishes entries into a durable log and shows it as Atom documents.
//!
//! **publish → commit → views → bytes → HTTP**, and no arrow points back. A publish begins at [`publish`], a read at
//! [`http`]. The modules, in the order to read them:
//!
//! - [`log`]: the entry log, its contract and its two kinds.
//! - [`head_tag`]: entity tags of a feed's open document, for writer and views.
//! - [`publish`]: the single writer, with group commit.
//! - [`views`]: documents, archive files and the archive index, computed from commits.
//! - [`sup`]: SUP documents, which list the feeds that changed, up to the second that [`watermark`] allows.
//! - [`access`]: tokens and the rights they give.
//! - [`metrics`]: metrics of the server, for Prometheus.
//! - [`http`]: routes, conditional requests, codings, problems, and the shell around them.
//! - [`config`]: settings by flag, environment and file.
//! - [`error`]: reasons why a server cannot run.
//! - [`stop`]: the shutdown, as a token that threads share.
//! - [`listening`]: sockets and signals.
//! - [`serve`]: all of it put together, running.
//! - [`recover`]: a new log made from the remains of a damaged one.
//! - [`restoration`]: the epoch that begins when a restored log is served.
//! - [`verify`], [`rebuild`], [`export`], [`backup`]: upkeep of a log; [`upkeep`] does
//!   it, and [`control`] while a server runs, at a [`socket`].
//! - [`health`]: whether a server is ready.
//! - [`exit`]: the exit codes of both programs.

pub mod log;
pub mod views;
pub mod watermark;
pub mod head_tag;
pub mod publish;
pub mod sup;
pub mod access;
pub mod metrics;
pub mod http;
pub mod config;
pub mod error;
pub mod stop;
pub mod listening;
pub mod serve;
pub mod verify;
pub mod rebuild;
pub mod export;
pub mod backup;
pub mod recover;
pub mod restoration;
pub mod upkeep;
pub mod control;
pub mod socket;
pub mod health;
pub mod exit;
