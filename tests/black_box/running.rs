//! What an operator sees of a server: its end, its health, its metrics, its configuration.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    harness::{
        Server, events, free_address, pause, program, run, run_command, text, wait_for, workspace,
    },
    http::Request,
};

/// Goal: a server that is asked to end answers what it has begun to read, and stores it.
#[test]
fn requests_in_flight_are_finished() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    write!(
        stream,
        "POST /feeds/a HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{{\"title\":"
    )
    .unwrap();
    pause(Duration::from_millis(300));
    server.signal("TERM");
    wait_for("somebody new is let in", || {
        TcpStream::connect(&server.address).is_err().then_some(())
    });
    stream.write_all(b"\"t\"}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(server.exit_code(), Some(0));
    let again = Server::start(folder.path(), &[]);
    assert!(again.get("/feeds/a/recent.atom").text().contains(">t<"));
}

/// Goal: whoever asks twice need not wait, and nothing acknowledged is lost by it.
#[test]
fn a_second_signal_ends_a_server_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.publish("a", "{\"id\":\"urn:t:1\"}").status, 201);
    // A request that never comes to its end would be waited for.
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream
        .write_all(b"POST /feeds/a HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
        .unwrap();
    pause(Duration::from_millis(300));
    server.signal("TERM");
    pause(Duration::from_millis(500));
    let began = Instant::now();
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(143));
    assert!(began.elapsed() < Duration::from_secs(5), "it was at once");
    let again = Server::start(folder.path(), &[]);
    assert_eq!(again.publish("a", "{\"id\":\"urn:t:1\"}").status, 200);
}

/// Goal: the metrics are right, are told at their own listener only, and name no feed.
#[test]
fn metrics_tell_what_happened_and_name_no_feed() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let server = Server::start(folder.path(), &["--metrics-listen", &address]);
    server.send(&Request::put(
        "/feeds/secret",
        "{\"document_entries\":2,\"closed\":true}",
    ));
    assert_eq!(server.publish("secret", &events(5)).status, 201);
    assert_eq!(server.publish("secret", &events(5)).status, 200);
    assert_eq!(
        server.publish("secret", "{\"id\":\"relative\"}").status,
        422
    );
    assert_eq!(server.publish("secret", "nonsense").status, 400);
    server.get("/feeds/secret/recent.atom");
    server.get("/feeds/secret/recent.atom");
    server.get("/nothing");
    assert_eq!(server.get("/metrics").status, 404);
    let elsewhere = Request::get("/feeds").send(&address).unwrap();
    assert_eq!(elsewhere.status, 404);
    let posted = Request::post("/metrics", "text/plain", "").send(&address);
    let posted = posted.unwrap();
    assert_eq!((posted.status, posted.header("allow")), (405, "GET"));
    let told = || Request::get("/metrics").send(&address).unwrap().text();
    let mut metrics = told();
    for _ in 0..500 {
        if metrics.contains("simplefeed_archive_lag_commits 0\n") {
            break;
        }
        pause(Duration::from_millis(10));
        metrics = told();
    }
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{metrics}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    for (name, expected) in [
        ("simplefeed_entries_total{result=\"appended\"}", 5.0),
        ("simplefeed_entries_total{result=\"duplicate\"}", 5.0),
        (
            "simplefeed_requests_total{route=\"document\",status=\"200\"}",
            2.0,
        ),
        (
            "simplefeed_requests_total{route=\"feed\",status=\"201\"}",
            2.0,
        ),
        (
            "simplefeed_requests_total{route=\"feed\",status=\"400\"}",
            1.0,
        ),
        (
            "simplefeed_requests_total{route=\"none\",status=\"404\"}",
            2.0,
        ),
        ("simplefeed_commit_duration_seconds_count", 2.0),
        ("simplefeed_commits", 2.0),
        ("simplefeed_feeds", 1.0),
        ("simplefeed_log_open", 1.0),
        ("simplefeed_archived_documents", 2.0),
        ("simplefeed_archive_lag_commits", 0.0),
    ] {
        assert!(
            (value(name) - expected).abs() < 0.5,
            "{name} is {}",
            value(name)
        );
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let age = now.unwrap().as_secs_f64() - value("simplefeed_last_commit_timestamp_seconds");
    assert!((0.0..60.0).contains(&age), "{age}");
    assert!(value("simplefeed_log_bytes") > 1_000.0 && value("simplefeed_disk_free_bytes") > 1e6);
    assert!(metrics.contains("simplefeed_build_info{version="));
    assert!(!metrics.contains("secret"), "{metrics}");
    let page = fs::read_to_string(workspace().join("docs/operations.md")).unwrap();
    let named = page.split('`').skip(1).step_by(2);
    let named: Vec<&str> = named
        .filter(|word| word.starts_with("simplefeed_"))
        .collect();
    assert!(named.len() > 8, "{named:?}");
    for name in named {
        let (name, _labels) = name.split_once('{').unwrap_or((name, ""));
        assert!(metrics.contains(name), "the operations page names {name}");
    }
}

/// Goal: `health` says what a container engine wants to know.
#[test]
fn health_is_told_by_an_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let ask = |address: &str| run("simplefeed-server", &["health", "--listen", address], b"");
    let well = ask(&server.address);
    assert_eq!(
        (well.status.code(), &*text(&well.stdout)),
        (Some(0), "ready\n")
    );
    let nobody = ask(&free_address());
    assert_eq!(nobody.status.code(), Some(1));
    assert!(
        text(&nobody.stderr).contains("nobody listens"),
        "{}",
        text(&nobody.stderr)
    );
    server.stop();
    let broken = tempfile::tempdir().unwrap();
    let server = Server::start_broken(broken.path(), "fail-after:2");
    assert_eq!(server.publish("a", "{}").status, 503);
    let ill = ask(&server.address);
    assert_eq!(ill.status.code(), Some(1));
    assert!(
        text(&ill.stdout).contains("takes no entries"),
        "{}",
        text(&ill.stdout)
    );
}

/// Goal: the configuration can be looked at before it is used, with where each setting comes from; what is
/// printed is a file that means the same.
#[test]
fn the_configuration_is_shown_with_its_origins() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("simplefeed.toml");
    fs::write(
        &file,
        "data = \"/d\"\nrecent_max_age = 7\nidle_timeout = 90\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let show = |more: &[&str]| {
        let mut command = Command::new(program("simplefeed-server"));
        command.args(["config", "show", "--config", file, "--idle-timeout", "80"]);
        let command = command.args(more).env("SIMPLEFEED_CONNECTIONS", "9");
        text(&command.output().unwrap().stdout)
    };
    let shown = show(&["--origin"]);
    for line in [
        "data = \"/d\" # file",
        "recent_max_age = 7 # file",
        "idle_timeout = 80 # flag",
        "connections = 9 # environment",
        "listen = \"127.0.0.1:8080\" # default",
    ] {
        assert!(shown.lines().any(|one| one == line), "{line}\n{shown}");
    }
    let plain = folder.path().join("plain.toml");
    fs::write(&plain, show(&[])).unwrap();
    let again = run(
        "simplefeed-server",
        &["config", "show", "--config", plain.to_str().unwrap()],
        b"",
    );
    assert_eq!(text(&again.stdout), show(&[]));
    let check = |args: &[&str]| {
        let args: Vec<&str> = ["config", "check"].iter().chain(args).copied().collect();
        run("simplefeed-server", &args, b"")
    };
    assert_eq!(check(&["--data", "/d"]).status.code(), Some(0));
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, "nonsense\n").unwrap();
    for (args, said) in [
        (vec!["--data", "/d", "--connections", "0"], "connections"),
        (
            vec!["--data", "/d", "--tokens", tokens.to_str().unwrap()],
            "line 1",
        ),
        (
            vec!["--data", "/d", "--tokens", "/nowhere/tokens"],
            "cannot read",
        ),
    ] {
        let wrong = check(&args);
        assert_eq!(wrong.status.code(), Some(2), "{args:?}");
        assert!(
            text(&wrong.stderr).contains(said),
            "{}",
            text(&wrong.stderr)
        );
    }
}

/// Goal: nobody but the server reads what is not public, and nginx reads what is.
#[test]
fn only_www_is_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.send(&Request::put(
        "/feeds/shut",
        "{\"closed\":true,\"document_entries\":1}",
    ));
    server.send(&Request::put("/feeds/open", "{\"document_entries\":1}"));
    for feed in ["shut", "open"] {
        assert_eq!(server.publish(feed, &events(2)).status, 201);
        let path = format!("/feeds/{feed}/1.atom");
        for _ in 0..500 {
            if server
                .get(&path)
                .header("cache-control")
                .contains("immutable")
            {
                break;
            }
            pause(Duration::from_millis(10));
        }
    }
    let mode = |name: &str| {
        let found = fs::metadata(folder.path().join(name)).unwrap();
        found.permissions().mode() & 0o777
    };
    for name in ["journal", "sled", "ids", "closed", "sidecars", "views"] {
        assert_eq!(mode(name), 0o700, "{name}");
    }
    assert_eq!(mode("www") & 0o055, 0o055);
    assert_eq!(mode("www/feeds/open/1.atom") & 0o044, 0o044);
}

/// Goal: the socket that systemd has bound is taken, and systemd is told when the server is ready.
#[test]
fn systemd_hands_over_its_socket_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("notify");
    let notified = std::os::unix::net::UnixDatagram::bind(&told).unwrap();
    notified
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    // What systemd does: a listening socket as file descriptor 3, and who it is for.
    let script = "import os,socket,sys\n\
        s=socket.socket(); s.bind((sys.argv.pop(1),0)); s.listen()\n\
        print(s.getsockname()[1],flush=True)\n\
        os.dup2(s.fileno(),3); os.set_inheritable(3,True)\n\
        os.environ.update(LISTEN_FDS='1',LISTEN_PID=str(os.getpid()))\n\
        os.execv(sys.argv[1],sys.argv[1:])\n";
    // A socket for everybody is for nobody without tokens, whatever the configuration says.
    let refused = Command::new("python3")
        .args(["-c", script, "0.0.0.0"])
        .arg(program("simplefeed-server"))
        .args(["serve", "--listen", "127.0.0.1:1", "--data"])
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("anybody"),
        "{}",
        text(&refused.stderr)
    );
    let mut child = Command::new("python3")
        .args(["-c", script, "127.0.0.1"])
        .arg(program("simplefeed-server"))
        .args(["serve", "--listen", "127.0.0.1:1", "--data"])
        .arg(folder.path().join("data"))
        .env("NOTIFY_SOCKET", &told)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut port = vec![];
    let mut byte = [0];
    while stdout.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        port.extend(byte);
    }
    let address = format!("127.0.0.1:{}", text(&port));
    let mut message = [0; 100];
    let length = notified.recv(&mut message).unwrap();
    assert_eq!(text(&message[..length]).trim(), "READY=1");
    assert_eq!(Request::get("/readyz").send(&address).unwrap().status, 200);
    crate::harness::signal("TERM", child.id());
    let length = notified.recv(&mut message).unwrap();
    assert_eq!(text(&message[..length]).trim(), "STOPPING=1");
    assert!(child.wait().unwrap().success());
}

/// Goal: every metric in the shipped alerts and dashboard exists, and promtool accepts the metrics and alerts.
#[test]
#[ignore = "needs promtool"]
fn alerts_and_dashboard_fit_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let server = Server::start(folder.path(), &["--metrics-listen", &address]);
    server.publish_ids("a", ["1".into()]);
    server.get("/feeds/a/recent.atom");
    let told = Request::get("/metrics").send(&address).unwrap();
    assert!(
        told.header("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    let open =
        Request::get("/metrics").header("Accept", "application/openmetrics-text;version=1.0.0");
    let open = open.send(&address).unwrap();
    assert!(
        open.header("content-type")
            .starts_with("application/openmetrics-text")
    );
    assert!(open.text().ends_with("# EOF\n"));
    let metrics = told.text();
    let promtool = |args: &[&str], input: &[u8]| {
        let output = run_command(Command::new("promtool").args(args), input);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{said}");
        said
    };
    assert_eq!(promtool(&["check", "metrics"], metrics.as_bytes()), "");
    let alerts = workspace().join("docs/prometheus/alerts.yml");
    promtool(&["check", "rules", alerts.to_str().unwrap()], b"");
    let dashboard = fs::read_to_string(workspace().join("docs/grafana/simplefeed.json")).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(parsed["panels"].as_array().unwrap().len() > 8);
    let alerts = fs::read_to_string(alerts).unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let all = alerts + &dashboard;
    let named = all.split(|c: char| !is_name(c)).filter(|word| {
        (word.starts_with("simplefeed_") || word.starts_with("process_")) && !word.ends_with('_')
    });
    for name in named {
        let there = metrics.lines().any(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        assert!(there, "{name} is not told:\n{metrics}");
    }
}

/// A folder with other files is refused as a log; a new log is logged.
#[test]
fn a_new_log_is_told_and_begun_where_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new");
    let mut server = Command::new(program("simplefeed-server"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(&new)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let told = lines
        .map(Result::unwrap)
        .find(|line| line.contains("a new log"));
    assert!(told.unwrap().contains(new.to_str().unwrap()));
    server.kill().unwrap();
    server.wait().unwrap();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("photos.zip"), "x").unwrap();
    let args = [
        "serve",
        "--data",
        other.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
    ];
    let refused = run("simplefeed-server", &args, b"");
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(
        said.contains("photos.zip") && said.contains("holds no log"),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(&other).unwrap().count(),
        1,
        "nothing is left there"
    );
}

/// Tokens are listed and taken back without an editor, and count up to their last day.
#[test]
fn tokens_are_listed_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let tokens = path.to_str().unwrap();
    let command = |args: &[&str]| {
        let args = [&["token"], args, &["--tokens", tokens]].concat();
        run("simplefeed-server", &args, b"")
    };
    let new = |name: &str, more: &[&str]| {
        let args = [&["new", name, "--right", "publish", "--feeds", "a*"], more].concat();
        let made = command(&args);
        assert!(made.status.success(), "{}", text(&made.stderr));
        text(&made.stdout).trim().to_owned()
    };
    let shop = new("shop", &[]);
    let said = |args: &[&str]| text(&command(args).stderr);
    let more = ["--right", "read", "--feeds", "b"];
    let twice = said(&[&["new", "twice"], &more[..]].concat());
    assert_eq!(twice, "");
    let twice = said(&[&["new", "twice"], &more[..]].concat());
    assert!(twice.contains("another token"), "{twice}");
    let passed = said(&[&["new", "twice", "--until", "2020-01-01"], &more[..]].concat());
    assert!(passed.contains("2020-01-01 has passed"), "{passed}");
    assert!(said(&["revoke", "twice"]).contains("3 tokens of twice are revoked"));
    let gone = new("gone", &["--until", "2020-01-01"]);
    new("lasting", &["--until", "2999-12-31"]);
    assert_eq!(
        text(&command(&["list"]).stdout),
        "shop\tpublish\ta*\t-\ngone\tpublish\ta*\t2020-01-01\nlasting\tpublish\ta*\t2999-12-31\n"
    );
    let server = Server::start(&folder.path().join("data"), &["--tokens", tokens]);
    let post = |token: &str| {
        let request = Request::post("/feeds/a", "application/json", "{}");
        let request = request.header("Authorization", &format!("Bearer {token}"));
        server.send(&request).status
    };
    assert_eq!((post(&shop), post(&gone)), (201, 401));
    assert_eq!(command(&["revoke", "nobody"]).status.code(), Some(10));
    assert!(command(&["revoke", "shop"]).status.success());
    server.signal("HUP");
    wait_for("the token still counts", || {
        (post(&shop) == 401).then_some(())
    });
    assert!(!text(&command(&["list"]).stdout).contains("shop"));
    // A running server takes no note of a file with a line that is wrong.
    let torn = format!("{}nonsense\n", fs::read_to_string(&path).unwrap());
    fs::write(&path, torn).unwrap();
    for args in [&["list"][..], &["revoke", "lasting"]] {
        let refused = command(args);
        assert!(!refused.status.success(), "{args:?}");
        let said = text(&refused.stderr);
        assert!(said.contains("line 3"), "{said}");
    }
}

/// `config check` prints all faults of a configuration at once.
#[test]
fn a_configuration_is_told_all_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, "nonsense\n").unwrap();
    let config = folder.path().join("simplefeed.toml");
    let listen = free_address();
    let settings = format!("listen = \"{listen}\"\ndocument_entries = 0\ntokens = {tokens:?}\n");
    fs::write(&config, settings).unwrap();
    let checked = run(
        "simplefeed-server",
        &["config", "check", "--config", config.to_str().unwrap()],
        b"",
    );
    let said = text(&checked.stderr);
    for wrong in ["document_entries", "line 1", "data folder"] {
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
    let checked = |settings: &str| {
        fs::write(&config, settings).unwrap();
        let args = ["config", "check", "--config", config.to_str().unwrap()];
        let checked = run("simplefeed-server", &args, b"");
        assert_eq!(checked.status.code(), Some(2), "{settings}");
        text(&checked.stderr)
    };
    // A value that cannot be read hides none of the others, and is not told as absent.
    let data = folder.path().join("data");
    let said = checked(&format!(
        "data = 7\nlisten = \"nowhere\"\nconections = 3\nwww = {tokens:?}\ndocument_entries = 0\n"
    ));
    for wrong in [
        "`data`",
        "`listen`",
        "`conections`",
        "not a folder",
        "document_entries",
    ] {
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
    assert!(!said.contains("not given"), "{said}");
    let said = checked(&format!(
        "data = {data:?}\nwww = {:?}\nlisten = \"{listen}\"\nmetrics_listen = \"{listen}\"\n",
        data.join("sled/www")
    ));
    for wrong in ["is in the data folder", "metrics_listen and listen"] {
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
    let said = checked("data = \n");
    assert!(
        said.contains("line 1")
            && said
                .lines()
                .filter(|line| line.starts_with("error"))
                .count()
                == 1,
        "{said}"
    );
    // `health --config` finds the server's address.
    fs::write(&config, format!("listen = \"{listen}\"\n")).unwrap();
    let health = || {
        run(
            "simplefeed-server",
            &["health", "--config", config.to_str().unwrap()],
            b"",
        )
    };
    assert!(text(&health().stderr).contains(&listen));
    let _server = Server::start_at(&listen, &folder.path().join("data"), &[]);
    assert_eq!(health().status.code(), Some(0));
}
