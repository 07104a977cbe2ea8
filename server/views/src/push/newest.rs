//! The newest events of a feed, for streams that are up to date.
//!
//! Pure.

use std::collections::VecDeque;

use bytes::Bytes;
use simplefeed_core::feed::Position;

/// Events of a feed's newest entries, without holes.
#[derive(Debug, Default)]
pub(super) struct NewestEvents {
    events: VecDeque<Bytes>,
    bytes: usize,
    /// Position behind the entry of the newest event.
    next: Position,
}

impl NewestEvents {
    /// Returns the position behind the newest event.
    pub(super) fn next(&self) -> Position {
        self.next
    }

    /// Removes all events. The next event is that of the entry at position `next`, which may be yet
    /// to come.
    pub(super) fn begin_at(&mut self, next: Position) {
        self.events.clear();
        self.bytes = 0;
        self.next = next;
    }

    /// Adds the next events. Then removes the oldest events, until at most `bytes_max` bytes are
    /// left.
    pub(super) fn add(&mut self, events: Vec<Bytes>, bytes_max: usize) {
        for event in events {
            self.bytes += event.len();
            self.events.push_back(event);
            self.next = self.next.next();
        }
        while self.bytes > bytes_max
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= oldest.len();
        }
        // Otherwise a queue that was long once would keep its memory.
        if self.events.capacity() > 64 && self.events.len() < self.events.capacity() / 4 {
            self.events.shrink_to(self.events.len() * 2);
        }
    }

    /// Returns the events of entries at position `from` and later, about `bytes` bytes of them.
    /// Returns no events if any event between `from` and the newest one is missing here.
    pub(super) fn from(&self, from: Position, bytes: usize) -> Vec<Bytes> {
        let wanted = self.next.0.checked_sub(from.0);
        let wanted = wanted.and_then(|wanted| usize::try_from(wanted).ok());
        let skipped = wanted.and_then(|wanted| self.events.len().checked_sub(wanted));
        let Some(skipped) = skipped else {
            return vec![];
        };
        let mut taken = 0;
        let events = self.events.iter().skip(skipped).take_while(|event| {
            // One event comes in any case, so that a reader gets past an event of any size.
            let is_enough = taken >= bytes;
            taken += event.len();
            !is_enough
        });
        events.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a reader gets every event from its place on, or none; memory stays bounded.
    #[test]
    fn has_all_from_a_place_on_or_none() {
        let mut newest = NewestEvents::default();
        newest.begin_at(Position(10));
        assert_eq!(newest.from(Position(10), 1_000), Vec::<Bytes>::new());
        let event = |number: u64| Bytes::from(format!("event {number:4}"));
        for number in 10..1_000 {
            newest.add(vec![event(number)], 100);
            assert!(newest.bytes <= 100 && newest.events.capacity() <= 64);
        }
        assert_eq!(newest.next(), Position(1_000));
        let all: Vec<Bytes> = (990..1_000).map(event).collect();
        assert_eq!(newest.from(Position(990), 1_000), all);
        assert_eq!(newest.from(Position(999), 1_000), [event(999)]);
        let two: Vec<Bytes> = (990..992).map(event).collect();
        assert_eq!(newest.from(Position(990), 11), two);
        for none in [0, 989, 1_000, 1_001] {
            assert_eq!(
                newest.from(Position(none), 1_000),
                Vec::<Bytes>::new(),
                "{none}"
            );
        }
        newest.add(vec![Bytes::from(vec![b'a'; 101])], 100);
        assert_eq!(newest.from(Position(1_000), 1_000), Vec::<Bytes>::new());
        assert_eq!((newest.next(), newest.bytes), (Position(1_001), 0));
    }
}
