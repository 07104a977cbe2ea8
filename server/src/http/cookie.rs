//! The cookie of a reader who has signed in: a token, for browsers.
//!
//! Pure. It counts for reads only, and only where the table of endpoints says so: a page of another site makes a browser
//! send it, but cannot read the answer.

use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};

/// Name of the cookie.
const NAME: &str = "simplefeed";
/// Seconds for which a browser keeps it.
const SECONDS: u32 = 30 * 86_400;

/// Gives a request the right of the token in its cookie, unless it has another one.
pub(super) fn sign_in(headers: &mut HeaderMap) {
    if headers.contains_key(AUTHORIZATION) {
        return;
    }
    if let Some(token) = token(headers)
        && let Ok(bearer) = HeaderValue::from_str(&format!("Bearer {token}"))
    {
        headers.insert(AUTHORIZATION, bearer);
    }
}

/// Returns the token in the cookie of a request; `None` if there are several.
pub fn token(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.filter_map(|line| line.to_str().ok());
    let pairs = pairs.flat_map(|line| line.split(';')).map(str::trim);
    let mut tokens = pairs.filter_map(|pair| pair.strip_prefix(NAME)?.strip_prefix('='));
    let token = tokens.next()?;
    (tokens.next().is_none() && !token.is_empty()).then_some(token)
}

/// Returns the field that keeps a token in the browser for paths below `path`; without a token, the field that removes
/// it. Other sites get nothing of it: `SameSite=Lax`.
pub fn set(token: Option<&str>, path: &str, is_secure: bool) -> Option<HeaderValue> {
    let (token, seconds) = token.map_or(("", 0), |token| (token, SECONDS));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if !token.bytes().all(is_plain) {
        return None;
    }
    let secure = if is_secure { "; Secure" } else { "" };
    let field =
        format!("{NAME}={token}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::from_str(&field).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(lines: &[&'static str]) -> HeaderMap {
        let lines = lines
            .iter()
            .map(|line| (COOKIE, HeaderValue::from_static(line)));
        lines.collect()
    }

    #[test]
    fn a_cookie_is_a_token_unless_there_are_two() {
        for (lines, found) in [
            (&["simplefeed=sft_a"][..], Some("sft_a")),
            (&["other=1; simplefeed=sft_a;x=y"], Some("sft_a")),
            (&["a=b", "simplefeed=sft_a"], Some("sft_a")),
            (&["simplefeed=a; simplefeed=b"], None),
            (&["simplefeed=a", "simplefeed=b"], None),
            (&["simplefeed="], None),
            (&["xsimplefeed=a", "simplefeeds=b"], None),
            (&[], None),
        ] {
            assert_eq!(token(&request(lines)), found, "{lines:?}");
        }
        let mut headers = request(&["simplefeed=mine"]);
        sign_in(&mut headers);
        assert_eq!(headers.get(AUTHORIZATION).unwrap(), "Bearer mine");
        let mut headers = request(&["simplefeed=mine"]);
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer other"));
        sign_in(&mut headers);
        assert_eq!(headers.get(AUTHORIZATION).unwrap(), "Bearer other");
    }

    #[test]
    fn no_token_adds_a_field_to_the_cookie() {
        assert_eq!(set(Some("a;Domain=x"), "/", false), None);
        assert_eq!(set(Some("a\r\nb"), "/", false), None);
        let kept = set(Some("sft_a"), "/sub/", true).unwrap();
        let kept = kept.to_str().unwrap().to_owned();
        assert!(kept.starts_with("simplefeed=sft_a; Path=/sub/; Max-Age=2592000;"));
        assert!(kept.ends_with("; HttpOnly; SameSite=Lax; Secure"));
        let removed = set(None, "/", false).unwrap();
        assert!(removed.to_str().unwrap().contains("Max-Age=0"));
    }
}
