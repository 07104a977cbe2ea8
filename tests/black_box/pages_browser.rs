//! Pages for people in a real Chromium.
//!
//! Shell: processes, and a listener that stands for another site.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

use crate::{
    harness::{Server, events, free_address, pause, signal, wait_for, workspace},
    http::Request,
    pages::{publish_vectors, vectors},
};

/// A chromedriver, and the browser that it drives. Both end with this value.
struct Browser {
    driver: Child,
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Browser {
    /// Opens a browser, with scripts or without.
    fn open(folder: &Path, has_scripts: bool) -> Self {
        let address = free_address();
        let port = address.rsplit(':').next().unwrap();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let profile = folder.join("profile");
        let mut options = json!({
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                format!("--user-data-dir={}", profile.display()),
            ],
        });
        if !has_scripts {
            options["prefs"] = json!({"profile.managed_default_content_settings.javascript": 2});
        }
        let capabilities = json!({"goog:chromeOptions": options});
        let capabilities = capabilities.as_object().unwrap().clone();
        let url = format!("http://{address}");
        let client = wait_for("Chromium does not start", || {
            let connecting = async {
                let mut builder = ClientBuilder::new(HttpConnector::new());
                builder
                    .capabilities(capabilities.clone())
                    .connect(&url)
                    .await
            };
            runtime.block_on(connecting).ok()
        });
        Self {
            driver,
            runtime,
            client,
        }
    }

    fn goto(&self, server: &Server, path: &str) {
        self.runtime
            .block_on(self.client.goto(&server.url(path)))
            .unwrap();
    }

    fn run(&self, script: &str) -> Value {
        self.runtime
            .block_on(self.client.execute(script, vec![]))
            .unwrap()
    }

    fn resize(&self, width: u32, height: u32) {
        self.runtime
            .block_on(self.client.set_window_size(width, height))
            .unwrap();
    }

    fn click(&self, selector: &str) {
        let clicking = async {
            self.client
                .find(Locator::Css(selector))
                .await?
                .click()
                .await
        };
        self.runtime.block_on(clicking).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _closed = self.runtime.block_on(self.client.clone().close());
        signal("TERM", self.driver.id());
        let _status = self.driver.wait();
    }
}

/// Another site, which counts the connections that come.
struct Elsewhere {
    address: String,
    asked: Arc<AtomicUsize>,
}

impl Elsewhere {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        thread::spawn(move || {
            for _stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { address, asked }
    }
}

/// A server with something on every page, and the paths of these.
fn furnished(folder: &Path) -> (Server, Vec<&'static str>) {
    let server = Server::start(folder, &["--document-entries", "20"]);
    let lines = (0..60).map(|number| {
        let content = json!({"order": number, "customer": {"id": format!("c-{number}")}, "lines": [{"sku": "A-1", "n": 2}]});
        let title = format!("Order {number} {}", "placed ".repeat(number % 20));
        format!("{}\n", json!({"id": format!("urn:o:{number}"), "title": title, "content": content}))
    });
    assert_eq!(
        server.publish("orders", &lines.collect::<String>()).status,
        201
    );
    let html = json!({"title": "Autumn sale", "type": "html", "content": "<h2>Sale</h2><p>All <b>hats</b>.</p>",
        "links": [{"href": "https://example.org/sale"}], "author": "Ann", "categories": ["sale"]});
    assert_eq!(server.publish("shop.news", &html.to_string()).status, 201);
    let made = Request::put("/feeds/all", r#"{"kind":"timeline","title":"All of them"}"#);
    assert_eq!(server.send(&made).status, 201);
    let follow = Request::put("/feeds/all/following/orders", r#"{"backfill":5}"#);
    assert!(server.send(&follow).status < 300);
    let paths = vec![
        "/ui/",
        "/ui/?q=nothing",
        "/ui/feeds/orders",
        "/ui/feeds/orders?before=30",
        "/ui/feeds/all",
        "/ui/feeds/orders/7",
        "/ui/feeds/shop.news/0",
        "/ui/feeds/orders/documents",
        "/ui/server",
        "/ui/sign-in",
        "/ui/?order=busiest",
        "/ui/feeds/none",
    ];
    (server, paths)
}

/// Goal: every page fits a phone and a wide screen in both schemes, can be used with the keyboard alone, and has no fault
/// that keeps people with disabilities from it.
#[test]
#[ignore = "needs chromedriver"]
fn every_page_is_for_everybody() {
    let folder = tempfile::tempdir().unwrap();
    let (server, paths) = furnished(&folder.path().join("data"));
    let browser = Browser::open(folder.path(), true);
    let axe = fs::read_to_string(workspace().join("target/axe.min.js"));
    let axe = axe.expect("tests/run fetches axe-core");
    for path in paths {
        for (width, height) in [(390, 844), (1_400, 900)] {
            browser.resize(width, height);
            browser.goto(&server, path);
            let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
            assert!(
                wide.as_i64().unwrap() <= 0,
                "{path} at {width}: {wide} too wide"
            );
        }
        let unnamed = browser.run(
            "return [...document.querySelectorAll('a, button, input:not([type=hidden]), summary')].filter((one) => !one.hidden \
             && (one.tabIndex < 0 || !(one.textContent.trim() || one.labels?.length))).map((one) => one.outerHTML)",
        );
        assert_eq!(unnamed, json!([]), "{path}");
        browser.run(&axe);
        for scheme in ["light", "dark"] {
            browser.run(&format!(
                "document.documentElement.style.colorScheme = '{scheme}'"
            ));
            let found = browser.runtime.block_on(browser.client.execute_async(
                "const done = arguments[arguments.length - 1]; \
                 axe.run(document, {iframes: false}).then((found) => done(found.violations \
                 .filter((one) => one.impact === 'serious' || one.impact === 'critical') \
                 .map((one) => one.id + ': ' + one.nodes.map((node) => node.html).join(' '))));",
                vec![],
            ));
            assert_eq!(found.unwrap(), json!([]), "{path}");
        }
    }
}

/// Goal: a bar leads to its moment, by the pointer and by the keyboard; a part that is drawn over becomes the plot.
#[test]
#[ignore = "needs chromedriver"]
fn a_plot_leads_to_its_moment() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish("a", &events(40));
    wait_for("the entries are not counted", || {
        let rates = server.get("/feeds/a/rates.json?by=day").text();
        rates.contains(",40]]").then_some(())
    });
    let browser = Browser::open(folder.path(), true);
    let search = || {
        browser
            .run("return location.search")
            .as_str()
            .unwrap()
            .to_owned()
    };
    let rows = || browser.run("return document.querySelectorAll('ol.entries li').length");
    browser.goto(&server, "/ui/feeds/a");
    browser.click("figure.plot a");
    wait_for("the bar leads nowhere", || {
        search().starts_with("?before=").then_some(())
    });
    assert!(rows().as_u64().unwrap() > 0);

    browser.goto(&server, "/ui/feeds/a");
    let drag = "const plot = document.querySelector('svg[data-plot]'); const box = plot.getBoundingClientRect(); \
        const send = (kind, x) => plot.dispatchEvent(new PointerEvent(kind, \
            {bubbles: true, button: 0, clientX: x, clientY: box.top + 20})); \
        send('pointerdown', box.left + 2); send('pointermove', box.right - 2); send('pointerup', box.right - 2);";
    browser.run(drag);
    wait_for("drawing over the plot does nothing", || {
        (search().starts_with("?in=20") && search().contains("..")).then_some(())
    });
    let around = browser.run("return document.querySelector('.around').textContent");
    assert!(around.as_str().unwrap().contains("40 entries"), "{around}");

    // With the keyboard alone: the day, the hour, the minute.
    let day = server.get("/feeds/a/rates.json?by=day").json()["counts"][0][0].clone();
    let day = day.as_str().unwrap()[..10].to_owned();
    browser.goto(&server, &format!("/ui/feeds/a?in={day}"));
    for length in [13, 13] {
        browser.run("document.querySelector('figure.plot a').focus()");
        let enter = browser.runtime.block_on(async {
            let bar = browser.client.find(Locator::Css("figure.plot a")).await?;
            bar.send_keys("\u{e007}").await
        });
        enter.unwrap();
        let window = format!("?in={day}T");
        wait_for("the key leads nowhere", || {
            let search = search();
            let found = search.starts_with(&window) && search.contains("&before=");
            found.then(|| assert_eq!(search.split('&').next().unwrap().len(), 4 + length))
        });
    }
}

/// Goal: rows come as entries do, in order and each once, and no more of them stay than a browser can bear.
#[test]
#[ignore = "needs chromedriver"]
fn rows_come_live() {
    let folder = tempfile::tempdir().unwrap();
    let (data, address) = (folder.path().join("data"), free_address());
    let server = Server::start_at(&address, &data, &[]);
    let publish = |server: &Server, numbers: std::ops::Range<usize>| {
        let lines = numbers.map(|number| format!("{{\"title\":\"entry {number}\"}}\n"));
        assert_eq!(server.publish("a", &lines.collect::<String>()).status, 201);
    };
    publish(&server, 0..30);
    let browser = Browser::open(folder.path(), true);
    browser.goto(&server, "/ui/feeds/a");
    // Between the page and its stream.
    publish(&server, 30..40);
    browser.click("#live");
    let titles = || {
        let all = browser.run("return [...document.querySelectorAll('ol.entries .title')].map((one) => one.textContent)");
        let all: Vec<String> = serde_json::from_value(all).unwrap();
        all
    };
    let expected = |from: usize, to: usize| -> Vec<String> {
        (from..to)
            .rev()
            .map(|number| format!("entry {number}"))
            .collect()
    };
    let shows = |from: usize, to: usize| {
        wait_for(&format!("the rows are not {from} to {to}"), || {
            (titles() == expected(from, to)).then_some(())
        });
    };
    shows(5, 40);
    publish(&server, 40..50);
    shows(5, 50);
    server.stop();
    pause(Duration::from_secs(1));
    let server = Server::start_at(&address, &data, &[]);
    publish(&server, 50..60);
    shows(5, 60);
    for begin in (60..2_060).step_by(200) {
        publish(&server, begin..begin + 200);
    }
    shows(1_560, 2_060);
    browser.click("#live");
    publish(&server, 2_060..2_070);
    pause(Duration::from_millis(500));
    assert_eq!(titles(), expected(1_560, 2_060));
}

/// Goal: whatever a publisher puts where, no script of it runs and no request of it leaves.
#[test]
#[ignore = "needs chromedriver"]
fn no_foreign_script_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    let elsewhere = Elsewhere::start();
    let vectors: Vec<String> = vectors()
        .iter()
        .map(|vector| vector.replace("evil.example", &elsewhere.address))
        .collect();
    let count = publish_vectors(&server, &vectors);
    let browser = Browser::open(folder.path(), true);
    let inert = |path: &str| {
        browser.goto(&server, path);
        let state = browser.run(
            "return [window.hit === undefined, performance.getEntriesByType('resource') \
             .every((one) => one.name.startsWith(location.origin) || one.name.startsWith('data:'))]",
        );
        // An open dialogue would fail the script, too.
        assert_eq!(state, json!([true, true]), "{path}");
    };
    // Four entries have each text, in content of four types; `no_text_becomes_markup` reads all of them.
    for number in 0..vectors.len() {
        inert(&format!("/ui/feeds/orders/{}", number * 4 + number % 4));
    }
    for before in (25..count).step_by(25) {
        inert(&format!("/ui/feeds/orders?before={before}"));
    }
    for vector in vectors.iter().step_by(3) {
        let text: String = url::form_urlencoded::byte_serialize(vector.as_bytes()).collect();
        inert(&format!("/ui/?q={text}"));
        inert(&format!("/ui/feeds/orders?go={text}"));
    }
    // The documents themselves, which a browser shows as XML.
    inert("/feeds/orders/recent.atom");
    inert("/feeds/orders/entries/1.atom");
    assert_eq!(elsewhere.asked.load(Ordering::SeqCst), 0);
    // The test can fail: a page of ours with a script that the policy does not know.
    browser.goto(&server, "/ui/");
    browser.run("window.hit = 1");
    assert_eq!(browser.run("return window.hit"), json!(1));
}

/// Goal: every page can be used in a browser without scripts.
#[test]
#[ignore = "needs chromedriver"]
fn pages_work_without_scripts() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = furnished(&folder.path().join("data"));
    let browser = Browser::open(folder.path(), false);
    browser.goto(&server, "/");
    browser.click("a[href$='feeds/orders']");
    browser.click("a[rel=next]");
    browser.click("ol.entries a");
    let url = browser
        .runtime
        .block_on(browser.client.current_url())
        .unwrap();
    assert_eq!(url.path(), "/ui/feeds/orders/34");
    browser.click("details summary");
    browser.goto(&server, "/ui/feeds/orders");
    let typing = async {
        let form = browser.client.form(Locator::Css("form.row")).await?;
        form.set_by_name("go", "7").await?;
        form.submit_direct().await
    };
    browser.runtime.block_on(typing).unwrap();
    let url = browser
        .runtime
        .block_on(browser.client.current_url())
        .unwrap();
    assert_eq!(url.query(), Some("before=19"));
    let live = browser
        .runtime
        .block_on(async { browser.client.find(Locator::Css("#live")).await });
    assert!(live.is_err(), "nothing is offered that does not work");
}
