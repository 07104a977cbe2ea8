//! Unix sockets that nobody can open before their permissions are right.
//!
//! Shell: the file system.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::Path,
};

/// Binds a socket with the permissions `mode`, whose `accept` does not block. Replaces a socket at
/// which nobody listens, such as a killed server leaves, and nothing else.
///
/// # Errors
///
/// [`AddrInUse`](io::ErrorKind::AddrInUse) if something else is there, or somebody listens. Returns
/// the operating system's answer otherwise; a path of more than about 100 bytes is too long.
#[expect(
    clippy::disallowed_methods,
    reason = "a socket is bound anew at each start"
)]
pub fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    if let Ok(there) = fs::symlink_metadata(path) {
        let is_left = there.file_type().is_socket() && UnixStream::connect(path).is_err();
        if !is_left {
            return Err(io::ErrorKind::AddrInUse.into());
        }
    }
    let parent = path.parent().unwrap_or(path);
    // Only the owner can look into this folder, so the socket has the right mode before others can
    // connect.
    let private = tempfile::Builder::new().prefix(".s").tempdir_in(parent)?;
    let bound = private.path().join("s");
    let listener = UnixListener::bind(&bound)?;
    fs::set_permissions(&bound, fs::Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    fs::rename(&bound, path)?;
    Ok(listener)
}
