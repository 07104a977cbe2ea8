#!/usr/bin/env python3
"""Reads a whole feed with nothing but Python's standard library and docs/protocol.md.

Walks prev-archive from the recent document given, checks that ids come once and newest first, that
all links are symmetric and as in the protocol, and recomputes every history hash from the raw bytes.
Prints the ids, oldest first.
"""
import hashlib
import re
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree

ATOM = "{http://www.w3.org/2005/Atom}"
ARCHIVE = "{http://purl.org/syndication/history/1.0}archive"
HISTORY = "{urn:simplefeed:1}history"


def sha(data):
    return hashlib.sha256(data).digest()


def read(url):
    with urllib.request.urlopen(url) as answer:
        body = answer.read()
    root = ElementTree.fromstring(body)
    assert root.tag == ATOM + "feed", root.tag
    links = {}
    for link in root.findall(ATOM + "link"):
        assert link.get("rel") not in links, "two links of one relation"
        links[link.get("rel")] = urllib.parse.urljoin(url, link.get("href"))
    # Entries stand one after the other in the bytes, and their elements in the tree.
    raw = re.findall(rb"(?s)<(?:a:)?entry[ >].*?</(?:a:)?entry>", body)
    ids = [entry.find(ATOM + "id").text for entry in root.findall(ATOM + "entry")]
    assert len(raw) == len(ids), (len(raw), len(ids))
    history = root.find(HISTORY)
    assert len(root.findall(HISTORY)) == 1
    return {
        "url": url,
        "feed": root.find(ATOM + "id").text,
        "links": links,
        "archived": root.find(ARCHIVE) is not None,
        "first": int(history.get("first")),
        "before": history.get("before"),
        "ids": ids,
        "raw": raw,
    }


def main(recent_url):
    recent = read(recent_url)
    assert recent["links"]["self"] == recent_url
    assert recent["links"]["current"] == recent_url
    assert "next-archive" not in recent["links"] and not recent["archived"]
    permanent = read(recent["links"]["via"])
    assert permanent["raw"] == recent["raw"] and "via" not in permanent["links"]
    chain = [permanent]
    while "prev-archive" in chain[-1]["links"]:
        newer = chain[-1]
        older = read(newer["links"]["prev-archive"])
        assert older["links"]["next-archive"] == newer["url"], "links are not symmetric"
        assert older["archived"] and "via" not in older["links"]
        chain.append(older)
    chain.reverse()
    for document in chain:
        assert document["links"]["self"] == document["url"]
        assert document["links"]["current"] == recent_url
        assert document["links"]["index"].endswith("/index.json")
        assert document["feed"] == recent["feed"]

    ids = []
    history = sha(recent["feed"].encode())
    for document in chain:
        assert document["first"] == len(ids), "positions are not dense"
        assert document["before"] == history.hex(), "a history hash is wrong"
        for entry, raw in zip(reversed(document["ids"]), reversed(document["raw"])):
            history = sha(history + sha(raw))
            ids.append(entry)
    assert len(set(ids)) == len(ids), "an id comes twice"
    print("\n".join(ids))


main(sys.argv[1])
