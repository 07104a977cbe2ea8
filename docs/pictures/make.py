#!/usr/bin/env python3
"""Makes the pictures of this folder again: docs/pictures/make.py FOLDER_OF_PROGRAMS

Needs chromium, libfaketime (Debian: faketime) and pngquant. The server's clock stands where a file says, so the
history is always the same: sixty days that end on a Thursday afternoon."""
import datetime, html, json, math, os, pathlib, random, re, shutil, subprocess, sys, tempfile, time, urllib.request

HERE = pathlib.Path(__file__).parent
PROGRAMS = pathlib.Path(sys.argv[1]).resolve()
END = datetime.datetime(2026, 11, 26, 14, 32, tzinfo=datetime.timezone.utc)
PORT = 8093
URL = f"http://127.0.0.1:{PORT}"
SIZES = {"desktop": "1280,900", "phone": "390,844"}
SCHEMES = {"light": "1", "dark": "0"}
PAGES = {
    "feeds": "/ui/?order=busiest",
    "feed": "/ui/feeds/orders",
    "entry": "/ui/feeds/orders/1200",
}
CITIES = ["Oslo", "Rome", "Lima", "Kyoto", "Cairo", "Quito"]
FEEDS = {  # entries an hour at noon, what they tell of
    "orders": (9, "Order {n} from {city} has been placed"),
    "payments": (7, "Payment of {n} by card"),
    "parcels": (4, "Parcel {n} has reached {city}"),
    "sensors.roof": (2, "{n} lux on the roof"),
    "deploys": (0.4, "Version 2.{n} is live"),
}


def send(method, path, body):
    request = urllib.request.Request(URL + path, body.encode(), {"Content-Type": "application/x-ndjson"}, method=method)
    if method == "PUT":
        request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request).read()


def fill(clock):
    dice = random.Random(7)
    serial = {name: 0 for name in FEEDS}
    for name in FEEDS:
        send("PUT", f"/feeds/{name}", "{}")
    send("PUT", "/feeds/shop", json.dumps({"kind": "timeline", "title": "Orders and payments"}))
    send("PUT", "/feeds/shop/following/orders", "{}")
    send("PUT", "/feeds/shop/following/payments", "{}")
    hour = END.replace(minute=0) - datetime.timedelta(days=60)
    while hour <= END:
        clock(hour + datetime.timedelta(minutes=dice.randrange(30)))
        day = math.sin((hour.hour - 5) / 24 * math.pi) ** 2 * (0.5 if hour.weekday() > 4 else 1)
        for name, (rate, title) in FEEDS.items():
            # The roof was silent for a week.
            if name == "sensors.roof" and hour.day in range(8, 15) and hour.month == 11:
                continue
            lines = []
            for _ in range(round(rate * day + dice.random() * 0.9)):
                serial[name] += 1
                n, city = serial[name], dice.choice(CITIES)
                content = {"number": n, "city": city, "total": f"{dice.randrange(5, 900)}.{dice.randrange(100):02}",
                           "lines": [{"sku": f"A-{dice.randrange(90)}", "count": dice.randrange(1, 5)}]}
                lines.append(json.dumps({"id": f"urn:{name}:{n}", "title": title.format(n=n, city=city), "content": content}))
            if lines:
                send("POST", f"/feeds/{name}", "\n".join(lines))
        hour += datetime.timedelta(hours=1)
    clock(END)


def picture(name, path, size, scheme, folder):
    file = folder / "page.png"
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               f"--user-data-dir={folder / 'profile'}", f"--window-size={SIZES[size]}", "--virtual-time-budget=2000",
               f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", f"--screenshot={file}", URL + path]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=60)
    target = HERE / f"{name}-{size}-{scheme}.png"
    subprocess.run(["pngquant", "--force", "--speed=1", "--output", target, "48", file], check=True)


def terminal(commands, file):
    """Draws commands, and the beginning of what they print, as text in a picture."""
    rows = []
    for shown, arguments, most in commands:
        rows.append(("command", "$ " + shown))
        run = subprocess.run([PROGRAMS / arguments[0], *arguments[1:]], capture_output=True, text=True, timeout=60)
        lines = run.stdout.replace(URL, "https://feeds.example.org").splitlines()
        rows += [("", line[:98]) for line in lines[:most]]
        if len(lines) > most:
            rows.append(("faint", f"… {len(lines) - most} more"))
        rows.append(("", ""))
    height = 18 * len(rows) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height}" font-family="ui-monospace,monospace" font-size="14">',
           "<style>text{fill:#d5dae0;white-space:pre}.command{fill:#7ee787}.faint{fill:#9aa5b1}</style>",
           f'<rect width="860" height="{height}" rx="8" fill="#0f1319"/>']
    for at, (kind, text) in enumerate(rows):
        out.append(f'<text x="16" y="{28 + 18 * at}" class="{kind}" xml:space="preserve">{html.escape(text)}</text>')
    file.write_text("\n".join(out) + "\n</svg>\n")


def main():
    library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        file = folder / "clock"

        def clock(time):
            (folder / "clock.new").write_text(time.strftime("%Y-%m-%d %H:%M:%S"))
            os.replace(folder / "clock.new", file)

        clock(END - datetime.timedelta(days=61))
        environment = {**os.environ, "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(file), "TZ": "UTC",
                       "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        server = subprocess.Popen([PROGRAMS / "simplefeed-server", "--log", "error", "serve", "--listen", f"127.0.0.1:{PORT}",
                                   "--data", folder / "data"], env=environment)
        try:
            for _ in range(100):
                try:
                    urllib.request.urlopen(URL + "/readyz")
                    break
                except OSError:
                    time.sleep(0.1)
            fill(clock)
            time.sleep(2)
            for name, path in PAGES.items():
                for size in SIZES:
                    for scheme in SCHEMES:
                        picture(name, path, size, scheme, folder)
            terminal([
                ("simplefeed plot https://feeds.example.org/feeds/orders --by day",
                 ["simplefeed", "plot", URL + "/feeds/orders", "--by", "day"], 20),
                ("simplefeed replay https://feeds.example.org/feeds/orders --reverse --limit 3 --format text",
                 ["simplefeed", "replay", URL + "/feeds/orders", "--reverse", "--limit", "3", "--format", "text"], 6),
                ("simplefeed replay https://feeds.example.org/feeds/orders --count",
                 ["simplefeed", "replay", URL + "/feeds/orders", "--count"], 2),
            ], HERE / "terminal.svg")
        finally:
            server.terminate()
            server.wait()


main()
