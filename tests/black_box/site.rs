//! Web servers that do what they are told, however wrong it is.
//!
//! Shell: sockets. One thread a connection, one request a connection.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A server on loopback; it lives as long as the test program.
pub(crate) struct Site {
    /// Where it listens.
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

/// What was asked for.
pub(crate) struct Asked {
    pub(crate) path: String,
    /// The request's header fields, as they came.
    pub(crate) head: String,
}

impl Site {
    /// Answers each request by what `answer` writes to the connection.
    pub(crate) fn new(answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", answer)
    }

    /// The same at an address of your choice.
    pub(crate) fn at(
        address: &str,
        answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let connections = Arc::<AtomicUsize>::default();
        let (answer, noted) = (Arc::new(answer), Arc::clone(&asked));
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                let (answer, noted) = (Arc::clone(&answer), Arc::clone(&noted));
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let Some(asked) = read(&stream) else { return };
                    noted.lock().unwrap().push(asked.path.clone());
                    answer(&asked, &mut stream);
                });
            }
        });
        Self {
            address,
            asked,
            connections,
        }
    }

    /// Serves the files of a folder, as Atom unless they say otherwise: a file's header fields may stand in
    /// one beside it, `NAME.headers`.
    pub(crate) fn of_folder(folder: &Path) -> Self {
        let folder = folder.to_path_buf();
        Self::new(move |asked, stream| {
            // Whoever has gone away needs no answer.
            let _gone = stream.write_all(&file(&folder, &asked.path)).is_err();
        })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// How often somebody has connected.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The paths asked for so far, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 || line == "\r\n" {
            return Some(Asked { path, head });
        }
        head += &line;
    }
}

/// Returns an answer with a body, and the connection's end.
pub(crate) fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn file(folder: &Path, path: &str) -> Vec<u8> {
    let file: PathBuf = folder.join(path.trim_start_matches('/'));
    let Ok(body) = fs::read(&file) else {
        return answer("404 Not Found", "", b"");
    };
    let more = fs::read_to_string(format!("{}.headers", file.display())).unwrap_or_default();
    let mut headers = more.replace('\n', "\r\n");
    if !headers.contains("Content-Type") {
        let kind = match file.extension().and_then(|extension| extension.to_str()) {
            Some("json") => "application/json",
            _ => "application/atom+xml",
        };
        headers += &format!("Content-Type: {kind}\r\n");
    }
    answer("200 OK", &headers, &body)
}
