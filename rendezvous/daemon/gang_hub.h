// SPDX-License-Identifier: Apache-2.0
// The standing agents' connections and the queue of gangs behind them (docs/nodes.md). Frames
// become events. The resulting actions become frames once the journal has kept their changes. I/O
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/clock.h"
#include "rendezvous/daemon/pending_handshakes.h"
#include "rendezvous/gangs/gang_queue.h"
#include "rendezvous/gangs/node_messages.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/wire/frame_stream.h"

namespace ddprun::rendezvous {

class GangHub : public std::enable_shared_from_this<GangHub> {
 public:
  struct Options {
    gangs::GangQueueOptions queue;
    std::chrono::milliseconds hello_timeout{10'000};  // from upgrade to hello
    // True without a token: only this machine's users come, and the kernel tells who each one is.
    bool asks_kernel = false;
    std::string refusal;  // why all agents are refused; empty: they are taken
    // The limit of one owner holds where the kernel tells who that is, so that one user's agents
    // leave places to others'. With a token a client may say any user, and one may have a cluster.
    std::size_t max_nodes = 1'024, max_nodes_of_owner = 512;
    journal::Journal* journal = nullptr;  // must outlive this; nullptr: none
  };

  // Gets each change of a gang, and each node's answer about a job's output.
  struct Listener {
    std::function<void(const std::string& gang)> changed;
    std::function<void(gangs::ConnectionId, const gangs::OutputAnswer& answer)> output;
  };

  GangHub(boost::asio::io_context& io, Options options);

  void listen(Listener listener) { listener_ = std::move(listener); }

  // Takes an upgraded stream that is not started. It has the place `newcomer` until its first
  // message.
  void take(const std::shared_ptr<membership::FrameStream>& frames, Newcomer newcomer);

  // Restores the gangs of an earlier process; called before take().
  void restore(const journal::Rows& rows) {
    feed([&](gangs::GangActions& out) { queue_.restore(rows, time(), out); });
  }

  // Returns the agents' owner for a client at `socket` that claims to be `user` with `uid`;
  // nullopt: the claim is wrong.
  std::optional<std::string> owner_of(const std::string& user, std::int64_t uid, int socket) const;

  gangs::GangQueue::Verdict submit(gangs::GangSpec spec, const std::string& owner);
  bool cancel(const std::string& id, const std::string& by);

  // Asks a node. Returns its connection, the only one that may answer; nullopt: the node isn't
  // connected.
  std::optional<gangs::ConnectionId> ask(const std::string& node, const std::string& owner,
                                         gangs::OutputRequest request);

  const gangs::GangQueue& queue() const { return queue_; }
  const std::string& refusal() const { return options_.refusal; }

  // Calls `done` as soon as all decisions so far are kept: at once, or from the I/O context.
  void when_kept(std::function<void()> done) { unkept_.when_kept(std::move(done)); }

  void stop();  // closes every connection; no call follows

 private:
  using ConnectionId = gangs::ConnectionId;
  static constexpr std::chrono::milliseconds kFlushLimit{1'000};

  struct Agent {
    std::shared_ptr<membership::FrameStream> frames;  // shared with its operations
    std::string peer;
    Newcomer newcomer;
    bool is_in = false;  // after its hello: the queue knows it
    Clock::time_point last_heard;
    std::unique_ptr<boost::asio::steady_timer> timer;  // for its hello, then for its silence
  };

  void received(ConnectionId id, std::string_view text);
  void take_hello(ConnectionId id, const gangs::NodeHello& hello);
  std::string trouble_of(const gangs::NodeHello& hello) const;
  void refuse(ConnectionId id, const std::string& reason);
  void watch(ConnectionId id);
  void ended(ConnectionId id, const std::string& reason);
  void drop(ConnectionId id, const std::string& reason);
  void forget(ConnectionId id);

  // Runs `event(out)`, which changes the queue, and carries out the actions.
  void feed(const std::function<void(gangs::GangActions&)>& event);
  void settle(gangs::GangActions actions);
  void perform(const gangs::GangActions& actions) {
    for (const auto& action : actions) perform(action);
  }
  void perform(const gangs::GangAction& action);
  void arm_tick();
  static gangs::GangTime time();

  const Options options_;
  boost::asio::io_context& io_;
  gangs::GangQueue queue_;
  Listener listener_;
  boost::asio::steady_timer tick_timer_;
  std::optional<Clock::time_point> armed_for_;
  std::unordered_map<ConnectionId, Agent> agents_;
  ConnectionId next_id_ = 1;
  journal::JournalGate unkept_;
  bool stopped_ = false;
};

}  // namespace ddprun::rendezvous
