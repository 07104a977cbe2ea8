//! Messages beside the data: on stderr, for a person or for a program.
//!
//! Shell: stderr. The form of messages is set once, from the command line and `NO_COLOR`.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, StderrLock},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde::Serialize;
use simplefeed_client::{PublishError, error_text};

use crate::duration;

/// Longest time that a line waits for the reader of stderr.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of bytes that a pipe accepts in one piece (`PIPE_BUF`).
const PIPE_BYTES: usize = 4_096;

/// Form of the messages, as the command line sets it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Voice {
    pub(crate) loudness: Loudness,
    /// Whether each message is a JSON object on one line.
    pub(crate) json: bool,
    /// Whether `NO_COLOR` is set.
    pub(crate) plain: bool,
}

/// Amount of messages, in rising order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loudness {
    /// Errors only, as with `--quiet`.
    Quiet,
    #[default]
    Normal,
    /// Everything, as with `--verbose`.
    Verbose,
}

static VOICE: OnceLock<Voice> = OnceLock::new();

#[derive(Serialize)]
struct FailureLine<'a> {
    error: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    exit: u8,
}

/// Sets the form of all later messages.
pub(crate) fn speak(voice: Voice) {
    // Only main calls this, once.
    let _spoken_before = VOICE.set(voice).is_err();
}

fn current_voice() -> Voice {
    VOICE.get().copied().unwrap_or_default()
}

/// Returns whether text is to have no colours.
pub(crate) fn is_plain() -> bool {
    current_voice().plain
}

/// Prints a warning, for an operator.
pub(crate) fn warning(text: &str) {
    print_message("warning", "33", text);
}

/// Warns that a publisher tries again.
pub(crate) fn retrying(error: &PublishError, pause: Duration) {
    warning(&format!("{}{}", error_text(error), again_in(pause)));
}

/// Warns that an entry is skipped because the format cannot print that entry.
pub(crate) fn skipped(id: &str, error: &anyhow::Error) {
    // An id of a foreign feed can be as long as its document.
    let id: String = id.chars().take(200).collect();
    warning(&format!(
        "entry {id} is passed over, it cannot be printed: {error:#}"
    ));
}

/// Prints the result of a command.
pub(crate) fn note(text: &str) {
    if current_voice().json {
        print_message("note", "", text);
    } else if current_voice().loudness > Loudness::Quiet {
        write_line(text);
    }
}

/// Prints a detail, with `--verbose` only.
pub(crate) fn detail(text: &str) {
    if current_voice().loudness == Loudness::Verbose {
        print_message("note", "2", text);
    }
}

/// Prints the fault of a command line.
pub(crate) fn misuse(text: &str) {
    write_line(text.trim_end());
}

/// Prints a failure: the error, its causes, and a hint.
pub(crate) fn error(error: &anyhow::Error, hint: Option<&str>, exit: u8) {
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    if current_voice().json {
        let error = error.to_string();
        let failure = FailureLine {
            error,
            causes,
            hint,
            exit,
        };
        write_line(&serde_json::to_string(&failure).unwrap_or_default());
        return;
    }
    write_line(&format!("{} {error}", in_colour("error:", "31")));
    for cause in causes {
        write_line(&format!("caused by: {cause}"));
    }
    if let Some(hint) = hint {
        write_line(&format!("hint: {hint}"));
    }
}

/// Writes a line. If stderr is closed, or the reader reads nothing for `PATIENCE`, the rest of the
/// line is dropped, and work goes on.
fn write_line(text: &str) {
    // Set when a line timed out. Until the pipe accepts bytes again, later lines are dropped
    // without a wait.
    static STANDS_STILL: AtomicBool = AtomicBool::new(false);
    // The lock is held, because another thread's line must not come between the check and the
    // write.
    let stderr = io::stderr().lock();
    let line = format!("{text}\n");
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        let patience = if STANDS_STILL.load(Ordering::Relaxed) {
            Duration::ZERO
        } else {
            PATIENCE
        };
        if !is_writable(&stderr, patience) {
            STANDS_STILL.store(true, Ordering::Relaxed);
            return;
        }
        STANDS_STILL.store(false, Ordering::Relaxed);
        // A pipe that accepts anything accepts this many bytes at once (pipe(7)).
        let (piece, _) = rest.split_at(rest.len().min(PIPE_BYTES));
        match rustix::io::write(&stderr, piece) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            // Nothing was written: the next round asks again whether the reader takes bytes.
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}

/// Waits for at most `patience`. Returns whether a write would not block.
fn is_writable(stderr: &StderrLock<'_>, patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        let left = Timespec::try_from(patience.saturating_sub(began.elapsed())).ok();
        match poll(&mut [PollFd::new(stderr, PollFlags::OUT)], left.as_ref()) {
            // A signal has interrupted the wait.
            Err(Errno::INTR) => {}
            // A descriptor that cannot be polled counts as writable.
            asked => return asked.map_or(true, |ready| ready > 0),
        }
    }
}

/// Returns a number and the words for that number: `one` for 1, else `many`.
pub(crate) fn count<N>(number: N, one: &str, many: &str) -> String
where
    N: Copy + From<u8> + PartialEq + Display,
{
    let words = if number == N::from(1) { one } else { many };
    format!("{number} {words}")
}

/// Returns the pause before another try, as the end of a warning.
pub(crate) fn again_in(pause: Duration) -> String {
    // The pause is rounded to whole seconds: parts of a second do not matter to a person.
    let seconds = pause.as_secs() + u64::from(pause.subsec_millis() >= 500);
    match seconds {
        0 => "; trying again".into(),
        seconds => format!("; trying again in {}", duration::shown(seconds)),
    }
}

fn print_message(what: &str, colour: &str, text: &str) {
    if current_voice().loudness == Loudness::Quiet {
        return;
    }
    if current_voice().json {
        let mut line = serde_json::Map::new();
        line.insert(what.into(), text.into());
        write_line(&serde_json::Value::from(line).to_string());
    } else {
        write_line(&format!(
            "{} {text}",
            in_colour(&format!("{what}:"), colour)
        ));
    }
}

/// Returns text in a colour (an ANSI code), if stderr is a terminal and `NO_COLOR` is not set.
fn in_colour(text: &str, colour: &str) -> String {
    // A file or a program would get the codes as text.
    if current_voice().plain || !io::stderr().is_terminal() {
        return text.into();
    }
    format!("\x1b[{colour}m{text}\x1b[0m")
}
