//! What an operator installs: the unit, the image, the caches, and a day with all of it.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use crate::{
    full_disk::SmallDisk,
    harness::{Server, cargo, events, free_address, pause, program, run, text, workspace},
    http::{Request, Response},
    nginx::{Nginx, replace},
};

/// Goal: a server that is taken over has little to give.
#[test]
#[ignore = "needs systemd-analyze"]
fn the_unit_is_hardened() {
    let unit = workspace().join("docs/systemd/simplefeed.service");
    let scored = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager"])
        .arg(unit)
        .output()
        .unwrap();
    let said = text(&scored.stdout);
    let score = said.rsplit("simplefeed.service:").next().unwrap();
    let score: f64 = score.split_whitespace().next().unwrap().parse().unwrap();
    assert!(score < 2.0, "{said}");
}

/// Goal: what the Dockerfile builds, copies and starts exists and runs.
/// Method: its steps, but for those that need a container engine.
#[test]
fn the_image_starts() {
    let dockerfile = fs::read_to_string(workspace().join("docs/docker/Dockerfile")).unwrap();
    let steps: Vec<&str> = dockerfile
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let of = |kind: &str| {
        let steps = steps.iter().filter_map(|line| line.strip_prefix(kind));
        steps.map(str::trim).collect::<Vec<_>>()
    };
    let built = of("RUN cargo ")[0];
    let mut metadata = cargo();
    metadata.args(["tree", "--locked", "--depth", "0", "-e", "normal"]);
    metadata.args(
        built
            .split(' ')
            .filter(|word| word.starts_with("simplefeed"))
            .flat_map(|one| ["-p", one]),
    );
    let known = metadata.current_dir(workspace()).output().unwrap();
    assert!(known.status.success(), "{}", text(&known.stderr));
    let copied: Vec<&str> = of("COPY --from=build /source/target/release/")[0]
        .split(' ')
        .collect();
    assert_eq!(copied.last(), Some(&"/usr/local/bin/"));
    for path in &copied[..copied.len() - 1] {
        let name = path.rsplit('/').next().unwrap();
        assert!(program(name).exists(), "{name}");
    }
    let list = |json: &str| serde_json::from_str::<Vec<String>>(json).unwrap();
    let start = [list(of("ENTRYPOINT ")[0]), list(of("CMD ")[0])].concat();

    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, "").unwrap();
    let address = free_address();
    let local = |value: &str| {
        let data = folder.path().join("data");
        value
            .replace("/var/lib/simplefeed", data.to_str().unwrap())
            .replace("/etc/simplefeed/tokens", tokens.to_str().unwrap())
            .replace("0.0.0.0:8080", &address)
    };
    let environment = of("ENV ");
    let with_environment = |args: &[String]| {
        let mut command = Command::new(program(&args[0]));
        command.args(&args[1..]);
        for setting in &environment {
            let (name, value) = setting.split_once('=').unwrap();
            command.env(name, local(value));
        }
        command
    };
    let mut command = with_environment(&start);
    command.env("SIMPLEFEED_PUBLIC_URL", "https://feeds.example.org");
    let server = Server::try_spawn(command).unwrap();
    let health = of("HEALTHCHECK CMD ")[0];
    let asked = with_environment(&list(health)).output().unwrap();
    assert_eq!(asked.status.code(), Some(0), "{}", text(&asked.stderr));
    assert_eq!(server.publish("a", "{}").status, 401);
}

/// A Varnish with the configuration of `docs/varnish`.
pub(crate) struct Varnish {
    child: Child,
    /// Where it listens.
    pub(crate) address: String,
}

impl Varnish {
    pub(crate) fn start(folder: &Path, upstream: &str) -> Self {
        let vcl = fs::read_to_string(workspace().join("docs/varnish/simplefeed.vcl")).unwrap();
        let (host, port) = upstream.split_once(':').unwrap();
        let vcl = replace(&vcl, "\"127.0.0.1\"", &format!("\"{host}\""));
        let vcl = replace(&vcl, "\"8080\"", &format!("\"{port}\""));
        let path = folder.join("simplefeed.vcl");
        fs::write(&path, vcl).unwrap();
        let address = free_address();
        let child = Command::new("varnishd")
            .args(["-F", "-a", &address, "-s", "malloc,32m", "-n"])
            .arg(folder.join("varnish"))
            .arg("-f")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let varnish = Self { child, address };
        for _ in 0..1_000 {
            // It answers 503 until it has seen that the server is well.
            let answer = Request::get("/healthz").send(&varnish.address);
            if answer.is_ok_and(|answer| answer.status == 200) {
                return varnish;
            }
            pause(Duration::from_millis(20));
        }
        panic!("varnishd does not answer");
    }
}

impl Drop for Varnish {
    fn drop(&mut self) {
        crate::harness::signal("TERM", self.child.id());
        let _status = self.child.wait();
    }
}

/// Goal: Varnish keeps what may be kept, nothing else, and serves it while the server is away.
#[test]
#[ignore = "needs varnishd"]
fn varnish_keeps_what_may_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    // Its worker is another user.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let tokens = folder.path().join("tokens");
    let tokens_path = tokens.to_str().unwrap();
    let new = [
        "token",
        "new",
        "n",
        "--right",
        "admin",
        "--feeds",
        "*",
        "--tokens",
        tokens_path,
    ];
    let token = text(&run("simplefeed-server", &new, b"").stdout);
    let bearing =
        |request: Request| request.header("Authorization", &format!("Bearer {}", token.trim()));
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--tokens", tokens_path]);
    for (feed, closed) in [("open", false), ("shut", true)] {
        let path = format!("/feeds/{feed}");
        let settings = format!("{{\"document_entries\":2,\"closed\":{closed}}}");
        server.send(&bearing(Request::put(&path, &settings)));
        let post = Request::post(&path, "application/x-ndjson", events(3));
        assert_eq!(server.send(&bearing(post)).status, 201);
    }
    server.wait_until_frozen("/feeds/open/1.atom");
    let varnish = Varnish::start(folder.path(), &server.address);
    let ask = |request: Request| -> Response { request.send(&varnish.address).unwrap() };
    let get = |path: &str| ask(Request::get(path));
    for path in [
        "/feeds/open/1.atom",
        "/feeds/open/1.atom?x=1",
        "/feeds/open/recent.atom",
    ] {
        assert_eq!(get(path).status, 200, "{path}");
    }
    // Two numbers: it was answered from what is kept.
    let kept = get("/feeds/open/1.atom?x=2");
    assert_eq!(
        kept.header("x-varnish").split(' ').count(),
        2,
        "{:?}",
        kept.headers
    );
    for (request, status) in [
        (bearing(Request::get("/feeds/shut/1.atom")), 200),
        (Request::get("/feeds/shut/1.atom"), 404),
        (Request::post("/feeds/open", "application/json", "{}"), 403),
        (
            bearing(Request::post("/feeds/open", "application/json", "{}")),
            201,
        ),
    ] {
        assert_eq!(ask(request).status, status);
    }
    server.kill();
    // From the first request on that finds the server away, and again once Varnish knows.
    for _ in 0..2 {
        for path in ["/feeds/open/recent.atom", "/feeds/open/1.atom"] {
            let answer = get(path);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            assert!(answer.maybe("x-server-is-away").is_none());
        }
        pause(Duration::from_secs(15));
    }
    assert_eq!(get("/feeds/none/recent.atom").status, 503);
}

/// A machine of the test's own, as far as the commands of a page can tell.
struct Machine {
    root: PathBuf,
    feeds: String,
    metrics: String,
    server: String,
}

impl Machine {
    /// Runs commands as an operator would; paths and addresses are those of the test.
    fn run(&self, commands: &str) -> Output {
        let root = self.root.to_str().unwrap();
        let mut local = commands.replace("https://feeds.example.org", &self.feeds);
        local = local
            .replace("127.0.0.1:9090", &self.metrics)
            .replace("127.0.0.1:8080", &self.server);
        for folder in ["/var/", "/etc/", "/backups/"] {
            local = local.replace(folder, &format!("{root}{folder}"));
        }
        let programs = program("simplefeed-server");
        let programs = programs.parent().unwrap().to_str().unwrap();
        let script = format!("PATH={root}/bin:{programs}:$PATH\n{local}");
        Command::new("bash")
            .args(["-euc", &script])
            .current_dir(&self.root)
            .env("SIMPLEFEED_LISTEN", &self.server)
            .output()
            .unwrap()
    }

    fn do_all(&self, commands: &str) -> String {
        let done = self.run(commands);
        let (out, err) = (text(&done.stdout), text(&done.stderr));
        assert!(done.status.success(), "{commands}\n{out}\n{err}");
        out
    }
}

/// What systemd does for one unit, and what only root may do to a real machine.
const SYSTEMCTL: &str = "#!/bin/bash\nset -eu\ncd \"$(dirname \"$0\")/..\"\n\
    case $1 in\n\
    start) simplefeed-server serve --config etc/simplefeed/simplefeed.toml 2>>log >/dev/null </dev/null & echo $! > pid\n\
        for _ in $(seq 600); do simplefeed-server health >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1;;\n\
    stop) [ \"$*\" = 'stop simplefeed.socket simplefeed.service' ] || exit 1\n\
        kill \"$(cat pid)\"; while kill -0 \"$(cat pid)\" 2>/dev/null; do sleep 0.05; done;;\n\
    daemon-reload) ;;\n\
    enable) [ \"$*\" = 'enable simplefeed.socket simplefeed.service' ] || exit 1;;\n\
    reload) before=$(grep -c 'read again' log || true); kill -HUP \"$(cat pid)\"\n\
        for _ in $(seq 600); do [ \"$(grep -c 'read again' log)\" -gt \"$before\" ] && exit 0; sleep 0.1; done; exit 1;;\n\
    esac\n";

/// Goal: what docs/operations.md tells an operator to do on a first day works, word for word.
#[test]
#[ignore = "needs nginx, and root to mount a small disk"]
fn an_operators_day() {
    let page = fs::read_to_string(workspace().join("docs/operations.md")).unwrap();
    let blocks: Vec<&str> = page
        .split("```sh day\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    let [install, rotate, look, restore, upgrade] = blocks[..] else {
        panic!("the day has {} parts", blocks.len());
    };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_path_buf();
    for folder in ["bin", "etc/simplefeed", "var/lib", "var/cache", "backups"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for (name, script) in [
        ("systemctl", SYSTEMCTL),
        // Users are of the whole machine, which is not the test's.
        ("useradd", "#!/bin/sh\n"),
        ("chown", "#!/bin/sh\n"),
        (
            "install",
            "#!/bin/sh\n[ \"$1\" != -d ] || exec mkdir -p \"$6\"\n",
        ),
        ("runuser", "#!/bin/sh\nshift 3\nexec \"$@\"\n"),
    ] {
        let path = root.join("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let Some(disk) = SmallDisk::create_at(root.join("var/lib/simplefeed")) else {
        eprintln!("NOT RUN: an operator's day (tmpfs cannot be mounted)");
        return;
    };
    let (server, metrics) = (free_address(), free_address());
    let edit = |site: &str| replace(site, "return 403;", "return 418;");
    let nginx = root.join("nginx");
    fs::create_dir(&nginx).unwrap();
    // Where this nginx has its cache: what an operator removes must be gone.
    symlink(nginx.join("cache"), root.join("var/cache/simplefeed")).unwrap();
    let www = disk.mount().join("www");
    let nginx = Nginx::start_edited("archives.conf", &nginx, &server, &www, edit);
    let feeds = format!("http://{}", nginx.address);
    let config = fs::read_to_string(workspace().join("docs/systemd/simplefeed.toml")).unwrap();
    let machine = Machine {
        root: root.clone(),
        feeds: feeds.clone(),
        metrics: metrics.clone(),
        server: server.clone(),
    };
    let local = config
        .replace("127.0.0.1:8080", &server)
        .replace("127.0.0.1:9090", &metrics)
        // An address that is not the machine's own: tokens are needed.
        .replace("/var/lib", root.join("var/lib").to_str().unwrap())
        .replace("/etc/", root.join("etc/").to_str().unwrap());
    fs::write(root.join("etc/simplefeed/simplefeed.toml"), local).unwrap();

    let printed = machine.do_all(install);
    assert!(
        printed.contains("ready") && printed.contains("urn:order:1"),
        "{printed}"
    );
    machine.do_all(rotate);
    let append = "simplefeed append https://feeds.example.org/feeds/orders --token-file";
    let refused = machine.run(&format!("echo '{{}}' | {append} shop.token"));
    assert_eq!(refused.status.code(), Some(12), "{}", text(&refused.stderr));
    assert!(
        machine
            .do_all(look)
            .contains("simplefeed_entries_total{result=\"appended\"} 2")
    );

    // The disk fills up, and is emptied.
    disk.fill(0);
    let event = "echo '{\"id\":\"urn:order:3\"}' |";
    let full = machine.run(&format!("{event} timeout 60 {append} shop2.token"));
    assert!(
        !full.status.success() && text(&full.stderr).contains("disk is full"),
        "{}",
        text(&full.stderr)
    );
    let ill = machine.run("simplefeed-server health");
    assert_eq!(ill.status.code(), Some(1));
    assert!(
        text(&ill.stdout).contains("disk is full"),
        "{}",
        text(&ill.stdout)
    );
    let replay = "simplefeed replay https://feeds.example.org/feeds/orders --format id";
    // What nginx was shown before may be kept for a second, and shown for another one.
    pause(Duration::from_millis(3_500));
    assert_eq!(machine.do_all(replay), "urn:order:1\nurn:order:2\n");
    disk.empty();
    machine.do_all(&format!("{event} {append} shop2.token"));

    let printed = machine.do_all(restore);
    assert!(printed.contains("urn:order:3"), "{printed}");
    assert!(machine.do_all(upgrade).ends_with("ready\n"));
    machine.do_all(&format!(
        "echo '{{\"id\":\"urn:order:4\"}}' | {append} shop2.token"
    ));
    pause(Duration::from_millis(3_500));
    assert_eq!(machine.do_all(replay).lines().count(), 4);
    machine.do_all("systemctl stop simplefeed.socket simplefeed.service");
    assert!(TcpStream::connect(&server).is_err());
}
