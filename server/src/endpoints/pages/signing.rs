//! Signing in: a token goes into a cookie.
//!
//! Shell: the body of a request.

use askama::Template;
use hyper::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, LOCATION, ORIGIN, SET_COOKIE},
};
use simplefeed_http::{
    answers::plain,
    endpoint::{Exchange, Outcome},
    problem::Problem,
};

use super::{PageParts, Top, field_value, page_answer, private_page, render_page};

/// Maximum length of a form, in bytes.
const FORM_BYTES_MAX: usize = 4 * 1024;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    top: Top,
    notice: Option<&'static str>,
}

/// Shows the form in which a reader enters a token.
pub(super) fn form(exchange: &Exchange<'_>) -> Result<Outcome, Problem> {
    let page = SignInPage {
        top: Top::of_exchange(exchange, 0),
        notice: None,
    };
    Ok(private_page(render_page(&page)?))
}

/// Puts a token of this server into the cookie of the browser.
pub(super) async fn sign_in(parts: &PageParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    check_origin(parts, exchange.headers)?;
    let (access, top) = (exchange.access, Top::of_exchange(&exchange, 0));
    let (body, _room) = exchange.body.read_at_most(FORM_BYTES_MAX).await?;
    let form = String::from_utf8_lossy(&body);
    let token = field_value(&form, "token").unwrap_or_default();
    let mut headers = HeaderMap::new();
    if let Ok(bearer) = HeaderValue::from_str(&format!("Bearer {token}")) {
        headers.insert(AUTHORIZATION, bearer);
    }
    let is_ours = !headers.is_empty() && access.knows_caller(&headers).is_ok();
    if is_ours
        && !token.is_empty()
        && let Some(field) = parts.cookie.field(Some(&token))
    {
        return Ok(to_feeds(Some(field)));
    }
    let page = SignInPage {
        top,
        notice: Some("This is no token of this server, or not any more."),
    };
    Ok(Outcome::Answer(page_answer(StatusCode::FORBIDDEN, &page)?))
}

/// Removes the cookie with the token, and redirects to the page of all feeds.
pub(super) fn sign_out(parts: &PageParts, exchange: &Exchange<'_>) -> Result<Outcome, Problem> {
    check_origin(parts, exchange.headers)?;
    Ok(to_feeds(parts.cookie.field(None)))
}

/// Redirects to the page of all feeds, and sets or removes the cookie.
fn to_feeds(cookie: Option<HeaderValue>) -> Outcome {
    // After a POST, 303 makes a browser GET the page (RFC 9110, 15.4.4).
    let mut answer = plain(StatusCode::SEE_OTHER, "");
    let headers = answer.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_static("./"));
    headers.extend(cookie.map(|field| (SET_COOKIE, field)));
    Outcome::Answer(answer)
}

/// Refuses a form that a page of another site has sent.
fn check_origin(parts: &PageParts, headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let fetched = text(&HeaderName::from_static("sec-fetch-site"));
    let is_own = match (fetched, text(&ORIGIN)) {
        // No page can forge `Sec-Fetch-Site`.
        (Some(fetched), _) => fetched == "same-origin",
        (None, Some(origin)) => {
            let host = text(&HOST).map(|host| format!("http://{host}"));
            origin == parts.origin || host.is_some_and(|host| host == origin)
        }
        // Every browser sends one of these two fields with a form.
        (None, None) => false,
    };
    if is_own {
        Ok(())
    } else {
        Err(Problem::forbidden(
            "the form was sent by a page of another site",
        ))
    }
}
