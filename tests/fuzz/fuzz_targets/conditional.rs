//! The header fields that decide what a request gets.
#![no_main]

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use simplefeed_core::feed::FeedName;
use simplefeed_http::{
    access::{Access, Right, TokenGrants},
    coding::negotiate,
    conditional::{Validators, verdict},
};
use simplefeed_server::endpoints::forms::{EntryMedia, conditions, idempotency_key, settings_body};

fuzz_target!(|lines: &[u8]| {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n').take(20) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().map(HeaderName::from_bytes);
        let value = parts.next().map(HeaderValue::from_bytes);
        if let (Some(Ok(name)), Some(Ok(value))) = (name, value) {
            headers.append(name, value);
        }
    }
    let _coding = negotiate(&headers);
    let validators = Validators {
        tag: "\"tag\"".parse().expect("that is a tag"),
        modified: Some(1_000),
    };
    let _verdict = verdict(&headers, &validators);
    let _media = EntryMedia::of(&headers);
    let _key = idempotency_key(&headers);
    let _conditions = conditions(&headers);
    let _settings = settings_body(&headers, lines);
    let feed = FeedName::parse("a").expect("that is a name");
    let access = Access::Holders(TokenGrants::default());
    assert!(access.check(&headers, Right::Read, &feed).is_err());
});
