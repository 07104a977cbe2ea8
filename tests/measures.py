"""Measures of the source code, as numbers that can be compared: python3 tests/measures.py [--list | --check]

Counts the code of the products (core, server and its rooms, client, the command), without tests. With --list it also prints the
places behind the numbers: the longest functions, the circles, the repeated blocks. With --check it fails where a count is
not the one in tests/ceilings (a change that raises one says where, and one that lowers it lowers the ceiling), and where a
ratio is beyond its goal.
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = {
    "core": ROOT / "core/src",
    "server": ROOT / "server/src",
    "process": ROOT / "server/process/src",
    "log": ROOT / "server/log/src",
    "resource": ROOT / "server/resource/src",
    "views": ROOT / "server/views/src",
    "http": ROOT / "server/http/src",
    "publish": ROOT / "server/publish/src",
    "client": ROOT / "client/src",
    "cli": ROOT / "client/cli/src",
    "queue": ROOT / "queue/src",
}
BLOCK_LINES = 8
LONG_LINES = 80
WORD = re.compile(r"[A-Za-z'’]+")
TYPE = re.compile(r"\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|union|type) (\w+)")
# Words that name a type of the past, and no thing; regular ones end with -ed.
IRREGULAR = set(
    "begun bound bought broken brought built caught chosen done drawn driven eaten fallen felt found frozen given gone got grown "
    "had heard held hidden kept known laid learnt led left lent lost made meant met paid put read said seen sent set shown shut "
    "spent split spread stood stuck sworn taken taught thought thrown told torn understood woken won worn written".split()
)
# Nouns of the field that end alike.
NOUNS = set("Feed Need Seed Speed Bed Embed Shed Set Read Split Spread Bound".split())
# Ratios and their goals.
AT_MOST = {
    "p90 of lines of a function": 30,
    "function names of one word, in per cent": 50,
    "'what' in 1,000 words of comments": 2.0,
    "'it' and 'its' in 1,000 words of comments": 15.0,
}
AT_LEAST = {"lines of reasons in 100 lines within functions": 5.0}


def is_test(path):
    return path.stem in ("tests", "fixtures") or "tests" in path.parts[-2:-1]


def without_tests(lines):
    """Returns the lines before the first module of tests."""
    for number, line in enumerate(lines):
        if line.strip() == "#[cfg(test)]" and re.match(r"\s*(pub\S* )?mod \w+ \{", lines[number + 1]):
            return lines[:number]
    return lines


def functions(lines):
    """Yields the name, first line and lines of each function; rustfmt ends one at the indentation it began with."""
    for number, line in enumerate(lines):
        found = re.match(r"(\s*)(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn (\w+)", line)
        if not found:
            continue
        indentation, name = found.groups()
        for end in range(number, len(lines)):
            if lines[end].rstrip() == indentation + "}":
                yield name, number, lines[number : end + 1]
                break
            # A declaration has no body.
            is_declared = lines[end].startswith((indentation + ")", indentation + "}")) and lines[end].rstrip().endswith(";")
            if end == number and line.rstrip().endswith(("}", ";")) or is_declared or lines[end] == indentation + ";":
                break


def modules(folder):
    """Returns the files of a crate by module path."""
    found = {}
    for path in sorted(folder.rglob("*.rs")):
        if is_test(path) or path.stem == "main":
            continue
        parts = path.relative_to(folder).with_suffix("").parts
        found[() if parts == ("lib",) else parts] = path
    return found


def used_paths(text):
    """Yields each path after `use`, with its groups unfolded."""
    for use in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?use ([^;]+);", text, re.M):
        yield from unfold(re.sub(r"\s+", "", use))
    for path in re.findall(r"\b((?:crate|super)(?:::\w+)+)", text):
        yield path


def unfold(path):
    if "{" not in path:
        yield path.split("as")[0] if " as " in path else path
        return
    before, inside = path.split("{", 1)
    inside = inside.rsplit("}", 1)[0]
    depth, part = 0, ""
    for letter in inside + ",":
        if letter == "," and depth == 0:
            if part:
                yield from unfold(before + part)
            part = ""
            continue
        depth += {"{": 1, "}": -1}.get(letter, 0)
        part += letter


def reexports(files):
    """Returns the names that the root of a crate has from its modules, each with the path there."""
    names = {}
    for use in re.findall(r"^pub(?:\([^)]*\))? use ([^;]+);", files[()].read_text(), re.M) if () in files else []:
        for path in unfold(re.sub(r"\s+", "", use)):
            parts = path.removeprefix("crate::").removeprefix("self::").split("::")
            names[parts[-1]] = parts
    return names


def edges(folder):
    """Returns which module names which, by module path; a module that declares another does not name it."""
    files = modules(folder)
    names = reexports(files)
    graph = defaultdict(set)
    for module, path in files.items():
        text = "\n".join(without_tests(path.read_text().split("\n")))
        text = re.sub(r"//.*", "", text)
        for used in used_paths(text):
            parts = used.split("::")
            if parts[0] == "crate":
                target = parts[1:]
            elif parts[0] in ("super", "self"):
                base = list(module)
                while parts and parts[0] in ("super", "self"):
                    if parts[0] == "super":
                        base = base[:-1]
                    parts = parts[1:]
                target = base + parts
            else:
                continue
            # What the root has from a module is that module's.
            target = names.get(target[0], target) if target and tuple(target[:1]) not in files else target
            while target and tuple(target) not in files:
                target = target[:-1]
            target = tuple(target)
            is_own_part = module == target[: len(module)] or target == module[: len(target)]
            if target and not is_own_part:
                graph[module].add(target)
    return graph


def circles(graph):
    """Returns the sets of modules that lead to each other (Tarjan)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = []
            while True:
                other = stack.pop()
                on_stack.discard(other)
                circle.append(other)
                if other == node:
                    break
            if len(circle) > 1:
                found.append(sorted(circle))

    sys.setrecursionlimit(10_000)
    for node in list(graph):
        if node not in index:
            visit(node)
    return found


def numbered_code(lines):
    """Returns the lines of code with their numbers: no comments, attributes or lists of imports."""
    code, end = [], None
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if end is None and stripped.startswith(("use ", "pub use ", "#[", "#!")):
            # Such a list ends at the indentation at which it began.
            indentation = line[: len(line) - len(line.lstrip())]
            end = None if stripped.endswith((";", "]")) else indentation
        elif end is not None:
            end = None if line.startswith((end + "}", end + ")", end + "]")) else end
        elif stripped and not stripped.startswith("//"):
            code.append((number, stripped))
    return code


def repeated(files):
    """Returns the blocks of lines that stand in more than one place, each place counted once."""
    seen = defaultdict(list)
    for path, lines in files.items():
        code = numbered_code(lines)
        for start in range(len(code) - BLOCK_LINES + 1):
            block = code[start : start + BLOCK_LINES]
            text = "\n".join(line for _, line in block)
            if len(re.findall(r"\w{3,}", text)) >= 12:
                seen[text].append((path, block[0][0]))
    blocks, last = [], None
    for places in seen.values():
        if len(places) > 1:
            place = places[0]
            # A longer block shows itself at each of its lines.
            if not (last and last[0] == place[0] and place[1] - last[1] <= BLOCK_LINES):
                blocks.append(places)
            last = place
    return blocks


def types(files):
    """Yields the place and name of each type; a type of a trait's implementation is none."""
    for path, lines in files.items():
        is_within = False
        for number, line in enumerate(lines, 1):
            if re.match(r"(?:unsafe )?impl\b|(?:pub(?:\([^)]*\))? )?trait\b", line):
                is_within = not line.rstrip().endswith("}")
            elif line == "}":
                is_within = False
            found = TYPE.match(line)
            if found and not (is_within and line.startswith(" ")):
                yield f"{path}:{number}", found.group(1)


def is_participle(name):
    """Returns whether a type's name says what was done, and not what the type is."""
    last = re.findall(r"[A-Z][a-z]*", name)[-1:] or [name]
    word = last[0]
    return word not in NOUNS and (word.endswith("ed") or word.lower() in IRREGULAR)


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))]


def check(counted):
    """Compares counts, each with its places, with the ceilings. Returns whether all are as high."""
    lines = (ROOT / "tests/ceilings").read_text().splitlines()
    ceilings = {name.strip(): int(ceiling) for name, ceiling in (line.rsplit(" ", 1) for line in lines)}
    assert ceilings.keys() == counted.keys(), "tests/ceilings names other counts"
    for name, places in counted.items():
        if len(places) > ceilings[name]:
            print(f"error: {name}: {len(places)}, and at most {ceilings[name]} are allowed; one of these is new:", file=sys.stderr)
            print("".join(f"  {place}\n" for place in places), end="", file=sys.stderr)
        elif len(places) < ceilings[name]:
            print(f"error: {name}: only {len(places)}; lower the ceiling in tests/ceilings", file=sys.stderr)
    return all(len(places) == ceilings[name] for name, places in counted.items())


def main():
    is_listed = "--list" in sys.argv[1:]
    files = {}
    for folder in CRATES.values():
        for path in sorted(folder.rglob("*.rs")):
            if not is_test(path):
                files[path.relative_to(ROOT)] = without_tests(path.read_text().split("\n"))
    all_functions = [(len(body), path, first + 1, name) for path, lines in files.items() for name, first, body in functions(lines)]
    lengths = [length for length, *_ in all_functions]
    inside = [line for lines in files.values() for _, _, body in functions(lines) for line in body]
    whys = sum(bool(re.match(r"\s*// \S", line)) for line in inside)
    code = sum(bool(line.strip()) and not line.strip().startswith("//") for line in inside)
    comments = [found.group(1) for lines in files.values() for line in lines if (found := re.match(r"\s*//[/!]? ?(.*)", line))]
    words = Counter(word.lower() for line in comments for word in WORD.findall(line))
    total = sum(words.values())
    short = []
    for path, lines in files.items():
        for number, line in enumerate(lines):
            doc = re.match(r"\s*/// (.*)", line)
            neighbours = [lines[number - 1] if number else "", lines[number + 1] if number + 1 < len(lines) else ""]
            if doc and not any("///" in other for other in neighbours) and len(WORD.findall(doc.group(1))) <= 3:
                short.append(f"{path}:{number + 1}: {doc.group(1)}")
    rings = [(crate, circle) for crate, folder in CRATES.items() for circle in circles(edges(folder))]
    blocks = repeated(files)
    sizes = [len(lines) for lines in files.values()]
    borne = defaultdict(list)
    for place, name in types(files):
        borne[name].append(place)
    participles = [f"{place}: {name}" for name, places in borne.items() for place in places if is_participle(name)]
    twice = [f"{name}: {', '.join(places)}" for name, places in sorted(borne.items()) if len(places) > 1]
    counted = {
        "circles between modules": [f"{crate}: {', '.join('::'.join(module) or 'lib' for module in ring)}" for crate, ring in rings],
        f"repeated blocks of {BLOCK_LINES} lines": [", ".join(f"{path}:{first}" for path, first in places) for places in blocks],
        f"functions over {LONG_LINES} lines": [
            f"{path}:{first}: {name}, {length} lines" for length, path, first, name in all_functions if length > LONG_LINES
        ],
        "docs of three words or fewer": short,
        "participles as names of types": participles,
        "names of several types": twice,
    }
    single = sum("_" not in name.strip("_") for *_, name in all_functions)
    at_most = [percentile(lengths, 0.9), 100 * single / len(all_functions), 1000 * words["what"] / total, 1000 * (words["it"] + words["its"]) / total]
    at_most = dict(zip(AT_MOST, at_most))
    at_least = dict(zip(AT_LEAST, [100 * whys / code]))
    if "--check" in sys.argv[1:]:
        is_reached = check(counted)
        for name, ratio in at_most.items():
            if ratio > AT_MOST[name]:
                print(f"error: {name}: {ratio:.1f}, and at most {AT_MOST[name]} is the goal", file=sys.stderr)
                is_reached = False
        for name, ratio in at_least.items():
            if ratio < AT_LEAST[name]:
                print(f"error: {name}: {ratio:.1f}, and at least {AT_LEAST[name]} is the goal", file=sys.stderr)
                is_reached = False
        sys.exit(0 if is_reached else 1)
    print(f"files                            {len(files)}, lines: p90 {percentile(sizes, 0.9)}, most {max(sizes)}")
    print(f"functions                        {len(lengths)}, lines: most {max(lengths)}")
    print(f"comment words                    {total}")
    print(f"names of types                   {len(borne)}")
    for name, places in counted.items():
        print(f"{name:48} {len(places)}")
    for name, ratio in (at_most | at_least).items():
        print(f"{name:48} {ratio:.1f}")
    if is_listed:
        for length, path, first, name in sorted(all_functions, reverse=True)[:20]:
            print(f"long: {path}:{first}: {name}, {length} lines")
        for crate, circle in rings:
            print(f"circle in {crate}: {', '.join('::'.join(module) or 'lib' for module in circle)}")
        for places in blocks:
            print("repeated: " + ", ".join(f"{path}:{first}" for path, first in places))
        for line in short:
            print(f"short: {line}")
        for line in participles:
            print(f"participle: {line}")
        for line in twice:
            print(f"of several types: {line}")


if __name__ == "__main__":
    main()
