//! Settings of the server: flag over environment over file over default.
//!
//! Shell: files. [`ServeArgs`] names each setting once: clap makes the flags and variables, and
//! serde the keys of the file. One pass checks everything and reports all problems together, before
//! anything is opened. Settings that shape bytes are only proposals here: they reach the feeds as
//! commits.

use std::{
    collections::BTreeSet,
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::Deref,
    path::{Component, Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::{Args, Command, FromArgMatches as _};
use serde::{Deserialize, Serialize};
use simplefeed_core::{
    cut::Period,
    limits::{
        CONNECTIONS_MAX, DOCUMENT_BYTES_DEFAULT, DOCUMENT_ENTRIES_DEFAULT, PUBLIC_URL_BYTES_MAX,
        SUP_PERIOD_SECONDS_MAX, SUP_PERIODS_DEFAULT,
    },
    settings::{Defaults, check_bytes, check_entries},
};
use simplefeed_http::{
    access::{self, Access, TokenGrants},
    limits::Limits,
};
use simplefeed_process::regular;
use simplefeed_views::timelines::fan_out::{FanOut, Keeping};
use tracing::warn;
use url::{Host, Url};

/// Address of the main listener if none is given: reachable from this machine only.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// How a server is to run, unchecked. Names of fields are names of flags and of keys in a file.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServeArgs {
    /// Folder that holds the log and everything made from it
    #[arg(long, env = "SIMPLEFEED_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, env = "SIMPLEFEED_LISTEN", value_name = "ADDR", default_value_t = LISTEN_DEFAULT)]
    pub listen: SocketAddr,
    /// URL at which clients see the server [default: `http://ADDR`, on loopback only]
    #[arg(long, env = "SIMPLEFEED_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<Url>,
    /// TOML file with any of these settings
    #[arg(long, env = "SIMPLEFEED_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Folder for archived documents, which a web server may serve [default: DIR/www]
    #[arg(long, env = "SIMPLEFEED_WWW", value_name = "DIR")]
    pub www: Option<PathBuf>,
    /// Most entries of a document, for feeds that do not choose
    #[arg(long, env = "SIMPLEFEED_DOCUMENT_ENTRIES", value_name = "N", default_value_t = DOCUMENT_ENTRIES_DEFAULT)]
    pub document_entries: u32,
    /// Most bytes of entries in a document, for feeds that do not choose
    #[arg(long, env = "SIMPLEFEED_DOCUMENT_BYTES", value_name = "N", default_value_t = DOCUMENT_BYTES_DEFAULT)]
    pub document_bytes: u64,
    /// Stretch of time of a document, for feeds that do not choose [default: none]
    #[arg(long, env = "SIMPLEFEED_DOCUMENT_PERIOD", value_name = "none|hour|day", value_parser = parse_period, default_value = "none", hide_default_value = true)]
    pub document_period: Period,
    /// How old a cached recent document may be
    #[arg(
        long,
        env = "SIMPLEFEED_RECENT_MAX_AGE",
        value_name = "SECONDS",
        default_value_t = 1
    )]
    pub recent_max_age: u32,
    /// Periods for which /sup.json tells which feeds changed, the usual one first, or none for no
    /// such documents
    #[arg(
        long,
        env = "SIMPLEFEED_SUP_PERIODS",
        value_name = "SECONDS,…",
        default_value_t
    )]
    pub sup_periods: SupPeriods,
    /// When the entries of timelines are found. It changes costs, and no byte of a document
    #[arg(long, env = "SIMPLEFEED_FAN_OUT", value_enum, default_value_t)]
    pub fan_out: FanOut,
    /// Bytes of memory for the newest entries of timelines that were read lately
    #[arg(long, env = "SIMPLEFEED_FAN_OUT_MEMORY", value_name = "BYTES", default_value_t = Keeping::MEMORY_DEFAULT)]
    pub fan_out_memory: u64,
    /// File of tokens: who may publish, and see closed feeds; SIGHUP reads it again
    #[arg(long, env = "SIMPLEFEED_TOKENS", value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// Take publishing requests here and nowhere else: a loopback address, or a Unix socket at PATH
    #[arg(long, env = "SIMPLEFEED_PUBLISH_LISTEN", value_name = "ADDR|PATH")]
    pub publish_listen: Option<ListenAddress>,
    /// Address at which to tell Prometheus about the server, at /metrics
    #[arg(long, env = "SIMPLEFEED_METRICS_LISTEN", value_name = "ADDR")]
    pub metrics_listen: Option<SocketAddr>,
    /// Pages for people, at /ui/
    #[arg(
        long,
        env = "SIMPLEFEED_UI",
        value_name = "on|off",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    pub ui: Ui,
    /// Most connections at the same time
    #[arg(long, env = "SIMPLEFEED_CONNECTIONS", value_name = "N", default_value_t = CONNECTIONS_MAX)]
    pub connections: u32,
    /// How long a connection may be idle, or take to send the head of a request; longer than a
    /// proxy keeps one
    // Longer than nginx keeps a connection (60 s), so nginx never uses one that was just closed.
    #[arg(
        long,
        env = "SIMPLEFEED_IDLE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 75
    )]
    pub idle_timeout: u32,
    /// How long a request's body may take to arrive
    #[arg(
        long,
        env = "SIMPLEFEED_BODY_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 60
    )]
    pub body_timeout: u32,
    /// How long a connection may send nothing of a body, or take nothing of an answer
    #[arg(
        long,
        env = "SIMPLEFEED_STALL_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 10
    )]
    pub stall_timeout: u32,
    /// How long a connection may last
    #[arg(
        long,
        env = "SIMPLEFEED_CONNECTION_AGE",
        value_name = "SECONDS",
        default_value_t = 3_600
    )]
    pub connection_age: u32,
}

impl Default for ServeArgs {
    /// Returns the defaults of the flags.
    fn default() -> Self {
        // The flags lose their variables, because a library does not read the environment unasked.
        let flags = Self::augment_args(Command::new("")).mut_args(|flag| flag.env(None));
        let matches = flags.no_binary_name(true).get_matches_from([""; 0]);
        Self::from_arg_matches(&matches).expect("every setting has a default or none")
    }
}

impl ServeArgs {
    /// Checks the settings. A key in `unread` has a value that could not be read, so a missing
    /// value of that key is no problem here.
    fn check_settings(&self, unread: &[String], problems: &mut Vec<String>) {
        let is_known = |key: &str| !unread.iter().any(|unread| unread == key);
        let data = self.data.as_deref().unwrap_or(Path::new(""));
        if data.as_os_str().is_empty() && is_known("data") {
            problems.push("the data folder is not given: use --data DIR".into());
        }
        if let Err(refusal) = check_entries(self.document_entries) {
            problems.push(refusal.detail);
        }
        if let Err(refusal) = check_bytes(self.document_bytes) {
            problems.push(refusal.detail);
        }
        let distinct: BTreeSet<u32> = self.sup_periods.iter().copied().collect();
        if distinct.len() < self.sup_periods.len() {
            problems.push("sup_periods has a period twice".into());
        }
        let possible = 1..=SUP_PERIOD_SECONDS_MAX;
        if !self
            .sup_periods
            .iter()
            .all(|period| possible.contains(period))
        {
            problems.push(format!(
                "sup_periods are between 1 and {SUP_PERIOD_SECONDS_MAX} seconds"
            ));
        }
        let limits = [
            self.connections,
            self.idle_timeout,
            self.body_timeout,
            self.stall_timeout,
            self.connection_age,
        ];
        if limits.contains(&0) {
            let names = "connections, idle_timeout, body_timeout, stall_timeout, connection_age";
            problems.push(format!(
                "one of these settings is 0, so the server could serve nothing: {names}"
            ));
        }
        if let Some(problem) = self.public_url.as_ref().and_then(problem_of_url) {
            problems.push(format!("public_url {problem}"));
        }
        // The listener's own address can be the public URL only if all clients are on this machine.
        let local = self.listen.ip().is_loopback();
        let public = self.public_url.as_ref().map_or(local, is_loopback);
        if !local && self.public_url.is_none() && is_known("public_url") {
            problems.push("public_url is not given, and the listener is not on loopback".into());
        }
        let confined = match &self.publish_listen {
            // A public URL beyond loopback means a proxy, and then anybody can reach a listener on
            // loopback.
            None => local && public,
            Some(ListenAddress::Address(address)) => address.ip().is_loopback(),
            Some(ListenAddress::Socket(_)) => true,
        };
        // A value that could not be read may be the one that confines publishing.
        let is_door_known = ["tokens", "publish_listen", "public_url"]
            .into_iter()
            .all(is_known);
        if !confined && self.tokens.is_none() && is_door_known {
            problems.push(
                "anybody who can reach the server could publish: make a token with `simplefeed-server \
                 token new` and name its file with --tokens, or take publishing requests on loopback or a \
                 Unix socket only, with --publish-listen"
                    .into(),
            );
        }
    }

    /// Checks the folders, and that each listener has an address of its own.
    fn check_folders(&self, problems: &mut Vec<String>) {
        let folders = [("data", &self.data), ("www", &self.www)];
        for (name, path) in folders {
            // A folder that is missing is no problem: the start makes it.
            if let Some(path) = path
                && fs::metadata(path).is_ok_and(|found| !found.is_dir())
            {
                problems.push(format!("{name}: {} is not a folder", path.display()));
            }
        }
        // Within the data folder, only the folder `www` is for documents: from any other folder
        // there, a web server could serve the log and closed feeds.
        if let (Some(data), Some(www)) = (&self.data, &self.www)
            && let (data, www) = (resolve_path(data), resolve_path(www))
            && www.starts_with(&data)
            && !www.starts_with(data.join("www"))
        {
            let (www, data) = (www.display(), data.display());
            problems.push(format!(
                "www: {www} is in the data folder, where only {data}/www is for documents"
            ));
        }
        let publish = match self.publish_listen {
            Some(ListenAddress::Address(address)) => Some(address),
            _ => None,
        };
        let listeners = [
            ("listen", Some(self.listen)),
            ("publish_listen", publish),
            ("metrics_listen", self.metrics_listen),
        ];
        let mut taken: Vec<(&str, SocketAddr)> = vec![];
        for (name, address) in listeners {
            // Port 0 takes any free port, so two listeners with port 0 do not collide.
            let Some(address) = address.filter(|address| address.port() != 0) else {
                continue;
            };
            if let Some((other, _)) = taken.iter().find(|(_, taken)| *taken == address) {
                problems.push(format!(
                    "{name} and {other} are the same address, {address}"
                ));
            }
            taken.push((name, address));
        }
    }
}

/// Address of a listener for publishing requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAddress {
    /// Address and port, where port 0 takes a free one.
    Address(SocketAddr),
    /// Unix socket, by its path in the file system.
    Socket(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(address) => Ok(Self::Address(address)),
            // The slash is required, so a mistyped address does not become the name of a socket.
            Err(_) if text.contains('/') => Ok(Self::Socket(text.into())),
            Err(_) => Err("it is neither an address with a port nor a path with a slash".into()),
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ListenAddress> for String {
    fn from(address: ListenAddress) -> Self {
        match address {
            ListenAddress::Address(address) => address.to_string(),
            ListenAddress::Socket(path) => path.display().to_string(),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "http://{address}"),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

fn parse_period(text: &str) -> Result<Period, String> {
    match text {
        "none" => Ok(Period::None),
        "hour" => Ok(Period::Hour),
        "day" => Ok(Period::Day),
        _ => Err("the periods are none, hour and day".into()),
    }
}

/// Periods of the SUP documents, in seconds, the default one first; empty if there are no such
/// documents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SupPeriods(Vec<u32>);

impl Default for SupPeriods {
    fn default() -> Self {
        Self(SUP_PERIODS_DEFAULT.into())
    }
}

impl Deref for SupPeriods {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl fmt::Display for SupPeriods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let periods: Vec<String> = self.iter().map(u32::to_string).collect();
        f.write_str(&periods.join(","))
    }
}

impl FromStr for SupPeriods {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text == "none" {
            return Ok(Self(vec![]));
        }
        let periods = text.split(',').map(|period| period.trim().parse());
        let periods: Result<Vec<u32>, _> = periods.collect();
        periods
            .map(Self)
            .map_err(|_error| "periods are seconds with commas between them, or none")
    }
}

/// Whether there are pages for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ui {
    /// There are pages for people.
    #[default]
    On,
    /// Every path below `/ui/` is a 404.
    Off,
}

/// Checked settings of a server.
#[derive(Clone, Debug)]
pub struct Config(ServeArgs);

impl Deref for Config {
    type Target = ServeArgs;

    fn deref(&self) -> &ServeArgs {
        &self.0
    }
}

/// Problems of a configuration: all of them, one a line.
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

impl ConfigError {
    /// Returns the error that one problem makes.
    pub fn of(problem: impl Into<String>) -> Self {
        Self {
            problems: vec![problem.into()],
        }
    }
}

impl Config {
    /// Returns the checked settings: those of `args`, and of their file where they are not `given`
    /// as a flag or in the environment.
    ///
    /// # Errors
    ///
    /// Returns all problems at once.
    pub fn new(args: ServeArgs, given: impl Fn(&str) -> bool) -> Result<Self, ConfigError> {
        let (args, FileProblems { mut problems, keys }) = match args.config.clone() {
            Some(path) => read_file(&path, args, given)?,
            None => (args, FileProblems::default()),
        };
        // A problem does not end the checks, so that the operator sees all problems at once.
        args.check_settings(&keys, &mut problems);
        args.check_folders(&mut problems);
        // The file is read for its problems only. The listeners get their rules from
        // `access_at_start`, and from `access` on SIGHUP.
        if let Some(path) = &args.tokens {
            match read_tokens_at_start(path) {
                Ok((tokens, is_torn)) => {
                    if is_torn {
                        warn!(path = %path.display(), "the last line of the file of tokens is cut short and left out");
                    }
                    if tokens.is_empty() {
                        warn!(path = %path.display(), "the file of tokens is empty, so nobody can publish");
                    }
                }
                Err(wrong) => problems.extend(wrong.problems),
            }
        }
        if problems.is_empty() {
            Ok(Self(args))
        } else {
            Err(ConfigError { problems })
        }
    }

    /// Checks this configuration for the real address of the listener: systemd may have bound the
    /// listener to another address than the configured one.
    ///
    /// # Errors
    ///
    /// Returns the problems of that address.
    pub(crate) fn check_at(&self, listen: SocketAddr) -> Result<(), ConfigError> {
        let mut problems = vec![];
        let there = ServeArgs {
            listen,
            ..self.0.clone()
        };
        // `new` has checked all settings. Here only the checks of the address can fail.
        there.check_settings(&[], &mut problems);
        if problems.is_empty() {
            Ok(())
        } else {
            Err(ConfigError { problems })
        }
    }

    /// Returns the access rules of the main listener, and those of the listener for publishing, if
    /// there is one.
    ///
    /// # Errors
    ///
    /// Returns the problems of the file of tokens.
    pub fn access(&self) -> Result<(Access, Option<Access>), ConfigError> {
        let tokens = self.tokens.as_deref().map(read_tokens).transpose()?;
        Ok(self.access_of(tokens))
    }

    /// Returns the rules as [`access`](Self::access) does, for a start after a power cut: a last
    /// line that the power cut has torn is left out.
    ///
    /// # Errors
    ///
    /// Returns the problems of the file of tokens.
    pub(crate) fn access_at_start(&self) -> Result<(Access, Option<Access>), ConfigError> {
        let tokens = self
            .tokens
            .as_deref()
            .map(read_tokens_at_start)
            .transpose()?;
        Ok(self.access_of(tokens.map(|(tokens, _)| tokens)))
    }

    fn access_of(&self, tokens: Option<TokenGrants>) -> (Access, Option<Access>) {
        let publishes = self.publish_listen.is_some();
        // With a listener for publishing, nobody publishes at the main one, not even with a token.
        match (tokens, publishes) {
            (None, false) => (Access::Anyone, None),
            (None, true) => (Access::Readers, Some(Access::Anyone)),
            (Some(tokens), false) => (Access::Holders(tokens), None),
            (Some(tokens), true) => (
                Access::ReadingHolders(tokens.clone()),
                Some(Access::Holders(tokens)),
            ),
        }
    }

    /// Returns the data folder, which holds the log and everything made from it.
    pub fn data(&self) -> &Path {
        // `check_settings` refuses settings without a data folder.
        self.0.data.as_deref().expect("a checked setting")
    }

    /// Returns the bounds on the connections of each listener.
    pub fn limits(&self) -> Limits {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Limits {
            connections: usize::try_from(self.connections).unwrap_or(usize::MAX),
            idle: seconds(self.idle_timeout),
            body: seconds(self.body_timeout),
            stall: seconds(self.stall_timeout),
            age: seconds(self.connection_age),
        }
    }

    /// Returns all settings that have a value, each with the name in a file and the value in TOML.
    ///
    /// # Errors
    ///
    /// Returns an error if a path is not UTF-8, because a TOML file cannot express such a path.
    pub fn in_toml(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let values = serde_json::to_value(&self.0).map_err(|error| ConfigError {
            problems: vec![error.to_string()],
        })?;
        // The settings come in the order of the flags. A JSON string, number or array of numbers is
        // valid TOML, too.
        let flags = ServeArgs::augment_args(Command::new(""));
        let names = flags.get_arguments().map(|flag| flag.get_id().as_str());
        let shown = names.filter_map(|name| {
            let value = values.get(name).filter(|value| !value.is_null())?;
            Some((name.to_owned(), value.to_string()))
        });
        Ok(shown.collect())
    }

    /// Returns the defaults that the server proposes to feeds; `public_url` is the URL at which
    /// clients see the server.
    pub fn defaults(&self, public_url: &Url) -> Defaults {
        Defaults {
            document_entries: self.document_entries,
            document_bytes: self.document_bytes,
            document_period: self.document_period,
            sup: !self.sup_periods.is_empty(),
            ..Defaults::new(public_url.as_str())
        }
    }
}

fn read_tokens(path: &Path) -> Result<TokenGrants, ConfigError> {
    parse_tokens(path, &text_of_tokens(path)?)
}

/// Reads a file of tokens without a last line that a power cut has torn. Only a start leaves such a
/// line out: later on, the line is a mistake, or somebody is still writing there. Also returns
/// whether there is such a line.
fn read_tokens_at_start(path: &Path) -> Result<(TokenGrants, bool), ConfigError> {
    let text = text_of_tokens(path)?;
    let tokens = parse_tokens(path, access::whole_lines(&text))?;
    Ok((tokens, access::is_torn(&text)))
}

fn text_of_tokens(path: &Path) -> Result<String, ConfigError> {
    // A running server reads the file again, and a pipe would hold the server up.
    let bytes = regular::read(path);
    let text = bytes.and_then(|bytes| access::text_of(bytes).map_err(io::Error::other));
    text.map_err(|error| ConfigError {
        problems: vec![format!("cannot read {}: {error}", path.display())],
    })
}

fn parse_tokens(path: &Path, text: &str) -> Result<TokenGrants, ConfigError> {
    let told = |problem| format!("{}: {problem}", path.display());
    TokenGrants::parse(text).map_err(|problems| ConfigError {
        problems: problems.into_iter().map(told).collect(),
    })
}

/// Returns the listener's address in a configuration file, if the file has one.
///
/// # Errors
///
/// Returns why the file cannot be read.
pub fn listen_in(path: &Path) -> Result<Option<SocketAddr>, ConfigError> {
    let wrong = |problem: String| ConfigError {
        problems: vec![format!("{}: {problem}", path.display())],
    };
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let table = text.parse::<toml::Table>();
    let table = table.map_err(|error| wrong(error.to_string()))?;
    // Only this key is read, so a health check works even if other settings in the file are wrong.
    match table.get("listen").and_then(toml::Value::as_str) {
        None => Ok(None),
        Some(listen) => listen
            .parse()
            .map(Some)
            .map_err(|error| wrong(format!("listen {listen:?}: {error}"))),
    }
}

/// Returns the names of the settings in a file.
///
/// # Errors
///
/// Returns why the file cannot be read.
pub fn keys_in(path: &Path) -> Result<Vec<String>, ConfigError> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string());
    let keys = text.and_then(|text| {
        text.parse::<toml::Table>()
            .map_err(|error| error.to_string())
    });
    match keys {
        Ok(keys) => Ok(keys.into_iter().map(|(name, _)| name).collect()),
        Err(problem) => Err(ConfigError {
            problems: vec![format!("{}: {problem}", path.display())],
        }),
    }
}

/// Problems of a configuration file, and the keys that have them.
#[derive(Default)]
struct FileProblems {
    problems: Vec<String>,
    /// Keys whose values could not be read.
    keys: Vec<String>,
}

/// Fills in the settings of a file that are not `given`. Each key is read by itself, so all
/// problems are reported together.
fn read_file(
    path: &Path,
    args: ServeArgs,
    given: impl Fn(&str) -> bool,
) -> Result<(ServeArgs, FileProblems), ConfigError> {
    // A file that cannot be read, or is not TOML, ends the checks with this one problem.
    let unreadable = |problem: String| ConfigError {
        problems: vec![problem],
    };
    let text = fs::read_to_string(path)
        .map_err(|error| unreadable(format!("cannot read {}: {error}", path.display())))?;
    let told = |error: toml::de::Error| format!("{}: {}", path.display(), error.to_string().trim());
    let file: toml::Table = text.parse().map_err(|error| unreadable(told(error)))?;
    let filled = toml::Table::try_from(&args);
    let mut filled = filled.map_err(|error| unreadable(error.to_string()))?;
    let mut wrong = FileProblems::default();
    for (key, value) in file {
        // serde stops at the first error, so each key is tried alone.
        let alone = toml::Table::from_iter([(key.clone(), value.clone())]);
        if let Err(error) = alone.try_into::<ServeArgs>() {
            wrong.problems.push(told(error));
            wrong.keys.push(key);
        } else if !given(&key) {
            filled.insert(key, value);
        }
    }
    let filled: ServeArgs = filled.try_into().map_err(|error| unreadable(told(error)))?;
    // The path is no key of a file (`serde(skip)`), so `filled` lacks the path.
    let config = args.config;
    Ok((ServeArgs { config, ..filled }, wrong))
}

fn problem_of_url(url: &Url) -> Option<&'static str> {
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Some("is not an http or https URL");
    }
    // Every URL in a document begins with the public URL, so nothing may follow the path of the
    // public URL.
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
        // `localhost` and the names below it are loopback (RFC 6761, 6.3).
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        None => false,
    }
}

/// Returns an absolute path without `..`, and without links as far as the path exists.
fn resolve_path(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let found = path.ancestors().find_map(|ancestor| {
        let real = ancestor.canonicalize().ok()?;
        Some((real, path.strip_prefix(ancestor).ok()?))
    });
    let Some((mut resolved, rest)) = found else {
        return path;
    };
    // No part of the rest exists, so no part is a link that leads elsewhere.
    for part in rest.components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            part => resolved.push(part),
        }
    }
    resolved
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

    fn checked(args: ServeArgs) -> Result<Config, ConfigError> {
        Config::new(args, |_| false)
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut ServeArgs), why: &[&str]) {
        let error = checked(args(change)).expect_err("refused").to_string();
        for why in why {
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn defaults_stay_on_loopback() {
        let config = checked(args(|_| {})).unwrap();
        assert!(config.listen.ip().is_loopback());
        assert_eq!((config.document_entries, config.recent_max_age), (100, 1));
    }

    #[test]
    fn nobody_publishes_unasked_from_beyond_loopback() {
        let outside = |args: &mut ServeArgs| {
            args.listen = "0.0.0.0:80".parse().unwrap();
            args.public_url = Some("https://example.org/".parse().unwrap());
        };
        refused(outside, &["anybody", "--tokens", "--publish-listen"]);
        refused(
            |args| args.public_url = Some("https://example.org/".parse().unwrap()),
            &["anybody"],
        );
        let door = |door: &str| {
            let door = door.parse().unwrap();
            args(|args| {
                outside(args);
                args.publish_listen = Some(door);
            })
        };
        assert!(checked(door("0.0.0.0:81")).is_err());
        for confined in ["127.0.0.1:81", "[::1]:81", "/run/simplefeed/publish.sock"] {
            assert!(checked(door(confined)).is_ok(), "{confined}");
        }
        let tokens = tempfile::NamedTempFile::new().unwrap();
        let with_tokens = args(|args| {
            outside(args);
            args.tokens = Some(tokens.path().into());
        });
        assert!(checked(with_tokens).is_ok());
        let local =
            args(|args| args.public_url = Some("http://localhost:8080/sub".parse().unwrap()));
        assert!(checked(local).is_ok());
    }

    #[test]
    fn all_problems_are_told_at_once() {
        refused(
            |args| {
                args.data = None;
                args.document_entries = 0;
                args.document_bytes = 0;
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

    /// Goal: only the folder for documents may be within the data folder, however its path is
    /// written.
    #[test]
    fn documents_do_not_lie_among_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let with = |www: &str| {
            args(|args| {
                args.data = Some(data.clone());
                args.www = Some(folder.path().join(www));
            })
        };
        for is_there in [false, true] {
            for www in ["data/www", "data/www/sub", "data/../www", "www", "database"] {
                checked(with(www)).unwrap();
            }
            for www in ["data", "data/sled", "data/www/../sled", "www/../data/sled"] {
                let error = checked(with(www)).unwrap_err().to_string();
                assert!(
                    error.contains("is in the data folder"),
                    "{is_there}, {www}: {error}"
                );
            }
            fs::create_dir_all(data.join("www")).unwrap();
        }
        let without_data = |args: &mut ServeArgs| {
            args.data = None;
            args.www = Some("/srv/www".into());
        };
        let error = checked(args(without_data)).unwrap_err().to_string();
        assert!(!error.contains("www"), "{error}");
    }

    #[test]
    fn a_flag_wins_over_the_file_and_unknown_keys_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("simplefeed.toml");
        fs::write(&path, "document_entries = 7\nrecent_max_age = 9\n").unwrap();
        let given = args(|args| {
            args.config = Some(path.clone());
            args.document_entries = 3;
        });
        let config = Config::new(given, |name| name == "document_entries").unwrap();
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
