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
    let mut event = delivery.event()?;
    event.document = delivery.document().map(ToString::to_string);
    event.feed = feed.map(Into::into);
    event.position = delivery.position().map(|position| position.0);
    serde_json::to_writer(&mut *out, &event).map_err(std::io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(())
}
