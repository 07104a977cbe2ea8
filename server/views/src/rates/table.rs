//! Tables of counts: one file for each hour, day or month, sorted by feed.
//!
//! Shell: files. A row is a feed with counts by slot, such as the minutes of an hour. Rows are
//! packed into blocks with a checksum each, and an index of the blocks is at the end, so a lookup
//! reads the index and one block. Each table is written once and replaced as a whole.

use std::{
    fs::File,
    io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use simplefeed_core::{feed::FeedKey, rates::Unit};
use simplefeed_log::codec::{Reader, RecordWriter, seal, unseal};
use simplefeed_process::regular;

use crate::{error::ViewError, files::failed};

/// Last bytes of every table; they hold the version of its layout.
const MAGIC: &[u8; 20] = b"simplefeed rates 1\n\n";
/// Size of rows, in bytes, at which a block ends.
const BLOCK_BYTES: usize = 8 * 1024;
/// Length of the footer behind the index, in bytes: the length of the index, and the magic.
const FOOTER_BYTES: i64 = 28;

/// Counts of a feed, by slot, in the order of the slots.
pub(super) type SlotCounts = Vec<(u8, u64)>;

/// A feed, and its counts in a table.
pub(super) type TableRow = (FeedKey, SlotCounts);

/// Writes the row of a feed into a block.
pub(super) fn encode_row(feed: FeedKey, counts: &[(u8, u64)], out: &mut RecordWriter) {
    out.feed(feed);
    out.length(counts.len());
    for (slot, count) in counts {
        out.number((*slot).into());
        out.number(*count);
    }
}

/// Reads a row; `None` if the row is damaged.
pub(super) fn decode_row(from: &mut Reader<'_>) -> Option<TableRow> {
    let feed = from.feed()?;
    let length = from.length()?;
    // A slot with a count takes two bytes or more, so a damaged length reserves no more than the
    // block can hold.
    let mut counts = Vec::with_capacity(length.min(from.0.len() / 2));
    for _ in 0..length {
        counts.push((u8::try_from(from.number()?).ok()?, from.number()?));
    }
    Some((feed, counts))
}

/// Adds counts of a feed to other counts of the same feed.
pub(super) fn add(to: &mut SlotCounts, more: &[(u8, u64)]) {
    for &(slot, count) in more {
        let at = to.partition_point(|(other, _)| *other < slot);
        match to.get_mut(at) {
            Some((other, sum)) if *other == slot => *sum += count,
            _ => to.insert(at, (slot, count)),
        }
    }
}

/// Table that is being written.
#[derive(Debug)]
pub(super) struct Making {
    out: BufWriter<File>,
    block: RecordWriter,
    /// First feed of the block.
    first: Option<FeedKey>,
    /// First feed of each earlier block, and where that block begins.
    index: Vec<(FeedKey, u64)>,
    at: u64,
    path: PathBuf,
    name: Name,
}

/// Name of a table: a unit, and the number of the time that the table spans. The name is written
/// into the table, so that no table is taken for another one.
pub(super) type Name = (Unit, i64);

impl Making {
    /// Begins a table in a file of its own.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be made.
    #[expect(clippy::disallowed_methods, reason = "the name is temporary")]
    pub(super) fn new(path: PathBuf, name: Name) -> Result<Self, ViewError> {
        let file = regular::create(&path).map_err(failed("create", &path))?;
        Ok(Self {
            out: BufWriter::new(file),
            block: RecordWriter::default(),
            first: None,
            index: vec![],
            at: 0,
            path,
            name,
        })
    }

    /// Adds a row. Rows come in the order of their feeds, each feed once.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(super) fn row(&mut self, feed: FeedKey, counts: &[(u8, u64)]) -> Result<(), ViewError> {
        if counts.is_empty() {
            return Ok(());
        }
        self.first.get_or_insert(feed);
        encode_row(feed, counts, &mut self.block);
        if self.block.0.len() >= BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), ViewError> {
        let Some(first) = self.first.take() else {
            return Ok(());
        };
        let block = seal(std::mem::take(&mut self.block.0));
        self.index.push((first, self.at));
        self.at += u64::try_from(block.len()).expect("a block is small");
        let written = self.out.write_all(&block);
        written.map_err(failed("write", &self.path))
    }

    /// Ends the table. Returns the file, whose bytes are not durable yet.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(super) fn finish(mut self) -> Result<File, ViewError> {
        self.end_block()?;
        let mut index = RecordWriter::default();
        for (first, at) in &self.index {
            index.feed(*first);
            index.long(*at);
        }
        index.long(self.at);
        write_name(self.name, &mut index);
        let mut index = RecordWriter(seal(index.0));
        let length = index.0.len();
        index.long(u64::try_from(length).expect("an index is small"));
        index.bytes(MAGIC);
        let path = &self.path;
        self.out
            .write_all(&index.0)
            .map_err(failed("write", path))?;
        let file = self
            .out
            .into_inner()
            .map_err(io::IntoInnerError::into_error);
        file.map_err(failed("write", path))
    }
}

/// Table that can be read.
#[derive(Debug)]
pub(super) struct RateTable {
    file: File,
    /// First feed of each block, and where the block begins.
    index: Vec<(FeedKey, u64)>,
    /// End of the last block.
    end: u64,
    path: PathBuf,
}

impl RateTable {
    /// Opens a table.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if the table is not whole, or why the file cannot be read.
    pub(super) fn open(path: &Path, name: Name) -> Result<Self, ViewError> {
        let mut file = regular::open(path).map_err(failed("open", path))?;
        let found = index_of(&mut file, name).map_err(failed("read", path))?;
        let (index, end) = found.ok_or_else(|| ViewError::Damaged { path: path.into() })?;
        let path = path.into();
        Ok(Self {
            file,
            index,
            end,
            path,
        })
    }

    /// Returns the counts of a feed; no counts if the feed has no row.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if the block of the feed is damaged, or why the block cannot be read.
    pub(super) fn find(&self, feed: FeedKey) -> Result<SlotCounts, ViewError> {
        // Blocks are in the order of their first feeds, so only one block may have the row.
        let behind = self.index.partition_point(|(first, _)| *first <= feed);
        let Some(block) = behind.checked_sub(1) else {
            return Ok(vec![]);
        };
        let rows = self.read_block(block)?;
        let row = rows.into_iter().find(|(found, _)| *found == feed);
        Ok(row.map(|(_, counts)| counts).unwrap_or_default())
    }

    /// Returns all rows, in the order of their feeds.
    pub(super) fn rows(&self) -> impl Iterator<Item = Result<TableRow, ViewError>> {
        (0..self.index.len()).flat_map(|block| match self.read_block(block) {
            Ok(rows) => rows.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        })
    }

    fn read_block(&self, number: usize) -> Result<Vec<TableRow>, ViewError> {
        let damaged = || ViewError::Damaged {
            path: self.path.clone(),
        };
        let &(_, from) = self.index.get(number).ok_or_else(damaged)?;
        let next = self.index.get(number + 1);
        let to = next.map_or(self.end, |(_, next)| *next);
        let length = to.checked_sub(from).and_then(|it| usize::try_from(it).ok());
        let mut bytes = vec![0; length.ok_or_else(damaged)?];
        self.file
            .read_exact_at(&mut bytes, from)
            .map_err(failed("read", &self.path))?;
        let mut from = Reader(unseal(&bytes).ok_or_else(damaged)?);
        let mut rows = vec![];
        while !from.0.is_empty() {
            rows.push(decode_row(&mut from).ok_or_else(damaged)?);
        }
        Ok(rows)
    }
}

fn write_name((unit, span): Name, out: &mut RecordWriter) {
    let length = unit.to_string();
    out.bytes(length.as_bytes());
    out.long(span.cast_unsigned());
}

/// First feed and offset of each block of a table, and the end of the last block.
type Index = (Vec<(FeedKey, u64)>, u64);

/// Returns the index of a file; `None` if the file has no sound index.
fn index_of(file: &mut File, name: Name) -> io::Result<Option<Index>> {
    let length = file.metadata()?.len();
    if file.seek(SeekFrom::End(-FOOTER_BYTES)).is_err() {
        // A file that is shorter than the footer is no table.
        return Ok(None);
    }
    let mut footer = [0; 28];
    file.read_exact(&mut footer)?;
    let mut footer = Reader(&footer);
    let index_bytes = footer.long().filter(|_| footer.0 == MAGIC);
    // The seek has shown that the file is no shorter than the footer.
    let room = length - footer_length();
    let Some(begin) = index_bytes.and_then(|bytes| room.checked_sub(bytes)) else {
        return Ok(None);
    };
    let mut bytes = vec![0; usize::try_from(room - begin).unwrap_or(0)];
    file.read_exact_at(&mut bytes, begin)?;
    let mut ours = RecordWriter::default();
    write_name(name, &mut ours);
    let Some(index) = unseal(&bytes).and_then(|index| index.strip_suffix(&*ours.0)) else {
        return Ok(None);
    };
    let mut from = Reader(index);
    let mut blocks = vec![];
    while from.0.len() > 8 {
        match (from.feed(), from.long()) {
            (Some(feed), Some(at)) if at <= begin => blocks.push((feed, at)),
            _ => return Ok(None),
        }
    }
    let end = from.long().filter(|end| *end == begin);
    Ok(end.map(|end| (blocks, end)))
}

fn footer_length() -> u64 {
    FOOTER_BYTES.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use uuid::Uuid;

    use super::*;

    const NAME: Name = (Unit::Hour, 20_000);

    fn feed(number: u128) -> FeedKey {
        FeedKey(Uuid::from_u128(number))
    }

    fn written(path: &Path, rows: &[TableRow]) -> RateTable {
        let mut table = Making::new(path.into(), NAME).unwrap();
        for (feed, counts) in rows {
            table.row(*feed, counts).unwrap();
        }
        drop(table.finish().unwrap());
        RateTable::open(path, NAME).unwrap()
    }

    #[test]
    fn every_row_is_found_again_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        for count in [0, 1, 2, 5_000] {
            let rows: Vec<TableRow> = (1..=count)
                .map(|at: u64| {
                    let slots = u8::try_from(at % 24).unwrap();
                    let counts = (0..=slots).map(|slot| (slot, at * 1_000));
                    (feed(u128::from(at) * 2), counts.collect())
                })
                .collect();
            let table = written(&folder.path().join("table"), &rows);
            assert_eq!(table.rows().collect::<Result<Vec<_>, _>>().unwrap(), rows);
            for (at, row) in (1..).zip(&rows) {
                assert_eq!(table.find(feed(at * 2)).unwrap(), row.1);
                assert_eq!(table.find(feed(at * 2 + 1)).unwrap(), vec![]);
            }
            assert_eq!(table.find(feed(1)).unwrap(), vec![]);
        }
    }

    /// Goal: a damaged table is an error, never a feed without entries.
    #[test]
    fn each_wrong_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        let rows: Vec<TableRow> = (1..=3).map(|at| (feed(at), vec![(1, 2)])).collect();
        drop(written(&path, &rows));
        let right = fs::read(&path).unwrap();
        for other in [(Unit::Hour, 20_001), (Unit::Day, 20_000)] {
            assert!(RateTable::open(&path, other).is_err(), "{other:?}");
        }
        for at in 0..right.len() {
            let mut wrong = right.clone();
            wrong[at] ^= 0x40;
            fs::write(&path, &wrong).unwrap();
            let read = RateTable::open(&path, NAME)
                .and_then(|table| table.rows().collect::<Result<Vec<_>, _>>());
            assert!(read.is_err(), "byte {at}");
            fs::write(&path, &right[..at]).unwrap();
            assert!(RateTable::open(&path, NAME).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn counts_of_one_slot_become_their_sum() {
        let mut counts = vec![(3, 1), (7, 2)];
        add(&mut counts, &[(7, 5), (1, 4), (9, 1)]);
        assert_eq!(counts, [(1, 4), (3, 1), (7, 7), (9, 1)]);
    }
}
