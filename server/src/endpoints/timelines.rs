//! Endpoints that change and list the follows of timelines.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, StatusCode,
    header::{AUTHORIZATION, IF_MATCH},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};
use simplefeed_core::{
    feed::{FeedName, FeedPattern},
    header::RECENT,
    limits::{CATALOGUE_FEEDS_MAX, FOLLOWED_FEEDS_MAX, FOLLOWED_PATTERNS_MAX},
    opml,
    refusal::Refusal,
    scanner::essence,
    settings::Settings,
};

use super::{
    Site,
    catalogue::after,
    forms::{check_object, check_uncoded, media_type},
    may_see,
};
use crate::{
    access::{Right, Sight},
    http::{
        answers::{Answer, document, publish_error},
        endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Shown, Verb},
        pipeline::off_thread,
        problem::Problem,
    },
    log::{LogError, Series},
    publish::{Follow, PublishError, Wanted},
    resource::{Resource, Validity, Visibility},
    views::timelines::Timelines,
};

/// Paths of follows and followers.
pub const ENDPOINTS: &[Endpoint<Site>] = &[
    Endpoint {
        path: "/feeds/{feed}/following",
        label: "following",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::POST,
            needs: Needs::Right(Right::Publish),
            handle: |site, exchange| Box::pin(change(site, exchange)),
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
                handle: |site, exchange| Box::pin(follow(site, exchange)),
            },
            Verb {
                method: Method::DELETE,
                needs: Needs::Right(Right::Publish),
                handle: |site, exchange| Box::pin(unfollow(site, exchange)),
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
            handle: |site, exchange| Box::pin(show(site, exchange, Subject::Following)),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/following.opml",
        label: "following",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(show(site, exchange, Subject::Opml)),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/followers.json",
        label: "followers",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(show(site, exchange, Subject::Followers)),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/friends-of-friends.json",
        label: "following",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(show(site, exchange, Subject::FriendsOfFriends)),
        }],
    },
];

/// Media types of a list of feeds.
const OPML_TYPES: [&str; 5] = [
    "text/x-opml",
    "text/x-opml+xml",
    "application/opml+xml",
    "application/xml",
    "text/xml",
];
const OPML_TYPE: &str = "text/x-opml;charset=utf-8";
/// Most items of one list.
const FOLLOWED_MAX: usize = FOLLOWED_FEEDS_MAX + FOLLOWED_PATTERNS_MAX;
/// Most feeds in a list of friends of friends.
const FRIENDS_MAX: usize = 1_000;

/// Body of a PUT.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object with backfill")]
struct FollowBody {
    #[serde(default)]
    backfill: u32,
}

/// Body of a POST.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a JSON object with follow, unfollow and backfill"
)]
struct ChangeBody {
    #[serde(default)]
    follow: Names,
    #[serde(default)]
    unfollow: Names,
    #[serde(default)]
    backfill: u32,
}

/// Names and patterns, no more than a timeline can follow: a list of short names takes many times its bytes.
#[derive(Debug, Default)]
pub(super) struct Names(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bounded;

        impl<'de> Visitor<'de> for Bounded {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {FOLLOWED_MAX} names and patterns")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Names, A::Error> {
                let mut names = vec![];
                while let Some(name) = from.next_element()? {
                    if names.len() == FOLLOWED_MAX {
                        return Err(A::Error::invalid_length(FOLLOWED_MAX + 1, &self));
                    }
                    names.push(name);
                }
                Ok(Names(names))
            }
        }

        from.deserialize_seq(Bounded)
    }
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

/// Follows one item.
async fn follow(site: &Site, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    check_no_match(exchange.headers)?;
    let item = exchange.params.item().clone();
    let (body, _room) = exchange.body.read().await?;
    let FollowBody { backfill } = if body.is_empty() {
        FollowBody::default()
    } else {
        check_json(exchange.headers)?;
        parse(&body)?
    };
    let wanted = Wanted {
        follow: vec![item.clone()],
        backfill,
        sight: exchange.access.sight(exchange.headers),
        ..Wanted::default()
    };
    change_one(site, exchange.params.feed(), item, true, wanted).await
}

/// Follows one item no longer.
async fn unfollow(site: &Site, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    check_no_match(exchange.headers)?;
    // It says nothing, and once it is read the request is complete.
    let (_nothing, _room) = exchange.body.read().await?;
    let item = exchange.params.item().clone();
    let wanted = Wanted {
        unfollow: vec![item.clone()],
        sight: exchange.access.sight(exchange.headers),
        ..Wanted::default()
    };
    change_one(site, exchange.params.feed(), item, false, wanted).await
}

async fn change_one(
    site: &Site,
    timeline: &FeedName,
    item: FeedPattern,
    followed: bool,
    wanted: Wanted,
) -> Result<Outcome, Problem> {
    let feed = timeline.clone();
    let follow = Follow { feed, wanted };
    Ok(Outcome::Answer(match site.publisher.follow(follow).await {
        Ok(outcome) => told(&ItemAnswer {
            timeline: timeline.as_str(),
            item: item.to_string(),
            followed,
            changed: outcome.followed + outcome.unfollowed > 0,
            note: (!followed).then_some("entries that came before stay in the timeline"),
        }),
        Err(error) => publish_error(&error),
    }))
}

/// Changes many items at once.
async fn change(site: &Site, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
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
        of_opml(&body, &site.public_url)?
    } else {
        let body: ChangeBody = parse(&body)?;
        Wanted {
            follow: patterns(&body.follow.0, "follow")?,
            unfollow: patterns(&body.unfollow.0, "unfollow")?,
            backfill: body.backfill,
            ..Wanted::default()
        }
    };
    wanted.sight = exchange.access.sight(exchange.headers);
    let feed = timeline.clone();
    let outcome = site.publisher.follow(Follow { feed, wanted }).await;
    Ok(Outcome::Answer(match outcome {
        Ok(outcome) => told(&ChangeAnswer {
            timeline: timeline.as_str(),
            followed: outcome.followed,
            unfollowed: outcome.unfollowed,
        }),
        // One of many is wrong, and the URL is right.
        Err(PublishError::UnknownFeed(feed)) => {
            let detail = format!("there is no feed {feed}");
            let refusal = Refusal::unacceptable(detail, "Simplefeed profile: following");
            publish_error(&refusal.at_element(feed.as_str()).into())
        }
        Err(error) => publish_error(&error),
    }))
}

fn told(answer: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(answer).expect("an answer has a JSON form");
    document(StatusCode::OK, body)
}

/// Checks that a change does not depend on what is at its URL, where nothing can be read (RFC 9110, 13.1.1).
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

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    check_object(body)?;
    serde_json::from_slice(body).map_err(|error| {
        // JSON with other members is unacceptable; all else is malformed.
        let refusal = if error.is_data() {
            Refusal::unacceptable(error.to_string(), "Simplefeed profile: following")
        } else {
            Refusal::malformed(format!("not JSON: {error}"))
        };
        Problem::from(&refusal)
    })
}

/// Returns the feeds and patterns that texts name.
pub(super) fn patterns(texts: &[String], member: &str) -> Result<Vec<FeedPattern>, Problem> {
    let parsed = texts.iter().map(|text| {
        FeedPattern::parse(text).ok_or_else(|| {
            // The message stays short, however long the text is.
            let text: String = text.chars().take(100).collect();
            let detail = format!("{text:?} is no name of a feed, and no beginning of one with *");
            let refusal = Refusal::unacceptable(detail, "Simplefeed profile: following");
            Problem::from(&refusal.at_element(member))
        })
    });
    parsed.collect()
}

/// Returns the feeds of this server that a list names.
fn of_opml(body: &Bytes, public_url: &str) -> Result<Wanted, Problem> {
    let refused = |detail: String| {
        let refusal = Refusal::unacceptable(detail, "Simplefeed profile: following");
        Problem::from(&refusal.at_element("xmlUrl"))
    };
    let list = std::str::from_utf8(body)
        .map_err(|error| Problem::malformed(format!("the list of feeds: {error}")))?;
    let urls = opml::feeds(list).map_err(|error| Problem::malformed(error.to_string()))?;
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
            let url: String = url.chars().take(200).collect();
            return Err(refused(format!("{url} is no feed of this server")));
        };
        follow.push(FeedPattern::of(&name));
    }
    Ok(Wanted {
        follow,
        ..Wanted::default()
    })
}

/// List that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Following,
    Opml,
    Followers,
    FriendsOfFriends,
}

/// A feed in a list.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    title: String,
    href: String,
    /// How many followed timelines follow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    followed_by: Option<usize>,
}

/// A page of a list.
#[derive(Debug, Serialize)]
struct List {
    count: usize,
    feeds: Vec<Listed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    patterns: Vec<String>,
    next: Option<String>,
}

/// Handles a GET of a list of follows or followers.
async fn show(site: &Site, exchange: Exchange<'_>, subject: Subject) -> Result<Outcome, Problem> {
    let feed = exchange.params.feed().clone();
    let after = after(exchange.query())?;
    let seen = super::feeds::seen(site, &exchange).await?;
    let sight = exchange.access.sight(exchange.headers);
    let timelines = Arc::clone(&site.timelines);
    let documents = Arc::clone(&site.documents);
    let public_url = site.public_url.clone();
    let name = feed.clone();
    let found = off_thread(move || {
        let lists = Lists {
            log: &**documents.log(),
            timelines: &timelines,
            sight: &sight,
            public_url: &public_url,
        };
        Ok(lists.show(&name, subject, after.as_ref())?)
    });
    let (media_type, body) = found
        .await?
        .ok_or_else(|| Problem::not_found(format!("feed {feed} is no timeline")))?;
    // The list depends on the rights of the reader.
    let has_token = exchange.headers.contains_key(AUTHORIZATION);
    let may_see_closed = !exchange.access.sight(exchange.headers).is_none();
    let visibility = if has_token || may_see_closed {
        Visibility::Private
    } else {
        seen.visibility
    };
    let resource = Resource::of_bytes(media_type, None, Validity::Once, body.into());
    Ok(Outcome::Shown(Box::new(Shown {
        policy: site.lifetimes.of(&resource, visibility),
        resource,
        visibility,
        headers: vec![],
        over: seen.over,
        depends_on_reader: true,
    })))
}

/// Lists for one reader.
struct Lists<'l> {
    log: &'l dyn Series,
    timelines: &'l Timelines,
    sight: &'l Sight,
    public_url: &'l str,
}

impl Lists<'_> {
    fn show(
        &self,
        name: &FeedName,
        subject: Subject,
        after: Option<&FeedName>,
    ) -> Result<Option<(&'static str, Vec<u8>)>, LogError> {
        let Some(head) = self.log.named(name)? else {
            return Ok(None);
        };
        let url = |list: &str| format!("{}/feeds/{name}/{list}.json", self.public_url);
        let list = match subject {
            Subject::Followers => {
                let names = self.timelines.followers(head.feed)?;
                self.page(names, &[], after, &url("followers"))?
            }
            Subject::Following | Subject::Opml => {
                let Some(items) = self.timelines.following(head.feed)? else {
                    return Ok(None);
                };
                if subject == Subject::Opml {
                    return Ok(Some((OPML_TYPE, self.opml(name, items.feeds)?)));
                }
                self.page(items.feeds, &items.patterns, after, &url("following"))?
            }
            Subject::FriendsOfFriends => {
                let is_seen = |timeline| {
                    let settings = self.timelines.settings_of_key(timeline)?;
                    settings.map_or(Ok(false), |settings| {
                        may_see(self.timelines, timeline, &settings, self.sight)
                    })
                };
                let found = self.timelines.friends_of_friends(head.feed, is_seen)?;
                let Some(found) = found else {
                    return Ok(None);
                };
                self.friends(found)?
            }
        };
        let body = serde_json::to_vec(&list).expect("a list has a JSON form");
        Ok(Some(("application/json", body)))
    }

    /// Returns the settings of a feed, if the reader may see it.
    fn visible(&self, name: &FeedName) -> Result<Option<Settings>, LogError> {
        // The raw log, because the end of each listed timeline would cost a merge.
        let Some((key, settings)) = self.timelines.settings_now(name)? else {
            return Ok(None);
        };
        let is_visible = may_see(self.timelines, key, &settings, self.sight)?;
        Ok(is_visible.then_some(settings))
    }

    fn listed(&self, settings: &Settings, followed_by: Option<usize>) -> Listed {
        Listed {
            name: settings.name.to_string(),
            title: settings.title().into(),
            href: format!("{}/feeds/{}/{RECENT}", self.public_url, settings.name),
            followed_by,
        }
    }

    /// Returns a part of a list of names, which are sorted.
    fn page(
        &self,
        names: Vec<FeedName>,
        patterns: &[FeedPattern],
        after: Option<&FeedName>,
        url: &str,
    ) -> Result<List, LogError> {
        let (mut count, mut feeds, mut has_more) = (0, vec![], false);
        for name in names {
            let Some(settings) = self.visible(&name)? else {
                continue;
            };
            count += 1;
            if after.is_some_and(|after| name <= *after) {
                continue;
            }
            if feeds.len() < CATALOGUE_FEEDS_MAX {
                feeds.push(self.listed(&settings, None));
            } else {
                has_more = true;
            }
        }
        let last = feeds.last().filter(|_| has_more);
        Ok(List {
            count,
            next: last.map(|last| format!("{url}?after={}", last.name)),
            feeds,
            patterns: patterns.iter().map(FeedPattern::to_string).collect(),
        })
    }

    fn friends(&self, found: Vec<(FeedName, usize)>) -> Result<List, LogError> {
        let mut feeds = vec![];
        for (name, followed_by) in found {
            if feeds.len() >= FRIENDS_MAX {
                break;
            }
            if let Some(settings) = self.visible(&name)? {
                feeds.push(self.listed(&settings, Some(followed_by)));
            }
        }
        Ok(List {
            count: feeds.len(),
            feeds,
            patterns: vec![],
            next: None,
        })
    }

    fn opml(&self, timeline: &FeedName, names: Vec<FeedName>) -> Result<Vec<u8>, LogError> {
        let mut feeds = vec![];
        for name in names {
            if let Some(settings) = self.visible(&name)? {
                let listed = self.listed(&settings, None);
                feeds.push((listed.title, listed.href));
            }
        }
        Ok(opml::list(timeline.as_str(), &feeds).into_bytes())
    }
}
