//! Documents that a consumer fetched.
#![no_main]

use libfuzzer_sys::fuzz_target;
use simplefeed_core::{event::Event, reader::Document};

fuzz_target!(|body: &[u8]| {
    let url = "http://h/1.atom".parse().expect("that is a URL");
    let Ok(read) = Document::read(body.to_vec().into(), &url) else {
        return;
    };
    for index in 0..read.len() {
        let entry = read.entry(index).expect("there are so many");
        let text = std::str::from_utf8(entry.fragment).expect("entries are text");
        let _told = Event::from_entry(text);
    }
    for rel in ["self", "prev-archive", "next-archive", "current", "index"] {
        let _link = read.link(rel);
    }
});
