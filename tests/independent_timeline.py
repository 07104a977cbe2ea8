#!/usr/bin/env python3
"""Compares a timeline with its sources, with nothing but Python's standard library.

Takes the URLs of the recent documents: of the timeline, and of each feed that it has followed from the feed's
beginning on. Walks prev-archive through each, merges the entries of the sources by their dates, which are the
instants of their commits, and expects the same entries in the timeline: ids, dates, content, and links to where they
come from. Prints the number of entries.
"""
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree

ATOM = "{http://www.w3.org/2005/Atom}"
HISTORY = "{urn:simplefeed:1}history"


def walk(url):
    """Returns all entries, oldest first, each with its feed's id."""
    documents = []
    while url:
        with urllib.request.urlopen(url) as answer:
            root = ElementTree.fromstring(answer.read())
        links = {
            link.get("rel"): urllib.parse.urljoin(url, link.get("href"))
            for link in root.findall(ATOM + "link")
        }
        documents.append((int(root.find(HISTORY).get("first")), root))
        url = links.get("prev-archive")
    entries = []
    for first, root in reversed(documents):
        assert first == len(entries), "positions are not dense"
        feed = root.find(ATOM + "id").text
        entries += [(feed, entry) for entry in reversed(root.findall(ATOM + "entry"))]
    return entries


def text_of(entry, name):
    found = entry.find(ATOM + name)
    return None if found is None else ElementTree.tostring(found)


def main(timeline, *sources):
    merged = [entry for source in sources for entry in walk(source)]
    merged.sort(key=lambda entry: entry[1].find(ATOM + "updated").text)
    found = walk(timeline)
    assert len(found) == len(merged), (len(found), len(merged))
    for (feed, entry), (_, shown) in zip(merged, found):
        for name in ["id", "title", "updated", "content"]:
            assert text_of(entry, name) == text_of(shown, name), name
        assert shown.find(ATOM + "source").find(ATOM + "id").text == feed
        [via] = [link for link in shown.findall(ATOM + "link") if link.get("rel") == "via"]
        with urllib.request.urlopen(via.get("href")) as answer:
            own = ElementTree.fromstring(answer.read())
        own = own if own.tag == ATOM + "entry" else own.find(ATOM + "entry")
        assert text_of(own, "content") == text_of(entry, "content")
    print(len(found), "entries")


main(*sys.argv[1:])
