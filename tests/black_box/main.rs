//! Black-box tests over the real programs: what a user sees, and what a crash leaves.
//!
//! Shell. One binary, one file per subject. What a test needs beyond the programs themselves is in
//! its `#[ignore]`; `tests/run` installs it, or reports the test as NOT RUN.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::format_collect,
    clippy::format_push_string,
    clippy::semicolon_if_nothing_returned,
    clippy::too_many_lines,
    reason = "a test fails by panicking, and says what it did not do"
)]

mod dice;
mod event_stream;
mod families;
mod harness;
mod http;
mod site;
mod nginx;
#[path = "../../queue/tests/contract/installed.rs"]
mod installed;
mod postgres;
mod provider;
mod push;
mod push_crowds;
mod push_proxies;

mod access;
mod among_others;
mod amplifying;
mod answers;
mod browser;
mod caddy;
mod chain;
mod clock;
mod commands;
mod conditional;
mod crash;
mod crash_states;
mod damage;
mod displaced;
mod faults;
mod feed_service;
mod fixtures;
mod foreign;
mod frozen;
mod full_disk;
mod hostile;
mod import;
mod independent;
mod json_feed;
mod lint;
mod measures;
mod mirror;
mod misbehaving;
mod other_languages;
mod packaging;
mod pages;
mod pages_browser;
mod pipes;
mod plain;
mod power_cut;
mod proxies;
mod proxy;
mod rates;
mod recover;
mod refresher;
mod refusals;
mod replaced;
mod smuggling;
mod strangers;
mod restoration;
mod routes;
mod running;
mod settings;
mod sites;
mod states;
mod sup;
mod surroundings;
mod tidy;
mod timelines;
mod under_a_tag;
mod upgrades;
mod visibility;
mod walls;
mod worker;
