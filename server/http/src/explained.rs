//! Problem documents in place of hyper's own empty refusals.
//!
//! Shell: a stream around a stream. hyper refuses an unreadable head with a status and no body,
//! before any of our code runs. The stream recognises such an answer among the bytes that hyper
//! writes: alone in a buffer, without a body, with one of two statuses. Answers of ours with these
//! statuses always have a body.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use super::problem::{PROBLEM_TYPE, Problem};

/// Upper bound of hyper's own answers, in bytes.
const ANSWER_BYTES_MAX: usize = 200;

/// A connection whose empty refusals are problem documents.
#[derive(Debug)]
pub(super) struct ExplainingStream<S> {
    stream: S,
    head_bytes_max: usize,
    /// An answer in place of hyper's, and the number of bytes of this answer that are written.
    instead: Option<(Vec<u8>, usize)>,
    /// The rest of a refused request, which is read before the connection is closed.
    rest: Option<Rest>,
}

/// Number of the bytes that may still be read and thrown away, and the time for reading them. A
/// close with a request unread would reset the connection, and the answer would be lost.
#[derive(Debug)]
struct Rest {
    bytes: usize,
    time: Pin<Box<Sleep>>,
}

/// Upper bounds: of the bytes that are read of a refused request, and of the time for reading them.
const REST_BYTES_MAX: usize = 1024 * 1024;
const REST_TIME: Duration = Duration::from_secs(2);

impl<S> ExplainingStream<S> {
    /// Wraps a stream. The explanation names `head_bytes_max`.
    pub(super) fn new(stream: S, head_bytes_max: usize) -> Self {
        Self {
            stream,
            head_bytes_max,
            instead: None,
            rest: None,
        }
    }

    fn explanation_of(&self, written: &[u8]) -> Option<Vec<u8>> {
        if written.len() > ANSWER_BYTES_MAX {
            return None;
        }
        let head = std::str::from_utf8(written)
            .ok()?
            .strip_suffix("\r\n\r\n")?;
        let (line, fields) = head.strip_prefix("HTTP/1.1 ")?.split_once("\r\n")?;
        let mut fields = fields.split("\r\n");
        // An answer with a body needs no explanation.
        if !fields.any(|field| field.eq_ignore_ascii_case("content-length: 0")) {
            return None;
        }
        let max = self.head_bytes_max;
        let problem = match line.get(..3)? {
            "400" => Problem::malformed("the request cannot be read as HTTP/1.1"),
            "431" => Problem::head_too_long(format!(
                "a request's head, its URL included, has at most {max} bytes and 100 fields"
            )),
            _ => return None,
        };
        let body = problem.body();
        // hyper closes the connection after such a refusal, so the answer says `close`, too.
        let mut answer = format!(
            "HTTP/1.1 {line}\r\nconnection: close\r\ncache-control: no-store\r\n\
             content-type: {PROBLEM_TYPE}\r\nx-content-type-options: nosniff\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        answer.extend(body);
        Some(answer)
    }
}

impl<S: AsyncWrite + Unpin> ExplainingStream<S> {
    /// Writes the answer in place of hyper's `length` bytes.
    fn poll_instead(
        &mut self,
        context: &mut Context<'_>,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        if let Some((answer, done)) = &mut self.instead {
            while let Some(rest) = answer.get(*done..).filter(|rest| !rest.is_empty()) {
                let written = ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
                // With a stream that accepts no bytes, this loop would run for ever.
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                *done += written;
            }
            self.instead = None;
            self.rest = Some(Rest {
                bytes: REST_BYTES_MAX,
                time: Box::pin(tokio::time::sleep(REST_TIME)),
            });
        }
        // hyper counts the bytes that hyper offered, not the bytes that took their place.
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ExplainingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ExplainingStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // A write that is under way goes on: hyper offers the same bytes again.
        if self.instead.is_none() {
            self.instead = self.explanation_of(bytes).map(|answer| (answer, 0));
        }
        if self.instead.is_some() {
            return self.poll_instead(context, bytes.len());
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // hyper writes its refusals alone, so only a single buffer can be one.
        let mut slices_with_bytes = slices.iter().filter(|slice| !slice.is_empty());
        if let (Some(only), None) = (slices_with_bytes.next(), slices_with_bytes.next()) {
            return self.poll_write(context, only);
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
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        let this = &mut *self;
        while let Some(rest) = &mut this.rest {
            // Bounded in time and in bytes, because a peer may send for ever.
            if rest.time.as_mut().poll(context).is_ready() {
                break;
            }
            let mut space = [0; 4_096];
            let mut buffer = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            rest.bytes = rest.bytes.saturating_sub(buffer.filled().len());
            if buffer.filled().is_empty() || rest.bytes == 0 {
                break;
            }
        }
        self.rest = None;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty refusal by hyper is replaced. All other answers stay as they are.
    #[test]
    fn only_an_empty_refusal_is_explained() {
        let stream = ExplainingStream::new((), 16_384);
        let empty = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\
                     content-length: 0\r\ndate: Mon, 23 Nov 2026 00:00:00 GMT\r\n\r\n";
        let explained =
            String::from_utf8(stream.explanation_of(empty.as_bytes()).unwrap()).unwrap();
        let (head, body) = explained.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"));
        assert!(
            head.ends_with(&format!("content-length: {}", body.len())),
            "{head}"
        );
        assert!(body.contains("16384 bytes"), "{body}");
        for other in [
            empty.replace("431", "404"),
            empty.replace("content-length: 0", "content-length: 5"),
            empty.to_owned() + "x",
            empty.replace("date", &"d".repeat(200)),
        ] {
            assert_eq!(stream.explanation_of(other.as_bytes()), None, "{other}");
        }
    }
}
