//! The process and its system, as all rooms of the server see them: time, threads, and the limits
//! of the system.
//!
//! Shell: the system. The modules, in the order to read them:
//!
//! - [`clock`]: the time that commits are stamped by.
//! - [`stop`]: the shutdown, as a token that threads share; [`threads`] work until then.
//! - [`workers`]: threads that answer connections.
//! - [`lack`]: missing resources of a process; [`regular`]: files that are opened without waiting.
#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "no test needs a name beyond its end"
    )
)]

pub mod clock;
pub mod lack;
pub mod regular;
pub mod stop;
pub mod threads;
pub mod workers;
