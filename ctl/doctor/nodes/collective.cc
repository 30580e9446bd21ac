// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/collective.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <map>

#include "common/child_process.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/socket.h"
#include "ctl/doctor/nodes/awaiting.h"
#include "ctl/doctor/readings.h"

namespace ddprun::doctor {
namespace {

constexpr char kBeginKey[] = "doctor/collective";
constexpr char kBegin[] = "begin";
constexpr std::chrono::seconds kLeadersPatience{5};  // beyond rank 0's own deadline
constexpr std::chrono::milliseconds kAnswerTime{1'000};

std::string collective_key(int rank) { return concat(kBeginKey, "/", rank); }

// What ddprun-check prints; what it says on stderr is ours.
std::string run_check_program(std::uint64_t num_bytes, Deadline deadline) {
  const double seconds = std::chrono::duration<double>(deadline.remaining()).count();
  Pipe output = make_pipe();
  Child child;
  try {
    child = start_child(
        {.argv = {helper_program("ddprun-check"), std::to_string(num_bytes), concat(seconds)},
         .environment = to_strings(current_environment()),
         .descriptors = {ChildCommand::kNothing, output.write_end.get(), ChildCommand::kNothing},
         .dies_with_us = true});
  } catch (const StartError&) {
    return "host failed: ddprun-check can't be started";
  }
  output.write_end.reset();
  std::string text;
  std::array<char, 4096> buffer;
  ssize_t size = 1;
  const Deadline patience(deadline.at() + kAnswerTime);
  while (size > 0 && wait_ready(output.read_end.get(), POLLIN, patience)) {
    size = ::read(output.read_end.get(), buffer.data(), buffer.size());
    if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  int status = 0;
  if (size > 0) {  // one that can't end yet is init's
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, WNOHANG);
    return "host failed: no end in time";
  }
  ::waitpid(child.pid, &status, 0);
  if (text.empty()) text = concat("host failed: ddprun-check ended with status ", status);
  return text;
}

}  // namespace

std::vector<RankCollective> parse_collectives(const std::string& text) {
  constexpr std::string_view kFailed = " failed: ";
  std::vector<RankCollective> found;
  for (const std::string& line : lines_in(text)) {
    RankCollective each;
    if (const std::size_t at = line.find(kFailed); at != std::string::npos) {
      each.backend = line.substr(0, at);
      each.failure = line.substr(at + kFailed.size());
    } else {
      const auto words = words_in(line);
      const auto numbers = numbers_in(line);
      if (words.size() != 3 || numbers.size() != 2 || numbers[1] <= 0) continue;
      each.backend = words[0];
      each.num_bytes = static_cast<double>(numbers[0]);
      each.seconds = static_cast<double>(numbers[1]) / 1e9;
    }
    if (each.backend == "host" || each.backend == "nccl") found.push_back(std::move(each));
  }
  return found;
}

void lead_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      const std::string& reason_against, Deadline deadline, NodesFacts& facts) {
  facts.no_collectives = reason_against;
  if (!reason_against.empty()) return store.set(kBeginKey, reason_against);
  store.set(kBeginKey, kBegin);
  const std::string own = run_check_program(num_bytes, deadline);
  store.set(collective_key(place.global_rank), concat(place.node_rank, "\n", own));
  std::map<int, std::string> keys;
  for (int rank = 0; rank < place.world_size; ++rank) keys[rank] = collective_key(rank);
  const Deadline patience(deadline.at() + kAnswerTime * 2);
  const auto answers = await_all(store, keys, patience);
  for (int rank = 0; rank < place.world_size; ++rank) {
    const auto answer = answers.find(rank);
    if (answer == answers.end()) {
      facts.collectives.push_back({rank, -1, "host", 0, 0, "no answer in time"});
      continue;
    }
    const auto node = numbers_in(lines_in(answer->second).front());
    for (RankCollective& each : parse_collectives(answer->second)) {
      each.global_rank = rank;
      each.node_rank = node.empty() ? -1 : static_cast<int>(node.front());
      facts.collectives.push_back(std::move(each));
    }
  }
}

void join_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      Deadline deadline) {
  if (await_key(store, kBeginKey, Deadline(deadline.at() + kLeadersPatience)) != kBegin) return;
  const std::string found = run_check_program(num_bytes, deadline);
  store.set(collective_key(place.global_rank), concat(place.node_rank, "\n", found));
}

}  // namespace ddprun::doctor
