//! Trees of archived files: which of them has the files of a feed, and how these move when the feed
//! is closed or opened.
//!
//! Shell: folders below the two trees.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    digest::Digest,
    feed::{DocumentName, FeedName},
    settings::Settings,
};
use simplefeed_log::{durable, held::visible_path};
use simplefeed_process::regular;
use tracing::warn;

use crate::documents::{
    manifest::TOGETHER_MAX,
    sidecar::Sidecar,
    stranger::{OwnDocument, document_of_another_log, name_in},
};
use crate::{
    error::ViewError,
    files::{FrozenFiles, TEMPORARY, failed},
};

use super::{Archive, copies::FileCopies, writing::replaced_by};

impl Archive {
    pub(super) fn folder(&self, feed: &FeedName) -> PathBuf {
        // A move removes the folder in the closed tree last, so that folder decides.
        let closed = folder_in(&self.folders.closed, feed);
        if closed.is_dir() {
            closed
        } else {
            folder_in(&self.folders.www, feed)
        }
    }

    /// Whether the tree that a web server may serve has a folder of the feed.
    pub fn shows(&self, feed: &FeedName) -> bool {
        folder_in(&self.folders.www, feed).exists()
    }

    /// Moves the files of a feed to the tree where they belong: a closed feed may have been opened.
    /// A folder in the closed tree decides that the feed is there, so a move that was broken off is
    /// begun again.
    #[expect(
        clippy::disallowed_methods,
        reason = "the next move of the feed removes what comes back"
    )]
    pub(super) fn choose_tree(&self, settings: &Settings) -> Result<(), ViewError> {
        let feed = &settings.name;
        let closed = folder_in(&self.folders.closed, feed);
        // The folder marks the feed as closed, even before its first document is archived.
        if settings.is_closed() {
            return self.create_folders(&[&closed]);
        }
        if !closed.is_dir() {
            return Ok(());
        }
        let open = folder_in(&self.folders.www, feed);
        self.create_folders(&[&open])?;
        let mut paths = vec![];
        for item in fs::read_dir(&closed).map_err(failed("read", &closed))? {
            let item = item.map_err(failed("read", &closed))?;
            let path = item.path();
            if !item.file_type().is_ok_and(|kind| kind.is_file()) {
                let why =
                    "it is no regular file; remove it, so that the feed's files can move to `www`";
                return Err(failed("move", &path)(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    why,
                )));
            }
            paths.push(path);
        }
        // An interrupted write left such a file, which is not frozen.
        paths.retain(|path| !path.to_string_lossy().ends_with(TEMPORARY));
        // All files are looked at before the first one is copied, so a refusal leaves both trees as
        // they are.
        let mut moving = vec![];
        for path in paths {
            let is_copied = self.may_move(&path, &open, feed)?;
            moving.push((path, is_copied));
        }
        for paths in moving.chunks(TOGETHER_MAX) {
            // A copy and not a rename: the trees may be on two file systems.
            let mut files = FrozenFiles::of(&self.folders);
            for (path, is_copied) in paths {
                let to = open.join(path.file_name().unwrap_or_default());
                if *is_copied {
                    files.copy(path, &to)?;
                } else {
                    // A move that was cut off may have put the file there without a sync.
                    files.leave(&to)?;
                }
            }
            files.put_in_place()?;
        }
        // One rename removes the folder at once. No feed can have this name.
        let gone = closed.with_file_name(format!("{feed}{TEMPORARY}!"));
        // A removal that was cut off may have left this folder.
        let _leftover = fs::remove_dir_all(&gone);
        // Before the files go: a folder that comes back decides the tree, and must be whole.
        durable::rename(&closed, &gone).map_err(failed("remove", &closed))?;
        // Nothing reads this folder behind the rename, so a removal that is cut off does no harm.
        fs::remove_dir_all(&gone).map_err(failed("remove", &gone))
    }

    /// Returns whether a file is to be copied to the open tree: not over a right one, nor over
    /// another log's second name.
    ///
    /// # Errors
    ///
    /// [`ViewError::Replaced`] if another log's document is there, or why a file cannot be read.
    pub(super) fn may_move(
        &self,
        from: &Path,
        to: &Path,
        feed: &FeedName,
    ) -> Result<bool, ViewError> {
        let file = from.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let name = file.strip_suffix(".gz").unwrap_or(file);
        let path = to.join(name);
        let there = FileCopies::found(&path)?;
        let Some(place) = DocumentName::of_file(name) else {
            // Of an index block, the copies there are not worse.
            return Ok(!there.agree());
        };
        let copies = FileCopies::found(&from.with_file_name(name))?;
        let named = copies.all().find_map(|bytes| name_in(bytes, feed));
        let own = OwnDocument {
            feed,
            name: named.unwrap_or(place),
            copies: copies.all().map(Vec::as_slice).collect(),
        };
        let told = self.told_digests(feed, own.name);
        let is_told = |bytes: &Vec<u8>| told.contains(&Some(Digest::of(bytes)));
        let same = if name == file {
            &there.file
        } else {
            &there.twin
        };
        let is_right = |bytes: &Vec<u8>| is_told(bytes) || own.has(Some(bytes));
        if same.as_ref().is_some_and(is_right) {
            return Ok(false);
        }
        let other = document_of_another_log(&path, &own).map_err(failed("read", &path))?;
        match other {
            // Both trees may have the document, where a move was cut off. The copies there are not
            // worse.
            None => {
                let is_it = |bytes: &Vec<u8>| name_in(bytes, feed) == Some(own.name);
                Ok(!(there.agree() && there.all().any(is_it)))
            }
            Some(_) if place != own.name => {
                // The document is moved under the newer name as well, so nothing is lost.
                warn!(path = %visible_path(&path).display(), "another document has this name, and is left alone");
                Ok(false)
            }
            Some(_) => Err(replaced_by(path)),
        }
    }

    /// Returns the digests of a document's bytes that the record and the sidecar tell.
    pub(super) fn told_digests(&self, feed: &FeedName, name: DocumentName) -> [Option<Digest>; 2] {
        let record = self.manifests.get(feed, name.number).ok().flatten();
        // The record of this number may be of a document of another epoch.
        let record = record.filter(|record| record.name == name);
        let sidecar = regular::read_document(self.sidecar_path(feed, name)).ok();
        let sidecar = sidecar.and_then(|bytes| Sidecar::of_bytes(&bytes));
        [
            record.map(|record| record.identity.digest),
            sidecar.map(|sidecar| sidecar.sha256),
        ]
    }
}

pub(super) fn folder_in(tree: &Path, feed: &FeedName) -> PathBuf {
    tree.join("feeds").join(feed.as_str())
}
