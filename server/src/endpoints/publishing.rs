//! Handlers of publishing requests: entries, and settings of a feed.
//!
//! Shell: the writer, the log, threads.

use std::sync::Arc;

use hyper::{
    StatusCode,
    header::{ETAG, HeaderValue, LOCATION},
};
use simplefeed_core::{settings::Settings, sight::Sight};
use simplefeed_http::{
    answers::{Answer, document, header_value, json},
    endpoint::{Exchange, Outcome, Representation},
    problem::Problem,
};
use simplefeed_log::settings_of;
use simplefeed_process::workers;
use simplefeed_publish::{
    AppendRequest, Configure, ConfigureResult, FeedKindRule, FollowItems, PublishError,
    SettingsCondition, WriterHandle,
};
use simplefeed_resource::{Resource, Validity, Visibility, head_tag::SettingsTag};
use tracing::error;

use super::{
    forms::{self, EntryMedia, SettingsForm},
    off_thread,
    refusals::publish_error,
    shelf::Shelf,
    shelf::is_hidden,
    timelines::hide,
};
use crate::{metrics::EntryFate, metrics::Metrics};

/// Handles for requests of publishers.
#[derive(Debug)]
pub struct PublishParts {
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// Way to the writer.
    pub publisher: WriterHandle,
    /// Counters of entries in publishing requests.
    pub metrics: Arc<Metrics>,
}

/// Largest body that is parsed on the thread of its connection, in bytes.
const INLINE_BODY_BYTES: usize = 16 * 1024;

/// Appends the entries of a request to a feed.
pub(super) async fn append(
    parts: &PublishParts,
    exchange: Exchange<'_>,
) -> Result<Outcome, Problem> {
    // All headers are checked before a byte of the body is read.
    let media = EntryMedia::of(exchange.headers)?;
    let key = forms::idempotency_key(exchange.headers)?;
    let conditions = forms::conditions(exchange.headers)?;
    let feed = exchange.params.feed().clone();
    let (body, room) = exchange.body.read().await?;
    let (drafts, room) = if body.len() <= INLINE_BODY_BYTES {
        (media.drafts(&body), room)
    } else {
        // The memory moves with the work, which goes on even if the client leaves.
        let work = workers::long(move || (media.drafts(&body), room));
        work.await.map_err(|error| {
            error!(%error, "reading entries failed");
            Problem::internal()
        })?
    };
    let drafts = drafts.map_err(|refusal| Problem::from(&refusal))?;
    let append = AppendRequest {
        feed,
        drafts,
        key,
        conditions,
        room,
    };
    let offered = append.drafts.len();
    let appended = match parts.publisher.append(append).await {
        Ok(appended) => appended,
        Err(error) => {
            parts.metrics.published(EntryFate::Refused, offered);
            return Ok(Outcome::Answer(publish_error(&error)));
        }
    };
    let duplicates = appended.results.iter().filter(|one| one.duplicate).count();
    parts.metrics.published(EntryFate::Duplicate, duplicates);
    parts
        .metrics
        .published(EntryFate::Appended, offered - duplicates);
    // An empty batch creates no feed. Without a feed, there is nothing to announce.
    let announcement = parts
        .shelf
        .announcement(&appended.settings)
        .filter(|_| appended.exists);
    // 201 says that something was created (RFC 9110, 15.3.2), and a repeat creates nothing.
    let new = appended.results.iter().any(|outcome| !outcome.duplicate);
    let status = if new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let mut answer = json(status, forms::append_answer(&appended), Some(&appended.tag));
    let headers = answer.headers_mut();
    // Without a feed there is no document that the tag could stand for.
    if !appended.exists {
        headers.remove(ETAG);
    }
    if let Some(location) = forms::entry_location(&appended) {
        headers.insert(LOCATION, header_value(&location));
    }
    headers.extend(announcement);
    Ok(Outcome::Answer(answer))
}

/// Returns whether the sender of a request may see the feed that owns a timeline; `true` for a
/// timeline without an owner.
async fn sees_owner(shelf: &Shelf, settings: &Settings, sight: Sight) -> Result<bool, Problem> {
    let owner = settings.timeline.as_ref();
    let Some(owner) = owner.and_then(|kind| kind.owner.clone()) else {
        return Ok(true);
    };
    let timelines = Arc::clone(&shelf.timelines);
    let found = off_thread(move || {
        let owner_now = timelines.settings_now(&owner)?;
        Ok(owner_now.is_some_and(|(_, now)| !now.is_closed() || sight.shows(&owner)))
    });
    found.await
}

/// Cache policy for settings: a cache must ask the server each time, because a change must rest on
/// the current settings.
const ASKED_AGAIN: HeaderValue = HeaderValue::from_static("private, no-cache");

/// Creates a feed, or changes its settings.
pub(super) async fn configure(
    parts: &PublishParts,
    exchange: Exchange<'_>,
) -> Result<Outcome, Problem> {
    let expected = forms::expected_of_feed(exchange.headers)?;
    let (configured, body) = match apply_settings(parts, exchange, expected).await? {
        Ok(changed) => changed,
        Err(answer) => return Ok(Outcome::Answer(answer)),
    };
    let status = if configured.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let mut answer = json(status, body, configured.tag.as_ref());
    let announcement = parts.shelf.announcement(&configured.settings);
    answer.headers_mut().extend(announcement);
    Ok(Outcome::Answer(answer))
}

/// Changes the settings of a feed, at the URL of the settings. Creates no feed.
pub(super) async fn change_settings(
    parts: &PublishParts,
    exchange: Exchange<'_>,
) -> Result<Outcome, Problem> {
    let expected = forms::expected_of_settings(exchange.headers)?;
    Ok(Outcome::Answer(
        match apply_settings(parts, exchange, expected).await? {
            Ok((configured, body)) => {
                let mut answer = document(StatusCode::OK, body);
                // The letter `i` marks the tag of the identity coding. Conditions ignore this
                // letter.
                let tag = format!("\"{}i\"", configured.settings_tag.as_str());
                answer.headers_mut().insert(ETAG, header_value(&tag));
                answer
            }
            Err(answer) => answer,
        },
    ))
}

/// Changes settings as a request asks. Returns the settings as the sender may see them, or the
/// answer to a refused request.
async fn apply_settings(
    parts: &PublishParts,
    exchange: Exchange<'_>,
    expected: SettingsCondition,
) -> Result<Result<(ConfigureResult, Vec<u8>), Answer>, Problem> {
    let feed = exchange.params.feed().clone();
    // The memory of the body is given back with `_room`, after the commit.
    let (body, _room) = exchange.body.read().await?;
    let SettingsForm {
        choices,
        id,
        kind,
        following,
    } = forms::settings_body(exchange.headers, &body)?;
    let sight = exchange.access.sight(exchange.headers);
    let mut wanted = FollowItems {
        follow: following,
        sight: sight.clone(),
        ..FollowItems::default()
    };
    // Hidden names are found before the request goes to the writer: the time of the writer's lookup
    // would reveal a closed feed.
    let mut hidden = hide(&parts.shelf, &mut wanted).await?;
    if let FeedKindRule::Timeline {
        owner: Some(owner), ..
    } = &kind
        && is_hidden(&parts.shelf, owner, &sight).await?
    {
        hidden.get_or_insert_with(|| owner.clone());
    }
    if let Some(hidden) = hidden {
        return Ok(Err(publish_error(&PublishError::UnknownFeed(hidden))));
    }
    let configure = Configure {
        feed,
        choices,
        id,
        expected,
        kind,
        wanted,
    };
    let configured = match parts.publisher.configure(configure).await {
        Ok(configured) => configured,
        Err(error) => return Ok(Err(publish_error(&error))),
    };
    let shows_owner = sees_owner(&parts.shelf, &configured.settings, sight).await?;
    let body = forms::settings_answer(&configured.settings, |_| shows_owner);
    Ok(Ok((configured, body)))
}

/// Shows the settings of a feed, under a tag of their own.
pub(super) async fn settings(shelf: &Shelf, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let feed = exchange.params.feed().clone();
    // Read before the lookup, so that a commit that the lookup misses lies in a later second.
    let over = shelf.left_behind();
    let (log, name) = (Arc::clone(&shelf.log), feed.clone());
    let look = move || {
        let Some(head) = log.named(&name)? else {
            return Ok(None);
        };
        let settings = settings_of(&*log, head.feed, head.revision)?;
        let tag = SettingsTag::new(head.feed, head.revision, &settings);
        Ok(Some((settings, tag)))
    };
    let found = off_thread(look).await?;
    let (settings, tag) =
        found.ok_or_else(|| Problem::not_found(format!("there is no feed {feed}")))?;
    let sight = exchange.access.sight(exchange.headers);
    let shows_owner = sees_owner(shelf, &settings, sight).await?;
    let body = forms::settings_answer(&settings, |_| shows_owner);
    let resource = Resource::of_bytes("application/json", None, Validity::Once, body.into());
    Ok(Outcome::Shown(Box::new(Representation {
        resource: resource.tagged(tag.as_str()),
        visibility: Visibility::Private,
        policy: ASKED_AGAIN,
        headers: vec![],
        over,
        depends_on_reader: true,
    })))
}
