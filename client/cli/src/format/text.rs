//! For people: time and title on one line, then the content, indented.
//!
//! Pure, but for the writer it is given.

use std::io::Write;

use simplefeed_client::Delivery;

pub(super) fn write(delivery: &Delivery, out: &mut impl Write) -> anyhow::Result<()> {
    let event = delivery.event()?;
    let updated = event.updated.unwrap_or_default();
    let title = event.title.unwrap_or_default();
    super::line(&super::one_line(&format!("{updated}  {title}")), out)?;
    let Some(raw) = event.content else {
        return Ok(());
    };
    // Plain text is a JSON string; JSON content is shown as it stands.
    let text: String = serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().into());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        super::line(&format!("    {}", super::one_line(line)), out)?;
    }
    Ok(())
}
