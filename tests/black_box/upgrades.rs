//! Logs that earlier programs have written: each storage version that is read has one in `fixtures/log-N`.

use std::{fs, path::Path};

use crate::{
    harness::{Server, check_folder, copy_folder, simplefeed, workspace},
    http::Request,
};

/// Storage versions that are read. The first that a release writes will be one for ever.
const VERSIONS: [u32; 1] = [4];

/// Bookmark of a consumer behind entry 6 of the log in `fixtures/log-4`.
const BOOKMARK: &str = r#"{"version":1,"feed":"urn:uuid:0692b928-13db-4082-a2a1-60be78ec867c","entry":"urn:example:6","position":5,"history":"1283d4a66b41ba6ae6daaee7f2e424b5ee0a21561c6c5efdf103d63903424e77","document":"http://127.0.0.1:8080/feeds/fixture/2.atom"}"#;

fn assert_documents_are_kept(server: &Server, fixture: &Path) {
    for document in ["1.atom", "2.atom"] {
        let kept = fs::read(fixture.join("www/feeds/fixture").join(document)).unwrap();
        let served = server.get(&format!("/feeds/fixture/{document}"));
        assert!(served.is_immutable() && served.body == kept, "{document}");
    }
}

/// Goal: what was stored is served the same, byte for byte, by this version, and goes on.
#[test]
fn a_log_of_every_version_is_opened() {
    for version in VERSIONS {
        let fixture = workspace().join(format!("fixtures/log-{version}"));
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        copy_folder(&fixture, &data);
        assert!(
            check_folder("verify", &data).contains("11 entries, 2 archived documents: 0 faults")
        );

        let server = Server::start(&data, &["--public-url", "http://127.0.0.1:8080"]);
        assert_documents_are_kept(&server, &fixture);
        let recent = server.get("/feeds/fixture/recent.atom").text();
        assert!(
            recent.contains("first=\"8\"") && recent.contains("urn:example:10"),
            "{recent}"
        );
        let second = server.get("/feeds/second/1.atom").text();
        assert!(second.contains("<title>Second</title>") && second.len() > 30_000);
        // Ids are remembered, positions go on.
        let again = "{\"id\":\"urn:example:3\",\"title\":\"Entry 3\",\"content\":{\"n\":3}}";
        assert_eq!(
            server.publish("fixture", again).json()["results"][0]["position"],
            2
        );
        assert_eq!(
            server
                .publish("fixture", "{\"id\":\"urn:example:3\"}")
                .status,
            409
        );
        let new = server
            .publish("fixture", "{\"id\":\"urn:example:11\"}")
            .json();
        assert_eq!(new["results"][0]["position"], 10);
        server.stop();
        check_folder("verify", &data);
        check_folder("rebuild", &data);
    }
}

/// Goal: what was stored is served the same once newer entries were settled beside it.
#[test]
fn a_log_of_every_version_is_settled() {
    for version in VERSIONS {
        let fixture = workspace().join(format!("fixtures/log-{version}"));
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        copy_folder(&fixture, &data);
        let event = |n: u32| format!("{{\"id\":\"urn:example:{n}\",\"title\":\"Entry {n}\"}}");
        let server = Server::start_settling(&data, 4, 5_000);
        for n in 11..=60 {
            for feed in ["fixture", "second"] {
                assert_eq!(server.publish(feed, &event(n)).status, 201, "{feed} {n}");
            }
        }
        server.stop();
        let files = fs::read_dir(data.join("journal")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let oldest = names.filter_map(|name| name.parse::<u64>().ok()).min();
        assert!(oldest > Some(20), "version {version}: {oldest:?}");
        let said = check_folder("verify", &data);
        assert!(
            said.contains("111 entries") && said.contains(": 0 faults"),
            "version {version}: {said}"
        );
        let server = Server::start(&data, &["--public-url", "http://127.0.0.1:8080"]);
        assert_documents_are_kept(&server, &fixture);
        for n in [12, 35, 60] {
            let again = server.publish("fixture", &event(n)).json();
            assert_eq!(again["results"][0]["position"], n - 1, "version {version}");
        }
    }
}

/// Goal: what was shown compressed is compressed the same by later versions: it has a strong tag.
#[test]
fn a_lost_twin_is_made_as_it_was() {
    let fixture = workspace().join("fixtures/log-4");
    let twin = "www/feeds/fixture/1.atom.gz";
    let kept = fs::read(fixture.join(twin)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    copy_folder(&fixture, &data);
    fs::remove_file(data.join(twin)).unwrap();
    let server = Server::start(&data, &["--public-url", "http://127.0.0.1:8080"]);
    let get = Request::get("/feeds/fixture/1.atom").header("Accept-Encoding", "gzip");
    let served = get.send(&server.address).unwrap();
    assert!(served.is_immutable() && served.body == kept);
    server.stop();
    check_folder("rebuild", &data);
    assert_eq!(fs::read(data.join(twin)).unwrap(), kept);
}

/// The log that this version writes is one of those kept.
#[test]
fn the_newest_version_is_among_them() {
    let folder = tempfile::tempdir().unwrap();
    Server::start(folder.path(), &[]).stop();
    let witness = fs::read(folder.path().join("witness")).unwrap();
    let newest = VERSIONS.last().unwrap();
    assert!(witness.starts_with(format!("SFW{newest}").as_bytes()));
}

/// Bookmarks outlive versions of the log.
#[test]
fn bookmarks_made_before_still_hold() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    copy_folder(&workspace().join("fixtures/log-4"), &data);
    let server = Server::start(&data, &[]);
    let bookmark = folder.path().join("bookmark");
    fs::write(&bookmark, BOOKMARK).unwrap();
    let args = [
        "replay",
        &server.url("/feeds/fixture/recent.atom"),
        "--format",
        "id",
        "--bookmark",
    ];
    let printed = simplefeed(&[&args[..], &[bookmark.to_str().unwrap()]].concat(), b"");
    let expected: String = (7..=10).map(|n| format!("urn:example:{n}\n")).collect();
    assert_eq!(printed, expected);
}
