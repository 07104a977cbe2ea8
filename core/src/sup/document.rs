//! SUP documents: written exactly in the reference's form, read more leniently.
//!
//! Pure. Rules SUP-F1 to SUP-F10, and the bounds of SUP-C10.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use url::Url;

use super::{SupId, is_token, second_text, update_digits};
use crate::{
    limits::{SUP_UPDATE_BYTES_MAX, SUP_UPDATES_MAX},
    timestamp::Timestamp,
};

/// Members of a written document before the updates.
#[derive(Clone, Debug)]
pub struct Heading<'a> {
    /// Last second that the document covers completely, counted from 1970.
    pub updated: i64,
    /// First second that the document covers, counted from 1970.
    pub since: i64,
    /// Length of the window without the overlap, in seconds (rule SUP-F1).
    pub period: i64,
    /// The windows that the server offers: period in seconds, and URL.
    pub periods: &'a [(u32, String)],
    /// URL of the archived document that ends where this document begins, relative to this
    /// document; `None` for the first document.
    pub prev_archive: Option<&'a str>,
}

impl Heading<'_> {
    /// Returns a document with these updates, in the order given. Each update is a feed's id, and
    /// the second of the feed's last update.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::sup::{Heading, SupDocument, SupId};
    ///
    /// let heading = Heading {
    ///     updated: 1_231_204_605,
    ///     since: 1_231_204_475,
    ///     period: 60,
    ///     periods: &[(60, "http://example.com/sup.json?seconds=60".into())],
    ///     prev_archive: None,
    /// };
    /// let feed = SupId::parse("4496672d").unwrap();
    /// let text = "{\"updated_time\":\"2009-01-06T01:16:45Z\",\"since_time\":\"2009-01-06T01:14:35Z\",\
    ///     \"period\":60,\"available_periods\":{\"60\":\"http://example.com/sup.json?seconds=60\"},\
    ///     \"prev_archive\":null,\"updates\":[[\"4496672d\",\"d0zjx\"]]}";
    /// assert_eq!(String::from_utf8(heading.document(&[(feed, 1_231_204_605)]))?, text);
    /// assert_eq!(&*SupDocument::read(text.as_bytes())?.updates[0].0, "4496672d");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn document(&self, updates: &[(SupId, i64)]) -> Vec<u8> {
        // An update has 21 bytes (SUP-P6), and all else usually fits into 512.
        let mut out = Vec::with_capacity(512 + updates.len() * 21);
        let (updated, since) = (second_text(self.updated), second_text(self.since));
        let times = format!(r#"{{"updated_time":"{updated}","since_time":"{since}","#);
        out.extend_from_slice(times.as_bytes());
        out.extend_from_slice(format!(r#""period":{}"#, self.period).as_bytes());
        if !self.periods.is_empty() {
            out.extend_from_slice(br#","available_periods":{"#);
            for (index, (seconds, url)) in self.periods.iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                let url = serde_json::to_string(url).expect("a URL has a JSON form");
                out.extend_from_slice(format!(r#"{comma}"{seconds}":{url}"#).as_bytes());
            }
            out.push(b'}');
        }
        // `null` means that archives exist and this document is the first.
        let previous = self
            .prev_archive
            .map_or("null".into(), |name| format!("\"{name}\""));
        out.extend_from_slice(format!(r#","prev_archive":{previous}"#).as_bytes());
        out.extend_from_slice(br#","updates":["#);
        for (index, (feed, second)) in updates.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"[\"");
            out.extend_from_slice(feed.as_str().as_bytes());
            out.extend_from_slice(b"\",\"");
            out.extend_from_slice(&update_digits(*second));
            out.extend_from_slice(b"\"]");
        }
        out.extend_from_slice(b"]}");
        out
    }
}

/// SUP document of any publisher, with the members that consumers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupDocument {
    /// End of the time that the document covers completely.
    pub updated: Timestamp,
    /// Beginning of the time that the document covers.
    pub since: Timestamp,
    /// Length of the window without the overlap, in seconds; at least 1.
    pub period: u64,
    /// Other windows: period in seconds, and URL, relative to this document unless
    /// [resolved](Self::resolved).
    pub periods: BTreeMap<u64, String>,
    /// Whether the publisher archives SUP documents, so that consumers can close every gap.
    pub is_archived: bool,
    /// URL of the archived document that ends where this document begins, relative as in `periods`;
    /// `None` for the first document, or without archives.
    pub prev_archive: Option<String>,
    /// Pairs of a feed's id and an update's id, in document order.
    pub updates: Vec<(Box<str>, Box<str>)>,
}

/// Reason why a SUP document is unusable.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSup(String);

impl SupDocument {
    /// Parses a document. Unknown members are ignored (rule SUP-F5). Numbers count as text and text
    /// as numbers, an empty list as an empty object, and `update_time` as `updated_time` (rule
    /// SUP-F8), because publishers wrote them so.
    ///
    /// # Errors
    ///
    /// Returns the fault of an unusable document, such as a member that is missing or wrong.
    pub fn read(body: &[u8]) -> Result<Self, InvalidSup> {
        let raw: Raw =
            serde_json::from_slice(body).map_err(|error| InvalidSup(error.to_string()))?;
        let instant = |name: &str, text: Option<String>| {
            let text = text.ok_or_else(|| InvalidSup(format!("there is no {name}")))?;
            Timestamp::parse(&text).ok_or_else(|| InvalidSup(format!("{name} is no time")))
        };
        let updated = instant("updated_time", raw.updated_time.or(raw.update_time))?;
        let since = instant("since_time", raw.since_time)?;
        // A reversed window would make every later subtraction negative.
        if since > updated {
            return Err(InvalidSup("it ends before it begins".into()));
        }
        // A window with a wrong period is ignored, because the document itself is still of use.
        let offered = raw
            .available_periods
            .0
            .into_iter()
            .filter_map(|(seconds, url)| {
                let seconds = seconds.trim().parse().ok().filter(|seconds| *seconds > 0)?;
                Some((seconds, url))
            });
        Ok(Self {
            updated,
            since,
            // A period of 0 would ask for polling without a pause.
            period: raw.period.0.max(1),
            periods: offered.collect(),
            is_archived: raw.prev_archive != Previous::Untold,
            prev_archive: match raw.prev_archive {
                Previous::At(url) => Some(url),
                Previous::Untold | Previous::Nothing => None,
            },
            updates: raw.updates.0,
        })
    }

    /// Returns the document with absolute URLs, resolved against `base`; text that is not a URL
    /// stays unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::sup::SupDocument;
    ///
    /// let text = br#"{"updated_time":"2009-01-06T01:16:45Z","since_time":"2009-01-06T01:15:35Z",
    ///     "period":60,"prev_archive":"sup/7.json","updates":[]}"#;
    /// let document = SupDocument::read(text)?.resolved(&"https://e/a/sup.json".parse()?);
    /// assert_eq!(document.prev_archive.as_deref(), Some("https://e/a/sup/7.json"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn resolved(mut self, base: &Url) -> Self {
        let resolve = |url: &mut String| {
            if let Ok(absolute) = base.join(url) {
                *url = absolute.into();
            }
        };
        self.periods.values_mut().for_each(resolve);
        self.prev_archive.iter_mut().for_each(resolve);
        self
    }
}

#[derive(Deserialize)]
struct Raw {
    updated_time: Option<String>,
    update_time: Option<String>,
    since_time: Option<String>,
    period: WholeSeconds,
    #[serde(default)]
    available_periods: OfferedWindows,
    #[serde(default)]
    prev_archive: Previous,
    updates: UpdatePairs,
}

/// The member `prev_archive`, which only publishers with archives have; `null` for the first
/// document.
#[derive(Default, PartialEq, Eq)]
enum Previous {
    #[default]
    Untold,
    Nothing,
    At(String),
}

impl<'de> Deserialize<'de> for Previous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let url = Option::<String>::deserialize(deserializer)?;
        Ok(url.map_or(Self::Nothing, Self::At))
    }
}

/// Whole number of seconds. Some languages write `60.0`.
struct WholeSeconds(u64);

impl<'de> Deserialize<'de> for WholeSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let token = TokenText::deserialize(deserializer)?;
        let seconds = token.0.strip_suffix(".0").unwrap_or(&token.0);
        let period = seconds.parse().map(Self);
        period.map_err(|_error| de::Error::custom("the period is no number"))
    }
}

/// Map of other windows. Some languages write an empty map as a list.
#[derive(Default)]
struct OfferedWindows(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for OfferedWindows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Map(BTreeMap<String, String>),
            Empty([(); 0]),
            Null,
        }
        Ok(match Form::deserialize(deserializer)? {
            Form::Map(periods) => Self(periods),
            Form::Empty([]) | Form::Null => Self::default(),
        })
    }
}

/// Text, or a number converted to text.
struct TokenText(Box<str>);

impl<'de> Deserialize<'de> for TokenText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokenVisitor;
        impl Visitor<'_> for TokenVisitor {
            type Value = TokenText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<TokenText, E> {
                Ok(TokenText(text.into()))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<TokenText, E> {
                Ok(TokenText(number.to_string().into()))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<TokenText, E> {
                Ok(TokenText(number.to_string().into()))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<TokenText, E> {
                Ok(TokenText(format!("{number:?}").into()))
            }
        }
        deserializer.deserialize_any(TokenVisitor)
    }
}

struct UpdatePairs(Vec<(Box<str>, Box<str>)>);

impl<'de> Deserialize<'de> for UpdatePairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UpdatesVisitor;
        impl<'de> Visitor<'de> for UpdatesVisitor {
            type Value = UpdatePairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of pairs")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<UpdatePairs, A::Error> {
                let mut updates = vec![];
                while let Some((feed, update)) = items.next_element::<(TokenText, TokenText)>()? {
                    // The check comes before the push, so that memory stays bounded.
                    if updates.len() == SUP_UPDATES_MAX {
                        return Err(de::Error::custom("there are too many updates"));
                    }
                    // No feed can announce an illegal id, so a pair with such an id is ignored. An
                    // update's id is any text of bounded length (rule SUP-F7).
                    let is_update = (1..=SUP_UPDATE_BYTES_MAX).contains(&update.0.len());
                    if is_token(&feed.0) && is_update {
                        updates.push((feed.0, update.0));
                    }
                }
                Ok(UpdatePairs(updates))
            }
        }
        deserializer.deserialize_seq(UpdatesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SupDocument, InvalidSup> {
        SupDocument::read(text.as_bytes())
    }

    /// SUP-F5, SUP-F8, SUP-F10, and numbers as some publishers wrote them.
    #[test]
    fn what_publishers_wrote_is_read() {
        let text = r#"{"update_time":"2009-01-06T02:16:45+01:00","since_time":"2009-01-06T01:14:35Z",
            "period":"60","extra":{"a":[1]},"available_periods":{"60":"http://e/60","x":"y","0":"z"},
            "updates":[["a","1"],["a","2"],[17,18],["b",-3],["no good","1"],["c","any, \u00e9"],["d",""]]}"#;
        let document = read(text).unwrap();
        assert_eq!(document.updated.to_string(), "2009-01-06T01:16:45.000000Z");
        assert_eq!((document.period, document.is_archived), (60, false));
        let archived = text.replace("\"extra\"", "\"prev_archive\":null,\"extra\"");
        let archived = read(&archived).unwrap();
        assert_eq!((archived.is_archived, archived.prev_archive), (true, None));
        assert_eq!(
            document.periods,
            BTreeMap::from([(60, "http://e/60".into())])
        );
        let pairs: Vec<_> = document.updates.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(
            pairs,
            [
                ("a", "1"),
                ("a", "2"),
                ("17", "18"),
                ("b", "-3"),
                ("c", "any, é")
            ]
        );
        let elsewhere = text.replace("\"60\",\"extra\"", "60.0,\"extra\"");
        let begin = elsewhere.find("{\"60\"").unwrap();
        let end = begin + elsewhere[begin..].find('}').unwrap() + 1;
        for none in ["[]", "null", "{}"] {
            let text = format!("{}{none}{}", &elsewhere[..begin], &elsewhere[end..]);
            let document = read(&text).unwrap();
            assert_eq!((document.period, document.periods.len()), (60, 0));
        }
    }

    #[test]
    fn what_says_too_little_is_refused() {
        let good = r#"{"updated_time":"2009-01-06T01:16:45Z","since_time":"2009-01-06T01:14:35Z","period":60,"updates":[]}"#;
        assert!(read(good).is_ok());
        for (from, to) in [
            ("updated_time", "x"),
            ("since_time", "x"),
            ("\"period\":60", "\"x\":1"),
            ("60", "\"x\""),
            ("60", "[]"),
            ("\"updates\":[]", "\"x\":1"),
            ("[]", "{}"),
            ("[]", "[[\"a\"]]"),
            ("[]", "[[\"a\",\"b\",\"c\"]]"),
            ("01:16:45Z", "01:16:45"),
            ("01:16:45Z", "01:14:34Z"),
            ("]}", "]"),
        ] {
            assert!(read(&good.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }

    /// SUP-P6: an update has 21 bytes, and a written document can be read.
    #[test]
    fn an_update_is_21_bytes() {
        let heading = Heading {
            updated: 1_800_000_070,
            since: 1_800_000_000,
            period: 60,
            periods: &[
                (60, "https://e/sup.json?seconds=60".into()),
                (300, "https://e/\"".into()),
            ],
            prev_archive: Some("sup/7-2.json"),
        };
        let updates: Vec<_> = (0..1_000)
            .map(|n| {
                (
                    SupId::of_bits(n),
                    1_800_000_000 + i64::try_from(n % 70).unwrap(),
                )
            })
            .collect();
        let (none, all) = (heading.document(&[]), heading.document(&updates));
        assert_eq!(all.len(), none.len() + 21 * 1_000 - 1);
        let read = SupDocument::read(&all).unwrap();
        assert_eq!(read.updates.len(), 1_000);
        assert_eq!(read.prev_archive.as_deref(), Some("sup/7-2.json"));
        assert_eq!(read.periods.get(&300).unwrap(), "https://e/\"");
        assert_eq!(
            (read.updated.second(), read.since.second()),
            (1_800_000_070, 1_800_000_000)
        );
    }
}
