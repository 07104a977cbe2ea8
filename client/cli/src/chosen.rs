//! Options that choose the printed entries among all entries of a replay.
//!
//! Shell: the clock, from which an age counts. For the bookmark, entries that are left out count as
//! printed.

use clap::Args;
use simplefeed_client::{Delivery, Since};
use simplefeed_core::{event::Category, timestamp::Timestamp};

use crate::since;

/// Which entries to print
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ChosenArgs {
    /// Print only entries that are dated before this: a date-time, a date, or an age such as 90m or
    /// 2d. All are read, since publishers may date them in any order
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "exec")]
    until: Option<Timestamp>,
    /// Print only entries with this category, by its term or label; of several, those with any
    #[arg(long, value_name = "TERM", conflicts_with = "exec")]
    category: Vec<String>,
    /// Print only the number of entries, once all are read
    #[arg(long, conflicts_with_all = ["exec", "bookmark", "state", "format"])]
    pub(crate) count: bool,
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    match since::parse(text) {
        Ok(Since::Time(time)) => Ok(time),
        _ => Err("neither a date-time, a date, nor an age such as 90m".into()),
    }
}

impl ChosenArgs {
    /// Returns whether the command prints an entry. An entry that cannot be read counts as chosen,
    /// so that the error is reported.
    pub(crate) fn takes(&self, delivery: &Delivery) -> bool {
        let Self {
            until, category, ..
        } = self;
        if until.is_none() && category.is_empty() {
            return true;
        }
        let Ok(event) = delivery.event() else {
            return true;
        };
        let updated = event.updated.as_deref().and_then(Timestamp::parse);
        // An entry without a date may be older than `until`, so the entry is printed.
        let is_before = until.is_none_or(|until| updated.is_none_or(|updated| updated < until));
        let wanted = |name: &String| category.contains(name);
        let mut categories = event.categories.iter().flatten();
        let has_category = categories.any(|category| match category {
            Category::Term(term) => wanted(term),
            Category::Full(full) => wanted(&full.term) || full.label.as_ref().is_some_and(wanted),
        });
        is_before && (category.is_empty() || has_category)
    }
}
