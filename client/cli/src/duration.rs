//! Times as written on the command line: `90s`, `5m`, `2h`, `7d`, `1w`.
//!
//! Pure.

use std::time::Duration;

/// Reads a whole number with a unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    read(text).ok_or_else(|| "a time is a number with s, m, h, d or w behind it, as 90s".into())
}

pub(crate) fn read(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return None,
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| digits)?;
    Some(Duration::from_secs(number.checked_mul(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_a_unit() {
        for (text, seconds) in [
            ("0s", 0),
            ("90s", 90),
            ("5m", 300),
            ("2h", 7_200),
            ("1w", 604_800),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in [
            "",
            "s",
            "5",
            "-1s",
            "1.5h",
            "99999999999999999999s",
            "9999999999999999999w",
            "5 m",
            "é",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
