//! Programs under measurement, and the CPU time they use.
//!
//! Shell: processes and `/proc`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};

/// A started program. It is ended when dropped.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    /// Where it listens: `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Program {
    /// Starts our server on a data folder.
    pub(crate) fn simplefeed(data: &Path) -> anyhow::Result<Self> {
        let program = release_program("simplefeed-server")?;
        let mut child = Command::new(program)
            .args([
                "--log",
                "error",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--data",
            ])
            .arg(data)
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take().context("its stderr is a pipe")?;
        let mut lines = BufReader::new(stderr).lines();
        while let Some(line) = lines.next().transpose()? {
            if let Some(address) = line.strip_prefix("listening on http://") {
                let address = address.to_owned();
                return Ok(Self { child, address });
            }
        }
        bail!("the server did not start")
    }

    /// Starts nginx, one worker per core, with a server block.
    pub(crate) fn nginx(folder: &Path, server: &str) -> anyhow::Result<Self> {
        let program = ["/usr/sbin/nginx", "/usr/bin/nginx"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let program = program.context("nginx is missing: apt-get install nginx-light")?;
        // Taken and given back: nginx cannot say which free port it got.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let config = format!(
            "daemon off; worker_processes auto; pid {0}/pid; error_log {0}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 100000000; sendfile on; tcp_nopush on;\n\
             open_file_cache max=1000; types {{ application/atom+xml atom; }}\n\
             client_body_temp_path {0}; proxy_temp_path {0}; fastcgi_temp_path {0}; uwsgi_temp_path {0}; scgi_temp_path {0};\n\
             server {{ listen 127.0.0.1:{port}; {server} }} }}\n",
            folder.display()
        );
        let path = folder.join("nginx.conf");
        fs::write(&path, config)?;
        let child = Command::new(program)
            .arg("-c")
            .arg(&path)
            .arg("-p")
            .arg(folder)
            .stderr(Stdio::null())
            .spawn()?;
        let address = format!("127.0.0.1:{port}");
        for _ in 0..200 {
            if std::net::TcpStream::connect(&address).is_ok() {
                return Ok(Self { child, address });
            }
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
        bail!("nginx did not start")
    }

    /// Returns the CPU time used so far by the program and its children, in microseconds.
    pub(crate) fn cpu_micros(&self) -> anyhow::Result<f64> {
        let own = self.child.id();
        let mut ticks = 0.0;
        for item in fs::read_dir("/proc")? {
            let Ok(id) = item?.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else {
                continue;
            };
            // The name in parentheses may hold anything; what follows it does not.
            let fields: Vec<&str> = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .collect();
            let number = |index: usize| {
                fields
                    .get(index)
                    .and_then(|field| field.parse::<f64>().ok())
                    .unwrap_or(0.0)
            };
            let parent = fields.get(1).and_then(|field| field.parse::<u32>().ok());
            if id == own || parent == Some(own) {
                ticks += number(11) + number(12);
            }
        }
        Ok(ticks * 10_000.0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let command = format!("kill -TERM {}", self.child.id());
        let asked = Command::new("sh").args(["-c", &command]).status();
        if asked.is_err() {
            drop(self.child.kill());
        }
        drop(self.child.wait());
    }
}

/// Returns a program built beside this one.
fn release_program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if cfg!(debug_assertions) || !path.exists() {
        bail!(
            "build everything first: cargo build --release; then run target/release/simplefeed-bench"
        );
    }
    Ok(path)
}
