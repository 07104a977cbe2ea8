//! A rehearsal of sled's recovery, which only reads.
//!
//! Shell: sled's files. An opening of sled (0.34.7) is a recovery, which overwrites all segments
//! that look torn. Recovery expects that the segments behind the highest stable position of any
//! header follow each other, and uses none of them if one is missing. Recovery fills with zeros the
//! rest of the last segment, and every segment that no page points to. So a small damage can make
//! sled destroy all. The result of a recovery follows from sled's files, and this module computes
//! that result first.
//!
//! sled's snapshot says where each page was after the last settling. The rehearsal permits a
//! recovery under three conditions. Each page that recovery would know has all pieces at the
//! expected places. Recovery overwrites no segment with such a piece. The segments that were
//! written after the snapshot have no hole that damage may have made. All else that a broken
//! settling has left is written once more.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::Path,
};

use simplefeed_process::regular;

use super::snapshots;

/// Unit in which sled uses its file.
pub(super) const SEGMENT_BYTES: u64 = 512 * 1024;
const SEGMENT_HEAD_BYTES: u64 = 20;
/// Longest head of a message; no message begins so near to the end of a segment.
const MESSAGE_HEAD_BYTES_MAX: u64 = 32;
/// Number of threads that read the heads of segments.
const READERS: u64 = 16;
/// Number of bytes of a message that sled reads at first.
const MESSAGE_PEEK_BYTES: usize = 128;

/// Why sled must not recover its files.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecoveryRefusal {
    /// The files cannot be read.
    #[error("sled's files cannot be read")]
    Io(#[from] io::Error),
    /// Recovery would lose something.
    #[error("{0}")]
    Harm(String),
}

/// Reads a snapshot of sled, which must be a regular file.
fn read_file(path: &Path) -> Result<Vec<u8>, RecoveryRefusal> {
    // Reading a pipe waits.
    if !fs::metadata(path)?.is_file() {
        return harm_of("sled's snapshot is no file");
    }
    Ok(regular::read_snapshot(path)?)
}

fn harm_of<T>(what: impl Into<String>) -> Result<T, RecoveryRefusal> {
    Err(RecoveryRefusal::Harm(what.into()))
}

/// A position in sled's log.
type Lsn = u64;

/// A piece of a page.
#[derive(Clone, Copy, Debug)]
struct PagePiece {
    lsn: Lsn,
    /// Offset in the file.
    offset: u64,
    bytes: u64,
}

/// Checks whether sled may open the files in `folder`. The number `snapshot` is that of sled's
/// snapshot after the last settling; 0 before the first. A permitted opening keeps the values of
/// that settling, as far as their bytes are sound. Of the values that were written after that
/// settling, the opening may lose all behind some point, and, if the function returns `false`,
/// others as well. No process may have the files open.
///
/// # Errors
///
/// See [`RecoveryRefusal`].
pub(super) fn rehearse(folder: &Path, snapshot: u64) -> Result<bool, RecoveryRefusal> {
    let path = folder.join("db");
    let found = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return harm_of("sled/db is missing");
        }
        found => found?,
    };
    // The opening of a pipe waits.
    if !found.is_file() {
        return harm_of("sled/db is no file");
    }
    let file = regular::open(path)?;
    let noted = SledSnapshot::read_snapshot(folder, snapshot)?;
    let headers = Headers::read_headers(&file)?;
    let mut recovery = Recovery::new(&file, &headers, noted)?;
    recovery.run()?;
    recovery.judge_result()
}

/// Returns how many bytes sled's file must have to hold all pages, and the end of the log, that the
/// snapshot at the path `snapshot` names.
///
/// # Errors
///
/// See [`RecoveryRefusal`].
pub(super) fn needed_bytes(snapshot: &Path) -> Result<u64, RecoveryRefusal> {
    let Some(snapshot) = SledSnapshot::decode_snapshot(&read_file(snapshot)?) else {
        return harm_of("sled's snapshot is damaged");
    };
    let pieces = snapshot.pages.iter().flatten();
    let ends = pieces.map(|piece| piece.offset.saturating_add(piece.bytes));
    // The segment that is not full ends where the log does.
    let active = snapshot
        .active
        .map(|at| at + snapshot.stable % SEGMENT_BYTES);
    Ok(ends.chain(active).max().unwrap_or(0))
}

/// Places of sled's pages, as a snapshot notes them.
#[derive(Debug)]
struct SledSnapshot {
    /// End of the log that the snapshot covers.
    stable: Lsn,
    /// Offset in the file of the segment that was not full.
    active: Option<u64>,
    /// Pieces of each page, the base first.
    pages: Vec<Vec<PagePiece>>,
}

impl SledSnapshot {
    /// Stands for the snapshot before the first settling: sled's first process writes none.
    const NONE: Self = Self {
        stable: 0,
        active: None,
        pages: vec![],
    };

    /// Reads the snapshot that sled would use. It must not be older than the snapshot of the last
    /// settling.
    fn read_snapshot(folder: &Path, expected: u64) -> Result<Self, RecoveryRefusal> {
        let Some(path) = snapshots::find(folder)? else {
            if expected == 0 {
                return Ok(Self::NONE);
            }
            return harm_of("sled's snapshot is missing");
        };
        let bytes = read_file(&path)?;
        let Some(snapshot) = Self::decode_snapshot(&bytes) else {
            return harm_of("sled's snapshot is damaged");
        };
        if snapshot.stable < expected {
            return harm_of("sled's snapshot is older than the last settling");
        }
        Ok(snapshot)
    }

    fn decode_snapshot(bytes: &[u8]) -> Option<Self> {
        let (rest, checksum) = bytes.split_last_chunk::<4>()?;
        let (body, _length) = rest.split_last_chunk::<8>()?;
        // A damaged snapshot could name any place for a page, and all checks below rest on these
        // places.
        if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let mut from = SledReader(body);
        // Options are stored as their value plus one.
        let stable = from.take_signed()?.checked_sub(1)?;
        let active = from.take_varint()?.checked_sub(1);
        let mut pages = vec![];
        while !from.0.is_empty() {
            pages.push(from.take_page()?);
        }
        Some(Self {
            stable,
            active,
            pages,
        })
    }
}

/// Returns the checksum of a message or of the head of a segment, which sled stores inverted.
fn sled_checksum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    !hasher.finalize()
}

/// Reader of sled's numbers: fixed ones of 8 bytes, and variable ones of 1 to 9 bytes.
struct SledReader<'a>(&'a [u8]);

impl SledReader<'_> {
    fn take_chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn take_signed(&mut self) -> Option<u64> {
        u64::try_from(i64::from_le_bytes(self.take_chunk()?)).ok()
    }

    fn take_varint(&mut self) -> Option<u64> {
        let [first] = self.take_chunk()?;
        let first = u64::from(first);
        Some(match first {
            0..=240 => first,
            241..=248 => 240 + 256 * (first - 241) + u64::from(self.take_chunk::<1>()?[0]),
            249 => {
                let [high, low] = self.take_chunk()?;
                2_288 + 256 * u64::from(high) + u64::from(low)
            }
            _ => {
                let length = usize::try_from(first).ok()? - 247;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                let mut number = [0; 8];
                number.get_mut(..length)?.copy_from_slice(bytes);
                u64::from_le_bytes(number)
            }
        })
    }

    /// Reads the place of a piece.
    fn take_piece(&mut self) -> Option<PagePiece> {
        let lsn = self.take_signed()?;
        let [kind] = self.take_chunk()?;
        let at = self.take_varint()?;
        match kind {
            0 => {}
            // The piece is in a file of its own, and the name of that file follows.
            1 => drop(self.take_signed()?),
            _ => return None,
        }
        Some(PagePiece {
            lsn,
            offset: at,
            bytes: 0,
        })
    }

    /// Reads the pieces of a page.
    fn take_page(&mut self) -> Option<Vec<PagePiece>> {
        let [count] = self.take_chunk()?;
        // A free page has one piece without a size, which marks the page as free.
        if count == 0 {
            return Some(vec![self.take_piece()?]);
        }
        let piece = |from: &mut Self| {
            let piece = from.take_piece()?;
            let bytes = from.take_varint()?;
            Some(PagePiece { bytes, ..piece })
        };
        (0..count).map(|_| piece(self)).collect()
    }
}

/// Headers of sled's segments, in the order of the file. `by_place` has the position of each
/// segment, or `None` for a segment without a valid header.
#[derive(Debug)]
struct Headers {
    by_place: Vec<Option<Lsn>>,
    /// Position up to which sled's log is stable, as each header says; 0 without a valid header.
    stable: Vec<Lsn>,
    file_bytes: u64,
}

impl Headers {
    fn read_headers(file: &File) -> Result<Self, RecoveryRefusal> {
        let file_bytes = file.metadata()?.len();
        let begun = u64::from(file_bytes % SEGMENT_BYTES >= SEGMENT_HEAD_BYTES);
        let segments = file_bytes / SEGMENT_BYTES + begun;
        // Each header is far from the next one, so that reading ahead would read most of the file.
        // The call is only advice, so a failure does no harm.
        let _advised = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
        let share = segments.div_ceil(READERS).max(1);
        let shares = (0..segments).step_by(usize::try_from(share).unwrap_or(usize::MAX));
        // A disk answers several readers in nearly the time of one.
        let share_from = |from: u64| from..segments.min(from + share);
        let read = std::thread::scope(|scope| {
            let spawn = |from| {
                let thread = std::thread::Builder::new();
                let thread =
                    thread.spawn_scoped(scope, move || read_headers(file, share_from(from)));
                (from, thread)
            };
            let threads: Vec<_> = shares.map(spawn).collect();
            let read = |(from, thread): (u64, io::Result<std::thread::ScopedJoinHandle<'_, _>>)| {
                // Where the system gives no thread for a share, this thread reads that share.
                match thread {
                    Ok(thread) => thread.join(),
                    Err(_) => Ok(read_headers(file, share_from(from))),
                }
            };
            threads.into_iter().map(read).collect::<Vec<_>>()
        });
        let _advised = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Normal);
        let (mut by_place, mut stable) = (vec![], vec![]);
        for share in read {
            let share = share.map_err(|_panic| io::Error::other("reading failed"))??;
            for header in share {
                by_place.push(header.map(|(lsn, _)| lsn));
                stable.push(header.map_or(0, |(_, stable)| stable));
            }
        }
        Ok(Self {
            by_place,
            stable,
            file_bytes,
        })
    }

    /// Returns the position of the segment that holds an offset of the file.
    fn lsn_at(&self, offset: u64) -> Option<Lsn> {
        let place = usize::try_from(offset / SEGMENT_BYTES).ok()?;
        self.by_place.get(place).copied().flatten()
    }
}

/// Returns the headers at the given places.
fn read_headers(file: &File, places: Range<u64>) -> io::Result<Vec<Option<(Lsn, Lsn)>>> {
    let read = |place| {
        let mut head = [0; 20];
        file.read_exact_at(&mut head, place * SEGMENT_BYTES)?;
        Ok(decode_header(&head))
    };
    places.map(read).collect()
}

/// Returns the position of a segment in the log, and the end of the stable part when the segment
/// began.
fn decode_header(head: &[u8; 20]) -> Option<(Lsn, Lsn)> {
    const MASK: i64 = i64::MAX;
    let (checksum, rest) = head.split_first_chunk::<4>()?;
    if sled_checksum(&[rest]) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let (lsn, stable) = rest.split_first_chunk::<8>()?;
    let stable = stable.first_chunk::<8>()?;
    let number = |bytes: [u8; 8]| i64::from_le_bytes(bytes) ^ MASK;
    let lsn = u64::try_from(number(*lsn)).ok()?;
    // Before anything is stable, the number is -1.
    let stable = u64::try_from(number(*stable)).unwrap_or(0);
    Some((lsn, stable))
}

fn segment_of(lsn: Lsn) -> Lsn {
    lsn / SEGMENT_BYTES * SEGMENT_BYTES
}

/// Kind of a message in sled's log.
#[derive(Debug)]
enum LogMessage {
    /// A whole page, or a page that is free from now on.
    Base(usize),
    /// A change of a page.
    Change(usize),
    /// A message that recovery passes over.
    Nothing,
    /// A batch of messages, up to this position.
    Batch(Lsn),
    /// The segment has no more.
    Cap,
    /// No valid message: its checksum, position or kind is wrong.
    Corrupted,
}

/// Rehearsal of sled's recovery, from the last snapshot and the segments after it.
struct Recovery<'f> {
    file: &'f File,
    headers: &'f Headers,
    noted: SledSnapshot,
    /// Segments from that of the snapshot's end on, by position, with their offsets in the file.
    segments: BTreeMap<Lsn, u64>,
    /// Segments that recovery does not read, hence overwrites.
    unread: BTreeMap<Lsn, u64>,
    pages: Vec<Option<Vec<PagePiece>>>,
    /// End of the stable part. A kill may have torn messages behind that end.
    stable: Lsn,
    /// Position of the first damaged message that recovery meets.
    torn: Option<Lsn>,
    /// End of the recovered part.
    end: Option<Lsn>,
}

impl<'f> Recovery<'f> {
    fn new(
        file: &'f File,
        headers: &'f Headers,
        mut noted: SledSnapshot,
    ) -> Result<Self, RecoveryRefusal> {
        let first = segment_of(noted.stable);
        let (mut segments, mut stable) = (BTreeMap::new(), first);
        for (place, lsn) in (0..).zip(&headers.by_place) {
            let Some(lsn) = lsn.filter(|lsn| *lsn >= first) else {
                continue;
            };
            if segments.insert(lsn, place * SEGMENT_BYTES).is_some() {
                return harm_of(format!("two segments of sled are at {lsn}"));
            }
            let named = usize::try_from(place)
                .ok()
                .and_then(|place| headers.stable.get(place));
            stable = stable.max(named.copied().unwrap_or(0));
        }
        Ok(Self {
            // Moved and not copied: a large log has many pages.
            pages: std::mem::take(&mut noted.pages)
                .into_iter()
                .map(Some)
                .collect(),
            file,
            headers,
            noted,
            unread: segments.clone(),
            segments,
            stable,
            torn: None,
            end: None,
        })
    }

    /// Computes the pages that sled recovers.
    fn run(&mut self) -> Result<(), RecoveryRefusal> {
        // sled has written nothing after the snapshot, and has not begun the next segment.
        if self.segments.is_empty() && self.noted.active.is_none() {
            self.end = Some(self.noted.stable);
            return Ok(());
        }
        let Some(last) = self.end_of_tail()? else {
            return harm_of("the end of sled's log is missing");
        };
        let segments: Vec<(Lsn, u64)> = self.segments.clone().into_iter().collect();
        let mut reading = None;
        for (lsn, offset) in segments {
            if lsn > last {
                break;
            }
            self.unread.remove(&lsn);
            let segment = self.segment_bytes(offset)?;
            reading = Some(self.read_segment(lsn, offset, &segment, last));
            if reading.is_some_and(|(_, ended)| ended) {
                break;
            }
        }
        self.end = reading.map(|(end, _)| end);
        Ok(())
    }

    fn segment_bytes(&self, offset: u64) -> Result<Vec<u8>, RecoveryRefusal> {
        let length = SEGMENT_BYTES.min(self.headers.file_bytes - offset);
        let mut segment = vec![0; usize::try_from(length).unwrap_or(0)];
        self.file.read_exact_at(&mut segment, offset)?;
        Ok(segment)
    }

    /// Returns the last position of the segments that follow each other, from the stable end on.
    fn end_of_tail(&self) -> Result<Option<Lsn>, RecoveryRefusal> {
        let mut expected = segment_of(self.stable);
        let mut end = None;
        for (lsn, offset) in self.segments.range(expected..) {
            if *lsn != expected {
                break;
            }
            expected += SEGMENT_BYTES;
            let segment = self.segment_bytes(*offset)?;
            let mut at = lsn + SEGMENT_HEAD_BYTES;
            let mut capped = false;
            while !capped && fits_in_segment(at) {
                match read_message(&segment, at) {
                    (LogMessage::Corrupted, _) => return Ok(Some(at - 1)),
                    (LogMessage::Cap, _) => capped = true,
                    (_, bytes) => at += bytes,
                }
            }
            end = Some(at - 1);
        }
        Ok(end)
    }

    /// Applies the messages of a segment. Returns where they end, and whether recovery ends there.
    fn read_segment(&mut self, lsn: Lsn, offset: u64, segment: &[u8], last: Lsn) -> (Lsn, bool) {
        let mut at = lsn + SEGMENT_HEAD_BYTES;
        while fits_in_segment(at) {
            if at > last {
                return (at, true);
            }
            let (message, bytes) = read_message(segment, at);
            let piece = PagePiece {
                lsn: at,
                offset: offset + at % SEGMENT_BYTES,
                bytes,
            };
            match message {
                LogMessage::Base(page) if at >= self.noted.stable => self.set_base(page, piece),
                LogMessage::Change(page) if at >= self.noted.stable => self.add_change(page, piece),
                LogMessage::Batch(whole) if whole > last => return (at, true),
                LogMessage::Base(_)
                | LogMessage::Change(_)
                | LogMessage::Batch(_)
                | LogMessage::Nothing => {}
                LogMessage::Cap => break,
                LogMessage::Corrupted => {
                    self.torn = self.torn.or(Some(at));
                    break;
                }
            }
            at += bytes;
        }
        (at, false)
    }

    fn set_base(&mut self, page: usize, piece: PagePiece) {
        if self.pages.len() <= page {
            self.pages.resize(page + 1, None);
        }
        if let Some(pieces) = self.pages.get_mut(page) {
            *pieces = Some(vec![piece]);
        }
    }

    fn add_change(&mut self, page: usize, piece: PagePiece) {
        // A change of a page without base belongs to a segment whose beginning was overwritten.
        if let Some(Some(pieces)) = self.pages.get_mut(page)
            && pieces.last().is_some_and(|last| last.lsn < piece.lsn)
        {
            pieces.push(piece);
        }
    }

    /// Judges the result of the recovery. Returns whether the file has each segment that was
    /// written since the snapshot, up to the end of the stable part.
    fn judge_result(&self) -> Result<bool, RecoveryRefusal> {
        if self.end.is_none_or(|end| end < self.noted.stable) {
            return harm_of("sled's log ends before the last settling");
        }
        let mut live = BTreeSet::new();
        for (number, pieces) in self.pages.iter().enumerate() {
            // A hole in the numbers of pages: sled panics on a page without a base.
            let Some(pieces) = pieces else {
                return harm_of(format!(
                    "page {number} of sled was never written as a whole"
                ));
            };
            self.check_ground(number, pieces)?;
            for piece in pieces {
                let segment = segment_of(piece.lsn);
                let is_there = piece.offset + piece.bytes <= self.headers.file_bytes;
                if !is_there || self.headers.lsn_at(piece.offset) != Some(segment) {
                    return harm_of(format!("page {number} of sled is not where it was"));
                }
                live.insert(segment);
            }
        }
        // Recovery fills each segment that it has not read, and each without pages, with zeros.
        if self.unread.keys().any(|lsn| live.contains(lsn)) {
            return harm_of("sled would overwrite pages");
        }
        // A crash tears unsynced messages only.
        if let Some(torn) = self.torn.filter(|torn| *torn < segment_of(self.stable)) {
            return harm_of(format!("sled's log is damaged at {torn}"));
        }
        self.judge_holes()
    }

    /// Checks the older pieces of a page that was changed since the last settling. A change is of
    /// no use without the older pieces, of which sled may have had the only sound copy in memory.
    fn check_ground(&self, number: usize, pieces: &[PagePiece]) -> Result<(), RecoveryRefusal> {
        let is_old = |piece: &&PagePiece| piece.lsn < self.noted.stable;
        if pieces.last().as_ref().is_none_or(is_old) {
            return Ok(());
        }
        for piece in pieces.iter().take_while(is_old) {
            let left = SEGMENT_BYTES - piece.offset % SEGMENT_BYTES;
            let left = left.min(self.headers.file_bytes.saturating_sub(piece.offset));
            let length = left.min(piece.bytes + MESSAGE_HEAD_BYTES_MAX);
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            self.file.read_exact_at(&mut bytes, piece.offset)?;
            if decode_message(&bytes, piece.lsn).is_none() {
                return harm_of(format!("page {number} of sled is damaged"));
            }
        }
        Ok(())
    }

    /// Returns whether all segments that were written since the last settling are there. sled may
    /// have used the place of a missing segment again, or freed the place, which fills the place
    /// with zeros. A place with other bytes and no segment is damaged.
    fn judge_holes(&self) -> Result<bool, RecoveryRefusal> {
        let first = segment_of(self.noted.stable);
        let stable = segment_of(self.stable);
        let known = self.segments.range(first..stable).count();
        let all = usize::try_from((stable - first) / SEGMENT_BYTES).unwrap_or(usize::MAX);
        if known == all {
            return Ok(true);
        }
        for (place, lsn) in (0..).zip(&self.headers.by_place) {
            if lsn.is_none() {
                let segment = self.segment_bytes(place * SEGMENT_BYTES)?;
                if segment.iter().any(|byte| *byte != 0) {
                    return harm_of(format!("segment {place} of sled is damaged"));
                }
            }
        }
        Ok(false)
    }
}

fn fits_in_segment(lsn: Lsn) -> bool {
    lsn % SEGMENT_BYTES >= SEGMENT_HEAD_BYTES
        && lsn % SEGMENT_BYTES <= SEGMENT_BYTES - MESSAGE_HEAD_BYTES_MAX
}

/// Returns the message at a position of a segment, and its length.
fn read_message(segment: &[u8], lsn: Lsn) -> (LogMessage, u64) {
    let at = usize::try_from(lsn % SEGMENT_BYTES).unwrap_or(usize::MAX);
    let rest = segment.get(at..).unwrap_or_default();
    decode_message(rest, lsn).unwrap_or((LogMessage::Corrupted, 0))
}

/// Reads the message of a position from the beginning of some bytes.
fn decode_message(rest: &[u8], lsn: Lsn) -> Option<(LogMessage, u64)> {
    let peek = rest.get(..MESSAGE_PEEK_BYTES.min(rest.len()))?;
    let mut from = SledReader(peek);
    let checksum = u32::from_le_bytes(from.take_chunk()?);
    let [kind] = from.take_chunk()?;
    let length = usize::try_from(from.take_varint()?).ok()?;
    let number = from.take_varint()?;
    let page = from.take_varint()?;
    let head = peek.len() - from.0.len();
    let body = rest.get(head..head.checked_add(length)?)?;
    let covered = rest.get(4..head)?;
    if kind == 0 || sled_checksum(&[body, covered]) != checksum || number != lsn / SEGMENT_BYTES {
        return None;
    }
    let page = || usize::try_from(page).ok();
    let message = match kind {
        1 => LogMessage::Nothing,
        2 => LogMessage::Cap,
        3 => LogMessage::Batch(SledReader(body).take_signed()?),
        // Free pages, counters, the root's page and whole nodes.
        4..=9 => LogMessage::Base(page()?),
        10 | 11 => LogMessage::Change(page()?),
        _ => return None,
    };
    let bytes = u64::try_from(head + length).ok()?;
    Some((message, bytes))
}

#[cfg(test)]
mod tests;
