#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the Debian packages and the RPM (docs/packages.md): cpack and rpmbuild make them, lintian checks Debian's. They
are installed, run and removed in a throw-away copy of this machine's file system, an overlay in a mount name space.

    packages_test.py [FOLDER]      the packages there, for this release of Debian (scripts/debian_packages.sh --check)
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
BUILD = os.path.dirname(os.path.realpath(BIN))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import runner  # noqa: E402
from ports import free_port  # noqa: E402

FOLDER = os.path.abspath(sys.argv.pop()) if len(sys.argv) > 1 and os.path.isdir(sys.argv[-1]) else None
TIMEOUT = 250
NEEDED = ("ddprun", "ddprund", "ddprunctl", "ddprun-agent", "ddprun-warden")
# Files of the package ddprun at Debian's places.
PLACES = ("/usr/bin/ddprun", "/usr/bin/ddprund", "/usr/bin/ddprunctl", "/usr/bin/ddprun-agent", "/usr/libexec/ddprun/ddprun-warden",
          "/usr/libexec/ddprun/alias/torchrun", "/usr/share/man/man1/ddprun.1.gz", "/usr/share/man/man8/ddprund.8.gz",
          "/usr/share/man/man5/ddprun.toml.5.gz", "/usr/share/bash-completion/completions/ddprun",
          "/usr/share/zsh/vendor-completions/_ddprun", "/usr/share/fish/vendor_completions.d/ddprun.fish",
          "/usr/lib/systemd/system/ddprund.service", "/usr/lib/systemd/system/ddprund.socket",
          "/usr/lib/systemd/system/ddprun-agent@.service", "/usr/share/man/man8/ddprun-agent.8.gz",
          "/usr/share/ddprun/grafana/ddprun.json", "/usr/share/ddprun/kubernetes/ddprund.yaml",
          "/etc/ddprun/ddprun.toml", "/usr/share/doc/ddprun/copyright", "/usr/share/doc/ddprun/docs/launcher.md",
          "/usr/share/bash-completion/completions/ddprunctl")

MAINTAINER = "Ada Lovelace <ada@example.org>"
# The version of CMakeLists.txt in the form of this release's Debian package.
VERSION = r"{}-1(~deb\d+u1)?"
# Makes an earlier package for an update: with another default in the conffile, and a page that the new one lacks.
MAKE_EARLIER = """
dpkg-deb -R /packages/ddprun_*.deb /earlier
sed -i 's/^Version: .*/Version: 0.0.1-1/' /earlier/DEBIAN/control
echo '# an earlier comment' >>/earlier/etc/ddprun/ddprun.toml
touch /earlier/usr/share/doc/ddprun/docs/earlier.md
dpkg-deb -Znone -b /earlier /earlier.deb >/dev/null
"""
# The directory /run/systemd/system stands for a running systemd. A fake systemctl keeps its arguments.
FAKE_MANAGER = """
mkdir -p /run/systemd/system
mv /usr/bin/systemctl /usr/bin/systemctl.real
cat >/usr/bin/systemctl <<'END'
#!/bin/sh
echo "systemctl $*" >>/asked
# Links are really removed; whom one may ask over the bus isn't here.
for word; do case $word in disable) SYSTEMD_OFFLINE=1 exec systemctl.real "$@" ;; esac; done
END
cat >/usr/bin/deb-systemd-invoke <<'END'
#!/bin/sh
echo "deb-systemd-invoke $*" >>/asked
END
chmod 755 /usr/bin/systemctl /usr/bin/deb-systemd-invoke
links() { find /etc/systemd/system -name 'ddprun*'; }
step() { sed "s/^/$1: /" /asked; : >/asked; }
enable() { SYSTEMD_OFFLINE=1 systemctl.real --quiet enable ddprund.socket ddprund.service ddprun-agent@alice.service; }
"""
# serve JOB: a ddprund at $at, with its unit's StateDirectory=, and a job of it.
SERVE = """
mkdir -p -m 700 /var/lib/private /var/lib/private/ddprun
serve() {
  ddprund --listen=$at --state-dir=/var/lib/private/ddprun 2>/dev/null &
  daemon=$!
  trap 'kill $daemon' EXIT
  ddprun --rdzv_endpoint=$at --rdzv_conf=is_host=0 --rdzv_id="$1" --no-python true 2>/dev/null
}
end() { trap - EXIT; kill $daemon; wait $daemon || true; }
"""
# $1: a folder of the test's, $2: the packages' folder, $3: the source, $4: the script for the new root, $5: deb or rpm.
IN_OVERLAY = """set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root" || exit 77
mount --rbind /proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
rm -f "$1/root/var/lib/man-db/auto-update"  # an index of all manual pages takes half of the test's time
mkdir -p "$1/root/packages" "$1/root$3"
mount --bind "$3" "$1/root$3"  # a mount of its own in a root of debootstrap's
cp "$2"/*."$5" "$1/root/packages"
exec chroot "$1/root" sh -ec "$4"
"""


def run(argv, **more):
    return subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT, **more)


def by_step(said):
    """Returns the lines "step: what" of a script, as step → [what, …]."""
    asked = {}
    for line in said.splitlines():
        step, _, what = line.partition(": ")
        asked.setdefault(step, []).append(what)
    return asked


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if FOLDER:
            cls.folder = FOLDER
            cls.packages = sorted(name for name in os.listdir(FOLDER) if name.endswith(".deb"))
            return
        for tool in ("cpack", "dpkg-shlibdeps"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"{tool} is missing")
        if not all(os.path.exists(os.path.join(BIN, name)) for name in NEEDED):
            raise unittest.SkipTest("only a part of the tree is built")
        if not os.path.isdir(os.path.join(BUILD, "share")):
            raise unittest.SkipTest("sanitizers are built in")
        directory = tempfile.TemporaryDirectory(prefix="ddprun-packages-")
        cls.addClassCleanup(directory.cleanup)
        cls.folder = directory.name
        done = run(["cpack", "-G", "DEB", "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", cls.folder, "-D",
                    f"CPACK_PACKAGE_CONTACT={MAINTAINER}"])
        if done.returncode != 0:
            raise AssertionError(done.stdout)
        cls.packages = sorted(name for name in os.listdir(cls.folder) if name.endswith(".deb"))

    def package(self, name):
        found, = (each for each in self.packages if each.startswith(name + "_"))
        return os.path.join(self.folder, found)

    def in_overlay(self, script, kind="deb", folder=None):
        """Runs `script` as root in a copy of this file system, with the packages in its /packages. Returns its output."""
        place = files.scratch(self)
        done = run(["unshare", "--mount", "--propagation=private", "sh", "-c", IN_OVERLAY, "sh", place, folder or self.folder, SOURCE,
                    script, kind], stdin=subprocess.DEVNULL)
        if done.returncode == 77 or "unshare:" in done.stdout:
            self.skipTest(f"no overlay in a mount name space: {done.stdout.strip()}")
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_the_packages_are_two(self):
        self.assertEqual([name.split("_")[0] for name in self.packages], ["ddprun", "libddprun-dev"])
        with open(os.path.join(SOURCE, "CMakeLists.txt"), encoding="utf-8") as file:
            ours = re.search(r"project\(ddprun VERSION ([0-9.]+)", file.read())[1]
        for name in ("ddprun", "libddprun-dev"):
            fields = run(["dpkg-deb", "--field", self.package(name)]).stdout
            self.assertRegex(fields, f"(?m)^Version: {VERSION.format(re.escape(ours))}$")
            maintainer = re.search(r"(?m)^Maintainer: (\S.* <\S+@\S+>)$", fields)[1]
            if not FOLDER:
                self.assertEqual(maintainer, MAINTAINER)
            changelog = run(["sh", "-c", f"dpkg-deb --fsys-tarfile {self.package(name)} | "
                                         f"tar -xO ./usr/share/doc/{name}/changelog.Debian.gz | gzip -d"]).stdout
            self.assertIn(f" -- {maintainer}  ", changelog)
            self.assertIn("  * The launcher `ddprun`", changelog)  # a line of CHANGELOG.md

    def test_lintian_finds_no_error(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is missing")
        done = run(["lintian", "--allow-root", "--fail-on=error,warning",
                    *(os.path.join(self.folder, each) for each in self.packages)])
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_installed_run_updated_and_removed(self):
        present = " ".join(PLACES)
        at = f"127.0.0.1:{free_port()}"
        places = "/" if FOLDER else "/etc /usr /var"  # elsewhere other processes of the machine write
        said = self.in_overlay(f"""
            {MAKE_EARLIER}
            cd /
            apt-get satisfy -qq -y --no-install-recommends "$(dpkg-deb --field /earlier.deb Depends)" >/dev/null
            files() {{ find {places} -xdev | sort >"/$1"; }}
            : >/before && : >/after
            files before
            apt-get install -qq -y --no-install-recommends /earlier.deb >/dev/null
            for each in {present}; do test -e $each || echo "missing: $each"; done
            for each in "1 ddprun" "8 ddprund" "1 ddprunctl" "8 ddprun-agent" "5 ddprun.toml"; do
              man -w $each >/dev/null || echo "missing: page $each"
            done
            DDPRUN_BIN_DIR= PYTHONPATH={SOURCE}/tests/project python3 -B -c '
import install_test
assert install_test.named_pages_are_there("/usr")
assert install_test.links_lead_somewhere("/usr/share/doc/ddprun")'
            ddprun --standalone --nproc_per_node=2 --no-python sh -c 'echo worker' 2>/dev/null
            echo "daemon: $(ddprund --version)"
            echo "units: $(grep -h ^ExecStart= /usr/lib/systemd/system/ddprund.service)"
            command -v systemd-analyze >/dev/null || echo "missing: systemd-analyze"
            systemd-analyze verify --man=no /usr/lib/systemd/system/ddprund.service /usr/lib/systemd/system/ddprund.socket 2>&1 |
              grep ddprund || true
            echo 'max_restarts = 3' >>/etc/ddprun/ddprun.toml
            at={at}
            {SERVE}
            serve first
            end
            apt-get install -qq -y --no-install-recommends -o DPkg::Options::=--force-confdef \
              -o DPkg::Options::=--force-confold /packages/ddprun_*.deb >/dev/null
            echo "kept: $(tail -n 1 /etc/ddprun/ddprun.toml)"
            test ! -e /usr/share/doc/ddprun/docs/earlier.md || echo "left: earlier.md"
            python3 -m compileall -q /usr/share/ddprun/python  # as root does who imports each module
            serve second
            ddprunctl jobs --rdzv-endpoint={at} | sed 's/^/jobs: /'
            end
            apt-get remove -qq -y ddprun >/dev/null
            for each in {present} /var/lib/private/ddprun; do test ! -e $each || echo "left: $each"; done
            apt-get purge -qq -y ddprun >/dev/null
            files after
            comm -13 /before /after | sed 's/^/new: /'
            comm -23 /before /after | sed 's/^/gone: /'
        """)
        lines = said.splitlines()
        self.assertEqual([line for line in lines if "missing: " in line and line != "missing: []"], [], said)
        self.assertEqual(sum(line.endswith("] worker") or line == "worker" for line in lines), 2, said)
        self.assertIn("units: ExecStart=/usr/bin/ddprund ", said)
        self.assertIn("kept: max_restarts = 3", lines)
        self.assertRegex(said, r"jobs: first +ended")
        self.assertRegex(said, r"jobs: second +ended")
        self.assertEqual([line for line in lines if "left: " in line],
                         ["left: /etc/ddprun/ddprun.toml", "left: /var/lib/private/ddprun"], said)
        # When systemctl disables a unit, it leaves systemd-units-load until the next boot.
        self.assertEqual([line for line in lines if line.startswith(("new: ", "gone: "))
                          and line != "new: /run/systemd/systemd-units-load"], [], said)
        self.assertNotIn("ddprund.service:", said)  # systemd-analyze names a faulty unit
        self.assertNotIn("ddprund.socket:", said)

    def test_a_service_manager_is_asked_for_what_an_update_and_a_removal_need_and_no_more(self):
        said = self.in_overlay("""
            apt-get satisfy -qq -y --no-install-recommends "$(dpkg-deb --field /packages/ddprun_*.deb Depends)" >/dev/null
            """ + FAKE_MANAGER + """
            dpkg --install /packages/ddprun_*.deb >/dev/null
            step installed
            links | sed 's/^/enabled by itself: /'
            enable
            echo "enabled: $(links | wc -l)"
            dpkg --install /packages/ddprun_*.deb >/dev/null
            step updated
            echo "enabled: $(links | wc -l)"
            dpkg --remove ddprun >/dev/null
            step removed
            links | sed 's/^/left: /'
        """)
        asked = by_step(said)
        self.assertEqual(asked["installed"], ["systemctl daemon-reload"], said)
        # An update restarts no agent, because agents run jobs.
        self.assertEqual(sorted(set(asked["updated"])),
                         ["deb-systemd-invoke try-restart ddprund.service", "systemctl daemon-reload"], said)
        self.assertEqual(asked["updated"][-2:],
                         ["systemctl daemon-reload", "deb-systemd-invoke try-restart ddprund.service"], said)
        self.assertEqual(asked["removed"],
                         ["deb-systemd-invoke stop ddprund.socket ddprund.service ddprun-agent@*.service",
                          "systemctl --quiet disable ddprund.socket ddprund.service ddprun-agent@.service",
                          "systemctl daemon-reload"], said)
        self.assertEqual(asked["enabled"], ["3", "3"], said)
        self.assertNotIn("enabled by itself", asked)
        self.assertNotIn("left", asked)

    def build_rpm(self, stage, version, into):
        folder = files.scratch(self)
        done = run(["rpmbuild", "-bb", "--quiet", os.path.join(SOURCE, "packaging/ddprun.spec"), "--define", f"ddprun_version {version}",
                    "--define", f"ddprun_tree {stage}", "--define", f"ddprun_license {os.path.abspath(SOURCE)}/LICENSE",
                    "--define", f"_topdir {folder}", "--define", f"_rpmdir {into}", "--define", "_build_name_fmt %{VERSION}.rpm",
                    "--define", "_binary_payload w1.gzdio"])
        self.assertEqual(done.returncode, 0, done.stdout)

    @unittest.skipIf(FOLDER, "packages of Debian are tried")
    @unittest.skipUnless(shutil.which("rpmbuild"), "no rpmbuild (scripts/setup.sh full)")
    def test_an_rpm_installed_run_updated_and_removed(self):
        folder = files.scratch(self)
        stage = os.path.join(folder, "stage")
        done = run(["cmake", "--install", BUILD, "--strip", "--component", "Unspecified", "--prefix", "/usr"],
                   env={**os.environ, "DESTDIR": stage})
        self.assertEqual(done.returncode, 0, done.stdout)
        page = "/usr/share/doc/ddprun/docs/earlier.md"
        files.write(stage, page[1:], "")
        self.build_rpm(stage, "1.0", folder)
        os.unlink(stage + page)
        self.build_rpm(stage, "2.0", folder)
        said = self.in_overlay(f"""
            {FAKE_MANAGER}
            at=127.0.0.1:{free_port()}
            cd /
            files() {{ find /etc /usr /var -xdev -not -path '/var/lib/rpm*' | sort >"/$1"; }}
            # Systems with RPM have the first one. Another package has a file in the second.
            mkdir -p /usr/share/licenses /usr/share/fish/vendor_completions.d
            touch /usr/share/fish/vendor_completions.d/other
            files before
            rpm -i --nodeps /packages/1.0.rpm
            step installed
            links | sed 's/^/enabled by itself: /'
            test -e {page} || echo "missing: {page}"
            test -e /usr/share/licenses/ddprun/LICENSE || echo "missing: LICENSE"
            enable
            python3 -m compileall -q /usr/share/ddprun/python
            echo 'max_restarts = 3' >>/etc/ddprun/ddprun.toml
            {SERVE}
            serve first
            end
            rpm -U --nodeps /packages/2.0.rpm
            step updated
            echo "enabled: $(links | wc -l)"
            echo "kept: $(tail -n 1 /etc/ddprun/ddprun.toml)"
            test ! -e {page} || echo "left: {page}"
            serve second
            ddprunctl jobs --rdzv-endpoint=$at | sed 's/^/jobs: /'
            end
            python3 -m compileall -q /usr/share/ddprun/python
            rpm -e ddprun
            step removed
            links | sed 's/^/enabled: /'
            files after
            comm -3 /before /after | sed 's/^\t*/changed: /'
        """, "rpm", folder)
        asked = by_step(said)
        self.assertEqual(asked["installed"], ["systemctl daemon-reload"], said)
        # An update restarts no agent, because agents run jobs.
        self.assertEqual(asked["updated"], ["systemctl daemon-reload", "systemctl try-restart ddprund.service", "systemctl daemon-reload"],
                         said)
        self.assertEqual(asked["removed"], ["systemctl stop ddprund.socket ddprund.service ddprun-agent@*.service",
                                            "systemctl --quiet disable ddprund.socket ddprund.service ddprun-agent@.service",
                                            "systemctl daemon-reload"], said)
        self.assertEqual(asked["enabled"], ["3"], said)
        self.assertEqual(asked["kept"], ["max_restarts = 3"], said)
        self.assertRegex(said, r"jobs: first +ended")
        self.assertRegex(said, r"jobs: second +ended")
        self.assertFalse({"enabled by itself", "missing", "left"} & set(asked), said)
        left = [name for name in asked["changed"] if not name.startswith("/var/lib/private/ddprun/")]
        self.assertEqual(left, ["/etc/ddprun", "/etc/ddprun/ddprun.toml.rpmsave", "/var/lib/private/ddprun"], said)

    def test_a_program_is_built_with_the_sdk(self):
        said = self.in_overlay(f"""
            apt-get install -qq -y --no-install-recommends /packages/*.deb >/dev/null
            command -v cmake >/dev/null || apt-get install -qq -y --no-install-recommends cmake g++ make >/dev/null
            cp -r '{SOURCE}/tests/project/outside' /outside
            cat >/outside/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.22)
project(outside LANGUAGES CXX)
find_package(ddprun REQUIRED)
add_executable(sum sum.cc)
target_link_libraries(sum PRIVATE ddprun::core)
END
            cmake -S /outside -B /outside/build >/dev/null
            cmake --build /outside/build >/dev/null
            cd /
            ddprun --standalone --nproc_per_node=2 /outside/build/sum 2>/dev/null
            dpkg -L libddprun-dev >/had
            echo "had: $(grep -c '[.]h$' /had) headers"
            dpkg --purge libddprun-dev >/dev/null
            while read -r each; do if [ -f "$each" ]; then echo "left: $each"; fi; done </had
            test ! -e /usr/include/ddprun || echo "left: /usr/include/ddprun"
            ddprun --version >/dev/null || echo "left: no ddprun"
        """)
        self.assertEqual(said.count(": the sum is 3"), 2, said)
        self.assertRegex(said, r"had: [1-9]\d* headers")
        self.assertNotIn("left: ", said)


if __name__ == "__main__":
    runner.main()
