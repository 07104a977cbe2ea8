//! Sidecars: what the bytes of an archived document do not tell, and a new log could not be made without.
//!
//! Pure: a file beside each archived document, out of reach of readers: a line of JSON, and its CRC-32,
//! because the bytes of the document could not tell that it is damaged.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use simplefeed_core::{digest::Digest, feed::Epoch, settings::Settings};

use super::frozen::Frozen;

/// The version that is written.
const VERSION: u32 = 1;

/// The facts of one document. Documents are named as in URLs, instants are RFC 3339.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sidecar<'a> {
    version: u32,
    /// Its name.
    pub document: Cow<'a, str>,
    /// The name its predecessor links to, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linked: Option<Cow<'a, str>>,
    /// When it was opened.
    pub opened: Cow<'a, str>,
    /// When it was closed.
    pub closed: Cow<'a, str>,
    /// The revision of the settings that its header is made of.
    pub revision: u32,
    /// Those settings.
    pub settings: Cow<'a, Settings>,
    /// The digest of its bytes.
    pub sha256: Digest,
    /// Its entries, oldest first.
    pub entries: Vec<SidecarEntry<'a>>,
}

/// The facts of one entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SidecarEntry<'a> {
    /// Its position.
    pub position: u64,
    /// The commit that appended it.
    pub commit: u64,
    /// When that was.
    pub instant: Cow<'a, str>,
    /// The digest of what was sent.
    pub sent: Digest,
    /// The epoch it was appended in, if that is not the document's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

impl<'a> Sidecar<'a> {
    /// Returns the sidecar of a document.
    pub fn of(frozen: &'a Frozen) -> Self {
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

    /// Returns the bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("a sidecar has a JSON form");
        let checksum = crc32fast::hash(json.as_bytes());
        format!("{json}\n{checksum:08x}\n").into_bytes()
    }

    /// Returns what a file says, unless it is damaged or of a version that is not known.
    pub fn of_bytes(bytes: &[u8]) -> Option<Sidecar<'static>> {
        let (json, checksum) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        if checksum.trim_end() != format!("{:08x}", crc32fast::hash(json.as_bytes())) {
            return None;
        }
        let sidecar: Sidecar<'static> = serde_json::from_str(json).ok()?;
        (sidecar.version == VERSION).then_some(sidecar)
    }
}
