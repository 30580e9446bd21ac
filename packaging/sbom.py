#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the software bill of materials of the portable programs, SPDX 2.3 as JSON.

    sbom.py VERSION DEPENDENCIES      DEPENDENCIES: build/wheel/ARCHITECTURE/dependencies
"""
import json
import os
import re
import sys
import time


def defined(path, pattern):
    with open(path, encoding="utf-8", errors="replace") as file:
        return ".".join(re.search(pattern, file.read(), re.M).groups())


def packages(version, dependencies):
    def include(name):
        return os.path.join(dependencies, "include", name)

    def numbers(*names):
        return "".join(r"(?:.|\n)*?^#\s*define\s+%s\s+(\d+)" % name for name in names)

    fmt = int(defined(include("fmt/core.h"), numbers("FMT_VERSION")))
    boost = int(defined(include("boost/version.hpp"), numbers("BOOST_VERSION")))
    return [
        ("ddprun", version, "Apache-2.0"),
        ("openssl", defined(include("openssl/opensslv.h"), r'OPENSSL_VERSION_STR "([0-9.]+)"'), "Apache-2.0"),
        ("sqlite", defined(include("sqlite3.h"), r'#define SQLITE_VERSION\s+"([0-9.]+)"'), "blessing"),
        ("ncurses", defined(include("ncursesw/curses.h"), r'#define NCURSES_VERSION "([0-9.]+)"'), "X11-distribute-modifications-variant"),
        ("boost", "%d.%d.%d" % (boost // 100000, boost // 100 % 1000, boost % 100), "BSL-1.0"),
        ("CLI11", defined(include("CLI/Version.hpp"), r'CLI11_VERSION "([0-9.]+)"'), "BSD-3-Clause"),
        ("spdlog", defined(include("spdlog/version.h"), numbers("SPDLOG_VER_MAJOR", "SPDLOG_VER_MINOR", "SPDLOG_VER_PATCH")), "MIT"),
        ("fmt", "%d.%d.%d" % (fmt // 10000, fmt // 100 % 100, fmt % 100), "MIT"),
        ("tomlplusplus", defined(include("toml++/impl/version.h"), numbers("TOML_LIB_MAJOR", "TOML_LIB_MINOR", "TOML_LIB_PATCH")), "MIT"),
        ("libc++ of zig", defined("scripts/wheels/wheel.lock", r"ziglang==([0-9.]+)"), "Apache-2.0 WITH LLVM-exception"),
        ("musl of zig", defined("scripts/wheels/wheel.lock", r"ziglang==([0-9.]+)"), "MIT"),
    ]


def main(version, dependencies):
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    listed = [{"SPDXID": "SPDXRef-" + re.sub("[^A-Za-z0-9]", "-", name), "name": name, "versionInfo": number,
               "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
               "downloadLocation": "NOASSERTION", "filesAnalyzed": False}
              for name, number, licence in packages(version, dependencies)]
    print(json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "ddprun-" + version,
        "documentNamespace": "urn:ddprun:sbom:" + version,
        "creationInfo": {"created": when, "creators": ["Tool: packaging/sbom.py"]},
        "packages": listed,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                           "relatedSpdxElement": "SPDXRef-ddprun"}] +
                         [{"spdxElementId": "SPDXRef-ddprun", "relationshipType": "STATIC_LINK",
                           "relatedSpdxElement": entry["SPDXID"]} for entry in listed[1:]]}, indent=1))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
