// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/node_monitor.h"

#include <chrono>

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

NodeCounters counters(double busy, double idle, std::uint64_t retransmitted,
                      std::vector<InterfaceCounters> interfaces) {
  NodeCounters now;
  now.cpu = CpuSeconds{.user = busy, .idle = idle};
  now.num_cpus = 4;
  now.memory = NodeMemory{1000, 400};
  now.tcp = TcpCounters{1'000'000, retransmitted};
  now.interfaces = std::move(interfaces);
  return now;
}

}  // namespace

TEST_CASE("node rates: they are known from the second reading on") {
  const Clock::time_point begin{};
  NodeRates rates;
  const auto first = rates.report(counters(10, 90, 5, {{"eth0", 1000, 2000}}), {}, begin);
  CHECK(first.num_cpus == 4);
  CHECK(first.memory_bytes == 1000u);
  CHECK(first.memory_used_bytes == 600u);
  CHECK_FALSE(first.cpu);
  CHECK_FALSE(first.retransmit_rate);
  CHECK(first.interfaces.empty());
  const auto next =
      rates.report(counters(15, 105, 15, {{"eth0", 6000, 2500}, {"eth1", 1, 1}}), {}, begin + 5s);
  CHECK(next.cpu == 0.25);
  CHECK(next.retransmit_rate == 2.0);
  REQUIRE(next.interfaces.size() == 1);  // the other interface was not there at the first reading
  CHECK(next.interfaces[0] == membership::InterfaceReport{"eth0", 1000, 100});
}

TEST_CASE("node rates: a counter that goes back, or no time that passed, is no rate") {
  const Clock::time_point begin{};
  NodeRates rates;
  rates.report(counters(10, 90, 5, {{"eth0", 1000, 2000}, {"eth1", 5, 5}}), {}, begin);
  const auto next =
      rates.report(counters(10, 90, 4, {{"eth0", 999, 2000}, {"eth1", 10, 5}}), {}, begin + 5s);
  CHECK_FALSE(next.cpu);
  CHECK_FALSE(next.retransmit_rate);
  REQUIRE(next.interfaces.size() == 1);
  CHECK(next.interfaces[0].name == "eth1");
  const auto at_once = rates.report(counters(11, 90, 9, {{"eth1", 10, 5}}), {}, begin + 5s);
  CHECK_FALSE(at_once.retransmit_rate);
  CHECK(at_once.interfaces.empty());
  CHECK(rates.report({}, {}, begin + 9s) == membership::NodeReport());  // nothing can be read
}

TEST_CASE("gpu status: lines of ddprun-gpus, hostile ones left out") {
  const auto gpus = parse_gpu_statuses(
      "0 use_percent 97\n0 memory 85899345920\n0 memory_used 1073741824\n0 milliwatts 512300\n"
      "0 celsius 61\n1 celsius -4\n1 use_percent 250\n2 milliwatts -1\n-1 use_percent 5\n"
      "99999 use_percent 5\nx use_percent 5\n1 memory\n1 memory 5 6\n\n1 unheard_of 3");
  REQUIRE(gpus.size() == 2);
  CHECK(gpus.at(0).use == 0.97);
  CHECK(gpus.at(0).memory_bytes == 85'899'345'920u);
  CHECK(gpus.at(0).memory_used_bytes == 1'073'741'824u);
  CHECK(gpus.at(0).watts == 512.3);
  CHECK(gpus.at(0).celsius == 61.0);
  CHECK(gpus.at(1).celsius == -4.0);
  CHECK(gpus.at(1).use == 1.0);
  CHECK_FALSE(gpus.at(1).memory_bytes);
  NodeRates rates;
  const auto report = rates.report({}, gpus, {});
  REQUIRE(report.gpus.size() == 2);
  CHECK(report.gpus[1].index == 1);
  CHECK(report.gpus[1].celsius == -4.0);
}

}  // namespace ddprun::agent
