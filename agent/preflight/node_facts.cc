// SPDX-License-Identifier: Apache-2.0
#include "agent/preflight/node_facts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string_view>

#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr char kSharedMemory[] = "/dev/shm";
constexpr char kBlanks[] = " \t";

// errno, where the regular file can't be used so (X_OK, R_OK).
int file_error(const std::string& path, int mode) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  return ::access(path.c_str(), mode) == 0 ? 0 : errno;
}

// What the first line names behind "#!"; empty: nothing.
std::string interpreter_of(const std::string& path) {
  std::array<char, 256> start;  // as much as the kernel reads
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

}  // namespace

int num_listed_gpus() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/driver/nvidia/gpus"),
                                                   [](DIR* d) { return d ? ::closedir(d) : 0; });
  int count = 0;
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    if (entry->d_name[0] != '.') ++count;
  }
  return count;
}

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

}  // namespace ddprun::agent
