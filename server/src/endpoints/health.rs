//! Endpoints for supervisors: whether the process lives, and whether it is ready.

use std::sync::Arc;

use hyper::{Method, StatusCode};

use super::Site;
use crate::{
    http::{
        answers::plain,
        endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Verb},
        pipeline::off_thread,
        problem::Problem,
    },
    log::Closed,
};

/// Lag of the clock behind the last commit at which `/readyz` fails, in microseconds.
const CLOCK_LAG_MICROS_MAX: i64 = 60_000_000;

/// Paths of health checks.
pub const ENDPOINTS: &[Endpoint<Site>] = &[
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
            handle: |site, exchange| Box::pin(ready(site, exchange)),
        }],
    },
];

/// Tells whether the log takes entries, and whether the clock is right.
async fn ready(site: &Site, _: Exchange<'_>) -> Result<Outcome, Problem> {
    let log = Arc::clone(&site.log);
    let now = (site.clock)();
    // Off the thread, because the room on the disk is looked up.
    let looked = off_thread(move || {
        let ahead = log.head().last.micros().saturating_sub(now.micros());
        Ok((log.takes_entries(), ahead))
    });
    let unwell = |text| plain(StatusCode::SERVICE_UNAVAILABLE, text);
    Ok(Outcome::Answer(match looked.await? {
        (Err(Closed::Failed), _) => unwell("the log takes no entries\n"),
        (Err(Closed::Displaced), _) => {
            unwell("the data folder is not what the server opened: the log takes no entries\n")
        }
        (Err(Closed::Full), _) => unwell("the disk is full: the log takes no entries\n"),
        (Ok(()), ahead) if ahead > CLOCK_LAG_MICROS_MAX => {
            unwell("the clock is behind the last entry\n")
        }
        (Ok(()), _) => plain(StatusCode::OK, "ready\n"),
    }))
}
