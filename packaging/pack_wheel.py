#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs what `cmake --install` has put below a prefix into a wheel.

    pack_wheel.py PREFIX TAG FOLDER      TAG: py3-none-manylinux2014_x86_64; the wheel lands in FOLDER

pip puts a wheel's data into the prefix of the environment. So the programs find their helpers and pages there as
anywhere. The same files make the same bytes: times are $SOURCE_DATE_EPOCH's. Format:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/

It is also pip's way to build from source (PEP 517, pyproject.toml).
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
METADATA = """Metadata-Version: 2.4
Name: ddprun
Version: %s
Summary: A launcher and rendezvous for distributed training: torchrun's commands, faster starts, clear failures
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

%s"""
# PyTorch finds the backend by this entry point.
ENTRY_POINTS = b"[torch.distributed.backends]\nddprun = ddprun.torch:register\n"
LEFT_OUT = ("libexec/ddprun/alias/",  # a symbolic link, which wheels can't have
            "lib/", "include/", "share/ddprun/python/", "share/ddprun/digits/",
            "bin/train")


def read(*parts):
    with open(os.path.join(SOURCE, *parts), encoding="utf-8") as file:
        return file.read()


def is_of_the_package(name):
    return name.endswith((".py", ".pth")) or name == "py.typed"


def files_below(folder):
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and name[0] != ".")
        for name in sorted(names):
            whole = os.path.join(path, name)
            yield whole, os.path.relpath(whole, folder)


class Wheel:
    def __init__(self, path, info):
        self.info = info
        self.record = []
        when = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")))
        self.time = max(when[:6], (1980, 1, 1, 0, 0, 0))
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)

    def add(self, name, content, is_program=False):
        entry = zipfile.ZipInfo(name, self.time)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if is_program else 0o100644) << 16
        self.zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append("%s,sha256=%s,%d\n" % (name, digest, len(content)))

    def add_file(self, name, path):
        with open(path, "rb") as file:
            self.add(name, file.read(), os.access(path, os.X_OK))

    def close(self):
        name = self.info + "/RECORD"
        self.add(name, ("".join(self.record) + name + ",,\n").encode())
        self.zip.close()


def version_of_tree():
    return re.search(r"^project\(ddprun VERSION ([0-9.]+)", read("CMakeLists.txt"), re.M).group(1)


def pack(prefix, tag, folder):
    version = version_of_tree()
    python, abi, platforms = tag.split("-")
    name = "ddprun-" + version
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "%s-%s.whl" % (name, tag))
    wheel = Wheel(path, name + ".dist-info")
    for whole, inner in files_below(os.path.join(SOURCE, "python")):
        if is_of_the_package(os.path.basename(inner)):
            wheel.add_file(inner, whole)
    for whole, inner in files_below(os.path.join(SOURCE, "data/digits")):
        wheel.add_file("ddprun/examples/data/" + inner, whole)
    for whole, inner in files_below(prefix):
        if inner.startswith(LEFT_OUT):
            continue
        scheme = "scripts/" + inner[4:] if inner.startswith("bin/") else "data/" + inner
        wheel.add_file("%s.data/%s" % (name, scheme), whole)
    wheel.add(wheel.info + "/METADATA", (METADATA % (version, read("README.md"))).encode())
    wheel.add(wheel.info + "/licenses/LICENSE", read("LICENSE").encode())
    wheel.add(wheel.info + "/entry_points.txt", ENTRY_POINTS)
    tags = "".join("Tag: %s-%s-%s\n" % (python, abi, platform) for platform in platforms.split("."))
    wheel.add(wheel.info + "/WHEEL",
              ("Wheel-Version: 1.0\nGenerator: ddprun\nRoot-Is-Purelib: false\n" + tags).encode())
    wheel.close()
    return path


def what_is_missing_to_compile():
    """Returns why ddprun can't be compiled here, one line, or None."""
    try:
        library = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):  # Windows, macOS, musl
        library = None
    if sys.platform != "linux" or not library:
        return "ddprun runs on Linux with glibc alone: there is no wheel for this platform (%s), and it can't be compiled here" % (
            sysconfig.get_platform())
    tools = {"cmake": ("cmake",), "ninja": ("ninja", "ninja-build"), "g++": (os.environ.get("CXX") or "g++", "c++")}
    missing = [name for name, programs in tools.items() if not any(map(shutil.which, programs))]
    if missing:
        return "ddprun can't be compiled here without %s; pip compiles it if no wheel fits (this is %s)" % (
            ", ".join(missing), sysconfig.get_platform())
    return None


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    problem = what_is_missing_to_compile()
    if problem:
        sys.exit("ERROR: " + problem)
    build = os.path.join(SOURCE, "build/pip")
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DDDPRUN_BUILD_ONCE=ON", "-DDDPRUN_BUILD_TESTS=OFF", "-DDDPRUN_BUILD_BENCH=OFF",
             "-DDDPRUN_WITH_TORCH=OFF", "-DDDPRUN_WITH_CUDA=OFF"]
    subprocess.run(["cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", *flags], check=True)
    subprocess.run(["cmake", "--build", build], check=True)
    # The units name the programs below the prefix, so it is not the temporary folder.
    prefix = "/usr/local"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cmake", "--install", build, "--strip", "--prefix", prefix], check=True, env={**os.environ, "DESTDIR": folder})
        return os.path.basename(pack(folder + prefix, "py3-none-linux_" + os.uname().machine, wheel_directory))


def build_sdist(sdist_directory, config_settings=None):
    name = "ddprun-" + version_of_tree()
    path = os.path.join(sdist_directory, name + ".tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        information = os.path.join(folder, "PKG-INFO")
        with open(information, "w", encoding="utf-8") as file:
            file.write(METADATA % (version_of_tree(), read("README.md")))
        subprocess.run(["git", "archive", "--format=tar.gz", "--prefix=%s/" % name, "--add-file=" + information,
                        "-o", path, "HEAD"], cwd=SOURCE, check=True)
    return os.path.basename(path)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(pack(*sys.argv[1:]))
