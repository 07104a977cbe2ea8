//! Questions of `status`, `dead`, `retry` and `drop` to a queue, and the socket of the process that
//! has opened the queue's file.
//!
//! Shell: the queue, and a Unix socket. A question is a line of JSON, and so is the answer.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use simplefeed_queue::{Dead, Namespace, Queue, QueueError, Stats};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    time::Instant,
};

use super::keeper::{Keeper, MOMENT, is_postgres, socket_of};

/// Longest line of a question, or of an answer, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Time for a question together with the answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest number of dead items in an answer, and of ids in a question.
pub(super) const DEAD_MAX: usize = 1_000;

/// There is no queue in a file of this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no queue {0}")]
pub(crate) struct NoQueue(String);

/// A question about the items of a name.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Question {
    Status,
    /// Lists dead items whose ids come after `after`.
    Dead {
        after: Option<String>,
    },
    Retry {
        ids: Vec<String>,
    },
    Drop {
        ids: Vec<String>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ControlAnswer {
    Status(StateCounts),
    Dead(Vec<DeadItem>),
    /// Number of items that were retried or dropped.
    Changed(usize),
    Failed(String),
}

/// Counts of the items under one name, by state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StateCounts {
    pub(super) waiting: u64,
    pub(super) due: u64,
    pub(super) leased: u64,
    pub(super) dead: u64,
    /// Seconds since the due time of the item that is due for longest.
    pub(super) oldest_due_seconds: u64,
}

/// An item that failed too often.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DeadItem {
    pub(super) id: String,
    pub(super) failures: u32,
    pub(super) reason: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct ControlRequest {
    name: String,
    question: Question,
}

/// Answers a question by a call of the queue.
async fn answer_question<Q: Queue>(
    queue: &Q,
    name: &str,
    question: Question,
) -> anyhow::Result<ControlAnswer> {
    let name = Namespace::new(name)?;
    Ok(match question {
        Question::Status => {
            let Stats {
                waiting,
                due,
                leased,
                dead,
                oldest_due,
                next_due: _,
            } = queue.stats(&name).await?;
            let now = queue.now().await?;
            // The due time may lie ahead of a clock that was set back.
            let age = oldest_due.map_or(0, |due| (now - due).num_seconds().max(0).unsigned_abs());
            ControlAnswer::Status(StateCounts {
                waiting,
                due,
                leased,
                dead,
                oldest_due_seconds: age,
            })
        }
        Question::Dead { after } => {
            let dead = queue.dead(&name, after.as_deref(), DEAD_MAX).await?;
            let item = |dead: Dead| DeadItem {
                id: dead.job.key,
                failures: dead.job.failures,
                reason: dead.reason,
            };
            ControlAnswer::Dead(dead.into_iter().map(item).collect())
        }
        Question::Retry { ids } => ControlAnswer::Changed(queue.retry(&name, ids).await?),
        Question::Drop { ids } => ControlAnswer::Changed(queue.remove(&name, ids).await?),
    })
}

/// The process that answers questions: this one by the queue, or another one by a socket.
pub(super) enum Answerer {
    Keeper(Keeper),
    /// Socket of the process that has opened the file.
    Socket(PathBuf),
}

impl Answerer {
    /// Opens the queue, or finds the process that has it.
    pub(super) async fn open(queue: &str) -> anyhow::Result<Self> {
        // Opening would make the file: a mistyped path must not become a queue.
        let path = Path::new(queue);
        if !is_postgres(queue) && !queue.contains("://") && !path.exists() {
            return Err(NoQueue(queue.to_owned()).into());
        }
        if !is_postgres(queue) && queue.contains("://") {
            // The URL may hold a password.
            bail!("--queue is neither a file nor a URL that begins with postgres://");
        }
        let began = Instant::now();
        loop {
            match Keeper::open(queue).await {
                Ok(keeper) => return Ok(Self::Keeper(keeper)),
                Err(QueueError::InUse(path)) => {
                    let socket = socket_of(&path);
                    // Either another command has the file for a moment, or a worker does not listen
                    // yet.
                    if UnixStream::connect(&socket).await.is_ok() || began.elapsed() > MOMENT {
                        return Ok(Self::Socket(socket));
                    }
                    tokio::time::sleep(MOMENT / 20).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) async fn ask(
        &self,
        name: &str,
        question: Question,
    ) -> anyhow::Result<ControlAnswer> {
        let answer = match self {
            Self::Keeper(Keeper::File(queue, _)) => answer_question(queue, name, question).await?,
            Self::Keeper(Keeper::Postgres(queue)) => answer_question(queue, name, question).await?,
            Self::Socket(socket) => {
                let name = name.to_owned();
                let asked = ControlRequest { name, question };
                let asked = tokio::time::timeout(PATIENCE, ask_at(socket, &asked)).await;
                asked.context("no answer in 30 s")?.with_context(|| {
                    format!(
                        "cannot ask the process that has the queue at {}",
                        socket.display()
                    )
                })?
            }
        };
        match answer {
            ControlAnswer::Failed(why) => bail!("{why}"),
            answer => Ok(answer),
        }
    }
}

async fn ask_at(socket: &Path, asked: &ControlRequest) -> anyhow::Result<ControlAnswer> {
    let mut stream = UnixStream::connect(socket).await?;
    let mut line = serde_json::to_vec(asked)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    let mut line = String::new();
    let mut reader = BufReader::new(stream).take(LINE_BYTES_MAX);
    reader.read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

/// The socket of the process that has the file. A drop removes the socket's file.
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    #[expect(
        clippy::disallowed_methods,
        reason = "a socket that is left is replaced by the next process"
    )]
    fn drop(&mut self) {
        // The socket may be gone with the folder.
        let _gone = fs::remove_file(&self.path).is_err();
    }
}

impl Socket {
    /// Begins to listen. Only the process that has opened the queue's file listens, so a socket
    /// that exists was left by a dead process.
    #[expect(
        clippy::disallowed_methods,
        reason = "a socket that is left is replaced by the next process"
    )]
    pub(super) fn listen(file: &Path) -> io::Result<Self> {
        let path = socket_of(file);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        // Whoever may write to the socket may drop items, so only the owner may.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, path })
    }

    /// Answers one question after the other, for ever.
    pub(super) async fn answer_all<Q: Queue>(&self, queue: &Q) {
        loop {
            // An error of one connection concerns only the command that has connected.
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let _ended = tokio::time::timeout(PATIENCE, answer_one(stream, queue)).await;
                }
                // Too many files are open: the pause lets some of them close.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

async fn answer_one<Q: Queue>(stream: UnixStream, queue: &Q) -> anyhow::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    // A caller must not fill this process's memory with a line without an end.
    let mut reader = BufReader::new(read).take(LINE_BYTES_MAX);
    reader.read_line(&mut line).await?;
    let ControlRequest { name, question } = serde_json::from_str(&line)?;
    let answered = answer_question(queue, &name, question).await;
    // An error is an answer, too: the other command prints the cause.
    let answered = answered.unwrap_or_else(|why| ControlAnswer::Failed(format!("{why:#}")));
    let mut line = serde_json::to_vec(&answered)?;
    line.push(b'\n');
    Ok(write.write_all(&line).await?)
}
