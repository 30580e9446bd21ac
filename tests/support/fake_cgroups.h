// SPDX-License-Identifier: Apache-2.0
// Fake cgroups (v2) in a directory of the test's own, which answer like the kernel's. A cgroup with
// processes can't enable controllers for its children. A new one has the files of the controllers
// that its parent enabled. One with processes or cgroups in it can't be removed. A process that is
// ending can't be moved, but no error says so.
#pragma once

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "agent/isolation/cgroup_tree.h"
#include "common/text.h"

namespace ddprun::test {

class FakeCgroups : public agent::CgroupTree {
 public:
  static constexpr char kMount[] = "/sys/fs/cgroup";

  // `own`: the cgroup in which /proc/self/cgroup says that this process is.
  FakeCgroups(const std::string& root, const std::string& own)
      : agent::CgroupTree(root), root_(root) {
    put("/proc/self/cgroup", "0::" + own + "\n");
    put("/proc/self/mountinfo",
        "31 23 0:28 / " + std::string(kMount) + " rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }

  // Writes a file of the fake machine.
  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string text(const std::string& path) const { return read(path, nullptr).value_or("none"); }
  bool exists(const std::string& path) const { return std::filesystem::exists(root_ + path); }

  // Adds a cgroup that somebody else has made; `path` begins at the mount. The machine's own cgroup
  // has no cgroup.events.
  void add(const std::string& path, const std::string& controllers, const std::string& pids = "") {
    if (path != kMount) put(path + "/cgroup.events", "populated 0\nfrozen 0\n");
    if (path != kMount) put(path + "/cgroup.type", "domain\n");
    put(path + "/cgroup.controllers", controllers + "\n");
    put(path + "/cgroup.subtree_control", "\n");
    put(path + "/cgroup.procs", pids);
    put(path + "/cgroup.kill", "");
  }

  std::function<void(const std::string& directory)> made;  // make() calls it

  int make(const std::string& directory) override {
    const std::string parent = directory.substr(0, directory.rfind('/'));
    if (const int error = agent::CgroupTree::make(directory); error != 0) return error;
    const std::string given = text(parent + "/cgroup.subtree_control");
    add(directory, given.substr(0, given.find('\n')));
    static const std::map<std::string, std::vector<std::string>> files = {
        {"memory",
         {"memory.max", "memory.swap.max", "memory.oom.group", "memory.events", "memory.peak"}},
        {"pids", {"pids.max", "pids.events"}},
        {"cpuset", {"cpuset.cpus", "cpuset.cpus.effective"}},
        {"io", {"io.max"}}};
    for (const std::string& controller : agent::words_of(given)) {
      for (const std::string& file : files.at(controller)) {
        if (!lacking.contains(file)) put(directory + "/" + file, "");
      }
    }
    if (made) made(directory);
    return 0;
  }

  std::optional<std::string> read(const std::string& path, int* error_number) const override {
    auto said = agent::CgroupTree::read(path, error_number);
    const bool is_events = said && path.ends_with("/cgroup.events");
    if (is_events) said = concat("populated ", is_populated(path), "\nfrozen 0\n");
    if (was_read) was_read(path);
    return said;
  }

  int write(const std::string& path, const std::string& value) override {
    const std::string directory = path.substr(0, path.rfind('/'));
    const std::string name = path.substr(path.rfind('/') + 1);
    if (!exists(path)) return ENOENT;
    if (const auto refused = refusals.find(name); refused != refusals.end()) return refused->second;
    written.push_back(path + " " + value);
    if (name == "cgroup.subtree_control") return give_on(directory, value);
    if (name == "cgroup.procs") return move(directory, value);
    const auto lie = lies.find(name);
    put(path, (lie == lies.end() ? value : lie->second) + "\n");
    if (name == "cpuset.cpus") {
      const auto other = lies.find("cpuset.cpus.effective");
      put(path + ".effective", (other == lies.end() ? value : other->second) + "\n");
    }
    return 0;
  }

  int remove(const std::string& directory) override {
    if (!exists(directory)) return ENOENT;
    if (!agent::words_of(text(directory + "/cgroup.procs")).empty()) return EBUSY;
    if (!children(directory).empty()) return EBUSY;
    std::filesystem::remove_all(root_ + directory);
    return 0;
  }

  UniqueFd open(const std::string& path) const override {
    UniqueFd file = agent::CgroupTree::open(path);
    if (was_opened) was_opened(path);
    return file;
  }

  bool is_marked_delegated(const std::string& directory) const override {
    return std::find(delegated.begin(), delegated.end(), directory) != delegated.end();
  }
  int may_write(const std::string& path) const override {
    if (path == "/run/systemd/system") return exists(path) ? 0 : ENOENT;
    return read_only;
  }
  std::string device_number(const std::string& path) const override {
    const auto found = devices.find(path);
    return found == devices.end() ? "" : found->second;
  }

  std::map<std::string, std::string> lies;     // file name → what it contains after a write
  std::map<std::string, int> refusals;         // file name → errno value with which a write fails
  std::map<std::string, bool> lacking;         // names of files that this kernel doesn't have
  std::vector<std::string> delegated;          // cgroups that systemd marked as delegated
  std::map<std::string, std::string> devices;  // path → "8:0"
  int read_only = 0;                           // errno value with which each write fails; 0: none
  std::vector<std::string> written;            // each write, as "path value"
  std::vector<std::string> ending;             // processes that are ending
  // Called with the path after a read, and after an open, so that a test can change files then.
  std::function<void(const std::string&)> was_read;
  std::function<void(const std::string&)> was_opened;

 private:
  // Returns whether a process is in the cgroup of this file, or in one below it.
  bool is_populated(const std::string& file) const {
    const auto directory = std::filesystem::path(root_ + file).parent_path();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.path().filename() != "cgroup.procs") continue;
      if (std::filesystem::file_size(entry.path()) > 0) return true;
    }
    return false;
  }

  int give_on(const std::string& directory, const std::string& value) {
    const std::string name = value.substr(1);
    auto given = agent::words_of(text(directory + "/cgroup.subtree_control"));
    const auto has = agent::words_of(text(directory + "/cgroup.controllers"));
    if (std::find(has.begin(), has.end(), name) == has.end()) return ENOENT;
    const bool is_top = directory == kMount;
    if (!is_top && !agent::words_of(text(directory + "/cgroup.procs")).empty()) return EBUSY;
    std::erase(given, name);
    if (value.front() == '+') given.push_back(name);
    std::string line;
    for (const std::string& each : given) line += (line.empty() ? "" : " ") + each;
    put(directory + "/cgroup.subtree_control", line + "\n");
    return 0;
  }

  int move(const std::string& directory, const std::string& pid) {
    if (std::find(ending.begin(), ending.end(), pid) != ending.end()) return 0;
    if (!agent::words_of(text(directory + "/cgroup.subtree_control")).empty()) return EBUSY;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_ + kMount)) {
      if (entry.path().filename() != "cgroup.procs") continue;
      const std::string path = entry.path().string().substr(root_.size());
      auto pids = agent::words_of(text(path));
      if (std::erase(pids, pid) == 0) continue;
      std::string rest;
      for (const std::string& each : pids) rest += each + "\n";
      put(path, rest);
    }
    put(directory + "/cgroup.procs", text(directory + "/cgroup.procs") + pid + "\n");
    return 0;
  }

  const std::string root_;
};

}  // namespace ddprun::test
