//! Posted JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use simplefeed_core::event::{from_json, from_ndjson};
use simplefeed_fuzz::assert_readable;

fuzz_target!(|body: &[u8]| {
    for drafts in [from_json(body), from_ndjson(body)] {
        if let Ok(drafts) = drafts {
            assert_readable(&drafts);
        }
    }
});
