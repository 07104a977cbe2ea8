//! Publishing requests and their answers.
//!
//! Pure: from headers and body to requests for the writer, and from the writer's outcome to JSON.

use hyper::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH,
};
use serde::{Deserialize, Serialize};
use simplefeed_core::{
    cut::Period,
    entry::Draft,
    event,
    feed::{FeedId, FeedName, FeedPattern},
    limits::IDEMPOTENCY_KEY_BYTES_MAX,
    refusal::Refusal,
    scanner::{essence, scan},
    settings::{Choices, Embed, OwnEntries, Settings},
};
use simplefeed_http::{
    conditional::TagList,
    problem::{ENTRY_TYPES, Problem},
};
use simplefeed_publish::{AppendResult, Conditions, FeedKindRule, Heads, SettingsCondition};

use super::names::{BoundedNames, patterns};

/// Media type of a body with entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryMedia {
    /// An Atom entry, or a feed document with entries.
    Atom,
    /// One event as JSON, or an array of them.
    Json,
    /// One event as JSON on each line.
    Ndjson,
}

impl EntryMedia {
    /// Returns the media type that a request's headers announce.
    ///
    /// # Errors
    ///
    /// A problem with status 415 for any other media type or charset, and for a coded body.
    pub fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        check_uncoded(headers)?;
        let kind = media_type(headers);
        // The parameter is parsed by hand: the crate `mime` refuses a space before `;`, and another
        // crate for one parameter would cost more.
        let charset = kind.split(';').skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim()
                .eq_ignore_ascii_case("charset")
                .then(|| value.trim().trim_matches('"'))
        });
        // Every accepted format is UTF-8, so a body in another charset has none of these formats.
        if charset.is_some_and(|charset| !charset.eq_ignore_ascii_case("utf-8")) {
            return Err(Problem::media_type(format!(
                "the body must be UTF-8; the request has {}",
                shorten_kind(kind)
            )));
        }
        match essence(kind).as_str() {
            "application/atom+xml" => Ok(Self::Atom),
            "application/json" => Ok(Self::Json),
            "application/x-ndjson" => Ok(Self::Ndjson),
            _ => Err(Problem::media_type(format!(
                "entries are {ENTRY_TYPES}; the request has {}",
                shorten_kind(kind)
            ))),
        }
    }

    /// Returns the drafts in a body.
    ///
    /// # Errors
    ///
    /// Returns the first problem of the body.
    pub fn drafts(self, body: &[u8]) -> Result<Vec<Draft>, Refusal> {
        match self {
            Self::Atom => scan(body),
            Self::Json => event::from_json(body),
            Self::Ndjson => event::from_ndjson(body),
        }
    }
}

/// Returns a media type as it was sent, shortened for a message.
fn shorten_kind(kind: &str) -> String {
    if kind.is_empty() {
        return "no Content-Type".into();
    }
    // The message must stay short, however long the field is.
    let kind: String = kind.chars().take(100).collect();
    format!("Content-Type {kind:?}")
}

pub(super) fn media_type(headers: &HeaderMap) -> &str {
    headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default()
}

pub(super) fn check_uncoded(headers: &HeaderMap) -> Result<(), Problem> {
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    for coding in codings {
        // `identity` says that there is no coding (RFC 9110, 8.4.1).
        if !coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"identity")
        {
            return Err(Problem::content_coding(
                "a body is accepted without content coding only",
            ));
        }
    }
    Ok(())
}

/// Returns the idempotency key of a request.
///
/// # Errors
///
/// A problem with status 400 if the key is empty, too long or given twice.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut lines = headers
        .get_all(HeaderName::from_static("idempotency-key"))
        .iter();
    let Some(key) = lines.next() else {
        return Ok(None);
    };
    // Some clients send the key as a quoted string, others without quotes.
    let text = key.to_str().unwrap_or_default().trim().trim_matches('"');
    if text.is_empty() || text.len() > IDEMPOTENCY_KEY_BYTES_MAX || lines.next().is_some() {
        let detail =
            format!("Idempotency-Key is one text of 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
        return Err(Problem::malformed(detail));
    }
    Ok(Some(text.into()))
}

/// Returns the conditions that a publishing request names.
///
/// # Errors
///
/// A problem with status 400 if a condition is no list of entity tags.
pub fn conditions(headers: &HeaderMap) -> Result<Conditions, Problem> {
    Ok(Conditions {
        if_match: parse_heads(headers, &IF_MATCH)?,
        if_none_match: parse_heads(headers, &IF_NONE_MATCH)?,
    })
}

/// Returns the condition of a request that creates a feed or changes its settings.
///
/// # Errors
///
/// A problem with status 412 for `If-Match`, because the URL of a feed shows no settings to which
/// the field could apply; with 400 if `If-None-Match` is anything but `*`.
pub(crate) fn expected_of_feed(headers: &HeaderMap) -> Result<SettingsCondition, Problem> {
    if headers.contains_key(IF_MATCH) {
        let detail = "If-Match never holds here: the settings, and their tag, are at settings.json below this URL, and are \
                      changed there";
        return Err(Problem::precondition(detail));
    }
    match TagList::of(headers, &IF_NONE_MATCH) {
        None => Ok(SettingsCondition::Anything),
        Some(TagList::Any) => Ok(SettingsCondition::NoFeed),
        Some(TagList::Tags(_) | TagList::Invalid) => {
            let detail =
                "the only If-None-Match of a change of settings is *, which creates a feed";
            Err(Problem::malformed(detail))
        }
    }
}

/// Returns the condition of a request that changes settings at their own URL.
///
/// # Errors
///
/// A problem with status 400 if `If-Match` is no list of entity tags; with 412 for `If-None-Match`,
/// because nothing is created at this URL.
pub(crate) fn expected_of_settings(headers: &HeaderMap) -> Result<SettingsCondition, Problem> {
    let tags = match parse_heads(headers, &IF_MATCH)? {
        None | Some(Heads::Any) => None,
        Some(Heads::Tags(tags)) => Some(tags),
    };
    if headers.contains_key(IF_NONE_MATCH) {
        let detail = "If-None-Match never holds here: nothing is created at this URL";
        return Err(Problem::precondition(detail));
    }
    Ok(SettingsCondition::Settings(tags))
}

fn parse_heads(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Heads>, Problem> {
    match TagList::of(headers, name) {
        None => Ok(None),
        Some(TagList::Any) => Ok(Some(Heads::Any)),
        // A weak tag counts like a strong one, because a proxy that compresses makes our tags weak.
        Some(TagList::Tags(tags)) => Ok(Some(Heads::Tags(
            tags.iter().map(|tag| tag.tag().into()).collect(),
        ))),
        Some(TagList::Invalid) => {
            let detail = format!("{name} is not a list of entity tags");
            Err(Problem::malformed(detail))
        }
    }
}

/// The answer to an append.
#[derive(Debug, Serialize)]
struct AppendAnswer {
    results: Vec<ResultAnswer>,
    commit: u64,
}

#[derive(Debug, Serialize)]
struct ResultAnswer {
    id: String,
    position: u64,
    document: String,
    status: &'static str,
}

/// Returns the body that answers an append.
pub(crate) fn append_answer(appended: &AppendResult) -> Vec<u8> {
    let results = appended.results.iter().map(|outcome| ResultAnswer {
        id: outcome.id.to_string(),
        position: outcome.position.0,
        document: appended.settings.document_url(outcome.document),
        status: if outcome.duplicate {
            "duplicate"
        } else {
            "appended"
        },
    });
    let answer = AppendAnswer {
        results: results.collect(),
        commit: appended.commit,
    };
    serde_json::to_vec(&answer).expect("an answer has a JSON form")
}

/// Returns the URL of the entry, if an append created exactly one entry and had no other.
pub(crate) fn entry_location(appended: &AppendResult) -> Option<String> {
    match appended.results.as_slice() {
        // A duplicate was there before, so the answer has no `Location`.
        [one] if !one.duplicate => {
            let numbered = simplefeed_core::feed::EpochNumber {
                number: one.position.0,
                epoch: one.document.epoch,
            };
            Some(format!(
                "{}entries/{numbered}.atom",
                appended.settings.base_url()
            ))
        }
        _ => None,
    }
}

/// Kind of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RequestKind {
    Feed,
    Timeline,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "settings (a JSON object)")]
struct SettingsBody {
    kind: Option<RequestKind>,
    owner: Option<String>,
    own: Option<OwnEntries>,
    following: Option<BoundedNames>,
    id: Option<String>,
    title: Option<String>,
    author: Option<String>,
    document_entries: Option<u32>,
    document_bytes: Option<u64>,
    document_period: Option<Period>,
    absolute_links: Option<bool>,
    via_links: Option<bool>,
    alternate_links: Option<bool>,
    closed: Option<bool>,
    embed: Option<Embed>,
}

/// Checks that JSON is no array: an array would pass for an object, member by member.
pub(super) fn check_object(body: &[u8]) -> Result<(), Problem> {
    if body.trim_ascii_start().starts_with(b"[") {
        let detail = "a JSON object is needed, and not an array";
        return Err((&Refusal::unacceptable(detail, "Simplefeed profile: settings")).into());
    }
    Ok(())
}

/// Settings that a PUT asks for.
#[derive(Debug)]
pub struct SettingsForm {
    /// Choices to change. An absent choice changes nothing.
    pub choices: Choices,
    /// Id of a feed to be created.
    pub id: Option<FeedId>,
    /// Kind of the feed.
    pub kind: FeedKindRule,
    /// Feeds and patterns that a timeline to be created follows.
    pub following: Vec<FeedPattern>,
}

/// Returns the settings that a PUT asks for.
///
/// # Errors
///
/// A problem: 415 for another media type, 400 for a body that is not JSON, 422 for JSON that does
/// not have the form of settings.
pub fn settings_body(headers: &HeaderMap, body: &[u8]) -> Result<SettingsForm, Problem> {
    // The headers are checked first, so that a body of another kind is not read as JSON.
    check_uncoded(headers)?;
    if essence(media_type(headers)) != "application/json" {
        return Err(Problem::media_type(format!(
            "settings are application/json; the request has {}",
            shorten_kind(media_type(headers))
        )));
    }
    check_object(body)?;
    let parsed: SettingsBody = serde_json::from_slice(body).map_err(|error| {
        // JSON in another form is unacceptable. A body that is not JSON is malformed.
        let refusal = if error.is_data() {
            Refusal::unacceptable(error.to_string(), "Simplefeed profile: settings")
        } else {
            Refusal::malformed(format!("not JSON: {error}"))
        };
        Problem::from(&refusal)
    })?;
    let kind = kind_of(&parsed)?;
    let following = parsed.following.as_ref().map_or(&[][..], |names| &names.0);
    let following = patterns(following, "following")?;
    let id = parsed.id.map(|id| {
        // The id must be an IRI, because it becomes the feed's `atom:id` for ever.
        FeedId::parse(&id).ok_or_else(|| {
            let detail = "id is not an absolute IRI without white space";
            Problem::from(&Refusal::unacceptable(detail, "RFC 4287, 4.2.6").at_element("id"))
        })
    });
    let choices = Choices {
        title: parsed.title,
        author: parsed.author,
        document_entries: parsed.document_entries,
        document_bytes: parsed.document_bytes,
        document_period: parsed.document_period,
        absolute_links: parsed.absolute_links,
        via_links: parsed.via_links,
        alternate_links: parsed.alternate_links,
        closed: parsed.closed,
        embed: parsed.embed,
    };
    Ok(SettingsForm {
        choices,
        id: id.transpose()?,
        kind,
        following,
    })
}

/// Returns the kind of feed that settings ask for.
fn kind_of(parsed: &SettingsBody) -> Result<FeedKindRule, Problem> {
    let refused = |detail: &str, element: &str| {
        let refusal = Refusal::unacceptable(detail, "settings").at_element(element);
        Err(Problem::from(&refusal))
    };
    if parsed.kind != Some(RequestKind::Timeline) {
        // These members have a meaning only for a timeline, so the kind must stand beside them.
        let of_timelines = [
            ("owner", parsed.owner.is_some()),
            ("own", parsed.own.is_some()),
            ("following", parsed.following.is_some()),
        ];
        let given = of_timelines.iter().find(|(_, is_given)| *is_given);
        return match given {
            Some((member, _)) => refused("this needs kind timeline beside it", member),
            None if parsed.kind.is_some() => Ok(FeedKindRule::Feed),
            None => Ok(FeedKindRule::Any),
        };
    }
    let owner = match parsed.owner.as_deref().map(FeedName::parse) {
        Some(None) => return refused("owner is no name of a feed", "owner"),
        owner => owner.flatten(),
    };
    let own = parsed.own;
    Ok(FeedKindRule::Timeline { owner, own })
}

#[derive(Debug, Serialize)]
struct SettingsAnswer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<RequestKind>,
    name: &'a str,
    id: &'a str,
    title: &'a str,
    author: &'a str,
    document_entries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document_bytes: Option<u64>,
    document_period: Period,
    absolute_links: bool,
    via_links: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    alternate_links: Option<bool>,
    closed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    embed: Option<Embed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<OwnEntries>,
    href: String,
}

/// Returns the JSON that the URL of settings shows: all current settings, but no owner that the
/// sender may not see.
pub(crate) fn settings_answer(settings: &Settings, is_seen: impl Fn(&FeedName) -> bool) -> Vec<u8> {
    let policy = settings.cut_policy();
    let timeline = settings.timeline.as_ref();
    let owner = timeline.and_then(|kind| kind.owner.as_ref());
    let owner = owner.filter(|owner| is_seen(owner));
    let answer = SettingsAnswer {
        kind: timeline.map(|_| RequestKind::Timeline),
        name: settings.name.as_str(),
        id: settings.id.as_str(),
        title: settings.title(),
        author: settings.author(),
        document_entries: policy.entries,
        // A timeline that shows large entries only as links has no bound in bytes.
        document_bytes: Some(policy.bytes).filter(|bytes| *bytes < u64::MAX),
        document_period: policy.period,
        absolute_links: settings.absolute_links(),
        via_links: settings.via_links(),
        alternate_links: timeline.is_none().then(|| settings.alternate_links()),
        closed: settings.is_closed(),
        embed: timeline.map(|_| settings.embed()),
        owner: owner.map(FeedName::as_str),
        // Without a visible owner, this member would reveal that there is a hidden one.
        own: owner.and(timeline).map(|kind| kind.own),
        href: format!("{}{}", settings.base_url(), simplefeed_core::header::RECENT),
    };
    serde_json::to_vec(&answer).expect("an answer has a JSON form")
}
