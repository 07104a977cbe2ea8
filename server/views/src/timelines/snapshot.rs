//! The graph of follows in a file, so that an opening does not replay all follows.
//!
//! Shell: one file, replaced as a whole. The file names the last commit and the chain hash after
//! that commit. A file of another log, or a damaged one, counts as no file, and the graph is
//! computed from the first commit on.

use std::{io, path::Path};

use simplefeed_core::sup::SupId;
use simplefeed_core::{
    feed::{CommitNumber, Epoch, FeedName, FeedPattern, Position, Revision},
    history::ChainHash,
    timeline::{
        FollowState, Terms,
        stored::{FollowStateParts, PartOfFeed, PartOfRequest},
    },
};
use simplefeed_log::codec::{Reader, RecordWriter, seal, unseal};
use simplefeed_process::regular;

use super::graph::{Graph, Revisions, SourceKey, SourceState, TimelineState};
use crate::files::replace_unsynced;

/// First bytes of the file; they hold the version of the layout.
const MAGIC: &[u8] = b"simplefeed graph 4\n";

/// Writes the bytes of a graph to a file.
///
/// # Errors
///
/// Returns why the file cannot be written.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The checksum detects a file that a power cut has damaged.
    replace_unsynced(path, bytes)
}

/// Returns the bytes of a graph, which reaches a commit with this chain hash.
pub(super) fn bytes_of(graph: &Graph, chain: ChainHash) -> Vec<u8> {
    let mut out = RecordWriter(Vec::with_capacity(64 * 1024));
    out.bytes(MAGIC);
    out.long(graph.applied.0);
    out.bytes(&chain.0.0);
    out.length(graph.epochs.len());
    for (instant, epoch) in &graph.epochs {
        out.instant(*instant);
        out.number(u64::from(epoch.0));
    }
    write_revisions(&graph.defaults, &mut out);
    out.length(graph.feeds.all().len());
    for feed in graph.feeds.all() {
        write_feed(feed, &mut out);
    }
    out.length(graph.timelines.len());
    for timeline in &graph.timelines {
        write_timeline(timeline, &mut out);
    }
    let later: Vec<_> = graph.all_later().collect();
    out.length(later.len());
    for (feed, revisions) in later {
        out.feed(*feed);
        write_revisions(revisions, &mut out);
    }
    let restarted: Vec<_> = graph.all_restarted().collect();
    out.length(restarted.len());
    for (feed, instant) in restarted {
        out.feed(*feed);
        out.instant(*instant);
    }
    out.length(graph.all_lost().len());
    for (source, ranges) in graph.all_lost() {
        out.number(u64::from(*source));
        write_ranges(ranges, &mut out);
    }
    seal(out.0)
}

/// Returns the graph of a file, and the chain hash after the last commit of the graph; `None` if
/// there is no sound file.
pub(super) fn read(path: &Path) -> Option<(Graph, ChainHash)> {
    let file = regular::read_snapshot(path).ok()?;
    let mut from = Reader(unseal(&file)?.strip_prefix(MAGIC)?);
    let mut graph = Graph::default();
    graph.applied = CommitNumber(from.long()?);
    let chain = ChainHash(from.digest()?);
    for _ in 0..from.length()? {
        graph.epochs.push((from.instant()?, Epoch(from.small()?)));
    }
    graph.defaults = read_revisions(&mut from)?;
    // Feeds before timelines, because follows are indexed at the feeds.
    for _ in 0..from.length()? {
        let feed = read_feed(&mut from)?;
        graph.restore_feed(feed);
    }
    for _ in 0..from.length()? {
        let timeline = read_timeline(&mut from)?;
        graph.restore_timeline(timeline);
    }
    for _ in 0..from.length()? {
        let feed = from.feed()?;
        let revisions = read_revisions(&mut from)?;
        graph.restore_later(feed, revisions);
    }
    for _ in 0..from.length()? {
        let (feed, instant) = (from.feed()?, from.instant()?);
        graph.restore_restarted(feed, instant);
    }
    for _ in 0..from.length()? {
        let source = from.small()?;
        graph.restore_lost(source, read_ranges(&mut from)?);
    }
    from.0.is_empty().then_some((graph, chain))
}

fn write_text(text: &str, out: &mut RecordWriter) {
    out.length(text.len());
    out.bytes(text.as_bytes());
}

fn read_text<'f>(from: &mut Reader<'f>) -> Option<&'f str> {
    let length = from.length()?;
    std::str::from_utf8(from.bytes(length)?).ok()
}

fn write_revisions(revisions: &Revisions, out: &mut RecordWriter) {
    out.length(revisions.len());
    for (instant, revision) in revisions {
        out.instant(*instant);
        out.number(u64::from(revision.0));
    }
}

fn read_revisions(from: &mut Reader<'_>) -> Option<Revisions> {
    let mut revisions = vec![];
    for _ in 0..from.length()? {
        revisions.push((from.instant()?, Revision(from.small()?)));
    }
    Some(revisions)
}

fn write_feed(feed: &SourceState, out: &mut RecordWriter) {
    out.feed(feed.key);
    write_text(feed.name.as_str(), out);
    out.number(u64::from(feed.is_closed));
    out.number(feed.next.0);
    out.instant(feed.newest);
}

fn read_feed(from: &mut Reader<'_>) -> Option<SourceState> {
    Some(SourceState {
        key: from.feed()?,
        name: FeedName::parse(read_text(from)?)?,
        is_closed: from.number()? == 1,
        next: Position(from.number()?),
        newest: from.instant()?,
    })
}

fn write_timeline(timeline: &TimelineState, out: &mut RecordWriter) {
    out.feed(timeline.key);
    out.instant(timeline.created);
    out.bytes(timeline.sup_id.as_str().as_bytes());
    write_optional(timeline.owner.map(u64::from), out);
    let parts = timeline.following.parts();
    write_optional(parts.terms.own.map(|(own, _)| u64::from(own)), out);
    out.number(u64::from(parts.terms.own.is_some_and(|(_, is_had)| is_had)));
    out.number(u64::from(parts.terms.is_closed));
    out.length(parts.items.len());
    for item in &parts.items {
        out.number(u64::from(*item));
    }
    out.length(parts.patterns.len());
    for pattern in &parts.patterns {
        write_text(&pattern.to_string(), out);
    }
    out.length(parts.feeds.len());
    for feed in &parts.feeds {
        out.number(u64::from(feed.feed));
        write_optional(feed.live.map(|live| live.0), out);
        write_ranges(&feed.past, out);
        write_ranges(&feed.brought, out);
    }
    out.length(parts.batches.len());
    for batch in &parts.batches {
        out.instant(batch.instant);
        out.number(u64::from(batch.first));
        out.length(batch.entries.len());
        for (feed, at) in &batch.entries {
            out.number(u64::from(*feed));
            out.number(at.0);
        }
    }
}

fn read_timeline(from: &mut Reader<'_>) -> Option<TimelineState> {
    let (key, created) = (from.feed()?, from.instant()?);
    let sup_id = SupId::parse(str::from_utf8(from.bytes(8)?).ok()?)?;
    let owner = source_of(from.number()?);
    let own = source_of(from.number()?);
    let (is_had, is_closed) = (from.number()? == 1, from.number()? == 1);
    let mut parts = FollowStateParts {
        terms: Terms {
            own: own.map(|own| (own, is_had)),
            is_closed,
        },
        items: vec![],
        patterns: vec![],
        feeds: vec![],
        batches: vec![],
    };
    for _ in 0..from.length()? {
        parts.items.push(from.small()?);
    }
    for _ in 0..from.length()? {
        parts.patterns.push(FeedPattern::parse(read_text(from)?)?);
    }
    for _ in 0..from.length()? {
        parts.feeds.push(PartOfFeed {
            feed: from.small()?,
            live: from.number()?.checked_sub(1).map(Position),
            past: read_ranges(from)?,
            brought: read_ranges(from)?,
        });
    }
    for _ in 0..from.length()? {
        let (instant, first) = (from.instant()?, from.small()?);
        let mut entries = vec![];
        for _ in 0..from.length()? {
            entries.push((from.small()?, Position(from.number()?)));
        }
        parts.batches.push(PartOfRequest {
            instant,
            first,
            entries,
        });
    }
    Some(TimelineState {
        key,
        created,
        sup_id,
        is_closed,
        owner,
        following: FollowState::of_parts(parts).into(),
    })
}

fn write_ranges(ranges: &[std::ops::Range<Position>], out: &mut RecordWriter) {
    out.length(ranges.len());
    for range in ranges {
        out.number(range.start.0);
        out.number(range.end.0);
    }
}

fn read_ranges(from: &mut Reader<'_>) -> Option<Vec<std::ops::Range<Position>>> {
    let mut ranges = vec![];
    for _ in 0..from.length()? {
        ranges.push(Position(from.number()?)..Position(from.number()?));
    }
    Some(ranges)
}

/// Writes a number, of which 0 stands for none.
fn write_optional(number: Option<u64>, out: &mut RecordWriter) {
    out.number(number.map_or(0, |number| number.saturating_add(1)));
}

/// Returns the key of a feed from a number, of which 0 stands for none.
fn source_of(number: u64) -> Option<SourceKey> {
    SourceKey::try_from(number.checked_sub(1)?).ok()
}
