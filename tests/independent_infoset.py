#!/usr/bin/env python3
"""Publishes Atom documents and checks that their entries come back as they went in.

Usage: independent_infoset.py SERVER FOLDER...

Every *.xml and *.atom file of the folders is posted to a feed of its own. Of what is accepted, every
entry read back must have the infoset it was given: the same exclusive canonical form, and for every
element the same prefixes in scope, the same base and the same language, but for what the gate adds
at its beginning (id, title, updated, author, link, content). What is refused must be refused with 4xx, and
must leave nothing behind. A file whose leading comment expects no error (`Expect: !Something`,
`Expect: ValidSomething`, or no expectation at all) must be accepted, unless EXCEPTIONS says why not.

libxml2 is the other opinion; nothing here is shared with the server.
"""
import copy
import http.client
import pathlib
import re
import sys
import urllib.parse

from lxml import etree

ATOM = "{http://www.w3.org/2005/Atom}"
XML = "{http://www.w3.org/XML/1998/namespace}"
COMPLETIONS = [ATOM + name for name in ("id", "title", "updated", "author", "link", "content")]
ALTERNATE = ("alternate", "http://www.iana.org/assignments/relation/alternate")

# What expects no error (each looks for one, and finds it absent) and is refused all the same, because
# something else in it is wrong: file names, and what that is.
EXCEPTIONS = {
    # RFC 4287 3.2: a person has a name. (These are about Atom 0.3's `url`.)
    **dict.fromkeys(
        [
            f"{level}_{person}_url_{kind}.xml"
            for level, person in (("feed", "author"), ("entry", "author"), ("entry", "contributor"))
            for kind in ("contains_comma", "ftp", "http")
        ],
        "a person without a name",
    ),
    # RFC 4287 4.2.7: a link has a href.
    **dict.fromkeys(
        [
            f"entry_link_{what}.xml"
            for what in ("rel_alternate", "rel_related", "rel_via", "title", "type", "type2", "type3", "type4")
        ],
        "a link without href",
    ),
    # RFC 4287 3.1.1: text constructs are text, html or xhtml. (Atom 0.3 had media types and `mode`.)
    **dict.fromkeys(
        [f"entry_summary_type{n}.xml" for n in ("", 2, 3, 4)]
        + [f"entry_title_type{n}.xml" for n in ("", 2, 3)]
        + [f"entry_{what}_is_{kind}.xml" for what in ("summary", "title") for kind in ("html", "inline", "inline_2")],
        "a text construct of another type",
    ),
    # RFC 4287 4.2.6: an id is an absolute IRI.
    **dict.fromkeys(
        [f"entry_id_not_{scheme}{n}.xml" for scheme in ("tag", "urn") for n in ("", 2)],
        "an id that is no absolute IRI",
    ),
    # RFC 4287 3.1.1.3: xhtml is one div.
    **dict.fromkeys(["entry_content_is_inline.xml", "entry_content_is_inline_2.xml"], "xhtml without its div"),
    # RFC 4287 4.1.2: content in Base64 needs a summary.
    "entry_content_type3.xml": "Base64 without a summary",
    # An entry appears at several URLs, so a relative reference needs an absolute xml:base.
    **dict.fromkeys(
        ["link-href-relative.xml", "content-src-relative-ref.xml"], "a relative reference without a base"
    ),
}


def parse(data):
    parser = etree.XMLParser(resolve_entities=False, no_network=True, strip_cdata=True)
    return etree.fromstring(data, parser)


def entries_of(root):
    """The entries, newest first; of each id the oldest, because a repeat is a duplicate."""
    if root.tag == ATOM + "entry":
        return [root]
    seen, entries = set(), []
    for entry in reversed(root.findall(ATOM + "entry")):
        name = entry.findtext(ATOM + "id")
        if name is None or name not in seen:
            entries.insert(0, entry)
        seen.add(name)
    return entries


def inherited(element, attribute):
    """The values of an attribute from the root to an element."""
    line = list(element.iterancestors())[::-1] + [element]
    return [node.get(attribute) for node in line if node.get(attribute) is not None]


def base_of(element):
    base = ""
    for own in inherited(element, XML + "base"):
        base = urllib.parse.urljoin(base, own)
    return base


def language_of(element):
    return (inherited(element, XML + "lang") or [""])[-1]


def space_of(element):
    return (inherited(element, XML + "space") or ["default"])[-1]


def prefixes_of(element):
    return {prefix: uri for prefix, uri in element.nsmap.items() if uri}


def canonical(node):
    """The exclusive canonical form of a node, without the text behind it."""
    alone = copy.copy(node)
    alone.tail = None
    if isinstance(node.tag, str):
        return etree.tostring(alone, method="c14n", exclusive=True, with_comments=True)
    return etree.tostring(alone)


def attributes(entry):
    spoken = (XML + "base", XML + "lang", XML + "space")
    return {name: value for name, value in entry.attrib.items() if name not in spoken}


def wrong_completion(given, got, added):
    """What is wrong with an element that the gate added."""
    name = added.tag.removeprefix(ATOM)
    text = "".join(added.itertext())
    if name == "title":
        right = text == got.findtext(ATOM + "id")
    elif name == "author":
        feed = given.getparent()
        inherited = feed.findall(ATOM + "author") if feed is not None else []
        names = [author.findtext(ATOM + "name") for author in inherited] or ["Simplefeed"]
        right = added.findtext(ATOM + "name") in names
    elif name == "link":
        page = re.fullmatch(r"http://.*/feeds/[^/]+/entries/[0-9]+", added.get("href"))
        rest = {name: value for name, value in added.attrib.items() if name != "href"}
        right = page and not text and rest == {"rel": "alternate", "type": "text/html"}
    elif name == "content":
        right = not text and not len(added) and not added.attrib
    else:
        right = bool(text)
    return [] if right else [f"{name} was added as {text!r}"]


def compare(given, got):
    """Returns what differs between an entry given and the entry read back."""
    faults = []
    had, has = list(given), list(got)
    present = {child.tag for child in had if child.tag != ATOM + "link"}
    if any(child.tag == ATOM + "link" and child.get("rel", "alternate") in ALTERNATE for child in had):
        present.add(ATOM + "link")
    first = got.text or ""
    while has and has[0].tag in COMPLETIONS and has[0].tag not in present:
        faults += wrong_completion(given, got, has[0])
        # Links of other relations may follow the added one.
        present |= {has[0].tag} & {ATOM + "link"}
        first += has.pop(0).tail or ""
    if (given.text or "") != first:
        faults.append("text at the beginning")
    if [child.tail or "" for child in had] != [child.tail or "" for child in has]:
        faults.append("text between children")
    if attributes(given) != attributes(got):
        faults.append(f"attributes {attributes(given)} became {attributes(got)}")
    if [canonical(child) for child in had] != [canonical(child) for child in has]:
        faults.append("canonical form")
        return faults
    pairs = [(given, got)]
    for before, after in zip(had, has):
        pairs += zip(before.iter(etree.Element), after.iter(etree.Element))
    for before, after in pairs:
        readings = {"prefixes": prefixes_of, "base": base_of, "language": language_of, "space": space_of}
        for what, read in readings.items():
            if read(before) != read(after):
                faults.append(f"{what} of {before.tag}: {read(before)} became {read(after)}")
    return faults


class Server:
    def __init__(self, url):
        self.url = urllib.parse.urlsplit(url)

    def ask(self, method, path, body=None, headers={}):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port)
        connection.request(method, self.url.path.rstrip("/") + path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def expects_no_error(data):
    found = re.search(rb"Expect:\s*(!?)(\w*)", data)
    return found is None or found[1] == b"!" or found[2].startswith(b"Valid")


def is_atom(data):
    try:
        return parse(data).tag in (ATOM + "feed", ATOM + "entry")
    except etree.XMLSyntaxError:
        return False


def check(server, feed, data):
    """Publishes a document. Returns whether it was accepted, and what is wrong."""
    kind = {"Content-Type": "application/atom+xml"}
    status, answer = server.ask("POST", f"/feeds/{feed}", data, kind)
    read, document = server.ask("GET", f"/feeds/{feed}/recent.atom")
    if 400 <= status < 500:
        left = [f"refused with {status}, and the feed answers {read}"] if read != 404 else []
        return False, left, answer.decode()
    given = entries_of(parse(data))
    if status == 200 and not given and read == 404:
        return True, [], ""  # Nothing was given, nothing is there.
    if status != 201:
        return False, [f"status {status}: {answer.decode()}"], ""
    got = parse(document).findall(ATOM + "entry")
    if len(given) != len(got):
        return True, [f"{len(given)} entries became {len(got)}"], ""
    faults = [fault for pair in zip(given, got) for fault in compare(*pair)]
    # Alone, each must be the same.
    for position, entry in enumerate(reversed(given)):
        _, alone = server.ask("GET", f"/feeds/{feed}/entries/{position}.atom")
        faults += [f"alone: {fault}" for fault in compare(entry, parse(alone))]
    return True, faults, ""


def main(url, folders):
    server = Server(url)
    paths = sorted(
        path
        for folder in folders
        for path in pathlib.Path(folder).rglob("*")
        if path.suffix in (".xml", ".atom")
    )
    accepted, elements, faults, met = 0, 0, [], set()
    for number, path in enumerate(paths):
        data = path.read_bytes()
        took, wrong, answer = check(server, f"f{number}", data)
        accepted += took
        faults += [f"{path}: {fault}" for fault in wrong]
        if took and is_atom(data):
            elements += sum(1 for _ in parse(data).iter(etree.Element))
        if not took and is_atom(data) and expects_no_error(data):
            met.add(path.name)
            if path.name not in EXCEPTIONS:
                faults.append(f"{path}: refused, although no error is expected: {answer}")
        elif path.name in EXCEPTIONS:
            faults.append(f"{path}: {EXCEPTIONS[path.name]}, but it is no exception")
    if met:
        faults += [f"exception {name} is not needed" for name in sorted(set(EXCEPTIONS) - met)]
    print(f"{len(paths)} documents, {accepted} accepted, {elements} elements compared, {len(faults)} faults")
    for fault in faults:
        print(fault)
    return 1 if faults or not accepted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
