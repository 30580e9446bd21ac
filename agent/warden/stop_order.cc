// SPDX-License-Identifier: Apache-2.0
#include "agent/warden/stop_order.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/process_stat.h"

namespace ddprun::agent::warden {

StopOrder::~StopOrder() { free(groups_); }

void StopOrder::begin(int signal_number, size_t num_groups) {
  signal_number_ = signal_number;
  groups_ = static_cast<pid_t*>(malloc((num_groups + 1) * sizeof(pid_t)));
}

void StopOrder::add_group(pid_t leader) {
  if (groups_) groups_[num_groups_++] = leader;
}

// SIGINT goes to all processes at once, as from a terminal: programs expect that.
bool StopOrder::ask_apart() {
  if (signal_number_ != SIGINT) signal_descendants(0, &choose_to_sort, this);
  if (spared_.is_empty()) return false;
  // The next look finds a process that loses its parent during this one. Processes that are born
  // meanwhile, to save something, are left alone.
  while (signal_descendants(signal_number_, &choose_to_ask, this) > 0) {
  }
  return true;
}

void StopOrder::ask_spared(bool all) {
  if (all) spares_ = false;
  if (!spared_.is_empty()) signal_descendants(signal_number_, &choose_spared, this);
}

void StopOrder::ask_the_rest() {
  if (rest_asked_) return;
  rest_asked_ = true;
  signal_descendants(SIGTERM, &choose_unasked, this);
  signal_descendants(SIGCONT, &choose_unasked, this);
}

bool StopOrder::is_in_group(pid_t pid) const {
  const pid_t group = getpgid(pid);
  for (size_t i = 0; i < num_groups_; ++i) {
    // A leader without a group of its own, or that has left it, got the signal by its pid.
    if (groups_[i] == group || groups_[i] == pid) return true;
  }
  return false;
}

bool StopOrder::is_parents_to_end(pid_t pid) const {
  ProcessStat stat;
  while (read_process_stat(pid, &stat) && stat.parent > 1 && stat.parent != getpid() &&
         run_same_program(pid, stat.parent)) {
    if (handles_signal(stat.parent, signal_number_)) return true;
    pid = stat.parent;
  }
  return false;
}

Visit StopOrder::choose_to_sort(pid_t pid, void* context) {
  StopOrder& order = *static_cast<StopOrder*>(context);
  if (!order.is_in_group(pid)) return Visit::kPass;
  (order.is_parents_to_end(pid) ? order.spared_ : order.to_ask_).add(pid);
  return Visit::kPass;
}

Visit StopOrder::choose_to_ask(pid_t pid, void* context) {
  return static_cast<StopOrder*>(context)->to_ask_.take(pid) ? Visit::kSignal : Visit::kPass;
}

Visit StopOrder::choose_spared(pid_t pid, void* context) {
  StopOrder& order = *static_cast<StopOrder*>(context);
  if (!order.spared_.has(pid)) return Visit::kPass;
  if (order.spares_ && order.is_parents_to_end(pid)) return Visit::kPass;
  order.spared_.take(pid);
  return Visit::kSignal;
}

Visit StopOrder::choose_unasked(pid_t pid, void* context) {
  const StopOrder& order = *static_cast<StopOrder*>(context);
  if (!order.is_in_group(pid)) return Visit::kSignal;
  const bool is_deaf = order.signal_number_ != SIGTERM && ignores_signal(pid, order.signal_number_);
  return is_deaf ? Visit::kSignal : Visit::kPass;
}

}  // namespace ddprun::agent::warden
