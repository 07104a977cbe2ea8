//! Values of a feed: the head, and the openings of documents.
//!
//! Pure.

use simplefeed_core::{
    feed::{DocumentName, DocumentNumber, Epoch, Position, Revision},
    history::HistoryHash,
    plan::{FeedHead, OpenDocument, Opening},
};

use crate::codec::{Reader, RecordWriter, seal};

/// Bytes for which a head has room at first: enough for nearly all heads with their checksums.
const HEAD_BYTES_LIKELY: usize = 192;

pub(in crate::sled) fn write_name(name: DocumentName, out: &mut RecordWriter) {
    out.number(name.number.get());
    out.number(u64::from(name.epoch.0));
}

pub(in crate::sled) fn read_name(from: &mut Reader<'_>) -> Option<DocumentName> {
    let number = DocumentNumber::new(from.number()?)?;
    Some(DocumentName {
        number,
        epoch: Epoch(from.small()?),
    })
}

/// Writes an opening. The fields of a restoration come last, and only after a restoration or a
/// loss.
fn write_opening(opening: &Opening, out: &mut RecordWriter, restored: bool) {
    write_name(opening.name, out);
    match opening.previous {
        Some(previous) => write_name(previous, out),
        // Documents are numbered from 1, so 0 stands for none.
        None => out.number(0),
    }
    out.number(opening.first.0);
    out.bytes(&opening.before.0.0);
    out.number(u64::from(opening.revision.0));
    out.instant(opening.opened);
    if restored || opening.name.epoch > Epoch::FIRST || opening.after_loss {
        out.number(u64::from(opening.linked.epoch.0));
        out.number(u64::from(opening.after_loss));
        out.number(opening.since.0);
    }
}

fn read_opening(from: &mut Reader<'_>) -> Option<Opening> {
    let name = read_name(from)?;
    let previous = match DocumentNumber::new(from.number()?) {
        Some(number) => Some(DocumentName {
            number,
            epoch: Epoch(from.small()?),
        }),
        None => None,
    };
    let mut opening = Opening {
        name,
        linked: name,
        previous,
        first: Position(from.number()?),
        before: HistoryHash(from.digest()?),
        revision: Revision(from.small()?),
        opened: from.instant()?,
        after_loss: false,
        since: Position(0),
    };
    // The fields are absent in a log that was never restored and has lost nothing.
    if !from.0.is_empty() {
        opening.linked.epoch = Epoch(from.small()?);
        opening.after_loss = from.number()? == 1;
        opening.since = Position(from.number()?);
    }
    Some(opening)
}

pub(in crate::sled) fn encode_opening(opening: &Opening) -> Vec<u8> {
    let mut out = RecordWriter::default();
    write_opening(opening, &mut out, false);
    seal(out.0)
}

pub(in crate::sled) fn decode_opening(body: &[u8]) -> Option<Opening> {
    read_opening(&mut Reader(body))
}

pub(in crate::sled) fn encode_head(head: &FeedHead) -> Vec<u8> {
    let mut out = RecordWriter(Vec::with_capacity(HEAD_BYTES_LIKELY));
    out.feed(head.feed);
    out.number(u64::from(head.revision.0));
    out.number(head.next.0);
    out.bytes(&head.history.0.0);
    out.instant(head.updated);
    out.number(head.open.bytes);
    // If a byte follows, the optional fields are written, too: `read_opening` would else take the
    // byte for one of these fields.
    write_opening(&head.open.opening, &mut out, head.open.lost);
    if head.open.lost {
        out.number(1);
    }
    seal(out.0)
}

pub(in crate::sled) fn decode_head(body: &[u8]) -> Option<FeedHead> {
    let mut from = Reader(body);
    Some(FeedHead {
        feed: from.feed()?,
        revision: Revision(from.small()?),
        next: Position(from.number()?),
        history: HistoryHash(from.digest()?),
        updated: from.instant()?,
        open: OpenDocument {
            bytes: from.number()?,
            opening: read_opening(&mut from)?,
            lost: !from.0.is_empty(),
        },
    })
}
