//! An entry for people: time, title and id on one line, then the content, indented.
//!
//! Shell: the writer of the caller.

use std::io::Write;

use simplefeed_client::Delivery;

use super::Paint;

/// Numbers of the styles in the terminal's code (SGR): dim for the date and the id, bold for the
/// title.
const DIM: &str = "2";
const BOLD: &str = "1";

pub(super) fn write(delivery: &Delivery, paint: Paint, out: &mut impl Write) -> anyhow::Result<()> {
    let event = delivery.event()?;
    let updated = event.updated.unwrap_or_default();
    let title = event.title.unwrap_or_default();
    let [updated, title, id] = [&updated, &title, delivery.id()].map(super::one_line);
    let (updated, title) = (paint.paint(DIM, &updated), paint.paint(BOLD, &title));
    super::write_line(
        &format!("{updated}  {title}  {}", paint.paint(DIM, &id)),
        out,
    )?;
    let Some(raw) = event.content else {
        return Ok(());
    };
    // Plain text is a JSON string; other JSON content is shown unchanged.
    let text: String = serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().into());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        super::write_line(&format!("    {}", super::one_line(line)), out)?;
    }
    Ok(())
}
