#!/usr/bin/env python3
"""Prints each entry of a feed as a line of JSON, then waits for more: consume.py https://h/feeds/orders PLACE_FILE
Ends with 2 if it is called otherwise, 10 if there is no such feed, 12 without a right to it ($SIMPLEFEED_TOKEN), 13 at a gap, 15 if its history changed."""
import http.client, json, os, sys, time, urllib.error, urllib.request

if len(sys.argv) != 3 or not sys.argv[1].startswith(("http://", "https://")):
    sys.exit(print(__doc__, file=sys.stderr) or 2)
feed, place, told = sys.argv[1], sys.argv[2], None
STATUSES = {404: 10, 401: 12, 403: 12}
STATES = {"gap": 13, "history changed": 15}
token = os.environ.get("SIMPLEFEED_TOKEN")
headers = {"Authorization": "Bearer " + token} if token else {}

def keep(id):
    with open(place + ".new", "w") as file:
        file.write(id)
        os.fsync(file.fileno())
    os.replace(place + ".new", place)  # all of it or nothing, also when the power fails

def handle(message):
    if message.get("event") == "state":
        state = json.loads(message["data"])
        sys.exit(print(state["detail"], file=sys.stderr) or STATES.get(state["state"], 1))
    if message.get("data"):
        print(message["data"], flush=True)  # handle the entry here; it comes again if this fails before the next line
    if message.get("id"):
        keep(message["id"])

while True:
    last = open(place).read() if os.path.exists(place) else ""
    url = feed + "/events?" + ("after=" + last if last else "since=oldest")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as stream:
            message = {}
            for line in stream:
                name, _, text = line.decode().rstrip("\n").partition(": ")
                if not line.strip():
                    message = handle(message) or {}
                elif name:
                    message[name] = text
        told = None
    except (OSError, http.client.HTTPException) as error:
        if getattr(error, "code", None) in STATUSES:
            sys.exit(print(error, file=sys.stderr) or STATUSES[error.code])
        if told != str(error):  # the server is away
            told = print(f"{url}: {error}; trying again", file=sys.stderr) or str(error)
    time.sleep(1)
