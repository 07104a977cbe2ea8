//! Goal: answered changes are in the file after a power cut, at any write.
//! Method: a disk that loses unsynced writes, in part and torn, and the model beside the queue.
//!
//! Shell: threads of the queue; the disk is memory.

use std::{io, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use redb::StorageBackend;

use super::Redb;
use crate::{
    clock::Manual,
    error::QueueError,
    job::{
        Due, Existing, Extension, Finish, Job, JobFailure, Lease, LeaseToken, Namespace, NewJob,
        Stats, Successor, Want,
    },
    model::Model,
    queue::{Queue, TakeOutcome},
};

/// Bytes that a disk writes as a whole.
const SECTOR: usize = 512;
const LEASE: Duration = Duration::from_mins(1);
const SEEDS: u64 = 300;

/// Numbers that follow from a seed (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.below(u64::try_from(count).unwrap())).unwrap()
    }
}

/// A change that was not synced yet.
#[derive(Debug)]
enum UnsyncedChange {
    Length(usize),
    Write(usize, Vec<u8>),
}

#[derive(Debug, Default)]
struct CutDisk {
    /// Bytes that a power cut leaves for sure.
    durable: Vec<u8>,
    /// Bytes as the program sees them.
    bytes: Vec<u8>,
    pending: Vec<UnsyncedChange>,
    /// Operations until the power is cut.
    left: u64,
}

fn apply(bytes: &mut Vec<u8>, change: &UnsyncedChange) {
    match change {
        UnsyncedChange::Length(length) => bytes.resize(*length, 0),
        UnsyncedChange::Write(at, written) => {
            let end = at + written.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at..end].copy_from_slice(written);
        }
    }
}

impl CutDisk {
    fn of(bytes: Vec<u8>, left: u64) -> SharedDisk {
        SharedDisk(Arc::new(Mutex::new(Self {
            durable: bytes.clone(),
            bytes,
            pending: Vec::new(),
            left,
        })))
    }

    fn operate(&mut self) -> io::Result<()> {
        if self.left == 0 {
            return Err(io::Error::other("the power is cut"));
        }
        self.left -= 1;
        Ok(())
    }

    fn change(&mut self, change: UnsyncedChange) -> io::Result<()> {
        self.operate()?;
        apply(&mut self.bytes, &change);
        self.pending.push(change);
        Ok(())
    }

    /// Returns the bytes after a power cut. Of the unsynced changes, some are there as a whole, and
    /// some in a part of their sectors.
    fn cut(&mut self, dice: &mut Dice) -> Vec<u8> {
        // The queue's threads still run, and must change nothing after the cut.
        self.left = 0;
        let mut bytes = self.durable.clone();
        for change in &self.pending {
            match (change, dice.below(3)) {
                (change, 0) => apply(&mut bytes, change),
                (UnsyncedChange::Write(at, written), 1) => {
                    for (number, sector) in written.chunks(SECTOR).enumerate() {
                        if dice.below(2) == 0 {
                            let at = at + number * SECTOR;
                            apply(&mut bytes, &UnsyncedChange::Write(at, sector.to_vec()));
                        }
                    }
                }
                _ => {}
            }
        }
        bytes
    }
}

/// A disk that a file of redb and the test share.
#[derive(Clone, Debug)]
struct SharedDisk(Arc<Mutex<CutDisk>>);

impl StorageBackend for SharedDisk {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(u64::try_from(self.0.lock().bytes.len()).unwrap())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let disk = self.0.lock();
        let at = usize::try_from(offset).unwrap();
        let bytes = disk.bytes.get(at..at + out.len());
        out.copy_from_slice(bytes.ok_or_else(|| io::Error::other("beyond the end"))?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        let length = usize::try_from(length).unwrap();
        self.0.lock().change(UnsyncedChange::Length(length))
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut disk = self.0.lock();
        disk.operate()?;
        let CutDisk {
            durable, pending, ..
        } = &mut *disk;
        for change in pending.drain(..) {
            apply(durable, &change);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let at = usize::try_from(offset).unwrap();
        self.0
            .lock()
            .change(UnsyncedChange::Write(at, data.to_vec()))
    }
}

fn things() -> Namespace {
    Namespace::new("things").unwrap()
}

fn open(disk: &SharedDisk, clock: &Manual) -> Result<Redb, QueueError> {
    let database = redb::Builder::new().create_with_backend(disk.clone());
    let database = database.map_err(|why| super::failed_error(Arc::new(why.into())))?;
    Redb::work_on(database, clock.clone().into(), None)
        .map_err(|why| super::failed_error(Arc::new(why)))
}

/// Everything in a queue: jobs in the order of their due times, and the dead.
#[derive(Debug, PartialEq)]
struct Contents {
    stats: Stats,
    jobs: Vec<Job>,
    dead: Vec<crate::job::Dead>,
}

const ALL: Want = Want {
    max: 100,
    buffer: Duration::ZERO,
    lease: LEASE,
};

fn jobs_of(taken: TakeOutcome) -> Vec<Job> {
    match taken {
        TakeOutcome::Leased(leases) => leases.into_iter().map(|lease| lease.job).collect(),
        TakeOutcome::Wait { .. } => Vec::new(),
    }
}

fn contents_of_model(mut model: Model, now: DateTime<Utc>) -> Contents {
    let stats = model.stats(now, &things());
    let dead = model.dead(&things(), None, 100).unwrap();
    let jobs = jobs_of(model.take(now, &things(), ALL).unwrap());
    Contents { stats, jobs, dead }
}

async fn contents_of_queue(queue: &Redb) -> Contents {
    let stats = queue.stats(&things()).await.unwrap();
    let dead = queue.dead(&things(), None, 100).await.unwrap();
    let jobs = jobs_of(queue.take(&things(), ALL).await.unwrap());
    Contents { stats, jobs, dead }
}

/// A call of a worker or a starter.
enum Call {
    Schedule(Vec<NewJob>),
    Note(LeaseToken, LeaseToken),
    Finish(LeaseToken, LeaseToken, Successor),
    Fail(LeaseToken, LeaseToken, u32),
    Retry(String),
    Remove(String),
}

fn call(dice: &mut Dice, tokens: &mut Vec<(LeaseToken, LeaseToken)>) -> Call {
    let key = dice.below(6).to_string();
    // No two due times are equal: jobs with equal due times may be leased in any order.
    let due = Due::After(Duration::from_micros(dice.below(5_000_000)));
    let index = dice.one_of(tokens.len().max(1));
    let kind = dice.below(8);
    if kind < 2 || tokens.is_empty() && kind < 6 {
        let payload = vec![7; dice.one_of(3_000)];
        return Call::Schedule(vec![NewJob::new(&things(), key, due).payload(payload)]);
    }
    match kind {
        2 => {
            let (ours, theirs) = tokens[index].clone();
            Call::Note(ours, theirs)
        }
        3 | 4 => {
            let (ours, theirs) = tokens.swap_remove(index);
            let payload = Some(vec![u8::try_from(dice.below(200)).unwrap(); 40]);
            let next = if dice.below(3) == 0 {
                Successor::Done
            } else {
                Successor::Again { due, payload }
            };
            Call::Finish(ours, theirs, next)
        }
        5 => {
            let (ours, theirs) = tokens.swap_remove(index);
            Call::Fail(ours, theirs, u32::try_from(1 + dice.below(3)).unwrap())
        }
        6 => Call::Retry(key),
        _ => Call::Remove(key),
    }
}

/// Makes the same call of the model and of the queue. The answers are not compared.
async fn make(
    queue: &Redb,
    model: &mut Model,
    now: DateTime<Utc>,
    call: Call,
) -> Result<(), QueueError> {
    match call {
        Call::Schedule(jobs) => {
            model.schedule(now, jobs.clone(), Existing::Move)?;
            queue.schedule(jobs, Existing::Move).await.map(drop)
        }
        Call::Note(ours, theirs) => {
            let extension = |token| Extension {
                token,
                lease: LEASE,
                note: Some(vec![1, 2, 3]),
            };
            model.extend(now, vec![extension(theirs)])?;
            queue.extend(vec![extension(ours)]).await.map(drop)
        }
        Call::Finish(ours, theirs, next) => {
            model.finish(now, vec![Finish::new(theirs, next.clone())])?;
            queue.finish(vec![Finish::new(ours, next)]).await.map(drop)
        }
        Call::Fail(ours, theirs, attempts) => {
            let failure = |token| JobFailure {
                token,
                retry: Due::After(Duration::from_millis(1_500)),
                attempts,
                reason: "no".to_owned(),
            };
            model.fail(now, &[failure(theirs)])?;
            queue.fail(vec![failure(ours)]).await.map(drop)
        }
        Call::Retry(key) => {
            model.retry(now, &things(), std::slice::from_ref(&key))?;
            queue.retry(&things(), vec![key]).await.map(drop)
        }
        Call::Remove(key) => {
            model.remove(&things(), std::slice::from_ref(&key))?;
            queue.remove(&things(), vec![key]).await.map(drop)
        }
    }
}

/// Leases all due jobs, in the queue and in the model.
async fn take(
    queue: &Redb,
    model: &mut Model,
    now: DateTime<Utc>,
) -> Vec<(LeaseToken, LeaseToken)> {
    let Ok(TakeOutcome::Leased(ours)) = queue.take(&things(), ALL).await else {
        return Vec::new();
    };
    let TakeOutcome::Leased(theirs) = model.take(now, &things(), ALL).unwrap() else {
        panic!("the model leases nothing");
    };
    let pair = |ours: Lease| {
        // By key: the tokens of the two differ.
        let theirs = theirs.iter().find(|one| one.job.key == ours.job.key);
        (ours.token, theirs.unwrap().token.clone())
    };
    ours.into_iter().map(pair).collect()
}

/// Runs calls until the power is cut, and returns the models before and after the last call.
async fn run(dice: &mut Dice, disk: &SharedDisk, clock: &Manual, model: Model) -> (Model, Model) {
    let (mut before, mut after) = (model.clone(), model);
    // The cut may come in the opening, which changes no job.
    let Ok(queue) = open(disk, clock) else {
        return (before, after);
    };
    let mut tokens = Vec::new();
    for _ in 0..40 {
        clock.advance(Duration::from_secs(1));
        let now = clock.now();
        before = after.clone();
        if dice.below(4) == 0 {
            tokens.extend(take(&queue, &mut after, now).await);
            continue;
        }
        let call = call(dice, &mut tokens);
        // The model has made the change already: the queue may have made the change or not, so both
        // models are allowed.
        if make(&queue, &mut after, now, call).await.is_err() {
            return (before, after);
        }
    }
    (after.clone(), after)
}

#[tokio::test]
async fn what_was_answered_survives_a_power_cut() {
    let mut cuts_within = 0;
    for seed in 0..SEEDS {
        let mut dice = Dice(seed);
        let clock = Manual::new(DateTime::from_timestamp(1_767_225_600, 0).unwrap());
        let mut model = Model::default();
        let mut bytes = Vec::new();
        for _ in 0..4 {
            let operations = 20 + dice.below(800);
            let disk = CutDisk::of(bytes, operations);
            let (before, after) = run(&mut dice, &disk, &clock, model).await;
            bytes = disk.0.lock().cut(&mut dice);
            // No lease outlives its process.
            clock.advance(2 * LEASE);
            let now = clock.now();
            let check = open(&CutDisk::of(bytes.clone(), u64::MAX), &clock).unwrap();
            let found = contents_of_queue(&check).await;
            let (was, is) = (
                contents_of_model(before.clone(), now),
                contents_of_model(after.clone(), now),
            );
            cuts_within += u64::from(was != is);
            assert!(
                found == was || found == is,
                "seed {seed}: {found:?}\n{was:?}\n{is:?}"
            );
            model = if found == is { after } else { before };
        }
    }
    // Enough cuts must come within a call that changes jobs, or the test would show little.
    assert!(cuts_within > SEEDS / 4, "{cuts_within}");
}

/// The calls after a failure of the file tell its cause.
#[tokio::test]
async fn a_queue_whose_file_failed_says_why() {
    let clock = Manual::new(DateTime::from_timestamp(1_767_225_600, 0).unwrap());
    let queue = open(&CutDisk::of(Vec::new(), 200), &clock).unwrap();
    let job = |key: u32| NewJob::new(&things(), key.to_string(), Due::At(clock.now()));
    let mut key = 0;
    let failed = loop {
        key += 1;
        if let Err(failed) = queue.schedule(vec![job(key)], Existing::Keep).await {
            break failed;
        }
    };
    assert!(matches!(failed, QueueError::Lost { .. }), "{failed:?}");
    for _ in 0..3 {
        let after = queue.take(&things(), ALL).await.unwrap_err();
        assert!(matches!(after, QueueError::Failed { .. }), "{after:?}");
        let why = std::error::Error::source(&after).unwrap().to_string();
        assert!(!why.is_empty());
    }
}
