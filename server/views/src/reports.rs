//! Reports of upkeep, to which each view adds faults or files.
//!
//! Pure.

use simplefeed_core::feed::FeedKey;
use simplefeed_log::LogError;
use simplefeed_process::lack::lack_in;

use super::files::Remade;

/// Faults that `verify` found, and the number of documents that were compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyFindings {
    /// Feeds that the replayed commits have created.
    pub feeds: Vec<FeedKey>,
    /// Whether every commit could be replayed.
    pub is_replayed: bool,
    /// Number of archived documents that were compared with their files.
    pub documents: u64,
    /// The faults, one sentence each.
    pub faults: Vec<String>,
}

impl VerifyFindings {
    /// Adds a fault, described in one sentence.
    pub fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    /// Returns a value that could be read, or adds the damage that prevented the read to the
    /// faults.
    ///
    /// # Errors
    ///
    /// Returns any other error, which ends the check.
    pub fn sound<T>(&mut self, value: Result<T, LogError>) -> Result<Option<T>, LogError> {
        match value {
            Ok(value) => Ok(Some(value)),
            // Damage of one feed does not end the check of the others.
            Err(LogError::Damaged { what }) => {
                self.faults.push(what);
                Ok(None)
            }
            // A lack of file handles or memory says nothing about the log, and ends the check.
            Err(LogError::Storage(error)) if lack_in(&*error).is_none() => {
                self.faults
                    .push(format!("the storage cannot be read: {error}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Documents that `rebuild` made, by the state of the file that was there before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Documents whose file was there and right.
    pub identical: u64,
    /// Documents whose file was missing.
    pub new: u64,
    /// Documents whose file was wrong and is right now, as `feed/document`.
    pub different: Vec<String>,
}

impl Rebuilt {
    /// Counts a document. `name` gives the name of a document whose file was wrong.
    pub fn add(&mut self, remade: Remade, name: impl FnOnce() -> String) {
        match remade {
            Remade::Identical => self.identical += 1,
            Remade::New => self.new += 1,
            Remade::Different => self.different.push(name()),
        }
    }
}
