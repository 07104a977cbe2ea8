//! The meaning of answers.
//!
//! Pure, but for the clock: if an answer has no `Date`, the dates in `Retry-After` and `Expires`
//! count from now. `Cache-Control` is read by hand: the headers crate (0.4) knows no
//! `stale-while-revalidate`, and reads `MAX-AGE` as nothing.

use std::time::{Duration, SystemTime};

use simplefeed_core::limits::{PAUSE_SECONDS_MAX, POLL_SECONDS_MIN};
use url::Url;

use super::FetchError;
use crate::transport::Answer;

/// Freshness lifetime and age of an answer (RFC 9111, RFC 5861).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use simplefeed_client::fetch::Freshness;
///
/// let unknown = Freshness::default();
/// assert_eq!(unknown.told(), None);
/// assert_eq!(unknown.poll_after(), Duration::from_secs(1));
/// assert_eq!(unknown.let_go_after(), Duration::from_secs(1));
/// assert!(!unknown.is_past());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    max_age: Option<Duration>,
    /// Lifetime in shared caches (`s-maxage`).
    shared_max_age: Option<Duration>,
    stale_while_revalidate: Duration,
    age: Duration,
    /// Whether a cache marked the answer as stale.
    told_past: bool,
}

impl Freshness {
    pub(super) fn of(answer: &Answer) -> Self {
        // A list may be spread over several fields (RFC 9110, 5.3).
        let policy = answer.all("cache-control").collect::<Vec<_>>().join(",");
        let age = answer.header("age").and_then(|age| age.trim().parse().ok());
        let max_age = directive_seconds(&policy, "max-age");
        Self {
            max_age: max_age.or_else(|| expires_in(answer)),
            shared_max_age: directive_seconds(&policy, "s-maxage"),
            stale_while_revalidate: directive_seconds(&policy, "stale-while-revalidate")
                .unwrap_or_default(),
            age: bounded_seconds(age.unwrap_or(0)),
            told_past: answer.all("cache-status").any(tells_past)
                || answer.all("warning").any(warns_of_the_past),
        }
    }

    /// Returns the freshness after a 304: values that the 304 leaves out stay (RFC 9111, 4.3.4).
    pub(crate) fn renewed(self, newer: Self) -> Self {
        Self {
            max_age: newer.max_age.or(self.max_age),
            shared_max_age: newer.shared_max_age.or(self.shared_max_age),
            // A new `max-age` is a new policy as a whole. Without a new `max-age`, the old policy
            // stays.
            stale_while_revalidate: match newer.max_age {
                Some(_) => newer.stale_while_revalidate,
                None => self.stale_while_revalidate,
            },
            ..newer
        }
    }

    /// Returns the freshness lifetime that the server gave, if any (`max-age` or `Expires`).
    pub fn told(&self) -> Option<Duration> {
        self.max_age
    }

    /// Returns the pause before the next look: `max-age`, and at least a second.
    pub fn poll_after(&self) -> Duration {
        let floor = Duration::from_secs(POLL_SECONDS_MIN);
        self.max_age.unwrap_or_default().max(floor)
    }

    /// Returns how long a cache may keep giving this copy: the rest of the lifetime (`s-maxage`,
    /// else `max-age`) and of `stale-while-revalidate`; at least a second.
    pub fn let_go_after(&self) -> Duration {
        let lifetime = self.freshness_lifetime().unwrap_or_default();
        let floor = Duration::from_secs(POLL_SECONDS_MIN);
        lifetime.saturating_sub(self.age).max(floor)
    }

    /// Returns whether a cache gave a stale copy, as caches may while the server is out of reach.
    /// Such a copy may hide newer entries.
    pub fn is_past(&self) -> bool {
        // Apache marks a stale copy without sending an `Age`.
        self.told_past
            || self
                .freshness_lifetime()
                .is_some_and(|lifetime| self.age > lifetime)
    }

    fn freshness_lifetime(&self) -> Option<Duration> {
        Some(self.shared_max_age.or(self.max_age)? + self.stale_while_revalidate)
    }
}

/// Returns whether some cache on the way used a stale copy (RFC 9211, 2.4: a negative `ttl`).
fn tells_past(status: &str) -> bool {
    status.split([',', ';']).any(|part| {
        let ttl = part.trim().strip_prefix("ttl=");
        ttl.is_some_and(|ttl| ttl.starts_with('-'))
    })
}

/// Returns whether a cache warns that the copy is stale, that revalidation failed, or that the
/// cache is disconnected. RFC 9111 no longer has this field; Apache sends the field, and no `Age`.
fn warns_of_the_past(warnings: &str) -> bool {
    warnings.split(',').any(|warning| {
        let code = warning.trim().get(..3);
        matches!(code, Some("110" | "111" | "112"))
    })
}

/// Returns the lifetime from `Expires` (RFC 9111, 5.3). An invalid date counts as past.
fn expires_in(answer: &Answer) -> Option<Duration> {
    let text = answer.header("expires")?;
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    // Counted by the server's clock, which need not be ours.
    let answered = answer.header("date").and_then(date);
    let answered = answered.unwrap_or_else(SystemTime::now);
    let lifetime = date(text).and_then(|expires| expires.duration_since(answered).ok());
    Some(bounded_seconds(lifetime.unwrap_or_default().as_secs()))
}

/// Returns the answer's `Last-Modified`, if the date is fit for a conditional request: a document
/// that changed within the second of the answer could change once more in that second (RFC 9110,
/// 8.8.2.2).
pub(super) fn last_modified(answer: &Answer) -> Option<String> {
    let text = answer.header("last-modified")?;
    let date = |text| httpdate::parse_http_date(text).ok();
    let (changed, answered) = (date(text)?, date(answer.header("date")?)?);
    (changed < answered).then(|| text.into())
}

fn directive_seconds(policy: &str, name: &str) -> Option<Duration> {
    let value = policy.split(',').find_map(|directive| {
        let (found, value) = directive.trim().split_once('=')?;
        found.eq_ignore_ascii_case(name).then_some(value)
    });
    // Quoted or not: recipients ought to accept both (RFC 9111, 5.2).
    Some(bounded_seconds(value?.trim_matches('"').parse().ok()?))
}

fn bounded_seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(PAUSE_SECONDS_MAX))
}

/// Returns the target of a redirect (RFC 9110, 15.4).
pub(super) fn redirect(from: &Url, answer: &Answer) -> Option<Url> {
    if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    from.join(answer.header("location")?).ok()
}

/// Returns an answer with status 200, or with 203 from a proxy that changed the content. Any other
/// status is an error.
///
/// # Errors
///
/// [`FetchError::Missing`], [`FetchError::Unauthorized`] or [`FetchError::Status`].
///
/// # Examples
///
/// ```
/// use simplefeed_client::{fetch::{self, FetchError}, transport::Answer};
///
/// let url = "https://example.org/gone".parse()?;
/// let answer = Answer { status: 410, headers: vec![], body: "".into() };
/// let error = fetch::successful(&url, answer).unwrap_err();
/// assert!(matches!(error, FetchError::Missing { status: 410, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn successful(url: &Url, answer: Answer) -> Result<Answer, FetchError> {
    let (url, status) = (url.clone(), answer.status);
    match status {
        200 | 203 => Ok(answer),
        404 | 410 => Err(FetchError::Missing { url, status }),
        401 | 403 => Err(FetchError::Unauthorized { url, status }),
        _ => {
            let (detail, retry_after) = (problem_detail(&answer), retry_after(&answer));
            Err(FetchError::Status {
                url,
                status,
                detail,
                retry_after,
            })
        }
    }
}

/// Returns whether the answer is marked immutable (RFC 8246).
pub(super) fn is_immutable(answer: &Answer) -> bool {
    let mut policies = answer.all("cache-control");
    policies.any(|policy| {
        let mut directives = policy.split(',');
        directives.any(|directive| directive.trim().eq_ignore_ascii_case("immutable"))
    })
}

/// Returns the charset that the answer's media type names.
pub(super) fn charset(answer: &Answer) -> Option<&str> {
    let mut parameters = answer.header("content-type")?.split(';').skip(1);
    parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_charset = name.trim().eq_ignore_ascii_case("charset");
        is_charset.then(|| value.trim().trim_matches('"'))
    })
}

/// Checks the media type: an HTML page must never count as an empty document.
pub(super) fn check_type(url: &Url, answer: &Answer) -> Result<(), FetchError> {
    let kind = answer.header("content-type").unwrap_or_default();
    let bare = kind
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if bare.is_empty() && is_page(&answer.body) {
        return Err(FetchError::OtherType {
            url: url.clone(),
            found: "an HTML page".into(),
        });
    }
    match bare.as_str() {
        // RFC 9110, 8.3: a recipient may examine the body of an answer without a media type.
        "" | "application/atom+xml" | "application/xml" | "text/xml" => Ok(()),
        _ => Err(FetchError::OtherType {
            url: url.clone(),
            found: kind.into(),
        }),
    }
}

/// Members of a problem document (RFC 9457) that a client needs.
#[derive(serde::Deserialize)]
struct Problem {
    detail: String,
    line: Option<u64>,
    entry: Option<usize>,
}

/// Returns the index of the entry that a problem document is about.
pub(crate) fn problem_entry(answer: &Answer) -> Option<usize> {
    serde_json::from_slice::<Problem>(&answer.body).ok()?.entry
}

/// Returns whether a body without a media type is an HTML page.
fn is_page(body: &[u8]) -> bool {
    let body = body.trim_ascii_start();
    ["<!doctype html", "<html"].iter().any(|mark| {
        let start = body.get(..mark.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(mark.as_bytes()))
    })
}

/// Returns the detail of a problem document, the title of an HTML page, or the beginning of any
/// other text.
pub(crate) fn problem_detail(answer: &Answer) -> String {
    if let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) {
        // The line counts within the request, and not within the user's file, so the text says so.
        // The index of an entry needs no such addition.
        return match (problem.line, problem.entry) {
            (Some(line), None) => format!("{} (line {line} of the request)", problem.detail),
            _ => problem.detail,
        };
    }
    let kind = answer.header("content-type").unwrap_or_default();
    if kind.to_ascii_lowercase().contains("html") {
        // HTML error pages come from proxies. Their title is the whole message.
        return title_of(&String::from_utf8_lossy(&answer.body));
    }
    let text = String::from_utf8_lossy(&answer.body);
    let line = text.lines().next().unwrap_or_default();
    // A stranger's text in our messages: without control characters, and short.
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// Returns a description of an HTML page, with the title in quotes if there is one.
fn title_of(page: &str) -> String {
    // ASCII lower case keeps the byte offsets, so those found here hold in `page`.
    let lower = page.to_ascii_lowercase();
    let inside = || {
        let start = lower.find("<title")?;
        let start = start + lower.get(start..)?.find('>')? + 1;
        let end = start + lower.get(start..)?.find("</title")?;
        page.get(start..end)
    };
    let title = inside().unwrap_or_default().trim();
    if title.is_empty() {
        return "an HTML page".into();
    }
    let title: String = title
        .chars()
        .filter(|c| !c.is_control())
        .take(100)
        .collect();
    format!("an HTML page, {title:?}")
}

/// Returns the pause that the server asks for (`Retry-After`): seconds, or until a date.
pub(crate) fn retry_after(answer: &Answer) -> Option<Duration> {
    let text = answer.header("retry-after")?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    // By the server's clock, which need not be ours.
    let answered = answer.header("date").and_then(date);
    let answered = answered.unwrap_or_else(SystemTime::now);
    date(text)?.duration_since(answered).ok()
}
