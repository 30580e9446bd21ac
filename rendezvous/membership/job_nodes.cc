// SPDX-License-Identifier: Apache-2.0
// The half of Job about single nodes: how they come, come back, fall silent, go, are told things,
// and are asked for what their ranks print.
#include "rendezvous/membership/job.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/membership/verdicts.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::membership {
namespace {

// From finding a node silent to its loss. If this rendezvous stood still itself (a stopped process,
// a paused machine), the node's messages wait in its connection. They are read meanwhile.
constexpr std::chrono::milliseconds kSecondLook{100};

}  // namespace

// ---- coming ----

bool Job::knows(const Join& join) const {
  return join.session.empty() ? by_instance_.count(join.instance) != 0
                              : by_session_.count(join.session) != 0;
}

bool Job::join(ConnectionId connection, const ConnectionFacts& facts, const AgentEnvelope& envelope,
               const std::function<std::string()>& new_session, TimePoint now, Actions& out) {
  changed_ = true;
  const Join& join = variants::get<Join>(envelope.message);
  if (knows(join)) {
    const NodeId id =
        join.session.empty() ? by_instance_.at(join.instance) : by_session_.at(join.session);
    come_back(state_.nodes.edit(id), connection, facts, envelope, now, out);
    return true;
  }
  if (!join.unfit.empty()) keep_out(join, facts, out);
  if (const auto refused = admission(state_, join, facts)) {
    log(out, LogLevel::kWarning,
        concat("refused ", join.host, " (", facts.peer_addr, "): ", refused->message));
    out.push_back(action::Send{connection, {0, 0, *refused}});
    out.push_back(action::Close{connection});
    if (state_.phase == JobPhase::kForming) {  // whoever waits may wait for this one
      waiting_hint_ = concat(join.host, " (", facts.peer_addr, ") was refused: ", refused->message);
      tell_waiting(now, out);
    }
    return false;
  }
  admit(connection, facts, join, new_session(), now, out);
  return true;
}

void Job::admit(ConnectionId connection, const ConnectionFacts& facts, const Join& join,
                const std::string& session, TimePoint now, Actions& out) {
  const std::string warning = join_warning(state_, join);
  const NodeId id = state_.next_node_id++;
  Node& node = state_.nodes.add(id);
  node.join = join;
  node.facts = facts;
  node.key = node_key(join, facts);
  node.session = session;
  node.last_heard = now;
  set_connection(node, connection);
  index(node);
  keep_earlier(presence_check_, now + state_.timeouts.keep_alive);
  welcome(node, now, out);
  log(out, LogLevel::kInfo,
      concat(describe(node), " joined with ", counted(join.num_workers, "worker")));
  if (!warning.empty()) {
    log(out, LogLevel::kWarning, warning);
    tell(node, Waiting{0, 0, warning, false}, out);
  }
  if (join.node_rank) take_rank_wish(node, now, out);
  if (ended()) return;
  form_if_ready(now, out);
  if (state_.phase == JobPhase::kForming) return tell_waiting(now, out);
  if (is_member(node)) return;
  tell_spare(node, out);
  restart_for_joined(now, out);
}

// A host that comes, breaks and comes again must not re-form the job for ever. So the time that the
// round must have run doubles with each such restart, unless a larger round came after it and did
// steps.
void Job::restart_for_joined(TimePoint now, Actions& out) {
  state_.deadlines.join_restart.reset();
  if (!state_.settings.restart_on_join || state_.phase != JobPhase::kRunning) return;
  if (num_members() >= state_.settings.max_nodes) return;
  // A new round would do the work of those that have finished again.
  if (num_members(NodePhase::kSucceeded) > 0) return;
  const auto joined = std::find_if(state_.nodes.begin(), state_.nodes.end(), [](const auto& entry) {
    return is_placeable(entry.second) && !is_member(entry.second);
  });
  if (joined == state_.nodes.end()) return;
  settle_join_restarts(now);
  // Nodes that are started together come one after the other: while what the last one brought
  // lives, it was not in vain, and there are --nnodes of them at most.
  const bool grew = num_members() > state_.nodes_before_join_restart;
  const TimePoint at =
      grew ? now : state_.round_started + join_restart_delay(state_.vain_join_restarts);
  if (now < at) {
    state_.deadlines.join_restart = at;
    log(out, LogLevel::kInfo,
        concat(describe(joined->second),
               " joined; the round goes on for now: ", state_.vain_join_restarts,
               " restarts for nodes that joined brought no larger round that lasted"));
    return;
  }
  ++state_.vain_join_restarts;
  state_.nodes_before_join_restart = num_members();
  stop_round(RoundEnd::kNodeJoined, concat(describe(joined->second), " joined (--on-join=restart)"),
             now, out);
}

// Whether the live round shows that restarts for nodes that joined were worth it.
void Job::settle_join_restarts(TimePoint now) {
  const bool lasted =
      state_.num_stepped >= state_.round_nodes || now - state_.round_started >= kCrashLoopRound;
  if (lasted && state_.round_nodes > state_.nodes_before_join_restart)
    state_.vain_join_restarts = 0;
}

void Job::take_rank_wish(const Node& node, TimePoint now, Actions& out) {
  const auto [holder, is_first] = state_.rank_wishes.try_emplace(*node.join.node_rank, node.id);
  if (is_first) return;
  const NodeId other = std::exchange(holder->second, node.id);
  // An agent that was started again before its predecessor's grace was over takes its place.
  if (!state_.nodes.at(other).gone) {
    // One that has not come back yet after a restart of the rendezvous may live where it is.
    const bool is_silent = state_.nodes.at(other).returning;
    lose(other, is_silent, "a new agent came with its node rank", now, out);
  }
}

void Job::come_back(Node& node, ConnectionId connection, const ConnectionFacts& facts,
                    const AgentEnvelope& envelope, TimePoint now, Actions& out) {
  if (node.connection) {
    by_connection_.erase(*node.connection);
    out.push_back(action::Close{*node.connection});
  }
  const Join& join = variants::get<Join>(envelope.message);
  node.facts = facts;
  node.join.version = join.version;
  node.join.oldest_version = join.oldest_version;
  node.gone = false;
  node.last_heard = now;
  node.grace_until.reset();
  if (join.store_port != 0) node.join.store_port = join.store_port;
  set_connection(node, connection);
  keep_earlier(presence_check_, now + state_.timeouts.keep_alive);
  const std::uint64_t received = node.channel.received();
  const bool was_told_more = node.channel.receive(0, envelope.ack) == Arrival::kGap;
  if (was_told_more || join.confirmed > received) {
    // Either it makes things up, or this rendezvous was restored from a journal that lacks the end.
    const std::string how = was_told_more
                                ? std::string("it confirms what it was never told")
                                : concat("it was told that its messages up to ", join.confirmed,
                                         " had arrived, of which ", join.confirmed - received,
                                         " are not known here any more: the journal lost its end");
    tell(node,
         Refused{concat("the rendezvous does not know ",
                        was_told_more ? "what it told this node last" : "what this node said last",
                        ": its journal lost it, or the node is confused"),
                 static_cast<int>(ExitCode::kRetryable), false},
         out);
    returned(node);
    if (ended()) return erase(node.id, out);
    return lose(node.id, true, how, now, out);  // its workers live until it has read that
  }
  returned(node);
  log(out, LogLevel::kInfo, concat(describe(node), " is back"));
  welcome(node, now, out);
  if (!is_member(node) && state_.phase == JobPhase::kRunning) tell_spare(node, out);
  node.channel.resend([&](RendezvousEnvelope again) {
    out.push_back(action::Send{connection, std::move(again)});
  });
  if (ended()) {
    if (node.channel.all_acknowledged()) erase(node.id, out);
    return;
  }
  form_if_ready(now, out);
}

void Job::returned(Node& node) {
  if (std::exchange(node.returning, false) && --num_returning_ == 0) returning_until_.reset();
}

// ---- going ----

void Job::heard(ConnectionId connection, TimePoint now) {
  const auto found = by_connection_.find(connection);
  if (found != by_connection_.end()) state_.nodes.heard(found->second, now);
}

void Job::closed(ConnectionId connection, TimePoint now, Actions&) {
  Node* node = node_at(connection);
  if (node == nullptr) return;
  changed_ = true;
  by_connection_.erase(connection);
  set_connection(*node, std::nullopt);
  // When the job has ended it may still come for its verdict, if its confirmation isn't on the way.
  node->grace_until = now + (ended() ? options_.end_grace : options_.reconnect_grace);
  if (node->left) node->grace_until = now;  // it has its verdict
  keep_earlier(presence_check_, *node->grace_until);
}

// The end of what the rendezvous knew of its store is lost, or its agent makes things up: workers
// wait for answers that never come, so the round can't go on.
void Job::store_lost(ConnectionId connection, const std::string& why, TimePoint now, Actions& out) {
  Node* node = node_at(connection);
  if (node == nullptr) return;
  if (state_.phase == JobPhase::kRunning && node->phase == NodePhase::kSucceeded) return;
  changed_ = true;
  tell(*node,
       Refused{concat("the workers' store can't go on: ", why,
                      " (the rendezvous' journal lost it, or the node is confused)"),
               static_cast<int>(ExitCode::kRetryable), false},
       out);
  if (ended()) {
    out.push_back(action::Close{connection});
    return erase(node->id, out);
  }
  lose(node->id, true, concat("its workers' store can't go on: ", why), now, out);
}

void Job::handle(Node& node, const CutOff&, TimePoint now, Actions&) {
  node.fenced_until = now + kFenceGrace + kFenceMargin;
}

void Job::check_presence(TimePoint now, Actions& out) {
  presence_check_.reset();
  std::vector<NodeId> overdue;
  for (const auto& [id, node] : state_.nodes) {
    if (node.gone) continue;
    const TimePoint until = node.connection ? node.last_heard + state_.timeouts.keep_alive
                                            : node.grace_until.value_or(now);
    if (until > now) {
      keep_earlier(presence_check_, until);
    } else {
      overdue.push_back(id);
    }
  }
  const auto is_silent = [this](NodeId id) { return state_.nodes.at(id).connection && !ended(); };
  if (std::ranges::any_of(overdue, is_silent) && !is_second_look(now)) {
    std::erase_if(overdue, is_silent);
    keep_earlier(presence_check_, *second_look_);
  }
  for (const NodeId id : overdue) {
    const auto found = state_.nodes.find(id);
    if (found == state_.nodes.end()) continue;  // another one's loss was the job's end
    if (ended()) {
      erase(id, out);
    } else if (found->second.returning) {
      // Like a node that fell silent, it may still run on its machine.
      std::string how = "it did not come back after the rendezvous was restarted";
      if (options_.shared) {
        const auto left =
            std::chrono::ceil<std::chrono::seconds>(without_rendezvous_until(found->second) - now);
        how += concat("; its workers may run for ", std::max<std::int64_t>(left.count(), 0),
                      " s more (its --rendezvous-lost-timeout and --shutdown-timeout), for which "
                      "the next round waits");
      }
      lose(id, true, how, now, out);
    } else if (found->second.connection) {
      lose(id, true,
           concat("nothing was heard of it for ", state_.timeouts.keep_alive.count(), " ms"), now,
           out);
    } else {
      lose(id, false,
           concat("its connection ended and it did not come back within ",
                  options_.reconnect_grace.count(), " ms"),
           now, out);
    }
  }
}

// Else one is due. One that comes late itself proves nothing.
bool Job::is_second_look(TimePoint now) {
  if (second_look_ && now < *second_look_) return false;
  const bool is_in_time = second_look_ && now < *second_look_ + kSecondLook;
  second_look_ = is_in_time ? Optional() : now + kSecondLook;
  return is_in_time;
}

// It may reach other rendezvous than this one, which say that they don't lead: then it is not
// fenced by silence, and keeps its workers for as long as it does without any.
Job::TimePoint Job::without_rendezvous_until(const Node& node) const {
  const JobTimeouts& its = node.join.timeouts;
  return restored_at_ + its.rendezvous_lost + its.stop_grace + kFenceMargin;
}

std::optional<Seat> Job::seat(ConnectionId connection) const {
  const auto found = by_connection_.find(connection);
  if (found == by_connection_.end()) return std::nullopt;
  if (!state_.nodes.at(found->second).node_rank) return std::nullopt;
  return Seat{number_, found->second, state_.round, state_.settings.store};
}

void Job::lose(NodeId id, bool by_silence, const std::string& how, TimePoint now, Actions& out) {
  const auto found = state_.nodes.find(id);
  if (found == state_.nodes.end() || ended()) return;
  Node& node = state_.nodes.edit(id);
  const std::string what = concat(describe(node), " was lost: ", how);
  const bool round_live = state_.phase == JobPhase::kRunning || state_.phase == JobPhase::kStopping;
  const bool serves_store = node.node_rank == 0 && store_is_at_node(state_.settings);
  if (state_.phase == JobPhase::kRunning && node.phase == NodePhase::kSucceeded && !serves_store) {
    log(out, LogLevel::kWarning, what + "; its workers had all finished");
    if (node.connection) {
      by_connection_.erase(*node.connection);
      out.push_back(action::Close{*node.connection});
      set_connection(node, std::nullopt);
    }
    node.gone = true;
    return;
  }
  const bool member = is_member(node) && state_.round > 0;
  unnoticed_ = by_silence ? now - node.last_heard
                          : (node.grace_until ? options_.reconnect_grace : Clock::duration::zero());
  if (by_silence) node.fenced_until = now + kFenceGrace + kFenceMargin;
  if (node.returning && options_.shared) {
    node.fenced_until = std::max(*node.fenced_until, without_rendezvous_until(node));
  }
  if (node.fenced_until && round_live && node.phase != NodePhase::kIdle) {
    state_.deadlines.fenced = std::max(state_.deadlines.fenced.value_or(now), *node.fenced_until);
  }
  log(out, LogLevel::kWarning, what);
  if (member && state_.phase == JobPhase::kStopping && !state_.round_failures.empty()) {
    const bool came_first = now - unnoticed_ < state_.round_failures.first().at;
    if (came_first && !node.left) loss_was_earlier(what, out);
  }
  erase(id, out);
  if (member) {
    member_lost(what, now, out);
  } else {
    form_if_ready(now, out);  // it may have been the last one that the round waited for
    tell_waiting(now, out);
  }
  unnoticed_ = {};
}

void Job::member_lost(const std::string& what, TimePoint now, Actions& out) {
  // One round is one loss, however many nodes of a rack go with it, and whatever else ended it.
  if (state_.phase == JobPhase::kRunning) ++state_.node_losses;
  stop_kept(what, now, out);
  if (state_.phase == JobPhase::kStopping && state_.verdict_after_stop) {
    round_stopped_if_all(now, out);
  } else if (auto verdict = after_loss(state_, what)) {
    end(std::move(*verdict), RoundEnd::kNodeLost, now, out);
  } else if (state_.phase == JobPhase::kRunning) {
    count_progress(what);
    stop_round(RoundEnd::kNodeLost,
               state_.verdict_after_stop ? state_.verdict_after_stop->reason : what, now, out);
  } else if (state_.phase == JobPhase::kStopping) {
    round_stopped_if_all(now, out);
  } else {
    form_if_ready(now, out);
  }
}

void Job::erase(NodeId id, Actions& out) {
  const auto found = state_.nodes.find(id);
  if (found == state_.nodes.end()) return;
  const Node& node = found->second;
  if (node.connection) {
    // Workers that still stop may use the store behind it; the agent closes it after them.
    const bool carries_store =
        ended() && state_.settings.store == StoreMode::kProxy && is_member(node);
    if (!carries_store) out.push_back(action::Close{*node.connection});
    by_connection_.erase(*node.connection);
  }
  if (is_placeable(node)) --num_placeable_;
  if (is_member(node)) --members_in_phase_[static_cast<std::size_t>(node.phase)];
  if (node.returning && --num_returning_ == 0) returning_until_.reset();
  if (node.join.node_rank) {
    const auto wish = state_.rank_wishes.find(*node.join.node_rank);
    if (wish != state_.rank_wishes.end() && wish->second == id) state_.rank_wishes.erase(wish);
  }
  by_session_.erase(node.session);
  by_instance_.erase(node.join.instance);
  state_.nodes.erase(id);
}

void Job::turn_away(const Refused& refused, TimePoint, Actions& out) {
  DDPRUN_CHECK(awaits_first_round());
  std::vector<NodeId> all;
  for (const auto& [id, node] : state_.nodes) {
    tell(node, refused, out);
    all.push_back(id);
  }
  for (const NodeId id : all) erase(id, out);
}

// ---- telling ----

void Job::push(Node& node, RendezvousMessage message, Actions& out) {
  auto envelope = node.channel.number(std::move(message));
  if (node.connection) out.push_back(action::Send{*node.connection, std::move(envelope)});
}

void Job::tell(const Node& node, RendezvousMessage message, Actions& out) {
  if (!node.connection) return;
  out.push_back(action::Send{*node.connection, node.channel.plain(std::move(message))});
}

void Job::welcome(const Node& node, TimePoint now, Actions& out) {
  Welcome welcome;
  welcome.version = common_version(node.join).value_or(kProtocolVersion);
  welcome.session = node.session;
  welcome.your_addr = node.facts.peer_addr;
  welcome.keep_alive = state_.timeouts.keep_alive;
  welcome.embedded = options_.embedded;
  welcome.clock_us =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  tell(node, std::move(welcome), out);
}

void Job::tell_spare(const Node& node, Actions& out) {
  const int num_spares = static_cast<int>(state_.nodes.size()) - num_members();
  tell(node, spare_note(state_, num_members(), num_spares), out);
}

void Job::tell_waiting(TimePoint now, Actions& out) {
  waiting_due_.reset();
  if (state_.phase != JobPhase::kForming) return;
  const auto interval = std::max<std::chrono::milliseconds>(
      kWaitingInterval, kWaitingPerNode * static_cast<int>(state_.nodes.size()));
  if (now < last_waiting_ + interval) {
    waiting_due_ = last_waiting_ + interval;
    return;
  }
  last_waiting_ = now;
  // Unknown, so taken as now, while fewer than MIN nodes are here.
  const TimePoint next = state_.deadlines.last_call.value_or(
      std::max(state_.deadlines.fenced.value_or(now), state_.deadlines.backoff.value_or(now)));
  const Waiting waiting =
      waiting_note(state_, num_placeable_, std::chrono::ceil<std::chrono::milliseconds>(next - now),
                   waiting_hint_);
  for (const auto& [id, node] : state_.nodes) tell(node, waiting, out);
}

void Job::hint_at(const Job& other, TimePoint now, Actions& out) {
  waiting_hint_ = other_job_hint(state_, other.state_, other.num_placeable_);
  tell_waiting(now, out);
}

// ---- keeping the counts ----

void Job::set_phase(Node& node, NodePhase phase) {
  if (is_placeable(node)) --num_placeable_;
  if (is_member(node)) {
    --members_in_phase_[static_cast<std::size_t>(node.phase)];
    ++members_in_phase_[static_cast<std::size_t>(phase)];
  }
  node.phase = phase;
  if (is_placeable(node)) ++num_placeable_;
}

void Job::set_excluded(Node& node, bool excluded) {
  if (is_placeable(node)) --num_placeable_;
  node.excluded = excluded;
  if (is_placeable(node)) ++num_placeable_;
}

void Job::set_connection(Node& node, std::optional<ConnectionId> connection) {
  if (is_placeable(node)) --num_placeable_;
  node.connection = connection;
  if (is_placeable(node)) ++num_placeable_;
  if (connection) by_connection_[*connection] = node.id;
}

int Job::num_members() const {
  return std::accumulate(members_in_phase_.begin(), members_in_phase_.end(), 0);
}

void Job::index(const Node& node) {
  by_session_[node.session] = node.id;
  by_instance_[node.join.instance] = node.id;
}

Node* Job::node_at(ConnectionId connection) {
  const auto found = by_connection_.find(connection);
  return found == by_connection_.end() ? nullptr : &state_.nodes.edit(found->second);
}

void Job::log(Actions& out, LogLevel level, const std::string& text) const {
  out.push_back(action::Log{level, concat("job ", state_.run_id, ": ", text)});
}

// ---- what ranks print, for those who look at it; nothing of it is kept ----

TailRoute Job::ask_for_tail(int global_rank, std::uint64_t request, Actions& out) {
  if (ended()) return {std::nullopt, "the job has ended"};
  if (state_.round == 0) return {std::nullopt, "no round has begun yet"};
  std::vector<const Node*> members;
  for (const auto& [id, node] : state_.nodes) {
    if (is_member(node)) members.push_back(&node);
  }
  std::ranges::sort(members, {}, [](const Node* node) { return *node->node_rank; });
  int first = 0, next_node_rank = 0;
  for (const Node* node : members) {
    if (*node->node_rank != next_node_rank++) {
      return {std::nullopt,
              "a node of its round is lost, and how many ranks that had is not known"};
    }
    const int num = num_workers(*node);
    if (global_rank >= first + num) {
      first += num;
      continue;
    }
    if (!node->connection) {
      return {std::nullopt, describe(*node) + " has no connection to the rendezvous"};
    }
    if (node->join.version < kTailVersion) {
      return {std::nullopt, concat("the ddprun on ", describe(*node),
                                   " is of an older version, which tells none")};
    }
    tell(*node, TailWanted{state_.round, request, global_rank}, out);
    return {node->connection, {}};
  }
  return {std::nullopt, concat("there is no rank ", global_rank, " in round ", state_.round)};
}

void Job::handle(Node& node, const Tail& message, TimePoint, Actions& out) {
  if (node.connection) out.push_back(action::TailSaid{*node.connection, message});
}

}  // namespace ddprun::membership
