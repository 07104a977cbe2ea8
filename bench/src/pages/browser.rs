//! A real browser, over the `WebDriver` protocol.
//!
//! Shell: sockets.

use std::path::Path;

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{load::Connection, process::Program};

/// Time that a page has to paint its largest part, in milliseconds.
const PAINTED_MILLIS: u64 = 1_000;

/// Chromium without a window. It ends with this value.
pub(super) struct Browser {
    driver: Program,
    session: String,
}

impl Browser {
    pub(super) fn start(folder: &Path) -> anyhow::Result<Self> {
        let driver = Program::chromedriver(folder)?;
        let options = json!({ "args": [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--window-size=1400,900",
        ]});
        let wanted =
            json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let mut browser = Self {
            driver,
            session: String::new(),
        };
        let made = browser.post("/session", &wanted)?;
        let session = made.get("sessionId").and_then(Value::as_str);
        browser.session = format!("/session/{}", session.context("a session has an id")?);
        Ok(browser)
    }

    fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        // The driver ends connections as it likes.
        let mut connection = Connection::open(&self.driver.address)?;
        let (head, answer) = connection.post(path, "application/json", &body.to_string())?;
        let mut answer: Value = serde_json::from_slice(&answer)?;
        let is_well = head
            .lines()
            .next()
            .is_some_and(|line| line.contains(" 200"));
        anyhow::ensure!(is_well, "the browser: {answer}");
        Ok(answer.get_mut("value").map(Value::take).unwrap_or_default())
    }

    /// Opens a page, and returns once it is loaded.
    pub(super) fn open(&self, url: &str) -> anyhow::Result<()> {
        let path = format!("{}/url", self.session);
        self.post(&path, &json!({ "url": url }))?;
        Ok(())
    }

    /// Runs a script that passes its result to `done`.
    pub(super) fn run<T: DeserializeOwned>(&self, script: &str) -> anyhow::Result<T> {
        let script = format!("const done = arguments[arguments.length - 1]; {script}");
        let path = format!("{}/execute/async", self.session);
        let result = self.post(&path, &json!({ "script": script, "args": [] }))?;
        Ok(serde_json::from_value(result)?)
    }

    /// Returns when the largest part of a page was painted, in milliseconds, and how far its parts have moved since.
    pub(super) fn painted(&self, url: &str) -> anyhow::Result<(f64, f64)> {
        self.open(url)?;
        let script = "let painted = 0, moved = 0; \
            new PerformanceObserver(list => { for (const entry of list.getEntries()) painted = entry.startTime; }) \
                .observe({ type: 'largest-contentful-paint', buffered: true }); \
            new PerformanceObserver(list => { for (const entry of list.getEntries()) moved += entry.value; }) \
                .observe({ type: 'layout-shift', buffered: true }); \
            setTimeout(() => done([painted, moved]), MILLIS);";
        self.run(&script.replace("MILLIS", &PAINTED_MILLIS.to_string()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends Chromium; the driver is killed behind it.
        if let Ok(mut connection) = Connection::open(&self.driver.address) {
            drop(connection.delete(&self.session));
        }
    }
}
