#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the cheap parts of a release: the tarball's install.sh with this build's programs, release.sh's refusals and
its tag, the workflows. scripts/wheel_check.sh tries the wheels, scripts/image_check.sh the
container image and the conda package."""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BIN = os.environ.get("DDPRUN_BIN_DIR", "")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import runner  # noqa: E402


class Release(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_command(self, *command, cwd=None):
        done = subprocess.run(command, cwd=cwd or self.folder, text=True, capture_output=True, timeout=60)
        print(done.stdout[-2000:] + done.stderr[-2000:])
        return done

    def install_below(self, stage):
        subprocess.run(["cmake", "--install", os.path.dirname(BIN), "--strip", "--component", "Unspecified", "--prefix", "/usr"],
                       check=True, env={**os.environ, "DESTDIR": stage}, stdout=subprocess.DEVNULL, timeout=60)

    def test_install_sh_installs_updates_and_removes(self):
        tree = os.path.join(self.folder, "tree")
        self.install_below(self.folder + "/stage")
        os.rename(self.folder + "/stage/usr", tree)
        shutil.copy(os.path.join(SOURCE, "packaging/install.sh"), tree)
        prefix = os.path.join(self.folder, "opt/ddprun")
        os.makedirs(prefix)
        with open(os.path.join(prefix, "mine"), "w", encoding="utf-8"):
            pass
        install = os.path.join(tree, "install.sh")
        self.assertEqual(self.run_command(install, "--prefix", prefix).returncode, 0)
        job = self.run_command(os.path.join(prefix, "bin/ddprun"), "--standalone", "--nproc_per_node=2", "sh", "-c", "echo up")
        self.assertEqual(job.stdout.count("up"), 2)
        with open(os.path.join(prefix, "lib/systemd/system/ddprund.service"), encoding="utf-8") as unit:
            self.assertIn("ExecStart=%s/bin/ddprund " % prefix, unit.read())
        self.assertEqual(self.run_command(sys.executable, "-m", "compileall", "-q", prefix + "/share/ddprun/python").returncode, 0)
        self.assertGreater(len([name for name in files.below(prefix) if name.endswith(".pyc")]), 10)
        # This makes another version, which lacks that page.
        os.unlink(os.path.join(tree, "share/doc/ddprun/docs/top.md"))
        self.assertEqual(self.run_command(install, "--prefix=" + prefix).returncode, 0)
        self.assertNotIn("share/doc/ddprun/docs/top.md", files.below(prefix))
        self.assertEqual(self.run_command(install, "--uninstall", "--prefix", prefix).returncode, 0)
        self.assertEqual(files.below(prefix), {"mine"})
        self.assertEqual(os.listdir(prefix), ["mine"])
        again = self.run_command(install, "--uninstall", "--prefix", prefix)
        self.assertEqual(again.returncode, 1)
        self.assertIn("is not installed in " + prefix, again.stderr)
        self.assertEqual(self.run_command(install, "--prefix", "here").returncode, 2)

    def test_release_sh_refuses_an_unfinished_tree(self):
        tree = os.path.join(self.folder, "tree")
        os.makedirs(tree + "/scripts")
        shutil.copy(os.path.join(SOURCE, "scripts/release.sh"), tree + "/scripts")
        with open(tree + "/CMakeLists.txt", "w", encoding="utf-8") as file:
            file.write("project(ddprun VERSION 9.9.9 LANGUAGES CXX)\n")
        changelog = tree + "/CHANGELOG.md"
        with open(changelog, "w", encoding="utf-8") as file:
            file.write("## [Unreleased]\n")
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
        self.run_command("git", "init", "-q", cwd=tree)

        def problem():
            done = self.run_command("scripts/release.sh", cwd=tree)
            self.assertEqual(done.returncode, 2)
            return done.stderr

        self.assertIn("the tree has changes", problem())
        self.run_command(*git, "add", ".", cwd=tree)
        self.run_command(*git, "commit", "-qm", "all", cwd=tree)
        self.assertIn("no section \"## [9.9.9] - DATE\"", problem())
        with open(changelog, "a", encoding="utf-8") as file:
            file.write("## [9.9.9] - 2026-12-24\n")
        self.run_command(*git, "commit", "-qam", "section", cwd=tree)
        self.run_command(*git, "tag", "v9.9.9", cwd=tree)
        self.assertIn("v9.9.9 is tagged", problem())

    def test_a_release_is_tagged_here_and_not_pushed(self):
        """The real script runs with the real git, changelog and source archive. Programs stand in for an hour of building."""
        tree, origin = os.path.join(self.folder, "tree"), os.path.join(self.folder, "origin")
        for name in ("scripts/release.sh", "packaging/pack_wheel.py", "CHANGELOG.md", "CMakeLists.txt", "README.md", ".gitignore"):
            os.makedirs(os.path.dirname(os.path.join(tree, name)), exist_ok=True)
            shutil.copy(os.path.join(SOURCE, name), os.path.join(tree, name))
        for name, old, new in (("CMakeLists.txt", r"(?<=project\(ddprun VERSION )\S+", "0.2.0"),
                               ("CHANGELOG.md", r"(?<=## \[Unreleased\])\n", "\n\n## [0.2.0] - 2026-12-24\n")):
            with open(os.path.join(tree, name), encoding="utf-8") as file:
                text = file.read()
            files.write(tree, name, re.sub(old, new, text, count=1))
        script = "#!/bin/sh\nmkdir -p dist\necho \"$(basename $0) $*\"\n"
        for name in ("scripts/wheel.sh", "scripts/tarball.sh", "scripts/debian_packages.sh", "packaging/sbom.py"):
            files.write(tree, name, script, 0o755)
        for name in ("qemu-aarch64-static", "rpmbuild", "debootstrap", "dpkg-shlibdeps", "tclsh", "tic"):
            files.write(self.folder, "programs/" + name, script, 0o755)
        self.run_command("git", "init", "-q", "--bare", origin)
        self.run_command("git", "init", "-q", cwd=tree)
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for command in (["add", "."], [*identity, "commit", "-qm", "all"], ["remote", "add", "origin", origin],
                        ["push", "-q", "origin", "HEAD:main"]):
            self.assertEqual(self.run_command("git", *command, cwd=tree).returncode, 0)
        done = self.run_command("env", f"PATH={self.folder}/programs:{os.environ['PATH']}", "DEBEMAIL=a@example.org",
                                "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "scripts/release.sh", cwd=tree)
        self.assertEqual(done.returncode, 0)
        self.assertIn("wheel.sh aarch64\n", done.stdout)
        self.assertIn("tagged v0.2.0; push the tag yourself", done.stdout)
        self.assertEqual(self.run_command("git", "cat-file", "-t", "v0.2.0", cwd=tree).stdout, "tag\n")
        self.assertEqual(self.run_command("git", "rev-list", "-1", "v0.2.0", cwd=tree).stdout,
                         self.run_command("git", "rev-parse", "HEAD", cwd=tree).stdout)
        self.assertEqual(self.run_command("git", "tag", cwd=origin).stdout, "")
        with open(tree + "/dist/SHA256SUMS", encoding="utf-8") as file:
            self.assertIn("  ddprun-0.2.0.tar.gz\n", file.read())

    def test_a_debian_changelog_of_the_first_release_has_what_was_there_before(self):
        shutil.copy(os.path.join(SOURCE, "packaging/debian_changelog.py"), files.write(self.folder, "packaging/debian_changelog.py", ""))
        with open(os.path.join(SOURCE, "CHANGELOG.md"), encoding="utf-8") as file:
            page = file.read()
        old = "\n## 0.1.0\n"
        self.assertIn(old, page)
        for dated in ("", "\n## [0.2.0] - 2026-12-24\n\n- The first release.\n"):
            files.write(self.folder, "CHANGELOG.md", page.replace(old, dated + old))
            said = self.run_command(sys.executable, "packaging/debian_changelog.py", "0.3.0" if dated else "0.2.0", "1", "bookworm",
                                    "Ada Lovelace <ada@example.org>").stdout
            newer, _, first = said.partition("ddprun (0.2.0-1) bookworm; ")
            self.assertEqual("ddprun (0.3.0-1) bookworm; " in newer, bool(dated))
            self.assertNotIn("  * The launcher `ddprun`", newer)
            self.assertIn("  * The launcher `ddprun`", first)

    def test_the_image_and_the_recipe_name_what_the_tarball_has(self):
        self.install_below(self.folder + "/stage")
        packed = self.run_command("env", "SOURCE_DATE_EPOCH=0", os.path.join(SOURCE, "scripts/tarball.sh"), self.folder + "/stage/usr",
                                  "x86_64", self.folder)
        self.assertEqual(packed.returncode, 0)
        (tarball,) = (name for name in os.listdir(self.folder) if name.endswith(".tar.gz"))
        version = tarball.split("-")[1]
        with tarfile.open(os.path.join(self.folder, tarball)) as file:
            members = {name.rstrip("/") for name in file.getnames()}
        texts = []
        for name in ("packaging/container/Containerfile", "packaging/conda/recipe.yaml", "configs/kubernetes/ddprund.yaml"):
            with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
                texts.append(file.read())
        image, recipe, manifest = texts
        self.assertNotIn(version, image + recipe)  # only CMakeLists.txt has it
        image = image.replace("$VERSION", version).replace("$ARCHITECTURE", "x86_64")
        self.assertEqual(re.findall("^ADD (.*) /$", image, re.M), [tarball])
        copied = re.findall("^COPY --from=unpacked /(.*?)/? /", image, re.M)
        self.assertEqual(len(copied), 3)
        self.assertEqual(set(copied) - members, set())
        (program,) = json.loads(re.search("^ENTRYPOINT (.*)", image, re.M)[1])
        said = self.run_command(os.path.join(BIN, program), "--help").stdout
        for flag in json.loads(re.search("^CMD (.*)", image, re.M)[1]):
            self.assertIn(flag.split("=")[0], said)
        user, group = re.search(r"^USER (\d+):(\d+)", image, re.M).groups()
        self.assertIn("runAsUser: %s, runAsGroup: %s, fsGroup: %s}" % (user, group, group), manifest)
        recipe = re.sub(r"\$\{\{ (version|architecture) \}\}", lambda found: {"version": version}.get(found[1], "x86_64"), recipe)
        self.assertIn("path: ../../dist/%s\n" % tarball, recipe)
        named = {"bin/" + name for name in re.search(r"bin: \[(.*)\]", recipe)[1].split(", ")}
        named |= {re.search("license_file: (.*)", recipe)[1], re.search(r"script: \./(\S+) --prefix", recipe)[1]}
        self.assertEqual({tarball.removesuffix(".tar.gz") + "/" + name for name in named} - members, set())

    def test_a_release_that_differs_from_its_second_build_or_lacks_a_file_or_runs_no_job_is_found(self):
        """Stands in for release.sh, whose two builds take hours. The check is the real one."""
        tree = os.path.join(self.folder, "tree")
        release = """#!/bin/bash
            mkdir dist && cd dist
            for file in ddprun-9.9.9-py3-none-manylinux2014_{x86_64,aarch64}.whl ddprun-9.9.9-linux-{x86_64,aarch64}.tar.gz \\
                        ddprun-9.9.9-1.{x86_64,aarch64}.rpm {ddprun,libddprun-dev}_9.9.9-1~deb{12,13}u1_amd64.deb ddprun-9.9.9.tar.gz; do
              echo "$file" >"$file"
            done
            tar cfz ddprun-9.9.9.tar.gz --sort=name --mtime=2026-01-01 -C .. source
            [ "$1" = --no-tag ] || exit 1
            case $CASE in differs) echo "$PWD" >ddprun-9.9.9-1.x86_64.rpm ;; lacks) rm ddprun-9.9.9-linux-aarch64.tar.gz ;; esac
            echo "$BILL" >ddprun-9.9.9.spdx.json
            sha256sum -- * >SHA256SUMS
            [ "$CASE" != unnamed ] || sed -i '/  ddprun-9.9.9.tar.gz/d' SHA256SUMS
        """
        shutil.copy(os.path.join(SOURCE, "scripts/release_check.sh"), files.write(tree, "scripts/release_check.sh", ""))
        os.chmod(tree + "/scripts/release_check.sh", 0o755)
        files.write(tree, "scripts/release.sh", textwrap.dedent(release), 0o755)
        files.write(tree, "CMakeLists.txt", "project(ddprun VERSION 9.9.9 LANGUAGES CXX)\n")
        files.write(tree, "source/pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
        files.write(tree, "source/ddprun", '#!/bin/sh\n[ $CASE = idle ] || echo "rank 0 of 2"\necho "rank 1 of 2"\n', 0o755)
        files.write(tree, "source/backend.py", textwrap.dedent("""
            import os, zipfile

            def build_wheel(folder, settings=None, metadata=None):
                assert os.environ["CASE"] != "uncompiled"
                with zipfile.ZipFile(folder + "/ddprun-9.9.9-py3-none-any.whl", "w") as wheel:
                    wheel.write("ddprun", "ddprun-9.9.9.data/scripts/ddprun")
                    for name, text in (("METADATA", "Metadata-Version: 2.1\\nName: ddprun\\nVersion: 9.9.9\\n"), ("RECORD", ""),
                                       ("WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: py3-none-any\\n")):
                        wheel.writestr("ddprun-9.9.9.dist-info/" + name, text)
                return "ddprun-9.9.9-py3-none-any.whl"
        """))
        self.run_command("git", "init", "-q", cwd=tree)
        self.run_command("git", "add", ".", cwd=tree)
        self.run_command("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "all", cwd=tree)
        names = ("ddprun", "openssl", "sqlite", "ncurses", "boost")
        bill = {"spdxVersion": "SPDX-2.3", "packages": [{"name": name, "versionInfo": "9.9.9", "SPDXID": name} for name in names],
                "relationships": [{"relationshipType": "STATIC_LINK", "relatedSpdxElement": name} for name in names[1:]]}
        less = {**bill, "packages": bill["packages"][:3]}
        for case, packages, said in (("right", bill, "two builds have the same bytes"), ("differs", bill, "two builds of one commit differ"),
                                     ("lacks", bill, "there is no ddprun-9.9.9-linux-aarch64.tar.gz"),
                                     ("unnamed", bill, "SHA256SUMS has no ddprun-9.9.9.tar.gz"),
                                     ("right", less, "is no bill of these programs"), ("right", None, "is no bill of these programs"),
                                     ("uncompiled", bill, "pip can't install ddprun-9.9.9.tar.gz"),
                                     ("idle", bill, "the source's ddprun runs no job of two workers")):
            with self.subTest(case, packages=packages):
                done = self.run_command("env", "CASE=" + case, "BILL=" + (json.dumps(packages) if packages else "none"),
                                        "scripts/release_check.sh", cwd=tree)
                self.assertEqual(done.returncode, 0 if packages is bill and case == "right" else 1)
                self.assertIn(said, done.stdout + done.stderr)

    def test_the_workflows_call_scripts_that_are_there(self):
        for workflow in (".github/workflows/ci.yml", ".gitlab-ci.yml"):
            with open(os.path.join(SOURCE, workflow), encoding="utf-8") as file:
                called = re.findall(r"scripts/\w+\.sh", file.read())
            self.assertIn("scripts/test.sh", called)
            self.assertIn("scripts/gpu_check.sh", called)
            for script in called:
                self.assertTrue(os.access(os.path.join(SOURCE, script), os.X_OK), script)

    def test_a_nightly_run_of_the_workflows_has_its_time_and_privileges(self):
        with open(os.path.join(SOURCE, ".github/workflows/ci.yml"), encoding="utf-8") as file:
            github = file.read()
        with open(os.path.join(SOURCE, ".gitlab-ci.yml"), encoding="utf-8") as file:
            gitlab = file.read()
        limits = "timeout-minutes: ${{ github.event_name == 'schedule' && 360 || 90 }}\n"
        self.assertLess(github.index("\n      options: --privileged"), github.index(limits))
        self.assertLess(github.index(limits), github.index("scripts/test.sh ${{ github.event_name == 'schedule' && '--nightly'"))
        self.assertIn("-${{ github.event_name }}-", re.search("^  group: (.*)", github, re.M)[1])
        jobs = dict(zip(("test", "nightly"), re.findall(r"^(?:test|nightly):\n((?:  .*\n)+)", gitlab, re.M)))
        hours, minutes = (int(re.search(r"^  timeout: (\d+)" + unit, jobs[name], re.M)[1])
                          for name, unit in (("nightly", "h"), ("test", "m")))
        self.assertGreater(60 * hours, minutes)
        for job in jobs.values():
            self.assertIn("    - unshare --net true || ", job)


if __name__ == "__main__":
    runner.main()
