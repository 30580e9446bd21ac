// SPDX-License-Identifier: Apache-2.0
#include "agent/operation_report.h"

#include <algorithm>
#include <cstdio>

#include "common/log.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;

std::string seconds_text(milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time.count()) / 1000);
  return text;
}

std::vector<int> all_but(const std::vector<int>& missing, int size) {
  constexpr int kMaxListed = 4096;  // a larger world is told by its number
  std::vector<int> others;
  for (int rank = 0; rank < size && size <= kMaxListed; ++rank) {
    if (!std::binary_search(missing.begin(), missing.end(), rank)) others.push_back(rank);
  }
  return others;
}

}  // namespace

std::string failed_operation_text(const OperationFailed& failed) {
  const std::string time = seconds_text(milliseconds(failed.waited_ms));
  if (failed.code == "protocol error" || failed.code == "peer lost") {
    return concat("in ", failed.operation, " for ", time, ": ", failed.message);
  }
  if (failed.missing.empty()) return concat(failed.operation, " did not end within ", time);
  const std::vector<int> others = all_but(failed.missing, failed.size);
  const std::string waiting = others.empty() ? "the others" : ranks_text(others);
  return concat(ranks_text(failed.missing), " never came to ", failed.operation, "; ", waiting,
                " waited in it for ", time);
}

bool is_worth_recording(const OperationFailed& failed) {
  return failed.code == "timeout" || failed.code == "protocol error";
}

std::string whereabouts_text(const std::vector<CommunicatorState>& communicators,
                             Clock::time_point now) {
  const CommunicatorState* oldest = nullptr;
  const CommunicatorState* last = nullptr;
  for (const CommunicatorState& each : communicators) {
    if (each.open && (oldest == nullptr || each.begun_ns < oldest->begun_ns)) oldest = &each;
    if (each.done > 0 && last == nullptr) last = &each;
  }
  if (oldest != nullptr) {
    const std::chrono::nanoseconds begun(static_cast<std::int64_t>(oldest->begun_ns));
    const auto since = std::chrono::duration_cast<milliseconds>(now.time_since_epoch() - begun);
    return concat("it was in ", text_of(*oldest->open), " for ",
                  seconds_text(std::max(milliseconds(0), since)));
  }
  if (last == nullptr) return "";
  return concat("it was in none; the last one that ended was #", last->done, " of communicator ",
                last->communicator);
}

}  // namespace ddprun::agent
