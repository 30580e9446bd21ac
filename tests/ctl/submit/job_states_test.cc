// SPDX-License-Identifier: Apache-2.0
// States for people, as JSON and as exit codes; hosts over ssh; the record of a job.
#include "ctl/submit/job_states.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "common/env_names.h"
#include "common/shell_words.h"
#include "common/unique_fd.h"
#include "ctl/submit/run_program.h"
#include "ctl/submit/ssh.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

namespace ddprun::submit {
namespace {

using Catch::Matchers::Equals;
using ddprun::test::Contains;

JobState failed_state() {
  JobState state;
  state.id = "slurm:17";
  state.name = "digits\x1b";
  state.phase = Phase::kFailed;
  state.exit_code = 13;
  state.nodes = {"n1", "n2", "n3"};
  state.submitted = WallTime(std::chrono::seconds(1'800'000'000));
  state.reason = "two\nlines";
  return state;
}

TEST_CASE("job states: ids name their place") {
  CHECK(parse_job_id("slurm:17")->id == "17");
  CHECK(parse_job_id("kubernetes:a/b")->place == "kubernetes");
  CHECK_FALSE(parse_job_id("17").has_value());
  CHECK_FALSE(parse_job_id("slurm:").has_value());
  CHECK_FALSE(parse_job_id("pbs:17").has_value());
}

TEST_CASE("job states: each job is one line, whatever is in its words") {
  const std::string table = states_table({failed_state()});
  CHECK(std::count(table.begin(), table.end(), '\n') == 2);
  CHECK_THAT(table, Contains("slurm:17") && Contains("failed") &&
                        Contains("2027-01-15T08:00:00Z") && Contains("n1,n2,… (3)") &&
                        Contains("two\\nlines") && Contains("\\x1b"));
  CHECK(states_table({}) == "no jobs\n");
  CHECK_THAT(state_text(failed_state()), Contains("exit code  13\n") && Contains("why        two"));
}

TEST_CASE("job states: JSON has null for what isn't known") {
  CHECK_THAT(state_json(failed_state()),
             Equals(R"({"id":"slurm:17","name":"digits\u001b","phase":"failed","exit_code":13,)"
                    R"("nodes":["n1","n2","n3"],"submitted":"2027-01-15T08:00:00Z","began":null,)"
                    R"("ended":null,"reason":"two\nlines"})"
                    "\n"));
  CHECK(states_json({}) == "{\"jobs\":[]}\n");
}

TEST_CASE("job states: --wait ends with the exit code of the job, or of its phase") {
  JobState state = failed_state();
  CHECK(exit_code_of(state) == 13);
  state.exit_code.reset();
  CHECK(exit_code_of(state) == 1);
  state.phase = Phase::kCancelled;
  CHECK(exit_code_of(state) == 143);
  state.phase = Phase::kSucceeded;
  CHECK(exit_code_of(state) == 0);
}

TEST_CASE("job states: a job that its place has forgotten has the state of its record") {
  const JobRecord record{.id = "slurm:17",
                         .name = "digits",
                         .host = "n1",
                         .submitted = {},
                         .log = "",
                         .exit_file = "",
                         .nodes = {},
                         .command = {}};
  const RecordedExit good{0, {}}, bad{13, {}};
  CHECK(state_of_record(record, good, true, "?").phase == Phase::kSucceeded);
  CHECK(state_of_record(record, bad, false, "?").phase == Phase::kFailed);
  CHECK(state_of_record(record, bad, true, "?").phase == Phase::kCancelled);
  CHECK(state_of_record(record, {}, true, "?").phase == Phase::kCancelled);
  const JobState unknown = state_of_record(record, {}, false, "nobody knows");
  CHECK(unknown.phase == Phase::kUnknown);
  CHECK(unknown.reason == "nobody knows");
}

TEST_CASE("job records: they are found again, the latest first, but for damaged ones") {
  const ddprun::test::TempDirectory directory;
  const JobRecords records({{"XDG_STATE_HOME", directory.path()}});
  CHECK(records.all_of("ssh").empty());
  JobRecord record{.id = "ssh:a-k3v9x",
                   .name = "a",
                   .host = "n1",
                   .submitted = WallTime(std::chrono::seconds(100)),
                   .log = "/l",
                   .exit_file = "/e",
                   .nodes = {"n1"},
                   .command = {"x", "y z"}};
  records.add(record);
  record.id = "ssh:b-k3v9x";
  record.submitted += std::chrono::seconds(1);
  records.add(record);
  const auto all = records.all_of("ssh");
  REQUIRE(all.size() == 2);
  CHECK(all[0].id == "ssh:b-k3v9x");
  CHECK(all[1].command == std::vector<std::string>{"x", "y z"});
  CHECK(records.all_of("slurm").empty());
  CHECK_FALSE(records.is_cancelled(record.id));
  records.mark_cancelled(record.id);
  CHECK(records.is_cancelled(record.id));
  std::ofstream(records.directory_of(record.id) / "job.json") << "{";
  CHECK_FALSE(records.find(record.id).has_value());
  CHECK_THAT(records.problem_of(record.id), Contains("job.json is damaged"));
  CHECK(records.all_of("ssh").size() == 1);
  std::filesystem::remove(records.directory_of(record.id) / "job.json");
  CHECK(records.problem_of(record.id).empty());
  std::filesystem::create_directory(records.directory_of(record.id) / "job.json");
  CHECK_FALSE(records.find(record.id).has_value());
  CHECK_THAT(records.problem_of(record.id), Contains("job.json can't be read"));
  CHECK(records.all_of("ssh").size() == 1);
}

TEST_CASE("job records: a record that could not be written leaves no file") {
  const ddprun::test::TempDirectory directory;
  const JobRecords records({{"XDG_STATE_HOME", directory.path()}});
  JobRecord record;
  record.id = "ssh:a-k3v9x";
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  const auto action = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  const std::string why = ddprun::test::error_of([&] { records.add(record); }).what();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, action);
  CHECK_THAT(why, Contains("job.json") && Contains("File too large"));
  CHECK(std::filesystem::is_empty(directory.path("ddprun/jobs")));
}

TEST_CASE("job records: a process of another start, or another boot, is another one") {
  const ddprun::test::TempDirectory directory;
  const JobRecords records({{"XDG_STATE_HOME", directory.path()}});
  records.add({.id = "ssh:a",
               .name = "a",
               .host = "",
               .submitted = {},
               .log = "",
               .exit_file = "",
               .nodes = {},
               .command = {}});
  CHECK_FALSE(records.process_of("ssh:a").has_value());
  RecordedProcess self = RecordedProcess::of(::getpid());
  records.add_process("ssh:a", self);
  CHECK(records.process_of("ssh:a")->is_alive());
  ++self.start_ticks;
  CHECK_FALSE(self.is_alive());
  self = RecordedProcess::of(::getpid());
  self.boot_id += "0";
  CHECK_FALSE(self.is_alive());
}

TEST_CASE("job records: a process that ended, and that nobody has reaped, doesn't run") {
  const pid_t child = start_program({.argv = {"sleep", "1000"}}, {}).pid;
  const RecordedProcess process = RecordedProcess::of(child);
  CHECK(process.is_alive());
  ::kill(child, SIGKILL);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(process.is_alive());
  REQUIRE(::waitpid(child, nullptr, 0) == child);
}

// A group of two processes, of which the first one leads. Neither is in an exec, where a process
// has no variables for a moment.
TEST_CASE("job processes: they are those left of a job's group, and no other's") {
  std::array<int, 2> input{}, said{};
  REQUIRE(::pipe2(input.data(), O_CLOEXEC) == 0);
  REQUIRE(::pipe2(said.data(), O_CLOEXEC) == 0);
  const UniqueFd in_end(input[0]), in(input[1]), out(said[0]), out_end(said[1]);
  const pid_t leader =
      start_program({.argv = {"/bin/sh", "-c", "sh -c 'echo here; read line; :'; :"},
                     .descriptors = {in_end.get(), out_end.get()},
                     .own_session = true},
                    {{env::kSubmittedAs, "ssh:a-k3v9x"}})
          .pid;
  char letter = 0;
  REQUIRE(::read(out.get(), &letter, 1) == 1);
  CHECK(job_processes(leader, "ssh:a-k3v9x").size() == 2);
  CHECK(job_processes(leader, "ssh:a-k3v9").empty());
  CHECK(job_processes(::getpgrp(), "ssh:a-k3v9x").empty());
  ::kill(leader, SIGKILL);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(leader), &info, WEXITED | WNOWAIT) == 0);
  const auto left = job_processes(leader, "ssh:a-k3v9x");
  REQUIRE(left.size() == 1);
  end_processes(left);
  pollfd ended{left.front().get(), POLLIN, 0};
  CHECK(::poll(&ended, 1, 60'000) == 1);
  CHECK_NOTHROW(end_processes(left));  // the process has ended already
  CHECK(job_processes(leader, "ssh:a-k3v9x").empty());
  REQUIRE(::waitpid(leader, nullptr, 0) == leader);
}

TEST_CASE("ssh: the launcher's command, with names of variables and no values") {
  const JobFile job = JobFile::parse(
      "name = \"a\"\ncommand = [\"x\"]\nnodes = 2\nddprun = \"/far/ddprun\"\nlimits.time = 60\n"
      "environment_without = [\"KEPT\"]\n"
      "[to.ssh]\nhosts = [\"n[1-2]:4\", \"n3\"]\nexclude = [\"n3\"]\nssh = \"ssh -p 22\"\n"
      "[environment]\nTOKEN = \"hidden\"\n",
      "job.toml", "/");
  CHECK(shell_line(ssh_command(job, "/near/ddprun")) ==
        "/near/ddprun '--hosts=n[1-2]:4,n3' --exclude-hosts=n3 '--ssh=ssh -p 22' "
        "--remote-ddprun=/far/ddprun --env=-KEPT --env=TOKEN --time-limit=60 --nnodes=2 x");
  const JobFile nowhere = JobFile::parse("name = \"a\"\ncommand = [\"x\"]", "job.toml", "/");
  CHECK_THAT(ddprun::test::error_of([&] { ssh_command(nowhere, "ddprun"); }).what(),
             Contains("job.toml: it names no hosts"));
}

TEST_CASE("ssh: the shell that waits leaves the exit code, also of one that a signal ended") {
  const ddprun::test::TempDirectory directory;
  const std::string file = directory.path("exit");
  run_program(
      {.argv = ssh_supervisor({"sh", "-c", "exit 13"}, file), .input = {}, .environment = {}});
  CHECK(read_exit_file(file)->code == 13);
  run_program({.argv = ssh_supervisor({"sh", "-c", "kill -TERM $PPID $$"}, file),
               .input = {},
               .environment = {}});
  CHECK(read_exit_file(file)->code == 143);
  CHECK_FALSE(read_exit_file(directory.path("none")).has_value());
}

TEST_CASE("ssh: an exit code for which there is no room stays unfinished") {
  const ddprun::test::TempDirectory directory;
  const std::string file = directory.path("exit");
  std::filesystem::create_symlink("/dev/full", unfinished_exit_file(file));
  run_program({.argv = ssh_supervisor({"true"}, file), .input = {}, .environment = {}});
  CHECK_FALSE(read_exit_file(file).has_value());
  CHECK(std::filesystem::exists(unfinished_exit_file(file)));
}

TEST_CASE("run_program: its input, its output, its end, and one that isn't there") {
  const ProgramEnd end = run_program({.argv = {"sh", "-c", "cat; echo \"$WORD\" >&2; exit 3"},
                                      .input = std::string(200'000, 'x'),
                                      .environment = {{"WORD", "said"}}});
  CHECK(end.status == 3);
  CHECK(end.out.size() == 200'000);
  CHECK(failure_text(end) == "said");
  CHECK(ddprun::test::code_of([] {
          run_program({.argv = {"no-such-program"}, .input = {}, .environment = {}});
        }) == ErrorCode::kUnsupported);
}

TEST_CASE("run_program: one that doesn't answer is given up, and nobody waits for what it left") {
  std::string what;
  CHECK(ddprun::test::code_of(
            [] {
              run_program({.argv = {"sleep", "100"},
                           .input = {},
                           .environment = {},
                           .limit = std::chrono::milliseconds(20)});
            },
            &what) == ErrorCode::kTimeout);
  CHECK_THAT(what, Contains("sleep did not answer"));
  const ProgramEnd end =
      run_program({.argv = {"sh", "-c", "sleep 100 & echo $!"}, .input = {}, .environment = {}});
  CHECK(end.status == 0);
  run_program({.argv = {"sh", "-c", "kill " + end.out}, .input = {}, .environment = {}});
}

TEST_CASE(
    "run_program: output that is too much to keep is told, and not cut, and a view has all of it") {
  const std::vector<std::string> much = {"head", "--bytes=65M", "/dev/zero"};
  std::string what;
  CHECK(ddprun::test::code_of([&] { run_program({.argv = much, .input = {}, .environment = {}}); },
                              &what) == ErrorCode::kResourceExhausted);
  CHECK(what == "head said more than 64 MiB");
  std::size_t num_bytes = 0;
  const LogView view{.show =
                         [&](std::string_view text) {
                           num_bytes += text.size();
                           return true;
                         },
                     .pause = [](std::chrono::milliseconds) { return true; }};
  CHECK(run_program({.argv = much, .input = {}, .environment = {}, .view = &view}).status == 0);
  CHECK(num_bytes == std::size_t{65} << 20);
  CHECK(ddprun::test::code_of([&] {
          run_program({.argv = {"sleep", "100"},
                       .input = {},
                       .environment = {},
                       .limit = std::chrono::milliseconds(20),
                       .view = &view});
        }) == ErrorCode::kTimeout);
}

TEST_CASE("run_program: a view sees what comes, and ends it") {
  std::string seen;
  bool wants_more = true;
  const LogView view{.show =
                         [&](std::string_view text) {
                           seen += text;
                           wants_more = seen.find("two") == std::string::npos;
                           return wants_more;
                         },
                     .pause = [&](std::chrono::milliseconds) { return wants_more; }};
  run_program({.argv = {"sh", "-c", "echo one; echo two; exec sleep 100"},
               .input = {},
               .environment = {},
               .view = &view});
  CHECK(seen == "one\ntwo\n");
}

}  // namespace
}  // namespace ddprun::submit
