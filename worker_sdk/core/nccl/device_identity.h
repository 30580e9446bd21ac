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

// Returns the id of device `local_rank`, equal for all processes that use this GPU (or MIG slice)
// and only for them. Throws Error(kUnsupported), which says why this rank has none. Creates no CUDA
// context.
std::string device_identity(CudaApi& cuda, int local_rank);

// Returns the id of the GPU that device `local_rank` is, or is a slice of. It is equal where NCCL
// before 2.30.7 says "Duplicate GPU". It is made of the bus id and of NCCL's name for the host
// ($NCCL_HOSTID, else host name and boot id). Throws Error(kUnsupported). Creates no CUDA context.
std::string gpu_identity(CudaApi& cuda, int local_rank);

// Tells whether compiled CUDA code runs on a GPU. It is checked before the first kernel fails with
// "no kernel image is available for execution on the device", which names neither code nor GPU.
//
// `flags` are nvcc's, with which the code was made ("… -gencode arch=compute_90,code=sm_90 …").
// Returns "" if the code runs on a GPU of compute capability major.minor, or if the flags don't
// tell. Else returns the capabilities it was made for, "7.5, 8.0, 9.0". Pure.
std::string made_for_others(std::string_view flags, int major, int minor);

// Throws Error(kUnsupported) if the code of `whose` ("this LibTorch") does not run on the device;
// it names both. Creates no CUDA context.
void check_code(CudaApi& cuda, int device, const std::string& whose, std::string_view flags);

// Returns the address of NCCL's RAS service for a job. NCCL's default, localhost:28028, is the same
// for two jobs on a node, which would meet there. Pure.
//
// The address is "localhost:PORT", the same for every worker of a job; jobs differ in id or store.
// PORT is 21000 … 27999, below Linux's ephemeral ports. Two jobs may still get the same port; the
// second then has no RAS.
std::string ras_address(const std::string& run_id, const Endpoint& store);

// Switches for tests on a GPU, from DDPRUN_TEST_GPU: keys separated by commas, for example
// "shared,watchdog_us=100". Only programs in the folder of a build with tests or bench, or of a
// pack, have them.
struct TestGpu {
  // "shared": every rank takes device 0, and ranks of one GPU may use NCCL. NCCL before 2.30.3
  // wants a different NCCL_HOSTID for each of them.
  bool shared = false;
  // "watchdog_us=N": how often a watchdog looks while operations are under way.
  std::optional<std::chrono::microseconds> watchdog;
};

// Throws Error(kInvalidArgument) if a key is unknown or its number isn't above 0, and for any key
// if this program has no switches. Null or empty: no switch.
TestGpu test_gpu(const char* text = std::getenv(env::kTestGpu));

// The same for a program with and without switches. Pure.
TestGpu read_test_gpu(std::string_view text, bool has_switches);

}  // namespace ddprun::nccl
