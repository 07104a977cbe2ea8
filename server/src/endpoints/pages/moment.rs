//! Times as people read them.
//!
//! Pure.

use simplefeed_core::timestamp::Timestamp;

/// A time, exact and relative to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// RFC 3339, in UTC, in milliseconds: HTML has no more digits.
    pub(super) datetime: String,
    /// RFC 3339, in UTC, in microseconds.
    pub(super) exact: String,
    /// Time relative to now, such as `5 min ago`.
    pub(super) ago: String,
}

impl Moment {
    /// Returns a time as seen at `now`.
    pub(super) fn of(time: Timestamp, now: Timestamp) -> Self {
        let exact = time.to_string();
        let seconds = now.second() - time.second();
        let ago = match seconds {
            ..-60 => format!("in the future ({})", day_of(&exact)),
            -60..5 => "now".into(),
            5..60 => format!("{seconds} s ago"),
            60..3_600 => format!("{} min ago", seconds / 60),
            3_600..86_400 => format!("{} h ago", seconds / 3_600),
            86_400..2_592_000 => match seconds / 86_400 {
                1 => "yesterday".into(),
                days => format!("{days} days ago"),
            },
            2_592_000.. => day_of(&exact).into(),
        };
        Self {
            datetime: in_millis(&exact),
            exact,
            ago,
        }
    }
}

/// Returns the text of a time without the digits after the milliseconds.
fn in_millis(exact: &str) -> String {
    match exact.split_once('.') {
        // For a text, the precision in a format cuts the text off, and does not round.
        Some((seconds, fraction)) => format!("{seconds}.{:.3}Z", fraction.trim_end_matches('Z')),
        None => exact.into(),
    }
}

fn day_of(exact: &str) -> &str {
    exact.split('T').next().unwrap_or(exact)
}

/// Returns the time that a person has written: an RFC 3339 date-time, or a day such as
/// `2026-11-25`, alone or followed by `14:00` or `14:00:30`, in UTC.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Some(time) = Timestamp::parse(text) {
        return Some(time);
    }
    let (day, clock) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let clock = clock.trim_end_matches('Z');
    let seconds = if clock.len() == 5 { ":00" } else { "" };
    if day.len() != 10 {
        return None;
    }
    Timestamp::parse(&format!("{day}T{clock}{seconds}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_from_now() {
        let now = Timestamp::parse("2026-11-25T12:00:00Z").unwrap();
        let ago = |time| Moment::of(Timestamp::parse(time).unwrap(), now).ago;
        assert_eq!(ago("2026-11-25T12:00:02Z"), "now");
        assert_eq!(ago("2026-11-25T11:59:30Z"), "30 s ago");
        assert_eq!(ago("2026-11-25T11:58:30Z"), "1 min ago");
        assert_eq!(ago("2026-11-25T09:00:00Z"), "3 h ago");
        assert_eq!(ago("2026-11-24T09:00:00Z"), "yesterday");
        assert_eq!(ago("2026-11-20T09:00:00Z"), "5 days ago");
        assert_eq!(ago("2026-01-20T09:00:00Z"), "2026-01-20");
        assert_eq!(ago("2026-11-26T09:00:00Z"), "in the future (2026-11-26)");
    }

    #[test]
    fn people_write_times_in_short() {
        let exact = Timestamp::parse("2026-11-25T14:00:00Z");
        for text in [
            "2026-11-25T14:00:00Z",
            "2026-11-25 14:00",
            "2026-11-25T14:00",
            " 2026-11-25 14:00:00 ",
            "2026-11-25T15:00:00+01:00",
        ] {
            assert_eq!(parse(text), exact, "{text}");
        }
        assert_eq!(
            parse("2026-11-25"),
            Timestamp::parse("2026-11-25T00:00:00Z")
        );
        for wrong in [
            "",
            "25",
            "yesterday",
            "2026-13-01",
            "2026-11-25 25:00",
            "urn:x",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
