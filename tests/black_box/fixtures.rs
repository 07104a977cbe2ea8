//! The malformed inputs in `fixtures/`: each is refused as its name says.

use simplefeed_core::{
    event::from_ndjson,
    refusal::{Refusal, RefusalKind},
    scanner::scan,
};

use crate::harness::{files, workspace};

/// A stray file, or one that is accepted or refused as something else, fails.
#[test]
fn malformed_inputs_are_refused_as_they_are_named() {
    let mut found = 0;
    for (path, bytes) in files(&workspace().join("fixtures/malformed")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let outcome = match path.extension().unwrap().to_str().unwrap() {
            "atom" => scan(&bytes),
            "ndjson" => from_ndjson(&bytes),
            other => panic!("{name}: nothing reads .{other}"),
        };
        let Err(Refusal { kind, detail, .. }) = outcome else {
            panic!("{name} is accepted")
        };
        let expected = match name.split('-').next().unwrap() {
            "malformed" => RefusalKind::Malformed,
            "unacceptable" => RefusalKind::Unacceptable,
            other => panic!("{name}: there is no kind {other}"),
        };
        assert_eq!(kind, expected, "{name}: {detail}");
        assert!(!detail.is_empty());
        found += 1;
    }
    assert!(found >= 20, "only {found} files");
}
