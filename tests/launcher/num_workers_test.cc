// SPDX-License-Identifier: Apache-2.0
#include "launcher/num_workers.h"

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun::launcher;
using Catch::Matchers::StartsWith;
using ddprun::test::Contains;

namespace {

struct FakeMachine : Machine {
  FakeMachine(int cpus, int gpus) : cpus_(cpus), gpus_(gpus) {}
  int num_cpus() const override { return cpus_; }
  std::optional<double> cpu_quota() const override { return quota_; }
  int num_gpus() const override { return gpus_; }
  int num_listed_gpus() const override { return gpus_; }
  int cpus_, gpus_;
  std::optional<double> quota_;
};

}  // namespace

TEST_CASE("nproc: a number, auto, gpu, cpu") {
  const FakeMachine cpu_only(6, 0), with_gpus(6, 4);
  CHECK(num_workers("3", cpu_only, {}).count == 3);
  CHECK(num_workers("cpu", with_gpus, {}).count == 6);
  CHECK(num_workers("auto", cpu_only, {}).count == 6);
  CHECK(num_workers("auto", with_gpus, {}).count == 4);
  CHECK(num_workers("gpu", with_gpus, {}).count == 4);
  CHECK(num_workers("gpu", with_gpus, "0,2").count == 2);
}

TEST_CASE("nproc: a CPU quota bounds auto and cpu, rounded up, and says so") {
  FakeMachine machine(6, 0);
  for (const auto& [quota, count] : {std::pair{1.5, 2}, {0.2, 1}, {3.0, 3}}) {
    CAPTURE(quota);
    machine.quota_ = quota;
    for (const char* value : {"auto", "cpu"}) {
      const NumWorkers found = num_workers(value, machine, {});
      CHECK(found.count == count);
      CHECK_THAT(found.note, Contains("quota") && Contains("of 6 CPUs"));
    }
    CHECK(num_workers("5", machine, {}).count == 5);
  }
  machine.quota_ = 6.0;
  CHECK(num_workers("cpu", machine, {}).count == 6);
  CHECK(num_workers("cpu", machine, {}).note == "");
}

TEST_CASE("nproc: an invalid value is a problem that says what is allowed") {
  const FakeMachine cpu_only(6, 0), with_gpus(6, 4);
  for (const char* text : {"0", "-1", "", "x", "1.5", "99999999", "gpus"}) {
    CAPTURE(text);
    CHECK_THAT(num_workers(text, cpu_only, {}).problem,
               StartsWith("wants a number from 1 to 65536, auto, gpu or cpu"));
  }
  CHECK_THAT(num_workers("gpu", cpu_only, {}).problem, Contains("no NVIDIA GPU"));
  CHECK(num_workers("gpu", with_gpus, " ").problem ==
        "CUDA_VISIBLE_DEVICES=\" \" hides all 4 GPU(s) of this node; unset it, or give a number of "
        "workers, or cpu");
  CHECK(
      num_workers("gpu", with_gpus, "4").problem ==
      "CUDA_VISIBLE_DEVICES=\"4\" names none of this node's 4 GPU(s) (0 to 3, each once); correct "
      "or unset it, or give a number of workers, or cpu");
}

TEST_CASE("nproc: a driver that does not answer is a problem, also of auto") {
  struct HungDriver : FakeMachine {
    HungDriver() : FakeMachine(6, 4) {}
    int num_gpus() const override {
      throw ddprun::Error(ddprun::ErrorCode::kTimeout, "the NVIDIA driver does not say");
    }
  };
  for (const char* text : {"gpu", "auto"}) {
    const NumWorkers workers = num_workers(text, HungDriver(), {});
    CHECK(workers.count == 0);
    CHECK(
        workers.problem ==
        "the NVIDIA driver does not say (does nvidia-smi hang, too?): leave this node out, or give "
        "a number of workers, or cpu");
  }
  CHECK(num_workers("cpu", HungDriver(), {}).count == 6);
}

TEST_CASE("nproc: CUDA_VISIBLE_DEVICES is read as CUDA reads it") {
  CHECK(num_visible_gpus(4, std::nullopt) == 4);
  CHECK(num_visible_gpus(4, "") == 0);
  CHECK(num_visible_gpus(4, "3,1") == 2);
  CHECK(num_visible_gpus(4, "0,-1,2") == 1);  // entries after an invalid one are hidden
  CHECK(num_visible_gpus(4, "0,4,1") == 1);
  CHECK(num_visible_gpus(4, "GPU-8f3a,GPU-77") == 2);
  CHECK(num_visible_gpus(4, "MIG-8f3a,MIG-77,MIG-a") == 1);  // a process sees one slice only
  CHECK(num_visible_gpus(4, "none") == 0);
  CHECK(num_visible_gpus(4, " 0, 1 ,2") == 3);
  CHECK(num_visible_gpus(4, "0,1,0") == 0);
  CHECK(num_visible_gpus(2, "0,1,0") == 0);
}

TEST_CASE("nproc: more workers than GPUs is said") {
  const FakeMachine cpu_only(6, 0), with_gpus(6, 4);
  CHECK(gpu_note(8, cpu_only, {}).empty());
  CHECK(gpu_note(4, with_gpus, {}).empty());
  CHECK(gpu_note(1, with_gpus, "").empty());
  CHECK_THAT(gpu_note(8, with_gpus, {}), StartsWith("8 workers share 4 GPU"));
  CHECK_THAT(gpu_note(2, with_gpus, "3"), StartsWith("2 workers share 1 GPU"));
}

TEST_CASE("number of workers: CPUs are counted on machines of more than 1024, too") {
  constexpr std::size_t kKernelCpus = 8192;
  const auto large_machine = [](std::size_t size, cpu_set_t* mask) {
    if (size * 8 < kKernelCpus) {
      errno = EINVAL;
      return -1;
    }
    for (std::size_t cpu = 0; cpu < 2000; ++cpu) CPU_SET_S(cpu, size, mask);
    return 0;
  };
  CHECK(count_cpus(large_machine) == 2000);
  CHECK(count_cpus([](std::size_t, cpu_set_t*) {
          errno = ENOSYS;
          return -1;
        }) == 1);
  CHECK(count_cpus([](std::size_t, cpu_set_t*) {
          errno = EINVAL;
          return -1;
        }) == 1);
  CHECK(real_machine().num_cpus() >= 1);
}
