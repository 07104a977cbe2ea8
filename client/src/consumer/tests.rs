use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::*;
use crate::transport::{Answer, Answering, Request};

/// Documents by URL, and what was asked for.
#[derive(Debug, Default)]
struct Web {
    documents: Mutex<HashMap<String, String>>,
    asked: Mutex<Vec<Request>>,
}

impl Web {
    fn put(&self, url: &str, links: &str, ids: &[&str]) {
        let entries: String = ids.iter().fold(String::new(), |text, id| {
            text + "<entry><id>" + id + "</id></entry>"
        });
        let text = format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{links}{entries}</feed>"
        );
        self.documents.lock().unwrap().insert(url.into(), text);
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl Transport for Web {
    fn send(&self, request: Request) -> Answering<'_> {
        let url = request.url.to_string();
        self.asked.lock().unwrap().push(request.clone());
        let found = self
            .documents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&url)
            .cloned();
        let tag = found.as_ref().map(|text| format!("\"{}\"", text.len()));
        let known = request
            .headers
            .iter()
            .any(|(name, value)| *name == "if-none-match" && Some(value) == tag.as_ref());
        let status = match (&found, known) {
            (None, _) => 404,
            (Some(_), true) => 304,
            (Some(_), false) => 200,
        };
        let headers = vec![
            ("content-type".into(), "application/atom+xml".into()),
            ("etag".into(), tag.unwrap_or_default()),
        ];
        let body = if status == 200 {
            found.unwrap_or_default()
        } else {
            String::new()
        };
        Box::pin(async move {
            Ok(Answer {
                status,
                url: request.url,
                headers,
                body: body.into(),
            })
        })
    }
}

/// A bookmark that the test can look at.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Option<Bookmark>>>);

impl Kept {
    fn entry(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap()
            .as_ref()
            .and_then(|bookmark| bookmark.entry.clone())
    }
}

impl BookmarkStore for Kept {
    fn load(&mut self) -> io::Result<Option<Bookmark>> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        *self.0.lock().unwrap() = Some(bookmark.clone());
        Ok(())
    }
}

const FEED: &str = "http://h/recent";

fn consumer(web: &Arc<Web>, kept: &Kept, since: Since) -> Consumer {
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(web);
    Consumer::builder(FEED)
        .bookmark(kept.clone())
        .since(since)
        .transport(transport)
        .build()
        .unwrap()
}

/// Goal: a crash after the last delivery and before its acceptance loses nothing.
#[tokio::test]
async fn a_place_is_kept_only_behind_accepted_entries() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(FEED, "", &["urn:2", "urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Oldest);
    let first = feed.next().await.unwrap().unwrap();
    assert_eq!(first.id(), "urn:1");
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:2");
    assert!(feed.next().await.unwrap().is_none());
    assert_eq!(kept.entry(), None, "nothing was accepted");

    feed.accept(&first).await.unwrap();
    let mut again = consumer(&web, &kept, Since::Oldest);
    let second = again.next().await.unwrap().unwrap();
    assert_eq!(second.id(), "urn:2");
    again.accept(&second).await.unwrap();
    assert!(again.next().await.unwrap().is_none());
    assert_eq!(kept.entry().as_deref(), Some("urn:2"));
}

/// Where nothing is delivered, the place is kept all the same: the next start goes on from here.
#[tokio::test]
async fn since_newest_is_a_place() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(FEED, "", &["urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Newest);
    assert!(feed.next().await.unwrap().is_none());
    web.put(FEED, "", &["urn:2", "urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Newest);
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:2");
}

/// An idle look costs one 304; a validator is sent only while the bookmarked entry is the newest.
#[tokio::test]
async fn an_idle_look_is_one_conditional_request() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(FEED, "", &["urn:2", "urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Oldest);
    while let Some(delivery) = feed.next().await.unwrap() {
        feed.accept(&delivery).await.unwrap();
    }
    let before = web.asked();
    assert!(
        consumer(&web, &kept, Since::Oldest)
            .next()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(web.asked(), before + 1);
    let last = web.asked.lock().unwrap().last().cloned().unwrap();
    assert!(
        last.headers
            .iter()
            .any(|(name, _)| *name == "if-none-match")
    );

    let bookmark = kept.0.lock().unwrap().clone().unwrap();
    let older = Bookmark {
        entry: Some("urn:1".into()),
        etag: None,
        ..bookmark
    };
    *kept.0.lock().unwrap() = Some(older);
    assert_eq!(
        consumer(&web, &kept, Since::Oldest)
            .next()
            .await
            .unwrap()
            .unwrap()
            .id(),
        "urn:2"
    );
}

/// `current` may lead back and forth between two spellings of one URL.
#[tokio::test]
async fn a_link_to_the_recent_document_is_followed_once() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(
        FEED,
        "<link rel='current' href='http://h/other'/>",
        &["urn:1"],
    );
    web.put(
        "http://h/other",
        "<link rel='current' href='http://h/recent'/>",
        &["urn:1"],
    );
    let mut feed = consumer(&web, &kept, Since::Oldest);
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    assert!(feed.next().await.unwrap().is_none());
    assert!(web.asked() <= 3);
}

#[test]
fn pauses_grow_within_bounds() {
    assert_eq!(back_off(0, None), Duration::from_secs(1));
    assert_eq!(back_off(3, None), Duration::from_secs(8));
    assert_eq!(back_off(40, None), Duration::from_mins(1));
    assert_eq!(
        back_off(0, Some(Duration::from_secs(5))),
        Duration::from_secs(5)
    );
    assert_eq!(
        back_off(0, Some(Duration::from_hours(24))),
        Duration::from_mins(1)
    );
}
