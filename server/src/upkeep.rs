//! Upkeep: tasks on a log besides serving the log, and the output of the tasks.
//!
//! Shell: the log and the views. The tasks of [`run`] get a list of views, and name no view. They
//! run in the command, on a log that no server has open, or else within the server that has the log
//! open (see [`control`](crate::control)).

use std::{path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};
use simplefeed_log::EntryLog;
use simplefeed_views::{
    Views,
    shown::{ShownLog, ShownSeries},
};

use crate::exit;

pub mod backup;
pub mod export;
pub mod rebuild;
pub mod recover;
pub mod restoration;
pub mod verify;

use backup::backup;
use rebuild::rebuild;
use verify::verify;

/// Task of the command line, which may also be sent through the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Check every commit, and the files of all views.
    Verify,
    /// Make the files of all views again.
    Rebuild,
    /// Write all documents as static files.
    Export {
        /// The folder to write to.
        to: PathBuf,
        /// Whether to write every entry as a document, too.
        entries: bool,
    },
    /// Copy the log and the archive into a new folder.
    Backup {
        /// The folder to make.
        to: PathBuf,
    },
}

/// Line of output, and the stream for that line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLine {
    /// A line of the result, for stdout.
    Result(String),
    /// A line about the work, for stderr.
    Note(String),
}

/// Does a task, and returns the exit code.
///
/// # Errors
///
/// Returns why the task could not be done.
pub fn run(
    task: &Task,
    log: &Arc<dyn EntryLog>,
    shown: &Arc<dyn ShownLog>,
    views: &Views,
    tell: &mut dyn FnMut(OutputLine),
) -> anyhow::Result<u8> {
    // This check comes before the task, because the documents beside a replaced log are another
    // log's. `verify` reports such a log as a fault.
    if *task != Task::Verify {
        log.check_seen()?;
        views.check_log(&**log)?;
    }
    match task {
        Task::Verify => {
            let report = verify(&**log, &**shown, views)?;
            let (commits, entries) = (report.commits, report.entries);
            let documents = report.findings.documents;
            let faults = report.findings.faults.len();
            // Faults are results, for stdout. The summary is for people.
            for fault in report.findings.faults {
                tell(OutputLine::Result(fault));
            }
            tell(OutputLine::Note(format!(
                "Checked {commits} commits, {entries} entries, {documents} archived documents: {faults} faults."
            )));
            match report.lack {
                Some(lack) if faults == 0 => Err(lack.into()),
                Some(lack) => {
                    let lack = anyhow::Error::from(lack);
                    tell(OutputLine::Note(format!("Checking ended there: {lack:#}")));
                    Ok(exit::INTEGRITY)
                }
                None if faults == 0 => Ok(exit::OK),
                None => Ok(exit::INTEGRITY),
            }
        }
        Task::Rebuild => {
            let report = rebuild(&**shown, views)?;
            // These files have been corrected by now, so the exit code stays 0.
            for document in &report.different {
                tell(OutputLine::Result(format!("{document} was different")));
            }
            let (identical, new, different) =
                (report.identical, report.new, report.different.len());
            tell(OutputLine::Note(format!(
                "Archived documents: {identical} came out identical, {new} were missing, {different} were different."
            )));
            Ok(exit::OK)
        }
        Task::Export { to, entries } => {
            let feeds: Arc<dyn ShownSeries> = Arc::<dyn ShownLog>::clone(shown);
            let files = export::export(&feeds, views, to, *entries)?;
            // The message names the include, because nginx calls files immutable only with the
            // include.
            tell(OutputLine::Note(format!(
                "Wrote {files} files to {}, among them {}.",
                to.display(),
                export::INCLUDE
            )));
            Ok(exit::OK)
        }
        Task::Backup { to } => {
            let report = backup(&**log, views, to)?;
            let (commits, feeds, documents) = (report.commits, report.feeds, report.documents);
            tell(OutputLine::Note(format!(
                "Copied {commits} commits of {feeds} feeds and {documents} archived documents to {}.",
                to.display()
            )));
            Ok(exit::OK)
        }
    }
}
