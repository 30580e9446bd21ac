// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/world/virtual_network.h"

#include <map>

#include "tests/support/catch.h"

namespace ddprun::membership::testing {
namespace {

using namespace std::chrono_literals;

// Two hosts; host 1 is 10 ms away.
struct Net {
  Net()
      : network(
            2, {[this](Clock::time_point at, bool is_up, ConnectionId which) {
                  due.emplace(at, std::pair(is_up, which));
                },
                [this](ConnectionId, UpFrame frame) { seen += text(frame) + '@' + ms(); },
                [this](int, ConnectionId, DownFrame frame) { seen += text(frame) + '@' + ms(); }}) {
    network.set_latency(0, 1ms);
    network.set_latency(1, 10ms);
  }
  template <typename Frame>
  static std::string text(const Frame& frame) {
    if (const auto* ping = variants::get_if<PingFrame>(&frame)) return " " + ping->payload;
    return " end";
  }
  std::string ms() const { return std::to_string((now - Clock::time_point(1h)) / 1ms); }
  void up(const std::string& payload) { network.send_up(id, PingFrame{payload}, now); }
  void down(const std::string& payload) { network.send_down(id, PingFrame{payload}, now); }
  std::string run() {
    while (!due.empty()) {
      const auto [at, what] = *due.begin();
      due.erase(due.begin());
      now = at;
      network.arrive(what.first, what.second);
    }
    return std::exchange(seen, {});
  }

  std::multimap<Clock::time_point, std::pair<bool, ConnectionId>> due;
  Clock::time_point now{1h};
  std::string seen;
  VirtualNetwork network;
  ConnectionId id = network.connect(0);
};

TEST_CASE_METHOD(Net, "VirtualNetwork: frames arrive after the latency, in order") {
  up("a");
  network.set_latency(0, 0ms);
  up("b");  // b doesn't come before a
  down("c");
  CHECK(run() == " c@0 a@1 b@1");
}

TEST_CASE_METHOD(
    Net, "VirtualNetwork: a message that is sent into a cut way arrives after it is healed") {
  network.cut(0, true, false);
  up("a");
  down("b");
  CHECK(run() == " b@1");
  CHECK(network.is_cut(0));
  now += 99ms;
  network.heal(0, 50ms, now);
  up("c");
  CHECK(run() == " a@151 c@151");
}

TEST_CASE_METHOD(Net, "VirtualNetwork: an end comes after what was sent before it") {
  up("a");
  network.close_at_host(id, true, now);
  up("late");
  down("unread");
  CHECK(run() == " a@1 end@1");
  network.close_at_rendezvous(id, now);
  CHECK(run().empty());
  CHECK(network.host_of(id) == -1);  // the connection is forgotten
}

TEST_CASE_METHOD(Net,
                 "VirtualNetwork: a host without power says no end, and what was held is lost") {
  network.cut(0, true, true);
  up("a");
  network.close_at_host(id, false, now);
  network.heal(0, 0ms, now);
  CHECK(run().empty());
}

}  // namespace
}  // namespace ddprun::membership::testing
