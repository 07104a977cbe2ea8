//! HTTP as caches and clients rely on it; each test names its rule.

use std::{io::Read as _, time::Duration};

use flate2::read::GzDecoder;

use crate::{
    harness::{Server, events, pause, simplefeed},
    http::{Request, Response},
};

/// A feed with two archived documents and a recent one.
fn fixture() -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "4"]);
    simplefeed(&["append", &server.url("/feeds/a")], events(10).as_bytes());
    server.wait_until_frozen("/feeds/a/2.atom");
    (server, folder)
}

const READABLE: [&str; 5] = [
    "/feeds/a/recent.atom",
    "/feeds/a/3.atom",
    "/feeds/a/1.atom",
    "/feeds/a/entries/0.atom",
    "/feeds/a/index.json",
];

/// Goal: an answer that is kept ready is given only as long as it is right, in every coding, with a
/// condition or without.
#[test]
fn an_answer_kept_ready_goes_with_the_next_entry() {
    let (server, _folder) = fixture();
    for path in ["/feeds/a/recent.atom", "/feeds/a/3.atom"] {
        let plain = Request::get(path);
        let packed = Request::get(path).header("Accept-Encoding", "gzip");
        // What grows is kept once its date is told: from the next second on.
        pause(Duration::from_millis(1_100));
        for request in [&plain, &packed] {
            let before = server.send(request);
            assert!(before.maybe("last-modified").is_some(), "{path}");
            let known = Request::get(path)
                .header("If-None-Match", before.header("etag"))
                .header("Accept-Encoding", request_coding(&before));
            assert_eq!(server.send(&known).status, 304);
            let again = server.send(request);
            assert_eq!((again.status, &again.body), (200, &before.body));
            assert_eq!(again.header("etag"), before.header("etag"));
        }
        let kept = [server.send(&plain), server.send(&packed)];
        server.publish_ids("a", [format!("after {path}").replace(['/', ' '], "-")]);
        for (request, before) in [&plain, &packed].into_iter().zip(kept) {
            let now = server.send(request);
            assert_ne!(now.header("etag"), before.header("etag"), "{path}");
            assert_ne!(now.body, before.body, "{path}");
            let known = Request::get(path)
                .header("If-None-Match", before.header("etag"))
                .header("Accept-Encoding", request_coding(&before));
            assert_eq!(server.send(&known).status, 200, "{path}");
        }
    }
    let archived = server.get("/feeds/a/1.atom");
    assert_eq!(server.get("/feeds/a/1.atom").body, archived.body);
    assert_eq!(
        server
            .send(&Request::new("HEAD", "/feeds/a/1.atom"))
            .header("content-length"),
        archived.body.len().to_string()
    );
}

/// The coding that an answer was asked for in.
fn request_coding(response: &Response) -> &str {
    response.maybe("content-encoding").unwrap_or("identity")
}

#[test]
fn h_1_tags_are_strong_and_change_with_the_bytes() {
    let (server, _folder) = fixture();
    let before = server.get("/feeds/a/recent.atom");
    assert!(before.header("etag").starts_with('"'));
    server.publish_ids("a", ["new".into()]);
    assert_ne!(
        before.header("etag"),
        server.get("/feeds/a/recent.atom").header("etag")
    );
    // SF-E8: the two URLs of the open document have other bytes.
    assert_ne!(
        server.get("/feeds/a/3.atom").header("etag"),
        server.get("/feeds/a/recent.atom").header("etag")
    );
}

#[test]
fn h_2_codings_have_their_own_tags() {
    let (server, _folder) = fixture();
    for path in READABLE {
        let identity = server.get(path);
        let gzip = server.send(&Request::get(path).header("Accept-Encoding", "gzip"));
        assert_eq!(gzip.header("content-encoding"), "gzip", "{path}");
        assert_ne!(identity.header("etag"), gzip.header("etag"), "{path}");
        let mut decoded = vec![];
        GzDecoder::new(&gzip.body[..])
            .read_to_end(&mut decoded)
            .unwrap();
        assert_eq!(decoded, identity.body, "{path}");
    }
}

#[test]
fn h_6_conditions_on_what_does_not_exist_are_ignored() {
    let (server, _folder) = fixture();
    let missing = Request::get("/feeds/a/9.atom").header("If-None-Match", "*");
    assert_eq!(server.send(&missing).status, 404);
}

#[test]
fn h_7_and_h_8_conditions_are_decided_on_every_resource() {
    let (server, _folder) = fixture();
    for path in READABLE {
        let tag = server.get(path).header("etag").to_owned();
        let known = server.send(&Request::get(path).header("If-None-Match", &tag));
        assert_eq!((known.status, known.body.len()), (304, 0), "{path}");
        let weak = server.send(&Request::get(path).header("If-None-Match", &format!("W/{tag}")));
        assert_eq!(weak.status, 304, "{path}");
        let failed = server.send(&Request::get(path).header("If-Match", "\"other\""));
        assert_eq!(
            (failed.status, failed.header("cache-control")),
            (412, "no-store"),
            "{path}"
        );
        let dated = Request::get(path)
            .header("If-None-Match", "\"other\"")
            .header("If-Modified-Since", "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(server.send(&dated).status, 200, "{path}");
    }
}

#[test]
fn h_10_ranges_are_not_served_and_change_nothing() {
    let (server, _folder) = fixture();
    for path in READABLE {
        let full = server.get(path);
        for condition in [full.header("etag"), "\"other\""] {
            let ranged = Request::get(path)
                .header("Range", "bytes=0-9")
                .header("If-Range", condition);
            let answer = server.send(&ranged);
            assert_eq!(
                (answer.status, answer.body),
                (200, full.body.clone()),
                "{path}"
            );
        }
    }
}

#[test]
fn h_11_a_304_carries_what_the_200_would() {
    let (server, _folder) = fixture();
    for path in READABLE {
        let full = server.get(path);
        let known = server.send(&Request::get(path).header("If-None-Match", full.header("etag")));
        for name in ["etag", "vary", "cache-control", "date"] {
            assert!(known.maybe(name).is_some(), "{path} {name}");
        }
        assert_eq!(known.header("etag"), full.header("etag"));
        assert_eq!(known.header("cache-control"), full.header("cache-control"));
        assert_eq!(known.maybe("content-type"), None);
    }
}

#[test]
fn h_12_head_is_get_without_content() {
    let (server, _folder) = fixture();
    for path in READABLE
        .into_iter()
        .chain(["/feeds", "/feeds/a", "/feeds/none", "/healthz"])
    {
        let get = server.get(path);
        let head = server.send(&Request::new("HEAD", path));
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{path}");
        let comparable = |headers: &[(String, String)]| {
            let mut headers = headers.to_vec();
            headers.retain(|(name, _)| name != "date" && name != "last-modified");
            headers.sort();
            headers
        };
        assert_eq!(
            comparable(&head.headers),
            comparable(&get.headers),
            "{path}"
        );
    }
}

#[test]
fn h_13_answers_are_dated() {
    let (server, _folder) = fixture();
    for path in ["/feeds/a/recent.atom", "/feeds/a", "/nothing"] {
        assert!(server.get(path).header("date").ends_with(" GMT"));
    }
}

#[test]
fn h_14_other_methods_are_told_what_is_allowed() {
    let (server, _folder) = fixture();
    for (path, allowed) in [
        ("/feeds/a", "GET, HEAD, POST, PUT"),
        ("/feeds/a/recent.atom", "GET, HEAD"),
        ("/feeds", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
    ] {
        let refused = server.send(&Request::new("DELETE", path));
        assert_eq!(
            (refused.status, refused.header("allow")),
            (405, allowed),
            "{path}"
        );
    }
    assert_eq!(
        server
            .send(&Request::post("/feeds/a/1.atom", "application/json", "{}"))
            .status,
        405
    );
}

#[test]
fn h_15_answers_vary_by_coding_only() {
    let (server, _folder) = fixture();
    for path in READABLE {
        assert_eq!(
            server.get(path).header("vary").to_ascii_lowercase(),
            "accept-encoding",
            "{path}"
        );
    }
    let none =
        server.send(&Request::get("/feeds/a/1.atom").header("Accept-Encoding", "identity;q=0"));
    assert_eq!((none.status, none.header("vary")), (406, "accept-encoding"));
}

#[test]
fn h_22_errors_and_redirects_are_not_stored() {
    let (server, _folder) = fixture();
    for path in [
        "/feeds/a",
        "/feeds/a/9.atom",
        "/feeds/none/recent.atom",
        "/x",
        "/feeds/a/entries/99.atom",
    ] {
        assert_eq!(
            server.get(path).header("cache-control"),
            "no-store",
            "{path}"
        );
    }
    let redirect = server.get("/feeds/a");
    assert_eq!(
        (redirect.status, redirect.header("location")),
        (307, "a/recent.atom")
    );
}

#[test]
fn h_28_archived_documents_tell_the_digest_of_their_coded_bytes() {
    let (server, _folder) = fixture();
    for coding in ["identity", "gzip"] {
        let response =
            server.send(&Request::get("/feeds/a/1.atom").header("Accept-Encoding", coding));
        let digest = simplefeed_core::digest::Digest::of(&response.body).to_string();
        let told = response.header("repr-digest");
        let told = told
            .strip_prefix("sha-256=:")
            .and_then(|rest| rest.strip_suffix(':'))
            .unwrap();
        assert_eq!(base64_to_hex(told), digest);
    }
}

fn base64_to_hex(text: &str) -> String {
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = String::new();
    for c in text.trim_end_matches('=').chars() {
        bits.push_str(&format!("{:06b}", alphabet.find(c).unwrap()));
    }
    bits.as_bytes()[..256]
        .chunks(4)
        .map(|four| {
            let four = std::str::from_utf8(four).unwrap();
            format!("{:x}", u8::from_str_radix(four, 2).unwrap())
        })
        .collect()
}

#[test]
fn if_match_appends_only_if_nobody_else_has() {
    let (server, _folder) = fixture();
    let event = |id: &str| format!("{{\"id\":\"urn:t:{id}\"}}");
    let append = |id: &str, tag: &str| {
        let request =
            Request::post("/feeds/a", "application/json", event(id)).header("If-Match", tag);
        server.send(&request)
    };
    let recent = server.get("/feeds/a/recent.atom").header("etag").to_owned();
    let gzip = server.send(&Request::get("/feeds/a/3.atom").header("Accept-Encoding", "gzip"));
    let first = append("1", &recent);
    assert_eq!(first.status, 201);
    assert_eq!(append("2", &recent).status, 412, "the head has moved");
    assert_eq!(append("2", gzip.header("etag")).status, 412);
    assert_eq!(
        append("1", &recent).status,
        200,
        "a repeat is a duplicate first"
    );
    let second = append("2", &format!("W/{}", first.header("etag")));
    assert_eq!(second.status, 201, "a proxy may have weakened the tag");
    let permanent = server.send(&Request::get("/feeds/a/3.atom").header("Accept-Encoding", "gzip"));
    assert_eq!(
        append("3", permanent.header("etag")).status,
        201,
        "either URL of the head will do"
    );
    assert_eq!(
        append("4", permanent.header("etag")).status,
        412,
        "that document is closed"
    );
    assert_eq!(append("4", "*").status, 201);
    assert_eq!(append("4", "broken").status, 400);
    let nobody =
        Request::post("/feeds/none", "application/json", event("1")).header("If-Match", "*");
    assert_eq!(server.send(&nobody).status, 412);
    assert_eq!(
        server.get("/feeds/none").status,
        404,
        "a refused publish creates no feed"
    );
}
