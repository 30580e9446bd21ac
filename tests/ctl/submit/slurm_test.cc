// SPDX-License-Identifier: Apache-2.0
// The batch script, the map of ranks, and the output of Slurm's programs.
#include <fstream>
#include <iterator>

#include "common/exit_codes.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/slurm.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::submit {
namespace {

using Catch::Matchers::Equals;
using ddprun::test::Contains;

JobFile slurm_job(const std::string& more) {
  return JobFile::parse("name = \"digits\"\ncommand = [\"train\", \"--epochs=5\"]\n" + more,
                        "job.toml", "/home/ada");
}

std::string script_of(const std::string& more) {
  return slurm_script(slurm_job(more), "/usr/bin/ddprun");
}

TEST_CASE("Slurm: the script of the page") {
  const std::string script = script_of("nodes = 2\nworkers_per_node = 4\n");
  std::ifstream page(DDPRUN_SOURCE_DIR "/docs/submit.md");
  CHECK_THAT(std::string(std::istreambuf_iterator<char>(page), {}), Contains(script));
  CHECK_THAT(script,
             Equals("#!/bin/bash\n"
                    "# digits, by ddprunctl " DDPRUN_VERSION " from job.toml\n"
                    "#SBATCH --job-name=digits\n"
                    "#SBATCH --nodes=2\n"
                    "#SBATCH --ntasks-per-node=1\n"
                    "#SBATCH --cpus-per-task=4\n"
                    "#SBATCH --chdir=/home/ada\n"
                    "#SBATCH --output=/home/ada/digits-%j.log\n"
                    "#SBATCH --open-mode=append\n"
                    "#SBATCH --signal=USR1@120\n"
                    "#SBATCH --requeue\n"
                    "exit_file=/home/ada/digits-\"$SLURM_JOB_ID\".exit\n"
                    "rm -f \"$exit_file\"\n"
                    "code=0\n"
                    "srun --kill-on-bad-exit=0 --cpus-per-task=4 /usr/bin/ddprun --nnodes=2 "
                    "--nproc-per-node=4 train --epochs=5 || code=$?\n"
                    "if [ \"$code\" = 75 ] && [ \"${SLURM_RESTART_COUNT:-0}\" -lt 20 ]; then\n"
                    "  scontrol requeue \"$SLURM_JOB_ID\" && exit 75\n"
                    "fi\n"
                    "part=$(mktemp \"$exit_file.XXXXXX\") && chmod =rw \"$part\" && printf "
                    "'%s\\n' \"$code\" >\"$part\" &&\n"
                    "  mv -fT \"$part\" \"$exit_file\"\n"
                    "exit \"$code\"\n"));
}

TEST_CASE(
    "Slurm: ddprun gets what Slurm gave with MIN:MAX and spares, and a lost node ends nothing") {
  const std::string script = script_of("nodes = \"2:4\"\nspares = 1\n");
  CHECK_THAT(script, Contains("#SBATCH --nodes=3-5\n"));
  CHECK_THAT(script, Contains("#SBATCH --no-kill\n"));
  CHECK_THAT(script, !Contains("#SBATCH --ntasks"));
  CHECK_THAT(script,
             Contains("srun --kill-on-bad-exit=0 --no-kill --ntasks=\"$SLURM_JOB_NUM_NODES\" "
                      "--ntasks-per-node=1 /usr/bin/ddprun "
                      "--nnodes=2:$((SLURM_JOB_NUM_NODES - 1)) --spares=1 train"));
}

TEST_CASE("Slurm: each key is an option, and what a place of its own says comes last") {
  const std::string script = script_of(
      "limits.time = \"1-02:03:04\"\nrestarts.requeues = 0\n[to.slurm]\npartition = \"gpu\"\n"
      "account = \"a\"\nqos = \"q\"\nconstraint = \"a&b\"\nreservation = \"r\"\nnodelist = "
      "\"n[1-2]\"\n"
      "exclude = \"n3\"\nmemory = 0\ncpus_per_node = 8\ngpus_per_node = 2\nexclusive = true\n"
      "notice = 0\noptions = [\"--comment=nightly\"]\nsetup = \"module load cuda\"\n");
  for (const char* line :
       {"--time=1-02:03:04", "--partition=gpu", "--account=a", "--qos=q", "--constraint=a&b",
        "--reservation=r", "--nodelist=n[1-2]", "--exclude=n3", "--mem=0", "--cpus-per-task=8",
        "--gpus-per-node=2", "--exclusive", "--no-requeue", "--comment=nightly"}) {
    CHECK_THAT(script, Contains(std::string("#SBATCH ") + line + "\n"));
  }
  CHECK_THAT(script, Contains("\nmodule load cuda\nexit_file="));
  CHECK_THAT(script, !Contains("--signal"));
  CHECK_THAT(script, !Contains("scontrol"));
}

TEST_CASE("Slurm: a longer notice is the workers', less what their end takes") {
  CHECK_THAT(script_of("[to.slurm]\nnotice = 600\n"), Contains("ddprun --preemption-notice=540"));
  CHECK_THAT(script_of("[to.slurm]\nnotice = 60\n"), Contains("ddprun --preemption-notice=30"));
  CHECK_THAT(script_of(""), !Contains("--preemption-notice"));
}

TEST_CASE("Slurm: words for sbatch and for the shell stay what they are") {
  const std::string script = script_of(
      "directory = \"/home/a b#c\"\nlog_dir = \"/logs/100%\"\n[environment]\nTEXT = \"it's "
      "$HOME\"\n");
  CHECK_THAT(script, Contains("#SBATCH --chdir=\"/home/a b#c\"\n"));
  CHECK_THAT(script, Contains("#SBATCH --output=/logs/100%%/digits-%j.log\n"));
  CHECK_THAT(script, Contains("export TEXT='it'\\''s $HOME'\n"));
  CHECK_THAT(script, Contains("exit_file=/logs/100%/digits-\"$SLURM_JOB_ID\".exit\n"));
}

TEST_CASE("Slurm: a value that sbatch could not read is refused") {
  const auto why_not = [](const std::string& more) {
    return std::string(ddprun::test::error_of([&] { script_of(more); }).what());
  };
  CHECK_THAT(why_not("log_dir = \"/a\\\\b\"\nto.slurm.options = [\"x\"]"),
             Contains("job.toml: log_dir has a \\ in it") &&
                 Contains("\njob.toml: to.slurm.options: x is no option"));
}

TEST_CASE("rank map: places, spares, and what only the nodes know") {
  const auto rows =
      rank_map(slurm_job("nodes = 2\nworkers_per_node = 4\nspares = 1"), "node # of it");
  REQUIRE(rows.size() == 3);
  CHECK(rows[1].node == "node 1 of it");
  CHECK(rows[1].first_global_rank == 4);
  CHECK(rows[1].num_workers == 4);
  CHECK(rows[2].num_workers == 0);
  const auto unknown = rank_map(slurm_job("nodes = 2\nworkers_per_node = \"gpu\""), "node #");
  CHECK(unknown[0].first_global_rank == 0);
  CHECK_FALSE(unknown[1].first_global_rank.has_value());
  CHECK_FALSE(unknown[1].num_workers.has_value());
  CHECK(rank_notes(slurm_job("nodes = \"2:4\"\nspares = 1")).size() == 2);
  CHECK(rank_notes(slurm_job("")).empty());
}

constexpr char kScontrol[] =
    "JobId=17 JobName=digits UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A Priority=1 Nice=0 "
    "Account=(null) QOS=(null) JobState=%s Reason=%s Dependency=(null) Requeue=1 Restarts=0 "
    "BatchFlag=1 Reboot=0 ExitCode=%s RunTime=00:00:02 TimeLimit=UNLIMITED TimeMin=N/A "
    "SubmitTime=1800000000 EligibleTime=1800000000 AccrueTime=Unknown StartTime=1800000001 "
    "EndTime=1800000003 Deadline=N/A NodeList=node[0-1] BatchHost=node0 NumNodes=2 "
    "StdErr=/home/ada/digits-17.log StdOut=/home/ada/digits-17.log Power= \n\n";

JobState state_of(const char* state, const char* reason, const char* exit_code) {
  char text[2000];
  std::snprintf(text, sizeof text, kScontrol, state, reason, exit_code);
  return parse_scontrol(text).value().state;
}

TEST_CASE("Slurm: a job as scontrol shows it") {
  const JobState state = state_of("RUNNING", "None", "0:0");
  CHECK(state.id == "slurm:17");
  CHECK(state.name == "digits");
  CHECK(state.phase == Phase::kRunning);
  CHECK(state.nodes == std::vector<std::string>{"node0", "node1"});
  CHECK(utc_text(*state.submitted) == "2027-01-15T08:00:00Z");
  CHECK(state.began.has_value());
  CHECK_FALSE(state.ended.has_value());
  CHECK(state.reason.empty());
  CHECK_FALSE(state.exit_code.has_value());
  const JobState waiting = state_of("PENDING", "Resources", "0:0");
  CHECK(waiting.phase == Phase::kQueued);
  CHECK(waiting.reason == "Resources");
  CHECK_FALSE(waiting.began.has_value());
  CHECK_FALSE(parse_scontrol("No jobs in the system").has_value());
}

TEST_CASE("Slurm: a job's end is an exit code") {
  CHECK(state_of("COMPLETED", "None", "0:0").exit_code == 0);
  CHECK(state_of("FAILED", "NonZeroExitCode", "13:0").exit_code == 13);
  CHECK(state_of("FAILED", "RaisedSignal:9(Killed)", "0:9").exit_code == 137);
  CHECK(state_of("TIMEOUT", "TimeLimit", "0:15").exit_code == 124);
  CHECK(state_of("NODE_FAIL", "NodeDown", "1:0").exit_code == 75);
  const JobState cancelled = state_of("CANCELLED", "None", "0:15");
  CHECK(cancelled.phase == Phase::kCancelled);
  CHECK_FALSE(cancelled.exit_code.has_value());
  CHECK(state_of("COMPLETING", "None", "13:0").phase == Phase::kRunning);
  CHECK(state_of("NEVER_SEEN", "None", "0:0").phase == Phase::kUnknown);
}

TEST_CASE("Slurm: a job as sacct shows it, and what sbatch says") {
  const auto state =
      parse_sacct("17|digits|CANCELLED by 1000|0:0|1800000000|1800000001|1800000003|node0\n");
  REQUIRE(state.has_value());
  CHECK(state->phase == Phase::kCancelled);
  CHECK(state->ended.has_value());
  CHECK_FALSE(parse_sacct("").has_value());
  CHECK_FALSE(parse_sacct("Slurm accounting storage is disabled\n").has_value());
  CHECK(parse_sbatch("17\n") == "17");
  CHECK(parse_sbatch("17;north\n") == "17");
  CHECK_FALSE(parse_sbatch("").has_value());
  CHECK_FALSE(parse_sbatch("sbatch: 17").has_value());
}

}  // namespace
}  // namespace ddprun::submit
