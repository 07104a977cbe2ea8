//! The places at which a replay can begin, as the command line names them.
//!
//! Shell: the clock, from which an age counts. The rest is pure.

use std::time::SystemTime;

use simplefeed_client::Since;
use simplefeed_core::{feed::is_absolute_iri, timestamp::Timestamp};

use crate::duration;

/// Reads `oldest`, `newest`, an RFC 3339 date-time, a date (its first instant in UTC), an age such
/// as `90m` or `2d`, or an entry's id (with or without `id:`).
pub(crate) fn parse(text: &str) -> Result<Since, String> {
    parse_at(text, now())
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn parse_at(text: &str, now: Timestamp) -> Result<Since, String> {
    match text {
        "oldest" => return Ok(Since::Oldest),
        "newest" => return Ok(Since::Newest),
        _ => {}
    }
    let date = || Timestamp::parse(&format!("{text}T00:00:00Z"));
    if let Some(instant) = Timestamp::parse(text).or_else(date) {
        return Ok(Since::Time(instant));
    }
    if let Some(age) = duration::read(text) {
        let micros = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        return Ok(Since::Time(Timestamp::from_micros(
            now.micros().saturating_sub(micros),
        )));
    }
    // Behind `id:`, any text is an id: foreign feeds have ids of any kind.
    if let Some(id) = text.strip_prefix("id:").filter(|id| !id.is_empty()) {
        return Ok(Since::Entry(id.into()));
    }
    if is_absolute_iri(text) {
        return Ok(Since::Entry(text.into()));
    }
    Err("neither oldest, newest, a date, a date-time with its zone, an age such as 90m, nor the id of an entry".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Option<&Since>) {
        let now = Timestamp::parse("2026-11-20T12:00:00Z").unwrap();
        assert_eq!(parse_at(text, now).ok().as_ref(), want, "{text}");
    }

    fn time(text: &str) -> Since {
        Since::Time(Timestamp::parse(text).unwrap())
    }

    #[test]
    fn every_way_to_say_where_to_begin() {
        check("oldest", Some(&Since::Oldest));
        check("newest", Some(&Since::Newest));
        check(
            "2026-11-19T08:00:00+01:00",
            Some(&time("2026-11-19T07:00:00Z")),
        );
        check("2026-11-19", Some(&time("2026-11-19T00:00:00Z")));
        check("90m", Some(&time("2026-11-20T10:30:00Z")));
        check("2d", Some(&time("2026-11-18T12:00:00Z")));
        check("urn:uuid:1", Some(&Since::Entry("urn:uuid:1".into())));
        check("id:urn:uuid:1", Some(&Since::Entry("urn:uuid:1".into())));
        check("id:17", Some(&Since::Entry("17".into())));
        check("tag:a,2026:x", Some(&Since::Entry("tag:a,2026:x".into())));
        for bad in [
            "",
            "yesterday",
            "2026-13-01",
            "m",
            "+1d",
            "-1d",
            "09:00:00",
            "2026",
            "id:",
        ] {
            check(bad, None);
        }
    }
}
