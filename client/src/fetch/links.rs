//! Links in header fields (RFC 8288).
//!
//! Pure. Parsed by hand: the crate `parse_link_header` finds links even within a quoted title, and
//! nom-rfc8288 needs a parser library to replace these 60 lines.

/// Characters between two links.
const BETWEEN: [char; 3] = [' ', '\t', ','];

/// Returns the targets and relations of a `Link` field. A malformed link is passed over, up to the
/// next comma. Links from another resource than the answer (`anchor`) are left out.
pub(super) fn links(field: &str) -> Vec<(String, String)> {
    let mut found = vec![];
    let mut rest = field.trim_start_matches(BETWEEN);
    while !rest.is_empty() {
        let Some(link) = rest.strip_prefix('<') else {
            rest = next_link(rest);
            continue;
        };
        let Some((target, parameters)) = link.split_once('>') else {
            break;
        };
        // A target has no `<`: this link was never closed, and the `>` is that of a later link.
        if target.contains('<') {
            rest = next_link(link);
            continue;
        }
        let (parameters, after) = parameters_of(parameters);
        let value = |name| parameters.iter().find(|(found, _)| found == name);
        if value("anchor").is_none()
            && let Some((_, relations)) = value("rel")
        {
            for relation in relations.split_ascii_whitespace() {
                // Relations are compared without regard to case (RFC 8288, 2.1.1).
                found.push((target.trim().into(), relation.to_ascii_lowercase()));
            }
        }
        // Text between the parameters and the next comma has no meaning.
        rest = next_link(after);
    }
    found
}

/// Returns the text behind the next comma, where the next link begins.
fn next_link(text: &str) -> &str {
    let (_, after) = text.split_once(',').unwrap_or_default();
    after.trim_start_matches(BETWEEN)
}

/// Returns the parameters at the beginning of `text`, names in lower case, and the text after them.
fn parameters_of(text: &str) -> (Vec<(String, String)>, &str) {
    let mut parameters = vec![];
    let mut rest = text.trim_start();
    while let Some(parameter) = rest.strip_prefix(';') {
        let parameter = parameter.trim_start();
        let end = parameter.find([';', ',', '=']).unwrap_or(parameter.len());
        let (name, after) = parameter.split_at(end);
        let (value, after) = match after.strip_prefix('=') {
            Some(value) => value_of(value.trim_start()),
            None => (String::new(), after),
        };
        parameters.push((name.trim().to_ascii_lowercase(), value));
        rest = after.trim_start();
    }
    (parameters, rest)
}

/// Returns a token or quoted string at the beginning of `text`, and the rest of the text.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        // A token ends where the next parameter or link begins.
        let end = text.find([';', ',']).unwrap_or(text.len());
        let (token, after) = text.split_at(end);
        return (token.trim().into(), after);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, quoted.get(at + 1..).unwrap_or_default()),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    // The quote never closes, so the rest of the field belongs to the value.
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(field: &str, want: &[(&str, &str)]) {
        let found = links(field);
        let found: Vec<_> = found
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        assert_eq!(found, want, "{field}");
    }

    #[test]
    fn links_are_read_as_rfc_8288_has_them() {
        check("<1>; rel=prev-archive", &[("1", "prev-archive")]);
        check(
            "<a>; title=\"x, <y>; rel=z\"; REL=\"Current  via\" , <b>;rel=next-archive;type=t",
            &[("a", "current"), ("a", "via"), ("b", "next-archive")],
        );
        check(
            "<a>; rel=x; anchor=\"#b\", <c>; rel=\"d\\\"e\"",
            &[("c", "d\"e")],
        );
        check("<a>, <b>; rel", &[]);
        check("a; rel=x, <b>; rel=y", &[("b", "y")]);
        check("<a; rel=x, <b>; rel=y", &[("b", "y")]);
        check(
            "<a>; rel=x y; z, , <b>; rel=y",
            &[("a", "x"), ("a", "y"), ("b", "y")],
        );
        check("<a>; rel=\"x\" z, <b>; rel=y", &[("a", "x"), ("b", "y")]);
        for broken in ["", "a; rel=b", "<a; rel=b", "<a>; rel=\"b", "<>;;;=,,<"] {
            assert!(links(broken).len() <= 1, "{broken}");
        }
    }
}
