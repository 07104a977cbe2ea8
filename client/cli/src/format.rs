//! Formats of a printed entry; one file per format.
//!
//! Shell: the writer of the caller, and the check whether stdout is a terminal. Everything else is
//! a pure function of the entry.

use std::io::{self, IsTerminal as _, Write};

use clap::ValueEnum;
use simplefeed_client::Delivery;

use crate::say;

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
    /// Time, title, id and plain content, for people; in colours on a terminal, unless `NO_COLOR`
    /// is set
    Text,
}

impl Format {
    /// Writes an entry of one of many feeds; `feed` is the URL of that feed.
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
        self.write_painted(delivery, Paint::None, out)
    }

    /// Writes one entry of a single feed, with colours in the format for people.
    pub(crate) fn write_painted(
        self,
        delivery: &Delivery,
        paint: Paint,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        match self {
            Self::Ndjson => ndjson::write(delivery, None, out),
            Self::Atom => Ok(atom::write(delivery, out)?),
            Self::Id => Ok(id::write(delivery, out)?),
            Self::Text => text::write(delivery, paint, out),
        }
    }
}

/// Whether text has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// No colours, as for a file or a pipe.
    None,
    /// Colours of a terminal.
    Colours,
}

impl Paint {
    /// Returns colours if stdout is a terminal and `NO_COLOR` is not set.
    pub(crate) fn of_stdout() -> Self {
        if io::stdout().is_terminal() && !say::is_plain() {
            Self::Colours
        } else {
            Self::None
        }
    }

    /// Returns text in a colour; `colour` is the number in the terminal's code (SGR).
    fn paint(self, colour: &str, text: &str) -> String {
        match self {
            Self::None => text.into(),
            Self::Colours => format!("\x1b[{colour}m{text}\x1b[0m"),
        }
    }
}

/// Returns text for one line of a terminal, with spaces for control characters: no entry can move
/// the cursor or pose as another line. Characters that change the direction of later text become
/// spaces, too.
pub(crate) fn one_line(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| if c.is_control() || turns(c) { ' ' } else { c })
        .collect()
}

fn write_line(text: &str, out: &mut impl Write) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")
}
