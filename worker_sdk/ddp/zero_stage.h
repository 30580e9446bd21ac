// SPDX-License-Identifier: Apache-2.0
// ZeRO's stages: which state data-parallel ranks divide instead of each holding all of it
// (docs/zero.md). See Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
// Parameter Models", SC 2020.
#pragma once

#include <cstdint>

namespace ddprun {

enum class ZeroStage : std::uint8_t {
  kOff = 0,        // every rank has all
  kOptimizer = 1,  // each rank updates 1 / W of the parameters, and has that part of the state
  kGradients = 2,  // as kOptimizer; each rank also keeps only that part of the gradients
};

// "0", "1", "2".
inline const char* to_string(ZeroStage stage) {
  return stage == ZeroStage::kOff ? "0" : stage == ZeroStage::kOptimizer ? "1" : "2";
}

}  // namespace ddprun
