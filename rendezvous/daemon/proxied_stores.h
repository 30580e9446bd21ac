// SPDX-License-Identifier: Apache-2.0
// The stores of the jobs whose workers come through their nodes' proxies (--store=proxy): one for
// each job's latest round. With a journal nothing is said before what it follows from is kept. io
// thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/daemon/store_rows.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/store/proxied_store.h"

namespace ddprun::rendezvous {

class ProxiedStores {
 public:
  using ConnectionId = membership::ConnectionId;

  // `send` takes one message for the agent at a connection.
  ProxiedStores(bool is_journalled, std::function<void(ConnectionId, std::string)> send)
      : is_journalled_(is_journalled), send_(std::move(send)) {}

  // From an agent; `seat` is its present one. A message of a round that is no more is ignored. What
  // follows from it waits for release(). Throws Error(kProtocol).
  void received(ConnectionId connection, const std::optional<membership::Seat>& seat,
                std::string_view message);

  // The connection has ended. A store outlives its job until then: workers may still be stopping.
  void closed(ConnectionId connection);

  // Of agents that are connected.
  bool in_use() const { return !attachments_.empty(); }

  // Of all jobs' stores; bytes: what counts against a store's limit.
  struct Usage {
    std::size_t number = 0, num_keys = 0, bytes = 0;
  };
  Usage usage() const;

  // Drops the stores of jobs that are no more.
  void keep_only(const std::function<bool(std::uint64_t job)>& lives);

  // What changed since the last call, for a journal.
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

  // From the journal of an earlier process, before received(). Of a job whose store can't be made
  // again `lost` is told why, and its rows are erased.
  void restore(const journal::Rows& rows,
               const std::function<void(std::uint64_t job, const std::string& why)>& lost);

 private:
  struct Attachment {
    std::shared_ptr<Round> round;  // second owner: rounds_, while it is the job's latest
    store::ProxiedStore::Node node = 0;
  };
  static constexpr std::size_t kMaxStoreBytes = std::size_t{4} << 30;  // as a StoreServer's

  std::shared_ptr<Round> make_round(std::uint64_t job, std::uint64_t round);
  Attachment* attach(ConnectionId connection, const std::optional<membership::Seat>& seat,
                     std::uint64_t round);

  const bool is_journalled_;
  const std::function<void(ConnectionId, std::string)> send_;
  const store::RequestLimits limits_;
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds_;  // by job
  std::vector<std::weak_ptr<Round>> touched_;               // since take_marks()
  journal::Batch changes_;
  std::map<ConnectionId, Attachment> attachments_;
};

}  // namespace ddprun::rendezvous
