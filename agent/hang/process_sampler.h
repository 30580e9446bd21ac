// SPDX-License-Identifier: Apache-2.0
// Measures how much CPU time a worker used and how many bytes it read and wrote, every 100 ms. Its
// files in /proc stay open. So a look is two reads, and never sees another process of the same
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

  // nullopt: the process has ended, or its files can't be opened (without descriptors the next look
  // tries again). `with_family`: the result includes the processes that it started and that run
  // now. Their use before the first look at them doesn't count.
  std::optional<ProcessFacts> look(bool with_family);

  // Makes the next look at the family a first one again: its use until then doesn't count.
  void forget_family();
  bool knows_family() const { return family_known_; }

  pid_t pid() const { return pid_; }
  // Returns the process and those that it started, as of the last look at its family.
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
  UniqueFd io_;    // the same, or the kernel doesn't allow it
  // Descendants by pid and start time.
  std::map<std::pair<pid_t, std::uint64_t>, Member> family_;
  bool family_known_ = false;
  Member family_used_;           // since the family was known
  std::uint64_t own_bytes_ = 0;  // of the worker itself, at the last look at its family
};

// Returns the descendants of `pid`, at most `limit`; empty where the kernel has no list of
// children.
std::vector<pid_t> descendants(pid_t pid, std::size_t limit);

// The system call and the kernel function in which a process's main thread waits, and the file
// behind the call's descriptor. Works for a process in state D, too.
struct WaitingPlace {
  // "read() of /data/part-07", "read() of stdin (/dev/pts/3)", "futex()"; empty: it runs, or isn't
  // known
  std::string call;
  std::string wchan;  // "pipe_read"; empty: it runs, or the kernel doesn't say
  // A look at its stack interrupted the call, and the kernel doesn't know any more which call goes
  // on.
  bool resumed = false;
};

WaitingPlace waiting_place(pid_t pid);

// Returns the process to look at for a worker. If a process only waits for one child (a shell's
// program), that child is looked at instead.
pid_t process_at_work(pid_t worker);

// Describes a line of /proc/PID/syscall: "0 0x3 0x7f…" (number and arguments), "running", "-1 0x…
// 0x…".
std::string describe_call(std::string_view line, pid_t pid);

}  // namespace ddprun::agent
