//! The log on a disk: a journal that takes each commit, and sled, which keeps what is settled.
//!
//! Shell: a data folder. [`opening`] opens a log, and [`sled_log`] is the log. The journal makes a
//! commit durable. A full chapter of the journal is settled: the content goes to sled. The ids of
//! all entries are in files of their own. [`witness`] and [`seen`](super::seen) testify to the content of the
//! folder, so that a swapped or shortened folder is noticed.

pub mod opening;
pub mod folder;
pub mod sled_log;
mod lookups;
mod journal;
mod chapter;
mod record;
mod writing;
mod packing;
mod tail;
mod ids;
mod settled;
mod settling;
mod settler;
mod snapshots;
mod found_file;
mod rehearsal;
pub mod witness;
mod watchdog;
pub mod salvage;

pub use settled::quietly;
