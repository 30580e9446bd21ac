// SPDX-License-Identifier: Apache-2.0
#include "agent/standing/gang_process.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("Supervisor's leaf: it is below the unit's own cgroup if there is version 2") {
  const auto of = [](const char* text) { return supervisor_leaf(text, "/sys/fs/cgroup"); };
  CHECK(of("0::/system.slice/ddprun-agent@alice.service\n") ==
        "/sys/fs/cgroup/system.slice/ddprun-agent@alice.service/ddprun-supervisor");
  CHECK(of("1:name=systemd:/a\n0::/b\n") == "/sys/fs/cgroup/b/ddprun-supervisor");
  CHECK(of("1:name=systemd:/a\n2:memory:/a\n") == std::nullopt);
  CHECK(of("0::/\n") == std::nullopt);
  CHECK(of("0::/a.service/ddprun-supervisor\n") == std::nullopt);
  CHECK(of("") == std::nullopt);
}

}  // namespace
}  // namespace ddprun::launcher
