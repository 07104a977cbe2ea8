//! A run: for each timeline, the entries that the followed feeds gained in a stretch of the log.
//!
//! Shell: a file, or bytes in memory. A run never changes, and every block has a checksum.
//!
//! ```text
//! entries    blocks of 128: feed, position, time since the entry before, in the order of the log
//! lists      blocks of parts: timeline, number of entries, index of the first, steps to the others
//! directory  offset of each block; what was left out; the stretch; the chain hash after it
//! end        offset of the directory u64 | "SFT1" | CRC-32
//! ```
//!
//! A list has indexes into the entries, mostly a byte or two each, and so a delivery costs few
//! bytes whatever the number of followers.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    iter::Peekable,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use quick_cache::{Weighter, sync::Cache};
use simplefeed_core::{
    feed::{CommitNumber, Position},
    history::ChainHash,
    timestamp::Timestamp,
};
use simplefeed_log::{
    codec::{Reader, RecordWriter, seal, unseal},
    durable,
};
use simplefeed_process::regular;

use super::super::{followers::TimelineKey, graph::SourceKey};

const MAGIC: &[u8; 4] = b"SFT1";
const END_BYTES: usize = 16;
/// Maximum number of entries of a block. The number is small in unit tests, so that these see many
/// blocks.
const BLOCK_ENTRIES: usize = if cfg!(test) { 3 } else { 128 };
/// Size of parts, in bytes, from which on a block of lists ends.
const BLOCK_BYTES: usize = if cfg!(test) { 12 } else { 4_000 };
/// Maximum number of entries of a part.
const PART_ENTRIES: usize = if cfg!(test) { 4 } else { 512 };
/// Maximum size of the entries of all runs in memory, in bytes.
const CACHE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// An entry that a feed gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct GainedEntry {
    pub(in super::super) source: SourceKey,
    pub(in super::super) at: Position,
    pub(in super::super) instant: Timestamp,
}

/// How far entries are gathered: all entries before `instant`, and so all entries of the commits up
/// to `commit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct GatheredEnd {
    pub(in super::super) commit: CommitNumber,
    pub(in super::super) instant: Timestamp,
}

impl GatheredEnd {
    /// The beginning of a log.
    pub(super) const NOTHING: Self = Self {
        commit: CommitNumber(0),
        instant: Timestamp::MIN,
    };
}

/// Stretch of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogStretch {
    pub(super) from: Timestamp,
    pub(super) to: GatheredEnd,
    /// Last commit that the run covers, in whole or in part, and the chain hash after that commit.
    /// A run of another log has another hash, and is not used.
    pub(super) last: CommitNumber,
    pub(super) chain: ChainHash,
}

/// Positions of feeds whose entries are in no list.
pub(super) type PositionsApart = Vec<(SourceKey, Range<Position>)>;

/// Directory entry of one block of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockAt {
    /// First timeline that has a part in the block, and the number of that timeline's entries in
    /// earlier blocks.
    timeline: TimelineKey,
    before: u32,
    offset: u64,
}

#[derive(Debug)]
enum RunBody {
    Memory(Vec<u8>),
    File(File, PathBuf),
}

/// Entries in memory, by run and block.
pub(in super::super) type EntryBlocks = Cache<(u64, usize), Arc<Vec<GainedEntry>>, RunBlockWeight>;

#[derive(Clone, Debug)]
pub(in super::super) struct RunBlockWeight;

impl Weighter<(u64, usize), Arc<Vec<GainedEntry>>> for RunBlockWeight {
    fn weight(&self, _: &(u64, usize), block: &Arc<Vec<GainedEntry>>) -> u64 {
        u64::try_from(size_of_val(&***block) + 64).unwrap_or(u64::MAX)
    }
}

/// Returns an empty cache of entries.
pub(super) fn entry_blocks() -> EntryBlocks {
    Cache::with_weighter(5_000, CACHE_BYTES_MAX, RunBlockWeight)
}

/// Lists of timelines over the entries of a stretch.
#[derive(Debug)]
pub(in super::super) struct GatheredRun {
    /// Number within the process, for caches.
    number: u64,
    body: RunBody,
    /// Offsets of the blocks of entries.
    entry_blocks: Vec<u64>,
    directory: Vec<BlockAt>,
    /// End of the blocks of lists.
    end: u64,
    pub(super) entries: u32,
    pub(super) span: LogStretch,
    pub(super) apart: PositionsApart,
}

/// A run that is being written, timeline by timeline.
pub(super) struct RunWriter<W> {
    out: W,
    offset: u64,
    entries: u32,
    entry_blocks: Vec<u64>,
    directory: Vec<BlockAt>,
    block: RecordWriter,
    /// Entries of a timeline that wait to become a part.
    part: Vec<u32>,
    timeline: TimelineKey,
    /// Number of entries of the timeline that are in parts.
    before: u32,
}

impl<W: Write> RunWriter<W> {
    /// Writes the entries of the stretch.
    pub(super) fn begin(
        mut out: W,
        entries: impl Iterator<Item = io::Result<GainedEntry>>,
    ) -> io::Result<Self> {
        let (mut offset, mut count) = (0, 0_u32);
        let mut block = RecordWriter::default();
        let (mut in_block, mut before) = (0, 0);
        let mut entry_blocks = vec![];
        for entry in entries {
            let entry = entry?;
            let micros = entry.instant.micros();
            if in_block == BLOCK_ENTRIES {
                offset += put_block(&mut out, &mut block)?;
                in_block = 0;
            }
            if in_block == 0 {
                entry_blocks.push(offset);
                // Each block begins with a whole instant, so that a block can be read alone.
                before = 0;
            }
            block.number(u64::from(entry.source));
            block.number(entry.at.0);
            // Instants grow, so most steps are small. Instants before 1970 wrap round here, and
            // back again when they are read.
            block.number(micros.wrapping_sub(before).cast_unsigned());
            before = micros;
            in_block += 1;
            count = count.checked_add(1).ok_or_else(too_many)?;
        }
        if in_block > 0 {
            offset += put_block(&mut out, &mut block)?;
        }
        Ok(Self {
            out,
            offset,
            entries: count,
            entry_blocks,
            directory: vec![],
            block,
            part: vec![],
            timeline: 0,
            before: 0,
        })
    }

    /// Adds an entry, by its index, to the list of a timeline. The timelines must come in order,
    /// and the entries of each timeline, too.
    pub(super) fn add(&mut self, timeline: TimelineKey, index: u32) -> io::Result<()> {
        if timeline != self.timeline || self.part.len() == PART_ENTRIES {
            self.end_part()?;
            if timeline != self.timeline {
                self.timeline = timeline;
                self.before = 0;
            }
        }
        self.part.push(index);
        Ok(())
    }

    fn end_part(&mut self) -> io::Result<()> {
        let Some(first) = self.part.first() else {
            return Ok(());
        };
        if self.block.0.len() >= BLOCK_BYTES {
            self.offset += put_block(&mut self.out, &mut self.block)?;
        }
        if self.block.0.is_empty() {
            // A search reads the last block whose first part is not behind the wanted part.
            self.directory.push(BlockAt {
                timeline: self.timeline,
                before: self.before,
                offset: self.offset,
            });
        }
        self.block.number(u64::from(self.timeline));
        self.block.length(self.part.len());
        self.block.number(u64::from(*first));
        for pair in self.part.windows(2) {
            if let [one, next] = pair {
                self.block.number(u64::from(next - one));
            }
        }
        let count = u32::try_from(self.part.len()).ok();
        let before = count.and_then(|count| self.before.checked_add(count));
        self.before = before.ok_or_else(too_many)?;
        self.part.clear();
        Ok(())
    }

    /// Ends the lists. Returns the output, and the run without a body.
    fn finish_run(
        mut self,
        span: LogStretch,
        apart: PositionsApart,
    ) -> io::Result<(W, GatheredRun)> {
        self.end_part()?;
        if !self.block.0.is_empty() {
            self.offset += put_block(&mut self.out, &mut self.block)?;
        }
        let run = GatheredRun {
            number: next_number(),
            body: RunBody::Memory(vec![]),
            entry_blocks: self.entry_blocks,
            directory: self.directory,
            end: self.offset,
            entries: self.entries,
            span,
            apart,
        };
        Ok((self.out, run))
    }
}

impl RunWriter<Vec<u8>> {
    /// Returns the run, which stays in memory.
    pub(super) fn into_memory(
        self,
        span: LogStretch,
        apart: PositionsApart,
    ) -> io::Result<GatheredRun> {
        let (bytes, run) = self.finish_run(span, apart)?;
        let body = RunBody::Memory(bytes);
        Ok(GatheredRun { body, ..run })
    }
}

impl RunWriter<BufWriter<File>> {
    /// Returns the run in a file, which is durable under its final name on return.
    pub(super) fn into_file(
        self,
        folder: &Path,
        span: LogStretch,
        apart: PositionsApart,
    ) -> io::Result<GatheredRun> {
        let (mut out, run) = self.finish_run(span, apart)?;
        out.write_all(&seal(run.directory_bytes()))?;
        out.write_all(&seal([&run.end.to_be_bytes()[..], MAGIC].concat()))?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        // The bytes are synced before the rename, so that a file with a final name is whole.
        file.sync_all()?;
        let path = folder.join(name_of(&span));
        durable::rename(&partial(folder, &span), &path)?;
        // Opened for reading only.
        let body = RunBody::File(regular::open(&path)?, path);
        Ok(GatheredRun { body, ..run })
    }

    /// Begins the file of a run in a folder.
    #[expect(clippy::disallowed_methods, reason = "the name is temporary")]
    pub(super) fn create(
        folder: &Path,
        span: &LogStretch,
        entries: impl Iterator<Item = io::Result<GainedEntry>>,
    ) -> io::Result<Self> {
        let file = regular::create(partial(folder, span))?;
        Self::begin(BufWriter::with_capacity(256 * 1024, file), entries)
    }
}

/// Returns the path of a run's file until the file is whole.
pub(super) fn partial(folder: &Path, span: &LogStretch) -> PathBuf {
    folder.join(name_of(span) + ".partial")
}

fn name_of(span: &LogStretch) -> String {
    let to = span.to.instant.micros();
    match span.from {
        Timestamp::MIN => format!("0-{to}.run"),
        from => format!("{}-{to}.run", from.micros()),
    }
}

/// Writes a block with a checksum. Returns the length.
fn put_block(out: &mut impl Write, block: &mut RecordWriter) -> io::Result<u64> {
    let sealed = seal(std::mem::take(&mut block.0));
    out.write_all(&sealed)?;
    Ok(u64::try_from(sealed.len()).unwrap_or(u64::MAX))
}

fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

fn too_many() -> io::Error {
    io::Error::other("a run has too many entries")
}

fn damage_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a run of timelines is damaged")
}

/// Part of a timeline's list.
#[derive(Clone, Debug)]
pub(in super::super) struct ListPart {
    /// Number of entries of the list before this part.
    pub(in super::super) before: u32,
    /// Indexes of entries of the run.
    pub(in super::super) indexes: Vec<u32>,
}

impl ListPart {
    fn end_index(&self) -> u32 {
        self.before + u32::try_from(self.indexes.len()).unwrap_or(u32::MAX)
    }
}

impl GatheredRun {
    /// Opens the file of a run. Each block is checked when it is read.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = regular::open(path)?;
        let length = file.metadata()?.len();
        let mut end = [0; END_BYTES];
        let end_bytes = u64::try_from(END_BYTES).unwrap_or(u64::MAX);
        let end_at = length.checked_sub(end_bytes).ok_or_else(damage_error)?;
        read_at(&file, &mut end, end_at)?;
        let end = unseal(&end).ok_or_else(damage_error)?;
        let (offset, magic) = end.split_first_chunk::<8>().ok_or_else(damage_error)?;
        let offset = u64::from_be_bytes(*offset);
        let bytes = end_at.checked_sub(offset).ok_or_else(damage_error)?;
        if magic != MAGIC {
            return Err(damage_error());
        }
        let mut directory = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        read_at(&file, &mut directory, offset)?;
        let directory = unseal(&directory).ok_or_else(damage_error)?;
        let body = RunBody::File(file, path.into());
        Self::of_directory(directory, offset, body).ok_or_else(damage_error)
    }

    fn directory_bytes(&self) -> Vec<u8> {
        let mut out = RecordWriter::default();
        out.number(u64::from(self.entries));
        out.length(self.entry_blocks.len());
        for offset in &self.entry_blocks {
            out.number(*offset);
        }
        out.length(self.directory.len());
        for block in &self.directory {
            out.number(u64::from(block.timeline));
            out.number(u64::from(block.before));
            out.number(block.offset);
        }
        out.length(self.apart.len());
        for (source, range) in &self.apart {
            out.number(u64::from(*source));
            out.number(range.start.0);
            out.number(range.end.0);
        }
        out.instant(self.span.from);
        out.long(self.span.to.commit.0);
        out.instant(self.span.to.instant);
        out.long(self.span.last.0);
        out.bytes(&self.span.chain.0.0);
        out.0
    }

    fn of_directory(bytes: &[u8], end: u64, body: RunBody) -> Option<Self> {
        let mut from = Reader(bytes);
        let entries = from.small()?;
        let (mut entry_blocks, mut directory, mut apart) = (vec![], vec![], vec![]);
        for _ in 0..from.length()? {
            entry_blocks.push(from.number()?);
        }
        for _ in 0..from.length()? {
            directory.push(BlockAt {
                timeline: from.small()?,
                before: from.small()?,
                offset: from.number()?,
            });
        }
        for _ in 0..from.length()? {
            let source = from.small()?;
            apart.push((source, Position(from.number()?)..Position(from.number()?)));
        }
        let span = LogStretch {
            from: from.instant()?,
            to: GatheredEnd {
                commit: CommitNumber(from.long()?),
                instant: from.instant()?,
            },
            last: CommitNumber(from.long()?),
            chain: ChainHash(from.digest()?),
        };
        from.0.is_empty().then_some(Self {
            number: next_number(),
            body,
            entry_blocks,
            directory,
            end,
            entries,
            span,
            apart,
        })
    }

    /// Returns the path of the run's file, if the run is in a file.
    pub(super) fn path(&self) -> Option<&Path> {
        match &self.body {
            RunBody::File(_, path) => Some(path),
            RunBody::Memory(_) => None,
        }
    }

    /// Returns the size of all blocks, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Returns the number of entries in the list of a timeline.
    ///
    /// # Errors
    ///
    /// Returns why the run cannot be read, or that the run is damaged.
    pub(in super::super) fn count(&self, timeline: TimelineKey) -> io::Result<u32> {
        let behind = self
            .directory
            .partition_point(|block| block.timeline <= timeline);
        let part = self.part_in(behind, timeline)?;
        Ok(part.map_or(0, |part| part.end_index()))
    }

    /// Returns the part of a timeline's list that has the entry with this index in the list.
    ///
    /// # Errors
    ///
    /// Returns why the run cannot be read, or that the run is damaged.
    pub(in super::super) fn part(&self, timeline: TimelineKey, at: u32) -> io::Result<ListPart> {
        let behind = self
            .directory
            .partition_point(|block| (block.timeline, block.before) <= (timeline, at));
        let part = self.part_in(behind, timeline)?;
        part.filter(|part| (part.before..part.end_index()).contains(&at))
            .ok_or_else(damage_error)
    }

    /// Returns the part of a timeline's list in the block before `behind`; `None` if the block has
    /// no entry of the list.
    fn part_in(&self, behind: usize, timeline: TimelineKey) -> io::Result<Option<ListPart>> {
        let Some(index) = behind.checked_sub(1) else {
            return Ok(None);
        };
        let block = self.directory.get(index).ok_or_else(damage_error)?;
        // The list of any other timeline in the block begins in the block.
        let before = if block.timeline == timeline {
            block.before
        } else {
            0
        };
        let bytes = self.block_of_lists(index)?;
        let mut from = Reader(unseal(&bytes).ok_or_else(damage_error)?);
        let mut indexes = vec![];
        while !from.0.is_empty() {
            let of = from.small().ok_or_else(damage_error)?;
            if of > timeline {
                // Parts are in the order of timelines, so the rest belongs to other lists.
                break;
            }
            let mut read = || {
                let count = from.length()?;
                let mut index = from.small()?;
                if of < timeline {
                    skip_numbers(&mut from, count.checked_sub(1)?)?;
                    return Some(());
                }
                indexes.push(index);
                for _ in 1..count {
                    index = index.checked_add(from.small()?)?;
                    indexes.push(index);
                }
                Some(())
            };
            read().ok_or_else(damage_error)?;
        }
        Ok((!indexes.is_empty()).then_some(ListPart { before, indexes }))
    }

    fn block_of_lists(&self, index: usize) -> io::Result<Vec<u8>> {
        let begin = self.directory.get(index).ok_or_else(damage_error)?.offset;
        let next = self.directory.get(index + 1);
        self.read_range(begin..next.map_or(self.end, |next| next.offset))
    }

    /// Returns an entry of the run.
    ///
    /// # Errors
    ///
    /// Returns why the run cannot be read, or that the run is damaged.
    pub(in super::super) fn entry(
        &self,
        index: u32,
        cache: &EntryBlocks,
    ) -> io::Result<GainedEntry> {
        let index = usize::try_from(index).map_err(io::Error::other)?;
        let number = index / BLOCK_ENTRIES;
        let key = (self.number, number);
        let block =
            cache.get_or_insert_with(&key, || self.block_of_entries(number).map(Arc::new))?;
        block
            .get(index % BLOCK_ENTRIES)
            .copied()
            .ok_or_else(damage_error)
    }

    fn block_of_entries(&self, number: usize) -> io::Result<Vec<GainedEntry>> {
        let begin = *self.entry_blocks.get(number).ok_or_else(damage_error)?;
        // The last block of entries ends where the lists begin.
        let lists = self
            .directory
            .first()
            .map_or(self.end, |block| block.offset);
        let end = self.entry_blocks.get(number + 1).copied().unwrap_or(lists);
        let sealed = self.read_range(begin..end)?;
        let mut from = Reader(unseal(&sealed).ok_or_else(damage_error)?);
        let (mut entries, mut micros) = (vec![], 0_i64);
        while !from.0.is_empty() {
            let mut read = || Some((from.small()?, from.number()?, from.number()?));
            let (source, at, step) = read().ok_or_else(damage_error)?;
            micros = micros.wrapping_add(step.cast_signed());
            entries.push(GainedEntry {
                source,
                at: Position(at),
                instant: Timestamp::from_micros(micros),
            });
        }
        Ok(entries)
    }

    fn read_range(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let length = range
            .end
            .checked_sub(range.start)
            .ok_or_else(damage_error)?;
        self.read_bytes(
            range.start,
            usize::try_from(length).map_err(io::Error::other)?,
        )
    }

    fn read_bytes(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        match &self.body {
            RunBody::Memory(bytes) => {
                let begin = usize::try_from(offset).map_err(io::Error::other)?;
                let end = begin.checked_add(length).ok_or_else(damage_error)?;
                Ok(bytes.get(begin..end).ok_or_else(damage_error)?.to_vec())
            }
            RunBody::File(file, _) => {
                // Checked before the buffer is made, because a damaged offset must not fill the
                // memory.
                if offset.saturating_add(u64::try_from(length).unwrap_or(u64::MAX)) > self.end {
                    return Err(damage_error());
                }
                let mut bytes = vec![0; length];
                read_at(file, &mut bytes, offset)?;
                Ok(bytes)
            }
        }
    }

    /// Returns all entries, in their order.
    fn all_entries(&self) -> impl Iterator<Item = io::Result<GainedEntry>> + '_ {
        (0..self.entry_blocks.len()).flat_map(|number| match self.block_of_entries(number) {
            Ok(entries) => entries.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        })
    }

    /// Returns all lists in parts, in the order of their timelines.
    fn all_parts(&self) -> impl Iterator<Item = io::Result<(TimelineKey, Vec<u32>)>> + '_ {
        (0..self.directory.len()).flat_map(|index| match self.parts_of_block(index) {
            Ok(parts) => parts.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        })
    }

    fn parts_of_block(&self, index: usize) -> io::Result<Vec<(TimelineKey, Vec<u32>)>> {
        let bytes = self.block_of_lists(index)?;
        let mut from = Reader(unseal(&bytes).ok_or_else(damage_error)?);
        let mut parts = vec![];
        while !from.0.is_empty() {
            let mut read = || {
                let (timeline, count, mut index) = (from.small()?, from.length()?, from.small()?);
                let mut indexes = vec![index];
                for _ in 1..count {
                    index = index.checked_add(from.small()?)?;
                    indexes.push(index);
                }
                Some((timeline, indexes))
            };
            parts.push(read().ok_or_else(damage_error)?);
        }
        Ok(parts)
    }

    /// Reads every block.
    ///
    /// # Errors
    ///
    /// Returns the first failure.
    pub(super) fn check(&self) -> io::Result<()> {
        for entry in self.all_entries() {
            entry?;
        }
        for part in self.all_parts() {
            part?;
        }
        Ok(())
    }
}

/// Reads bytes of a file. A file that is too short is damaged.
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let read = file.read_exact_at(bytes, offset);
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damage_error(),
        _ => error,
    })
}

/// Skips `count` numbers of any length (LEB128); `None` if fewer are left.
fn skip_numbers(from: &mut Reader<'_>, count: usize) -> Option<()> {
    let mut left = count;
    let mut length = 0;
    for byte in from.0 {
        if left == 0 {
            break;
        }
        length += 1;
        left -= usize::from(byte & 0x80 == 0);
    }
    from.bytes(length)?;
    (left == 0).then_some(())
}

/// Writes the lists of runs that follow one another.
pub(super) fn merge<W: Write>(
    runs: &[Arc<GatheredRun>],
    begin: impl FnOnce(&mut dyn Iterator<Item = io::Result<GainedEntry>>) -> io::Result<RunWriter<W>>,
) -> io::Result<RunWriter<W>> {
    let mut entries = runs.iter().flat_map(|run| run.all_entries());
    let mut out = begin(&mut entries)?;
    let mut first = 0_u32;
    let mut inputs = vec![];
    for run in runs {
        // The entries of all runs become one list, so the indexes of a later run move behind those
        // of the earlier runs.
        inputs.push((first, run.all_parts().peekable()));
        first = first.checked_add(run.entries).ok_or_else(too_many)?;
    }
    while let Some(timeline) = inputs
        .iter_mut()
        .filter_map(|(_, parts)| next_head(parts))
        .min()
    {
        for (first, parts) in &mut inputs {
            while next_head(parts) == Some(timeline)
                && let Some(part) = parts.next()
            {
                for index in part?.1 {
                    out.add(timeline, *first + index)?;
                }
            }
        }
    }
    Ok(out)
}

/// Returns the timeline of the next part. A damaged part comes first.
fn next_head(
    parts: &mut Peekable<impl Iterator<Item = io::Result<(TimelineKey, Vec<u32>)>>>,
) -> Option<TimelineKey> {
    let part = parts.peek()?;
    Some(part.as_ref().map_or(0, |(timeline, _)| *timeline))
}

/// Returns the positions that runs which follow one another keep apart, with neighbouring ranges
/// joined.
pub(super) fn apart_of(runs: &[Arc<GatheredRun>]) -> PositionsApart {
    let mut all: PositionsApart = runs.iter().flat_map(|run| run.apart.clone()).collect();
    // Sorted by feed, the ranges of successive runs are neighbours.
    all.sort_by_key(|(source, range)| (*source, range.start));
    let mut joined: PositionsApart = vec![];
    for (source, range) in all {
        match joined.last_mut() {
            Some((last, before)) if *last == source && before.end == range.start => {
                before.end = range.end;
            }
            _ => joined.push((source, range)),
        }
    }
    joined
}
