//! A run: sorted ids in a file, with a filter that excludes most absent ids.
//!
//! Shell: files. A run never changes. Every block has a checksum, because an entry whose id is
//! overlooked would be stored twice.
//!
//! ```text
//! block 0   "SFI1" | first commit u64 | last commit u64 | chain hash 32 | ids u64 | CRC-32 of the filter | CRC-32
//! block n   up to 170 x (fingerprint 16 | position u64), filled up with 0xff | CRC-32 u32
//! filter    64-bit words, one for every four ids
//! ```

use std::{
    fs::{self, File},
    io::{self, BufWriter, Seek as _, SeekFrom, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    digest::Digest,
    feed::{CommitNumber, Position},
    history::ChainHash,
};
use simplefeed_process::regular;

use super::{CommitSpan, Fingerprint, IdPlace, filter::Filter, fingerprint_halves};
use crate::{durable, held::visible_path};

const MAGIC: &[u8; 4] = b"SFI1";
const BLOCK_BYTES: usize = 4_096;
const RECORD_BYTES: usize = 24;
const BLOCK_RECORDS: usize = (BLOCK_BYTES - 4) / RECORD_BYTES;
/// Fills up the last block. No SHA-256 that will ever occur begins like this.
const NONE: [u8; RECORD_BYTES] = [0xff; RECORD_BYTES];
/// Name of the file of a run until the run is whole.
const PARTIAL: &str = "run.partial";
/// Number of ids that are written between two syncs: 4 MB. Without these syncs, the sync of a
/// commit could wait until all of a large run is written.
const UNSYNCED_IDS_MAX: u64 = 100 * 170 * 10;

/// Ids in a file.
#[derive(Debug)]
pub(super) struct IdRun {
    path: PathBuf,
    file: File,
    pub(super) span: CommitSpan,
    pub(super) ids: u64,
    pub(super) filter: Filter,
}

impl IdRun {
    /// Writes sorted ids to a new file in `folder`, one at a time. The file is durable when the
    /// function returns.
    ///
    /// # Errors
    ///
    /// Returns why the ids cannot be read, or why the file cannot be written.
    #[expect(
        clippy::disallowed_methods,
        reason = "the next run takes a partial file that is left"
    )]
    pub(super) fn write(
        folder: &Path,
        span: CommitSpan,
        ids_max: u64,
        ids: impl Iterator<Item = io::Result<IdPlace>>,
    ) -> io::Result<Self> {
        let path = folder.join(name_of(&span));
        let partial = folder.join(PARTIAL);
        let written = Self::write_partial(&partial, span, ids_max, ids);
        let (filter, ids) = written.inspect_err(|_| {
            // The partial file would take room that the log may need.
            let _gone = fs::remove_file(&partial);
        })?;
        // Only a synced file gets the name of a run, so that no run is cut short.
        durable::rename(&partial, &path)?;
        Ok(Self {
            file: regular::open(&path)?,
            path,
            span,
            ids,
            filter,
        })
    }

    #[expect(clippy::disallowed_methods, reason = "the name is temporary")]
    fn write_partial(
        partial: &Path,
        span: CommitSpan,
        ids_max: u64,
        ids: impl Iterator<Item = io::Result<IdPlace>>,
    ) -> io::Result<(Filter, u64)> {
        let mut out = BufWriter::with_capacity(256 * 1024, regular::create(partial)?);
        // Room for the header, whose count and checksum are known at the end.
        out.write_all(&[0; BLOCK_BYTES])?;
        let (mut filter, mut count) = (Filter::for_ids(ids_max), 0_u64);
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        for placed in ids {
            let placed = placed?;
            filter.add(&placed.fingerprint);
            block.extend_from_slice(&placed.fingerprint);
            block.extend_from_slice(&placed.at.0.to_be_bytes());
            count += 1;
            if block.len() == BLOCK_RECORDS * RECORD_BYTES {
                out.write_all(&seal_block(&mut block))?;
                if count % UNSYNCED_IDS_MAX == 0 {
                    out.flush()?;
                    out.get_ref().sync_data()?;
                }
            }
        }
        if !block.is_empty() {
            out.write_all(&seal_block(&mut block))?;
        }
        let filter_bytes = filter.to_bytes();
        out.write_all(&filter_bytes)?;
        out.seek(SeekFrom::Start(0))?;
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&span.first.0.to_be_bytes());
        header.extend_from_slice(&span.last.0.to_be_bytes());
        header.extend_from_slice(&span.chain.0.0);
        header.extend_from_slice(&count.to_be_bytes());
        header.extend_from_slice(&crc32fast::hash(&filter_bytes).to_be_bytes());
        out.write_all(&seal_block(&mut header))?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        #[cfg(planted)]
        if crate::planted::is("run-unsynced") {
            return Ok((filter, count));
        }
        file.sync_all()?;
        Ok((filter, count))
    }

    /// Opens a run and reads the filter. Each block is checked when a lookup reads that block.
    ///
    /// # Errors
    ///
    /// Returns why the run cannot be read, or that the run is damaged.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = regular::open(path)?;
        let damaged = || damage_error(path);
        let header = read_block(&file, path, 0)?;
        let mut rest = header.strip_prefix(MAGIC).ok_or_else(damaged)?;
        let mut number = || -> Option<u64> {
            let (number, behind) = rest.split_first_chunk::<8>()?;
            rest = behind;
            Some(u64::from_be_bytes(*number))
        };
        let commits = number().zip(number()).ok_or_else(damaged)?;
        let (chain, behind) = rest.split_first_chunk::<32>().ok_or_else(damaged)?;
        let (ids, behind) = behind.split_first_chunk::<8>().ok_or_else(damaged)?;
        let checksum = behind.first_chunk::<4>().ok_or_else(damaged)?;
        let span = CommitSpan {
            first: CommitNumber(commits.0),
            last: CommitNumber(commits.1),
            chain: ChainHash(Digest(*chain)),
        };
        let ids = u64::from_be_bytes(*ids);
        let filter_at = offset_of(1 + blocks_of(ids));
        let length = file.metadata()?.len();
        let filter_bytes = length.checked_sub(filter_at).ok_or_else(damaged)?;
        let mut filter = vec![0; usize::try_from(filter_bytes).map_err(io::Error::other)?];
        read_at(&file, path, &mut filter, filter_at)?;
        // A wrong filter would hide ids, and their entries would be stored twice.
        #[cfg(planted)]
        let checksum = match crate::planted::is("run-unsynced") {
            true => &crc32fast::hash(&filter).to_be_bytes(),
            false => checksum,
        };
        if crc32fast::hash(&filter).to_be_bytes() != *checksum || filter.is_empty() {
            return Err(damaged());
        }
        Ok(Self {
            path: path.into(),
            file,
            span,
            ids,
            filter: Filter::of_bytes(&filter),
        })
    }

    /// Returns the position of the entry with an id. Callers ask the filter first, because this
    /// lookup reads the file.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read, or that the file is damaged.
    pub(super) fn find(&self, fingerprint: &Fingerprint) -> io::Result<Option<Position>> {
        // Fingerprints are spread evenly, so the block of a fingerprint can nearly be calculated.
        let (wanted, _) = fingerprint_halves(fingerprint);
        let mut blocks = 0..blocks_of(self.ids);
        let mut guess = scale_share(wanted, blocks.end);
        while !blocks.is_empty() {
            // Within the bounds, each round drops at least one block, however wrong the guess.
            let at = guess.clamp(blocks.start, blocks.end - 1);
            let block = read_block(&self.file, &self.path, 1 + at)?;
            let records = records_of(&block);
            // `blocks_of` counts only blocks with records.
            let (Some(first), Some(last)) = (records.first(), records.last()) else {
                return Err(damage_error(&self.path));
            };
            let lead = fingerprint_halves(&first.fingerprint).0;
            if *fingerprint < first.fingerprint {
                blocks.end = at;
                guess = at.saturating_sub(scale_share(lead - wanted, blocks_of(self.ids)).max(1));
            } else if *fingerprint > last.fingerprint {
                blocks.start = at + 1;
                guess = at + scale_share(wanted - lead, blocks_of(self.ids)).max(1);
            } else {
                let found = records.binary_search_by_key(fingerprint, |placed| placed.fingerprint);
                let found = found.ok().and_then(|index| records.get(index));
                return Ok(found.map(|placed| placed.at));
            }
        }
        Ok(None)
    }

    /// Returns all ids, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = io::Result<IdPlace>> + '_ {
        (0..blocks_of(self.ids)).flat_map(|block| {
            let (records, error) = match read_block(&self.file, &self.path, 1 + block) {
                Ok(block) => (records_of(&block), None),
                Err(error) => (vec![], Some(Err(error))),
            };
            records.into_iter().map(Ok).chain(error)
        })
    }

    /// Returns the path of the run's file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the name of the file of a run.
fn name_of(span: &CommitSpan) -> String {
    format!("{}-{}.run", span.first.0, span.last.0)
}

/// Returns `whole` times `share`, divided by 2^64.
fn scale_share(share: u64, whole: u64) -> u64 {
    // The product of two 64-bit numbers needs 128 bits.
    let scaled = (u128::from(share) * u128::from(whole)) >> 64;
    u64::try_from(scaled).expect("it is at most the whole")
}

fn blocks_of(ids: u64) -> u64 {
    ids.div_ceil(u64::try_from(BLOCK_RECORDS).expect("a block is small"))
}

fn offset_of(block: u64) -> u64 {
    block.saturating_mul(u64::try_from(BLOCK_BYTES).expect("a block is small"))
}

/// Empties `block`. Returns the bytes that were in the block, filled up, with a checksum.
fn seal_block(block: &mut Vec<u8>) -> Vec<u8> {
    let mut sealed = std::mem::replace(block, Vec::with_capacity(BLOCK_BYTES));
    sealed.resize(BLOCK_BYTES - 4, 0xff);
    let checksum = crc32fast::hash(&sealed);
    sealed.extend_from_slice(&checksum.to_be_bytes());
    sealed
}

fn read_block(file: &File, path: &Path, block: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; BLOCK_BYTES];
    read_at(file, path, &mut bytes, offset_of(block))?;
    let checksum = bytes.split_off(BLOCK_BYTES - 4);
    if crc32fast::hash(&bytes).to_be_bytes() == *checksum {
        return Ok(bytes);
    }
    Err(damage_error(path))
}

/// Reads bytes of a run. Only a whole file gets the name of a run, so a file that ends early is
/// damaged.
fn read_at(file: &File, path: &Path, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let read = file.read_exact_at(bytes, offset);
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damage_error(path),
        _ => error,
    })
}

fn records_of(block: &[u8]) -> Vec<IdPlace> {
    let (records, _) = block.as_chunks::<RECORD_BYTES>();
    let there = records.iter().filter(|record| **record != NONE);
    let placed = there.filter_map(|record| {
        Some(IdPlace {
            fingerprint: *record.first_chunk()?,
            at: Position(u64::from_be_bytes(*record.last_chunk()?)),
        })
    });
    placed.collect()
}

fn damage_error(path: &Path) -> io::Error {
    let what = format!("{} is damaged", visible_path(path).display());
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn placed(number: u64) -> IdPlace {
        IdPlace {
            fingerprint: Digest::of(&number.to_be_bytes()).half(),
            at: Position(number),
        }
    }

    fn written(folder: &Path, ids: u64) -> IdRun {
        let mut all: Vec<IdPlace> = (0..ids).map(placed).collect();
        all.sort_by_key(|placed| placed.fingerprint);
        let span = CommitSpan {
            first: CommitNumber(1),
            last: CommitNumber(ids),
            chain: ChainHash::START,
        };
        IdRun::write(folder, span, ids, all.into_iter().map(Ok)).unwrap()
    }

    #[test]
    fn what_is_in_it_is_found_and_nothing_else() {
        for ids in [1, 169, 170, 171, 5_000] {
            let folder = tempfile::tempdir().unwrap();
            let written = written(folder.path(), ids);
            let opened = IdRun::open(written.path()).unwrap();
            assert_eq!((opened.span, opened.ids), (written.span, ids));
            assert_eq!(opened.iter().count(), written.iter().count());
            for run in [written, opened] {
                for number in 0..ids {
                    let found = run.find(&placed(number).fingerprint).unwrap();
                    assert_eq!(found, Some(Position(number)), "of {ids}");
                }
                for number in ids..ids + 2_000 {
                    assert_eq!(run.find(&placed(number).fingerprint).unwrap(), None);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// Goal: a damaged run says so, and overlooks no id.
        #[test]
        fn damage_is_found(place in any::<prop::sample::Index>(), bits in 1..=255_u8) {
            let folder = tempfile::tempdir().unwrap();
            let path = written(folder.path(), 400).path().to_path_buf();
            let mut bytes = fs::read(&path).unwrap();
            let place = place.index(bytes.len());
            bytes[place] ^= bits;
            fs::write(&path, bytes).unwrap();
            let refused = IdRun::open(&path).and_then(|run| {
                (0..400).try_for_each(|number| {
                    let found = run.find(&placed(number).fingerprint)?;
                    assert_eq!(found, Some(Position(number)));
                    Ok(())
                })
            });
            prop_assert!(refused.is_err());
        }
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), 400).path().to_path_buf();
        let bytes = fs::read(&path).unwrap();
        for length in [0, 100, 4_096, 9_000, bytes.len() - 1] {
            fs::write(&path, &bytes[..length]).unwrap();
            assert!(IdRun::open(&path).is_err(), "{length} bytes");
        }
    }
}
