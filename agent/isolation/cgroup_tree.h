// SPDX-License-Identifier: Apache-2.0
// The kernel's files about cgroups and devices.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::agent {

// `root` stands before each path: a test's directory. Tests play some of the kernel's answers.
class CgroupTree {
 public:
  explicit CgroupTree(std::string root = "");
  virtual ~CgroupTree() = default;

  // nullopt: it can't be read, *error_number (if given) says why.
  virtual std::optional<std::string> read(const std::string& path,
                                          int* error_number = nullptr) const;
  // Each returns 0 or an errno value. The file must be there.
  virtual int write(const std::string& path, const std::string& text);
  virtual int make(const std::string& directory);
  virtual int remove(const std::string& directory);
  // Whether it could be written.
  virtual int may_write(const std::string& path) const;
  // Names of the directories in it.
  std::vector<std::string> children(const std::string& directory) const;
  // Opens a directory or a file for reading. No descriptor: see errno.
  virtual UniqueFd open(const std::string& path) const;
  // systemd marks what it has given away: Delegate=yes.
  virtual bool is_marked_delegated(const std::string& directory) const;
  // "8:0" of a block device, or of the one below a file system; empty: there is none.
  virtual std::string device_number(const std::string& path) const;

 private:
  const std::string root_;
};

// The leaf for ddprun itself: a cgroup with processes can't give controllers to those below it.
inline constexpr char kSupervisor[] = "ddprun-supervisor";

// The place where cgroups for workers can be made: inside the one that ddprun was given, and
// nowhere else (docs/isolation.md).
struct CgroupPlace {
  std::string directory;  // that the workers' cgroups are made in; empty: `problem` says why
  std::string problem;    // one line
  std::vector<std::string> controllers;  // that it has: those that can be given on
  std::vector<std::string> enabled;      // that it gives on already
  bool needs_supervisor = false;         // ddprun is in it, and has to leave it first
  std::string crowd;  // who else is in it, so that no controller can be given on; empty: nobody
};

// Finds the place for process `own` of user `user`. Changes nothing.
CgroupPlace find_cgroup_place(const CgroupTree& tree, pid_t own, uid_t user);

// The words of a line of a kernel's file.
std::vector<std::string> words_of(const std::string& text);

// The processes in the cgroup and in all below it. Ended ones aren't among them.
std::vector<pid_t> processes_in(const CgroupTree& tree, const std::string& directory);

// The processes in the cgroup itself.
std::vector<pid_t> processes_directly_in(const CgroupTree& tree, const std::string& directory);

// Descendants of a process, ended ones left out.
std::vector<pid_t> processes_below(const CgroupTree& tree, pid_t ancestor);

// "pid 4711 (python3 train.py), state D in nfs_wait_bit_killable; pid …", at most five of them and
// how many more; empty: there is none.
std::string to_text(const CgroupTree& tree, const std::vector<pid_t>& pids);

}  // namespace ddprun::agent
