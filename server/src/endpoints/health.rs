//! Endpoints for supervisors: whether the process lives, and whether the server is ready.
//!
//! Shell: the log and its disk, threads.

use std::{sync::Arc, time::Duration};

use hyper::{Method, StatusCode};
use simplefeed_http::{
    answers::plain,
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Verb},
    problem::Problem,
};
use simplefeed_log::{EndReason, EntryLog};
use simplefeed_process::{clock::Clock, clock::ClockStanding, threads::Threads};
use simplefeed_publish::WriterHandle;
use tokio::{sync::Semaphore, time::timeout};

use super::{Site, off_thread};

/// Longest time for the look at the log's disk. A server that needs longer takes no entries,
/// either.
const PATIENCE: Duration = Duration::from_secs(10);

/// One permit, so that only one look at the log runs at a time.
static LOOKS: Semaphore = Semaphore::const_new(1);

/// Handles for the state of a server.
#[derive(Debug)]
pub struct HealthParts {
    /// The log, without its timelines.
    pub log: Arc<dyn EntryLog>,
    /// Way to the writer.
    pub publisher: WriterHandle,
    /// The clock that commits are stamped by.
    pub clock: Clock,
    /// Threads beside the writer.
    pub threads: Threads,
}

/// Paths of health checks.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[
    Endpoint {
        path: "/healthz",
        label: "health",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Nothing,
            handle: |_, _| {
                let answer = plain(StatusCode::OK, "ok\n");
                Box::pin(async { Ok(Outcome::Answer(answer)) })
            },
        }],
    },
    Endpoint {
        path: "/readyz",
        label: "health",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Nothing,
            handle: |site, exchange| Box::pin(show_readiness(&site.health, exchange)),
        }],
    },
];

/// Tells whether the log takes entries, and all threads are well. A clock that is behind or ahead
/// does not matter, unless the clock is refused.
async fn show_readiness(parts: &HealthParts, _: Exchange<'_>) -> Result<Outcome, Problem> {
    let unwell = |text: &'static str| plain(StatusCode::SERVICE_UNAVAILABLE, text);
    let unwell_by = |text: String| plain(StatusCode::SERVICE_UNAVAILABLE, text);
    // The writer is asked first, because a look at the log may wait for a writer that is stuck.
    if let Some(stuck) = parts.publisher.stuck() {
        return Ok(Outcome::Answer(unwell_by(format!("{stuck}\n"))));
    }
    // The look runs on another thread, because it asks the disk for its free room. Only one look
    // runs at a time, because each look at a disk that hangs keeps a thread.
    let looked = async {
        let turn = LOOKS.acquire().await.ok();
        let log = Arc::clone(&parts.log);
        off_thread(move || {
            let _turn = turn;
            Ok(log.takes_entries())
        })
        .await
    };
    let Ok(looked) = timeout(PATIENCE, looked).await else {
        return Ok(Outcome::Answer(unwell(
            "the disk of the log does not answer\n",
        )));
    };
    Ok(Outcome::Answer(match looked? {
        Err(EndReason::Failed) => {
            unwell("the log failed: it takes no entries until the server is restarted\n")
        }
        Err(EndReason::Displaced) => {
            unwell("the data folder is not what the server opened: the log takes no entries\n")
        }
        Err(EndReason::Replaced) => unwell(
            "a document beside the log is of another one, so the log takes no entries: stop the server, and name the right \
             --www, or run `simplefeed-server recover`\n",
        ),
        Err(EndReason::Lacking) => unwell(
            "the log waits for something that the system lacks: the messages of the server say what\n",
        ),
        Err(EndReason::Full(space)) => unwell_by(format!("the log takes no entries: {space}\n")),
        Ok(()) if matches!(parts.clock.standing(), ClockStanding::Refused { .. }) => unwell(
            "the system clock is more than five years ahead of the last entry: run `simplefeed-server clock accept`\n",
        ),
        Ok(()) => match parts.threads.panicked() {
            Some(name) => unwell_by(format!(
                "the thread {name} failed a short time ago and began again; the log says why\n"
            )),
            None => plain(StatusCode::OK, "ready\n"),
        },
    }))
}
