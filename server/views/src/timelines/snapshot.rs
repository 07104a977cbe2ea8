//! The graph of follows in a file, so that an opening does not replay all follows.
//!
//! Shell: one file, replaced as a whole. The file has the chain hash after the commit that the
//! graph reaches. A file of another log, or a damaged file, counts as missing, and the graph is
//! computed from the first commit on.

use std::{io, path::Path};

use simplefeed_core::history::ChainHash;
use simplefeed_log::codec::{seal, unseal};
use simplefeed_process::regular;

use super::graph::Graph;
use crate::files::replace_unsynced;

/// First bytes of the file, with the version of the layout. The layout follows from the types of
/// the graph.
const MAGIC: &[u8] = b"simplefeed graph 5\n";

/// Writes the bytes of a graph to the file.
///
/// # Errors
///
/// Returns why the file cannot be written.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The checksum detects a file that a power cut has damaged.
    replace_unsynced(path, bytes)
}

/// Returns the bytes of a graph, which reaches a commit with this chain hash.
pub(super) fn bytes_of(graph: &Graph, chain: ChainHash) -> Vec<u8> {
    let out = postcard::to_extend(&(chain, graph), MAGIC.to_vec());
    seal(out.expect("a vector takes all bytes of a graph"))
}

/// Returns the graph of a file, and the chain hash after the commit that the graph reaches; `None`
/// if there is no sound file.
pub(super) fn read(path: &Path) -> Option<(Graph, ChainHash)> {
    let file = regular::read_snapshot(path).ok()?;
    let body = unseal(&file)?.strip_prefix(MAGIC)?;
    let ((chain, mut graph), rest) = postcard::take_from_bytes::<(ChainHash, Graph)>(body).ok()?;
    graph.make_indexes();
    rest.is_empty().then_some((graph, chain))
}
