//! Choice of the server's operator: how timelines are kept for readers. The choice changes costs,
//! and no byte of a document.
//!
//! Pure.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Time at which the entries of a timeline are found: after the feeds have gained the entries, or
/// when the timeline is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FanOut {
    /// As feeds gain them, but those of feeds with very many followers
    #[default]
    Auto,
    /// As it is read
    Read,
    /// As feeds gain them
    Write,
    /// As it is read; the newest entries stay in memory
    Cache,
}

/// How a server keeps timelines for readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// When entries are found.
    pub fan_out: FanOut,
    /// Size of the memory, in bytes, for the newest entries and the documents of timelines that
    /// were read lately.
    pub memory: u64,
}

impl Keeping {
    /// Default of [`memory`](Self::memory).
    pub const MEMORY_DEFAULT: u64 = 256 * 1024 * 1024;
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            fan_out: FanOut::default(),
            memory: Self::MEMORY_DEFAULT,
        }
    }
}
