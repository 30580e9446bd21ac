// SPDX-License-Identifier: Apache-2.0
#include "agent/preflight_command.h"

#include <utility>

#include "common/signal_names.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

constexpr std::chrono::milliseconds kGrace{1'000};  // from SIGTERM to SIGKILL

std::string describe(const membership::WorkerFailure& failure, int verdict_code) {
  const bool is_verdict = verdict_code != 0 && failure.signal_number == 0 &&
                          failure.exit_code == verdict_code && !failure.last_lines.empty();
  if (is_verdict) return failure.last_lines.back();
  std::string text = failure.signal_number != 0
                         ? "was killed by " + signal_name(failure.signal_number)
                         : "failed with exit code " + std::to_string(failure.exit_code);
  if (!failure.note.empty()) text += ": " + failure.note;
  if (!failure.last_lines.empty()) text += "; its last line: " + failure.last_lines.back();
  return text;
}

WorkerGroupEvents group_events(int verdict_code, const std::function<void(std::string)>& ended,
                               std::function<void()> all_gone) {
  WorkerGroupEvents events;
  events.worker_failed = [=](const membership::WorkerFailure& failure, Clock::time_point) {
    ended(describe(failure, verdict_code));
  };
  events.all_succeeded = [ended] { ended(""); };
  events.all_gone = std::move(all_gone);
  return events;
}

}  // namespace

PreflightCommand::PreflightCommand(boost::asio::io_context& io, Console& console,
                                   PreflightCommandOptions options,
                                   std::function<void(std::string problem)> done)
    : options_(std::move(options)),
      done_(std::move(done)),
      limit_(io),
      group_(io, console, {}, -1,
             group_events(
                 options_.verdict_code, [this](std::string problem) { ended(std::move(problem)); },
                 [this] { done_(problem_); })) {}

void PreflightCommand::start() {
  WorkerSpec spec;
  spec.global_rank = -1;  // so it gets no stdin
  // The job's stdout is for its workers only.
  spec.argv = {"/bin/sh", "-c", "exec >&2\n" + options_.command};
  spec.environment = options_.environment;
  std::vector<WorkerSpec> specs;
  specs.push_back(std::move(spec));
  group_.start(std::move(specs));
  run_after(limit_, options_.limit, [this] {
    const auto seconds = static_cast<double>(options_.limit.count()) / 1000.0;
    ended(concat("had not ended after ", seconds, " s (--preflight-timeout)"));
  });
}

// Also ends the processes that the command left behind.
void PreflightCommand::ended(std::string problem) {
  if (std::exchange(ended_, true)) return;
  limit_.cancel();
  problem_ = std::move(problem);
  group_.stop(kGrace);
}

}  // namespace ddprun::agent
