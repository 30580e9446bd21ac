// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/proxied_stores.h"

#include "common/error.h"
#include "common/log.h"

namespace ddprun::rendezvous {

struct ProxiedStores::Round {
  Round(std::uint64_t job, std::uint64_t round, const store::RequestLimits& limits)
      : store(round, limits, kMaxStoreBytes), rows(job, round) {}

  store::ProxiedStore store;
  StoreRows rows;
  std::map<store::ProxiedStore::Node, ConnectionId> connections;
};

std::shared_ptr<ProxiedStores::Round> ProxiedStores::make_round(std::uint64_t job,
                                                                std::uint64_t round) {
  return std::make_shared<Round>(job, round, limits_);
}

void ProxiedStores::received(ConnectionId connection, const std::optional<membership::Seat>& seat,
                             std::string_view message) {
  const store::ProxyFrame frame = store::decode_frame(message);
  Attachment* attachment = attach(connection, seat, frame.round);
  if (attachment == nullptr) return;
  const std::shared_ptr<Round>& round = attachment->round;
  const store::ProxiedStore::Node node = attachment->node;  // clang 14 captures no bindings
  touched_.push_back(round);
  const auto keep = [&] {
    const store::ProxyFrame& fresh = round->store.fresh();
    if (!is_journalled_ || fresh.bytes.empty()) return;
    round->rows.add(node, fresh.position, fresh.bytes, changes_);
    if (round->rows.wants_snapshot()) round->rows.replace(round->store.snapshot(), changes_);
  };
  try {
    round->store.receive(node, frame);
  } catch (const Error&) {
    keep();  // what came before the nonsense counts
    throw;
  }
  keep();
}

ProxiedStores::Attachment* ProxiedStores::attach(ConnectionId connection,
                                                 const std::optional<membership::Seat>& seat,
                                                 std::uint64_t round) {
  const auto known = attachments_.find(connection);
  if (known != attachments_.end() && known->second.round->store.round() == round) {
    return &known->second;
  }
  if (!seat || seat->round != round) return nullptr;
  if (seat->store != membership::StoreMode::kProxy) {
    throw Error(ErrorCode::kProtocol, "it speaks of a store that its job does not have here");
  }
  std::shared_ptr<Round>& latest = rounds_[seat->job];
  if (!latest || latest->store.round() != round) {
    if (latest) latest->rows.erase(changes_);
    latest = make_round(seat->job, round);
  }
  latest->connections[seat->node] = connection;
  latest->store.reconnected(seat->node);
  return &(attachments_[connection] = {latest, seat->node});
}

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
        send_(connection->second, std::move(*message));
      }
    }
  }
}

void ProxiedStores::closed(ConnectionId connection) {
  const auto found = attachments_.find(connection);
  if (found == attachments_.end()) return;
  auto& connections = found->second.round->connections;
  const auto current = connections.find(found->second.node);
  if (current != connections.end() && current->second == connection) connections.erase(current);
  attachments_.erase(found);
}

ProxiedStores::Usage ProxiedStores::usage() const {
  Usage usage;
  for (const auto& [job, round] : rounds_) {
    ++usage.number;
    usage.num_keys += round->store.num_keys();
    usage.bytes += round->store.total_bytes();
  }
  return usage;
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
  for (const auto& [job, number] : StoreRows::names(rows)) {
    const auto round = make_round(job, number);
    try {
      round->rows.restore(rows, round->store);
    } catch (const Error& error) {
      lost(job, error.what());
      const std::string prefix = concat("stores/", job, '/', number, '/');
      for (auto row = rows.lower_bound(prefix); row != rows.end() && row->first.starts_with(prefix);
           ++row) {
        changes_.push_back({row->first, std::nullopt});
      }
      continue;
    }
    std::shared_ptr<Round>& latest = rounds_[job];
    if (latest && latest->store.round() > number) {
      round->rows.erase(changes_);
      continue;
    }
    if (latest) latest->rows.erase(changes_);
    latest = round;
    latest->store.release(latest->store.take_marks());  // all of it is kept
  }
}

}  // namespace ddprun::rendezvous
