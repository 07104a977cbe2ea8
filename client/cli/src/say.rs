//! Messages beside the data: on stderr, for a person or for a program.
//!
//! Shell: stderr. Set up once, from the command line; `NO_COLOR` is heeded.

use std::{
    error::Error,
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    sync::OnceLock,
};

use serde::Serialize;

/// Form of the messages, as the command line sets it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Voice {
    pub(crate) loudness: Loudness,
    /// One JSON object a line.
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
struct Failure<'a> {
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

fn voice() -> Voice {
    VOICE.get().copied().unwrap_or_default()
}

/// Returns whether text is to have no colours.
pub(crate) fn is_plain() -> bool {
    voice().plain
}

/// Prints a warning, for an operator.
pub(crate) fn warning(text: &str) {
    print_message("warning", "33", text);
}

/// Warns that an entry is skipped because it cannot be printed.
pub(crate) fn skipped(id: &str, error: &anyhow::Error) {
    // An id of a foreign feed can be as long as its document.
    let id: String = id.chars().take(200).collect();
    warning(&format!(
        "entry {id} is passed over, it cannot be printed: {error:#}"
    ));
}

/// Prints the result of a command.
pub(crate) fn note(text: &str) {
    if voice().json {
        print_message("note", "", text);
    } else if voice().loudness > Loudness::Quiet {
        line(text);
    }
}

/// Prints a detail, with `--verbose` only.
pub(crate) fn detail(text: &str) {
    if voice().loudness == Loudness::Verbose {
        print_message("note", "2", text);
    }
}

/// Prints a failure: the error, its causes, and a hint.
pub(crate) fn error(error: &anyhow::Error, hint: Option<&str>, exit: u8) {
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    if voice().json {
        let error = error.to_string();
        let failure = Failure {
            error,
            causes,
            hint,
            exit,
        };
        line(&serde_json::to_string(&failure).unwrap_or_default());
        return;
    }
    line(&format!("{} {error}", in_colour("error:", "31")));
    for cause in causes {
        line(&format!("caused by: {cause}"));
    }
    if let Some(hint) = hint {
        line(&format!("hint: {hint}"));
    }
}

/// Writes a line. A closed stderr is no error.
fn line(text: &str) {
    let mut stderr = io::stderr().lock();
    let _closed = writeln!(stderr, "{text}").is_err();
}

/// Returns a number with the words behind it, in the singular or the plural.
pub(crate) fn count<N>(number: N, one: &str, many: &str) -> String
where
    N: Copy + From<u8> + PartialEq + Display,
{
    let words = if number == N::from(1) { one } else { many };
    format!("{number} {words}")
}

/// Returns an error with its causes, on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn print_message(what: &str, colour: &str, text: &str) {
    if voice().loudness == Loudness::Quiet {
        return;
    }
    if voice().json {
        let mut line = serde_json::Map::new();
        line.insert(what.into(), text.into());
        self::line(&serde_json::Value::from(line).to_string());
    } else {
        line(&format!(
            "{} {text}",
            in_colour(&format!("{what}:"), colour)
        ));
    }
}

/// Returns text in a colour (an ANSI code), where a person may see it.
fn in_colour(text: &str, colour: &str) -> String {
    // A file or a program would get the codes as text.
    if voice().plain || !io::stderr().is_terminal() {
        return text.into();
    }
    format!("\x1b[{colour}m{text}\x1b[0m")
}
