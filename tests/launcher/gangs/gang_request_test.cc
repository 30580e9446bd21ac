// SPDX-License-Identifier: Apache-2.0
// The command lines that standing agents run, and the request that they get.
#include "launcher/gangs/gang_request.h"

#include <algorithm>

#include "agent/standing/gang_process.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using ddprun::test::Contains;

const Environment kShell = {{"PATH", "/bin"}, {"HOME", "/home/a"}, {"WANDB_API_KEY", "k"}};

CommandLine line_of(const std::vector<std::string>& args, const std::string& file = "",
                    const Environment& environment = kShell) {
  const LoadConfigFiles load = [&](const std::string&) {
    return std::vector<ConfigFile>{parse_config_file(file, "/etc/ddprun/ddprun.toml")};
  };
  return parse_command_line(args, environment, load);
}

GangRequest plan(const CommandLine& line) {
  return plan_gang(line, kShell, {"alice", 1000, "/work", "0123456789abcdef"});
}

constexpr char kFile[] = "rdzv_endpoint = \"head\"\nstanding_agents = true\nmax_restarts = 2\n";

TEST_CASE("Gang's line: a file counts only if nothing else says how the nodes come together") {
  const auto is_one = [](const std::vector<std::string>& args, const Environment& environment) {
    return is_for_standing_agents(line_of(args, kFile, environment), environment);
  };
  CHECK(is_one({"--nnodes=2", "train"}, kShell));
  CHECK_FALSE(is_one({"train"}, kShell));
  CHECK_FALSE(is_one({"--nnodes=2", "--rdzv-endpoint=head", "train"}, kShell));
  CHECK_FALSE(is_one({"--nnodes=2", "--rdzv-id=mine", "train"}, kShell));
  CHECK_FALSE(is_one({"--nnodes=2", "--node-rank=0", "--master-addr=a", "train"}, kShell));
  CHECK_FALSE(is_one({"--nnodes=2", "--hosts=a,b", "train"}, kShell));
  Environment pet = kShell;
  pet["PET_MASTER_ADDR"] = "a";
  CHECK_FALSE(is_one({"--nnodes=2", "train"}, pet));
  CHECK_FALSE(
      is_for_standing_agents(line_of({"--nnodes=2", "train"}, "rdzv_endpoint = \"head\""), kShell));
}

TEST_CASE(
    "Gang's line: a typed --standing-agents counts, and flags that contradict it are refused") {
  const auto line = line_of({"--standing-agents", "--rdzv-endpoint=head", "train"});
  CHECK(is_for_standing_agents(line, kShell));
  CHECK(plan(line).problems.empty());
  const auto wrong = plan(line_of({"--standing-agents", "--rdzv-id=mine", "train"}, kFile));
  REQUIRE(wrong.problems.size() == 1);
  CHECK_THAT(wrong.problems[0], Contains("--rdzv-id=mine") && Contains("--standing-agents"));
  const auto typed = plan(line_of({"--standing-agents", "--stdin-rank=0", "train"}, kFile));
  REQUIRE(typed.problems.size() == 1);
  CHECK_THAT(typed.problems[0], Contains("--stdin-rank=0: workers that standing agents run have"));
  const auto nowhere = plan(line_of({"--standing-agents", "train"}));
  REQUIRE(nowhere.problems.size() == 1);
  CHECK_THAT(nowhere.problems[0], Contains("where is the ddprund?"));
}

TEST_CASE("Gang's line: a command line becomes a gang with its nodes, program and environment") {
  const auto request = plan(
      line_of({"--nnodes=2:4", "--nproc_per_node=4", "--shutdown-timeout=5", "--env=-WANDB_API_KEY",
               "--env=A=1", "--token-file=/t", "./train.py", "--epochs=1"},
              kFile));
  REQUIRE(request.problems.empty());
  const gangs::GangSpec& spec = request.spec;
  CHECK(spec.id == "alice-0123456789ab");
  CHECK(spec.name == "train.py");
  CHECK(spec.min_nodes == 2);
  CHECK(spec.max_nodes == 4);
  CHECK(spec.workers == "4");
  CHECK(spec.directory == "/work");
  CHECK(spec.stop_ms == 85'000);
  CHECK(spec.environment == std::vector<std::string>{"A=1", "PATH=/bin"});
  CHECK(spec.arguments == std::vector<std::string>{"--max-restarts=2", "--shutdown-timeout=5", "--",
                                                   "./train.py", "--epochs=1"});
  REQUIRE(request.endpoints.size() == 1);
  CHECK(to_string(request.endpoints[0]) == "head:29400");
}

TEST_CASE("Gang's line: spares are nodes of the gang, too") {
  const auto request = plan(line_of({"--nnodes=2", "--spares=1", "train"}, kFile));
  CHECK(request.spec.min_nodes == 3);
  CHECK(request.spec.max_nodes == 3);
  CHECK(std::ranges::count(request.spec.arguments, "--nnodes=2") == 1);
}

TEST_CASE("Gang's line: bytes that are no text stay here, or are refused") {
  Environment odd = kShell;
  odd["ODD"] = "\xff";
  const auto line = line_of({"--nnodes=2", "train"}, kFile, odd);
  const auto request = plan_gang(line, odd, {"alice", 1000, "/work", "0123456789abcdef"});
  CHECK(request.problems.empty());
  REQUIRE(request.notes.size() == 1);
  CHECK_THAT(request.notes[0], Contains("ODD"));
  CHECK(plan(line_of({"--nnodes=2", "train", "\xff"}, kFile)).problems.size() == 1);
}

TEST_CASE("Gang's ddprun: the agent's endpoint and secrets, then what was submitted") {
  StandingOptions options;
  options.endpoint_text = "head:29400";
  options.token_file = "/t";
  gangs::StartPart start;
  start.gang = "a";
  start.nodes = "2";
  start.workers = "4";
  start.arguments = {"--", "train"};
  start.environment = {"A=1", "PATH=/mine"};
  const auto argv = gang_arguments(start, options, "/usr/bin/ddprun");
  CHECK(argv.front() == "/usr/bin/ddprun");
  for (const char* flag : {"--rdzv-endpoint=head:29400", "--rdzv-id=a", "--nnodes=2",
                           "--nproc-per-node=4", "--token-file=/t"}) {
    CHECK(std::ranges::count(argv, flag) == 1);
  }
  CHECK(argv[argv.size() - 2] == "--");
  const auto environment = gang_environment(
      start,
      {{"HOME", "/home/a"}, {"PATH", "/bin"}, {"DDPRUN_TOKEN_FILE", "/x"}, {"INVOCATION_ID", "1"}});
  CHECK(environment == std::vector<std::string>{"A=1", "HOME=/home/a", "PATH=/mine"});
}

}  // namespace
}  // namespace ddprun::launcher
