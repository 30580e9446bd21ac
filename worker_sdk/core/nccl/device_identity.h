// SPDX-License-Identifier: Apache-2.0
// Which GPU a rank would use, what code runs there, and where its job's RAS service listens.
#pragma once

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "common/endpoint.h"
#include "common/env_names.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

// The id of device `local_rank`, equal for all processes that use this GPU (or MIG slice) and only
// for them. Throws Error(kUnsupported) that says why this rank has none. Creates no CUDA context.
std::string device_identity(CudaApi& cuda, int local_rank);

// The GPU that device `local_rank` is a slice of, or all of: equal where NCCL before 2.30.7 says
// "Duplicate GPU". Made of the bus id and what NCCL knows a host by ($NCCL_HOSTID, else host name
// and boot id). Throws Error(kUnsupported). Creates no CUDA context.
std::string gpu_identity(CudaApi& cuda, int local_rank);

// Whether compiled CUDA code runs on a GPU. It is looked at before the first kernel fails with "no
// kernel image is available for execution on the device", which names neither.
//
// `flags`: nvcc's, with which the code was made ("… -gencode arch=compute_90,code=sm_90 …").
// Returns "" if it runs on a GPU of compute capability major.minor, or if the flags don't tell.
// Else returns the capabilities it was made for, "7.5, 8.0, 9.0". Pure.
std::string made_for_others(std::string_view flags, int major, int minor);

// Throws Error(kUnsupported), which names both, where `whose` ("this LibTorch") code does not run
// on the device. Creates no CUDA context.
void check_code(CudaApi& cuda, int device, const std::string& whose, std::string_view flags);

// The address of NCCL's RAS service. Its default, localhost:28028, is one for the whole machine:
// two jobs on a node would meet there. Pure.
//
// "localhost:PORT", the same for every worker of a job; jobs differ in id or store. PORT is 21000 …
// 27999, below Linux's ephemeral ports. Two jobs may still get the same: the second has no RAS
// then.
std::string ras_address(const std::string& run_id, const Endpoint& store);

// Switches for tests on a GPU, out of DDPRUN_TEST_GPU: keys with a comma between, for example
// "shared,watchdog_us=100". Only a build with tests or bench has them.
struct TestGpu {
  // "shared": every rank takes device 0, and ranks of one GPU may use NCCL. NCCL before 2.30.3
  // wants a different NCCL_HOSTID for each of them.
  bool shared = false;
  // "watchdog_us=N": how often a watchdog looks while operations are under way.
  std::optional<std::chrono::microseconds> watchdog;
};

// Throws Error(kInvalidArgument) where a key is unknown or its number isn't one above 0, and for
// any key where the build has no switches. Null or empty: no switch.
TestGpu test_gpu(const char* text = std::getenv(env::kTestGpu));

// The same for a build with and without switches. Pure.
TestGpu read_test_gpu(std::string_view text, bool has_switches);

}  // namespace ddprun::nccl
