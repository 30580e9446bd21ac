// SPDX-License-Identifier: Apache-2.0
// This node's cgroups for workers, for as long as a ddprun lives. ddprun goes into a leaf of its
// own and gives controllers on. Each round gets a cgroup. At the end all is as it was.
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

// The cgroup of one round's workers on this node: a leaf for each, with its limits, which were read
// back. docs/isolation.md has the layout.

// The kernel's counts of a worker's memory in its own cgroup.
struct WorkerMemory {
  std::string events_file;         // where the counts are from
  std::uint64_t num_at_limit = 0;  // memory.events: oom. Its own limit left no room
  std::uint64_t num_killed = 0;    // likewise: oom_kill, by whichever limit
  // memory.events: oom_group_kill, Linux 5.17. How often a cgroup was killed whole; then a process
  // may count twice above.
  std::uint64_t num_ended_whole = 0;
  std::optional<std::uint64_t> peak_bytes = {};   // Linux 5.19
  std::optional<std::uint64_t> limit_bytes = {};  // nullopt: none of its own
};

// From the texts of memory.events, memory.peak and memory.max (empty: not there).
WorkerMemory parse_worker_memory(const std::string& events, const std::string& peak,
                                 const std::string& max);

// "ran out: …" if SIGKILL ended it and the kernel's OOM killer was at work in its cgroup. "perhaps
// ran out: …" if it ended otherwise. Empty: the kernel killed nothing.
std::string explain_end(const WorkerMemory& memory, int signal_number);

class RoundCgroup {
 public:
  // Makes all that is in `directory`; `lock` is make_locked_cgroup()'s. Throws Error that names the
  // file, what was wanted and what was seen; nothing is left then.
  RoundCgroup(std::shared_ptr<CgroupTree> tree, std::string directory, UniqueFd lock,
              const IsolationPlan& plan);
  ~RoundCgroup();  // as remove()

  const std::string& directory() const { return directory_; }
  std::string name() const { return directory_.substr(directory_.rfind('/') + 1); }
  // Locked (flock) as long as it, or a copy of it in the warden, is open: nobody takes it for what
  // a crash left.
  int fd() const { return fd_.get(); }
  int worker_fd(int local_rank) const;  // for clone3's CLONE_INTO_CGROUP

  // SIGKILL to everything in it.
  void kill();
  // No process is in it that hasn't ended; or it isn't there any more.
  bool is_empty() const;
  // With what workers have made in it. False: it isn't empty.
  bool remove();

  bool counts_memory() const { return counts_memory_; }
  WorkerMemory memory_of(int local_rank) const;
  // How often it was refused a process or a thread for its limit.
  std::uint64_t pids_refused(int local_rank) const;

  const CgroupTree& tree() const { return *tree_; }

 private:
  std::string leaf(int local_rank) const;
  void fill(const IsolationPlan& plan);
  void set(const std::string& directory, const CgroupSetting& setting);

  const std::shared_ptr<CgroupTree> tree_;  // second owners: all that look at it
  const std::string directory_;
  bool counts_memory_ = false;
  UniqueFd fd_;
  std::vector<UniqueFd> leaves_;  // by local rank
};

// Makes the cgroup and locks it. Empty: until then another ddprun has taken it for what a crash
// left, and removes it; another name may do. Throws Error.
UniqueFd make_locked_cgroup(CgroupTree& tree, const std::string& directory);

// No process is in it or below it, not even one that is ending and so can't be moved out. A cgroup
// that isn't there is empty, too.
bool is_empty_cgroup(const CgroupTree& tree, const std::string& directory);

// Removes a cgroup with all below it. False: not all of them are empty.
bool remove_cgroups(CgroupTree& tree, const std::string& directory);

// Waits until a round's cgroup has no process any more: the kernel says so by a change of its
// cgroup.events (inotify). io thread only.
class EmptyWait : public std::enable_shared_from_this<EmptyWait> {
 public:
  // `done` is called once, from the io context: whether it became empty before `deadline`.
  static std::shared_ptr<EmptyWait> start(boost::asio::io_context& io,
                                          std::shared_ptr<const RoundCgroup> cgroup,
                                          Deadline deadline, std::function<void(bool)> done);
  // No call of `done` any more.
  void abandon();

 private:
  EmptyWait(boost::asio::io_context& io, std::shared_ptr<const RoundCgroup> cgroup,
            Deadline deadline, std::function<void(bool)> done);
  void watch();
  void wait_for_change();
  void look();
  void end(bool is_empty);

  const std::shared_ptr<const RoundCgroup> cgroup_;  // second owner: the group of workers
  const Deadline deadline_;
  boost::asio::posix::stream_descriptor changes_;
  boost::asio::steady_timer timer_;
  std::function<void(bool)> done_;  // empty: over
};

class WorkerCgroups {
 public:
  // Moves process `own` if that is needed. Ends what rounds of a ddprun that is gone have left
  // here, within a second. Throws Error that names the file; nothing is changed then.
  // `plan.makes_cgroups`.
  WorkerCgroups(std::shared_ptr<CgroupTree> tree, IsolationPlan plan, pid_t own);
  WorkerCgroups(const WorkerCgroups&) = delete;
  WorkerCgroups& operator=(const WorkerCgroups&) = delete;

  // Throws as RoundCgroup. The one of the round before may be there still.
  std::shared_ptr<RoundCgroup> begin_round();

  // Back to where ddprun was when this moved it, unless others have come to depend on what was made
  // here. No round's cgroup is in use any more: what is still in one is killed. Waits a second at
  // most for each cgroup whose processes are ending.
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
  std::vector<std::string> enabled_;  // by this
  int num_rounds_ = 0;
  std::vector<std::string> rounds_;  // directories; most of them are gone
};

// Moves a process into the leaf of `directory` that is for ddprun, and makes that if it isn't
// there. All that the process starts later is in it, and finds the place above by its name. Throws
// Error.
void enter_supervisor(CgroupTree& tree, const std::string& directory, pid_t process);

}  // namespace ddprun::agent
