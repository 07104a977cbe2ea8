//! The choice of a content coding (RFC 9110, 12.5.3; rules H-15 and H-16).
//!
//! Pure. The headers crate has no type for `Accept-Encoding`.

use hyper::header::{ACCEPT_ENCODING, HeaderMap};
use simplefeed_resource::Coding;

/// Returns the coding that the client likes best, or `None` if the client accepts neither of ours.
///
/// Without `Accept-Encoding`, bytes are sent as they are. If a client likes both codings equally,
/// gzip is chosen, because gzip makes fewer bytes.
pub fn negotiate(headers: &HeaderMap) -> Option<Coding> {
    if !headers.contains_key(ACCEPT_ENCODING) {
        return Some(Coding::Identity);
    }
    let (mut gzip, mut identity, mut any) = (None, None, None);
    for line in headers.get_all(ACCEPT_ENCODING) {
        for item in line.to_str().unwrap_or_default().split(',') {
            let (name, weight) = parse_item(item);
            let is = |coding: &str| name.eq_ignore_ascii_case(coding);
            // `x-gzip` is the older name of the same coding (RFC 9110, 8.4.1.3).
            let slot = if is("gzip") || is("x-gzip") {
                &mut gzip
            } else if is("identity") {
                &mut identity
            } else if name == "*" {
                &mut any
            } else {
                continue;
            };
            // The first weight counts if a coding is listed twice.
            slot.get_or_insert(weight);
        }
    }
    let gzip = gzip.or(any).unwrap_or(0);
    // Identity is acceptable unless it is excluded, by name or by `*;q=0`.
    let identity = identity.or(any);
    match (gzip, identity) {
        (0, Some(0)) => None,
        (0, _) => Some(Coding::Identity),
        (gzip, Some(identity)) if identity > gzip => Some(Coding::Identity),
        _ => Some(Coding::Gzip),
    }
}

/// Returns a coding and its weight in thousandths. A weight that cannot be read counts as 0.
fn parse_item(item: &str) -> (&str, u16) {
    let mut parts = item.split(';');
    let name = parts.next().unwrap_or_default().trim();
    let weight = parts.find_map(|part| {
        let (key, value) = part.split_once('=')?;
        key.trim()
            .eq_ignore_ascii_case("q")
            .then(|| weight_in_thousandths(value.trim()))
    });
    // Without a weight, an item counts in full (RFC 9110, 12.4.2).
    (name, weight.map_or(1_000, Option::unwrap_or_default))
}

/// Returns a weight in thousandths: `( "0" [ "." 0*3DIGIT ] ) / ( "1" [ "." 0*3("0") ] )`.
fn weight_in_thousandths(weight: &str) -> Option<u16> {
    let (whole, fraction) = weight.split_once('.').unwrap_or((weight, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Filled up with zeros: `0.5` is 500 thousandths.
    let fraction: u16 = format!("{fraction:0<3}").parse().ok()?;
    match (whole, fraction) {
        ("0", fraction) => Some(fraction),
        ("1", 0) => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &str, want: Option<Coding>) {
        let mut headers = HeaderMap::new();
        for line in accept.split('|') {
            headers.append(ACCEPT_ENCODING, line.parse().unwrap());
        }
        assert_eq!(negotiate(&headers), want, "{accept}");
    }

    #[test]
    fn h_16_without_the_header_bytes_are_sent_as_they_are() {
        assert_eq!(negotiate(&HeaderMap::new()), Some(Coding::Identity));
    }

    #[test]
    fn h_16_weights_decide() {
        check("", Some(Coding::Identity));
        check("gzip", Some(Coding::Gzip));
        check("GZip", Some(Coding::Gzip));
        check("x-gzip", Some(Coding::Gzip));
        check("br, deflate", Some(Coding::Identity));
        check("gzip;q=0", Some(Coding::Identity));
        check("gzip;q=0.000", Some(Coding::Identity));
        check("*", Some(Coding::Gzip));
        check("gzip;q=0.1, *", Some(Coding::Identity));
        check("br|gzip", Some(Coding::Gzip));
        check("gzip;q=0.5, identity", Some(Coding::Identity));
        check("gzip;q=0.5, identity;q=0.4", Some(Coding::Gzip));
        check("gzip;q=0.001", Some(Coding::Gzip));
        check("gzip; Q=0.5 , identity ; q=0.5", Some(Coding::Gzip));
        check("gzip;q=2, identity;q=0.1", Some(Coding::Identity));
    }

    #[test]
    fn h_16_identity_can_be_excluded() {
        check("identity;q=0", None);
        check("*;q=0", None);
        check("gzip;q=0, *;q=0", None);
        check("gzip, identity;q=0", Some(Coding::Gzip));
        check("gzip, *;q=0", Some(Coding::Gzip));
        check("*;q=0, identity", Some(Coding::Identity));
    }
}
