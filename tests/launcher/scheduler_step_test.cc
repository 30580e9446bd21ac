// SPDX-License-Identifier: Apache-2.0
#include "launcher/scheduler_step.h"

#include <map>

#include "launcher/cli.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::Contains;

namespace {

using Files = std::map<std::string, std::string>;

std::optional<SchedulerStep> step_of(const Environment& environment, const std::string& host_name,
                                     const Files& files = {}) {
  const auto read = [&](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  };
  return scheduler_step({.environment = environment, .host_name = host_name, .read_file = read});
}

const Environment kSlurmStep = {{"SLURM_JOB_ID", "77"},
                                {"SLURM_STEP_ID", "0"},
                                {"SLURM_STEP_NODELIST", "n[01-04]"},
                                {"SLURM_STEP_NUM_TASKS", "4"},
                                {"SLURM_NODEID", "2"}};
const Environment kPbs = {{"PBS_JOBID", "12.head"}, {"PBS_NODEFILE", "/nodes"}};
const Environment kPod = {{"JOB_COMPLETION_INDEX", "10"}};

LaunchConfig config_of(std::vector<std::string> flags, const Environment& environment) {
  flags.emplace_back("train");
  const CommandLine line = parse_command_line(flags, environment, {}, step_of(environment, "n03"));
  CHECK(line.problems.empty());
  return line.config;
}

}  // namespace

TEST_CASE("scheduler: missing or impossible variables are no step") {
  CHECK_FALSE(step_of({}, "n01"));
  CHECK_FALSE(step_of({{"SLURM_JOB_ID", "77"}}, "n01"));  // only a batch script
  CHECK_FALSE(step_of({{"JOB_COMPLETION_INDEX", "x"}}, "job-x"));
  CHECK_FALSE(step_of({{"JOB_COMPLETION_INDEX", "1"}}, "laptop"));
}

TEST_CASE("scheduler: a batch script of several nodes, without srun, is told what starts on all") {
  const Environment batch = {{"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NUM_NODES", "2"}};
  const auto notes = [](std::vector<std::string> args, const Environment& environment) {
    return parse_command_line(args, environment).config.notes;
  };
  CHECK(notes({"--nproc-per-node=4", "train", "--lr=1 2"}, batch) ==
        std::vector<std::string>{
            "this machine alone, though Slurm job 77 has 2 nodes: without srun there is nobody on "
            "the others. On all of them: srun --nodes=2 --ntasks-per-node=1 ddprun "
            "--nproc-per-node=4 train '--lr=1 2' (--nnodes=1 says that one is meant)"});
  for (const char* decides : {"--nnodes=1", "--standalone", "--hosts=n1,n2"}) {
    CHECK(notes({decides, "train"}, batch).empty());
  }
  Environment other = batch;
  other["SLURM_JOB_NUM_NODES"] = "1";
  CHECK(notes({"train"}, other).empty());
  other = batch;
  other["TORCHELASTIC_RUN_ID"] = "x";  // a variable of a worker
  CHECK(notes({"train"}, other).empty());
  other = batch;
  other["SLURM_STEP_NODELIST"] = "n1";  // a variable of a step, e.g. of one node
  CHECK(notes({"train"}, other).empty());
}

TEST_CASE("scheduler: Slurm's step") {
  const SchedulerStep step = *step_of(kSlurmStep, "anything");
  CHECK(step.name == "Slurm step 77.0");
  CHECK(step.job_id == "slurm-77.0");
  CHECK(step.first_host == "n01");
  CHECK(step.num_hosts == 4);
  CHECK(step.one_each);
  CHECK(step.node_index == 2);
}

TEST_CASE("scheduler: a PBS job's hosts are those of its node file") {
  const Files files = {{"/nodes", "a.x\na.x\nb.x\n"}};
  const SchedulerStep script = *step_of(kPbs, "a", files);
  CHECK(script.first_host == "a.x");
  CHECK(script.num_hosts == 2);
  CHECK(script.node_index == 0);
  CHECK_FALSE(script.one_each);
  Environment started = kPbs;
  started["PBS_TASKNUM"] = "3";
  const SchedulerStep by_pbsdsh = *step_of(started, "b.x", files);
  CHECK(by_pbsdsh.one_each);
  CHECK(by_pbsdsh.node_index == 1);
  CHECK(by_pbsdsh.job_id == "pbs-12.head");
  CHECK(by_pbsdsh.port == script.port);
}

// A search through all hosts for each line would take minutes.
TEST_CASE("scheduler: a PBS node file with 400,000 hosts is read in linear time") {
  std::string nodes;
  for (int i = 0; i < 400'000; ++i) nodes += "n" + std::to_string(i) + "\n";
  CHECK(step_of(kPbs, "n399999", {{"/nodes", nodes}})->node_index == 399'999);
}

TEST_CASE("scheduler: the step of a worker of a ddprun is that ddprun's") {
  Environment worker = kSlurmStep;
  worker["TORCHELASTIC_RUN_ID"] = "slurm-77.0";
  CHECK_FALSE(step_of(worker, "n03"));
}

TEST_CASE("scheduler: a task that can't tell the other nodes doesn't run the job alone by itself") {
  const auto problems = [](std::vector<std::string> flags, const Environment& environment) {
    flags.emplace_back("train");
    return parse_command_line(flags, environment, {}, step_of(environment, "b")).problems;
  };
  const Environment task = {{"PBS_JOBID", "12.head"},
                            {"PBS_TASKNUM", "3"}};  // the variables that Torque's pbsdsh sets
  REQUIRE(problems({}, task).size() == 1);
  CHECK_THAT(problems({}, task)[0], Contains("PBS_NODEFILE= can't be read on this node"));
  CHECK(problems({"--nnodes=1"}, task).empty());
  CHECK(problems({}, {{"PBS_JOBID", "12.head"}}).empty());  // the job's script alone
  Environment step = kSlurmStep;
  step["SLURM_STEP_NODELIST"] = "n[1-";
  CHECK(problems({}, step).size() == 1);
  CHECK(problems({}, {{"JOB_COMPLETION_INDEX", "1"}}).empty());
}

TEST_CASE("scheduler: a PBS node file that isn't here, or is empty, is said") {
  CHECK_THAT(step_of(kPbs, "b")->problem, Contains("PBS_NODEFILE=/nodes can't be read"));
  CHECK_THAT(step_of(kPbs, "b", {{"/nodes", "\n"}})->problem, Contains("names no host"));
}

TEST_CASE("scheduler: pods of an Indexed Job meet at the first one") {
  const Files files = {
      {"/etc/hosts", "127.0.0.1 localhost\n10.0.0.7\tjob-10.svc.ns.svc.cluster.local\tjob-10\n"}};
  const SchedulerStep step = *step_of(kPod, "job-10", files);
  CHECK(step.first_host == "job-0.svc.ns.svc.cluster.local");
  CHECK(step.port == 29400);
  CHECK(step.node_index == 10);
  CHECK(step.job_id == "job-job");
  CHECK(step.num_hosts == 0);
}

TEST_CASE("scheduler: an Indexed Job without a headless service is said") {
  const SchedulerStep step = *step_of(kPod, "job-10", {{"/etc/hosts", "10.0.0.7 job-10\n"}});
  CHECK_THAT(step.problem, Contains("headless service"));
}

TEST_CASE("scheduler: --nnodes is the step's, less the spares, where nobody says otherwise") {
  CHECK(config_of({}, kSlurmStep).max_nodes == 4);
  CHECK(config_of({"--spares=1"}, kSlurmStep).max_nodes == 3);
  CHECK(config_of({"--nnodes=2"}, kSlurmStep).max_nodes == 2);
  CHECK(config_of({"--standalone"}, kSlurmStep).max_nodes == 1);
  CHECK(config_of({"--hosts=a,b"}, kSlurmStep).max_nodes == 1);
  Environment theirs = kSlurmStep;
  theirs["PET_NNODES"] = "3";
  CHECK(config_of({}, theirs).max_nodes == 3);
}

TEST_CASE("scheduler: this node is alone in a step with several tasks a node, and that is told") {
  Environment tasks = kSlurmStep;
  tasks["SLURM_STEP_NUM_TASKS"] = "16";
  const LaunchConfig config = config_of({}, tasks);
  CHECK(config.max_nodes == 1);
  REQUIRE(config.notes.size() == 1);
  CHECK_THAT(config.notes[0], Contains("this node alone, of 4"));
  CHECK(config_of({"--nnodes=1"}, tasks).notes.empty());
}
