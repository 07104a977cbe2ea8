//! An entry as one JSON object on one line; `docs/protocol.md` documents the object.
//!
//! Shell: the writer of the caller.

use std::io::Write;

use simplefeed_client::Delivery;

pub(super) fn write(
    delivery: &Delivery,
    feed: Option<&str>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    Ok(super::write_line(&delivery.line(feed)?, out)?)
}
