use super::*;

const SECOND: i64 = 1_700_000_000;
const DATE: &str = "Tue, 14 Nov 2023 22:13:20 GMT";
const LATER: &str = "Tue, 14 Nov 2023 22:13:21 GMT";
const EARLIER: &str = "Tue, 14 Nov 2023 22:13:19 GMT";

#[track_caller]
fn check(headers: &[(HeaderName, &str)], want: Verdict) {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(name, value.parse().unwrap());
    }
    let validators = Validators {
        tag: EntityTag::strong("tag-i"),
        modified: Some(SECOND),
    };
    assert_eq!(verdict(&map, &validators), want, "{headers:?}");
    let tag = HeaderValue::from_static("\"tag-i\"");
    let plain = plain_verdict(&map, &tag);
    match headers {
        // Most reads.
        [] | [(IF_NONE_MATCH, "\"tag-i\"")] => assert_eq!(plain, Some(want)),
        _ => assert!(plain.is_none_or(|plain| plain == want), "{headers:?}"),
    }
}

#[test]
fn without_conditions_the_representation_is_sent() {
    check(&[], Verdict::Send);
}

#[test]
fn h_3_if_none_match_compares_weakly() {
    check(&[(IF_NONE_MATCH, "\"tag-i\"")], Verdict::NotModified);
    check(&[(IF_NONE_MATCH, "W/\"tag-i\"")], Verdict::NotModified);
    check(&[(IF_NONE_MATCH, "\"tag-g\"")], Verdict::Send);
    check(&[(IF_NONE_MATCH, "w/\"tag-i\"")], Verdict::Send);
}

#[test]
fn h_3_if_match_compares_strongly() {
    check(&[(IF_MATCH, "\"tag-i\"")], Verdict::Send);
    check(&[(IF_MATCH, "W/\"tag-i\"")], Verdict::Failed);
    check(&[(IF_MATCH, "\"other\"")], Verdict::Failed);
    check(&[(IF_MATCH, "*")], Verdict::Send);
    check(&[(IF_MATCH, "tag-i")], Verdict::Failed);
}

#[test]
fn h_7_if_match_comes_first_and_silences_the_date() {
    check(
        &[(IF_MATCH, "\"no\""), (IF_NONE_MATCH, "\"tag-i\"")],
        Verdict::Failed,
    );
    check(
        &[(IF_MATCH, "\"tag-i\""), (IF_UNMODIFIED_SINCE, EARLIER)],
        Verdict::Send,
    );
    check(&[(IF_UNMODIFIED_SINCE, EARLIER)], Verdict::Failed);
    check(&[(IF_UNMODIFIED_SINCE, DATE)], Verdict::Send);
    check(&[(IF_UNMODIFIED_SINCE, "yesterday")], Verdict::Send);
}

#[test]
fn h_8_if_none_match_silences_the_date() {
    check(
        &[(IF_NONE_MATCH, "\"no\""), (IF_MODIFIED_SINCE, DATE)],
        Verdict::Send,
    );
    check(
        &[(IF_NONE_MATCH, "broken"), (IF_MODIFIED_SINCE, DATE)],
        Verdict::Send,
    );
}

#[test]
fn h_8_if_modified_since_matches_only_exactly() {
    check(&[(IF_MODIFIED_SINCE, DATE)], Verdict::NotModified);
    check(&[(IF_MODIFIED_SINCE, LATER)], Verdict::Send);
    check(&[(IF_MODIFIED_SINCE, EARLIER)], Verdict::Send);
    check(&[(IF_MODIFIED_SINCE, "0")], Verdict::Send);
    check(
        &[(IF_MODIFIED_SINCE, DATE), (IF_MODIFIED_SINCE, DATE)],
        Verdict::Send,
    );
}

#[test]
fn h_5_all_three_forms_of_dates_are_read() {
    check(
        &[(IF_MODIFIED_SINCE, "Tuesday, 14-Nov-23 22:13:20 GMT")],
        Verdict::NotModified,
    );
    check(
        &[(IF_MODIFIED_SINCE, "Tue Nov 14 22:13:20 2023")],
        Verdict::NotModified,
    );
}

#[test]
fn h_9_lists_may_have_commas_in_tags_and_several_lines() {
    check(
        &[(IF_NONE_MATCH, "\"a,b\", W/\"c\" ,, \"tag-i\"")],
        Verdict::NotModified,
    );
    check(
        &[(IF_NONE_MATCH, "\"a\""), (IF_NONE_MATCH, "W/\"tag-i\"")],
        Verdict::NotModified,
    );
    check(&[(IF_NONE_MATCH, "*")], Verdict::NotModified);
    check(&[(IF_NONE_MATCH, "*, \"tag-i\"")], Verdict::Send);
    check(
        &[(IF_NONE_MATCH, "*"), (IF_NONE_MATCH, "\"tag-i\"")],
        Verdict::Send,
    );
    check(&[(IF_NONE_MATCH, "\"tag-i\"-broken")], Verdict::Send);
    check(&[(IF_NONE_MATCH, "\"tag-i\" \"b\"")], Verdict::Send);
    check(&[(IF_NONE_MATCH, "\"unfinished")], Verdict::Send);
    let long = format!("\"{}\", \"tag-i\"", "x".repeat(200));
    check(&[(IF_NONE_MATCH, long.as_str())], Verdict::NotModified);
}

#[test]
fn h_4_dates_that_http_cannot_write_are_left_out() {
    assert_eq!(http_date(SECOND).unwrap(), DATE);
    assert_eq!(http_date(-1), None);
    assert!(http_date(253_402_300_799).is_some());
    assert_eq!(http_date(253_402_300_800), None);
}
