//! Handlers on the command line: a command for each entry.
//!
//! Shell: processes.

use std::{num::NonZeroU32, process::Stdio, time::Duration};

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use simplefeed_client::{Delivery, Policy, Worker, worker::HandlerError};
use simplefeed_core::{
    event::{Category, Event},
    feed::is_absolute_iri,
};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{duration, exit::Usage, format::Format};

/// The longest value of a variable, in bytes.
const VARIABLE_BYTES_MAX: usize = 32 * 1024;

/// What to run for an entry
#[derive(Args, Debug)]
pub(crate) struct HandlerArgs {
    /// Command to run for each entry (by `sh -c`), with the entry on its stdin and `$SIMPLEFEED_ID`,
    /// `$SIMPLEFEED_UPDATED`, `$SIMPLEFEED_TYPE` and `$SIMPLEFEED_POSITION` set; exit 0 accepts it
    #[arg(long, value_name = "COMMAND", help_heading = "Handler")]
    pub(crate) exec: Option<String>,
    /// Run the command for so many entries at a time, with a line for each on its stdin, and
    /// `$SIMPLEFEED_ENTRIES` set; exit 0 accepts all of them, otherwise it is run again
    #[arg(
        long,
        value_name = "N",
        help_heading = "Handler",
        requires = "exec",
        conflicts_with_all = ["policy", "attempts", "parked_max", "key", "rate"]
    )]
    pub(crate) batch: Option<NonZeroU32>,
    #[command(flatten)]
    pub(crate) rules: RulesArgs,
}

/// What becomes of entries that the command fails for
#[derive(Args, Debug)]
pub(crate) struct RulesArgs {
    /// What becomes of an entry that the command fails for: block (try again for ever), skip, park, or
    /// park-by-key
    #[arg(long, default_value_t, help_heading = "Handler", requires = "exec")]
    policy: Policy,
    /// How often an entry is tried before it is skipped or parked
    #[arg(
        long,
        value_name = "N",
        help_heading = "Handler",
        default_value = "4",
        requires = "exec"
    )]
    attempts: NonZeroU32,
    /// How long the command may take for one entry; then it is killed
    #[arg(long, value_name = "TIME", help_heading = "Handler", value_parser = duration::parse, default_value = "5m", requires = "exec")]
    attempt_timeout: Duration,
    /// How many entries may be parked; one more stops the consumer
    #[arg(
        long,
        value_name = "N",
        help_heading = "Handler",
        default_value = "10000",
        requires = "exec"
    )]
    parked_max: usize,
    /// Where an entry's key is, for park-by-key: the scheme of a category, or a JSON pointer into the
    /// content, as /customer/id
    #[arg(
        long,
        value_name = "WHERE",
        help_heading = "Handler",
        requires = "exec"
    )]
    key: Option<String>,
}

impl RulesArgs {
    /// Returns a worker that keeps these rules.
    pub(crate) fn worker(&self, worker: Worker) -> Worker {
        let worker = worker
            .policy(self.policy)
            .attempts(self.attempts)
            .parked_max(self.parked_max)
            // The command is killed a little earlier than it is given up.
            .attempt_time(self.attempt_timeout.saturating_add(Duration::from_secs(10)));
        match self.key.clone() {
            Some(place) => worker.key(move |delivery| key_of(delivery, &place)),
            None => worker,
        }
    }

    /// Checks the combinations of options that clap cannot check.
    pub(crate) fn check(&self) -> Result<(), Usage> {
        match (&self.key, self.policy) {
            (None, Policy::ParkByKey) => Err(Usage("park-by-key needs --key".into())),
            (Some(_), policy) if policy != Policy::ParkByKey => {
                Err(Usage("--key is for --policy park-by-key".into()))
            }
            (Some(place), _) if !place.starts_with('/') && !is_absolute_iri(place) => {
                Err(Usage(format!(
                    "--key {place} is neither a JSON pointer, as /customer/id, nor the scheme of a category, which is a URI"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns a handler that runs a command with these rules' timeout.
    pub(crate) fn handler(&self, command: &str, format: Format) -> Handler {
        Handler::new(command.into(), format, self.attempt_timeout)
    }
}

/// Returns the key of an entry, if it has one.
fn key_of(delivery: &Delivery, place: &str) -> Option<String> {
    let event = delivery.event().ok()?;
    if !place.starts_with('/') {
        let mut categories = event.categories?.into_iter();
        return categories.find_map(|category| match category {
            Category::Full(full) if full.scheme.as_deref() == Some(place) => Some(full.term),
            _ => None,
        });
    }
    let content: serde_json::Value = serde_json::from_str(event.content?.get()).ok()?;
    match content.pointer(place)? {
        serde_json::Value::Null => None,
        serde_json::Value::String(key) => Some(key.clone()),
        other => Some(other.to_string()),
    }
}

/// Runs a command for each entry, or for a batch.
#[derive(Debug)]
pub(crate) struct Handler {
    command: String,
    format: Format,
    timeout: Duration,
}

impl Handler {
    /// Returns a handler that runs `command`.
    pub(crate) fn new(command: String, format: Format, timeout: Duration) -> Self {
        Self {
            command,
            format,
            timeout,
        }
    }

    /// Runs the command for one entry.
    pub(crate) async fn handle(&self, delivery: &Delivery) -> Result<(), HandlerError> {
        let event = delivery.event()?;
        let mut input = vec![];
        self.format.write(delivery, &mut input)?;
        self.run(&input, &variables(delivery, &event)).await
    }

    /// Runs the command with `input` on its stdin, and these variables.
    pub(crate) async fn run(
        &self,
        input: &[u8],
        variables: &[(&'static str, String)],
    ) -> Result<(), HandlerError> {
        let mut command = Command::new("sh");
        command
            .args(["-c", &self.command])
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            // Children end with the command; keys typed at the terminal reach only this process.
            .process_group(0);
        for (name, value) in variables {
            // Linux refuses longer variables (E2BIG). The value is in the entry, too.
            if value.len() <= VARIABLE_BYTES_MAX {
                command.env(name, value);
            }
        }
        let mut child = command.spawn().context("the command cannot be run")?;
        let group = Group(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
        let stdin = child.stdin.take();
        let fed = async {
            if let Some(mut stdin) = stdin {
                // A command need not read its input, so a broken pipe is no failure.
                drop(stdin.write_all(input).await);
            }
        };
        let ended = async {
            tokio::pin!(fed);
            // The command may end before it has read everything.
            tokio::select! {
                status = child.wait() => status,
                () = &mut fed => child.wait().await,
            }
        };
        let Ok(status) = tokio::time::timeout(self.timeout, ended).await else {
            drop(group);
            return Err(format!("it took longer than {:?} and was killed", self.timeout).into());
        };
        let status = status?;
        group.leave();
        if status.success() {
            return Ok(());
        }
        Err(status.to_string().into())
    }
}

/// Process group of a command. Dropping it kills the command and all that it started.
struct Group(Option<Pid>);

impl Group {
    /// Lets processes live on that the command left behind.
    fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // It may have ended meanwhile.
            let _ended = kill_process_group(leader, Signal::KILL).is_err();
        }
    }
}

fn variables(delivery: &Delivery, event: &Event) -> [(&'static str, String); 4] {
    let position = delivery.position();
    [
        ("SIMPLEFEED_ID", delivery.id().into()),
        (
            "SIMPLEFEED_UPDATED",
            event.updated.clone().unwrap_or_default(),
        ),
        ("SIMPLEFEED_TYPE", type_of(event).into()),
        (
            "SIMPLEFEED_POSITION",
            position.map_or(String::new(), |position| position.0.to_string()),
        ),
    ]
}

/// Returns the type of an event's content; empty if there is none.
fn type_of(event: &Event) -> &str {
    match (&event.kind, &event.content) {
        (Some(kind), _) => kind,
        (None, Some(content)) if content.get().starts_with('"') => "text",
        (None, Some(_)) => "application/json",
        (None, None) => "",
    }
}
