#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests find_package(ddprun) in an outside project with the installed tree, with and without LibTorch. The programs run
under ddprun. The public headers are compiled before them (DDPRUN_NIGHTLY=1: each alone). The loop is README's."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/dev/bin"))
BUILD = os.path.dirname(os.path.realpath(BIN))
NIGHTLY = "DDPRUN_NIGHTLY" in os.environ
OUTSIDE = os.path.join(SOURCE, "tests/project/outside")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402
import skips  # noqa: E402


def run(argv, status=0, **more):
    done = subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500, **more)
    if (done.returncode == 0) != (status == 0):
        raise AssertionError(f"{argv}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def readme_loop():
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as f:
        return re.search(r"<!-- test: compiles -->\n```cpp\n(.*?)```", f.read(), re.S)[1]


def headers_of_pages():
    """Returns our headers that README, docs and examples name, as <ddprun/…>."""
    named = set()
    for pattern in ("README.md", "docs/*.md", "examples/*/*.cc"):
        for path in glob.glob(os.path.join(SOURCE, pattern)):
            with open(path, encoding="utf-8") as f:
                named.update(re.findall(r"<(ddprun/[a-z_/]+\.h)>", f.read()))
    return sorted(named)


# Names that the C++ blocks of docs/ use without a definition, by page and place. They become parameters of a function
# around the block. A text that begins with "//" is put before a block that is a part of a file.
GIVEN = {
    ("sdk", 0): "ddprun::Communicator* comm, int peer",
    ("loader", 0): "ddprun::Session* session, std::int64_t num_samples, ddprun::Loader<Batch>::Load read_batch, "
                   "void train_step(Batch&)",
    ("tensor-parallel", 0): "//",
    ("pipeline", 0): "torch::nn::Sequential layers, ddprun::Communicator* communicator, torch::Tensor x, torch::Tensor y, "
                     "torch::Tensor loss",
    ("pipeline", 1): "ddprun::Communicator* world, ddprun::Pipeline::Stage stage, ddprun::Pipeline::Loss loss, "
                     "torch::Tensor own_part_of_the_batch, torch::nn::Sequential layers, torch::optim::SGD& optimizer",
    ("parallel", 0): "ddprun::Communicator* world",
    ("ddp", 0): "torch::Tensor x, torch::Tensor y",
    ("ddp", 1): "ddprun::DdpBase& ddp, std::vector<torch::Tensor> my_batches",
    ("ddp", 2): "torch::nn::Sequential net",
    ("checkpoint", 0): "ddprun::Session* session, ddprun::Communicator* communicator, torch::nn::Sequential net, "
                       "ddprun::FlatOptimizer& optimizer, std::uint64_t last_step, void train_step(std::uint64_t)",
    ("checkpoint", 1): "ddprun::Checkpoint& checkpoint, std::vector<ddprun::NamedTensor> tensors",
    ("async", 0): "ddprun::Communicator* communicator, std::vector<float> values, std::vector<float> update, "
                  "bool more_batches()",
    ("local-sgd", 0): "torch::nn::Sequential net, ddprun::Communicator* communicator, std::uint64_t last",
    ("optimizers", 0): "torch::nn::Sequential net, ddprun::Communicator* communicator, std::uint64_t num_steps, "
                       "torch::Tensor images, torch::Tensor labels, torch::Tensor loss(torch::Tensor, torch::Tensor)",
    ("zero", 0): "torch::nn::Sequential net, ddprun::Communicator* communicator, torch::Tensor images, "
                 "torch::Tensor labels, torch::Tensor loss(torch::Tensor, torch::Tensor)",
    ("zero", 1): "ddprun::ShardedOptimizer& optimizer, ddprun::Checkpoint& checkpoint",
    ("spawn", 0): "//",
    ("amp", 0): "torch::Device device, std::unique_ptr<ddprun::Communicator> communicator, torch::Tensor images, "
                "torch::Tensor labels, "
                "ddprun::DistributedDataParallel<torch::nn::LinearImpl>& ddp, ddprun::FlatOptimizer& optimizer",
    ("inplace", 0): "int snapshot, void train(ddprun::Session&, ddprun::Communicator&, int)",
    ("compression", 0): "torch::nn::Linear net, ddprun::Communicator* communicator",
}
# The test torch.comm_hook runs the first block; no user needs the second one.
ELSEWHERE = {("compression", 1), ("architecture", 0)}


def code_of_pages():
    """Returns the blocks as functions that nobody calls."""
    code, seen = [], set()
    for name in sorted(filter(lambda name: name.endswith(".md"), os.listdir(os.path.join(SOURCE, "docs")))):
        with open(os.path.join(SOURCE, "docs", name), encoding="utf-8") as f:
            blocks = re.findall(r"```cpp\n(.*?)```", f.read(), re.S)
        for number, block in enumerate(blocks):
            key = name.removesuffix(".md"), number
            seen.add(key)
            if key in ELSEWHERE:
                continue
            given = GIVEN[key]  # a KeyError means that a page has a new block: add its undefined names to GIVEN
            block = re.sub(r"^#include .*$", "", block, flags=re.M)
            block = re.sub(r"\(…\)", "(int i = 0; i < 2; ++i)", block)
            block = re.sub(r"= …;", "= {};", block)
            block = re.sub(r"^( *)….*$|{ ….*?… }", "{ ; }", block, flags=re.M)
            place = f"{name}_{number}".replace(".md", "").replace("-", "_")
            begin = f'#line 1 "docs/{name}, block {number}"\n'
            if given == "//":
                code.append(f"namespace {place} {{\n{begin}{block}}}\n")
            else:
                result = "int" if re.search(r"^\s*return .*;", block, re.M) else "void"
                code.append(f"[[maybe_unused]] static {result} {place}({given}) {{\n{begin}{block}}}\n")
    assert seen == set(GIVEN) | ELSEWHERE, f"blocks that are gone: {(set(GIVEN) | ELSEWHERE) - seen}"
    return "".join(code)


class FindPackage(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="ddprun-outside-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.source = os.path.join(self.directory, "source")
        shutil.copytree(OUTSIDE, self.source)
        with open(os.path.join(self.source, "loop.cc"), "w", encoding="utf-8") as f:
            f.write(readme_loop() + '#include "pages.h"\n')

    def install(self, build):
        prefix = os.path.join(self.directory, "prefix")
        run(["cmake", "--install", build, "--prefix", prefix, "--component", "sdk"])
        return prefix

    def check_lines_of_the_page(self, prefix):
        """Checks that the page's lines work unchanged, and in a project that sets no policies."""
        with open(os.path.join(SOURCE, "docs/sdk.md"), encoding="utf-8") as f:
            lines = re.search(r"```cmake\n(.*?)```", f.read(), re.S)[1].splitlines(keepends=True)
        self.assertTrue(lines[0].startswith("cmake_minimum_required") and lines[1].startswith("project"), lines)
        for name, kept in (("page", lines), ("bare", lines[2:])):
            source = os.path.join(self.directory, name)
            os.mkdir(source)
            shutil.copy(os.path.join(self.source, "loop.cc"), source)
            with open(os.path.join(source, "CMakeLists.txt"), "w", encoding="utf-8") as f:
                f.writelines(kept)
            run(["cmake", "-S", source, "-B", os.path.join(source, "build"), "-G", "Ninja",
                 f"-DCMAKE_PREFIX_PATH={prefix}"])

    def configure(self, prefix, *options, status=0):
        return run(["cmake", "-S", self.source, "-B", os.path.join(self.directory, "build"), "-G", "Ninja",
                    "-DCMAKE_BUILD_TYPE=", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DEACH_ALONE={NIGHTLY}", *options], status)

    def build_and_run(self, program):
        build = os.path.join(self.directory, "build")
        run(["cmake", "--build", build, "-j", "2"])
        return run([os.path.join(BIN, "ddprun"), "--standalone", "--nproc_per_node=2", os.path.join(build, program)])

    def test_programs_build_without_libtorch(self):
        """Configures a tree without LibTorch, and uses the libraries of the tested build."""
        build = os.path.join(self.directory, "without")
        run(["cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", "-DDDPRUN_WITH_TORCH=OFF", "-DDDPRUN_BUILD_TESTS=OFF",
             "-DDDPRUN_BUILD_BENCH=OFF"])
        for folder, _, names in os.walk(BUILD):
            for name in names:
                target = os.path.join(build, os.path.relpath(folder, BUILD), name)
                if name.startswith("libddprun_") and os.path.isdir(os.path.dirname(target)):
                    shutil.copy(os.path.join(folder, name), target)
        prefix = self.install(build)
        said = self.configure(prefix, "-DWITH_TORCH=ON", status=1)
        self.assertIn("component torch: this ddprun was built without LibTorch", " ".join(said.split()))
        said = self.configure(prefix, "-DCOMPONENTS=parallel;torhc", status=1)
        self.assertIn("component torhc: there is none of that name", " ".join(said.split()))
        shutil.rmtree(os.path.join(self.directory, "build"))
        self.configure(prefix)
        output = self.build_and_run("sum")
        for rank in (0, 1):
            self.assertIn(f"rank {rank}: the sum is 3", output)
        self.assertEqual(run([os.path.join(self.directory, "build/parts")]), "4 samples, 12 operations\n")

    def test_programs_build_with_libtorch(self):
        if not os.path.exists(os.path.join(BUILD, "worker_sdk/torch/libddprun_torch.a")):
            self.skipTest("built without LibTorch")
        prefix = self.install(BUILD)
        self.assertEqual([name for name in headers_of_pages() if not os.path.exists(f"{prefix}/include/{name}")], [])
        said = self.configure(prefix, "-DWITH_TORCH=ON", "-DDDPRUN_TORCH_ROOT=/nowhere", status=1)
        self.assertIn("no LibTorch in '/nowhere'", " ".join(said.split()))
        other = os.path.join(self.directory, "other")
        os.makedirs(os.path.join(other, "lib"))
        for name, text in (("version.py", "__version__ = '2.9.1+cpu'\n"), ("lib/libtorch_cpu.so", "")):
            with open(os.path.join(other, name), "w", encoding="utf-8") as f:
                f.write(text)
        root = f"-DDDPRUN_TORCH_ROOT={other}"
        said = self.configure(prefix, "-DWITH_TORCH=ON", "-DCOMPONENTS=torch_parallel", root, status=1)
        self.assertRegex(" ".join(said.split()), r"component torch_parallel: .*is of version '2.9.1', .* built with \d")
        said = self.configure(prefix, "-DWITH_TORCH=ON", "-DCOMPONENTS=core", root, status=1)
        self.assertRegex(" ".join(said.split()), r"LibTorch-\d\S*-is-not-in-DDPRUN_TORCH_ROOT")
        shutil.rmtree(os.path.join(self.directory, "build"))
        self.check_lines_of_the_page(prefix)
        include = os.path.join(prefix, "include")
        headers = [os.path.relpath(os.path.join(folder, name), include)
                   for folder, _, names in os.walk(include) for name in names]
        with open(os.path.join(self.source, "pages.h"), "w", encoding="utf-8") as f:
            f.writelines(f"#include <{header}>\n" for header in ["torch/torch.h", *sorted(headers)])
            f.write("struct Batch {};\n" + code_of_pages())
        self.configure(prefix, "-DWITH_TORCH=ON")
        output = self.build_and_run("loop")
        for rank in (0, 1):
            self.assertRegex(output, rf"rank {rank}: loss \d\.\d\d")

    def configure_tree(self, *options, status=0):
        """Configures this tree in a build folder of the test's own."""
        if not os.path.exists(os.path.join(BUILD, "worker_sdk/torch/libddprun_torch.a")):
            self.skipTest("built without LibTorch")
        with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as f:
            root = re.search(r"^DDPRUN_TORCH_ROOT:\w+=(.+)$", f.read(), re.M)
        said = run(["cmake", "-S", SOURCE, "-B", os.path.join(self.directory, "tree"), "-G", "Ninja", "-DDDPRUN_BUILD_TESTS=OFF",
                    "-DDDPRUN_BUILD_BENCH=OFF", *([f"-DDDPRUN_TORCH_ROOT={root[1]}"] if root else []), *options], status)
        return " ".join(said.split())

    def test_a_program_of_yours_that_never_was_there_is_refused(self):
        said = self.configure_tree("-DDDPRUN_PROGRAM=gone.cc", status=1)
        self.assertRegex(said, r"DDPRUN_PROGRAM: \S*/gone.cc isn't there; without it: -DDDPRUN_PROGRAM=")

    def test_a_program_of_yours_that_is_removed_is_left_out(self):
        program = shutil.copy(os.path.join(self.source, "loop.cc"), self.directory)
        self.configure_tree(f"-DDDPRUN_PROGRAM={program}")
        os.remove(program)
        self.assertIn(f"DDPRUN_PROGRAM: {program} is gone, and is left out from now on", self.configure_tree())
        self.assertNotIn("DDPRUN_PROGRAM", self.configure_tree())


if __name__ == "__main__":
    if os.environ.get("DDPRUN_SANITIZE"):
        skips.skip_all("the libraries are built with sanitizers, which an outside project knows nothing of")
    runner.main()
