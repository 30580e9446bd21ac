// SPDX-License-Identifier: Apache-2.0
// How much CPU time a worker used and how many bytes it read and wrote, for a look every 100 ms.
// Its files in /proc stay open. So a look is two reads, and can't meet another process of the same
// number. io thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/hang/rank_sample.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

class ProcessSampler {
 public:
  explicit ProcessSampler(pid_t pid);

  // nullopt: the process has ended, or its files can't be opened (no descriptors: the next look
  // tries again). `with_family`: also what it started, as far as that runs now;
  // what the family did before it was first looked at doesn't count.
  std::optional<ProcessFacts> look(bool with_family);

  // The next look at the family is a first one again: what it does until then doesn't count.
  void forget_family();
  bool knows_family() const { return family_known_; }

  pid_t pid() const { return pid_; }
  // It and what it started, at the last look at its family.
  std::vector<pid_t> family() const;

 private:
  struct Member {
    pid_t parent = 0;
    std::uint64_t cpu_ticks = 0;
    std::uint64_t bytes = 0;
  };
  void open_files();
  void look_at_family(std::uint64_t own_bytes);

  const pid_t pid_;
  UniqueFd stat_;  // invalid: could not be opened yet
  UniqueFd io_;    // likewise, or the kernel doesn't allow it
  // Descendants by pid and start time.
  std::map<std::pair<pid_t, std::uint64_t>, Member> family_;
  bool family_known_ = false;
  Member family_used_;           // since it was known
  std::uint64_t own_bytes_ = 0;  // of the worker itself, at the last look at its family
};

// The descendants of `pid`, at most `limit`; empty where the kernel has no list of children.
std::vector<pid_t> descendants(pid_t pid, std::size_t limit);

// The system call and the kernel function in which a process's main thread waits, and the file
// behind the call's descriptor. Works for a process in state D, too.
struct WaitingPlace {
  std::string call;   // "read() of /data/part-07", "futex()"; empty: it runs, or isn't known
  std::string wchan;  // "pipe_read"; empty: it runs, or the kernel doesn't say
  // A look at its stack interrupted the call, and the kernel has forgotten which one goes on.
  bool resumed = false;
};

WaitingPlace waiting_place(pid_t pid);

// The process to look at for a worker: itself, or where it only waits for one child (a shell's
// program), that child's …
pid_t process_at_work(pid_t worker);

// A line of /proc/PID/syscall: "0 0x3 0x7f…" (number and arguments), "running", "-1 0x… 0x…".
std::string describe_call(std::string_view line, pid_t pid);

}  // namespace ddprun::agent
