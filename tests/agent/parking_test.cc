// SPDX-License-Identifier: Apache-2.0
#include "agent/parking.h"

#include <algorithm>
#include <map>

#include "agent/worker_environment.h"
#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

using Variables = Parking::Variables;

struct Sent {
  Parking::Send function() {
    return [this](int local_rank, const Variables& news) {
      if (refuse) return false;
      by_rank[local_rank] = news;
      return true;
    };
  }
  std::map<int, Variables> by_rank;
  bool refuse = false;
};

const std::vector<Variables> kStarted = {{"A=1", "LOCAL_RANK=0"}, {"A=1", "LOCAL_RANK=1"}};
const std::vector<Variables> kPlaced = {{"A=1", "LOCAL_RANK=0", "RANK=6"},
                                        {"A=2", "LOCAL_RANK=1", "RANK=7"}};

}  // namespace

TEST_CASE("Parking: workers come before their place, or after it") {
  Sent sent;
  int done = 0;
  Parking parking(kStarted, sent.function());
  parking.arrived(0);
  CHECK(sent.by_rank.empty());
  parking.assign(kPlaced, [&] { ++done; });
  CHECK(sent.by_rank == std::map<int, Variables>{{0, {"RANK=6"}}});
  CHECK(done == 0);
  parking.arrived(1);
  CHECK(sent.by_rank.at(1) == Variables{"A=2", "RANK=7"});
  CHECK(done == 1);
  parking.arrived(1);  // once is enough
  CHECK(done == 1);
}

TEST_CASE("Parking: a worker whose connection ended is sent its place when it comes again") {
  Sent sent;
  int done = 0;
  Parking parking(kStarted, sent.function());
  parking.arrived(0);
  parking.arrived(1);
  sent.refuse = true;
  parking.assign(kPlaced, [&] { ++done; });
  sent.refuse = false;
  parking.arrived(1);
  CHECK(done == 0);
  parking.arrived(7);  // there is none
  parking.arrived(0);
  CHECK(done == 1);
}

TEST_CASE("parked_environment has nothing that a place gives, and the place brings the rest") {
  WorkerEnvironmentOptions options;
  options.inherited = {{"PATH", "/bin"}, {"RANK", "99"}};
  options.run_id = "job";
  options.num_workers = 2;
  const Variables parked = parked_environment(options, 1, "/tmp/agent");
  const auto has = [](const Variables& variables, const std::string& begin) {
    return std::any_of(variables.begin(), variables.end(),
                       [&](const std::string& each) { return each.starts_with(begin); });
  };
  for (const char* there : {"PATH=/bin", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "DDPRUN_ROUND=0",
                            "TORCHELASTIC_RUN_ID=job", "DDPRUN_AGENT_SOCKET=/tmp/agent"}) {
    INFO(there);
    CHECK(has(parked, there));
  }
  for (const char* missing :
       {"RANK=", "WORLD_SIZE=", "GROUP_RANK=", "ROLE_RANK=", "MASTER_ADDR=", "MASTER_PORT=",
        "TORCHELASTIC_RESTART_COUNT=", "DDPRUN_NODE_ADDR=", "TORCHELASTIC_ERROR_FILE="}) {
    INFO(missing);
    CHECK_FALSE(has(parked, missing));
  }
  membership::StartRound round;
  round.round = 2;
  round.first_global_rank = 6;
  round.world_size = 8;
  round.master_addr = "10.0.0.1";
  round.master_port = 4000;
  const Variables placed = worker_environment(options, round, 1, {"/tmp/error", "/tmp/agent"});
  Variables merged = environment_news(parked, placed);
  CHECK(has(merged, "RANK=7"));
  CHECK(has(merged, "DDPRUN_ROUND=2"));
  CHECK_FALSE(has(merged, "PATH="));
  CHECK_FALSE(has(merged, "LOCAL_RANK="));
}

}  // namespace ddprun::agent
