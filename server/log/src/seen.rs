//! The last commit that readers may have seen, with the chain hash: a note beside the views, apart
//! from the log.
//!
//! Shell: one small file. Whoever puts an older log in the place of a newer one leaves the views'
//! files as they are. So a log without this commit, or with another commit of that number, is not
//! the log that readers have seen.
//!
//! ```text
//! slot (two in turn):  "SFE1" | turn u64 | commit u64 | chain hash after it 32 | CRC-32 u32
//! ```

use std::{io, path::Path};

use simplefeed_core::{feed::CommitNumber, history::ChainHash};
use tracing::warn;

use crate::codec::{Reader, RecordWriter, seal, unseal};
use crate::slots::{self, SlotBytes, Slots};
use crate::{Commits, LogError, LogHead, held::visible_path};

/// Name of the file in the folder of the views.
pub const NAME: &str = "seen";
const MAGIC: &[u8; 4] = b"SFE1";
const BYTES: usize = 56;

/// A commit that readers may have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadersEnd {
    /// Number of the commit; 0 if there is none.
    pub commit: CommitNumber,
    /// The chain hash after `commit`.
    pub chain: ChainHash,
}

impl ReadersEnd {
    /// State of an empty log: commit 0 and [`ChainHash::START`].
    pub const NOTHING: Self = Self {
        commit: CommitNumber(0),
        chain: ChainHash::START,
    };

    /// Returns the last commit of a log.
    pub fn of(head: &LogHead) -> Self {
        Self {
            commit: head.number,
            chain: head.chain,
        }
    }

    fn encode_slot(&self, turn: u64) -> Vec<u8> {
        let mut slot = RecordWriter(Vec::with_capacity(BYTES));
        slot.bytes(MAGIC);
        slot.long(turn);
        slot.long(self.commit.0);
        slot.bytes(&self.chain.0.0);
        seal(slot.0)
    }

    /// Checks that a log has the commit.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Replaced`] if the log has another commit of that number, or ends before.
    pub(super) fn check(&self, log: &(impl Commits + ?Sized)) -> Result<(), LogError> {
        let (commit, end) = (self.commit, log.head().number);
        if commit > end {
            let what = format!("it ends with commit {end}, and readers have seen commit {commit}");
            return Err(LogError::Replaced { what });
        }
        match log.chain(commit) {
            Ok(Some(chain)) if chain != self.chain => {
                let what = format!("its commit {commit} is not the one that readers have seen");
                Err(LogError::Replaced { what })
            }
            // A damaged record does not tell which log it belongs to, so damage is left to the
            // readers of that record.
            _ => Ok(()),
        }
    }
}

fn decode_slot(slot: &SlotBytes) -> Option<(u64, ReadersEnd)> {
    let mut from = Reader(unseal(slot.get(..BYTES)?)?);
    if from.chunk::<4>()? != *MAGIC {
        return None;
    }
    let turn = from.long()?;
    let commit = CommitNumber(from.long()?);
    let chain = ChainHash(from.digest()?);
    Some((turn, ReadersEnd { commit, chain }))
}

/// The file, for the writer of the log.
#[derive(Debug)]
pub(super) struct SeenNote(Slots);

impl SeenNote {
    /// Opens the file, and returns the noted commit. A missing or unreadable file begins with the
    /// end of the log.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read or written.
    pub(super) fn open(path: &Path, end: ReadersEnd) -> io::Result<(Self, ReadersEnd)> {
        match Slots::open(path, decode_slot) {
            Ok((slots, Some(seen))) => return Ok((Self(slots), seen)),
            Ok((mut slots, None)) => {
                warn!(path = %visible_path(path).display(), "the note of the last seen commit is unreadable, and begins anew");
                slots.write(|turn| end.encode_slot(turn))?;
                return Ok((Self(slots), end));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Durable from the beginning: a note that a power cut takes away could not show that a log
        // is an older one.
        let slots = Slots::create_whole(path, |turn| end.encode_slot(turn))?;
        Ok((Self(slots), end))
    }

    /// Notes a commit before readers see it. The note survives the end of the process at once, and
    /// a power cut after the next sync of the file.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(super) fn write(&mut self, seen: ReadersEnd) -> io::Result<()> {
        self.0.write(|turn| seen.encode_slot(turn))
    }

    /// Makes the note durable.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be synced.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// Returns the note at a path, or `None` if the note is missing or unreadable.
pub fn read(path: &Path) -> Option<ReadersEnd> {
    slots::read(path, decode_slot)
}
