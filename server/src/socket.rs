//! Unix sockets that nobody can open before their permissions are right.
//!
//! Shell: the file system.

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::Path,
};

/// Binds a socket that takes connections without blocking, with the permissions `mode`.
///
/// # Errors
///
/// Returns the operating system's answer; a path of more than about 100 bytes is too long.
pub fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let private = path.with_extension("new");
    let _leftover = fs::remove_dir_all(&private);
    fs::DirBuilder::new().mode(0o700).create(&private)?;
    let bound = private.join("s");
    let listener = UnixListener::bind(&bound).and_then(|listener| {
        fs::set_permissions(&bound, fs::Permissions::from_mode(mode))?;
        listener.set_nonblocking(true)?;
        // It takes the place of one that a killed server left.
        fs::rename(&bound, path)?;
        Ok(listener)
    });
    let _removed = fs::remove_dir_all(&private);
    listener
}
