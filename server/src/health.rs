//! Asks a running server whether it is ready, where there is no `curl`.
//!
//! Shell: a socket.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

/// Time that a server may take to connect, and for each read or write: longer than it takes to say that its disk hangs.
const PATIENCE: Duration = Duration::from_secs(15);
/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Returns whether the server that listens on `address` is ready, and the text of its answer.
///
/// # Errors
///
/// Returns why there is no answer, in words.
pub fn ask(address: SocketAddr) -> Result<(bool, String), String> {
    ask_at(address).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("nobody listens at {address}"),
        // A socket whose time is over says the latter.
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            let seconds = PATIENCE.as_secs();
            format!("the server at {address} gives no answer within {seconds} s")
        }
        io::ErrorKind::InvalidData => format!("whoever listens at {address} is no HTTP server"),
        _ => format!("the server at {address} cannot be asked: {error}"),
    })
}

fn ask_at(address: SocketAddr) -> io::Result<(bool, String)> {
    // A server that listens on every address is reachable at this machine's own.
    let here = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let address = SocketAddr::new(here, address.port());
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let asked = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .filter(|(head, _)| head.starts_with("HTTP/1."))
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok((head.starts_with("HTTP/1.1 200 "), body.trim().into()))
}
