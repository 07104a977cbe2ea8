//! Large bodies that the kernel sends from a copy of its own, without copying bytes for each
//! connection.
//!
//! Shell: files in memory, sockets. A body that was read and checked is written once to an
//! anonymous file in memory. The file is then sealed against all changes. Where such a body is to
//! be written to a socket, the kernel sends the file's pages. No file on the disk is sent this way:
//! the bytes may have changed since the check.
//!
//! Bytes of a body with a copy are recognised by their address. A copy keeps the body alive, so no
//! other bytes can be at the body's address as long as the copy exists. Bytes without a copy are
//! written as usual.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, IoSlice},
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use parking_lot::RwLock;
use rustix::process::{Resource, getrlimit};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};
use tracing::debug;

/// Shortest body that is worth a copy, in bytes. The head and the copy take two system calls
/// instead of one, which is slower for a shorter body.
const BODY_BYTES_MIN: usize = 16 * 1024;
/// Largest number of copies at a time. Each copy is an open file.
pub const COPIES_MAX: usize = if cfg!(target_os = "linux") { 128 } else { 0 };
/// Upper bound of the bytes of all copies together.
const COPIES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bodies with a copy.
#[derive(Default)]
pub struct KernelCopies {
    copies: RwLock<CopyIndex>,
    /// Largest number of copies, which `most_copies` computes once.
    most: OnceLock<usize>,
}

#[derive(Default)]
struct CopyIndex {
    /// Copies, each under the address of the first byte of the body.
    by_address: BTreeMap<usize, Arc<KernelCopy>>,
    bytes: usize,
}

struct KernelCopy {
    /// Keeps the address from being that of other bytes.
    body: Bytes,
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "other systems make no copy")
    )]
    file: OwnedFd,
}

/// Registration of a body. Dropping the registration removes the copy.
pub struct Registration {
    copies: Arc<KernelCopies>,
    address: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut copies = self.copies.copies.write();
        let gone = copies.by_address.remove(&self.address);
        copies.bytes -= gone.as_ref().map_or(0, |gone| gone.body.len());
        // The file is closed without the lock, for which all connections wait.
        drop(copies);
        drop(gone);
    }
}

impl fmt::Debug for KernelCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelCopies").finish_non_exhaustive()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}

impl CopyIndex {
    fn has_place_for(&self, body: &Bytes, most: usize) -> bool {
        self.by_address.len() < most
            && self.bytes + body.len() <= COPIES_BYTES_MAX
            && !self.by_address.contains_key(&body.as_ptr().addr())
    }
}

impl KernelCopies {
    /// Copies a body. Returns `None` if the body is short or has a copy already, if there is no
    /// room for another copy, or if the system refuses the copy. The body is sent all the same.
    pub fn copy(self: &Arc<Self>, body: &Bytes) -> Option<Registration> {
        if body.len() < BODY_BYTES_MIN
            || !self.copies.read().has_place_for(body, self.most_copies())
        {
            return None;
        }
        // The lock is not held here: writing a file takes long, and all connections wait for the
        // lock.
        let file = sealed_file(body)
            .inspect_err(|error| debug!(%error, "a body cannot be copied to the kernel"))
            .ok()?;
        let copy = KernelCopy {
            body: body.clone(),
            file,
        };
        self.register(copy)
    }

    /// Returns the largest number of copies: an eighth of the open files that the process may have,
    /// so that other parts of the process find handles, but at most [`COPIES_MAX`].
    fn most_copies(&self) -> usize {
        *self.most.get_or_init(|| {
            let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            COPIES_MAX.min(usize::try_from(files / 8).unwrap_or(usize::MAX))
        })
    }

    fn register(self: &Arc<Self>, copy: KernelCopy) -> Option<Registration> {
        let address = copy.body.as_ptr().addr();
        let mut copies = self.copies.write();
        // Another connection may have copied this body, or filled the room, meanwhile.
        if !copies.has_place_for(&copy.body, self.most_copies()) {
            return None;
        }
        copies.bytes += copy.body.len();
        copies.by_address.insert(address, Arc::new(copy));
        let copies = Arc::clone(self);
        Some(Registration { copies, address })
    }

    /// Returns the copy that contains these bytes, and the offset of the bytes in that copy.
    fn find_copy(&self, bytes: &[u8]) -> Option<(Arc<KernelCopy>, usize)> {
        if bytes.len() < BODY_BYTES_MIN {
            return None;
        }
        let address = bytes.as_ptr().addr();
        let copies = self.copies.read();
        // After a part of a body was sent, hyper offers the rest, which begins within the copy.
        let (begin, copy) = copies.by_address.range(..=address).next_back()?;
        let place = address - begin;
        let is_within = place + bytes.len() <= copy.body.len();
        // The clone keeps the copy while the bytes are sent, even if the body is unregistered
        // meanwhile.
        is_within.then(|| (Arc::clone(copy), place))
    }

    /// Returns the number of copies.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.copies.read().by_address.len()
    }
}

/// A TCP connection whose large bodies are sent by the kernel.
#[derive(Debug)]
pub struct Sending {
    stream: TcpStream,
    copies: Arc<KernelCopies>,
}

impl Sending {
    /// Wraps a connection that sends the bodies in `copies` without copying them.
    pub fn new(stream: TcpStream, copies: Arc<KernelCopies>) -> Self {
        Self { stream, copies }
    }

    /// Sends `head`, then `length` bytes of a copy from the offset `place` on. Returns the number
    /// of bytes sent, of both together.
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        head: &[IoSlice<'_>],
        copy: &KernelCopy,
        place: usize,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            let sent = self.stream.try_io(Interest::WRITABLE, || {
                send(&self.stream, head, copy, place, length)
            });
            match sent {
                // The stream counts as unready now, so the next turn of the loop waits.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }
}

impl AsyncRead for Sending {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Sending {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some((copy, place)) = self.copies.find_copy(bytes)
            && let Ok(sent @ 1..) = ready!(self.poll_send(context, &[], &copy, place, bytes.len()))
        {
            return Poll::Ready(Ok(sent));
        }
        // This write also serves a body whose file the system refuses to send. On a broken
        // connection, this write returns the error.
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let found = slices.iter().enumerate().find_map(|(index, slice)| {
            let (copy, place) = self.copies.find_copy(slice)?;
            Some((index, slice.len(), copy, place))
        });
        if let Some((index, length, copy, place)) = found
            && let head = slices.get(..index).unwrap_or_default()
            && let Ok(sent @ 1..) = ready!(self.poll_send(context, head, &copy, place, length))
        {
            return Poll::Ready(Ok(sent));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Writes bytes to a file in memory that nobody can change.
#[cfg(target_os = "linux")]
fn sealed_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|most| most < length)
    {
        // A write beyond this limit would raise SIGXFSZ, which ends a process that does not handle
        // the signal.
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let name = "simplefeed-body";
    // `MFD_NOEXEC_SEAL` needs Linux 6.3.
    let file = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(name, flags))?;
    let mut file = std::fs::File::from(file);
    io::Write::write_all(&mut file, bytes)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Sends `head`, then `length` bytes of a copy from the offset `place` on. Returns the number of
/// bytes that the socket accepted, of both together.
#[cfg(target_os = "linux")]
fn send(
    socket: impl AsFd,
    head: &[IoSlice<'_>],
    copy: &KernelCopy,
    place: usize,
    length: usize,
) -> io::Result<usize> {
    use rustix::{
        fs::sendfile,
        net::{SendAncillaryBuffer, SendFlags, sendmsg},
    };

    let head_bytes = head.iter().map(|slice| slice.len()).sum();
    let mut sent = 0;
    if head_bytes > 0 {
        // `MSG_MORE` holds back a partial packet: the body follows.
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        sent = sendmsg(&socket, head, &mut SendAncillaryBuffer::default(), flags)?;
        if sent < head_bytes {
            return Ok(sent);
        }
    }
    let mut from = u64::try_from(place).map_err(io::Error::other)?;
    match sendfile(&socket, &copy.file, Some(&mut from), length) {
        Ok(of_body) => Ok(sent + of_body),
        // The head is sent, so the error is dropped: the next write begins with the body.
        Err(_) if sent > 0 => Ok(sent),
        Err(error) => Err(error.into()),
    }
}

/// Fails, because this system has no sealed files. So no body has a copy.
#[cfg(not(target_os = "linux"))]
fn sealed_file(_: &[u8]) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn send(_: impl AsFd, _: &[IoSlice<'_>], _: &KernelCopy, _: usize, _: usize) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// Returns bytes of which no two stretches are alike.
    fn body(length: u32) -> Bytes {
        (0..length)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
            .collect()
    }

    /// Goal: only the bytes of a registered body find a copy, and only until the registration is
    /// dropped.
    #[test]
    fn only_the_bytes_of_a_body_have_its_copy() {
        let copies = Arc::new(KernelCopies::default());
        let first = body(10_000);
        let place_of = |bytes: &[u8]| copies.find_copy(bytes).map(|(_, place)| place);
        let held = copies.copy(&first).unwrap();
        assert!(copies.copy(&first).is_none(), "a second copy");
        assert_eq!(place_of(&first), Some(0));
        assert_eq!(place_of(first.get(5_000..).unwrap()), Some(5_000));
        let short = first.get(..BODY_BYTES_MIN - 1).unwrap();
        assert!(place_of(short).is_none(), "not worth it");
        assert!(copies.copy(&Bytes::copy_from_slice(short)).is_none());
        let alike = Bytes::copy_from_slice(&first);
        assert!(place_of(&alike).is_none(), "alike, and elsewhere");
        // This body is a part of larger bytes. The bytes around the body have no copy.
        let part = alike.slice(1_000..30_000);
        let _of_part = copies.copy(&part).unwrap();
        assert_eq!(place_of(&part), Some(0));
        for (begin, end) in [(999, 29_000), (2_000, 30_001)] {
            assert!(place_of(alike.get(begin..end).unwrap()).is_none());
        }
        drop(held);
        assert!(place_of(&first).is_none());
        assert!(copies.copy(&first).is_some(), "once more");
    }

    /// Goal: the kernel sends the bytes that were checked, because no holder of the file can change
    /// them.
    #[test]
    fn nobody_can_change_a_copy() {
        let copies = Arc::new(KernelCopies::default());
        let body = body(10_000);
        let _held = copies.copy(&body).unwrap();
        let (copy, _) = copies.find_copy(&body).unwrap();
        let file = std::fs::File::from(copy.file.try_clone().unwrap());
        for refused in [
            std::os::unix::fs::FileExt::write_all_at(&file, b"x", 0),
            file.set_len(1),
            file.set_len(1_000_000),
        ] {
            let error = refused.expect_err("the file is sealed");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn copies_are_bounded() {
        let copies = Arc::new(KernelCopies::default());
        let bodies: Vec<_> = (0..=COPIES_MAX).map(|_| body(5_000)).collect();
        let mut held: Vec<_> = bodies.iter().filter_map(|body| copies.copy(body)).collect();
        assert_eq!((held.len(), copies.count()), (COPIES_MAX, COPIES_MAX));
        held.pop();
        assert!(copies.copy(bodies.last().unwrap()).is_some());
        held.clear();
        let few = Arc::new(KernelCopies {
            most: OnceLock::from(3),
            ..KernelCopies::default()
        });
        held.extend(bodies.iter().filter_map(|body| few.copy(body)));
        assert_eq!(held.len(), 3);
        held.clear();
        let large: Vec<_> = (0..5).map(|_| body(1_000_000)).collect();
        held.extend(large.iter().filter_map(|body| copies.copy(body)));
        assert_eq!(held.len(), COPIES_BYTES_MAX / 4_000_000);
    }

    /// Returns both ends of a connection. The second end sends with `copies`.
    async fn connection(copies: &Arc<KernelCopies>) -> (TcpStream, Sending) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (client, Sending::new(server, Arc::clone(copies)))
    }

    /// Goal: all bytes arrive in order at a slow peer, with and without copies, and also if a copy
    /// is removed while a body is being sent.
    #[tokio::test]
    async fn everything_arrives_in_order() {
        let copies = Arc::new(KernelCopies::default());
        let (mut client, mut sending) = connection(&copies).await;
        let (large, other) = (body(1_500_000), body(20_000).slice(3..));
        let mut held: Vec<_> = [&large, &other]
            .map(|body| copies.copy(body).unwrap())
            .into();
        let parts: [&[u8]; 8] = [
            b"head", b"more", &large, b"next", &other, &other, b"", &large,
        ];
        let sent = async {
            for mut slices in [
                &mut parts.map(IoSlice::new)[..],
                &mut [IoSlice::new(&large)],
            ] {
                while !slices.is_empty() {
                    let count = sending.write_vectored(slices).await.unwrap();
                    assert!(count > 0, "nothing is written");
                    IoSlice::advance_slices(&mut slices, count);
                }
            }
            // A plain `write` works as well, also from the middle of a body on.
            let mut rest = large.get(77..).unwrap();
            while !rest.is_empty() {
                let count = sending.write(rest).await.unwrap();
                rest = rest.get(count..).unwrap();
                held.clear();
            }
            sending.shutdown().await.unwrap();
        };
        let received = async {
            let mut all = vec![];
            let mut some = vec![0; 50_000];
            loop {
                let count = client.read(&mut some).await.unwrap();
                if count == 0 {
                    return all;
                }
                all.extend_from_slice(some.get(..count).unwrap());
                if all.len() % 7 == 0 {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            }
        };
        let (received, ()) = tokio::join!(received, sent);
        let mut expected = parts.concat();
        expected.extend_from_slice(&large);
        expected.extend_from_slice(large.get(77..).unwrap());
        assert!(received == expected, "{} bytes", received.len());
    }

    /// Registers a body with `file` in place of a copy of the body.
    fn register(copies: &Arc<KernelCopies>, body: &Bytes, file: OwnedFd) -> Registration {
        let body = body.clone();
        copies.register(KernelCopy { body, file }).unwrap()
    }

    /// Goal: the kernel sends a body from the registered file.
    /// Method: the file has other bytes than the body, and these bytes arrive.
    #[tokio::test]
    async fn the_kernel_sends_its_copy() {
        let copies = Arc::new(KernelCopies::default());
        let (mut client, mut sending) = connection(&copies).await;
        let body = body(5_000);
        let other = vec![b'x'; body.len()];
        let _held = register(&copies, &body, sealed_file(&other).unwrap());
        let mut slices = &mut [IoSlice::new(b"head"), IoSlice::new(&body)][..];
        while !slices.is_empty() {
            let count = sending.write_vectored(slices).await.unwrap();
            IoSlice::advance_slices(&mut slices, count);
        }
        sending.shutdown().await.unwrap();
        let mut received = vec![];
        client.read_to_end(&mut received).await.unwrap();
        assert!(received == [b"head", &other[..]].concat());
    }

    /// Goal: where the system sends no file, the body arrives all the same.
    #[tokio::test]
    async fn a_body_that_the_kernel_does_not_send_is_written() {
        let copies = Arc::new(KernelCopies::default());
        let (mut client, mut sending) = connection(&copies).await;
        let body = body(5_000);
        // The first file is empty. The second is a pipe, which the kernel cannot send as a file.
        let (pipe, _writer) = io::pipe().unwrap();
        for file in [sealed_file(b"").unwrap(), pipe.into()] {
            let _held = register(&copies, &body, file);
            let mut slices = &mut [IoSlice::new(b"head"), IoSlice::new(&body)][..];
            while !slices.is_empty() {
                let count = sending.write_vectored(slices).await.unwrap();
                assert!(count > 0, "nothing is written");
                IoSlice::advance_slices(&mut slices, count);
            }
            sending.write_all(&body).await.unwrap();
        }
        sending.shutdown().await.unwrap();
        let mut received = vec![];
        client.read_to_end(&mut received).await.unwrap();
        assert!(received == [b"head", &body[..], &body].concat().repeat(2));
    }
}
