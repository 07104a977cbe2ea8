//! Acknowledgements that do not fit what was sent.

use std::collections::BTreeSet;

use super::*;
use crate::drops::{Hesitant, dropped};
use crate::transport::Answering;

/// Server that answers each request with these bytes.
#[derive(Debug)]
struct Says(String);

impl Transport for Says {
    fn send(&self, _request: Request) -> Answering<'_> {
        let body = self.0.clone().into();
        Box::pin(async move {
            Ok(Answer {
                status: 201,
                headers: vec![],
                body,
            })
        })
    }
}

fn result(id: &str, position: u64, status: &str) -> serde_json::Value {
    serde_json::json!({"id": id, "position": position, "document": "http://h/1", "status": status})
}

async fn acknowledged(results: &[serde_json::Value]) -> Result<Vec<Acknowledgement>, PublishError> {
    let says = Says(serde_json::json!({"results": results}).to_string());
    let publisher = Publisher::new("http://h/a").unwrap();
    let publisher = publisher.transport(Arc::new(says));
    let event = |id: &str| Event {
        id: Some(id.into()),
        ..Event::default()
    };
    let atom = "<entry xmlns='http://www.w3.org/2005/Atom'><id>urn:3</id></entry>";
    let lines = [
        Publication::from(event("urn:1")),
        Publication::Line("{\"id\":\"urn:2\"}".into()),
    ];
    if results.len() == 1 {
        return publisher.append([Publication::Atom(atom.into())]).await;
    }
    publisher.append(lines).await
}

/// Goal: an acknowledgement of too few entries, too many, others, or in another order is an error that names the difference.
#[tokio::test]
async fn what_is_acknowledged_is_what_was_sent() {
    let (one, two) = (
        result("urn:1", 7, "appended"),
        result("urn:2", 8, "appended"),
    );
    let before = result("urn:2", 3, "duplicate");
    for sound in [vec![one.clone(), two.clone()], vec![one.clone(), before]] {
        assert_eq!(acknowledged(&sound).await.unwrap().len(), 2);
    }
    acknowledged(&[result("urn:3", 0, "appended")])
        .await
        .unwrap();
    for (results, why) in [
        (vec![], "results for 0 entries, and 2 were sent"),
        (
            vec![one.clone(), two.clone(), one.clone()],
            "results for 3 entries, and 2 were sent",
        ),
        (
            vec![one.clone(), result("urn:x", 8, "appended")],
            "its result 2 is about urn:x, and urn:2 was sent",
        ),
        (
            vec![two.clone(), one.clone()],
            "its result 1 is about urn:2",
        ),
        (
            vec![one, result("urn:2", 7, "appended")],
            "positions of its results do not rise",
        ),
        (
            vec![result("urn:x", 0, "appended")],
            "its result 1 is about urn:x, and urn:3 was sent",
        ),
    ] {
        let error = acknowledged(&results).await.unwrap_err();
        assert!(
            matches!(error, PublishError::Unacknowledged { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(why), "{error}");
        assert!(!error.is_transient());
    }
}

/// Goal: `append` and `create`, dropped at any of their awaits and called again, store everything once, in order.
#[tokio::test]
async fn what_is_published_again_after_a_drop_is_there_once() {
    let mut awaits = 0;
    loop {
        let stored: Arc<Mutex<Vec<String>>> = Arc::default();
        let created = Arc::new(Mutex::new(0));
        let server = {
            let (stored, created) = (Arc::clone(&stored), Arc::clone(&created));
            Hesitant(move |request: &Request| {
                let mut stored = stored.lock().unwrap();
                let (status, body) = match request.method {
                    Method::Get => (
                        if *created.lock().unwrap() > 0 {
                            200
                        } else {
                            404
                        },
                        String::new(),
                    ),
                    Method::Put => {
                        *created.lock().unwrap() += 1;
                        (201, String::new())
                    }
                    Method::Post => (201, store(&mut stored, &request.body)),
                };
                Answer {
                    status,
                    headers: vec![],
                    body: body.into(),
                }
            })
        };
        let publisher = Publisher::new("http://h/a").unwrap();
        let publisher = publisher.transport(Arc::new(server));
        let events = || {
            (0..2_500).map(|number| Event {
                id: Some(format!("urn:{number}")),
                ..Event::default()
            })
        };
        let mut was_dropped = false;
        dropped!(awaits, was_dropped, publisher.create("urn:f")).unwrap();
        assert_eq!(*created.lock().unwrap(), 1, "{awaits}");
        let published = dropped!(awaits, was_dropped, publisher.append(events())).unwrap();
        let ids: Vec<String> = (0..2_500).map(|number| format!("urn:{number}")).collect();
        assert!(
            published.iter().map(|published| &published.id).eq(&ids),
            "{awaits}"
        );
        assert_eq!(*stored.lock().unwrap(), ids, "{awaits}");
        let mut reported = 0;
        let report = dropped!(
            awaits,
            was_dropped,
            publisher.append_reporting(events(), |batch| reported += batch.len())
        );
        report.unwrap();
        assert!(reported >= 2_500, "{awaits}");
        assert_eq!(stored.lock().unwrap().len(), 2_500, "{awaits}");
        awaits += 1;
        if !was_dropped {
            break;
        }
    }
    assert!(awaits > 5, "{awaits}");
}

/// Stores what is new of a batch, and returns the acknowledgement.
fn store(stored: &mut Vec<String>, body: &[u8]) -> String {
    let results = body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let results = results.map(|line| {
        let event: Event = serde_json::from_slice(line).unwrap();
        let id = event.id.unwrap();
        let known = stored.iter().position(|known| *known == id);
        let at = known.unwrap_or(stored.len());
        if known.is_none() {
            stored.push(id.clone());
        }
        let status = if known.is_some() {
            "duplicate"
        } else {
            "appended"
        };
        result(&id, u64::try_from(at).unwrap(), status)
    });
    let results: Vec<_> = results.collect();
    serde_json::json!({"results": results}).to_string()
}

/// Goal: the changes of a timeline, dropped at any of their awaits and made again, are made.
#[tokio::test]
async fn what_is_followed_again_after_a_drop_is_followed() {
    let mut awaits = 0;
    loop {
        let follows: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let server = {
            let follows = Arc::clone(&follows);
            Hesitant(move |request: &Request| {
                let mut follows = follows.lock().unwrap();
                let text = std::str::from_utf8(&request.body).unwrap();
                let change: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
                let named = |what: &str| {
                    let names = change[what].as_array().into_iter().flatten();
                    names
                        .map(|name| name.as_str().unwrap().to_owned())
                        .collect::<Vec<_>>()
                };
                if text.starts_with("<opml") {
                    follows.insert("listed".into());
                }
                follows.extend(named("follow"));
                for name in named("unfollow") {
                    assert!(follows.remove(&name) || name == "a");
                }
                let body = serde_json::json!({"followed": 1, "unfollowed": 0}).to_string();
                Answer {
                    status: 201,
                    headers: vec![],
                    body: body.into(),
                }
            })
        };
        let server: Arc<dyn Transport> = Arc::new(server);
        let home = crate::Timeline::new("http://h/timelines/home").unwrap();
        let home = home.with(|publisher| publisher.transport(Arc::clone(&server)));
        let mut was_dropped = false;
        let new = crate::timeline::NewTimeline::default();
        dropped!(awaits, was_dropped, home.create(&new)).unwrap();
        dropped!(awaits, was_dropped, home.follow(&["a", "b"], 3)).unwrap();
        dropped!(awaits, was_dropped, home.unfollow(&["a"])).unwrap();
        dropped!(awaits, was_dropped, home.follow_list("<opml/>".into())).unwrap();
        let follows: Vec<String> = follows.lock().unwrap().iter().cloned().collect();
        assert_eq!(follows, ["b", "listed"], "{awaits}");
        awaits += 1;
        if !was_dropped {
            break;
        }
    }
    assert!(awaits > 1, "{awaits}");
}
