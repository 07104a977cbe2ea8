//! Push: how a server wakes a reader, who then reads on from the reader's own place.
//!
//! Pure. A stream of events (`text/event-stream`, as the HTML standard defines the format) tells
//! entries, or only the newest place. Events are hints: documents and bookmarks remain the truth,
//! so an event that a stream loses costs no entry.

use std::{fmt, str::FromStr};

use crate::{
    feed::{Epoch, Position},
    history::HistoryHash,
};

/// Relation of a URL that answers once a document has changed, or after a while.
pub const WAIT_REL: &str = "urn:simplefeed:1#wait";
/// Relation of a stream that tells the newest place of a feed.
pub const EVENTS_REL: &str = "urn:simplefeed:1#events";
/// Media type of a stream of events.
pub const EVENTS_TYPE: &str = "text/event-stream";
/// Kind of the event that ends a stream for good: the reader's place no longer fits the feed.
pub const STATE: &str = "state";
/// Id of that event. A reader that comes back with this id gets 204, after which browsers do not
/// reconnect.
pub const END: &str = "end";
/// Maximum length of a line, and of an event's data, that [`Messages`] accepts, in bytes.
const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum length of an id or a kind that [`Messages`] accepts, in bytes. The bound is low because
/// the id is copied into each later event.
const ID_BYTES_MAX: usize = 1024;
/// Id of the place before a feed's first entry.
pub const BEGIN: &str = "begin";

/// Proof that a place belongs to a history: the first 8 bytes of the history hash at the place.
/// Timelines have no history hash, so the proof is the epoch there.
///
/// # Examples
///
/// ```
/// use simplefeed_core::{feed::Epoch, push::Mark};
///
/// assert_eq!(Mark::of_epoch(Epoch(1)).to_string(), "0000000000000001");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl Mark {
    /// Returns the mark of a place by the history hash there.
    pub fn of_history(history: &HistoryHash) -> Self {
        // A hash of 32 bytes always has a first chunk, so the 0 below is never a mark.
        let [first, ..] = history.0.0.as_chunks::<8>().0 else {
            return Self(0);
        };
        Self(u64::from_be_bytes(*first))
    }

    /// Returns the mark of all places of a timeline in an epoch.
    pub fn of_epoch(epoch: Epoch) -> Self {
        Self(u64::from(epoch.0))
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Id of an event: the position of the event's entry, and the mark of the place after that entry.
///
/// # Examples
///
/// ```
/// use simplefeed_core::push::PlaceId;
///
/// let id: PlaceId = "41-00c0ffee00c0ffee".parse().unwrap();
/// assert_eq!(id.position.0, 41);
/// assert_eq!(id.to_string(), "41-00c0ffee00c0ffee");
/// assert!("041-00c0ffee00c0ffee".parse::<PlaceId>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlaceId {
    /// Position of the last entry before the place.
    pub position: Position,
    /// Mark of the place.
    pub mark: Mark,
}

/// Error: the text is no id of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event's id is a position, '-', and 16 lower-case hex digits")]
pub struct InvalidPlaceId;

impl fmt::Display for PlaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.position, self.mark)
    }
}

impl FromStr for PlaceId {
    type Err = InvalidPlaceId;

    fn from_str(text: &str) -> Result<Self, InvalidPlaceId> {
        let parsed = text.split_once('-').and_then(|(position, mark)| {
            Some(Self {
                position: Position(position.parse().ok()?),
                mark: Mark(u64::from_str_radix(mark, 16).ok()?),
            })
        });
        // Only one spelling is accepted: no sign, no leading zero, no capital.
        parsed
            .filter(|id| id.to_string() == text)
            .ok_or(InvalidPlaceId)
    }
}

/// Returns an event in the form of a stream. `data` must be one line. `kind` is `None` for an event
/// of the default kind.
///
/// # Examples
///
/// ```
/// use simplefeed_core::push::event;
///
/// assert_eq!(event(None, "7-00c0ffee00c0ffee", "{}"), "id: 7-00c0ffee00c0ffee\ndata: {}\n\n");
/// ```
pub fn event(kind: Option<&str>, id: &str, data: &str) -> String {
    let mut out = String::with_capacity(id.len() + data.len() + 32);
    if let Some(kind) = kind {
        out.push_str("event: ");
        out.push_str(kind);
        out.push('\n');
    }
    out.push_str("id: ");
    out.push_str(id);
    // Browsers ignore an event without a line of data.
    out.push_str("\ndata: ");
    out.push_str(data);
    out.push_str("\n\n");
    out
}

/// An event in the form that a reader gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Id of this event, or of the last earlier event with an id.
    pub id: String,
    /// Kind of the event; `message` unless the stream names another kind.
    pub kind: String,
    /// Data of the event, with `\n` between lines.
    pub data: String,
}

/// Error: a line or an event's data is longer than 4 MiB, or an event's id or kind is longer than 1
/// KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {LINE_BYTES_MAX} bytes, or an id of more than {ID_BYTES_MAX}")]
pub struct TooLong;

/// Reads a stream of events, piece by piece.
///
/// # Examples
///
/// ```
/// use simplefeed_core::push::Messages;
///
/// let mut messages = Messages::default();
/// assert_eq!(messages.take(b": a comment\nid: 7-00c0")?, []);
/// let read = messages.take(b"ffee00c0ffee\ndata: {}\n\n")?;
/// assert_eq!(read[0].id, "7-00c0ffee00c0ffee");
/// assert_eq!(read[0].kind, "message");
/// # Ok::<(), simplefeed_core::push::TooLong>(())
/// ```
#[derive(Debug, Default)]
pub struct Messages {
    line: Vec<u8>,
    /// Whether the last byte was a CR. An LF that follows belongs to the same end of line.
    after_return: bool,
    has_begun: bool,
    id: String,
    kind: String,
    data: Option<String>,
}

impl Messages {
    /// Reads the next piece of the stream, and returns the events that this piece completes.
    ///
    /// # Errors
    ///
    /// Returns [`TooLong`], after which the stream cannot be read on.
    pub fn take(&mut self, piece: &[u8]) -> Result<Vec<Message>, TooLong> {
        let mut read = vec![];
        let mut rest = piece;
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, after) = rest.split_at(at);
            let (end, after) = after.split_first().expect("a line's end was found");
            rest = after;
            let is_rest_of_end = self.after_return && at == 0 && *end == b'\n';
            self.after_return = *end == b'\r';
            if is_rest_of_end {
                continue;
            }
            self.line.extend_from_slice(line);
            let line = std::mem::take(&mut self.line);
            read.extend(self.take_line(&line)?);
        }
        if !rest.is_empty() {
            self.after_return = false;
            self.line.extend_from_slice(rest);
        }
        if self.line.len() > LINE_BYTES_MAX {
            return Err(TooLong);
        }
        Ok(read)
    }

    fn take_line(&mut self, line: &[u8]) -> Result<Option<Message>, TooLong> {
        // The HTML standard replaces bytes that are not UTF-8, and goes on.
        let text = String::from_utf8_lossy(line);
        let mut line = &*text;
        if !self.has_begun {
            self.has_begun = true;
            // A stream is decoded as UTF-8, and such a decoder strips one leading byte order mark
            // (HTML standard, event streams).
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            // The kind belongs to this event alone, even if there is no data and hence no event.
            // The id stays for the events that follow.
            let kind = std::mem::take(&mut self.kind);
            return Ok(self.data.take().map(|data| Message {
                id: self.id.clone(),
                kind: if kind.is_empty() {
                    "message".into()
                } else {
                    kind
                },
                data,
            }));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        if matches!(field, "id" | "event") && value.len() > ID_BYTES_MAX {
            return Err(TooLong);
        }
        match field {
            // The HTML standard ignores an id with a NUL.
            "id" if !value.contains('\0') => self.id = value.into(),
            "event" => self.kind = value.into(),
            "data" => {
                match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => self.data = Some(value.into()),
                }
                if self
                    .data
                    .as_ref()
                    .is_some_and(|data| data.len() > LINE_BYTES_MAX)
                {
                    return Err(TooLong);
                }
            }
            // A comment has an empty field name. The field `retry` is for browsers only.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<Message> {
        let mut messages = Messages::default();
        let read = pieces
            .iter()
            .map(|piece| messages.take(piece).unwrap_or_default());
        read.flatten().collect()
    }

    /// Goal: the events of a stream depend neither on the ends of its pieces nor on the kind of its
    /// line ends.
    #[test]
    fn pieces_may_end_anywhere() {
        let stream = format!(
            "\u{feff}retry: 5\n: hello\n\n{}{}id\nevent: state\ndata: a\ndata:b\n\nid: x\n\ndata\n\ndata: open",
            event(None, "1-00000000000000aa", "{\"a\":\"ü\"}"),
            event(Some(STATE), END, "")
        );
        let expected = all(&[stream.as_bytes()]);
        let told: Vec<_> = expected
            .iter()
            .map(|one| (one.id.as_str(), one.kind.as_str(), one.data.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("1-00000000000000aa", "message", "{\"a\":\"ü\"}"),
                ("end", "state", ""),
                ("", "state", "a\nb"),
                ("x", "message", ""),
            ]
        );
        for ends in ["\n", "\r", "\r\n"] {
            let stream = stream.replace('\n', ends).into_bytes();
            for size in 1..9 {
                let pieces: Vec<&[u8]> = stream.chunks(size).collect();
                assert_eq!(all(&pieces), expected, "{ends:?} {size}");
            }
        }
    }

    #[test]
    fn a_stream_without_line_ends_takes_no_more_memory() {
        let mut messages = Messages::default();
        let piece = vec![b'a'; LINE_BYTES_MAX / 2];
        assert_eq!(messages.take(&piece), Ok(vec![]));
        assert_eq!(messages.take(&piece), Ok(vec![]));
        assert_eq!(messages.take(b"a"), Err(TooLong));
        let mut messages = Messages::default();
        let line = [&b"data: "[..], &piece, b"\n"].concat();
        assert_eq!(messages.take(&line), Ok(vec![]));
        assert_eq!(messages.take(&line), Err(TooLong));
        let id = [b"id: ", &piece[..=ID_BYTES_MAX], b"\n"].concat();
        assert_eq!(Messages::default().take(&id), Err(TooLong));
    }

    #[test]
    fn an_id_has_one_spelling() {
        for wrong in [
            "",
            "1",
            "-00000000000000aa",
            "01-00000000000000aa",
            "+1-00000000000000aa",
            "1-aa",
            "1-00000000000000AA",
            "1-+0000000000000aa",
            "1-00000000000000aag",
            "99999999999999999999-00000000000000aa",
        ] {
            assert_eq!(wrong.parse::<PlaceId>(), Err(InvalidPlaceId), "{wrong}");
        }
    }
}
