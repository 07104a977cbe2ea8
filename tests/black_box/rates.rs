//! Rates: entries counted over time, as readers see them.

use std::time::Duration;

use serde_json::Value;

use crate::{
    harness::{Server, check_folder, events, pause, run, text, wait_for},
    http::Request,
};

fn total(rates: &Value) -> u64 {
    let counts = rates["counts"].as_array().unwrap();
    counts.iter().map(|count| count[1].as_u64().unwrap()).sum()
}

/// Returns the rates once they count so many entries.
fn counted(server: &Server, path: &str, entries: u64) -> Value {
    wait_for(
        &format!("{entries} entries are not counted at {path}"),
        || {
            let answer = server.get(path);
            (answer.status == 200)
                .then(|| answer.json())
                .filter(|rates: &Value| total(rates) == entries)
        },
    )
}

/// Goal: each entry is counted once, whatever happens to the server.
#[test]
fn entries_are_counted_over_a_kill_and_a_rebuild() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &[]);
    server.publish("a", &events(30));
    server.publish("b", &events(7));
    for by in ["minute", "hour", "day", "month"] {
        let rates = counted(&server, &format!("/feeds/a/rates.json?by={by}"), 30);
        assert_eq!(rates["by"], by);
    }
    server.kill();
    server = Server::start(folder.path(), &[]);
    server.publish("b", &events(9));
    counted(&server, "/feeds/a/rates.json", 30);
    counted(&server, "/feeds/b/rates.json", 9);
    // The server carries both out.
    check_folder("rebuild", folder.path());
    assert!(check_folder("verify", folder.path()).contains(": 0 faults"));
    counted(&server, "/feeds/b/rates.json", 9);
    let encoded = "/feeds/b/rates.json?by=month&from=2020-01-01T01:00:00%2B01:00";
    assert_eq!(total(&server.get(encoded).json()), 9);
    let times = server
        .get("/feeds/b/rates.json?from=2999-01-01T00:00:00Z")
        .json();
    assert_eq!(total(&times), 0);
}

#[test]
fn recent_documents_lead_to_rates_but_for_timelines() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &events(1));
    let made = Request::put("/feeds/all", r#"{"kind":"timeline"}"#);
    assert_eq!(server.send(&made).status, 201);
    let links = |feed: &str| {
        let answer = server.get(&format!("/feeds/{feed}/recent.atom"));
        let links = answer.headers.iter().filter(|(name, _)| name == "link");
        let links: Vec<_> = links.map(|(_, value)| value.clone()).collect();
        links.join(", ")
    };
    assert!(links("a").contains("<rates.json>; rel=\"urn:simplefeed:1#rates\""));
    assert!(links("a").contains("<events?content=none>"));
    assert!(!links("all").contains("rates") && links("all").contains("<events"));
    let answer = server.get("/feeds/all/rates.json");
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("is a timeline"), "{}", answer.text());
    assert_eq!(server.get("/feeds/a/rates.json?by=week").status, 400);
}

/// Goal: a person sees when a feed was busy, and how far a consumer is behind, whatever the feed offers.
#[test]
fn entries_and_lag_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish("a", &events(30));
    let made = Request::put("/feeds/all", r#"{"kind":"timeline"}"#);
    assert_eq!(server.send(&made).status, 201);
    let follow = Request::put("/feeds/all/following/a", r#"{"backfill":5}"#);
    assert!(server.send(&follow).status < 300);
    counted(&server, "/feeds/a/rates.json", 30);
    let (url, timeline) = (server.url("/feeds/a"), server.url("/feeds/all"));
    let state = folder.path().join("state");
    let (state, svg) = (state.to_str().unwrap(), folder.path().join("plot.svg"));
    let simplefeed = |args: &[&str]| {
        let output = run("simplefeed", args, b"");
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {stderr}");
        (stdout, stderr)
    };

    let (plot, said) = simplefeed(&["plot", &url]);
    assert!(
        plot.starts_with(&format!("{url}: 30 entries, by minute\n30 │")),
        "{plot}"
    );
    assert!(
        !plot.contains("not handled") && said.is_empty(),
        "{plot}{said}"
    );
    let (plot, _) = simplefeed(&["plot", &url, "--by", "month", "--since", "1d"]);
    assert!(plot.contains("30 entries, by month"), "{plot}");
    let refused = run("simplefeed", &["plot", &url, "--since", "2999-01-01"], b"");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    let refused = run("simplefeed", &["plot", "orders"], b"");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    simplefeed(&["replay", &url, "--state", state, "--limit", "12"]);
    let (plot, _) = simplefeed(&["plot", &url, "--state", state]);
    assert!(
        plot.contains("\nnot handled yet: 18 entries, the oldest of 2"),
        "{plot}"
    );
    simplefeed(&["replay", &url, "--state", state]);
    let (plot, _) = simplefeed(&["plot", &url, "--state", state]);
    assert!(plot.contains("has caught up"), "{plot}");

    // One date is far ahead, and hides no other.
    server.publish(
        "a",
        r#"{"id":"urn:ahead","updated":"9999-12-31T00:00:00Z"}"#,
    );
    let (plot, _) = simplefeed(&["plot", &timeline, "--by", "month"]);
    assert!(
        plot.contains("5 entries, by month; 1 of the future"),
        "{plot}"
    );
    let (plot, said) = simplefeed(&["plot", &timeline]);
    assert!(
        plot.contains("5 entries, by") && said.contains("counted by their dates"),
        "{plot}{said}"
    );
    let (out, _) = simplefeed(&[
        "plot",
        &url,
        "--state",
        state,
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(
        out.is_empty() && picture.starts_with("<svg ") && picture.contains("<rect "),
        "{picture}"
    );
}

/// Goal: the rates of a feed stay as they are while others, which a reader may not see, have new entries.
#[test]
fn rates_tell_nothing_of_other_feeds() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish("a", &events(1));
    counted(&server, "/feeds/a/rates.json", 1);
    // Once the second of its commit is over, nothing changes any more.
    pause(Duration::from_millis(2_100));
    let before = server.get("/feeds/a/rates.json");
    for number in 2..4 {
        server.publish("b", &events(number));
        counted(
            &server,
            "/feeds/b/rates.json",
            u64::try_from(number).unwrap(),
        );
        pause(Duration::from_millis(1_100));
        assert_eq!(server.get("/feeds/a/rates.json").text(), before.text());
    }
    assert_ne!(before.json()["through"], Value::Null);
}
