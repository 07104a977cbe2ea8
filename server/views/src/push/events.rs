//! Entries as events of a stream.
//!
//! Pure, over a log that the caller passes. The id of an event proves the history up to the entry.
//! So a stream that begins in the middle of a feed computes the history hash from the document of
//! the entry.

use std::{ops::Range, sync::Arc};

use bytes::{Bytes, BytesMut};
use simplefeed_core::{
    entry::Entry,
    event::Event,
    feed::{DocumentName, FeedKey, Position},
    history::HistoryHash,
    plan::FeedHead,
    push::{Mark, PlaceId, event},
    settings::Settings,
};
use simplefeed_log::{LogError, settings_of};

use super::News;

use crate::shown::ShownSeries;

/// Maximum number of entries of a stretch, which ends before the next position that is a multiple
/// of this number.
const STRETCH_ENTRIES: u64 = 64;
/// Size of the events, in bytes, at which a stretch ends in any case. The size is small, because
/// each slow reader holds a stretch.
const STRETCH_BYTES: usize = 16 * 1024;
/// Number of new entries beyond which a hub makes no events of these entries.
const NEWEST_MAX: u64 = 512;

/// Base from which the marks behind a place are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// History hash at the place, of a feed with entries of its own.
    History(HistoryHash),
    /// Mark of all places of a timeline.
    Timeline(Mark),
}

impl Begin {
    /// Returns the base behind one more entry.
    fn after(self, entry: &Entry) -> Self {
        match self {
            Self::History(hash) => Self::History(hash.extend(&entry.fragment)),
            Self::Timeline(_) => self,
        }
    }

    /// Returns the mark of the place.
    pub fn mark(&self) -> Mark {
        match self {
            Self::History(hash) => Mark::of_history(hash),
            Self::Timeline(mark) => *mark,
        }
    }
}

/// Events that follow each other.
#[derive(Debug)]
pub struct EventStretch {
    /// Text of the events, as a stream sends it.
    pub bytes: Bytes,
    /// Position behind the entry of the last event.
    pub next: Position,
    /// Base of the marks behind the last event.
    pub end: Begin,
    /// Whether the stretch ends where it ends for all readers, and not because the feed ends.
    pub(super) is_whole: bool,
}

/// Result of a read of past entries.
#[derive(Debug)]
pub enum Past {
    /// Events of the next entries.
    Stretch(Arc<EventStretch>),
    /// The log lacks the next entry.
    Gap,
}

/// A feed at one moment.
#[derive(Debug)]
pub(super) struct PushCourse {
    head: FeedHead,
    pub(super) news: News,
    end: Begin,
}

impl PushCourse {
    /// Returns a feed as it is now.
    pub(super) fn of(feed: FeedKey, log: &dyn ShownSeries) -> Result<Option<Self>, LogError> {
        let Some(head) = log.feed(feed)? else {
            return Ok(None);
        };
        let end = if log.is_timeline(feed)? {
            Begin::Timeline(Mark::of_epoch(head.open.opening.name.epoch))
        } else {
            Begin::History(head.history)
        };
        let newest = head.next.0.checked_sub(1).map(|newest| PlaceId {
            position: Position(newest),
            mark: end.mark(),
        });
        let news = News {
            newest,
            revision: head.revision,
        };
        Ok(Some(Self { head, news, end }))
    }

    /// Returns the base of the marks behind the newest entry.
    pub(super) fn end(&self) -> Begin {
        self.end
    }
}

/// Returns the events of a feed's newest entries: those at position `from` and later. `None` if the
/// entries are too many or too large, or some are missing.
pub(super) fn newest(
    log: &dyn ShownSeries,
    course: &PushCourse,
    from: Position,
    mut begin: Begin,
    bytes_max: usize,
) -> Result<Option<Vec<Bytes>>, LogError> {
    let next = course.head.next;
    // Readers get so many entries from `read_on`, whose stretches they share.
    if next.0 - from.0 > NEWEST_MAX {
        return Ok(None);
    }
    let (mut events, mut bytes) = (vec![], 0);
    let mut writer = EventWriter::new(log, course)?;
    let read = each_entry(log, course.head.feed, from..next, |entry| {
        begin = begin.after(&entry);
        let event = writer.event_of(&entry, begin.mark())?;
        bytes += event.len();
        events.push(event);
        Ok(bytes <= bytes_max)
    })?;
    Ok((read == next).then_some(events))
}

/// Returns the events of entries at position `from` and later. `from` must not be after the feed's
/// newest entry.
pub(super) fn read_on(
    log: &dyn ShownSeries,
    feed: FeedKey,
    from: Position,
    begin: &Begin,
) -> Result<Past, LogError> {
    let Some(course) = PushCourse::of(feed, log)? else {
        return Ok(Past::Gap);
    };
    // Ends at multiples are the same for all readers, so readers share stretches.
    let whole = Position((from.0 / STRETCH_ENTRIES + 1) * STRETCH_ENTRIES);
    let range = from..whole.min(course.head.next);
    let (mut end, mut bytes) = (*begin, BytesMut::new());
    let mut writer = EventWriter::new(log, &course)?;
    let next = each_entry(log, feed, range, |entry| {
        end = end.after(&entry);
        bytes.extend_from_slice(&writer.event_of(&entry, end.mark())?);
        Ok(bytes.len() < STRETCH_BYTES)
    })?;
    // The range is not empty, so the log lacks the first entry.
    if next == from {
        return Ok(Past::Gap);
    }
    Ok(Past::Stretch(Arc::new(EventStretch {
        is_whole: next == whole || bytes.len() >= STRETCH_BYTES,
        bytes: bytes.freeze(),
        next,
        end,
    })))
}

/// Returns the base of the marks of a feed's first entries.
pub(super) fn beginning(log: &dyn ShownSeries, feed: FeedKey) -> Result<Option<Begin>, LogError> {
    let Some(course) = PushCourse::of(feed, log)? else {
        return Ok(None);
    };
    if let Begin::Timeline(_) = course.end {
        return Ok(Some(course.end));
    }
    let id = settings_of(log, feed, course.head.revision)?.id;
    Ok(Some(Begin::History(HistoryHash::start(&id))))
}

/// Returns the base of the marks behind the entry at a position; `None` if the log lacks entries of
/// the entry's document.
pub(super) fn behind(
    log: &dyn ShownSeries,
    feed: FeedKey,
    position: Position,
) -> Result<Option<Begin>, LogError> {
    let Some(course) = PushCourse::of(feed, log)? else {
        return Ok(None);
    };
    if let Begin::Timeline(_) = course.end {
        let entry = log.entries(feed, position..position.next())?.pop();
        return Ok(entry.map(|_| course.end));
    }
    // The head has the hash behind the newest entry, so no document is read.
    if position.next() == course.head.next {
        return Ok(Some(course.end));
    }
    let Some(entry) = log.entries(feed, position..position.next())?.pop() else {
        return Ok(None);
    };
    let Some(opening) = log.opening(feed, entry.document.number)? else {
        return Ok(None);
    };
    // The opening has the hash before the first entry, and the entries up to the position give the
    // rest.
    let mut begin = Begin::History(opening.before);
    let read = each_entry(log, feed, opening.first..position.next(), |entry| {
        begin = begin.after(&entry);
        Ok(true)
    })?;
    Ok((read == position.next()).then_some(begin))
}

/// Calls `take` with one entry after the other, until `take` returns false or an entry is missing.
/// Returns the position behind the last entry that `take` got.
fn each_entry(
    log: &dyn ShownSeries,
    feed: FeedKey,
    range: Range<Position>,
    mut take: impl FnMut(Entry) -> Result<bool, LogError>,
) -> Result<Position, LogError> {
    let mut next = range.start;
    // The first entry is read alone, because many large entries at once would fill the memory.
    let mut together: u64 = 1;
    while next < range.end {
        let until = Position((next.0 + together).min(range.end.0));
        let entries = log.entries(feed, next..until)?;
        let mut largest = 1;
        for entry in entries {
            if entry.at != next {
                return Ok(next);
            }
            largest = largest.max(entry.fragment.len());
            next = next.next();
            if !take(entry)? {
                return Ok(next);
            }
        }
        if next < until {
            return Ok(next);
        }
        let fitting = u64::try_from(STRETCH_BYTES / largest).unwrap_or(1);
        // The number grows step by step, because a small entry says nothing of the next one's size.
        together = (2 * together).min(fitting.clamp(1, STRETCH_ENTRIES));
    }
    Ok(next)
}

/// Makes events of entries.
struct EventWriter<'a> {
    log: &'a dyn ShownSeries,
    feed: FeedKey,
    settings: Settings,
    /// Document of the last entry, with the document's URL.
    document: Option<(DocumentName, String)>,
}

impl<'a> EventWriter<'a> {
    fn new(log: &'a dyn ShownSeries, course: &PushCourse) -> Result<Self, LogError> {
        let FeedHead { feed, revision, .. } = course.head;
        Ok(Self {
            log,
            feed,
            settings: settings_of(log, feed, revision)?,
            document: None,
        })
    }

    /// Returns the event of an entry, as `replay --format ndjson` prints the entry.
    fn event_of(&mut self, entry: &Entry, mark: Mark) -> Result<Bytes, LogError> {
        let text = std::str::from_utf8(&entry.fragment).unwrap_or_default();
        let document = self.document_url(entry)?;
        let at = Some(entry.at);
        // Common entries have a faster way, and all others are parsed.
        let common = Event::line_of_common(text, Some(&document), None, at);
        let line = common.unwrap_or_else(|| {
            // An entry whose event would be many times as long as the entry is told by its id
            // alone.
            let told = Event::from_entry(text).unwrap_or_else(|_| Event {
                id: Some(entry.id.as_str().to_owned()),
                ..Event::default()
            });
            told.line(Some(document), None, at)
        });
        let id = PlaceId {
            position: entry.at,
            mark,
        };
        Ok(event(None, &id.to_string(), &line).into())
    }

    fn document_url(&mut self, entry: &Entry) -> Result<String, LogError> {
        if let Some((name, url)) = &self.document
            && *name == entry.document
        {
            return Ok(url.clone());
        }
        // A restoration renames the document that is open then, so the entry may have the older
        // name.
        let opening = self.log.opening(self.feed, entry.document.number)?;
        let name = opening.map_or(entry.document, |opening| opening.name);
        let url = self.settings.document_url(name);
        self.document = Some((entry.document, url.clone()));
        Ok(url)
    }
}
