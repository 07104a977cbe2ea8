//! The bugs that are planted in a second build, and the workloads that reach them.
//!
//! Pure.

/// A planted bug.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bug {
    pub(super) name: &'static str,
    pub(super) workload: &'static str,
    /// Whether it shows while it is recorded, which then fails.
    pub(super) fails_recordings: bool,
    /// Whether the sample of a long run is needed to find it in nineteen recordings of twenty.
    pub(super) is_rare: bool,
}

const fn bug(name: &'static str, workload: &'static str) -> Bug {
    Bug {
        name,
        workload,
        fails_recordings: false,
        is_rare: false,
    }
}

const fn rare(bug: Bug) -> Bug {
    Bug {
        is_rare: true,
        ..bug
    }
}

pub(super) const BUGS: &[Bug] = &[
    bug("append-unsynced", "small"),
    rare(bug("shown-first", "small")),
    bug("name-unsynced", "small"),
    rare(bug("head-before-name", "settle")),
    rare(bug("witness-first", "settle")),
    rare(bug("witness-unsynced", "settle")),
    rare(bug("sled-names-unsynced", "settle")),
    rare(bug("leftovers-kept", "settle")),
    rare(bug("opening-names-unsynced", "rotation")),
    bug("documents-unsynced", "small"),
    bug("begun-is-damaged", "begun"),
    rare(bug("torn-is-damage", "small")),
    bug("document-time-unsynced", "small"),
    rare(bug("run-unsynced", "ids")),
    Bug {
        fails_recordings: true,
        ..bug("graph-skips-a-commit", "timelines")
    },
    rare(bug("window-unsynced", "sup")),
    bug("revoke-unsynced", "tokens"),
    bug("bookmark-unsynced", "bookmark"),
    bug("parked-unsynced", "state"),
    bug("place-first", "queue"),
];
