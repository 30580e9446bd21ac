// SPDX-License-Identifier: Apache-2.0
#include "bench/store/storm.h"

#include <cstdio>
#include <utility>

#include "bench/store/bench_client.h"
#include "common/process_facts.h"
#include "rendezvous/store/request.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::bench {

using store::encoded;
using store::Opcode;

namespace {

constexpr std::size_t kIdBytes = 128;

StormStep step_of(std::vector<std::string> requests, std::size_t reply_bytes) {
  StormStep step{std::move(requests), {}, reply_bytes};
  for (const std::string& request : step.requests) step.bytes += request;
  return step;
}

}  // namespace

StormSteps::StormSteps(int num_ranks) {
  const std::string barrier =
      encoded({.opcode = Opcode::kBarrier, .key = "/barrier", .number = num_ranks});
  const std::string id(kIdBytes, 'i');
  first_ = {step_of(handshake_requests(), kHandshakeReplyBytes),
            step_of({encoded({.opcode = Opcode::kAdd, .key = "init/", .number = 1})}, 8)};
  others_ = first_;
  first_.push_back(
      step_of({encoded({.opcode = Opcode::kSet, .key = "/id", .value = id}), barrier}, 1));
  others_.push_back(step_of({encoded({.opcode = Opcode::kWait, .keys = {"/id"}})}, 1));
  others_.push_back(step_of({encoded({.opcode = Opcode::kGet, .key = "/id"})}, 8 + kIdBytes));
  others_.push_back(step_of({barrier}, 1));
}

bool StormRank::received(std::size_t bytes) {
  if (is_done() || bytes > missing_bytes_) die("the server says more than it was asked");
  missing_bytes_ -= bytes;
  if (missing_bytes_ > 0) return false;
  if (++index_ < steps_->size()) missing_bytes_ = step().reply_bytes;
  return true;
}

StormClock::StormClock(int pid)
    : pid_(pid), cpu_before_(cpu_seconds(pid)), start_(std::chrono::steady_clock::now()) {}

void StormClock::print(int num_ranks) const {
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::printf(
      "{\"ranks\": %d, \"seconds\": %.3f, \"server_cpu_seconds\": %.3f, "
      "\"server_resident_bytes\": %zu}\n",
      num_ranks, elapsed, cpu_seconds(pid_) - cpu_before_, resident_bytes(pid_).value_or(0));
}

void need_files(int num_files) {
  const std::size_t limit = store::raise_file_limit();
  if (limit < static_cast<std::size_t>(num_files)) {
    die("the hard limit of open files is " + std::to_string(limit));
  }
}

}  // namespace ddprun::bench
