//! Metrics of the server, for Prometheus.
//!
//! Shell: the log, the disk and `/proc`, which each request for the metrics reads. No metric names
//! a feed: some feeds are closed, and there may be a million.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
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
use simplefeed_http::traffic::Traffic;
use simplefeed_log::{
    EntryLog,
    space::{folder_bytes, free_bytes},
};
use simplefeed_process::{clock::Clock, threads::Threads};
use simplefeed_publish::observer::WriterObserver;
use simplefeed_views::Views;

use crate::logging;

/// The media type of `OpenMetrics`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of Prometheus' own text format, which every scraper reads.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the metrics in the text format that `accept` asks for, and the media type of that
/// format.
pub(crate) fn form_of(text: String, accept: &str) -> (String, &'static str) {
    if accept.contains("application/openmetrics-text") {
        return (text, OPEN_METRICS);
    }
    (in_prometheus_form(&text), PROMETHEUS)
}

/// Returns `OpenMetrics` text in Prometheus' own format. There, a counter is named as its samples
/// are, an info is a gauge, and the lines `# UNIT` and `# EOF` are absent.
fn in_prometheus_form(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = "";
    for line in text.lines() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        // The help is kept until the kind is known, because the name of the metric depends on the
        // kind.
        if line.starts_with("# HELP ") {
            help = line;
            continue;
        }
        let Some(rest) = line.strip_prefix("# TYPE ") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
        let (suffix, kind) = match kind {
            "counter" => ("_total", kind),
            "info" => ("_info", "gauge"),
            "unknown" => ("", "untyped"),
            _ => ("", kind),
        };
        if let Some(text) = help
            .strip_prefix("# HELP ")
            .and_then(|help| help.strip_prefix(name))
        {
            out.push_str(&["# HELP ", name, suffix, text, "\n"].concat());
        }
        out.push_str(&["# TYPE ", name, suffix, " ", kind, "\n"].concat());
    }
    out
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    view: &'static str,
}

/// View whose numbers also have metrics of their own, without a label.
const ARCHIVE: &str = "archive-files";

/// Metrics that are measured on each request for the metrics, and the handles that this takes.
#[derive(Debug)]
struct RequestMetrics {
    folder: PathBuf,
    views: Views,
    commits: Gauge,
    feeds: Gauge,
    documents: Gauge,
    lag: Gauge,
    lags: Family<Of, Gauge>,
    last: Gauge<f64, AtomicU64>,
    open: Gauge,
    log_bytes: Gauge,
    free_bytes: Gauge,
    clock: Clock,
    clock_ahead: Gauge<f64, AtomicU64>,
    clock_behind: Gauge<f64, AtomicU64>,
    dropped_lines: Counter,
    threads: Threads,
    panics: Counter,
    process: Process,
}

impl RequestMetrics {
    fn register_views(&self, to: &mut Registry) {
        to.register(
            "archived_documents",
            "Documents archived since the start",
            self.documents.clone(),
        );
        to.register(
            "archive_lag_commits",
            "Commits whose closed documents are not files yet",
            self.lag.clone(),
        );
        to.register(
            "view_lag_commits",
            "Commits that a view has not carried out yet",
            self.lags.clone(),
        );
    }

    fn register_process(&self, to: &mut Registry) {
        to.register(
            "log_lines_dropped",
            "Lines for stderr that nobody took, or that could not be written",
            self.dropped_lines.clone(),
        );
        to.register(
            "thread_panics",
            "Panics of threads, which began again",
            self.panics.clone(),
        );
    }
}

/// Process metrics under the names that Prometheus' client libraries use.
#[derive(Debug, Default)]
struct Process {
    cpu: Counter<f64, AtomicU64>,
    resident: Gauge,
    open_files: Gauge,
    max_files: Gauge,
    started: Gauge<f64, AtomicU64>,
}

impl Process {
    /// Reads `/proc`. A metric that cannot be read keeps its last value.
    fn look_at_process(&self) {
        if let Ok(stat) = std::fs::read_to_string("/proc/self/stat") {
            // The program's name comes before the last `)`, and may hold anything, spaces too.
            let fields: Vec<&str> = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .collect();
            let field = |index: usize| fields.get(index)?.parse::<f64>().ok();
            // Fields 14 and 15 of the file (proc(5)): user and system time.
            if let (Some(user), Some(system)) = (field(11), field(12)) {
                let seconds = (user + system) / TICKS;
                let more = seconds - self.cpu.get();
                // `inc_by` takes the difference, and a counter never falls.
                if more > 0.0 {
                    self.cpu.inc_by(more);
                }
            }
            // Field 22: the start of the process, in ticks after the boot.
            if let (Some(ticks), Some(booted)) = (field(19), boot_second()) {
                self.started.set(booted + ticks / TICKS);
            }
        }
        if let Some(kib) = resident_kib() {
            self.resident.set(kib.saturating_mul(1_024));
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            self.open_files
                .set(i64::try_from(files.count()).unwrap_or(i64::MAX));
        }
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        if let Some(most) = most {
            self.max_files.set(i64::try_from(most).unwrap_or(i64::MAX));
        }
    }

    fn register_in(&self, to: &mut Registry) {
        let seconds = || Unit::Seconds;
        to.register_with_unit(
            "process_cpu",
            "CPU time of the process",
            seconds(),
            self.cpu.clone(),
        );
        to.register_with_unit(
            "process_resident_memory",
            "Memory of the process",
            Unit::Bytes,
            self.resident.clone(),
        );
        to.register(
            "process_open_fds",
            "Open files of the process",
            self.open_files.clone(),
        );
        to.register(
            "process_max_fds",
            "Most files the process may have open",
            self.max_files.clone(),
        );
        to.register_with_unit(
            "process_start_time",
            "When the process was started",
            seconds(),
            self.started.clone(),
        );
    }
}

/// Ticks of `/proc/self/stat` in a second, which are 100 on every Linux.
const TICKS: f64 = 100.0;

fn resident_kib() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Returns when the system was started, in seconds from 1970.
fn boot_second() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// Metrics of the busiest route, which need no lookup by label.
#[derive(Debug)]
struct DocumentMetrics {
    sent: Counter,
    not_modified: Counter,
    seconds: Histogram,
}

/// Label of requests for documents, the busiest route.
pub const DOCUMENT: &str = "document";

/// All metrics: counts since the start, and current values.
pub struct Metrics {
    registry: Registry,
    /// Metrics without the `simplefeed` prefix.
    plain: Registry,
    /// Connections that are open now, at all listeners.
    connections: Gauge,
    /// Number of bytes of bodies sent since the start.
    sent_bytes: Counter,
    requests: Family<AnswerLabels, Counter>,
    seconds: Family<On, Histogram>,
    documents: DocumentMetrics,
    entries: Family<With, Counter>,
    commit_seconds: Histogram,
    group: Histogram,
    log: Arc<dyn EntryLog>,
    looked: Mutex<RequestMetrics>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Outcome of entries that a request wanted to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFate {
    /// The log has them now.
    Appended,
    /// The log had them already.
    Duplicate,
    /// The log does not get them.
    Refused,
}

impl Metrics {
    /// Returns the metrics of the log in a data folder, of its views, and of threads beside the
    /// writer.
    pub fn new(
        log: Arc<dyn EntryLog>,
        views: Views,
        folder: PathBuf,
        clock: Clock,
        threads: Threads,
    ) -> Self {
        // The buckets reach from 50 µs to 26 s.
        let durations = || Histogram::new(exponential_buckets(0.000_05, 3.0, 13));
        let seconds: Family<On, Histogram> = Family::new_with_constructor(durations);
        let requests: Family<AnswerLabels, Counter> = Family::default();
        let documents = |status| {
            let route = DOCUMENT;
            requests.get_or_create_owned(&AnswerLabels { route, status })
        };
        let documents = DocumentMetrics {
            sent: documents(200),
            not_modified: documents(304),
            seconds: seconds.get_or_create_owned(&On { route: DOCUMENT }),
        };
        let metrics = Self {
            registry: Registry::with_prefix("simplefeed"),
            plain: Registry::default(),
            connections: Gauge::default(),
            sent_bytes: Counter::default(),
            requests,
            seconds,
            documents,
            entries: Family::default(),
            commit_seconds: durations(),
            // The buckets reach from 1 to 16,384 requests.
            group: Histogram::new(exponential_buckets(1.0, 4.0, 8)),
            log,
            looked: Mutex::new(RequestMetrics {
                folder,
                views,
                commits: Gauge::default(),
                feeds: Gauge::default(),
                documents: Gauge::default(),
                lag: Gauge::default(),
                lags: Family::default(),
                last: Gauge::default(),
                open: Gauge::default(),
                log_bytes: Gauge::default(),
                free_bytes: Gauge::default(),
                clock,
                clock_ahead: Gauge::default(),
                clock_behind: Gauge::default(),
                dropped_lines: Counter::default(),
                threads,
                panics: Counter::default(),
                process: Process::default(),
            }),
        };
        metrics.all_registered()
    }

    fn all_registered(mut self) -> Self {
        self.register_traffic();
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
        let looked = self.looked.get_mut();
        to.register("commits", "Commits in the log", looked.commits.clone());
        to.register("feeds", "Feeds", looked.feeds.clone());
        looked.register_views(to);
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
        to.register_with_unit(
            "clock_ahead",
            "How far the system clock is ahead of the one that entries are stamped by",
            Unit::Seconds,
            looked.clock_ahead.clone(),
        );
        to.register_with_unit(
            "clock_behind",
            "How far the system clock is behind a moment that was reached before",
            Unit::Seconds,
            looked.clock_behind.clone(),
        );
        looked.register_process(to);
        // Prometheus' client libraries give these names no prefix.
        looked.process.register_in(&mut self.plain);
        self
    }

    fn register_traffic(&mut self) {
        let to = &mut self.registry;
        to.register("connections", "Open connections", self.connections.clone());
        to.register_with_unit(
            "response_body",
            "Bytes of bodies of answers",
            Unit::Bytes,
            self.sent_bytes.clone(),
        );
    }

    /// Counts entries that a request wanted to publish.
    pub fn published(&self, fate: EntryFate, entries: usize) {
        let result = match fate {
            EntryFate::Appended => "appended",
            EntryFate::Duplicate => "duplicate",
            EntryFate::Refused => "refused",
        };
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.entries.get_or_create(&With { result }).inc_by(entries);
    }

    /// Returns all metrics as `OpenMetrics`. Measures the folder of the log.
    pub fn text(&self) -> String {
        // The lock is held until the text is complete, so that the values of one answer belong
        // together.
        let looked = self.looked.lock();
        let head = self.log.head();
        // A gauge is an `i64`, which no count of a log exceeds.
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        looked.commits.set(whole(head.number.0));
        looked.feeds.set(whole(head.feeds));
        for (view, progress) in looked.views.iter() {
            let lag = head.number.0.saturating_sub(progress.reached().0);
            let view_lag = Of { view: view.name() };
            looked.lags.get_or_create(&view_lag).set(whole(lag));
            // The alerts and the dashboard ask for these two numbers by names without a label.
            if view.name() == ARCHIVE {
                looked.lag.set(whole(lag));
                looked.documents.set(whole(view.made()));
            }
        }
        let last = Duration::from_micros(u64::try_from(head.last.micros()).unwrap_or(0));
        looked.last.set(last.as_secs_f64());
        looked.open.set(self.log.takes_entries().is_ok().into());
        // A metric that cannot be measured keeps its last value.
        let measure = |name| folder_bytes(&looked.folder.join(name));
        if let Ok((journal, sled)) =
            measure("journal").and_then(|bytes| Ok((bytes, measure("sled")?)))
        {
            looked.log_bytes.set(whole(journal + sled));
        }
        if let Ok(bytes) = free_bytes(&looked.folder) {
            looked.free_bytes.set(whole(bytes));
        }
        let apart = looked.clock.apart();
        looked.clock_ahead.set(apart.ahead.as_secs_f64());
        looked.clock_behind.set(apart.behind.as_secs_f64());
        for (counter, count) in [
            (&looked.dropped_lines, logging::dropped_lines()),
            (&looked.panics, looked.threads.panics()),
        ] {
            // The counts are kept elsewhere, and a counter can only be incremented by the
            // difference.
            counter.inc_by(count.saturating_sub(counter.get()));
        }
        looked.process.look_at_process();
        let mut text = String::new();
        encode(&mut text, &self.plain).expect("writing to memory does not fail");
        // Two registries make one text, which may have only one `# EOF`, at the end.
        let end = text.trim_end_matches("# EOF\n").len();
        text.truncate(end);
        encode(&mut text, &self.registry).expect("writing to memory does not fail");
        text
    }

    /// Returns the number of connections that are open now, at all listeners.
    pub(crate) fn open_connections(&self) -> i64 {
        self.connections.get()
    }
}

impl Traffic for Metrics {
    fn opened(&self) {
        self.connections.inc();
    }

    fn closed(&self) {
        self.connections.dec();
    }

    fn answered(&self, route: &'static str, status: u16, took: Duration) {
        // The busiest route, whose counters need no lookup by label.
        if route == DOCUMENT && matches!(status, 200 | 304) {
            let DocumentMetrics {
                sent,
                not_modified,
                seconds,
            } = &self.documents;
            let counted = if status == 200 { sent } else { not_modified };
            counted.inc();
            seconds.observe(took.as_secs_f64());
            return;
        }
        let status = status.into();
        self.requests
            .get_or_create(&AnswerLabels { route, status })
            .inc();
        let seconds = self.seconds.get_or_create(&On { route });
        seconds.observe(took.as_secs_f64());
    }

    fn sent(&self, bytes: u64) {
        // All processors write this counter, so an empty body does not touch it.
        if bytes > 0 {
            self.sent_bytes.inc_by(bytes);
        }
    }
}

impl WriterObserver for Metrics {
    fn committed(&self, requests: usize, took: Duration) {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.group.observe(requests.into());
        self.commit_seconds.observe(took.as_secs_f64());
    }

    fn panicked(&self) {
        // The process is about to abort, and the thread that writes the lines ends with the
        // process.
        logging::flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_told_in_the_form_that_is_asked_for() {
        let open = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1\n\
                    # HELP b Build.\n# TYPE b info\nb_info{v=\"1\"} 1\n# EOF\n";
        let (text, kind) = form_of(
            open.into(),
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
        );
        assert_eq!((text.as_str(), kind), (open, OPEN_METRICS));
        let (text, kind) = form_of(open.into(), "*/*");
        assert_eq!(kind, PROMETHEUS);
        assert_eq!(
            text,
            "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total 1\n\
             # HELP b_info Build.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n"
        );
    }
}
