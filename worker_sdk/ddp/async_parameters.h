// SPDX-License-Identifier: Apache-2.0
// Parameters that all ranks read and change without waiting for each other: an asynchronous
// parameter server without a server process. Each rank owns an equal part and serves it
// (docs/async.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

struct AsyncOptions {
  std::uint64_t staleness = 4;  // steps that a rank may be ahead of the slowest; 0: all wait
  // How long the slowest rank may take for one step while another one has to wait for it.
  std::chrono::milliseconds timeout{300'000};
};

// One exchange()'s lead and waiting time.
struct ExchangeReport {
  std::uint64_t lead = 0;  // steps that this rank was ahead of the slowest, over all owners
  std::chrono::nanoseconds waited{0};
};

// Used by one thread. A phase is begin(), exchange() after each step, finish(); phases follow each
// other.
//
// Throws Error(kInvalidArgument), without effect, for a span that has not `num_values` values and
// for calls in another order. After other errors only destruction is useful. kTimeout names the
// slowest rank and its step, kPeerLost a rank that is gone. The communicator's errors pass, too.
class AsyncParameters {
 public:
  // Collective. `communicator` is of the host backend (else Error(kUnsupported)); one rank is
  // enough. Two communicators are split off it. `num_values` is the number of float32 values, the
  // same on all ranks.
  AsyncParameters(Communicator& communicator, std::size_t num_values, const AsyncOptions& options);
  // Within a phase it tells the other ranks that this one has given up.
  ~AsyncParameters();

  // Begins a phase. `values` are the same on all ranks. Collective.
  void begin(std::span<const float> values);

  // Says that a step of this rank has changed its values by `update`, and adds update / ranks to
  // the shared values. Returns the shared values in `values`: with everybody's steps but at most
  // the last `staleness` of each. Waits while this rank is too far ahead.
  ExchangeReport exchange(std::span<const float> update, std::span<float> values);

  // Ends this rank's steps of the phase, and returns when every rank has ended its own. `values`
  // are then the same on all, bit for bit. Ranks may have done different numbers of steps.
  void finish(std::span<float> values);

  // Returns the bytes of updates and answers that this rank gave to the network or shared memory.
  std::uint64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
