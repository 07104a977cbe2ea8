//! One JSON object a line; documented in `docs/protocol.md`.
//!
//! Pure, but for the writer it is given.

use std::io::Write;

use simplefeed_client::Delivery;

pub(super) fn write(
    delivery: &Delivery,
    feed: Option<&str>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let document = delivery.document().map(ToString::to_string);
    let line = delivery
        .event()?
        .line(document, feed.map(Into::into), delivery.position());
    Ok(super::line(&line, out)?)
}
