//! Access rules: tokens, the rights that tokens give, and the rights of requests without a token.
//!
//! Shell: the random bits of a new token, and the date of today. A token is 256 random bits. The
//! server stores only the SHA-256 of a token, so a leaked file of tokens gives no access.
//!
//! ```text
//! # name : SHA-256 of the token, hex : right : feeds [: last day]
//! shop:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08:publish:orders
//! shop:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08:read:orders-*
//! ```

use std::{
    collections::HashMap,
    fmt,
    str::{self, Utf8Error},
    time::SystemTime,
};

use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap};
use simplefeed_core::{
    digest::Digest,
    feed::{FeedName, FeedPattern},
    sight::Sight,
    timestamp::Timestamp,
};

const DAY_SECONDS: i64 = 86_400;

/// Beginning of every token, by which people and secret scanners recognise one.
const TOKEN_PREFIX: &str = "sft_";

/// Right of a token's holder over a feed. Each right includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Read the feed even if the feed is closed.
    Read,
    /// Append to the feed, and so create the feed if need be.
    Publish,
    /// Change the settings of the feed, or create the feed with given settings, such as a closed
    /// feed.
    Admin,
}

impl Right {
    /// Returns the right with this name in a file of tokens.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "read" => Self::Read,
            "publish" => Self::Publish,
            "admin" => Self::Admin,
            _ => return None,
        })
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Publish => "publish",
            Self::Admin => "admin",
        })
    }
}

/// One line of a file of tokens, for one right over one pattern.
#[derive(Clone, Debug)]
struct Grant {
    name: String,
    right: Right,
    feeds: FeedPattern,
    /// Last day, in UTC, on which the grant counts; `None` if the grant never expires.
    until: Option<Day>,
}

/// A day in UTC, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(i64);

impl Day {
    /// Returns the day that a date such as `2027-12-31` names.
    pub fn parse(text: &str) -> Option<Self> {
        let is_date = text.len() == 10;
        let midnight = Timestamp::parse(&format!("{text}T00:00:00Z")).filter(|_| is_date)?;
        Some(Self(midnight.second().div_euclid(DAY_SECONDS)))
    }

    /// Returns whether the day is over.
    pub fn has_passed(self) -> bool {
        self < Self::of_today()
    }

    fn of_today() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = i64::try_from(since.unwrap_or_default().as_secs());
        Self(seconds.unwrap_or(i64::MAX).div_euclid(DAY_SECONDS))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let midnight = Timestamp::from_micros(self.0 * DAY_SECONDS * 1_000_000).to_string();
        f.write_str(midnight.split('T').next().unwrap_or_default())
    }
}

/// Tokens that a server accepts: the grants of each token, under the digest of the token.
#[derive(Clone, Debug, Default)]
pub struct TokenGrants(HashMap<Digest, Vec<Grant>>);

impl TokenGrants {
    /// Reads a file of tokens.
    ///
    /// # Errors
    ///
    /// Returns one problem for each wrong line. No problem quotes its line.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let (mut grants, mut problems) = (HashMap::<_, Vec<_>>::new(), vec![]);
        for (number, line) in text.lines().enumerate() {
            if !is_grant(line) {
                continue;
            }
            match parse_grant(line.trim()) {
                Ok((secret, grant)) => grants.entry(secret).or_default().push(grant),
                // The loop goes on, so that one error names all wrong lines.
                Err(problem) => problems.push(format!("line {}: {problem}", number + 1)),
            }
        }
        if problems.is_empty() {
            Ok(Self(grants))
        } else {
            Err(problems)
        }
    }

    /// Returns whether the file gives no right at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the grants of a token that count today, or `None` if no grant counts.
    fn find_caller(&self, token: &str) -> Option<Caller<'_>> {
        let today = Day::of_today();
        // The key is the digest of the token, because the time of a lookup reveals something about
        // the key. That does not help a sender: nobody can find a token that has a given digest.
        let grants = self.0.get(&Digest::of(token.as_bytes()))?;
        let counts = |grant: &&Grant| grant.until.is_none_or(|until| today <= until);
        let grants: Vec<&Grant> = grants.iter().filter(counts).collect();
        // An expired token gets the answer of an unknown token: 401, and not 403.
        (!grants.is_empty()).then_some(Caller(grants))
    }
}

/// Returns the text of a file of tokens. After a power cut, the file may end with bytes that are no
/// text. In the returned text, a NUL stands in place of these bytes.
///
/// # Errors
///
/// Returns the error of the decoding if a grant stands behind the bytes that are no text.
pub fn text_of(bytes: Vec<u8>) -> Result<String, Utf8Error> {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    let (error, bytes) = (bytes.utf8_error(), bytes.into_bytes());
    let (text, rest) = bytes.split_at(error.valid_up_to());
    // A power cut damages only the line that was added last. If a grant stands behind the damaged
    // line, the damage has another cause.
    let mut lines = rest.split(|byte| *byte == b'\n').skip(1);
    if lines.any(|line| str::from_utf8(line).is_ok_and(|line| parse_grant(line.trim()).is_ok())) {
        return Err(error);
    }
    let mut text = str::from_utf8(text)?.to_owned();
    // `whole_lines` ends the text at the NUL, so `is_torn` tells that bytes are missing.
    text.push('\0');
    Ok(text)
}

/// Returns the text of a file of tokens without a torn last line: a line of which a power cut has
/// kept a part only. Nobody has the token of such a line, because a token is printed only once the
/// line is durable.
pub fn whole_lines(text: &str) -> &str {
    let trimmed = text.trim_end_matches('\n');
    let begin = trimmed.rfind('\n').map_or(0, |end| end + 1);
    // A file system may keep the length of an added line and lose the bytes, which are NUL then.
    let kept = trimmed[begin..].find('\0').map(|bytes| begin + bytes);
    // Each bound of a slice stands beside an ASCII character, so that no character is split.
    let text = &text[..kept.unwrap_or(text.len())];
    let last = &text[begin..];
    if !text.ends_with('\n') && is_grant(last) && parse_grant(last.trim()).is_err() {
        return &text[..begin];
    }
    text
}

/// Returns whether a power cut has kept only a part of the last line of a file of tokens.
pub fn is_torn(text: &str) -> bool {
    whole_lines(text).len() < text.trim_end_matches('\n').len()
}

/// Returns whether a line of a file of tokens is neither a comment nor blank, and so has to be a
/// grant.
pub fn is_grant(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

/// Returns whether a holder of a token can have this name in a file of tokens.
pub fn is_holder(name: &str) -> bool {
    let possible = |c: char| c != ':' && !c.is_control();
    // A `:` would end the field of the name, and a line that begins with `#` is a comment.
    !name.trim().is_empty() && !name.trim_start().starts_with('#') && name.chars().all(possible)
}

fn parse_grant(line: &str) -> Result<(Digest, Grant), &'static str> {
    // The errors are fixed texts: none quotes the line, which may hold a token by mistake.
    let fields: Vec<&str> = line.split(':').collect();
    let ([name, secret, right, feeds] | [name, secret, right, feeds, _]) = fields[..] else {
        return Err("it is not name:sha256:right:feeds, with :DATE behind it or without");
    };
    let until = fields.get(4).map(|until| Day::parse(until));
    if until == Some(None) {
        return Err("the last day is not a date such as 2027-12-31");
    }
    let secret = Digest::parse(secret);
    let secret = secret.ok_or("the second field is not the SHA-256 of a token, in hex")?;
    let grant = Grant {
        name: name.into(),
        right: Right::parse(right).ok_or("the right is not read, publish or admin")?,
        feeds: FeedPattern::parse(feeds)
            .ok_or("the fourth field is not a feed, or what feeds begin with and *")?,
        until: until.flatten(),
    };
    Ok((secret, grant))
}

/// Holder of a token: all grants of that token that count today.
#[derive(Debug)]
struct Caller<'t>(Vec<&'t Grant>);

impl Caller<'_> {
    fn may_do(&self, right: Right, feed: &FeedName) -> bool {
        let mut grants = self.0.iter();
        grants.any(|grant| grant.right >= right && grant.feeds.matches(feed))
    }

    /// Returns the rights of the token, as a text for the holder of the token.
    fn rights_text(&self) -> String {
        let name = self.0.first().map_or("", |grant| &grant.name);
        let rights = self.0.iter().map(|grant| match grant.right {
            Right::Read => format!("read {}", grant.feeds),
            Right::Publish => format!("publish to {}", grant.feeds),
            Right::Admin => format!("administer {}", grant.feeds),
        });
        let rights: Vec<String> = rights.collect();
        format!("token {name:?} may {}", rights.join(", "))
    }
}

/// Group of readers with equal rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Audience {
    /// Readers without a token, who see open feeds.
    Strangers,
    /// Readers at a listener where every request may do everything.
    Everyone,
}

/// Access rules of a listener.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every request may do everything.
    Anyone,
    /// Every request may read public feeds, and none may publish.
    Readers,
    /// A request may do as much as the grants of its token allow. Without a token, a request may
    /// read public feeds.
    Holders(TokenGrants),
    /// As `Holders`, but no request may publish or change settings.
    ReadingHolders(TokenGrants),
}

/// Reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The request has no token, and needs one.
    NoToken,
    /// The server does not know the token, or the token has expired.
    WrongToken,
    /// The token lacks the right, or gives the right over other feeds only.
    NotEntitled {
        /// Name and rights of the token, and the right that it lacks, for the holder.
        detail: String,
    },
    /// This listener refuses the action to every request.
    NotHere,
}

impl Access {
    /// Checks that a request may do something with a feed.
    ///
    /// # Errors
    ///
    /// Returns the reason for the refusal.
    pub fn check(&self, headers: &HeaderMap, right: Right, feed: &FeedName) -> Result<(), Denial> {
        let tokens = match self {
            Self::Anyone => return Ok(()),
            Self::Readers => return Err(Denial::NotHere),
            // The listener decides before the token does: no token publishes here.
            Self::ReadingHolders(_) if right > Right::Read => return Err(Denial::NotHere),
            Self::Holders(tokens) | Self::ReadingHolders(tokens) => tokens,
        };
        let token = token_of(headers).ok_or(Denial::NoToken)?;
        let caller = tokens.find_caller(token).ok_or(Denial::WrongToken)?;
        if caller.may_do(right, feed) {
            return Ok(());
        }
        let lacking = match right {
            Right::Read => format!("read {feed}"),
            Right::Publish => format!("publish to {feed}"),
            Right::Admin => format!("administer {feed}"),
        };
        Err(Denial::NotEntitled {
            detail: format!("{}, not {lacking}", caller.rights_text()),
        })
    }

    /// Checks that a request has no token, or a token of ours. Otherwise, a request with a wrong
    /// token would get a list without any closed feed, and no error.
    ///
    /// # Errors
    ///
    /// [`Denial::WrongToken`].
    pub fn knows_caller(&self, headers: &HeaderMap) -> Result<(), Denial> {
        let (Self::Holders(tokens) | Self::ReadingHolders(tokens), Some(token)) =
            (self, token_of(headers))
        else {
            return Ok(());
        };
        tokens
            .find_caller(token)
            .map(drop)
            .ok_or(Denial::WrongToken)
    }

    /// Returns whether rights depend on tokens.
    pub fn has_tokens(&self) -> bool {
        matches!(self, Self::Holders(_) | Self::ReadingHolders(_))
    }

    /// Checks that the sender of a request administers every feed, and so may know about the server
    /// itself.
    ///
    /// # Errors
    ///
    /// Returns the reason for the refusal.
    pub fn administers_all(&self, headers: &HeaderMap) -> Result<(), Denial> {
        let tokens = match self {
            Self::Anyone => return Ok(()),
            Self::Readers => return Err(Denial::NotHere),
            Self::Holders(tokens) | Self::ReadingHolders(tokens) => tokens,
        };
        let token = token_of(headers).ok_or(Denial::NoToken)?;
        let caller = tokens.find_caller(token).ok_or(Denial::WrongToken)?;
        let all = FeedPattern::all();
        let mut grants = caller.0.iter();
        if grants.any(|grant| grant.right >= Right::Admin && grant.feeds.covers(&all)) {
            return Ok(());
        }
        Err(Denial::NotEntitled {
            detail: format!("{}, not administer all feeds", caller.rights_text()),
        })
    }

    /// Returns the group of readers whose rights the sender of a request has. Unless every request
    /// may do everything, returns `None` for a request with a token, or with a cookie, which may
    /// hold a token.
    pub(crate) fn audience(&self, headers: &HeaderMap) -> Option<Audience> {
        match self {
            Self::Anyone => Some(Audience::Everyone),
            // A request that may have a token belongs to no group, because a ready answer is sent
            // without a check of tokens.
            _ if headers.contains_key(AUTHORIZATION) || headers.contains_key(COOKIE) => None,
            Self::Readers | Self::Holders(_) | Self::ReadingHolders(_) => Some(Audience::Strangers),
        }
    }

    /// Returns the closed feeds that the sender of a request may see.
    pub fn sight(&self, headers: &HeaderMap) -> Sight {
        let tokens = match self {
            Self::Anyone => return Sight::of(vec![FeedPattern::all()]),
            Self::Readers => return Sight::default(),
            Self::Holders(tokens) | Self::ReadingHolders(tokens) => tokens,
        };
        // With a wrong token, a request sees as little as without a token. Where that matters,
        // `knows_caller` refuses the wrong token.
        let caller = token_of(headers).and_then(|token| tokens.find_caller(token));
        let grants = caller.map_or(vec![], |caller| caller.0);
        Sight::of(grants.iter().map(|grant| grant.feeds.clone()).collect())
    }
}

/// Returns the bearer token of a request (RFC 6750, 2.1); `None` if there are several.
fn token_of(headers: &HeaderMap) -> Option<&str> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    // `Authorization` is no list (RFC 9110, 5.3 and 11.6.2), so two fields name no token.
    let (field, None) = (fields.next()?, fields.next()) else {
        return None;
    };
    let (scheme, token) = field.to_str().ok()?.split_once(' ')?;
    // The name of a scheme is case-insensitive (RFC 9110, 11.1).
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_start_matches(' '))
}

/// Returns a new token, and the line for the file of tokens that gives the token a right.
///
/// # Errors
///
/// Returns why the operating system has no random bytes.
pub fn new_token(
    name: &str,
    right: Right,
    feeds: &FeedPattern,
    until: Option<Day>,
) -> Result<(String, String), getrandom::Error> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits)?;
    let token = format!("{TOKEN_PREFIX}{}", Digest(bits));
    // The file gets the digest only; the token is printed once, and stored nowhere.
    let secret = Digest::of(token.as_bytes());
    let until = until.map_or(String::new(), |until| format!(":{until}"));
    Ok((token, format!("{name}:{secret}:{right}:{feeds}{until}")))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn feed(name: &str) -> FeedName {
        FeedName::parse(name).unwrap()
    }

    fn bearing(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())])
    }

    fn line(token: &str, right: &str, feeds: &str) -> String {
        format!("n:{}:{right}:{feeds}\n", Digest::of(token.as_bytes()))
    }

    #[test]
    fn a_right_is_for_the_feeds_of_its_pattern_and_includes_lesser_ones() {
        let text = line("t", "publish", "orders") + "# more\n\n" + &line("t", "read", "shop-*");
        let access = Access::Holders(TokenGrants::parse(&text).unwrap());
        let check = |right, name| access.check(&bearing("Bearer t"), right, &feed(name));
        assert_eq!(check(Right::Publish, "orders"), Ok(()));
        assert_eq!(check(Right::Read, "orders"), Ok(()));
        assert_eq!(check(Right::Read, "shop-1"), Ok(()));
        for (right, name) in [
            (Right::Admin, "orders"),
            (Right::Publish, "shop-1"),
            (Right::Read, "orders2"),
            (Right::Read, "order"),
            (Right::Read, "shop"),
        ] {
            let Err(Denial::NotEntitled { detail }) = check(right, name) else {
                panic!("{right} {name}");
            };
            let rights = "token \"n\" may publish to orders, read shop-*, not ";
            assert!(
                detail.starts_with(rights) && detail.ends_with(name),
                "{detail}"
            );
        }
    }

    #[test]
    fn only_one_bearer_token_of_ours_counts() {
        let access = Access::Holders(TokenGrants::parse(&line("t", "admin", "*")).unwrap());
        let check = |headers: &HeaderMap| access.check(headers, Right::Read, &feed("a"));
        assert_eq!(check(&bearing("bearer  t")), Ok(()));
        assert_eq!(check(&HeaderMap::new()), Err(Denial::NoToken));
        for wrong in ["Bearer T", "Bearer tt", "Bearer t t", "Bearer "] {
            assert_eq!(check(&bearing(wrong)), Err(Denial::WrongToken), "{wrong}");
        }
        for none in ["Basic t", "t", "Bearer"] {
            assert_eq!(check(&bearing(none)), Err(Denial::NoToken), "{none}");
        }
        let mut twice = bearing("Bearer t");
        twice.append(AUTHORIZATION, HeaderValue::from_static("Bearer t"));
        assert_eq!(check(&twice), Err(Denial::NoToken));
    }

    #[test]
    fn a_listener_for_readers_takes_nothing_from_anybody() {
        let tokens = TokenGrants::parse(&line("t", "admin", "*")).unwrap();
        let bearer = bearing("Bearer t");
        let reading = Access::ReadingHolders(tokens);
        assert!(reading.sight(&bearer).shows(&feed("a")));
        for access in [reading, Access::Readers] {
            let denied = access.check(&bearer, Right::Publish, &feed("a"));
            assert_eq!(denied, Err(Denial::NotHere));
        }
        assert!(Access::Readers.sight(&bearer).is_none());
        assert_eq!(Access::Readers.knows_caller(&bearer), Ok(()));
        assert!(Access::Anyone.sight(&HeaderMap::new()).shows(&feed("a")));
    }

    #[test]
    fn every_wrong_line_is_told_and_none_is_repeated() {
        let good = line("t", "read", "a");
        let text = format!(
            "{good}secret\nn:secret:read:a\n{}{}{}",
            line("t", "write", "a"),
            line("t", "read", "A"),
            line("t", "read", "")
        );
        let problems = TokenGrants::parse(&text).unwrap_err().join("\n");
        for number in 2..=6 {
            assert!(problems.contains(&format!("line {number}: ")), "{problems}");
        }
        assert!(!problems.contains("secret") && !problems.contains("line 1:"));
    }

    #[test]
    fn a_name_cannot_break_the_file() {
        for name in ["", " ", "#n", " #n", "a:b", "a\nb", "a\0"] {
            assert!(!is_holder(name), "{name:?}");
        }
        assert!(is_holder("the shop, #2"));
    }

    #[test]
    fn a_new_token_gives_its_right() {
        let (token, text) = new_token(
            "n",
            Right::Publish,
            &FeedPattern::parse("a*").unwrap(),
            None,
        )
        .unwrap();
        assert_eq!(token.len(), TOKEN_PREFIX.len() + 64);
        let access = Access::Holders(TokenGrants::parse(&text).unwrap());
        let bearer = bearing(&format!("Bearer {token}"));
        assert_eq!(access.check(&bearer, Right::Publish, &feed("ab")), Ok(()));
        let (other, _) =
            new_token("n", Right::Read, &FeedPattern::parse("a").unwrap(), None).unwrap();
        assert_ne!(token, other);
    }

    #[test]
    fn a_token_counts_up_to_its_last_day() {
        let granted = |until: &str| {
            let text = line("t", "read", "a").trim_end().to_owned() + until;
            let access = Access::Holders(TokenGrants::parse(&text).unwrap());
            access.check(&bearing("Bearer t"), Right::Read, &feed("a"))
        };
        let today = Day::of_today();
        assert_eq!(Day::parse(&today.to_string()), Some(today));
        assert_eq!(granted(&format!(":{today}")), Ok(()));
        assert_eq!(
            granted(&format!(":{}", Day(today.0 - 1))),
            Err(Denial::WrongToken)
        );
        for wrong in ["2027-13-01", "2027-1-1", "", "tomorrow"] {
            assert_eq!(Day::parse(wrong), None, "{wrong}");
        }
    }
}
