//! Pages for people: what they show and to whom, and what no page of another site gets.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    time::{Duration, SystemTime},
};

use simplefeed_core::{reader::Document, timestamp::Timestamp};

use crate::{
    access::Guarded,
    caddy::Caddy,
    event_stream::EventStream,
    harness::{Server, events, free_address, pause, workspace},
    http::{Request, Response},
    nginx::Nginx,
    packaging::Varnish,
    restoration::restored,
};

const FORM: &str = "application/x-www-form-urlencoded";
const PAGE: &str = "text/html;charset=utf-8";

fn page(server: &Server, path: &str) -> String {
    let answer = shown(server, path);
    assert_eq!(answer.status, 200, "{path}");
    checked(path, &answer)
}

/// Returns the answer to a request, or that which its redirect to a part of the same page leads to.
fn shown(server: &Server, path: &str) -> Response {
    let answer = server.get(path);
    if answer.status != 303 {
        return answer;
    }
    let (way, query) = (path.split('?').next().unwrap(), answer.header("location"));
    assert!(query.starts_with('?'), "{path}: {query}");
    server.get(&format!("{way}{query}"))
}

/// Checks what each page says to browsers, and returns its text.
fn checked(path: &str, answer: &Response) -> String {
    assert_eq!(answer.header("content-type"), PAGE, "{path}");
    assert_eq!(answer.header("cache-control"), "no-store", "{path}");
    assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
    let policy = answer.header("content-security-policy");
    assert!(
        policy.starts_with("default-src 'none';"),
        "{path}: {policy}"
    );
    assert!(!policy.contains("unsafe"), "{path}: {policy}");
    // Scripts of other sites read no page.
    assert!(
        answer.maybe("access-control-allow-origin").is_none(),
        "{path}"
    );
    answer.text()
}

/// Links of a page to pages.
fn links(text: &str) -> Vec<String> {
    let parts = text.split("href=\"").skip(1);
    let links = parts.filter_map(|part| part.split('"').next());
    let links = links.filter(|link| *link != "data:,");
    links
        .map(|link| link.replace("&amp;", "&").replace("&#38;", "&"))
        .collect()
}

/// Goal: whoever opens the server finds each feed, each entry and each document by its links.
#[test]
fn each_page_is_found_by_links() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "10"]);
    for (path, location) in [("/", "ui/"), ("/ui", "ui/")] {
        let answer = server.get(path);
        assert_eq!(
            (answer.status, answer.header("location")),
            (307, location),
            "{path}"
        );
    }
    let empty = page(&server, "/ui/");
    assert!(empty.contains("There are no feeds yet"), "{empty}");
    server.publish("orders", &events(95));
    server.publish("orders-eu", &events(1));
    let made = Request::put("/feeds/all", r#"{"kind":"timeline","title":"All of them"}"#);
    assert_eq!(server.send(&made).status, 201);
    let follow = Request::put("/feeds/all/following/orders", r#"{"backfill":5}"#);
    assert!(server.send(&follow).status < 300);

    // The way of a person: from the list to the first entry, and back.
    let mut seen = vec![];
    let mut left = vec!["/ui/".to_owned()];
    while let Some(path) = left.pop() {
        if seen.contains(&path) {
            continue;
        }
        let answer = shown(&server, &path);
        assert_eq!(answer.status, 200, "{path}");
        seen.push(path.clone());
        if answer.header("content-type") != PAGE {
            continue;
        }
        let base = url::Url::parse(&format!("http://h{path}")).unwrap();
        for link in links(&checked(&path, &answer)) {
            let url = base.join(&link).unwrap();
            // Links of entries lead elsewhere.
            if url.host_str() != Some("h") {
                assert!(path.starts_with("/ui/feeds/"), "{path} links to {link}");
                continue;
            }
            let query = url
                .query()
                .map(|query| format!("?{query}"))
                .unwrap_or_default();
            left.push(format!("{}{query}", url.path()));
        }
    }
    for wanted in [
        "/ui/feeds/orders/0",
        "/ui/feeds/orders/94",
        "/feeds/orders/1.atom",
    ] {
        assert!(
            seen.iter().any(|path| path == wanted),
            "{wanted} is not linked"
        );
    }

    let found = page(&server, "/ui/?q=ALL+of");
    assert!(
        found.contains("feeds/all\"") && !found.contains("feeds/orders\""),
        "{found}"
    );
    let timeline = page(&server, "/ui/feeds/all");
    assert!(
        timeline.contains("Follows") && timeline.contains("feeds/orders\""),
        "{timeline}"
    );
    let followed = page(&server, "/ui/feeds/orders");
    assert!(followed.contains("Followed by"), "{followed}");
}

/// Goal: a person gets to a position, a time and an id; what is not there is said, and near names are shown.
#[test]
fn a_person_goes_to_a_place() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("orders", &events(60));
    let first = server.get("/feeds/orders/entries/7.atom").text();
    let (_, rest) = first.split_once("<id>").unwrap();
    // The feed's id comes first.
    let id = rest
        .split("<id>")
        .last()
        .unwrap()
        .split("</id>")
        .next()
        .unwrap()
        .to_owned();
    for (go, around) in [
        ("7", "?before=19"),
        (&id, "?before=19"),
        ("2020-01-01", "?before=12"),
    ] {
        let go: String = url::form_urlencoded::byte_serialize(go.as_bytes()).collect();
        let answer = server.get(&format!("/ui/feeds/orders?go={go}"));
        assert_eq!(
            (answer.status, answer.header("location")),
            (303, around),
            "{go}"
        );
    }
    // In the middle, in a feed and in a timeline of it.
    pause(Duration::from_millis(1_500));
    let middle = server.get("/feeds/orders/entries/30.atom").text();
    assert!(middle.contains("<entry"));
    let before = Timestamp::parse(&now()).unwrap();
    pause(Duration::from_millis(10));
    server.publish("orders", &events_from(60, 20));
    let made = Request::put("/feeds/all", r#"{"kind":"timeline"}"#);
    assert_eq!(server.send(&made).status, 201);
    let follow = Request::put("/feeds/all/following/orders", "{}");
    assert!(server.send(&follow).status < 300);
    server.publish("orders", &events_from(80, 10));
    pause(Duration::from_millis(10));
    let between = now();
    pause(Duration::from_millis(10));
    server.publish("orders", &events_from(90, 10));
    for (feed, time, around) in [
        ("orders", before.to_string(), "?before=72"),
        ("orders", between.clone(), "?before=100"),
        ("all", between, "?before=20"),
        ("all", "2020-01-01".into(), "?before=12"),
    ] {
        let go: String = url::form_urlencoded::byte_serialize(time.as_bytes()).collect();
        let answer = server.get(&format!("/ui/feeds/{feed}?go={go}"));
        assert_eq!(
            (answer.status, answer.header("location")),
            (303, around),
            "{feed} {time}"
        );
    }
    let refused = page(&server, "/ui/feeds/all?go=urn:x");
    assert!(refused.contains("In a timeline"), "{refused}");
    for (go, said) in [
        ("100", "no position 100 yet"),
        ("2100-01-01", "no entry at 2100"),
        ("urn:none", "urn:none is no position"),
        ("%3Cb%3E", "&#60;b&#62; is no position"),
    ] {
        let page = page(&server, &format!("/ui/feeds/orders?go={go}"));
        assert!(page.contains(said), "{go}: {page}");
    }
    page(&server, "/ui/");
    let answer = server.get("/ui/feeds/ordres");
    assert_eq!(answer.status, 404);
    let text = checked("404", &answer);
    assert!(
        text.contains("Did you mean <a href=\"../feeds/orders\""),
        "{text}"
    );
    assert_eq!(server.get("/ui/feeds/orders/100").status, 404);
    for before in ["0", "1", "99999999999999999999", "-1", "x"] {
        page(
            &server,
            &format!("/ui/feeds/orders/documents?before={before}"),
        );
        page(&server, &format!("/ui/feeds/orders?before={before}"));
    }
    // For ever: the link of an entry, which leads to its page.
    let entry = server.get("/feeds/orders/entries/7");
    assert_eq!(
        (entry.status, entry.header("location")),
        (307, "../../../ui/feeds/orders/7")
    );
}

fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let micros = i64::try_from(since.unwrap().as_micros()).unwrap();
    Timestamp::from_micros(micros).to_string()
}

fn events_from(first: usize, count: usize) -> String {
    let lines = (first..first + count).map(|number| format!("{{\"id\":\"urn:n:{number}\"}}\n"));
    lines.collect()
}

/// Goal: behind a restoration, a page shows the entry that its URL names, and no other one.
#[test]
fn pages_tell_epochs_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = restored(folder.path());
    let mut linked = 0;
    let mut left = vec!["/ui/feeds/a".to_owned()];
    let mut seen = vec![];
    while let Some(path) = left.pop() {
        if seen.contains(&path) {
            continue;
        }
        seen.push(path.clone());
        let text = page(&server, &path);
        let base = url::Url::parse(&format!("http://h{path}")).unwrap();
        for link in links(&text) {
            let path = base.join(&link).unwrap();
            if path.path().starts_with("/ui/feeds/a") {
                let query = path.query().map(|query| format!("?{query}"));
                left.push(format!("{}{}", path.path(), query.unwrap_or_default()));
            }
            if path.path().starts_with("/feeds/a/entries/") {
                let is_document = path.path().contains(".atom");
                let expected = if is_document { 200 } else { 307 };
                assert_eq!(server.get(path.path()).status, expected, "{path}");
                linked += 1;
            }
        }
    }
    assert!(linked > 3, "{linked}");
    // An entry of the second epoch is not the first epoch's at the same position.
    let of_second = seen.iter().find_map(|path| {
        let number = path.strip_prefix("/ui/feeds/a/")?;
        number
            .split_once('-')
            .map(|(position, _)| position.to_owned())
    });
    let position = of_second.expect("there is an entry of the second epoch");
    assert_eq!(server.get(&format!("/ui/feeds/a/{position}")).status, 404);
    let about = page(&server, "/ui/server");
    assert!(
        about.contains("Restored") && about.contains("ago)") || about.contains("(now)"),
        "{about}"
    );
}

/// Goal: a server without pages has none, and links of entries lead to their documents.
#[test]
fn pages_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--ui", "off"]);
    server.publish("orders", &events(1));
    for path in ["/", "/ui", "/ui/", "/ui/feeds/orders", "/ui/sign-in"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(
            answer.header("content-type"),
            "application/problem+json",
            "{path}"
        );
    }
    let entry = server.get("/feeds/orders/entries/0");
    assert_eq!((entry.status, entry.header("location")), (307, "0.atom"));
}

pub(crate) fn sign_in(server: &Server, token: &str, origin: Option<&str>) -> Response {
    let mut request = Request::post("/ui/sign-in", FORM, format!("token={token}"));
    if let Some(origin) = origin {
        request = request.header("Origin", origin);
    }
    server.send(&request)
}

/// Goal: a cookie gives the rights of its token, for pages and their streams, and for nothing else.
#[test]
fn a_reader_signs_in() {
    let guarded = Guarded::start(&[]);
    let server = &guarded.server;
    let own = format!("http://{}", server.address);
    for path in [
        "/ui/feeds/shut",
        "/ui/feeds/shut/0",
        "/ui/feeds/shut/documents",
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert!(!page(server, "/ui/").contains("shut"));
    assert!(!page(server, "/ui/?q=shut").contains("feeds/shut"));
    assert_eq!(sign_in(server, "sft_wrong", Some(&own)).status, 403);
    assert_eq!(sign_in(server, "", Some(&own)).status, 403);

    let answer = sign_in(server, &guarded.reader, Some(&own));
    assert_eq!((answer.status, answer.header("location")), (303, "./"));
    let cookie = answer.header("set-cookie").to_owned();
    for part in ["HttpOnly", "SameSite=Lax", "Secure"] {
        // Its public URL is one of https.
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let with = |request: Request| server.send(&request.header("Cookie", &cookie));
    for path in [
        "/ui/feeds/shut",
        "/ui/feeds/shut/0",
        "/ui/feeds/shut/documents",
    ] {
        assert_eq!(with(Request::get(path)).status, 200, "{path}");
    }
    assert!(with(Request::get("/ui/")).text().contains("feeds/shut\""));
    // The cookie counts for nothing but pages and streams.
    for path in [
        "/feeds/shut/recent.atom",
        "/feeds/shut/1.atom",
        "/feeds/shut/page.json",
    ] {
        assert_eq!(with(Request::get(path)).status, 404, "{path}");
    }
    let answer = with(Request::get("/feeds/shut/events").header("Last-Event-ID", "end"));
    assert_eq!(answer.status, 204);
    assert_eq!(with(Request::get("/ui/server")).status, 403);
    // No form of another site publishes, or signs anybody in or out.
    let admin = sign_in(server, &guarded.admin, Some(&own));
    let admin = admin
        .header("set-cookie")
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let server_page = Request::get("/ui/server").header("Cookie", &admin);
    assert_eq!(server.send(&server_page).status, 200);
    for path in ["/feeds/shut", "/feeds/new"] {
        let post =
            Request::post(path, "application/json", r#"{"title":"x"}"#).header("Cookie", &admin);
        assert_eq!(server.send(&post).status, 401, "{path}");
    }
    for site in ["cross-site", "same-site", "none"] {
        let form = format!("token={}", guarded.reader);
        let forged = Request::post("/ui/sign-in", FORM, form)
            .header("Origin", &own)
            .header("Sec-Fetch-Site", site);
        assert_eq!(server.send(&forged).status, 403, "{site}");
    }
    let large = Request::post(
        "/ui/sign-in",
        FORM,
        "token=".to_owned() + &"x".repeat(5_000),
    );
    assert_eq!(server.send(&large.header("Origin", &own)).status, 413);
    let denied = server.get("/ui/server");
    assert_eq!(denied.status, 401);
    assert!(denied.header("www-authenticate").starts_with("Bearer"));
    for origin in [None, Some("https://evil.example"), Some("null")] {
        assert_eq!(
            sign_in(server, &guarded.reader, origin).status,
            403,
            "{origin:?}"
        );
        let mut out = Request::post("/ui/sign-out", FORM, "").header("Cookie", &cookie);
        if let Some(origin) = origin {
            out = out.header("Origin", origin);
        }
        assert_eq!(server.send(&out).status, 403, "{origin:?}");
    }
    let out = Request::post("/ui/sign-out", FORM, "").header("Origin", &own);
    let answer = server.send(&out);
    assert_eq!(answer.status, 303);
    assert!(answer.header("set-cookie").contains("Max-Age=0"));
}

/// Goal: a name that somebody else leads to this server gets nothing of one without tokens (DNS rebinding).
#[test]
fn no_name_of_others_reaches_an_open_server() {
    let folder = tempfile::tempdir().unwrap();
    let publishing = free_address();
    let more = [
        "--public-url",
        "http://feeds.example.org/",
        "--publish-listen",
        &publishing,
    ];
    let server = Server::start(folder.path(), &more);
    let publish = Request::post("/feeds/orders", "application/x-ndjson", events(1));
    assert_eq!(publish.send(&publishing).unwrap().status, 201);
    let send = |request: Request, host: &str| {
        let request = request.without_host().header("Host", host);
        server.send(&request).status
    };
    let port = server.address.rsplit(':').next().unwrap().to_owned();
    for own in [
        server.address.as_str(),
        "localhost",
        "simplefeed",
        "simplefeed:8080",
        "[::1]:80",
        "feeds.example.org",
        "FEEDS.example.org.:80",
        "a.localhost",
    ] {
        assert_eq!(
            send(Request::get("/feeds/orders/recent.atom"), own),
            200,
            "{own}"
        );
        assert_eq!(send(Request::get("/ui/"), own), 200, "{own}");
    }
    for evil in [
        "evil.example",
        "feeds.example.org.evil.example",
        "127.0.0.1.evil.example",
    ] {
        let evil = format!("{evil}:{port}");
        // The second one would be a ready answer.
        for path in [
            "/feeds/orders/recent.atom",
            "/feeds/orders/recent.atom",
            "/ui/",
            "/feeds",
        ] {
            assert_eq!(send(Request::get(path), &evil), 421, "{path} {evil}");
        }
        let post = Request::post("/feeds/orders", "application/json", r#"{"title":"x"}"#);
        let post = post.without_host().header("Host", &evil);
        assert_eq!(post.send(&publishing).unwrap().status, 421, "{evil}");
    }
    assert_eq!(server.get("/feeds/orders/entries/1.atom").status, 404);
    // Tokens protect by themselves.
    let guarded = Guarded::start(&[]);
    let request = Request::get("/feeds")
        .without_host()
        .header("Host", "other.example");
    assert_eq!(guarded.server.send(&request).status, 200);
}

/// Checks that pages and signing in pass a proxy, and that it keeps nothing of them.
fn check_proxy(guarded: &Guarded, address: &str, proxy: &str) {
    let send = |request: Request| request.send(address).unwrap();
    // Twice: a copy would be shown to the next reader.
    for _ in 0..2 {
        let found = send(Request::get("/ui/?q=sh"));
        assert_eq!(found.status, 200, "{proxy}: {}", found.text());
        assert!(!found.text().contains("feeds/shut"), "{proxy}");
        assert!(
            found.text().contains("value=\"sh\""),
            "{proxy} drops the query"
        );
    }
    let form = Request::post("/ui/sign-in", FORM, format!("token={}", guarded.reader));
    let own = "https://feeds.example.org";
    let signed_in = send(form.header("Origin", own));
    assert_eq!(signed_in.status, 303, "{proxy}: {}", signed_in.text());
    let cookie = signed_in.header("set-cookie").split(';').next().unwrap();
    for path in ["/ui/feeds/shut", "/ui/?q=sh"] {
        let page = send(Request::get(path).header("Cookie", cookie));
        assert!(page.text().contains("feeds/shut"), "{proxy}: {path}");
    }
    assert_eq!(send(Request::get("/ui/feeds/shut")).status, 404, "{proxy}");
    let foreign = Request::post("/ui/sign-out", FORM, "").header("Origin", "https://evil.example");
    assert_eq!(send(foreign).status, 403, "{proxy}");
    // A reader who has signed in sees the closed feed's stream, and no other reader does.
    let events = "/feeds/shut/events?since=oldest";
    let with = [("Cookie", cookie)];
    let mut stream = EventStream::open(address, events, &with).unwrap();
    assert_eq!(stream.take(1).len(), 1, "{proxy}");
    assert_eq!(send(Request::get(events)).status, 404, "{proxy}");
    assert_eq!(send(Request::get("/")).header("location"), "ui/", "{proxy}");
}

#[test]
#[ignore = "needs nginx"]
fn pages_pass_nginx() {
    for config in ["cache.conf", "archives.conf"] {
        let guarded = Guarded::start(&[]);
        let www = guarded.data().join("www");
        let nginx = Nginx::start(config, guarded.folder.path(), &guarded.server.address, &www);
        check_proxy(&guarded, &nginx.address, config);
    }
}

#[test]
#[ignore = "needs varnishd"]
fn pages_pass_varnish() {
    let guarded = Guarded::start(&[]);
    let folder = guarded.folder.path();
    // Its worker is another user.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let varnish = Varnish::start(folder, &guarded.server.address);
    check_proxy(&guarded, &varnish.address, "varnish");
}

#[test]
#[ignore = "needs caddy"]
fn pages_pass_caddy() {
    let guarded = Guarded::start(&[]);
    let www = guarded.data().join("www");
    let caddy = Caddy::start(guarded.folder.path(), &guarded.server.address, &www);
    check_proxy(&guarded, &caddy.address, "caddy");
}

/// Texts that would run a script, were they not made safe.
pub(crate) fn vectors() -> Vec<String> {
    let mut vectors = vec![];
    let scripts = ["alert(1)", "top.hit=1", "fetch('//evil.example')"];
    let forms = [
        "<script>{}</script>",
        "<SCRIPT SRC=//evil.example/x.js></SCRIPT><!--{}-->",
        "\"><script>{}</script>",
        "'><script>{}</script>",
        "</title><script>{}</script>",
        "</textarea><script>{}</script>",
        "</pre><script>{}</script>",
        "--><script>{}</script>",
        "]]><script>{}</script>",
        "<img src=x onerror={}>",
        "<img src=//evil.example/x.png onload={}>",
        "<svg onload={}>",
        "<svg><script>{}</script></svg>",
        "<svg><a xlink:href=\"javascript:{}\"><text>x</text></a></svg>",
        "<math><mtext></form><form><mglyph><style></math><img src onerror={}>",
        "<body onload={}>",
        "<iframe src=\"javascript:{}\"></iframe>",
        "<iframe srcdoc=\"<script>{}</script>\"></iframe>",
        "<object data=\"javascript:{}\"></object>",
        "<embed src=\"javascript:{}\">",
        "<a href=\"javascript:{}\">x</a>",
        "<a href=\" &#106;avascript:{}\">x</a>",
        "<a href=\"data:text/html,<script>{}</script>\">x</a>",
        "<form action=\"javascript:{}\"><button>x</button></form>",
        "<input autofocus onfocus={}>",
        "<details open ontoggle={}>",
        "<video><source onerror={}></video>",
        "<audio src=x onerror={}>",
        "<marquee onstart={}>",
        "<meta http-equiv=refresh content=\"0;url=javascript:{}\">",
        "<link rel=stylesheet href=//evil.example/x.css><!--{}-->",
        "<base href=//evil.example/><!--{}-->",
        "<style>@import '//evil.example/x.css';/*{}*/</style>",
        "<div style=\"background:url(javascript:{})\">",
        "<template><script>{}</script></template>",
        "<noscript><p title=\"</noscript><script>{}</script>\">",
    ];
    for script in scripts {
        for form in forms {
            vectors.push(form.replace("{}", script));
        }
    }
    vectors
}

/// Publishes entries with each text in every place, to the feed `orders`. Returns how many.
pub(crate) fn publish_vectors(server: &Server, vectors: &[String]) -> usize {
    let mut lines = String::new();
    for (number, vector) in vectors.iter().enumerate() {
        for kind in ["text", "html", "xhtml", "text/json"] {
            let content = match kind {
                // Markup that is no XML is refused, so it stands as text within.
                "xhtml" => {
                    let text = escaped(vector);
                    format!("<div xmlns=\"http://www.w3.org/1999/xhtml\">{text}</div>")
                }
                _ => vector.clone(),
            };
            let event = serde_json::json!({
                "id": format!("urn:x:{number}:{}", kind.replace('/', "-")),
                "title": vector,
                "summary": vector,
                "author": {"name": vector, "email": vector, "uri": "javascript:top.hit=1"},
                "links": [{"href": "javascript:top.hit=1"}, {"href": "JavaScript:alert(1)", "rel": "related"},
                    {"href": "data:text/html,<script>alert(1)</script>", "rel": "via"}],
                "categories": [vector],
                "type": if kind == "text/json" { "application/json" } else { kind },
                "content": if kind == "text/json" { serde_json::json!({vector: vector}) } else { content.into() },
            });
            let _written = writeln!(lines, "{event}");
        }
    }
    let answer = server.publish("orders", &lines);
    assert_eq!(answer.status, 201, "{}", answer.text());
    lines.lines().count()
}

/// Goal: whatever a publisher puts where, nothing of it becomes markup of a page.
#[test]
fn no_text_becomes_markup() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let vectors = vectors();
    assert!(vectors.len() >= 100);
    let count = publish_vectors(&server, &vectors);
    for position in 0..count {
        let path = format!("/ui/feeds/orders/{position}");
        safe(&path, &page(&server, &path));
    }
    for before in (25..count).step_by(25) {
        let path = format!("/ui/feeds/orders?before={before}");
        safe(&path, &page(&server, &path));
    }
    for vector in &vectors {
        let text: String = url::form_urlencoded::byte_serialize(vector.as_bytes()).collect();
        for path in [
            format!("/ui/?q={text}"),
            format!("/ui/feeds/orders?go={text}"),
        ] {
            safe(&path, &page(&server, &path));
        }
        let answer = server.get(&format!("/ui/feeds/{text}"));
        safe(vector, &checked(vector, &answer));
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Tags of markup, in lower case.
fn tags(text: &str) -> Vec<String> {
    let parts = text.split('<').skip(1);
    let tags = parts.filter_map(|part| part.split('>').next());
    tags.map(str::to_ascii_lowercase).collect()
}

/// Returns whether a tag handles no event and leads to no script. Attributes have quotes.
fn is_inert(tag: &str) -> bool {
    let outside: String = tag.split('"').step_by(2).collect();
    let mut values = tag.split('"').skip(1).step_by(2);
    let runs = |value: &str| value.trim().starts_with("javascript:") || value.starts_with("data:t");
    !outside.contains(" on") && !outside.contains("/on") && !values.any(runs)
}

/// Checks that a page has no markup but that of its template and what was cleaned.
fn safe(path: &str, text: &str) {
    for tag in tags(text) {
        let name: String = tag
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        let is_ours = match name.as_str() {
            "script" => tag.starts_with("script src=\"") && tag.contains("script-"),
            "iframe" => tag.starts_with("iframe sandbox=\"allow-popups allow-popups-to-escape-sandbox\" title=\"content\" srcdoc=\""),
            "link" => !tag.contains("evil"),
            // A plot, which is made of numbers and times.
            "svg" if tag.starts_with("svg viewbox=\"0 0 ") || tag.starts_with("svg class=\"spark\"") => true,
            "svg" | "img" | "object" | "embed" | "style" | "base" | "video" | "math" => false,
            _ => true,
        };
        assert!(is_ours && is_inert(&tag), "{path}: <{tag}>");
    }
    for frame in text.split("srcdoc=\"").skip(1) {
        let inner = frame.split('"').next().unwrap_or_default();
        let inner = inner.replace("&lt;", "<").replace("&gt;", ">");
        let inner = inner
            .replace("&quot;", "\"")
            .replace("&#39;", "'")
            .replace("&amp;", "&");
        for tag in tags(&inner) {
            let name = tag.split([' ', '/']).find(|part| !part.is_empty());
            let is_kept = name.is_some_and(|name| ["div", "p", "a", "details"].contains(&name));
            assert!(is_kept && is_inert(&tag), "{path}: <{tag}> in {inner}");
        }
    }
}

/// Goal: whoever reads an entry anywhere finds its page, for ever; entries of others, and old feeds, stay as they are.
#[test]
fn entries_lead_to_their_page() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &[]);
    let lines: String = ["0", "1", "2"]
        .map(|id| format!("{{\"id\":\"urn:{id}\"}}\n"))
        .concat();
    server.publish("a", &lines);
    let link = |feed: &str, position: &str, server: &Server| {
        format!(
            "<link rel=\"alternate\" type=\"text/html\" href=\"{}\"/>",
            server.url(&format!("/feeds/{feed}/entries/{position}"))
        )
    };
    let document = server.get("/feeds/a/recent.atom").text();
    for position in ["0", "1", "2"] {
        assert!(
            document.contains(&link("a", position, &server)),
            "{document}"
        );
        let answer = server.get(&format!("/feeds/a/entries/{position}"));
        assert_eq!(
            (answer.status, answer.header("location")),
            (307, format!("../../../ui/feeds/a/{position}").as_str())
        );
    }
    // A repeat is one, as it was sent and as it is stored.
    let again = server.publish("a", &lines).text();
    assert_eq!(again.matches("\"duplicate\"").count(), 3, "{again}");
    let stored = server.get("/feeds/a/entries/1.atom").text();
    let stored = stored
        .split_once("?>")
        .map_or(stored.as_str(), |(_, entry)| entry);
    let sent = server.send(&Request::post(
        "/feeds/a",
        "application/atom+xml",
        stored.trim(),
    ));
    assert!(sent.text().contains("\"duplicate\""), "{}", sent.text());

    // A publisher's own link stays the only one, and each feed may do without.
    let own = r#"{"id":"urn:own","links":[{"href":"https://example.org/7"}]}"#;
    assert_eq!(server.publish("a", own).status, 201);
    assert_eq!(
        server
            .get("/feeds/a/entries/3.atom")
            .text()
            .matches("alternate")
            .count(),
        0
    );
    let without = Request::put("/feeds/b", r#"{"alternate_links":false}"#);
    let answer = server.send(&without);
    assert!(
        answer.text().contains("\"alternate_links\":false"),
        "{}",
        answer.text()
    );
    server.publish("b", r#"{"id":"urn:0"}"#);
    assert!(
        !server
            .get("/feeds/b/recent.atom")
            .text()
            .contains("alternate")
    );
    assert_eq!(
        server
            .send(&Request::put("/feeds/b", r#"{"alternate_links":true}"#))
            .status,
        200
    );
    server.publish("b", r#"{"id":"urn:later"}"#);
    assert!(
        server
            .get("/feeds/b/recent.atom")
            .text()
            .contains(&link("b", "1", &server))
    );
    let timeline = Request::put("/feeds/t", r#"{"kind":"timeline","alternate_links":true}"#);
    assert_eq!(server.send(&timeline).status, 422);
    // Prefixed Atom gets a prefixed link.
    let prefixed = "<a:entry xmlns:a='http://www.w3.org/2005/Atom'><a:id>urn:p</a:id></a:entry>";
    assert_eq!(
        server
            .send(&Request::post("/feeds/b", "application/atom+xml", prefixed))
            .status,
        201
    );
    assert!(
        server
            .get("/feeds/b/entries/2.atom")
            .text()
            .contains("<a:link rel=\"alternate\"")
    );

    // Behind a restoration, the page has the epoch in its URL.
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = restored(folder.path());
    let document = server.get("/feeds/a/recent.atom").text();
    let mut urls = document.split("type=\"text/html\" href=\"").skip(1);
    let newest = urls.next().unwrap().split('"').next().unwrap();
    let path = newest.split_once("/feeds/").unwrap().1;
    assert!(path.starts_with("a/entries/11-"), "{path}");
    let answer = server.get(&format!("/feeds/{path}"));
    let page = path.replace("entries/", "");
    let location = format!("../../../ui/feeds/{page}");
    assert_eq!(
        (answer.status, answer.header("location")),
        (307, location.as_str())
    );
    assert_eq!(server.get(&format!("/ui/feeds/{page}")).status, 200);
}

/// Goal: the document in the specification is what it says.
#[test]
fn the_sample_document_is_one() {
    let protocol = fs::read_to_string(workspace().join("docs/protocol.md")).unwrap();
    let (_, rest) = protocol.split_once("```xml\n<?xml").unwrap();
    let (sample, _) = rest.split_once("\n```").unwrap();
    let url = "https://feeds.example.org/feeds/orders/2.atom"
        .parse()
        .unwrap();
    let document = Document::read(format!("<?xml{sample}").into(), &url).unwrap();
    assert!(document.archived && document.len() == 1);
    assert_eq!(
        document.link("prev-archive").unwrap().path(),
        "/feeds/orders/1.atom"
    );
    assert_eq!(document.history.map(|(first, _)| first.0), Some(1));
}
