//! Every route through every proxy: the answer of a proxy equals that of the server to the same request.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use flate2::read::GzDecoder;
use hyper::Method;
use regex_lite::Regex;
use simplefeed_http::endpoint::{Endpoint, Query};
use simplefeed_server::endpoints::Site;
use url::Url;

use crate::{
    access::{Guarded, bearing, paths},
    harness::{pause, wait_for},
    http::{Request, Response},
    nginx::{Counter, replace},
    pages::sign_in,
    proxies::{Kind, Proxy},
    proxy::stubborn,
};

/// Queries, one of which changes the answer of each endpoint that has a query. A new one may need another.
const QUERIES: [&str; 7] = [
    "limit=1",
    "seconds=300",
    "by=day",
    "after=line",
    "after=open",
    "q=line",
    "before=2",
];

/// Labels of endpoints whose answers change with the clock, and so between two requests.
const BY_CLOCK: [&str; 3] = ["sup", "rates", "ui"];

/// Header fields of a connection, or of the proxy itself. `Last-Modified` comes a second late to what grows.
const PASSING: [&str; 17] = [
    "accept-ranges",
    "age",
    "cache-status",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "last-modified",
    "server",
    "transfer-encoding",
    "via",
    "warning",
    // For nginx, which keeps it.
    "x-accel-buffering",
    "x-cache",
    "x-cache-lookup",
    "x-varnish",
    "alt-svc",
];

/// A path, and the queries to ask it with.
struct Route {
    path: String,
    endpoint: &'static Endpoint<Site>,
    queries: BTreeSet<&'static str>,
}

impl Route {
    fn is_read(&self) -> bool {
        self.endpoint.verb(&Method::GET).is_some()
    }

    fn is_short_url(&self) -> bool {
        self.endpoint.path == "/feeds/{feed}"
    }

    fn is_by_clock(&self) -> bool {
        BY_CLOCK.contains(&self.endpoint.label)
    }
}

/// Sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Nobody,
    Holder,
    /// A browser with the cookie of a holder.
    SignedIn,
}

/// Parts of an answer that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    status: u16,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Seen {
    fn new(answer: &Response, route: &Route) -> Self {
        let mut fields = BTreeMap::<String, String>::new();
        for (name, value) in &answer.headers {
            if PASSING.contains(&name.as_str()) {
                continue;
            }
            let all = fields.entry(name.clone()).or_default();
            if !all.is_empty() {
                all.push_str(", ");
            }
            all.push_str(value);
        }
        // Their order, and how often a name stands there, means nothing.
        for name in ["cache-control", "vary"] {
            if let Some(value) = fields.get_mut(name) {
                let parts = value
                    .split(',')
                    .map(|part| part.trim().to_ascii_lowercase());
                let parts: BTreeSet<String> = parts.collect();
                *value = parts.into_iter().collect::<Vec<_>>().join(", ");
            }
        }
        if let Some(tag) = fields.get_mut("etag") {
            *tag = tag.trim_start_matches("W/").to_owned();
        }
        let mut body = content(answer);
        if route.is_by_clock() {
            let masked = |text: &str| {
                let instant = r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d{10,}|\d+ (s|min|ms|MiB|KiB|open)\b";
                let instant = Regex::new(instant).unwrap();
                instant.replace_all(text, "#").into_owned()
            };
            fields.remove("etag");
            for value in fields.values_mut() {
                *value = masked(value);
            }
            body = masked(&String::from_utf8_lossy(&body)).into_bytes();
        }
        Self {
            status: answer.status,
            fields,
            body,
        }
    }

    /// Leaves out what a kind of proxy does not pass on as it is.
    fn passed_by(mut self, kind: Kind, is_file: bool) -> Self {
        let is_packed = self.fields.contains_key("content-encoding");
        if kind == Kind::Varnish && !is_packed {
            // It keeps the compressed form only, and its tag goes with what it unpacks.
            self.fields.remove("etag");
            self.fields.remove("repr-digest");
        }
        if is_file {
            for name in ["etag", "repr-digest", "x-sup-id", "link"] {
                self.fields.remove(name);
            }
        }
        self
    }

    /// Whether all fields of `other` are here, too.
    fn has_fields_of(&self, other: &Self) -> bool {
        let mut fields = other.fields.iter();
        fields.all(|(name, value)| self.fields.get(name) == Some(value))
    }
}

/// Returns the body of an answer without its codings. Of a stream, only the head counts.
pub(crate) fn content(answer: &Response) -> Vec<u8> {
    let has = |name: &str, value: &str| answer.maybe(name).is_some_and(|all| all.contains(value));
    if has("content-type", "text/event-stream") {
        return vec![];
    }
    let mut body = answer.body.clone();
    if has("transfer-encoding", "chunked") {
        body = without_chunks(&body);
    }
    if has("content-encoding", "gzip") && !body.is_empty() {
        let mut plain = vec![];
        let mut decoder = GzDecoder::new(&body[..]);
        std::io::Read::read_to_end(&mut decoder, &mut plain).unwrap();
        return plain;
    }
    body
}

fn without_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = vec![];
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[end + 2..][..size]);
        rest = &rest[end + 2 + size + 2..];
    }
    body
}

/// URL, coding and asker.
type Question = (String, &'static str, Who);

/// A server with an open feed, a closed one and a timeline, and all of its routes.
struct Model {
    guarded: Guarded,
    /// Of a reader of the closed feed.
    cookie: String,
    routes: Vec<Route>,
    /// Answers of the server itself.
    answers: RefCell<BTreeMap<Question, Vec<Seen>>>,
}

impl Model {
    fn start() -> Self {
        // Copies of what grows are kept until the test is over, so that the second answer is one of them.
        let guarded = Guarded::start(&["--recent-max-age", "3600"]);
        let line = Request::put(
            "/feeds/line",
            "{\"kind\":\"timeline\",\"following\":[\"open\"]}",
        );
        assert_eq!(guarded.ask(line, Some(&guarded.admin)).status, 201);
        // A timeline has what came since it follows.
        let event = Request::post("/feeds/open", "application/json", "{\"id\":\"urn:new\"}");
        assert_eq!(guarded.ask(event, Some(&guarded.admin)).status, 201);
        wait_for("the timeline has no entries", || {
            let recent = guarded.server.get("/feeds/line/recent.atom").text();
            recent.contains("urn:new").then_some(())
        });
        let own = format!("http://{}", guarded.server.address);
        let signed_in = sign_in(&guarded.server, &guarded.reader, Some(&own));
        let cookie = signed_in.header("set-cookie").split(';').next().unwrap();
        let mut model = Self {
            cookie: cookie.to_owned(),
            routes: vec![],
            answers: RefCell::default(),
            guarded,
        };
        model.routes = model.find_routes();
        model
    }

    /// Returns every route of the server, with a query that counts where one does, and one that does not.
    fn find_routes(&self) -> Vec<Route> {
        let mut routes = BTreeMap::new();
        let mut changed = BTreeMap::<&str, bool>::new();
        for (path, endpoint) in ["open", "shut", "line"].into_iter().flat_map(paths) {
            let mut route = Route {
                path: path.clone(),
                endpoint,
                queries: BTreeSet::from(["", "x=1"]),
            };
            if endpoint.query == Query::Wait {
                route.queries.insert("wait=1");
            }
            // Where a stream begins is not seen in its head.
            if endpoint.label == "events" {
                route.queries.insert("since=oldest");
            } else if endpoint.query == Query::Named {
                let plain = self.direct(&route, "", "identity", Who::Holder);
                for query in QUERIES {
                    let asked = self.direct(&route, query, "identity", Who::Holder);
                    if asked.status == 200 && asked.body != plain.body {
                        route.queries.insert(query);
                    }
                }
                *changed.entry(endpoint.path).or_default() |= route.queries.len() > 2;
            }
            routes.insert(path, route);
        }
        for (path, is_changed) in changed {
            assert!(is_changed, "no query changes the answer of {path}");
        }
        routes.into_values().collect()
    }

    fn request(&self, route: &Route, query: &str, coding: &str, who: Who) -> Request {
        let mark = if query.is_empty() { "" } else { "?" };
        let request = Request::get(&format!("{}{mark}{query}", route.path));
        let request = request.header("Accept-Encoding", coding);
        match who {
            Who::Nobody => request,
            Who::Holder => bearing(request, Some(&self.guarded.admin)),
            Who::SignedIn => request.header("Cookie", &self.cookie),
        }
    }

    fn direct(&self, route: &Route, query: &str, coding: &str, who: Who) -> Seen {
        let request = self.request(route, query, coding, who);
        Seen::new(&self.guarded.server.send(&request), route)
    }
}

/// A proxy beside the model.
struct Comparison<'m> {
    model: &'m Model,
    kind: Kind,
    address: &'m str,
    www: &'m Path,
    found: Vec<String>,
}

impl Comparison<'_> {
    fn ask(&self, request: &Request) -> Response {
        let answer = request.send(self.address);
        answer.unwrap_or_else(|error| panic!("{:?} {}: {error}", self.kind, request.path))
    }

    fn compare(&mut self, route: &Route) {
        let methods = route.endpoint.methods.iter().map(|verb| &verb.method);
        for method in methods.filter(|method| **method != Method::GET) {
            self.compare_write(route, method);
        }
        if !route.is_read() {
            return;
        }
        self.compare_preflight(route);
        for coding in ["identity", "gzip"] {
            for query in &route.queries {
                // The answer to one of them must not reach the next one.
                for who in [
                    Who::Nobody,
                    Who::Holder,
                    Who::Nobody,
                    Who::SignedIn,
                    Who::Nobody,
                ] {
                    self.compare_read(route, query, coding, who);
                }
                for who in [Who::Nobody, Who::Holder] {
                    self.compare_head(route, query, coding, who);
                    if !query.starts_with("wait=") {
                        self.compare_unchanged(route, query, coding, who);
                    }
                }
            }
        }
    }

    /// Sends a write without a token, and with a token one that the server refuses or that changes nothing.
    fn compare_write(&mut self, route: &Route, method: &Method) {
        let path = &route.path;
        let request = Request::new(method.as_str(), path).body("{}");
        let status = self.ask(&request).status;
        // The server refuses by itself, too, but not if it has no tokens.
        let is_denied = self.kind.lets_all_writes_through() || path.starts_with("/ui/");
        if status < 400 || !is_denied && status != 403 {
            self.found
                .push(format!("{method} {path} by nobody is {status}"));
        }
        if method == Method::DELETE {
            return;
        }
        let request = bearing(request, Some(&self.model.guarded.admin));
        let direct = self.model.guarded.server.send(&request).status;
        let through = self.ask(&request).status;
        if through != direct {
            self.found.push(format!(
                "{method} {path} by a holder is {through}, not {direct}"
            ));
        }
    }

    fn compare_preflight(&mut self, route: &Route) {
        let request = Request::new("OPTIONS", &route.path);
        let direct = Seen::new(&self.model.guarded.server.send(&request), route);
        let through = Seen::new(&self.ask(&request), route);
        if through != direct {
            let (path, told) = (&route.path, difference(&through, &direct));
            self.found.push(format!("OPTIONS {path}: {told}"));
        }
    }

    fn compare_read(&mut self, route: &Route, query: &str, coding: &'static str, who: Who) {
        let request = self.model.request(route, query, coding, who);
        let key = (request.path.clone(), coding, who);
        let mut told = String::new();
        for _ in 0..10 {
            let through = Seen::new(&self.ask(&request), route);
            let is_known = |direct: &Seen| self.is_same(route, direct, &through);
            let mut answers = self.model.answers.borrow_mut();
            let answers = answers.entry(key.clone()).or_default();
            if answers.iter().any(is_known) {
                return;
            }
            let direct = self.model.direct(route, query, coding, who);
            if is_known(&direct) {
                answers.push(direct);
                return;
            }
            let has_changed = !answers.contains(&direct);
            told = difference(&through, &direct);
            if has_changed {
                answers.push(direct);
            } else if !route.is_by_clock() {
                break;
            } else {
                // A copy that is kept may be of another second.
                pause(Duration::from_secs(1));
            }
        }
        let url = &request.path;
        self.found.push(format!("{url}, {coding}, {who:?}: {told}"));
    }

    fn is_same(&self, route: &Route, direct: &Seen, through: &Seen) -> bool {
        if route.is_short_url()
            && self.kind.has_short_urls()
            && leads_to_recent(&route.path, through)
        {
            return true;
        }
        let is_file = self.is_file(route);
        let passed = |seen: &Seen| seen.clone().passed_by(self.kind, is_file);
        passed(direct) == passed(through)
    }

    /// Whether the proxy has the document as a file.
    fn is_file(&self, route: &Route) -> bool {
        let path = route.path.trim_start_matches('/');
        self.kind.has_files() && self.www.join(path).is_file()
    }

    fn compare_head(&mut self, route: &Route, query: &str, coding: &str, who: Who) {
        let mut request = self.model.request(route, query, coding, who);
        "HEAD".clone_into(&mut request.method);
        let mut direct = Seen::new(&self.model.guarded.server.send(&request), route);
        let mut through = Seen::new(&self.ask(&request), route);
        if self.kind == Kind::Varnish {
            // It says so of what it passes on only where there is a body.
            direct.fields.remove("content-encoding");
            through.fields.remove("content-encoding");
        }
        if !self.is_same(route, &direct, &through) {
            let (url, told) = (&request.path, difference(&through, &direct));
            self.found
                .push(format!("HEAD {url}, {coding}, {who:?}: {told}"));
        }
    }

    /// Asks again with the tag of an answer.
    fn compare_unchanged(&mut self, route: &Route, query: &str, coding: &str, who: Who) {
        let request = self.model.request(route, query, coding, who);
        let server = &self.model.guarded.server;
        let again = |answer: Response| {
            let tag = answer.maybe("etag")?;
            Some(request.clone().header("If-None-Match", tag))
        };
        let Some(direct) = again(server.send(&request)) else {
            return;
        };
        let mut direct = Seen::new(&server.send(&direct), route);
        if self.kind == Kind::Squid {
            // Its own 304 say no more than this, of the second field only to nobody.
            direct.fields.retain(|name, _| {
                name == "cache-control"
                    || name == "access-control-allow-origin" && who == Who::Nobody
            });
        }
        let through = again(self.ask(&request));
        let through = through.map(|again| Seen::new(&self.ask(&again), route));
        let is_file = self.is_file(route);
        let is_unchanged = through.as_ref().is_some_and(|through| {
            let passed = |seen: &Seen| seen.clone().passed_by(self.kind, is_file);
            let has_changed = through.status == 200 && route.is_by_clock();
            has_changed
                || through.status == 304
                    && (direct.status != 304 || passed(through).has_fields_of(&passed(&direct)))
        });
        if !is_unchanged {
            let told = through.map(|through| difference(&through, &direct));
            let url = &request.path;
            self.found
                .push(format!("{url}, {coding}, {who:?}, unchanged: {told:?}"));
        }
    }
}

/// Whether an answer leads from the short URL of a feed to its recent document.
fn leads_to_recent(path: &str, answer: &Seen) -> bool {
    let field = |name: &str| answer.fields.get(name).map(String::as_str);
    let here = Url::parse("http://h").unwrap().join(path).unwrap();
    let to = field("location").and_then(|to| here.join(to).ok());
    answer.status == 307
        && to.is_some_and(|to| to.path() == format!("{path}/recent.atom"))
        && field("cache-control") == Some("no-store")
        && field("access-control-allow-origin") == Some("*")
}

/// Returns the differences between two answers.
fn difference(through: &Seen, direct: &Seen) -> String {
    let mut told = format!("{}, not {};", through.status, direct.status);
    let names: BTreeSet<&String> = through.fields.keys().chain(direct.fields.keys()).collect();
    for name in names {
        let (one, other) = (through.fields.get(name), direct.fields.get(name));
        if one != other {
            told.push_str(&format!(" {name}: {one:?}, not {other:?};"));
        }
    }
    if through.body != direct.body {
        let text = |seen: &Seen| String::from_utf8_lossy(&seen.body).into_owned();
        told.push_str(&format!(" {:?}, not {:?}", text(through), text(direct)));
    }
    told
}

impl Model {
    /// Returns the answers of a proxy that differ from the server's, until there are enough.
    fn differences(
        &self,
        kind: Kind,
        edit: &dyn Fn(&str) -> String,
        is_enough: &dyn Fn(&[String]) -> bool,
    ) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let www = self.guarded.data().join("www");
        let counter = Counter::before(&self.guarded.server.address);
        let proxy = Proxy::start_edited(kind, folder.path(), &counter.address, &www, edit);
        let mut comparison = Comparison {
            model: self,
            kind,
            address: &proxy.address,
            www: &www,
            found: vec![],
        };
        for route in &self.routes {
            if !is_enough(&comparison.found) {
                comparison.compare(route);
            }
        }
        // Or all of this would be no test of a cache.
        for path in ["/feeds/open/1.atom", "/feeds/open/recent.atom"] {
            let before = counter.asked();
            let again = Request::get(path).header("Accept-Encoding", "gzip");
            assert_eq!(comparison.ask(&again).status, 200);
            if kind.is_cache() && counter.asked() != before {
                comparison.found.push(format!("{path} is not kept"));
            }
        }
        comparison.found
    }
}

#[track_caller]
fn check(kinds: &[Kind]) {
    let model = Model::start();
    for kind in kinds {
        let found = model.differences(*kind, &str::to_owned, &|found| found.len() > 30);
        assert!(found.is_empty(), "{kind:?}: {found:#?}");
    }
}

/// Goal: each route through nginx has the server's answer: without a token, with one, and for a browser that is signed
/// in; in each coding; from a copy, too.
#[test]
#[ignore = "needs nginx"]
fn every_route_through_nginx() {
    check(&[Kind::Nginx, Kind::NginxWithFiles]);
}

/// Goal: the same through Varnish.
#[test]
#[ignore = "needs varnishd"]
fn every_route_through_varnish() {
    check(&[Kind::Varnish]);
}

/// Goal: the same through Caddy.
#[test]
#[ignore = "needs caddy"]
fn every_route_through_caddy() {
    check(&[Kind::Caddy]);
}

/// Goal: the same through `HAProxy`.
#[test]
#[ignore = "needs haproxy"]
fn every_route_through_haproxy() {
    check(&[Kind::Haproxy]);
}

/// Goal: the same through Apache.
#[test]
#[ignore = "needs apache2"]
fn every_route_through_apache() {
    check(&[Kind::Apache]);
}

/// Goal: the same through Squid.
#[test]
#[ignore = "needs squid"]
fn every_route_through_squid() {
    check(&[Kind::Squid]);
}

/// Goal: the comparison finds a fault of a configuration: it is the control of the tests above.
#[test]
#[ignore = "needs nginx and apache2"]
fn a_fault_of_a_configuration_is_found() {
    type Edit = fn(&str) -> String;
    let faults: [(&str, Kind, Edit, &str); 4] = [
        (
            "a key without the query",
            Kind::Nginx,
            |site| replace(site, "$uri$is_args$args", "$uri"),
            "/feeds/open/page.json?limit=1, identity, Nobody",
        ),
        (
            "a key without the coding",
            Kind::Nginx,
            |site| replace(site, "key $simplefeed_coding$uri", "key $uri"),
            "/feeds/open/1.atom, gzip, Nobody",
        ),
        (
            "copies of what is for holders of a token",
            Kind::Nginx,
            |site| {
                let site = replace(&stubborn(site), "proxy_no_cache $http_authorization;", "");
                replace(&site, "\"~^(GET|HEAD) .\"    yes;", "")
            },
            "/feeds/shut/1.atom, identity, Nobody",
        ),
        (
            "a key without the query",
            Kind::Apache,
            |site| {
                replace(
                    site,
                    "CacheEnable disk /",
                    "CacheEnable disk /\nCacheIgnoreQueryString On",
                )
            },
            "/feeds/open/page.json?limit=1, identity, Nobody",
        ),
    ];
    let model = Model::start();
    for (fault, kind, edit, expected) in faults {
        let is_found = |found: &[String]| found.iter().any(|one| one.starts_with(expected));
        let found = model.differences(kind, &edit, &is_found);
        assert!(is_found(&found), "{fault}, {kind:?}: {found:#?}");
    }
}

/// Returns the paths whose documents reach a client that takes no coding in one, after other clients' requests.
fn foreign_forms(
    guarded: &Guarded,
    kind: Kind,
    edit: &dyn Fn(&str) -> String,
) -> Vec<&'static str> {
    let folder = tempfile::tempdir().unwrap();
    let www = guarded.data().join("www");
    let proxy = Proxy::start_edited(kind, folder.path(), &guarded.server.address, &www, edit);
    let spelled = [
        ("/feeds/open/1.atom", "*"),
        ("/feeds/open/2.atom", "xgzip"),
        ("/feeds/open/recent.atom", "GZIP, br"),
        ("/feeds/open/page.atom", "gzip;q=0, *"),
    ];
    let is_foreign = |(path, spelled): &(&str, &str)| {
        let get = || Request::get(path);
        let ask = |request: Request| request.send(&proxy.address).unwrap();
        ask(get().header("Accept-Encoding", spelled));
        ask(get().header("Accept-Encoding", "gzip"));
        ask(get()).maybe("content-encoding").is_some()
    };
    let found = spelled.iter().filter(|one| is_foreign(one));
    found.map(|(path, _)| *path).collect()
}

/// Goal: however a client spells what it accepts, nobody else gets another form of a document for that.
#[test]
#[ignore = "needs all proxies"]
fn no_client_chooses_the_form_for_another() {
    let guarded = Guarded::start(&[]);
    for kind in Kind::ALL {
        let found = foreign_forms(&guarded, kind, &str::to_owned);
        assert!(found.is_empty(), "{kind:?}: {found:?}");
    }
    // The control: the server answers this to `*`, into the cache of plain forms.
    let naive = |site: &str| {
        let kept = "http-request del-header Accept-Encoding unless packed";
        replace(site, kept, "")
    };
    let found = foreign_forms(&guarded, Kind::Haproxy, &naive);
    assert!(found.contains(&"/feeds/open/1.atom"), "{found:?}");
}
