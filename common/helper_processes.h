// SPDX-License-Identifier: Apache-2.0
// Child processes that this program started for itself and reaps itself. Whoever cleans up after
// others' children leaves these alone. One thread at a time.
#pragma once

#include <sys/types.h>

#include <vector>

namespace ddprun {

// One such process, as long as this lives.
class HelperProcess {
 public:
  explicit HelperProcess(pid_t pid);
  ~HelperProcess();
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

bool is_helper_process(pid_t pid);

// All of them, the oldest first.
const std::vector<pid_t>& helper_processes();

}  // namespace ddprun
