//! Explanations of rule ids.
//!
//! Pure. The text is that of `docs/rules.md`, so that page and command agree.

const PAGE: &str = include_str!("../../../../docs/rules.md");

/// Returns the rule with this id and the source of the rule, or `None` if there is no such rule.
pub(super) fn explain(id: &str) -> Option<String> {
    // Only ids of rules end with a digit: the heads of the tables are no rules.
    let is_id = id.ends_with(|last: char| last.is_ascii_digit());
    PAGE.lines().filter(|_| is_id).find_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let found = cells.next()?.eq_ignore_ascii_case(id);
        let (rule, source) = (cells.next()?, cells.next()?.trim_end_matches(" |"));
        found.then(|| format!("{rule} ({source})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_explained_by_its_id() {
        let told = "Every document but the oldest links to the one before it (`prev-archive`). (RFC 5005, 4)";
        assert_eq!(explain("FH-5").as_deref(), Some(told));
        assert_eq!(explain("fh-5").as_deref(), Some(told));
        for unknown in ["FH-99", "id", "---", ""] {
            assert_eq!(explain(unknown), None, "{unknown}");
        }
    }
}
