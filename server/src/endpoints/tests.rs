use hyper::HeaderMap;
use simplefeed_core::{
    commit::{Change, Commit},
    feed::{CommitNumber, FeedPattern},
    settings::Choices,
    timestamp::Timestamp,
};
use simplefeed_http::{access::Access, reply::Lifetimes, router::find};
use simplefeed_log::{Append as _, fixtures::create, memory::MemoryLog};
use simplefeed_process::clock;
use simplefeed_publish::FollowItems;
use simplefeed_views::{
    documents::archive::Archive,
    folders::Folders,
    timelines::{fan_out::Keeping, merged::with_timelines},
};

use super::*;

/// A commit that makes a feed `feed1`.
fn commit(closed: bool) -> Commit {
    let mut changes = create(1);
    for change in &mut changes {
        if let Change::Settings { settings, .. } = change {
            settings.choices = Arc::new(Choices {
                closed: Some(closed),
                ..Choices::default()
            });
        }
    }
    Commit {
        number: CommitNumber(1),
        instant: Timestamp::from_micros(1),
        changes,
    }
}

#[track_caller]
fn check(path: &str, want: Option<&str>) {
    let found = find(ALL, "/sub", path).map(|(endpoint, _)| endpoint.path);
    assert_eq!(found, want, "{path}");
}

#[test]
fn known_paths_are_found_with_and_without_the_prefix() {
    check("/feeds", Some("/feeds"));
    check("/sub/feeds", Some("/feeds"));
    check("/healthz", Some("/healthz"));
    check("/readyz", Some("/readyz"));
    check("/feeds/a", Some("/feeds/{feed}"));
    check("/feeds/a/recent.atom", Some("/feeds/{feed}/recent.atom"));
    check("/sub/feeds/a/1.atom", Some("/feeds/{feed}/{document}.atom"));
    check("/feeds/a/12-2.atom", Some("/feeds/{feed}/{document}.atom"));
    check(
        "/feeds/a/entries/0.atom",
        Some("/feeds/{feed}/entries/{position}.atom"),
    );
    check("/feeds/a/index.json", Some("/feeds/{feed}/index.json"));
    check(
        "/feeds/a/index-1.json",
        Some("/feeds/{feed}/index-{block}.json"),
    );
    check("/sup.json", Some("/sup.json"));
    check("/sub/sup-closed.json", Some("/sup-closed.json"));
    check("/sup/1.json", Some("/sup/{window}.json"));
    check("/sup-closed/7-2.json", Some("/sup-closed/{window}.json"));
}

#[test]
fn other_spellings_name_nothing() {
    for path in [
        "",
        "//",
        "feeds",
        "//feeds",
        "/feeds/",
        "/Feeds",
        "/feeds/A",
        "/feeds/a/",
        "/feeds/../feeds",
        "/feeds/a/0.atom",
        "/feeds/a/01.atom",
        "/feeds/a/1.atom/",
        "/feeds/a/1-1.atom",
        "/feeds/a/+1.atom",
        "/feeds/a/1",
        "/feeds/a/recent",
        "/feeds/a/recent.atom/x",
        "/feeds/%61",
        "/feeds/a%2f1.atom",
        "/feeds/a/entries/",
        "/feeds/a/entries/01",
        "/feeds/a/01.json",
        "/ui/feeds/a/01",
        "/ui/feeds/",
        "/ui/style-0.css",
        "/feeds/a/entries/1.atom/x",
        "/feeds/a/index-0.json",
        "/sup",
        "/sup/",
        "/sup/0.json",
        "/sup/01.json",
        "/sup/1",
        "/sup/1.json/x",
        "/sup.json/1.json",
        "/feeds/a/18446744073709551616.atom",
        "/sub",
        "/subfeeds",
        "/feeds/a/../b/recent.atom",
    ] {
        check(path, None);
    }
}

#[test]
fn recent_documents_link_to_what_wakes_their_readers() {
    use simplefeed_core::{
        push::{EVENTS_REL, WAIT_REL},
        rates::RATES_REL,
    };
    for (target, rel) in [
        ("recent.atom?wait=15", WAIT_REL),
        ("events?content=none", EVENTS_REL),
    ] {
        let link = format!("<{target}>; rel=\"{rel}\"");
        assert!(documents::RECENT_LINKS.contains(&link), "{link}");
    }
    assert_eq!(rates::LINK, format!("<rates.json>; rel=\"{RATES_REL}\""));
}

/// Goal: the right to a feed is asked before its documents are read.
/// Method: the documents are of a log in which the feed is open. Asked first, they would show it.
#[tokio::test]
async fn the_right_to_a_feed_is_asked_first() {
    let folder = tempfile::tempdir().unwrap();
    let log_of = |closed| {
        let log = Arc::new(MemoryLog::default());
        log.append(&commit(closed)).unwrap();
        log
    };
    let (closed, open): (Arc<dyn EntryLog>, Arc<dyn EntryLog>) = (log_of(true), log_of(false));
    let shelf = Shelf {
        log: Arc::clone(&closed),
        catalogue: Arc::new(Catalogue::new(Arc::clone(&closed))),
        documents: Arc::new(Documents::new(
            with_timelines(&open).unwrap(),
            Archive::new(&Folders::new(folder.path(), None)),
        )),
        timelines: Arc::new(Timelines::new(closed, None, Keeping::default()).unwrap()),
        watermark: Arc::new(Watermark::in_memory()),
        clock: Clock::new(clock::system, None),
        lifetimes: Lifetimes::new(1),
        public_url: "http://h".into(),
        has_sup: false,
    };
    let name = FeedName::parse("feed1").unwrap();
    for catalogue_is_read in [false, true] {
        if catalogue_is_read {
            assert!(shelf.catalogue.near(name.as_str()).is_empty());
        }
        let refused = shelf::state_for(&shelf, &name, Sight::default).await;
        assert_eq!(refused.unwrap_err().status(), 404);
        let all = || Access::Anyone.sight(&HeaderMap::new());
        let shown = shelf::state_for(&shelf, &name, all).await;
        assert!(shown.is_ok());
        // The writer is not asked: it would look the name up.
        let pattern = FeedPattern::of(&name);
        let follow = FollowItems {
            follow: vec![pattern.clone()],
            ..FollowItems::default()
        };
        let unfollow = FollowItems {
            unfollow: vec![pattern],
            ..FollowItems::default()
        };
        for (sight, hidden) in [(Sight::default(), Some(name.clone())), (all(), None)] {
            let is_hidden = hidden.is_some();
            let [mut follow, mut unfollow] = [&follow, &unfollow].map(|wanted| FollowItems {
                sight: sight.clone(),
                ..wanted.clone()
            });
            assert_eq!(timelines::hide(&shelf, &mut follow).await.unwrap(), hidden);
            assert_eq!(timelines::hide(&shelf, &mut unfollow).await.unwrap(), None);
            assert_eq!(unfollow.unfollow.is_empty(), is_hidden);
        }
    }
}
