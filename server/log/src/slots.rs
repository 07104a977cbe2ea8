//! A small statement in a file of two slots, written in turn: a torn write leaves the other slot.
//!
//! Shell: one file.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::Path,
};

use simplefeed_process::regular;

use crate::durable;

/// Maximum length of a statement, in bytes.
const SLOT_BYTES: usize = 128;
/// Slots stand in sectors of their own, so that tearing one cannot touch the other.
const OFFSETS: [u64; 2] = [0, 512];

/// Bytes of a slot, as a read returns them. A statement has at most as many.
pub(super) type SlotBytes = [u8; SLOT_BYTES];

/// The file, for its writer.
#[derive(Debug)]
pub(super) struct Slots {
    file: File,
    /// Number of writes so far. Its parity chooses the slot. The same statement may be written
    /// twice, so only the turn shows which slot is newer.
    turn: u64,
}

impl Slots {
    /// Creates the file with a first statement, and makes the bytes durable, but not the name.
    /// `encode` takes the turn of the write, and returns the bytes of the statement.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written. An existing file stays as it is.
    #[expect(
        clippy::disallowed_methods,
        reason = "the caller syncs the folder, behind what the statement is about"
    )]
    pub(super) fn create(path: &Path, encode: impl FnOnce(u64) -> Vec<u8>) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        let mut slots = Self { file, turn: 0 };
        slots.write(encode)?;
        slots.file.sync_all()?;
        Ok(slots)
    }

    /// Creates the file with a first statement, durably. Only a whole file gets the name, so an
    /// unreadable file of that name is damaged, and not merely unfinished.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    #[expect(
        clippy::disallowed_methods,
        reason = "an unfinished file that comes back is removed again"
    )]
    pub(super) fn create_whole(
        path: &Path,
        encode: impl FnOnce(u64) -> Vec<u8>,
    ) -> io::Result<Self> {
        let unfinished = path.with_extension("new");
        match fs::remove_file(&unfinished) {
            // An earlier process may have stopped before the rename. Its unfinished file would make
            // `create_new` fail for ever.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let slots = Self::create(&unfinished, encode)?;
        durable::rename(&unfinished, path)?;
        Ok(slots)
    }

    /// Opens the file. Returns the statement of the newer sound slot, if a slot is sound. `decode`
    /// returns the turn and the statement of a slot that is whole.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be opened.
    pub(super) fn open<S>(
        path: &Path,
        decode: impl Fn(&SlotBytes) -> Option<(u64, S)>,
    ) -> io::Result<(Self, Option<S>)> {
        let file = regular::open_as(path, OpenOptions::new().read(true).write(true))?;
        let newest = newest_slot(&file, decode);
        let turn = newest.as_ref().map_or(0, |(turn, _)| *turn);
        Ok((Self { file, turn }, newest.map(|(_, said)| said)))
    }

    /// Writes a statement into the older slot. The statement is not durable before the next sync.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(super) fn write(&mut self, encode: impl FnOnce(u64) -> Vec<u8>) -> io::Result<()> {
        let turn = self.turn.wrapping_add(1);
        let [even, odd] = OFFSETS;
        let offset = if turn.is_multiple_of(2) { even } else { odd };
        self.file.write_all_at(&encode(turn), offset)?;
        // Set only after the write. After a failed write, the next write has the same turn, so that
        // write leaves the sound slot alone, too.
        self.turn = turn;
        Ok(())
    }

    /// Makes the last written slot durable.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be synced.
    pub(super) fn sync(&self) -> io::Result<()> {
        // No sync of the length is needed: the first write is into the second slot, so no later
        // write changes the length of the file.
        self.file.sync_data()
    }
}

/// Returns the newest readable statement of a file, or `None`.
pub(super) fn read<S>(path: &Path, decode: impl Fn(&SlotBytes) -> Option<(u64, S)>) -> Option<S> {
    let (_, said) = newest_slot(&regular::open(path).ok()?, decode)?;
    Some(said)
}

/// Returns the newer sound slot with its turn.
fn newest_slot<S>(
    file: &File,
    decode: impl Fn(&SlotBytes) -> Option<(u64, S)>,
) -> Option<(u64, S)> {
    let slots = OFFSETS.map(|offset| {
        let mut slot = [0; SLOT_BYTES];
        // A file that was cut short has no second slot, or a shorter one.
        file.read_at(&mut slot, offset).ok()?;
        decode(&slot)
    });
    slots.into_iter().flatten().max_by_key(|(turn, _)| *turn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Reader, RecordWriter, seal, unseal};

    fn number(number: u64) -> impl FnOnce(u64) -> Vec<u8> {
        move |turn| {
            let mut slot = RecordWriter::default();
            slot.long(turn);
            slot.long(number);
            seal(slot.0)
        }
    }

    fn decode(slot: &SlotBytes) -> Option<(u64, u64)> {
        let mut from = Reader(unseal(slot.get(..20)?)?);
        Some((from.long()?, from.long()?))
    }

    fn said(path: &Path) -> Option<u64> {
        let (_, said) = Slots::open(path, decode).unwrap();
        assert_eq!(read(path, decode), said);
        said
    }

    /// Goal: the statement that was written last counts, even if its number is equal to the number
    /// before, or smaller.
    #[test]
    fn the_newest_statement_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots");
        let mut slots = Slots::create(&path, number(0)).unwrap();
        for next in [1, 2, 7, 7, 3, 5] {
            slots.write(number(next)).unwrap();
            assert_eq!(said(&path), Some(next));
            slots = Slots::open(&path, decode).unwrap().0;
        }
        assert!(Slots::create(&path, number(0)).is_err());
    }

    /// Goal: a write cut short costs one statement, not all of them.
    #[test]
    fn a_torn_slot_leaves_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots");
        let mut slots = Slots::create(&path, number(1)).unwrap();
        slots.write(number(2)).unwrap();
        slots.write(number(3)).unwrap();
        for (offset, left) in [(512, Some(2)), (0, None)] {
            slots.file.write_all_at(&[0xff; 9], offset + 10).unwrap();
            assert_eq!(said(&path), left);
        }
    }
}
