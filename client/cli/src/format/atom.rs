//! The entry element as it stands in the feed. `append` takes these one after the other.
//!
//! Pure, but for the writer it is given.

use std::io::{self, Write};

use simplefeed_client::Delivery;

pub(super) fn write(delivery: &Delivery, out: &mut impl Write) -> io::Result<()> {
    out.write_all(delivery.raw())?;
    out.write_all(b"\n")
}
