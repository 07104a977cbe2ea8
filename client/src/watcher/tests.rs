use std::fs;

use simplefeed_core::sup::SupAddress;

use super::*;
use crate::OnGap;
use crate::drops::dropped;
use crate::{
    consumer::{
        Since,
        tests::{Page, Web, document},
    },
    state::StateFolder,
};

fn place(entry: &str) -> Bookmark {
    Bookmark {
        feed: "urn:f".into(),
        entry: Some(entry.into()),
        ..Bookmark::default()
    }
}

fn note(feed: &str, entry: &str) -> JournalNote {
    let base = "https://e/".parse().unwrap();
    let sup = SupAddress::parse("https://e/sup.json#abc", &base);
    JournalNote::feed(feed, Some(&place(entry)), Some((sup.unwrap(), Some("v1"))))
}

fn open(folder: &std::path::Path) -> Result<(NoteJournal, journal::Notes), StateError> {
    NoteJournal::open(StateFolder::open(folder)?)
}

#[test]
fn what_was_noted_last_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, notes) = open(folder.path()).unwrap();
    assert!(notes.feeds.is_empty());
    let none = Vec::new;
    journal
        .note(&[note("a", "urn:1"), note("b", "urn:1")], none)
        .unwrap();
    let updated = Timestamp::from_micros(7_000_000);
    let document: Url = "https://e/sup.json".parse().unwrap();
    journal
        .note(
            &[note("a", "urn:2"), JournalNote::heard(&document, updated)],
            none,
        )
        .unwrap();
    assert!(matches!(
        open(folder.path()),
        Err(StateError::Locked { .. })
    ));
    drop(journal);

    // What a crash has cut short is as if it had not been written.
    let path = folder.path().join("watched.ndjson");
    let mut text = fs::read_to_string(&path).unwrap();
    text += "{\"feed\":\"b\",\"bookm";
    fs::write(&path, &text).unwrap();
    let (mut journal, notes) = open(folder.path()).unwrap();
    let entry = |notes: &journal::Notes, feed: &str| {
        let known = &notes.feeds[feed];
        assert_eq!(known.update.as_deref(), Some("v1"));
        assert_eq!(&*known.sup.as_ref().unwrap().id, "abc");
        known.place.as_ref().unwrap().entry.clone().unwrap()
    };
    assert_eq!(
        (entry(&notes, "a"), entry(&notes, "b")),
        ("urn:2".into(), "urn:1".into())
    );
    assert_eq!(notes.heard[&document], updated);
    journal.note(&[note("b", "urn:3")], none).unwrap();
    drop(journal);
    let (_, notes) = open(folder.path()).unwrap();
    assert_eq!(entry(&notes, "b"), "urn:3");

    // A line in the middle is never passed over.
    let text = fs::read_to_string(&path)
        .unwrap()
        .replacen("urn:2", "urn:2\"", 1);
    fs::write(&path, text).unwrap();
    let damaged = open(folder.path()).unwrap_err();
    let told = std::error::Error::source(&damaged).unwrap().to_string();
    assert!(told.contains("line 3"), "{told}");
}

/// Goal: a power cut within a write takes that write back, whatever bytes it leaves.
/// Method: the last write of a file replaced by what may be there instead: a part, zeros, noise, old lines.
#[test]
fn any_rest_of_the_last_write_is_as_if_it_were_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("watched.ndjson");
    let (mut journal, _) = open(folder.path()).unwrap();
    let many: Vec<JournalNote> = (0..40).map(|n| note(&format!("f{n}"), "urn:1")).collect();
    journal.note(&many, Vec::new).unwrap();
    let before = fs::read(&path).unwrap();
    let moved: Vec<JournalNote> = (0..40).map(|n| note(&format!("f{n}"), "urn:2")).collect();
    journal.note(&moved, Vec::new).unwrap();
    drop(journal);
    let after = fs::read(&path).unwrap();
    let written = &after[before.len()..];
    let half = written.len() / 2;
    let zeros = vec![0; half];
    let rests = [
        vec![],
        vec![0; written.len()],
        b"\xa7\n\xa7".repeat(written.len() / 3),
        before[..half].to_vec(),
        [&written[..half], &zeros].concat(),
        [&zeros, &written[half..]].concat(),
        [&before[..half], &written[half..]].concat(),
    ];
    for (number, rest) in rests.iter().enumerate() {
        fs::write(&path, [&before, rest].map(Vec::as_slice).concat()).unwrap();
        let (mut journal, notes) = open(folder.path()).unwrap();
        let entry = |feed: &str| notes.feeds[feed].place.as_ref().unwrap().entry.clone();
        assert_eq!(entry("f39"), Some("urn:1".into()), "rest {number}");
        journal.note(&[note("f1", "urn:3")], Vec::new).unwrap();
        drop(journal);
        let (_, notes) = open(folder.path()).unwrap();
        let place = notes.feeds["f1"].place.as_ref().unwrap();
        assert_eq!(place.entry, Some("urn:3".into()), "rest {number}");
    }
}

#[test]
fn a_journal_of_another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("watched.ndjson");
    drop(open(folder.path()).unwrap());
    fs::write(&path, "{\"feed\":\"a\",\"update\":\"v1\"}\n").unwrap();
    let refused = open(folder.path()).unwrap_err();
    let cause = std::error::Error::source(&refused).unwrap().to_string();
    assert!(cause.contains("another version"), "{cause}");
}

/// Goal: a journal that is written in for years stays small.
#[test]
fn a_journal_that_has_grown_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path()).unwrap();
    for n in 0..20_000 {
        let now = note("a", &format!("urn:{n}"));
        let all = [now.clone(), note("b", "urn:0")];
        journal.note(&[now], || all.to_vec()).unwrap();
    }
    drop(journal);
    let length = fs::metadata(folder.path().join("watched.ndjson"))
        .unwrap()
        .len();
    assert!(length < 1_100_000, "{length}");
    let (_, notes) = open(folder.path()).unwrap();
    assert_eq!(notes.feeds["a"].place, Some(place("urn:19999")));
    assert_eq!(notes.feeds["b"].place, Some(place("urn:0")));
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let none = FeedWatcher::builder(Vec::<String>::new()).build();
    assert!(matches!(none, Err(WatchError::Count { count: 0 })));
    let no_url = FeedWatcher::builder(["https://e/feed", "nonsense"]).build();
    assert!(matches!(
        no_url,
        Err(WatchError::Consumer(ConsumerError::Url { .. }))
    ));
}

const INTERVAL: Duration = Duration::from_mins(10);

/// A web of feeds that announce a SUP document, and that.
fn web(feeds: &[&str]) -> Arc<Web> {
    let web = Arc::new(Web::default());
    for feed in feeds {
        publish(&web, feed, &["urn:1"]);
    }
    tell(&web, 100, "");
    web
}

fn publish(web: &Web, feed: &str, ids: &[&str]) {
    let page = document("", ids);
    let page = page.with("x-sup-id", &format!("https://h/sup.json#{feed}"));
    web.serve(&format!("https://h/{feed}"), page);
}

/// Serves a SUP document that ends with this second, and has such members and updates.
fn tell(web: &Web, second: u32, more: &str) {
    let text = format!(
        r#"{{"updated_time":"2026-01-01T{:02}:{:02}:{:02}Z","since_time":"2026-01-01T00:00:00Z","period":60{more}}}"#,
        second / 3600,
        second / 60 % 60,
        second % 60,
    );
    let text = if more.contains("updates") {
        text
    } else {
        text.replace("\"period\":60", "\"period\":60,\"updates\":[]")
    };
    // What is longer has another entity tag.
    let text = text + &" ".repeat(usize::try_from(second).unwrap());
    web.serve("https://h/sup.json", Page::new("application/json", &text));
}

fn watch(web: &Arc<Web>, feeds: &[&str]) -> WatchBuilder {
    FeedWatcher::builder(feeds.iter().map(|feed| format!("https://h/{feed}")))
        .transport(Arc::<Web>::clone(web))
        .since(Since::Oldest)
        .interval(INTERVAL)
}

/// Returns the next entry, and what it is.
async fn entry(feeds: &mut FeedWatcher) -> (WatchedEntry, String) {
    loop {
        match feeds.next().await.unwrap() {
            WatchEvent::Entry(entry) => {
                let name = format!(
                    "{} {}",
                    entry.feed.rsplit('/').next().unwrap(),
                    entry.delivery.id()
                );
                return (entry, name);
            }
            WatchEvent::Gap { url, error } => panic!("{url}: {error}"),
            WatchEvent::Fault { .. } | WatchEvent::Trouble { .. } => {}
        }
    }
}

/// Lets time pass in which nothing new comes.
async fn pass(feeds: &mut FeedWatcher, time: Duration) {
    let until = time::Instant::now() + time;
    loop {
        match time::timeout_at(until, feeds.next()).await {
            Err(_over) => return,
            Ok(Ok(WatchEvent::Trouble { .. })) => {}
            Ok(other) => panic!("{other:?}"),
        }
    }
}

/// Goal: what is accepted once more, be it much later, ends no look and moves no place.
#[tokio::test(start_paused = true)]
async fn what_was_accepted_is_no_more_to_accept() {
    let web = Arc::new(Web::default());
    web.put("https://h/a", "", &["urn:1"]);
    let mut feeds = watch(&web, &["a"]).build().unwrap();
    let (first, name) = entry(&mut feeds).await;
    assert_eq!(name, "a urn:1");
    feeds.accept([&first]).await.unwrap();
    for (ids, expected) in [
        (&["urn:2", "urn:1"][..], "a urn:2"),
        (&["urn:3", "urn:2", "urn:1"], "a urn:3"),
    ] {
        web.put("https://h/a", "", ids);
        let (next, name) = entry(&mut feeds).await;
        assert_eq!(name, expected);
        feeds.accept([&first]).await.unwrap();
        pass(&mut feeds, 3 * INTERVAL).await;
        feeds.accept([&next]).await.unwrap();
    }
}

/// Goal: a disk that fails for a while loses nothing of what it was given.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_saved_is_saved_later() {
    let folder = tempfile::tempdir().unwrap();
    let state = || StateFolder::open(folder.path()).unwrap();
    let web = web(&["a", "b"]);
    let mut feeds = watch(&web, &["a", "b"]).state(state()).build().unwrap();
    let (first, _) = entry(&mut feeds).await;
    feeds.accept([&first]).await.unwrap();
    let (second, name) = entry(&mut feeds).await;
    let path = folder.path().join("watched.ndjson");
    let kept = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let failed = feeds.accept([&second]).await;
    assert!(matches!(failed, Err(WatchError::State(_))));
    fs::remove_dir(&path).unwrap();
    // What was written of it before it failed is no line.
    fs::write(&path, [&kept[..], b"{\"feed\":\"https://h/"].concat()).unwrap();
    feeds.accept([&second]).await.unwrap();
    drop(feeds);

    web.put("https://h/a", "", &["urn:2", "urn:1"]);
    web.put("https://h/b", "", &["urn:2", "urn:1"]);
    let mut feeds = watch(&web, &["a", "b"]).state(state()).build().unwrap();
    let mut names = vec![entry(&mut feeds).await.1, entry(&mut feeds).await.1];
    names.sort_unstable();
    assert_eq!(names, ["a urn:2", "b urn:2"], "{name}");
}

/// Goal: whoever takes a feed off the list and puts it back misses nothing of the time between.
#[tokio::test(start_paused = true)]
async fn a_feed_that_was_not_watched_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let state = || StateFolder::open(folder.path()).unwrap();
    let web = web(&["a", "b"]);
    let mut feeds = watch(&web, &["a", "b"]).state(state()).build().unwrap();
    for _ in 0..2 {
        let (entry, _) = entry(&mut feeds).await;
        feeds.accept([&entry]).await.unwrap();
    }
    pass(&mut feeds, INTERVAL).await;
    feeds.save().await.unwrap();
    drop(feeds);

    // Both rest, if both are watched again.
    web.forget();
    tell(&web, 1_000, "");
    let mut feeds = watch(&web, &["a", "b"]).state(state()).build().unwrap();
    pass(&mut feeds, Duration::from_secs(40)).await;
    assert_eq!(web.sent("accept").len(), 1, "{:?}", web.sent("accept"));
    drop(feeds);

    // What is told of one while only the other is watched,
    publish(&web, "a", &["urn:2", "urn:1"]);
    tell(&web, 2_000, ",\"updates\":[[\"a\",\"7\"]]");
    let mut feeds = watch(&web, &["b"]).state(state()).build().unwrap();
    pass(&mut feeds, Duration::from_secs(40)).await;
    feeds.save().await.unwrap();
    drop(feeds);
    // and not any more when it is watched again, is found.
    tell(&web, 3_000, "");
    let mut feeds = watch(&web, &["a", "b"]).state(state()).build().unwrap();
    at_once(&mut feeds, "a urn:2").await;
    drop(feeds);

    // The same if the document is told to somebody else meanwhile, who may see less.
    let mut feeds = watch(&web, &["a", "b"]).state(state()).build().unwrap();
    let (found, _) = entry(&mut feeds).await;
    feeds.accept([&found]).await.unwrap();
    pass(&mut feeds, Duration::from_secs(20)).await;
    feeds.save().await.unwrap();
    drop(feeds);
    publish(&web, "b", &["urn:2", "urn:1"]);
    let stranger = watch(&web, &["a", "b"]).bearer_token("sft_other");
    let mut feeds = stranger.state(state()).build().unwrap();
    at_once(&mut feeds, "b urn:2").await;
}

/// Expects an entry before anything could be polled.
async fn at_once(feeds: &mut FeedWatcher, expected: &str) {
    let began = time::Instant::now();
    assert_eq!(entry(feeds).await.1, expected);
    assert!(began.elapsed() < Duration::from_secs(10), "{expected}");
}

/// Goal: what has no news is remembered all the same, as soon as that is asked for.
#[tokio::test(start_paused = true)]
async fn a_graceful_end_keeps_every_place() {
    let folder = tempfile::tempdir().unwrap();
    let state = || StateFolder::open(folder.path()).unwrap();
    let web = web(&["a"]);
    let newest = |state| {
        watch(&web, &["a"])
            .since(Since::Newest)
            .state(state)
            .build()
    };
    let mut feeds = newest(state()).unwrap();
    pass(&mut feeds, Duration::from_secs(2)).await;
    feeds.save().await.unwrap();
    drop(feeds);
    publish(&web, "a", &["urn:2", "urn:1"]);
    tell(&web, 1_000, ",\"updates\":[[\"a\",\"7\"]]");
    let mut feeds = newest(state()).unwrap();
    assert_eq!(entry(&mut feeds).await.1, "a urn:2");
}

/// Goal: a copy that a cache shows because the server is away is not taken for a look.
#[tokio::test(start_paused = true)]
async fn a_copy_of_the_past_is_no_look() {
    let web = web(&["a"]);
    let mut feeds = watch(&web, &["a"]).build().unwrap();
    let (first, _) = entry(&mut feeds).await;
    feeds.accept([&first]).await.unwrap();
    pass(&mut feeds, Duration::from_secs(90)).await;
    let sup = "https://h/sup.json#a";
    let stale = document("", &["urn:1"]).with("x-sup-id", sup);
    let stale = stale.with("cache-control", "max-age=1").with("age", "900");
    web.serve("https://h/a", stale);
    let pair = ",\"prev_archive\":null,\"updates\":[[\"a\",\"7\"]]";
    for minute in 0..40 {
        // It does not stand still: nobody polls.
        tell(&web, 200 + minute * 60, pair);
        pass(&mut feeds, Duration::from_mins(1)).await;
    }
    publish(&web, "a", &["urn:2", "urn:1"]);
    for minute in 40..60 {
        tell(&web, 200 + minute * 60, pair);
        let minute = time::timeout(Duration::from_mins(1), entry(&mut feeds));
        if let Ok((_, name)) = minute.await {
            assert_eq!(name, "a urn:2");
            return;
        }
    }
    panic!("it was not seen");
}

/// Goal: whoever is killed in the middle of a look gets the rest of it at once.
#[tokio::test(start_paused = true)]
async fn a_look_that_was_not_finished_is_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let state = || StateFolder::open(folder.path()).unwrap();
    let web = web(&["a"]);
    let mut feeds = watch(&web, &["a"]).state(state()).build().unwrap();
    let (first, _) = entry(&mut feeds).await;
    feeds.accept([&first]).await.unwrap();
    pass(&mut feeds, Duration::from_secs(90)).await;
    // What nobody tells of is found by the safety net.
    publish(&web, "a", &["urn:3", "urn:2", "urn:1"]);
    let (second, name) = entry(&mut feeds).await;
    assert_eq!(name, "a urn:2");
    feeds.accept([&second]).await.unwrap();
    drop(feeds);
    let mut feeds = watch(&web, &["a"]).state(state()).build().unwrap();
    at_once(&mut feeds, "a urn:3").await;
}

/// Goal: an end in the middle of a write leaves what is owed a look without one that tells of it.
#[test]
fn what_is_owed_is_noted_first() {
    let told = note("a", "urn:1");
    let owed = JournalNote::feed("b", Some(&place("urn:1")), None);
    let mut notes = [told, owed];
    notes.sort_by_key(JournalNote::is_told);
    let names = notes.map(|note| match note {
        JournalNote::Feed { feed, .. } => feed,
        other => panic!("{other:?}"),
    });
    assert_eq!(names, ["b", "a"]);
}

/// SUP-C10: a SUP document leads nowhere but to where it is, and no token goes anywhere else.
#[tokio::test(start_paused = true)]
async fn sup_c10_a_document_leads_nowhere_else() {
    let web = web(&["a"]);
    let more = ",\"available_periods\":{\"3600\":\"https://evil/sup.json\"},\"prev_archive\":\"https://evil/7.json\",\"updates\":[]";
    tell(&web, 100, more);
    let builder = watch(&web, &["a"]).sup_interval(Duration::from_mins(2));
    let mut feeds = builder.bearer_token("sft_x").build().unwrap();
    let (first, _) = entry(&mut feeds).await;
    feeds.accept([&first]).await.unwrap();
    pass(&mut feeds, Duration::from_mins(5)).await;
    // A gap, which only that archive could close.
    let gap = "\"since_time\":\"2026-01-01T01:00:00Z\"";
    let text = format!(r#"{{"updated_time":"2026-01-01T02:00:00Z",{gap},"period":60{more}}}  "#);
    web.serve("https://h/sup.json", Page::new("application/json", &text));
    pass(&mut feeds, 3 * INTERVAL).await;
    assert_eq!(feeds.tally().sweeps, 1);
    for (url, token) in web.sent("authorization") {
        assert!(url.starts_with("https://h/"), "{url}");
        assert_eq!(token.as_deref(), Some("Bearer sft_x"));
    }

    let several = FeedWatcher::builder(["https://h/a", "https://g/a"]).bearer_token("sft_x");
    assert!(matches!(
        several.build(),
        Err(WatchError::Token { origins: 2 })
    ));

    // Where the token is not sent, nothing is told of what is closed.
    let page = document("", &["urn:1"]).with("x-sup-id", "https://h/sup.json#a");
    web.serve("http://h/a", page);
    for (token, tells) in [(Some("sft_x"), false), (None, true)] {
        web.forget();
        let mut builder = FeedWatcher::builder(["http://h/a"]).transport(Arc::<Web>::clone(&web));
        if let Some(token) = token {
            builder = builder.bearer_token(token);
        }
        let mut feeds = builder.build().unwrap();
        pass(&mut feeds, Duration::from_secs(20)).await;
        let asked = web.sent("accept");
        assert_eq!(asked.iter().any(|(url, _)| url.contains("sup.json")), tells);
    }
}

/// Goal: feeds that do not answer delay no document.
#[tokio::test(start_paused = true)]
async fn feeds_that_hang_delay_no_document() {
    let names: Vec<String> = (0..30).map(|number| format!("slow{number}")).collect();
    let mut list = vec!["a"];
    list.extend(names.iter().map(String::as_str));
    let web = web(&["a"]);
    for name in &names {
        web.hang(&format!("https://h/{name}"));
    }
    let mut feeds = watch(&web, &list).build().unwrap();
    let (first, _) = entry(&mut feeds).await;
    feeds.accept([&first]).await.unwrap();
    pass(&mut feeds, Duration::from_secs(200)).await;
    let asked = web.sent("accept");
    let documents = asked.iter().filter(|(url, _)| url.contains("sup.json"));
    assert!(documents.count() >= 4, "{asked:?}");
}

/// A watcher reports a gap and goes on: among ten thousand feeds, gaps cannot wait for an operator.
#[tokio::test(start_paused = true)]
async fn a_gap_in_a_feed_is_told_and_passed() {
    let web = Arc::new(Web::default());
    web.put("https://h/plain", "", &["urn:2", "urn:1"]);
    let mut feeds = watch(&web, &["plain"]).build().unwrap();
    for id in ["plain urn:1", "plain urn:2"] {
        let (found, name) = entry(&mut feeds).await;
        assert_eq!(name, id);
        feeds.accept([&found]).await.unwrap();
    }
    web.put("https://h/plain", "", &["urn:90", "urn:80"]);
    let WatchEvent::Gap { url, error } = feeds.next().await.unwrap() else {
        panic!("no gap is told")
    };
    assert_eq!(&*url, "https://h/plain");
    assert!(error.to_string().starts_with("gap:"), "{error}");
    for id in ["plain urn:80", "plain urn:90"] {
        let (found, name) = entry(&mut feeds).await;
        assert_eq!(name, id);
        feeds.accept([&found]).await.unwrap();
    }
}

/// A feed that stays away from a gap can be begun anew.
#[tokio::test(start_paused = true)]
async fn a_feed_can_be_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let state = || StateFolder::open(folder.path()).unwrap();
    let web = Arc::new(Web::default());
    web.put("https://h/plain", "", &["urn:1"]);
    let build = |anew: &[&str]| {
        let builder = watch(&web, &["plain"]).state(state()).on_gap(OnGap::Stop);
        let builder = anew.iter().fold(builder, |builder, url| builder.anew(url));
        builder.build().unwrap()
    };
    let mut feeds = build(&[]);
    let (found, _) = entry(&mut feeds).await;
    feeds.accept([&found]).await.unwrap();
    web.put("https://h/plain", "", &["urn:90"]);
    let stopped = feeds.next().await.unwrap();
    assert!(matches!(stopped, WatchEvent::Trouble { .. }), "{stopped:?}");
    drop(feeds);
    let mut feeds = build(&["https://user:secret@h/plain"]);
    assert_eq!(entry(&mut feeds).await.1, "plain urn:90");
}

/// Sixteen feeds that never answer let others have their turn.
#[tokio::test(start_paused = true)]
async fn slow_feeds_starve_nobody() {
    let web = Arc::new(Web::default());
    let slow: Vec<String> = (0..40).map(|number| format!("slow{number}")).collect();
    for name in &slow {
        web.hang(&format!("https://h/{name}"));
    }
    let mut urls: Vec<String> = slow
        .iter()
        .map(|name| format!("https://h/{name}"))
        .collect();
    for name in ["a", "b"] {
        let url = format!("https://other/{name}");
        web.put(&url, "", &["urn:1"]);
        urls.push(url);
    }
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(&web);
    let mut feeds = FeedWatcher::builder(urls)
        .transport(transport)
        .since(Since::Oldest)
        .build()
        .unwrap();
    let found = time::timeout(Duration::from_mins(1), async {
        let mut names = vec![entry(&mut feeds).await.1, entry(&mut feeds).await.1];
        names.sort();
        names
    });
    assert_eq!(found.await.unwrap(), ["a urn:1", "b urn:1"]);
    // As many of one origin as of the other, and more than hang, in their turn.
    let asked = web.sent("accept");
    assert!(asked.iter().filter(|(url, _)| url.contains("//h/")).count() <= 8);
    // A feed that never answers is told, in its turn.
    let mut troubles = HashSet::new();
    while let Ok(next) = time::timeout(Duration::from_mins(30), feeds.next()).await {
        let WatchEvent::Trouble { url, error } = next.unwrap() else {
            panic!("nothing else happens");
        };
        assert!(error.is_transient(), "{error}");
        troubles.insert(url);
        if troubles.len() == slow.len() {
            break;
        }
    }
    assert_eq!(troubles.len(), slow.len());
    let asked = web.sent("accept");
    let names: HashSet<&str> = asked.iter().map(|(url, _)| url.as_str()).collect();
    assert_eq!(names.len(), 42, "every feed had its turn");
}

/// Goal: feeds that hang leave places to the others of their origin, at the first look and for ever.
#[tokio::test(start_paused = true)]
async fn feeds_that_hang_leave_places_to_their_neighbours() {
    let web = Arc::new(Web::default());
    let slow: Vec<String> = (0..20).map(|number| format!("slow{number}")).collect();
    let mut names: Vec<&str> = slow.iter().map(String::as_str).collect();
    for name in &slow {
        web.hang(&format!("https://h/{name}"));
    }
    let quick = ["a", "b", "c", "d"];
    for name in quick {
        web.put(&format!("https://h/{name}"), "", &["urn:1"]);
    }
    names.extend(quick);
    let mut feeds = watch(&web, &names).build().unwrap();
    let began = time::Instant::now();
    for look in 1..=6 {
        let mut found = vec![];
        for _ in quick {
            let (entry, name) = entry(&mut feeds).await;
            feeds.accept([&entry]).await.unwrap();
            found.push(name);
        }
        found.sort();
        let wanted = quick.map(|name| format!("{name} urn:{look}"));
        assert_eq!(found, wanted);
        // At the first look nobody knows which ones are slow; later looks are spread over the interval.
        let most = if look == 1 {
            QUICK_TURN * 4
        } else {
            INTERVAL * 3 / 2
        };
        let took = began.elapsed();
        assert!(
            took <= most + INTERVAL * 3 / 2 * (look - 1),
            "look {look}: {took:?}"
        );
        let ids: Vec<String> = (1..=look + 1).rev().map(|id| format!("urn:{id}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        for name in quick {
            web.put(&format!("https://h/{name}"), "", &ids);
        }
    }
}

/// Goal: feeds that hang, more of them than looks may wait, keep nobody from the next look.
#[tokio::test(start_paused = true)]
async fn thousands_of_feeds_that_hang_stop_nobody() {
    let web = Arc::new(Web::default());
    let slow: Vec<String> = (0..WAITING_MAX + 100).map(|n| format!("slow{n}")).collect();
    let mut names: Vec<&str> = vec!["a"];
    web.put("https://h/a", "", &["urn:1"]);
    for name in &slow {
        web.hang(&format!("https://h/{name}"));
        names.push(name);
    }
    let mut feeds = watch(&web, &names).build().unwrap();
    let mut ids: Vec<String> = vec!["urn:1".into()];
    // The first look at each of them takes its time, eight at a time.
    let first_round = QUICK_TURN * u32::try_from(slow.len() / 8 + 1).unwrap();
    let began = time::Instant::now();
    for look in 1..=8 {
        let found = loop {
            match feeds.next().await.unwrap() {
                WatchEvent::Entry(entry) => break entry,
                WatchEvent::Trouble { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        feeds.accept([&found]).await.unwrap();
        assert_eq!(found.delivery.id(), format!("urn:{look}"));
        let took = began.elapsed();
        assert!(
            took <= first_round + INTERVAL * 3 * look,
            "look {look}: {took:?}"
        );
        ids.insert(0, format!("urn:{}", look + 1));
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        web.put("https://h/a", "", &ids);
    }
}

/// Goal: a fault of a feed is told once, however often it is looked at, and a page of a feed is none of its entries lost.
#[tokio::test(start_paused = true)]
async fn a_fault_is_told_once() {
    let web = Arc::new(Web::default());
    let links = "<link rel='next' href='?page=2'/><link rel='index' href='http://[::1'/>";
    let mut ids = vec!["urn:1"];
    web.put("https://h/a", links, &ids);
    let watch = watch(&web, &["a"]).since(Since::Newest);
    let mut feeds = watch.build().unwrap();
    let mut told = vec![];
    for id in ["urn:2", "urn:3", "urn:4"] {
        let until = time::Instant::now() + INTERVAL * 2;
        while let Ok(next) = time::timeout_at(until, feeds.next()).await {
            match next.unwrap() {
                WatchEvent::Fault { fault, .. } => told.push(fault.to_string()),
                WatchEvent::Entry(entry) => feeds.accept([&entry]).await.unwrap(),
                other => panic!("{other:?}"),
            }
        }
        ids.insert(0, id);
        web.put("https://h/a", links, &ids);
    }
    told.sort();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("another page") && told[1].contains("\"index\" leads nowhere"));
}

/// A password is for the server alone.
#[tokio::test(start_paused = true)]
async fn a_password_is_neither_shown_nor_stored() {
    let folder = tempfile::tempdir().unwrap();
    let web = Arc::new(Web::default());
    web.put("https://h/plain", "", &["urn:1"]);
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(&web);
    let mut feeds = FeedWatcher::builder(["https://ann:secret@h/plain"])
        .transport(transport)
        .state(StateFolder::open(folder.path()).unwrap())
        .since(Since::Oldest)
        .build()
        .unwrap();
    let (found, _) = entry(&mut feeds).await;
    assert_eq!(&*found.feed, "https://h/plain");
    feeds.accept([&found]).await.unwrap();
    let asked = web.sent("authorization");
    assert_eq!(asked[0].1.as_deref(), Some("Basic YW5uOnNlY3JldA=="));
    let stored = fs::read_to_string(folder.path().join("watched.ndjson")).unwrap();
    assert!(!stored.contains("secret"), "{stored}");
    let wrong = FeedWatcher::builder(["https://ann:secret@h:nonsense/"]).build();
    let told = wrong.unwrap_err().to_string();
    assert!(!told.contains("secret"), "{told}");
}

/// Goal: `next`, `accept` and `save`, dropped at any of their awaits, lose no entry, hand none over twice, and delay none.
#[tokio::test(start_paused = true)]
async fn a_watcher_that_is_dropped_anywhere_goes_on() {
    let mut awaits = 0;
    loop {
        let (web, folder) = (Arc::new(Web::default()), tempfile::tempdir().unwrap());
        for feed in ["a", "b"] {
            web.put(&format!("https://h/{feed}"), "", &["urn:2", "urn:1"]);
        }
        let build = || {
            let state = StateFolder::open(folder.path()).unwrap();
            watch(&web, &["a", "b"]).state(state).build().unwrap()
        };
        let (began, mut feeds) = (time::Instant::now(), build());
        let (mut found, mut was_dropped) = (vec![], false);
        for look in 0..2 {
            while found.len() < 4 + 2 * look {
                match dropped!(awaits, was_dropped, feeds.next()).unwrap() {
                    WatchEvent::Entry(entry) => {
                        let feed = entry.feed.rsplit('/').next().unwrap();
                        found.push(format!("{feed} {}", entry.delivery.id()));
                        dropped!(awaits, was_dropped, feeds.accept([&entry])).unwrap();
                        dropped!(awaits, was_dropped, feeds.save()).unwrap();
                    }
                    other => panic!("{awaits}: {other:?}"),
                }
            }
            for feed in ["a", "b"] {
                web.put(
                    &format!("https://h/{feed}"),
                    "",
                    &["urn:3", "urn:2", "urn:1"],
                );
            }
        }
        found.sort();
        let all = [
            "a urn:1", "a urn:2", "a urn:3", "b urn:1", "b urn:2", "b urn:3",
        ];
        assert_eq!(found, all, "{awaits}");
        assert!(began.elapsed() <= INTERVAL * 3 / 2 + QUICK_TURN, "{awaits}");
        drop(feeds);
        let mut again = build();
        pass(&mut again, INTERVAL * 2).await;
        awaits += 1;
        if !was_dropped {
            break;
        }
    }
    assert!(awaits > 1, "{awaits}");
}
