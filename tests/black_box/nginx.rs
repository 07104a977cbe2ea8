//! A real nginx with the configurations of docs/operations.md, and a count of what it asks.
//!
//! Shell: processes, sockets.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::harness::{free_address, pause, signal, workspace};

/// A running nginx. It ends when dropped.
pub(crate) struct Nginx {
    child: Child,
    /// Where it listens: `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Nginx {
    /// Starts nginx with one of the files in `docs/nginx`, but for addresses and folders.
    pub(crate) fn start(config: &str, folder: &Path, upstream: &str, www: &Path) -> Self {
        Self::start_edited(config, folder, upstream, www, str::to_owned)
    }

    /// Starts nginx as [`start`](Self::start) does, with a configuration changed by `edit`.
    pub(crate) fn start_edited(
        config: &str,
        folder: &Path,
        upstream: &str,
        www: &Path,
        edit: impl FnOnce(&str) -> String,
    ) -> Self {
        let site = fs::read_to_string(workspace().join("docs/nginx").join(config)).unwrap();
        let site = edit(&site);
        // A free port may be taken before nginx has it; then another one is.
        (0..5)
            .find_map(|_| Self::try_start(&site, folder, upstream, www))
            .expect("nginx starts")
    }

    fn try_start(site: &str, folder: &Path, upstream: &str, www: &Path) -> Option<Self> {
        let address = free_address();
        let cache = folder.join("cache");
        let site = replace(site, "listen 80;", &format!("listen {address};"));
        let site = replace(
            &site,
            "server 127.0.0.1:8080;",
            &format!("server {upstream};"),
        );
        let site = replace(&site, "/var/cache/simplefeed", cache.to_str().unwrap());
        let site = site.replace("/var/lib/simplefeed/www", www.to_str().unwrap());
        let own = folder.to_str().unwrap();
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {own}/{kind};\n"))
            .collect();
        // Started by root, workers would not be allowed into a temporary folder.
        let user = if fs::metadata("/proc/self").unwrap().is_root() {
            "user root root;"
        } else {
            ""
        };
        let whole = format!(
            "daemon off;\n{user}\npid {own}/nginx.pid;\nerror_log {own}/error.log warn;\n\
             worker_processes 2;\nevents {{ worker_connections 512; }}\n\
             http {{\naccess_log {own}/access.log;\n{paths}\n{site}\n}}\n"
        );
        let path = folder.join("nginx.conf");
        fs::write(&path, whole).unwrap();
        let pid = folder.join("nginx.pid");
        let _absent = fs::remove_file(&pid);
        let mut child = Command::new("nginx")
            .arg("-e")
            .arg(folder.join("error.log"))
            .arg("-c")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        for _ in 0..500 {
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            if pid.exists() && TcpStream::connect(&address).is_ok() {
                return Some(Self { child, address });
            }
            pause(Duration::from_millis(20));
        }
        panic!("nginx does not answer");
    }

    /// Returns the URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it only if it is asked to end.
        signal("TERM", self.child.id());
        let _status = self.child.wait();
    }
}

trait IsRoot {
    fn is_root(&self) -> bool;
}

impl IsRoot for fs::Metadata {
    fn is_root(&self) -> bool {
        std::os::unix::fs::MetadataExt::uid(self) == 0
    }
}

/// Replaces what must be there, so that a changed configuration cannot slip through untested.
#[track_caller]
pub(crate) fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the configuration has no {from:?}");
    text.replace(from, to)
}

/// Stands between nginx and the server, and counts the requests for each path.
pub(crate) struct Counter {
    /// Where it listens.
    pub(crate) address: String,
    asked: Asked,
    connections: Arc<AtomicUsize>,
}

impl Counter {
    /// Passes everything on to `server`.
    pub(crate) fn before(server: &str) -> Self {
        Self::slow(server, Duration::ZERO)
    }

    /// Passes everything on to `server`, requests for anything but recent documents only after a
    /// while.
    pub(crate) fn slow(server: &str, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(BTreeMap::new()));
        let connections = Arc::<AtomicUsize>::default();
        let (counted, server) = (Arc::clone(&asked), server.to_owned());
        let opened = Arc::clone(&connections);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                opened.fetch_add(1, Ordering::SeqCst);
                let (counted, server) = (Arc::clone(&counted), server.clone());
                // Without a server the connection just closes.
                if let Ok(server) = TcpStream::connect(server) {
                    pass_on(client, server, counted, delay);
                }
            }
        });
        Self {
            address,
            asked,
            connections,
        }
    }

    /// Returns how many connections were opened.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns how often each path was asked for.
    pub(crate) fn asked(&self) -> BTreeMap<String, usize> {
        self.asked.lock().unwrap().clone()
    }

    /// Returns how often frozen documents of a feed were asked for, by path.
    pub(crate) fn archives_asked(&self, archived: u64) -> BTreeMap<String, usize> {
        let is_archived = |path: &String| {
            let number = path.strip_prefix("/feeds/a/")?.strip_suffix(".atom")?;
            Some(number.parse::<u64>().ok()? <= archived)
        };
        let mut asked = self.asked();
        asked.retain(|path, _| is_archived(path) == Some(true));
        asked
    }
}

type Asked = Arc<Mutex<BTreeMap<String, usize>>>;

fn pass_on(client: TcpStream, server: TcpStream, asked: Asked, delay: Duration) {
    let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let count = move |head: &[u8]| {
        count(&asked, head);
        if !head.windows(11).any(|window| window == b"recent.atom") {
            pause(delay);
        }
    };
    std::thread::spawn(move || copy(client, server, count));
    std::thread::spawn(move || copy(back.0, back.1, |_| {}));
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length) = from.read(&mut buffer) {
        see(&buffer[..length]);
        if length == 0 || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _closed = to.shutdown(Shutdown::Write);
}

/// Requests without a body are short: nginx sends each in one piece.
fn count(asked: &Mutex<BTreeMap<String, usize>>, piece: &[u8]) {
    let text = String::from_utf8_lossy(piece);
    for line in text.lines().filter(|line| line.ends_with(" HTTP/1.1")) {
        if let Some(path) = line.split(' ').nth(1) {
            *asked.lock().unwrap().entry(path.into()).or_default() += 1;
        }
    }
}
