// SPDX-License-Identifier: Apache-2.0
#include "common/quiet_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "common/error.h"
#include "common/text.h"

namespace ddprun {
namespace {

class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

std::thread start_quiet_thread(const char* name, std::function<void()> body) {
  const AllSignalsBlocked inherited;
  try {
    std::thread thread(std::move(body));
    ::pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kResourceExhausted,
                concat("can't start the thread ", name, ": ", error.what(),
                       "; look at ulimit -u, the cgroup's pids.max, and memory"));
  }
}

}  // namespace ddprun
