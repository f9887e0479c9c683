"""CRS's own regression tests of one stage as one JSON file, for `crates/hailwire-agents/tests/it/crs.rs`.

    python3 tests.py FOLDER_OF_TESTS FOLDER_OF_RULES OUT

CRS's tests are files for its tool go-ftw. Of each, what its stage sends and whether the rule that the file is about is
to match are kept; those of several stages, of raw requests and about responses are left out.
"""

import json
import pathlib
import re
import sys

import yaml

FORM = "application/x-www-form-urlencoded"


def paranoia_of(rules: pathlib.Path) -> dict[int, int]:
    """The paranoia level of each rule, by its tag."""
    levels = {}
    for file in rules.glob("REQUEST-*.conf"):
        for rule in re.split(r"\n(?=SecRule|SecAction)", file.read_text()):
            number = re.search(r"\bid:(\d+)", rule)
            level = re.search(r"paranoia-level/(\d)", rule)
            if number:
                levels[int(number[1])] = int(level[1]) if level else 1
    return levels


def request(stage: dict) -> dict | None:
    """What a stage sends, with what the tool adds."""
    sent = stage["input"]
    if "encoded_request" in sent:
        return None
    headers = {name: str(value) for name, value in (sent.get("headers") or {}).items()}
    data = sent.get("data")
    if data is not None and sent.get("autocomplete_headers", True):
        names = {name.lower() for name in headers}
        if "content-type" not in names:
            headers["Content-Type"] = FORM
        if "content-length" not in names:
            headers["Content-Length"] = str(len(data.encode()))
    return {
        "method": sent.get("method", "GET"),
        "uri": sent.get("uri", "/"),
        "version": sent.get("version", "HTTP/1.1"),
        "headers": headers,
        "data": data,
    }


def main(tests: str, rules: str, out: str) -> None:
    levels = paranoia_of(pathlib.Path(rules))
    found = []
    for file in sorted(pathlib.Path(tests).glob("REQUEST-9[1-4]*/*.yaml")):
        about = yaml.safe_load(file.read_text())
        if about is None:
            continue
        rule = about["rule_id"]
        for test in about["tests"]:
            stages = test["stages"]
            log = stages[0]["output"].get("log", {})
            wanted, unwanted = log.get("expect_ids", []), log.get("no_expect_ids", [])
            if len(stages) != 1 or rule not in wanted + unwanted:
                continue
            sends = request(stages[0])
            if sends is not None:
                hostile = rule in wanted
                found.append(
                    {"rule": rule, "test": test["test_id"], "paranoia": levels.get(rule, 1), "hostile": hostile} | sends
                )
    pathlib.Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
