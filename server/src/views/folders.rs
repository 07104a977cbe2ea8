//! Folders in which views keep their files.
//!
//! Pure, but for the lock that all writers of these files share.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};

/// Folders of a server. Clones share the lock.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Tree that any web server may serve.
    pub www: PathBuf,
    /// Tree of the closed feeds, which no web server may serve.
    pub closed: PathBuf,
    /// Facts about archived documents, for `recover`.
    pub sidecars: PathBuf,
    views: PathBuf,
    writing: Arc<Mutex<()>>,
}

impl Folders {
    /// Returns the folders below the data folder `data`, with the tree for web servers at `www` if given, else at
    /// `<data>/www`.
    pub fn new(data: &Path, www: Option<&Path>) -> Self {
        Self {
            www: www.map_or_else(|| data.join("www"), Path::to_path_buf),
            closed: data.join("closed"),
            sidecars: data.join("sidecars"),
            views: data.join("views"),
            writing: Arc::default(),
        }
    }

    /// Returns the folder of a view's own records, such as its cursor.
    pub fn of_view(&self, name: &str) -> PathBuf {
        self.views.join(name)
    }

    /// Returns the folders with a subfolder for each kind of files.
    pub fn trees(&self) -> [&Path; 3] {
        [&self.www, &self.closed, &self.views]
    }

    /// Waits until nobody else writes files of views: `rebuild` may run beside the followers.
    pub fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }
}
