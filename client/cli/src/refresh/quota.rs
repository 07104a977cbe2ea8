//! Quotas and pauses in a provider's header fields.
//!
//! Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use simplefeed_client::{refresher::queue::QuotaReport, transport::Answer};

/// Numbers from this bound on are instants, and not spans of seconds: as a span, the bound is 31
/// years.
const SPAN_MAX: u64 = 1_000_000_000;
/// Numbers above this bound count as milliseconds: as seconds, the bound is in the year 5138.
const SECONDS_MAX: u64 = 100_000_000_000;
/// Prefixes of the header fields about a quota: first that of the IETF's drafts
/// (`RateLimit-Remaining`), then older ones.
const FAMILIES: [&str; 3] = ["ratelimit", "x-ratelimit", "x-rate-limit"];

/// Reads the number of remaining requests, and the time after which the provider counts anew.
pub(super) fn report(answer: &Answer, now: SystemTime) -> QuotaReport {
    // The single field first: later drafts name both numbers in one field.
    let remaining = one_field(answer).or_else(|| {
        FAMILIES.iter().find_map(|family| {
            let number = |part| parse_number(answer.header(&format!("{family}-{part}"))?);
            let remaining = u32::try_from(number("remaining")?).unwrap_or(u32::MAX);
            Some((remaining, time_until(number("reset")?, now)))
        })
    });
    let pause = None;
    QuotaReport { pause, remaining }
}

/// Reads `RateLimit: limit=100, remaining=50, reset=30`, or `"default";r=50;t=30` of later drafts.
fn one_field(answer: &Answer) -> Option<(u32, Duration)> {
    let field = answer.header("ratelimit")?;
    let (mut remaining, mut reset) = (None, None);
    for part in field.split([',', ';']) {
        let Some((name, value)) = part.split_once('=') else {
            continue;
        };
        match name.trim() {
            // Several policies may stand in one field; the first counts.
            "remaining" | "r" => remaining = remaining.or(parse_number(value)),
            "reset" | "t" => reset = reset.or(parse_number(value)),
            _ => {}
        }
    }
    let remaining = u32::try_from(remaining?).unwrap_or(u32::MAX);
    Some((remaining, Duration::from_secs(reset?)))
}

/// Returns the pause that the provider names, by `Retry-After` or, if no requests remain, by the
/// end of the count.
pub(super) fn named_pause(answer: &Answer, now: SystemTime) -> Option<Duration> {
    let by_count = || match report(answer, now).remaining {
        Some((0, reset)) => Some(reset),
        _ => None,
    };
    retry_after(answer, now).or_else(by_count)
}

/// Returns the least time until the next request for these items, by `Retry-After` and
/// `Cache-Control`.
pub(super) fn floor(answer: &Answer, now: SystemTime) -> Duration {
    let directives = answer.all("cache-control").flat_map(|all| all.split(','));
    let fresh = directives
        .filter_map(|directive| {
            let (name, value) = directive.split_once('=')?;
            let is_age = name.trim().eq_ignore_ascii_case("max-age");
            is_age.then(|| parse_number(value))?
        })
        .max();
    // A cache has kept the answer for so long already (RFC 9111, 4.2.3).
    let age = answer.header("age").and_then(parse_number).unwrap_or(0);
    let fresh = Duration::from_secs(fresh.unwrap_or(0).saturating_sub(age));
    fresh.max(retry_after(answer, now).unwrap_or_default())
}

/// Reads `Retry-After`: seconds, or a date.
fn retry_after(answer: &Answer, now: SystemTime) -> Option<Duration> {
    let field = answer.header("retry-after")?.trim();
    if let Some(seconds) = parse_number(field) {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(field).ok()?;
    // A date that has passed asks for no pause.
    Some(date.duration_since(now).unwrap_or_default())
}

fn parse_number(text: &str) -> Option<u64> {
    text.trim().trim_matches('"').parse().ok()
}

/// Returns the time until a reset, which is a span or an instant.
fn time_until(reset: u64, now: SystemTime) -> Duration {
    if reset < SPAN_MAX {
        return Duration::from_secs(reset);
    }
    let instant = if reset > SECONDS_MAX {
        Duration::from_millis(reset)
    } else {
        Duration::from_secs(reset)
    };
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    instant.saturating_sub(now)
}

#[cfg(test)]
mod tests {
    use simplefeed_client::Bytes;

    use super::*;

    fn answer(fields: &[(&str, &str)]) -> Answer {
        let field = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Answer {
            status: 200,
            headers: fields.iter().map(field).collect(),
            body: Bytes::default(),
        }
    }

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_hours(490_896)
    }

    #[test]
    fn counts_are_read_in_every_usual_form() {
        let expected = Some((7, Duration::from_secs(30)));
        for fields in [
            [("ratelimit", "limit=100, remaining=7, reset=30")].as_slice(),
            &[("ratelimit", "\"default\";r=7;t=30")],
            &[("ratelimit-remaining", "7"), ("ratelimit-reset", "30")],
            &[
                ("x-ratelimit-remaining", "7"),
                ("x-ratelimit-reset", "1767225630"),
            ],
            &[
                ("x-rate-limit-remaining", "7"),
                ("x-rate-limit-reset", "1767225630000"),
            ],
        ] {
            assert_eq!(
                report(&answer(fields), now()).remaining,
                expected,
                "{fields:?}"
            );
        }
        for fields in [
            [].as_slice(),
            &[("ratelimit-remaining", "7")],
            &[("ratelimit-remaining", "-1"), ("ratelimit-reset", "30")],
            &[("ratelimit", "remaining")],
        ] {
            assert_eq!(report(&answer(fields), now()).remaining, None, "{fields:?}");
        }
    }

    #[test]
    fn pauses_and_floors_are_named() {
        let seconds = Duration::from_secs;
        let date = answer(&[("retry-after", "Thu, 01 Jan 2026 00:01:00 GMT")]);
        assert_eq!(named_pause(&date, now()), Some(seconds(60)));
        assert_eq!(
            named_pause(&answer(&[("retry-after", "5")]), now()),
            Some(seconds(5))
        );
        let none_left = answer(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")]);
        assert_eq!(named_pause(&none_left, now()), Some(seconds(9)));
        assert_eq!(named_pause(&answer(&[]), now()), None);
        let fresh = answer(&[("cache-control", "public, max-age=600"), ("age", "100")]);
        assert_eq!(floor(&fresh, now()), seconds(500));
        assert_eq!(
            floor(&answer(&[("cache-control", "no-store")]), now()),
            seconds(0)
        );
    }
}
