// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_lines.h"

#include "tests/support/catch.h"

using namespace ddprun::agent;

TEST_CASE("GpuProcess: a line and back") {
  const GpuProcess process{3, 4711, 123'456'789'012};
  CHECK(to_line(process) == "3 4711 123456789012");
  CHECK(parse_gpu_process(to_line(process)) == process);
  for (const char* bad : {"", "3", "3 4711", "3 4711 ", "3 4711 5 ", "3 4711 5x", "-1 4711 5",
                          "3 0 5", "x 1 5", "3 4711 -5", "99999999999 1 5"}) {
    INFO(bad);
    CHECK_FALSE(parse_gpu_process(bad));
  }
}

TEST_CASE("gpu_holders: new processes on a GPU are dying or foreign, earlier ones are neither") {
  const std::vector<GpuProcess> before = {{0, 10, 5}, {1, 11, 5}};
  const auto is_alive = [](std::int64_t pid) { return pid >= 50; };
  CHECK(gpu_holders(before, before, is_alive).dying.empty());
  // The same pid on another GPU is reported again.
  const auto holders =
      gpu_holders(before, {{0, 10, 5}, {1, 10, 6}, {0, 20, 7}, {1, 60, 8}}, is_alive);
  CHECK(holders.dying == std::vector<GpuProcess>{{1, 10, 6}, {0, 20, 7}});
  CHECK(holders.foreign == std::vector<GpuProcess>{{1, 60, 8}});
}

TEST_CASE("describe: GPU processes, in GiB, not too many") {
  CHECK(describe({{0, 71, 12'884'901'888}, {1, 72, 0}}) ==
        "GPU 0: 12.0 GiB by pid 71, GPU 1: memory by pid 72");
  const std::vector<GpuProcess> many(10, GpuProcess{2, 5, 1u << 30});
  CHECK(describe(many, 1) == "GPU 2: 1.0 GiB by pid 5 and 9 more");
}
