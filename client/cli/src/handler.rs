//! Handlers on the command line: a command for each entry.
//!
//! Shell: processes.

use std::{num::NonZeroU32, time::Duration};

use clap::Args;
use simplefeed_client::{Delivery, Policy, Worker, worker::HandlerError};
use simplefeed_core::{
    event::{Category, Event},
    feed::is_absolute_iri,
};

use crate::{
    child::{self, ChildOutput},
    duration,
    exit::Usage,
    format::Format,
};

/// What to run for an entry
#[derive(Args, Debug)]
pub(crate) struct HandlerArgs {
    /// Command to run for each entry (by `sh -c`), with the entry on its stdin and
    /// `$SIMPLEFEED_ID`, `$SIMPLEFEED_UPDATED`, `$SIMPLEFEED_TYPE` and `$SIMPLEFEED_POSITION` set;
    /// exit 0 accepts it
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
    /// What becomes of an entry that the command fails for: block (try again for ever), skip, park,
    /// or park-by-key
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
    /// Where an entry's key is, for park-by-key: the scheme of a category, or a JSON pointer into
    /// the content, as /customer/id
    #[arg(
        long,
        value_name = "WHERE",
        help_heading = "Handler",
        requires = "exec"
    )]
    key: Option<String>,
}

impl RulesArgs {
    /// Returns the worker with these rules.
    pub(crate) fn worker(&self, worker: Worker) -> Worker {
        let worker = worker
            .policy(self.policy)
            .attempts(self.attempts)
            .parked_max(self.parked_max)
            // Longer than the timeout of the command, which comes first and kills the command with
            // all processes of the command's group.
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

/// Returns the key of an entry, if the entry has a key at `place`.
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
        // Any other JSON value can be a key, too: equal JSON text means equal keys.
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
        // The entry is written in full before the command starts: an entry that cannot be printed
        // must not start a command.
        self.format.write(delivery, &mut input)?;
        self.run(&input, &environment_of(delivery, &event)).await
    }

    /// Runs the command with `input` on stdin, and with these variables.
    pub(crate) async fn run(
        &self,
        input: &[u8],
        variables: &[(&'static str, String)],
    ) -> Result<(), HandlerError> {
        child::run(
            &self.command,
            input,
            variables,
            self.timeout,
            ChildOutput::Passed,
        )
        .await
        .map(drop)
    }
}

fn environment_of(delivery: &Delivery, event: &Event) -> [(&'static str, String); 4] {
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

/// Returns the type of an event's content; empty without a content.
fn type_of(event: &Event) -> &str {
    match (&event.kind, &event.content) {
        (Some(kind), _) => kind,
        // A JSON string without a type is plain text (`docs/protocol.md`).
        (None, Some(content)) if content.get().starts_with('"') => "text",
        (None, Some(_)) => "application/json",
        (None, None) => "",
    }
}
