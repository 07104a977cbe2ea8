//! The reading side of all commands: options and bounds.
//!
//! Shell: the network is set up here.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::{
    Consumer, FeedWatcher, OnGap, Publisher, WakeBy,
    consumer::Builder,
    fetch::Fetcher,
    transport::{self, Timeouts},
    watcher::WatchBuilder,
};
use url::Url;

use crate::{duration, exit::Usage, token::TokenArgs};

/// How to read, and the bounds of what is read
#[derive(Args, Debug)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    token: TokenArgs,
    /// Origin that links and redirects may lead to besides the URL's own, as
    /// `https://archive.example.org`
    #[arg(long, value_name = "ORIGIN", help_heading = "Bounds")]
    allow_origin: Vec<Url>,
    /// Largest document, in bytes, unpacked
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Bounds",
        default_value = "67108864"
    )]
    document_bytes: usize,
    /// Most documents to walk over in one catching-up
    #[arg(
        long,
        value_name = "N",
        help_heading = "Bounds",
        default_value = "1000000"
    )]
    documents: usize,
    /// Most redirects for one document
    #[arg(long, value_name = "N", help_heading = "Bounds", default_value = "5")]
    redirects: usize,
    /// Longest wait for a connection
    #[arg(long, value_name = "TIME", help_heading = "Bounds", value_parser = duration::parse, default_value = "5s")]
    connect_timeout: Duration,
    /// Longest wait for more bytes
    #[arg(long, value_name = "TIME", help_heading = "Bounds", value_parser = duration::parse, default_value = "20s")]
    read_timeout: Duration,
    /// Longest time for one answer
    #[arg(long, value_name = "TIME", help_heading = "Bounds", value_parser = duration::parse, default_value = "2m")]
    request_timeout: Duration,
}

/// Action at a gap: the bookmarked entry, or a document on the way, has left the feed
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Gap {
    /// Go no further in this feed; a command that reads one feed ends with exit code 13
    Stop,
    /// Warn, and go on from the oldest entry left
    GoOn,
}

impl From<Gap> for OnGap {
    fn from(gap: Gap) -> Self {
        match gap {
            Gap::Stop => Self::Stop,
            Gap::GoOn => Self::GoOn,
        }
    }
}

/// The best means by which to learn of new entries
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Means {
    /// A stream of events, which stays open; else waits
    Events,
    /// Requests that the server answers once there is something new; else polls
    Wait,
    /// Requests from time to time
    Poll,
}

impl From<Means> for WakeBy {
    fn from(means: Means) -> Self {
        match means {
            Means::Events => Self::Events,
            Means::Wait => Self::Wait,
            Means::Poll => Self::Poll,
        }
    }
}

impl SourceArgs {
    /// Begins a consumer of the feed at `url`.
    pub(crate) fn consumer(&self, url: &str) -> anyhow::Result<Builder> {
        Ok(self.consumer_with(url, self.token()?))
    }

    /// Returns the token, if there is one.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        self.token.token()
    }

    /// Returns a publisher that sends the token.
    pub(crate) fn publisher(&self, url: &str) -> anyhow::Result<Publisher> {
        self.token.publisher(url)
    }

    /// Begins a consumer that sends `token` in place of the command's own token.
    pub(crate) fn consumer_with(&self, url: &str, token: Option<String>) -> Builder {
        let mut builder = Consumer::builder(url)
            .document_bytes_max(self.document_bytes)
            .documents_max(self.documents)
            .redirects_max(self.redirects)
            .timeouts(self.read_timeouts());
        for origin in &self.allow_origin {
            builder = builder.allow_origin(origin.clone());
        }
        match token {
            Some(token) => builder.bearer_token(token),
            None => builder,
        }
    }

    /// Begins a watcher of the feeds at `urls`.
    pub(crate) fn watcher(&self, urls: Vec<String>) -> anyhow::Result<WatchBuilder> {
        let token = self.token.token()?;
        let mut builder = FeedWatcher::builder(urls)
            .document_bytes_max(self.document_bytes)
            .documents_max(self.documents)
            .redirects_max(self.redirects)
            .timeouts(self.read_timeouts());
        for origin in &self.allow_origin {
            builder = builder.allow_origin(origin.clone());
        }
        Ok(match token {
            Some(token) => builder.bearer_token(token),
            None => builder,
        })
    }

    /// Returns a fetcher whose home is the origin of `url`.
    pub(crate) fn fetcher(&self, url: &Url) -> anyhow::Result<Fetcher> {
        // Refused now: the first request would fail with the error of a forbidden origin.
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Usage(format!("{url} begins with neither http nor https")).into());
        }
        let transport = transport::default_transport(self.read_timeouts());
        let transport = transport.context("the HTTP client cannot be set up")?;
        let mut fetcher = Fetcher::new(transport, url)
            .document_bytes_max(self.document_bytes)
            .redirects_max(self.redirects);
        for origin in &self.allow_origin {
            fetcher = fetcher.allow_origin(origin);
        }
        Ok(match self.token.token()? {
            Some(token) => fetcher.bearer_token(token),
            None => fetcher,
        })
    }

    /// Returns the largest number of documents to walk over.
    pub(crate) fn documents_max(&self) -> usize {
        self.documents
    }

    fn read_timeouts(&self) -> Timeouts {
        Timeouts {
            connect: self.connect_timeout,
            read: self.read_timeout,
            total: self.request_timeout,
        }
    }
}
