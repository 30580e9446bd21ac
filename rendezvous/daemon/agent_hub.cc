// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/agent_hub.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include "common/error.h"
#include "common/log.h"
#include "common/peer_user.h"
#include "common/random_id.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/messages/codec.h"
#include "rendezvous/store_server/in_turns.h"
#include "rendezvous/wire/keep_alive.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;
using membership::FrameStream;

namespace {

constexpr int kEndsPerTurn = 16;
constexpr std::size_t kMaxJoinBytes = std::size_t{64} << 10;
constexpr std::chrono::minutes kStoreLinger{10};  // for workers that stop after their job's end

std::string numeric(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

}  // namespace

AgentHub::AgentHub(asio::io_context& io, Options options)
    : options_(std::move(options)),
      table_(options_.machine, random_id),
      stores_(
          {.is_journalled = options_.journal != nullptr,
           .of_job = options_.of_job,
           .in_all = options_.in_all,
           .send =
               [this](ConnectionId id, std::string message) {
                 const auto found = agents_.find(id);
                 if (found == agents_.end()) return;
                 found->second.frames->send_binary(std::move(message));
               },
           .trouble = [this](ConnectionId id, const std::string& why) { store_trouble(id, why); },
           .in_turns =
               [executor = io.get_executor()](std::function<bool()> some) {
                 store::do_in_turns(executor, std::move(some));
               }}),
      tick_timer_(io),
      idle_timer_(io),
      turn_timer_(io),
      unkept_(options_.journal),
      unkept_of_stores_(options_.journal, journal::RowKind::kStore) {}

void AgentHub::take(const std::shared_ptr<FrameStream>& frames, Newcomer newcomer) {
  auto& socket = frames->wire().socket();
  boost::system::error_code gone;
  const auto peer = socket.remote_endpoint(gone);
  const auto local = gone ? peer : socket.local_endpoint(gone);
  if (gone || stopped_) return;

  const ConnectionId id = next_id_++;
  unjoined_.insert(id);
  Agent& agent = agents_[id];
  agent.frames = frames;
  agent.facts.peer_addr = numeric(peer.address());
  agent.facts.local_addr = numeric(local.address());
  agent.facts.local_port = local.port();
  agent.facts.peer_is_loopback =
      agent.facts.peer_addr.starts_with("127.") || agent.facts.peer_addr == "::1";
  if (options_.asks_kernel) agent.facts.user = loopback_client(socket.native_handle());
  agent.peer = peer_text(socket.native_handle());
  agent.join_timer = std::make_unique<asio::steady_timer>(socket.get_executor());
  agent.join_timer->expires_after(options_.join_timeout);
  const auto self = shared_from_this();
  newcomer.ended_by([self, id](const std::string& reason) {
    self->drop(id, concat("no Join yet, and ", reason));
  });
  agent.newcomer = std::move(newcomer);
  agent.join_timer->async_wait([self, id](boost::system::error_code error) {
    const auto found = self->agents_.find(id);
    if (error || found == self->agents_.end() || !found->second.join_timer) return;
    self->drop(id, concat("no Join in ", self->options_.join_timeout.count(), " ms"));
  });
  frames->limit_messages(kMaxJoinBytes);
  FrameStream::Handlers handlers;
  handlers.frame = [self, id](std::string_view text) { self->received(id, text); };
  handlers.binary = [self, id](std::string_view bytes) { self->received_binary(id, bytes); };
  handlers.ping = [self, id](std::string_view payload) {
    self->tell_time(id, payload);
    self->feed(membership::event::Heard{id});
  };
  handlers.ended = [self, id](const std::string& reason) { self->ended(id, reason); };
  frames->start(std::move(handlers));
}

// Sends a second pong with this machine's clock, so that agents learn how far theirs is from it
// (docs/internals/rendezvous.md).
void AgentHub::tell_time(ConnectionId id, std::string_view ping) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  if (!membership::KeepAlive::tells_clock(found->second.num_pings++)) return;
  const auto now =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch());
  const std::string pong = membership::KeepAlive::clock_pong(ping, now);
  if (!pong.empty()) found->second.frames->pong(pong);
}

void AgentHub::received(ConnectionId id, std::string_view text) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  const bool is_first = found->second.join_timer != nullptr;
  found->second.join_timer.reset();
  if (is_first) found->second.frames->lift_limit();
  found->second.newcomer = Newcomer();
  unjoined_.erase(id);
  membership::event::Message message;
  message.connection = id;
  message.facts = found->second.facts;
  try {
    message.envelope = membership::decode_agent_message(text);
  } catch (const Error& error) {
    // Without an answer the agent would come again and again with the same Join.
    if (is_first) {
      found->second.frames->send(encode(refusal(error.what(), ExitCode::kUsage)));
    }
    drop(id, error.what());
    return;
  }
  const auto* join = variants::get_if<membership::Join>(&message.envelope.message);
  const std::size_t joined = agents_.size() - unjoined_.size();
  if (is_first && join != nullptr && join->session.empty() &&
      joined > options_.in_all.connections) {
    const std::string reason = concat("its limit of agents, ", options_.in_all.connections,
                                      ", is reached (ddprund --limits=connections=N)");
    // The refusal waits like the machine's actions, since another rendezvous may lead by now.
    settle({membership::action::Log{LogLevel::kWarning,
                                    concat("refused the agent ", found->second.peer, ": ", reason),
                                    true},
            membership::action::Send{id, refusal(reason, ExitCode::kRetryable)},
            membership::action::Close{id}});
    return feed_pending();
  }
  feed(std::move(message));
}

// Takes bytes of a store's proxy. Only pings are signs of life, not these.
void AgentHub::received_binary(ConnectionId id, std::string_view bytes) {
  if (unjoined_.contains(id)) return drop(id, "a binary frame before its Join");
  stores_.received(
      id, [this, id] { return table_.seat(id); }, bytes, Clock::now());
  keep_stores();
  arm_turn();
}

void AgentHub::arm_turn() {
  const auto next = stores_.next_turn();
  if (!next || (turn_armed_for_ && *turn_armed_for_ <= *next)) return;
  turn_armed_for_ = next;
  // replaces a wait for a later time
  run_at(turn_timer_, *next, [self = shared_from_this()] {
    if (self->stopped_) return;
    self->turn_armed_for_.reset();
    self->stores_.go_on(Clock::now());
    self->keep_stores();
    self->arm_turn();
  });
}

void AgentHub::store_trouble(ConnectionId id, const std::string& why) {
  if (!table_.seat(id)) return drop(id, why);
  feed(membership::event::StoreLost{id, why});
}

// Stopping workers may still use the store. But a connection that stays for ever would keep it, so
// there is a limit.
void AgentHub::drop_stores_of_finished() {
  for (const membership::DroppedJob& job : table_.take_dropped()) {
    stores_.drop(job.number);
    for (const ConnectionId id : job.connections) {
      const auto found = agents_.find(id);
      if (found == agents_.end()) continue;
      auto& timer = found->second.linger_timer;
      timer = std::make_unique<asio::steady_timer>(tick_timer_.get_executor(), kStoreLinger);
      timer->async_wait([self = shared_from_this(), id](boost::system::error_code error) {
        if (!error) self->drop(id, "its job has ended, and it stays");
      });
    }
  }
}

// Does the same as settle(), for the stores.
void AgentHub::keep_stores() {
  auto marks = stores_.take_marks();
  journal::Batch changes = stores_.take_changes();
  // A store's answers follow from earlier decisions, too.
  if (unkept_.empty() && !unkept_of_stores_.must_wait(changes, !marks.empty())) {
    return stores_.release(marks);
  }
  if (changes.empty() && marks.empty()) return;
  unkept_of_stores_.add(
      std::move(changes),
      [this, marks = std::move(marks)] {
        feed_pending();
        if (!stopped_) stores_.release(marks);
      },
      shared_from_this());
}

membership::RendezvousEnvelope AgentHub::refusal(const std::string& reason, ExitCode code) {
  membership::Refused refused;
  refused.message = "the rendezvous does not take this node's request: " + reason;
  refused.exit_code = static_cast<int>(code);
  membership::RendezvousEnvelope envelope;
  envelope.message = std::move(refused);
  return envelope;
}

void AgentHub::ended(ConnectionId id, const std::string& reason) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  log_debug("the connection of agent ", found->second.peer, " ended: ", reason);
  ended_.push_back(id);
  if (std::exchange(is_forgetting_, true)) return;
  store::do_in_turns(tick_timer_.get_executor(),
                     [self = shared_from_this()] { return self->forget_some(); });
}

// Forgets ended connections in turns: thousands may end at once, and other agents are served in
// between.
bool AgentHub::forget_some() {
  for (int i = 0; i < kEndsPerTurn && !ended_.empty(); ++i) {
    const ConnectionId id = ended_.front();
    ended_.pop_front();
    const auto found = agents_.find(id);
    if (found == agents_.end()) continue;
    forget(found);
    feed(membership::event::Closed{id});
  }
  is_forgetting_ = !ended_.empty();
  return is_forgetting_;
}

void AgentHub::drop(ConnectionId id, const std::string& reason) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  log_about_peer(LogLevel::kWarning, "closed the connection of agent ", found->second.peer, ": ",
                 reason);
  found->second.frames->close_when_sent(kFlushLimit);
  forget(found);
  feed(membership::event::Closed{id});
}

void AgentHub::forget(std::unordered_map<ConnectionId, Agent>::iterator agent) {
  unjoined_.erase(agent->first);
  stores_.closed(agent->first);
  say_if_stores_unused();
  agents_.erase(agent);
}

void AgentHub::stop() {
  stopped_ = true;
  for (const auto& [id, agent] : agents_) agent.frames->close();
  agents_.clear();
  unjoined_.clear();
  ended_.clear();
  pending_.clear();
  unkept_.stop();
  unkept_of_stores_.stop();
  tick_timer_.cancel();
  idle_timer_.cancel();
  turn_timer_.cancel();
  idle_done_ = nullptr;
  stores_unused_ = nullptr;
  options_.round_started = nullptr;
  options_.round_over = nullptr;
  options_.job_over = nullptr;
  options_.tail_said = nullptr;
}

// ---- events and actions ----

void AgentHub::feed(membership::Event event) {
  pending_.push_back(std::move(event));
  feed_pending();
}

void AgentHub::feed_pending() {
  if (feeding_) return;
  feeding_ = true;
  const auto self = shared_from_this();
  while (!pending_.empty() && !stopped_) {
    const membership::Event next = std::move(pending_.front());
    pending_.pop_front();
    settle(table_.step(next, Clock::now()));
  }
  feeding_ = false;
  if (stopped_) return;
  drop_stores_of_finished();
  if (stores_.has_changes()) keep_stores();
  arm_tick();
  check_idle();
}

void AgentHub::settle(membership::Actions actions) {
  journal::Batch changes;
  if (options_.journal != nullptr) changes = table_.take_changes();
  const bool says_something = std::ranges::any_of(actions, [](const membership::Action& action) {
    return !variants::holds_alternative<membership::action::Log>(action);
  });
  if (!unkept_.must_wait(changes, says_something)) return perform(actions);
  if (changes.empty() && actions.empty()) return;
  unkept_.add(
      std::move(changes),
      [this, actions = std::move(actions)] {
        perform(actions);
        feed_pending();
      },
      shared_from_this());
}

void AgentHub::restore(const journal::Content& content) {
  for (const std::string& loss : content.losses) log_error(loss);
  journal::Rows rows = content.rows;
  stores_.restore(rows, [&](std::uint64_t job, const std::string& why) {
    log_error("job number ", job, " of the journal is lost: ", why,
              "; its agents are refused and end with 75");
    table_.forget_rows(job, rows);
  });
  settle(table_.restore(rows, content.clock_shift, Clock::now()));
  stores_.keep_only([this](std::uint64_t job) { return table_.has_job(job); });
  feed_pending();
}

// The questions wait like the machine's actions: they acknowledge messages, which may not be kept
// yet.
std::vector<membership::TailRoute> AgentHub::ask_for_tails(
    const std::string& run_id, const membership::TailQuestion& question) {
  membership::Actions actions;
  auto routes = table_.ask_for_tails(run_id, question, actions);
  settle(std::move(actions));
  return routes;
}

void AgentHub::perform(const membership::Action& action) {
  namespace act = membership::action;
  if (const auto* send = variants::get_if<act::Send>(&action)) {
    const auto found = agents_.find(send->connection);
    if (found != agents_.end()) found->second.frames->send(membership::encode(send->envelope));
  } else if (const auto* close = variants::get_if<act::Close>(&action)) {
    const auto found = agents_.find(close->connection);
    if (found == agents_.end()) return;
    found->second.frames->close_when_sent(kFlushLimit);
    forget(found);
    pending_.emplace_back(membership::event::Closed{close->connection});
  } else if (const auto* log = variants::get_if<act::Log>(&action)) {
    const LogLevel level = options_.quiet ? LogLevel::kDebug : log->level;
    log->is_about_stranger ? log_about_peer(level, log->text) : log_message(level, log->text);
  } else if (const auto* started = variants::get_if<act::RoundStarted>(&action)) {
    options_.round_started(*started);
  } else if (const auto* ended = variants::get_if<act::RoundOver>(&action)) {
    options_.round_over(*ended);
  } else if (const auto* over = variants::get_if<act::JobOver>(&action)) {
    options_.job_over(*over);
  } else if (const auto* said = variants::get_if<act::TailSaid>(&action)) {
    if (options_.tail_said) options_.tail_said(*said);
  }
}

void AgentHub::arm_tick() {
  const auto deadline = table_.next_deadline();
  if (deadline == armed_for_) return;
  armed_for_ = deadline;
  if (!deadline) {
    tick_timer_.cancel();
    return;
  }
  run_at(tick_timer_, *deadline, [self = shared_from_this()] {
    if (self->stopped_) return;
    self->armed_for_.reset();
    self->feed(membership::event::Tick{});
  });
}

void AgentHub::when_idle(std::optional<std::chrono::milliseconds> timeout,
                         std::function<void()> done) {
  idle_done_ = std::move(done);
  if (timeout) {
    run_after(idle_timer_, *timeout, [self = shared_from_this()] {
      if (!self->idle_done_) return;
      const auto ready = std::exchange(self->idle_done_, nullptr);
      ready();
    });
  }
  settle(table_.close_to_new_jobs(Clock::now()));
  feed(membership::event::Tick{});
}

void AgentHub::check_idle() {
  if (!idle_done_ || !table_.idle() || !unkept_.empty() || !unkept_of_stores_.empty()) return;
  idle_timer_.cancel();
  asio::post(tick_timer_.get_executor(), [self = shared_from_this()] {
    const auto ready = std::exchange(self->idle_done_, nullptr);
    if (ready) ready();
  });
}

void AgentHub::when_stores_unused(std::chrono::milliseconds limit, std::function<void()> done) {
  stores_unused_ = std::move(done);
  run_after(idle_timer_, limit, [self = shared_from_this()] {
    if (self->stores_unused_) std::exchange(self->stores_unused_, nullptr)();
  });
  say_if_stores_unused();
}

void AgentHub::say_if_stores_unused() {
  if (!stores_unused_ || stores_.in_use()) return;
  idle_timer_.cancel();
  asio::post(tick_timer_.get_executor(), [self = shared_from_this()] {
    if (self->stores_unused_) std::exchange(self->stores_unused_, nullptr)();
  });
}

}  // namespace ddprun::rendezvous
