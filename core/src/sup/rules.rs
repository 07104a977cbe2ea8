//! Findings of the reference validator about a SUP document.
//!
//! Pure. The rules and their order are those of SUP's own validator, and only the first finding
//! counts (SPECS 1.7). Three defects of that validator are mended: offsets from UTC and whole days
//! of a window count, and a URL may have a port.

use serde::Serialize;
use serde_json::Value;

use super::is_token;
use crate::timestamp::Timestamp;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Consumers cannot use the document.
    Error,
    /// Consumers can use the document, which could be better.
    Suggestion,
}

/// One fault of a document, or one suggestion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Whether consumers can still use the document.
    pub severity: Severity,
    /// One sentence for the publisher, lower case, without a period.
    pub message: String,
}

fn error(message: impl Into<String>) -> Finding {
    Finding {
        severity: Severity::Error,
        message: message.into(),
    }
}

fn suggestion(message: impl Into<String>) -> Finding {
    Finding {
        severity: Severity::Suggestion,
        message: message.into(),
    }
}

/// Returns the first finding about a SUP document; `None` if there is neither a fault nor a
/// suggestion.
///
/// # Examples
///
/// ```
/// use simplefeed_core::sup::rules::check;
///
/// assert_eq!(check(b"{").unwrap().message, "this is not JSON");
/// ```
pub fn check(body: &[u8]) -> Option<Finding> {
    match read_facts(body) {
        Ok(facts) => facts.suggest_better(),
        Err(found) => Some(found),
    }
}

/// Values on which the suggestions depend.
struct Facts {
    /// Time from `since_time` to `updated_time`, in seconds.
    window: i64,
    period: i64,
    available: usize,
}

impl Facts {
    fn suggest_better(&self) -> Option<Finding> {
        // The bounds of the reference validator.
        if !(10..=120).contains(&self.period) {
            return Some(suggestion(format!(
                "a period between 10 and 120 seconds serves most consumers; this one is {}",
                self.period
            )));
        }
        if self.window == self.period {
            return Some(suggestion(
                "the window is as long as the period; make it longer, so that successive ones overlap",
            ));
        }
        (self.available < 2)
            .then(|| suggestion("it is better to include at least two available_periods"))
    }
}

fn read_facts(body: &[u8]) -> Result<Facts, Finding> {
    let document: Value =
        serde_json::from_slice(body).map_err(|_error| error("this is not JSON"))?;
    let member = |name: &str| {
        let found = document.get(name);
        found.ok_or_else(|| error(format!("{name} is missing")))
    };
    // The order of these checks is the reference's, because only the first finding counts.
    let since = member("since_time")?;
    let updated = member("updated_time")?;
    let period = member("period")?;
    let updates = member("updates")?;
    let since = parse_time("since_time", since)?;
    let updated = parse_time("updated_time", updated)?;
    let period = parse_integer(period).ok_or_else(|| error("the period is not an integer"))?;
    let window = updated.second().saturating_sub(since.second());
    if window < period {
        return Err(error(format!(
            "the window from since_time to updated_time ({window} s) does not cover the period ({period} s)"
        )));
    }
    if period < 1 {
        return Err(error("the period is less than a second"));
    }
    check_updates(updates)?;
    let available = match document.get("available_periods") {
        Some(available) if is_something(available) => check_available(available)?,
        _ => 0,
    };
    Ok(Facts {
        window,
        period,
        available,
    })
}

/// Parses `YYYY-MM-DDTHH:MM:SS` with `Z` or an offset.
fn parse_time(name: &str, value: &Value) -> Result<Timestamp, Finding> {
    let shape = || error(format!("{name} is not a time as 2009-01-06T01:16:45Z"));
    let text = value.as_str().ok_or_else(shape)?;
    let is_whole = !text.contains('.');
    Timestamp::parse(text)
        .filter(|_| is_whole)
        .ok_or_else(shape)
}

fn parse_integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => {
            // Python's `int()`, which the reference uses, cuts the fraction of a number, and
            // refuses a text with a fraction.
            let text = number.to_string();
            let whole = text.split_once('.').map_or(&*text, |(whole, _)| whole);
            whole.parse().ok()
        }
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn check_updates(updates: &Value) -> Result<(), Finding> {
    let updates = updates
        .as_array()
        .ok_or_else(|| error("updates is not a list"))?;
    for update in updates {
        let pair = update.as_array().map(Vec::as_slice);
        let Some([Value::String(feed), Value::String(update)]) = pair else {
            return Err(error(format!("{update} is not a pair of two strings")));
        };
        if !is_token(feed) {
            return Err(error(format!(
                "{feed:?} is not a SUP-ID: 1 to 128 characters of a-z, A-Z, 0-9 and -"
            )));
        }
        if update.is_empty() {
            return Err(error(format!("the update-id of {feed} is empty")));
        }
    }
    Ok(())
}

/// Returns whether Python's truth test, which the reference uses, holds for the value.
fn is_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Bool(true) => true,
    }
}

fn check_available(available: &Value) -> Result<usize, Finding> {
    let available = available
        .as_object()
        .ok_or_else(|| error("available_periods is not a map"))?;
    for (seconds, url) in available {
        if seconds.trim().parse::<i64>().is_err() {
            return Err(error(format!(
                "available_periods: the key {seconds:?} is not an int"
            )));
        }
        if !url.as_str().is_some_and(is_url) {
            return Err(error(format!("available_periods: {url} is not a url")));
        }
    }
    Ok(available.len())
}

/// Returns whether `text` is `http://` or `https://`, a host, perhaps a port, and a path without
/// white space.
fn is_url(text: &str) -> bool {
    let rest = text
        .strip_prefix("http://")
        .or(text.strip_prefix("https://"));
    let Some((place, path)) = rest.and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    // A URL without a port gets 80 here, because the check below needs a number.
    let (host, port) = place.split_once(':').unwrap_or((place, "80"));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    !host.is_empty()
        && host.bytes().all(is_host)
        && port.parse::<u16>().is_ok()
        && !path.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document of 2008-11-12, as in the reference's tests.
    fn document(since: &str, updated: &str, period: &str, more: &str) -> String {
        format!(
            r#"{{"since_time":"2008-11-12T{since}Z","updated_time":"2008-11-12T{updated}Z","period":{period},{more}}}"#
        )
    }

    #[track_caller]
    fn finds(text: &str, severity: Severity, part: &str) {
        let found = check(text.as_bytes()).unwrap_or_else(|| panic!("nothing is found in {text}"));
        assert_eq!(found.severity, severity, "{found:?} in {text}");
        assert!(found.message.contains(part), "{found:?} in {text}");
    }

    /// SPECS 1.7: the vectors of the reference validator, in the same order.
    #[test]
    fn sup_1_7_the_vectors_of_the_reference() {
        use Severity::{Error, Suggestion};
        finds("{", Error, "JSON");
        finds("{3:3}", Error, "JSON");
        finds("{}", Error, "since_time is missing");
        let with = |updates: &str| document("23:51:20", "23:51:40", r#""10""#, updates);
        let bad_date = with(r#""updates":[]"#).replace("2008-11-12T23:51:20Z", "2008/11/12");
        finds(&bad_date, Error, "since_time");
        let bad = document("23:51:20", "23:51:40", r#""bad""#, r#""updates":[]"#);
        finds(&bad, Error, "period");
        let short = document("23:51:20", "23:51:40", r#""30""#, r#""updates":[]"#);
        finds(&short, Error, "(20 s) does not cover the period (30 s)");
        finds(&with(r#""updates":{}"#), Error, "list");
        finds(&with(r#""updates":[[2,3]]"#), Error, "strings");
        let bad_id = with(r#""updates":[["id1","v1"],["id%bad","v2"]]"#);
        finds(&bad_id, Error, "SUP-ID");
        let empty = with(r#""updates":[["id1","v1"],["id2",""]]"#);
        finds(&empty, Error, "update-id");
        let available = |periods: &str| {
            with(&format!(
                r#""updates":[["id1","v1"]],"available_periods":{periods}"#
            ))
        };
        finds(&available("[3]"), Error, "map");
        finds(&available(r#"{"bad":"http://x.com/test"}"#), Error, "int");
        finds(&available(r#"{"10":"mysuptest"}"#), Error, "url");
        let long = document("22:51:20", "23:51:40", r#""300""#, r#""updates":[]"#);
        finds(&long, Suggestion, "10 and 120");
        let tight = document("23:51:20", "23:51:40", r#""20""#, r#""updates":[]"#);
        finds(&tight, Suggestion, "overlap");
        finds(&with(r#""updates":[]"#), Suggestion, "available_periods");
        let one = available(r#"{"10":"http://x.com/test"}"#);
        finds(&one, Suggestion, "available_periods");
        let two = available(r#"{"10":"http://x.com/test","20":"http://x.com:8080/test"}"#);
        assert_eq!(check(two.as_bytes()), None);
    }

    /// SPECS 1.7: the date vectors.
    #[test]
    fn sup_1_7_times_have_a_zone() {
        let at = |text| parse_time("t", &Value::from(text));
        assert!(at("2008-11-12T01:55:05-00:00").is_ok());
        assert!(at("2008-11-12T01:55:05Z").is_ok());
        assert!(at("2008-11-12T01:55:05").is_err());
        assert!(at("2008-11-12T01:5505Z").is_err());
        assert!(at("2008-11-12T01:55:05.5Z").is_err());
    }

    /// Two defects of the reference are mended: the reference ignores offsets and whole days.
    #[test]
    fn offsets_and_whole_days_count() {
        let offset = r#"{"since_time":"2008-11-12T10:00:00+01:00","updated_time":"2008-11-12T10:01:10Z","period":60,"updates":[]}"#;
        finds(offset, Severity::Suggestion, "available_periods");
        let narrow = offset.replace("10:01:10Z", "10:01:10+02:00");
        finds(&narrow, Severity::Error, "does not cover");
        let day = r#"{"since_time":"2008-11-12T10:00:00Z","updated_time":"2008-11-13T10:00:05Z","period":60,"updates":[]}"#;
        finds(day, Severity::Suggestion, "available_periods");
    }

    /// SPECS 1.4: ids as publishers made them are legal, and an update can have 21 bytes (SUP-P6).
    #[test]
    fn sup_1_4_the_ids_of_the_reference_are_legal() {
        for id in [
            "276b6c46",
            "264400b7",
            "1e21afeb",
            "9180b4da",
            "b34a70fb17",
            "53924729",
        ] {
            assert!(is_token(id), "{id}");
        }
        assert_eq!(r#"["4762d33f","08tCo"],"#.len(), 21);
    }
}
