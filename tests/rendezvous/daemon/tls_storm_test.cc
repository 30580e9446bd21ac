// SPDX-License-Identifier: Apache-2.0
// Agents that come over TLS, all at once.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/rendezvous/daemon/test_certificates.h"
#include "tests/support/catch.h"
#include "tests/support/sanitizers.h"
#include "tests/support/secret_file.h"

namespace ddprun::rendezvous::testing {
namespace {

using ddprun::test::secret_of;

constexpr int kNumAgents = test::kIsSanitized ? 60 : 400;

TEST_CASE(
    "Daemon over TLS: hundreds of agents of one address join at once, and come back at once") {
  const Certificates certificates;
  DaemonOptions options;
  options.token = secret_of("a token of many bytes");
  options.tls = certificates.server();
  options.reconnect_grace = 60s;
  options.tls_turn = 60s;  // so long that nobody needs to make way
  ServedDaemon daemon(options);
  boost::asio::io_context io{1};
  std::vector<std::unique_ptr<TestAgent>> agents;
  for (int i = 0; i < kNumAgents; ++i) {
    const auto join = make_join("node" + std::to_string(i), kNumAgents, 1);
    membership::LinkSecurity security{options.token, certificates.client()};
    agents.push_back(std::make_unique<TestAgent>(io, TestAgent::options(daemon.port, join),
                                                 std::move(security)));
  }
  const auto all = [&](const auto& is_so) {
    return run_until(
        io, [&] { return std::all_of(agents.begin(), agents.end(), is_so); }, 30s);
  };
  REQUIRE(all([](const auto& agent) { return agent->rounds.size() == 1; }));
  for (const auto& agent : agents) agent->cut_link();
  REQUIRE(all([](const auto& agent) {
    return !agent->told.empty() && agent->told.back() == "the rendezvous is back";
  }));
  for (const auto& agent : agents) agent->workers_succeed();
  REQUIRE(all([](const auto& agent) { return agent->exit.has_value(); }));
  for (const auto& agent : agents) CHECK(agent->exit->verdict.exit_code == 0);
  daemon.stop();
  for (const std::string& line : lines()) {
    INFO(line);
    CHECK(line.find("closed") == line.npos);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
