//! Checks of one feed's archived documents against the log.
//!
//! Shell: reads files, and writes none. Each document is rendered again and compared with the file,
//! the twin, the sidecar, the record and the links.

use simplefeed_core::{
    feed::{CommitNumber, DocumentNumber, FeedKey, FeedName, Position},
    limits::INDEX_BLOCK_DOCUMENTS,
    reader::Document,
    settings::Settings,
};
use simplefeed_log::{EntryLog, LogError, settings_of};
use simplefeed_process::lack::lack_in;
use url::Url;

use super::{archive::Archive, frozen::FrozenDocument, index, manifest::ManifestRecord};
use crate::{
    error::ViewError,
    files::{CodedFile, gunzip},
    reports::VerifyFindings,
};

/// Checks the files of a feed.
///
/// # Errors
///
/// Returns an error only where checking cannot go on; faults are in the findings.
pub(super) fn check_feed(
    log: &dyn EntryLog,
    archive: &Archive,
    feed: FeedKey,
    findings: &mut VerifyFindings,
) -> Result<(), ViewError> {
    let Some(head) = findings.sound(log.feed(feed))?.flatten() else {
        return Ok(());
    };
    let settings = findings.sound(settings_of(log, feed, head.revision))?;
    let Some(settings) = settings else {
        return Ok(());
    };
    // Web servers show everything in that folder without asking for a token.
    if settings.is_closed() && archive.shows(&settings.name) {
        findings.fault(format!(
            "feed {}: it is closed, and the folder for web servers has files of it",
            settings.name
        ));
    }
    match check_documents(log, archive, &settings, feed, findings) {
        // A damaged manifest concerns one feed; the other feeds are still checked.
        Err(error @ ViewError::DamagedRecord { .. }) => {
            findings.fault(error.to_string());
            Ok(())
        }
        checked => checked,
    }
}

fn check_documents(
    log: &dyn EntryLog,
    archive: &Archive,
    settings: &Settings,
    feed: FeedKey,
    findings: &mut VerifyFindings,
) -> Result<(), ViewError> {
    let name = &settings.name;
    // The closed documents are counted first, then the cursor is read, then the records are
    // counted. The archive goes on meanwhile, so records that are counted last are never too few.
    let closed = closed_documents(log, feed, findings)?;
    let is_due = is_due(
        log,
        archive.cursor().commit,
        settings,
        feed,
        closed,
        findings,
    )?;
    let recorded = archive.manifests.count(name)?;
    // If a power cut has destroyed a record of the last write, the archive writes that record and
    // all later records again.
    let whole = archive.manifests.count_before_hole(name)?;
    // Counted again, because documents may have been closed since.
    if recorded > closed_documents(log, feed, findings)? {
        findings.fault(format!(
            "feed {name}: {recorded} documents are archived, {closed} are closed"
        ));
    }
    // Documents behind the cursor still wait for the follower.
    if recorded < closed && !is_due {
        findings.fault(format!(
            "feed {name}: {closed} documents are closed, only {recorded} are archived"
        ));
    }
    // Files of a timeline behind the first damaged record are compared with the log alone.
    let recorded = if settings.is_timeline() {
        check_unrecorded(log, archive, settings, feed, whole, findings)?;
        whole
    } else {
        recorded
    };
    for number in 1..=recorded.min(closed) {
        let Some(number) = DocumentNumber::new(number) else {
            continue;
        };
        check_archived(log, archive, (name, feed, number), is_due, whole, findings)?;
    }
    Ok(())
}

/// Checks one document that should be archived against the log. Each of the first `whole` documents
/// has a sound record.
fn check_archived(
    log: &dyn EntryLog,
    archive: &Archive,
    (name, feed, number): (&FeedName, FeedKey, DocumentNumber),
    is_due: bool,
    whole: u64,
    findings: &mut VerifyFindings,
) -> Result<(), ViewError> {
    let archived = match archive.manifests.get(name, number) {
        Ok(Some(archived)) => archived,
        Ok(None) => return Ok(()),
        // The archive is going to write this record again.
        Err(ViewError::DamagedRecord { .. }) if is_due && number.get() > whole => {
            return Ok(());
        }
        // A lack of file handles or memory is no fault of the archive, and ends the check.
        Err(error) if lack_in(&error).is_some() => return Err(error),
        Err(error) => {
            findings.fault(error.to_string());
            return Ok(());
        }
    };
    if archived.is_lost() {
        // A lost document has no bytes, but the opening of its successor records the loss.
        let after_loss = findings.sound(log.opening(feed, number.next()))?.flatten();
        if after_loss.is_none_or(|successor| !successor.after_loss) {
            findings.fault(format!(
                "feed {name}: document {number} is there, and its record says it is lost"
            ));
        }
        return Ok(());
    }
    findings.documents += 1;
    match findings.sound(FrozenDocument::render(log, feed, number))? {
        Some(Some(frozen)) => {
            check_document(archive, name, &archived, &frozen, findings)?;
            // An index block needs the records of all its documents.
            if number.get() <= whole || !is_due {
                check_block(archive, name, &frozen, findings)?;
            }
        }
        Some(None) => findings.fault(format!(
            "feed {name}: document {number} is archived, but not closed"
        )),
        // `sound` has added the damage of the log to the faults.
        None => {}
    }
    Ok(())
}

/// Returns whether the archive has yet to process the newest closed document of a feed, and with it
/// all earlier documents that lack a record. That is so if the commit that closed the newest
/// document is later than the cursor. It is always so in a timeline, which is archived when readers
/// ask for documents, whatever the cursor says.
fn is_due(
    log: &dyn EntryLog,
    cursor: CommitNumber,
    settings: &Settings,
    feed: FeedKey,
    closed: u64,
    findings: &mut VerifyFindings,
) -> Result<bool, LogError> {
    // Without a cursor, or with the cursor of another log, every document is due.
    if settings.is_timeline() || cursor == CommitNumber(0) || cursor > log.head().number {
        return Ok(true);
    }
    let Some(open) = DocumentNumber::new(closed + 1) else {
        return Ok(false);
    };
    // The commit that opened the open document closed the document before.
    let opening = findings.sound(log.opening(feed, open))?.flatten();
    let reached = findings.sound(log.outlines(cursor, 1))?;
    let reached = reached.as_deref().and_then(<[_]>::first);
    Ok(opening
        .zip(reached)
        .is_some_and(|(opening, reached)| opening.opened > reached.instant))
}

/// Checks files of a timeline that no record names. A timeline is archived when readers ask for
/// documents, so the log does not say which files there should be.
fn check_unrecorded(
    log: &dyn EntryLog,
    archive: &Archive,
    settings: &Settings,
    feed: FeedKey,
    recorded: u64,
    findings: &mut VerifyFindings,
) -> Result<(), ViewError> {
    let name = &settings.name;
    for number in archive.filed_documents(name).split_off(&(recorded + 1)) {
        let Some(document) = DocumentNumber::new(number) else {
            continue;
        };
        findings.documents += 1;
        match findings.sound(FrozenDocument::render(log, feed, document))? {
            Some(Some(frozen)) => {
                // Files come before their records, so a missing record is no fault while the server
                // runs. Without a record, a right file has the digest of the rendered bytes.
                let archived = frozen.archived_as(CodedFile::of(&frozen.bytes));
                if let Err(error) = archive.read(name, &archived, false) {
                    if lack_in(&error).is_some() {
                        return Err(error);
                    }
                    let what = archived.name;
                    findings.fault(format!(
                        "feed {name}: {what} has no record and cannot be used: {error}"
                    ));
                }
            }
            Some(None) => findings.fault(format!(
                "feed {name}: document {number} has a file, but is not closed"
            )),
            None => {}
        }
    }
    Ok(())
}

fn closed_documents(
    log: &dyn EntryLog,
    feed: FeedKey,
    findings: &mut VerifyFindings,
) -> Result<u64, LogError> {
    let head = findings.sound(log.feed(feed))?.flatten();
    Ok(head.map_or(0, |head| head.open.opening.name.number.get() - 1))
}

/// Checks the index block that a document completes, if there is one.
fn check_block(
    archive: &Archive,
    name: &FeedName,
    frozen: &FrozenDocument,
    findings: &mut VerifyFindings,
) -> Result<(), ViewError> {
    let number = frozen.opening.name.number.get();
    // Only a full block is closed and has files.
    if !number.is_multiple_of(INDEX_BLOCK_DOCUMENTS) {
        return Ok(());
    }
    let block = number / INDEX_BLOCK_DOCUMENTS;
    let block = index::closed_block(&archive.manifests, name, &frozen.settings.id, block)?;
    if let Some(block) = block
        && archive.block_differs(name, &block)?
    {
        findings.fault(format!(
            "feed {name}: {} or its twin is missing or wrong",
            block.name
        ));
    }
    Ok(())
}

fn check_document(
    archive: &Archive,
    feed: &FeedName,
    archived: &ManifestRecord,
    frozen: &FrozenDocument,
    findings: &mut VerifyFindings,
) -> Result<(), ViewError> {
    let document = archived.name;
    let mut fault = |what: &str| findings.fault(format!("feed {feed}: {document} {what}"));
    // For this comparison, the twin's facts come from the record, because another compressor gives
    // another twin.
    if *archived != frozen.archived_as(archived.gzip) {
        fault("is not what the manifest says");
    }
    match archive.read(feed, archived, false) {
        Ok(bytes) if bytes == frozen.bytes => {}
        Ok(_) => fault("is not what the log gives"),
        Err(error) if lack_in(&error).is_some() => return Err(error),
        Err(error) => fault(&format!("cannot be used: {error}")),
    }
    // Another compressor gives another twin, so the decoded twin is compared.
    let twin = archive.read(feed, archived, true);
    match twin.map(|twin| gunzip(&twin, frozen.bytes.len())) {
        Ok(Ok(bytes)) if bytes == *frozen.bytes => {}
        Ok(_) => fault("has a twin that does not decode to it"),
        Err(error) if lack_in(&error).is_some() => return Err(error),
        Err(error) => fault(&format!("has an unusable twin: {error}")),
    }
    if archive.sidecar_differs(feed, frozen)? {
        fault("has no or another sidecar");
    }
    if archive.second_name_differs(feed, frozen)? {
        fault("is missing or another one under the name that leads to it");
    }
    for what in wrong_links(frozen) {
        fault(what);
    }
    Ok(())
}

/// Reads a document as a consumer does. Returns a message for each link that leads elsewhere, and
/// for a wrong end.
fn wrong_links(frozen: &FrozenDocument) -> Vec<&'static str> {
    let own = frozen.settings.document_url(frozen.opening.name);
    let read = Url::parse(&own)
        .ok()
        .and_then(|url| Document::read(frozen.bytes.clone(), &url).ok());
    let Some(read) = read else {
        return vec!["cannot be read as a feed document"];
    };
    let url_of = |name| frozen.settings.document_url(name);
    let expected = [
        ("self", Some(own), "has a wrong self link"),
        (
            "next-archive",
            Some(url_of(frozen.successor.linked)),
            "has a wrong next-archive link",
        ),
        (
            "prev-archive",
            frozen.opening.previous.map(url_of),
            "has a wrong prev-archive link",
        ),
    ];
    let mut wrong = vec![];
    for (rel, url, what) in expected {
        if read.link(rel).map(Url::as_str) != url.as_deref() {
            wrong.push(what);
        }
    }
    let entries = u64::try_from(read.len()).unwrap_or(u64::MAX);
    let end = read
        .history
        .map(|(first, _)| Position(first.0.saturating_add(entries)));
    // A consumer that goes on with the next document must not skip a position.
    if end != Some(frozen.successor.first) {
        wrong.push("does not end where the next document begins");
    }
    wrong
}
