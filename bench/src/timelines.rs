//! `timelines`: the cost of fan-out and of reads, against Redis and PostgreSQL doing the same work, and a workload of many
//! users.
//!
//! Shell. Four worlds, each a server of its own: one feed with ever more followers, timelines of ever more feeds,
//! histories of ever more entries, and users who follow each other.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::table::{Must, Row, Table};

mod followers;
mod peers;
mod reads;
mod users;

/// Sizes of the measurement.
#[derive(Args, Clone, Debug)]
pub(crate) struct Scale {
    /// Timelines of the largest world, and followers of its largest feed
    #[arg(long, default_value_t = 1_000_000)]
    timelines: u32,
    /// Feeds of that world
    #[arg(long, default_value_t = 100_000)]
    feeds: u32,
    /// Users of the mixed workload
    #[arg(long, default_value_t = 10_000)]
    users: u32,
    /// Folder for plots of both ramps, as SVG
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

pub(crate) fn measure(
    table: &mut Table,
    rounds: usize,
    seconds: u64,
    scale: &Scale,
) -> anyhow::Result<()> {
    if let Some(plots) = &scale.plots {
        std::fs::create_dir_all(plots)?;
    }
    reads::measure(table, rounds, scale)?;
    users::measure(table, seconds, scale)?;
    followers::measure(table, rounds, scale)
}

/// Returns a row without a peer.
fn alone(what: impl Into<String>, unit: &'static str, ours: Vec<f64>) -> Row {
    Row {
        what: what.into(),
        unit,
        ours,
        peer: String::new(),
        theirs: vec![],
        must: None,
    }
}

/// Returns a row with a peer.
fn against(
    what: impl Into<String>,
    unit: &'static str,
    ours: &[f64],
    peer: &str,
    theirs: Vec<f64>,
    must: Option<Must>,
) -> Row {
    Row {
        what: what.into(),
        unit,
        ours: ours.to_vec(),
        peer: peer.into(),
        theirs,
        must,
    }
}

/// Returns the bytes of all files below a folder.
fn bytes_below(folder: &Path) -> anyhow::Result<f64> {
    let mut bytes = 0.0;
    // Few deliveries wait in memory, and make none.
    if !folder.exists() {
        return Ok(bytes);
    }
    for item in std::fs::read_dir(folder)? {
        let item = item?;
        let found = item.metadata()?;
        bytes += if found.is_dir() {
            bytes_below(&item.path())?
        } else {
            f64::from(u32::try_from(found.len() / 1_024)?) * 1_024.0
        };
    }
    Ok(bytes)
}
