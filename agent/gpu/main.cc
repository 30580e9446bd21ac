// SPDX-License-Identifier: Apache-2.0
// ddprun-gpus: answers each request on standard input, a letter of gpu_helper.h, with lines that
// end in ".". Ends with its input. Without NVML: one line that says why, exit status 1.
#include <unistd.h>

#include <cstdio>

#include "agent/gpu/gpu_helper.h"
#include "agent/gpu/nvml.h"
#include "common/error.h"

int main() {
  using namespace ddprun;
  try {
    agent::Nvml nvml;
    for (char request; ::read(STDIN_FILENO, &request, 1) == 1;) {
      if (request == static_cast<char>(agent::GpuRequest::kUtilisation)) {
        for (const auto& [pid, percent] : nvml.shares()) std::printf("%u %u\n", pid, percent);
      } else if (request == static_cast<char>(agent::GpuRequest::kStatus)) {
        for (const auto& reading : nvml.status()) std::puts(agent::to_line(reading).c_str());
      } else if (request == static_cast<char>(agent::GpuRequest::kReadings)) {
        for (const auto& reading : nvml.readings()) std::puts(agent::to_line(reading).c_str());
      } else if (request == static_cast<char>(agent::GpuRequest::kCount)) {
        std::printf("%zu\n", nvml.num_devices());
      } else {
        for (const auto& process : nvml.processes()) std::puts(agent::to_line(process).c_str());
      }
      std::puts(".");
      if (std::fflush(stdout) != 0) return 0;  // nobody reads any more
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "ddprun-gpus: %s\n", error.what());
    return 1;
  }
}
