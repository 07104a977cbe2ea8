//! The entry element with the bytes of the feed. `append` accepts several such elements, one after
//! the other.
//!
//! Shell: the writer of the caller.

use std::io::{self, Write};

use simplefeed_client::Delivery;

pub(super) fn write(delivery: &Delivery, out: &mut impl Write) -> io::Result<()> {
    out.write_all(delivery.raw())?;
    out.write_all(b"\n")
}
