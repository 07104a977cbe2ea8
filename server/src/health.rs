//! Asks a running server for its readiness, where there is no `curl`.
//!
//! Shell: a socket.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Longest time for connection and answer together: longer than a server takes to answer that its
/// disk hangs.
const PATIENCE: Duration = Duration::from_secs(15);
/// Length of an answer, in bytes, beyond which nothing more is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Returns whether the server that listens on `address` is ready, and the text of its answer.
///
/// # Errors
///
/// Returns why there is no answer, in words.
pub fn ask(address: SocketAddr) -> Result<(bool, String), String> {
    ask_at(address).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("nobody listens at {address}"),
        // A socket whose timeout has passed returns `WouldBlock`.
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            let seconds = PATIENCE.as_secs();
            format!("the server at {address} gives no answer within {seconds} s")
        }
        io::ErrorKind::InvalidData => format!("whoever listens at {address} is no HTTP server"),
        _ => format!("the server at {address} cannot be asked: {error}"),
    })
}

fn ask_at(address: SocketAddr) -> io::Result<(bool, String)> {
    // A server that listens on every address is reachable at the loopback address, too.
    let here = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let address = SocketAddr::new(here, address.port());
    let deadline = Instant::now() + PATIENCE;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    // A server that reads no request must not hold this command up, either.
    stream.set_write_timeout(Some(PATIENCE))?;
    let asked = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes())?;
    let mut answer = vec![];
    let mut piece = [0; 4_096];
    loop {
        // The deadline holds for the whole answer, however slowly the bytes come.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let read = stream.read(&mut piece)?;
        answer.extend(piece.iter().take(read));
        if read == 0 || answer.len() > ANSWER_BYTES_MAX {
            break;
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .filter(|(head, _)| head.starts_with("HTTP/1."))
        .ok_or(io::ErrorKind::InvalidData)?;
    let is_ready = head.starts_with("HTTP/1.1 200 ");
    // Only one line is returned, without control characters, because the answer may be another
    // program's.
    let said = body.lines().next().unwrap_or_default().trim();
    let said: String = said.chars().filter(|char| !char.is_control()).collect();
    if said.is_empty() {
        let status = head.lines().next().unwrap_or_default();
        let status: String = status.chars().filter(|char| !char.is_control()).collect();
        return Ok((is_ready, format!("it answers {status}")));
    }
    Ok((is_ready, said))
}
