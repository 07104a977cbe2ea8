//! Every proxy that the docs configure, as a running process in front of a server.
//!
//! Shell: processes. nginx, Varnish and Caddy have files of their own, where more is asked of them.

use std::{
    any::Any,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::{
    caddy::Caddy,
    harness::{free_address, signal, wait_for, workspace},
    http::Request,
    nginx::{Nginx, replace},
    packaging::Varnish,
};

/// Configuration of a proxy in `docs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A cache.
    Nginx,
    /// A cache, and frozen documents from the server's folder.
    NginxWithFiles,
    Varnish,
    Caddy,
    Haproxy,
    Apache,
    Squid,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 7] = [
        Self::Nginx,
        Self::NginxWithFiles,
        Self::Varnish,
        Self::Caddy,
        Self::Haproxy,
        Self::Apache,
        Self::Squid,
    ];

    /// Whether it answers for the short URL of a feed, also for one that is not there.
    pub(crate) fn has_short_urls(self) -> bool {
        matches!(self, Self::Nginx | Self::NginxWithFiles | Self::Varnish)
    }

    /// Whether it serves frozen documents as files, with validators of its own.
    pub(crate) fn has_files(self) -> bool {
        matches!(self, Self::NginxWithFiles | Self::Caddy)
    }

    /// Whether it passes each write on, as nginx does where publishers are let through.
    pub(crate) fn lets_all_writes_through(self) -> bool {
        matches!(self, Self::Nginx | Self::NginxWithFiles)
    }

    /// Whether it keeps answers.
    pub(crate) fn is_cache(self) -> bool {
        self != Self::Caddy
    }
}

/// A running proxy. It ends when dropped.
pub(crate) struct Proxy {
    /// Where it listens.
    pub(crate) address: String,
    _process: Box<dyn Any>,
}

impl Proxy {
    /// Starts a proxy that lets publishers with a token through, before a server whose documents are in `www`.
    pub(crate) fn start(kind: Kind, folder: &Path, upstream: &str, www: &Path) -> Self {
        Self::start_edited(kind, folder, upstream, www, &str::to_owned)
    }

    /// Starts a proxy as [`start`](Self::start) does, with a configuration changed by `edit`. Varnish and Caddy are not
    /// changed.
    pub(crate) fn start_edited(
        kind: Kind,
        folder: &Path,
        upstream: &str,
        www: &Path,
        edit: &dyn Fn(&str) -> String,
    ) -> Self {
        // Some of them are another user.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        let folder = folder.join(format!("{kind:?}"));
        fs::create_dir(&folder).unwrap();
        // As docs/operations.md says, to let publishers through.
        let nginx = |config: &str| {
            let edit = |site: &str| edit(&replace(site, "return 403;", "return 418;"));
            let nginx = Nginx::start_edited(config, &folder, upstream, www, edit);
            let address = nginx.address.clone();
            let process: Box<dyn Any> = Box::new(nginx);
            (address, process)
        };
        let (address, process): (String, Box<dyn Any>) = match kind {
            Kind::Nginx => nginx("cache.conf"),
            Kind::NginxWithFiles => nginx("archives.conf"),
            Kind::Varnish => {
                let varnish = Varnish::start(&folder, upstream);
                (varnish.address.clone(), Box::new(varnish))
            }
            Kind::Caddy => {
                let caddy = Caddy::start(&folder, upstream, www);
                (caddy.address.clone(), Box::new(caddy))
            }
            Kind::Haproxy | Kind::Apache | Kind::Squid => {
                let daemon = match kind {
                    Kind::Haproxy => haproxy(&folder, upstream, edit),
                    Kind::Apache => apache(&folder, upstream, edit),
                    _ => squid(&folder, upstream, edit),
                };
                (daemon.address.clone(), Box::new(daemon))
            }
        };
        Self {
            address,
            _process: process,
        }
    }
}

/// A process in the foreground. It ends when dropped.
struct Daemon {
    child: Child,
    address: String,
}

impl Daemon {
    /// Starts a program, and waits until the server answers through it.
    fn start(command: &mut Command, address: String) -> Self {
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut daemon = Self {
            child: command.spawn().unwrap(),
            address,
        };
        wait_for("the proxy does not answer", || {
            let ended = daemon.child.try_wait().unwrap();
            assert_eq!(ended, None, "{command:?}");
            let answer = Request::get("/healthz").send(&daemon.address);
            answer
                .is_ok_and(|answer| answer.status == 200)
                .then_some(())
        });
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Its workers end with it only if it is asked to end.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal("TERM", self.child.id());
        }
        let _status = self.child.wait();
    }
}

/// Returns a file of `docs`, with one part for each pair replaced.
fn configuration(path: &str, edit: &dyn Fn(&str) -> String, parts: &[(&str, &str)]) -> String {
    let text = fs::read_to_string(workspace().join("docs").join(path)).unwrap();
    let parts = parts.iter();
    parts.fold(edit(&text), |text, (from, to)| replace(&text, from, to))
}

/// Makes a folder into which any user may write.
fn open_folder(path: &Path) -> &str {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    path.to_str().unwrap()
}

fn haproxy(folder: &Path, upstream: &str, edit: &dyn Fn(&str) -> String) -> Daemon {
    let address = free_address();
    let docs = workspace().join("docs/haproxy/");
    let parts = [
        ("bind :80", &*format!("bind {address}")),
        ("127.0.0.1:8080", upstream),
        ("/etc/haproxy/", docs.to_str().unwrap()),
    ];
    let path = folder.join("haproxy.cfg");
    fs::write(&path, configuration("haproxy/haproxy.cfg", edit, &parts)).unwrap();
    Daemon::start(
        Command::new("haproxy").args(["-db", "-f"]).arg(path),
        address,
    )
}

/// Modules that Debian loads, and those that the configuration asks for.
const APACHE_MODULES: [&str; 10] = [
    "mpm_event",
    "authz_core",
    "env",
    "setenvif",
    "headers",
    "proxy",
    "proxy_http",
    "cache",
    "cache_disk",
    "rewrite",
];

fn apache(folder: &Path, upstream: &str, edit: &dyn Fn(&str) -> String) -> Daemon {
    let address = free_address();
    let own = open_folder(&folder.join("own")).to_owned();
    let parts = [
        ("*:80", &*address),
        ("127.0.0.1:8080", upstream),
        ("/var/cache/apache2/mod_cache_disk", &*own),
    ];
    let site = configuration("apache/simplefeed.conf", edit, &parts);
    let modules = APACHE_MODULES
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    // Settings of a whole server. It has one process, so that all requests share its connections.
    let server = format!(
        "{}ServerRoot {own}\nDefaultRuntimeDir {own}\nPidFile {own}/pid\nErrorLog {own}/log\n\
         CacheLockPath {own}/lock\nUser www-data\nGroup www-data\nServerName localhost\n\
         Listen {address}\nServerLimit 1\nStartServers 1\nThreadsPerChild 64\nMaxRequestWorkers 64\n",
        modules.concat()
    );
    let path = folder.join("apache.conf");
    fs::write(&path, server + &site).unwrap();
    let mut apache = Command::new("apache2");
    Daemon::start(apache.args(["-D", "FOREGROUND", "-f"]).arg(path), address)
}

fn squid(folder: &Path, upstream: &str, edit: &dyn Fn(&str) -> String) -> Daemon {
    let address = free_address();
    let own = open_folder(&folder.join("own")).to_owned();
    let (_, port) = upstream.split_once(':').unwrap();
    let (_, own_port) = address.split_once(':').unwrap();
    let parts = [
        ("http_port 80", &*format!("http_port {address}")),
        ("parent 8080", &format!("parent {port}")),
        (
            "/var/spool/squid 10000 16 256",
            &format!("{own}/cache 100 4 4"),
        ),
    ];
    let site = configuration("squid/squid.conf", edit, &parts);
    // Nothing of it is where a Squid of the machine looks.
    let whole = format!(
        "{site}pid_filename {own}/pid\naccess_log none\ncache_log {own}/log\ncoredump_dir {own}\n\
         netdb_filename none\npinger_enable off\nvisible_hostname localhost\nshutdown_lifetime 0 seconds\n"
    );
    let path = folder.join("squid.conf");
    fs::write(&path, whole).unwrap();
    let command = || {
        let mut squid = Command::new("squid");
        squid.args(["-N", "-n", &format!("test{own_port}"), "-f"]);
        squid.arg(&path);
        squid
    };
    let made = command().arg("-z").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    Daemon::start(&mut command(), address)
}
