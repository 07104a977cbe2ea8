//! Files that may be bookmarks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use simplefeed_core::replay::Bookmark;

fuzz_target!(|file: &[u8]| {
    let Ok(bookmark) = serde_json::from_slice::<Bookmark>(file) else {
        return;
    };
    let written = serde_json::to_vec(&bookmark).expect("a bookmark has a JSON form");
    let again: Bookmark = serde_json::from_slice(&written).expect("what is written can be read");
    assert_eq!(again, bookmark);
});
