//! Endpoints that change and list the follows of timelines.
//!
//! Shell: the writer, the log, and the graph of follows.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, StatusCode,
    header::{AUTHORIZATION, IF_MATCH},
};
use serde::{Deserialize, Serialize};
use simplefeed_core::{
    feed::{FeedKey, FeedName, FeedPattern},
    header::RECENT,
    limits::CATALOGUE_FEEDS_MAX,
    opml,
    refusal::Refusal,
    scanner::essence,
    sight::Sight,
};
use simplefeed_http::{
    access::Right,
    answers::{Answer, document},
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Representation, Verb},
    problem::Problem,
};
use simplefeed_log::LogError;
use simplefeed_publish::{Follow, FollowItems, FollowResult, PublishError, WriterHandle};
use simplefeed_resource::{Resource, Validity, Visibility};
use simplefeed_views::{
    catalogue::{Catalogue, CatalogueRow},
    timelines::{
        Timelines,
        lists::{ClosedSight, FeedListPart, ListStretch},
    },
};
use tokio::sync::Semaphore;

use super::{
    Site,
    catalogue::{Href, after},
    forms::{check_object, check_uncoded, media_type},
    may_see_row,
    names::{BoundedNames, FOLLOWED_MAX, patterns},
    off_thread,
    refusals::publish_error,
    shelf::{Shelf, is_hidden, look_again, seen},
};

/// Handles for follows of timelines.
#[derive(Debug)]
pub struct TimelineParts {
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// Way to the writer.
    pub publisher: WriterHandle,
    /// Permits for searches through all names, one for each search that may run at the same time.
    pub searches: Arc<Semaphore>,
}

/// Paths of follows and followers.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[
    Endpoint {
        path: "/feeds/{feed}/following",
        label: "following",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::POST,
            needs: Needs::Right(Right::Publish),
            handle: |site, exchange| Box::pin(change_items(&site.timelines, exchange)),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/following/{item}",
        label: "following",
        query: Query::Ignored,
        methods: &[
            Verb {
                method: Method::PUT,
                needs: Needs::Right(Right::Publish),
                handle: |site, exchange| Box::pin(follow_item(&site.timelines, exchange)),
            },
            Verb {
                method: Method::DELETE,
                needs: Needs::Right(Right::Publish),
                handle: |site, exchange| Box::pin(unfollow_item(&site.timelines, exchange)),
            },
        ],
    },
    Endpoint {
        path: "/feeds/{feed}/following.json",
        label: "following",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                Box::pin(show_list(&site.timelines, exchange, ListSubject::Following))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/following.opml",
        label: "following",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                Box::pin(show_list(&site.timelines, exchange, ListSubject::Opml))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/followers.json",
        label: "followers",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                Box::pin(show_list(&site.timelines, exchange, ListSubject::Followers))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/friends-of-friends.json",
        label: "following",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                Box::pin(show_list(
                    &site.timelines,
                    exchange,
                    ListSubject::FriendsOfFriends,
                ))
            },
        }],
    },
];

/// Media types of a list of feeds in OPML.
const OPML_TYPES: [&str; 5] = [
    "text/x-opml",
    "text/x-opml+xml",
    "application/opml+xml",
    "application/xml",
    "text/xml",
];
const OPML_TYPE: &str = "text/x-opml;charset=utf-8";
/// Maximum number of feeds in a list of friends of friends.
const FRIENDS_MAX: usize = 1_000;

/// Body of a request to follow one item.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object with backfill")]
struct FollowBody {
    #[serde(default)]
    backfill: u32,
}

/// Body of a request to change many items.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a JSON object with follow, unfollow and backfill"
)]
struct ChangeBody {
    #[serde(default)]
    follow: BoundedNames,
    #[serde(default)]
    unfollow: BoundedNames,
    #[serde(default)]
    backfill: u32,
}

/// Answer to a change of one item.
#[derive(Debug, Serialize)]
struct ItemAnswer<'a> {
    timeline: &'a str,
    item: String,
    followed: bool,
    changed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// Answer to a change of many items.
#[derive(Debug, Serialize)]
struct ChangeAnswer<'a> {
    timeline: &'a str,
    followed: usize,
    unfollowed: usize,
}

/// Handles a request to follow one feed or one pattern.
async fn follow_item(parts: &TimelineParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    check_no_match(exchange.headers)?;
    let item = exchange.params.item().clone();
    let (body, _room) = exchange.body.read().await?;
    // The URL names the item, so the body may be empty.
    let FollowBody { backfill } = if body.is_empty() {
        FollowBody::default()
    } else {
        check_json(exchange.headers)?;
        parse_body(&body)?
    };
    let wanted = FollowItems {
        follow: vec![item.clone()],
        backfill,
        sight: exchange.access.sight(exchange.headers),
        ..FollowItems::default()
    };
    change_one(parts, exchange.params.feed(), item, true, wanted).await
}

/// Handles a request to follow one item no longer.
async fn unfollow_item(parts: &TimelineParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    check_no_match(exchange.headers)?;
    // The body has no meaning, but it is read, because only then is the request complete.
    let (_nothing, _room) = exchange.body.read().await?;
    let item = exchange.params.item().clone();
    let wanted = FollowItems {
        unfollow: vec![item.clone()],
        sight: exchange.access.sight(exchange.headers),
        ..FollowItems::default()
    };
    change_one(parts, exchange.params.feed(), item, false, wanted).await
}

async fn change_one(
    parts: &TimelineParts,
    timeline: &FeedName,
    item: FeedPattern,
    followed: bool,
    wanted: FollowItems,
) -> Result<Outcome, Problem> {
    Ok(Outcome::Answer(
        match change_follows(parts, timeline, wanted).await? {
            Ok(outcome) => json_answer(&ItemAnswer {
                timeline: timeline.as_str(),
                item: item.to_string(),
                followed,
                changed: outcome.followed + outcome.unfollowed > 0,
                note: (!followed).then_some("entries that came before stay in the timeline"),
            }),
            Err(error) => publish_error(&error),
        },
    ))
}

/// Changes the follows of a timeline.
async fn change_follows(
    parts: &TimelineParts,
    timeline: &FeedName,
    mut wanted: FollowItems,
) -> Result<Result<FollowResult, PublishError>, Problem> {
    if let Some(hidden) = hide(&parts.shelf, &mut wanted).await? {
        return Ok(Err(PublishError::UnknownFeed(hidden)));
    }
    let feed = timeline.clone();
    Ok(parts.publisher.follow(Follow { feed, wanted }).await)
}

/// Returns the first name in `follow` that is hidden from the sender: there is no such feed, or a
/// closed one. Removes hidden names from `unfollow`, because the writer would ignore them.
///
/// Hidden names must not get to the writer. The writer would look them up, and the time of the
/// lookup would reveal a closed feed.
pub(super) async fn hide(
    shelf: &Shelf,
    wanted: &mut FollowItems,
) -> Result<Option<FeedName>, Problem> {
    for name in wanted.follow.iter().filter_map(FeedPattern::exact) {
        if is_hidden(shelf, &name, &wanted.sight).await? {
            return Ok(Some(name));
        }
    }
    let mut unfollow = vec![];
    for pattern in std::mem::take(&mut wanted.unfollow) {
        match pattern.exact() {
            Some(name) if is_hidden(shelf, &name, &wanted.sight).await? => {}
            _ => unfollow.push(pattern),
        }
    }
    wanted.unfollow = unfollow;
    Ok(None)
}

/// Changes many items at once.
async fn change_items(parts: &TimelineParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    // All headers are checked before a byte of the body is read.
    check_no_match(exchange.headers)?;
    check_uncoded(exchange.headers)?;
    let kind = essence(media_type(exchange.headers));
    let is_opml = OPML_TYPES.contains(&kind.as_str());
    if !is_opml {
        check_json(exchange.headers)?;
    }
    let timeline = exchange.params.feed().clone();
    let (body, _room) = exchange.body.read().await?;
    let mut wanted = if is_opml {
        of_opml(&body, &parts.shelf.public_url)?
    } else {
        let body: ChangeBody = parse_body(&body)?;
        FollowItems {
            follow: patterns(&body.follow.0, "follow")?,
            unfollow: patterns(&body.unfollow.0, "unfollow")?,
            backfill: body.backfill,
            ..FollowItems::default()
        }
    };
    wanted.sight = exchange.access.sight(exchange.headers);
    Ok(Outcome::Answer(
        match change_follows(parts, &timeline, wanted).await? {
            Ok(outcome) => json_answer(&ChangeAnswer {
                timeline: timeline.as_str(),
                followed: outcome.followed,
                unfollowed: outcome.unfollowed,
            }),
            // The URL is right, and only one of many names is wrong, so the status is not 404.
            Err(PublishError::UnknownFeed(feed)) => {
                let detail = format!("there is no feed {feed}");
                let refusal = Refusal::unacceptable(detail, "Simplefeed profile: following");
                publish_error(&refusal.at_element(feed.as_str()).into())
            }
            Err(error) => publish_error(&error),
        },
    ))
}

fn json_answer(answer: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(answer).expect("an answer has a JSON form");
    document(StatusCode::OK, body)
}

/// Refuses a condition on the state at the URL: nothing can be read there, so the condition never
/// holds (RFC 9110, 13.1.1).
fn check_no_match(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(IF_MATCH) {
        let detail =
            "If-Match never holds here, since this URL cannot be read; send the change without it";
        return Err(Problem::precondition(detail));
    }
    Ok(())
}

fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    check_uncoded(headers)?;
    if essence(media_type(headers)) == "application/json" {
        return Ok(());
    }
    let detail = format!(
        "what to follow is application/json, or a list of feeds as {}",
        OPML_TYPES[0]
    );
    Err(Problem::media_type(detail))
}

fn parse_body<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    check_object(body)?;
    serde_json::from_slice(body).map_err(|error| {
        // JSON in another form is unacceptable. A body that is not JSON is malformed.
        let refusal = if error.is_data() {
            Refusal::unacceptable(error.to_string(), "Simplefeed profile: following")
        } else {
            Refusal::malformed(format!("not JSON: {error}"))
        };
        Problem::from(&refusal)
    })
}

/// Returns the feeds of this server that a list names.
fn of_opml(body: &Bytes, public_url: &str) -> Result<FollowItems, Problem> {
    let refused = |detail: String| {
        let refusal = Refusal::unacceptable(detail, "Simplefeed profile: following");
        Problem::from(&refusal.at_element("xmlUrl"))
    };
    let list = std::str::from_utf8(body)
        .map_err(|error| Problem::malformed(format!("the list of feeds: {error}")))?;
    let urls = opml::feeds(list).map_err(|error| Problem::malformed(error.to_string()))?;
    // The bound is the same as for the names in a body of JSON.
    if urls.len() > FOLLOWED_MAX {
        return Err(refused(format!("a list has at most {FOLLOWED_MAX} feeds")));
    }
    let mut follow = vec![];
    for url in urls {
        let name = url
            .strip_prefix(public_url)
            .and_then(|rest| rest.strip_prefix("/feeds/"))
            .map(|rest| rest.strip_suffix(&format!("/{RECENT}")).unwrap_or(rest))
            .and_then(FeedName::parse);
        let Some(name) = name else {
            // The message must stay short, however long the URL is.
            let url: String = url.chars().take(200).collect();
            return Err(refused(format!("{url} is no feed of this server")));
        };
        follow.push(FeedPattern::of(&name));
    }
    Ok(FollowItems {
        follow,
        ..FollowItems::default()
    })
}

/// List that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListSubject {
    Following,
    Opml,
    Followers,
    FriendsOfFriends,
}

/// A feed in a list.
#[derive(Debug, Serialize)]
struct ListRow<'l> {
    name: &'l str,
    title: &'l str,
    href: Href<'l>,
    /// Number of friends that follow the feed, in a list of friends of friends.
    #[serde(skip_serializing_if = "Option::is_none")]
    followed_by: Option<usize>,
}

/// A page of a list.
#[derive(Debug, Serialize)]
struct FollowPage<'l> {
    count: u64,
    feeds: Vec<ListRow<'l>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    patterns: Vec<String>,
    next: Option<String>,
}

/// Handles a GET of a list of follows or followers.
async fn show_list(
    parts: &TimelineParts,
    exchange: Exchange<'_>,
    subject: ListSubject,
) -> Result<Outcome, Problem> {
    let feed = exchange.params.feed().clone();
    let after = match subject {
        ListSubject::Following | ListSubject::Followers => after(exchange.query())?,
        // These lists have no pages, so the query is ignored. It must not be refused, because a
        // ready answer to the same URL would ignore it, too.
        ListSubject::Opml | ListSubject::FriendsOfFriends => None,
    };
    let seen = seen(&parts.shelf, &exchange).await?;
    let sight = exchange.access.sight(exchange.headers);
    // There may be many follows of friends to look at, or, for a reader who may see some closed
    // feeds, many closed followers.
    let takes_long = match subject {
        ListSubject::FriendsOfFriends => true,
        ListSubject::Followers => !sight.is_all() && !sight.is_none(),
        ListSubject::Following | ListSubject::Opml => false,
    };
    let turn = if takes_long {
        Arc::clone(&parts.searches).acquire_owned().await.ok()
    } else {
        None
    };
    // Read before the lookup: the rows that the lookup finds may be newer than the generation,
    // never older.
    let validity = Validity::Generation(parts.shelf.catalogue.generation_of_names());
    let lists = Lists {
        catalogue: Arc::clone(&parts.shelf.catalogue),
        timelines: Arc::clone(&parts.shelf.timelines),
        sight,
        public_url: parts.shelf.public_url.clone(),
        name: feed.clone(),
        feed: seen.feed,
    };
    // The work holds the turn, because the work goes on after its reader has gone.
    let found = off_thread(move || {
        let _turn = turn;
        Ok(lists.show_subject(subject, after.as_ref())?)
    });
    let body = match found.await? {
        ListAnswer::List(body) => body,
        ListAnswer::NoTimeline => {
            return Err(Problem::not_found(format!("feed {feed} is no timeline")));
        }
        ListAnswer::NoSuchPlace => {
            return Err(Problem::malformed("after= names no feed of this list"));
        }
    };
    // During the lookup, a closed timeline may have begun to follow a closed feed that this reader
    // may not see.
    let seen = look_again(&parts.shelf, &exchange, seen).await?;
    // If the reader may see closed feeds, the list depends on the reader's rights.
    let has_token = exchange.headers.contains_key(AUTHORIZATION);
    let may_see_closed = !exchange.access.sight(exchange.headers).is_none();
    let visibility = if has_token || may_see_closed {
        Visibility::Private
    } else {
        seen.visibility
    };
    let media_type = match subject {
        ListSubject::Opml => OPML_TYPE,
        ListSubject::Following | ListSubject::Followers | ListSubject::FriendsOfFriends => {
            "application/json"
        }
    };
    let resource = Resource::of_bytes(media_type, None, validity, body.into());
    Ok(Outcome::Shown(Box::new(Representation {
        policy: parts.shelf.lifetimes.of(&resource, visibility),
        resource,
        visibility,
        headers: vec![],
        over: seen.over,
        depends_on_reader: true,
    })))
}

/// Answer to a request for a list.
enum ListAnswer {
    List(Vec<u8>),
    NoTimeline,
    /// No feed that the reader may see has the name behind which the list is to begin.
    NoSuchPlace,
}

/// Lists of one feed for one reader.
struct Lists {
    catalogue: Arc<Catalogue>,
    timelines: Arc<Timelines>,
    sight: Sight,
    public_url: String,
    name: FeedName,
    feed: FeedKey,
}

impl Lists {
    fn show_subject(
        &self,
        subject: ListSubject,
        after: Option<&FeedName>,
    ) -> Result<ListAnswer, LogError> {
        let mut wanted = ListStretch {
            after: None,
            max: CATALOGUE_FEEDS_MAX,
        };
        if let Some(after) = after {
            let row = self.catalogue.named(after)?;
            match row
                // A list of feeds cannot begin behind a timeline, nor a list of timelines behind a
                // feed.
                .filter(|row| row.is_timeline == matches!(subject, ListSubject::Followers))
                .map(|row| Ok((self.shows_row(&row)?, row.key)))
                .transpose()?
            {
                Some((true, key)) => wanted.after = Some(key),
                // A feed that the reader may not see gets the same answer as no feed.
                Some((false, _)) | None => return Ok(ListAnswer::NoSuchPlace),
            }
        }
        match subject {
            ListSubject::Followers => {
                let shelf = (&*self.catalogue, &*self.timelines);
                let part = seen_followers(shelf, self.feed, wanted, &self.sight)?;
                self.show_page(part, "followers", vec![])
            }
            ListSubject::Following => match self.timelines.following(self.feed, wanted)? {
                Some(part) => {
                    let patterns = self.timelines.patterns(self.feed)?;
                    let patterns = patterns.iter().map(FeedPattern::to_string);
                    self.show_page(part, "following", patterns.collect())
                }
                None => Ok(ListAnswer::NoTimeline),
            },
            ListSubject::Opml => {
                // An OPML document has no pages.
                let all = ListStretch {
                    after: None,
                    max: usize::MAX,
                };
                match self.timelines.following(self.feed, all)? {
                    Some(part) => self.show_opml(part),
                    None => Ok(ListAnswer::NoTimeline),
                }
            }
            ListSubject::FriendsOfFriends => self.show_friends(),
        }
    }

    /// Returns whether the reader may see the feed of a row.
    fn shows_row(&self, row: &CatalogueRow) -> Result<bool, LogError> {
        may_see_row(&self.timelines, row, &self.sight)
    }

    fn list_row<'l>(&'l self, row: &'l CatalogueRow, followed_by: Option<usize>) -> ListRow<'l> {
        ListRow {
            name: row.name.as_str(),
            title: row.title(),
            href: self.row_href(row),
            followed_by,
        }
    }

    fn row_href<'l>(&'l self, row: &'l CatalogueRow) -> Href<'l> {
        Href {
            public_url: &self.public_url,
            feed: &row.name,
        }
    }

    fn show_page(
        &self,
        part: FeedListPart,
        list: &str,
        patterns: Vec<String>,
    ) -> Result<ListAnswer, LogError> {
        let rows = self.catalogue.rows(part.feeds.into_iter())?;
        let last = rows.last().filter(|_| part.has_more);
        let next = |last: &Arc<CatalogueRow>| {
            let (url, feed) = (&self.public_url, &self.name);
            format!("{url}/feeds/{feed}/{list}.json?after={}", last.name)
        };
        Ok(ListAnswer::List(list_json(&FollowPage {
            count: part.count,
            next: last.map(next),
            feeds: rows.iter().map(|row| self.list_row(row, None)).collect(),
            patterns,
        })))
    }

    fn show_friends(&self) -> Result<ListAnswer, LogError> {
        let is_seen = |timeline| match self.catalogue.row(timeline)? {
            Some(row) => self.shows_row(&row),
            None => Ok(false),
        };
        let shows = |name: &FeedName| self.sight.shows(name);
        let found = self
            .timelines
            .friends_of_friends(self.feed, FRIENDS_MAX, is_seen, shows)?;
        let Some(found) = found else {
            return Ok(ListAnswer::NoTimeline);
        };
        let rows = self.catalogue.rows(found.iter().map(|(feed, _)| *feed))?;
        // A feed that has just been created may have no row yet.
        let mut found = found.iter();
        let feeds = rows.iter().map(|row| {
            let counted = found.find(|(feed, _)| *feed == row.key);
            self.list_row(row, counted.map(|(_, count)| *count))
        });
        let feeds: Vec<ListRow<'_>> = feeds.collect();
        Ok(ListAnswer::List(list_json(&FollowPage {
            count: u64::try_from(feeds.len()).unwrap_or(u64::MAX),
            feeds,
            patterns: vec![],
            next: None,
        })))
    }

    fn show_opml(&self, part: FeedListPart) -> Result<ListAnswer, LogError> {
        let rows = self.catalogue.rows(part.feeds.into_iter())?;
        let feeds = rows.iter();
        let feeds = feeds.map(|row| (row.title().to_owned(), self.row_href(row).to_string()));
        let feeds: Vec<(String, String)> = feeds.collect();
        let list = opml::list(self.name.as_str(), &feeds);
        Ok(ListAnswer::List(list.into_bytes()))
    }
}

fn list_json(list: &FollowPage<'_>) -> Vec<u8> {
    serde_json::to_vec(list).expect("a list has a JSON form")
}

/// Returns a part of the timelines that take a feed's entries and that the reader may see.
///
/// # Errors
///
/// Returns why the log cannot be read.
pub(super) fn seen_followers(
    (catalogue, timelines): (&Catalogue, &Timelines),
    feed: FeedKey,
    wanted: ListStretch,
    sight: &Sight,
) -> Result<FeedListPart, LogError> {
    let is_seen = |timeline| match catalogue.row(timeline)? {
        Some(row) => may_see_row(timelines, &row, sight),
        None => Ok(false),
    };
    // If the reader may see all closed feeds or none, the closed timelines need not be checked one
    // by one.
    let seen = match sight {
        all if all.is_all() => ClosedSight::All,
        none if none.is_none() => ClosedSight::None,
        _ => ClosedSight::Some(&is_seen),
    };
    timelines.followers(feed, wanted, seen)
}
