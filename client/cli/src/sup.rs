//! `sup check`: faults in anybody's SUP document.
//!
//! Shell: the network and stdout. The checks stand in [`simplefeed_core::sup::rules`].

use std::io::Write as _;

use clap::{Args, Subcommand};
use serde::Serialize;
use simplefeed_core::sup::rules::{Finding, Severity, check};
use url::Url;

use crate::{exit, format::one_line, source::SourceArgs, stdout::stdout};

/// Look at SUP documents
#[derive(Args, Debug)]
pub(crate) struct SupArgs {
    #[command(subcommand)]
    command: SupCommand,
}

#[derive(Debug, Subcommand)]
enum SupCommand {
    /// Check a SUP document, as the reference validator does
    #[command(after_help = "Exit codes:\n  \
        0 nothing wrong, or only a suggestion, 1 an error; others if the document cannot be read")]
    Check(CheckArgs),
}

#[derive(Args, Debug)]
struct CheckArgs {
    /// URL of the SUP document
    url: Url,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl SupArgs {
    /// Returns whether the output is JSON.
    pub(crate) fn json(&self) -> bool {
        let SupCommand::Check(args) = &self.command;
        args.json
    }
}

#[derive(Serialize)]
struct CheckedDocument<'a> {
    url: &'a str,
    /// `null` if nothing is wrong.
    severity: Option<Severity>,
    message: Option<&'a str>,
}

pub(crate) async fn sup(args: SupArgs) -> anyhow::Result<u8> {
    let SupCommand::Check(args) = args.command;
    let mut url = args.url;
    // The URL that a feed announces has a SUP-ID as fragment, which is no part of the document's
    // address.
    url.set_fragment(None);
    let body = args.source.fetcher(&url)?.bytes(&url).await?;
    let found = check(&body);
    let mut out = stdout();
    if args.json {
        let checked = CheckedDocument {
            url: url.as_str(),
            severity: found.as_ref().map(|found| found.severity),
            message: found.as_ref().map(|found| &*found.message),
        };
        serde_json::to_writer(&mut out, &checked)?;
        writeln!(out)?;
    } else {
        let line = match &found {
            None => "fine".into(),
            Some(Finding { severity, message }) => match severity {
                Severity::Error => format!("error: {message}"),
                Severity::Suggestion => format!("suggestion: {message}"),
            },
        };
        writeln!(out, "{}", one_line(&line))?;
    }
    out.flush()?;
    let is_wrong = found.is_some_and(|found| found.severity == Severity::Error);
    Ok(if is_wrong { exit::OTHER } else { exit::OK })
}
