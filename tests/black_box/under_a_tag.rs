//! Publishing and settings under a tag, by our own client.
//!
//! Shell: processes.

use crate::{
    harness::{Server, run, text},
    http::Request,
};

/// Goal: `append --if-match` appends only as long as nobody else does, also over several requests, and a repeat of what is
/// stored is no failure.
#[test]
fn append_goes_on_from_the_head_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish_ids("a", ["first".to_owned()]);
    let feed = server.url("/feeds/a");
    let tag = || server.get("/feeds/a/recent.atom").header("etag").to_owned();
    let append = |tag: &str, entries: std::ops::Range<u32>| {
        let lines: String = entries
            .map(|n| format!("{{\"id\":\"urn:t:{n}\"}}\n"))
            .collect();
        let args = ["append", &feed, "--if-match", tag];
        let output = run("simplefeed", &args, lines.as_bytes());
        (output.status.code(), text(&output.stderr))
    };
    let before = tag();
    // More than one request takes.
    let (code, said) = append(&before, 0..2_500);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = append(&before, 2_500..2_501);
    assert_eq!(code, Some(15), "{said}");
    assert!(said.contains("412"), "{said}");
    let (code, said) = append(&before, 0..2_500);
    assert_eq!(code, Some(0), "a repeat: {said}");
    assert_eq!(append(&tag(), 2_500..2_501).0, Some(0));
    let changed = Request::put("/feeds/a/settings.json", "{\"title\":\"A\"}");
    assert_eq!(server.send(&changed).status, 200);
    server.stop();
}
