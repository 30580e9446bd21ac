// SPDX-License-Identifier: Apache-2.0
// Finds the OOM killer's counts and judges them, on files of the test's own.
#include "agent/failure_details.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::agent;
using ddprun::test::Contains;
using Texts = std::vector<std::string>;

namespace {

constexpr char kV2Mount[] =
    "24 1 0:22 / /proc rw - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
constexpr char kV1Mount[] =
    "30 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "31 23 0:28 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

Texts directories(const char* cgroup, const char* mounts) {
  const auto found = memory_cgroup(cgroup, mounts);
  return found ? found->directories : Texts{"none"};
}

// A machine whose files a test writes.
class Machine {
 public:
  Machine(const std::string& cgroup, const std::string& mounts) {
    write("/proc/self/cgroup", cgroup);
    write("/proc/self/mountinfo", mounts);
  }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  MemoryKills kills() const { return MemoryKills(root_.path()); }
  std::uint64_t usable_bytes() const { return usable_memory_bytes(root_.path()); }
  std::optional<double> quota() const { return cpu_quota(root_.path()); }

 private:
  const ddprun::test::TempDirectory root_;
};

std::string events(int killed) {
  return "low 0\nhigh 0\nmax 12\noom 1\noom_kill " + std::to_string(killed) + "\n";
}

}  // namespace

TEST_CASE("memory cgroup: version 2, nearest first, up to the top of what is mounted") {
  CHECK(directories("0::/user.slice/a b\n", kV2Mount) ==
        Texts{"/sys/fs/cgroup/user.slice/a b", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"});
  CHECK(directories("0::/\n", kV2Mount) == Texts{"/sys/fs/cgroup"});
  // A container with its host's cgroup namespace sees only the part that is mounted.
  constexpr char kPart[] = "31 23 0:28 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
  CHECK(directories("0::/docker/ab/inner\n", kPart) ==
        Texts{"/sys/fs/cgroup/inner", "/sys/fs/cgroup"});
  CHECK(directories("0::/docker/ab\n", kPart) == Texts{"/sys/fs/cgroup"});
  CHECK(directories("0::/docker/abc\n", kPart) == Texts{"none"});
  CHECK(directories("0::/../other\n", kV2Mount) == Texts{"none"});
}

TEST_CASE("memory cgroup: version 1 where that has the memory controller") {
  constexpr char kBoth[] = "9:cpu,cpuacct:/x\n4:memory:/docker/ab/job\n0::/elsewhere\n";
  const auto found = memory_cgroup(kBoth, kV1Mount);
  REQUIRE(found);
  CHECK_FALSE(found->is_v2);
  CHECK(found->directories == Texts{"/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"});
  CHECK(directories(kBoth, kV2Mount) == Texts{"none"});  // not mounted here
  CHECK(directories("", "") == Texts{"none"});
  CHECK(directories("::::\n\n:", "x\n - \n - cgroup2") == Texts{"none"});
}

TEST_CASE("memory cgroup: counts and limits") {
  CHECK(oom_kills(events(3)) == 3u);
  CHECK(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n") == 2u);
  CHECK(oom_kills("oom_kill_disable 0\nunder_oom 0\n") == std::nullopt);  // Linux before 4.13
  CHECK(oom_kills("oom_kill x\n") == std::nullopt);
  CHECK(memory_limit_bytes("max\n") == std::nullopt);
  CHECK(memory_limit_bytes("9223372036854771712\n") == std::nullopt);
  CHECK(memory_limit_bytes("67108864\n") == 67108864u);
}

TEST_CASE("memory cgroup: usable is the least limit on the way up, else what the machine has") {
  const Machine machine("0::/job/step\n", kV2Mount);
  const std::uint64_t all = machine.usable_bytes();
  CHECK(all > std::uint64_t{100} << 20);
  machine.write("/sys/fs/cgroup/job/step/memory.max", "max\n");
  CHECK(machine.usable_bytes() == all);
  machine.write("/sys/fs/cgroup/job/memory.max", "67108864\n");
  CHECK(machine.usable_bytes() == 67'108'864);
  machine.write("/sys/fs/cgroup/job/step/memory.max", "134217728\n");
  CHECK(machine.usable_bytes() == 67'108'864);
}

TEST_CASE("cpu quota: the least on the way up, of version 2 and of version 1") {
  const Machine machine("0::/job/step\n", kV2Mount);
  CHECK(machine.quota() == std::nullopt);
  machine.write("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  CHECK(machine.quota() == std::nullopt);
  machine.write("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  CHECK(machine.quota() == 1.5);
  machine.write("/sys/fs/cgroup/job/step/cpu.max", "400000 100000\n");
  CHECK(machine.quota() == 1.5);

  const Machine older("4:cpu,cpuacct:/job\n",
                      "30 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  older.write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  older.write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  CHECK(older.quota() == std::nullopt);
  older.write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  CHECK(older.quota() == 0.5);
}

TEST_CASE("memory kills: a worker's death by SIGKILL and a count that grew while it ran") {
  const Machine machine("0::/job/step\n", kV2Mount);
  const std::string file = "/sys/fs/cgroup/job/step/memory.events";
  machine.write(file, events(1));
  machine.write("/sys/fs/cgroup/job/memory.max", "67108864\n");
  machine.write("/sys/fs/cgroup/job/step/memory.max", "max\n");
  MemoryKills kills = machine.kills();
  kills.begin_round();
  CHECK(kills.explain(SIGKILL).empty());  // somebody used kill -9
  machine.write(file, events(2));
  CHECK(kills.explain(SIGKILL) ==
        "ran out: the kernel's OOM killer killed 1 process in its memory cgroup while it ran (" +
            file + ": oom_kill 1 → 2; limit 64 MiB)");
  CHECK(kills.explain(SIGKILL).empty());  // one kill explains one death
  machine.write(file, events(4));
  CHECK_THAT(kills.explain(0), Contains("perhaps ran out: the kernel's OOM killer killed 2 proc") &&
                                   Contains("but not the worker itself"));
  kills.begin_round();
  CHECK(kills.explain(SIGKILL).empty());  // the kill was in the round before
}

TEST_CASE("memory kills: counted further up where the own cgroup doesn't count memory") {
  const Machine machine("0::/job/step\n", kV2Mount);
  machine.write("/sys/fs/cgroup/job/memory.events", events(0));
  MemoryKills kills = machine.kills();
  kills.begin_round();
  machine.write("/sys/fs/cgroup/job/memory.events", events(1));
  CHECK_THAT(kills.explain(SIGKILL),
             Contains("(/sys/fs/cgroup/job/memory.events: oom_kill 0 → 1)"));
}

TEST_CASE("memory kills: the workers' own cgroup where ddprun's is the root") {
  const Machine machine("0::/\n", kV2Mount);
  machine.write("/proc/vmstat", "oom_kill 7\n");
  const std::string file = "/sys/fs/cgroup/ddprun-warden-5/memory.events";
  machine.write(file, events(0));
  machine.write("/proc/71/cgroup", "0::/ddprun-warden-5\n");
  MemoryKills kills = machine.kills();
  kills.begin_round();
  kills.workers_run({0, 71});
  machine.write("/proc/vmstat", "oom_kill 8\n");
  CHECK(kills.explain(SIGKILL).empty());  // the kill was in another cgroup
  machine.write(file, events(1));
  CHECK_THAT(kills.explain(SIGKILL), Contains("ran out: ") && Contains(file));
}

TEST_CASE("memory kills: version 1 counts for each cgroup alone") {
  const Machine machine("4:memory:/docker/ab/job\n", kV1Mount);
  const std::string file = "/sys/fs/cgroup/memory/job/memory.oom_control";
  machine.write(file, "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "33554432\n");
  MemoryKills kills = machine.kills();
  kills.begin_round();
  machine.write(file, "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  CHECK_THAT(kills.explain(SIGKILL), Contains(file + ": oom_kill 0 → 1; limit 32 MiB"));
}

TEST_CASE("memory kills: the host's count alone makes it \"perhaps\", no count makes it nothing") {
  const Machine machine("0::/../x\n", kV2Mount);
  MemoryKills blind = machine.kills();
  CHECK(blind.explain(SIGKILL).empty());
  blind.begin_round();
  blind.workers_run({});
  blind.workers_run({99});
  CHECK(blind.explain(SIGKILL).empty());
  machine.write("/proc/vmstat", "nr_free 3\noom_kill 7\n");
  MemoryKills kills = machine.kills();
  kills.begin_round();
  CHECK(kills.explain(SIGKILL).empty());
  machine.write("/proc/vmstat", "oom_kill 9\n");
  CHECK(kills.explain(SIGSEGV).empty());
  CHECK_THAT(kills.explain(SIGKILL), Contains("perhaps ran out: the kernel's OOM killer killed 2 "
                                              "processes of this host while it ran"));
}
