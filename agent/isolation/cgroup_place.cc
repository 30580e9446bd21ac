// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/cgroup_place.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <string_view>

#include "agent/warden/cgroup.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

constexpr char kAdvice[] =
    "; start ddprun in a cgroup of its own that it may write: a unit with Delegate=yes, or "
    "systemd-run --scope -p Delegate=yes ddprun … (with --user where not root)";

// The unit that systemd made a cgroup for: the deepest directory with the name of one.
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

bool ends_in_supervisor(const std::string& directory) {
  return directory.ends_with(std::string("/") + kSupervisor);
}

// "4711 (bash)".
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
  // Who may write everything asks who it belongs to.
  const std::string unit = user == 0 ? unit_directory(directory) : "";
  if (!unit.empty() && !tree.is_marked_delegated(unit)) {
    return concat(unit, " is systemd's, which hasn't given it away", kAdvice);
  }
  return {};
}

}  // namespace

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(std::move(word));
  return words;
}

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
  const bool is_supervised = ends_in_supervisor(directory);
  if (is_supervised) directory.resize(directory.rfind('/'));

  const auto type = words_of(tree.read(directory + "/cgroup.type").value_or(""));
  const bool is_top = !tree.read(directory + "/cgroup.events");  // only the machine's own lacks it
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
  if (is_top) return place;  // the one that may have processes beside those below it
  place.needs_supervisor = !is_supervised;
  place.crowd = others_in(tree, directory, own);
  return place;
}

}  // namespace ddprun::agent
