//! The witness: the least that the log must contain, kept outside of it.
//!
//! Shell: one small file. sled's recovery can silently empty a damaged database; only a file beside it can
//! show that. Two slots are written in turn, so that a write cut short leaves the other one. A slot is
//! written after the sync of its commit, so it is never ahead.
//!
//! ```text
//! slot (64 bytes, at 0 and at 512):
//!   "SFW1" | turn u64 | commit u64 | chain hash 32 | length of sled's file u64 | CRC-32 u32
//! ```

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use simplefeed_core::{feed::CommitNumber, history::ChainHash};

use crate::codec::{Reader, Writer, seal, unseal};

const MAGIC: &[u8; 4] = b"SFW1";
const SLOT_BYTES: usize = 64;
/// Slots stand in sectors of their own, so that tearing one cannot touch the other.
const SLOT_OFFSETS: [u64; 2] = [0, 512];

/// Testimony about the log, of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Testimony {
    /// A commit that is on the disk.
    pub commit: CommitNumber,
    /// The chain hash after it.
    pub chain: ChainHash,
    /// The length of sled's file then, in bytes.
    pub file_bytes: u64,
}

impl Testimony {
    fn encode(&self, turn: u64) -> [u8; SLOT_BYTES] {
        let mut slot = Writer(Vec::with_capacity(SLOT_BYTES));
        slot.bytes(MAGIC);
        slot.long(turn);
        slot.long(self.commit.0);
        slot.bytes(&self.chain.0.0);
        slot.long(self.file_bytes);
        let sealed = seal(slot.0);
        sealed.try_into().expect("a slot has its size")
    }

    fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(u64, Self)> {
        let mut from = Reader(unseal(slot)?);
        let is_slot = from.chunk::<4>()? == *MAGIC;
        let turn = from.long()?;
        let testimony = Self {
            commit: CommitNumber(from.long()?),
            chain: ChainHash(from.digest()?),
            file_bytes: from.long()?,
        };
        is_slot.then_some((turn, testimony))
    }
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
    /// Creates a witness that has seen nothing, and makes it durable.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        let mut witness = Self { file, turn: 0 };
        let nothing = Testimony {
            commit: CommitNumber(0),
            chain: ChainHash::START,
            file_bytes: 0,
        };
        witness.write(&nothing)?;
        // `sync_all`, because the file's length is new; `sync` need not write it again.
        witness.file.sync_all()?;
        Ok(witness)
    }

    /// Opens a witness, and returns the testimony of the newer of its sound slots, if any is.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read.
    pub fn open(path: &Path) -> io::Result<(Self, Option<Testimony>)> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let newest = newest(&file);
        let turn = newest.map_or(0, |(turn, _)| turn);
        Ok((Self { file, turn }, newest.map(|(_, testimony)| testimony)))
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

/// Returns the testimony of a witness, if there is one that can be read.
pub fn read(path: &Path) -> Option<Testimony> {
    let (_, testimony) = newest(&File::open(path).ok()?)?;
    Some(testimony)
}

/// Returns the newer of the sound slots, with its turn.
fn newest(file: &File) -> Option<(u64, Testimony)> {
    let testimonies = SLOT_OFFSETS.map(|offset| {
        let mut slot = [0; SLOT_BYTES];
        // A file that was cut short has no second slot.
        file.read_exact_at(&mut slot, offset).ok()?;
        Testimony::decode(&slot)
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
            file_bytes: commit * 512,
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
            assert_eq!(read, Some(testimony(commit)));
            witness = reopened;
        }
    }

    #[test]
    fn of_two_testimonies_of_one_commit_the_later_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        let mut witness = Witness::create(&path).unwrap();
        for file_bytes in [700, 300, 500] {
            let now = Testimony {
                file_bytes,
                ..testimony(1)
            };
            witness.write(&now).unwrap();
            assert_eq!(Witness::open(&path).unwrap().1, Some(now));
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
        for (offset, left) in [(512, Some(testimony(1))), (0, None)] {
            witness.file.write_all_at(&[0xff; 9], offset + 40).unwrap();
            assert_eq!(Witness::open(&path).unwrap().1, left);
        }
    }
}
