// SPDX-License-Identifier: Apache-2.0
// Settings, limits, memory, CPUs and disks, each as ok, warn and fail.
#include <cerrno>

#include "tests/ctl/doctor/fake_root.h"
#include "tests/support/catch.h"

namespace ddprun::doctor {
namespace {

using ddprun::test::Contains;

constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

std::string limits(const std::string& name, const std::string& soft, const std::string& hard) {
  return "Limit                     Soft Limit           Hard Limit           Units\n" + name +
         "   " + soft + "   " + hard + "   units";
}

Facts with_space(std::uint64_t total, std::uint64_t free) {
  Facts facts;
  for (auto* asked : {&facts.shared_memory, &facts.tmp_dir, &facts.log_dir, &facts.state_dir}) {
    asked->not_asked.clear();
    asked->answer = DirectorySpace{"/there", 0, total, free, false};
  }
  return facts;
}

TEST_CASE("doctor: large TCP buffers are wanted where a link is fast, and the fix keeps the rest") {
  for (const char* name : {"rmem_max", "wmem_max", "tcp_rmem", "tcp_wmem"}) {
    const bool is_tcp = std::string(name).starts_with("tcp");
    const std::string file = std::string("/proc/sys/net/") + (is_tcp ? "ipv4/" : "core/") + name;
    FakeRoot root;
    CHECK(verdict(name, root) == Verdict::kSkipped);
    root.write(file, is_tcp ? "4096\t131072\t6291456" : "212992").interface("eth0", 1500, 10'000);
    CHECK(verdict(name, root) == Verdict::kOk);
    root.interface("eth1", 9000, 100'000);
    const Outcome outcome = judged(name, root.facts());
    CHECK(outcome.verdict == Verdict::kWarn);
    CHECK_THAT(outcome.fix, Contains(is_tcp ? "=\"4096 131072 16777216\"" : "=16777216"));
    root.write(file, is_tcp ? "4096\t131072\t16777216" : "16777216");
    CHECK(verdict(name, root) == Verdict::kOk);
    root.write(file, "many");
    CHECK(verdict(name, root) == Verdict::kUnknown);
  }
}

TEST_CASE("doctor: settings below their figure warn, with the command that raises them") {
  struct Setting {
    const char *check, *file, *enough, *little, *fix;
  };
  for (const Setting& each :
       {Setting{"somaxconn", "net/core/somaxconn", "4096", "128", "net.core.somaxconn=4096"},
        {"tcp_max_syn_backlog", "net/ipv4/tcp_max_syn_backlog", "8192", "512",
         "net.ipv4.tcp_max_syn_backlog=4096"},
        {"tcp_syncookies", "net/ipv4/tcp_syncookies", "1", "0", "net.ipv4.tcp_syncookies=1"},
        {"file_max", "fs/file-max", "9223372036854775807", "65536", "fs.file-max=388067"}}) {
    FakeRoot root;
    const std::string path = std::string("/proc/sys/") + each.file;
    CHECK(verdict(each.check, root) == Verdict::kSkipped);
    CHECK(verdict(each.check, root.write(path, each.enough)) == Verdict::kOk);
    const Outcome outcome = judged(each.check, root.write(path, each.little).facts());
    CHECK(outcome.verdict == Verdict::kWarn);
    CHECK_THAT(outcome.fix, Contains(each.fix));
  }
}

TEST_CASE("doctor: TCP's options that are off are named") {
  FakeRoot root;
  const std::string start = "/proc/sys/net/ipv4/";
  root.write(start + "tcp_sack", "1").write(start + "tcp_timestamps", "1");
  CHECK(verdict("tcp_options", root) == Verdict::kSkipped);
  CHECK(verdict("tcp_options", root.write(start + "tcp_window_scaling", "1")) == Verdict::kOk);
  const Outcome outcome = judged("tcp_options", root.write(start + "tcp_sack", "0").facts());
  CHECK(outcome.verdict == Verdict::kWarn);
  CHECK(outcome.seen == "tcp_sack is off");
  CHECK(outcome.fix == "sysctl -w net.ipv4.tcp_sack=1");
}

TEST_CASE(
    "doctor: a port range warns with our ports in it, unless they are reserved, and if small") {
  FakeRoot root;
  const std::string file = "/proc/sys/net/ipv4/ip_local_port_range";
  CHECK(verdict("port_range", root.write(file, "32768\t60999")) == Verdict::kOk);
  CHECK_THAT(judged("port_range", root.write(file, "10000\t65000").facts()).seen,
             Contains("has port 29400 in it"));
  CHECK(verdict("port_range", root) == Verdict::kWarn);
  root.write("/proc/sys/net/ipv4/ip_local_reserved_ports", "8080,29400-29500");
  CHECK(verdict("port_range", root) == Verdict::kOk);
  CHECK(verdict("port_range", root.write(file, "60000\t60999")) == Verdict::kWarn);
}

TEST_CASE("doctor: open files warn and fail by the hard limit") {
  FakeRoot root;
  const auto verdict_with = [&](const char* hard) {
    return verdict("open_files",
                   root.write("/proc/self/limits", limits("Max open files", "1024", hard)));
  };
  CHECK(verdict("open_files", root) == Verdict::kSkipped);
  CHECK(verdict_with("unlimited") == Verdict::kOk);
  CHECK(verdict_with("65536") == Verdict::kOk);
  CHECK(verdict_with("65535") == Verdict::kWarn);
  CHECK(verdict_with("4095") == Verdict::kFail);
  Thresholds lower;
  lower.set("open_files.fail", 100);
  CHECK(judged("open_files", root.facts(), lower).verdict == Verdict::kWarn);
}

TEST_CASE("doctor: locked memory that is limited warns, and fails beside an RDMA adapter") {
  FakeRoot root;
  root.write("/proc/self/limits", limits("Max locked memory", "8388608", "8388608"));
  CHECK(verdict("locked_memory", root) == Verdict::kWarn);
  CHECK(verdict("locked_memory", root.rdma_port("mlx5_0", "4: ACTIVE")) == Verdict::kFail);
  root.write("/proc/self/limits", limits("Max locked memory", "unlimited", "unlimited"));
  CHECK(verdict("locked_memory", root) == Verdict::kOk);
}

TEST_CASE("doctor: the smallest limit of processes counts, and is named") {
  FakeRoot root;
  root.write("/proc/self/limits", limits("Max processes", "unlimited", "unlimited"))
      .write("/proc/sys/kernel/pid_max", "4194304")
      .write("/proc/sys/kernel/threads-max", "100000");
  CHECK(verdict("processes", root) == Verdict::kOk);
  root.write("/proc/self/cgroup", "0::/user.slice")
      .write("/sys/fs/cgroup/user.slice/pids.max", "max");
  CHECK(verdict("processes", root) == Verdict::kOk);
  root.write("/sys/fs/cgroup/user.slice/pids.max", "512");
  Outcome outcome = judged("processes", root.facts());
  CHECK(outcome.verdict == Verdict::kWarn);
  CHECK_THAT(outcome.seen, Contains("pids.max of the cgroup /user.slice is 512"));
  root.write("/proc/self/limits", limits("Max processes", "100", "100"));
  Facts facts = root.facts();
  facts.uid = 1000;
  CHECK_THAT(judged("processes", facts).seen, Contains("ulimit -u is 100"));
}

TEST_CASE("doctor: a check that only shows a value never warns") {
  FakeRoot root;
  root.write("/proc/self/limits", limits("Max core file size", "0", "unlimited"))
      .write("/proc/sys/kernel/core_pattern", "|/usr/lib/systemd/systemd-coredump")
      .write("/proc/sys/vm/swappiness", "100")
      .write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")
      .write("/proc/sys/net/ipv4/tcp_fin_timeout", "60");
  for (const char* name :
       {"core_dumps", "swappiness", "transparent_hugepages", "tcp_fin_timeout"}) {
    CHECK(verdict(name, root) == Verdict::kOk);
    CHECK(verdict(name, FakeRoot()) == Verdict::kSkipped);
  }
}

TEST_CASE("doctor: /dev/shm fails at Docker's default, warns when small or nearly full") {
  const auto verdict_of = [](std::uint64_t total, std::uint64_t free) {
    return judged("shared_memory", with_space(total, free)).verdict;
  };
  CHECK(verdict_of(64 * kMiB, 64 * kMiB) == Verdict::kFail);
  CHECK(verdict_of(65 * kMiB, 65 * kMiB) == Verdict::kWarn);
  CHECK(verdict_of(kGiB, kGiB) == Verdict::kOk);
  CHECK(verdict_of(kGiB, kGiB / 20) == Verdict::kWarn);
  Facts facts = with_space(0, 0);
  facts.shared_memory.answer->error = ENOENT;
  CHECK(judged("shared_memory", facts).verdict == Verdict::kFail);
  facts.shared_memory.answer.reset();
  CHECK(judged("shared_memory", facts).verdict == Verdict::kUnknown);
}

TEST_CASE("doctor: a directory fails without room or read-only, and warns when nearly full") {
  for (const char* name : {"tmp_dir", "log_dir", "state_dir"}) {
    CHECK(judged(name, with_space(100 * kGiB, 50 * kGiB)).verdict == Verdict::kOk);
    CHECK(judged(name, with_space(100 * kGiB, 5 * kGiB)).verdict == Verdict::kWarn);
    CHECK(judged(name, with_space(100 * kGiB, kGiB - 1)).verdict == Verdict::kFail);
    CHECK(judged(name, Facts()).verdict == Verdict::kSkipped);
  }
  Facts facts = with_space(100 * kGiB, 50 * kGiB);
  facts.tmp_dir.answer->is_read_only = true;
  facts.log_dir.answer->error = ENOENT;
  facts.state_dir.answer = DirectorySpace{"/var/lib/ddprun", ENOENT};
  CHECK_THAT(judged("tmp_dir", facts).seen, Contains("read-only"));
  CHECK_THAT(judged("log_dir", facts).seen, Contains("/there: No such file"));
  CHECK(judged("log_dir", facts).verdict == Verdict::kFail);
  CHECK(judged("state_dir", facts).verdict == Verdict::kSkipped);
}

TEST_CASE("doctor: RemoveIPC is on unless the last line says no, and spares system users") {
  FakeRoot root;
  const auto of_user = [&](uid_t uid) {
    Facts facts = root.facts();
    facts.uid = uid;
    return judged("remove_ipc", facts).verdict;
  };
  CHECK(of_user(1000) == Verdict::kSkipped);
  root.write("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes");
  CHECK(of_user(1000) == Verdict::kWarn);
  CHECK(of_user(0) == Verdict::kSkipped);
  root.write("/etc/systemd/logind.conf.d/hpc.conf", "[Login]\nRemoveIPC=no");
  CHECK(of_user(1000) == Verdict::kOk);
}

TEST_CASE("doctor: clock source, governor and NUMA balancing") {
  FakeRoot root;
  const std::string source = "/sys/devices/system/clocksource/clocksource0/";
  CHECK(verdict("clocksource", root.write(source + "current_clocksource", "tsc")) == Verdict::kOk);
  root.write(source + "current_clocksource", "hpet")
      .write(source + "available_clocksource", "tsc hpet");
  CHECK(verdict("clocksource", root) == Verdict::kWarn);
  CHECK_THAT(judged("clocksource", root.facts()).fix, Contains("echo tsc >"));

  CHECK(verdict("cpu_governor", root) == Verdict::kSkipped);
  const std::string cpu = "/sys/devices/system/cpu/cpu";
  CHECK(verdict("cpu_governor", root.write(cpu + "0/cpufreq/scaling_governor", "performance")) ==
        Verdict::kOk);
  root.write(cpu + "1/cpufreq/scaling_governor", "powersave");
  CHECK(verdict("cpu_governor", root) == Verdict::kWarn);
  CHECK_THAT(judged("cpu_governor", root.facts()).seen, Contains("powersave on 1 CPU"));

  const std::string balancing = "/proc/sys/kernel/numa_balancing";
  const std::string node = "/sys/devices/system/node/node";
  CHECK(verdict("numa_balancing", root.write(balancing, "1").write(node + "0/cpulist", "0-7")) ==
        Verdict::kOk);
  CHECK(verdict("numa_balancing", root.write(node + "1/cpulist", "8-15")) == Verdict::kWarn);
  CHECK(verdict("numa_balancing", root.write(balancing, "0")) == Verdict::kOk);
}

TEST_CASE("doctor: an affinity that leaves no CPU near a GPU warns, and names it") {
  FakeRoot root;
  root.write("/sys/devices/system/node/node0/cpulist", "0-7")
      .write("/sys/devices/system/node/node1/cpulist", "8-15")
      .write("/proc/self/status", "Name:\tdoctor\nCpus_allowed_list:\t0-3")
      .gpu("0000:3b:00.0")
      .write("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "0");
  CHECK(verdict("numa_affinity", root) == Verdict::kOk);
  root.gpu("0000:af:00.0").write("/sys/bus/pci/devices/0000:af:00.0/numa_node", "1");
  const Outcome outcome = judged("numa_affinity", root.facts());
  CHECK(outcome.verdict == Verdict::kWarn);
  CHECK_THAT(outcome.seen, Contains("GPU 0000:af:00.0 at node1 (CPUs 8-15)"));
}

TEST_CASE("doctor: a clock that nothing keeps right warns") {
  Facts facts;
  CHECK(judged("clock_sync", facts).verdict == Verdict::kSkipped);
  facts.is_clock_synchronised = true;
  CHECK(judged("clock_sync", facts).verdict == Verdict::kOk);
  facts.is_clock_synchronised = false;
  CHECK(judged("clock_sync", facts).verdict == Verdict::kWarn);
}

TEST_CASE("doctor: cgroup version 1, and 2 with and without its controllers") {
  FakeRoot root;
  CHECK(verdict("cgroup", root.write("/proc/self/cgroup", "4:memory:/")) == Verdict::kWarn);
  root.write("/proc/self/cgroup", "0::/job")
      .write("/sys/fs/cgroup/cgroup.controllers", "cpu memory");
  CHECK(verdict("cgroup", root.write("/sys/fs/cgroup/job/cgroup.controllers", "cpu")) ==
        Verdict::kWarn);
  root.write("/sys/fs/cgroup/job/cgroup.controllers", "cpu memory pids");
  CHECK(verdict("cgroup", root) == Verdict::kOk);
}

}  // namespace
}  // namespace ddprun::doctor
