//! Answers about updates: SUP documents, for everybody and for token holders.
//!
//! Shell: the part of [`Handler`] that reads the SUP view.

use std::sync::Arc;

use hyper::{HeaderMap, Uri, header::LINK};
use simplefeed_core::feed::{FeedKey, Numbered};

use super::{Handler, Terms, depends_on_reader, off_thread, period_of, place_of};
use crate::{
    access::{Access, Sight},
    http::{
        answers::{Answer, header_value},
        problem::Problem,
        reply::{Audience, Lifetimes},
    },
    log::{LogError, Series, settings_of},
    sup::{Sup, Told},
    views::sup::Circle,
};

impl Handler {
    /// Answers with a SUP document: the current one of a period, or an archived window.
    pub(super) async fn updates(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        circle: Circle,
        window: Option<Numbered>,
        access: &Access,
    ) -> Result<Answer, Problem> {
        let query = uri.query().unwrap_or_default();
        let nothing = || Problem::not_found(format!("there is nothing at {}", uri.path()));
        let sup = self.sup.as_ref().ok_or_else(nothing)?;
        let period = match window {
            None => period_of(query, sup.periods())?,
            // A window has no query. The default period sets the lifetime of one that is made for its reader.
            Some(_) => period_of("", sup.periods())?,
        };
        // Before the lookup, for the same reason as in `shown`.
        let over = self.left_behind();
        let told = self.sup_document(sup, period, headers, circle, window, access);
        let told = told.await?.ok_or_else(|| match window {
            Some(_) => nothing(),
            None => Problem::unavailable("what happened before the start is being read"),
        })?;
        let audience = match circle {
            Circle::Public => Audience::Everybody,
            Circle::Apart => Audience::Entitled,
        };
        let policy = if told.resource.frozen {
            self.lifetimes.of(&told.resource, audience)
        } else {
            Lifetimes::of_sup(period, audience)
        };
        let previous = told.previous.map(|previous| {
            let link = format!("<{previous}>; rel=\"prev-archive\"");
            (LINK, header_value(&link))
        });
        let terms = Terms {
            audience,
            policy,
            more: previous.into_iter().collect(),
            over,
        };
        let sent = self.send(place_of(uri), headers, told.resource, terms);
        let mut answer = sent.await?;
        if circle == Circle::Apart {
            depends_on_reader(&mut answer);
        }
        Ok(answer)
    }

    /// Returns a SUP document, if there is one.
    async fn sup_document(
        &self,
        sup: &Arc<Sup>,
        period: u32,
        headers: &HeaderMap,
        circle: Circle,
        window: Option<Numbered>,
        access: &Access,
    ) -> Result<Option<Told>, Problem> {
        // The usual request is answered from memory, without a thread.
        if (circle, window) == (Circle::Public, None)
            && let Some(told) = sup.public_at_once(period)
        {
            return Ok(Some(told));
        }
        let sup = Arc::clone(sup);
        let sight = access.sight(headers);
        // Documents for token holders are made one at a time. One for a stranger is cheap and does not queue.
        let turn = if circle == Circle::Apart && !sight.is_none() {
            Some(self.apart.acquire().await)
        } else {
            None
        };
        let documents = Arc::clone(&self.documents);
        let told = off_thread(move || {
            let (log, open) = (&**documents.log(), documents.open());
            let tells = |feed| {
                // Open feeds are known in memory. The log is read only for a reader with rights over closed ones.
                Ok(open.has(log, feed)? || !sight.is_none() && may_be_told(log, feed, &sight)?)
            };
            match (circle, window) {
                (_, Some(name)) => sup.archived(circle, name, &tells),
                (Circle::Public, None) => Ok(sup.public(period)),
                (Circle::Apart, None) => Ok(sup.apart(period, &tells)?),
            }
        })
        .await;
        drop(turn);
        told
    }
}

/// Whether the sender of a request may see a feed's updates.
fn may_be_told(log: &dyn Series, feed: FeedKey, sight: &Sight) -> Result<bool, LogError> {
    let Some(head) = log.feed(feed)? else {
        return Ok(false);
    };
    let settings = settings_of(log, feed, head.revision)?;
    Ok(!settings.is_closed() || sight.shows(&settings.name))
}
