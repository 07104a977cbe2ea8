//! Documents, requests and feeds that are small and unfold to much, against programs with little memory.
//!
//! A family is one input shape in many sizes. Programs may refuse or serve. They must not abort, and their memory
//! and time are bounded by the bytes sent.

use std::{
    fmt::Write as _,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    families::{ATOM, FAMILIES},
    harness::{Server, free_address, program, text, wait_for},
    http::Request,
    site::{Site, answer},
};

/// The address space of a program, in KiB.
const MEMORY_KIB: &str = "1048576";

/// Starts a program with little memory.
fn bounded(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    // glibc reserves 64 MiB of addresses for each thread, and uses none of it.
    command.env("MALLOC_ARENA_MAX", "1");
    command.args(["-c", "ulimit -v \"$0\"; exec \"$@\"", MEMORY_KIB]);
    command.arg(program(name)).args(args);
    command
}

/// Publishes one entry after the other to a feed of its own until `stop`. Returns the time of each request.
fn publish(address: &str, stop: &AtomicBool) -> Vec<Duration> {
    let mut times = vec![];
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let began = Instant::now();
        let event = format!("{{\"id\":\"urn:beside:{number}\"}}");
        let answer = Request::post("/feeds/beside", "application/json", event).send(address);
        assert_eq!(answer.unwrap().status, 201, "another publisher is served");
        times.push(began.elapsed());
        crate::harness::pause(Duration::from_millis(5));
    }
    times.sort();
    times
}

/// Goal: 200 requests that unfold to much are refused or stored by a server with 1 GiB, in a time that is linear in
/// their length; it does not end, stores no gigabytes, and another publisher beside them is served.
/// Method: twenty families in ten sizes each. Times are printed; only that all of it comes to an end is asserted.
#[test]
fn a_small_server_survives_what_unfolds() {
    let folder = tempfile::tempdir().unwrap();
    let (address, data) = (free_address(), folder.path().join("data"));
    let args = [
        "serve",
        "--data",
        data.to_str().unwrap(),
        "--listen",
        &address,
    ];
    let command = bounded("simplefeed-server", &args);
    let server = Server::try_spawn(command).unwrap_or_else(|said| panic!("{said:?}"));
    let stop = Arc::new(AtomicBool::new(false));
    let beside = {
        let (address, stop) = (address.clone(), Arc::clone(&stop));
        std::thread::spawn(move || publish(&address, &stop))
    };
    let mut report = String::new();
    for (name, kind, make) in FAMILIES {
        let mut worst: f64 = 0.0;
        for step in 1..=10 {
            let body = make(step * 100_000);
            let (bytes, began) = (body.len(), Instant::now());
            let request = Request::post(&format!("/feeds/f{step}"), kind, body);
            let answer = request.send(&address).unwrap();
            assert!(
                answer.status < 500,
                "{name}: {} {}",
                answer.status,
                answer.text()
            );
            worst = worst.max(
                began.elapsed().as_secs_f64() / f64::from(u32::try_from(bytes).unwrap()) * 1e9,
            );
        }
        writeln!(report, "{worst:9.0} ns a byte at worst: {name}").unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let times = beside.join().unwrap();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{report}beside: {} requests, median {:?}, 99 % {:?}",
        times.len(),
        at(50),
        at(99)
    );
    // The log holds the bytes sent and a bounded part of the inherited ones.
    let stored: u64 = crate::harness::files(&data.join("sled"))
        .iter()
        .map(|(_, bytes)| u64::try_from(bytes.len()).unwrap())
        .sum();
    assert!(stored < 2_000_000_000, "{stored}");
    server.stop();
}

/// Goal: the same as feeds of others, read by a command with 1 GiB: every one of them comes to an end.
#[test]
fn a_small_consumer_survives_what_unfolds() {
    let site = Site::new(|asked, stream| {
        let mut parts = asked.path.trim_matches('/').split('/');
        let family: usize = parts.next().unwrap().parse().unwrap();
        let bytes: usize = parts.next().unwrap().parse().unwrap();
        let body = FAMILIES[family].2(bytes);
        // As large as its gzip would be small.
        let packed = gzip(body.as_bytes());
        let headers = format!("Content-Type: {ATOM}\r\nContent-Encoding: gzip\r\n");
        let _gone = std::io::Write::write_all(stream, &answer("200 OK", &headers, &packed));
    });
    for (number, (name, kind, _)) in FAMILIES.iter().enumerate() {
        if *kind != ATOM {
            continue;
        }
        for bytes in [300_000, 1_500_000] {
            let url = site.url(&format!("/{number}/{bytes}"));
            let mut command = bounded("simplefeed", &["replay", &url]);
            let mut child = command
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            wait_for(&format!("{name} does not end"), || {
                child.try_wait().unwrap()
            });
            let output = child.wait_with_output().unwrap();
            let code = output.status.code();
            assert!(
                code.is_some_and(|code| matches!(code, 0 | 1 | 3 | 14 | 15)),
                "{name}: {code:?} {}",
                text(&output.stderr)
            );
        }
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new("gzip")
        .arg("-1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, &bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.stdout
}
