// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/isolation_plan.h"

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::agent;
using ddprun::test::Contains;

TEST_CASE("worker limits: a size is a number of bytes or has a unit, and none is none") {
  WorkerLimits limits;
  CHECK(parse_memory_limit("64G", limits).empty());
  CHECK(limits.memory_bytes == std::uint64_t{64} << 30);
  CHECK(parse_memory_limit("1T", limits).empty());
  CHECK(limits.memory_bytes == std::uint64_t{1} << 40);
  CHECK(parse_memory_limit("1048576", limits).empty());
  CHECK(limits.memory_bytes == std::uint64_t{1} << 20);
  CHECK(limits.any());
  CHECK(parse_memory_limit("none", limits).empty());
  CHECK(limits == WorkerLimits{});
  for (const char* bad : {"", "64", "max", "-1G", "64 G", "64GG", "9999999T"}) {
    CAPTURE(bad);
    CHECK_THAT(parse_memory_limit(bad, limits), Contains("wants a size of at least 1M"));
  }
}

TEST_CASE("worker limits: processes are counted from 1") {
  WorkerLimits limits;
  CHECK(parse_pids_limit("4096", limits).empty());
  CHECK(limits.pids == 4096u);
  for (const char* bad : {"", "0", "max", "5k", "4194305"}) {
    CAPTURE(bad);
    CHECK_THAT(parse_pids_limit(bad, limits), Contains("wants a number from 1 to 4194304"));
  }
}

TEST_CASE("worker limits: CPUs are a list or the binding's") {
  WorkerLimits limits;
  CHECK(parse_cpuset("0-2,7", limits).empty());
  CHECK(limits.cpuset_source == CpusetSource::kList);
  CHECK(limits.cpuset == CpuSet{0, 1, 2, 7});
  CHECK(parse_cpuset("binding", limits).empty());
  CHECK(limits.cpuset_source == CpusetSource::kBinding);
  CHECK(parse_cpuset("none", limits).empty());
  CHECK(limits == WorkerLimits{});
  CHECK_THAT(parse_cpuset("", limits), Contains("wants a list of CPUs"));
  CHECK_THAT(parse_cpuset("all", limits), Contains("wants a list of CPUs"));
}

TEST_CASE("worker limits: a disk is a path or two numbers, its values are by the second") {
  WorkerLimits limits;
  CHECK(parse_io_limits("/data:rbps=1G,wiops=500;8:16:wbps=200M,riops=9000", limits).empty());
  REQUIRE(limits.io.size() == 2);
  CHECK(limits.io[0] == IoLimit{"/data", std::uint64_t{1} << 30, {}, {}, 500});
  CHECK(limits.io[1] == IoLimit{"8:16", {}, std::uint64_t{200} << 20, 9000, {}});
  CHECK(to_text(limits.io[1]) == "8:16:wbps=209715200,riops=9000");
  CHECK(parse_io_limits("none", limits).empty());
  CHECK(limits.io.empty());
  const auto why = [&](const char* text) { return parse_io_limits(text, limits); };
  CHECK_THAT(why(""), Contains("wants DEVICE:rbps=SIZE"));
  CHECK_THAT(why("/data"), Contains("wants DEVICE:rbps=SIZE"));
  CHECK_THAT(why("8:16"), Contains("wants DEVICE:rbps=SIZE"));
  CHECK_THAT(why("/data:rbs=1G"), Contains("\"rbs\" is none of rbps, wbps, riops and wiops"));
  CHECK_THAT(why("/data:rbps=fast"), Contains("rbps=fast is no size"));
  CHECK_THAT(why("/data:rbps=0"), Contains("wants a number, more than 0"));
  CHECK_THAT(why("/data:riops=5k"), Contains("wants a number, more than 0 and below 4294967295"));
  CHECK_THAT(why("/data:rbps=1,rbps=2"), Contains("rbps is given twice for /data"));
  CHECK_THAT(why("/data:rbps=1;/data:wbps=2"), Contains("/data is given twice"));
}

TEST_CASE("worker limits: are shown under their options' names") {
  WorkerLimits limits;
  CHECK(shown_limits(limits).empty());
  parse_memory_limit("1536M", limits);
  parse_pids_limit("7", limits);
  parse_cpuset("3,1", limits);
  parse_io_limits("/d:rbps=1;/e:wbps=2", limits);
  std::string text;
  for (const auto& [option, value] : shown_limits(limits)) text += option + " " + value + "\n";
  CHECK(text ==
        "worker-memory 1.5 GiB\nworker-pids 7\nworker-cpuset 1,3\nworker-io /d:rbps=1\n"
        "worker-io /e:wbps=2\n");
  CHECK(size_text(512) == "512 bytes");
  CHECK(size_text(std::uint64_t{96} << 20) == "96 MiB");
  CHECK(size_text(1000 * 1000 * 1000) == "954 MiB");
}

TEST_CASE("worker limits: the mode is required or best-effort") {
  WorkerLimits limits;
  CHECK_FALSE(limits.required);
  CHECK(parse_limits_mode("required", limits).empty());
  CHECK(limits.required);
  CHECK(parse_limits_mode("best-effort", limits).empty());
  CHECK_FALSE(limits.required);
  CHECK(parse_limits_mode("yes", limits) == "must be required or best-effort");
}
