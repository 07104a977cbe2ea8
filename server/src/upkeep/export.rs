//! Writes the tree of documents as static files.
//!
//! Shell: the log, the views, a folder. Some files may differ in the next export. An nginx include
//! names those that are final, because only these may be called immutable.

use std::{fmt::Write as _, path::Path, sync::Arc};

use simplefeed_views::{
    Views,
    shown::ShownSeries,
    tree::{ExportError, Tree},
};

/// The name of the nginx include.
pub(crate) const INCLUDE: &str = "simplefeed-lifetimes.conf";

/// Writes the files of all views below `to`, for static web servers; with `entries`, every single
/// entry, too. Returns the number of files.
///
/// # Errors
///
/// See [`ExportError`].
pub fn export(
    log: &Arc<dyn ShownSeries>,
    views: &Views,
    to: &Path,
    entries: bool,
) -> Result<u64, ExportError> {
    let mut tree = Tree::new(to, entries);
    for (view, _) in views.iter() {
        view.export(log, &mut tree)?;
    }
    // A file must be durable before the include calls that file immutable: caches would keep an
    // empty file that a power cut has left.
    tree.sync()?;
    // The include comes last, so that it names only files that are complete.
    let include = nginx_include(tree.frozen());
    tree.write(INCLUDE, include.as_bytes())?;
    tree.sync()?;
    Ok(tree.files())
}

/// Returns an nginx include, for the `http` block, that sets `$simplefeed_cache_control`.
///
/// The include names the final files; all others may change, now or with the next export.
fn nginx_include(frozen: &[String]) -> String {
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
