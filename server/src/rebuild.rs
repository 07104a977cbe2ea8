//! Makes the archive files again from the log.
//!
//! Shell over the log and the archive. The files are a view: each comes out as it was, byte for byte,
//! unless it had been damaged.

use simplefeed_core::feed::{DocumentNumber, FeedName};

use crate::{
    log::EntryLog,
    views::{
        archive_files::Archive,
        error::ArchiveError,
        frozen_files::Remade,
        sup::file_name,
        sup_files::{SupFiles, every_window},
    },
};

/// Documents, by the state of the file that was there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Documents whose file was there and right.
    pub identical: u64,
    /// Documents whose file was missing.
    pub new: u64,
    /// Documents whose file was wrong and is right now, as `feed/document`.
    pub different: Vec<String>,
}

/// Makes every archived document of every feed again, and every archived SUP document.
///
/// # Errors
///
/// Returns why a record cannot be read, or a file not be written.
pub fn rebuild(log: &dyn EntryLog, archive: &Archive) -> Result<Report, ArchiveError> {
    let mut report = Report::default();
    let mut after: Option<FeedName> = None;
    loop {
        // In steps, because a server may have a million feeds.
        let feeds = log.feeds(after.as_ref(), 1_000)?;
        let Some((last, _)) = feeds.last() else {
            break;
        };
        after = Some(last.clone());
        for (name, head) in &feeds {
            // Records of documents that are not closed are of another log.
            archive.forget_open(log, head.feed, name)?;
            for number in 1..head.open.opening.name.number.get() {
                let Some(number) = DocumentNumber::new(number) else {
                    continue;
                };
                if let Some((document, remade)) =
                    archive.make(log, head.feed, name, number, None)?
                {
                    report.add(remade, || format!("{name}/{document}"));
                }
            }
        }
    }
    rebuild_sup(log, &archive.sup_files(), &mut report)?;
    Ok(report)
}

impl Report {
    fn add(&mut self, remade: Remade, name: impl FnOnce() -> String) {
        match remade {
            Remade::Identical => self.identical += 1,
            Remade::New => self.new += 1,
            Remade::Different => self.different.push(name()),
        }
    }
}

/// Makes every archived SUP document again.
fn rebuild_sup(
    log: &dyn EntryLog,
    files: &SupFiles,
    report: &mut Report,
) -> Result<(), ArchiveError> {
    every_window(log, |circle, window| {
        let remade = files.write(circle, window)?;
        report.add(remade, || {
            format!("{}/{}", circle.name(), file_name(window.name))
        });
        Ok(())
    })
}
