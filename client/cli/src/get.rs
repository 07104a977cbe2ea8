//! `get`: one document or entry, byte for byte.
//!
//! Shell: stdout.

use std::io::Write as _;

use clap::Args;
use url::Url;

use crate::{exit, source::SourceArgs, stdout::stdout};

/// Print one document or entry, as it is
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// URL of the document
    url: Url,
    #[command(flatten)]
    source: SourceArgs,
}

pub(crate) async fn get(args: GetArgs) -> anyhow::Result<u8> {
    let fetcher = args.source.fetcher(&args.url)?;
    let bytes = fetcher.bytes(&args.url).await?;
    let mut out = stdout();
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(exit::OK)
}
