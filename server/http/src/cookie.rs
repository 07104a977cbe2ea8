//! The cookie of a reader who has signed in: a token, for browsers.
//!
//! Pure. The cookie counts for reads only, and only where the table of endpoints says so: a page of
//! another site may make a browser send the cookie, but cannot read the answer.
//!
//! Cookies are parsed and written by hand: the `cookie` crate would add six crates and save five
//! lines.

use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};
use url::Url;

/// Seconds for which a browser keeps the cookie.
const SECONDS: u32 = 30 * 86_400;

/// Cookie of one server.
#[derive(Clone, Debug)]
pub struct Cookie {
    name: String,
    path: String,
    is_secure: bool,
}

impl Cookie {
    /// Returns the cookie of a server with a public URL, under a name that only this server uses.
    pub fn of(public_url: &Url) -> Self {
        // Browsers send the cookies of a host to all ports of that host, so servers on one host
        // need different names.
        let number = crc32fast::hash(public_url.as_str().as_bytes());
        Self {
            name: format!("simplefeed-{number:08x}"),
            // The path covers more than the pages, because streams of events have other paths and
            // accept the cookie, too.
            path: format!("{}/", public_url.path().trim_end_matches('/')),
            is_secure: public_url.scheme() == "https",
        }
    }

    /// Gives a request the rights of the token in the cookie, unless the request names a token
    /// itself.
    pub(super) fn sign_in(&self, headers: &mut HeaderMap) {
        if headers.contains_key(AUTHORIZATION) {
            return;
        }
        if let Some(token) = self.cookie_token(headers)
            && let Ok(bearer) = HeaderValue::from_str(&format!("Bearer {token}"))
        {
            headers.insert(AUTHORIZATION, bearer);
        }
    }

    /// Returns the token in the cookie of a request; `None` if the request has several such
    /// cookies.
    fn cookie_token<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let lines = headers.get_all(COOKIE).iter();
        let pairs = lines.filter_map(|line| line.to_str().ok());
        let pairs = pairs.flat_map(|line| line.split(';')).map(str::trim);
        let mut tokens = pairs.filter_map(|pair| pair.strip_prefix(&self.name)?.strip_prefix('='));
        let token = tokens.next()?;
        // A cookie of another path may have the same name, and nobody can tell which of two counts.
        (tokens.next().is_none() && !token.is_empty()).then_some(token)
    }

    /// Returns the field that keeps a token in a browser; without a token, the field that removes
    /// the cookie. Returns `None` if the text cannot be a bearer token.
    pub fn field(&self, token: Option<&str>) -> Option<HeaderValue> {
        let (token, seconds) = token.map_or(("", 0), |token| (token, SECONDS));
        // These are the bytes of a bearer token (RFC 6750, 2.1). Other bytes could add attributes
        // to the cookie, or header fields to the answer.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if !token.bytes().all(is_plain) {
            return None;
        }
        let Self {
            name,
            path,
            is_secure,
        } = self;
        // Over plain HTTP, browsers would not keep a cookie with `Secure`.
        let secure = if *is_secure { "; Secure" } else { "" };
        // `SameSite=Lax`: a form that another site posts sends no cookie. `HttpOnly`: no script
        // reads the token.
        let field = format!(
            "{name}={token}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
        );
        HeaderValue::from_str(&field).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(lines: &[String]) -> HeaderMap {
        let lines = lines.iter();
        let fields = lines.map(|line| (COOKIE, HeaderValue::from_str(line).unwrap()));
        fields.collect()
    }

    fn cookie(url: &str) -> Cookie {
        Cookie::of(&url.parse().unwrap())
    }

    #[test]
    fn a_cookie_is_a_token_unless_there_are_two() {
        let cookie = cookie("http://h/");
        let name = &cookie.name;
        for (lines, found) in [
            (vec![format!("{name}=sft_a")], Some("sft_a")),
            (vec![format!("other=1; {name}=sft_a;x=y")], Some("sft_a")),
            (vec!["a=b".into(), format!("{name}=sft_a")], Some("sft_a")),
            (vec![format!("{name}=a; {name}=b")], None),
            (vec![format!("{name}=a"), format!("{name}=b")], None),
            (vec![format!("{name}=")], None),
            (vec![format!("x{name}=a"), format!("{name}s=b")], None),
            (vec!["simplefeed=a".into()], None),
            (vec![], None),
        ] {
            assert_eq!(cookie.cookie_token(&request(&lines)), found, "{lines:?}");
        }
        let mut headers = request(&[format!("{name}=mine")]);
        cookie.sign_in(&mut headers);
        assert_eq!(headers.get(AUTHORIZATION).unwrap(), "Bearer mine");
        let mut headers = request(&[format!("{name}=mine")]);
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer other"));
        cookie.sign_in(&mut headers);
        assert_eq!(headers.get(AUTHORIZATION).unwrap(), "Bearer other");
    }

    #[test]
    fn each_server_has_a_cookie_of_its_own() {
        let urls = ["http://h/", "http://h/sub/", "https://h/", "http://h:8081/"];
        let names: std::collections::HashSet<String> =
            urls.iter().map(|url| cookie(url).name).collect();
        assert_eq!(names.len(), urls.len());
    }

    #[test]
    fn no_token_adds_a_field_to_the_cookie() {
        let cookie = cookie("https://h/sub");
        assert_eq!(cookie.field(Some("a;Domain=x")), None);
        assert_eq!(cookie.field(Some("a\r\nb")), None);
        let kept = cookie.field(Some("sft_a")).unwrap();
        let kept = kept.to_str().unwrap().to_owned();
        assert!(
            kept.contains("=sft_a; Path=/sub/; Max-Age=2592000;"),
            "{kept}"
        );
        assert!(kept.ends_with("; HttpOnly; SameSite=Lax; Secure"), "{kept}");
        let removed = cookie.field(None).unwrap();
        assert!(removed.to_str().unwrap().contains("Max-Age=0"));
    }
}
