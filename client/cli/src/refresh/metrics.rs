//! Metrics of a refresher, for Prometheus.
//!
//! Shell: a listener of its own.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use simplefeed_client::refresher::{RefreshTally, Refresher};
use simplefeed_queue::{Namespace, Queue, Stats};
use tokio::{net::TcpListener, sync::Semaphore};

/// Media type of the text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Largest number of connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// Longest time that a connection may last.
const CONNECTION: Duration = Duration::from_secs(30);

/// Listener that answers GET `/metrics`.
pub(super) struct MetricsListener<Q> {
    listener: TcpListener,
    scrape: Arc<Scrape<Q>>,
}

struct Scrape<Q> {
    refresher: Refresher<Q>,
    queue: Q,
    name: Namespace,
}

impl<Q: Queue> MetricsListener<Q> {
    /// Binds the listener to `address`.
    pub(super) async fn listen(
        address: SocketAddr,
        refresher: Refresher<Q>,
        queue: Q,
        name: Namespace,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
        let scrape = Arc::new(Scrape {
            refresher,
            queue,
            name,
        });
        Ok(Self { listener, scrape })
    }

    /// Serves connections, for ever.
    pub(super) async fn serve(&self) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let Ok((stream, _)) = self.listener.accept().await else {
                // Too many open files: the pause lets some of them close.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let scrape = Arc::clone(&self.scrape);
            tokio::spawn(async move {
                let answer = service_fn(|request| answer_scrape(Arc::clone(&scrape), request));
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(CONNECTION)
                    .serve_connection(TokioIo::new(stream), answer);
                // An error of a connection concerns only the peer.
                let _ended = tokio::time::timeout(CONNECTION, connection).await;
                drop(place);
            });
        }
    }
}

async fn answer_scrape<Q: Queue>(
    scrape: Arc<Scrape<Q>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::default());
    if request.method() != Method::GET || request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
        *response.body_mut() = Full::from("here is only GET /metrics\n");
        return Ok(response);
    }
    // If the queue fails, the answer lacks the counts of the queue, which an alert can notice.
    let stats = scrape.queue.stats(&scrape.name).await.ok();
    let now = scrape.queue.now().await.ok();
    let age = |stats: &Stats| {
        let since = now? - stats.oldest_due?;
        Some(since.num_seconds().max(0))
    };
    // If there are counts, there is always an age: 0 if no item is due.
    let age = stats.as_ref().map(|stats| age(stats).unwrap_or(0));
    match scrape_text(scrape.refresher.refreshed(), stats, age) {
        Ok(text) => {
            *response.body_mut() = Full::from(text);
            let kind = HeaderValue::from_static(OPEN_METRICS);
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        Err(_) => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
    }
    Ok(response)
}

/// Returns the text of a scrape. `age` is the number of seconds since the due time of the item that
/// has been due for longest.
fn scrape_text(
    refreshed: RefreshTally,
    stats: Option<Stats>,
    age: Option<i64>,
) -> Result<String, std::fmt::Error> {
    let mut all = Registry::with_prefix("simplefeed_refresh");
    let counters = [
        ("requests", "Requests to the provider", refreshed.requests),
        ("items", "Items looked up and finished", refreshed.items),
        ("events", "Changes published", refreshed.events),
        ("failures", "Items that failed alone", refreshed.failures),
    ];
    for (name, help, count) in counters {
        all.register(name, help, ConstCounter::new(count));
    }
    let help = "Time from now on in which no credential may make a request";
    // Gauges are signed.
    let pause = i64::try_from(refreshed.pause.as_secs()).unwrap_or(i64::MAX);
    all.register_with_unit("pause", help, Unit::Seconds, ConstGauge::new(pause));
    if let (Some(stats), Some(age)) = (stats, age) {
        let gauges = [
            ("waiting", "Items that are not due yet", stats.waiting),
            ("due", "Items that are due", stats.due),
            ("leased", "Items that workers have", stats.leased),
            ("dead", "Items that failed too often", stats.dead),
        ];
        for (name, help, count) in gauges {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            all.register(name, help, ConstGauge::new(count));
        }
        let help = "Time for which an item has been due for longest";
        all.register_with_unit("oldest_due", help, Unit::Seconds, ConstGauge::new(age));
    }
    let mut text = String::new();
    encode(&mut text, &all)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_has_the_counts() {
        let stats = Stats {
            waiting: 7,
            ..Stats::default()
        };
        let shown = scrape_text(RefreshTally::default(), Some(stats), Some(3)).unwrap();
        assert!(
            shown.contains("simplefeed_refresh_requests_total 0\n"),
            "{shown}"
        );
        assert!(shown.contains("simplefeed_refresh_waiting 7\n"), "{shown}");
        assert!(
            shown.contains("simplefeed_refresh_oldest_due_seconds 3\n"),
            "{shown}"
        );
        assert!(
            shown.contains("simplefeed_refresh_pause_seconds 0\n"),
            "{shown}"
        );
        let shown = scrape_text(RefreshTally::default(), None, None).unwrap();
        assert!(!shown.contains("waiting"), "{shown}");
    }
}
