// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_error.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>

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

TEST_CASE("GpuErrorLog: tells a few errors of a round, and keeps those of broken hardware") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const ddprun::UniqueFd kernel(ends[1]);
  const auto write = [&](int xid) {
    const std::string record =
        "4,1,2,-;NVRM: Xid (PCI:0000:3b:00): " + std::to_string(xid) + ", bad";
    REQUIRE(::send(kernel.get(), record.data(), record.size(), 0) > 0);
  };
  boost::asio::io_context io;
  std::vector<std::string> told;
  const auto log = GpuErrorLog::watch(io, ddprun::UniqueFd(ends[0]),
                                      [&](const std::string& line) { told.push_back(line); });
  CHECK(log->of_round().empty());
  write(79);
  io.run_one();  // as soon as it is written
  REQUIRE(told.size() == 1);
  CHECK(told[0].starts_with("GPU 0000:3b:00: Xid 79: bad (the GPU's fault"));
  for (int i = 0; i < 20; ++i) write(45);
  const std::string of_round = log->of_round();
  CHECK(told.size() == 8);
  CHECK(of_round.starts_with("Xid 79 on GPU 0000:3b:00, "));
  CHECK(of_round.ends_with("; and 18 more in the kernel's log"));
  log->begin_round();
  CHECK(log->of_round().empty());
}
