// SPDX-License-Identifier: Apache-2.0
// The rendezvous in virtual time: the shipped JobTable behind the connections of a VirtualNetwork,
// as AgentHub has it behind sockets; each of its steps is checked. Pure.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "ctl/emulate/chronicle.h"
#include "ctl/emulate/plant.h"
#include "ctl/emulate/table_check.h"
#include "ctl/emulate/virtual_network.h"

namespace ddprun::ctl {

class VirtualRendezvous {
 public:
  struct Options {
    membership::JobSettings settings;  // of the only job
    Plant plant;
    std::function<Clock::time_point()> now;
    std::function<void(std::optional<Clock::time_point>)> wake_at;  // then call tick()
    std::function<void(const std::string&)> violated;
  };
  VirtualRendezvous(VirtualNetwork& network, Chronicle& chronicle, Options options);

  void take(ConnectionId connection);
  void hear(ConnectionId connection, UpFrame frame);
  void tick();
  // The connection has been open for long enough: it should have joined.
  void join_timeout(ConnectionId connection);

 private:
  void feed(membership::Event event, bool is_late = false);
  void step(membership::Event& event, bool is_late);
  void perform(const membership::Action& action);
  void set_tick();
  membership::ConnectionFacts facts(ConnectionId connection) const;
  void spoil(membership::Actions& actions);

  VirtualNetwork& network_;
  Chronicle& chronicle_;
  const Options options_;
  TableCheck check_;
  membership::JobTable table_;
  std::map<ConnectionId, bool> open_;      // → has joined
  std::deque<membership::Event> waiting_;  // of connections that were closed meanwhile
  std::optional<Clock::time_point> wake_at_;
  std::uint64_t round_ = 0;
  bool feeding_ = false;
  bool spoilt_ = false;  // the planted bug has shown
};

}  // namespace ddprun::ctl
