// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/proxied_stores.h"

#include <set>
#include <unordered_set>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::rendezvous {

using store::ProxiedStore;

namespace {

// After so many requests others have their turn, so that a node's flood delays them little.
constexpr std::size_t kRequestsPerTurn = 1024;
constexpr std::chrono::milliseconds kSlowedTurn{10};

std::string full(std::string_view whose, std::size_t used, std::uint64_t limit,
                 std::string_view what, std::string_view flag) {
  if (used < limit) return {};
  return concat(whose, " in the rendezvous have ", used, ' ', what, ", the limit is ", limit,
                " (ddprund --", flag, '=', what, "=N)");
}

std::string first_of(const std::string& one, const std::string& other) {
  return one.empty() ? other : one;
}

}  // namespace

struct ProxiedStores::Round {
  Round(std::uint64_t job, std::uint64_t round, const store::RequestLimits& limits,
        std::uint64_t requests_per_second, std::shared_ptr<Usage> of_all)
      : store(round, limits),
        rows(job, round),
        rate(requests_per_second),
        total(std::move(of_all)) {
    count();
  }
  ~Round() { count({}); }
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  void count() { count({1, store.num_keys(), store.total_bytes(), store.num_clients()}); }
  void count(const Usage& now) {
    total->stores += now.stores - usage.stores;
    total->keys += now.keys - usage.keys;
    total->bytes += now.bytes - usage.bytes;
    total->connections += now.connections - usage.connections;
    usage = now;
  }

  ProxiedStore store;
  StoreRows rows;
  store::Rate rate;
  const std::shared_ptr<Usage> total;
  Usage usage;
  std::set<ProxiedStore::Node> waiting;                   // nodes with an entry in waiting_
  std::map<ProxiedStore::Node, store::Rate> large_rates;  // of nodes that sent a large request
  std::unordered_map<ProxiedStore::Node, ConnectionId> connections;
  std::unordered_set<ConnectionId> attached;  // also older connections of a node
};

ProxiedStores::ProxiedStores(Options options)
    : options_(std::move(options)), rate_(options_.in_all.requests) {}

std::shared_ptr<ProxiedStores::Round> ProxiedStores::make_round(std::uint64_t job,
                                                                std::uint64_t round) {
  const auto end = [in_turns = options_.in_turns](Round* ended) {
    const std::shared_ptr<Round> owned(ended);
    if (!in_turns) return;
    in_turns([owned] {
      const bool goes_on = owned->store.forget_some();
      owned->count();
      return goes_on;
    });
  };
  return {new Round(job, round, limits_, options_.of_job.requests, usage_), end};
}

// ---- agents' messages ----

void ProxiedStores::received(ConnectionId connection, const Seat& seat, std::string_view message,
                             Clock::time_point now) {
  try {
    const store::ProxyFrame frame = store::decode_frame(message);
    Attachment* attachment = attach(connection, seat, frame.round);
    if (attachment == nullptr) return;
    const auto [round, node] = *attachment;
    round->store.receive(node, frame);
    touched_.push_back(round);
    if (!round->store.is_ready(node) || round->waiting.contains(node)) return;
    // Nodes that already wait go first, and messages of many nodes let others use this thread.
    AfterTurn after = AfterTurn::kReadyAgain;
    if (is_slowed() && !waiting_.empty()) {
      after = AfterTurn::kNotYet;
    } else if (fresh_work_ < store::kWakeUpWork) {
      after = take_turn(*round, node, 1, now, fresh_work_);
    }
    if (after != AfterTurn::kDone) wait(round, node, after, now);
  } catch (const Error& error) {
    options_.trouble(connection, error.what());
  }
}

ProxiedStores::Attachment* ProxiedStores::attach(ConnectionId connection, const Seat& seat_of,
                                                 std::uint64_t round) {
  const auto known = attachments_.find(connection);
  if (known != attachments_.end() && known->second.round->store.round() == round) {
    return &known->second;
  }
  const std::optional<membership::Seat> seat = seat_of();
  if (!seat || seat->round != round) return nullptr;
  if (seat->store != membership::StoreMode::kProxy) {
    throw Error(ErrorCode::kProtocol, "it speaks of a store that its job does not have here");
  }
  std::shared_ptr<Round>& latest = rounds_[seat->job];
  if (!latest || latest->store.round() != round) {
    if (latest) {
      latest->rows.erase(changes_);
      detach_all(*latest);
    }
    latest = make_round(seat->job, round);
  }
  latest->connections[seat->node] = connection;
  latest->store.reconnected(seat->node);
  if (const auto other = attachments_.find(connection); other != attachments_.end()) {
    other->second.round->attached.erase(connection);
  }
  latest->attached.insert(connection);
  return &(attachments_[connection] = {latest, seat->node});
}

// A round's store gets no more requests once the next round has begun.
void ProxiedStores::detach_all(Round& round) {
  for (const ConnectionId connection : std::exchange(round.attached, {})) {
    attachments_.erase(connection);
  }
}

ProxiedStores::AfterTurn ProxiedStores::take_turn(Round& round, ProxiedStore::Node node,
                                                  std::size_t num_waiting, Clock::time_point now,
                                                  std::size_t& work) {
  const auto large = round.large_rates.find(node);
  if (large != round.large_rates.end() && large->second.allowed(now) == 0)
    return AfterTurn::kNotYet;
  const std::size_t credit = std::min(round.rate.allowed(now), rate_.allowed(now));
  if (credit == 0) {
    if (!std::exchange(said_slowed_, true)) {
      log_warning(
          "workers' stores get more requests a second than the limit (--job-limits, "
          "--limits): those beyond wait (said once)");
    }
    return AfterTurn::kNotYet;
  }
  round.count();  // replies may have been taken meanwhile
  const std::size_t share = std::max<std::size_t>(credit / num_waiting, 1);
  const ProxiedStore::Turn turn =
      round.store.run(node, std::min(kRequestsPerTurn, share), refusals(round));
  work += turn.work;
  round.rate.spend(turn.num_requests, now);
  rate_.spend(turn.num_requests, now);
  if (turn.large_work > 0) {
    round.large_rates.try_emplace(node, store::kLargeWorkOfNodePerSecond)
        .first->second.spend(turn.large_work, now);
  }
  round.count();
  if (options_.is_journalled && !turn.bytes.empty()) {
    round.rows.add(turn, changes_);
    if (round.rows.wants_snapshot()) round.rows.replace(round.store.snapshot(), changes_);
  }
  if (!turn.trouble.empty()) {
    const auto connection = round.connections.find(node);
    if (connection != round.connections.end()) options_.trouble(connection->second, turn.trouble);
  }
  return round.store.is_ready(node) ? AfterTurn::kReadyAgain : AfterTurn::kDone;
}

ProxiedStore::Refusals ProxiedStores::refusals(const Round& round) const {
  const auto of = [](const Usage& used, const StoreLimits& limits, std::string_view whose,
                     std::string_view flag) {
    return ProxiedStore::Refusals{
        first_of(full(whose, used.keys, limits.keys, "keys", flag),
                 full(whose, used.bytes, limits.bytes, "bytes", flag)),
        full(whose, used.connections, limits.connections, "connections", flag)};
  };
  const auto mine = of(round.usage, options_.of_job, "this job's stores", "job-limits");
  const auto all = of(*usage_, options_.in_all, "all jobs' stores", "limits");
  return {first_of(mine.growth, all.growth), first_of(mine.clients, all.clients)};
}

void ProxiedStores::wait(const std::shared_ptr<Round>& round, ProxiedStore::Node node,
                         AfterTurn after, Clock::time_point now) {
  const Clock::time_point until = after == AfterTurn::kNotYet ? now + kSlowedTurn : now;
  next_turn_ = waiting_.empty() ? until : std::min(next_turn_, until);
  round->waiting.insert(node);
  waiting_.push_back({round, node});
}

void ProxiedStores::go_on(Clock::time_point now) {
  const std::vector<Waiting> all = std::exchange(waiting_, {});
  std::vector<std::pair<std::shared_ptr<Round>, ProxiedStore::Node>> again;
  std::size_t left = all.size(), work = 0;
  fresh_work_ = 0;
  for (const Waiting& next : all) {
    const auto round = next.round.lock();
    const std::size_t num_waiting = left--;
    if (!round) continue;
    if (work >= store::kWakeUpWork) {  // it keeps its place
      waiting_.push_back(next);
      next_turn_ = now;
      continue;
    }
    round->waiting.erase(next.node);
    touched_.push_back(round);
    if (!round->store.is_ready(next.node)) continue;
    const AfterTurn after = take_turn(*round, next.node, num_waiting, now, work);
    if (after == AfterTurn::kNotYet) wait(round, next.node, after, now);
    if (after == AfterTurn::kReadyAgain) again.emplace_back(round, next.node);
  }
  // Nodes that had a turn wait behind those that had none.
  for (const auto& [round, node] : again) wait(round, node, AfterTurn::kReadyAgain, now);
}

// ---- messages to agents ----

std::vector<ProxiedStores::Marks> ProxiedStores::take_marks() {
  std::vector<Marks> all;
  for (const auto& touched : std::exchange(touched_, {})) {
    const auto round = touched.lock();
    if (!round) continue;
    auto marks = round->store.take_marks();
    if (!marks.empty()) all.push_back({round, std::move(marks)});
  }
  return all;
}

void ProxiedStores::release(const std::vector<Marks>& all) {
  for (const auto& [round, marks] : all) {
    round->store.release(marks);
    for (const auto& mark : marks) {
      const auto connection = round->connections.find(mark.node);
      if (connection == round->connections.end()) continue;
      while (auto message = round->store.next_frame(mark.node)) {
        options_.send(connection->second, std::move(*message));
      }
    }
  }
}

// ---- the ends of connections and stores ----

void ProxiedStores::closed(ConnectionId connection) {
  const auto found = attachments_.find(connection);
  if (found == attachments_.end()) return;
  found->second.round->attached.erase(connection);
  auto& connections = found->second.round->connections;
  const auto current = connections.find(found->second.node);
  if (current != connections.end() && current->second == connection) connections.erase(current);
  attachments_.erase(found);
}

void ProxiedStores::drop(std::uint64_t job) {
  const auto found = rounds_.find(job);
  if (found == rounds_.end()) return;
  found->second->rows.erase(changes_);
  rounds_.erase(found);
}

void ProxiedStores::keep_only(const std::function<bool(std::uint64_t)>& lives) {
  std::erase_if(rounds_, [&](const auto& entry) {
    if (lives(entry.first)) return false;
    entry.second->rows.erase(changes_);
    return true;
  });
}

void ProxiedStores::restore(
    const journal::Rows& rows,
    const std::function<void(std::uint64_t job, const std::string& why)>& lost) {
  std::map<std::uint64_t, std::uint64_t> latest;
  for (const auto& [job, number] : StoreRows::names(rows)) latest[job] = number;
  for (const StoreRows::Name& name : StoreRows::names(rows)) {
    if (latest[name.job] != name.round) {
      StoreRows::erase_all(rows, name, changes_);
      continue;
    }
    const auto round = make_round(name.job, name.round);
    try {
      round->rows.restore(rows, round->store);
    } catch (const Error& error) {
      lost(name.job, error.what());
      StoreRows::erase_all(rows, name, changes_);
      continue;
    }
    round->count();
    rounds_[name.job] = round;
  }
}

}  // namespace ddprun::rendezvous
