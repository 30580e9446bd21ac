// SPDX-License-Identifier: Apache-2.0
// A machine made of files, for the checks of `ddprunctl doctor`.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "ctl/doctor/checks.h"
#include "tests/support/temp_directory.h"

namespace ddprun::doctor {

class FakeRoot {
 public:
  FakeRoot& write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = directory_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
    return *this;
  }
  // "up", as the kernel writes the state.
  FakeRoot& interface(const std::string& name, int mtu, int speed_mbits) {
    const std::string start = "/sys/class/net/" + name + "/";
    return write(start + "flags", "0x1003")
        .write(start + "operstate", "up")
        .write(start + "mtu", std::to_string(mtu))
        .write(start + "speed", std::to_string(speed_mbits));
  }
  FakeRoot& rdma_port(const std::string& device, const std::string& state,
                      const std::string& rate = "400 Gb/sec (4X NDR)",
                      const std::string& layer = "InfiniBand") {
    const std::string start = "/sys/class/infiniband/" + device + "/ports/1/";
    return write(start + "state", state)
        .write(start + "rate", rate)
        .write(start + "link_layer", layer)
        .write(start + "counters/link_downed", "0");
  }
  FakeRoot& gpu(const std::string& address, bool is_listed = true) {
    const std::string start = "/sys/bus/pci/devices/" + address + "/";
    if (is_listed) {
      write("/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024");
      write("/proc/driver/nvidia/gpus/" + address + "/information", "");
    }
    return write(start + "vendor", "0x10de").write(start + "class", "0x030200");
  }

  const std::string& path() const { return directory_.path(); }

  Facts facts() const {
    FactsOptions options;
    options.root = path();
    options.state_dir = path() + "/nothing";
    options.limit = std::chrono::seconds(20);  // leaves time for a loaded machine
    Facts facts = gather_facts(options);
    facts.environment.clear();
    return facts;
  }

 private:
  test::TempDirectory directory_;
};

inline Outcome judged(const std::string& check, const Facts& facts,
                      const Thresholds& thresholds = {}) {
  return find_check(check)->judge(facts, thresholds);
}
inline Verdict verdict(const std::string& check, const FakeRoot& root) {
  return judged(check, root.facts()).verdict;
}

}  // namespace ddprun::doctor
