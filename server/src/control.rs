//! The way to a log that a server has open: a socket in its data folder.
//!
//! Shell: a Unix socket that only its owner can open. A client sends a task as one line of JSON and
//! reads the output, line by line; the last line is the exit code. One task runs at a time, and
//! other tasks wait. A server that is asked to stop breaks off the running task.
//!
//! ```text
//! → {"backup":{"to":"/backups/monday"}}
//! ← "begun"
//! ← {"note":"Copied 12 commits of 3 feeds and 2 archived documents to /backups/monday."}
//! ← {"exit":0}
//! ```

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, channel},
    },
    time::Duration,
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use simplefeed_core::timestamp::Timestamp;
use simplefeed_log::{EntryLog, moment::MomentNote};
use simplefeed_process::{clock::Clock, stop::Stop};
use simplefeed_views::{Views, shown::ShownLog};
use tracing::{info, warn};

use crate::{
    exit,
    upkeep::{OutputLine, Task, run},
};

/// Pause between two checks for a new client, which is the longest delay of a task on an idle
/// server.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for a client, at each read of the task and at each write of the answer.
const WAIT: Duration = Duration::from_secs(2);
/// Time without an answer after which the client tells its user that it waits.
const PATIENCE: Duration = Duration::from_secs(5);
const WAITS: &str =
    "Waiting for the server: it does another task, or can take none now (`health` may say why).";
/// Longest line with a task, in bytes.
const TASK_BYTES_MAX: u64 = 64 * 1024;

/// One line of the server's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerLine {
    /// The server has read the client's line, and carries the order out next.
    Begun,
    Exit(u8),
    #[serde(untagged)]
    Tell(OutputLine),
}

/// Order of a client, sent as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Accept the time of the system clock, however far the clock has leapt.
    AcceptClock,
    /// Do a task of upkeep.
    #[serde(untagged)]
    Do(Task),
}

/// The parts of a server that orders work on.
#[derive(Debug)]
pub struct Ground {
    /// The log, without its timelines.
    pub log: Arc<dyn EntryLog>,
    /// The log with its timelines.
    pub shown: Arc<dyn ShownLog>,
    /// Views that upkeep looks after.
    pub views: Views,
    /// Clock that [`Order::AcceptClock`] sets to the time of the system.
    pub clock: Clock,
    /// Note of the last moment that a server knew.
    pub moment: Option<MomentNote>,
}

impl Ground {
    fn carry_out(&self, order: &Order, tell: &mut dyn FnMut(OutputLine)) -> anyhow::Result<u8> {
        match order {
            Order::Do(task) => run(task, &self.log, &self.shown, &self.views, tell),
            Order::AcceptClock => {
                // The note is written first, so that the clock does not change if the write fails.
                if let Some(moment) = &self.moment {
                    let noted = moment.write(self.clock.system());
                    noted.context(
                        "the moment cannot be noted in the file `clock` of the data folder",
                    )?;
                }
                let now = self.clock.accept();
                tell(OutputLine::Note(accepted(now, self.log.head().last)));
                Ok(exit::OK)
            }
        }
    }
}

/// Returns the message about a clock that was accepted, for a log whose last commit is of the time
/// `last`.
pub fn accepted(now: Timestamp, last: Timestamp) -> String {
    let accepted = format!("The clock is accepted: it is {now}.");
    if last <= now {
        return accepted;
    }
    // Entries keep their order for ever, so no stamp may lie before the last commit.
    format!(
        "{accepted} The last commit is of {last}: new entries are stamped just behind it until the clock has passed it."
    )
}

/// Carries out the orders sent to the socket, until the server stops.
pub fn serve(listener: &UnixListener, ground: &Ground, stop: &Stop) {
    while !stop.is_requested_within(LOOK) {
        // The listener does not block: without a new client, `accept` fails at once.
        let Ok((stream, _)) = listener.accept() else {
            continue;
        };
        if let Err(error) = answer_order(&stream, ground) {
            warn!(%error, "nobody was there any more for the end of a task");
        }
    }
}

fn answer_order(stream: &UnixStream, ground: &Ground) -> io::Result<()> {
    // On some systems, a connection inherits the mode of the listener, which does not block.
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    let mut line = String::new();
    BufReader::new(stream.take(TASK_BYTES_MAX)).read_line(&mut line)?;
    let send = |answer: &AnswerLine| {
        let mut line = serde_json::to_vec(answer).map_err(io::Error::other)?;
        line.push(b'\n');
        (&*stream).write_all(&line)
    };
    // The client may be gone by now. The task is carried out all the same.
    let _unheard = send(&AnswerLine::Begun);
    let outcome = serde_json::from_str::<Order>(&line)
        .map_err(anyhow::Error::from)
        .and_then(|order| {
            info!(?order, "a task begins");
            let mut there = true;
            ground.carry_out(&order, &mut |line| {
                // The client may be gone by now. A task that has begun is finished all the same.
                there = there && send(&AnswerLine::Tell(line)).is_ok();
            })
        });
    let code = match outcome {
        Ok(code) => code,
        Err(error) => {
            for text in exit::texts_of(&error) {
                send(&AnswerLine::Tell(OutputLine::Note(text)))?;
            }
            exit::code_of(&error)
        }
    };
    send(&AnswerLine::Exit(code))
}

/// Gives the server behind a socket an order, and returns the exit code; `None` if there is no
/// server.
///
/// # Errors
///
/// Returns why the server's answer does not arrive.
pub fn ask(path: &Path, order: &Order, tell: &mut dyn FnMut(OutputLine)) -> io::Result<Option<u8>> {
    // A killed server leaves a socket at which nobody listens.
    let Ok(stream) = UnixStream::connect(path) else {
        return Ok(None);
    };
    // Printing may take long, into a pager for instance. The server waits for its client only for
    // `WAIT`, so a thread of its own reads the answer.
    let (send, answers) = channel();
    let answering = stream.try_clone()?;
    let reader = std::thread::Builder::new().spawn(move || {
        for line in BufReader::new(&answering).lines() {
            let answer = line.and_then(|line| Ok(serde_json::from_str::<AnswerLine>(&line)?));
            let ended = matches!(answer, Ok(AnswerLine::Exit(_)) | Err(_));
            if send.send(answer).is_err() || ended {
                return;
            }
        }
    })?;
    // The order is sent last, so that the server begins no task whose answer nobody reads.
    let mut line = serde_json::to_vec(order).map_err(io::Error::other)?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let mut outcome = Err(io::ErrorKind::UnexpectedEof.into());
    let first = answers.recv_timeout(PATIENCE);
    if matches!(first, Err(RecvTimeoutError::Timeout)) {
        tell(OutputLine::Note(WAITS.into()));
    }
    for answer in first.into_iter().chain(answers) {
        match answer? {
            AnswerLine::Begun => {}
            AnswerLine::Tell(line) => tell(line),
            AnswerLine::Exit(code) => outcome = Ok(Some(code)),
        }
    }
    drop(reader.join());
    outcome
}
