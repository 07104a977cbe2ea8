//! `get`: one document or entry, as it is.
//!
//! Shell: stdout.

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::{fetch::Fetcher, transport};
use url::Url;

use crate::exit;

/// Print one document or entry, as it is
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// URL of the document
    url: Url,
}

pub(crate) async fn get(args: GetArgs) -> anyhow::Result<u8> {
    let fetcher = Fetcher::new(transport::ready_made().context("there is no way to the network")?);
    let bytes = fetcher.bytes(&args.url).await?;
    let mut out = io::stdout().lock();
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(exit::OK)
}
