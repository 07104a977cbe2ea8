//! Documents on their way before the walk asks for them.
//!
//! Shell: tasks. The archive index lists the documents that come next. The walk checks these
//! documents like all others: a wrong index costs requests, never entries. Only documents that the
//! index lists are fetched early, because these are final, and only from the origin that the walk
//! is at.

use std::{collections::VecDeque, pin::Pin, task};

use futures_util::FutureExt;
use simplefeed_core::{
    index::IndexBlock,
    limits::{
        AHEAD_BLOCK_BYTES_MAX, AHEAD_BLOCKS_MAX, AHEAD_BYTES_MAX, AHEAD_DOCUMENTS_MAX,
        AHEAD_MISSES_MAX, AHEAD_URL_BYTES_MAX, INDEX_BLOCK_DOCUMENTS,
    },
    reader::Document,
    replay::{Ask, Validators},
};
use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
};
use url::Url;

use crate::fetch::{FetchError, FetchOutcome, Fetcher};

/// Background task. The drop of the handle aborts the task.
#[derive(Debug)]
pub(super) struct AheadTask<T>(JoinHandle<T>);

impl<T: Send + 'static> AheadTask<T> {
    fn new(runtime: &Handle, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(runtime.spawn(work))
    }
}

impl<T> Drop for AheadTask<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for AheadTask<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        self.0.poll_unpin(context)
    }
}

/// Request for a document, in the background.
pub(super) type Flight = AheadTask<Result<FetchOutcome, FetchError>>;

/// Next documents of the walk, as the archive index lists them.
#[derive(Debug, Default)]
struct AheadPlan {
    /// Blocks still to be loaded, the next one last.
    later: Vec<Url>,
    /// Documents of the blocks read, in order, from the walk's place on.
    documents: VecDeque<Url>,
}

/// Documents fetched ahead of a walk.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    plan: Option<AheadPlan>,
    /// URL of the block that the walk itself has read last.
    learned: Option<Url>,
    loading: Option<AheadTask<Option<AheadPlan>>>,
    flights: VecDeque<(Url, Flight)>,
    /// Number of times in a row that the index did not help.
    misses: usize,
}

impl Ahead {
    /// Takes over an index block that the walk has read on the way back. The walk reads the newest
    /// block first.
    pub(super) fn learn(&mut self, url: &Url, block: &IndexBlock) {
        let plan = self.plan.get_or_insert_default();
        plan.later.extend(self.learned.replace(url.clone()));
        plan.documents = documents_of(url, block);
    }

    /// Forgets everything: the walk is over.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Drops all requests in progress: the server needs a rest.
    pub(super) fn recall(&mut self) {
        self.flights.clear();
        self.loading = None;
    }

    /// Returns the request for the document that the walk asks for, if one is on the way.
    pub(super) fn take(&mut self, ask: &Ask) -> Option<Flight> {
        let place = self.flights.iter().position(|(url, _)| *url == ask.url)?;
        // Requests for earlier documents end here: the walk has passed them.
        let (_, flight) = self.flights.drain(..=place).next_back()?;
        // A repeated request must go past caches, and the early request did not.
        Some(flight).filter(|_| !ask.again)
    }

    /// Starts requests for the documents after `read`, if the walk has a long way to go. `left` is
    /// the number of entries on that way. `ask` is the walk's own next request. Outside of a tokio
    /// runtime nothing starts.
    pub(super) fn look(&mut self, fetcher: &Fetcher, ask: &Ask, read: &Document, left: u64) {
        // This assumes that the next documents have as many entries as this one.
        let documents_left = usize::try_from(left).unwrap_or(usize::MAX) / read.len().max(1);
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        // So near the end, a request for the index saves next to nothing.
        if ask.again || documents_left <= 2 {
            return;
        }
        self.take_loaded();
        self.align_with(ask);
        if self.loading.is_none() {
            self.load_next(&runtime, fetcher, ask, read);
        }
        // If documents are large, few are requested at a time, so that together they stay within
        // the bound.
        let window = (AHEAD_BYTES_MAX / read.bytes().max(1)).clamp(1, AHEAD_DOCUMENTS_MAX);
        // A document that is much larger than this one fails here, and the walk fetches the
        // document later.
        let fetcher = fetcher.with_bytes_max(2 * AHEAD_BYTES_MAX / window);
        let documents = self.plan.iter().flat_map(|plan| &plan.documents);
        let next: Vec<Url> = documents
            .take(window.min(documents_left))
            .cloned()
            .collect();
        for url in next {
            if self.flights.iter().any(|(flying, _)| *flying == url) {
                continue;
            }
            let (fetcher, wanted) = (fetcher.clone(), url.clone());
            let flight = AheadTask::new(&runtime, async move {
                let known = Validators::default();
                fetcher.document(&wanted, &known, false).await
            });
            self.flights.push_back((url, flight));
        }
    }

    /// Adds a plan or block that has finished loading.
    fn take_loaded(&mut self) {
        let Some(loaded) = self.loading.as_mut().and_then(FutureExt::now_or_never) else {
            return;
        };
        self.loading = None;
        match (loaded, &mut self.plan) {
            (Ok(Some(more)), Some(plan)) => plan.documents.extend(more.documents),
            (Ok(Some(found)), None) => {
                self.plan = Some(found);
                self.misses = 0;
            }
            // A failure is no error of the walk, which needs no index.
            _ => {
                self.plan = None;
                self.misses += 1;
            }
        }
    }

    /// Drops the documents that the walk has passed. A plan without the document that the walk is
    /// at is dropped, unless more of the plan is to come.
    fn align_with(&mut self, ask: &Ask) {
        let Some(plan) = &mut self.plan else { return };
        if let Some(place) = plan.documents.iter().position(|url| *url == ask.url) {
            plan.documents.drain(..place);
            return;
        }
        plan.documents.clear();
        if self.loading.is_none() && plan.later.is_empty() {
            self.plan = None;
            self.misses += 1;
        }
    }

    /// Begins to load the next block of the plan or, without a plan, begins to search for one.
    fn load_next(&mut self, runtime: &Handle, fetcher: &Fetcher, ask: &Ask, read: &Document) {
        let fetcher = fetcher.with_bytes_max(AHEAD_BLOCK_BYTES_MAX);
        let looking = Looking {
            fetcher,
            feed: read.feed.clone(),
            wanted: ask.url.clone(),
        };
        self.loading = match &mut self.plan {
            // The plan has enough documents for now: the next block is loaded when these are nearly
            // used up.
            Some(plan) if plan.documents.len() > 2 * AHEAD_DOCUMENTS_MAX => None,
            Some(plan) => plan.later.pop().map(|url| {
                AheadTask::new(runtime, async move {
                    let (_, documents) = looking.block_of(&url).await?;
                    Some(AheadPlan {
                        later: vec![],
                        documents,
                    })
                })
            }),
            // An index that keeps missing costs requests and saves none.
            None if self.misses >= AHEAD_MISSES_MAX => None,
            None => {
                let index = read.link("index").cloned();
                index.map(|url| AheadTask::new(runtime, looking.find_plan(url)))
            }
        };
    }
}

/// Search of the archive index.
struct Looking {
    fetcher: Fetcher,
    feed: String,
    /// The document that the walk is at.
    wanted: Url,
}

impl Looking {
    /// Searches the index, newest block first, for the block that lists the wanted document.
    async fn find_plan(self, mut url: Url) -> Option<AheadPlan> {
        let mut later = vec![];
        // The index may be endless or a circle.
        while later.len() < AHEAD_BLOCKS_MAX && !later.contains(&url) {
            let (prev, documents) = self.block_of(&url).await?;
            if documents.contains(&self.wanted) {
                return Some(AheadPlan { later, documents });
            }
            later.push(url);
            url = prev?;
        }
        None
    }

    /// Fetches a block. Returns the URL of the block before, and the documents in the block's list.
    async fn block_of(&self, url: &Url) -> Option<(Option<Url>, VecDeque<Url>)> {
        if url.origin() != self.wanted.origin() {
            return None;
        }
        let (url, block) = self.fetcher.index(url).await.ok()?;
        // The documents of another feed are not on this walk.
        if block.feed != self.feed {
            return None;
        }
        let prev = block.prev.as_deref().and_then(|prev| url.join(prev).ok());
        Some((prev, documents_of(&url, &block)))
    }
}

/// Returns the documents that a block lists at its own origin. A list longer than any block of a
/// Simplefeed server is cut off.
fn documents_of(url: &Url, block: &IndexBlock) -> VecDeque<Url> {
    let most = usize::try_from(INDEX_BLOCK_DOCUMENTS).unwrap_or(usize::MAX);
    let documents = block.documents.iter().take(most);
    let urls = documents.filter_map(|document| url.join(&document.href).ok());
    urls.filter(|document| {
        document.origin() == url.origin() && document.as_str().len() <= AHEAD_URL_BYTES_MAX
    })
    .collect()
}

#[cfg(test)]
mod tests;
