#!/usr/bin/env python3
"""Reads a feed as a feed reader would, with feedparser, from its newest document along prev-archive.

Prints a JSON line for each entry: its id, the text and type of its content, its link, and the title of its source if it has one.
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
        found = {"id": entry.id, "text": content.value, "type": content.type, "link": entry.get("link")}
        if "source" in entry:
            found["source"] = entry.source.title
        print(json.dumps(found))
    links = {link.rel: link.href for link in document.feed.links}
    url = links.get("prev-archive")
