#!/usr/bin/env python3
"""Prints each entry of a feed as a line of JSON, then waits for more: consume.py https://h/feeds/orders PLACE_FILE
Ends with 10 if there is no such feed, 12 without a right to it ($SIMPLEFEED_TOKEN), 13 at a gap, 15 if its history changed."""
import json, os, sys, time, urllib.error, urllib.request

feed, place = sys.argv[1], sys.argv[2]
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
    except urllib.error.HTTPError as error:
        error.code in STATUSES and sys.exit(print(error, file=sys.stderr) or STATUSES[error.code])
    except OSError:
        pass  # the server is away
    time.sleep(1)
