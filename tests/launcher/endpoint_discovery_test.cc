// SPDX-License-Identifier: Apache-2.0
#include "launcher/endpoint_discovery.h"

#include "launcher/cli.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using ddprun::test::Contains;

namespace {

struct Case {
  std::vector<std::string> flags;
  Environment environment;
  std::vector<ConfigFile> files;
};

Discovery discover(Case given) {
  given.flags.emplace_back("train");
  const auto step = scheduler_step({.environment = given.environment,
                                    .host_name = "n02",
                                    .read_file = [](const std::string&) { return std::nullopt; }});
  const CommandLine line = parse_command_line(given.flags, given.environment, {}, step);
  REQUIRE(line.problems.empty());
  return discover_endpoint({.config = line.config,
                            .environment = given.environment,
                            .files = given.files,
                            .step = line.step,
                            .user_id = 1000,
                            .random_id = "drawn"});
}

// "mode host:port origin", or the problem's text.
std::string found(Case given) {
  const Discovery discovery = discover(std::move(given));
  if (discovery.nothing_found) return "nothing";
  if (!discovery.plan) return discovery.problem;
  const char* mode = discovery.plan->mode == RendezvousMode::kLocal     ? "local"
                     : discovery.plan->mode == RendezvousMode::kElastic ? "elastic"
                                                                        : "static";
  return std::string(mode) + " " + to_string(discovery.plan->endpoint) + " " +
         discovery.plan->origin;
}

const Environment kSlurm = {{"SLURM_JOB_ID", "77"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_NODELIST", "n[01-02]"},
                            {"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_NODEID", "1"}};
const std::vector<ConfigFile> kFiles = {{"user.toml", "", {"h1", "h2"}},
                                        {"etc.toml", "head:1", {}}};

}  // namespace

TEST_CASE("discovery: one node needs no endpoint") {
  CHECK(found({{"--standalone"}, {}, {}}) == "local 127.0.0.1:0 --standalone");
  CHECK(found({{"--nnodes=1"}, kSlurm, kFiles}) == "local 127.0.0.1:0 --nnodes=1");
  CHECK(discover({{}, {}, {}}).plan->job_id == "drawn");
}

TEST_CASE("discovery: several endpoints, from each source, are ddprunds': no node serves") {
  const auto check = [](Case given, const char* origin) {
    CAPTURE(origin);
    const Discovery discovery = discover(std::move(given));
    REQUIRE(discovery.plan);
    CHECK(discovery.plan->mode == RendezvousMode::kElastic);
    CHECK(discovery.plan->endpoints() ==
          std::vector<Endpoint>{{"a", 29400}, {"b", 7}, {"::1", 29400}});
    CHECK(discovery.plan->origin == origin);
    CHECK(discovery.plan->is_host == false);
  };
  const std::string list = "a,b:7,[::1]";
  check({{"--nnodes=2", "--rdzv-endpoint=" + list}, {}, {}}, "--rdzv-endpoint");
  // The same for a job of one node.
  check({{"--rdzv-endpoint=" + list}, {}, {}}, "--rdzv-endpoint");
  check({{"--nnodes=2"}, {{"DDPRUN_RDZV_ENDPOINT", list}}, {}}, "DDPRUN_RDZV_ENDPOINT");
  check({{"--nnodes=2"}, {{"PET_RDZV_ENDPOINT", list}}, {}}, "PET_RDZV_ENDPOINT");
  check({{"--nnodes=2"}, {}, {{"etc.toml", list, {}}}}, "etc.toml");
  check({{"--nnodes=2", "--rdzv-conf=is_host=0", "--rdzv-endpoint=" + list}, {}, {}},
        "--rdzv-endpoint");
  const Discovery one = discover({{"--nnodes=2", "--rdzv-endpoint=a"}, {}, {}});
  CHECK(one.plan->endpoints() == std::vector<Endpoint>{{"a", 29400}});
  CHECK_FALSE(one.plan->is_host);
}

TEST_CASE("discovery: several endpoints neither have fixed ranks nor are served by a node") {
  const Environment two = {{"DDPRUN_RDZV_ENDPOINT", "a,b"}};
  CHECK_THAT(found({{"--nnodes=2", "--rdzv-backend=static", "--node-rank=0"}, two, {}}),
             StartsWith("DDPRUN_RDZV_ENDPOINT: \"a,b\": has several endpoints, but with fixed") &&
                 Contains("--rdzv-backend=static"));
  CHECK_THAT(found({{"--nnodes=2", "--rdzv-conf=is_host=1"}, two, {}}),
             StartsWith("DDPRUN_RDZV_ENDPOINT: \"a,b\": has several") && Contains("is_host"));
  CHECK_THAT(found({{"--nnodes=2", "--master-addr=a,b", "--node-rank=0"}, {}, {}}),
             StartsWith("--master-addr: \"a,b:29500\": has several"));
  CHECK(found({{"--nnodes=2"}, {{"DDPRUN_RDZV_ENDPOINT", "a,A"}}, {}}) ==
        "DDPRUN_RDZV_ENDPOINT: \"a,A\": has A:29400 twice");
}

TEST_CASE("discovery: a node that doesn't serve gets no endpoint that stands for any address") {
  for (const char* any : {"0.0.0.0", "0", "::", "[::]"}) {
    CAPTURE(any);
    CHECK_THAT(
        found({{"--nnodes=2", std::string("--master-addr=") + any, "--node-rank=1"}, {}, {}}),
        Contains("(--master-addr): no node reaches") && EndsWith("--master-addr=HOST"));
  }
  CHECK_THAT(found({{"--nnodes=2", "--rdzv-backend=static", "--node-rank=1"},
                    {{"DDPRUN_RDZV_ENDPOINT", "0.0.0.0"}},
                    {}}),
             StartsWith("0.0.0.0:29500 (DDPRUN_RDZV_ENDPOINT): no node reaches"));
  const std::vector<std::string> flags = {"--nnodes=2", "--rdzv-conf=is_host=0"};
  CHECK_THAT(found({flags, {{"PET_RDZV_ENDPOINT", "[::]:7"}}, {}}),
             EndsWith("the node that serves, as in --rdzv-endpoint=HOST:7"));
  CHECK_THAT(found({{"--nnodes=2"}, {{"DDPRUN_RDZV_ENDPOINT", "a,0.0.0.0"}}, {}}),
             StartsWith("0.0.0.0:29400 (DDPRUN_RDZV_ENDPOINT): no node reaches"));
  CHECK(found({{"--nnodes=2", "--master-addr=0.0.0.0", "--node-rank=0"}, {}, {}}) ==
        "static 0.0.0.0:29500 --master-addr");
}

TEST_CASE("discovery: --rdzv-backend=static means fixed ranks, wherever the endpoint comes from") {
  const std::vector<std::string> flags = {"--nnodes=2", "--rdzv-backend=static", "--node-rank=0"};
  CHECK(found({flags, {{"DDPRUN_RDZV_ENDPOINT", "h"}}, {}}) ==
        "static h:29500 DDPRUN_RDZV_ENDPOINT");
  CHECK(found({flags, {{"PET_RDZV_ENDPOINT", "h:7"}}, {}}) == "static h:7 PET_RDZV_ENDPOINT");
  CHECK(found({flags, {}, kFiles}) == "static h1:29500 user.toml");
  CHECK_THAT(found({{"--nnodes=2", "--rdzv-backend=static"}, {{"DDPRUN_RDZV_ENDPOINT", "h"}}, {}}),
             StartsWith("--node-rank") && Contains("DDPRUN_RDZV_ENDPOINT"));
  const Discovery slurm = discover({{"--nnodes=2", "--rdzv-backend=static"}, kSlurm, {}});
  REQUIRE(slurm.plan);
  CHECK(slurm.plan->mode == RendezvousMode::kStatic);
  CHECK(slurm.plan->endpoint.host == "n01");
  CHECK(slurm.plan->node_rank == 1);
  CHECK(slurm.plan->is_host == false);
}

TEST_CASE("discovery: flags, then environment, then Slurm, then files, first found wins") {
  Environment all = kSlurm;
  all["PET_MASTER_ADDR"] = "m";
  all["PET_MASTER_PORT"] = "7";
  all["PET_NODE_RANK"] = "1";
  CHECK(found({{"--nnodes=2"}, {}, {}}) == "nothing");
  CHECK(found({{"--nnodes=2"}, {}, kFiles}) == "elastic h1:29400 user.toml");
  CHECK(found({{"--nnodes=2"}, {}, {kFiles[1]}}) == "elastic head:1 etc.toml");
  const std::string slurm = found({{"--nnodes=2"}, kSlurm, kFiles});
  CHECK_THAT(slurm, StartsWith("elastic n01:") && EndsWith(" Slurm step 77.0"));
  CHECK(found({{"--nnodes=2"}, all, kFiles}) == "static m:7 PET_MASTER_ADDR");
  all["PET_RDZV_ENDPOINT"] = "p:2";
  CHECK(found({{"--nnodes=2"}, all, kFiles}) == "elastic p:2 PET_RDZV_ENDPOINT");
  all["DDPRUN_RDZV_ENDPOINT"] = "d";
  CHECK(found({{"--nnodes=2"}, all, kFiles}) == "elastic d:29400 DDPRUN_RDZV_ENDPOINT");
  CHECK(found({{"--nnodes=2", "--master-addr=f"}, all, kFiles}) == "static f:29500 --master-addr");
  CHECK(found({{"--nnodes=2", "--rdzv-endpoint=e:3"}, all, kFiles}) ==
        "elastic e:3 --rdzv-endpoint");
}

TEST_CASE("discovery: static mode is served by node rank 0, which must be told") {
  const auto plan = [](const char* rank) {
    return discover({{"--nnodes=2", "--master-addr=m", std::string("--node-rank=") + rank}, {}, {}})
        .plan;
  };
  CHECK(plan("0")->is_host == true);
  CHECK(plan("1")->is_host == false);
  CHECK_THAT(found({{"--nnodes=2", "--master-addr=m"}, {}, {}}), StartsWith("--node-rank"));
  CHECK(found({{"--nnodes=2", "--node-rank=1", "--rdzv-backend=static", "--rdzv-endpoint=m"},
               {},
               {}}) == "static m:29500 --rdzv-endpoint");
  CHECK(found({{"--master-port=7"}, {}, {}}) == "static 127.0.0.1:7 --master-port");
  CHECK(found({{"--nnodes=2", "--node-rank=1", "--master-addr=fd00::1"}, {}, {}}) ==
        "static [fd00::1]:29500 --master-addr");
  CHECK(found({{"--nnodes=2", "--node-rank=1", "--master-addr=[fd00::1]"}, {}, {}}) ==
        "static [fd00::1]:29500 --master-addr");
}

TEST_CASE("discovery: a port or a node rank alone means torchrun's 127.0.0.1") {
  CHECK(found({{}, {{"PET_MASTER_PORT", "7"}}, {}}) == "static 127.0.0.1:7 PET_MASTER_PORT");
  CHECK(found({{"--master-port=8"}, {{"PET_MASTER_PORT", "7"}}, {}}) ==
        "static 127.0.0.1:8 --master-port");
  CHECK(found({{"--nnodes=2"}, {{"PET_MASTER_PORT", "7"}}, {}}) == "nothing");
  const std::string origin = " --node-rank without --master-addr";
  CHECK(found({{"--nnodes=2", "--node-rank=1"}, {}, {}}) == "static 127.0.0.1:29500" + origin);
  CHECK(found({{"--nnodes=2", "--node-rank=1", "--master-port=8"}, {}, {}}) ==
        "static 127.0.0.1:8" + origin);
  CHECK(found({{"--nnodes=2", "--node-rank=1"}, {{"PET_MASTER_PORT", "7"}}, {}}) ==
        "static 127.0.0.1:7" + origin);
  CHECK_THAT(discover({{"--nnodes=2", "--node-rank=1"}, {}, {}}).note, Contains("this machine"));
  CHECK(found({{"--nnodes=2", "--node-rank=1", "--rdzv-backend=c10d"}, {}, {}}) == "nothing");
  CHECK_THAT(found({{"--nnodes=2", "--node-rank=1"}, kSlurm, {}}), StartsWith("elastic n01:"));
  CHECK(found({{"--nnodes=2", "--node-rank=1"}, {}, kFiles}) == "elastic h1:29400 user.toml");
  CHECK_THAT(found({{}, {{"PET_MASTER_PORT", "x"}}, {}}), StartsWith("PET_MASTER_PORT"));
}

TEST_CASE("discovery: is_host decides which node serves, else the interfaces do") {
  CHECK_FALSE(discover({{"--nnodes=2", "--rdzv-endpoint=e"}, {}, {}}).plan->is_host.has_value());
  // With one node nobody else could serve.
  CHECK(discover({{"--rdzv-conf=is_host=0"}, {}, {}}).plan->is_host == true);
  CHECK(discover({{"--nnodes=2", "--rdzv-endpoint=e", "--rdzv-conf=is_host=true"}, {}, {}})
            .plan->is_host == true);
  CHECK(discover({{"--nnodes=2", "--rdzv-endpoint=e", "--rdzv-conf=is_host=0"}, {}, {}})
            .plan->is_host == false);
}

TEST_CASE("discovery: a Slurm step names the job, the owner and the ranks") {
  const RendezvousPlan plan = *discover({{"--nnodes=2"}, kSlurm, {}}).plan;
  CHECK(plan.job_id == "slurm-77.0");
  CHECK(plan.is_host == false);
  CHECK(plan.node_rank == 1);
  Environment other = kSlurm;
  other["SLURM_STEP_ID"] = "1";
  CHECK(discover({{"--nnodes=2"}, other, {}}).plan->endpoint.port != plan.endpoint.port);
}

TEST_CASE("discovery: a step's nodes are the job's without --nnodes") {
  const Discovery told = discover({{}, kSlurm, {}});
  CHECK(told.plan->origin == "Slurm step 77.0");
  CHECK(told.plan->node_rank == 1);
  CHECK(found({{"--nnodes=1"}, kSlurm, {}}) == "local 127.0.0.1:0 --nnodes=1");
  CHECK(found({{"--standalone"}, kSlurm, {}}) == "local 127.0.0.1:0 --standalone");
  Environment several = kSlurm;
  several["SLURM_STEP_NUM_TASKS"] = "8";
  CHECK(found({{}, several, {}}) == "local 127.0.0.1:0 --nnodes=1");
}

TEST_CASE("discovery: a Slurm step that doesn't fit is said") {
  const Discovery small = discover({{"--nnodes=3"}, kSlurm, {}});
  CHECK(small.nothing_found);
  CHECK_THAT(small.looked_at.at(0), Contains("only 2 node"));
  Environment broken = kSlurm;
  broken["SLURM_STEP_NODELIST"] = "n[1-";
  CHECK_THAT(discover({{"--nnodes=2"}, broken, {}}).looked_at.at(0), Contains("parse"));
}

TEST_CASE("discovery: the job id is the flag's, the environment's, Slurm's, or made") {
  const std::vector<std::string> flags = {"--nnodes=2", "--rdzv-endpoint=e"};
  const auto id = [](std::vector<std::string> with, Environment environment = {}) {
    return discover({std::move(with), std::move(environment), {}}).plan->job_id;
  };
  const std::string made = id(flags);
  CHECK_THAT(made, StartsWith("1000-"));
  CHECK(made == id({"--nnodes=2", "--rdzv-endpoint=other"}));
  CHECK(made != id({"--nnodes=3", "--rdzv-endpoint=e"}));
  CHECK(id({"--nnodes=2", "--master-addr=m", "--node-rank=1"}) == "none");
  CHECK(id(flags, {{"PET_RDZV_ID", "p"}}) == "p");
  CHECK(id({"--nnodes=2", "--rdzv-endpoint=e", "--rdzv-id=f"}, {{"PET_RDZV_ID", "p"}}) == "f");
}

TEST_CASE("discovery: an endpoint that is none names its origin") {
  CHECK_THAT(found({{"--nnodes=2"}, {{"DDPRUN_RDZV_ENDPOINT", "a:b"}}, {}}),
             StartsWith("DDPRUN_RDZV_ENDPOINT: \"a:b\""));
  CHECK_THAT(found({{"--nnodes=2"}, {}, {{"etc.toml", "a b", {}}}}), StartsWith("etc.toml"));
}
