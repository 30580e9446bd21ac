// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/roster.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {
namespace {

// The time from finding a node silent to its loss. If this rendezvous itself stood still (a stopped
// process, a paused machine), the node's messages wait in its connection. They are read in this
// time.
constexpr std::chrono::milliseconds kSecondLook{100};
constexpr std::chrono::milliseconds kWaitingInterval{1'000};
constexpr std::chrono::milliseconds kWaitingPerNode{1};  // so large jobs get it less often

}  // namespace

Roster::Roster(const MachineOptions& options, const JobState& job, RosterState& mine, TimePoint now)
    : options_(options), job_(job), mine_(mine), last_waiting_(now - kWaitingInterval) {
  for (const auto& [id, node] : mine_.nodes) {
    index(node);
    count(node, 1);
  }
}

void Roster::expect_all_back(TimePoint now, TimePoint until) {
  restored_at_ = now;
  mine_.nodes.edit_each([&](Node& node) {
    node.last_heard = now;
    if (node.gone) return;
    node.returning = true;
    ++num_returning_;
    give_grace(node, until);
  });
}

void Roster::index(const Node& node) {
  by_session_[node.session] = node.id;
  by_instance_[node.join.instance] = node.id;
}

std::optional<NodeId> Roster::id_at(ConnectionId connection) const {
  const auto found = by_connection_.find(connection);
  return found == by_connection_.end() ? std::nullopt : std::optional(found->second);
}

Node* Roster::at(ConnectionId connection) {
  const auto id = id_at(connection);
  return id ? &mine_.nodes.edit(*id) : nullptr;
}

std::optional<NodeId> Roster::known(const Join& join) const {
  const auto& ids = join.session.empty() ? by_instance_ : by_session_;
  const auto found = ids.find(join.session.empty() ? join.instance : join.session);
  return found == ids.end() ? std::nullopt : std::optional(found->second);
}

Node& Roster::add(ConnectionId connection, const ConnectionFacts& facts, const Join& join,
                  const std::string& session, TimePoint now) {
  Node& node = mine_.nodes.add(mine_.next_node_id++);
  node.join = join;
  node.facts = facts;
  node.key = node_key(join, facts);
  node.session = session;
  index(node);
  connect(node, connection, now);
  return node;
}

void Roster::erase(NodeId id, Actions& out) {
  const auto found = mine_.nodes.find(id);
  if (found == mine_.nodes.end()) return;
  const Node& node = found->second;
  if (node.connection) {
    // Stopping workers may still use the store behind the connection. The agent closes it after
    // them.
    const bool carries_store = job_.phase == JobPhase::kEnded &&
                               job_.settings.store == StoreMode::kProxy && is_member(node);
    if (!carries_store) out.push_back(action::Close{*node.connection});
    by_connection_.erase(*node.connection);
  }
  count(node, -1);
  if (node.join.node_rank) {
    const auto wish = mine_.rank_wishes.find(*node.join.node_rank);
    if (wish != mine_.rank_wishes.end() && wish->second == id) mine_.rank_wishes.erase(wish);
  }
  by_session_.erase(node.session);
  by_instance_.erase(node.join.instance);
  mine_.nodes.erase(id);
}

std::optional<NodeId> Roster::take_rank_wish(const Node& node) {
  if (!node.join.node_rank) return std::nullopt;
  const auto [holder, is_first] = mine_.rank_wishes.try_emplace(*node.join.node_rank, node.id);
  if (is_first) return std::nullopt;
  return std::exchange(holder->second, node.id);
}

void Roster::count(const Node& node, int by) {
  if (is_placeable(node)) num_placeable_ += by;
  if (is_member(node)) members_in_phase_[static_cast<std::size_t>(node.phase)] += by;
  if (node.returning) num_returning_ += by;
}

void Roster::set_phase(Node& node, NodePhase phase) {
  count(node, -1);
  node.phase = phase;
  count(node, 1);
}

void Roster::set_rank(Node& node, std::optional<int> rank) {
  count(node, -1);
  node.node_rank = rank;
  count(node, 1);
}

void Roster::set_excluded(Node& node, bool excluded) {
  count(node, -1);
  node.excluded = excluded;
  count(node, 1);
}

void Roster::set_connection(Node& node, std::optional<ConnectionId> connection) {
  count(node, -1);
  if (node.connection) by_connection_.erase(*node.connection);
  if (connection) by_connection_[*connection] = node.id;
  node.connection = connection;
  if (connection) node.returning = false;
  count(node, 1);
}

int Roster::num_members() const {
  return std::accumulate(members_in_phase_.begin(), members_in_phase_.end(), 0);
}

// ---- presence ----

void Roster::connect(Node& node, ConnectionId connection, TimePoint now) {
  set_connection(node, connection);
  node.last_heard = now;
  node.grace_until.reset();
  keep_earlier(next_look_, now + job_.timeouts.keep_alive);
}

std::string Roster::come_back(Node& node, ConnectionId connection, const ConnectionFacts& facts,
                              const AgentEnvelope& envelope, TimePoint now, Actions& out) {
  if (node.connection) disconnect(node, out);
  const Join& join = variants::get<Join>(envelope.message);
  node.facts = facts;
  node.join.version = join.version;
  node.join.oldest_version = join.oldest_version;
  node.gone = false;
  if (join.store_port != 0) node.join.store_port = join.store_port;
  connect(node, connection, now);
  const std::uint64_t received = node.channel.received();
  const bool was_told_more = node.channel.receive(0, envelope.ack) == Arrival::kGap;
  if (was_told_more || join.confirmed > received) {
    tell(node,
         Refused{concat("the rendezvous does not know ",
                        was_told_more ? "what it told this node last" : "what this node said last",
                        ": its journal lost it, or the node is confused"),
                 static_cast<int>(ExitCode::kRetryable), false},
         out);
    // Either the node sends wrong numbers, or this rendezvous was restored from a journal without
    // its end.
    if (was_told_more) return "it confirms what it was never told";
    return concat("it was told that its messages up to ", join.confirmed, " had arrived, of which ",
                  join.confirmed - received,
                  " are not known here any more: the journal lost its end");
  }
  log(out, job_, LogLevel::kInfo, concat(describe(node), " is back"));
  welcome(node, now, out);
  if (!is_member(node) && job_.phase == JobPhase::kRunning) tell_spare(node, out);
  node.channel.resend([&](RendezvousEnvelope again) {
    out.push_back(action::Send{connection, std::move(again)});
  });
  return {};
}

void Roster::disconnect(Node& node, Actions& out) {
  out.push_back(action::Close{*node.connection});
  set_connection(node, std::nullopt);
}

void Roster::closed(Node& node, TimePoint now) {
  set_connection(node, std::nullopt);
  // After the job's end the node may still come back for its verdict, if it hasn't acknowledged it.
  const bool ended = job_.phase == JobPhase::kEnded;
  if (node.left) return give_grace(node, now);  // it already has its verdict
  give_grace(node, now + (ended ? options_.end_grace : options_.reconnect_grace));
}

void Roster::heard(ConnectionId connection, TimePoint now) {
  if (const auto id = id_at(connection)) mine_.nodes.heard(*id, now);
}

void Roster::give_grace(Node& node, TimePoint until) {
  node.grace_until = until;
  keep_earlier(next_look_, until);
}

std::vector<NodeId> Roster::overdue(TimePoint now) {
  next_look_.reset();
  std::vector<NodeId> overdue;
  for (const auto& [id, node] : mine_.nodes) {
    if (node.gone) continue;
    const TimePoint until = node.connection ? node.last_heard + job_.timeouts.keep_alive
                                            : node.grace_until.value_or(now);
    if (until > now) {
      keep_earlier(next_look_, until);
    } else {
      overdue.push_back(id);
    }
  }
  const auto is_silent = [this](NodeId id) {
    return mine_.nodes.at(id).connection && job_.phase != JobPhase::kEnded;
  };
  if (std::ranges::any_of(overdue, is_silent) && !is_second_look(now)) {
    std::erase_if(overdue, is_silent);
    keep_earlier(next_look_, *second_look_);
  }
  return overdue;
}

// Returns whether this is a second look. If not, one is scheduled. A second look that is late
// itself doesn't count.
bool Roster::is_second_look(TimePoint now) {
  if (second_look_ && now < *second_look_) return false;
  const bool is_in_time = second_look_ && now < *second_look_ + kSecondLook;
  second_look_ = is_in_time ? Optional() : now + kSecondLook;
  return is_in_time;
}

std::string Roster::why_overdue(const Node& node, TimePoint now) const {
  if (node.returning) {
    // Like the workers of a silent node, its workers may still run.
    const std::string how = "it did not come back after the rendezvous was restarted";
    if (!options_.shared) return how;
    const auto left = std::chrono::ceil<std::chrono::seconds>(without_rendezvous_until(node) - now);
    return concat(how, "; its workers may run for ", std::max<std::int64_t>(left.count(), 0),
                  " s more (its --rendezvous-lost-timeout and --shutdown-timeout), for which "
                  "the next round waits");
  }
  if (node.connection) {
    return concat("nothing was heard of it for ", job_.timeouts.keep_alive.count(), " ms");
  }
  return concat("its connection ended and it did not come back within ",
                options_.reconnect_grace.count(), " ms");
}

// The node may reach other rendezvous, which answer that they don't lead. So it isn't cut off, and
// its workers run on for as long as it waits for a leader.
Roster::TimePoint Roster::without_rendezvous_until(const Node& node) const {
  const JobTimeouts& its = node.join.timeouts;
  return restored_at_ + its.rendezvous_lost + its.shutdown + kFenceMargin;
}

void Roster::fence(Node& node, bool by_silence, TimePoint now) const {
  if (by_silence) node.fenced_until = now + kFenceGrace + kFenceMargin;
  if (node.returning && options_.shared) {
    node.fenced_until = std::max(*node.fenced_until, without_rendezvous_until(node));
  }
}

bool Roster::serves_rendezvous(const Node& node) const {
  // In a trial several nodes may run on this machine: the process id tells them apart.
  const bool is_here = node.facts.peer_is_loopback || node.facts.peer_addr == node.facts.local_addr;
  return options_.embedded && is_here && node.join.pid == options_.embedding_pid;
}

// ---- sending ----

void Roster::push(Node& node, RendezvousMessage message, Actions& out) {
  auto envelope = node.channel.number(std::move(message));
  if (node.connection) out.push_back(action::Send{*node.connection, std::move(envelope)});
}

void Roster::tell(const Node& node, RendezvousMessage message, Actions& out) const {
  if (!node.connection) return;
  out.push_back(action::Send{*node.connection, node.channel.plain(std::move(message))});
}

void Roster::welcome(const Node& node, TimePoint now, Actions& out) const {
  Welcome welcome;
  welcome.version = common_version(node.join).value_or(kProtocolVersion);
  welcome.session = node.session;
  welcome.your_addr = node.facts.peer_addr;
  welcome.keep_alive = job_.timeouts.keep_alive;
  welcome.embedded = options_.embedded;
  welcome.clock_us =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  tell(node, std::move(welcome), out);
}

void Roster::tell_spare(const Node& node, Actions& out) const {
  const int num_spares = static_cast<int>(mine_.nodes.size()) - num_members();
  tell(node, spare_note(job_, num_members(), num_spares), out);
}

void Roster::tell_waiting(TimePoint now, Actions& out, std::optional<std::string> hint) {
  if (hint) waiting_hint_ = std::move(*hint);
  waiting_due_.reset();
  if (job_.phase != JobPhase::kForming) return;
  const auto interval = std::max<std::chrono::milliseconds>(
      kWaitingInterval, kWaitingPerNode * static_cast<int>(mine_.nodes.size()));
  if (now < last_waiting_ + interval) {
    waiting_due_ = last_waiting_ + interval;
    return;
  }
  last_waiting_ = now;
  // With fewer than MIN nodes the time isn't known, and counts as now.
  const TimePoint next = job_.deadlines.last_call.value_or(
      std::max(job_.deadlines.fenced.value_or(now), job_.deadlines.backoff.value_or(now)));
  const Waiting waiting =
      waiting_note(job_, num_placeable_, std::chrono::ceil<std::chrono::milliseconds>(next - now),
                   waiting_hint_);
  for (const auto& [id, node] : mine_.nodes) tell(node, waiting, out);
}

void Roster::nobody_waits() {
  waiting_due_.reset();
  waiting_hint_.clear();
}

}  // namespace ddprun::membership
