// SPDX-License-Identifier: Apache-2.0
// checkpoint_bench async|sync DIRECTORY: how long save() of 100 MB in 50 tensors holds the training
// thread up. It prints JSON: {"stall_ms": median of 7, "write_ms": until it is on disk}. A save
// before them isn't counted; between them what was saved is written to its end.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/median.h"
#include "common/error.h"
#include "worker_sdk/core/solo_communicator.h"
#include "worker_sdk/torch/checkpoint.h"

using namespace ddprun;

namespace {

constexpr int kNumTensors = 50, kNumSaves = 7;
constexpr std::int64_t kElements = 500'000;  // float32

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[1] : "";
  if (mode != "async" && mode != "sync") {
    std::fprintf(stderr, "checkpoint_bench async|sync DIRECTORY\n");
    return 2;
  }
  try {
    const auto communicator = make_solo_communicator();
    Checkpoint checkpoint({.directory = argv[2], .async = mode == "async"}, *communicator,
                          c10::kCPU);
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < kNumTensors; ++i) {
      tensors.push_back({"tensor." + std::to_string(i), at::rand({kElements})});
    }
    std::vector<double> stalls, writes;
    for (int i = 0; i <= kNumSaves; ++i) {
      const Clock::time_point start = Clock::now();
      checkpoint.save(static_cast<std::uint64_t>(i), {}, tensors);
      const double stall = ms_since(start);
      checkpoint.finish();
      if (i == 0) continue;  // fresh memory
      stalls.push_back(stall);
      writes.push_back(ms_since(start));
    }
    std::printf("{\"stall_ms\": %.3f, \"write_ms\": %.3f}\n", bench::median(stalls),
                bench::median(writes));
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.what());
    return 1;
  }
}
