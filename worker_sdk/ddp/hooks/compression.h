// SPDX-License-Identifier: Apache-2.0
// The hooks that come with ddprun, by the names that `--compress` takes. docs/compression.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "worker_sdk/ddp/comm_hook.h"

namespace ddprun {

struct Compression {
  enum class Kind { kNone, kFloat16, kBFloat16, kInt8, kTopK, kPowerSgd };
  Kind kind = Kind::kNone;
  double ratio = 0.02;                 // kTopK: the part of the gradients that travels
  int rank = 4;                        // kPowerSgd
  std::uint64_t start_iteration = 24;  // kTopK, kPowerSgd: no compression before it

  bool operator==(const Compression&) const = default;
};

inline constexpr const char* kCompressionForms =
    "none, fp16, bf16, int8, topk[:RATIO[:START]] or powersgd[:RANK[:START]]";

// Parses one of kCompressionForms, with 0 < RATIO ≤ 1, RANK from 1 on, START from 0 on. Throws
// Error(kInvalidArgument), which lists what is possible.
Compression parse_compression(std::string_view text);

// Returns a text with all options; parse_compression() reads it back as the same.
std::string to_string(const Compression& compression);

// Returns a hook for the gradients of one model; null for kNone.
std::shared_ptr<CommHook> make_comm_hook(const Compression& compression);

}  // namespace ddprun
