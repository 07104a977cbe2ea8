//! The seam to a provider.
//!
//! Pure: the trait, and the types of requests and answers.

use std::{collections::HashMap, time::Duration};

use serde::Serialize;
use serde_json::value::RawValue;
use simplefeed_queue::{Limit, QuotaReport};

/// Credential for requests to the provider, with a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credential {
    /// Name of the credential, under which all workers of a queue share the quota.
    pub name: String,
    /// Requests that the credential may make in a window of time.
    pub limit: Limit,
    /// Header field of requests, with the secret.
    pub header: Option<(String, String)>,
}

impl Credential {
    /// Returns a credential without a header field.
    pub fn new(name: impl Into<String>, limit: Limit) -> Self {
        let (name, header) = (name.into(), None);
        Self {
            name,
            limit,
            header,
        }
    }
}

/// Answer to a request.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LookupAnswer {
    /// Answer about each item, unchanged, by the item's id. Answers about items that were not asked
    /// for are ignored. An item without an answer counts as absent.
    pub answers: HashMap<String, Box<RawValue>>,
    /// Time for which the provider wants no other request for these items.
    pub floor: Duration,
    /// The provider's report about the quota.
    pub report: QuotaReport,
}

impl LookupAnswer {
    /// Adds the answer about an item.
    ///
    /// # Errors
    ///
    /// If the answer has no JSON form.
    pub fn insert(
        &mut self,
        id: impl Into<String>,
        answer: &impl Serialize,
    ) -> Result<(), LookupError> {
        let answer = serde_json::value::to_raw_value(answer);
        let answer = answer.map_err(|why| LookupError::failed(&why))?;
        self.answers.insert(id.into(), answer);
        Ok(())
    }
}

/// Why a request has no answer. The error counts against an item only if the provider answers
/// requests for other items, and refuses a request for that item alone or fails at that request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The provider refused the lookup, or the lookup itself refuses an item (400). A status that
    /// means the items, such as 400, 404 or 422, makes the refresher search for the item at fault.
    /// Any other status, such as 401 or 429, makes the credential pause. 403 means the items if the
    /// credential was accepted a short time ago, and the credential otherwise.
    #[error("the provider answered {status}: {detail}")]
    Refused {
        /// HTTP status of the refusal.
        status: u16,
        /// Explanation of the refusal, for people.
        detail: String,
    },
    /// The request failed on the way, or the provider could not answer.
    #[error("{why}")]
    Failed {
        /// The status, if there was an answer.
        status: Option<u16>,
        /// Pause that the provider named.
        pause: Option<Duration>,
        /// Cause of the failure, for people.
        why: String,
    },
}

impl LookupError {
    /// Returns the error of a request that failed on the way.
    pub fn failed(why: &dyn std::error::Error) -> Self {
        let (status, pause, why) = (None, None, why.to_string());
        Self::Failed { status, pause, why }
    }
}

/// A provider that is asked about items.
///
/// The refresher gives up a request after two minutes, and the batch waits that long. So an
/// implementation should have a shorter timeout.
pub trait Lookup: Send + Sync + 'static {
    /// Asks about distinct items: at least one, and at most as many as the refresher's batch may
    /// have, which are 100 by default.
    ///
    /// # Errors
    ///
    /// See [`LookupError`].
    fn lookup(
        &self,
        ids: &[String],
        credential: &Credential,
    ) -> impl Future<Output = Result<LookupAnswer, LookupError>> + Send;
}
