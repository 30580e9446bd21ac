// SPDX-License-Identifier: Apache-2.0
// The thread that watches one communicator: deadlines, NCCL's asynchronous errors, ranks that gave
// up, a peer that the agent calls lost, abort() from any thread. It alone ends the communicator.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"
#include "worker_sdk/core/nccl/operation.h"
#include "worker_sdk/core/nccl/peer_board.h"

namespace ddprun::nccl {

class Watchdog {
 public:
  // `failure` is shared with every Work, `gate` with the communicator's launching thread.
  Watchdog(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaApi> cuda, NcclOptions options,
           std::shared_ptr<CommGate> gate, std::shared_ptr<Failure> failure);
  // Ends the communicator: destroys it if it is healthy, else aborts it. Returns within
  // abort_timeout + destroy_timeout; after a failure within abort_timeout of that moment, even if
  // NCCL, the store or the file system hangs.
  ~Watchdog() { stop(); }

  // Starts to watch the operation's deadline. Operations complete in the order of these calls.
  void watch(std::shared_ptr<Operation> operation);

  // Says that NCCL has operations in CUDA graphs. Replays have no deadline, so other ranks' notices
  // are checked all the time. An abort that waits for a graph doesn't count as hung.
  void note_graphs() { has_graphs_ = true; }
  bool has_graphs() const { return has_graphs_; }

  // Makes the thread check now, because something failed. Any thread, never blocks.
  void wake();

  // Call it after stop(). False: a call of NCCL hung at the end, so stream and events must be left
  // alone.
  bool ended_well() const { return ended_well_; }

  // Stops the thread as the destructor does.
  void stop();

 private:
  void run();
  void look();  // one round of checks; sets failure_ if something is wrong
  void check_async_error();
  void check_agent(const Operation* oldest);  // null: none is under way
  void check_peers(const Operation* oldest);
  Error timed_out(const Operation& oldest, Deadline latest);
  void tell_peers();     // tells why this rank ended
  void tell_recorder();  // the same; takes at most half of the time left
  // Waits for the operations under way of a healthy communicator, abort_timeout at most.
  void flush();
  void end();
  // Returns false if a call of NCCL hung.
  bool end_comm();
  // How a failure's time is divided: telling others ends after 5/8 of abort_timeout. The thread
  // inside NCCL has three quarters of the rest to leave it, and the abort has the last quarter.
  std::chrono::milliseconds for_abort() const { return options_.abort_timeout / 4; }
  std::chrono::milliseconds store_limit() const;  // 2 s, or a quarter of abort_timeout

  // Returns the time of the failure, or now if nothing failed.
  Clock::time_point failed_since() const { return failure_->since().value_or(Clock::now()); }

  Deadline end_of_telling(Clock::time_point since) const {
    return Deadline(since + (options_.abort_timeout - for_abort() - for_abort() / 2));
  }

  Deadline end_of_abort() const;
  std::shared_ptr<Operation> oldest_pending();
  // Returns why the store gave no answer before the deadline; nullopt: it did. A broken connection
  // isn't used again. One that hangs is left behind and made anew a few times. `call` owns all that
  // it uses.
  std::optional<std::string> ask(Deadline deadline, std::function<void(PeerBoard&)> call);

  // Constant after construction.
  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<CudaApi> cuda_;
  const NcclOptions options_;
  const std::shared_ptr<CommGate> gate_;
  const std::shared_ptr<Failure> failure_;
  const std::chrono::microseconds busy_interval_;  // while operations are under way

  // Used by the watchdog thread only.
  struct Talk;
  std::shared_ptr<Talk> talk_;  // with the store; null: it is gone. Shared with a call under way
  int num_left_behind_ = 0;
  // The ranks missing at the deadline, and the oldest operation at the end.
  std::vector<int> missing_;
  std::shared_ptr<Operation> last_oldest_;
  Clock::time_point next_peer_check_{};
  bool agent_told_ = false;  // the agent told this rank why it failed, as it tells every other rank
  bool ended_well_ = true;   // read by others after the thread has ended

  std::atomic<bool> has_graphs_{false};

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Operation>> pending_;  // Guarded by mutex_, oldest first
  bool woken_ = false;                              // Guarded by mutex_
  bool stopping_ = false;                           // Guarded by mutex_

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ddprun::nccl
