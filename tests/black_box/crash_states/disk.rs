//! The disk of a recording: which of its operations are surely on it, and which a power cut may take back.
//!
//! Pure. Operations are stepped through in the order in which they returned. Each changes the tree that programs see
//! at once, and the disk only once a sync that began after it covers it; until then it is *pending*, also beyond the
//! end of its process. A [`Tree`] of the disk after a power cut has the synced changes and some of the pending ones.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::Path,
    rc::Rc,
};

use serde::{Deserialize, Serialize};

use super::{
    content::{Content, PAGE},
    tree::{FileTime, ItemKind, Tree, file_time, join},
};

/// A place in the order of a recording: the line of its trace.
pub(super) type Moment = u64;
/// An opening of a file, from then to its closing.
pub(super) type Handle = u64;
type NodeId = usize;

/// What of the order of changes survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Model {
    /// That of POSIX: each name needs a sync of its folder.
    Weak,
    /// That of ext4: names keep their order, and a sync that writes metadata writes all names before.
    Ext4,
}

/// An operation of a traced process on the recorded folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Operation {
    pub(super) enter: Moment,
    pub(super) exit: Moment,
    pub(super) call: Call,
}

/// A system call. Paths are relative to the recorded folder, whose own path is empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Call {
    Open {
        path: String,
        file: Handle,
        /// Mode of the file if it is new; `None` opens only what is there.
        create: Option<u32>,
        truncate: bool,
    },
    Write {
        file: Handle,
        /// `None` is the end of the file.
        at: Option<usize>,
        bytes: Vec<u8>,
    },
    Copy {
        from: Handle,
        from_at: usize,
        to: Handle,
        at: usize,
        length: usize,
    },
    Truncate {
        file: Handle,
        length: usize,
    },
    /// Makes a file at least so long.
    Allocate {
        file: Handle,
        end: usize,
    },
    Sync {
        /// `None` is the whole system.
        file: Option<Handle>,
        how: SyncKind,
    },
    MakeFolder {
        path: String,
        mode: u32,
    },
    MakeSocket {
        path: String,
        mode: u32,
    },
    Remove {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    SetMode {
        target: Target,
        mode: u32,
    },
    SetModified {
        target: Target,
        /// `None` is the time of the call.
        time: Option<FileTime>,
    },
}

/// What a call to change attributes names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Target {
    Path(String),
    File(Handle),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SyncKind {
    All,
    Data,
    FileSystem,
}

#[derive(Debug)]
enum Kind {
    Folder {
        now: BTreeMap<String, NodeId>,
        synced: BTreeMap<String, NodeId>,
    },
    File {
        now: Content,
        synced: Rc<Content>,
        /// Counts the changes of `synced`.
        version: u32,
    },
    Socket,
}

/// A file or folder, whatever its names.
#[derive(Debug)]
struct Node {
    kind: Kind,
    /// A path that led to it, for people.
    path: String,
    mode: [u32; 2],
    /// `None` if nobody has set it since the last write.
    modified: [Option<FileTime>; 2],
}

/// Places in the pairs of [`Node`].
const NOW: usize = 0;
const SYNCED: usize = 1;

/// A change that is not durable yet.
#[derive(Debug)]
pub(super) struct Pending {
    /// Its place among all changes of the recording.
    pub(super) number: usize,
    exit: Moment,
    pub(super) change: Change,
}

#[derive(Debug)]
pub(super) enum Change {
    Names(Vec<NameChange>),
    Write(Write),
    Truncate {
        node: NodeId,
        length: usize,
    },
    Mode {
        node: NodeId,
        mode: u32,
    },
    Modified {
        node: NodeId,
        time: Option<FileTime>,
    },
}

/// A name of a folder that leads to another node, or to none, from now on.
#[derive(Clone, Debug)]
pub(super) struct NameChange {
    pub(super) folder: NodeId,
    name: String,
    node: Option<NodeId>,
}

#[derive(Debug)]
pub(super) struct Write {
    pub(super) node: NodeId,
    pub(super) at: usize,
    bytes: Rc<Vec<u8>>,
    /// Length of the file before.
    pub(super) before: usize,
}

impl Write {
    pub(super) fn end(&self) -> usize {
        self.at + self.bytes.len()
    }

    /// Returns whether it makes the file longer. One that did not when it was made never does.
    pub(super) fn grows(&self) -> bool {
        self.end() > self.before
    }
}

impl Change {
    /// Returns the node whose bytes or attributes change.
    pub(super) fn node(&self) -> Option<NodeId> {
        match self {
            Self::Names(_) => None,
            Self::Write(write) => Some(write.node),
            Self::Truncate { node, .. } | Self::Mode { node, .. } | Self::Modified { node, .. } => {
                Some(*node)
            }
        }
    }

    pub(super) fn is_of_bytes(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Truncate { .. })
    }

    pub(super) fn is_attribute(&self) -> bool {
        matches!(self, Self::Mode { .. } | Self::Modified { .. })
    }
}

/// How a write that the power cut interrupts is on the disk. Places are those of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Torn {
    /// Only what lies before the place.
    First(usize),
    /// Only what lies from the place on.
    Last(usize),
    /// All but what lies between the places.
    Hole(usize, usize),
    /// The length, with zeros.
    Length,
    /// The length, with bytes from the place on that were never written to a file.
    Noise(usize),
    /// The length, with the first bytes of the same file from the place on.
    Stale(usize),
}

/// The pending changes that a power cut leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct Survivors {
    /// Those there, in order.
    pub(super) changes: Vec<Rc<Pending>>,
    /// The number of one that is only partly there.
    pub(super) torn: Option<(usize, Torn)>,
    /// The number of a rename between folders, and the one of its two changes that is there.
    pub(super) half: Option<(usize, usize)>,
}

#[derive(Debug)]
pub(super) struct Disk {
    model: Model,
    nodes: Vec<Node>,
    pending: Vec<Rc<Pending>>,
    open: HashMap<Handle, NodeId>,
    changes: usize,
    contents: RefCell<HashMap<ContentKey, Rc<Content>>>,
}

/// Content of a file: its node, the version of what is synced, and the changes on top.
type ContentKey = (NodeId, u32, Vec<(usize, Option<Torn>)>);

const ROOT: NodeId = 0;
const FOLDER_MODE: u32 = 0o755;

impl Disk {
    /// A disk with what is in a folder, all of it durable.
    pub(super) fn load(model: Model, folder: &Path) -> io::Result<Self> {
        let mut disk = Self {
            model,
            nodes: vec![],
            pending: vec![],
            open: HashMap::new(),
            changes: 0,
            contents: RefCell::default(),
        };
        disk.add_node(Kind::folder(), String::new(), FOLDER_MODE);
        disk.load_folder(folder, ROOT)?;
        Ok(disk)
    }

    fn load_folder(&mut self, from: &Path, into: NodeId) -> io::Result<()> {
        for item in fs::read_dir(from)? {
            let item = item?;
            let (kind, name) = (item.file_type()?, item.file_name());
            let name = name.to_string_lossy().into_owned();
            let mode = item.metadata()?.permissions().mode() & 0o7777;
            let path = join(&self.nodes[into].path, &name);
            let node = if kind.is_dir() {
                let node = self.add_node(Kind::folder(), path, mode);
                self.load_folder(&item.path(), node)?;
                node
            } else if kind.is_file() {
                let content = Content::of(&fs::read(item.path())?);
                let node = self.add_node(Kind::file(content), path, mode);
                let time = file_time(item.metadata()?.modified()?);
                self.nodes[node].modified = [Some(time); 2];
                node
            } else if kind.is_socket() {
                self.add_node(Kind::Socket, path, mode)
            } else {
                return Err(io::Error::other(format!("{path} is of no known kind")));
            };
            let Kind::Folder { now, synced } = &mut self.nodes[into].kind else {
                unreachable!("a folder was read into it")
            };
            now.insert(name.clone(), node);
            synced.insert(name, node);
        }
        Ok(())
    }

    fn add_node(&mut self, kind: Kind, path: String, mode: u32) -> NodeId {
        self.nodes.push(Node {
            kind,
            path,
            mode: [mode; 2],
            modified: [None; 2],
        });
        self.nodes.len() - 1
    }

    /// Returns the changes that a power cut may take back, oldest first.
    pub(super) fn pending(&self) -> &[Rc<Pending>] {
        &self.pending
    }

    /// Takes the next operation. Returns whether it may have changed what a power cut leaves.
    ///
    /// # Errors
    ///
    /// Returns that the operation cannot be, as the disk knows it.
    pub(super) fn step(&mut self, operation: &Operation) -> Result<bool, String> {
        let exit = operation.exit;
        let before = self.changes;
        match &operation.call {
            Call::Open {
                path,
                file,
                create,
                truncate,
            } => self.open(exit, path, *file, *create, *truncate)?,
            Call::Write { file, at, bytes } => {
                let node = self.opened(*file)?;
                let at = at.unwrap_or_else(|| self.now(node).len());
                self.write(exit, node, at, bytes);
            }
            Call::Copy {
                from,
                from_at,
                to,
                at,
                length,
            } => {
                let bytes = self.now(self.opened(*from)?).read(*from_at, *length);
                let node = self.opened(*to)?;
                self.write(exit, node, *at, &bytes);
            }
            Call::Truncate { file, length } => {
                let node = self.opened(*file)?;
                self.truncate(exit, node, *length);
            }
            Call::Allocate { file, end } => {
                let node = self.opened(*file)?;
                self.truncate(exit, node, self.now(node).len().max(*end));
            }
            Call::Sync { file, how } => {
                let node = file.map(|file| self.opened(file)).transpose()?;
                self.sync(node, *how, operation.enter);
            }
            Call::MakeFolder { path, mode } => self.make(exit, path, Kind::folder(), *mode)?,
            Call::MakeSocket { path, mode } => self.make(exit, path, Kind::Socket, *mode)?,
            Call::Remove { path } => {
                let (folder, name) = self.place(path)?;
                self.change_names(exit, vec![NameChange::gone(folder, name)]);
            }
            Call::Rename { from, to } => {
                let node = self.found(from)?;
                let ((folder, name), (old_folder, old_name)) = (self.place(to)?, self.place(from)?);
                let new = NameChange::to(folder, name, node);
                self.change_names(exit, vec![new, NameChange::gone(old_folder, old_name)]);
                self.nodes[node].path.clone_from(to);
            }
            Call::Link { from, to } => {
                let node = self.found(from)?;
                let (folder, name) = self.place(to)?;
                self.change_names(exit, vec![NameChange::to(folder, name, node)]);
            }
            Call::SetMode { target, mode } => {
                let node = self.target(target)?;
                self.nodes[node].mode[NOW] = *mode;
                self.add(exit, Change::Mode { node, mode: *mode });
            }
            Call::SetModified { target, time } => {
                let node = self.target(target)?;
                self.nodes[node].modified[NOW] = *time;
                self.add(exit, Change::Modified { node, time: *time });
            }
        }
        Ok(self.changes > before)
    }

    fn target(&self, target: &Target) -> Result<NodeId, String> {
        match target {
            Target::Path(path) => self.found(path),
            Target::File(file) => self.opened(*file),
        }
    }

    fn opened(&self, file: Handle) -> Result<NodeId, String> {
        let node = self.open.get(&file).copied();
        node.ok_or_else(|| format!("handle {file} was never opened"))
    }

    fn now(&self, node: NodeId) -> &Content {
        match &self.nodes[node].kind {
            Kind::File { now, .. } => now,
            _ => panic!("{} has no bytes", self.nodes[node].path),
        }
    }

    fn find(&self, path: &str) -> Option<NodeId> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names
            .into_iter()
            .try_fold(ROOT, |node, name| match &self.nodes.get(node)?.kind {
                Kind::Folder { now, .. } => now.get(name).copied(),
                _ => None,
            })
    }

    fn found(&self, path: &str) -> Result<NodeId, String> {
        self.find(path).ok_or_else(|| format!("{path} is unknown"))
    }

    /// Returns the folder of a path, and its name there.
    fn place(&self, path: &str) -> Result<(NodeId, String), String> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.found(folder)?, name.to_owned()))
    }

    fn open(
        &mut self,
        exit: Moment,
        path: &str,
        file: Handle,
        create: Option<u32>,
        truncate: bool,
    ) -> Result<(), String> {
        let node = match (self.find(path), create) {
            (Some(node), _) => {
                if truncate && matches!(self.nodes[node].kind, Kind::File { .. }) {
                    self.truncate(exit, node, 0);
                }
                node
            }
            (None, Some(mode)) => {
                self.make(exit, path, Kind::file(Content::default()), mode)?;
                self.found(path)?
            }
            (None, None) => return Err(format!("{path} was opened and is unknown")),
        };
        self.open.insert(file, node);
        Ok(())
    }

    fn make(&mut self, exit: Moment, path: &str, kind: Kind, mode: u32) -> Result<(), String> {
        // The recorded folder itself is there.
        if path.is_empty() {
            return Ok(());
        }
        let (folder, name) = self.place(path)?;
        let node = self.add_node(kind, path.to_owned(), mode);
        self.change_names(exit, vec![NameChange::to(folder, name, node)]);
        Ok(())
    }

    fn write(&mut self, exit: Moment, node: NodeId, at: usize, bytes: &[u8]) {
        let before = self.now(node).len();
        if let Kind::File { now, .. } = &mut self.nodes[node].kind {
            now.write(at, bytes);
        }
        self.nodes[node].modified[NOW] = None;
        self.add(
            exit,
            Change::Write(Write {
                node,
                at,
                bytes: Rc::new(bytes.to_vec()),
                before,
            }),
        );
    }

    fn truncate(&mut self, exit: Moment, node: NodeId, length: usize) {
        if self.now(node).len() == length {
            return;
        }
        if let Kind::File { now, .. } = &mut self.nodes[node].kind {
            now.truncate(length);
        }
        self.nodes[node].modified[NOW] = None;
        self.add(exit, Change::Truncate { node, length });
    }

    fn change_names(&mut self, exit: Moment, changes: Vec<NameChange>) {
        for change in &changes {
            if let Kind::Folder { now, .. } = &mut self.nodes[change.folder].kind {
                change.apply(now);
            }
        }
        self.add(exit, Change::Names(changes));
    }

    fn add(&mut self, exit: Moment, change: Change) {
        self.changes += 1;
        self.pending.push(Rc::new(Pending {
            number: self.changes,
            exit,
            change,
        }));
    }

    /// Makes durable what a sync covers of the changes that returned before it began.
    fn sync(&mut self, node: Option<NodeId>, how: SyncKind, began: Moment) {
        let node = node.filter(|_| how != SyncKind::FileSystem);
        let of_file = node.filter(|node| !matches!(self.nodes[*node].kind, Kind::Folder { .. }));
        let is_due = |pending: &Pending| pending.exit <= began;
        let grows = |pending: &Rc<Pending>| match &pending.change {
            Change::Write(write) => write.grows(),
            Change::Truncate { .. } => true,
            _ => false,
        };
        let of_this = |pending: &&Rc<Pending>| pending.change.node() == node;
        let takes_all_names = match (node, of_file, self.model) {
            (None, ..) | (_, None, Model::Ext4) => true,
            (_, _, Model::Weak) => false,
            (_, Some(_), Model::Ext4) => {
                how == SyncKind::All || self.pending.iter().filter(of_this).any(grows)
            }
        };
        for pending in std::mem::take(&mut self.pending) {
            if !is_due(&pending) {
                self.pending.push(pending);
                continue;
            }
            let is_taken = match &pending.change {
                Change::Names(changes) => {
                    let is_synced =
                        |change: &NameChange| takes_all_names || node == Some(change.folder);
                    let (synced, left): (Vec<_>, Vec<_>) =
                        changes.iter().cloned().partition(is_synced);
                    self.sync_names(&synced);
                    if !left.is_empty() && !synced.is_empty() {
                        self.pending.push(Rc::new(Pending {
                            number: pending.number,
                            exit: pending.exit,
                            change: Change::Names(left),
                        }));
                        continue;
                    }
                    left.is_empty()
                }
                change => {
                    let is_of = node.is_none() || change.node() == node;
                    is_of && (change.is_of_bytes() || how != SyncKind::Data)
                }
            };
            if is_taken {
                self.make_durable(&pending.change);
            } else {
                self.pending.push(pending);
            }
        }
    }

    fn sync_names(&mut self, changes: &[NameChange]) {
        for change in changes {
            if let Kind::Folder { synced, .. } = &mut self.nodes[change.folder].kind {
                change.apply(synced);
            }
        }
    }

    fn make_durable(&mut self, change: &Change) {
        match change {
            // They are durable already.
            Change::Names(_) => {}
            Change::Mode { node, mode } => self.nodes[*node].mode[SYNCED] = *mode,
            Change::Modified { node, time } => self.nodes[*node].modified[SYNCED] = *time,
            change => {
                let node = &mut self.nodes[change.node().expect("bytes have a node")];
                node.modified[SYNCED] = None;
                if let Kind::File {
                    synced, version, ..
                } = &mut node.kind
                {
                    apply(Rc::make_mut(synced), change, None);
                    *version += 1;
                }
            }
        }
    }

    /// Returns the tree that programs see.
    pub(super) fn current(&self) -> Tree {
        let mut tree = Tree::default();
        let names = |node: NodeId| match &self.nodes[node].kind {
            Kind::Folder { now, .. } => now.clone(),
            _ => BTreeMap::new(),
        };
        self.walk(ROOT, "", &names, &mut |path, node| {
            let found = &self.nodes[node];
            let kind = match &found.kind {
                Kind::Folder { .. } => ItemKind::Folder,
                Kind::File { now, .. } => ItemKind::File(Rc::new(now.clone())),
                Kind::Socket => ItemKind::Socket,
            };
            tree.add(path, kind, found.mode[NOW], found.modified[NOW]);
        });
        tree
    }

    /// Returns the tree after a power cut.
    pub(super) fn after(&self, survivors: &Survivors) -> Tree {
        let mut tree = Tree::default();
        let mut folders: HashMap<NodeId, BTreeMap<String, NodeId>> = HashMap::new();
        let mut changed: HashMap<NodeId, Vec<&Rc<Pending>>> = HashMap::new();
        for pending in &survivors.changes {
            match &pending.change {
                Change::Names(changes) => {
                    let half = survivors
                        .half
                        .filter(|(number, _)| *number == pending.number);
                    let there = match half {
                        Some((_, part)) => &changes[part..=part],
                        None => changes,
                    };
                    for change in there {
                        let names = || self.synced_names(change.folder).clone();
                        change.apply(folders.entry(change.folder).or_insert_with(names));
                    }
                }
                change => {
                    let node = change.node().expect("only names have none");
                    changed.entry(node).or_default().push(pending);
                }
            }
        }
        let names = |node: NodeId| match (folders.get(&node), &self.nodes[node].kind) {
            (Some(names), _) => names.clone(),
            (None, Kind::Folder { synced, .. }) => synced.clone(),
            _ => BTreeMap::new(),
        };
        self.walk(ROOT, "", &names, &mut |path, id| {
            let node = &self.nodes[id];
            let (mut mode, mut modified) = (node.mode[SYNCED], node.modified[SYNCED]);
            let changes = changed.get(&id).map_or(&[][..], Vec::as_slice);
            for pending in changes {
                match &pending.change {
                    Change::Mode { mode: set, .. } => mode = *set,
                    Change::Modified { time, .. } => modified = *time,
                    _ => modified = None,
                }
            }
            let kind = match &node.kind {
                Kind::Folder { .. } => ItemKind::Folder,
                Kind::Socket => ItemKind::Socket,
                Kind::File {
                    synced, version, ..
                } => ItemKind::File(self.content(id, synced, *version, changes, survivors.torn)),
            };
            tree.add(path, kind, mode, modified);
        });
        tree
    }

    fn content(
        &self,
        node: NodeId,
        synced: &Rc<Content>,
        version: u32,
        changes: &[&Rc<Pending>],
        torn: Option<(usize, Torn)>,
    ) -> Rc<Content> {
        let changes = changes
            .iter()
            .filter(|pending| pending.change.is_of_bytes());
        let with_torn = |pending: &Pending| {
            let torn = torn.filter(|(number, _)| *number == pending.number);
            torn.map(|(_, torn)| torn)
        };
        let changes: Vec<_> = changes
            .map(|pending| (&pending.change, (pending.number, with_torn(pending))))
            .collect();
        if changes.is_empty() {
            return Rc::clone(synced);
        }
        let key = (
            node,
            version,
            changes.iter().map(|(_, key)| *key).collect::<Vec<_>>(),
        );
        let mut contents = self.contents.borrow_mut();
        if let Some(content) = contents.get(&key) {
            return Rc::clone(content);
        }
        if contents.len() > 4_000 {
            contents.clear();
        }
        let mut content = Content::clone(synced);
        for (change, (_, torn)) in changes {
            apply(&mut content, change, torn);
        }
        let content = Rc::new(content);
        contents.insert(key, Rc::clone(&content));
        content
    }

    fn synced_names(&self, folder: NodeId) -> &BTreeMap<String, NodeId> {
        match &self.nodes[folder].kind {
            Kind::Folder { synced, .. } => synced,
            _ => panic!("{} is no folder", self.nodes[folder].path),
        }
    }

    fn walk(
        &self,
        folder: NodeId,
        path: &str,
        names: &impl Fn(NodeId) -> BTreeMap<String, NodeId>,
        visit: &mut impl FnMut(String, NodeId),
    ) {
        // A folder that was moved into another may be in both for a moment; deeper than this would be a circle.
        if path.matches('/').count() > 20 {
            return;
        }
        for (name, node) in names(folder) {
            let path = join(path, &name);
            visit(path.clone(), node);
            if matches!(self.nodes[node].kind, Kind::Folder { .. }) {
                self.walk(node, &path, names, visit);
            }
        }
    }

    /// Returns the path of an open file, and whether it is a folder.
    pub(super) fn path_of(&self, file: Handle) -> Option<(&str, bool)> {
        let node = &self.nodes[*self.open.get(&file)?];
        Some((&node.path, matches!(node.kind, Kind::Folder { .. })))
    }

    /// Returns what an operation does to which kind of file: its call, and the path without numbers.
    pub(super) fn kind_of(&self, operation: &Operation) -> String {
        let path_of = |file: Handle| self.path_of(file).map_or("", |(path, _)| path);
        let (call, path) = match &operation.call {
            Call::Open { path, .. } => ("open", path.as_str()),
            Call::Write { file, .. } => ("write", path_of(*file)),
            Call::Copy { to, .. } => ("copy", path_of(*to)),
            Call::Truncate { file, .. } => ("truncate", path_of(*file)),
            Call::Allocate { file, .. } => ("allocate", path_of(*file)),
            Call::Sync { file, .. } => ("sync", file.map_or("", path_of)),
            Call::MakeFolder { path, .. } => ("folder", path.as_str()),
            Call::MakeSocket { path, .. } => ("socket", path.as_str()),
            Call::Remove { path } => ("remove", path.as_str()),
            Call::Rename { to, .. } => ("rename", to.as_str()),
            Call::Link { to, .. } => ("link", to.as_str()),
            Call::SetMode { target, .. } | Call::SetModified { target, .. } => match target {
                Target::Path(path) => ("set", path.as_str()),
                Target::File(file) => ("set", path_of(*file)),
            },
        };
        without_numbers(format!("{call} {path}"))
    }

    /// Returns what a change does to which kind of file.
    pub(super) fn kind_of_change(&self, pending: &Pending) -> String {
        without_numbers(self.describe(pending))
    }

    /// Returns a change in words.
    pub(super) fn describe(&self, pending: &Pending) -> String {
        let path = |node: NodeId| &self.nodes[node].path;
        match &pending.change {
            Change::Names(changes) => {
                let each = changes.iter().map(|change| {
                    let at = join(path(change.folder), &change.name);
                    match change.node {
                        Some(node) => format!("name {at} ({})", self.kind_word(node)),
                        None => format!("no name {at}"),
                    }
                });
                each.collect::<Vec<_>>().join(", ")
            }
            Change::Write(write) => {
                let (at, end) = (write.at, write.end());
                let grows = if write.grows() { ", grows" } else { "" };
                format!("write {} {at}..{end}{grows}", path(write.node))
            }
            Change::Truncate { node, length } => format!("length {} {length}", path(*node)),
            Change::Mode { node, mode } => format!("mode {} {mode:o}", path(*node)),
            Change::Modified { node, time } => format!("mtime {} {time:?}", path(*node)),
        }
    }

    fn kind_word(&self, node: NodeId) -> &'static str {
        match self.nodes[node].kind {
            Kind::Folder { .. } => "folder",
            Kind::File { .. } => "file",
            Kind::Socket => "socket",
        }
    }
}

/// Returns the words for a kind of file: sled's snapshots have hexadecimal numbers, all others decimal ones.
pub(super) fn without_numbers(mut words: String) -> String {
    words.retain(|c| !matches!(c, '0'..='9' | 'A'..='F'));
    words
}

impl Kind {
    fn folder() -> Self {
        Self::Folder {
            now: BTreeMap::new(),
            synced: BTreeMap::new(),
        }
    }

    fn file(content: Content) -> Self {
        Self::File {
            now: content.clone(),
            synced: Rc::new(content),
            version: 0,
        }
    }
}

impl NameChange {
    fn to(folder: NodeId, name: String, node: NodeId) -> Self {
        let node = Some(node);
        Self { folder, name, node }
    }

    fn gone(folder: NodeId, name: String) -> Self {
        let node = None;
        Self { folder, name, node }
    }

    fn apply(&self, names: &mut BTreeMap<String, NodeId>) {
        match self.node {
            Some(node) => names.insert(self.name.clone(), node),
            None => names.remove(&self.name),
        };
    }
}

/// Applies a change of bytes.
fn apply(content: &mut Content, change: &Change, torn: Option<Torn>) {
    let write = match change {
        Change::Truncate { length, .. } => return content.truncate(*length),
        Change::Write(write) => write,
        _ => return,
    };
    // The length it was made under may not be on the disk: bytes behind the end are then lost.
    let most = if write.grows() {
        write.end()
    } else {
        content.len()
    };
    let end = write.end().min(most);
    if end <= write.at {
        return;
    }
    let bytes = &write.bytes[..end - write.at];
    let part = |from: usize, to: usize| {
        let (from, to) = (from.clamp(write.at, end), to.clamp(write.at, end));
        (from, &bytes[from - write.at..to - write.at])
    };
    let put = |content: &mut Content, (at, bytes): (usize, &[u8])| content.write(at, bytes);
    match torn {
        None => put(content, (write.at, bytes)),
        Some(Torn::First(place)) => put(content, part(write.at, place)),
        Some(Torn::Last(place)) => put(content, part(place, end)),
        Some(Torn::Hole(from, to)) => {
            put(content, part(write.at, from));
            put(content, part(to, end));
        }
        Some(Torn::Length) => content.truncate(content.len().max(end)),
        Some(how @ (Torn::Noise(place) | Torn::Stale(place))) => {
            put(content, part(write.at, place));
            let from = content.len().max(write.at);
            if from < end {
                let fill = if matches!(how, Torn::Noise(_)) {
                    vec![0xa7; end - from]
                } else {
                    let head = content.read(0, PAGE);
                    head.iter().copied().cycle().take(end - from).collect()
                };
                content.write(from, &fill);
            }
        }
    }
}
