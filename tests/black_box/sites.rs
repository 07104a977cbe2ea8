//! Scripts of other sites, directly and behind proxies: what everybody may see, they may see, too, and nothing else.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::{
    access::{Guarded, paths},
    caddy::Caddy,
    harness::wait_for,
    http::{Request, Response},
    nginx::Nginx,
    packaging::Varnish,
    proxies::{Kind, Proxy},
};

/// Whether a browser lets a script of another site see an answer to a request without credentials.
fn is_shared(answer: &Response) -> bool {
    answer.maybe("access-control-allow-credentials").is_none()
        && answer.maybe("access-control-allow-origin") == Some("*")
        && answer.maybe("access-control-expose-headers") == Some("etag, link")
}

/// Each public read is shared on every route, also as a 304 and as an error; nothing that needs a token is.
#[test]
fn scripts_read_what_everybody_may() {
    let guarded = Guarded::start(&[]);
    let mut shared = 0;
    for (path, endpoint) in paths("open") {
        let get = "GET".parse().unwrap();
        if endpoint.verb(&get).is_none() {
            continue;
        }
        let answer = guarded.ask(Request::get(&path), None);
        if endpoint.label == "ui" {
            assert!(!is_shared(&answer), "{path}");
            continue;
        }
        // Health is for machines of the operator; lists of closed feeds are for holders of tokens. Errors say nothing.
        let is_for_some = endpoint.label == "health" || path.contains("-closed");
        let is_for_all = !is_for_some || answer.status >= 400;
        assert_eq!(is_shared(&answer), is_for_all, "{path}: {}", answer.status);
        shared += usize::from(is_for_all);
        if let Some(tag) = answer.maybe("etag") {
            let again = unchanged(&guarded, &path, tag.to_owned());
            assert_eq!(
                (again.status, is_shared(&again)),
                (304, is_for_all),
                "{path}"
            );
        }
        let preflight = Request::new("OPTIONS", &path)
            .header("Origin", "https://elsewhere.example")
            .header("Access-Control-Request-Method", "GET")
            .header("Access-Control-Request-Headers", "if-none-match");
        let answer = guarded.ask(preflight, None);
        assert_eq!(answer.status, 204, "{path}");
        assert_eq!(answer.header("allow"), endpoint.allow());
        assert_eq!(answer.header("access-control-allow-methods"), "GET, HEAD");
        // With `content-type` a page could publish to a server in its visitor's network, since POST needs no permission.
        let headers = answer.header("access-control-allow-headers");
        assert_eq!(
            headers,
            "cache-control, if-modified-since, if-none-match, last-event-id"
        );
        assert!(is_shared(&answer), "{path}");
    }
    assert!(shared > 10, "{shared}");
    for (path, token) in [
        ("/feeds/shut/recent.atom", &guarded.reader),
        ("/feeds/shut/1.atom", &guarded.reader),
        ("/feeds/shut", &guarded.reader),
    ] {
        let answer = guarded.ask(Request::get(path), Some(token));
        assert!(answer.status < 400, "{path}: {}", answer.status);
        assert_eq!(answer.maybe("access-control-allow-origin"), None, "{path}");
    }
    let event = Request::post("/feeds/open", "application/json", "{}");
    let written = guarded.ask(event, Some(&guarded.admin));
    assert_eq!(written.status, 201);
    assert_eq!(written.maybe("access-control-allow-origin"), None);
}

/// Asks for what has a tag until the answer is that it is unchanged. SUP documents change by the clock between two requests.
fn unchanged(guarded: &Guarded, path: &str, mut tag: String) -> Response {
    wait_for("it changes each time", || {
        let request = Request::get(path).header("If-None-Match", &tag);
        let answer = guarded.ask(request, None);
        match answer.maybe("etag") {
            Some(newer) if answer.status == 200 && newer != tag => {
                newer.clone_into(&mut tag);
                None
            }
            _ => Some(answer),
        }
    })
}

/// The same through a proxy: frozen documents that it serves itself, others, the short URL, and what browsers ask before.
fn check(address: &str, proxy: &str) {
    for path in [
        "/feeds/open/1.atom",
        "/feeds/open/recent.atom",
        "/feeds/open",
    ] {
        let answer = Request::get(path).send(address).unwrap();
        assert!(answer.status < 400, "{proxy} {path}: {}", answer.status);
        let origin = answer.maybe("access-control-allow-origin");
        assert_eq!(origin, Some("*"), "{proxy} {path}");
        if let Some(tag) = answer.maybe("etag") {
            let again = Request::get(path).header("If-None-Match", tag);
            let again = again.send(address).unwrap();
            assert_eq!(again.status, 304, "{proxy} {path}");
            let origin = again.maybe("access-control-allow-origin");
            assert_eq!(origin, Some("*"), "{proxy} {path}");
        }
        let preflight = Request::new("OPTIONS", path).send(address).unwrap();
        assert_eq!(preflight.status, 204, "{proxy} {path}");
        let methods = preflight.header("access-control-allow-methods");
        assert_eq!(methods, "GET, HEAD", "{proxy} {path}");
    }
}

#[test]
#[ignore = "needs nginx"]
fn scripts_read_through_nginx() {
    for config in ["cache.conf", "archives.conf"] {
        let guarded = Guarded::start(&[]);
        let www = guarded.data().join("www");
        let nginx = Nginx::start(config, guarded.folder.path(), &guarded.server.address, &www);
        check(&nginx.address, config);
    }
}

#[test]
#[ignore = "needs varnishd"]
fn scripts_read_through_varnish() {
    let guarded = Guarded::start(&[]);
    let folder = guarded.folder.path();
    // Its worker is another user.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let varnish = Varnish::start(folder, &guarded.server.address);
    check(&varnish.address, "varnish");
}

#[test]
#[ignore = "needs caddy"]
fn scripts_read_through_caddy() {
    let guarded = Guarded::start(&[]);
    let www = guarded.data().join("www");
    let caddy = Caddy::start(guarded.folder.path(), &guarded.server.address, &www);
    check(&caddy.address, "caddy");
}

#[test]
#[ignore = "needs haproxy, apache2 and squid"]
fn scripts_read_through_other_proxies() {
    for kind in [Kind::Haproxy, Kind::Apache, Kind::Squid] {
        let guarded = Guarded::start(&[]);
        let (folder, www) = (guarded.folder.path(), guarded.data().join("www"));
        let proxy = Proxy::start(kind, folder, &guarded.server.address, &www);
        check(&proxy.address, &format!("{kind:?}"));
    }
}
