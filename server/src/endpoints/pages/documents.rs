//! The page of a feed's documents.
//!
//! Shell: the log, the files of documents, the clock.

use askama::Template;
use simplefeed_core::{
    feed::{DocumentNumber, FeedName},
    plan::FeedHead,
};
use simplefeed_http::{
    endpoint::{Exchange, Outcome},
    problem::Problem,
};
use simplefeed_views::error::ViewError;

use super::{PageParts, PageReading, Top, field_value, moment::Moment, private_page, render_page};
use crate::endpoints::{
    off_thread,
    shelf::{look_again, seen},
};

/// Maximum number of documents on a page.
const ROWS_MAX: u64 = 50;

#[derive(Template)]
#[template(path = "documents.html")]
struct DocumentsPage {
    top: Top,
    name: String,
    machine: String,
    rows: Vec<DocumentRow>,
    is_newest: bool,
    older: Option<u64>,
}

struct DocumentRow {
    name: String,
    is_open: bool,
    is_lossy: bool,
    entries: u64,
    first: u64,
    end: u64,
    opened: Moment,
    /// When the document was cut; `None` while it is open.
    cut: Option<Moment>,
    /// Size of the document's file, once there is a file; for the open document, the size of its
    /// entries so far.
    size: Option<String>,
    /// Size of the gzip form of the file, once there is a file.
    packed: Option<String>,
}

/// Shows the documents of a feed, newest first.
pub(super) async fn show(parts: &PageParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let seen = seen(&parts.shelf, &exchange).await?;
    let name = exchange.params.feed().clone();
    let before = field_value(exchange.query(), "before").and_then(|before| before.parse().ok());
    let (reading, wanted, top) = (
        PageReading::of_parts(parts),
        name.clone(),
        Top::of_exchange(&exchange, 2),
    );
    let made = off_thread(move || {
        let state = reading.shelf.documents.snapshot(&wanted)?;
        let page = state.map(|state| make_page(&reading, &wanted, &state.head, before, top));
        Ok(page.transpose()?.map(|page| render_page(&page)))
    });
    let absent = || Problem::not_found(format!("there is no feed {name}"));
    let html = made.await?.ok_or_else(absent)??;
    // During the lookup, a closed timeline may have begun to follow a closed feed that this reader
    // may not see.
    look_again(&parts.shelf, &exchange, seen).await?;
    Ok(private_page(html))
}

fn make_page(
    reading: &PageReading,
    name: &FeedName,
    head: &FeedHead,
    before: Option<u64>,
    top: Top,
) -> Result<DocumentsPage, ViewError> {
    let log = &**reading.shelf.documents.log();
    let open = head.open.opening;
    let newest = open.name.number.get();
    let before = before.filter(|before| (1..=newest).contains(before));
    let mut number = before.unwrap_or(newest + 1) - 1;
    let last = DocumentNumber::new(number + 1).filter(|_| number < newest);
    let next = match last {
        Some(next) => log.opening(head.feed, next)?,
        None => None,
    };
    // A document ends where the next document begins, and was cut when the next document was
    // opened.
    let (mut end, mut cut) = (
        next.map_or(head.next, |next| next.first),
        next.map(|next| next.opened),
    );
    let mut rows = vec![];
    while let Some(wanted) = DocumentNumber::new(number)
        && u64::try_from(rows.len()).is_ok_and(|count| count < ROWS_MAX)
    {
        let is_open = number == newest;
        let opening = if is_open {
            Some(open)
        } else {
            log.opening(head.feed, wanted)?
        };
        let Some(opening) = opening else {
            break;
        };
        // A document with a damaged record has no size on this page; `verify` reports the damage.
        let size = reading.shelf.documents.size(name, wanted).ok().flatten();
        rows.push(DocumentRow {
            name: opening.name.to_string(),
            is_open,
            is_lossy: opening.after_loss,
            entries: end.0.saturating_sub(opening.first.0),
            first: opening.first.0,
            end: end.0,
            opened: Moment::of(opening.opened, reading.now),
            cut: cut.map(|cut| Moment::of(cut, reading.now)),
            size: if is_open {
                Some(byte_size(head.fill().bytes))
            } else {
                size.map(|(plain, _)| byte_size(plain))
            },
            packed: size.map(|(_, packed)| byte_size(packed)),
        });
        (end, cut) = (opening.first, Some(opening.opened));
        // No document has the number 0, so the loop ends before the number could wrap.
        number -= 1;
    }
    Ok(DocumentsPage {
        name: name.to_string(),
        machine: format!("{}../feeds/{name}", top.ui),
        is_newest: before.is_none(),
        older: (number > 0 && !rows.is_empty()).then_some(number + 1),
        rows,
        top,
    })
}

/// Returns a number of bytes as a text for people.
fn byte_size(bytes: u64) -> String {
    let tenths = |unit: u64| format!("{}.{}", bytes / unit, bytes % unit * 10 / unit);
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} kB", tenths(1_000)),
        1_000_000.. => format!("{} MB", tenths(1_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (size, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (12_345, "12.3 kB"),
            (9_999_999, "9.9 MB"),
        ] {
            assert_eq!(byte_size(size), text);
        }
    }
}
