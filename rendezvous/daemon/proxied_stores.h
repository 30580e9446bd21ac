// SPDX-License-Identifier: Apache-2.0
// The stores of jobs whose workers connect through their nodes' proxies (--store=proxy), one for
// each job's latest round. With a journal no reply is sent before the requests behind it are kept.
// I/O thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/daemon/round_stores.h"
#include "rendezvous/daemon/store_rows.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/store/proxied_store.h"
#include "rendezvous/store/rate.h"

namespace ddprun::rendezvous {

class ProxiedStores {
 public:
  using ConnectionId = membership::ConnectionId;
  struct Options {
    bool is_journalled = false;
    StoreLimits of_job = default_job_limits(), in_all = default_total_limits();
    // Sends one message to the agent at a connection.
    std::function<void(ConnectionId, std::string)> send;
    // Called when an agent's message is invalid here. No more messages are taken from its
    // connection.
    std::function<void(ConnectionId, std::string)> trouble;
    // Calls `some` until it returns false, with other handlers in between. Empty: a store is freed
    // at once.
    std::function<void(std::function<bool()> some)> in_turns;
  };

  explicit ProxiedStores(Options options);

  // Takes a message of an agent, and ignores one of a past round. `seat` returns the agent's
  // present seat; it is called at a connection's first message of a round. No reply is sent before
  // release().
  using Seat = std::function<std::optional<membership::Seat>()>;
  void received(ConnectionId connection, const Seat& seat, std::string_view message,
                Clock::time_point now);

  // Goes on with some requests that had to wait or to let others go first. However many nodes wait,
  // this takes about as long as kWakeUpWork.
  void go_on(Clock::time_point now);
  // Returns when go_on() is due; nullopt: nothing waits.
  std::optional<Clock::time_point> next_turn() const {
    return waiting_.empty() ? std::nullopt : std::optional(next_turn_);
  }

  // Called when the connection has ended. A store outlives its job until then: workers may still be
  // stopping.
  void closed(ConnectionId connection);

  // Returns whether a connected agent uses a store.
  bool in_use() const { return !attachments_.empty(); }

  // Drops the store of an ended job. Connections that still use it keep it.
  void drop(std::uint64_t job);
  // Does the same for all jobs that don't live any more.
  void keep_only(const std::function<bool(std::uint64_t job)>& lives);

  // Returns the changes since the last call, for a journal.
  journal::Batch take_changes() { return std::exchange(changes_, {}); }
  bool has_changes() const { return !changes_.empty(); }
  // take_marks() returns up to where replies may be sent once the changes until now are kept.
  // release() sends them.
  struct Round;
  struct Marks {
    std::shared_ptr<Round> round;  // shared as in Attachment
    std::vector<store::ProxiedStore::Mark> marks;
  };
  std::vector<Marks> take_marks();
  void release(const std::vector<Marks>& all);

  // Restores stores from an earlier process' journal, before received(). Calls `lost` for a job
  // whose store can't be restored; its rows are erased.
  void restore(const journal::Rows& rows,
               const std::function<void(std::uint64_t job, const std::string& why)>& lost);

  struct Usage {
    std::size_t stores = 0, keys = 0, bytes = 0, connections = 0;
  };
  const Usage& usage() const { return *usage_; }  // of all stores

 private:
  struct Attachment {
    std::shared_ptr<Round> round;  // shared with rounds_, while it is the job's latest
    store::ProxiedStore::Node node = 0;
  };
  struct Waiting {
    std::weak_ptr<Round> round;
    store::ProxiedStore::Node node = 0;
  };

  std::shared_ptr<Round> make_round(std::uint64_t job, std::uint64_t round);
  Attachment* attach(ConnectionId connection, const Seat& seat_of, std::uint64_t round);
  void detach_all(Round& round);
  enum class AfterTurn {
    kDone,
    kReadyAgain,  // more of its requests are there
    kNotYet,      // no turn: a limit of requests or of large ones, or others wait longer
  };
  // Adds to `work` what it took.
  AfterTurn take_turn(Round& round, store::ProxiedStore::Node node, std::size_t num_waiting,
                      Clock::time_point now, std::size_t& work);
  void wait(const std::shared_ptr<Round>& round, store::ProxiedStore::Node node, AfterTurn after,
            Clock::time_point now);
  bool is_slowed() const { return options_.of_job.requests > 0 || options_.in_all.requests > 0; }
  store::ProxiedStore::Refusals refusals(const Round& round) const;

  const Options options_;
  const store::RequestLimits limits_;
  const std::shared_ptr<Usage> usage_ = std::make_shared<Usage>();  // shared with the rounds
  store::Rate rate_;
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds_;  // by job
  std::vector<std::weak_ptr<Round>> touched_;               // those since take_marks()
  std::vector<Waiting> waiting_;
  Clock::time_point next_turn_;  // when waiting_ is due
  std::size_t fresh_work_ = 0;   // of turns that were taken at once, since go_on()
  bool said_slowed_ = false;
  journal::Batch changes_;
  std::unordered_map<ConnectionId, Attachment> attachments_;
};

}  // namespace ddprun::rendezvous
