//! Acknowledgements that do not fit what was sent.

use super::*;
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

async fn acknowledged(results: &[serde_json::Value]) -> Result<Vec<Published>, PublishError> {
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
