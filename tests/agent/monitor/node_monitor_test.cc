// SPDX-License-Identifier: Apache-2.0
// NodeMonitor over the real ddprun-gpus and an NVML whose answers a file gives; WorkerUseReader
// over this process.
#include "agent/monitor/node_monitor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "agent/monitor/agent_metrics.h"
#include "common/clock.h"
#include "common/env_names.h"
#include "common/process_facts.h"
#include "common/socket.h"
#include "tests/support/accept_from.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::agent;
using std::chrono::milliseconds;

TEST_CASE("NodeMonitor: the first report has rates, a later one what NVML says") {
  test::TempDirectory folder;
  const std::string list = folder.path() + "/list", state = folder.path() + "/state";
  std::ofstream(list) << "";
  std::ofstream(state)
      << "0 use_percent 97\n0 memory 1000\n0 memory_used 400\n0 milliwatts 700000\n"
         "1 celsius 61\n";
  ::setenv(env::kNvmlLibrary, DDPRUN_FAKE_NVML, 1);
  ::setenv("FAKE_NVML_LIST", list.c_str(), 1);
  ::setenv("FAKE_NVML_STATE", state.c_str(), 1);
  boost::asio::io_context io;
  std::vector<membership::NodeReport> reports;
  NodeMonitor monitor(io,
                      {.gpus_program = helper_program("ddprun-gpus"),
                       .interval = milliseconds{20},
                       .first_wait = milliseconds{20}},
                      [&](membership::NodeReport report) { reports.push_back(std::move(report)); });
  monitor.start();
  const auto deadline = Deadline::after(std::chrono::seconds{30});
  while ((reports.empty() || reports.back().gpus.empty()) && !deadline.expired()) {
    io.run_one_for(milliseconds{100});
  }
  ::unsetenv(env::kNvmlLibrary);
  REQUIRE_FALSE(reports.empty());
  CHECK(reports.front().retransmit_rate);
  CHECK(reports.front().memory_bytes);
  const auto& gpus = reports.back().gpus;
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].use == 0.97);
  CHECK(gpus[0].memory_used_bytes == 400u);
  CHECK(gpus[0].watts == 700.0);
  CHECK_FALSE(gpus[0].celsius);
  CHECK(gpus[1].celsius == 61.0);
  CHECK(monitor.read().gpus.size() == 2);
}

TEST_CASE("NodeMonitor: a report that is taken is said to nobody else, and puts off the next one") {
  boost::asio::io_context io;
  std::vector<Clock::time_point> said;
  NodeMonitor monitor(
      io, {.gpus_program = "", .interval = milliseconds{500}, .first_wait = milliseconds{1}},
      [&](const membership::NodeReport&) { said.push_back(Clock::now()); });
  CHECK_FALSE(monitor.take_report());
  monitor.start();
  const auto deadline = Deadline::after(std::chrono::seconds{30});
  while (said.empty() && !deadline.expired()) io.run_one_for(milliseconds{100});
  REQUIRE(said.size() == 1);
  CHECK_FALSE(monitor.take_report());  // the report would be the same again
  std::optional<membership::NodeReport> taken;
  while (!taken && said.size() == 1 && !deadline.expired()) {
    io.run_one_for(milliseconds{1});
    taken = monitor.take_report();
  }
  REQUIRE(taken);
  CHECK(taken->retransmit_rate);
  const auto taken_at = Clock::now();
  CHECK_FALSE(monitor.take_report());
  while (said.size() == 1 && !deadline.expired()) io.run_one_for(milliseconds{100});
  REQUIRE(said.size() == 2);
  CHECK(said[1] - taken_at >= milliseconds{510});
}

TEST_CASE("WorkerUseReader: CPU, memory and sockets of a process, none of one that has ended") {
  const UniqueFd listener = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  UniqueFd client = connect_to({.host = "127.0.0.1", .port = local_address(listener.get()).port()},
                               Deadline::after(std::chrono::seconds{10}));
  const UniqueFd server = accept_from(listener.get(), Deadline::after(std::chrono::seconds{10}));
  WorkerUseReader reader;
  const auto now = Clock::now();
  const auto uses = reader.look({0, ::getpid()}, now);
  REQUIRE(uses.size() == 2);
  CHECK_FALSE(uses[0]);
  REQUIRE(uses[1]);
  CHECK(uses[1]->resident_bytes > 100'000);
  CHECK(uses[1]->num_sockets >= 3);
  if (uses[1]->num_connections) CHECK(*uses[1]->num_connections >= 2);
  client.reset();
  const auto again = reader.look({0, ::getpid()}, now + std::chrono::seconds{5});
  CHECK(again.at(1)->num_sockets == uses[1]->num_sockets);  // sockets are not counted again yet
  CHECK(again.at(1)->cpu >= uses[1]->cpu);
  const auto anew = reader.look({0, ::getpid()}, now + std::chrono::seconds{15});
  CHECK(anew.at(1)->num_sockets + 1 == uses[1]->num_sockets);
  const auto later = reader.look({::getpid(), 0}, now);
  CHECK(later[0]);
  CHECK_FALSE(later[1]);
  CHECK(reader.look(std::vector<pid_t>(100, ::getpid()), now).size() ==
        WorkerUseReader::kMostWorkers);
}
