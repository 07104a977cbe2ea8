//! A Caddy with the configuration of `docs/caddy`.
//!
//! Shell: a process.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::{
    harness::{free_address, signal, wait_for, workspace},
    http::Request,
    nginx::replace,
};

/// It ends with this value.
pub(crate) struct Caddy {
    child: Child,
    /// Where it listens.
    pub(crate) address: String,
}

impl Caddy {
    pub(crate) fn start(folder: &Path, upstream: &str, www: &Path) -> Self {
        let site = fs::read_to_string(workspace().join("docs/caddy/Caddyfile")).unwrap();
        let address = free_address();
        let site = replace(&site, "feeds.example.org", &format!("http://{address}"));
        let site = replace(&site, "/var/lib/simplefeed/www", www.to_str().unwrap());
        let site = site.replace("127.0.0.1:8080", upstream);
        // Its own interface would have a fixed port, which a second one could not have.
        let site = format!("{{\n\tadmin off\n}}\n{site}");
        let path = folder.join("Caddyfile");
        fs::write(&path, site).unwrap();
        let child = Command::new("caddy")
            .args(["run", "--adapter", "caddyfile", "--config"])
            .arg(&path)
            .env("HOME", folder)
            .env("XDG_DATA_HOME", folder)
            .env("XDG_CONFIG_HOME", folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let caddy = Self { child, address };
        wait_for("Caddy is not ready", || {
            let answer = Request::get("/healthz").send(&caddy.address);
            answer
                .is_ok_and(|answer| answer.status == 200)
                .then_some(())
        });
        caddy
    }
}

impl Drop for Caddy {
    fn drop(&mut self) {
        signal("TERM", self.child.id());
        // It may have ended.
        let _status = self.child.wait();
    }
}
