// SPDX-License-Identifier: Apache-2.0
#include "agent/preflight/node_checks.h"

#include <cerrno>
#include <cstdint>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

using Problems = std::vector<NodeProblem>;

// What a round's own files take (sockets, error files, shared memory to begin with).
constexpr std::uint64_t kMinFreeBytes = 1 << 20;
constexpr std::uint64_t kMinFreeFiles = 64;

// ddprun's own descriptors, and those that it has for each worker.
constexpr std::size_t kOpenFilesOfAgent = 24;
constexpr std::size_t kOpenFilesOfWorker = 8;

std::string why(int error) { return error == EISDIR ? "is a directory" : errno_text(error); }

void check_program(const NodeFacts& facts, Problems& problems) {
  const FileFacts& program = facts.program;
  if (program.error != 0) {
    problems.push_back({"program", concat(program.path, ": ", why(program.error)),
                        "an executable file is wanted"});
  } else if (program.interpreter_error != 0) {
    problems.push_back({"program",
                        concat(program.path, " wants ", program.interpreter,
                               " to run it: ", why(program.interpreter_error)),
                        "install it, or correct the file's first line"});
  }
  if (facts.script.error != 0) {
    problems.push_back({"program", concat(facts.script.path, ": ", why(facts.script.error)),
                        "a readable file is wanted"});
  }
}

void check_directory(const char* check, const DirectoryFacts& directory, const char* wanted,
                     NodeVerdict verdict, Problems& problems) {
  std::string seen;
  if (directory.error != 0) {
    seen = concat("no file can be made in ", directory.path, ": ", errno_text(directory.error));
  } else if (directory.free_bytes < kMinFreeBytes) {
    seen = concat(directory.path, " is full: ", directory.free_bytes, " bytes are free");
  } else if (directory.counts_files && directory.free_files < kMinFreeFiles) {
    seen = concat(directory.path, " is full: it takes ", directory.free_files, " more files");
  } else {
    return;
  }
  problems.push_back({check, std::move(seen), wanted, verdict});
}

// A name that isn't there, or that is no directory, was given wrongly; a full disk is this node's.
NodeVerdict verdict_on(const DirectoryFacts& directory) {
  return directory.error == ENOENT || directory.error == ENOTDIR ? NodeVerdict::kUsersFault
                                                                 : NodeVerdict::kUnfit;
}

void check_open_files(const NodeNeeds& needs, const NodeFacts& facts, Problems& problems) {
  const std::size_t wanted =
      kOpenFilesOfAgent + kOpenFilesOfWorker * static_cast<std::size_t>(needs.num_workers);
  if (facts.max_open_files >= wanted) return;
  problems.push_back({"open_files", concat("at most ", facts.max_open_files, " files may be open"),
                      concat(needs.num_workers, " workers want ", wanted, " (ulimit -Hn)"),
                      NodeVerdict::kUsersFault});
}

void check_gpus(const NodeNeeds& needs, const NodeFacts& facts, Problems& problems) {
  if (facts.num_gpus >= needs.num_gpus) return;
  problems.push_back({"gpus", concat("the NVIDIA driver lists ", facts.num_gpus, " GPUs"),
                      concat("there were ", needs.num_gpus, " when this node began")});
}

}  // namespace

std::vector<NodeProblem> check_node(const NodeNeeds& needs, const NodeFacts& facts) {
  Problems problems;
  check_program(facts, problems);
  for (const DirectoryFacts& directory : facts.directories) {
    check_directory("directory", directory, "make room, or set TMPDIR to another one",
                    verdict_on(directory), problems);
  }
  // Workers of one node usually meet there; a single one does not.
  if (needs.num_workers > 1) {
    check_directory("shared_memory", facts.shared_memory,
                    "remove what is left there (ls /dev/shm); in a container: --shm-size",
                    NodeVerdict::kSaid, problems);
  }
  check_open_files(needs, facts, problems);
  check_gpus(needs, facts, problems);
  return problems;
}

std::string to_text(const NodeProblem& problem) {
  return concat(problem.check, ": ", problem.seen, "; ", problem.wanted);
}

std::string to_text(const std::vector<NodeProblem>& problems) {
  std::string text;
  for (const NodeProblem& problem : problems) {
    text += (text.empty() ? "" : " — ") + to_text(problem);
  }
  return text;
}

}  // namespace ddprun::agent
