//! What a command's exit code means, the same for both programs.
//!
//! Pure.

/// Everything went well.
pub const OK: u8 = 0;
/// Something else went wrong.
pub const OTHER: u8 = 1;
/// The command line or configuration is wrong.
pub const USAGE: u8 = 2;
/// What was asked for does not exist.
pub const NOT_FOUND: u8 = 10;
/// Another process holds the data folder.
pub const LOCKED: u8 = 11;
/// What is stored is not what was stored.
pub const INTEGRITY: u8 = 15;
/// Ended by Ctrl-C, in order.
pub const INTERRUPTED: u8 = 130;
