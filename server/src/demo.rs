//! `demo`: a server with sample feeds, to be seen within a minute of cloning.
//!
//! Shell: a temporary folder, a server, a timer.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use simplefeed_core::{
    event,
    feed::{FeedName, FeedPattern},
    settings::Choices,
};
use simplefeed_log::sled::opening::{self, SledStore};
use simplefeed_publish::{
    AppendRequest, Conditions, Configure, FeedKindRule, FollowItems, SettingsCondition,
    WriterHandle,
};
use simplefeed_server::{
    config::{Config, ServeArgs},
    listening::Listening,
    logging::say,
    serve::Server,
};

/// The events that the sample feed begins with.
const EVENTS: &str = include_str!("../../fixtures/demo.ndjson");
const FEED: &str = "demo";
/// Name of a second feed.
const TICKS: &str = "ticks";
/// Name of a timeline with the entries of both feeds.
const ALL: &str = "all";
/// Entries of a document: so few that archived documents appear while a person watches.
const DOCUMENT_ENTRIES: u32 = 5;

/// Options of `demo`: only the address can be chosen.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Address to listen at [default: 127.0.0.1:8080, or a free port if that one is taken]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

pub(crate) fn demo(args: &DemoArgs) -> anyhow::Result<u8> {
    // The folder is removed when this function returns.
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let preferred = args.listen.unwrap_or(([127, 0, 0, 1], 8080).into());
    let free: SocketAddr = ([127, 0, 0, 1], 0).into();
    let config = |listen| {
        let args = ServeArgs {
            data: Some(folder.path().into()),
            listen,
            ..ServeArgs::default()
        };
        Config::new(args, |_| true)
    };
    // Another program may have port 8080. Then any free port will do.
    let (preferred, config) = (config(preferred)?, config(free)?);
    let listening = match args.listen {
        // The user asked for this address, so no other address will do.
        Some(_) => Listening::bind(&preferred)?,
        None => Listening::bind(&preferred).or_else(|_| Listening::bind(&config))?,
    };
    let signals = listening.stop_signals()?;
    let store = SledStore::from(opening::open(folder.path())?);
    let server = Server::start(&config, listening, store)?;
    let (publisher, runtime) = server.publisher();
    // The sample is published before the URL is printed.
    runtime.block_on(publish_sample(&publisher))?;
    runtime.spawn(publish_more(publisher));
    print_introduction(server.public_url().as_str());
    say(&format!(
        "listening on http://{}",
        server.listening().address()
    ));
    super::run(server, signals)
}

fn print_introduction(url: &str) {
    let feed = format!("{url}feeds/{FEED}");
    // The demo goes on even if nobody reads stdout.
    let _closed = writeln!(
        io::stdout(),
        "Open {url}ui/ in a browser.\n\n\
         Feeds that grow by one event a second: {feed} and others\n\n\
         Look at one:\n  \
         curl -L {feed}\n  \
         curl -i {feed}/1.atom\n  \
         curl -i -d '{{\"title\":\"Hello\"}}' -H 'Content-Type: application/json' {feed}\n\n\
         Follow it:\n  \
         cargo run --release --bin simplefeed -- tail {feed}\n\n\
         End it with Ctrl-C; its folder is removed then."
    );
}

/// Creates the feeds, and appends the sample.
async fn publish_sample(publisher: &WriterHandle) -> anyhow::Result<()> {
    let timeline = FeedKindRule::Timeline {
        owner: None,
        own: None,
    };
    for (name, title, kind) in [
        (FEED, "Simplefeed demo", FeedKindRule::Any),
        (TICKS, "Ticks of a clock", FeedKindRule::Any),
        (ALL, "All that the demo publishes", timeline),
    ] {
        let wanted = match kind {
            FeedKindRule::Timeline { .. } => FollowItems {
                follow: vec![
                    FeedPattern::of(&name_of(FEED)?),
                    FeedPattern::of(&name_of(TICKS)?),
                ],
                ..FollowItems::default()
            },
            _ => FollowItems::default(),
        };
        let choices = Choices {
            title: Some(title.into()),
            document_entries: Some(DOCUMENT_ENTRIES),
            ..Choices::default()
        };
        publisher
            .configure(Configure {
                feed: name_of(name)?,
                choices,
                id: None,
                expected: SettingsCondition::Anything,
                kind,
                wanted,
            })
            .await?;
    }
    append_events(publisher, FEED, EVENTS).await
}

fn name_of(name: &str) -> anyhow::Result<FeedName> {
    FeedName::parse(name).context("the demo's names are names")
}

/// Appends the events in `lines`, of which each line holds one event.
async fn append_events(publisher: &WriterHandle, feed: &str, lines: &str) -> anyhow::Result<()> {
    publisher
        .append(AppendRequest {
            feed: name_of(feed)?,
            drafts: event::from_ndjson(lines.as_bytes())?,
            key: None,
            conditions: Conditions::default(),
            room: None,
        })
        .await?;
    Ok(())
}

/// Appends an event to each of the two feeds once a second, until the server stops.
async fn publish_more(publisher: WriterHandle) {
    let mut timer = tokio::time::interval(Duration::from_secs(1));
    for number in 1_u64.. {
        timer.tick().await;
        let tick = format!(r#"{{"title":"Tick {number}","content":{{"tick":{number}}}}}"#);
        let order = format!(
            r#"{{"title":"Order {number} placed","categories":["order.placed"],"content":{{"order":{number},"lines":[{{"sku":"A-1","n":{}}}]}}}}"#,
            number % 7 + 1
        );
        for (feed, event) in [(TICKS, tick), (FEED, order)] {
            // The first failure ends the loop: once the demo stops, the writer is gone.
            if append_events(&publisher, feed, &event).await.is_err() {
                return;
            }
        }
    }
}
