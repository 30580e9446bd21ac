// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_environment.h"

#include <algorithm>

#include "common/env_names.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

// The value of `name`; "(unset)" where there is none; fails when it is there twice.
std::string value(const std::vector<std::string>& environment, const std::string& name) {
  std::string found = "(unset)";
  int count = 0;
  for (const std::string& entry : environment) {
    if (!entry.starts_with(name + "=")) continue;
    found = entry.substr(name.size() + 1);
    ++count;
  }
  REQUIRE(count <= 1);
  return found;
}

membership::StartRound third_round() {
  membership::StartRound round;
  round.round = 3;
  round.restart_count = 2;
  round.node_rank = 1;
  round.num_nodes = 2;
  round.first_global_rank = 4;
  round.world_size = 6;
  round.first_role_rank = 2;
  round.role_world_size = 4;
  round.node_addr = "10.0.0.2";
  round.master_node_addr = "10.0.0.1";
  round.master_addr = "10.0.0.1";
  round.master_port = 5555;
  return round;
}

bool has(const std::vector<std::string>& variables, const std::string& begin) {
  return std::any_of(variables.begin(), variables.end(),
                     [&](const std::string& each) { return each.starts_with(begin); });
}

}  // namespace

TEST_CASE("worker environment: torchrun's variables and DDPRUN_*, with this worker's place") {
  WorkerEnvironmentOptions options;
  options.inherited = {{"PATH", "/bin"}, {"RANK", "stale"}};
  options.run_id = "job";
  options.role = "trainer";
  options.signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  options.max_restarts = 5;
  options.num_workers = 2;
  options.terminal_columns = 99;
  const auto environment =
      worker_environment(options, third_round(), 1, {"/tmp/e.json", "/tmp/d/agent.sock"});
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"PATH", "/bin"},
      {"RANK", "5"},
      {"DDPRUN_AGENT_SOCKET", "/tmp/d/agent.sock"},
      {"LOCAL_RANK", "1"},
      {"GROUP_RANK", "1"},
      {"ROLE_RANK", "3"},
      {"ROLE_NAME", "trainer"},
      {"WORLD_SIZE", "6"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "5555"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "5"},
      {"TORCHELASTIC_RUN_ID", "job"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"DDPRUN_ROUND", "3"},
      {"DDPRUN_NODE_ADDR", "10.0.0.2"},
      {"DDPRUN_MASTER_NODE_ADDR", "10.0.0.1"},
      {"DDPRUN_TERMINAL_COLUMNS", "99"}};
  for (const auto& [name, expected_value] : expected) {
    CAPTURE(name);
    CHECK(value(environment, name) == expected_value);
  }
  CHECK(environment.size() == expected.size());
}

TEST_CASE("worker environment: ddprun's own variables never have the user's values") {
  WorkerEnvironmentOptions options;
  for (const std::string_view name : env::kOfWorkers) {
    options.inherited[std::string(name)] = "the user's";
  }
  for (const std::string& each : worker_environment(options, third_round(), 0, {})) {
    CAPTURE(each);
    CHECK_FALSE(each.ends_with("=the user's"));
    const std::string name = each.substr(0, each.find('='));
    const bool is_listed =
        std::find(env::kOfWorkers.begin(), env::kOfWorkers.end(), name) != env::kOfWorkers.end();
    CHECK((is_listed || name == env::kNcclAsyncErrorHandling));
  }
}

TEST_CASE("worker environment: the user's values are kept, and a single worker keeps its threads") {
  WorkerEnvironmentOptions options;
  options.terminal_columns = 99;
  CHECK(value(worker_environment(options, third_round(), 0, {}), "OMP_NUM_THREADS") == "(unset)");
  CHECK(value(worker_environment(options, third_round(), 0, {}), "DDPRUN_TERMINAL_COLUMNS") ==
        "(unset)");
  CHECK(value(worker_environment(options, third_round(), 0, {}), "TORCHELASTIC_ERROR_FILE") ==
        "(unset)");
  options.num_workers = 2;
  options.inherited = {{"OMP_NUM_THREADS", "7"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}};
  const auto environment = worker_environment(options, third_round(), 0, {});
  CHECK(value(environment, "OMP_NUM_THREADS") == "7");
  CHECK(value(environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "3");
}

TEST_CASE("worker environment: the observer's folder comes before the user's in PYTHONPATH") {
  WorkerEnvironmentOptions options;
  const WorkerPaths paths{.error_file = "", .agent_socket = "", .observer = "/d/observe"};
  CHECK(value(worker_environment(options, third_round(), 0, paths), "PYTHONPATH") == "/d/observe");
  options.inherited = {{"PYTHONPATH", "/a:/b"}};
  CHECK(value(worker_environment(options, third_round(), 0, paths), "PYTHONPATH") ==
        "/d/observe:/a:/b");
  CHECK(value(worker_environment(options, third_round(), 0, {}), "PYTHONPATH") == "/a:/b");
}

TEST_CASE("worker environment: the socket of an agent around this one isn't handed on") {
  WorkerEnvironmentOptions options;
  options.inherited = {{"DDPRUN_AGENT_SOCKET", "/outer"},
                       {"TORCHELASTIC_ERROR_FILE", "/outer.json"}};
  const auto environment = worker_environment(options, third_round(), 0, {});
  CHECK(value(environment, "DDPRUN_AGENT_SOCKET") == "(unset)");
  CHECK(value(environment, "TORCHELASTIC_ERROR_FILE") == "(unset)");
}

TEST_CASE("parked_environment has nothing that a place gives, and the place brings the rest") {
  WorkerEnvironmentOptions options;
  options.inherited = {{"PATH", "/bin"}, {"RANK", "99"}};
  options.run_id = "job";
  options.num_workers = 2;
  const std::vector<std::string> parked = parked_environment(options, 1, "/tmp/agent");
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
  const std::vector<std::string> placed =
      worker_environment(options, round, 1, {"/tmp/error", "/tmp/agent"});
  const std::vector<std::string> merged = environment_news(parked, placed);
  CHECK(has(merged, "RANK=7"));
  CHECK(has(merged, "DDPRUN_ROUND=2"));
  CHECK_FALSE(has(merged, "PATH="));
  CHECK_FALSE(has(merged, "LOCAL_RANK="));
}

TEST_CASE("worker environment: a worker that goes on in place gets all that a place gives") {
  WorkerEnvironmentOptions options;
  options.inherited = {{"PATH", "/bin"}};
  options.num_workers = 4;
  CHECK_FALSE(has(worker_environment(options, third_round(), 1, {}), "DDPRUN_RECOVERY="));
  options.recovers_in_place = true;
  CHECK(has(worker_environment(options, third_round(), 1, {}), "DDPRUN_RECOVERY=inplace"));
  membership::StartRound round = third_round();
  round.first_global_rank = 6;
  const auto place = place_variables(options, round, 1, 3, 2);
  for (const char* variable :
       {"RANK=7", "LOCAL_RANK=1", "DDPRUN_LOCAL_RANK=2", "LOCAL_WORLD_SIZE=3", "MASTER_PORT="}) {
    INFO(variable);
    CHECK(has(place, variable));
  }
  for (const char* variable : {"PATH=", "DDPRUN_RECOVERY=", "TORCHELASTIC_ERROR_FILE="}) {
    CHECK_FALSE(has(place, variable));
  }
}

TEST_CASE("worker environment: all workers are LOCAL_RANK 0 with one GPU for each") {
  WorkerEnvironmentOptions options;
  options.inherited = {{"CUDA_VISIBLE_DEVICES", "4,6"}, {"DDPRUN_LOCAL_RANK", "stale"}};
  options.num_workers = 2;
  CHECK_FALSE(has(worker_environment(options, third_round(), 1, {}), "DDPRUN_LOCAL_RANK="));
  options.devices = {"4", "6"};
  const auto environment = worker_environment(options, third_round(), 1, {});
  for (const char* variable : {"LOCAL_RANK=0", "DDPRUN_LOCAL_RANK=1", "CUDA_VISIBLE_DEVICES=6"}) {
    CHECK(has(environment, variable));
  }
  CHECK_FALSE(has(environment, "HIP_VISIBLE_DEVICES="));
  options.inherited["HIP_VISIBLE_DEVICES"] = "4,6";
  CHECK(has(worker_environment(options, third_round(), 0, {}), "HIP_VISIBLE_DEVICES=4"));
}

TEST_CASE("worker environment: the network's variables are defaults of rounds of several nodes") {
  WorkerEnvironmentOptions options;
  options.network = [](const std::string& node_addr) {
    return Environment{{"GLOO_SOCKET_IFNAME", "of " + node_addr}};
  };
  membership::StartRound round = third_round();
  const auto gloo = [&] {
    return value(worker_environment(options, round, 0, {}), "GLOO_SOCKET_IFNAME");
  };
  const auto placed = [&] {
    return value(place_variables(options, round, 0, 1, 0), "GLOO_SOCKET_IFNAME");
  };
  CHECK(gloo() == "of 10.0.0.2");
  CHECK(placed() == "of 10.0.0.2");
  CHECK_FALSE(has(parked_environment(options, 0, "/tmp/agent"), "GLOO_SOCKET_IFNAME"));
  options.inherited = {{"GLOO_SOCKET_IFNAME", "the user's"}};
  CHECK(gloo() == "the user's");
  CHECK(placed() == "the user's");
  options.inherited.clear();
  round.num_nodes = 1;
  CHECK(gloo() == "(unset)");
}
