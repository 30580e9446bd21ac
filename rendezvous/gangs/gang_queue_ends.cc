// SPDX-License-Identifier: Apache-2.0
// How parts and gangs end, and what time does to them.
#include <algorithm>
#include <iterator>
#include <vector>

#include "common/exit_codes.h"
#include "rendezvous/gangs/gang_queue.h"
#include "rendezvous/gangs/gang_rows.h"

namespace ddprun::gangs {
namespace {

constexpr int kRetryable = static_cast<int>(ExitCode::kRetryable);
constexpr int kUnreachable = static_cast<int>(ExitCode::kRendezvousUnreachable);

// Nothing that another node could do changes it.
bool could_not_begin(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::kUsage) || exit_code == kExitNotExecutable ||
         exit_code == kExitNotFound;
}

// Of two that were said, the one that the gang ends with; `so_far` was said first.
int merged(int so_far, int said) {
  if (so_far == 0 || said == 0) return 0;
  if (so_far == kNoExitCode) return said;
  const bool is_weak = so_far == kRetryable || so_far == kUnreachable;
  const bool said_is_weak = said == kRetryable || said == kUnreachable;
  return is_weak && !said_is_weak ? said : so_far;
}

}  // namespace

// ---- parts and gangs end ----

void GangQueue::end_part(Gang& gang, GangPart& part, int exit_code, const std::string& reason,
                         GangTime time, GangActions& out) {
  part.phase = PartPhase::kEnded;
  part.exit_code = exit_code;
  part.reason = reason;
  const int so_far = gang.state.exit_code;
  gang.state.exit_code = merged(so_far, exit_code);
  // Of parts that ended well the first one that has something to tell: that output was lost.
  const bool is_new_trouble = exit_code == 0 && !reason.empty() && gang.state.reason.empty();
  if (gang.state.exit_code != so_far || is_new_trouble) {
    const bool is_well = exit_code == 0 && reason.empty();
    gang.state.reason = is_well ? ""
                        : reason.empty()
                            ? concat("ddprun on ", part.node, " ended with ", exit_code)
                            : concat(part.node, ": ", reason);
  }
  after_part(gang, could_not_begin(exit_code), time, out);
}

void GangQueue::lose_part(Gang& gang, GangPart& part, const std::string& why, GangTime time,
                          GangActions& out) {
  part.phase = PartPhase::kLost;
  part.reason = why;
  if (gang.state.reason.empty() && gang.state.exit_code != 0) {
    gang.state.reason = concat(part.node, ": ", why);
  }
  after_part(gang, false, time, out);
}

void GangQueue::after_part(Gang& gang, bool could_not_start, GangTime time, GangActions& out) {
  GangState& state = gang.state;
  const auto live =
      std::ranges::count_if(state.parts, [](const GangPart& part) { return !part.is_over(); });
  if (live == 0) {
    const int code = state.exit_code == kNoExitCode ? kRetryable : state.exit_code;
    const std::string reason =
        state.cancelled.empty() ? state.reason : "cancelled by " + state.cancelled;
    return end(gang, code, reason, time, out);
  }
  changed(gang, out);
  if (state.phase != GangPhase::kRunning || state.exit_code == 0 || live >= state.min_nodes) {
    return;
  }
  if (could_not_start) return stop(gang, state.reason, out);
  keep_earlier(gang.lonely_until, time.now + options_.lonely);
}

void GangQueue::stop(Gang& gang, const std::string& why, GangActions& out) {
  gang.state.phase = GangPhase::kStopping;
  gang.lonely_until.reset();
  for (const GangPart& part : gang.state.parts) {
    if (part.is_over()) continue;
    const auto node = nodes_.find({part.node, gang.state.owner});
    if (node != nodes_.end()) tell(node->second, StopPart{gang.state.id}, out);
  }
  out.push_back(
      gang_action::Log{LogLevel::kInfo, concat("gang ", gang.state.id, " is stopped: ", why)});
  changed(gang, out);
}

void GangQueue::end(Gang& gang, int exit_code, const std::string& reason, GangTime time,
                    GangActions& out) {
  GangState& state = gang.state;
  state.phase = GangPhase::kEnded;
  state.exit_code = exit_code;
  state.reason = reason;
  state.over = time.wall_ms;
  --num_live_;
  if (gang.spec) {
    live_bytes_ -= size_of(*gang.spec);
    if (!gang.is_new) erased_.push_back({gang_row(gang.number, kSpecRow), std::nullopt});
    gang.spec.reset();
  }
  gang.lonely_until.reset();
  gang.forget_at = time.now + options_.keep_finished;
  out.push_back(
      gang_action::Log{LogLevel::kInfo, concat("gang ", state.id, " has ended with ", exit_code,
                                               reason.empty() ? "" : ": ", one_line(reason))});
  changed(gang, out);
}

// ---- time ----

void GangQueue::tick(GangTime time, GangActions& out) {
  std::vector<NodeKey> late;
  for (const auto& [key, node] : nodes_) {
    if (!node.connection && node.away_until <= time.now) late.push_back(key);
  }
  for (const NodeKey& key : late) lose_node(key, time, out);
  for (auto& [number, gang] : gangs_) {
    if (!gang.lonely_until || *gang.lonely_until > time.now) continue;
    stop(gang, concat("fewer than ", gang.state.min_nodes, " of its nodes are left"), out);
  }
  drop_old(time);
  begin_gangs(time, out);
}

std::optional<Clock::time_point> GangQueue::next_deadline() const {
  std::optional<Clock::time_point> next;
  for (const auto& [key, node] : nodes_) {
    if (!node.connection) keep_earlier(next, node.away_until);
  }
  for (const auto& [number, gang] : gangs_) {
    keep_earlier(next, gang.lonely_until);
    keep_earlier(next, gang.forget_at);
  }
  return next;
}

void GangQueue::drop_old(GangTime time) {
  std::size_t num_ended = gangs_.size() - num_live_;
  for (auto gang = gangs_.begin(); gang != gangs_.end();) {
    const auto next = std::next(gang);
    const auto& forget_at = gang->second.forget_at;
    if (forget_at && (*forget_at <= time.now || num_ended > options_.max_gangs)) {
      --num_ended;
      erase(gang);
    }
    gang = next;
  }
}

void GangQueue::erase(std::map<std::uint64_t, Gang>::iterator gang) {
  erased_.push_back({gang_row(gang->first, kStateRow), std::nullopt});
  numbers_.erase(gang->second.state.id);
  gangs_.erase(gang);
}

void GangQueue::changed(Gang& gang, GangActions& out) {
  ++gang.changes;
  gang.is_changed = true;
  out.push_back(gang_action::Changed{gang.state.id});
}

}  // namespace ddprun::gangs
