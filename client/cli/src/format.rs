//! How an entry is printed; one file per format.
//!
//! Pure, but for the writer it is given.

use std::io::{self, Write};

use clap::ValueEnum;
use simplefeed_client::Delivery;

mod atom;
mod id;
mod ndjson;
mod text;

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One JSON object a line, as `append` takes it
    Ndjson,
    /// The entry as it stands in the feed, one after the other
    Atom,
    /// The entry's id, one a line
    Id,
    /// Time, title and plain content, for people
    Text,
}

impl Format {
    /// Writes one entry of one of many feeds.
    pub(crate) fn write_of(
        self,
        feed: &str,
        delivery: &Delivery,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        match self {
            Self::Ndjson => ndjson::write(delivery, Some(feed), out),
            // The other formats have no place for the feed's URL.
            other => other.write(delivery, out),
        }
    }

    /// Writes one entry of a single feed.
    pub(crate) fn write(self, delivery: &Delivery, out: &mut impl Write) -> anyhow::Result<()> {
        match self {
            Self::Ndjson => ndjson::write(delivery, None, out),
            Self::Atom => Ok(atom::write(delivery, out)?),
            Self::Id => Ok(id::write(delivery, out)?),
            Self::Text => text::write(delivery, out),
        }
    }
}

/// Returns text for one line of a terminal: no control characters, so that no entry can move the
/// cursor or pose as another line.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn line(text: &str, out: &mut impl Write) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")
}
