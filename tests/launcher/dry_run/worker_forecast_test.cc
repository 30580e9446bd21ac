// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/worker_forecast.h"

#include <algorithm>

#include "tests/support/catch.h"

using namespace ddprun::launcher;
using ddprun::membership::StartRound;

namespace {

RoundKnowledge one_node(int num_workers) {
  RoundKnowledge known;
  known.nodes = {{.num_workers = num_workers, .addr = "127.0.0.1"}};
  known.role = "default";
  return known;
}

WorkerScene scene(int num_workers) {
  WorkerScene scene;
  scene.environment.inherited = {{"HOME", "/root"}, {"RANK", "0"}, {"DDPRUN_LOCAL_RANK", "4"}};
  scene.environment.run_id = "job";
  scene.environment.num_workers = num_workers;
  scene.command.argv = {"/bin/echo", "$local_rank"};
  scene.socket_directory = "/tmp/ddprun-<random>";
  return scene;
}

const ForecastVariable* find(const std::vector<ForecastVariable>& all, const std::string& name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("worker forecast: it says what ddprun sets, also if it was inherited, and no more") {
  const RoundKnowledge known = one_node(2);
  const StartRound round = forecast_rounds(known).front();
  const WorkerForecaster forecaster(scene(2), known, round);
  const auto common = forecaster.common();
  CHECK(find(common, "HOME") == nullptr);
  REQUIRE(find(common, "RANK") != nullptr);
  CHECK(*find(common, "RANK") == ForecastVariable{"RANK", "0", false});
  CHECK(forecaster.removed() == std::vector<std::string>{"DDPRUN_LOCAL_RANK"});
}

TEST_CASE(
    "worker forecast: values that the start decides are marked, with what can be said of them") {
  const RoundKnowledge known = one_node(2);
  const WorkerForecaster forecaster(scene(2), known, forecast_rounds(known).front());
  const auto common = forecaster.common();
  CHECK(*find(common, "MASTER_PORT") == ForecastVariable{"MASTER_PORT", "<a free port>", true});
  CHECK(find(common, "DDPRUN_AGENT_SOCKET")->is_later);
  CHECK(find(common, "DDPRUN_AGENT_SOCKET")->value == "/tmp/ddprun-<random>/agent.sock");
  CHECK_FALSE(find(common, "TORCHELASTIC_RUN_ID")->is_later);
  CHECK_FALSE(find(common, "MASTER_ADDR")->is_later);
}

TEST_CASE("worker forecast: a worker has what is otherwise than the first one's") {
  const RoundKnowledge known = one_node(2);
  const StartRound round = forecast_rounds(known).front();
  const WorkerForecaster forecaster(scene(2), known, round);
  const auto workers = forecaster.workers(round, 2);
  REQUIRE(workers.size() == 2);
  CHECK(workers[0].environment.empty());
  CHECK(find(workers[1].environment, "LOCAL_RANK")->value == "1");
  CHECK(find(workers[1].environment, "WORLD_SIZE") == nullptr);
  CHECK(find(workers[1].environment, "MASTER_PORT") == nullptr);
  CHECK(workers[1].command == std::vector<std::string>{"/bin/echo", "1"});
  CHECK(workers[1].global_rank == 1);
}

TEST_CASE("worker forecast: a node with one worker has no OMP_NUM_THREADS, others have") {
  const RoundKnowledge known = one_node(2);
  const StartRound round = forecast_rounds(known).front();
  const WorkerForecaster forecaster(scene(2), known, round);
  CHECK(find(forecaster.common(), "OMP_NUM_THREADS") != nullptr);
  const auto alone = forecaster.workers(round, 1);
  CHECK(alone.front().without == std::vector<std::string>{"OMP_NUM_THREADS"});
}

TEST_CASE("worker forecast: ranks that a meeting gives out are not known") {
  RoundKnowledge known = one_node(2);
  known.ranks = false;
  const StartRound round = forecast_rounds(known).front();
  const WorkerForecaster forecaster(scene(2), known, round);
  CHECK(find(forecaster.common(), "RANK")->is_later);
  CHECK_FALSE(find(forecaster.common(), "LOCAL_RANK")->is_later);
  CHECK_FALSE(forecaster.workers(round, 1).front().global_rank.has_value());
}
