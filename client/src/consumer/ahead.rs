//! Documents on their way before the walk asks for them.
//!
//! Shell: tasks. The archive index tells which documents come next. Whether they do, and whether they
//! fit, the walk finds out as ever: an index that is wrong costs requests, never entries. Only what the
//! index lists is fetched early, since that is final, and only from the origin that the walk is at.

use std::{collections::VecDeque, pin::Pin, task};

use futures_util::FutureExt;
use simplefeed_core::{index::IndexBlock, reader::Document, replay::Ask};
use tokio::task::{JoinError, JoinHandle};
use url::Url;

use crate::fetch::{FetchError, Fetched, Fetcher};

/// Documents on their way, or waiting for the walk.
const DOCUMENTS_MAX: usize = 16;
/// The bytes that they may have together, as far as the documents read before tell.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Blocks of the index looked through for the place where the walk is: a million documents.
const BLOCKS_MAX: usize = 1_000;
/// How often in one round the index may turn out not to list where the walk is.
const MISSES_MAX: usize = 3;

/// Work in the background, which ends when nobody waits for it any more.
#[derive(Debug)]
pub(super) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        self.0.poll_unpin(context)
    }
}

/// A document on its way.
pub(super) type Flight = Task<Result<Fetched, FetchError>>;

/// What the index tells of the way.
#[derive(Debug, Default)]
struct Plan {
    /// Blocks still to come, the nearest last.
    later: Vec<Url>,
    /// The documents of the blocks read, in order, from where the walk is.
    documents: VecDeque<Url>,
}

/// What is fetched ahead of a walk.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    plan: Option<Plan>,
    /// The block that the walk itself has read last.
    learned: Option<Url>,
    loading: Option<Task<Option<Plan>>>,
    flights: VecDeque<(Url, Flight)>,
    /// The bytes of the largest document read.
    largest: usize,
    misses: usize,
}

impl Ahead {
    /// Takes a block that the walk read on its way back, newest first.
    pub(super) fn learn(&mut self, url: &Url, block: &IndexBlock) {
        let plan = self.plan.get_or_insert_default();
        plan.later.extend(self.learned.replace(url.clone()));
        plan.documents = documents_of(url, block);
    }

    /// Forgets everything: the walk is over.
    pub(super) fn clear(&mut self) {
        let largest = self.largest;
        *self = Self {
            largest,
            ..Self::default()
        };
    }

    /// Returns the document that the walk asks for, if it is on its way.
    pub(super) fn take(&mut self, ask: &Ask) -> Option<Flight> {
        let place = self.flights.iter().position(|(url, _)| *url == ask.url)?;
        let (_, flight) = self.flights.drain(..=place).next_back()?;
        Some(flight).filter(|_| !ask.again)
    }

    /// Sends for what comes after `read`, if the walk, which asks for the next document now, has a long
    /// way to go: `left` entries.
    pub(super) fn look(&mut self, fetcher: &Fetcher, ask: &Ask, read: &Document, left: u64) {
        self.largest = self.largest.max(read.bytes());
        let entries = u64::try_from(read.len()).unwrap_or(u64::MAX);
        if ask.again || left <= entries.saturating_mul(2) {
            return;
        }
        self.take_loaded();
        let window = BYTES_MAX / self.largest.max(1);
        let window = window.clamp(1, DOCUMENTS_MAX);
        self.align(ask);
        if self.loading.is_none() {
            self.load(fetcher, ask, read, window);
        }
        let documents = self.plan.iter().flat_map(|plan| &plan.documents);
        let next: Vec<Url> = documents
            .take(window)
            .filter(|url| url.origin() == ask.url.origin())
            .cloned()
            .collect();
        for url in next {
            if self.flights.iter().any(|(flying, _)| *flying == url) {
                continue;
            }
            let (fetcher, wanted) = (fetcher.clone(), url.clone());
            let flight = Task::new(async move {
                let known = simplefeed_core::replay::Validators::default();
                fetcher.document(&wanted, &known, false).await
            });
            self.flights.push_back((url, flight));
        }
    }

    /// Adds what was loaded meanwhile.
    fn take_loaded(&mut self) {
        let Some(loaded) = self.loading.as_mut().and_then(FutureExt::now_or_never) else {
            return;
        };
        self.loading = None;
        match (loaded, &mut self.plan) {
            (Ok(Some(more)), Some(plan)) => plan.documents.extend(more.documents),
            (Ok(Some(found)), None) => self.plan = Some(found),
            _ => {
                self.plan = None;
                self.misses += 1;
            }
        }
    }

    /// Drops what the walk has passed. A plan that does not know where the walk is, and does not load
    /// what may know, is dropped.
    fn align(&mut self, ask: &Ask) {
        let Some(plan) = &mut self.plan else { return };
        match plan.documents.iter().position(|url| *url == ask.url) {
            Some(place) => drop(plan.documents.drain(..place)),
            None if self.loading.is_some() => {}
            None => {
                plan.documents.clear();
                if plan.later.is_empty() {
                    self.plan = None;
                    self.misses += 1;
                }
            }
        }
    }

    /// Begins to load the next block of the plan, or a plan.
    fn load(&mut self, fetcher: &Fetcher, ask: &Ask, read: &Document, window: usize) {
        let (fetcher, feed) = (fetcher.clone(), read.feed.clone());
        self.loading = match &mut self.plan {
            Some(plan) if plan.documents.len() > 2 * window => None,
            Some(plan) => plan.later.pop().map(|url| {
                Task::new(async move {
                    let (url, block) = fetcher.index(&url).await.ok()?;
                    let documents = documents_of(&url, &block);
                    (block.feed == feed).then_some(Plan {
                        later: vec![],
                        documents,
                    })
                })
            }),
            None if self.misses >= MISSES_MAX => None,
            None => read.link("index").map(|url| {
                let (url, wanted) = (url.clone(), ask.url.clone());
                Task::new(find(fetcher, url, feed, wanted))
            }),
        };
    }
}

/// Looks through the index, newest block first, for the one that lists `wanted`.
async fn find(fetcher: Fetcher, mut url: Url, feed: String, wanted: Url) -> Option<Plan> {
    let mut later = vec![];
    while later.len() < BLOCKS_MAX {
        let (found, block) = fetcher.index(&url).await.ok()?;
        if block.feed != feed {
            return None;
        }
        let documents = documents_of(&found, &block);
        if documents.contains(&wanted) {
            return Some(Plan { later, documents });
        }
        later.push(url);
        url = found.join(block.prev.as_deref()?).ok()?;
    }
    None
}

fn documents_of(url: &Url, block: &IndexBlock) -> VecDeque<Url> {
    let documents = block.documents.iter();
    documents
        .filter_map(|document| url.join(&document.href).ok())
        .collect()
}

#[cfg(test)]
mod tests;
