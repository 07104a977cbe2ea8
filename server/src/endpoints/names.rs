//! Names of feeds, and patterns of them, in the bodies of requests.
//!
//! Pure.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use simplefeed_core::{
    feed::FeedPattern,
    limits::{FOLLOWED_FEEDS_MAX, FOLLOWED_PATTERNS_MAX},
    refusal::Refusal,
};
use simplefeed_http::problem::Problem;

/// Maximum number of items in one list.
pub(super) const FOLLOWED_MAX: usize = FOLLOWED_FEEDS_MAX + FOLLOWED_PATTERNS_MAX;

/// Names and patterns, at most as many as a timeline can follow: without this bound, a list of
/// short names would take many times the memory of the body.
#[derive(Debug, Default)]
pub(super) struct BoundedNames(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for BoundedNames {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bounded;

        impl<'de> Visitor<'de> for Bounded {
            type Value = BoundedNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {FOLLOWED_MAX} names and patterns")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<BoundedNames, A::Error> {
                let mut names = vec![];
                while let Some(name) = from.next_element()? {
                    if names.len() == FOLLOWED_MAX {
                        return Err(A::Error::invalid_length(FOLLOWED_MAX + 1, &self));
                    }
                    names.push(name);
                }
                Ok(BoundedNames(names))
            }
        }

        from.deserialize_seq(Bounded)
    }
}

/// Returns the feeds and patterns that some texts name.
pub(super) fn patterns(texts: &[String], member: &str) -> Result<Vec<FeedPattern>, Problem> {
    let parsed = texts.iter().map(|text| {
        FeedPattern::parse(text).ok_or_else(|| {
            // The message must stay short, however long the text is.
            let text: String = text.chars().take(100).collect();
            let detail = format!(
                "{text:?} is no name of a feed, nor the beginning of a name, followed by *"
            );
            let refusal = Refusal::unacceptable(detail, "Simplefeed profile: following");
            Problem::from(&refusal.at_element(member))
        })
    });
    parsed.collect()
}
