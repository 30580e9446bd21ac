// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as something to wait for, while spawn() waits for its ranks.
#pragma once

#include <signal.h>

#include "common/unique_fd.h"

namespace ddprun {

// Takes the two signals from the program's own handlers as long as it lives; one that the program
// ignores stays ignored, and SIGCHLD that is ignored gets its default, since the kernel would
// forget how children ended. At most one at a time in a process.
class ParentSignals {
 public:
  ParentSignals();
  // The program's handlers are back.
  ~ParentSignals();
  ParentSignals(const ParentSignals&) = delete;
  ParentSignals& operator=(const ParentSignals&) = delete;

  // Readable when there is a signal to take().
  int fd() const { return read_end_.get(); }

  // The next one that came; 0: none. Never blocks.
  int take();

 private:
  static void note(int signal_number);

  UniqueFd read_end_, write_end_;
  struct sigaction interrupt_ {
  }, terminate_{}, child_{};  // the program's
};

}  // namespace ddprun
