use crate::consumer::tests::{Page, Web};

use super::*;

const KIND: &str = "application/atom+xml";
const FEED: &str = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id></feed>";

fn url(text: &str) -> Url {
    text.parse().unwrap()
}

fn fetcher(web: &Arc<Web>) -> Fetcher {
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(web);
    Fetcher::new(transport, &url("https://h/short")).bearer_token("secret")
}

/// Goal: a token is told to the origin it was given for, and to nobody else.
/// Method: a redirect on the same origin, to another port, host and scheme, and back again.
#[tokio::test(start_paused = true)]
async fn a_token_stays_at_its_origin() {
    for (way, told) in [
        (
            &["https://h/short", "https://h/recent"][..],
            &[true, true][..],
        ),
        (&["https://h/short", "https://h:444/recent"], &[true, false]),
        (&["https://h/short", "https://other/recent"], &[true, false]),
        (&["https://h/short", "http://h/recent"], &[true, false]),
        (
            &["https://h/short", "https://other/x", "https://h/recent"],
            &[true, false, true],
        ),
        (&["https://other/archive"], &[false]),
        (&["http://h/archive"], &[false]),
    ] {
        let web = Arc::new(Web::default());
        for pair in way.windows(2) {
            web.redirect(pair[0], pair[1]);
        }
        web.serve(way[way.len() - 1], Page::new(KIND, FEED));
        let allowed = ["https://h:444", "https://other", "http://h"];
        let anywhere = allowed.iter().fold(fetcher(&web), |fetcher, allowed| {
            fetcher.allow_origin(&url(allowed))
        });
        let fetched = anywhere
            .document(&url(way[0]), &Validators::default(), false)
            .await;
        let Ok(FetchOutcome::Document { url: from, .. }) = fetched else {
            panic!("{fetched:?}")
        };
        assert_eq!(from.as_str(), way[way.len() - 1]);
        let expected: Vec<_> = way
            .iter()
            .zip(told)
            .map(|(url, told)| ((*url).to_owned(), told.then(|| "Bearer secret".to_owned())))
            .collect();
        assert_eq!(web.sent("authorization"), expected);
    }
}

#[test]
fn a_token_is_never_shown() {
    let shown = format!("{:?}", fetcher(&Arc::new(Web::default())));
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn redirects_end() {
    let web = Arc::new(Web::default());
    web.redirect("https://h/a", "b");
    web.redirect("https://h/b", "a");
    let fetched = fetcher(&web).bytes(&url("https://h/a")).await;
    assert!(
        matches!(fetched, Err(FetchError::Redirects { .. })),
        "{fetched:?}"
    );
    let fetched = fetcher(&web)
        .redirects_max(1)
        .bytes(&url("https://h/a"))
        .await;
    assert!(
        matches!(fetched, Err(FetchError::Redirects { max: 1, .. })),
        "{fetched:?}"
    );
}

/// Goal: nothing is asked where the fetcher may not go, whatever leads there.
#[tokio::test(start_paused = true)]
async fn nothing_is_asked_elsewhere() {
    for (to, asked) in [
        ("file:///etc/passwd", 1),
        ("//evil/x", 1),
        ("\\\\evil\\x", 1),
        ("http://h@evil/", 1),
        ("https://h:444/", 1),
        ("http://h/", 1),
        ("http://169.254.169.254/", 1),
        ("http://0x7f000001/", 1),
        ("ftp://h/", 1),
        ("https://other/x", 2),
        ("https://h/b", 2),
    ] {
        let web = Arc::new(Web::default());
        web.redirect("https://h/a", to);
        let careful = fetcher(&web).allow_origin(&url("https://other"));
        let fetched = careful.bytes(&url("https://h/a")).await;
        let refused = matches!(fetched, Err(FetchError::Elsewhere { .. }));
        assert_eq!(refused, asked == 1, "{to}: {fetched:?}");
        assert_eq!(web.sent("accept").len(), asked, "{to}");
    }
    // A link counts like a redirect.
    let web = Arc::new(Web::default());
    let fetched = fetcher(&web).index(&url("https://evil/index")).await;
    assert!(
        matches!(fetched, Err(FetchError::Elsewhere { .. })),
        "{fetched:?}"
    );
    assert!(web.sent("accept").is_empty());
}

/// Who begins without TLS may be led to the same host with it, but not to another port of it.
#[tokio::test(start_paused = true)]
async fn the_same_host_with_tls_is_no_other_place() {
    for (to, allowed) in [("https://h/a", true), ("https://h:8443/a", false)] {
        let web = Arc::new(Web::default());
        web.redirect("http://h/a", to);
        web.serve(to, Page::new(KIND, FEED));
        let transport: Arc<dyn Transport> = Arc::<Web>::clone(&web);
        let fetcher = Fetcher::new(transport, &url("http://h/a")).bearer_token("secret");
        let fetched = fetcher.bytes(&url("http://h/a")).await;
        assert_eq!(fetched.is_ok(), allowed, "{fetched:?}");
        let told = web.sent("authorization");
        assert!(
            told.iter().skip(1).all(|(_, token)| token.is_none()),
            "{told:?}"
        );
    }
}

/// Links in header fields count like those of the document (RFC 8288), which go before them; what a media
/// type says of the encoding counts more than the document (RFC 7303).
#[tokio::test(start_paused = true)]
async fn header_fields_say_more_of_a_document() {
    let web = Arc::new(Web::default());
    let text = FEED.replace("</feed>", "<link rel='current' href='c'/></feed>");
    let page = Page::new("application/atom+xml; charset=\"utf-8\"", &text)
        .with("link", "<1>; rel=prev-archive, <x>; rel=current");
    web.serve("https://h/deep/recent", page);
    let asked = url("https://h/deep/recent");
    let fetched = fetcher(&web)
        .document(&asked, &Validators::default(), false)
        .await;
    let Ok(FetchOutcome::Document { document, .. }) = fetched else {
        panic!("{fetched:?}")
    };
    assert_eq!(
        document.link("prev-archive"),
        Some(&url("https://h/deep/1"))
    );
    assert_eq!(document.link("current"), Some(&url("https://h/deep/c")));
}

/// A relative link is resolved against where the document came from (RFC 3986, 5.1.3).
#[tokio::test(start_paused = true)]
async fn links_are_resolved_where_the_redirect_led() {
    let web = Arc::new(Web::default());
    web.redirect("https://h/short", "https://other/deep/recent");
    let linked = FEED.replace("</feed>", "<link rel='prev-archive' href='1'/></feed>");
    web.serve("https://other/deep/recent", Page::new(KIND, &linked));
    let fetched = fetcher(&web)
        .allow_origin(&url("https://other"))
        .document(&url("https://h/short"), &Validators::default(), false)
        .await;
    let Ok(FetchOutcome::Document { document, .. }) = fetched else {
        panic!("{fetched:?}")
    };
    assert_eq!(
        document.link("prev-archive"),
        Some(&url("https://other/deep/1"))
    );
}

/// RFC 9110, 8.8.2.2: what changed in the second of the answer could change once more in it.
#[tokio::test(start_paused = true)]
async fn a_date_is_a_validator_once_its_second_is_over() {
    let changed = "Sat, 21 Nov 2026 10:00:00 GMT";
    for (date, kept) in [
        (None, false),
        (Some("Sat, 21 Nov 2026 10:00:00 GMT"), false),
        (Some("Sat, 21 Nov 2026 10:00:01 GMT"), true),
    ] {
        let web = Arc::new(Web::default());
        let page = Page::new(KIND, FEED).with("last-modified", changed);
        let page = date
            .into_iter()
            .fold(page, |page, date| page.with("date", date));
        web.serve("https://h/recent", page);
        let asked = url("https://h/recent");
        let fetched = fetcher(&web)
            .document(&asked, &Validators::default(), false)
            .await;
        let Ok(FetchOutcome::Document { validators, .. }) = fetched else {
            panic!("{fetched:?}")
        };
        assert_eq!(validators.last_modified.is_some(), kept, "{date:?}");
    }
}

fn answer(headers: &[(&str, &str)]) -> Answer {
    let headers = headers.iter();
    Answer {
        status: 200,
        headers: headers
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        body: FEED.into(),
    }
}

/// RFC 9110, 5.3: a list may be spread over several fields. RFC 9111, 5.3: `Expires` counts without `max-age`.
#[test]
fn freshness_is_what_all_fields_say_together() {
    const DATE: &str = "Sun, 22 Nov 2026 10:00:00 GMT";
    let seconds = |headers: &[(&str, &str)]| {
        let told = Freshness::of(&answer(headers)).told();
        told.map(|told| told.as_secs())
    };
    assert_eq!(seconds(&[]), None);
    assert_eq!(
        seconds(&[("cache-control", "public"), ("cache-control", "max-age=60")]),
        Some(60)
    );
    let expires = ("expires", "Sun, 22 Nov 2026 10:05:00 GMT");
    assert_eq!(seconds(&[("date", DATE), expires]), Some(300));
    assert_eq!(
        seconds(&[("date", DATE), expires, ("cache-control", "max-age=1")]),
        Some(1)
    );
    assert_eq!(seconds(&[("expires", "0")]), Some(0));
}

/// Apache gives stale copies without an `Age`, and warns.
#[test]
fn a_stale_copy_of_apache_is_past() {
    for (warning, past) in [
        ("110 httpd \"Response is stale\"", true),
        ("199 - \"x\", 111 httpd \"Revalidation failed\"", true),
        ("112 httpd \"Disconnected\"", true),
        ("214 proxy \"Transformation applied\"", false),
    ] {
        let headers = [("cache-control", "max-age=60"), ("warning", warning)];
        assert_eq!(
            Freshness::of(&answer(&headers)).is_past(),
            past,
            "{warning}"
        );
    }
}

/// A date in `Retry-After` is of the server's clock.
#[test]
fn a_pause_is_counted_by_the_servers_clock() {
    let headers = [
        ("date", "Thu, 01 Jan 2015 00:00:00 GMT"),
        ("retry-after", "Thu, 01 Jan 2015 00:02:00 GMT"),
    ];
    assert_eq!(retry_after(&answer(&headers)), Some(Duration::from_mins(2)));
}

/// A 203 was transformed by a proxy and is a valid answer; so is an answer without a media type.
#[tokio::test(start_paused = true)]
async fn answers_of_other_servers_are_read() {
    let web = Arc::new(Web::default());
    web.serve("https://h/changed", Page::new(KIND, FEED).status(203));
    web.serve("https://h/untyped", Page::new("", FEED));
    for name in ["changed", "untyped"] {
        let url = url(&format!("https://h/{name}"));
        let fetched = fetcher(&web)
            .document(&url, &Validators::default(), false)
            .await;
        assert!(
            matches!(fetched, Ok(FetchOutcome::Document { .. })),
            "{fetched:?}"
        );
    }
}

/// The error for a proxy's HTML page shows its title.
#[test]
fn a_page_for_people_is_told_by_its_title() {
    let page = "<html>\r\n<head><title>403 Forbidden</title></head>\r\n<body>…";
    let html = Answer {
        body: page.into(),
        ..answer(&[("content-type", "text/html")])
    };
    assert_eq!(problem_detail(&html), "an HTML page, \"403 Forbidden\"");
}

#[test]
fn a_url_is_shown_without_its_password() {
    for (url, shown) in [
        ("https://a:b@h/x@y", "https://h/x@y"),
        ("https://a:b@c@h:nonsense", "https://h:nonsense"),
        ("http://h", "http://h"),
        ("a:b@h", "h"),
    ] {
        assert_eq!(without_userinfo(url), shown);
    }
}
