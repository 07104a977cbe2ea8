//! Files and folders as a disk may have them.
//!
//! Shell: writes them into a folder, and compares them with one.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::Path,
    rc::Rc,
    time::{Duration, SystemTime},
};

use super::content::{Content, folded};

/// Seconds and nanoseconds since 1970.
pub(super) type FileTime = (i64, u32);

/// Files and folders by their paths.
#[derive(Debug, Default)]
pub(super) struct Tree(BTreeMap<String, Item>);

#[derive(Debug)]
struct Item {
    kind: ItemKind,
    mode: u32,
    modified: Option<FileTime>,
}

/// Kind of a file, and its bytes.
#[derive(Debug)]
pub(super) enum ItemKind {
    Folder,
    File(Rc<Content>),
    Socket,
}

impl Tree {
    pub(super) fn add(
        &mut self,
        path: String,
        kind: ItemKind,
        mode: u32,
        modified: Option<FileTime>,
    ) {
        let item = Item {
            kind,
            mode,
            modified,
        };
        self.0.insert(path, item);
    }

    /// Returns a digest that is equal for equal trees only.
    pub(super) fn digest(&self) -> u128 {
        let mut all = Vec::with_capacity(self.0.len() * 100);
        for (path, item) in &self.0 {
            all.extend_from_slice(path.as_bytes());
            let (kind, digest) = match &item.kind {
                ItemKind::Folder => (0, 0),
                ItemKind::File(content) => (1, content.digest()),
                ItemKind::Socket => (2, 0),
            };
            let (seconds, nanos) = item.modified.unwrap_or_default();
            all.extend_from_slice(&[0, kind]);
            all.extend_from_slice(&digest.to_be_bytes());
            all.extend_from_slice(&item.mode.to_be_bytes());
            all.extend_from_slice(&seconds.to_be_bytes());
            all.extend_from_slice(&nanos.to_be_bytes());
        }
        folded(&all)
    }

    /// Writes the tree into a new folder.
    pub(super) fn write_to(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir(folder)?;
        for (path, item) in &self.0 {
            let path = folder.join(path);
            match &item.kind {
                ItemKind::Folder => fs::create_dir(&path)?,
                ItemKind::File(content) => {
                    fs::write(&path, content.bytes())?;
                    if let Some((seconds, nanos)) = item.modified {
                        let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanos);
                        let file = fs::File::options().write(true).open(&path)?;
                        file.set_modified(SystemTime::UNIX_EPOCH + since)?;
                    }
                }
                ItemKind::Socket => drop(UnixListener::bind(&path)?),
            }
        }
        // Behind the items within: a folder may be closed to its owner.
        for (path, item) in self.0.iter().rev() {
            fs::set_permissions(folder.join(path), fs::Permissions::from_mode(item.mode))?;
        }
        Ok(())
    }

    /// Returns the differences between the tree and a folder.
    pub(super) fn differences(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut found = vec![];
        let mut rest: BTreeMap<&str, &Item> = self
            .0
            .iter()
            .map(|(path, item)| (path.as_str(), item))
            .collect();
        let mut folders = vec![String::new()];
        while let Some(within) = folders.pop() {
            for entry in fs::read_dir(folder.join(&within))? {
                let entry = entry?;
                let path = join(&within, &entry.file_name().to_string_lossy());
                let meta = fs::symlink_metadata(entry.path())?;
                let Some(item) = rest.remove(path.as_str()) else {
                    found.push(format!("{path} is not in the model"));
                    continue;
                };
                if meta.permissions().mode() & 0o7777 != item.mode {
                    found.push(format!("{path} has another mode"));
                }
                match &item.kind {
                    ItemKind::Folder if meta.is_dir() => folders.push(path),
                    ItemKind::File(content) if meta.is_file() => {
                        if fs::read(entry.path())? != content.bytes() {
                            found.push(format!("{path} has other bytes"));
                        }
                        let set = item.modified;
                        if set.is_some_and(|set| meta.modified().ok().map(file_time) != Some(set)) {
                            found.push(format!("{path} has another time"));
                        }
                    }
                    ItemKind::Socket if !meta.is_file() && !meta.is_dir() => {}
                    _ => found.push(format!("{path} is of another kind")),
                }
            }
        }
        found.extend(rest.keys().map(|path| format!("{path} is not on the disk")));
        Ok(found)
    }
}

/// Returns a path within a folder; that of the root is empty.
pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

pub(super) fn file_time(time: SystemTime) -> FileTime {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (
            i64::try_from(since.as_secs()).unwrap(),
            since.subsec_nanos(),
        ),
        Err(_) => (0, 0),
    }
}
