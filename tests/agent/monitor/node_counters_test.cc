// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/node_monitor.h"

#include <cmath>
#include <set>

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

// The formats of Linux 6.1.
constexpr char kStat[] =
    "cpu  1234 56 789 100000 400 0 30 7 5 0\n"
    "cpu0 617 28 394 50000 200 0 15 3 2 0\n"
    "intr 12345 0 0\n";
constexpr char kMeminfo[] =
    "MemTotal:       16384000 kB\n"
    "MemFree:         1000000 kB\n"
    "MemAvailable:   12288000 kB\n"
    "HugePages_Total:       0\n";
constexpr char kNetDev[] =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop "
    "fifo colls carrier compressed\n"
    "    lo: 9999999   10 0 0 0 0 0 0  9999999   10 0 0 0 0 0 0\n"
    "  eth0:1000000   20 0 0 0 0 0 0   500000   15 0 0 0 0 0 0\n"
    "docker0: 77 1 0 0 0 0 0 0 88 1 0 0 0 0 0 0\n";
constexpr char kSnmp[] =
    "Ip: Forwarding DefaultTTL\n"
    "Ip: 1 64\n"
    "Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets "
    "CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors\n"
    "Tcp: 1 200 120000 -1 6 5 4 3 2 1000 2000 17 0 1 0\n"
    "Udp: InDatagrams\n"
    "Udp: 12\n";

InterfaceCounters moved(const char* name, std::uint64_t bytes) { return {name, bytes, bytes}; }

std::vector<std::string> names_of(const std::vector<InterfaceCounters>& all) {
  std::vector<std::string> names;
  for (const auto& each : all) names.push_back(each.name);
  return names;
}

}  // namespace

TEST_CASE("node counters: CPU time by mode, in seconds") {
  const auto cpu = parse_cpu_seconds(kStat, 100);
  REQUIRE(cpu);
  CHECK(cpu->user == 12.34);
  CHECK(cpu->nice == 0.56);
  CHECK(cpu->system == 7.89);
  CHECK(cpu->idle == 1000);
  CHECK(cpu->iowait == 4);
  CHECK(cpu->softirq == 0.3);
  CHECK(cpu->steal == 0.07);
  CHECK(std::abs(cpu->total() - 1025.16) < 1e-9);
  CHECK(std::abs(cpu->busy() - 21.16) < 1e-9);
  CHECK(parse_cpu_seconds("cpu  1 2 3 4\n", 100));  // the line of an old kernel
  CHECK_FALSE(parse_cpu_seconds("cpu  1 2 3\n", 100));
  CHECK_FALSE(parse_cpu_seconds("cpu  1 -2 3 4\n", 100));
  CHECK_FALSE(parse_cpu_seconds("cpu0 1 2 3 4\n", 100));
  CHECK_FALSE(parse_cpu_seconds("", 100));
  CHECK_FALSE(parse_cpu_seconds(kStat, 0));
}

TEST_CASE("node counters: memory") {
  const auto memory = parse_memory(kMeminfo);
  REQUIRE(memory);
  CHECK(memory->total_bytes == 16'384'000ULL * 1024);
  CHECK(memory->available_bytes == 12'288'000ULL * 1024);
  CHECK(parse_memory("MemTotal: 5 kB\nMemAvailable: 9 kB\n")->available_bytes == 5 * 1024);
  CHECK_FALSE(parse_memory("MemTotal: 5 kB\n"));
  CHECK_FALSE(parse_memory("MemTotal: much kB\nMemAvailable: 9 kB\n"));
  CHECK_FALSE(parse_memory("MemTotal: 18446744073709551615 kB\nMemAvailable: 9 kB\n"));
  CHECK_FALSE(parse_memory("\n\n:"));
}

TEST_CASE("node counters: interfaces' bytes, whatever stands beside their names") {
  const auto all = parse_interfaces(kNetDev);
  REQUIRE(names_of(all) == std::vector<std::string>{"eth0", "docker0"});
  CHECK(all[0].received_bytes == 1'000'000);
  CHECK(all[0].sent_bytes == 500'000);
  CHECK(all[1].received_bytes == 77);
  CHECK(all[1].sent_bytes == 88);
  CHECK(parse_interfaces("eth0: 1 2 3 4 5 6 7 8\n").empty());
  CHECK(parse_interfaces("eth0: x 2 3 4 5 6 7 8 9\n").empty());
  CHECK(parse_interfaces(": 1 2 3 4 5 6 7 8 9\n").empty());
  CHECK(parse_interfaces("eth0:").empty());
  CHECK(parse_interfaces("eth0: 99999999999999999999 2 3 4 5 6 7 8 9").empty());
  CHECK(parse_interfaces("eth0: 1 2 3 4 5 6 7 8 9").size() == 1);
}

TEST_CASE("node counters: TCP's retransmits, by the columns' names") {
  const auto tcp = parse_tcp(kSnmp);
  REQUIRE(tcp);
  CHECK(tcp->sent_segments == 2000);
  CHECK(tcp->retransmitted_segments == 17);
  CHECK(parse_tcp("Tcp: RetransSegs OutSegs\nTcp: 1 2\n")->retransmitted_segments == 1);
  CHECK_FALSE(parse_tcp("Tcp: OutSegs RetransSegs\n"));
  CHECK_FALSE(parse_tcp("Tcp: OutSegs RetransSegs\nTcp: 5\n"));
  CHECK_FALSE(parse_tcp("Tcp: OutSegs\nTcp: 5\n"));
  CHECK_FALSE(parse_tcp("Tcp:\nTcp:\n"));
  CHECK_FALSE(parse_tcp(""));
}

TEST_CASE("node counters: interfaces with a device count, else all that moved a byte") {
  const std::vector<InterfaceCounters> all = {moved("veth1", 5), moved("ib1", 0), moved("eth1", 7),
                                              moved("eth0", 6), moved("bond0", 13)};
  const std::set<std::string> devices = {"eth0", "eth1", "ib1"};
  const auto is_one = [&](const std::string& name) { return devices.contains(name); };
  CHECK(names_of(choose_interfaces(all, 8, is_one)) == std::vector<std::string>{"eth0", "eth1"});
  CHECK(names_of(choose_interfaces(all, 1, is_one)) == std::vector<std::string>{"eth0"});
  const auto none = [](const std::string&) { return false; };
  CHECK(names_of(choose_interfaces(all, 3, none)) ==
        std::vector<std::string>{"bond0", "eth0", "eth1"});
  CHECK(choose_interfaces({}, 8, is_one).empty());
}

TEST_CASE("node counters: the figures of this machine are there") {
  const NodeCounters now = read_node_counters(8);
  REQUIRE(now.cpu);
  CHECK(now.cpu->total() > 0);
  REQUIRE(now.num_cpus);
  CHECK(*now.num_cpus >= 1);
  REQUIRE(now.memory);
  CHECK(now.memory->available_bytes <= now.memory->total_bytes);
  CHECK(now.tcp);
  CHECK(now.interfaces.size() <= 8);
}

}  // namespace ddprun::agent
