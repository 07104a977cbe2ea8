//! The PostgreSQL of this machine, for tests here and in `tests/`.
//!
//! Shell: processes.

use std::{
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Returns a program of the newest PostgreSQL, which Debian puts into a folder for its version.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let programs = versions
        .flatten()
        .map(|item| item.path().join("bin").join(name));
    let newest = programs.filter(|path| path.exists()).max();
    newest.unwrap_or_else(|| panic!("{name} is missing: apt-get install postgresql"))
}

/// The user and group of PostgreSQL, if the test may become them: PostgreSQL refuses to run as root.
fn user() -> Option<(u32, u32)> {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2).map(|field| field.parse().unwrap());
    Some((fields.next()?, fields.next()?))
}

/// Returns a command that runs a program in a folder, as the user of PostgreSQL.
pub(crate) fn command(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(program(name));
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Makes an empty database cluster in `data` below a folder.
pub(crate) fn make_cluster(folder: &Path) {
    if let Some((user, group)) = user() {
        std::os::unix::fs::chown(folder, Some(user), Some(group)).unwrap();
    }
    let mut init = command("initdb", folder);
    init.args(["-A", "trust", "-U", "postgres", "-D", "data"]);
    assert!(init.status().unwrap().success());
}
