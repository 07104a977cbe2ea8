//! The token that authorises the command's requests.
//!
//! Shell: a file, the environment. A token is never an argument: everybody on the machine could
//! read it there.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::Args;
use simplefeed_client::Publisher;

use crate::say;

/// The environment variable that holds a token.
const VARIABLE: &str = "SIMPLEFEED_TOKEN";

/// Where the token is
#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    /// File that holds the token to send; else the token is `$SIMPLEFEED_TOKEN`, if that is set
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// Returns arguments that name a file with a token.
    pub(crate) fn of(file: &Path) -> Self {
        let token_file = Some(file.to_owned());
        Self { token_file }
    }

    /// Returns the token, if there is one.
    #[expect(
        clippy::disallowed_methods,
        reason = "what clap reads from the environment could be an argument, too"
    )]
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        let (text, place) = match &self.token_file {
            Some(path) => {
                let text = fs::read(path)
                    .with_context(|| format!("cannot read the token in {}", path.display()))?;
                // Bytes that are not UTF-8 count as an empty token, which is refused below.
                let text = String::from_utf8(text).unwrap_or_default();
                (text, path.display().to_string())
            }
            None => match env::var(VARIABLE) {
                Ok(text) => (text, format!("${VARIABLE}")),
                Err(env::VarError::NotPresent) => return Ok(None),
                Err(_) => bail!("${VARIABLE} is not text"),
            },
        };
        let token = text.trim();
        // Other characters cannot stand in a header field.
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("{place} holds no token");
        }
        Ok(Some(token.into()))
    }

    /// Returns a publisher that sends the token.
    pub(crate) fn publisher(&self, url: &str) -> anyhow::Result<Publisher> {
        let publisher = Publisher::new(url)?.on_retry(say::retrying);
        Ok(match self.token()? {
            Some(token) => publisher.bearer_token(token),
            None => publisher,
        })
    }
}
