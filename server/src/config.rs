//! Settings of the server: flag over environment over file over default.
//!
//! Pure, but for reading the file. Everything is checked in one pass and all problems are told at
//! once; nothing is opened before. What shapes bytes is only a proposal here: it reaches the feeds
//! as commits.

use std::{
    fmt, fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Deserialize;
use simplefeed_core::{
    cut::Period,
    limits::{DOCUMENT_BYTES_DEFAULT, DOCUMENT_ENTRIES_DEFAULT, PUBLIC_URL_BYTES_MAX},
    settings::{Defaults, check_bytes, check_entries},
};
use url::{Host, Url};

/// The address to listen on if none is given: reachable from this machine only.
const LISTEN_DEFAULT: &str = "127.0.0.1:8080";

/// How a server is to run, as given on the command line or in the environment.
#[derive(Args, Clone, Debug, Default)]
pub struct ServeArgs {
    /// Folder that holds the log and everything made from it
    #[arg(long, env = "SIMPLEFEED_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, env = "SIMPLEFEED_LISTEN", value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// URL at which clients see the server [default: `http://ADDR`, on loopback only]
    #[arg(long, env = "SIMPLEFEED_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<Url>,
    /// TOML file with any of these settings
    #[arg(long, env = "SIMPLEFEED_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder for archived documents, which a web server may serve [default: DIR/www]
    #[arg(long, env = "SIMPLEFEED_WWW", value_name = "DIR")]
    pub www: Option<PathBuf>,
    /// Most entries of a document, for feeds that do not choose [default: 100]
    #[arg(long, env = "SIMPLEFEED_DOCUMENT_ENTRIES", value_name = "N")]
    pub document_entries: Option<u32>,
    /// Most bytes of entries in a document, for feeds that do not choose [default: 1048576]
    #[arg(long, env = "SIMPLEFEED_DOCUMENT_BYTES", value_name = "N")]
    pub document_bytes: Option<u64>,
    /// Stretch of time of a document, for feeds that do not choose [default: none]
    #[arg(long, env = "SIMPLEFEED_DOCUMENT_PERIOD", value_name = "none|hour|day", value_parser = parse_period)]
    pub document_period: Option<Period>,
    /// How old a cached recent document may be [default: 1]
    #[arg(long, env = "SIMPLEFEED_RECENT_MAX_AGE", value_name = "SECONDS")]
    pub recent_max_age: Option<u32>,
    /// Let anybody who can reach the server publish, even beyond loopback
    #[arg(long, env = "SIMPLEFEED_ALLOW_ANONYMOUS_PUBLISH")]
    pub allow_anonymous_publish: bool,
}

fn parse_period(text: &str) -> Result<Period, String> {
    match text {
        "none" => Ok(Period::None),
        "hour" => Ok(Period::Hour),
        "day" => Ok(Period::Day),
        _ => Err("the periods are none, hour and day".into()),
    }
}

/// The same, in a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    data: Option<PathBuf>,
    listen: Option<SocketAddr>,
    public_url: Option<Url>,
    www: Option<PathBuf>,
    document_entries: Option<u32>,
    document_bytes: Option<u64>,
    document_period: Option<Period>,
    recent_max_age: Option<u32>,
    allow_anonymous_publish: Option<bool>,
}

/// How a server is to run, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder.
    pub data: PathBuf,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where clients see the server; the listener's address if absent.
    pub public_url: Option<Url>,
    /// Where archived documents go; into the data folder if absent.
    pub www: Option<PathBuf>,
    /// The most entries of a document.
    pub document_entries: u32,
    /// The most bytes of entries in a document.
    pub document_bytes: u64,
    /// The stretch of time of a document.
    pub document_period: Period,
    /// How old a cached recent document may be, in seconds.
    pub recent_max_age: u32,
}

/// Why a configuration cannot be used: every problem there is, one a line.
#[derive(Debug)]
pub struct ConfigError {
    problems: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("\nerror: "))
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Returns the configuration that flags, environment and file give together.
    ///
    /// # Errors
    ///
    /// Returns all problems at once.
    pub fn new(args: ServeArgs) -> Result<Self, ConfigError> {
        let mut problems = vec![];
        let file = match args.config.as_deref().map(read_file).transpose() {
            Ok(file) => file.unwrap_or_default(),
            Err(problem) => {
                problems.push(problem);
                ConfigFile::default()
            }
        };
        let listen = args
            .listen
            .or(file.listen)
            .unwrap_or_else(|| LISTEN_DEFAULT.parse().expect("the default is an address"));
        let config = Self {
            data: args.data.or(file.data).unwrap_or_default(),
            listen,
            public_url: args.public_url.or(file.public_url),
            www: args.www.or(file.www),
            document_entries: args
                .document_entries
                .or(file.document_entries)
                .unwrap_or(DOCUMENT_ENTRIES_DEFAULT),
            document_bytes: args
                .document_bytes
                .or(file.document_bytes)
                .unwrap_or(DOCUMENT_BYTES_DEFAULT),
            document_period: args
                .document_period
                .or(file.document_period)
                .unwrap_or_default(),
            recent_max_age: args.recent_max_age.or(file.recent_max_age).unwrap_or(1),
        };
        let anonymous = args.allow_anonymous_publish || file.allow_anonymous_publish == Some(true);
        config.check(anonymous, &mut problems);
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError { problems })
        }
    }

    fn check(&self, anonymous: bool, problems: &mut Vec<String>) {
        if self.data.as_os_str().is_empty() {
            problems.push("the data folder is not given: use --data DIR".into());
        }
        if let Err(refusal) = check_entries(self.document_entries) {
            problems.push(refusal.detail);
        }
        if let Err(refusal) = check_bytes(self.document_bytes) {
            problems.push(refusal.detail);
        }
        if let Some(problem) = self.public_url.as_ref().and_then(problem_of_url) {
            problems.push(format!("public_url {problem}"));
        }
        let local = self.listen.ip().is_loopback();
        let public = self.public_url.as_ref().map_or(local, is_loopback);
        if !local && self.public_url.is_none() {
            problems.push("public_url is not given, and the listener is not on loopback".into());
        }
        if !(anonymous || local && public) {
            problems.push(
                "anybody who can reach the server could publish: listen on loopback with a loopback \
                 public_url, or say --allow-anonymous-publish"
                    .into(),
            );
        }
    }

    /// Returns what the server proposes to feeds, seen at `public_url`.
    pub fn defaults(&self, public_url: &Url) -> Defaults {
        Defaults {
            document_entries: self.document_entries,
            document_bytes: self.document_bytes,
            document_period: self.document_period,
            ..Defaults::new(public_url.as_str())
        }
    }
}

fn read_file(path: &Path) -> Result<ConfigFile, String> {
    let text = fs::read_to_string(path)
        .map_err(|error: io::Error| format!("cannot read {}: {error}", path.display()))?;
    toml::from_str(&text)
        .map_err(|error| format!("{}: {}", path.display(), error.to_string().trim()))
}

fn problem_of_url(url: &Url) -> Option<&'static str> {
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Some("is not an http or https URL");
    }
    if url.query().is_some()
        || url.fragment().is_some()
        || !url.username().is_empty()
        || url.password().is_some()
    {
        return Some("has a query, fragment or user");
    }
    (url.as_str().len() > PUBLIC_URL_BYTES_MAX).then_some("is longer than 1024 bytes")
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(change: impl FnOnce(&mut ServeArgs)) -> ServeArgs {
        let mut args = ServeArgs {
            data: Some("d".into()),
            ..ServeArgs::default()
        };
        change(&mut args);
        args
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut ServeArgs), why: &[&str]) {
        let error = Config::new(args(change)).expect_err("refused").to_string();
        for why in why {
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn defaults_stay_on_loopback() {
        let config = Config::new(args(|_| {})).unwrap();
        assert!(config.listen.ip().is_loopback());
        assert_eq!((config.document_entries, config.recent_max_age), (100, 1));
    }

    #[test]
    fn anonymous_publishing_beyond_loopback_must_be_asked_for() {
        let outside = |args: &mut ServeArgs| {
            args.listen = Some("0.0.0.0:80".parse().unwrap());
            args.public_url = Some("https://example.org/".parse().unwrap());
        };
        refused(outside, &["anybody"]);
        refused(
            |args| args.public_url = Some("https://example.org/".parse().unwrap()),
            &["anybody"],
        );
        let allowed = args(|args| {
            outside(args);
            args.allow_anonymous_publish = true;
        });
        assert!(Config::new(allowed).is_ok());
        let local =
            args(|args| args.public_url = Some("http://localhost:8080/sub".parse().unwrap()));
        assert!(Config::new(local).is_ok());
    }

    #[test]
    fn all_problems_are_told_at_once() {
        refused(
            |args| {
                args.data = None;
                args.document_entries = Some(0);
                args.document_bytes = Some(0);
                args.public_url = Some("ftp://localhost/".parse().unwrap());
            },
            &[
                "data folder",
                "document_entries",
                "document_bytes",
                "public_url",
            ],
        );
    }

    #[test]
    fn a_flag_wins_over_the_file_and_unknown_keys_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("simplefeed.toml");
        fs::write(&path, "document_entries = 7\nrecent_max_age = 9\n").unwrap();
        let given = args(|args| {
            args.config = Some(path.clone());
            args.document_entries = Some(3);
        });
        let config = Config::new(given).unwrap();
        assert_eq!((config.document_entries, config.recent_max_age), (3, 9));
        fs::write(&path, "documents = 7\n").unwrap();
        refused(
            |args| args.config = Some(path),
            &["unknown field `documents`"],
        );
        refused(
            |args| args.config = Some("/no/such/file".into()),
            &["cannot read"],
        );
    }
}
