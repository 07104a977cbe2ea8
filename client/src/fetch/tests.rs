use crate::consumer::tests::{Page, Web};

use super::*;

const KIND: &str = "application/atom+xml";
const FEED: &str = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id></feed>";

fn url(text: &str) -> Url {
    text.parse().unwrap()
}

fn fetcher(web: &Arc<Web>) -> Fetcher {
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(web);
    Fetcher::new(transport).bearer_token(&url("https://h/short"), "secret")
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
        let fetched = fetcher(&web)
            .document(&url(way[0]), &Validators::default(), false)
            .await;
        let Ok(Fetched::Document { url: from, .. }) = fetched else {
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
    // Elsewhere than HTTP there is nothing to follow.
    web.redirect("https://h/a", "file:///etc/passwd");
    let fetched = fetcher(&web).bytes(&url("https://h/a")).await;
    assert!(
        matches!(fetched, Err(FetchError::Status { status: 302, .. })),
        "{fetched:?}"
    );
}

/// A relative link is resolved against where the document came from (RFC 3986, 5.1.3).
#[tokio::test(start_paused = true)]
async fn links_are_resolved_where_the_redirect_led() {
    let web = Arc::new(Web::default());
    web.redirect("https://h/short", "https://other/deep/recent");
    let linked = FEED.replace("</feed>", "<link rel='prev-archive' href='1'/></feed>");
    web.serve("https://other/deep/recent", Page::new(KIND, &linked));
    let fetched = fetcher(&web)
        .document(&url("https://h/short"), &Validators::default(), false)
        .await;
    let Ok(Fetched::Document { document, .. }) = fetched else {
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
        let Ok(Fetched::Document { validators, .. }) = fetched else {
            panic!("{fetched:?}")
        };
        assert_eq!(validators.last_modified.is_some(), kept, "{date:?}");
    }
}
