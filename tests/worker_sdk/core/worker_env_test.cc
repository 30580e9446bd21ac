// SPDX-License-Identifier: Apache-2.0
// A worker's environment: its values, and one error for all its problems.
#include "worker_sdk/core/worker_env.h"

#include <map>
#include <string>
#include <vector>

#include "common/env_names.h"
#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun {
namespace {

using test::contains;
using Variables = std::map<std::string, std::string>;

// The variables that torchrun sets for rank 3 of 4 on the second of two nodes.
Variables torchrun_variables() {
  return {{env::kRank, "3"},
          {env::kLocalRank, "1"},
          {env::kWorldSize, "4"},
          {env::kLocalWorldSize, "2"},
          {env::kGroupRank, "1"},
          {env::kGroupWorldSize, "2"},
          {env::kMasterAddr, "10.0.0.1"},
          {env::kMasterPort, "29500"},
          {env::kRestartCount, "2"},
          {env::kRunId, "job7"}};
}

WorkerEnv read(const Variables& variables) {
  return WorkerEnv::from_environment([&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  std::string what;
  CHECK(test::code_of([&] { read(variables); }, &what) == ErrorCode::kInvalidArgument);
  return what;
}

TEST_CASE("WorkerEnv: the flight recorder holds 2,000 operations unless it is said otherwise") {
  Variables variables = torchrun_variables();
  CHECK(read(variables).num_recorded == 2'000);
  variables[env::kFlightRecorderSize] = "7";
  CHECK(read(variables).num_recorded == 7);
}

TEST_CASE("WorkerEnv: DDPRUN_TEST_GPU=shared puts every rank on device 0") {
  Variables variables = torchrun_variables();
  CHECK(read(variables).device == 1);
  variables[env::kTestGpu] = "shared,watchdog_us=100";
  CHECK(read(variables).device == 0);
  CHECK(read(variables).local_rank == 1);
  for (const char* wrong : {"sharde", "watchdog_us=0", "watchdog_us=", "shared,,"}) {
    variables[env::kTestGpu] = wrong;
    CHECK(contains(error_of(variables), "DDPRUN_TEST_GPU: unknown key \""));
  }
}

TEST_CASE("WorkerEnv: DDPRUN_DEBUG has the words collectives, nan and times, no others") {
  Variables variables = torchrun_variables();
  CHECK_FALSE(read(variables).debug_collectives);
  variables[env::kDebug] = "";
  CHECK_FALSE(read(variables).debug_collectives);
  variables[env::kDebug] = "collectives";
  CHECK(read(variables).debug_collectives);
  variables[env::kDebug] = "nan,collectives";
  CHECK(read(variables).debug_collectives);
  CHECK_FALSE(read(variables).debug_times);
  variables[env::kDebug] = "times";
  CHECK(read(variables).debug_times);
  variables[env::kDebug] = "nan,1";
  CHECK(contains(error_of(variables),
                 "DDPRUN_DEBUG=\"nan,1\": \"1\" is none of collectives, nan, times"));
}

TEST_CASE("WorkerEnv: the rank on the node is not the GPU's number with --virtual-local-rank") {
  Variables variables = torchrun_variables();
  variables[env::kLocalRank] = "0";
  variables[env::kTrueLocalRank] = "1";
  CHECK(read(variables).local_rank == 1);
  CHECK(read(variables).device == 0);
}

TEST_CASE("WorkerEnv: a recovery in place may leave a rank beyond the workers of the node") {
  Variables variables = torchrun_variables();
  CHECK_FALSE(read(variables).recovers_in_place);
  variables[env::kTrueLocalRank] = "2";
  variables[env::kRecovery] = "inplace";
  CHECK(read(variables).local_rank == 2);
  CHECK(read(variables).recovers_in_place);
}

TEST_CASE("WorkerEnv: torchrun's variables alone are enough") {
  const WorkerEnv env = read(torchrun_variables());
  CHECK(env.rank == 3);
  CHECK(env.local_rank == 1);
  CHECK(env.device == 1);
  CHECK(env.world_size == 4);
  CHECK(env.local_world_size == 2);
  CHECK(env.node_rank == 1);
  CHECK(env.num_nodes == 2);
  CHECK(env.restart_count == 2);
  CHECK(env.round == 3);
  CHECK(env.master == Endpoint{"10.0.0.1", 29500});
  CHECK(env.node_addr.empty());
  CHECK(env.run_id == "job7");
}

TEST_CASE("WorkerEnv: ddprun's variables win where they say more") {
  Variables variables = torchrun_variables();
  variables[env::kRound] = "9";
  variables[env::kNodeAddr] = "10.0.0.2";
  const WorkerEnv env = read(variables);
  CHECK(env.round == 9);
  CHECK(env.restart_count == 2);
  CHECK(env.node_addr == "10.0.0.2");
}

TEST_CASE("WorkerEnv: restart count and run id have defaults") {
  Variables variables = torchrun_variables();
  variables.erase(env::kRestartCount);
  variables.erase(env::kRunId);
  const WorkerEnv env = read(variables);
  CHECK(env.round == 1);
  CHECK(env.restart_count == 0);
  CHECK(env.run_id == "none");
}

TEST_CASE("WorkerEnv: an empty environment names every variable and the way out, once") {
  const std::string message = error_of({});
  for (const char* name :
       {env::kRank, env::kLocalRank, env::kWorldSize, env::kLocalWorldSize, env::kGroupRank,
        env::kGroupWorldSize, env::kMasterAddr, env::kMasterPort}) {
    INFO(message);
    CHECK(contains(message, name));
  }
  CHECK(contains(message, "Start the program with ddprun or torchrun"));
}

TEST_CASE("WorkerEnv: each malformed or contradictory variable is named") {
  struct Case {
    const char* name;
    const char* value;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {env::kRank, "x", "RANK=\"x\" is not a number"},
      {env::kRank, "-1", "RANK=\"-1\" is not a number"},
      {env::kRank, "1 ", "RANK=\"1 \" is not a number"},
      {env::kRank, "99999999999999", "RANK=\"99999999999999\" is not a number"},
      {env::kRank, "4", "RANK=4 must be below WORLD_SIZE=4"},
      {env::kRank, "", "not set: RANK"},
      {env::kLocalRank, "2", "LOCAL_RANK=2 must be below LOCAL_WORLD_SIZE=2"},
      {env::kWorldSize, "0", "WORLD_SIZE=\"0\" is not a number from 1"},
      {env::kLocalWorldSize, "5", "LOCAL_WORLD_SIZE=5 is more than WORLD_SIZE=4"},
      {env::kGroupRank, "2", "GROUP_RANK=2 must be below GROUP_WORLD_SIZE=2"},
      {env::kGroupWorldSize, "5", "GROUP_WORLD_SIZE=5 is more than WORLD_SIZE=4"},
      {env::kMasterAddr, "", "not set: MASTER_ADDR"},
      {env::kMasterPort, "0", "MASTER_PORT=\"0\" is not a number from 1 to 65535"},
      {env::kMasterPort, "65536", "MASTER_PORT=\"65536\" is not a number from 1 to 65535"},
      {env::kRestartCount, "two", "TORCHELASTIC_RESTART_COUNT=\"two\" is not a number"},
      {env::kRound, "0", "DDPRUN_ROUND=\"0\" is not a number from 1"},
  };
  for (const Case& one : cases) {
    Variables variables = torchrun_variables();
    variables[one.name] = one.value;
    const std::string message = error_of(variables);
    INFO(one.name << "=" << one.value << " gave: " << message);
    CHECK(contains(message, one.expected));
  }
}

TEST_CASE("WorkerEnv: missing and malformed variables come in one error") {
  Variables variables = torchrun_variables();
  variables.erase(env::kMasterAddr);
  variables[env::kMasterPort] = "http";
  variables[env::kRank] = "7";
  const std::string message = error_of(variables);
  INFO(message);
  CHECK(contains(message, "MASTER_ADDR"));
  CHECK(contains(message, "MASTER_PORT=\"http\""));
  CHECK(contains(message, "RANK=7 must be below WORLD_SIZE=4"));
}

}  // namespace
}  // namespace ddprun
