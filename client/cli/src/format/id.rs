//! The entry's id.
//!
//! Shell: the writer of the caller.

use std::io::{self, Write};

use simplefeed_client::Delivery;

pub(super) fn write(delivery: &Delivery, out: &mut impl Write) -> io::Result<()> {
    super::write_line(&super::one_line(delivery.id()), out)
}
