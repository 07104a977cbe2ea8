//! The entry's id.
//!
//! Pure, but for the writer it is given.

use std::io::{self, Write};

use simplefeed_client::Delivery;

pub(super) fn write(delivery: &Delivery, out: &mut impl Write) -> io::Result<()> {
    super::line(&super::one_line(delivery.id()), out)
}
