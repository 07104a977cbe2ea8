//! Makes the archive files again from the log.
//!
//! Shell over the log and the archive. They are a view: what comes out is what was there, byte for
//! byte, or something had damaged it.

use simplefeed_core::feed::{DocumentNumber, FeedName};

use crate::{
    log::EntryLog,
    views::archive_files::{Archive, ArchiveError, Remade},
};

/// What became of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Documents whose file was there and right.
    pub identical: u64,
    /// Documents whose file was missing.
    pub new: u64,
    /// Documents whose file was wrong and is right now, as `feed/document`.
    pub different: Vec<String>,
}

/// Makes every archived document of every feed again.
///
/// # Errors
///
/// Returns the first thing that cannot be read or written.
pub fn rebuild(log: &dyn EntryLog, archive: &Archive) -> Result<Report, ArchiveError> {
    let mut report = Report::default();
    let mut after: Option<FeedName> = None;
    loop {
        let feeds = log.feeds(after.as_ref(), 1_000)?;
        let Some((last, _)) = feeds.last() else {
            return Ok(report);
        };
        after = Some(last.clone());
        for (name, head) in &feeds {
            archive.forget_open(log, head.feed, name)?;
            for number in 1..head.open.opening.name.number.get() {
                let Some(number) = DocumentNumber::new(number) else {
                    continue;
                };
                match archive.make(log, head.feed, name, number, None)? {
                    None => {}
                    Some((_, Remade::Identical)) => report.identical += 1,
                    Some((_, Remade::New)) => report.new += 1,
                    Some((document, Remade::Different)) => {
                        report.different.push(format!("{name}/{document}"));
                    }
                }
            }
        }
    }
}
