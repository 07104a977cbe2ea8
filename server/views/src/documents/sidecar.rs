//! Sidecars: facts that a new log needs, and that the bytes of an archived document lack.
//!
//! Pure: the form of a file beside each archived document, out of reach of readers. The file is a
//! line of JSON with a CRC-32, because the bytes of the document cannot reveal damage of this file.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use simplefeed_core::{digest::Digest, feed::Epoch, settings::Settings};

use super::frozen::FrozenDocument;

/// Version of the format that is written, and the only version that is read.
const VERSION: u32 = 1;

/// Facts about one document. Documents are named as in URLs, and instants are in the form of RFC
/// 3339.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sidecar<'a> {
    version: u32,
    /// Name of the document.
    pub document: Cow<'a, str>,
    /// Name by which the document before links to this one, if that is another name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linked: Option<Cow<'a, str>>,
    /// Instant of the commit that opened the document.
    pub opened: Cow<'a, str>,
    /// Instant of the commit that closed the document.
    pub closed: Cow<'a, str>,
    /// Revision of the settings that the header is made of.
    pub revision: u32,
    /// Settings of that revision, in full.
    pub settings: Cow<'a, Settings>,
    /// SHA-256 of the document's bytes, without a coding.
    pub sha256: Digest,
    /// Entries of the document, oldest first.
    pub entries: Vec<SidecarEntry<'a>>,
}

/// Facts about one entry of the document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SidecarEntry<'a> {
    /// Position of the entry in the feed.
    pub position: u64,
    /// Number of the commit that appended the entry.
    pub commit: u64,
    /// Instant of the entry, as the log has it.
    pub instant: Cow<'a, str>,
    /// Digest of the sent form, which decides about duplicates.
    pub sent: Digest,
    /// Epoch in which the entry was appended, if that is not the epoch in the document's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

impl<'a> Sidecar<'a> {
    /// Returns the sidecar of a document.
    pub fn of(frozen: &'a FrozenDocument) -> Self {
        let own = frozen.opening;
        let entries = frozen.entries.iter().map(|entry| SidecarEntry {
            position: entry.at.0,
            commit: entry.commit.0,
            instant: entry.instant.to_string().into(),
            sent: entry.sent,
            epoch: Some(entry.document.epoch).filter(|epoch| *epoch != own.name.epoch),
        });
        Self {
            version: VERSION,
            document: own.name.to_string().into(),
            linked: (own.linked != own.name).then(|| own.linked.to_string().into()),
            opened: own.opened.to_string().into(),
            closed: frozen.successor.opened.to_string().into(),
            revision: own.revision.0,
            settings: Cow::Borrowed(&frozen.settings),
            sha256: Digest::of(&frozen.bytes),
            entries: entries.collect(),
        }
    }

    /// Returns the bytes of the file, checksum included.
    pub fn to_bytes(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("a sidecar has a JSON form");
        let checksum = crc32fast::hash(json.as_bytes());
        format!("{json}\n{checksum:08x}\n").into_bytes()
    }

    /// Returns the sidecar in a file, unless the file is damaged or of another version.
    pub fn of_bytes(bytes: &[u8]) -> Option<Sidecar<'static>> {
        let (json, checksum) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        // The checksum is compared before the JSON is parsed, because damaged JSON may still be
        // valid.
        if checksum.trim_end() != format!("{:08x}", crc32fast::hash(json.as_bytes())) {
            return None;
        }
        let sidecar: Sidecar<'static> = serde_json::from_str(json).ok()?;
        (sidecar.version == VERSION).then_some(sidecar)
    }
}
