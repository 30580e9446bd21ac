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
  std::uint64_t staleness =
      4;  // nobody gets more steps than that ahead of the slowest; 0: all wait
  // How long the slowest rank may take for one step while another one has to wait for it.
  std::chrono::milliseconds timeout{300'000};
};

// One exchange()'s lead and waiting time.
struct ExchangeReport {
  std::uint64_t lead = 0;  // steps that this rank was ahead of the slowest, over all owners
  std::chrono::nanoseconds waited{0};
};

// One thread. A phase: begin(), exchange() after each step, finish(); then the next one.
//
// Error(kInvalidArgument), and nothing has begun: a span that has not `num_values` values, calls in
// another order. Errors after which only destruction is useful: kTimeout names the slowest rank and
// its step; kPeerLost a rank that is gone; the communicator's.
class AsyncParameters {
 public:
  // Collective. `communicator`: of the host backend (else Error(kUnsupported)), with at least one
  // rank; two of its kind are split off it. `num_values`: float32, the same on all ranks.
  AsyncParameters(Communicator& communicator, std::size_t num_values, const AsyncOptions& options);
  // Within a phase the other ranks are told that this one has given up.
  ~AsyncParameters();
  AsyncParameters(const AsyncParameters&) = delete;
  AsyncParameters& operator=(const AsyncParameters&) = delete;

  // `values`: the same on all ranks. Collective.
  void begin(std::span<const float> values);

  // This rank has done a step, by which its values changed by `update`: adds update / ranks to what
  // all have. Returns, in `values`, what all have now: with everybody's steps but the last
  // `staleness` of each. Waits where this rank is too far ahead.
  ExchangeReport exchange(std::span<const float> update, std::span<float> values);

  // This rank does no more steps in this phase. Returns when no rank does: `values` are the same on
  // all, bit for bit. Ranks may have done different numbers of steps.
  void finish(std::span<float> values);

  // The bytes of updates and answers that this rank gave to the network or shared memory.
  std::uint64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
