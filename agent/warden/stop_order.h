// SPDX-License-Identifier: Apache-2.0
// A stop's signal: the processes that get it now, and those that are left to a parent of theirs.
// No C++ library.
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "agent/warden/process_list.h"
#include "agent/warden/process_tree.h"

namespace ddprun::agent::warden {

// A data loader is left to its parent, which would take the loader's end by the signal for a
// failure.
class StopOrder {
 public:
  StopOrder() = default;
  ~StopOrder();
  StopOrder(const StopOrder&) = delete;
  StopOrder& operator=(const StopOrder&) = delete;

  // kStop, once. add_group() follows for each worker, at most `num_groups` times.
  void begin(int signal_number, size_t num_groups);
  void add_group(pid_t leader);

  // The signal to all in the groups that are not left to a parent. False: nobody is, so that each
  // group can have it at once; nothing was sent.
  bool ask_apart();
  // The signal to those whose parent has ended by now; `all`: to the others, too.
  void ask_spared(bool all);
  // Once, when no worker is left: SIGTERM and SIGCONT to those that the signal has not reached.
  void ask_the_rest();

 private:
  bool is_in_group(pid_t pid) const;
  // Below a process of the same program that handles the signal.
  bool is_parents_to_end(pid_t pid) const;

  // For process_tree; `order` is this. Puts each process of the groups in its list, and signals
  // none.
  static Visit choose_to_sort(pid_t pid, void* order);
  static Visit choose_to_ask(pid_t pid, void* order);
  // Chooses the processes of spared_ that nobody ends any more.
  static Visit choose_spared(pid_t pid, void* order);
  // Chooses the processes that the signal has not reached, or not moved (a shell's "&" has SIGINT
  // and SIGQUIT ignored).
  static Visit choose_unasked(pid_t pid, void* order);

  int signal_number_ = 0;
  pid_t* groups_ = nullptr;  // their leaders
  size_t num_groups_ = 0;
  ProcessList to_ask_, spared_;
  bool spares_ = true;
  bool rest_asked_ = false;
};

}  // namespace ddprun::agent::warden
