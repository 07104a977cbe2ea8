//! The views that a server has.
//!
//! Pure. Each view stands by its type, for callers that ask this view, and all views stand in a
//! list, for callers that treat all alike.

use std::sync::Arc;

use simplefeed_views::{
    View, Views,
    documents::archive::Archive,
    folders::Folders,
    push::Push,
    rates::RatesView,
    sup::{Sup, updates::TimelineUpdates},
    timelines::{Timelines, following::TimelinesView},
};

#[cfg(test)]
pub mod counts;

/// Views with files, which upkeep looks after.
#[derive(Clone, Debug)]
pub struct FileViews {
    /// Archived documents of feeds and timelines.
    pub archive: Arc<Archive>,
    /// Updates of feeds; `None` if nothing follows them.
    pub sup: Option<Arc<Sup>>,
    /// Counts of entries by spans of time.
    pub rates: Arc<RatesView>,
    /// Commits in a file.
    #[cfg(test)]
    pub counts: Arc<counts::CountsView>,
}

impl FileViews {
    /// Returns the views of some folders. Without `sup_seconds`, the longest period of a SUP
    /// document that readers may ask for, nothing follows the updates of feeds.
    fn new(folders: &Folders, sup_seconds: Option<u32>) -> Self {
        Self {
            archive: Arc::new(Archive::new(folders)),
            sup: sup_seconds.map(|longest| Arc::new(Sup::new(folders, longest))),
            rates: Arc::new(RatesView::new(folders)),
            #[cfg(test)]
            counts: Arc::new(counts::CountsView::new(folders)),
        }
    }

    /// Returns the views of some folders, for upkeep.
    pub fn of_upkeep(folders: &Folders) -> Self {
        // Archived files do not depend on the periods offered.
        Self::new(folders, Some(0))
    }

    /// Returns the views for upkeep beside a server. The rates are those of the server, because the
    /// server's follower goes on from the files that are made again.
    pub(crate) fn of_upkeep_beside(folders: &Folders, served: &Self) -> Self {
        Self {
            rates: Arc::clone(&served.rates),
            ..Self::of_upkeep(folders)
        }
    }

    /// Returns all of them. Nothing follows them yet.
    pub fn all(&self) -> Views {
        Views::of(self.list_views())
    }

    fn list_views(&self) -> Vec<Arc<dyn View>> {
        // By name, so that the compiler finds a view that is not in the list.
        let Self {
            archive,
            sup,
            rates,
            #[cfg(test)]
            counts,
        } = self;
        let mut views: Vec<Arc<dyn View>> = vec![];
        views.push(Arc::<Archive>::clone(archive));
        if let Some(sup) = sup {
            views.push(Arc::<Sup>::clone(sup));
        }
        views.push(Arc::<RatesView>::clone(rates));
        #[cfg(test)]
        views.push(Arc::<counts::CountsView>::clone(counts));
        views
    }
}

/// Views of a running server.
#[derive(Clone, Debug)]
pub struct ServedViews {
    /// The views with files.
    pub files: FileViews,
    /// Feeds that are made of others.
    pub timelines: Arc<Timelines>,
    /// Updates of timelines; `None` if nothing follows them.
    pub updates: Option<Arc<TimelineUpdates>>,
    /// Readers that wait for an entry.
    pub push: Arc<Push>,
}

impl ServedViews {
    /// Returns the views of some folders and timelines; `sup_seconds` is as for those with files.
    pub(crate) fn new(
        folders: &Folders,
        timelines: Arc<Timelines>,
        sup_seconds: Option<u32>,
    ) -> Self {
        Self {
            files: FileViews::new(folders, sup_seconds),
            timelines,
            updates: sup_seconds.map(|longest| Arc::new(TimelineUpdates::new(longest))),
            push: Arc::default(),
        }
    }

    /// Returns all of them. Nothing follows them yet.
    pub(crate) fn all(&self) -> Views {
        let Self {
            files,
            timelines,
            updates,
            push,
        } = self;
        let mut views = files.list_views();
        views.push(Arc::new(TimelinesView(Arc::clone(timelines))));
        if let Some(updates) = updates {
            views.push(Arc::<TimelineUpdates>::clone(updates));
        }
        views.push(Arc::<Push>::clone(push));
        Views::of(views)
    }
}
