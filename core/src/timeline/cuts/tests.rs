//! Documents of random timelines, against cutting entry by entry.

use proptest::prelude::*;

use super::*;
use crate::{
    feed::{FeedId, FeedName},
    settings::{Choices, Defaults, Embed, OwnEntries, TimelineKind},
};

/// Entries with their bytes, oldest first.
#[derive(Debug, Default)]
struct Entries(Vec<(Place, u64)>);

impl Sequence for Entries {
    fn count(&self) -> u64 {
        u64::try_from(self.0.len()).unwrap()
    }

    fn rank(&self, instant: Timestamp) -> u64 {
        let before = self.0.iter().filter(|(place, _)| place.instant() < instant);
        u64::try_from(before.count()).unwrap()
    }

    fn place(&self, at: Position) -> Option<Place> {
        let entry = self.0.get(usize::try_from(at.0).unwrap());
        entry.map(|(place, _)| *place)
    }

    fn behind(&self, place: Option<Place>, limit: usize) -> Vec<(Place, u64)> {
        let behind = self.0.iter().filter(|(one, _)| Some(*one) > place);
        behind.take(limit).copied().collect()
    }
}

fn settings(choices: Choices) -> Arc<Settings> {
    Arc::new(Settings {
        name: FeedName::parse("home").unwrap(),
        id: FeedId::parse("urn:home").unwrap(),
        choices: choices.into(),
        defaults: Defaults::new("http://h").into(),
        sup_id: None,
        was_closed: false,
        timeline: Some(TimelineKind::new(None, OwnEntries::Exclude)),
    })
}

/// A timeline that grows: what happens, a second apart or in another hour.
#[derive(Clone, Debug)]
enum Step {
    Entry(u64),
    Settings(u32, Period, Option<u64>),
    Epoch,
    Hour,
}

fn any_step() -> impl Strategy<Value = Step> {
    let period = prop_oneof![3 => Just(Period::None), 1 => Just(Period::Hour)];
    let bytes = prop_oneof![3 => Just(None), 1 => (50_u64..200).prop_map(Some)];
    prop_oneof![
        12 => (1_u64..60).prop_map(Step::Entry),
        1 => (1_u32..5, period, bytes).prop_map(|(entries, period, bytes)| {
            Step::Settings(entries, period, bytes)
        }),
        1 => Just(Step::Epoch),
        1 => Just(Step::Hour),
    ]
}

/// A document as the definition has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Defined {
    opening: Opening,
    fill: Fill,
}

/// Cuts entry by entry, and renames the open document with each epoch.
struct Definition {
    documents: Vec<Defined>,
    course: CutCourse,
    entries: Entries,
    now: Timestamp,
    epoch: Epoch,
}

impl Definition {
    fn of(steps: &[Step]) -> Self {
        let created = Timestamp::from_micros(1);
        let spell = Spell {
            since: created,
            settings: settings(Choices::default()),
        };
        let mut definition = Self {
            documents: vec![],
            course: CutCourse {
                spells: vec![spell],
                epochs: vec![],
                restarted: None,
            },
            entries: Entries::default(),
            now: created,
            epoch: Epoch::FIRST,
        };
        definition.open(1);
        for step in steps {
            definition.now = definition.now.plus_micros(1_000_000);
            definition.take(step);
        }
        definition
    }

    fn newest(&self) -> Revision {
        revision_of(self.course.spells.len() - 1)
    }

    fn open(&mut self, number: u64) {
        let name = DocumentName {
            number: DocumentNumber::new(number).unwrap(),
            epoch: self.epoch,
        };
        let before = self.documents.last().map(|before| before.opening);
        let first = self.entries.count();
        let opening = Opening {
            name,
            linked: name,
            previous: before.map(|before| before.name),
            first: Position(first),
            before: no_history(&self.course, first),
            revision: self.newest(),
            opened: self.now,
            after_loss: false,
            since: before.map_or(Position(0), |before| before.since),
        };
        let fill = Fill {
            entries: 0,
            bytes: 0,
            newest: self.now,
        };
        self.documents.push(Defined { opening, fill });
    }

    fn take(&mut self, step: &Step) {
        let mut open = self.documents.last().unwrap().clone();
        match step {
            Step::Hour => self.now = self.now.plus_micros(3_600_000_000),
            Step::Settings(entries, period, bytes) => {
                self.course.spells.push(Spell {
                    since: self.now,
                    settings: settings(Choices {
                        document_entries: Some(*entries),
                        document_period: Some(*period),
                        document_bytes: *bytes,
                        embed: bytes.map(|_| Embed::All),
                        ..Choices::default()
                    }),
                });
                if open.fill.entries == 0 {
                    open.opening.revision = self.newest();
                }
            }
            Step::Epoch => {
                self.epoch = Epoch(self.epoch.0 + 1);
                self.course.epochs.push((self.now, self.epoch));
                open.opening.name.epoch = self.epoch;
                open.opening.since = open.opening.first;
            }
            Step::Entry(bytes) => {
                let newest = self.course.spells.last().unwrap();
                let policy = newest.settings.cut_policy();
                let is_other = open.opening.revision != self.newest() && open.fill.entries > 0;
                if is_other || policy.cuts_before(open.fill, *bytes, self.now) {
                    self.open(open.opening.name.number.next().get());
                    open = self.documents.last().unwrap().clone();
                }
                open.fill = Fill {
                    entries: open.fill.entries + 1,
                    bytes: open.fill.bytes + bytes,
                    newest: self.now,
                };
                self.entries.0.push((Place::of_entry(self.now), *bytes));
            }
        }
        *self.documents.last_mut().unwrap() = open;
    }
}

fn compare(cuts: &mut Cuts, steps: &[Step]) {
    let Definition {
        documents,
        course,
        entries,
        ..
    } = Definition::of(steps);
    for (defined, number) in documents.iter().zip(1..) {
        let cut = cuts
            .cut(DocumentNumber::new(number), &course, &entries)
            .unwrap();
        assert_eq!(cut.opening, defined.opening, "{steps:?}");
        let end = defined.opening.first.0 + defined.fill.entries;
        assert_eq!(cut.end, Position(end), "{steps:?}");
        for at in defined.opening.first.0..end {
            assert_eq!(cuts.document_of(Position(at)), DocumentNumber::new(number));
        }
    }
    let newest = cuts.cut(None, &course, &entries).unwrap();
    assert_eq!(
        Some(&newest.opening),
        documents.last().map(|one| &one.opening)
    );
    let beyond = DocumentNumber::new(u64::try_from(documents.len()).unwrap() + 1);
    assert_eq!(cuts.cut(beyond, &course, &entries), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Goal: documents follow from the sequence, whenever they are asked for.
    #[test]
    fn documents_are_those_of_cutting_entry_by_entry(
        steps in prop::collection::vec(any_step(), 0..60),
        asked in prop::collection::vec(any::<bool>(), 60),
    ) {
        let mut cuts = Cuts::default();
        for (length, is_asked) in asked.iter().enumerate().take(steps.len()) {
            if *is_asked {
                compare(&mut cuts, &steps[..length]);
            }
        }
        compare(&mut cuts, &steps);
        compare(&mut Cuts::default(), &steps);
    }
}
