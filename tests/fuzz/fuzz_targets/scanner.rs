//! Posted Atom.
#![no_main]

use libfuzzer_sys::fuzz_target;
use simplefeed_core::scanner::{elements, scan};
use simplefeed_fuzz::assert_readable;

fuzz_target!(|body: &[u8]| {
    if let Ok(drafts) = scan(body) {
        assert_readable(&drafts);
    }
    if let Ok(text) = std::str::from_utf8(body) {
        let _entries = elements(text);
    }
});
