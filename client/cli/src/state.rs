//! The folder of the state, by option, environment or URL.
//!
//! Shell: the environment, which sets the place of the state (XDG, systemd).

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::StateFolder;
use simplefeed_core::digest::Digest;

/// Where the state is
#[derive(Args, Debug)]
pub(crate) struct StateArgs {
    /// Folder that remembers how far the feed is read, and what is parked
    /// [default: one for the URL in `$STATE_DIRECTORY`, `$XDG_STATE_HOME/simplefeed` or
    /// `~/.local/state/simplefeed`; replay and tail have a default with --exec only]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

impl StateArgs {
    /// Returns the folder of `--state`, or else the default folder for the feed's URL.
    pub(crate) fn folder(&self, url: &str) -> anyhow::Result<PathBuf> {
        match &self.state {
            Some(folder) => Ok(folder.clone()),
            None => Ok(home_folder()?.join(name_of(url))),
        }
    }

    /// Opens and locks the folder.
    pub(crate) fn open(&self, url: &str) -> anyhow::Result<StateFolder> {
        open(&self.folder(url)?)
    }
}

/// Opens and locks a folder.
pub(crate) fn open(folder: &Path) -> anyhow::Result<StateFolder> {
    Ok(StateFolder::open(folder)?)
}

fn home_folder() -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| {
        let path = env::var_os(name)?;
        // systemd may name several folders, separated by colons.
        let first = path.to_str()?.split(':').next()?.to_owned();
        Some(PathBuf::from(first)).filter(|path| path.is_absolute())
    };
    absolute("STATE_DIRECTORY")
        .or_else(|| Some(absolute("XDG_STATE_HOME")?.join("simplefeed")))
        .or_else(|| Some(absolute("HOME")?.join(".local/state/simplefeed")))
        .context("there is no folder for state: HOME is not set; name one with --state")
}

/// Returns a name that a person recognises and that no other URL has.
fn name_of(url: &str) -> String {
    let url = url.trim_end_matches('/');
    let digest = Digest::of(url.as_bytes()).to_string();
    let (_, place) = url.split_once("://").unwrap_or(("", url));
    // Neither a password nor a query belongs into a file's name.
    let place = place.split('?').next().unwrap_or_default();
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let name: String = place
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .take(80)
        .collect();
    format!("{name}-{}", digest.get(..8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_url_has_a_name_of_its_own() {
        let name = name_of("https://example.org:8443/feeds/orders/");
        assert!(name.starts_with("example.org_8443_feeds_orders-"), "{name}");
        assert_eq!(name, name_of("https://example.org:8443/feeds/orders"));
        assert_ne!(name, name_of("http://example.org:8443/feeds/orders"));
        let secret = name_of("https://me:secret@h/a?token=secret");
        assert!(
            secret.starts_with("h_a-") && !secret.contains("secret"),
            "{secret}"
        );
        assert!(name_of("../../etc").starts_with(".._.._etc-"));
    }
}
