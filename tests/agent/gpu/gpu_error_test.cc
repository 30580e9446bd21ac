// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_error.h"

#include "tests/support/catch.h"

using namespace ddprun::agent;

TEST_CASE("GpuError: a record of the driver is read, with and without a process") {
  const auto error = parse_gpu_error(
      "4,1234,98765432,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=71, name=python3, Ch 00000008\n"
      " SUBSYSTEM=pci\n");
  REQUIRE(error);
  CHECK(error->xid == 31);
  CHECK(error->device == "0000:3b:00");
  CHECK(error->text == "pid=71, name=python3, Ch 00000008");
  CHECK(error->at_us == 98'765'432);
  CHECK(parse_gpu_error("4,1,2,-;NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.")->text ==
        "GPU has fallen off the bus.");
  CHECK(parse_gpu_error("4,1,2,-;NVRM: Xid (PCI:0000:03:00): 8")->text.empty());
}

TEST_CASE("GpuError: other records are none, cut ones neither") {
  for (const char* record :
       {"", "4,1,2,-;", "4,1,2,-;eth0: link is up", "4,1,x,-;NVRM: Xid (PCI:0): 1, a",
        "4,1,2,-;NVRM: Xid (PCI:0000:3b:00", "4,1,2,-;NVRM: Xid (PCI:0): many, a",
        "4,1,2,-;evil: NVRM: Xid (PCI:0): 79, a"}) {
    CAPTURE(record);
    CHECK_FALSE(parse_gpu_error(record));
  }
}
