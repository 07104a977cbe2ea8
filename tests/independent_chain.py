#!/usr/bin/env python3
"""Recomputes the golden chain hash of server/src/log/contract.rs from the definition alone.

See `Commit::encode` in core/src/commit.rs. Prints the hash after the first two commits.
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
SETTINGS = json.dumps(
    {
        "name": "feed1",
        "id": "urn:uuid:00000000-0000-0000-0000-000000000001",
        "choices": {},
        "defaults": {
            "public_url": "http://h",
            "author": "Simplefeed",
            "document_entries": 100,
            "document_bytes": 1048576,
            "document_period": "none",
            "absolute_links": False,
        },
    },
    separators=(",", ":"),
).encode()


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
