//! `follow`, `unfollow`, `following`, `followers`: management of timelines.
//!
//! Shell: stdout. One line per feed: `name TAB title TAB URL`; a pattern stands alone on its line.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use serde::Deserialize;
use simplefeed_client::{
    PublishError, Timeline, error_text,
    timeline::{ChangeOutcome, NewTimeline},
};
use url::Url;

use crate::{exit, say, source::SourceArgs, stdout::stdout, token::TokenArgs};

/// Follow feeds of the same server in a timeline
#[derive(Args, Debug)]
pub(crate) struct FollowArgs {
    /// URL of the timeline; it is created if it does not exist
    timeline: String,
    /// Names or URLs of feeds of the same server; a name that ends with * is a pattern
    #[arg(required_unless_present = "opml")]
    feeds: Vec<String>,
    /// List of feeds (OPML) to follow; stdin if it is -
    #[arg(long, value_name = "FILE", conflicts_with_all = ["feeds", "backfill"])]
    opml: Option<PathBuf>,
    /// Newest entries of each feed that come along, up to 1,000
    #[arg(long, value_name = "N", default_value_t = 0)]
    backfill: u32,
    #[command(flatten)]
    token: TokenArgs,
}

/// Follow feeds no longer
#[derive(Args, Debug)]
pub(crate) struct UnfollowArgs {
    /// URL of the timeline
    timeline: String,
    /// Names or URLs of feeds, or patterns
    #[arg(required = true)]
    feeds: Vec<String>,
    #[command(flatten)]
    token: TokenArgs,
}

/// List what a timeline follows, or who follows a feed
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// URL of the timeline, or of the feed
    url: Url,
    #[command(flatten)]
    source: SourceArgs,
}

pub(crate) async fn follow(args: FollowArgs) -> anyhow::Result<u8> {
    let timeline = open_timeline(&args.timeline, &args.token)?;
    let list = args.opml.as_deref().map(read_list).transpose()?;
    let names = feed_names(&args.timeline, &args.feeds);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let change = async || match &list {
        Some(list) => timeline.follow_list(list.clone()).await,
        None => timeline.follow(&names, args.backfill).await,
    };
    let changed = match change().await {
        // A 404 means that the timeline or a feed does not exist. The second try, with a timeline
        // that exists, shows which.
        Err(PublishError::Refused { status: 404, .. }) => {
            let mut new = NewTimeline::default();
            if args.backfill == 0 {
                // The timeline is created together with the feeds to follow, so that an unknown
                // feed leaves no empty timeline.
                new.following
                    .extend(names.iter().map(|name| (*name).into()));
            }
            let is_new = timeline.create(&new).await.map_err(refusal_error)?;
            let url = &args.timeline;
            if is_new && !new.following.is_empty() {
                say::note(&format!("{url} is a new timeline"));
                return Ok(exit::OK);
            }
            let changed = change().await;
            if is_new {
                say::note(&match &changed {
                    Ok(_) => format!("{url} is a new timeline"),
                    Err(_) => format!("{url} is a new timeline, and follows nothing yet"),
                });
            }
            changed
        }
        changed => changed,
    };
    print_change(changed.map_err(refusal_error)?);
    Ok(exit::OK)
}

/// Returns the error of a refused change. A 409 here is not about a history, and must not get the
/// exit code of a changed history.
fn refusal_error(error: PublishError) -> anyhow::Error {
    match error {
        PublishError::Refused { status: 409, .. } => anyhow::Error::msg(error_text(&error)),
        error => error.into(),
    }
}

pub(crate) async fn unfollow(args: UnfollowArgs) -> anyhow::Result<u8> {
    let timeline = open_timeline(&args.timeline, &args.token)?;
    let names = feed_names(&args.timeline, &args.feeds);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    print_change(timeline.unfollow(&names).await.map_err(refusal_error)?);
    Ok(exit::OK)
}

fn print_change(changed: ChangeOutcome) {
    say::note(&match (changed.followed, changed.unfollowed) {
        (0, 0) => "Nothing has changed.".into(),
        (1, 0) => "1 more is followed.".into(),
        (followed, 0) => format!("{followed} more are followed."),
        (_, 1) => "1 is followed no longer; entries that came before stay.".into(),
        (_, unfollowed) => {
            format!("{unfollowed} are followed no longer; entries that came before stay.")
        }
    });
}

fn open_timeline(url: &str, token: &TokenArgs) -> anyhow::Result<Timeline> {
    let token = token.token()?;
    Ok(Timeline::new(url)?.with(|publisher| {
        let publisher = publisher.on_retry(say::retrying);
        match &token {
            Some(token) => publisher.bearer_token(token),
            None => publisher,
        }
    }))
}

fn read_list(path: &Path) -> anyhow::Result<String> {
    let mut list = String::new();
    if path == Path::new("-") {
        io::stdin()
            .read_to_string(&mut list)
            .context("cannot read the list of feeds")?;
        return Ok(list);
    }
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the names of feeds that are given by name, or by a URL beside that of the timeline.
fn feed_names(timeline: &str, feeds: &[String]) -> Vec<String> {
    let folder = timeline.trim_end_matches('/').rsplit_once('/');
    let beside = folder.map(|(folder, _)| format!("{folder}/"));
    let name = |feed: &String| {
        let rest = beside.as_ref().and_then(|beside| feed.strip_prefix(beside));
        // A URL of one of the feed's documents names the feed as well.
        let first = rest.and_then(|rest| rest.split('/').next());
        first.unwrap_or(feed).to_owned()
    };
    feeds.iter().map(name).collect()
}

#[derive(Deserialize)]
struct FollowList {
    feeds: Vec<FollowedFeed>,
    #[serde(default)]
    patterns: Vec<String>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct FollowedFeed {
    name: String,
    title: String,
    href: String,
}

pub(crate) async fn following(args: ListArgs) -> anyhow::Result<u8> {
    list_items(args, "following.json").await
}

pub(crate) async fn followers(args: ListArgs) -> anyhow::Result<u8> {
    list_items(args, "followers.json").await
}

async fn list_items(args: ListArgs, name: &str) -> anyhow::Result<u8> {
    let fetcher = args.source.fetcher(&args.url)?;
    let mut out = stdout();
    let base = args.url.as_str().trim_end_matches('/');
    let mut next = Some(Url::parse(&format!("{base}/{name}"))?);
    let mut patterns = vec![];
    while let Some(url) = next {
        let body = fetcher.bytes(&url).await?;
        let list: FollowList = serde_json::from_slice(&body)
            .with_context(|| format!("{url} is not a list of feeds"))?;
        for feed in &list.feeds {
            // The publisher chooses the title: control characters must not reach the terminal.
            let plain = |text: &str| text.replace(char::is_control, " ");
            let (name, title, href) = (plain(&feed.name), plain(&feed.title), plain(&feed.href));
            writeln!(out, "{name}\t{title}\t{href}")?;
        }
        patterns = list.patterns;
        next = list.next.map(|next| url.join(&next)).transpose()?;
    }
    for pattern in patterns {
        writeln!(out, "{pattern}")?;
    }
    out.flush()?;
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feeds_are_named_or_stand_beside_the_timeline() {
        let feeds = [
            "a",
            "x-*",
            "http://h/sub/feeds/b",
            "http://h/sub/feeds/c/recent.atom",
            "http://other/feeds/d",
        ];
        let found = feed_names("http://h/sub/feeds/home/", &feeds.map(str::to_owned));
        assert_eq!(found, ["a", "x-*", "b", "c", "http://other/feeds/d"]);
    }
}
