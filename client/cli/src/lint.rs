//! `lint`: faults in anybody's feed.
//!
//! Shell: the network and stdout. The command walks the chain from the recent document back to the
//! oldest, as far as the links lead, whatever faults there are on the way. Then the command
//! requests every archive once more. `lint/rules.rs` has the checks.

use std::{collections::HashSet, io::Write as _};

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::{
    error_text,
    fetch::{Fetcher, document_of, successful},
};
use simplefeed_core::{digest::Digest, reader::Document};
use url::Url;

use crate::{exit, format::one_line, say, source::SourceArgs, stdout::stdout};

mod explained;
mod rules;

use rules::{LintPage, LintRules, LintSeverity};

/// Check anybody's feed and its archive
#[derive(Args, Debug)]
pub(crate) struct LintArgs {
    /// URL of the feed, or of any of its documents
    #[arg(required_unless_present = "explain")]
    url: Option<Url>,
    /// Print the rule with this id, as FH-5, and its source
    #[arg(long, value_name = "ID", conflicts_with = "url")]
    explain: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

pub(crate) async fn lint(args: LintArgs) -> anyhow::Result<u8> {
    if let Some(id) = &args.explain {
        return explain_rule(id);
    }
    let url = args.url.context("clap asks for a URL")?;
    let mut lint = Lint {
        fetcher: args.source.fetcher(&url)?,
        documents_max: args.source.documents_max(),
        rules: LintRules::default(),
        archives: vec![],
        visited: HashSet::new(),
        inverted: false,
    };
    lint.walk_back(&url).await?;
    // After the whole walk, so that some time lies between the two requests for an archive.
    lint.look_again().await;
    let LintRules {
        findings,
        documents,
        entries,
        ..
    } = lint.rules;
    let mut out = stdout();
    for finding in &findings {
        let line = if args.json {
            serde_json::to_string(finding)?
        } else {
            let (severity, rule) = (finding.severity, finding.rule);
            one_line(&format!(
                "{severity}  {rule}  {}  {}",
                finding.url, finding.detail
            ))
        };
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    let count = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    say::note(&format!(
        "{documents} documents, {entries} entries: {} errors, {} warnings, {} notes.",
        count(LintSeverity::Error),
        count(LintSeverity::Warning),
        count(LintSeverity::Note),
    ));
    // A note is about something harmless, so notes alone do not fail the command.
    let wrong = findings
        .iter()
        .any(|finding| finding.severity > LintSeverity::Note);
    Ok(if wrong { exit::OTHER } else { exit::OK })
}

/// Prints a rule with its source.
fn explain_rule(id: &str) -> anyhow::Result<u8> {
    let Some(rule) = explained::explain(id) else {
        let error = anyhow::anyhow!("there is no rule {id}");
        let hint = Some("a finding names its rule behind error, warning or note.");
        say::error(&error, hint, exit::NOT_FOUND);
        return Ok(exit::NOT_FOUND);
    };
    let mut out = stdout();
    writeln!(out, "{rule}")?;
    out.flush()?;
    Ok(exit::OK)
}

/// Returns whether the archive links of a recent document lead the wrong way round, as in feeds of
/// Atom Hopper.
pub(crate) fn leads_the_wrong_way(recent: &Document) -> bool {
    let leads = |rel| recent.lead(rel) != Ok(None);
    leads("next-archive") && !leads("prev-archive") && !recent.archived
}

struct Lint {
    fetcher: Fetcher,
    documents_max: usize,
    rules: LintRules,
    /// URL and digest of each archive read.
    archives: Vec<(Url, Digest)>,
    visited: HashSet<Url>,
    /// Whether the archive links lead the wrong way round.
    inverted: bool,
}

impl Lint {
    /// Walks from the recent document back to the oldest. `url` names the recent document, or a
    /// document that leads there.
    async fn walk_back(&mut self, url: &Url) -> anyhow::Result<()> {
        let mut page = self.fetch_page(url).await?;
        let current = page
            .document
            .link("current")
            .filter(|current| **current != page.url);
        // In a Simplefeed feed, only the recent document has `via`: with `via`, the recent document
        // is found already.
        if let Some(current) = current.filter(|_| page.document.link("via").is_none()) {
            page = self.fetch_page(&current.clone()).await?;
        }
        self.visited.insert(page.url.clone());
        self.inverted = leads_the_wrong_way(&page.document);
        if self.inverted {
            let detail = "next-archive leads to older documents, prev-archive to newer ones";
            self.rules
                .add(LintSeverity::Error, "FH-5", &page.url, detail);
        }
        self.rules.page(&page);
        self.check_revalidation(&page).await;
        while let Some(previous) = self.previous_url(&page) {
            // At the bound, only the walk ends: the report about the documents so far is still
            // printed.
            if self.visited.len() >= self.documents_max {
                let detail = format!("there are more than {} documents", self.documents_max);
                self.rules
                    .add(LintSeverity::Warning, "FH-16", &page.url, detail);
                break;
            }
            if !self.visited.insert(previous.clone()) {
                let detail = format!("the archive links lead to {previous} twice");
                self.rules
                    .add(LintSeverity::Error, "FH-16", &page.url, detail);
                break;
            }
            page = match self.fetch_page(&previous).await {
                Ok(page) => page,
                // A document that cannot be read is a fault of the feed, for the report, and no
                // failure of the command.
                Err(error) => {
                    let detail =
                        format!("what it leads to cannot be read: {}", error_text(&*error));
                    self.rules
                        .add(LintSeverity::Error, "FH-5", &page.url, detail);
                    break;
                }
            };
            self.archives.push((page.url.clone(), page.digest));
            // Inverted links have their own finding already.
            if !self.inverted {
                self.check_next(&page).await;
            }
            self.rules.page(&page);
        }
        Ok(())
    }

    fn previous_url(&self, page: &LintPage) -> Option<Url> {
        let rel = if self.inverted {
            "next-archive"
        } else {
            "prev-archive"
        };
        page.document.link(rel).cloned()
    }

    /// Checks that an archive links to the next newer document, under any URL of that document.
    async fn check_next(&mut self, page: &LintPage) {
        let Some(next) = self.rules.wrong_next(page) else {
            return;
        };
        let behind = self.rules.behind().cloned();
        // Another URL may lead to the same document, for instance by a redirect.
        let led = self.fetch_page(&next).await;
        if led
            .as_ref()
            .is_ok_and(|led| Some(&led.url) == behind.as_ref())
        {
            return;
        }
        let why = match led {
            Ok(_) => format!("next-archive leads to {next}, and not to the document behind it"),
            Err(error) => format!("next-archive leads nowhere: {}", error_text(&*error)),
        };
        self.rules.add(LintSeverity::Error, "FH-6", &page.url, why);
    }

    /// Checks that the server does not transfer an unchanged recent document again.
    async fn check_revalidation(&mut self, page: &LintPage) {
        let Some(tag) = page.answer.header("etag") else {
            return;
        };
        let headers = vec![("if-none-match", tag.to_owned())];
        // An error here is temporary: the walk has just read the document.
        let Ok((_, answer)) = self.fetcher.answer(&page.url, headers).await else {
            return;
        };
        // Another tag means that the document has changed since.
        let same = answer.header("etag") == Some(tag);
        if answer.status != 304 && same {
            let detail = "a conditional request is answered with the whole document";
            self.rules
                .add(LintSeverity::Warning, "H-7", &page.url, detail);
        }
    }

    /// Checks that the bytes of archives are still those of the walk.
    async fn look_again(&mut self) {
        // The list is taken out of `self`, because the loop needs `self` for each request and
        // finding.
        for (url, digest) in std::mem::take(&mut self.archives) {
            let detail = match self.fetch_page(&url).await {
                Ok(page) if page.digest == digest => continue,
                Ok(_) => "an archive that is another one at the second look".into(),
                Err(error) => format!("an archive that is gone at the second look: {error}"),
            };
            self.rules.add(LintSeverity::Error, "FH-4", &url, detail);
        }
    }

    async fn fetch_page(&self, url: &Url) -> anyhow::Result<LintPage> {
        let (url, answer) = self.fetcher.answer(url, vec![]).await?;
        let answer = successful(&url, answer)?;
        let digest = Digest::of(&answer.body);
        let document = document_of(&url, &answer);
        let document = document.with_context(|| format!("{url} is not a feed document"))?;
        Ok(LintPage {
            url,
            document,
            answer,
            digest,
        })
    }
}
