//! The endpoint for Prometheus, at a separate listener.
//!
//! Shell: a thread, because some metrics are measured on the disk.

use std::sync::Arc;

use hyper::{
    Method, Request, Response,
    body::Incoming,
    header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, VARY},
};
use simplefeed_http::{
    Answers, ConnectionEnd,
    answers::{Answer, failed, problem_answer, whole},
    problem::Problem,
    reply::NO_STORE,
    request::OwnHosts,
    traffic::Traffic,
};

use crate::metrics::{Metrics, form_of};

/// Answers of the listener for metrics, which has one route and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Scrapes {
    /// Metrics of the server, collected at each scrape.
    pub metrics: Arc<Metrics>,
    /// Hosts that a scraper may name. A page of another site, which can reach this address only
    /// under a name of that site, reads nothing.
    pub hosts: OwnHosts,
}

impl Answers for Scrapes {
    async fn answer(&self, request: Request<Incoming>, ending: &ConnectionEnd) -> Answer {
        ending.owe_answer();
        if !self.hosts.have(&request) {
            return problem_answer(&Problem::misdirected());
        }
        if request.uri().path() != "/metrics" {
            return problem_answer(&Problem::not_found("here is only /metrics"));
        }
        if request.method() != Method::GET {
            let mut answer = problem_answer(&Problem::method("GET"));
            let headers = answer.headers_mut();
            headers.insert(ALLOW, HeaderValue::from_static("GET"));
            return answer;
        }
        // The text is made on another thread, because some metrics are measured on the disk.
        let metrics = Arc::clone(&self.metrics);
        let Ok(text) = tokio::task::spawn_blocking(move || metrics.text()).await else {
            return failed();
        };
        let accept = request.headers().get(ACCEPT);
        let accept = accept.and_then(|accept| accept.to_str().ok());
        let (text, kind) = form_of(text, accept.unwrap_or_default());
        let mut answer = Response::new(whole(text));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        // Both text formats have this URL, and `Accept` chooses between them.
        headers.insert(VARY, HeaderValue::from_static("accept"));
        headers.insert(CACHE_CONTROL, NO_STORE);
        answer
    }

    fn traffic(&self) -> &dyn Traffic {
        &*self.metrics
    }

    fn failed(&self) -> Answer {
        failed()
    }
}
