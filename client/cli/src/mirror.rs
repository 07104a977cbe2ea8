//! `mirror`: a static copy of a feed, byte for byte, that any web server can publish.
//!
//! Shell: the network and a folder. At every instant, a consumer of the copy, or the next run after
//! a crash, finds a complete state of the feed. For this, a file appears once the file is complete
//! and checked: the open document before the documents that link to it, newer archives before older
//! ones, and the recent document last. An archive that the folder already has is fetched again only
//! if the copy has no positions, does not fit the next newer document, or lacks the digest in the
//! index.

use std::{
    collections::HashSet,
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context as _, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use simplefeed_client::{
    fetch::{FetchError, Fetcher, document_of, successful},
    state::StateError,
    transport::Answer,
};
use simplefeed_core::{
    digest::Digest,
    feed::Position,
    index::IndexBlock,
    reader::{Document, FeedFault},
    replay::{WalkError, is_same_feed},
};
use url::Url;

use crate::{exit, exit::Usage, lint::leads_the_wrong_way, say, source::SourceArgs};

/// File of the memory between runs.
const MEMORY: &str = ".mirror.json";

/// File that a running mirror locks. Every mirror has the file from the beginning, so the file also
/// marks a folder as a mirror.
const LOCK: &str = ".mirror.lock";

/// Attempts to copy the newest documents while the feed grows.
const LOOKS: u32 = 5;

/// Keep a static copy of a feed, byte for byte
#[derive(Args, Debug)]
pub(crate) struct MirrorArgs {
    /// URL of the feed, or of any of its documents
    url: Url,
    /// Folder of the copy; it is made if it is not there
    folder: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
}

pub(crate) async fn mirror(args: MirrorArgs) -> anyhow::Result<u8> {
    create_folder(&args.folder).with_context(|| format!("cannot use {}", args.folder.display()))?;
    check_folder(&args.folder)?;
    let _lock = lock_folder(&args.folder)?;
    let mut mirror = Mirror {
        fetcher: args.source.fetcher(&args.url)?,
        folder: args.folder,
        documents_max: args.source.documents_max(),
        base: None,
        older: "prev-archive",
        written: 0,
    };
    mirror.sync_folder(&args.url).await?;
    say::note(&format!(
        "{} new.",
        say::count(mirror.written, "file is", "files are")
    ));
    Ok(exit::OK)
}

/// State between runs, in the file [`MEMORY`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MirrorMemory {
    /// Id of the feed: a folder holds one feed only.
    feed: String,
    /// Newest archive of the last finished run; the folder has all older ones, too.
    complete: Option<Url>,
}

/// A fetched file: the last URL of the redirects, and the server's answer.
struct FetchedFile {
    url: Url,
    answer: Answer,
}

struct Mirror {
    fetcher: Fetcher,
    folder: PathBuf,
    documents_max: usize,
    /// URL of the server's folder, of which the folder here is the copy.
    base: Option<Url>,
    /// The relation of the links to older documents.
    older: &'static str,
    written: u64,
}

impl Mirror {
    async fn sync_folder(&mut self, url: &Url) -> anyhow::Result<()> {
        // Each attempt begins anew, because the feed may have grown between two requests.
        for _ in 0..LOOKS {
            let (recent, document) = self.fetch_recent(url).await?;
            self.base = Some(recent.url.join(".")?);
            // Some servers call the link to older documents `next-archive`. Without this check,
            // their feeds would seem to have no archive.
            if leads_the_wrong_way(&document) {
                self.older = "next-archive";
            }
            for fault in document.faults(&recent.url) {
                // A copy of one page would pass for a copy of the whole feed.
                if matches!(fault, FeedFault::Paged { .. }) {
                    return Err(walk_failure(WalkError::Paged { url: recent.url }));
                }
                say::warning(&format!("the feed has a fault: {fault}"));
            }
            // Before any write: another feed, or an older state of this feed, must not change the
            // folder.
            self.check_against_copy(&recent, &document)?;
            // Before the archives, which link to the open document.
            if let Some(open) = self.open_document(&document).await? {
                self.keep_file(&open)?;
            } else if document.link("via").is_some() && document.history.is_some() {
                // The feed has grown since the recent document was fetched.
                continue;
            }
            let newest = self.copy_archives(&recent.url, &document).await?;
            self.copy_index(&document).await?;
            // Last: the recent document makes all the files above visible to consumers of the copy.
            self.keep_file(&recent)?;
            // After everything else: after a crash before this line, the next run only checks more
            // files again.
            let memory = MirrorMemory {
                feed: document.feed,
                complete: newest,
            };
            return self.write_file(
                &self.folder.join(MEMORY),
                &serde_json::to_vec(&memory)?,
                None,
            );
        }
        bail!("the feed grows faster than it can be copied");
    }

    /// Fetches the recent document.
    async fn fetch_recent(&self, url: &Url) -> anyhow::Result<(FetchedFile, Document)> {
        let fetched = self.fetch_file(url).await?;
        let document = read_document(&fetched)?;
        // In a Simplefeed feed, only the recent document has `via`: with `via`, the recent document
        // is found already.
        let current = match document.link("via") {
            None => link_target(&document, "current", &fetched.url)?,
            Some(_) => None,
        };
        match current.filter(|current| *current != fetched.url) {
            Some(current) => {
                let fetched = self.fetch_file(&current).await?;
                let document = read_document(&fetched)?;
                Ok((fetched, document))
            }
            None => Ok((fetched, document)),
        }
    }

    /// Checks that the recent document belongs to the feed of the copy, and is not older than the
    /// copy.
    fn check_against_copy(&self, recent: &FetchedFile, document: &Document) -> anyhow::Result<()> {
        if let Some(memory) = self.read_memory()?
            && !is_same_feed(&memory.feed, document)
        {
            return Err(walk_failure(WalkError::AnotherFeed {
                url: recent.url.clone(),
                expected: memory.feed,
                found: document.feed.clone(),
            }));
        }
        let path = self.path_of(&recent.url)?;
        let Some(before) = copied_document(&path, &recent.url)? else {
            return Ok(());
        };
        let (now, before) = (end_of(document), end_of(&before));
        match now.zip(before) {
            Some((now, before)) if now < before => {
                let url = recent.url.clone();
                Err(walk_failure(WalkError::Stale { url }))
            }
            _ => Ok(()),
        }
    }

    /// Fetches the open document at the permanent URL. Returns `None` if the feed names no
    /// permanent URL, or if the document there is not the recent one, for instance because the feed
    /// has grown.
    async fn open_document(&self, recent: &Document) -> anyhow::Result<Option<FetchedFile>> {
        let Some(permanent) = recent.link("via") else {
            return Ok(None);
        };
        // Without positions, the two documents have no end that could be compared.
        if recent.history.is_none() {
            return Ok(self.foreign_open_document(permanent, recent).await);
        }
        let fetched = self.fetch_file(permanent).await?;
        let document = read_document(&fetched)?;
        let same = document.link("next-archive").is_none() && end_of(&document) == end_of(recent);
        Ok(same.then_some(fetched))
    }

    /// Fetches the target of `via` in a foreign feed, which may be anything. Returns the target if
    /// it is a document with the entries of the recent one, because archives may link there.
    async fn foreign_open_document(
        &self,
        permanent: &Url,
        recent: &Document,
    ) -> Option<FetchedFile> {
        // An error is no fault here: the link may have another purpose.
        self.path_of(permanent).ok()?;
        let fetched = self.fetch_file(permanent).await.ok()?;
        let document = read_document(&fetched).ok()?;
        let newest = |document: &Document| Some(document.entry(0)?.id.to_owned());
        let same = document.len() == recent.len() && newest(&document) == newest(recent);
        same.then_some(fetched)
    }

    /// Copies the archives, newest first, down to those that were copied before. Returns the URL of
    /// the newest archive.
    async fn copy_archives(
        &mut self,
        recent_url: &Url,
        recent: &Document,
    ) -> anyhow::Result<Option<Url>> {
        let complete = self.read_memory()?.and_then(|memory| memory.complete);
        let mut behind = recent.clone();
        // The newest archive links to the permanent URL of the open document.
        let mut behind_url = recent.link("via").unwrap_or(recent_url).clone();
        let mut visited = HashSet::new();
        let newest = link_target(recent, self.older, recent_url)?;
        let mut next = newest.clone();
        let mut left = self.documents_max;
        while let Some(url) = next {
            left = left.checked_sub(1).ok_or_else(|| {
                let max = self.documents_max;
                walk_failure(WalkError::TooMany { max })
            })?;
            // Without this check, links in a circle would end only at the bound, with the error of
            // too many documents.
            if !visited.insert(url.clone()) {
                return Err(walk_failure(WalkError::Loop { url }));
            }
            // The newest archive of the last finished run is checked, but the older ones are not.
            let is_complete = complete.as_ref() == Some(&url);
            behind = self.copy_archive(&url, &behind).await?;
            self.keep_alias(&behind, &behind_url)?;
            next = if is_complete {
                None
            } else {
                link_target(&behind, self.older, &url)?
            };
            behind_url = url;
        }
        Ok(newest)
    }

    /// Keeps a document also under the URL by which the next older document links to it, if that
    /// URL differs. A restoration gives a document another URL, and the server redirects from the
    /// old URL. A folder cannot redirect.
    fn keep_alias(&mut self, before: &Document, behind: &Url) -> anyhow::Result<()> {
        let linked = before.link("next-archive");
        let Some(linked) = linked.filter(|linked| *linked != behind && before.history.is_some())
        else {
            return Ok(());
        };
        let path = self.path_of(linked)?;
        let bytes = fs::read(self.path_of(behind)?)
            .with_context(|| format!("cannot read the copy of {behind}"))?;
        // A file that is written again would get a new time, and static servers make validators of
        // the time.
        if fs::read(&path).is_ok_and(|here| here == bytes) {
            return Ok(());
        }
        self.written += 1;
        self.write_file(&path, &bytes, None)
    }

    /// Returns the archive in the folder, or else fetches the archive into the folder. The next
    /// newer document, `behind`, must begin where the archive ends.
    async fn copy_archive(&mut self, url: &Url, behind: &Document) -> anyhow::Result<Document> {
        let path = self.path_of(url)?;
        let here = copied_document(&path, url)?.filter(is_archived);
        let was_archived = here.is_some();
        // A copy without positions proves nothing, so the archive is fetched again and compared.
        if let Some(here) = here
            && here.history.is_some()
            && continues_in(&here, behind)
        {
            return Ok(here);
        }
        let fetched = self.fetch_file(url).await?;
        let document = read_document(&fetched)?;
        if !continues_in(&document, behind) {
            let position = behind.history.map_or(Position(0), |(first, _)| first);
            let url = fetched.url;
            return Err(walk_failure(WalkError::HistoryChanged { url, position }));
        }
        // An archived document is final, so other bytes are a fault of the server, and the copy
        // stays.
        if was_archived && fs::read(&path).is_ok_and(|here| here != fetched.answer.body) {
            return Err(FetchError::Changed { url: fetched.url }.into());
        }
        self.keep_file(&fetched)?;
        if fetched.url != *url {
            // Links have the URL before the redirect, so the folder has the file under both URLs.
            self.write_file(&path, &fetched.answer.body, modified_time(&fetched.answer))?;
        }
        Ok(document)
    }

    /// Copies the archive index. Archives in the folder that lack the listed digest are fetched
    /// again.
    async fn copy_index(&mut self, recent: &Document) -> anyhow::Result<()> {
        let mut next = recent.link("index").cloned();
        let mut blocks = vec![];
        let mut seen = HashSet::new();
        let mut listed_left = self.documents_max;
        while let Some(url) = next.take().filter(|url| seen.insert(url.clone())) {
            self.check_name(&url, "json")?;
            let fetched = self.fetch_file(&url).await?;
            let block = IndexBlock::read(&fetched.answer.body);
            let block = block.map_err(|source| FetchError::NotAnIndex { url, source })?;
            // A block without documents counts as one document, so that an endless list of such
            // blocks ends, too.
            let listed = block.documents.len().max(1);
            listed_left = listed_left.checked_sub(listed).ok_or_else(|| {
                let max = self.documents_max;
                walk_failure(WalkError::TooMany { max })
            })?;
            for listed in &block.documents {
                let url = fetched.url.join(&listed.href)?;
                self.check_name(&url, "atom")?;
                let here = fs::read(self.path_of(&url)?);
                if here.is_ok_and(|here| Digest::of(&here) == listed.sha256) {
                    continue;
                }
                // The copy is missing or damaged.
                let again = self.fetch_file(&url).await?;
                if Digest::of(&again.answer.body) != listed.sha256 {
                    return Err(FetchError::Changed { url }.into());
                }
                self.keep_file(&again)?;
            }
            let previous = block.prev.map(|prev| fetched.url.join(&prev)).transpose()?;
            next = previous;
            blocks.push(fetched);
        }
        // Oldest first: a block in the folder never links to a missing block.
        for block in blocks.iter().rev() {
            self.keep_file(block)?;
        }
        Ok(())
    }

    /// Fetches a file without a content coding, and compares the file with the digest in the
    /// answer, if there is one.
    async fn fetch_file(&self, url: &Url) -> anyhow::Result<FetchedFile> {
        // The folder must have the bytes that digests and indexes describe.
        let headers = vec![("accept-encoding", "identity".to_owned())];
        let (url, answer) = self.fetcher.answer(url, headers).await?;
        let answer = successful(&url, answer)?;
        if let Some(told) = answer.header("repr-digest").and_then(sha256_of)
            && told != Digest::of(&answer.body).0
        {
            bail!("{url} arrived damaged: its digest is another one");
        }
        Ok(FetchedFile { url, answer })
    }

    /// Keeps a file, unless the folder has the same bytes already.
    fn keep_file(&mut self, fetched: &FetchedFile) -> anyhow::Result<()> {
        let path = self.path_of(&fetched.url)?;
        let changed = modified_time(&fetched.answer);
        if fs::read(&path).is_ok_and(|here| here == fetched.answer.body) {
            let synced = sync_kept(&path, changed);
            return synced.with_context(|| format!("cannot write {}", path.display()));
        }
        self.write_file(&path, &fetched.answer.body, changed)?;
        self.written += 1;
        Ok(())
    }

    /// Writes a file as a whole: under another name, synced, and then renamed.
    #[expect(clippy::disallowed_methods, reason = "the sync of the folder follows")]
    fn write_file(
        &self,
        path: &Path,
        bytes: &[u8],
        modified: Option<SystemTime>,
    ) -> anyhow::Result<()> {
        let written = || -> io::Result<()> {
            let folder = path.parent().unwrap_or(&self.folder);
            create_folder(folder)?;
            // A hidden name, which `path_of` gives to no URL.
            let temporary = folder.join(".mirror.new");
            let mut file = File::create(&temporary)?;
            file.write_all(bytes)?;
            // Before the sync, which makes the time durable as well.
            if let Some(modified) = modified {
                file.set_modified(modified)?;
            }
            file.sync_all()?;
            fs::rename(&temporary, path)?;
            File::open(folder)?.sync_all()
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    }

    fn read_memory(&self) -> anyhow::Result<Option<MirrorMemory>> {
        let path = self.folder.join(MEMORY);
        match fs::read(&path) {
            Ok(text) => {
                let memory = serde_json::from_slice(&text);
                Ok(Some(memory.with_context(|| {
                    format!("cannot read {}", path.display())
                })?))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Checks the extension of a file that an index names. The folder may be public, and a web
    /// server may execute other extensions (`shell.php`).
    fn check_name(&self, url: &Url, extension: &str) -> anyhow::Result<()> {
        let path = self.path_of(url)?;
        if path.extension().is_none_or(|found| found != extension) {
            bail!("the index names {url}, which does not end in .{extension}");
        }
        Ok(())
    }

    /// Returns the path of a URL's file. The URL must lie below the folder of the recent document,
    /// and the file has the same place below the folder of the copy.
    fn path_of(&self, url: &Url) -> anyhow::Result<PathBuf> {
        let base = self
            .base
            .as_ref()
            .context("the recent document comes first")?;
        let below = url.as_str().strip_prefix(base.as_str());
        // With one of these characters in the URL, a web server would look for a file of another
        // name.
        let below = below.filter(|below| !below.contains(['?', '#', '%', '\\']));
        let path = below.map(Path::new).filter(|path| {
            let mut parts = path.components();
            path.components().next().is_some()
                && parts.all(|part| matches!(part, Component::Normal(_)))
        });
        // Hidden files are the mirror's own.
        let hidden = below.is_some_and(|below| below.split('/').any(|part| part.starts_with('.')));
        match path.filter(|_| !hidden) {
            Some(path) => Ok(self.folder.join(path)),
            None => bail!("{url} cannot be a file beside the recent document"),
        }
    }
}

/// Returns the document at a path, if there is one.
fn copied_document(path: &Path, url: &Url) -> anyhow::Result<Option<Document>> {
    match fs::read(path) {
        Ok(bytes) => {
            // A damaged copy is fetched again.
            Ok(Document::read(bytes.into(), url).ok())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Checks that a folder is a mirror or empty, because a mirror replaces files.
fn check_folder(folder: &Path) -> anyhow::Result<()> {
    if [LOCK, MEMORY].iter().any(|name| folder.join(name).exists()) {
        return Ok(());
    }
    let unusable = || format!("cannot use {}", folder.display());
    for item in fs::read_dir(folder).with_context(unusable)? {
        let name = item.with_context(unusable)?.file_name();
        // The root of a file system has this folder.
        if name != "lost+found" {
            let (folder, name) = (folder.display(), name.display());
            return Err(Usage(format!(
                "{folder} is no mirror and holds {name}: give a folder that is empty or does not exist yet"
            ))
            .into());
        }
    }
    Ok(())
}

/// Creates a folder and all missing folders above. The names are durable after the call.
#[expect(clippy::disallowed_methods, reason = "the sync of the parent follows")]
fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let parent = match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_folder(parent)?;
    match fs::create_dir(folder) {
        // Another process has made the folder meanwhile, and may not have synced the name.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        created => created?,
    }
    File::open(parent)?.sync_all()
}

/// Returns the modification time that a file is to have: that in `Last-Modified`. Static servers
/// make validators of the time.
fn modified_time(answer: &Answer) -> Option<SystemTime> {
    let changed = answer.header("last-modified")?;
    httpdate::parse_http_date(changed).ok()
}

/// Makes a file durable that the folder has already: an earlier run may have been killed before the
/// sync.
fn sync_kept(path: &Path, modified: Option<SystemTime>) -> io::Result<()> {
    let file = File::options().append(true).open(path)?;
    if let Some(modified) = modified
        && file.metadata()?.modified()? != modified
    {
        file.set_modified(modified)?;
    }
    file.sync_all()?;
    path.parent()
        .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Locks a folder until the returned file is dropped.
#[expect(clippy::disallowed_methods, reason = "the sync of the folder follows")]
fn lock_folder(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join(LOCK);
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot use {}", path.display()))?;
    // Before any other file: without the lock file, the next run would take a folder with files for
    // something else than a mirror.
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot use {}", folder.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let (folder, holder) = (folder.to_path_buf(), "another mirror".into());
            Err(StateError::Locked { folder, holder }.into())
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Reads a document, and refuses a document that cannot be understood without header fields of the
/// answer.
fn read_document(fetched: &FetchedFile) -> anyhow::Result<Document> {
    let url = &fetched.url;
    let document = document_of(url, &fetched.answer);
    let document = document.map_err(|source| FetchError::Malformed {
        url: url.clone(),
        source,
    })?;
    let alone = Document::read(fetched.answer.body.clone(), url);
    if !alone.is_ok_and(|alone| alone.links == document.links) {
        bail!("{url} cannot be understood without its header fields, which a folder cannot keep");
    }
    Ok(document)
}

/// Returns the target of a link that the walk needs; `None` if the document at `url` has no such
/// link.
fn link_target(document: &Document, rel: &str, url: &Url) -> anyhow::Result<Option<Url>> {
    match document.lead(rel) {
        Ok(found) => Ok(found.cloned()),
        Err(link) => Err(walk_failure(WalkError::BrokenLink {
            url: url.clone(),
            link: link.clone(),
        })),
    }
}

fn walk_failure(error: WalkError) -> anyhow::Error {
    simplefeed_client::ConsumerError::from(error).into()
}

fn is_archived(document: &Document) -> bool {
    document.archived || document.lead("next-archive") != Ok(None)
}

/// Returns the position after a document's newest entry.
fn end_of(document: &Document) -> Option<u64> {
    let (first, _) = document.history?;
    first.0.checked_add(u64::try_from(document.len()).ok()?)
}

/// Returns whether `behind`, the next newer document, begins where `document` ends. Documents
/// without positions, as in foreign feeds, must only be of the same feed.
fn continues_in(document: &Document, behind: &Document) -> bool {
    let (Some(_), Some((first, expected))) = (document.history, behind.history) else {
        return is_same_feed(&behind.feed, document);
    };
    // Timelines have positions and no hashes, so both hashes are `None` there.
    let hash = document.history_after();
    document.feed == behind.feed && end_of(document) == Some(first.0) && hash == expected
}

/// Reads the SHA-256 in a `Repr-Digest` (RFC 9530).
fn sha256_of(field: &str) -> Option<[u8; 32]> {
    let mut members = field.split(',');
    let value = members.find_map(|member| member.trim().strip_prefix("sha-256=:"))?;
    let bytes = data_encoding::BASE64.decode(value.strip_suffix(':')?.as_bytes());
    bytes.ok()?.try_into().ok()
}
