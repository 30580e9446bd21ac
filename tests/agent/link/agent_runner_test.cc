// SPDX-License-Identifier: Apache-2.0
#include "agent/link/agent_runner.h"

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;

// An owner that notes the machine's actions, in order. It reaches the rendezvous at once.
struct Owner {
  Owner()
      : runner(options(),
               {[this] { return now; }, [this](const AgentAction& action) { perform(action); },
                [this](std::optional<Clock::time_point> at) {
                  wake_at = at;
                  ++num_settings;
                },
                [](const std::string&, std::uint16_t) { return std::uint16_t{1}; }}) {}
  static AgentOptions options() {
    AgentOptions options;
    options.join.run_id = options.join.instance = "job";
    return options;
  }
  void perform(const AgentAction& action) {
    performed.push_back(action.index());
    if (drop_at_first) return runner.drop();
    if (variants::holds_alternative<agent_action::Connect>(action)) {
      runner.handle(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
      CHECK_FALSE(joined());  // its turn comes later
    }
  }
  bool joined() const {
    return !performed.empty() && performed.back() == AgentAction(agent_action::Send{}).index();
  }

  Clock::time_point now{1h};
  std::vector<std::size_t> performed;
  std::optional<Clock::time_point> wake_at;
  int num_settings = 0;
  bool drop_at_first = false;
  AgentRunner runner;
};

TEST_CASE("AgentRunner: an action's own event comes after it, and the timer is set once") {
  Owner owner;
  owner.runner.handle(agent_event::Start{});
  CHECK(owner.joined());
  CHECK(owner.wake_at == owner.now + 30s);  // the deadline of the welcome
  const int before = owner.num_settings;
  owner.runner.handle(agent_event::LinkAnswered{owner.now});
  CHECK(owner.num_settings == before);
}

TEST_CASE("AgentRunner: a timer that has fired is set again where it is still wanted") {
  Owner owner;
  owner.runner.handle(agent_event::Start{});
  const int before = owner.num_settings;
  owner.runner.handle(agent_event::Timer{});  // too early
  CHECK(owner.num_settings == before + 1);
}

TEST_CASE("AgentRunner: an owner that is gone is left alone, also in the middle") {
  Owner owner;
  owner.drop_at_first = true;
  owner.runner.handle(agent_event::Start{});
  CHECK(owner.performed.size() == 1);
  owner.runner.handle(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  CHECK(owner.performed.size() == 1);
  CHECK(owner.num_settings == 0);
}

}  // namespace
}  // namespace ddprun::membership
