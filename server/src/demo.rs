//! `demo`: something to look at within a minute of cloning.
//!
//! Shell: a temporary folder, a server, a timer.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this file is the terminal"
)]

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use simplefeed_core::{event, feed::FeedName, settings::Choices};
use simplefeed_server::{
    config::{Config, ServeArgs},
    listening::Listening,
    log::opening::{self, SledStore},
    publish::{Append, Asked, Conditions, Configure, Publisher, Wanted},
    serve::Server,
};

/// The events the sample feed begins with.
const EVENTS: &str = include_str!("../../fixtures/demo.ndjson");
const FEED: &str = "demo";
/// Entries of a document: few, so that archived documents appear while one watches.
const DOCUMENT_ENTRIES: u32 = 5;

pub(crate) fn demo() -> anyhow::Result<u8> {
    // Removed when this function returns.
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let preferred: SocketAddr = ([127, 0, 0, 1], 8080).into();
    let free: SocketAddr = ([127, 0, 0, 1], 0).into();
    let config = |listen| {
        let args = ServeArgs {
            data: Some(folder.path().into()),
            listen,
            ..ServeArgs::default()
        };
        Config::new(args, |_| true)
    };
    // Another program may have port 8080; then any free one will do.
    let (preferred, config) = (config(preferred)?, config(free)?);
    let listening = Listening::bind(&preferred).or_else(|_| Listening::bind(&config))?;
    let signals = listening.stop_signals()?;
    let store = SledStore::from(opening::open(folder.path())?);
    let server = Server::start(&config, listening, store)?;
    let (publisher, runtime) = server.publisher();
    // The sample is there before its URL is printed.
    runtime.block_on(publish_sample(&publisher))?;
    runtime.spawn(publish_more(publisher));
    introduce(server.public_url().as_str());
    eprintln!("listening on http://{}", server.listening().address());
    super::run(server, signals)
}

fn introduce(url: &str) {
    let feed = format!("{url}feeds/{FEED}");
    println!(
        "A feed that grows by one event a second: {feed}\n\n\
         Look at it:\n  \
         curl -L {feed}\n  \
         curl -i {feed}/1.atom\n  \
         curl -i -d '{{\"title\":\"Hello\"}}' -H 'Content-Type: application/json' {feed}\n\n\
         Follow it:\n  \
         cargo run --release --bin simplefeed -- tail {feed}\n\n\
         End it with Ctrl-C; its folder is removed then."
    );
}

async fn publish_sample(publisher: &Publisher) -> anyhow::Result<()> {
    let feed = FeedName::parse(FEED).context("the demo's name is a name")?;
    let choices = Choices {
        title: Some("Simplefeed demo".into()),
        document_entries: Some(DOCUMENT_ENTRIES),
        ..Choices::default()
    };
    publisher
        .configure(Configure {
            feed: feed.clone(),
            choices,
            id: None,
            conditions: Conditions::default(),
            kind: Asked::Any,
            wanted: Wanted::default(),
        })
        .await?;
    let drafts = event::from_ndjson(EVENTS.as_bytes())?;
    publisher
        .append(Append {
            feed,
            drafts,
            key: None,
            conditions: Conditions::default(),
            room: None,
        })
        .await?;
    Ok(())
}

async fn publish_more(publisher: Publisher) {
    let mut timer = tokio::time::interval(Duration::from_secs(1));
    for number in 1_u64.. {
        timer.tick().await;
        let event = format!(r#"{{"title":"Tick {number}","content":{{"tick":{number}}}}}"#);
        let Ok(drafts) = event::from_json(event.as_bytes()) else {
            return;
        };
        let Some(feed) = FeedName::parse(FEED) else {
            return;
        };
        // The first failure ends the events: when the demo stops, the writer is gone.
        if publisher
            .append(Append {
                feed,
                drafts,
                key: None,
                conditions: Conditions::default(),
                room: None,
            })
            .await
            .is_err()
        {
            return;
        }
    }
}
