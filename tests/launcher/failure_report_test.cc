// SPDX-License-Identifier: Apache-2.0
#include "launcher/failure_report.h"

#include <sys/stat.h>

#include <boost/json/parse.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::Contains;
using ddprun::test::TempDirectory;

namespace {

membership::JobEnd failed_job() {
  membership::WorkerFailure failure;
  failure.global_rank = 5;
  failure.local_rank = 1;
  failure.node_rank = 2;
  failure.host = "n2";
  failure.pid = 4711;
  failure.exit_code = 3;
  failure.last_lines = {"loading", "no such file: data"};
  return {.exit_code = 3, .reason = "", .first_failure = failure, .rounds = 3};
}

}  // namespace

TEST_CASE("failure report: names node, rank, pid, exit code and the last lines") {
  const std::string text = failure_report(
      failed_job(),
      {.program = "train", .max_restarts = 2, .is_alone = false, .node_rank = 0, .local = false});
  for (const char* part : {"train FAILED", "rank 5", "n2 (node rank 2)", "5 (local rank 1)", "4711",
                           "exit code 3", "    | loading\n    | no such file: data\n",
                           "restarts used: 2 of 2", "ddprun exits with 3\n"}) {
    CHECK_THAT(text, Contains(part));
  }
}

TEST_CASE("failure report: names the flight recorders") {
  membership::JobEnd end = failed_job();
  CHECK_THAT(failure_report(end, {}), !Contains("recorder"));
  end.first_failure->flight_recorder = "/l/j/attempt_2/1/flight_recorder.json";
  CHECK_THAT(failure_report(end, {}),
             Contains("  recorder  /l/j/attempt_2/1/flight_recorder.json\n"
                      "            all ranks of n2: /l/j/attempt_2/*/flight_recorder.json\n"));
}

TEST_CASE("own error file: it is as torchrun's if the worker left a traceback") {
  membership::WorkerFailure failure = *failed_job().first_failure;
  failure.note = "KeyError: 'a'";
  failure.ended_at = 1763781307;
  CHECK(error_file_text(failure).empty());
  failure.traceback = {"Traceback:", "KeyError: 'a'"};
  CHECK(
      error_file_text(failure) ==
      R"({"message":{"message":"KeyError: 'a'","extraInfo":{"py_callstack":"Traceback:\nKeyError: 'a'\n",)"
      R"("timestamp":"1763781307"},"errorCode":3}})"
      "\n");
  failure.signal_number = SIGSEGV;
  CHECK_THAT(error_file_text(failure), Contains(R"("errorCode":-11)"));
}

TEST_CASE("own error file: ddprun's reason is in it if no worker is at fault") {
  const TempDirectory directory;
  const Environment environment{{"TORCHELASTIC_ERROR_FILE", directory.path("own.json")}};
  membership::JobEnd verdict;
  CHECK(leave_error_file(environment, verdict).empty());
  CHECK_FALSE(std::filesystem::exists(directory.path("own.json")));
  verdict.exit_code = 75;
  verdict.reason = "node 1 was\nlost";
  CHECK(leave_error_file({}, verdict).empty());
  REQUIRE(leave_error_file(environment, verdict).empty());
  std::ifstream file(directory.path("own.json"));
  const auto root = boost::json::parse(file).as_object();
  const auto& message = root.at("message").as_object();
  CHECK(message.at("message") == "node 1 was\\nlost");
  CHECK(message.at("errorCode") == 75);
  CHECK(message.at("extraInfo").at("py_callstack") == "ddprun: node 1 was\\nlost\n");
  CHECK(message.at("extraInfo").at("timestamp").is_string());
  CHECK_THAT(
      leave_error_file({{"TORCHELASTIC_ERROR_FILE", directory.path("no/own.json")}}, verdict),
      Contains("could not be written to"));
}

TEST_CASE("own error file: a pipe or a directory in its place is said, and nobody waits for it") {
  const TempDirectory directory;
  const std::string pipe = directory.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  membership::JobEnd verdict;
  verdict.exit_code = 75;
  const std::string problem = "the failure could not be written to ";
  CHECK(leave_error_file({{"TORCHELASTIC_ERROR_FILE", pipe}}, verdict) ==
        problem + pipe + ": it is a pipe, and no regular file");
  CHECK(leave_error_file({{"TORCHELASTIC_ERROR_FILE", directory.path()}}, verdict) ==
        problem + directory.path() + ": Is a directory");
}

TEST_CASE("own error file: fields of an ErrorHandler stay, a text that is no JSON object doesn't") {
  membership::WorkerFailure failure = *failed_job().first_failure;
  failure.note = "E: x";
  failure.traceback = {"T"};
  failure.error_fields =
      R"({"ticket":7,"message":{"extraInfo":{"step":40,"py_callstack":"forged"}}})";
  CHECK_THAT(error_file_text(failure), Contains(R"("ticket":7)") && Contains(R"("step":40)") &&
                                           Contains(R"("py_callstack":"T\n")") &&
                                           Contains(R"("message":"E: x")"));
  const std::string plain = [&] {
    membership::WorkerFailure without = failure;
    without.error_fields.clear();
    return error_file_text(without);
  }();
  for (const std::string& hostile :
       {std::string("[1]"), std::string("{"), std::string("{}x"), std::string(5000, '['),
        std::string(R"({"message":[]})"), std::string(R"({"message":{"extraInfo":7}})")}) {
    failure.error_fields = hostile;
    CHECK(boost::json::parse(error_file_text(failure)) == boost::json::parse(plain));
  }
}

TEST_CASE("failure report: a job of one worker has no others") {
  const std::string text = failure_report(
      failed_job(),
      {.program = "train", .max_restarts = 0, .is_alone = true, .node_rank = 0, .local = false});
  CHECK_THAT(text, Contains("others    none: it was the only worker\n"));
  CHECK_THAT(text, !Contains("stopped because of it"));
  CHECK_THAT(failure_report(failed_job(), {}), Contains("those that still ran were stopped"));
}

TEST_CASE(
    "failure report: it has the time, and the error file's traceback unless the output has it") {
  membership::JobEnd verdict = failed_job();
  CHECK_THAT(failure_report(verdict, {}), !Contains("  time") && !Contains("traceback"));
  verdict.first_failure->ended_at = 1763781307;
  verdict.first_failure->error_file = "/logs/error.json";
  verdict.first_failure->traceback = {"Traceback (most recent call last):", "KeyError: 'a'"};
  CHECK_THAT(failure_report(verdict, {}),
             Contains("  time      2025-11-22 03:15:07 UTC\n") &&
                 Contains("  file      /logs/error.json\n") &&
                 Contains("    | Traceback (most recent call last):\n    | KeyError: 'a'\n"));
  verdict.first_failure->last_lines = {"x", "Traceback (most recent call last):", "KeyError: 'a'"};
  CHECK_THAT(failure_report(verdict, {}), !Contains("of its last exception"));
}

TEST_CASE("failure report: each later failure is a victim, on one line") {
  membership::JobEnd verdict = failed_job();
  verdict.victims = {"rank 1 (node 0, n0, pid 7) failed with exit code 1 12.3 ms later (± 0.4 ms)",
                     "and 2\nmore"};
  const std::string text = failure_report(verdict, {});
  CHECK_THAT(text,
             Contains("  victim    rank 1 (node 0, n0, pid 7) failed with exit code 1 12.3 ms"));
  CHECK_THAT(text, !Contains("and 2\nmore"));
}

TEST_CASE("failure report: a signal is named") {
  membership::JobEnd verdict = failed_job();
  verdict.first_failure->signal_number = SIGSEGV;
  verdict.exit_code = 139;
  CHECK_THAT(failure_report(verdict, {}), Contains("killed by SIGSEGV (signal 11)"));
}

TEST_CASE(
    "failure report: a worker that hung is shown with where it was, not with what it printed") {
  membership::JobEnd verdict = failed_job();
  verdict.first_failure->hung = true;
  verdict.first_failure->last_lines = {"state S, 0 % CPU, read() of /data/x", "  load_batch(int)"};
  verdict.exit_code = 124;
  const std::string text = failure_report(verdict, {});
  CHECK_THAT(text, Contains("ended by  ddprun: it made no progress\n"));
  CHECK_THAT(text,
             Contains("    | state S, 0 % CPU, read() of /data/x\n    |   load_batch(int)\n"));
  CHECK_THAT(text, !Contains("its last"));
}

TEST_CASE("failure report: text from another node can't forge lines or steer the terminal") {
  membership::JobEnd verdict = failed_job();
  verdict.first_failure->host = "n2\nddprun: all is well";
  verdict.first_failure->note = "\x1b[2Jnote";
  verdict.first_failure->last_lines = {"a\tb\x1b]0;title\x07"};
  const std::string text = failure_report(verdict, {});
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK_THAT(text, Contains("n2\\nddprun: all is well (node rank 2)") && Contains("\\x1b[2Jnote") &&
                       Contains("    | a\tb\\x1b]0;title\\x07\n"));
  verdict = {.exit_code = 75, .reason = "lost \x1b[2J\nx", .first_failure = {}, .rounds = 1};
  CHECK_THAT(failure_report(verdict, {}), Contains("ddprun: lost \\x1b[2J\\nx\n"));
}

TEST_CASE("failure report: nothing for success, one line where nothing had begun") {
  CHECK(failure_report({}, {}).empty());
  const std::string text = failure_report(
      {.exit_code = 69, .reason = "can't reach h:1", .first_failure = {}, .rounds = 0},
      {.program = "x", .max_restarts = 0, .is_alone = false, .node_rank = -1, .local = true});
  CHECK(text == "ddprun: can't reach h:1\n");
}

TEST_CASE("failure report: a spare's program did not fail, it never ran") {
  ReportContext spare;
  spare.program = "train";
  spare.job_id = "j";
  const std::string text = failure_report(failed_job(), spare);
  CHECK_THAT(text, Contains("job j FAILED: the first failure was rank 5"));
  CHECK_THAT(text, Contains("its workers never ran: it was a spare of job j\n"));
  CHECK_THAT(text, !Contains("train"));
  membership::JobEnd success;
  success.rounds = 1;
  CHECK_THAT(failure_report(success, spare), Contains("never ran: it was a spare of job j, which"));
  spare.node_rank = 0;
  CHECK(failure_report(success, spare).empty());
}
