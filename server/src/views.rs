//! The views that a server has.
//!
//! Pure: a list.

use std::sync::Arc;

use simplefeed_views::{
    View, Views, documents::archive::Archive, folders::Folders, rates::Rates, sup::Sup,
};

#[cfg(test)]
pub mod counts;

/// Returns all views of some folders. Without `sup_seconds`, the longest period of a SUP document that readers may ask
/// for, nothing follows the updates of feeds.
pub fn all(folders: &Folders, sup_seconds: Option<u32>) -> Views {
    let mut views: Vec<Arc<dyn View>> = vec![];
    views.push(Arc::new(Archive::new(folders)));
    if let Some(longest) = sup_seconds {
        views.push(Arc::new(Sup::new(folders, longest)));
    }
    views.push(Arc::new(Rates::new(folders)));
    #[cfg(test)]
    views.push(Arc::new(counts::Counts::new(folders)));
    Views::of(views)
}

/// Returns all views, for upkeep.
pub fn of_upkeep(folders: &Folders) -> Views {
    // Archived files do not depend on the periods offered.
    all(folders, Some(0))
}

/// Returns all views for upkeep beside a server: with its own rates, since its follower goes on from what is made again.
pub fn of_upkeep_beside(folders: &Folders, served: &Views) -> Views {
    let views = of_upkeep(folders);
    match served.get::<Rates>() {
        Some(rates) => views.replacing(rates),
        None => views,
    }
}
