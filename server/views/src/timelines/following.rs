//! The view of timelines: the graph follows the log, so that readers find it nearly up to date.
//!
//! Shell: a lock and files, by way of [`Timelines`].

use std::{sync::Arc, time::Duration};

use simplefeed_core::{commit::Outline, feed::CommitNumber};
use simplefeed_process::stop::Stop;

use super::Timelines;
use crate::{
    ApplyOutcome, View,
    error::ViewError,
    follower::Grace,
    shown::{ShownLog, ShownSeries},
};

/// Pause of a follower that is up to date. Readers that come meanwhile catch up by themselves.
const PACE: Duration = Duration::from_millis(50);
/// Name of the view, of the folder of runs, and of the label in metrics.
pub const NAME: &str = "timelines";

/// The view of a server's timelines.
#[derive(Debug)]
pub struct TimelinesView(pub Arc<Timelines>);

impl View for TimelinesView {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&self, log: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        // The graph and the lists have cursors of their own. The newest commit is applied again, so
        // that the work begins without waiting for another commit.
        Ok(CommitNumber(log.head().number.0.saturating_sub(1)))
    }

    fn apply(&self, _: &Outline, _: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        // `keep_course` applies the commits to the graph, as readers do.
        Ok(ApplyOutcome::More)
    }

    fn carry_out(&self, _: &dyn ShownSeries, grace: &Grace<'_>) -> Result<bool, ViewError> {
        self.0.keep_course(|| grace.has_begun(), || grace.lasts())
    }

    fn pause(&self, stop: &Stop) {
        stop.is_requested_within(PACE);
    }
}
