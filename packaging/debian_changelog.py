#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints CHANGELOG.md as a Debian changelog, for the package of one release of Debian.

    debian_changelog.py VERSION RELEASE DISTRIBUTION MAINTAINER     0.1.0 1~deb12u1 bookworm "Ada Lovelace <ada@example.org>"

The first entry is VERSION's: the section "Unreleased" and that of VERSION. Each older section with a date is an entry. A
section without a date was never released alone, so its items belong to the entry above it.
"""
import datetime
import email.utils
import os
import re
import sys
import textwrap
import time

CHANGELOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../CHANGELOG.md")


def sections():
    """Yields (version, date or None, items) of each section of CHANGELOG.md, in the file's order."""
    with open(CHANGELOG, encoding="utf-8") as file:
        parts = re.split(r"^## \[?([^]\s]+)\]?(?: - (\S+))?$", file.read(), flags=re.M)
    for version, date, text in zip(parts[1::3], parts[2::3], parts[3::3]):
        yield version, date, re.findall(r"^- (.*)$", text, re.M)


def main():
    sys.stdout.reconfigure(encoding="utf-8")  # independent of the locale
    newest, release, distribution, maintainer = sys.argv[1:]
    now = float(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    entries = [[newest, email.utils.formatdate(now), []]]
    for version, date, items in sections():
        if version in ("Unreleased", newest):
            entries[0][2].extend(items)
        elif date:
            noon = datetime.datetime.fromisoformat(date + "T12:00:00+00:00")
            entries.append([version, email.utils.format_datetime(noon), items])
        else:
            entries[-1][2].extend(items)
    for version, date, items in entries:
        if not items:
            sys.exit(f"CHANGELOG.md says nothing of {version}")
        print(f"ddprun ({version}-{release}) {distribution}; urgency=medium\n")
        for item in items:
            print(textwrap.fill(item, 79, initial_indent="  * ", subsequent_indent="    "))
        print(f"\n -- {maintainer}  {date.replace('-0000', '+0000')}\n")


if __name__ == "__main__":
    main()
