// SPDX-License-Identifier: Apache-2.0
#include "agent/binding/binding_plan.h"

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun::agent;
using ddprun::CpuSet;
using ddprun::parse_cpu_list;
namespace fs = std::filesystem;

namespace {

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

// Files as Linux 6 has them: two nodes, four CPUs, CPU 2 is offline.
void make_machine(const std::string& root) {
  const std::string system = root + "/sys/devices/system";
  write(system + "/cpu/online", "0-1,3");
  write(system + "/node/node0/cpulist", "0-1");
  write(system + "/node/node1/cpulist", "3");
  write(system + "/node/possible", "0-1");
  for (const int cpu : {0, 1, 3}) {
    const std::string folder = system + "/cpu/cpu" + std::to_string(cpu);
    write(folder + "/topology/physical_package_id", cpu == 3 ? "1" : "0");
    write(folder + "/topology/thread_siblings_list", cpu == 3 ? "2-3" : "0-1");
    write(folder + "/cache/index0/type", "Data");
    write(folder + "/cache/index0/level", "1");
    write(folder + "/cache/index0/shared_cpu_list", std::to_string(cpu));
    write(folder + "/cache/index3/type", "Unified");
    write(folder + "/cache/index3/level", "3");
    write(folder + "/cache/index3/shared_cpu_list", cpu == 3 ? "3" : "0-1");
    write(folder + "/cache/index9/type", "Instruction");
    write(folder + "/cache/index9/level", "9");
  }
  write(root + "/proc/driver/nvidia/gpus/0000:3b:00.0/information",
        "Model: \t\t NVIDIA H100\nIRQ:   \t\t 43\nGPU UUID: \t GPU-aaaa-1");
  write(root + "/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1");
  write(root + "/proc/driver/nvidia/gpus/0000:af:00.0/information", "GPU UUID: \t GPU-bbbb-2");
  write(root + "/sys/bus/pci/devices/0000:af:00.0/numa_node", "-1");
}

std::vector<int> indices(const std::vector<Gpu>& gpus) {
  std::vector<int> result;
  for (const Gpu& gpu : gpus) result.push_back(gpu.index);
  return result;
}

}  // namespace

TEST_CASE(
    "machine layout: nodes, sockets, cores, caches and GPUs are read from the kernel's files") {
  const ddprun::test::TempDirectory root;
  make_machine(root.path());
  const MachineLayout machine = read_machine_layout(root.path(), CpuSet{0, 3});
  REQUIRE(machine.cpus.size() == 3);
  CHECK(machine.cpus[1].number == 1);
  CHECK(machine.cpus[1].core == 0);
  CHECK(machine.cpus[1].cache == 0);
  CHECK(machine.cpus[2].node == 1);
  CHECK(machine.cpus[2].socket == 1);
  CHECK(machine.cpus[2].core == 2);
  CHECK(machine.cpus[2].cache == 3);
  CHECK(machine.allowed == CpuSet{0, 3});
  REQUIRE(machine.gpus.size() == 2);
  CHECK(machine.gpus[0].node == 1);
  CHECK(machine.gpus[0].uuid == "GPU-aaaa-1");
  CHECK(machine.gpus[1].node == 0);  // the firmware doesn't say
}

TEST_CASE("machine layout: each allowed CPU is a core of one node if the kernel tells nothing") {
  const ddprun::test::TempDirectory root;
  const MachineLayout machine = read_machine_layout(root.path(), CpuSet{4, 5});
  REQUIRE(machine.cpus.size() == 2);
  CHECK(machine.cpus[1].core == 5);
  CHECK(machine.cpus[1].node == 0);
  CHECK(machine.gpus.empty());
}

TEST_CASE("machine layout: this machine's CPUs are among those that the kernel lists") {
  const MachineLayout machine = read_machine_layout("/", allowed_cpus());
  CHECK_FALSE(machine.allowed.empty());
  CpuSet listed;
  for (const Cpu& cpu : machine.cpus) listed.add(cpu.number);
  CHECK((listed & machine.allowed) == machine.allowed);
}

TEST_CASE("machine layout: CUDA_VISIBLE_DEVICES chooses GPUs as CUDA reads it") {
  const std::vector<Gpu> gpus = {{0, "a", "GPU-aaaa-1", 0}, {1, "b", "GPU-bbbb-2", 1}};
  CHECK(indices(visible_gpus(gpus, std::nullopt)) == std::vector<int>{0, 1});
  CHECK(indices(visible_gpus(gpus, "1,0")) == std::vector<int>{1, 0});
  CHECK(indices(visible_gpus(gpus, "GPU-bb")) == std::vector<int>{1});
  CHECK(indices(visible_gpus(gpus, "1,7,0")) == std::vector<int>{1});
  CHECK(visible_gpus(gpus, "").empty());
  CHECK(visible_gpus(gpus, "-1").empty());
  CHECK(indices(visible_gpus(gpus, " 0,\t1 ")) == std::vector<int>{0, 1});
  CHECK(visible_gpus(gpus, "1,0,1").empty());
}

TEST_CASE("CPU sets: lists as the kernel writes them") {
  CHECK(to_text(*parse_cpu_list("0-3,8\n")) == "0-3,8");
  CHECK(parse_cpu_list("")->empty());
  CHECK(parse_cpu_list("1023")->contains(1023));
  for (const char* wrong : {"1024", "3-1", "a", "1,", "1-", "-1", "1;2"}) {
    CAPTURE(wrong);
    CHECK(parse_cpu_list(wrong) == std::nullopt);
  }
}
