//! JSON array with as many items as a request may have entries.
//!
//! Pure. A list of 16 MB may have eight million items, and each costs memory before the items are
//! counted.

use std::fmt;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::limits::BATCH_ENTRIES_MAX;

/// Items of an array, at most one more than a request may have, so that the caller can notice the
/// excess.
#[derive(Debug)]
pub(super) struct BoundedItems<'a>(pub(super) Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for BoundedItems<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Items;

        impl<'de> Visitor<'de> for Items {
            type Value = BoundedItems<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event (an object) or an array of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut listed = vec![];
                // The items beyond the bound are read and dropped: serde refuses an array that is
                // not read to the end.
                while let Some(item) = items.next_element()? {
                    if listed.len() <= BATCH_ENTRIES_MAX {
                        listed.push(item);
                    }
                }
                Ok(BoundedItems(listed))
            }
        }

        from.deserialize_seq(Items)
    }
}
