//! Files of the refresher: credentials with their quotas, and the table of intervals.
//!
//! Shell: files.

use std::{collections::HashSet, fs, path::Path, str::FromStr, time::Duration};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Deserializer, de::Error as _};
use simplefeed_client::refresher::{Credential, IntervalLine, Intervals, TimeSpan, queue::Limit};

/// Quota of the one credential that is used without a file: on average, a request a second.
const LIMIT: Limit = Limit {
    requests: 60,
    window: Duration::from_mins(1),
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialsFile {
    credential: Vec<OneCredential>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneCredential {
    name: String,
    /// Header field with the secret, as `Authorization: Bearer abc`.
    header: Option<String>,
    limit: u32,
    #[serde(deserialize_with = "read_span")]
    window: Duration,
}

fn read_span<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    TimeSpan::from_str(&text)
        .map(|span| span.0)
        .map_err(D::Error::custom)
}

/// Reads the credentials in a file, and adds `provider` to their names: credentials of two
/// providers must not share a quota, even if they have the same name.
pub(super) fn credentials(path: Option<&Path>, provider: &str) -> anyhow::Result<Vec<Credential>> {
    let mut credentials = match path {
        None => vec![Credential::new("default", LIMIT)],
        Some(path) => {
            let text = read_secret(path)?;
            credentials_in(&text).with_context(|| format!("in {}", path.display()))?
        }
    };
    for credential in &mut credentials {
        credential.name = format!("{}@{provider}", credential.name);
    }
    Ok(credentials)
}

fn credentials_in(text: &str) -> anyhow::Result<Vec<Credential>> {
    let file: CredentialsFile = toml::from_str(text).map_err(|why| without_text(&why, text))?;
    let mut names = HashSet::new();
    let mut credentials = Vec::new();
    for one in file.credential {
        let name = one.name;
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > 100 || !name.bytes().all(is_known) {
            bail!("the name of a credential is 1 to 100 of A-Z, a-z, 0-9 and ._-");
        }
        ensure!(
            names.insert(name.clone()),
            "two credentials are called {name}"
        );
        ensure!(one.limit > 0, "the limit of {name} is 0");
        ensure!(!one.window.is_zero(), "the window of {name} is 0");
        let (requests, window) = (one.limit, one.window);
        let mut credential = Credential::new(name.clone(), Limit { requests, window });
        credential.header = one
            .header
            .map(|line| parse_field(&name, &line))
            .transpose()?;
        credentials.push(credential);
    }
    ensure!(!credentials.is_empty(), "there is no [[credential]]");
    Ok(credentials)
}

/// Returns an error of the file without the file's text, which has secrets.
fn without_text(why: &toml::de::Error, text: &str) -> anyhow::Error {
    let at = why.span().map_or(0, |span| span.start);
    let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    // Messages of these two kinds name a key, and no value.
    let message = why.message();
    let is_of_key = message.starts_with("unknown field") || message.starts_with("missing field");
    let message = if is_of_key {
        message
    } else {
        "a [[credential]] has name, header, limit and window, as limit = 900 and window = \"15m\""
    };
    anyhow::anyhow!("line {line}: {message}")
}

/// Header fields that belong to the request itself.
const NOT_OURS: [&str; 4] = ["host", "content-length", "transfer-encoding", "connection"];

/// Reads a header field. The field is a secret, so an error does not show the text.
fn parse_field(credential: &str, line: &str) -> anyhow::Result<(String, String)> {
    let is_name = |name: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let lower = name.to_ascii_lowercase();
        !name.is_empty() && name.bytes().all(is_known) && !NOT_OURS.contains(&lower.as_str())
    };
    let is_value = |value: &str| {
        let is_known = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        !value.is_empty() && value.bytes().all(is_known)
    };
    match line.split_once(':') {
        Some((name, value)) if is_name(name) && is_value(value.trim()) => {
            Ok((name.to_owned(), value.trim().to_owned()))
        }
        _ => bail!("the header of {credential} is no line like Authorization: Bearer abc"),
    }
}

/// Reads the table of intervals in a file: `"18m" = "2m"` means every 2 minutes up to an age of 18
/// minutes.
pub(super) fn intervals(path: Option<&Path>) -> anyhow::Result<Intervals> {
    let Some(path) = path else {
        return Ok(Intervals::default());
    };
    let text = read_secret(path)?;
    intervals_in(&text).with_context(|| format!("in {}", path.display()))
}

fn intervals_in(text: &str) -> anyhow::Result<Intervals> {
    let lines: toml::Table = toml::from_str(text)?;
    let line = |(until, interval): (&String, &toml::Value)| {
        let interval = interval
            .as_str()
            .with_context(|| format!("the interval up to {until} is a text such as \"2m\""))?;
        Ok(IntervalLine {
            until: TimeSpan::from_str(until)?.0,
            interval: TimeSpan::from_str(interval)?.0,
        })
    };
    let lines: anyhow::Result<Vec<IntervalLine>> = lines.iter().map(line).collect();
    Ok(Intervals::new(lines?)?)
}

fn read_secret(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_have_quotas_and_secrets() {
        let text = "[[credential]]\nname = 'a'\nlimit = 900\nwindow = '15m'\n\
            header = 'Authorization: Bearer s3cret'\n[[credential]]\nname = 'b'\nlimit = 1\nwindow = '1s'\n";
        let read = credentials_in(text).unwrap();
        assert_eq!(read.len(), 2);
        let field = ("Authorization".to_owned(), "Bearer s3cret".to_owned());
        assert_eq!(read[0].header, Some(field));
        let limit = Limit {
            requests: 900,
            window: Duration::from_mins(15),
        };
        assert_eq!(read[0].limit, limit);
        let refused = |text: &str| format!("{:#}", credentials_in(text).unwrap_err());
        let one = |rest: &str| format!("[[credential]]\nname = 'a'\n{rest}");
        assert!(refused("").contains("credential"));
        assert!(refused(&one("limit = 0\nwindow = '1s'")).contains("limit of a is 0"));
        assert!(refused(&one("limit = 1\nwindow = '1'")).contains("window = \"15m\""));
        assert!(
            refused(&one("limit = 1\nwindow = '1s'\nheader = 'Host: a'")).contains("header of a")
        );
        for header in ["\"s3cret", "5s3cret", "['s3cret']"] {
            let said = refused(&one(&format!(
                "limit = 1\nwindow = '1s'\nheader = {header}"
            )));
            assert!(
                said.starts_with("line 5: ") && !said.contains("s3cret"),
                "{said}"
            );
        }
        assert!(refused(&one("limit = 1\nwindow = '1s'\nkey = 1")).contains("key"));
        let secret = refused(&one("limit = 1\nwindow = '1s'\nheader = 's3cret'"));
        assert!(secret.contains("header of a") && !secret.contains("s3cret"));
        let twice = one("limit = 1\nwindow = '1s'\n").repeat(2);
        assert!(refused(&twice).contains("two credentials"));
    }

    #[test]
    fn intervals_are_lines_of_age_and_time() {
        let minutes = |until: u64, interval: u64| IntervalLine {
            until: Duration::from_mins(until),
            interval: Duration::from_mins(interval),
        };
        let table = intervals_in("\"1h\" = \"5m\"\n\"18m\" = \"2m\"\n").unwrap();
        assert_eq!(table.lines(), [minutes(18, 2), minutes(60, 5)]);
        for text in ["", "\"1h\" = 5", "\"1x\" = \"5m\"", "\"1h\" = \"0s\""] {
            assert!(intervals_in(text).is_err(), "{text}");
        }
    }
}
