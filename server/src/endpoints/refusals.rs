//! Answers to requests that the writer did not carry out.
//!
//! Pure.

use hyper::{
    StatusCode,
    header::{ALLOW, HeaderValue, RETRY_AFTER},
};
use simplefeed_http::{
    answers::{Answer, problem_answer},
    problem::Problem,
};
use simplefeed_publish::PublishError;

/// Returns the answer to a request that the writer did not carry out.
pub(super) fn publish_error(error: &PublishError) -> Answer {
    let mut answer = problem_answer(&problem_of(error));
    if matches!(error, PublishError::IsTimeline(_)) {
        // These are the methods at the URL of a feed, except POST, because a timeline takes no
        // entries.
        let allow = HeaderValue::from_static("GET, HEAD, PUT");
        answer.headers_mut().insert(ALLOW, allow);
    }
    // `problem_answer` gives a 507 no `Retry-After`. A full disk may have room again after a while,
    // so its answer gets the field. A server with too many feeds never has room for another one.
    if matches!(
        error,
        PublishError::NoSpace(_) | PublishError::Lacking { is_full: true, .. }
    ) {
        let headers = answer.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
    }
    answer
}

fn problem_of(error: &PublishError) -> Problem {
    match error {
        PublishError::Refused(refusal) => refusal.into(),
        PublishError::Full => {
            // The status is 507 and not 503, because a repeat has no better chance.
            let status = StatusCode::INSUFFICIENT_STORAGE;
            Problem::new("too-large", "too many feeds", status, error.to_string())
        }
        PublishError::FullOfTimelines => {
            let status = StatusCode::INSUFFICIENT_STORAGE;
            Problem::new("too-large", "too many timelines", status, error.to_string())
        }
        PublishError::NotCovered(_) => Problem::new(
            "forbidden",
            "forbidden",
            StatusCode::FORBIDDEN,
            error.to_string(),
        ),
        PublishError::IsTimeline(_) => Problem::new(
            "method",
            "method not allowed",
            StatusCode::METHOD_NOT_ALLOWED,
            error.to_string(),
        ),
        PublishError::NoTimeline(_) | PublishError::UnknownFeed(_) => {
            Problem::not_found(error.to_string())
        }
        PublishError::Behind | PublishError::Busy => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Problem::new("busy", "busy", status, error.to_string())
        }
        PublishError::NoSpace(_) => {
            let status = StatusCode::INSUFFICIENT_STORAGE;
            // The commit that filled the disk may be found after a restart.
            let detail =
                format!("{error}; whether this request is stored is unknown, repeating it is safe");
            Problem::new("read-only", "no room on the disk", status, detail)
        }
        PublishError::Lacking { is_full: true, .. } => {
            let status = StatusCode::INSUFFICIENT_STORAGE;
            Problem::new(
                "read-only",
                "no room on the disk",
                status,
                error.to_string(),
            )
        }
        PublishError::Lacking { .. } => Problem::busy_with(error.to_string()),
        PublishError::Clock => Problem::unavailable(error.to_string()),
        // The commit that failed may be found after a restart.
        PublishError::Unavailable | PublishError::Displaced | PublishError::Replaced => {
            Problem::unavailable(format!(
                "{error}; whether this request is stored is unknown, repeating it is safe"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use simplefeed_log::Space;

    use super::*;

    /// Goal: a publisher repeats what may succeed once there is room, and nothing else.
    #[test]
    fn a_full_disk_says_when_to_come_again() {
        let space = Space {
            free: 1,
            needed: 2,
            is_of_files: false,
        };
        let lacking = |is_full| PublishError::Lacking {
            advice: "wait",
            is_full,
        };
        for (error, status, again) in [
            (PublishError::NoSpace(space), 507, Some("60")),
            (lacking(true), 507, Some("60")),
            (lacking(false), 503, Some("1")),
            (PublishError::Full, 507, None),
            (PublishError::FullOfTimelines, 507, None),
        ] {
            let answer = publish_error(&error);
            assert_eq!(answer.status().as_u16(), status, "{error:?}");
            let found = answer.headers().get(RETRY_AFTER);
            assert_eq!(
                found.map(|value| value.to_str().unwrap()),
                again,
                "{error:?}"
            );
        }
    }
}
