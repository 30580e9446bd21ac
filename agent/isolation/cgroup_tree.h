// SPDX-License-Identifier: Apache-2.0
// The kernel's files about cgroups and devices.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::agent {

// `root` stands before each path; a test gives its directory. Tests override some of the kernel's
// answers.
class CgroupTree {
 public:
  explicit CgroupTree(std::string root = "");
  virtual ~CgroupTree() = default;

  // nullopt: it can't be read; *error_number (if given) says why.
  virtual std::optional<std::string> read(const std::string& path,
                                          int* error_number = nullptr) const;
  // Each returns 0 or an errno value. The file must be there.
  virtual int write(const std::string& path, const std::string& text);
  virtual int make(const std::string& directory);
  virtual int remove(const std::string& directory);
  // Tests whether it could be written: 0 or an errno value.
  virtual int may_write(const std::string& path) const;
  // Returns the names of the directories in it.
  std::vector<std::string> children(const std::string& directory) const;
  // Opens a directory or a file for reading. If it returns no descriptor, errno says why.
  virtual UniqueFd open(const std::string& path) const;
  // Whether systemd has marked it as delegated: Delegate=yes.
  virtual bool is_marked_delegated(const std::string& directory) const;
  // Returns "8:0" for a block device, or for the one below a file system; empty: there is none.
  virtual std::string device_number(const std::string& path) const;

 private:
  const std::string root_;
};

// The name of the leaf for ddprun itself: a cgroup with processes can't enable controllers for its
// children.
inline constexpr char kSupervisor[] = "ddprun-supervisor";

// The place where cgroups for workers can be made: only inside the cgroup that ddprun was given
// (docs/isolation.md).
struct CgroupPlace {
  std::string directory;  // the workers' cgroups are made in it; empty: `problem` says why not
  std::string problem;    // one line
  std::vector<std::string> controllers;  // controllers that it has and can enable for its children
  std::vector<std::string> enabled;      // controllers that it has enabled already
  bool needs_supervisor = false;         // ddprun is in it, and has to leave it first
  std::string crowd;  // other processes in it, so no controller can be enabled; empty: none
};

// Finds the place for process `own` of user `user`. Changes nothing.
CgroupPlace find_cgroup_place(const CgroupTree& tree, pid_t own, uid_t user);

// Returns the words of a line of a kernel's file.
std::vector<std::string> words_of(std::string_view text);

// Returns the processes in the cgroup and in all below it, without ended ones.
std::vector<pid_t> processes_in(const CgroupTree& tree, const std::string& directory);

// Returns the processes in the cgroup itself.
std::vector<pid_t> processes_directly_in(const CgroupTree& tree, const std::string& directory);

// Returns the descendants of a process, without ended ones.
std::vector<pid_t> processes_below(const CgroupTree& tree, pid_t ancestor);

// Returns "pid 4711 (python3 train.py), state D in nfs_wait_bit_killable; pid …": at most five of
// them and how many more. Empty: there is none.
std::string to_text(const CgroupTree& tree, const std::vector<pid_t>& pids);

}  // namespace ddprun::agent
