//! Changes beside entries: settings of feeds, and items that timelines follow.
//!
//! Pure, but for the requests that ask for them. After a power cut, each has the value of the last change that was
//! acknowledged by then, or of a later one.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    disk::Moment,
    oracle::Opened,
    record::{Exchange, Recording},
};
use crate::http::Request;

/// Values of one thing in the order in which requests gave them, each with the moment of its answer.
type Values = Vec<(Option<Moment>, Value)>;

/// Checks all that was changed by a moment.
///
/// # Errors
///
/// Returns what has another value.
pub(super) fn check(recording: &Recording, opened: &Opened, moment: Moment) -> Result<(), String> {
    for (feed, members) in settings(recording) {
        let is_due = |values: &&Values| last_promised(values, moment).is_some();
        if !members.values().any(|values| is_due(&values)) {
            continue;
        }
        // It changes nothing, and is answered with all there is.
        let answer = opened.send(&Request::put(&format!("/feeds/{feed}"), "{}"))?;
        if answer.status != 200 {
            return Err(format!("the settings of {feed} give {}", answer.status));
        }
        let found = answer.json();
        for (member, values) in &members {
            compare(
                &format!("{member} of {feed}"),
                &found[member],
                values,
                moment,
            )?;
        }
    }
    for (timeline, items) in follows(recording) {
        if !items
            .values()
            .any(|values| last_promised(values, moment).is_some())
        {
            continue;
        }
        let path = format!("/feeds/{timeline}/following.json");
        let found = opened.get(&path)?.json();
        let is_named = |name: &Value, item: &str| name == item || name["name"] == item;
        let has = |list: &str, item: &str| {
            let list = found[list].as_array();
            list.is_some_and(|list| list.iter().any(|name| is_named(name, item)))
        };
        for (item, values) in &items {
            let followed = json!(has("feeds", item) || has("patterns", item));
            compare(&format!("{item} in {timeline}"), &followed, values, moment)?;
        }
    }
    Ok(())
}

fn last_promised(values: &Values, moment: Moment) -> Option<usize> {
    values
        .iter()
        .rposition(|(answered, _)| answered.is_some_and(|answered| answered <= moment))
}

fn compare(what: &str, found: &Value, values: &Values, moment: Moment) -> Result<(), String> {
    let Some(last) = last_promised(values, moment) else {
        return Ok(());
    };
    if values[last..].iter().any(|(_, value)| value == found) {
        return Ok(());
    }
    Err(format!("{what} is {found}, and was {}", values[last].1))
}

/// Returns the members of settings by feed that requests gave, and the feeds' ids.
fn settings(recording: &Recording) -> BTreeMap<&str, BTreeMap<String, Values>> {
    let mut feeds: BTreeMap<&str, BTreeMap<String, Values>> = BTreeMap::new();
    for (exchange, feed, rest) in puts_and_deletes(recording) {
        if rest.is_some() {
            continue;
        }
        let given: Value = serde_json::from_slice(&exchange.request.body).unwrap();
        let members = feeds.entry(feed).or_default();
        let mut add = |member: &str, value: Value| {
            let values = members.entry(member.to_owned()).or_default();
            values.push((exchange.answered, value));
        };
        for (member, value) in given.as_object().expect("settings are an object") {
            add(member, value.clone());
        }
        if let Some(response) = &exchange.response {
            add("id", response.json()["id"].clone());
        }
    }
    feeds
}

/// Returns whether items are followed, by timeline and item.
fn follows(recording: &Recording) -> BTreeMap<&str, BTreeMap<String, Values>> {
    let mut timelines: BTreeMap<&str, BTreeMap<String, Values>> = BTreeMap::new();
    for (exchange, timeline, rest) in puts_and_deletes(recording) {
        if let Some(item) = rest.and_then(|rest| rest.strip_prefix("following/")) {
            let items = timelines.entry(timeline).or_default();
            let followed = json!(exchange.request.method == "PUT");
            let values = items.entry(item.to_owned()).or_default();
            values.push((exchange.answered, followed));
        }
    }
    timelines
}

/// Returns the requests that change a feed or something below it, and were not refused.
fn puts_and_deletes(
    recording: &Recording,
) -> impl Iterator<Item = (&Exchange, &str, Option<&str>)> {
    recording.ledger.iter().filter_map(|exchange| {
        let request = &exchange.request;
        let is_change = ["PUT", "DELETE"].contains(&request.method.as_str());
        let response = exchange.response.as_ref();
        let was_refused = response.is_some_and(|response| response.status >= 400);
        let path = request.path.strip_prefix("/feeds/")?;
        let (feed, rest) = match path.split_once('/') {
            Some((feed, rest)) => (feed, Some(rest)),
            None => (path, None),
        };
        (is_change && !was_refused).then_some((exchange, feed, rest))
    })
}
