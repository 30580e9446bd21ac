// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/rdma_bytes.h"

#include <filesystem>
#include <fstream>

namespace ddprun::agent {
namespace {

constexpr std::uint64_t kBytesPerUnit = 4;  // the counters are of 32-bit words

std::uint64_t counter(const std::filesystem::path& file) {
  std::uint64_t value = 0;
  std::ifstream(file) >> value;
  return value;
}

}  // namespace

std::uint64_t rdma_port_bytes(const std::string& folder) {
  namespace fs = std::filesystem;
  std::uint64_t words = 0;
  std::error_code none;
  for (const auto& device : fs::directory_iterator(folder, none)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", none)) {
      const fs::path counters = port.path() / "counters";
      words += counter(counters / "port_xmit_data") + counter(counters / "port_rcv_data");
    }
  }
  return words * kBytesPerUnit;
}

}  // namespace ddprun::agent
