//! The page about the server.
//!
//! Shell: the log and its disk, the clock.

use std::sync::Arc;

use askama::Template;
use simplefeed_core::{feed::Epoch, timestamp::Timestamp};
use simplefeed_http::{
    endpoint::{Exchange, Outcome},
    problem::Problem,
};
use simplefeed_log::EndReason;
use simplefeed_process::clock::ClockStanding;

use super::{PageParts, Top, moment::Moment, private_page, render_page};
use crate::endpoints::off_thread;

#[derive(Template)]
#[template(path = "server.html")]
struct ServerPage {
    top: Top,
    is_ready: bool,
    reason: String,
    /// Trouble with the system clock; empty if there is none, or if `reason` tells of it.
    clock: &'static str,
    url: String,
    feeds: u64,
    timelines: Option<u64>,
    commits: u64,
    newest: Option<Moment>,
    /// When the log was restored last, according to the number of the epoch.
    restored: Option<Moment>,
    connections: i64,
    views: Vec<(&'static str, u64)>,
}

/// Shows the state of the server to a reader who administers all feeds.
pub(super) async fn show(parts: &PageParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    exchange
        .access
        .administers_all(exchange.headers)
        .map_err(Problem::from)?;
    // The log is asked on another thread, because it asks the disk for its free room.
    let log = Arc::clone(&parts.shelf.log);
    let takes = off_thread(move || Ok(log.takes_entries())).await?;
    let clock = parts.shelf.clock.standing();
    let takes = match (takes, clock) {
        (Ok(()), ClockStanding::Refused { .. }) => {
            Err("the system clock is more than five years ahead of the last entry".into())
        }
        (Ok(()), _) => Ok(()),
        (Err(EndReason::Full(space)), _) => Err(space.to_string()),
        (Err(EndReason::Lacking), _) => {
            Err("the system lacks something, of which its messages tell".into())
        }
        (Err(EndReason::Failed), _) => Err("a write failed, restart it".into()),
        (Err(EndReason::Replaced), _) => Err("a document beside its log is of another one".into()),
        (Err(EndReason::Displaced), _) => Err("its data folder is not what it opened".into()),
    };
    let head = parts.shelf.log.head();
    let views = parts.views.iter().map(|(view, progress)| {
        let behind = head.number.0.saturating_sub(progress.reached().0);
        (view.name(), behind)
    });
    let page = ServerPage {
        top: Top::of_exchange(&exchange, 0),
        is_ready: takes.is_ok(),
        reason: takes.err().unwrap_or_default(),
        clock: match clock {
            ClockStanding::Followed | ClockStanding::Refused { .. } => "",
            ClockStanding::Behind { .. } => {
                "it is behind what was reached before, so entries are stamped behind the last one"
            }
            ClockStanding::Held => "it has leapt ahead, and is followed soon if it stays there",
            ClockStanding::Far => {
                "it has leapt ahead by more than a month; it is followed after simplefeed-server clock accept"
            }
        },
        url: parts.shelf.public_url.clone(),
        feeds: head.feeds,
        timelines: parts.shelf.timelines.count_at_once(),
        commits: head.number.0,
        newest: (head.number.0 > 0).then(|| Moment::of(head.last, parts.shelf.clock.now())),
        restored: (head.epoch > Epoch::FIRST).then(|| {
            // From the second epoch on, the number is the second since 1970 in which the epoch
            // began, unless the clock was behind the epoch before.
            let began = Timestamp::from_micros(i64::from(head.epoch.0) * 1_000_000);
            Moment::of(began, parts.shelf.clock.now())
        }),
        connections: parts.metrics.open_connections(),
        views: views.collect(),
    };
    Ok(private_page(render_page(&page)?))
}
