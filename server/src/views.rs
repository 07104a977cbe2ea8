//! The views that a server has.
//!
//! Pure. Each view can be reached by its type, for callers that need this very view, and in a list,
//! for callers that treat all views alike.

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
    /// Updates of feeds; `None` if the server offers no SUP documents.
    pub sup: Option<Arc<Sup>>,
    /// Counts of entries by spans of time.
    pub rates: Arc<RatesView>,
    /// Counts of entries by feed, for tests only.
    #[cfg(test)]
    pub counts: Arc<counts::CountsView>,
}

impl FileViews {
    /// Returns the views of some folders. `sup_seconds` is the longest period of a SUP document
    /// that readers may ask for. Without that period, there is no view of updates.
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
        // Files of archived windows do not depend on the offered periods, so any period will do.
        Self::new(folders, Some(0))
    }

    /// Returns the views for upkeep beside a server. The view of rates is that of the server,
    /// because the server's follower must go on from the files that upkeep has made again.
    pub(crate) fn of_upkeep_beside(folders: &Folders, served: &Self) -> Self {
        Self {
            rates: Arc::clone(&served.rates),
            ..Self::of_upkeep(folders)
        }
    }

    /// Returns all these views. No follower runs them yet.
    pub fn all(&self) -> Views {
        Views::of(self.list_views())
    }

    fn list_views(&self) -> Vec<Arc<dyn View>> {
        // All fields are named here, so that the compiler finds a view that is not in the list.
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
    /// Feeds that are made of the entries of other feeds.
    pub timelines: Arc<Timelines>,
    /// Updates of timelines; `None` if the server offers no SUP documents.
    pub updates: Option<Arc<TimelineUpdates>>,
    /// Readers that wait for an entry.
    pub push: Arc<Push>,
}

impl ServedViews {
    /// Returns the views of some folders and timelines; `sup_seconds` is as for [`FileViews`].
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

    /// Returns all these views. No follower runs them yet.
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
