// SPDX-License-Identifier: Apache-2.0
#include "launcher/failure_report.h"

#include <csignal>

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::Contains;
using Texts = std::vector<std::string>;

namespace {

membership::WorkerFailure failed(const Texts& last_lines, const std::string& note = "") {
  membership::WorkerFailure failure;
  failure.exit_code = 1;
  failure.last_lines = last_lines;
  failure.note = note;
  return failure;
}

}  // namespace

TEST_CASE("out of memory: named by the last exception of the output") {
  const std::string cuda =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has …";
  for (const std::string& line : {
           cuda,
           std::string("MemoryError"),
           std::string("torch.cuda.OutOfMemoryError: CUDA out of memory."),
           std::string("RuntimeError: CUDA error: out of memory"),
           std::string("RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: "
                       "can't allocate memory: you tried to allocate 8 bytes."),
           std::string("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 TiB"),
           std::string("OSError: [Errno 12] Cannot allocate memory"),
       }) {
    CAPTURE(line);
    CHECK(out_of_memory(failed({"Traceback (most recent call last):", line})) ==
          "ran out: " + line);
  }
  CHECK(out_of_memory(failed({"[rank1]: Traceback …", "[rank1]: " + cuda, "W bye"})) ==
        "ran out: " + cuda);
  auto aborted = failed({"terminate called after throwing an instance of 'std::bad_alloc'",
                         "  what():  std::bad_alloc"});
  aborted.signal_number = SIGABRT;
  CHECK_THAT(out_of_memory(aborted), Contains("std::bad_alloc"));
  CHECK(out_of_memory(failed({"other"}, cuda)) == "ran out: " + cuda);
  CHECK(out_of_memory(failed({"MemoryError: " + std::string(9999, 'x')})).size() < 400);
}

TEST_CASE("out of memory: it is never a guess") {
  CHECK(out_of_memory(failed({})).empty());
  CHECK(out_of_memory(failed({"we are out of memory, said the elephant"})).empty());
  // The error was caught, and another exception ended the worker.
  CHECK(out_of_memory(failed({"MemoryError", "Traceback …", "ValueError: x"})).empty());
  CHECK(out_of_memory(failed({"MemoryError"}, "KeyError: 'a'")).empty());
  CHECK(out_of_memory(failed({"MyMemoryErrorCount: 3", "[rank0]", "[rank"})).empty());
  auto killed = failed({"MemoryError"});
  killed.signal_number = SIGKILL;
  CHECK(out_of_memory(killed).empty());
  killed.out_of_memory = "ran out: the kernel's OOM killer …";
  CHECK(out_of_memory(killed) == killed.out_of_memory);
}

TEST_CASE("failure report: memory that ran out, and where the logs are") {
  membership::JobEnd verdict;
  verdict.exit_code = 1;
  verdict.first_failure = failed({"MemoryError: x"});
  verdict.first_failure->host = "n2";
  CHECK_THAT(failure_report(verdict, {}),
             Contains("  memory    ran out: MemoryError: x\n") && !Contains("logs"));
  verdict.first_failure->log_files = {"/l/job_ab/attempt_0/1/stdout.log",
                                      "/l/job_ab/attempt_0/1/stderr.log\n"};
  CHECK_THAT(failure_report(verdict, {}),
             Contains("  logs      /l/job_ab/attempt_0/1/stdout.log\n"
                      "            /l/job_ab/attempt_0/1/stderr.log\\n\n"
                      "            all ranks of n2: /l/job_ab\n"));
}
