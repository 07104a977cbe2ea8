//! Equal parts of the settings of many feeds, which are kept in memory only once.
//!
//! Pure. Settings from the log, and settings of a request, come with copies of these parts. Kept
//! for each feed, the copies would be a quarter of the memory that the writer needs for a feed.

use std::sync::Arc;

use simplefeed_core::{
    plan::FeedState,
    settings::{Choices, Defaults, Settings},
};

/// Largest number of different values that are remembered: the values that were used last.
const VALUES_MAX: usize = 16;

/// Choices and defaults that feeds share.
#[derive(Debug, Default)]
pub(super) struct Alike {
    choices: Values<Choices>,
    defaults: Values<Defaults>,
}

impl Alike {
    /// Returns the feed, with settings that share equal parts with earlier settings.
    pub(super) fn share(&mut self, mut state: FeedState) -> FeedState {
        let settings = &*state.settings;
        let choices = self.choices.share_value(&settings.choices);
        let defaults = self.defaults.share_value(&settings.defaults);
        let is_shared =
            Arc::ptr_eq(&choices, &settings.choices) && Arc::ptr_eq(&defaults, &settings.defaults);
        if !is_shared {
            state.settings = Arc::new(Settings {
                choices,
                defaults,
                ..settings.clone()
            });
        }
        state
    }
}

/// Values of a kind, in the order of the last use.
#[derive(Debug)]
struct Values<T>(Vec<Arc<T>>);

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<T: Eq> Values<T> {
    /// Returns the remembered value that equals this value, or remembers this value.
    fn share_value(&mut self, value: &Arc<T>) -> Arc<T> {
        // The usual value is at the end. `Arc` compares pointers first, so a search for a shared
        // value is short.
        let known = self.0.iter().rposition(|known| known == value);
        let shared = match known {
            Some(index) => self.0.remove(index),
            None => Arc::clone(value),
        };
        // The value in front was used longest ago.
        if self.0.len() == VALUES_MAX {
            self.0.remove(0);
        }
        self.0.push(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use simplefeed_core::{
        feed::{Epoch, FeedId, FeedName},
        plan::FeedHead,
        timestamp::Timestamp,
    };
    use uuid::Uuid;

    use super::*;

    fn feed(number: u32, title: Option<String>) -> FeedState {
        let settings = Settings {
            name: FeedName::parse(&format!("f{number}")).unwrap(),
            id: FeedId::of_uuid(Uuid::from_u128(number.into())),
            choices: Arc::new(Choices {
                title,
                ..Choices::default()
            }),
            defaults: Defaults::new("http://h").into(),
            sup_id: None,
            was_closed: false,
            timeline: None,
        };
        FeedState {
            head: FeedHead::create(&settings, Timestamp::MIN, Epoch::FIRST),
            settings: Arc::new(settings),
        }
    }

    /// Goal: many feeds take little memory, and none gets the settings of another.
    #[test]
    fn what_feeds_have_alike_is_in_memory_once() {
        let mut alike = Alike::default();
        let first = alike.share(feed(0, None)).settings;
        for number in 1..200 {
            let title = (number % 2 == 0).then(|| format!("title {number}"));
            let own = feed(number, title);
            let shared = alike.share(own.clone());
            assert_eq!(shared.settings, own.settings);
            assert!(Arc::ptr_eq(&shared.settings.defaults, &first.defaults));
            let has_same = Arc::ptr_eq(&shared.settings.choices, &first.choices);
            assert_eq!(has_same, number % 2 == 1, "{number}");
            assert!(alike.choices.0.len() <= VALUES_MAX);
            // The second call makes no new settings.
            let again = alike.share(shared.clone());
            assert!(Arc::ptr_eq(&again.settings, &shared.settings));
        }
    }
}
