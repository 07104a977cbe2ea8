//! Trees of archived files: which tree has the files of a feed, and how the files move when a
//! closed feed is opened.
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
        // A move removes the folder in the closed tree last. So while that folder is there, the
        // feed's files are read from it.
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

    /// Moves the files of a closed feed that was opened to the tree for web servers. As long as the
    /// closed tree has a folder of the feed, the files belong there. So an interrupted move is
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
        // An interrupted write may have left temporary files, which are not frozen.
        paths.retain(|path| !path.to_string_lossy().ends_with(TEMPORARY));
        // All files are checked before the first one is copied, so a refusal leaves both trees as
        // they are.
        let mut moving = vec![];
        for path in paths {
            let is_copied = self.may_move(&path, &open, feed)?;
            moving.push((path, is_copied));
        }
        for paths in moving.chunks(TOGETHER_MAX) {
            // The files are copied and not renamed, because the trees may be on two file systems.
            let mut files = FrozenFiles::of(&self.folders);
            for (path, is_copied) in paths {
                let to = open.join(path.file_name().unwrap_or_default());
                if *is_copied {
                    files.copy(path, &to)?;
                } else {
                    // An interrupted move may have put the file there without a sync.
                    files.leave(&to)?;
                }
            }
            files.put_in_place()?;
        }
        // A rename removes the folder in one step. No feed can have the new name.
        let gone = closed.with_file_name(format!("{feed}{TEMPORARY}!"));
        // An interrupted removal may have left this folder.
        let _leftover = fs::remove_dir_all(&gone);
        // The rename is made durable before the files are removed. A folder that a power cut brings
        // back decides where the feed's files are, so that folder must be whole.
        durable::rename(&closed, &gone).map_err(failed("remove", &closed))?;
        // Nothing reads the renamed folder, so an interrupted removal does no harm.
        fs::remove_dir_all(&gone).map_err(failed("remove", &gone))
    }

    /// Returns whether a file is to be copied to the open tree. Two files there are not
    /// overwritten: a right file, and another log's document under the older name of a renamed
    /// document.
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
            // The file belongs to an index block. If the file and the twin in the open tree agree,
            // they are as good as the copies to be moved.
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
            // After an interrupted move, both trees may have the document. If its copies in the
            // open tree agree, they are as good as the copies to be moved.
            None => {
                let is_it = |bytes: &Vec<u8>| name_in(bytes, feed) == Some(own.name);
                Ok(!(there.agree() && there.all().any(is_it)))
            }
            Some(_) if place != own.name => {
                // The document is moved under its newer name as well, so nothing is lost.
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
