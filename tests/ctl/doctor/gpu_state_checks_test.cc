// SPDX-License-Identifier: Apache-2.0
// The state of GPUs, the packages that a worker would load, and NCCL's choice, each as ok, warn and
// fail.
#include <cstdlib>

#include "tests/ctl/doctor/fake_root.h"
#include "tests/support/catch.h"

namespace ddprun::doctor {
namespace {

using agent::GpuReading;
using ddprun::test::Contains;

Facts with_readings(std::vector<GpuReading> readings) {
  Facts facts;
  facts.gpu_state.not_asked.clear();
  facts.gpu_state.answer = GpuStateAnswer{true, std::move(readings)};
  return facts;
}

struct ReadingCase {
  const char *check, *key;
  long long value;
  Verdict wanted;
  const char* says;
};

TEST_CASE("doctor: each reading of a GPU has its verdict, with the GPU's number") {
  using enum Verdict;
  for (const ReadingCase& each : {
           ReadingCase{"gpu_compute_mode", "compute_mode", 0, kOk, "default"},
           {"gpu_compute_mode", "compute_mode", 3, kWarn, "GPU 1: exclusive"},
           {"gpu_compute_mode", "compute_mode", 2, kFail, "GPU 1: prohibited"},
           {"gpu_persistence", "persistence", 1, kOk, "on"},
           {"gpu_persistence", "persistence", 0, kWarn, "GPU 1: off"},
           {"gpu_ecc", "ecc_uncorrected", 0, kOk, "none"},
           {"gpu_ecc", "ecc_uncorrected", 2, kFail, "GPU 1: 2 not corrected"},
           {"gpu_row_remap", "remap_pending", 0, kOk, "none waits"},
           {"gpu_row_remap", "remap_pending", 1, kFail, "GPU 1: rows wait for a reset"},
           {"gpu_throttle", "slowdown", 0x1 | 0x4, kOk, "none"},  // idle, a power cap
           {"gpu_throttle", "slowdown", 0x40 | 0x8, kWarn, "GPU 1: slowed down by heat"},
           {"gpu_throttle", "slowdown", 0x80, kWarn, "by a power brake"},
           {"gpu_throttle", "slowdown", 0x8, kWarn, "by hardware"},
       }) {
    const Outcome outcome = judged(each.check, with_readings({{1, each.key, each.value}}));
    INFO(each.check << " " << each.value << ": " << outcome.seen);
    CHECK(outcome.verdict == each.wanted);
    CHECK_THAT(outcome.seen, Contains(each.says));
    CHECK(outcome.fix.empty() == (each.wanted == kOk));
  }
  const Facts worn = with_readings({{0, "ecc_uncorrected", 0}, {0, "ecc_corrected", 30'000'000}});
  CHECK(judged("gpu_ecc", worn).verdict == kWarn);
  const Facts used_up = with_readings({{0, "remap_pending", 0}, {0, "remap_failed", 1}});
  CHECK(judged("gpu_row_remap", used_up).seen == "GPU 0: no spare row was left");
}

TEST_CASE("doctor: fewer GPUs than a node is said to have fail, without a number any will do") {
  using enum Verdict;
  const Facts two = with_readings(
      {{-1, "cuda", 12080}, {0, "compute_mode", 0}, {0, "slowdown", 4}, {1, "compute_mode", 0}});
  CHECK(judged("gpu_count", two).seen == "2 answer NVML");
  CHECK(judged("gpu_count", two).verdict == kOk);
  const auto of = [](double least) {
    Thresholds thresholds;
    thresholds.set("gpu_count.least", least);
    return thresholds;
  };
  CHECK(judged("gpu_count", two, of(2)).verdict == kOk);
  const Outcome lost = judged("gpu_count", two, of(8));
  CHECK(lost.verdict == kFail);
  CHECK(lost.wanted == "at least 8");
  CHECK_THAT(lost.fix, Contains("nvidia-smi -L"));
  Facts none = two;  // a driver that doesn't answer is no sign of a node without GPUs
  none.gpu_state.answer = GpuStateAnswer{};
  CHECK(judged("gpu_count", none, of(1)).seen == "none: NVML can't be used here");
  CHECK(judged("gpu_count", none, of(1)).verdict == kFail);
  none.gpu_state.answer.reset();
  CHECK(judged("gpu_count", none, of(1)).verdict == kUnknown);
}

TEST_CASE("doctor: a GPU with fewer NVLinks than its peers fails, none at all is nothing") {
  using enum Verdict;
  const auto links = [](long long first, long long second, long long inactive) {
    return with_readings({{0, "nvlinks_active", first},
                          {1, "nvlinks_active", second},
                          {1, "nvlinks_inactive", inactive}});
  };
  CHECK(judged("gpu_nvlink", links(18, 18, 0)).verdict == kOk);
  CHECK(judged("gpu_nvlink", links(18, 17, 1)).seen == "GPU 1: 17 active, 1 inactive");
  CHECK(judged("gpu_nvlink", links(18, 17, 1)).verdict == kFail);
  CHECK(judged("gpu_nvlink", links(18, 12, 0)).verdict == kFail);
  CHECK(judged("gpu_nvlink", links(0, 0, 4)).verdict == kSkipped);
}

TEST_CASE("doctor: figures that NVML doesn't tell are skipped, and no answer is unknown") {
  for (const Check& check : gpu_state_checks()) {
    if (std::string(check.name) == "gpu_cuda") continue;
    Facts facts;
    facts.gpu_state.not_asked.clear();
    CHECK(check.judge(facts, {}).verdict == Verdict::kUnknown);
    CHECK(check.judge(with_readings({}), {}).verdict == Verdict::kSkipped);
    facts.gpu_state.answer = GpuStateAnswer{};
    CHECK(check.judge(facts, {}).verdict == Verdict::kSkipped);
  }
}

void add_packages(FakeRoot& root, const std::string& torch, const std::string& nccl,
                  const std::string& cuda) {
  const std::string folder = "/usr/lib/python3.11/site-packages/";
  root.write(folder + "torch-" + torch + ".dist-info/METADATA", "")
      .write(folder + nccl + ".dist-info/METADATA", "")
      .write(folder + "torch/version.py", "cuda: Optional[str] = " + cuda);
}

TEST_CASE(
    "doctor: a worker's CUDA that the driver can't run fails, an NCCL for another one warns") {
  FakeRoot root;
  CHECK(verdict("gpu_cuda", root) == Verdict::kSkipped);
  root.gpu("0000:3b:00.0");  // its driver is 550
  add_packages(root, "2.11.0+cu128", "nvidia_nccl_cu12-2.27.5", "'12.8'");
  Facts facts = root.facts();
  CHECK(facts.packages.torch == "2.11.0+cu128");
  CHECK(facts.packages.cuda == "12.8");
  CHECK(facts.packages.nccl == "2.27.5");
  CHECK_THAT(judged("gpu_cuda", facts).seen,
             Contains("for CUDA 12.8, NCCL 2.27.5 for CUDA 12; driver 550.54.15 runs CUDA 12"));
  CHECK(judged("gpu_cuda", facts).verdict == Verdict::kOk);
  facts.packages.nccl_cuda = "11";
  CHECK(judged("gpu_cuda", facts).verdict == Verdict::kWarn);
  facts.packages.cuda = "13.0";
  CHECK(judged("gpu_cuda", facts).verdict == Verdict::kFail);
  // NVML's answer is stronger than the driver's version.
  facts.gpu_state.answer = GpuStateAnswer{true, {{-1, "cuda", 13000}}};
  CHECK(judged("gpu_cuda", facts).verdict == Verdict::kWarn);  // the NCCL still warns
  facts.packages = {};
  CHECK(judged("gpu_cuda", facts).verdict == Verdict::kSkipped);
}

TEST_CASE("doctor: packages are those of the environment that a worker's Python would be of") {
  const Environment environment = {{"PYTHON_EXEC", "/venv/bin/python3"}, {"VIRTUAL_ENV", "/other"}};
  const auto prefixes = package_prefixes(environment, "/opt/ddprun/bin");
  CHECK(prefixes ==
        std::vector<std::string>{"/venv", "/opt/ddprun", "/other", "/usr/local", "/usr"});
  FakeRoot root;
  add_packages(root, "2.11.0+cu121", "nvidia_nccl_cu12-2.27.5", "None");
  CHECK(find_packages(Root(root.path()), prefixes).cuda == "12.1");
  root.write("/venv/lib/python3.12/site-packages/torch-2.12.0+cpu.dist-info/METADATA", "");
  CHECK(find_packages(Root(root.path()), prefixes).torch == "2.12.0+cpu");
  CHECK(find_packages(Root(root.path()), prefixes).cuda == "");
}

TEST_CASE("doctor: interfaces that NCCL would take and no other node reaches warn") {
  FakeRoot root;
  CHECK(verdict("nccl_interfaces", root) == Verdict::kSkipped);  // no GPU, no NCCL
  root.gpu("0000:3b:00.0");
  CHECK(verdict("nccl_interfaces", root) == Verdict::kWarn);  // no interface is up
  root.interface("eth0", 1500, 10'000).interface("docker0", 1500, 0);
  CHECK(verdict("nccl_interfaces", root) == Verdict::kOk);
  Facts facts = root.facts();
  facts.environment["NCCL_SOCKET_IFNAME"] = "^eth";
  CHECK_THAT(judged("nccl_interfaces", facts).fix, Contains("NCCL_SOCKET_IFNAME"));
  CHECK(judged("nccl_interfaces", facts).verdict == Verdict::kWarn);  // only docker0 is left
  facts.environment["NCCL_SOCKET_IFNAME"] = "=eth";
  CHECK_THAT(judged("nccl_interfaces", facts).seen, Contains("none (NCCL_SOCKET_IFNAME==eth)"));
  facts.environment["NCCL_SOCKET_IFNAME"] = "wlan,eth";
  CHECK(judged("nccl_interfaces", facts).verdict == Verdict::kOk);
  root.interface("virbr0", 1500, 0);
  CHECK_THAT(judged("nccl_interfaces", root.facts()).seen,
             Contains("virbr0 is for this host alone"));
  root.interface("ib0", 2044, 100'000);
  CHECK_THAT(judged("nccl_interfaces", root.facts()).seen, Contains("ib0"));
  CHECK(verdict("nccl_interfaces", root) == Verdict::kOk);
}

TEST_CASE("doctor: RDMA ports that NCCL is told to leave alone warn") {
  FakeRoot root;
  CHECK(verdict("nccl_adapters", root) == Verdict::kSkipped);
  root.gpu("0000:3b:00.0").rdma_port("mlx5_0", "4: ACTIVE").rdma_port("mlx5_1", "1: DOWN");
  Facts facts = root.facts();
  CHECK(judged("nccl_adapters", facts).seen == "mlx5_0 port 1");
  CHECK(judged("nccl_adapters", facts).verdict == Verdict::kOk);
  facts.environment["NCCL_IB_HCA"] = "mlx5_1:1";
  CHECK_THAT(judged("nccl_adapters", facts).seen, Contains("names no active port"));
  CHECK(judged("nccl_adapters", facts).verdict == Verdict::kWarn);
  facts.environment["NCCL_IB_HCA"] = "^mlx5_1";
  CHECK(judged("nccl_adapters", facts).verdict == Verdict::kOk);
  facts.environment["NCCL_IB_DISABLE"] = "1";
  CHECK_THAT(judged("nccl_adapters", facts).seen,
             Contains("NCCL_IB_DISABLE=1, and 1 port is active"));
}

TEST_CASE("doctor: speeds of network cards that no answer came for are unknown, where they count") {
  FakeRoot root;
  root.interface("eth0", 1500, 10'000).write("/proc/sys/net/core/rmem_max", "212992");
  Facts facts = root.facts();
  CHECK(judged("mtu", facts).verdict == Verdict::kOk);
  facts.link_speeds.answer.reset();
  CHECK(judged("mtu", facts).verdict == Verdict::kUnknown);
  CHECK(judged("rmem_max", facts).verdict == Verdict::kUnknown);
  facts.files.set("/proc/sys/net/core/rmem_max", {"33554432"});  // enough for any network
  CHECK(judged("rmem_max", facts).verdict == Verdict::kOk);
}

}  // namespace
}  // namespace ddprun::doctor
