// SPDX-License-Identifier: Apache-2.0
// The stores of jobs whose workers come through their nodes' proxies (--store=proxy): one for a
// job's latest round. With a journal nothing is said before its cause is kept. io thread only.
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
    // Takes one message for the agent at a connection.
    std::function<void(ConnectionId, std::string)> send;
    // An agent's message makes no sense here: nothing more is taken from its connection.
    std::function<void(ConnectionId, std::string)> trouble;
    // Calls `some` until it returns false, others in between. Empty: a store ends at once.
    std::function<void(std::function<bool()> some)> in_turns;
  };

  explicit ProxiedStores(Options options);

  // From an agent; `seat` is its present one, asked for with the connection's first message of a
  // round. Ignores a message of a past round. Nothing is answered before release().
  using Seat = std::function<std::optional<membership::Seat>()>;
  void received(ConnectionId connection, const Seat& seat, std::string_view message,
                Clock::time_point now);

  // Goes on with what nodes said and what had to let others go first, or to wait.
  void go_on(Clock::time_point now);
  // When that is due; nullopt: nothing waits.
  std::optional<Clock::time_point> next_turn() const {
    return waiting_.empty() ? std::nullopt : std::optional(next_turn_);
  }

  // The connection has ended. A store outlives its job until then: workers may still be stopping.
  void closed(ConnectionId connection);

  // By an agent that is connected.
  bool in_use() const { return !attachments_.empty(); }

  // Drops the store of a job that is no more, but for the connections that still use it.
  void drop(std::uint64_t job);
  // The same for all jobs that live no more.
  void keep_only(const std::function<bool(std::uint64_t job)>& lives);

  // The changes since the last call, for a journal.
  journal::Batch take_changes() { return std::exchange(changes_, {}); }
  bool has_changes() const { return !changes_.empty(); }
  // All that may be said once the changes until now are kept, and the saying of it.
  struct Round;
  struct Marks {
    std::shared_ptr<Round> round;  // second owner: as Attachment's
    std::vector<store::ProxiedStore::Mark> marks;
  };
  std::vector<Marks> take_marks();
  void release(const std::vector<Marks>& all);

  // From an earlier process' journal, before received(). `lost`: this job's store can't be
  // restored; its rows are erased.
  void restore(const journal::Rows& rows,
               const std::function<void(std::uint64_t job, const std::string& why)>& lost);

  struct Usage {
    std::size_t stores = 0, keys = 0, bytes = 0, connections = 0;
  };
  const Usage& usage() const { return *usage_; }  // of all

 private:
  struct Attachment {
    std::shared_ptr<Round> round;  // second owner: rounds_, while it is the job's latest
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
    kReadyAgain,  // more of what it said is there
    kNotYet,      // it had none: the limits of requests, its large ones, or who waits goes first
  };
  AfterTurn take_turn(Round& round, store::ProxiedStore::Node node, std::size_t num_waiting,
                      Clock::time_point now);
  void wait(const std::shared_ptr<Round>& round, store::ProxiedStore::Node node, AfterTurn after,
            Clock::time_point now);
  bool is_slowed() const { return options_.of_job.requests > 0 || options_.in_all.requests > 0; }
  store::ProxiedStore::Refusals refusals(const Round& round) const;

  const Options options_;
  const store::RequestLimits limits_;
  const std::shared_ptr<Usage> usage_ = std::make_shared<Usage>();  // second owners: the rounds
  store::Rate rate_;
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds_;  // by job
  std::vector<std::weak_ptr<Round>> touched_;               // since take_marks()
  std::vector<Waiting> waiting_;
  Clock::time_point next_turn_;  // of waiting_
  bool said_slowed_ = false;
  journal::Batch changes_;
  std::unordered_map<ConnectionId, Attachment> attachments_;
};

}  // namespace ddprun::rendezvous
