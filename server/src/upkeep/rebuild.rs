//! Makes the files of all views again from the log.
//!
//! Shell: the log and the views. Each file comes out the same, byte for byte, unless the file had
//! been damaged.

use simplefeed_views::{Views, error::ViewError, reports::Rebuilt, shown::ShownLog};

/// Makes all files of every view again.
///
/// # Errors
///
/// Returns why a record cannot be read, or why a file cannot be written.
pub fn rebuild(log: &dyn ShownLog, views: &Views) -> Result<Rebuilt, ViewError> {
    let mut rebuilt = Rebuilt::default();
    for (view, _) in views.iter() {
        view.rebuild(log, &mut rebuilt)?;
    }
    Ok(rebuilt)
}
