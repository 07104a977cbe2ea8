//! The witness: the least that the log must contain, in a file outside of the log.
//!
//! Shell: one small file. sled's recovery can silently empty a damaged database, and a missing file
//! of the journal leaves no trace. Only a file beside them can show such a loss. The log puts
//! commits on the disk before the witness names them, so the witness is never ahead of the log.
//!
//! ```text
//! slot (two in turn):
//!   "SFW" | storage version as a digit | turn u64 | settled commit u64 | chain hash after it 32
//!   | sled's snapshot u64 | first commit of the newest file of the journal u64 | last known commit u64 | CRC-32 u32
//! ```
//!
//! Older storage versions are named and refused. The slots of the oldest versions, with the digit
//! 1, were shorter.

use std::{io, path::Path};

use simplefeed_core::{feed::CommitNumber, history::ChainHash};

use super::record::STORAGE_VERSION;
use crate::codec::{Reader, RecordWriter, seal, unseal};
use crate::slots::{self, SlotBytes, Slots};

const MAGIC: &[u8; 3] = b"SFW";
/// Bytes of a slot, and of one of the oldest storage versions.
const SLOT_BYTES: usize = 80;
const OLDEST_SLOT_BYTES: usize = 64;

/// Testimony about the log, of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Testimony {
    /// The last settled commit.
    pub commit: CommitNumber,
    /// The chain hash after `commit`.
    pub chain: ChainHash,
    /// The number of sled's snapshot, which tells where sled's pages were after the settling.
    pub snapshot: u64,
    /// The number of the first commit in the newest file of the journal.
    pub newest: CommitNumber,
    /// The last commit, if the log was closed after that commit; else perhaps an earlier commit.
    pub end: CommitNumber,
}

/// A statement of a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WitnessStatement {
    /// About a log of this storage version.
    Current(Testimony),
    /// About a log of another storage version.
    Other(u32),
}

impl Testimony {
    /// Nothing is settled, and the journal begins with the first commit.
    pub const NOTHING: Self = Self {
        commit: CommitNumber(0),
        chain: ChainHash::START,
        snapshot: 0,
        newest: CommitNumber(1),
        end: CommitNumber(0),
    };

    fn encode_slot(&self, turn: u64) -> Vec<u8> {
        let mut slot = RecordWriter(Vec::with_capacity(SLOT_BYTES));
        slot.bytes(MAGIC);
        slot.bytes(STORAGE_VERSION.to_string().as_bytes());
        slot.long(turn);
        slot.long(self.commit.0);
        slot.bytes(&self.chain.0.0);
        slot.long(self.snapshot);
        slot.long(self.newest.0);
        slot.long(self.end.0);
        seal(slot.0)
    }
}

/// Returns the turn and the statement of a slot.
fn decode_slot(slot: &SlotBytes) -> Option<(u64, WitnessStatement)> {
    let version = slot.strip_prefix(MAGIC)?.first()?;
    let version = char::from(*version).to_digit(10)?;
    // The checksum stands at the end of the slot, so the length must be known before it can be
    // compared.
    let length = if version == 1 {
        OLDEST_SLOT_BYTES
    } else {
        SLOT_BYTES
    };
    let mut from = Reader(unseal(slot.get(..length)?)?);
    from.bytes(MAGIC.len() + 1)?;
    let turn = from.long()?;
    if version != STORAGE_VERSION {
        // The rest of the slot may have another layout. The version is enough for a refusal with
        // the right advice.
        return Some((turn, WitnessStatement::Other(version)));
    }
    let testimony = Testimony {
        commit: CommitNumber(from.long()?),
        chain: ChainHash(from.digest()?),
        snapshot: from.long()?,
        newest: CommitNumber(from.long()?),
        end: CommitNumber(from.long()?),
    };
    Some((turn, WitnessStatement::Current(testimony)))
}

/// The witness file of a log.
#[derive(Debug)]
pub(crate) struct Witness(Slots);

impl Witness {
    /// Creates a witness of an empty log. The caller makes the name durable.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Slots::create(path, |turn| Testimony::NOTHING.encode_slot(turn)).map(Self)
    }

    /// Opens a witness, and returns the statement of the newer sound slot, if a slot is sound.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<WitnessStatement>)> {
        let (slots, said) = Slots::open(path, decode_slot)?;
        Ok((Self(slots), said))
    }

    /// Writes the testimony into the older slot. The testimony is not durable before the next sync.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(crate) fn write(&mut self, testimony: &Testimony) -> io::Result<()> {
        self.0.write(|turn| testimony.encode_slot(turn))
    }

    /// Makes the last written slot durable.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be synced.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// Returns the newest readable statement of a witness, or `None`.
pub fn read(path: &Path) -> Option<WitnessStatement> {
    slots::read(path, decode_slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the newest testimony counts, also of two about one commit.
    #[test]
    fn the_newest_testimony_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        let mut witness = Witness::create(&path).unwrap();
        for (commit, snapshot) in [(1, 700), (1, 300), (2, 512)] {
            let testimony = Testimony {
                commit: CommitNumber(commit),
                chain: ChainHash::START.extend(&[1]),
                snapshot,
                newest: CommitNumber(commit + 1),
                end: CommitNumber(commit + 7),
            };
            witness.write(&testimony).unwrap();
            assert_eq!(read(&path), Some(WitnessStatement::Current(testimony)));
        }
    }
}
