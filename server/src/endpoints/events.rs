//! Streams of events (`text/event-stream`) about a feed: its entries, or only its newest place.
//!
//! Shell: the log, timers, tasks. A stream that begins in the past reads the log, a stretch at a
//! time, up to the end. From then on the stream takes events that are made once for all readers. A
//! reader that falls behind reads the past again, or is cut off and comes back with the last id.
//! Streams end after some minutes: behind a proxy that keeps dead connections open, a client would
//! not notice the end of its stream otherwise.

use std::{
    collections::VecDeque,
    convert::Infallible,
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Either, StreamBody};
use hyper::{
    HeaderMap, Method, Response, StatusCode,
    body::Frame,
    header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue},
};
use simplefeed_core::{
    feed::{FeedKey, FeedName, Position},
    limits::{
        EVENTS_AHEAD_SECONDS, EVENTS_CATCHING_UP_MAX, EVENTS_COMMENT_SECONDS, EVENTS_SECONDS_MAX,
    },
    push::{BEGIN, END, EVENTS_TYPE, PlaceId, STATE, event},
};
use simplefeed_http::{
    AccessRules, ConnectionEnd,
    answers::{Answer, Body, plain, whole},
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Verb},
    problem::Problem,
    reply::{NO_STORE, for_sites},
};
use simplefeed_process::workers::idle;
use simplefeed_resource::Visibility;
use simplefeed_views::push::{Begin, Interest, News, Past, Push, Watching};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{
    Site, off_thread,
    shelf::{FeedSight, Shelf, seen, state_for},
    waits::WaitPlaces,
    waits::watch,
};

/// Path of the stream.
pub const PATH: &str = "/feeds/{feed}/events";
/// Row of the table of endpoints: a GET opens a stream.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[Endpoint {
    path: PATH,
    label: "events",
    query: Query::Named,
    methods: &[Verb {
        method: Method::GET,
        needs: Needs::Sight,
        handle: |site, exchange| Box::pin(open_stream(&site.events, exchange)),
    }],
}];

/// Maximum size, in KiB, of the past entries that all streams together have on the way to readers.
const PAST_KIB_MAX: usize = 256 * 1024;
/// Longest time for a reader to take a piece of the past.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for room for the past. After that time the stream ends, and the reader comes back.
const ROOM_WAIT: Duration = Duration::from_secs(10);
/// Pause, in milliseconds, before a reader that found no free place to wait comes back.
const LATER_MILLIS: u32 = 10_000;
/// Comment that shows a proxy, and the reader, that the stream lives.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// Handles for streams of events.
#[derive(Debug)]
pub struct EventParts {
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// Hubs of readers that wait.
    pub push: Arc<Push>,
    /// Places for readers that wait.
    pub parking: WaitPlaces,
    /// Bounds on streams that read the past.
    pub past: Arc<PastRoom>,
}

/// Bounds on streams that read the past.
#[derive(Debug)]
pub struct PastRoom {
    turns: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

impl Default for PastRoom {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(EVENTS_CATCHING_UP_MAX)),
            room: Arc::new(Semaphore::new(PAST_KIB_MAX)),
        }
    }
}

/// Content of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamContent {
    /// Each entry, as an event of its own.
    Entries,
    /// Only the id of the newest place, each time there is a newer one.
    None,
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Oldest,
    Newest,
    After(PlaceId),
}

/// Meaning of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamQuery {
    content: StreamContent,
    from: From,
}

/// Why a place does not fit a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misfit {
    Gap,
    HistoryChanged,
}

impl Misfit {
    /// Returns the event that tells the reader of the misfit, and that ends the stream for good.
    fn end_event(self) -> Bytes {
        let data = match self {
            Self::Gap => {
                r#"{"state":"gap","detail":"entries behind the place are not in the feed any more"}"#
            }
            Self::HistoryChanged => {
                r#"{"state":"history changed","detail":"the feed has another history than the place"}"#
            }
        };
        event(Some(STATE), END, data).into()
    }
}

/// Returns the meaning of a query, and the id in it that stands for `Last-Event-ID`.
fn parse_query(query: &str) -> Result<(StreamQuery, Option<&str>), Problem> {
    let wrong = || {
        Problem::malformed(
            "a stream is asked for with content=none, and with after= an event's id, or since=oldest or newest",
        )
    };
    let (mut content, mut since, mut after, mut last) = (None, None, None, None);
    // The query is compared as text: another spelling would be another URL for caches.
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("content", "none")) if content.is_none() => content = Some(StreamContent::None),
            Some(("since", "oldest")) if since.is_none() => since = Some(From::Oldest),
            Some(("since", "newest")) if since.is_none() => since = Some(From::Newest),
            Some(("after", id)) if after.is_none() => {
                after = Some(after_id(id).ok_or_else(wrong)?);
            }
            // Polyfills of `EventSource` cannot send the header field with the id.
            Some(("lastEventId", id)) if last.is_none() => last = Some(id),
            _ => return Err(wrong()),
        }
    }
    let wanted = StreamQuery {
        content: content.unwrap_or(StreamContent::Entries),
        from: after.or(since).unwrap_or(From::Newest),
    };
    Ok((wanted, last))
}

/// Returns where a stream begins if the reader names an id.
fn after_id(id: &str) -> Option<From> {
    if id == BEGIN {
        return Some(From::Oldest);
    }
    id.parse().ok().map(From::After)
}

/// Answers with a stream of events, or with 204 if the stream has ended for good.
async fn open_stream(parts: &EventParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let (mut wanted, in_query) = parse_query(exchange.query())?;
    let field = exchange.headers.get("last-event-id");
    let field = field.map(HeaderValue::as_bytes);
    match field.or(in_query.map(str::as_bytes)) {
        Some(id) if id == END.as_bytes() => {
            // The feed is looked up all the same, so that the answer reveals no closed feed.
            let seen = seen(&parts.shelf, &exchange).await?;
            let mut answer = plain(StatusCode::NO_CONTENT, "");
            answer.headers_mut().extend(seen.announcement);
            answer.headers_mut().extend(for_sites(seen.visibility));
            return Ok(Outcome::Answer(answer));
        }
        // A browser has no id yet before the first event.
        None | Some([]) => {}
        Some(id) => {
            let from = std::str::from_utf8(id).ok().and_then(after_id);
            let wrong = || Problem::malformed("Last-Event-ID is no id of an event");
            wanted.from = from.ok_or_else(wrong)?;
        }
    }
    let seen = seen(&parts.shelf, &exchange).await?;
    let Some(place) = parts.parking.place() else {
        // This is no error, because after an error a browser never comes back.
        let later = whole(format!("retry: {LATER_MILLIS}\n\n"));
        return Ok(Outcome::Answer(stream_answer(&seen, later)));
    };
    let interest = match wanted.content {
        StreamContent::Entries => Interest::Entries,
        StreamContent::None => Interest::Place,
    };
    let watching = watch((&parts.push, &parts.shelf), &exchange, seen.feed, interest).await?;
    let stream = Stream::new(parts, &exchange, &seen, watching, wanted, place);
    Ok(Outcome::Answer(stream_answer(&seen, body_of(stream))))
}

/// Returns a stream as the body of an answer.
fn body_of(stream: Stream) -> Body {
    // The pieces are fused below, because `unfold` must not be polled after its end.
    let pieces = stream::unfold(stream, |mut stream| async {
        let piece = stream.next_bytes().await?;
        Some((Ok::<_, io::Error>(Frame::data(piece)), stream))
    });
    Either::Right(StreamBody::new(pieces.fuse()).boxed_unsync())
}

/// Returns an answer that is a stream of events.
fn stream_answer(seen: &FeedSight, body: Body) -> Answer {
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENTS_TYPE));
    headers.insert(CACHE_CONTROL, NO_STORE);
    // Without this field, nginx would keep events back until a buffer is full.
    let name = HeaderName::from_static("x-accel-buffering");
    headers.insert(name, HeaderValue::from_static("no"));
    headers.extend(seen.announcement.clone());
    headers.extend(for_sites(seen.visibility));
    answer
}

/// Returns a random number below `most`; 0 if `most` is 0.
fn random_up_to(most: u64) -> u64 {
    // The random keys of a hasher are random enough to spread requests.
    RandomState::new().hash_one(()) % most.max(1)
}

/// Reader of a stream. The right to a closed feed may end during the stream.
#[derive(Debug)]
struct Holder {
    rules: Arc<AccessRules>,
    /// `Authorization` fields of the request, for later checks of the rights.
    headers: HeaderMap,
}

/// A stream on its way.
struct Stream {
    shelf: Arc<Shelf>,
    push: Arc<Push>,
    past: Arc<PastRoom>,
    name: FeedName,
    feed: FeedKey,
    content: StreamContent,
    watching: Watching,
    /// Where the stream begins; `None` once that place is found.
    from: Option<From>,
    /// Position of the next entry.
    at: Position,
    /// Base of the marks of entries from `at` on; `None` after events of the hub, which bring no
    /// base.
    begin: Option<Begin>,
    /// Id of the last event of a stream without content.
    told: Option<PlaceId>,
    ready: VecDeque<Bytes>,
    holder: Box<Holder>,
    is_private: bool,
    next_comment: Instant,
    ends: Instant,
    stopping: watch::Receiver<bool>,
    ending: ConnectionEnd,
    has_ended: bool,
    _place: OwnedSemaphorePermit,
}

/// Next step of a stream.
enum StreamStep {
    /// Sends the pieces that are ready.
    Send,
    /// Waits for the feed to change.
    Wait,
    End,
}

impl Stream {
    fn new(
        parts: &EventParts,
        exchange: &Exchange<'_>,
        seen: &FeedSight,
        watching: Watching,
        wanted: StreamQuery,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let now = Instant::now();
        let millis = EVENTS_SECONDS_MAX * 1_000;
        // Streams that began at the same time end at different times.
        let life = Duration::from_millis(millis - random_up_to(millis / 5));
        // The stream keeps only those fields of the request that later checks of the rights need.
        let token = exchange.headers.get_all(AUTHORIZATION).iter();
        let headers = token.map(|token| (AUTHORIZATION, token.clone())).collect();
        // This line is sent at once, so that a proxy passes on the head of the answer. The pauses
        // differ, so that not all readers come back at the same time.
        let hello = format!("retry: {}\n\n", 1_000 + random_up_to(2_000));
        Self {
            shelf: Arc::clone(&parts.shelf),
            push: Arc::clone(&parts.push),
            past: Arc::clone(&parts.past),
            name: exchange.params.feed().clone(),
            feed: seen.feed,
            content: wanted.content,
            watching,
            from: Some(wanted.from),
            at: Position(0),
            begin: None,
            told: None,
            ready: VecDeque::from([hello.into()]),
            holder: Box::new(Holder {
                rules: Arc::clone(exchange.rules),
                headers,
            }),
            is_private: seen.visibility == Visibility::Private,
            next_comment: now + Duration::from_secs(EVENTS_COMMENT_SECONDS),
            ends: now + life,
            stopping: exchange.ending.is_near.clone(),
            ending: exchange.ending.clone(),
            has_ended: false,
            _place: place,
        }
    }

    /// Returns the next bytes, once there are some; `None` at the end.
    async fn next_bytes(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            if self.has_ended {
                return None;
            }
            match self.next_step().await {
                Ok(StreamStep::Send) => {}
                Ok(StreamStep::Wait) => self.wait_for_change().await,
                // The head of the answer is sent already, so the stream can only end. A reader that
                // comes back gets the problem as an answer.
                Ok(StreamStep::End) | Err(_) => return None,
            }
        }
    }

    async fn next_step(&mut self) -> Result<StreamStep, Problem> {
        // The end is checked at each step: on a busy feed, there is something new at each step, and
        // the stream never waits.
        if Instant::now() >= self.ends || *self.stopping.borrow() {
            return Ok(StreamStep::End);
        }
        let news = self.watching.news();
        if let Some(from) = self.from {
            if self.is_private {
                self.look_at_rights().await?;
            }
            return self.find_place(from, news).await;
        }
        let step = match self.content {
            StreamContent::None => self.tell_place(news),
            StreamContent::Entries => self.tell_entries(news).await?,
        };
        // The check comes after the lookup, because the rights to a closed feed can change with
        // each commit. (A public feed never becomes closed.)
        if self.is_private && matches!(step, StreamStep::Send) {
            self.look_at_rights().await?;
        }
        Ok(step)
    }

    /// Sends the id of the newest place, unless that id was the last one sent.
    fn tell_place(&mut self, news: News) -> StreamStep {
        let Some(newest) = news.newest.filter(|_| self.told != news.newest) else {
            return StreamStep::Wait;
        };
        self.told = Some(newest);
        let told = event(None, &newest.to_string(), "");
        self.ready.push_back(told.into());
        StreamStep::Send
    }

    /// Sends the next entries, or waits if there are none.
    async fn tell_entries(&mut self, news: News) -> Result<StreamStep, Problem> {
        if self.at >= news.next() {
            return Ok(StreamStep::Wait);
        }
        let events = self.watching.at_hand(self.at);
        if events.is_empty() {
            return self.read_past().await;
        }
        let count = u64::try_from(events.len()).unwrap_or(0);
        self.at = Position(self.at.0 + count);
        // Events of the hub come without a base of marks. A later read of the past looks the base
        // up.
        self.begin = None;
        self.ready = events.into();
        Ok(StreamStep::Send)
    }

    /// Fails if the reader may no longer see the feed.
    async fn look_at_rights(&mut self) -> Result<(), Problem> {
        let Holder { rules, headers } = &*self.holder;
        let sight = || rules.now().sight(headers);
        let (_, visibility) = state_for(&self.shelf, &self.name, sight).await?;
        self.is_private = visibility == Visibility::Private;
        Ok(())
    }

    /// Finds the place to begin at.
    async fn find_place(&mut self, from: From, news: News) -> Result<StreamStep, Problem> {
        match from {
            From::Newest => {
                self.at = news.next();
                if self.content == StreamContent::Entries {
                    // This is an id without an event, so that a reader that comes back before the
                    // first event has a place.
                    let id = news
                        .newest
                        .map_or_else(|| BEGIN.into(), |newest| newest.to_string());
                    self.ready.push_back(format!("id: {id}\n\n").into());
                }
            }
            From::Oldest => self.at = Position(0),
            From::After(id) if id.position >= news.next() => return self.wait_for(id).await,
            From::After(id) => {
                let (push, documents, feed) = (
                    Arc::clone(&self.push),
                    Arc::clone(&self.shelf.documents),
                    self.feed,
                );
                // Only other places are looked up: the newest place is known, and an interrupted
                // reader often comes back with that place.
                if news.newest != Some(id) {
                    let Some(_turn) = self.take_turn().await else {
                        return Ok(StreamStep::End);
                    };
                    let look = move || Ok(push.behind(feed, id.position, &**documents.log())?);
                    match off_thread(look).await? {
                        None => return Ok(self.end_with(Misfit::Gap)),
                        Some(begin) if begin.mark() != id.mark => {
                            return Ok(self.end_with(Misfit::HistoryChanged));
                        }
                        Some(begin) => self.begin = Some(begin),
                    }
                }
                self.at = id.position.next();
                self.told = Some(id);
            }
        }
        self.from = None;
        Ok(StreamStep::Send)
    }

    /// Waits until the feed reaches a place. A reader can be ahead of the feed if another server
    /// has taken over.
    async fn wait_for(&mut self, id: PlaceId) -> Result<StreamStep, Problem> {
        let deadline = Instant::now() + Duration::from_secs(EVENTS_AHEAD_SECONDS);
        while self.watching.news().next() <= id.position {
            let is_over = tokio::select! {
                () = self.watching.changed() => false,
                () = sleep_until(deadline) => true,
                _ = self.stopping.wait_for(|stopping| *stopping) => return Ok(StreamStep::End),
            };
            if is_over {
                return Ok(self.end_with(Misfit::HistoryChanged));
            }
        }
        Ok(StreamStep::Send)
    }

    fn end_with(&mut self, misfit: Misfit) -> StreamStep {
        self.ready.push_back(misfit.end_event());
        self.has_ended = true;
        StreamStep::Send
    }

    /// Returns a turn to read the past; `None` once the stream is to end.
    async fn take_turn(&mut self) -> Option<OwnedSemaphorePermit> {
        let turns = Arc::clone(&self.past.turns);
        tokio::select! {
            turn = turns.acquire_owned() => turn.ok(),
            () = sleep_until(self.ends) => None,
            _ = self.stopping.wait_for(|stopping| *stopping) => None,
        }
    }

    /// Reads the next stretch of the past, and makes it ready to be sent.
    async fn read_past(&mut self) -> Result<StreamStep, Problem> {
        let Some(turn) = self.take_turn().await else {
            return Ok(StreamStep::End);
        };
        let (push, documents) = (Arc::clone(&self.push), Arc::clone(&self.shelf.documents));
        let (feed, at, begin) = (self.feed, self.at, self.begin);
        let past = off_thread(move || {
            let log = &**documents.log();
            let begin = match (begin, at.0.checked_sub(1)) {
                (Some(begin), _) => Some(begin),
                (None, Some(before)) => push.behind(feed, Position(before), log)?,
                (None, None) => push.beginning(feed, log)?,
            };
            match begin {
                Some(begin) => Ok(push.past(feed, at, &begin, log)?),
                None => Ok(Past::Gap),
            }
        })
        .await?;
        // The turn is only for reading, so a slow reader holds room, but no turn.
        drop(turn);
        let Past::Stretch(stretch) = past else {
            return Ok(self.end_with(Misfit::Gap));
        };
        let kib = u32::try_from(stretch.bytes.len().div_ceil(1024)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.past.room).acquire_many_owned(kib);
        let Ok(Ok(room)) = timeout(ROOM_WAIT, room).await else {
            return Ok(StreamStep::End);
        };
        (self.at, self.begin) = (stretch.next, Some(stretch.end));
        self.ready
            .push_back(self.hold_room(stretch.bytes.clone(), room));
        Ok(StreamStep::Send)
    }

    /// Returns bytes that hold room until the reader has taken them. A reader that takes too long
    /// is cut off. This reader can come back to the same place, and other readers get the room.
    fn hold_room(&self, bytes: Bytes, room: OwnedSemaphorePermit) -> Bytes {
        let (taken, is_taken) = oneshot::channel::<Infallible>();
        let ending = self.ending.clone();
        tokio::spawn(async move {
            if timeout(TAKEN_WITHIN, is_taken).await.is_err() {
                ending.cut();
            }
        });
        Bytes::from_owner(HeldBytes {
            bytes,
            _room: room,
            _taken: taken,
        })
    }

    /// Waits until the feed has changed or a comment is due; ends the stream when the stream's time
    /// is over.
    async fn wait_for_change(&mut self) {
        let timer = self.next_comment.min(self.ends);
        let is_due = idle(async {
            tokio::select! {
                () = self.watching.changed() => false,
                () = sleep_until(timer) => true,
                _ = self.stopping.wait_for(|stopping| *stopping) => {
                    self.has_ended = true;
                    false
                }
            }
        })
        .await;
        let now = Instant::now();
        if now >= self.ends {
            self.has_ended = true;
        } else if is_due {
            self.next_comment = now + Duration::from_secs(EVENTS_COMMENT_SECONDS);
            // On a quiet feed, rights are checked here, because there is no news that would lead to
            // a check.
            if self.is_private && self.look_at_rights().await.is_err() {
                self.has_ended = true;
            } else {
                self.ready.push_back(COMMENT);
            }
        }
    }
}

/// Bytes of the past, with their room.
struct HeldBytes {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
    /// The drop of this sender, together with the bytes, tells that the reader has taken the bytes.
    _taken: oneshot::Sender<Infallible>,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_understood_as_a_whole() {
        let both = |content, from| StreamQuery { content, from };
        let id = "7-00c0ffee00c0ffee".parse().unwrap();
        for (query, expected) in [
            ("", both(StreamContent::Entries, From::Newest)),
            ("content=none", both(StreamContent::None, From::Newest)),
            ("since=oldest", both(StreamContent::Entries, From::Oldest)),
            (
                "since=newest&after=7-00c0ffee00c0ffee&content=none",
                both(StreamContent::None, From::After(id)),
            ),
        ] {
            assert_eq!(parse_query(query).unwrap().0, expected, "{query}");
        }
        for wrong in [
            "content=all",
            "since=yesterday",
            "after=7",
            "after=end",
            "since=oldest&since=oldest",
            "limit=3",
        ] {
            assert!(parse_query(wrong).is_err(), "{wrong}");
        }
    }
}
