//! Answers in a provider's body, found by JSON pointers and kept byte for byte.
//!
//! Pure.

use std::collections::{HashMap, HashSet};

use serde_json::value::RawValue;

/// Where answers are, as JSON pointers (RFC 6901).
#[derive(Clone, Debug)]
pub(super) struct AnswerPointers {
    /// Place of the answers in a body: an array or an object.
    pub(super) items: String,
    /// Place of the item's id in the answer.
    pub(super) id: String,
}

/// Answers of the provider, by the item's id.
pub(super) type AnswersById = HashMap<String, Box<RawValue>>;

impl AnswerPointers {
    /// Returns the answers of a body: an array of answers, an object of answers by id, or one
    /// answer. `null` is no answer.
    pub(super) fn of_body(&self, body: &str, asked: &[String]) -> Result<AnswersById, String> {
        let whole: &RawValue =
            serde_json::from_str(body).map_err(|why| format!("its body is no JSON: {why}"))?;
        let items = raw_at(whole, &self.items)
            .ok_or_else(|| format!("its body has nothing at --items {}", self.items))?;
        let mut answers = AnswerSet::of_items(asked);
        if let Some(list) = read_value::<Vec<&RawValue>>(items) {
            for answer in list {
                self.add_answer(answer, &mut answers)?;
            }
        // Before the object of answers by id: one answer is an object, too, but has an id at the
        // place of ids.
        } else if self.id_of(items).is_some() {
            self.add_answer(items, &mut answers)?;
        } else if let Some(by_id) = read_value::<HashMap<String, &RawValue>>(items) {
            for (id, answer) in by_id {
                answers.keep_answer(id, answer);
            }
        } else {
            return Err(format!(
                "its body has neither an array nor an object at --items {:?}",
                self.items
            ));
        }
        answers.check_answers()
    }

    /// Returns the answers in a text that has one answer on each line.
    pub(super) fn of_lines(&self, text: &str, asked: &[String]) -> Result<AnswersById, String> {
        let mut answers = AnswerSet::of_items(asked);
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let answer: &RawValue = serde_json::from_str(line)
                .map_err(|why| format!("line {} is no JSON: {why}", number + 1))?;
            self.add_answer(answer, &mut answers)?;
        }
        answers.check_answers()
    }

    fn add_answer(&self, answer: &RawValue, answers: &mut AnswerSet<'_>) -> Result<(), String> {
        // `null` is a provider's way to say that there is no such item.
        if is_null(answer) {
            return Ok(());
        }
        let id = self
            .id_of(answer)
            .ok_or_else(|| format!("an answer has no id at --answer-id {}", self.id))?;
        answers.keep_answer(id, answer);
        Ok(())
    }

    fn id_of(&self, answer: &RawValue) -> Option<String> {
        text_of(raw_at(answer, &self.id)?)
    }
}

/// Answers about items that were asked for. If there were answers about other items, also the id of
/// one of those.
struct AnswerSet<'a> {
    asked: HashSet<&'a str>,
    answers: AnswersById,
    other: Option<String>,
}

impl<'a> AnswerSet<'a> {
    fn of_items(asked: &'a [String]) -> Self {
        Self {
            asked: asked.iter().map(String::as_str).collect(),
            answers: AnswersById::new(),
            other: None,
        }
    }

    /// Keeps an answer if the item was asked for. Other answers of a large body take no memory.
    fn keep_answer(&mut self, id: String, answer: &RawValue) {
        if is_null(answer) {
            return;
        }
        if self.asked.contains(id.as_str()) {
            self.answers.insert(id, answer.to_owned());
        } else {
            self.other = Some(id);
        }
    }

    /// Returns the answers, or an error if all answers are about other items: with a wrong
    /// `--answer-id`, every item would count as gone.
    fn check_answers(self) -> Result<AnswersById, String> {
        match self.other {
            Some(other) if self.answers.is_empty() => Err(format!(
                "its answers are about {other:?} and others, and none of them was asked for; see --items and --answer-id"
            )),
            _ => Ok(self.answers),
        }
    }
}

/// Returns the value at a JSON pointer, with its bytes unchanged.
pub(super) fn raw_at<'t>(value: &'t RawValue, pointer: &str) -> Option<&'t RawValue> {
    let mut at = value;
    for name in pointer.split('/').skip(1) {
        // In this order: `~01` stands for `~1` (RFC 6901, 4).
        let name = name.replace("~1", "/").replace("~0", "~");
        at = match read_value::<HashMap<String, &RawValue>>(at) {
            Some(members) => *members.get(&name)?,
            None => read_value::<Vec<&RawValue>>(at)?.get(name.parse::<usize>().ok()?)?,
        };
    }
    Some(at)
}

/// Returns the text of a string, or a number as text with all digits.
pub(super) fn text_of(value: &RawValue) -> Option<String> {
    if let Some(text) = read_value::<String>(value) {
        return Some(text);
    }
    let text = value.get();
    // From the text: a parsed number of more than 53 bits could lose digits.
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    is_number.then(|| text.to_owned())
}

fn read_value<'t, T: serde::Deserialize<'t>>(value: &'t RawValue) -> Option<T> {
    serde_json::from_str(value.get()).ok()
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// Checks a JSON pointer from the command line.
pub(super) fn pointer(text: &str) -> Result<String, String> {
    if text.is_empty() || text.starts_with('/') {
        return Ok(text.to_owned());
    }
    Err("a JSON pointer begins with /, as /data/id, or is empty".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(items: &str, id: &str) -> AnswerPointers {
        let (items, id) = (items.to_owned(), id.to_owned());
        AnswerPointers { items, id }
    }

    fn asked(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn shown(answers: Result<AnswersById, String>) -> Vec<String> {
        let answers = answers.unwrap().into_iter();
        let mut shown: Vec<_> = answers.map(|(id, raw)| format!("{id} {raw}")).collect();
        shown.sort();
        shown
    }

    /// Answers stay as they came, and numbers keep their digits.
    #[test]
    fn answers_are_found_wherever_they_are() {
        let ids = asked(&["9007199254740993", "b"]);
        let array = r#"{"data":[{"id":9007199254740993,"n":1.0},null,{"n":2,"id":"b"}]}"#;
        let expected = [
            r#"9007199254740993 {"id":9007199254740993,"n":1.0}"#,
            r#"b {"n":2,"id":"b"}"#,
        ];
        assert_eq!(shown(places("/data", "/id").of_body(array, &ids)), expected);
        let by_id = r#"{"b":{"n":2},"c":null}"#;
        assert_eq!(
            shown(places("", "/id").of_body(by_id, &ids)),
            [r#"b {"n":2}"#]
        );
        let one = r#"{"thing":{"key":"b"}}"#;
        assert_eq!(
            shown(places("", "/thing/key").of_body(one, &ids)),
            [r#"b {"thing":{"key":"b"}}"#]
        );
        let lines = "{\"id\":\"b\"}\n\n{\"id\":9007199254740993}\n";
        assert_eq!(shown(places("", "/id").of_lines(lines, &ids)).len(), 2);
        for nothing in ["[]", "{}", "[null]"] {
            assert_eq!(shown(places("", "/id").of_body(nothing, &ids)), [""; 0]);
        }
    }

    /// A wrong option must not look like items that are gone.
    #[test]
    fn what_fits_no_item_is_an_error() {
        let ids = asked(&["1"]);
        let refused = |places: AnswerPointers, body: &str| places.of_body(body, &ids).unwrap_err();
        assert!(refused(places("/data", "/id"), "[]").contains("nothing at --items /data"));
        assert!(refused(places("", "/key"), r#"[{"id":1}]"#).contains("no id at --answer-id /key"));
        assert!(refused(places("", "/of"), r#"[{"id":1,"of":7}]"#).contains("about \"7\""));
        assert!(refused(places("", "/id"), "<html>").contains("no JSON"));
        for body in ["7", "null"] {
            assert!(refused(places("", "/id"), body).contains("neither an array nor an object"));
        }
    }
}
