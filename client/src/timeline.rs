//! Management of timelines and their follows. To read a timeline, use a
//! [`Consumer`](crate::Consumer).
//!
//! Shell: the network. A repeat of any request is safe: to follow an item that is followed already
//! has no effect.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use simplefeed_core::limits::CLIENT_DOCUMENT_BYTES_MAX;

use crate::{
    publisher::{PublishError, Publisher},
    transport::{Method, Request},
};

/// A timeline to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NewTimeline {
    /// Title of the timeline. Without a title, the timeline's name stands for the title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Name of the owner's feed. The timeline leaves out the entries of this feed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether the timeline is closed: a reader needs a right to the timeline, and to every closed
    /// feed that the timeline follows or ever followed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// Names of feeds, and patterns, that the timeline follows from the start. If one of them is
    /// refused, no timeline is created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub following: Vec<String>,
}

/// Outcome of a change of the followed items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ChangeOutcome {
    /// Number of items that were not followed before the request, and are now.
    pub followed: usize,
    /// Number of items that were followed before the request, and are no longer.
    pub unfollowed: usize,
}

/// Manages one timeline. If the future of a method is dropped, the change may have been made; a
/// repeat is safe.
///
/// # Examples
///
/// A timeline of all blogs that the server has, beginning with the newest ten entries of each blog:
///
/// ```no_run
/// use simplefeed_client::{Timeline, timeline::{ChangeOutcome, NewTimeline}};
///
/// # async fn run() -> Result<(), simplefeed_client::PublishError> {
/// let planet = Timeline::new("https://example.org/feeds/planet")?;
/// let planet = planet.with(|publisher| publisher.bearer_token("sft_…"));
/// planet.create(&NewTimeline::default()).await?;
/// let ChangeOutcome { followed, .. } = planet.follow(&["blog-*"], 10).await?;
/// println!("{followed} items are new");
/// planet.unfollow(&["blog-of-nobody"]).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Timeline {
    settings: Publisher,
    following: Publisher,
}

/// Body of a change.
#[derive(Serialize)]
struct FollowsBody<'c> {
    follow: &'c [&'c str],
    unfollow: &'c [&'c str],
    backfill: u32,
}

impl Timeline {
    /// Returns the timeline at `url`.
    ///
    /// # Errors
    ///
    /// If `url` is no URL.
    pub fn new(url: &str) -> Result<Self, PublishError> {
        // A slash at the end would give `//following`.
        let url = url.trim_end_matches('/');
        Ok(Self {
            settings: Publisher::new(url)?,
            following: Publisher::new(&format!("{url}/following"))?,
        })
    }

    /// Applies `with` to the publishers behind the timeline, to give them a token or another
    /// transport.
    #[must_use]
    pub fn with(self, with: impl Fn(Publisher) -> Publisher) -> Self {
        Self {
            settings: with(self.settings),
            following: with(self.following),
        }
    }

    /// Creates the timeline, unless the timeline exists. Returns whether a timeline was created. An
    /// existing timeline keeps the present follows: `following` has no effect then. If `following`
    /// is empty, an existing timeline gets the `title` of `new`, if there is one.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]; status 422 if the name is that of a feed that is no timeline, or of
    /// another owner's timeline. If `following` is not empty, the call returns `false` in these
    /// cases, too.
    pub async fn create(&self, new: &NewTimeline) -> Result<bool, PublishError> {
        let mut settings = serde_json::to_value(new)?;
        if let Some(members) = settings.as_object_mut() {
            members.insert("kind".into(), "timeline".into());
        }
        let body = Bytes::from(serde_json::to_vec(&settings)?);
        let mut request = request_for(&self.settings, Method::Put, "application/json", body);
        if !new.following.is_empty() {
            // The server refuses `following` for an existing timeline. Under this condition the
            // server answers 412 instead, so that a retry after a lost response does not fail.
            request.headers.push(("if-none-match", "*".into()));
        }
        match self.settings.send_until_answered(request).await {
            // 201 alone means that a timeline was created (RFC 9110, 15.3.2).
            Ok(answer) => Ok(answer.status == 201),
            // The condition above has failed, because the timeline exists (RFC 9110, 13.1.2).
            Err(PublishError::Refused { status: 412, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the settings of the timeline, and their tag.
    ///
    /// # Errors
    ///
    /// As [`Publisher::settings`].
    pub async fn settings(&self) -> Result<(serde_json::Value, String), PublishError> {
        self.settings.settings().await
    }

    /// Changes settings of the timeline; with a tag, only if the settings have this tag. Returns
    /// all settings, and their tag.
    ///
    /// # Errors
    ///
    /// As [`Publisher::change_settings`].
    pub async fn change_settings(
        &self,
        changes: &serde_json::Value,
        tag: Option<&str>,
    ) -> Result<(serde_json::Value, String), PublishError> {
        self.settings.change_settings(changes, tag).await
    }

    /// Follows feeds, given by their names, and patterns. Of each feed that was not followed
    /// before, the timeline gets the newest `backfill` entries.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]. After [`PublishError::Refused`] nothing is changed, unless a proxy
    /// gave the answer. After any other error, the change may have been made.
    pub async fn follow(
        &self,
        items: &[&str],
        backfill: u32,
    ) -> Result<ChangeOutcome, PublishError> {
        self.change_items(items, &[], backfill).await
    }

    /// Follows feeds and patterns no longer. Entries that the timeline has already stay there.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]. After [`PublishError::Refused`] nothing is changed, unless a proxy
    /// gave the answer. After any other error, the change may have been made.
    pub async fn unfollow(&self, items: &[&str]) -> Result<ChangeOutcome, PublishError> {
        self.change_items(&[], items, 0).await
    }

    /// Follows the feeds of a list (OPML). All of these feeds must be on the timeline's server.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]. After [`PublishError::Refused`] nothing is changed, unless a proxy
    /// gave the answer. After any other error, the change may have been made.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(home: simplefeed_client::Timeline) -> Result<(), Box<dyn std::error::Error>> {
    /// let list = std::fs::read_to_string("subscriptions.opml")?;
    /// home.follow_list(list).await?;
    /// # Ok(()) }
    /// ```
    pub async fn follow_list(&self, opml: String) -> Result<ChangeOutcome, PublishError> {
        self.post_body("text/x-opml", opml.into()).await
    }

    async fn change_items(
        &self,
        follow: &[&str],
        unfollow: &[&str],
        backfill: u32,
    ) -> Result<ChangeOutcome, PublishError> {
        let change = FollowsBody {
            follow,
            unfollow,
            backfill,
        };
        let body = serde_json::to_vec(&change)?;
        self.post_body("application/json", body.into()).await
    }

    async fn post_body(&self, kind: &str, body: Bytes) -> Result<ChangeOutcome, PublishError> {
        let request = request_for(&self.following, Method::Post, kind, body);
        let answer = self.following.send_until_answered(request).await?;
        serde_json::from_slice(&answer.body).map_err(|source| PublishError::Answer {
            url: self.following.url().clone(),
            source,
        })
    }
}

fn request_for(to: &Publisher, method: Method, kind: &str, body: Bytes) -> Request {
    Request {
        method,
        url: to.url().clone(),
        headers: vec![("content-type", kind.into())],
        body,
        answer_bytes_max: CLIENT_DOCUMENT_BYTES_MAX,
    }
}
