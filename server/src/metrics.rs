//! What the server tells about itself, for Prometheus.
//!
//! Pure, but for looking at the log and the disk when it is asked. No name of a feed is ever told: some are
//! closed, and there may be a million.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};

use crate::{
    log::{
        EntryLog,
        space::{folder_bytes, free_bytes},
    },
    views::archive_files::Archive,
};

/// The media type of what is told.
pub const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: &'static str,
    status: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct On {
    route: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct With {
    result: &'static str,
}

/// Where to look when somebody asks.
#[derive(Debug)]
struct Looked {
    folder: PathBuf,
    archive: Archive,
    commits: Gauge,
    feeds: Gauge,
    documents: Gauge,
    lag: Gauge,
    last: Gauge<f64, AtomicU64>,
    open: Gauge,
    log_bytes: Gauge,
    free_bytes: Gauge,
}

/// What is counted most, found without looking it up.
#[derive(Debug)]
struct Documents {
    sent: Counter,
    not_modified: Counter,
    seconds: Histogram,
}

/// What requests for documents are counted as.
pub const DOCUMENT: &str = "document";

/// What has happened since the start, and what is so now.
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Family<On, Histogram>,
    documents: Documents,
    entries: Family<With, Counter>,
    commit_seconds: Histogram,
    group: Histogram,
    log: Arc<dyn EntryLog>,
    looked: Mutex<Looked>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// What became of entries that somebody wanted to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They are in the log now.
    Appended,
    /// They were there already.
    Duplicate,
    /// They were not taken.
    Refused,
}

impl Metrics {
    /// Returns the metrics of the log in a data folder, and of its archive.
    pub fn new(log: Arc<dyn EntryLog>, archive: Archive, folder: PathBuf) -> Self {
        // 50 µs to 26 s.
        let durations = || Histogram::new(exponential_buckets(0.000_05, 3.0, 13));
        let seconds: Family<On, Histogram> = Family::new_with_constructor(durations);
        let requests: Family<Answered, Counter> = Family::default();
        let documents = |status| {
            let route = DOCUMENT;
            requests.get_or_create_owned(&Answered { route, status })
        };
        let documents = Documents {
            sent: documents(200),
            not_modified: documents(304),
            seconds: seconds.get_or_create_owned(&On { route: DOCUMENT }),
        };
        let metrics = Self {
            registry: Registry::with_prefix("simplefeed"),
            requests,
            seconds,
            documents,
            entries: Family::default(),
            commit_seconds: durations(),
            group: Histogram::new(exponential_buckets(1.0, 4.0, 8)),
            log,
            looked: Mutex::new(Looked {
                folder,
                archive,
                commits: Gauge::default(),
                feeds: Gauge::default(),
                documents: Gauge::default(),
                lag: Gauge::default(),
                last: Gauge::default(),
                open: Gauge::default(),
                log_bytes: Gauge::default(),
                free_bytes: Gauge::default(),
            }),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let to = &mut self.registry;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        to.register("build", "The program", Info::new(version));
        to.register("requests", "Requests answered", self.requests.clone());
        let seconds = Unit::Seconds;
        to.register_with_unit(
            "request_duration",
            "Time until an answer was ready to be sent",
            seconds,
            self.seconds.clone(),
        );
        to.register(
            "entries",
            "Entries somebody wanted to publish, by what became of them",
            self.entries.clone(),
        );
        to.register_with_unit(
            "commit_duration",
            "Time to store a group of requests, until it is on the disk",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        to.register(
            "commit_requests",
            "Requests that shared a commit",
            self.group.clone(),
        );
        let looked = self
            .looked
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        to.register("commits", "Commits in the log", looked.commits.clone());
        to.register("feeds", "Feeds", looked.feeds.clone());
        to.register(
            "archived_documents",
            "Documents archived since the start",
            looked.documents.clone(),
        );
        to.register(
            "archive_lag_commits",
            "Commits whose closed documents are not files yet",
            looked.lag.clone(),
        );
        to.register_with_unit(
            "last_commit_timestamp",
            "When the newest entry was committed",
            Unit::Seconds,
            looked.last.clone(),
        );
        to.register(
            "log_open",
            "1 while the log takes entries",
            looked.open.clone(),
        );
        to.register_with_unit(
            "log",
            "Size of the log on the disk",
            Unit::Bytes,
            looked.log_bytes.clone(),
        );
        to.register_with_unit(
            "disk_free",
            "Room on the disk of the log",
            Unit::Bytes,
            looked.free_bytes.clone(),
        );
        self
    }

    /// Counts an answer.
    pub fn answered(&self, route: &'static str, status: u16, time: Duration) {
        if route == DOCUMENT && matches!(status, 200 | 304) {
            let Documents {
                sent,
                not_modified,
                seconds,
            } = &self.documents;
            let counted = if status == 200 { sent } else { not_modified };
            counted.inc();
            seconds.observe(time.as_secs_f64());
            return;
        }
        let status = status.into();
        self.requests
            .get_or_create(&Answered { route, status })
            .inc();
        let seconds = self.seconds.get_or_create(&On { route });
        seconds.observe(time.as_secs_f64());
    }

    /// Counts entries that somebody wanted to publish.
    pub fn published(&self, fate: Fate, entries: usize) {
        let result = match fate {
            Fate::Appended => "appended",
            Fate::Duplicate => "duplicate",
            Fate::Refused => "refused",
        };
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.entries.get_or_create(&With { result }).inc_by(entries);
    }

    /// Counts a commit that some requests share.
    pub fn committed(&self, requests: usize, time: Duration) {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.group.observe(requests.into());
        self.commit_seconds.observe(time.as_secs_f64());
    }

    /// Returns all of it, as Prometheus reads it. Looks at the disk.
    pub fn text(&self) -> String {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let head = self.log.head();
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        looked.commits.set(whole(head.number.0));
        looked.feeds.set(whole(head.feeds));
        looked.documents.set(whole(looked.archive.made()));
        let lag = head.number.0.saturating_sub(looked.archive.reached().0);
        looked.lag.set(whole(lag));
        let last = Duration::from_micros(u64::try_from(head.last.micros()).unwrap_or(0));
        looked.last.set(last.as_secs_f64());
        looked.open.set(self.log.takes_entries().is_ok().into());
        // What cannot be measured keeps its last value.
        if let Ok(bytes) = folder_bytes(&looked.folder.join("sled")) {
            looked.log_bytes.set(whole(bytes));
        }
        if let Ok(bytes) = free_bytes(&looked.folder) {
            looked.free_bytes.set(whole(bytes));
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to memory does not fail");
        text
    }
}
