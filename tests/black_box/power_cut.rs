//! Acknowledged means on the disk: simulated power cuts.
//!
//! The data folder is on an ext4 image behind a loop device. At the instant the server is killed the file
//! system is shut down: what had not left the machine's memory by then never reaches the image. The real
//! server must find everything acknowledged in it, and a server without the barrier must not.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    faults::library,
    harness::{Server, check_folder, ids, is_long, pause, program, simplefeed},
    http::Request,
    visibility::{Seen, crowd},
};

/// Runs: `tests/run --long`, and otherwise.
const RUNS: [usize; 2] = [300, 10];
/// Runs of the negative controls: those whose cut comes late in the half second after which sled syncs
/// by itself.
const CONTROL_RUNS: [usize; 5] = [3, 4, 9, 14, 16];
/// Runs that are never left out: a commit of 8 MB makes sled write over segments before the barrier.
const LARGE_RUNS: [usize; 2] = [27, 31];
const WRITERS: usize = 4;

/// What is published in a run: bytes of an entry, entries of a request.
#[derive(Clone, Copy, Debug)]
struct Load {
    entry_bytes: usize,
    batch: usize,
}

impl Load {
    /// Sizes and groups of all kinds, one after the other.
    fn of_run(run: usize) -> Self {
        let entry_bytes = [600, 10_000, 40_000, 200_000][run % 4];
        let batch = [1, 16, 256, 4_096][run / 4 % 4];
        Self {
            entry_bytes,
            // A request has at most 16 MiB.
            batch: batch.min(8_000_000 / entry_bytes),
        }
    }
}

/// An ext4 file system in an image file. Unmounted when dropped.
struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

impl Disk {
    fn create(folder: &Path) -> Option<Self> {
        let disk = Self {
            image: folder.join("disk.img"),
            mount: folder.join("disk"),
        };
        fs::create_dir(&disk.mount).unwrap();
        fs::File::create(&disk.image)
            .unwrap()
            .set_len(2 * 1024 * 1024 * 1024)
            .unwrap();
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F"])
            .arg(&disk.image)
            .status();
        (made.is_ok_and(|status| status.success()) && disk.attach()).then_some(disk)
    }

    fn of_image(image: PathBuf, mount: PathBuf) -> Self {
        fs::create_dir(&mount).unwrap();
        let disk = Self { image, mount };
        assert!(disk.attach(), "the copied image cannot be mounted");
        disk
    }

    /// Copies the image as it is now: what has not left the machine's memory is not in it.
    ///
    /// The file system is shut down first. Else it would go on writing while the image is copied, and the
    /// copy would be of no instant: a disk never has the end of a transaction without its beginning.
    fn copy(&self) -> PathBuf {
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH.
        let shutdown = "import fcntl,os,struct,sys\n\
            folder=os.open(sys.argv[1],os.O_RDONLY)\n\
            fcntl.ioctl(folder,0x8004587d,struct.pack('I',2))\n";
        let mut python = Command::new("python3");
        let shut = python.args(["-c", shutdown]).arg(&self.mount).status();
        assert!(
            shut.unwrap().success(),
            "the file system cannot be shut down"
        );
        let copy = self.image.with_extension("copy");
        let mut cp = Command::new("cp");
        let copied = cp
            .arg("--sparse=always")
            .arg(&self.image)
            .arg(&copy)
            .status();
        assert!(copied.unwrap().success());
        copy
    }

    fn attach(&self) -> bool {
        let status = Command::new("mount")
            .args(["-o", "loop"])
            .arg(&self.image)
            .arg(&self.mount)
            .output();
        status.is_ok_and(|output| output.status.success())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Who was killed may have it open for a moment.
        for _ in 0..100 {
            let unmounted = Command::new("umount").arg(&self.mount).output();
            if unmounted.is_ok_and(|output| output.status.success()) {
                return;
            }
            pause(Duration::from_millis(50));
        }
    }
}

/// Writes from several clients until told to stop. Returns the ids acknowledged.
fn write_until(
    load: Load,
    server: &Arc<Server>,
    stop: &Arc<AtomicBool>,
    acknowledged: &Arc<Mutex<Vec<String>>>,
) {
    for writer in 0..WRITERS {
        let (server, stop, acknowledged) = (
            Arc::clone(server),
            Arc::clone(stop),
            Arc::clone(acknowledged),
        );
        std::thread::spawn(move || {
            for request in 0.. {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let size = if request % 3 == 0 { 1 } else { load.batch };
                let ids: Vec<String> = (0..size)
                    .map(|n| format!("urn:t:{writer}-{request}-{n}"))
                    .collect();
                let body: String = ids
                    .iter()
                    .map(|id| {
                        format!(
                            "{{\"id\":\"{id}\",\"content\":\"{}\"}}\n",
                            "x".repeat(load.entry_bytes)
                        )
                    })
                    .collect();
                let post = Request::post(
                    &format!("/feeds/f{}", writer % 2),
                    "application/x-ndjson",
                    body,
                );
                match post.send(&server.address) {
                    Ok(response) if response.status == 201 => {
                        acknowledged.lock().unwrap().extend(ids)
                    }
                    _ => return,
                }
            }
        });
    }
}

/// One power cut. Returns how many entries were acknowledged, and how many of them are gone; all of
/// them if the log cannot be opened.
fn power_cut(run: usize, start: impl Fn(&Path) -> Server) -> Option<(usize, usize)> {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::create(folder.path())?;
    let data = disk.mount.join("data");
    let server = Arc::new(start(&data));
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(Mutex::new(vec![]));
    write_until(Load::of_run(run), &server, &stop, &acknowledged);
    // The first start is cut, too; some runs are long.
    let time = 100 + 137 * (run * 7 % 23);
    pause(Duration::from_millis(u64::try_from(time).unwrap()));

    // Everything acknowledged up to now must be in the copy, which begins the moment it is killed.
    let promised = acknowledged.lock().unwrap().clone();
    server.kill_now();
    let copy = disk.copy();
    stop.store(true, Ordering::Release);
    drop(server);
    drop(disk);

    let disk = Disk::of_image(copy, folder.path().join("after"));
    let data = disk.mount.join("data");
    let found = std::panic::catch_unwind(|| {
        let server = Server::start(&data, &[]);
        let mut found = std::collections::HashSet::new();
        for feed in ["f0", "f1"] {
            if server.get(&format!("/feeds/{feed}")).status == 307 {
                let ids = ids(&server, feed);
                let (before, count) = (found.len(), ids.len());
                found.extend(ids);
                assert_eq!(found.len() - before, count, "an entry is there twice");
            }
        }
        server.stop();
        check_folder("verify", &data);
        found
    });
    let lost = match found {
        Ok(found) => promised.iter().filter(|id| !found.contains(*id)).count(),
        Err(_) => promised.len().max(1),
    };
    Some((promised.len(), lost))
}

/// Starts a server for a power cut: every third is the real one, the others settle often.
fn start(run: usize, data: &Path) -> Server {
    match run % 3 {
        0 => Server::start(data, &[]),
        // Closed documents are synced, and much else with them, so that some runs close none.
        1 => Server::start_settling(data, 10_000, 200_000),
        _ => Server::start_settling(data, 100, 2_000_000),
    }
}

/// Goal: a power cut at any instant loses nothing acknowledged.
/// Method: see the head of this file.
#[test]
#[ignore = "needs root, loop devices and mkfs.ext4"]
fn acknowledged_means_on_the_disk() {
    let [long, short] = RUNS;
    let runs: Vec<usize> = if is_long() {
        (0..long).collect()
    } else {
        (0..short).chain(LARGE_RUNS).collect()
    };
    let mut acknowledged = 0;
    for run in runs.clone() {
        let Some((promised, lost)) = power_cut(run, |data| start(run, data)) else {
            eprintln!(
                "NOT RUN: power cut (no loop devices); the model in server/src/log/contract.rs ran"
            );
            return;
        };
        let load = Load::of_run(run);
        assert_eq!(
            lost, 0,
            "run {run}, {load:?}: of {promised} acknowledged entries"
        );
        acknowledged += promised;
    }
    assert!(
        acknowledged > 20 * runs.len(),
        "too few entries are acknowledged: {acknowledged}"
    );
    let runs = runs.len();
    eprintln!("power cut: {runs} runs, {acknowledged} acknowledged entries, 0 lost");
}

/// Goal: sled syncs for real whatever it takes for durable, and not only at the end of a commit.
/// Method: it calls `fsync` where the system has no `sync_file_range`, which a filter sees to. (Without it
/// about one in thirty of the large runs above left a log that sled could not open.)
#[test]
fn sled_is_made_to_sync() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.status("Seccomp:"), "2");
    let folder = tempfile::tempdir().unwrap();
    let broken = Server::start_broken(folder.path(), "none");
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let filtered = own.lines().any(|line| line == "Seccomp:\t2");
    assert!(filtered || broken.status("Seccomp:") == "0");
}

/// The negative control: without the barrier the same test must fail.
#[test]
#[ignore = "needs root, loop devices and mkfs.ext4"]
fn without_the_barrier_a_power_cut_loses_entries() {
    let mut failed = 0;
    for run in CONTROL_RUNS {
        let Some((_, lost)) = power_cut(run, |data| Server::start_broken(data, "none")) else {
            eprintln!("NOT RUN: power cut (no loop devices)");
            return;
        };
        failed += usize::from(lost > 0);
    }
    eprintln!(
        "power cut without barrier: {failed} of {} runs lost entries",
        CONTROL_RUNS.len()
    );
    assert!(failed > 0, "the simulated power cut is no power cut");
}

/// The negative control of settling: where sled is not synced before a file of the journal is used again, the same test
/// must fail.
#[test]
#[ignore = "needs root, loop devices, mkfs.ext4 and cc"]
fn without_a_sync_of_sled_a_power_cut_loses_entries() {
    let (_folder, library) = library();
    let start = |data: &Path| {
        let mut command = Command::new(program("simplefeed-test-server"));
        command
            .arg(data)
            .args(["honest", "10000", "200000"])
            .env("LD_PRELOAD", &library)
            .env("FAULT_UNSYNCED", "/sled/db");
        Server::try_spawn(command).unwrap()
    };
    let mut failed = 0;
    for run in CONTROL_RUNS {
        let Some((_, lost)) = power_cut(run, start) else {
            eprintln!("NOT RUN: power cut (no loop devices)");
            return;
        };
        failed += usize::from(lost > 0);
    }
    eprintln!(
        "power cut with sled unsynced: {failed} of {} runs lost entries",
        CONTROL_RUNS.len()
    );
    assert!(failed > 0, "nothing depends on the sync of sled");
}

/// One power cut among writers and readers. Returns what became untrue of what was seen.
fn power_cut_watched(start: impl Fn(&Path) -> Server) -> Option<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::create(folder.path())?;
    let server = Arc::new(start(&disk.mount.join("data")));
    let seen = Arc::new(Seen::default());
    let mut copy = PathBuf::new();
    // Late in the half second after which sled syncs by itself.
    crowd(&server, 0, &seen, Duration::from_millis(1_450), || {
        server.kill_now();
        copy = disk.copy();
    });
    drop(server);
    drop(disk);
    let disk = Disk::of_image(copy, folder.path().join("after"));
    let data = disk.mount.join("data");
    let started = std::panic::catch_unwind(|| Server::start(&data, &[]));
    let Ok(server) = started else {
        return Some(vec!["the log cannot be opened".into()]);
    };
    seen.check(&server);
    Some(seen.violations())
}

/// Invariant 6: what a reader saw survives a power cut, in its place.
#[test]
#[ignore = "needs root, loop devices and mkfs.ext4"]
fn what_was_seen_survives_a_power_cut() {
    let runs = if is_long() { 30 } else { 3 };
    for run in 0..runs {
        let Some(violations) = power_cut_watched(|data| start(run, data)) else {
            eprintln!("NOT RUN: power cut (no loop devices)");
            return;
        };
        assert_eq!(violations, Vec::<String>::new(), "run {run}");
    }
    eprintln!("power cut, watched: {runs} runs, all that was seen is there");
}

/// The negative control: a writer that answers before the barrier shows what a power cut takes back.
#[test]
#[ignore = "needs root, loop devices and mkfs.ext4"]
fn without_the_barrier_readers_see_what_is_lost() {
    let mut failed = 0;
    for _ in CONTROL_RUNS {
        let Some(violations) = power_cut_watched(|data| Server::start_broken(data, "none")) else {
            eprintln!("NOT RUN: power cut (no loop devices)");
            return;
        };
        failed += usize::from(!violations.is_empty());
    }
    eprintln!(
        "power cut, watched, without barrier: {failed} of {} runs took back what was seen",
        CONTROL_RUNS.len()
    );
    assert!(failed > 0, "the test cannot see what it is for");
}

/// Goal: nobody is told anything that depends on a commit that did not reach the disk.
/// Method: the sync of the third commit fails while a new entry, its duplicate and a conflict wait for it.
#[test]
fn a_group_that_fails_its_barrier_answers_503_to_all() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_broken(folder.path(), "fail-after:4");
    server.publish_ids("a", ["1".into(), "2".into()]);
    for (line, what) in [
        (
            "{\"id\":\"urn:t:3\",\"content\":{\"n\":\"3\"}}",
            "a new entry",
        ),
        (
            "{\"id\":\"urn:t:3\",\"content\":{\"n\":\"3\"}}",
            "its repetition",
        ),
        ("{\"id\":\"urn:t:4\"}", "another entry"),
    ] {
        let refused = server.publish("a", line);
        assert_eq!(refused.status, 503, "{what}: {}", refused.text());
        assert!(refused.maybe("retry-after").is_some());
    }
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(server.get("/healthz").status, 200);
    let recent = server.get("/feeds/a/recent.atom");
    assert!(
        recent.text().contains("urn:t:2") && !recent.text().contains("urn:t:3"),
        "reads go on"
    );
    assert_eq!(server.get("/feeds/a/entries/2.atom").status, 404);
    drop(server);

    let server = Server::start(folder.path(), &[]);
    let again = server.publish("a", "{\"id\":\"urn:t:3\",\"content\":{\"n\":\"3\"}}");
    assert!(
        [200, 201].contains(&again.status),
        "repeating is safe: {}",
        again.text()
    );
    let ids = simplefeed(&["replay", &server.url("/feeds/a"), "--format", "id"], b"");
    assert_eq!(ids, "urn:t:1\nurn:t:2\nurn:t:3\n");
}
