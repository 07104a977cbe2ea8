//! Feeds are created and changed; what is shown changes only where it may.

use crate::{
    harness::{Server, simplefeed},
    http::Request,
};

#[test]
fn put_creates_and_changes_only_what_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let id = "urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66";
    let created = server.send(&Request::put(
        "/feeds/a",
        &format!("{{\"id\":\"{id}\",\"title\":\"T\"}}"),
    ));
    assert_eq!(created.status, 201);
    let settings = created.json();
    assert_eq!(
        (&settings["id"], &settings["title"], &settings["author"]),
        (&id.into(), &"T".into(), &"Simplefeed".into())
    );
    assert_eq!(
        (&settings["document_entries"], &settings["document_period"]),
        (&100.into(), &"none".into())
    );

    let changed = server.send(&Request::put(
        "/feeds/a",
        r#"{"document_entries":5,"document_period":"day"}"#,
    ));
    assert_eq!(changed.status, 200);
    assert_eq!(
        (
            &changed.json()["title"],
            &changed.json()["document_entries"]
        ),
        (&"T".into(), &5.into())
    );
    assert_eq!(
        server.send(&Request::put("/feeds/a", "{}")).json(),
        changed.json()
    );

    for (body, status) in [
        ("{", 400),
        ("{\"size\":1}", 422),
        ("{\"document_entries\":0}", 422),
        ("{\"title\":\" \"}", 422),
        (
            "{\"id\":\"urn:uuid:00000000-0000-4000-8000-000000000000\"}",
            422,
        ),
        ("{\"id\":\"no\"}", 422),
    ] {
        assert_eq!(
            server.send(&Request::put("/feeds/a", body)).status,
            status,
            "{body}"
        );
    }
    let taken = server.send(&Request::put("/feeds/b", &format!("{{\"id\":\"{id}\"}}")));
    assert_eq!(taken.status, 422);
    assert_eq!(server.get("/feeds/b").status, 404);
}

/// Invariant 3: a header is fixed when its document is opened.
#[test]
fn changed_settings_close_the_document_before_the_next_entry() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.send(&Request::put("/feeds/a", r#"{"title":"First"}"#));
    assert!(
        server
            .get("/feeds/a/recent.atom")
            .text()
            .contains("<title>First</title>")
    );
    // Nobody was promised the header of a document without entries.
    server.send(&Request::put("/feeds/a", r#"{"title":"Second"}"#));
    assert!(
        server
            .get("/feeds/a/recent.atom")
            .text()
            .contains("<title>Second</title>")
    );
    server.publish_ids("a", ["1".into()]);

    server.send(&Request::put("/feeds/a", r#"{"title":"Third"}"#));
    assert!(
        server
            .get("/feeds/a/1.atom")
            .text()
            .contains("<title>Second</title>")
    );
    assert_eq!(server.get("/feeds/a/2.atom").status, 404);
    server.publish_ids("a", ["2".into()]);
    let archived = server.wait_until_frozen("/feeds/a/1.atom").text();
    assert!(archived.contains("<title>Second</title>") && archived.contains("urn:t:1"));
    let recent = server.get("/feeds/a/recent.atom").text();
    assert!(recent.contains("<title>Third</title>") && !recent.contains("urn:t:1"));
}

#[test]
fn the_catalogue_lists_every_feed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for name in ["b", "a", "c.d-e_f"] {
        server.publish_ids(name, [name.into()]);
    }
    let listed = simplefeed(&["ls", &server.url("/feeds")], b"");
    let expected: String = ["a", "b", "c.d-e_f"]
        .map(|name| {
            format!(
                "1\t{name}\t{}\n",
                server.url(&format!("/feeds/{name}/recent.atom"))
            )
        })
        .concat();
    assert_eq!(listed, expected);
    let behind = server.get("/feeds?after=a").json();
    assert_eq!(behind["feeds"].as_array().unwrap().len(), 2);
    assert_eq!(server.get("/feeds?after=A").status, 400);
}

#[test]
fn documents_are_cut_by_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-bytes", "1000"]);
    let line = |n: usize| {
        format!(
            "{{\"id\":\"urn:t:{n}\",\"content\":\"{}\"}}",
            "x".repeat(400)
        )
    };
    for n in 0..3 {
        assert_eq!(server.publish("a", &line(n)).status, 201);
    }
    // Three entries of some 650 bytes: one a document.
    assert_eq!(server.get("/feeds/a/3.atom").status, 200);
    assert_eq!(server.get("/feeds/a/4.atom").status, 404);
}

/// Behind a proxy that serves us below a path, with the path left on or taken off.
#[test]
fn a_sub_path_works() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(
        folder.path(),
        &["--public-url", "http://localhost/feeds-svc/"],
    );
    server.publish_ids("a", ["1".into()]);
    for path in ["/feeds/a/recent.atom", "/feeds-svc/feeds/a/recent.atom"] {
        let document = server.get(path).text();
        assert!(
            document.contains(r#"href="http://localhost/feeds-svc/feeds/a/recent.atom""#),
            "{document}"
        );
    }
    assert_eq!(
        server.get("/feeds-svc/feeds/a").header("location"),
        "a/recent.atom"
    );
}
