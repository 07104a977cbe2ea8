//! A provider behind HTTP: requests with ids, and the meaning of each answer.
//!
//! Shell: the network, and the clock.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use simplefeed_client::{
    Transport, error_text,
    refresher::{Credential, Lookup, LookupAnswer, LookupError},
    transport::{self, Answer, Method, Request, Timeouts},
};
use url::Url;

use super::{
    answers::AnswerPointers,
    quota::{floor, named_pause, report},
};
use crate::exit::Usage;

/// Place of the ids in a URL.
const IDS: &str = "{ids}";
/// Largest answer, in bytes, unpacked.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Number of characters of a provider's explanation that a message shows.
const DETAIL_CHARS: usize = 200;
/// Characters of an id that are percent-encoded in a URL: all but the unreserved ones (RFC 3986,
/// 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Longest time for an answer. The refresher would give the request up a little later.
const ANSWER: Duration = Duration::from_secs(118);

/// A header field of a request.
type Field = (&'static str, String);

/// Looks items up by requests with the ids in the URL or in the body.
pub(super) struct Http {
    transport: Arc<dyn Transport>,
    /// URL, with `{ids}` in the place of the ids.
    template: String,
    is_posted: bool,
    places: AnswerPointers,
    /// Fields with the secrets, by the credential's name.
    fields: HashMap<String, Field>,
}

impl Http {
    pub(super) fn new(
        template: String,
        is_posted: bool,
        places: AnswerPointers,
        credentials: &[Credential],
    ) -> anyhow::Result<Self> {
        if is_posted == template.contains(IDS) {
            let why = if is_posted {
                "with --post the ids are in the body, not in the URL"
            } else {
                "the URL of --lookup has {ids} where the ids stand; or give --post"
            };
            return Err(Usage(why.to_owned()).into());
        }
        // A wrong URL ends the command at the start, and is not only reported as a failed lookup.
        url_of(&template, &["1".to_owned()])?;
        let timeouts = Timeouts {
            read: ANSWER,
            total: ANSWER,
            ..Timeouts::default()
        };
        let transport = transport::default_transport(timeouts);
        let transport = transport.context("the HTTP client cannot be set up")?;
        let field = |credential: &Credential| {
            let (name, value) = credential.header.clone()?;
            // The leak is one string for each credential, once in the life of the process.
            let name: &'static str = Box::leak(name.to_ascii_lowercase().into_boxed_str());
            Some((credential.name.clone(), (name, value)))
        };
        Ok(Self {
            transport,
            template,
            is_posted,
            places,
            fields: credentials.iter().filter_map(field).collect(),
        })
    }

    fn request_for(&self, ids: &[String], credential: &Credential) -> anyhow::Result<Request> {
        let mut headers = vec![("accept", "application/json".to_owned())];
        headers.extend(self.fields.get(&credential.name).cloned());
        let (mut method, mut body) = (Method::Get, Vec::new());
        if self.is_posted {
            headers.push(("content-type", "application/json".to_owned()));
            method = Method::Post;
            body = serde_json::to_vec(&serde_json::json!({ "ids": ids }))?;
        }
        Ok(Request {
            method,
            url: url_of(&self.template, ids)?,
            headers,
            body: body.into(),
            answer_bytes_max: ANSWER_BYTES_MAX,
        })
    }

    fn read_found(
        &self,
        answer: &Answer,
        ids: &[String],
        credential: &Credential,
    ) -> Result<LookupAnswer, LookupError> {
        let now = SystemTime::now();
        // Some providers repeat the request, with its secrets, in an error.
        let detail = |body: &str| detail_of(&without_secret(body, credential));
        let failed = |why: String| LookupError::Failed {
            status: Some(answer.status),
            pause: named_pause(answer, now),
            why,
        };
        let body = || String::from_utf8_lossy(&answer.body);
        match answer.status {
            200..=299 => {
                let answers = self.places.of_body(&body(), ids).map_err(failed)?;
                let mut found = LookupAnswer::default();
                found.answers = answers;
                found.floor = floor(answer, now);
                found.report = report(answer, now);
                Ok(found)
            }
            300..=399 => Err(failed("it redirects, which is not followed".to_owned())),
            // Statuses about the credential, the quota, the connection or the server: the items are
            // not at fault.
            401 | 402 | 407 | 408 | 421 | 425 | 429 | 500.. => Err(failed(detail(&body()))),
            // Some providers report a used-up quota by this status.
            403 if named_pause(answer, now).is_some() => Err(failed(detail(&body()))),
            status => Err(LookupError::Refused {
                status,
                detail: detail(&body()),
            }),
        }
    }
}

impl Lookup for Http {
    async fn lookup(
        &self,
        ids: &[String],
        credential: &Credential,
    ) -> Result<LookupAnswer, LookupError> {
        let request = self.request_for(ids, credential);
        let request = request.map_err(|why| LookupError::failed(&*why))?;
        let answer = self.transport.send(request).await;
        let answer = answer.map_err(|why| LookupError::Failed {
            status: None,
            pause: None,
            why: error_text(&why),
        })?;
        self.read_found(&answer, ids, credential)
    }
}

/// Returns the URL of a request: the ids percent-encoded, with commas between them.
fn url_of(template: &str, ids: &[String]) -> anyhow::Result<Url> {
    let encoded = |id: &String| utf8_percent_encode(id, RESERVED).to_string();
    let ids: Vec<String> = ids.iter().map(encoded).collect();
    let url = Url::parse(&template.replace(IDS, &ids.join(",")));
    let url = url.with_context(|| format!("--lookup {template} is no URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Usage(format!(
            "--lookup {template} begins with neither http nor https"
        ))
        .into());
    }
    Ok(url)
}

/// Returns a text without the secret of a credential: the value of the header field, or the last
/// word of the value.
fn without_secret(text: &str, credential: &Credential) -> String {
    let Some((_, value)) = &credential.header else {
        return text.to_owned();
    };
    let word = value.rsplit(' ').next().unwrap_or(value);
    // The word alone, too: a provider may repeat the secret without `Bearer`.
    text.replace(value, "…").replace(word, "…")
}

/// Returns the beginning of a body, for a message.
fn detail_of(body: &str) -> String {
    crate::format::one_line(&body.chars().take(DETAIL_CHARS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_comes_back_is_not_shown() {
        let limit = simplefeed_queue::Limit {
            requests: 1,
            window: Duration::from_secs(1),
        };
        let mut credential = Credential::new("one", limit);
        credential.header = Some(("Authorization".to_owned(), "Bearer s3cret".to_owned()));
        let shown = without_secret("bad: Bearer s3cret, s3cret", &credential);
        assert_eq!(shown, "bad: …, …");
    }

    #[test]
    fn ids_are_encoded_and_commas_separate_them() {
        let ids = ["a b".to_owned(), "x,y/z?".to_owned(), "~1".to_owned()];
        let url = url_of("https://api.example/things?ids={ids}&full=1", &ids).unwrap();
        assert_eq!(
            url.as_str(),
            "https://api.example/things?ids=a%20b,x%2Cy%2Fz%3F,~1&full=1"
        );
        assert!(url_of("ftp://api.example/{ids}", &ids).is_err());
        assert!(url_of("{ids}", &ids).is_err());
    }
}
