#!/usr/bin/env python3
"""Validates documents with the code of the W3C feed validator.

The first argument is the folder that has its package `feedvalidator`; the others are URLs. Prints every error, and
each kind of warning once. Exits with 1 if there is an error.
"""
import socket
import sys
import urllib.error
import urllib.request

sys.path.insert(0, sys.argv[1])


def refuse(*_):
    """The validator looks up the domains of e-mail addresses; a test asks nobody else."""
    raise socket.gaierror("a test asks nobody else")


socket.gethostbyname = refuse
import feedvalidator
from feedvalidator.logging import Error, ValidationFailure, Warning

errors, warnings = [], {}
for url in sys.argv[2:]:
    try:
        events = feedvalidator.validateURL(url, firstOccurrenceOnly=0)["loggedEvents"]
    except ValidationFailure as failure:
        events = [failure.event]
    for event in events:
        if isinstance(event, Error):
            errors.append(f"{url}: {type(event).__name__} {event.params}")
        elif isinstance(event, Warning):
            warnings.setdefault(type(event).__name__, f"{url} {event.params}")
for name, example in sorted(warnings.items()):
    print(f"warning {name}: {example}")
print("\n".join(errors))
sys.exit(1 if errors else 0)
