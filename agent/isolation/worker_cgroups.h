// SPDX-License-Identifier: Apache-2.0
// This node's cgroups for workers, during the life of a ddprun. ddprun moves into a leaf of its own
// and enables controllers for the others. Each round gets a cgroup. At the end all is as before.
// docs/isolation.md.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/isolation/cgroup_tree.h"
#include "agent/isolation/isolation_plan.h"
#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// The cgroup of one round's workers on this node. It has a leaf for each worker, with its limits,
// which are read back. docs/isolation.md has the layout.

// The kernel's counts of a worker's memory in its own cgroup.
struct WorkerMemory {
  std::string events_file;         // the file that the counts come from
  std::uint64_t num_at_limit = 0;  // memory.events: oom. Its own limit was reached
  std::uint64_t num_killed = 0;    // memory.events: oom_kill, by whichever limit
  // memory.events: oom_group_kill, Linux 5.17: how often a cgroup was killed as a whole. Then a
  // process may count twice above.
  std::uint64_t num_ended_whole = 0;
  std::optional<std::uint64_t> peak_bytes = {};   // Linux 5.19
  std::optional<std::uint64_t> limit_bytes = {};  // nullopt: none of its own
};

// Parses the texts of memory.events, memory.peak and memory.max (empty: not there).
WorkerMemory parse_worker_memory(const std::string& events, const std::string& peak,
                                 const std::string& max);

// Explains a worker's end. "ran out: …": SIGKILL ended it and the kernel's OOM killer was at work
// in its cgroup. "perhaps ran out: …": the same, but it ended otherwise. Empty: the kernel killed
// nothing.
std::string explain_end(const WorkerMemory& memory, int signal_number);

class RoundCgroup {
 public:
  // Makes everything in `directory`; `lock` is make_locked_cgroup()'s. Throws Error that names the
  // file, the wanted value and the seen one; nothing is left then.
  RoundCgroup(std::shared_ptr<CgroupTree> tree, std::string directory, UniqueFd lock,
              const IsolationPlan& plan);
  ~RoundCgroup();  // as remove()

  const std::string& directory() const { return directory_; }
  std::string name() const { return directory_.substr(directory_.rfind('/') + 1); }
  // Returns the cgroup's descriptor. As long as it, or its copy in the warden, is open, the cgroup
  // is locked (flock): nobody takes it for a crash's leftover.
  int fd() const { return fd_.get(); }
  int worker_fd(int local_rank) const;  // for clone3's CLONE_INTO_CGROUP

  // Sends SIGKILL to everything in it.
  void kill();
  // Whether all processes in it have ended, or it is gone.
  bool is_empty() const;
  // Removes it, with the cgroups that workers have made in it. False: it isn't empty.
  bool remove();

  bool counts_memory() const { return counts_memory_; }
  WorkerMemory memory_of(int local_rank) const;
  // Returns how often its limit refused the worker a process or a thread.
  std::uint64_t pids_refused(int local_rank) const;

  const CgroupTree& tree() const { return *tree_; }

 private:
  std::string leaf(int local_rank) const;
  void fill(const IsolationPlan& plan);
  void set(const std::string& directory, const CgroupSetting& setting);

  const std::shared_ptr<CgroupTree> tree_;  // shared with all that read it
  const std::string directory_;
  bool counts_memory_ = false;
  UniqueFd fd_;
  std::vector<UniqueFd> leaves_;  // by local rank
};

// Makes the cgroup and locks it. Empty: another ddprun has taken it for a crash's leftover before
// it was locked, and removes it; another name may work. Throws Error.
UniqueFd make_locked_cgroup(CgroupTree& tree, const std::string& directory);

// Whether neither it nor a cgroup below it has a process. One that is ending counts, since it can't
// be moved out. A cgroup that doesn't exist is empty, too.
bool is_empty_cgroup(const CgroupTree& tree, const std::string& directory);

// Removes a cgroup with all below it. False: not all of them are empty.
bool remove_cgroups(CgroupTree& tree, const std::string& directory);

// Waits until a round's cgroup has no process any more. The kernel reports that by a change of its
// cgroup.events (inotify). io thread only.
class EmptyWait : public std::enable_shared_from_this<EmptyWait> {
 public:
  // `done` is called once, from the io context, with whether it became empty before `deadline`.
  static std::shared_ptr<EmptyWait> start(boost::asio::io_context& io,
                                          std::shared_ptr<const RoundCgroup> cgroup,
                                          Deadline deadline, std::function<void(bool)> done);
  // Ends the wait: no call of `done` any more.
  void abandon();

 private:
  EmptyWait(boost::asio::io_context& io, std::shared_ptr<const RoundCgroup> cgroup,
            Deadline deadline, std::function<void(bool)> done);
  void watch();
  void wait_for_change();
  void look();
  void end(bool is_empty);

  const std::shared_ptr<const RoundCgroup> cgroup_;  // shared with the group of workers
  const Deadline deadline_;
  boost::asio::posix::stream_descriptor changes_;
  boost::asio::steady_timer timer_;
  std::function<void(bool)> done_;  // empty: the wait is over
};

class WorkerCgroups {
 public:
  // Moves process `own` if that is needed, and enables controllers. Kills what the rounds of a
  // ddprun that is gone have left here, which takes at most a second for each. Throws Error that
  // names the file; nothing is changed then. `plan.makes_cgroups` is true.
  WorkerCgroups(std::shared_ptr<CgroupTree> tree, IsolationPlan plan, pid_t own);
  WorkerCgroups(const WorkerCgroups&) = delete;
  WorkerCgroups& operator=(const WorkerCgroups&) = delete;

  // Makes a round's cgroup. Throws as RoundCgroup. The cgroup of the round before may still exist.
  std::shared_ptr<RoundCgroup> begin_round();

  // Moves ddprun back to where it was, unless others have come to depend on what was made here. No
  // round's cgroup is in use any more: what is still in one is killed. Waits at most a second for
  // each cgroup whose processes are ending.
  void close();

 private:
  void enable_controllers();
  void end_leftovers();
  bool end_round(const std::string& round);  // false: its processes can't be killed

  const std::shared_ptr<CgroupTree> tree_;
  const IsolationPlan plan_;
  const pid_t own_;
  const std::string supervisor_;
  bool moved_ = false;
  std::vector<std::string> enabled_;  // controllers that this object has enabled
  int num_rounds_ = 0;
  std::vector<std::string> rounds_;  // directories; most of them are gone
};

// Moves a process into ddprun's leaf of `directory`, and makes the leaf if it isn't there. All that
// the process starts later is in it, and recognises the place above by the leaf's name. Throws
// Error.
void enter_supervisor(CgroupTree& tree, const std::string& directory, pid_t process);

}  // namespace ddprun::agent
