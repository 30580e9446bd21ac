// SPDX-License-Identifier: Apache-2.0
// The network of a world in virtual time. Each host has a way of its own to the rendezvous, with a
// latency; a way can be cut. Connections keep the order of their frames, as TCP does. Frames that
// are sent into a cut way arrive after it is healed. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/variant.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::membership::testing {

struct PingFrame {
  std::string payload;  // the payload of a ping or a pong
};
struct EndFrame {};  // the other side has closed the connection
// A message of an old round, which nobody would send now.
struct LateFrame {
  AgentEnvelope envelope;
};
using UpFrame = variants::variant<AgentEnvelope, LateFrame, PingFrame, EndFrame>;
using DownFrame = variants::variant<RendezvousEnvelope, PingFrame, EndFrame>;

class VirtualNetwork {
 public:
  struct Options {
    // Has arrive(up, connection) called at that time.
    std::function<void(Clock::time_point at, bool up, ConnectionId connection)> schedule;
    std::function<void(ConnectionId, UpFrame)> at_rendezvous;
    std::function<void(int host, ConnectionId, DownFrame)> at_host;
  };
  VirtualNetwork(int num_hosts, Options options);

  void set_latency(int host, std::chrono::microseconds each_way);
  std::chrono::microseconds latency(int host) const { return way(host).latency; }
  // Whether the way lets nothing through, at least in one direction.
  bool is_cut(int host) const { return way(host).up_cut || way(host).down_cut; }
  void cut(int host, bool up, bool down);
  // Held frames are sent again. They arrive after `after` (TCP's own timer) and the latency.
  void heal(int host, std::chrono::microseconds after, Clock::time_point now);

  ConnectionId connect(int host);
  int host_of(ConnectionId connection) const;
  void send_up(ConnectionId connection, UpFrame frame, Clock::time_point now);
  void send_down(ConnectionId connection, DownFrame frame, Clock::time_point now);
  // The host takes and sends no more frames. `politely`: the rendezvous hears of the end.
  void close_at_host(ConnectionId connection, bool politely, Clock::time_point now);
  void close_at_rendezvous(ConnectionId connection, Clock::time_point now);

  // The next frame of that connection has arrived.
  void arrive(bool up, ConnectionId connection);

 private:
  struct Way {
    std::chrono::microseconds latency{100};
    bool up_cut = false, down_cut = false;
    std::vector<ConnectionId> connections;
  };
  template <typename Frame>
  struct Pipe {
    std::deque<Frame> frames;  // in order; the last num_held have no time of arrival
    std::size_t num_held = 0;
    Clock::time_point last{};  // the latest arrival so far
  };
  struct Connection {
    int host = 0;
    bool host_open = true, rendezvous_open = true;
    Pipe<UpFrame> up;
    Pipe<DownFrame> down;
  };
  const Way& way(int host) const { return ways_[static_cast<std::size_t>(host)]; }
  template <typename Frame>
  void send(Connection& connection, ConnectionId id, Pipe<Frame>& pipe, bool up, Frame frame,
            Clock::time_point now);
  template <typename Frame>
  void release(ConnectionId id, Pipe<Frame>& pipe, bool up, Clock::time_point from,
               std::chrono::microseconds latency);
  void drop_if_over(ConnectionId id);

  const Options options_;
  std::vector<Way> ways_;
  std::unordered_map<ConnectionId, Connection> connections_;
  ConnectionId next_id_ = 1;
};

}  // namespace ddprun::membership::testing
