//! The page of `docs/consumers.md` in a real Chromium.
//!
//! Shell: processes, and a small web server for the page, which gets reports of its lines.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use crate::{
    harness::{Server, free_address, pause, signal, wait_for, workspace},
    nginx::Nginx,
};

/// A Chromium that shows a page. It ends with this value.
struct Chromium(Child);

impl Chromium {
    fn open(url: &str, folder: &Path) -> Self {
        let program = ["chromium", "chromium-browser", "google-chrome"];
        let spawn = |program: &&str| {
            Command::new(program)
                .args([
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--no-first-run",
                    "--disable-background-networking",
                    "--disable-component-update",
                ])
                .arg(format!("--user-data-dir={}", folder.display()))
                .arg(url)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .ok()
        };
        Self(program.iter().find_map(spawn).expect("Chromium starts"))
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        signal("TERM", self.0.id());
        let _status = self.0.wait();
    }
}

/// Serves one page, and keeps the last report of it.
struct Site {
    address: String,
    report: Arc<Mutex<String>>,
}

impl Site {
    fn serve(page: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let report = Arc::new(Mutex::new(String::new()));
        let reported = Arc::clone(&report);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A browser opens connections that it does not use yet.
                let (page, reported) = (page.clone(), Arc::clone(&reported));
                thread::spawn(move || answer(stream, &page, &reported));
            }
        });
        Self { address, report }
    }

    fn report(&self) -> String {
        self.report.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, page: &str, reported: &Mutex<String>) {
    let mut request = vec![];
    let mut piece = vec![0; 65_536];
    let (head, length) = loop {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&piece[..read]),
        }
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        if let Some(end) = text.find("\r\n\r\n") {
            let length = text.split("content-length: ").nth(1);
            let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
            break (end + 4, length.unwrap_or(0));
        }
    };
    while request.len() < head + length {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&piece[..read]),
        }
    }
    let mut body = page;
    if request.starts_with(b"POST") {
        *reported.lock().unwrap() = String::from_utf8_lossy(&request[head..]).into_owned();
        body = "";
    }
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let _gone = stream.write_all(answer.as_bytes());
}

/// Returns the example of the documentation, for a feed at `url`.
fn example(url: &str) -> String {
    let text = fs::read_to_string(workspace().join("docs/consumers.md")).unwrap();
    let (_, rest) = text.split_once("```html\n").unwrap();
    let (page, _) = rest.split_once("```").unwrap();
    assert!(page.lines().count() <= 12, "it is short");
    let stood = "https://feeds.example.org/feeds/orders/events";
    assert!(page.contains(stood));
    page.replace(stood, url)
}

/// A page in a browser, and its reports.
struct Page {
    site: Site,
    _browser: Chromium,
}

impl Page {
    /// Opens the example for a stream at `url`.
    fn open(url: &str, folder: &Path) -> Self {
        let report = "<script>
            alert = (text) => document.title = text;
            setInterval(() => {
              const lines = [...document.querySelectorAll('li')].map((line) => line.textContent);
              const all = [document.title, events.readyState, ...lines];
              fetch('/', {method: 'POST', body: all.join('\\n')});
            }, 200);
            </script>";
        let page = format!("<!doctype html><title></title>{}{report}", example(url));
        let site = Site::serve(page);
        let own = format!("http://{}/", site.address);
        let browser = Chromium::open(&own, &folder.join("chromium"));
        Self {
            site,
            _browser: browser,
        }
    }

    /// Waits until so many entries are shown.
    fn shows(&self, count: usize) {
        wait_for(&format!("the page does not show {count} entries"), || {
            (self.site.report().lines().count() == count + 2).then_some(())
        });
        let report = self.site.report();
        let lines = report.lines().skip(2);
        let expected = (0..count).map(|number| format!("order {number}"));
        assert!(lines.eq(expected), "{report}");
    }
}

fn publish(server: &Server, numbers: std::ops::Range<usize>) {
    let lines = numbers.map(|number| format!("{{\"title\":\"order {number}\"}}\n"));
    let answer = server.publish("orders", &lines.collect::<String>());
    assert_eq!(answer.status, 201);
}

/// Goal: the page shows each entry once, in order, over a restart of the server; and stops asking once its place is lost.
#[test]
#[ignore = "needs chromium"]
fn a_page_shows_each_entry_once() {
    const ENTRIES: usize = 1_000;
    let folder = tempfile::tempdir().unwrap();
    let (data, address) = (folder.path().join("data"), free_address());
    let server = Server::start_at(&address, &data, &[]);
    publish(&server, 0..300);
    let url = format!("http://{address}/feeds/orders/events");
    let page = Page::open(&url, folder.path());
    page.shows(300);
    for number in (300..400).step_by(10) {
        publish(&server, number..number + 10);
    }
    page.shows(400);
    server.stop();
    let server = Server::start_at(&address, &data, &[]);
    publish(&server, 400..700);
    page.shows(700);
    // Once with a pause, in which the browser finds nobody.
    server.kill();
    pause(Duration::from_secs(4));
    let server = Server::start_at(&address, &data, &[]);
    publish(&server, 700..ENTRIES);
    page.shows(ENTRIES);

    // A server with another history: the page gets the state, and the browser asks no more.
    server.stop();
    fs::remove_dir_all(&data).unwrap();
    let server = Server::start_at(&address, &data, &[]);
    publish(&server, 0..ENTRIES + 10);
    wait_for("the page is not told", || {
        let report = page.site.report();
        let mut lines = report.lines();
        let is_told = lines.next()?.contains("history changed");
        // `EventSource.CLOSED`.
        (is_told && lines.next() == Some("2")).then_some(())
    });
    drop(server);
}

/// Goal: behind a proxy, which answers for a server that is away, the page goes on by itself.
#[test]
#[ignore = "needs chromium and nginx"]
fn a_page_outlives_a_server_behind_a_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let (data, address) = (folder.path().join("data"), free_address());
    let server = Server::start_at(&address, &data, &[]);
    publish(&server, 0..10);
    let nginx = Nginx::start("cache.conf", folder.path(), &address, &data.join("www"));
    let page = Page::open(&nginx.url("/feeds/orders/events"), folder.path());
    page.shows(10);
    server.kill();
    // It comes back meanwhile.
    pause(Duration::from_secs(5));
    let server = Server::start_at(&address, &data, &[]);
    publish(&server, 10..20);
    page.shows(20);
}
