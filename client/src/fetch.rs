//! HTTP as a consumer uses it: what to ask, and what an answer means.
//!
//! Pure, but for handing the request to the transport.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use simplefeed_core::{
    limits::CLIENT_DOCUMENT_BYTES_MAX,
    reader::{Document, ReadError},
};
use url::Url;

use crate::transport::{Answer, Method, Request, Transport, TransportError};

/// Why a document could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// There was no answer.
    #[error("cannot fetch {url}")]
    Transport {
        /// What was asked for.
        url: Url,
        /// What went wrong on the way.
        source: TransportError,
    },
    /// The document does not exist, or not any more.
    #[error("there is nothing at {url} (status {status})")]
    Missing {
        /// What was asked for.
        url: Url,
        /// 404 or 410.
        status: u16,
    },
    /// The server wants to know who asks, or does not want this one to.
    #[error("not authorised to read {url} (status {status})")]
    Unauthorized {
        /// What was asked for.
        url: Url,
        /// 401 or 403.
        status: u16,
    },
    /// The server answered something else than the document.
    #[error("{url} answered with status {status}: {detail}")]
    Status {
        /// What was asked for.
        url: Url,
        /// The status.
        status: u16,
        /// What the server says about it.
        detail: String,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// The answer is no feed document.
    #[error("{url} is not a feed document")]
    Malformed {
        /// Where it came from.
        url: Url,
        /// What is wrong with it.
        source: ReadError,
    },
    /// The answer is of another kind: an HTML page, for instance.
    #[error("{url} is {found}, not a feed document")]
    OtherType {
        /// Where it came from.
        url: Url,
        /// Its media type.
        found: String,
    },
}

impl FetchError {
    /// Returns whether the same request may succeed later with nothing changed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Transport { source, .. } => source.transient,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            // A body cut short looks like this, too; a page for people does not.
            Self::Malformed { source, .. } => !matches!(source, ReadError::NotAFeed { .. }),
            Self::Missing { .. } | Self::Unauthorized { .. } | Self::OtherType { .. } => false,
        }
    }

    /// Returns how long the server asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// What makes a request conditional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// The entity tag, exactly as the server sent it.
    pub etag: Option<String>,
    /// The `Last-Modified`, exactly as the server sent it.
    pub last_modified: Option<String>,
}

#[expect(clippy::large_enum_variant, reason = "one of it lives at a time")]
/// A document, or the news that the one known has not changed.
#[derive(Debug)]
pub enum Fetched {
    /// 304.
    NotModified {
        /// How long the server says to wait before the next look.
        max_age: Option<Duration>,
    },
    /// A document.
    Document {
        /// Where it came from, after redirects.
        url: Url,
        /// What it says.
        document: Document,
        /// What it can be recognised by.
        validators: Validators,
        /// How long the server says to wait before the next look.
        max_age: Option<Duration>,
    },
}

/// Fetches documents.
#[derive(Clone, Debug)]
pub struct Fetcher {
    transport: Arc<dyn Transport>,
}

impl Fetcher {
    /// Returns a fetcher over a transport.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport }
    }

    /// Fetches a feed document; `again` past all caches.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub async fn document(
        &self,
        url: &Url,
        validators: &Validators,
        again: bool,
    ) -> Result<Fetched, FetchError> {
        let mut headers = vec![(
            "accept",
            "application/atom+xml, application/xml;q=0.5".into(),
        )];
        if let Some(etag) = &validators.etag {
            headers.push(("if-none-match", etag.clone()));
        } else if let Some(date) = &validators.last_modified {
            headers.push(("if-modified-since", date.clone()));
        }
        if again {
            headers.push(("cache-control", "no-cache".into()));
        }
        let conditional = *validators != Validators::default();
        let answer = self.get(url, headers).await?;
        let max_age = max_age(&answer);
        if answer.status == 304 && conditional {
            return Ok(Fetched::NotModified { max_age });
        }
        let answer = successful(answer)?;
        check_type(&answer)?;
        let validators = Validators {
            etag: answer.header("etag").map(Into::into),
            last_modified: answer.header("last-modified").map(Into::into),
        };
        let url = answer.url;
        match Document::read(answer.body, &url) {
            Ok(document) => Ok(Fetched::Document {
                url,
                document,
                validators,
                max_age,
            }),
            Err(source) => Err(FetchError::Malformed { url, source }),
        }
    }

    /// Fetches anything as it is.
    ///
    /// # Errors
    ///
    /// See [`FetchError`].
    pub async fn bytes(&self, url: &Url) -> Result<Bytes, FetchError> {
        let answer = self.get(url, vec![]).await?;
        Ok(successful(answer)?.body)
    }

    async fn get(
        &self,
        url: &Url,
        headers: Vec<(&'static str, String)>,
    ) -> Result<Answer, FetchError> {
        let request = Request {
            method: Method::Get,
            url: url.clone(),
            headers,
            body: Bytes::new(),
            answer_bytes_max: CLIENT_DOCUMENT_BYTES_MAX,
        };
        let failed = |source| FetchError::Transport {
            url: url.clone(),
            source,
        };
        self.transport.send(request).await.map_err(failed)
    }
}

fn successful(answer: Answer) -> Result<Answer, FetchError> {
    let (url, status) = (answer.url.clone(), answer.status);
    match status {
        200 => Ok(answer),
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

/// A page for people must never count as an empty document.
fn check_type(answer: &Answer) -> Result<(), FetchError> {
    let kind = answer.header("content-type").unwrap_or_default();
    let bare = kind
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    match bare.as_str() {
        "application/atom+xml" | "application/xml" | "text/xml" => Ok(()),
        _ => Err(FetchError::OtherType {
            url: answer.url.clone(),
            found: kind.into(),
        }),
    }
}

/// Returns what a problem document says, or the beginning of any other text.
pub(crate) fn problem_detail(answer: &Answer) -> String {
    #[derive(serde::Deserialize)]
    struct Problem {
        detail: String,
        line: Option<u64>,
    }
    if let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) {
        return match problem.line {
            Some(line) => format!("{} (line {line} of the request)", problem.detail),
            None => problem.detail,
        };
    }
    let text = String::from_utf8_lossy(&answer.body);
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// Returns how long the server asks to wait: seconds, or until a date.
pub(crate) fn retry_after(answer: &Answer) -> Option<Duration> {
    let text = answer.header("retry-after")?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(SystemTime::now()).ok()
}

fn max_age(answer: &Answer) -> Option<Duration> {
    let policy = answer.header("cache-control")?;
    let seconds = policy
        .split(',')
        .find_map(|directive| directive.trim().strip_prefix("max-age="))?;
    seconds
        .trim_matches('"')
        .parse()
        .ok()
        .map(Duration::from_secs)
}
