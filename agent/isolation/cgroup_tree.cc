// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/cgroup_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "agent/warden/process_tree.h"
#include "common/cgroup_limits.h"
#include "common/error.h"
#include "common/fd_text.h"
#include "common/process_stat.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{1} << 20;

constexpr char kAdvice[] =
    "; start ddprun in a cgroup of its own that it may write: a unit with Delegate=yes, or "
    "systemd-run --scope -p Delegate=yes ddprun … (with --user where not root)";

// Returns the cgroup of a systemd unit: the deepest directory with a unit's name.
std::string unit_directory(const std::string& directory) {
  constexpr std::array<std::string_view, 3> kEnds = {".service", ".scope", ".slice"};
  std::string_view rest = directory;
  while (!rest.empty()) {
    if (std::any_of(kEnds.begin(), kEnds.end(), [&](auto end) { return rest.ends_with(end); })) {
      return std::string(rest);
    }
    const std::size_t slash = rest.rfind('/');
    rest = rest.substr(0, slash == std::string_view::npos ? 0 : slash);
  }
  return {};
}

// Returns "4711 (bash)".
std::string short_text(const CgroupTree& tree, const std::string& pid) {
  std::string name = tree.read("/proc/" + pid + "/comm").value_or("");
  while (name.ends_with('\n')) name.pop_back();
  return name.empty() ? pid : concat(pid, " (", one_line(name), ")");
}

std::string others_in(const CgroupTree& tree, const std::string& directory, pid_t own) {
  const auto pids = words_of(tree.read(directory + "/cgroup.procs").value_or(""));
  const auto other = std::find_if(pids.begin(), pids.end(),
                                  [&](const auto& pid) { return pid != std::to_string(own); });
  return other == pids.end() ? "" : short_text(tree, *other);
}

std::string access_problem(const CgroupTree& tree, const std::string& directory, uid_t user) {
  for (const char* file : {"", "/cgroup.procs", "/cgroup.subtree_control"}) {
    if (const int error = tree.may_write(directory + file); error != 0) {
      return concat(directory, file, ": ", errno_text(error), kAdvice);
    }
  }
  // Root may write to any cgroup, so what counts is whether systemd has delegated this one.
  const std::string unit = user == 0 ? unit_directory(directory) : "";
  if (!unit.empty() && !tree.is_marked_delegated(unit)) {
    return concat(unit, " is systemd's, which hasn't given it away", kAdvice);
  }
  return {};
}

constexpr std::size_t kMostShown = 5, kMostCommandBytes = 80;

void add_pids(const CgroupTree& tree, const std::string& file, std::vector<pid_t>& pids) {
  for (const std::string& word : words_of(tree.read(file).value_or(""))) {
    pids.push_back(static_cast<pid_t>(std::atol(word.c_str())));
  }
}

// Collects the processes of all cgroups below, too. The recursion ends where a path becomes too
// long for the kernel.
void collect(const CgroupTree& tree, const std::string& directory, std::vector<pid_t>& pids) {
  add_pids(tree, directory + "/cgroup.procs", pids);
  for (const std::string& name : tree.children(directory)) {
    collect(tree, directory + "/" + name, pids);
  }
}

bool read_stat(const CgroupTree& tree, pid_t pid, ProcessStat* stat) {
  const auto text = tree.read(concat("/proc/", pid, "/stat"));
  return text && parse_process_stat(text->c_str(), stat);
}

// Returns the command line, cut. A kernel thread or an ended process has only its name.
std::string command_of(const CgroupTree& tree, pid_t pid) {
  std::string text = tree.read(concat("/proc/", pid, "/cmdline")).value_or("");
  while (text.ends_with('\0')) text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  if (text.empty()) text = tree.read(concat("/proc/", pid, "/comm")).value_or("?");
  while (text.ends_with('\n')) text.pop_back();
  if (text.size() > kMostCommandBytes) text = text.substr(0, kMostCommandBytes) + "…";
  return one_line(text);
}

// Says which of its cgroups is frozen: in version 1 SIGKILL waits until it is thawed. Empty: none.
std::string frozen_text(const CgroupTree& tree, pid_t pid) {
  const auto text_of = [&](const std::string& path) { return tree.read(path).value_or(""); };
  const auto place = cgroup_place("freezer", text_of(concat("/proc/", pid, "/cgroup")),
                                  text_of("/proc/self/mountinfo"));
  if (!place) return {};
  for (const std::string& directory : place->directories) {
    // Reads the cgroup's own state: a cgroup below it is frozen, too, and can't be thawed alone.
    const char* own = place->is_v2 ? "/cgroup.freeze" : "/freezer.self_freezing";
    if (!text_of(directory + own).starts_with('1')) continue;
    const std::string shown = one_line(directory);
    return concat(
        ", in the frozen cgroup ", shown, " (to thaw it: echo ",
        place->is_v2 ? concat("0 >", shown, own) : concat("THAWED >", shown, "/freezer.state"),
        ")");
  }
  return {};
}

std::string process_text(const CgroupTree& tree, pid_t pid) {
  ProcessStat stat;
  read_stat(tree, pid, &stat);
  std::string text = concat("pid ", pid, " (", command_of(tree, pid), "), state ", stat.state);
  const std::string place = tree.read(concat("/proc/", pid, "/wchan")).value_or("");
  if (!place.empty() && place != "0") text += " in " + one_line(place);
  return text + frozen_text(tree, pid);
}

}  // namespace

CgroupTree::CgroupTree(std::string root) : root_(std::move(root)) {}

std::optional<std::string> CgroupTree::read(const std::string& path, int* error_number) const {
  const UniqueFd file(::open((root_ + path).c_str(), O_RDONLY | O_CLOEXEC));
  ReadText read = file ? read_text(file.get(), kMostFileBytes) : ReadText{{}, errno};
  if (error_number != nullptr) *error_number = read.error;
  return read.error == 0 ? std::optional(std::move(read.text)) : std::nullopt;
}

int CgroupTree::write(const std::string& path, const std::string& text) {
  const UniqueFd file(::open((root_ + path).c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (!file) return errno;
  ssize_t size;
  do {
    size = ::write(file.get(), text.data(), text.size());
  } while (size < 0 && errno == EINTR);
  if (size < 0) return errno;
  return static_cast<std::size_t>(size) == text.size() ? 0 : EIO;
}

int CgroupTree::make(const std::string& directory) {
  return ::mkdir((root_ + directory).c_str(), 0755) == 0 ? 0 : errno;
}

int CgroupTree::remove(const std::string& directory) {
  return ::rmdir((root_ + directory).c_str()) == 0 ? 0 : errno;
}

int CgroupTree::may_write(const std::string& path) const {
  return ::faccessat(AT_FDCWD, (root_ + path).c_str(), W_OK, AT_EACCESS) == 0 ? 0 : errno;
}

std::vector<std::string> CgroupTree::children(const std::string& directory) const {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir((root_ + directory).c_str()),
                                                    &::closedir);
  while (entries) {
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..") names.push_back(name);
  }
  return names;
}

UniqueFd CgroupTree::open(const std::string& path) const {
  return UniqueFd(::open((root_ + path).c_str(), O_RDONLY | O_CLOEXEC));
}

// Reads both attributes: the caller's rights decide which one can be read.
bool CgroupTree::is_marked_delegated(const std::string& directory) const {
  for (const char* name : {"trusted.delegate", "user.delegate"}) {
    char value = 0;
    const ssize_t size = ::getxattr((root_ + directory).c_str(), name, &value, 1);
    if (size == 1 && value == '1') return true;
  }
  return false;
}

std::string CgroupTree::device_number(const std::string& path) const {
  struct stat info {};
  if (::stat((root_ + path).c_str(), &info) != 0) return {};
  const dev_t device = S_ISBLK(info.st_mode) ? info.st_rdev : info.st_dev;
  if (major(device) == 0) return {};  // a file system without a block device: tmpfs, NFS, overlay
  return concat(major(device), ":", minor(device));
}

std::vector<std::string> words_of(std::string_view text) { return filled_parts(text, " \t\r\n"); }

CgroupPlace find_cgroup_place(const CgroupTree& tree, pid_t own, uid_t user) {
  CgroupPlace place;
  const auto cgroup = tree.read("/proc/self/cgroup"), mounts = tree.read("/proc/self/mountinfo");
  std::array<char, 4096> path;
  if (!cgroup || !mounts ||
      !warden::own_cgroup_directory(cgroup->c_str(), mounts->c_str(), path.data(), path.size())) {
    place.problem = "no cgroup v2 is mounted here that this process is in";
    return place;
  }
  std::string directory = path.data();
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  const bool is_supervised = directory.ends_with(std::string("/") + kSupervisor);
  if (is_supervised) directory.resize(directory.rfind('/'));

  const auto type = words_of(tree.read(directory + "/cgroup.type").value_or(""));
  // Only the root cgroup has no such file.
  const bool is_top = !tree.read(directory + "/cgroup.events");
  if (!type.empty() && type.front() != "domain") {
    place.problem = directory + " is for threads (cgroup.type), not for processes";
  } else if (is_top && tree.may_write("/run/systemd/system") != ENOENT) {
    place.problem = concat(directory, " is the machine's own, which is systemd's", kAdvice);
  } else {
    place.problem = access_problem(tree, directory, user);
  }
  if (!place.problem.empty()) return place;
  place.directory = directory;
  place.controllers = words_of(tree.read(directory + "/cgroup.controllers").value_or(""));
  place.enabled = words_of(tree.read(directory + "/cgroup.subtree_control").value_or(""));
  if (is_top) return place;  // the root cgroup may have processes beside its children
  place.needs_supervisor = !is_supervised;
  place.crowd = others_in(tree, directory, own);
  return place;
}

std::vector<pid_t> processes_in(const CgroupTree& tree, const std::string& directory) {
  std::vector<pid_t> pids;
  collect(tree, directory, pids);
  return pids;
}

std::vector<pid_t> processes_directly_in(const CgroupTree& tree, const std::string& directory) {
  std::vector<pid_t> pids;
  add_pids(tree, directory + "/cgroup.procs", pids);
  return pids;
}

std::vector<pid_t> processes_below(const CgroupTree& tree, pid_t ancestor) {
  std::vector<pid_t> found, unseen = {ancestor};
  while (!unseen.empty()) {
    const std::string tasks = concat("/proc/", unseen.back(), "/task");
    unseen.pop_back();
    for (const std::string& task : tree.children(tasks)) {
      std::vector<pid_t> children;
      add_pids(tree, tasks + "/" + task + "/children", children);
      for (const pid_t pid : children) {
        ProcessStat stat;
        if (!read_stat(tree, pid, &stat)) continue;
        if (stat.state != 'Z') found.push_back(pid);
        unseen.push_back(pid);
      }
    }
  }
  return found;
}

std::string to_text(const CgroupTree& tree, const std::vector<pid_t>& pids) {
  std::string text;
  for (std::size_t i = 0; i < std::min(pids.size(), kMostShown); ++i) {
    text += (i == 0 ? "" : "; ") + process_text(tree, pids[i]);
  }
  if (pids.size() > kMostShown) text += concat("; and ", pids.size() - kMostShown, " more");
  return text;
}

}  // namespace ddprun::agent
