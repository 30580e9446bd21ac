// SPDX-License-Identifier: Apache-2.0
// The hooks that come with ddprun, by name: what `--compress` says. docs/compression.md.
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
  std::uint64_t start_iteration = 24;  // kTopK, kPowerSgd: averaged as they are until then

  bool operator==(const Compression&) const = default;
};

inline constexpr const char* kCompressionForms =
    "none, fp16, bf16, int8, topk[:RATIO[:START]] or powersgd[:RANK[:START]]";

// One of kCompressionForms, with 0 < RATIO ≤ 1, RANK from 1 on, START from 0 on. Throws
// Error(kInvalidArgument) that says what can be said.
Compression parse_compression(std::string_view text);

// parse_compression() reads it back as the same. It names all options.
std::string to_string(const Compression& compression);

// A hook for the gradients of one model; null for kNone.
std::shared_ptr<CommHook> make_comm_hook(const Compression& compression);

}  // namespace ddprun
