// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/remaining_processes.h"

#include <algorithm>
#include <cstdlib>

#include "agent/isolation/cgroup_place.h"
#include "common/log.h"
#include "common/process_stat.h"

namespace ddprun::agent {
namespace {

constexpr int kDeepest = 32;
constexpr std::size_t kMostShown = 5, kMostCommandBytes = 80;

void collect(const CgroupTree& tree, const std::string& directory, int depth,
             std::vector<pid_t>& pids) {
  for (const std::string& word : words_of(tree.read(directory + "/cgroup.procs").value_or(""))) {
    pids.push_back(static_cast<pid_t>(std::atol(word.c_str())));
  }
  if (depth == kDeepest) return;
  for (const std::string& name : tree.children(directory)) {
    collect(tree, directory + "/" + name, depth + 1, pids);
  }
}

bool read_stat(const CgroupTree& tree, pid_t pid, ProcessStat* stat) {
  const auto text = tree.read(concat("/proc/", pid, "/stat"));
  return text && parse_process_stat(text->c_str(), stat);
}

// As typed, cut; of a kernel's or an ended one its name.
std::string command_of(const CgroupTree& tree, pid_t pid) {
  std::string text = tree.read(concat("/proc/", pid, "/cmdline")).value_or("");
  while (text.ends_with('\0')) text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  if (text.empty()) text = tree.read(concat("/proc/", pid, "/comm")).value_or("?");
  while (text.ends_with('\n')) text.pop_back();
  if (text.size() > kMostCommandBytes) text = text.substr(0, kMostCommandBytes) + "…";
  return one_line(text);
}

std::string process_text(const CgroupTree& tree, pid_t pid) {
  ProcessStat stat;
  read_stat(tree, pid, &stat);
  std::string text = concat("pid ", pid, " (", command_of(tree, pid), "), state ", stat.state);
  const std::string place = tree.read(concat("/proc/", pid, "/wchan")).value_or("");
  if (!place.empty() && place != "0") text += " in " + one_line(place);
  return text;
}

}  // namespace

std::vector<pid_t> processes_in(const CgroupTree& tree, const std::string& directory) {
  std::vector<pid_t> pids;
  collect(tree, directory, 0, pids);
  return pids;
}

std::vector<pid_t> processes_directly_in(const CgroupTree& tree, const std::string& directory) {
  std::vector<pid_t> pids;
  collect(tree, directory, kDeepest, pids);
  return pids;
}

std::vector<pid_t> processes_below(const CgroupTree& tree, pid_t ancestor) {
  std::vector<pid_t> found, unseen = {ancestor};
  while (!unseen.empty()) {
    const std::string tasks = concat("/proc/", unseen.back(), "/task");
    unseen.pop_back();
    for (const std::string& task : tree.children(tasks)) {
      for (const auto& word : words_of(tree.read(tasks + "/" + task + "/children").value_or(""))) {
        const auto pid = static_cast<pid_t>(std::atol(word.c_str()));
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
