// SPDX-License-Identifier: Apache-2.0
// Random worlds. Agents are killed and cut off. Gangs come, end and are cancelled. The queue is
// restarted from its rows at any moment. The rules must hold all the time.
#include <algorithm>
#include <deque>
#include <random>
#include <set>

#include "tests/rendezvous/gangs/queue_script.h"
#include "tests/support/catch.h"
#include "tests/support/worlds.h"

namespace ddprun::gangs::testing {
namespace {

// Catch2's own macros cost more than the worlds.
void must(bool is_true, const char* what) {
  if (!is_true) FAIL(what);
}

// The parts that really run on a node, whether anybody knows of them or not.
struct ModelAgent {
  std::string name, owner;
  int slots = 0;
  int instance = 0;
  std::optional<ConnectionId> connection;
  std::map<std::string, HeldPart> held;
  std::deque<QueueMessage> incoming;
  std::deque<NodeMessage> outgoing;
};

class RandomWorld {
 public:
  explicit RandomWorld(unsigned seed) : random_(seed), queue_(options_) {
    const int num_names = 1 + draw(4);
    for (int i = 0; i < num_names; ++i) {
      const int slots = 1 + draw(6);
      capacity_["n" + std::to_string(i)] = slots;
      for (const char* owner : {"alice", "bob"}) {
        if (draw(3) == 0) continue;
        agents_.push_back({"n" + std::to_string(i), owner, slots, 0, {}, {}, {}, {}});
      }
    }
  }

  void run(int num_steps) {
    for (int i = 0; i < num_steps; ++i) {
      step();
      check();
    }
    settle();
  }

 private:
  int draw(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  GangTime time() const { return {now_, 1}; }

  void step() {
    switch (draw(12)) {
      case 0:
      case 1:
        return submit();
      case 2:
        return cancel();
      case 3:
        return each_agent_once([this](ModelAgent& agent) { connect(agent); });
      case 4:
        return any_agent([this](ModelAgent& agent) {
          if (draw(4) == 0) cut(agent);
        });
      case 5:
        return any_agent([this](ModelAgent& agent) {
          if (draw(6) != 0) return;
          cut(agent);
          agent.held.clear();  // the agent is killed, and its jobs with it
          ++agent.instance;
        });
      case 6:
        if (draw(8) == 0) restart();
        return;
      case 7:
        now_ += std::chrono::seconds(draw(draw(6) == 0 ? 70 : 5));
        return feed([this](GangActions& out) { queue_.tick(time(), out); });
      case 8:
        return any_agent([this](ModelAgent& agent) { end_one(agent); });
      default:
        return any_agent([this](ModelAgent& agent) {
          if (draw(2) == 0) {
            deliver_to_agent(agent);
          } else {
            deliver_to_queue(agent);
          }
        });
    }
  }

  template <typename Call>
  void any_agent(const Call& call) {
    if (!agents_.empty()) call(agents_[draw(static_cast<int>(agents_.size()))]);
  }
  template <typename Call>
  void each_agent_once(const Call& call) {
    for (ModelAgent& agent : agents_) call(agent);
  }

  // Changes are kept before their consequences are said. The queue may die between the two.
  template <typename Call>
  void feed(const Call& call) {
    GangActions out;
    std::map<std::string, GangPhase> before;
    for (const auto& [number, gang] : queue_.gangs()) before[gang.state.id] = gang.state.phase;
    call(out);
    check_order(before);
    journal::apply_batch(queue_.take_changes(), rows_);
    for (const auto& action : out) {
      if (const auto* tell = variants::get_if<gang_action::Tell>(&action)) {
        for (ModelAgent& agent : agents_) {
          if (agent.connection == tell->connection) agent.incoming.push_back(tell->message);
        }
      }
      if (const auto* close = variants::get_if<gang_action::Close>(&action)) {
        for (ModelAgent& agent : agents_) {
          if (agent.connection == close->connection) lose_line(agent);
        }
      }
    }
  }

  // First come, first served. A gang that began now took no node on which an earlier gang could run
  // that fits and still waits.
  void check_order(const std::map<std::string, GangPhase>& before) {
    for (const auto& [number, gang] : queue_.gangs()) {
      const auto was = before.find(gang.state.id);
      const bool was_queued = was == before.end() || was->second == GangPhase::kQueued;
      if (!was_queued || gang.state.parts.empty()) continue;
      const int num_parts = static_cast<int>(gang.state.parts.size());
      must(num_parts >= gang.state.min_nodes, "fewer nodes than MIN");
      must(num_parts <= gang.state.max_nodes, "more nodes than MAX");
      for (const auto& [earlier, other] : queue_.gangs()) {
        if (earlier >= number || other.state.phase != GangPhase::kQueued) continue;
        std::set<std::string> fitting;
        for (const auto& [key, node] : queue_.nodes()) {
          if (node.owner == other.state.owner && node.slots >= std::max(1, other.state.slots)) {
            fitting.insert(node.name);
          }
        }
        if (static_cast<int>(fitting.size()) < other.state.min_nodes) continue;
        for (const GangPart& part : gang.state.parts) {
          must(!fitting.contains(part.node), "a gang has overtaken another one");
        }
      }
    }
  }

  void submit() {
    const std::string owner = draw(2) == 0 ? "alice" : "bob";
    const int least = 1 + draw(3);
    const std::string workers = draw(5) == 0 ? "auto" : std::to_string(1 + draw(4));
    const std::string id = "g" + std::to_string(++num_submitted_);
    GangSpec spec = QueueScript::spec(id, least, workers, least + draw(2));
    spec.user = owner;
    feed([&](GangActions& out) { queue_.submit(spec, owner, time(), out); });
  }

  void cancel() {
    if (num_submitted_ == 0) return;
    const std::string id = "g" + std::to_string(1 + draw(num_submitted_));
    feed([&](GangActions& out) { queue_.cancel(id, "x", time(), out); });
  }

  void connect(ModelAgent& agent) {
    if (agent.connection) return;
    agent.connection = ++last_connection_;
    agent.incoming.clear();
    agent.outgoing.clear();
    NodeHello hello;
    hello.node = agent.name;
    hello.user = agent.owner;
    hello.slots = agent.slots;
    hello.instance = std::to_string(agent.instance);
    for (const auto& [id, part] : agent.held) hello.gangs.push_back(part);
    feed([&](GangActions& out) {
      queue_.node_came(*agent.connection, hello, agent.owner, "x", time(), out);
    });
  }

  void lose_line(ModelAgent& agent) {
    agent.connection.reset();
    agent.incoming.clear();
    agent.outgoing.clear();
  }

  void cut(ModelAgent& agent) {
    if (!agent.connection) return;
    const ConnectionId connection = *agent.connection;
    lose_line(agent);
    feed([&](GangActions& out) { queue_.node_gone(connection, time(), out); });
  }

  void restart() {
    for (ModelAgent& agent : agents_) lose_line(agent);
    std::map<std::string, std::string> before;
    for (const auto& [number, gang] : queue_.gangs()) {
      before[gang.state.id] = to_string(gang.state.phase);
    }
    queue_ = GangQueue(options_);
    GangActions out;
    queue_.restore(rows_, time(), out);  // a restore tells nobody anything, and begins nothing
    std::map<std::string, std::string> after;
    for (const auto& [number, gang] : queue_.gangs()) {
      after[gang.state.id] = to_string(gang.state.phase);
    }
    must(before == after, "a restart has lost something");
  }

  void say(ModelAgent& agent, NodeMessage message) {
    if (agent.connection) agent.outgoing.push_back(std::move(message));
  }

  void deliver_to_agent(ModelAgent& agent) {
    if (agent.incoming.empty()) return;
    const QueueMessage message = agent.incoming.front();
    agent.incoming.pop_front();
    if (const auto* start = variants::get_if<StartPart>(&message)) {
      const auto [held, is_new] =
          agent.held.try_emplace(start->gang, HeldPart{start->gang, start->slots, false, 0, ""});
      if (is_new && draw(8) == 0) {
        held->second.ended = true;
        held->second.exit_code = 2;
      }
      if (held->second.ended) {
        say(agent, PartEnded{start->gang, held->second.exit_code, ""});
      } else {
        say(agent, PartStarted{start->gang});
      }
    } else if (const auto* stop = variants::get_if<StopPart>(&message)) {
      const auto held = agent.held.find(stop->gang);
      if (held == agent.held.end() || held->second.ended) return;
      held->second.ended = true;
      held->second.exit_code = 143;
      say(agent, PartEnded{stop->gang, 143, ""});
    } else if (const auto* forget = variants::get_if<ForgetPart>(&message)) {
      const auto held = agent.held.find(forget->gang);
      if (held != agent.held.end() && held->second.ended) agent.held.erase(held);
    }
  }

  void deliver_to_queue(ModelAgent& agent) {
    if (agent.outgoing.empty()) return;
    const NodeMessage message = agent.outgoing.front();
    agent.outgoing.pop_front();
    const ConnectionId from = *agent.connection;
    feed([&](GangActions& out) {
      if (const auto* started = variants::get_if<PartStarted>(&message)) {
        queue_.part_started(from, started->gang, time(), out);
      } else if (const auto* ended = variants::get_if<PartEnded>(&message)) {
        queue_.part_ended(from, *ended, time(), out);
      }
    });
  }

  void end_one(ModelAgent& agent) {
    for (auto& [id, part] : agent.held) {
      if (part.ended || draw(2) == 0) continue;
      part.ended = true;
      constexpr int kCodes[] = {0, 0, 9, 75, 69};
      part.exit_code = kCodes[draw(5)];
      say(agent, PartEnded{id, part.exit_code, ""});
      return;
    }
  }

  void check() {
    // No slot is given twice, whatever anybody knows. Parts on a node that was given up as lost
    // don't count any more (rule 3). They are stopped when the node comes back.
    note_lost_parts();
    std::map<std::string, int> used;
    for (const ModelAgent& agent : agents_) {
      for (const auto& [id, part] : agent.held) {
        if (!part.ended && !lost_.contains({id, agent.name})) used[agent.name] += part.slots;
      }
    }
    for (const auto& [name, slots] : used) {
      must(slots <= capacity_.at(name), "a slot was given twice");
    }
    // No gang has two parts on one node.
    for (const auto& [number, gang] : queue_.gangs()) {
      std::set<std::string> names;
      for (const GangPart& part : gang.state.parts) names.insert(part.node);
      must(names.size() == gang.state.parts.size(), "two parts on one node");
      if (names.empty()) continue;
      const auto [known, is_new] = sets_.try_emplace(gang.state.id, names);
      must(is_new || known->second == names, "a gang on two sets of nodes");
    }
    for (const ModelAgent& agent : agents_) {
      for (const auto& [id, part] : agent.held) {
        const auto set = sets_.find(id);
        must(set == sets_.end() || set->second.contains(agent.name), "it runs where it should not");
      }
    }
  }

  void note_lost_parts() {
    for (const auto& [number, gang] : queue_.gangs()) {
      for (const GangPart& part : gang.state.parts) {
        if (part.phase == PartPhase::kLost) lost_.insert({gang.state.id, part.node});
      }
    }
  }

  std::size_t num_held() const {
    std::size_t number = 0;
    for (const ModelAgent& agent : agents_) number += agent.held.size();
    return number;
  }
  bool runs_any() const {
    return std::ranges::any_of(queue_.gangs(), [](const auto& each) {
      return each.second.state.phase == GangPhase::kRunning ||
             each.second.state.phase == GangPhase::kStopping;
    });
  }

  // All nodes are there, and all jobs end. Then every gang ends, except those for which there are
  // no nodes.
  void settle() {
    for (int i = 0; i < 400 && (i < 40 || num_held() > 0 || runs_any()); ++i) {
      each_agent_once([this](ModelAgent& agent) { connect(agent); });
      each_agent_once([this](ModelAgent& agent) {
        while (!agent.incoming.empty()) deliver_to_agent(agent);
        while (!agent.outgoing.empty() && agent.connection) deliver_to_queue(agent);
        end_one(agent);
      });
      now_ += 2s;
      feed([this](GangActions& out) { queue_.tick(time(), out); });
      check();
    }
    for (const auto& [number, gang] : queue_.gangs()) {
      if (gang.state.phase == GangPhase::kEnded) continue;
      INFO("gang " << gang.state.id << " is " << to_string(gang.state.phase));
      must(gang.state.phase == GangPhase::kQueued, "a gang has not ended");
      int fitting = 0;
      for (const ModelAgent& agent : agents_) {
        fitting += agent.owner == gang.state.owner && agent.slots >= std::max(1, gang.state.slots);
      }
      must(fitting < gang.state.min_nodes, "a gang that would fit has not begun");
    }
    for (const auto& [name, used] : queue_.used_slots()) must(used == 0, "slots are still taken");
    SUCCEED();
  }

  const GangQueueOptions options_;
  std::mt19937 random_;
  std::vector<ModelAgent> agents_;
  std::map<std::string, int> capacity_;
  GangQueue queue_;
  journal::Rows rows_;
  Clock::time_point now_{1000s};
  ConnectionId last_connection_ = 0;
  int num_submitted_ = 0;
  std::map<std::string, std::set<std::string>> sets_;
  std::set<std::pair<std::string, std::string>> lost_;  // pairs of gang and node
};

TEST_CASE("GangQueue: random worlds give no slot twice, nobody overtakes, every gang ends") {
  for (std::uint64_t seed = 1; seed <= test::num_worlds(2'000); ++seed) {
    INFO("seed " << seed);
    RandomWorld(static_cast<unsigned>(seed)).run(250);
  }
}

}  // namespace
}  // namespace ddprun::gangs::testing
