// SPDX-License-Identifier: Apache-2.0
// The progress pages of this node's workers (docs/agent-socket.md). They are made for each round;
// AgentSocket hands them to the workers, and those who watch read them. io thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/hang/rank_sample.h"
#include "common/clock.h"
#include "common/operation_facts.h"
#include "common/progress_page.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// A worker's own report at the moment of reading. The agent checks none of its values.
struct ProgressSample : ProgressWords {
  bool connected = false;  // it has asked for its page in this round, so its numbers are valid
  bool own_count = false;  // steps count from 1 in each round, whatever the job has done before
  bool stop_requested = false;

  friend bool operator==(const ProgressSample&, const ProgressSample&) = default;
};

class ProgressPages {
 public:
  ProgressPages() = default;
  ~ProgressPages();
  ProgressPages(const ProgressPages&) = delete;
  ProgressPages& operator=(const ProgressPages&) = delete;

  // Makes fresh pages for local ranks 0 … num_workers − 1. Those of the round before are released;
  // nobody reads what workers still write to them. If it throws Error(kResourceExhausted) or
  // Error(kSystem), there are no pages.
  void begin_round(std::uint64_t round, int num_workers);

  std::uint64_t round() const { return round_; }  // 0: no round has begun
  int num_workers() const { return static_cast<int>(pages_.size()); }

  // `local_rank` is below num_workers() in all of these.
  ProgressSample read(int local_rank) const;
  // Returns the same values as its observer has seen them (docs/observe.md); nullopt: it saw no
  // step.
  std::optional<ProgressWords> read_seen(int local_rank) const;
  // Returns the operations of its communicators, as many as the page holds. Empty: it reported
  // none.
  std::vector<CommunicatorState> communicators(int local_rank) const;
  int memory(int local_rank) const;  // the page's memory file, to be handed to the worker
  void set_connected(int local_rank);

  // Returns the largest step that a worker of this round has finished in the job's count; 0: none.
  std::uint64_t last_step() const;

  // Asks every worker of the round to leave at a step boundary, before `until`.
  void request_stop(StopRequest request, Clock::time_point until);

  // Tells every worker of the round that one of the job's workers has died. The others may then go
  // on in place (docs/inplace.md).
  void tell_peer_lost();

 private:
  struct Page {
    UniqueFd memory;
    ProgressPage* mapped = nullptr;
    bool connected = false;
  };
  void release();

  std::uint64_t round_ = 0;
  std::vector<Page> pages_;
};

}  // namespace ddprun::agent
