//! A provider behind a command. The command reads ids, one on each line, and prints answers, one
//! line of JSON for each.
//!
//! Shell: processes.

use std::time::Duration;

use simplefeed_client::refresher::{Credential, Lookup, LookupAnswer, LookupError};

use super::answers::AnswerPointers;
use crate::child::{ChildOutput, run};

/// Largest output, in bytes.
const OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest time for a command. The refresher would give the command up a little later.
const COMMAND: Duration = Duration::from_secs(110);

/// Looks items up by a command.
pub(super) struct Exec {
    pub(super) command: String,
    pub(super) places: AnswerPointers,
}

impl Lookup for Exec {
    async fn lookup(
        &self,
        ids: &[String],
        credential: &Credential,
    ) -> Result<LookupAnswer, LookupError> {
        let failed = |why: String| LookupError::Failed {
            status: None,
            pause: None,
            why,
        };
        // The command would read an id with a line break as two ids.
        if ids.iter().any(|id| id.contains(['\n', '\r'])) {
            return Err(LookupError::Refused {
                status: 400,
                detail: "an id with a line break cannot be passed to a command".to_owned(),
            });
        }
        let input = ids.join("\n") + "\n";
        let header = credential.header.clone();
        let header = header.map_or(String::new(), |(name, value)| format!("{name}: {value}"));
        // Behind the `@` stands the provider, which `settings::credentials` has added for the
        // quota.
        let name = credential.name.split('@').next().unwrap_or_default();
        let variables = [
            ("SIMPLEFEED_CREDENTIAL", name.to_owned()),
            ("SIMPLEFEED_HEADER", header),
        ];
        let output = ChildOutput::Taken(OUTPUT_BYTES_MAX);
        let output = run(&self.command, input.as_bytes(), &variables, COMMAND, output).await;
        let output = output.map_err(|why| failed(format!("the command failed: {why}")))?;
        // Wrong bytes become U+FFFD, so that one broken text spoils no other answer.
        let text = String::from_utf8_lossy(&output);
        let mut found = LookupAnswer::default();
        found.answers = self.places.of_lines(&text, ids).map_err(failed)?;
        Ok(found)
    }
}
