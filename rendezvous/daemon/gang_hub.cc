// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/gang_hub.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>

#include "common/error.h"
#include "common/log.h"
#include "common/peer_user.h"
#include "common/socket.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;
using membership::FrameStream;

GangHub::GangHub(asio::io_context& io, Options options)
    : options_(std::move(options)),
      io_(io),
      queue_(options_.queue),
      tick_timer_(io),
      unkept_(options_.journal) {}

// ---- connections ----

void GangHub::take(const std::shared_ptr<FrameStream>& frames, Newcomer newcomer) {
  auto& socket = frames->wire().socket();
  boost::system::error_code gone;
  socket.remote_endpoint(gone);
  if (gone || stopped_) return;
  const ConnectionId id = next_id_++;
  Agent& agent = agents_[id];
  agent.frames = frames;
  agent.peer = peer_text(socket.native_handle());
  agent.timer = std::make_unique<asio::steady_timer>(io_, options_.hello_timeout);
  const auto self = shared_from_this();
  newcomer.ended_by([self, id](const std::string& reason) {
    self->drop(id, concat("no hello yet, and ", reason));
  });
  agent.newcomer = std::move(newcomer);
  agent.timer->async_wait([self, id](boost::system::error_code error) {
    if (error || !self->agents_.contains(id)) return;
    self->drop(id, concat("no hello in ", self->options_.hello_timeout.count(), " ms"));
  });
  FrameStream::Handlers handlers;
  handlers.frame = [self, id](std::string_view text) { self->received(id, text); };
  handlers.ping = [self, id](std::string_view) {
    const auto found = self->agents_.find(id);
    if (found != self->agents_.end()) found->second.last_heard = Clock::now();
  };
  handlers.ended = [self, id](const std::string& reason) { self->ended(id, reason); };
  frames->start(std::move(handlers));
}

void GangHub::received(ConnectionId id, std::string_view text) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  found->second.last_heard = Clock::now();
  found->second.newcomer = Newcomer();
  std::optional<gangs::NodeMessage> message;
  try {
    message = gangs::decode_node_message(text);
  } catch (const Error& error) {
    if (!found->second.is_in) return refuse(id, error.what());
    return drop(id, error.what());
  }
  const auto* hello = variants::get_if<gangs::NodeHello>(&*message);
  if (found->second.is_in == (hello != nullptr)) {
    return drop(id, hello != nullptr ? "a second hello" : "its first message is no hello");
  }
  if (hello != nullptr) return take_hello(id, *hello);
  if (const auto* answer = variants::get_if<gangs::OutputAnswer>(&*message)) {
    if (listener_.output) listener_.output(id, *answer);
    return;
  }
  feed([&](gangs::GangActions& out) {
    if (const auto* started = variants::get_if<gangs::PartStarted>(&*message)) {
      queue_.part_started(id, started->gang, time(), out);
    } else if (const auto* over = variants::get_if<gangs::PartEnded>(&*message)) {
      gangs::PartEnded said = *over;
      said.exit_code = std::clamp(said.exit_code, 0, 255);
      said.reason = one_line(said.reason.substr(0, gangs::kMaxReasonBytes));
      queue_.part_ended(id, said, time(), out);
    }
  });
}

std::string GangHub::trouble_of(const gangs::NodeHello& hello) const {
  if (!options_.refusal.empty()) return options_.refusal;
  if (!newest_in_both(hello.protocols, gangs::kNodeProtocols)) {
    const bool is_newer = hello.protocols.oldest > gangs::kNodeProtocols.newest;
    return concat("it speaks ", to_string(hello.protocols), " of the standing agents' protocol, ",
                  "this ddprund ", to_string(gangs::kNodeProtocols), ": install a newer ",
                  is_newer ? "ddprund" : "ddprun-agent");
  }
  if (!gangs::is_gang_name(hello.node) || !gangs::is_gang_name(hello.user)) {
    return "the name of its node or user is none: letters, digits, \".\", \"_\", \"-\"";
  }
  if (hello.slots < 1 || hello.slots > gangs::kMaxSlots) {
    return concat("it has ", hello.slots, " slots: 1 to ", gangs::kMaxSlots, " are possible");
  }
  const bool are_gangs = std::ranges::all_of(hello.gangs, [](const gangs::HeldPart& part) {
    return gangs::is_gang_name(part.gang) && part.slots >= 0 && part.slots <= gangs::kMaxSlots;
  });
  if (!are_gangs || hello.gangs.size() > gangs::kMaxGangsOfNode) return "its gangs are none";
  return {};
}

void GangHub::take_hello(ConnectionId id, const gangs::NodeHello& hello) {
  const std::string trouble = trouble_of(hello);
  if (!trouble.empty()) return refuse(id, trouble);
  Agent& agent = agents_.at(id);
  const auto owner = owner_of(hello.user, hello.uid, agent.frames->wire().socket().native_handle());
  if (!owner) {
    return refuse(
        id, concat("it is no process of ", hello.user, " (uid ", hello.uid,
                   ") on this machine: without a token an agent has to be", user_namespace_hint()));
  }
  const bool is_known = queue_.nodes().contains({hello.node, *owner});
  if (!is_known && queue_.nodes().size() >= options_.max_nodes) {
    return refuse(id, concat("there are ", options_.max_nodes, " standing agents already"));
  }
  const auto num_of_owner = [&] {
    return static_cast<std::size_t>(std::ranges::count_if(
        queue_.nodes(), [&](const auto& node) { return node.second.owner == *owner; }));
  };
  if (!is_known && options_.asks_kernel && num_of_owner() >= options_.max_nodes_of_owner) {
    return refuse(
        id, concat("there are ", options_.max_nodes_of_owner, " standing agents of ", hello.user,
                   " already, and one user may have no more without a token"));
  }
  agent.is_in = true;
  watch(id);
  gangs::NodeHello said = hello;
  for (gangs::HeldPart& part : said.gangs) {
    part.exit_code = std::clamp(part.exit_code, 0, 255);
    part.reason = one_line(part.reason.substr(0, gangs::kMaxReasonBytes));
  }
  feed([&](gangs::GangActions& out) {
    queue_.node_came(id, said, *owner, agent.peer, time(), out);
  });
}

void GangHub::refuse(ConnectionId id, const std::string& reason) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  found->second.frames->send(gangs::encode(gangs::NodeRefused{reason, true}));
  drop(id, reason);
}

// Drops an agent that was silent for too long, even if its connection looks good.
void GangHub::watch(ConnectionId id) {
  Agent& agent = agents_.at(id);
  run_at(*agent.timer, agent.last_heard + options_.queue.silence, [self = shared_from_this(), id] {
    const auto found = self->agents_.find(id);
    if (found == self->agents_.end()) return;
    const auto silence = self->options_.queue.silence;
    if (Clock::now() < found->second.last_heard + silence) return self->watch(id);
    self->drop(id, concat("nothing was heard for ", silence.count(), " ms"));
  });
}

void GangHub::ended(ConnectionId id, const std::string& reason) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  log_debug("the connection of standing agent ", found->second.peer, " ended: ", reason);
  forget(id);
}

void GangHub::drop(ConnectionId id, const std::string& reason) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  log_about_peer(LogLevel::kWarning, "closed the connection of standing agent ", found->second.peer,
                 ": ", reason);
  found->second.frames->close_when_sent(kFlushLimit);
  forget(id);
}

void GangHub::forget(ConnectionId id) {
  const bool is_in = agents_.at(id).is_in;
  agents_.erase(id);
  if (!is_in) return;
  feed([&](gangs::GangActions& out) { queue_.node_gone(id, time(), out); });
}

std::optional<std::string> GangHub::owner_of(const std::string& user, std::int64_t uid,
                                             int socket) const {
  if (!options_.asks_kernel) return user;
  const auto peer = peer_user(socket);
  if (!peer || is_outsider(*peer)) return std::nullopt;
  if (*peer != 0 && static_cast<std::int64_t>(*peer) != uid) return std::nullopt;
  return concat(user, "#", uid);
}

std::optional<gangs::ConnectionId> GangHub::ask(const std::string& node, const std::string& owner,
                                                gangs::OutputRequest request) {
  const auto found = queue_.nodes().find({node, owner});
  if (found == queue_.nodes().end() || !found->second.connection) return std::nullopt;
  const auto agent = agents_.find(*found->second.connection);
  if (agent == agents_.end()) return std::nullopt;
  agent->second.frames->send(gangs::encode(gangs::QueueMessage(std::move(request))));
  return agent->first;
}

// ---- the queue ----

gangs::GangQueue::Verdict GangHub::submit(gangs::GangSpec spec, const std::string& owner) {
  auto verdict = gangs::GangQueue::Verdict::kTaken;
  feed([&](gangs::GangActions& out) {
    verdict = queue_.submit(std::move(spec), owner, time(), out);
  });
  return verdict;
}

bool GangHub::cancel(const std::string& id, const std::string& by) {
  bool is_known = false;
  feed([&](gangs::GangActions& out) { is_known = queue_.cancel(id, by, time(), out); });
  return is_known;
}

void GangHub::feed(const std::function<void(gangs::GangActions&)>& event) {
  if (stopped_) return;
  gangs::GangActions actions;
  event(actions);
  settle(std::move(actions));
  arm_tick();
}

void GangHub::settle(gangs::GangActions actions) {
  journal::Batch changes = queue_.take_changes();
  const bool says_something = std::ranges::any_of(actions, [](const gangs::GangAction& action) {
    return !variants::holds_alternative<gangs::gang_action::Log>(action);
  });
  if (!unkept_.must_wait(changes, says_something)) return perform(actions);
  if (changes.empty() && actions.empty()) return;
  unkept_.add(
      std::move(changes), [this, actions = std::move(actions)] { perform(actions); },
      shared_from_this());
}

void GangHub::perform(const gangs::GangAction& action) {
  namespace act = gangs::gang_action;
  if (const auto* tell = variants::get_if<act::Tell>(&action)) {
    const auto found = agents_.find(tell->connection);
    if (found != agents_.end()) found->second.frames->send(gangs::encode(tell->message));
  } else if (const auto* close = variants::get_if<act::Close>(&action)) {
    const auto found = agents_.find(close->connection);
    if (found == agents_.end()) return;
    found->second.frames->close_when_sent(kFlushLimit);
    agents_.erase(found);  // the queue knows already
  } else if (const auto* changed = variants::get_if<act::Changed>(&action)) {
    if (listener_.changed) listener_.changed(changed->gang);
  } else if (const auto* log = variants::get_if<act::Log>(&action)) {
    log->is_about_stranger ? log_about_peer(log->level, log->text)
                           : log_message(log->level, log->text);
  }
}

void GangHub::arm_tick() {
  const auto deadline = queue_.next_deadline();
  if (deadline == armed_for_) return;
  armed_for_ = deadline;
  if (!deadline) {
    tick_timer_.cancel();
    return;
  }
  run_at(tick_timer_, *deadline, [self = shared_from_this()] {
    if (self->stopped_) return;
    self->armed_for_.reset();
    self->feed([&](gangs::GangActions& out) { self->queue_.tick(time(), out); });
  });
}

gangs::GangTime GangHub::time() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return {Clock::now(), std::chrono::duration_cast<std::chrono::milliseconds>(wall).count()};
}

void GangHub::stop() {
  stopped_ = true;
  for (const auto& [id, agent] : agents_) agent.frames->close();
  agents_.clear();
  unkept_.stop();
  tick_timer_.cancel();
  listener_ = {};
}

}  // namespace ddprun::rendezvous
