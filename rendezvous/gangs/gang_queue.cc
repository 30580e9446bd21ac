// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/gang_queue.h"

#include <algorithm>
#include <boost/describe/class.hpp>
#include <exception>
#include <iterator>

#include "common/check.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "rendezvous/membership/row_fields.h"

namespace ddprun::gangs {
namespace {

// The names of the rows in the journal of ddprund (docs/durability.md).
constexpr char kGangRows[] = "gangs/";       // gangs/N/spec, gangs/N/state
constexpr char kNodeRows[] = "gang_nodes/";  // gang_nodes/NAME/OWNER
constexpr char kSpecRow[] = "spec", kStateRow[] = "state";

std::string gang_row(std::uint64_t number, const char* which) {
  return concat(kGangRows, number, "/", which);
}
std::string node_row(const std::string& name, const std::string& owner) {
  return concat(kNodeRows, name, "/", owner);
}

template <typename... Parts>
void log(GangActions& out, LogLevel level, const Parts&... parts) {
  out.push_back(gang_action::Log{level, concat(parts...)});
}

constexpr int kCancelled = exit_status_for_signal(15);

// Returns "2", or "2:4".
std::string size_text(int least, int most) {
  return most == least ? std::to_string(least) : concat(least, ":", most);
}
std::string size_text(const GangState& gang) { return size_text(gang.min_nodes, gang.max_nodes); }

constexpr int kRetryable = static_cast<int>(ExitCode::kRetryable);
constexpr int kUnreachable = static_cast<int>(ExitCode::kRendezvousUnreachable);

// Returns whether the program could not begin, for a reason that other nodes share.
bool could_not_begin(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::kUsage) || exit_code == kExitNotExecutable ||
         exit_code == kExitNotFound;
}

// Returns which of two parts' exit codes is the gang's; `so_far` came first.
int merged(int so_far, int said) {
  if (so_far == 0 || said == 0) return 0;
  if (so_far == kNoExitCode) return said;
  const bool is_weak = so_far == kRetryable || so_far == kUnreachable;
  const bool said_is_weak = said == kRetryable || said == kUnreachable;
  return is_weak && !said_is_weak ? said : so_far;
}

// A node with fewer slots never fits the gang.
int least_slots_of(const GangState& gang) { return std::max(1, gang.slots); }

using membership::read_row, membership::row_of;

// Returns 17 for "gangs/17/state"; 0: the key is of no gang.
std::uint64_t number_of_row(std::string_view key) {
  key.remove_prefix(std::string_view(kGangRows).size());
  const std::size_t slash = key.find('/');
  if (slash == std::string_view::npos) return 0;
  return parsed_number<std::uint64_t>(key.substr(0, slash)).value_or(0);
}

}  // namespace

BOOST_DESCRIBE_STRUCT(GangQueue::Node, (), (name, owner, user, slots))

// ---- look-ups ----

const GangQueue::Gang* GangQueue::find(std::string_view id) const {
  const auto number = numbers_.find(id);
  return number == numbers_.end() ? nullptr : &gangs_.at(number->second);
}

GangQueue::Gang* GangQueue::find_gang(std::string_view id) {
  const auto number = numbers_.find(id);
  return number == numbers_.end() ? nullptr : &gangs_.at(number->second);
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

std::map<std::string, std::int64_t> GangQueue::used_slots() const {
  return GangPlacing(nodes_, gangs_).used_slots();
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
      concat(counted(size_text(state), "node"), " of ", state.user, " with ",
             state.slots == 0 ? "all slots" : counted(state.slots, "slot"), " free");
  if (static_cast<int>(fitting.size()) < state.min_nodes) {
    return concat("waits for ", wanted, "; only ", counted(fitting.size(), "node"),
                  " here could ever have so many");
  }
  return concat("waits for ", wanted);
}

// ---- submitting and cancelling ----

bool GangQueue::may_add(const std::string& owner, std::size_t bytes) const {
  std::size_t num_gangs = 1;
  for (const auto& [number, gang] : gangs_) {
    if (!gang.spec || gang.state.owner != owner) continue;
    ++num_gangs;
    bytes += size_of(*gang.spec);
  }
  return num_gangs <= options_.max_gangs_of_owner && bytes <= options_.max_bytes_of_owner;
}

GangQueue::Verdict GangQueue::submit(GangSpec spec, const std::string& owner, GangTime time,
                                     GangActions& out) {
  if (const Gang* known = find(spec.id)) {
    // A gang that has ended has no spec any more. Then the same id and owner mean the same gang:
    // its client asks again.
    const bool is_same = known->spec ? *known->spec == spec : known->state.owner == owner;
    return is_same ? Verdict::kKnown : Verdict::kOther;
  }
  const std::size_t bytes = size_of(spec);
  if (num_live_ >= options_.max_gangs || live_bytes_ + bytes > options_.max_bytes) {
    return Verdict::kFull;
  }
  if (!may_add(owner, bytes)) return Verdict::kFullOfOwner;
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
  log(out, LogLevel::kInfo, "gang ", state.id, " of ", state.user,
      " is queued: ", counted(size_text(state), "node"), ", ", counted(state.workers, "worker"),
      " on each");
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
    out.push_back(
        gang_action::Log{LogLevel::kWarning, concat("refused ", address, ": ", why), true});
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
  log(out, LogLevel::kInfo, "node ", node.name, " of ", node.user, " is here: ", node.slots,
      " slots, ", address);
  meet_parts(node, hello, time, out);
  begin_gangs(time, out);
}

// Compares the gangs that the agent reports with the known ones.
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
  log(out, LogLevel::kInfo, "node ", node.name, " of ", node.user, " is away: it has ",
      options_.node_grace.count() / 1000, " s to come back");
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
  log(out, LogLevel::kWarning, "node ", node.name, " of ", node.user,
      " is lost: it has not come back");
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
  tell(node,
       StartPart{spec.id, part.slots, size_text(spec.min_nodes, most), spec.workers, spec.arguments,
                 spec.environment, spec.directory, spec.stop_ms},
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
  log(out, LogLevel::kInfo, "gang ", state.id, " begins on ",
      listed(state.parts, ", ", &GangPart::node));
  changed(gang, out);
}

// ---- parts and gangs end ----

void GangQueue::end_part(Gang& gang, GangPart& part, int exit_code, const std::string& reason,
                         GangTime time, GangActions& out) {
  part.phase = PartPhase::kEnded;
  part.exit_code = exit_code;
  part.reason = reason;
  const int so_far = gang.state.exit_code;
  gang.state.exit_code = merged(so_far, exit_code);
  // A part may succeed and still report that output was lost; the first such reason counts.
  const bool is_new_trouble = exit_code == 0 && !reason.empty() && gang.state.reason.empty();
  if (gang.state.exit_code != so_far || is_new_trouble) {
    const bool is_well = exit_code == 0 && reason.empty();
    gang.state.reason = is_well ? ""
                        : reason.empty()
                            ? concat("ddprun on ", part.node, " ended with ", exit_code)
                            : concat(part.node, ": ", reason);
  }
  after_part(gang, could_not_begin(exit_code), time, out);
}

void GangQueue::lose_part(Gang& gang, GangPart& part, const std::string& why, GangTime time,
                          GangActions& out) {
  part.phase = PartPhase::kLost;
  part.reason = why;
  if (gang.state.reason.empty() && gang.state.exit_code != 0) {
    gang.state.reason = concat(part.node, ": ", why);
  }
  after_part(gang, false, time, out);
}

void GangQueue::after_part(Gang& gang, bool could_not_start, GangTime time, GangActions& out) {
  GangState& state = gang.state;
  const auto live =
      std::ranges::count_if(state.parts, [](const GangPart& part) { return !part.is_over(); });
  if (live == 0) {
    const int code = state.exit_code == kNoExitCode ? kRetryable : state.exit_code;
    const std::string reason =
        state.cancelled.empty() ? state.reason : "cancelled by " + state.cancelled;
    return end(gang, code, reason, time, out);
  }
  changed(gang, out);
  if (state.phase != GangPhase::kRunning || state.exit_code == 0 || live >= state.min_nodes) {
    return;
  }
  if (could_not_start) return stop(gang, state.reason, out);
  keep_earlier(gang.lonely_until, time.now + options_.lonely);
}

void GangQueue::stop(Gang& gang, const std::string& why, GangActions& out) {
  gang.state.phase = GangPhase::kStopping;
  gang.lonely_until.reset();
  for (const GangPart& part : gang.state.parts) {
    if (part.is_over()) continue;
    const auto node = nodes_.find({part.node, gang.state.owner});
    if (node != nodes_.end()) tell(node->second, StopPart{gang.state.id}, out);
  }
  log(out, LogLevel::kInfo, "gang ", gang.state.id, " is stopped: ", why);
  changed(gang, out);
}

void GangQueue::end(Gang& gang, int exit_code, const std::string& reason, GangTime time,
                    GangActions& out) {
  GangState& state = gang.state;
  state.phase = GangPhase::kEnded;
  state.exit_code = exit_code;
  state.reason = reason;
  state.over = time.wall_ms;
  --num_live_;
  if (gang.spec) {
    live_bytes_ -= size_of(*gang.spec);
    if (!gang.is_new) erased_.push_back({gang_row(gang.number, kSpecRow), std::nullopt});
    gang.spec.reset();
  }
  gang.lonely_until.reset();
  gang.forget_at = time.now + options_.keep_finished;
  log(out, LogLevel::kInfo, "gang ", state.id, " has ended with ", exit_code,
      reason.empty() ? "" : ": ", one_line(reason));
  changed(gang, out);
}

// ---- time ----

void GangQueue::tick(GangTime time, GangActions& out) {
  std::vector<NodeKey> late;
  for (const auto& [key, node] : nodes_) {
    if (!node.connection && node.away_until <= time.now) late.push_back(key);
  }
  for (const NodeKey& key : late) lose_node(key, time, out);
  for (auto& [number, gang] : gangs_) {
    if (!gang.lonely_until || *gang.lonely_until > time.now) continue;
    stop(gang, concat("fewer than ", gang.state.min_nodes, " of its nodes are left"), out);
  }
  drop_old(time);
  begin_gangs(time, out);
}

std::optional<Clock::time_point> GangQueue::next_deadline() const {
  std::optional<Clock::time_point> next;
  for (const auto& [key, node] : nodes_) {
    if (!node.connection) keep_earlier(next, node.away_until);
  }
  for (const auto& [number, gang] : gangs_) {
    keep_earlier(next, gang.lonely_until);
    keep_earlier(next, gang.forget_at);
  }
  return next;
}

void GangQueue::drop_old(GangTime time) {
  std::size_t num_ended = gangs_.size() - num_live_;
  for (auto gang = gangs_.begin(); gang != gangs_.end();) {
    const auto next = std::next(gang);
    const auto& forget_at = gang->second.forget_at;
    if (forget_at && (*forget_at <= time.now || num_ended > options_.max_ended)) {
      --num_ended;
      erase(gang);
    }
    gang = next;
  }
}

void GangQueue::erase(std::map<std::uint64_t, Gang>::iterator gang) {
  erased_.push_back({gang_row(gang->first, kStateRow), std::nullopt});
  numbers_.erase(gang->second.state.id);
  gangs_.erase(gang);
}

void GangQueue::changed(Gang& gang, GangActions& out) {
  ++gang.changes;
  gang.is_changed = true;
  out.push_back(gang_action::Changed{gang.state.id});
}

// ---- rows of a journal ----

journal::Batch GangQueue::take_changes() {
  journal::Batch batch = std::exchange(erased_, {});
  for (auto& [number, gang] : gangs_) {
    if (!std::exchange(gang.is_changed, false)) continue;
    if (std::exchange(gang.is_new, false) && gang.spec) {
      batch.push_back({gang_row(number, kSpecRow), row_of(*gang.spec)});
    }
    batch.push_back({gang_row(number, kStateRow), row_of(gang.state)});
  }
  for (auto& [key, node] : nodes_) {
    if (!std::exchange(node.is_changed, false)) continue;
    batch.push_back({node_row(node.name, node.owner), row_of(node)});
  }
  return batch;
}

void GangQueue::restore(const journal::Rows& rows, GangTime time, GangActions& out) {
  const auto lost = [&](const std::string& key, const std::string& why) {
    log(out, LogLevel::kError, "row ", key, " of the journal is lost: ", why);
    erased_.push_back({key, std::nullopt});
  };
  for (auto row = rows.lower_bound(kNodeRows); row != rows.end(); ++row) {
    if (!row->first.starts_with(kNodeRows)) break;
    try {
      auto kept = read_row<Node>(row->second, {});
      const NodeKey key{kept.name, kept.owner};
      Node& node = nodes_[key] = std::move(kept);
      node.slots = std::clamp(node.slots, 0, kMaxSlots);
      node.away_until = time.now + options_.node_grace;
      node.is_changed = false;
    } catch (const std::exception& error) {  // JSON errors, too
      lost(row->first, error.what());
    }
  }
  std::map<std::uint64_t, std::pair<const std::string*, const std::string*>> found;
  for (auto row = rows.lower_bound(kGangRows); row != rows.end(); ++row) {
    if (!row->first.starts_with(kGangRows)) break;
    const std::uint64_t number = number_of_row(row->first);
    next_number_ = std::max(next_number_, number + 1);
    if (number != 0 && row->first == gang_row(number, kSpecRow)) {
      found[number].first = &row->second;
    } else if (number != 0 && row->first == gang_row(number, kStateRow)) {
      found[number].second = &row->second;
    }
  }
  for (const auto& [number, both] : found) {
    try {
      if (both.second == nullptr) throw Error(ErrorCode::kProtocol, "there is no state");
      restore_gang(number, both.first, *both.second, time, out);
    } catch (const std::exception& error) {
      lost(gang_row(number, kStateRow), error.what());
      erased_.push_back({gang_row(number, kSpecRow), std::nullopt});
    }
  }
  // A part's node without a row has time to come back, too.
  for (auto& [number, gang] : gangs_) {
    for (const GangPart& part : gang.state.parts) {
      if (part.is_over()) continue;
      Node& node = nodes_[{part.node, gang.state.owner}];
      if (!node.name.empty()) continue;
      node.name = part.node;
      node.owner = gang.state.owner;
      node.user = gang.state.user;
      node.away_until = time.now + options_.node_grace;
    }
  }
  if (num_live_ > 0) {
    log(out, LogLevel::kInfo, "goes on with ", counted(num_live_, "gang"), "; their nodes have ",
        options_.node_grace.count() / 1000, " s to come back");
  }
}

void GangQueue::restore_gang(std::uint64_t number, const std::string* spec,
                             const std::string& state, GangTime time, GangActions& out) {
  Gang gang;
  gang.number = number;
  gang.state = read_row<GangState>(state, {});
  if (!is_gang_name(gang.state.id) || numbers_.contains(gang.state.id)) {
    throw Error(ErrorCode::kProtocol, "its id is none, or another one's");
  }
  gang.is_new = gang.is_changed = false;
  std::string trouble;
  if (gang.state.phase == GangPhase::kEnded) {
    gang.forget_at = time.now + options_.keep_finished;
  } else if (spec == nullptr) {
    trouble = "what runs is lost from the journal";
  } else {
    gang.spec = read_row<GangSpec>(*spec, {});
    trouble = check_spec(*gang.spec);
  }
  Gang& kept = gangs_[number] = std::move(gang);
  numbers_[kept.state.id] = number;
  if (kept.state.phase == GangPhase::kEnded) return;
  ++num_live_;
  if (kept.spec) live_bytes_ += size_of(*kept.spec);
  if (trouble.empty()) return;
  const bool has_parts = !kept.state.parts.empty();
  if (has_parts) stop(kept, trouble, out);
  if (!has_parts) end(kept, static_cast<int>(ExitCode::kRetryable), trouble, time, out);
}

// ---- placing ----

// An agent's strays count at most as many slots as the node has.
GangPlacing::Slots GangPlacing::used_slots() const {
  Slots used;
  for (const auto& [key, node] : nodes_) {
    std::int64_t strays = 0;
    for (const auto& [gang, slots] : node.strays) strays += slots;
    used[node.name] += std::min<std::int64_t>(strays, node.slots);
  }
  for (const auto& [number, gang] : gangs_) {
    for (const GangPart& part : gang.state.parts) {
      if (!part.is_over()) used[part.node] += part.slots;
    }
  }
  return used;
}

std::vector<const GangPlacing::Node*> GangPlacing::fitting(const GangState& gang) const {
  std::vector<const Node*> found;
  for (const auto& [key, node] : nodes_) {
    if (node.owner == gang.owner && node.slots >= least_slots_of(gang)) found.push_back(&node);
  }
  return found;
}

GangPlacing::Owners& GangPlacing::owners() {
  if (owners_) return *owners_;
  for (auto& [name, used] : used_slots()) rooms_[name].used = used;
  Owners& owners = owners_.emplace();
  for (const auto& [key, node] : nodes_) {
    owners[node.owner].places.push_back({&node, &rooms_.at(node.name)});
  }
  return owners;
}

bool GangPlacing::Place::has_room(const GangState& gang) const {
  if (!node->connection || room->is_held) return false;
  return gang.slots == 0 ? room->used == 0 : node->slots - room->used >= gang.slots;
}

std::optional<std::vector<const GangPlacing::Node*>> GangPlacing::place(const GangState& gang) {
  const auto owner = owners().find(gang.owner);
  const int least_slots = least_slots_of(gang);
  if (owner == owners().end() || least_slots >= owner->second.held_from) return std::nullopt;
  std::vector<const Place*> fitting, ready;
  for (const Place& place : owner->second.places) {
    if (place.node->slots < least_slots) continue;
    fitting.push_back(&place);
    if (place.has_room(gang)) ready.push_back(&place);
  }
  const auto least = static_cast<std::size_t>(gang.min_nodes);
  if (fitting.size() < least) return std::nullopt;
  if (ready.size() < least) {
    for (const Place* place : fitting) place->room->is_held = true;
    owner->second.held_from = least_slots;
    return std::nullopt;
  }
  ready.resize(std::min(ready.size(), static_cast<std::size_t>(gang.max_nodes)));
  std::vector<const Node*> placed;
  for (const Place* place : ready) {
    place->room->used += gang.slots == 0 ? place->node->slots : gang.slots;
    placed.push_back(place->node);
  }
  return placed;
}

}  // namespace ddprun::gangs
