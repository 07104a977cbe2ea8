//! The witness: the least that the log must contain, kept outside of it.
//!
//! Shell: one small file. sled's recovery can silently empty a damaged database, and a file of the journal that is
//! gone leaves no trace; only a file beside them can show that. Two slots are written in turn, so that a write cut
//! short leaves the other one. What a slot says is on the disk before the slot is written, so it is never ahead.
//!
//! ```text
//! slot (at 0 and at 512):
//!   "SFW" | storage version as a digit | turn u64 | settled commit u64 | chain hash after it 32
//!   | sled's snapshot u64 | first commit of the newest file of the journal u64 | last known commit u64 | CRC-32 u32
//! ```
//!
//! Storage versions 1 and 2 have the digit 1, the last commit, its chain hash and the length of sled's file.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use simplefeed_core::{feed::CommitNumber, history::ChainHash};

use super::record::STORAGE_VERSION;
use crate::codec::{Reader, Writer, seal, unseal};

const MAGIC: &[u8; 3] = b"SFW";
/// Bytes of a slot, and of one of storage versions 1 and 2.
const SLOT_BYTES: usize = 80;
const OLD_SLOT_BYTES: usize = 64;
/// Slots stand in sectors of their own, so that tearing one cannot touch the other.
const SLOT_OFFSETS: [u64; 2] = [0, 512];

/// Testimony about the log, of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Testimony {
    /// The last settled commit; in versions 1 and 2, the last synced one.
    pub commit: CommitNumber,
    /// The chain hash after it.
    pub chain: ChainHash,
    /// The number of sled's snapshot, which tells where its pages were after the settling. In versions 1 and 2, the
    /// length of sled's file in bytes.
    pub snapshot: u64,
    /// The number of the first commit in the newest file of the journal.
    pub newest: CommitNumber,
    /// The last commit, if the log was closed behind it; else some earlier one.
    pub end: CommitNumber,
}

/// What a witness says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// About a log of this storage version.
    Current(Testimony),
    /// About a log of storage version 1 or 2.
    Old(Testimony),
    /// About a log of a later storage version.
    Newer(u32),
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

    fn encode(&self, turn: u64) -> Vec<u8> {
        let mut slot = Writer(Vec::with_capacity(SLOT_BYTES));
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
fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(u64, Said)> {
    let version = slot.strip_prefix(MAGIC)?.first()?;
    let version = char::from(*version).to_digit(10)?;
    let length = if version == 1 {
        OLD_SLOT_BYTES
    } else {
        SLOT_BYTES
    };
    let mut from = Reader(unseal(slot.get(..length)?)?);
    from.bytes(MAGIC.len() + 1)?;
    let turn = from.long()?;
    if version > STORAGE_VERSION {
        return Some((turn, Said::Newer(version)));
    }
    let mut testimony = Testimony {
        commit: CommitNumber(from.long()?),
        chain: ChainHash(from.digest()?),
        snapshot: from.long()?,
        ..Testimony::NOTHING
    };
    if version == 1 {
        return Some((turn, Said::Old(testimony)));
    }
    testimony.newest = CommitNumber(from.long()?);
    testimony.end = CommitNumber(from.long()?);
    Some((turn, Said::Current(testimony)))
}

/// The witness file of a log.
#[derive(Debug)]
pub struct Witness {
    file: File,
    /// Counts the writes; its parity is the slot. The same commit may be written twice, so the commit's
    /// number does not show which slot is the newer one.
    turn: u64,
}

impl Witness {
    /// Creates a witness of an empty log, and makes it durable.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    #[expect(
        clippy::disallowed_methods,
        reason = "the caller syncs the folder, behind the journal's"
    )]
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        let mut witness = Self { file, turn: 0 };
        witness.write(&Testimony::NOTHING)?;
        witness.file.sync_all()?;
        Ok(witness)
    }

    /// Opens a witness, and returns the statement of the newer of its sound slots, if any is.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read.
    pub fn open(path: &Path) -> io::Result<(Self, Option<Said>)> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let newest = newest(&file);
        let turn = newest.map_or(0, |(turn, _)| turn);
        Ok((Self { file, turn }, newest.map(|(_, said)| said)))
    }

    /// Writes the testimony into the older slot. It is not durable before the next sync.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub fn write(&mut self, testimony: &Testimony) -> io::Result<()> {
        let turn = self.turn.wrapping_add(1);
        let [even, odd] = SLOT_OFFSETS;
        let offset = if turn.is_multiple_of(2) { even } else { odd };
        self.file.write_all_at(&testimony.encode(turn), offset)?;
        // A failed write keeps its turn, so that the next one leaves the sound slot alone, too.
        self.turn = turn;
        Ok(())
    }

    /// Makes the last written slot durable.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be synced.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Returns the statement of a witness, if there is a readable one.
pub fn read(path: &Path) -> Option<Said> {
    let (_, said) = newest(&File::open(path).ok()?)?;
    Some(said)
}

/// Returns the newer of the sound slots, with its turn.
fn newest(file: &File) -> Option<(u64, Said)> {
    let testimonies = SLOT_OFFSETS.map(|offset| {
        let mut slot = [0; SLOT_BYTES];
        // A file that was cut short has no second slot; an old one ends with a shorter slot.
        file.read_at(&mut slot, offset).ok()?;
        decode(&slot)
    });
    let sound = testimonies.into_iter().flatten();
    sound.max_by_key(|(turn, _)| *turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn testimony(commit: u64) -> Testimony {
        let chain = ChainHash::START.extend(&commit.to_be_bytes());
        Testimony {
            commit: CommitNumber(commit),
            chain,
            snapshot: commit * 512,
            newest: CommitNumber(commit + 1),
            end: CommitNumber(commit + 7),
        }
    }

    #[test]
    fn the_newest_testimony_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        let mut witness = Witness::create(&path).unwrap();
        for commit in 1..=5 {
            witness.write(&testimony(commit)).unwrap();
            let (reopened, read) = Witness::open(&path).unwrap();
            assert_eq!(read, Some(Said::Current(testimony(commit))));
            witness = reopened;
        }
    }

    #[test]
    fn of_two_testimonies_of_one_commit_the_later_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        let mut witness = Witness::create(&path).unwrap();
        for snapshot in [700, 300, 500] {
            let now = Testimony {
                snapshot,
                ..testimony(1)
            };
            witness.write(&now).unwrap();
            assert_eq!(Witness::open(&path).unwrap().1, Some(Said::Current(now)));
        }
    }

    /// Goal: a write cut short costs one commit of knowledge, not all of it.
    #[test]
    fn a_torn_slot_leaves_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        let mut witness = Witness::create(&path).unwrap();
        witness.write(&testimony(1)).unwrap();
        witness.write(&testimony(2)).unwrap();
        let first = Some(Said::Current(testimony(1)));
        for (offset, left) in [(512, first), (0, None)] {
            witness.file.write_all_at(&[0xff; 9], offset + 40).unwrap();
            assert_eq!(Witness::open(&path).unwrap().1, left);
        }
    }
}
