// SPDX-License-Identifier: Apache-2.0
// The agents' open connections and the membership machine behind them. Frames become events, and
// actions become frames. With a journal actions wait until the changes behind them are kept. I/O
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/exit_codes.h"
#include "rendezvous/daemon/pending_handshakes.h"
#include "rendezvous/daemon/proxied_stores.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/wire/frame_stream.h"

namespace ddprun::rendezvous {

class AgentHub : public std::enable_shared_from_this<AgentHub> {
 public:
  struct Options {
    membership::MachineOptions machine;
    std::chrono::milliseconds join_timeout{10'000};  // from upgrade to Join
    // The limits of proxied stores. in_all.connections is the limit of agents, too.
    StoreLimits of_job = default_job_limits(), in_all = default_total_limits();
    bool asks_kernel = false;  // without token and TLS: the kernel identifies users on loopback
    bool quiet = false;        // the machine logs at debug level: agents report to their users
    std::function<void(const membership::action::RoundStarted&)> round_started;
    std::function<void(const membership::action::RoundOver&)> round_over;
    std::function<void(const membership::action::JobOver&)> job_over;
    std::function<void(const membership::action::TailSaid&)> tail_said;  // may be empty
    journal::Journal* journal = nullptr;  // must outlive this; nullptr: none
  };

  AgentHub(boost::asio::io_context& io, Options options);

  // Takes an upgraded stream that is not started. It has the place `newcomer` until its first
  // message.
  void take(const std::shared_ptr<membership::FrameStream>& frames, Newcomer newcomer);

  // Begins no new job from now on (new agents are told to try again). Calls `done` from the I/O
  // context when no job is left, or after `timeout`. Without a time-out only the jobs' own
  // deadlines limit the wait.
  void when_idle(std::optional<std::chrono::milliseconds> timeout, std::function<void()> done);

  // Calls `done` once, from the I/O context, when no agent with a store is connected, or after
  // `limit`.
  void when_stores_unused(std::chrono::milliseconds limit, std::function<void()> done);

  std::vector<membership::JobStatus> status() const { return table_.status(); }
  const membership::JobTable& table() const { return table_; }
  std::size_t num_agents() const { return agents_.size(); }
  std::size_t num_unjoined() const { return unjoined_.size(); }  // part of num_agents()
  ProxiedStores::Usage store_usage() const { return stores_.usage(); }

  // See JobTable::ask_for_tails(). Options::tail_said gets the agents' answers.
  std::vector<membership::TailRoute> ask_for_tails(const std::string& run_id,
                                                   const membership::TailQuestion& question);

  // Calls `done` as soon as all decisions so far are kept: at once, or from the I/O context.
  void when_kept(std::function<void()> done) { unkept_.when_kept(std::move(done)); }

  // Restores the jobs of an earlier process from its journal; called before take().
  void restore(const journal::Content& content);

  void stop();  // closes every connection; no call follows

 private:
  using ConnectionId = membership::ConnectionId;
  static constexpr std::chrono::milliseconds kFlushLimit{1'000};  // for messages before a close
  struct Agent {
    std::shared_ptr<membership::FrameStream> frames;  // shared with its operations
    std::string peer;
    membership::ConnectionFacts facts;
    Newcomer newcomer;
    std::uint64_t num_pings = 0;
    std::unique_ptr<boost::asio::steady_timer> join_timer;    // until the first message
    std::unique_ptr<boost::asio::steady_timer> linger_timer;  // its job has ended, its store hasn't
  };

  void received(ConnectionId id, std::string_view text);
  void received_binary(ConnectionId id, std::string_view bytes);
  void tell_time(ConnectionId id, std::string_view ping);
  static membership::RendezvousEnvelope refusal(const std::string& reason, ExitCode code);
  void ended(ConnectionId id, const std::string& reason);
  bool forget_some();
  void drop(ConnectionId id, const std::string& reason);
  void forget(std::unordered_map<ConnectionId, Agent>::iterator agent);

  void feed(membership::Event event);
  void feed_pending();
  void keep_stores();
  void store_trouble(ConnectionId id, const std::string& why);
  void arm_turn();
  void drop_stores_of_finished();
  void settle(membership::Actions actions);
  void perform(const membership::Actions& actions) {
    for (const auto& action : actions) perform(action);
  }
  void perform(const membership::Action& action);
  void arm_tick();
  void check_idle();
  void say_if_stores_unused();

  Options options_;
  membership::JobTable table_;
  ProxiedStores stores_;
  boost::asio::steady_timer tick_timer_;
  std::optional<Clock::time_point> armed_for_;
  boost::asio::steady_timer idle_timer_;
  boost::asio::steady_timer turn_timer_;  // the stores' next turn
  std::optional<Clock::time_point> turn_armed_for_;
  std::unordered_map<ConnectionId, Agent> agents_;
  std::set<ConnectionId> unjoined_;  // agents that have sent nothing yet
  std::deque<ConnectionId> ended_;   // agents to forget
  bool is_forgetting_ = false;
  ConnectionId next_id_ = 1;
  std::deque<membership::Event> pending_;  // events caused by actions
  journal::JournalGate unkept_, unkept_of_stores_;
  bool feeding_ = false;
  bool stopped_ = false;
  std::function<void()> idle_done_;
  std::function<void()> stores_unused_;
};

}  // namespace ddprun::rendezvous
