// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/gang_queue.h"

#include <algorithm>

#include "common/check.h"
#include "common/exit_codes.h"
#include "rendezvous/gangs/gang_placing.h"
#include "rendezvous/gangs/gang_rows.h"

namespace ddprun::gangs {
namespace {

constexpr int kCancelled = exit_status_for_signal(15);

std::string size_text(const GangState& gang) {
  std::string nodes = std::to_string(gang.min_nodes);
  if (gang.max_nodes != gang.min_nodes) nodes += concat(":", gang.max_nodes);
  return nodes;
}

std::string names_of(const std::vector<GangPart>& parts) {
  std::string names;
  for (const GangPart& part : parts) names += (names.empty() ? "" : ", ") + part.node;
  return names;
}

}  // namespace

// ---- what there is ----

const GangQueue::Gang* GangQueue::find(std::string_view id) const {
  const auto number = numbers_.find(id);
  return number == numbers_.end() ? nullptr : &gangs_.at(number->second);
}

GangQueue::Gang* GangQueue::find_gang(std::string_view id) {
  const auto number = numbers_.find(id);
  return number == numbers_.end() ? nullptr : &gangs_.at(number->second);
}

const GangQueue::Node* GangQueue::node_of(ConnectionId connection) const {
  const auto key = connections_.find(connection);
  return key == connections_.end() ? nullptr : &nodes_.at(key->second);
}

GangQueue::Node* GangQueue::at_connection(ConnectionId connection) {
  const auto key = connections_.find(connection);
  return key == connections_.end() ? nullptr : &nodes_.at(key->second);
}

GangPart* GangQueue::part_at(Gang& gang, const Node& node) {
  if (gang.state.owner != node.owner) return nullptr;
  for (GangPart& part : gang.state.parts) {
    if (part.node == node.name) return &part;
  }
  return nullptr;
}

int GangQueue::used_slots(const std::string& name) const {
  return GangPlacing(nodes_, gangs_).used_slots(name);
}

std::size_t GangQueue::num_before(const Gang& gang) const {
  return static_cast<std::size_t>(std::count_if(
      gangs_.begin(), gangs_.lower_bound(gang.number),
      [](const auto& each) { return each.second.state.phase == GangPhase::kQueued; }));
}

std::string GangQueue::waits_for(const Gang& gang) const {
  const GangState& state = gang.state;
  const auto fitting = GangPlacing(nodes_, gangs_).fitting(state);
  const std::string wanted =
      concat(size_text(state), " nodes of ", state.user, " with ",
             state.slots == 0 ? "all" : std::to_string(state.slots), " slots free");
  if (static_cast<int>(fitting.size()) < state.min_nodes) {
    return concat("waits for ", wanted, "; there are ", fitting.size(),
                  " that are large enough, were they free");
  }
  return concat("waits for ", wanted);
}

// ---- submitted, cancelled ----

GangQueue::Verdict GangQueue::submit(GangSpec spec, const std::string& owner, GangTime time,
                                     GangActions& out) {
  if (const Gang* known = find(spec.id)) {
    // Of one that has ended the spec is gone: whoever asks again for its answer knows the id.
    const bool is_same = known->spec ? *known->spec == spec : known->state.owner == owner;
    return is_same ? Verdict::kKnown : Verdict::kOther;
  }
  const std::size_t bytes = size_of(spec);
  if (num_live_ >= options_.max_gangs || live_bytes_ + bytes > options_.max_bytes) {
    return Verdict::kFull;
  }
  Gang& gang = gangs_[next_number_];
  gang.number = next_number_++;
  numbers_[spec.id] = gang.number;
  ++num_live_;
  live_bytes_ += bytes;
  GangState& state = gang.state;
  state.id = spec.id;
  state.user = spec.user;
  state.name = spec.name;
  state.owner = owner;
  state.min_nodes = spec.min_nodes;
  state.max_nodes = spec.max_nodes;
  state.workers = spec.workers;
  state.slots = slots_of(spec);
  state.exit_code = kNoExitCode;
  state.submitted = time.wall_ms;
  gang.spec = std::move(spec);
  out.push_back(gang_action::Log{
      LogLevel::kInfo, concat("gang ", state.id, " of ", state.user, " is queued: ",
                              size_text(state), " nodes, ", state.workers, " workers on each")});
  begin_gangs(time, out);
  return Verdict::kTaken;
}

bool GangQueue::cancel(std::string_view id, const std::string& by, GangTime time,
                       GangActions& out) {
  Gang* gang = find_gang(id);
  if (gang == nullptr) return false;
  if (gang->state.phase == GangPhase::kEnded || !gang->state.cancelled.empty()) return true;
  gang->state.cancelled = by;
  if (gang->state.phase == GangPhase::kQueued) {
    end(*gang, kCancelled, "cancelled by " + by, time, out);
  } else {
    stop(*gang, "cancelled by " + by, out);
  }
  begin_gangs(time, out);
  return true;
}

// ---- nodes ----

void GangQueue::node_came(ConnectionId connection, const NodeHello& hello, const std::string& owner,
                          const std::string& address, GangTime time, GangActions& out) {
  const NodeKey key{hello.node, owner};
  Node& node = nodes_[key];
  if (node.connection && node.instance != hello.instance) {
    const std::string why =
        concat("an agent of ", hello.user, " for node ", hello.node, " is connected from ",
               node.address, ": stop that one, or give this one another --name");
    out.push_back(gang_action::Log{LogLevel::kWarning, concat("refused ", address, ": ", why)});
    out.push_back(gang_action::Tell{connection, NodeRefused{why, false}});
    out.push_back(gang_action::Close{connection});
    return;
  }
  if (node.connection) {
    connections_.erase(*node.connection);
    out.push_back(gang_action::Close{*node.connection});
  }
  node.is_changed |= node.name.empty() || node.slots != hello.slots;
  node.name = hello.node;
  node.owner = owner;
  node.user = hello.user;
  node.slots = hello.slots;
  node.instance = hello.instance;
  node.version = hello.version;
  node.address = address;
  node.connection = connection;
  node.strays.clear();
  connections_[connection] = key;
  Welcome welcome;
  welcome.protocol = newest_in_both(hello.protocols, kNodeProtocols).value_or(welcome.protocol);
  welcome.version = DDPRUN_VERSION;
  welcome.silence_ms = options_.silence.count();
  tell(node, welcome, out);
  out.push_back(
      gang_action::Log{LogLevel::kInfo, concat("node ", node.name, " of ", node.user,
                                               " is here: ", node.slots, " slots, ", address)});
  meet_parts(node, hello, time, out);
  begin_gangs(time, out);
}

// What the agent says of its gangs, against what is known of them.
void GangQueue::meet_parts(Node& node, const NodeHello& hello, GangTime time, GangActions& out) {
  std::map<std::string, HeldPart> held;
  for (const HeldPart& each : hello.gangs) held[each.gang] = each;
  for (auto& [number, gang] : gangs_) {
    GangPart* part = part_at(gang, node);
    if (part == nullptr || part->is_over()) continue;
    const auto said = held.find(gang.state.id);
    if (said == held.end() && part->phase == PartPhase::kRuns) {
      lose_part(gang, *part, "its agent was started anew", time, out);
    } else if (said == held.end() && gang.state.phase == GangPhase::kStopping) {
      end_part(gang, *part, kCancelled, "it had not begun there", time, out);
    } else if (said == held.end()) {
      tell_start(gang, *part, node, out);
    } else if (said->second.ended) {
      end_part(gang, *part, said->second.exit_code, said->second.reason, time, out);
      tell(node, ForgetPart{gang.state.id}, out);
    } else {
      if (std::exchange(part->phase, PartPhase::kRuns) != PartPhase::kRuns) changed(gang, out);
      if (gang.state.phase == GangPhase::kStopping) tell(node, StopPart{gang.state.id}, out);
    }
    if (said != held.end()) held.erase(said);
  }
  for (const auto& [id, part] : held) {
    if (part.ended) {
      tell(node, ForgetPart{id}, out);
    } else {
      node.strays[id] = part.slots;
      tell(node, StopPart{id}, out);
    }
  }
}

void GangQueue::node_gone(ConnectionId connection, GangTime time, GangActions& out) {
  const auto key = connections_.find(connection);
  if (key == connections_.end()) return;
  Node& node = nodes_.at(key->second);
  node.connection.reset();
  node.away_until = time.now + options_.node_grace;
  connections_.erase(key);
  out.push_back(gang_action::Log{LogLevel::kInfo,
                                 concat("node ", node.name, " of ", node.user, " is away: it has ",
                                        options_.node_grace.count() / 1000, " s to come back")});
}

void GangQueue::part_started(ConnectionId connection, const std::string& gang_id, GangTime,
                             GangActions& out) {
  Node* node = at_connection(connection);
  Gang* gang = find_gang(gang_id);
  if (node == nullptr || gang == nullptr) return;
  GangPart* part = part_at(*gang, *node);
  if (part == nullptr || part->phase != PartPhase::kGiven) return;
  part->phase = PartPhase::kRuns;
  changed(*gang, out);
}

void GangQueue::part_ended(ConnectionId connection, const PartEnded& ended, GangTime time,
                           GangActions& out) {
  Node* node = at_connection(connection);
  if (node == nullptr) return;
  if (node->strays.erase(ended.gang) == 0) {
    Gang* gang = find_gang(ended.gang);
    GangPart* part = gang == nullptr ? nullptr : part_at(*gang, *node);
    if (part != nullptr && !part->is_over()) {
      end_part(*gang, *part, ended.exit_code, ended.reason, time, out);
    }
  }
  tell(*node, ForgetPart{ended.gang}, out);
  begin_gangs(time, out);
}

void GangQueue::lose_node(const NodeKey& key, GangTime time, GangActions& out) {
  const auto lost = nodes_.extract(key);
  const Node& node = lost.mapped();
  out.push_back(gang_action::Log{LogLevel::kWarning, concat("node ", node.name, " of ", node.user,
                                                            " is lost: it has not come back")});
  erased_.push_back({node_row(node.name, node.owner), std::nullopt});
  for (auto& [number, gang] : gangs_) {
    GangPart* part = part_at(gang, node);
    if (part == nullptr || part->is_over()) continue;
    lose_part(gang, *part, "the node was lost", time, out);
  }
}

void GangQueue::tell(const Node& node, QueueMessage message, GangActions& out) {
  if (node.connection) out.push_back(gang_action::Tell{*node.connection, std::move(message)});
}

void GangQueue::tell_start(const Gang& gang, const GangPart& part, const Node& node,
                           GangActions& out) {
  DDPRUN_CHECK(gang.spec);
  const GangSpec& spec = *gang.spec;
  const int most = std::min<int>(spec.max_nodes, static_cast<int>(gang.state.parts.size()));
  std::string nodes = std::to_string(spec.min_nodes);
  if (most != spec.min_nodes) nodes += concat(":", most);
  tell(node,
       StartPart{spec.id, part.slots, nodes, spec.workers, spec.arguments, spec.environment,
                 spec.directory, spec.stop_ms},
       out);
}

// ---- gangs begin ----

void GangQueue::begin_gangs(GangTime time, GangActions& out) {
  GangPlacing placing(nodes_, gangs_);
  for (auto& [number, gang] : gangs_) {
    if (gang.state.phase != GangPhase::kQueued) continue;
    const auto nodes = placing.place(gang.state);
    if (nodes) begin(gang, *nodes, time, out);
  }
}

void GangQueue::begin(Gang& gang, const std::vector<const Node*>& nodes, GangTime time,
                      GangActions& out) {
  GangState& state = gang.state;
  state.phase = GangPhase::kRunning;
  state.began = time.wall_ms;
  for (const Node* node : nodes) {
    state.parts.push_back({.node = node->name,
                           .slots = state.slots == 0 ? node->slots : state.slots,
                           .phase = PartPhase::kGiven,
                           .exit_code = 0,
                           .reason = {}});
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    tell_start(gang, state.parts[i], *nodes[i], out);
  }
  out.push_back(gang_action::Log{LogLevel::kInfo,
                                 concat("gang ", state.id, " begins on ", names_of(state.parts))});
  changed(gang, out);
}

}  // namespace ddprun::gangs
