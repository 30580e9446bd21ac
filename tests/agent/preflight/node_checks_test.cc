// SPDX-License-Identifier: Apache-2.0
#include "agent/preflight/node_checks.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

using ddprun::test::Contains;
using ddprun::test::TempDirectory;

NodeNeeds two_workers() {
  NodeNeeds needs;
  needs.num_workers = 2;
  needs.num_gpus = 2;
  return needs;
}

DirectoryFacts roomy(const std::string& path) { return {path, 0, 1 << 30, 10'000, true}; }

NodeFacts fit() {
  NodeFacts facts;
  facts.program.path = "/opt/train";
  facts.directories = {roomy("/tmp")};
  facts.shared_memory = roomy("/dev/shm");
  facts.max_open_files = 1024;
  facts.num_gpus = 2;
  return facts;
}

// The name and line of the one check that fails.
std::string only_problem(const NodeFacts& facts, const std::string& check,
                         const NodeNeeds& needs = two_workers()) {
  const auto problems = check_node(needs, facts);
  REQUIRE(problems.size() == 1);
  CHECK(problems.front().check == check);
  return to_text(problems);
}

void write(const std::string& path, const std::string& text, mode_t mode = 0755) {
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}

}  // namespace

TEST_CASE("node checks: a fit node has no problem") {
  CHECK(check_node(two_workers(), fit()).empty());
}

TEST_CASE("node checks: a program that can't be executed, or whose interpreter can't") {
  NodeFacts facts = fit();
  facts.program.error = ENOENT;
  CHECK(only_problem(facts, "program") ==
        "program: /opt/train: No such file or directory; an executable file is wanted");
  facts = fit();
  facts.program.error = EISDIR;
  CHECK_THAT(only_problem(facts, "program"), Contains("/opt/train: is a directory"));
  facts = fit();
  facts.program.interpreter = "/opt/python";
  CHECK(check_node(two_workers(), facts).empty());
  facts.program.interpreter_error = EACCES;
  CHECK_THAT(only_problem(facts, "program"),
             Contains("/opt/train wants /opt/python to run it: Permission denied"));
  facts = fit();
  facts.script = {"/opt/train.py", EACCES, "", 0};
  CHECK_THAT(only_problem(facts, "program"), Contains("/opt/train.py: Permission denied"));
}

TEST_CASE("node checks: a directory that takes no file, or is full") {
  NodeFacts facts = fit();
  facts.directories.front().error = EROFS;
  CHECK_THAT(only_problem(facts, "directory"),
             Contains("no file can be made in /tmp: Read-only file system"));
  CHECK(check_node(two_workers(), facts).front().verdict == NodeVerdict::kUnfit);
  NodeNeeds in_memory = two_workers();
  in_memory.uses_memory = true;  // a container whose root is read-only
  CHECK(check_node(in_memory, facts).front().verdict == NodeVerdict::kSaid);
  CHECK_THAT(to_text(check_node(in_memory, facts)), Contains("TMPDIR=/dev/shm"));
  facts.shared_memory.error = EROFS;
  CHECK(check_node(in_memory, facts).front().verdict == NodeVerdict::kUnfit);
  facts = fit();
  facts.directories.front().free_bytes = 4096;
  CHECK_THAT(only_problem(facts, "directory"), Contains("/tmp is full: 4096 bytes are free"));
  facts = fit();
  facts.directories.front().free_files = 0;
  CHECK_THAT(only_problem(facts, "directory"), Contains("it takes 0 more files"));
  CHECK(check_node(two_workers(), facts).front().verdict == NodeVerdict::kUnfit);
  for (const int error : {ENOENT, ENOTDIR}) {  // another node would fail, too
    NodeFacts named = fit();
    named.directories.front().error = error;
    CHECK(check_node(two_workers(), named).front().verdict == NodeVerdict::kUsersFault);
  }
  facts.directories.front().counts_files = false;  // btrfs and similar file systems
  CHECK(check_node(two_workers(), facts).empty());
}

TEST_CASE("node checks: shared memory is for several workers") {
  NodeFacts facts = fit();
  facts.shared_memory.free_bytes = 0;
  CHECK_THAT(only_problem(facts, "shared_memory"), Contains("/dev/shm is full"));
  CHECK(check_node(two_workers(), facts).front().verdict == NodeVerdict::kSaid);
  NodeNeeds alone = two_workers();
  alone.num_workers = 1;
  CHECK(check_node(alone, facts).empty());
}

TEST_CASE("node checks: the limit of open files grows with the workers") {
  NodeFacts facts = fit();
  facts.max_open_files = 39;
  CHECK_THAT(only_problem(facts, "open_files"), Contains("2 workers want 40"));
  CHECK(check_node(two_workers(), facts).front().verdict == NodeVerdict::kUsersFault);
  facts.max_open_files = 40;
  CHECK(check_node(two_workers(), facts).empty());
}

TEST_CASE("node checks: a GPU that is no longer there") {
  NodeFacts facts = fit();
  facts.num_gpus = 1;
  CHECK_THAT(only_problem(facts, "gpus"), Contains("lists 1 GPU; there were 2"));
  NodeNeeds uncounted = two_workers();
  uncounted.num_gpus = 0;
  CHECK(check_node(uncounted, facts).empty());
}

TEST_CASE("node checks: several problems are one line") {
  NodeFacts facts = fit();
  facts.num_gpus = 0;
  facts.program.error = ENOENT;
  const std::string text = to_text(check_node(two_workers(), facts));
  CHECK_THAT(text, Contains("program: ") && Contains(" — gpus: "));
}

TEST_CASE("node facts: missing files, interpreters and directories are found") {
  const TempDirectory folder;
  write(folder.path("fine"), "#! /bin/sh -e\nexit\n");
  write(folder.path("lost"), "#!/no/such/interpreter\n");
  write(folder.path("binary"), std::string("\x7f"
                                           "ELF\0",
                                           5));
  NodeNeeds needs;
  needs.program = folder.path("fine");
  needs.script = folder.path("lost");
  needs.directories = {folder.path(), folder.path("none"), folder.path("fine")};
  NodeFacts facts = gather_node_facts(needs);
  CHECK(facts.program.error == 0);
  CHECK(facts.program.interpreter == "/bin/sh");
  CHECK(facts.program.interpreter_error == 0);
  CHECK(facts.script.error == 0);
  REQUIRE(facts.directories.size() == 3);
  CHECK(facts.directories[0].error == 0);
  CHECK(facts.directories[0].free_bytes > 0);
  CHECK(facts.directories[1].error == ENOENT);
  CHECK(facts.directories[2].error == ENOTDIR);
  CHECK(facts.shared_memory.path == "/dev/shm");
  CHECK(facts.max_open_files > 0);

  needs.program = folder.path("lost");
  needs.script = folder.path("none.py");
  facts = gather_node_facts(needs);
  CHECK(facts.program.interpreter == "/no/such/interpreter");
  CHECK(facts.program.interpreter_error == ENOENT);
  CHECK(facts.script.error == ENOENT);
  needs.program = folder.path("binary");
  CHECK(gather_node_facts(needs).program.interpreter.empty());
  needs.program = folder.path();
  CHECK(gather_node_facts(needs).program.error == EISDIR);
}

}  // namespace ddprun::agent
