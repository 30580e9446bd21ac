// SPDX-License-Identifier: Apache-2.0
#include "agent/preflight/node_checks.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "common/error.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr char kSharedMemory[] = "/dev/shm";
constexpr char kBlanks[] = " \t";

// Returns errno if it is no regular file that can be used so (X_OK, R_OK); 0: it is.
int file_error(const std::string& path, int mode) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  return ::access(path.c_str(), mode) == 0 ? 0 : errno;
}

// Returns the interpreter in the first line after "#!"; empty: there is none.
std::string interpreter_of(const std::string& path) {
  std::array<char, 256> start;  // the kernel reads no more
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const ssize_t size = fd ? ::read(fd.get(), start.data(), start.size()) : -1;
  if (size < 2 || start[0] != '#' || start[1] != '!') return {};
  std::string_view line(start.data() + 2, static_cast<std::size_t>(size) - 2);
  line = line.substr(0, line.find('\n'));
  const std::size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  line.remove_prefix(begin);
  return std::string(line.substr(0, line.find_first_of(kBlanks)));
}

FileFacts program_facts(const std::string& path) {
  FileFacts facts;
  facts.path = path;
  facts.error = file_error(path, X_OK);
  if (facts.error == 0) facts.interpreter = interpreter_of(path);
  if (!facts.interpreter.empty()) facts.interpreter_error = file_error(facts.interpreter, X_OK);
  return facts;
}

FileFacts script_facts(const std::string& path) {
  FileFacts facts;
  facts.path = path;
  if (!path.empty()) facts.error = file_error(path, R_OK);
  return facts;
}

DirectoryFacts directory_facts(const std::string& path) {
  DirectoryFacts facts;
  facts.path = path;
  struct statvfs space;
  if (::access(path.c_str(), W_OK | X_OK) != 0 || ::statvfs(path.c_str(), &space) != 0) {
    facts.error = errno;
    return facts;
  }
  facts.free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  facts.free_files = space.f_favail;
  facts.counts_files = space.f_files != 0;
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) facts.error = ENOTDIR;
  return facts;
}

using Problems = std::vector<NodeProblem>;

// The least space for a round's own files (sockets, error files, the beginnings of shared memory).
constexpr std::uint64_t kMinFreeBytes = 1 << 20;
constexpr std::uint64_t kMinFreeFiles = 64;

// The agent's own descriptors, and those that it needs for each worker.
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

// The user gave a wrong name if it isn't there or is no directory. Any other error, such as a full
// disk, is this node's fault.
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
  problems.push_back({"gpus", concat("the NVIDIA driver lists ", counted(facts.num_gpus, "GPU")),
                      concat("there were ", needs.num_gpus, " when this node began")});
}

}  // namespace

int num_listed_gpus() { return static_cast<int>(names_in("/proc/driver/nvidia/gpus").size()); }

NodeFacts gather_node_facts(const NodeNeeds& needs) {
  NodeFacts facts;
  facts.program = program_facts(needs.program);
  facts.script = script_facts(needs.script);
  for (const std::string& path : needs.directories) {
    facts.directories.push_back(directory_facts(path));
  }
  facts.shared_memory = directory_facts(kSharedMemory);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.max_open_files = limit.rlim_cur;
  if (needs.num_gpus > 0) facts.num_gpus = num_listed_gpus();
  return facts;
}

std::vector<NodeProblem> check_node(const NodeNeeds& needs, const NodeFacts& facts) {
  Problems problems;
  check_program(facts, problems);
  for (const DirectoryFacts& directory : facts.directories) {
    // In a container the root may be read-only: many programs need no temporary file.
    if (directory.error == EROFS && needs.uses_memory && facts.shared_memory.error == 0) {
      check_directory("directory", directory, "a program that wants one needs TMPDIR=/dev/shm, say",
                      NodeVerdict::kSaid, problems);
      continue;
    }
    check_directory("directory", directory, "make room, or set TMPDIR to another one",
                    verdict_on(directory), problems);
  }
  // Workers of one node usually communicate over it; a single one does not.
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
  return listed(problems, " — ", [](const NodeProblem& each) { return to_text(each); });
}

}  // namespace ddprun::agent
