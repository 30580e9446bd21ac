// SPDX-License-Identifier: Apache-2.0
// What the ranks tell each other before each forward while their inputs are uneven, and what
// follows from it. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <span>

namespace ddprun {

enum class JoinCall : std::uint8_t {
  kShadow,    // out of inputs, and has shadowed a forward since
  kRanOut,    // out of inputs, since its last forward
  kLocal,     // a forward whose backward isn't averaged: no_sync, or without gradients
  kAveraged,  // a forward whose backward is
};

struct JoinRound {
  int num_active = 0;  // ranks that go forward; 0: all have run out
  // Whose buffers, or whose model, all take: the highest rank of those that go forward, or, where
  // none does, of those that were the last to.
  int source_rank = 0;
  bool averages = false;  // the coming backward does
  int first_out = -1;     // the lowest rank that is out of inputs; −1: none
};

// `calls` by rank. Throws Error(kInvalidArgument), the same on every rank, where some of those that
// go forward average and some don't.
JoinRound judge(std::span<const std::uint8_t> calls);

}  // namespace ddprun
