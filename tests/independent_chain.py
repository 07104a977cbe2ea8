#!/usr/bin/env python3
"""Recomputes the golden chain hash of server/log/src/contract/tests.rs from the definition alone.

See `Commit::encode` in core/src/commit.rs. Prints the hash after the first two commits, and the one after the first
commit and one that makes a timeline.
"""
import hashlib
import json
import struct


def sha(data):
    return hashlib.sha256(data).digest()


def text(data):
    return struct.pack(">I", len(data)) + data


def commit(number, changes):
    head = b"simplefeed commit 1\n" + struct.pack(">QqI", number, 1_000_000 * number, len(changes))
    return head + b"".join(changes)


FEED = (1).to_bytes(16, "big")
DEFAULTS = {
    "public_url": "http://h",
    "author": "Simplefeed",
    "document_entries": 100,
    "document_bytes": 1048576,
    "document_period": "none",
    "absolute_links": False,
}


def to_json(value):
    return json.dumps(value, separators=(",", ":")).encode()


def settings(number, **more):
    uid = f"urn:uuid:00000000-0000-0000-0000-{number:012}"
    return to_json({"name": f"feed{number}", "id": uid, "choices": {}, "defaults": DEFAULTS, **more})


SETTINGS = settings(1)


def entry(at, size):
    name = f"urn:1:{at}".encode()
    fragment = b"<entry><id>" + name + b"</id>" + b"x" * size + b"</entry>"
    return (
        b"\x03" + FEED + struct.pack(">Q", at) + text(name)
        + sha(struct.pack(">Q", at)) + struct.pack(">I", len(fragment)) + sha(fragment)
    )


created = commit(1, [b"\x01" + FEED + struct.pack(">I", 1) + text(SETTINGS),
                     b"\x02" + FEED + struct.pack(">QQI", 1, 0, 1)])
appended = commit(2, [entry(0, 10), entry(1, 0)])
chain = sha(sha(bytes(32) + created) + appended)
print(chain.hex())

TIMELINE = (3).to_bytes(16, "big")
KIND = {"rule": 1, "owner": "feed1", "own": "include"}
follow = [b"\0" + FEED, b"\0" + (2).to_bytes(16, "big"), b"\1" + text(b"feed*")]
unfollow = [b"\0" + (2).to_bytes(16, "big")]
timeline = commit(2, [b"\x07" + struct.pack(">I", 1) + text(to_json(DEFAULTS)),
                      b"\x01" + TIMELINE + struct.pack(">I", 1) + text(settings(3, timeline=KIND)),
                      b"\x02" + TIMELINE + struct.pack(">QQI", 1, 0, 1),
                      b"\x06" + TIMELINE + struct.pack(">II", 1000, len(follow)) + b"".join(follow)
                      + struct.pack(">I", len(unfollow)) + b"".join(unfollow)])
print(sha(sha(bytes(32) + created) + timeline).hex())
