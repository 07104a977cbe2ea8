//! Writes the tree of documents as static files.
//!
//! Shell: reads the log and the archive, writes a folder. Links are relative, so the tree works
//! wherever it is put. Some of its files will be other files in the next export, so an nginx include
//! names those that are final; nothing else may be called immutable.

use std::{
    collections::HashSet,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use simplefeed_core::{
    feed::{DocumentName, DocumentNumber, FeedName, Numbered, Position},
    header::{INDEX, RECENT},
    limits::INDEX_BLOCK_DOCUMENTS,
    plan::{FeedHead, Opening},
};

use crate::{
    log::Series,
    views::{
        archive_files::Archive,
        documents::{Address, Coding, Documents, Resource},
        error::ArchiveError,
        index,
    },
};

/// The name of the nginx include.
pub const INCLUDE: &str = "simplefeed-lifetimes.conf";

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A document cannot be read.
    #[error("a document cannot be read")]
    Archive(#[from] ArchiveError),
    /// A file cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// File that cannot be written.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Writes all documents of the feeds that are not closed below `to`, with `entries` also every entry on
/// its own. Returns the number of files.
///
/// # Errors
///
/// See [`ExportError`].
pub fn export(
    log: &Arc<dyn Series>,
    archive: &Archive,
    to: &Path,
    entries: bool,
) -> Result<u64, ExportError> {
    let documents = Documents::new(Arc::clone(log), archive.clone());
    let mut export = Export {
        documents,
        to,
        files: 0,
        frozen: vec![],
        written: HashSet::new(),
    };
    let mut after: Option<FeedName> = None;
    loop {
        // In steps, because a server may have a million feeds.
        let feeds = log
            .feeds(after.as_ref(), 1_000)
            .map_err(ArchiveError::from)?;
        let Some((last, _)) = feeds.last() else { break };
        after = Some(last.clone());
        for (name, head) in &feeds {
            export.feed(name, head, archive, entries)?;
        }
    }
    // The include comes last: it names only files that are in their place.
    let include = include(&export.frozen);
    export.write(INCLUDE, include.as_bytes())?;
    Ok(export.files)
}

struct Export<'a> {
    documents: Documents,
    to: &'a Path,
    files: u64,
    frozen: Vec<String>,
    /// The files of the feed being written.
    written: HashSet<String>,
}

impl Export<'_> {
    fn feed(
        &mut self,
        feed: &FeedName,
        head: &FeedHead,
        archive: &Archive,
        entries: bool,
    ) -> Result<(), ExportError> {
        let snapshot = self.documents.snapshot(feed)?;
        // An exported tree asks nobody for a token, so closed feeds stay out.
        if snapshot.is_none_or(|snapshot| snapshot.settings.is_closed()) {
            return Ok(());
        }
        let archived = archive.manifests.count(feed).map_err(ArchiveError::from)?;
        for number in 1..head.open.opening.name.number.get() {
            let Some(number) = DocumentNumber::new(number) else {
                continue;
            };
            let opening = self
                .documents
                .log()
                .opening(head.feed, number)
                .map_err(ArchiveError::from)?;
            if let Some(opening) = opening {
                self.document(feed, &opening)?;
            }
        }
        self.document(feed, &head.open.opening)?;
        self.resource(feed, RECENT, &Address::Recent)?;
        self.resource(feed, INDEX, &Address::Index)?;
        // The division leaves out the documents of the growing block, which `INDEX` has.
        for block in 1..=archived / INDEX_BLOCK_DOCUMENTS {
            let id = self
                .documents
                .snapshot(feed)?
                .map(|state| state.settings.id.clone());
            let Some(id) = id else { continue };
            let found = index::closed_block(&archive.manifests, feed, &id, block)
                .map_err(ArchiveError::from)?;
            if let Some(found) = found {
                let numbered = index::block_of_name(&found.name);
                let numbered = numbered.expect("a block has the name of a block");
                self.resource(feed, &found.name, &Address::IndexBlock(numbered))?;
            }
        }
        if entries {
            self.entries(feed, head)?;
        }
        self.remove_others(feed)?;
        self.written.clear();
        Ok(())
    }

    /// Writes a document, also under the name that its predecessor links to.
    fn document(&mut self, feed: &FeedName, opening: &Opening) -> Result<(), ExportError> {
        let (name, linked) = (opening.name, opening.linked);
        self.resource(feed, &name.to_string(), &Address::Document(name))?;
        if linked == name {
            return Ok(());
        }
        let Some(resource) = self.documents.resource(feed, &Address::Document(name))? else {
            return Ok(());
        };
        // A server redirects from this name, so its file is never called final.
        self.files_of(&format!("feeds/{feed}/{linked}"), &resource)
    }

    fn entries(&mut self, feed: &FeedName, head: &FeedHead) -> Result<(), ExportError> {
        for at in 0..head.next.0 {
            let entry = self
                .documents
                .log()
                .entries(head.feed, Position(at)..Position(at + 1));
            let entry = entry.map_err(ArchiveError::from)?.pop();
            // A recovered log may lack positions.
            let Some(entry) = entry else { continue };
            let numbered = Numbered {
                number: at,
                epoch: entry.document.epoch,
            };
            self.resource(
                feed,
                &format!("entries/{numbered}.atom"),
                &Address::Entry(numbered),
            )?;
        }
        Ok(())
    }

    fn resource(
        &mut self,
        feed: &FeedName,
        name: &str,
        address: &Address,
    ) -> Result<(), ExportError> {
        let Some(resource) = self.documents.resource(feed, address)? else {
            return Ok(());
        };
        let path = format!("feeds/{feed}/{name}");
        self.files_of(&path, &resource)?;
        // Only these may be called immutable: the bytes of all others may change.
        if resource.frozen {
            self.frozen.push(path);
        }
        Ok(())
    }

    fn files_of(&mut self, path: &str, resource: &Resource) -> Result<(), ExportError> {
        for (coding, suffix) in [(Coding::Identity, ""), (Coding::Gzip, ".gz")] {
            let body = self.documents.body(resource, coding)?;
            self.write(&format!("{path}{suffix}"), &body.bytes)?;
        }
        Ok(())
    }

    /// Removes documents of a feed that an earlier export of another history has left: they would lead
    /// into it.
    fn remove_others(&self, feed: &FeedName) -> Result<(), ExportError> {
        let folder = self.to.join("feeds").join(feed.as_str());
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ExportError::Write { path, source }
        };
        for item in fs::read_dir(&folder).map_err(failed(&folder))? {
            let path = item.map_err(failed(&folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let plain = name.strip_suffix(".gz").unwrap_or(&name);
            // Files with other names are not from an export and stay.
            let ours =
                DocumentName::of_file(plain).is_some() || index::block_of_name(plain).is_some();
            if ours && !self.written.contains(&format!("feeds/{feed}/{name}")) {
                fs::remove_file(&path).map_err(failed(&path))?;
            }
        }
        Ok(())
    }

    /// Writes a file under a temporary name first: the tree may be served meanwhile. Unchanged files
    /// are left alone, so that a web server's validators stay.
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), ExportError> {
        let path = self.to.join(name);
        self.files += 1;
        self.written.insert(name.into());
        if fs::read(&path).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(self.to);
        // In the same folder, so that the rename replaces the file at once.
        let temporary = self.to.join(format!("{name}.new"));
        let written = fs::create_dir_all(parent)
            .and_then(|()| fs::write(&temporary, bytes))
            .and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|source| ExportError::Write { path, source })
    }
}

/// Returns an nginx include, for the `http` block, that sets `$simplefeed_cache_control`.
///
/// The include names the final files; all others may change, now or with the next export.
fn include(frozen: &[String]) -> String {
    let mut text = String::from(
        "# Lifetimes of the exported files. Include this in the http block, reload nginx after each\n\
         # export, and put into the location:\n\
         #   gzip_static on;\n\
         #   types { application/atom+xml atom; application/json json; }\n\
         #   add_header Cache-Control $simplefeed_cache_control;\n\
         # Served below a path, or with very many documents: adapt the names, and raise\n\
         # map_hash_max_size and map_hash_bucket_size.\n\
         map $uri $simplefeed_cache_control {\n    \
         default \"public, max-age=1, stale-if-error=86400\";\n",
    );
    for path in frozen {
        writeln!(
            text,
            "    \"/{path}\" \"public, max-age=31536000, immutable\";"
        )
        .expect("writing to memory does not fail");
    }
    text.push_str("}\n");
    text
}
