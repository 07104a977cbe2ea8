#!/usr/bin/env python3
"""Reads a feed as a feed reader would, with feedparser, from its newest document along prev-archive.

Prints a JSON line for each entry: its id, and the text and type of its content.
"""
import json
import sys

import feedparser

url = sys.argv[1]
while url:
    document = feedparser.parse(url)
    assert not document.bozo, (url, document.bozo_exception)
    for entry in document.entries:
        [content] = entry.content
        print(json.dumps({"id": entry.id, "text": content.value, "type": content.type}))
    links = {link.rel: link.href for link in document.feed.links}
    url = links.get("prev-archive")
