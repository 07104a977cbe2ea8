//! Events in a file or a pipe: one event on each line, or JSON in a form for people.
//!
//! Pure. NDJSON has one event a line. An array of events and an event over several lines are
//! accepted, too: most tools print JSON in one of these forms. Each event is handed on as soon as
//! the event is complete, so that a pipe is not held up.

/// Finds the events in the lines of an input.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Whether the input is an array; `None` before the first token.
    is_array: Option<bool>,
    event: String,
    /// The line on which the event began, from 1.
    began: u64,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// An event, and the line on which it began.
pub(crate) type LineEvent = (u64, String);

impl Events {
    /// Reads the next line, and adds the events that end on the line to `events`. `number` counts
    /// lines from 1.
    pub(crate) fn line(&mut self, number: u64, line: &str, events: &mut Vec<LineEvent>) {
        let line = if self.is_array.is_none() {
            line.trim_start_matches('\u{feff}')
        } else {
            line
        };
        for c in line.chars() {
            self.take_char(number, c, events);
        }
        if self.depth == 0 || self.in_string {
            // Outside of brackets, the end of the line ends the event. The same holds within a
            // string, because JSON strings have no line ends: the server's refusal names that fault
            // better.
            self.end(events);
        } else {
            // Between two tokens of JSON, a line end is white space.
            self.event.push(' ');
        }
    }

    /// Ends the event under way, if there is one, and adds the event to `events`.
    pub(crate) fn end(&mut self, events: &mut Vec<LineEvent>) {
        let event = std::mem::take(&mut self.event);
        (self.depth, self.in_string, self.escaped) = (0, false, false);
        if !event.trim().is_empty() {
            events.push((self.began, event));
        }
    }

    fn take_char(&mut self, number: u64, c: char, events: &mut Vec<LineEvent>) {
        if self.depth == 0 && !self.in_string {
            if self.event.is_empty() {
                self.began = number;
            }
            match c {
                _ if c.is_whitespace() && self.event.is_empty() => return,
                '[' if self.is_array.is_none() => {
                    self.is_array = Some(true);
                    return;
                }
                ',' | ']' if self.is_array == Some(true) => return self.end(events),
                _ => {}
            }
            self.is_array.get_or_insert(false);
        }
        self.event.push(c);
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' => self.in_string = !self.in_string,
            '{' | '[' if !self.in_string => self.depth += 1,
            // Malformed input may close more brackets than the input opens.
            '}' | ']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, expected: &[(u64, &str)]) {
        let (mut events, mut found) = (Events::default(), vec![]);
        for (number, line) in (1..).zip(input.lines()) {
            events.line(number, line, &mut found);
        }
        events.end(&mut found);
        let found: Vec<(u64, &str)> = found.iter().map(|(line, text)| (*line, &**text)).collect();
        assert_eq!(found, expected, "{input}");
    }

    #[test]
    fn events_are_lines_arrays_or_written_for_people() {
        check(
            "{\"a\":1}\n\n {\"b\":\"}\"}\r\n",
            &[(1, "{\"a\":1}"), (3, "{\"b\":\"}\"}")],
        );
        check("\u{feff}{}\n{}", &[(1, "{}"), (2, "{}")]);
        check(
            "[{\"a\":[1,2]},\n {\"b\":2}\n]",
            &[(1, "{\"a\":[1,2]}"), (2, "{\"b\":2}")],
        );
        check("[]", &[]);
        check(
            "{\n  \"a\": \"\\\"{\"\n}\n{\n}\n",
            &[(1, "{   \"a\": \"\\\"{\" }"), (4, "{ }")],
        );
        // A malformed line is handed on unchanged, and the next event begins behind it.
        check("nonsense\n{}\n", &[(1, "nonsense"), (2, "{}")]);
        check("{\"a\":\"\n{}\n", &[(1, "{\"a\":\""), (2, "{}")]);
        check("{\"a\":1", &[(1, "{\"a\":1 ")]);
    }
}
