// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/node_exchange.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/name_lookup.h"
#include "common/random_id.h"
#include "ctl/doctor/nodes/awaiting.h"
#include "ctl/doctor/nodes/pair_plan.h"
#include "ctl/doctor/nodes/peer_protocol.h"
#include "ctl/doctor/nodes/peer_server.h"
#include "ctl/doctor/nodes/second_look.h"
#include "ctl/doctor/readings.h"

namespace ddprun::doctor {
namespace {

using std::chrono::milliseconds;

// How long rank 0 waits for what all do at the same time, and never longer than a third of its
// time.
constexpr milliseconds kSheetPatience{10'000};
constexpr milliseconds kGreetingPatience{2'000};  // for one connection
constexpr milliseconds kNamePatience{1'000};
constexpr milliseconds kReachPatience{9'000};  // for all of a node's
constexpr milliseconds kPairPatience{6'000};
constexpr milliseconds kTransport{1'000};  // of an answer, beyond what it takes to find it
constexpr int kMostNames = 64;             // that each node looks up

constexpr char kTokenKey[] = "doctor/token";
constexpr char kPeersKey[] = "doctor/peers";
constexpr char kEnd[] = "end";

std::string sheet_key(int rank) { return concat("doctor/sheet/", rank); }
std::string reach_key(int rank) { return concat("doctor/reach/", rank); }
std::string step_key(std::size_t step) { return concat("doctor/step/", step); }
std::string result_key(std::size_t step, int rank) {
  return concat("doctor/result/", step, "/", rank);
}

// The others wait for rank 0's word longer than rank 0 for theirs.
constexpr milliseconds kRank0Patience{5'000};

Deadline earlier(Deadline one, Deadline other) { return one.at() < other.at() ? one : other; }

// "0 10.0.0.1 40123\n…": who takes part, and where.
std::string peers_text(const std::vector<NodeSheet>& sheets) {
  std::string text;
  for (const NodeSheet& each : sheets) {
    text +=
        concat(each.node_rank, " ", each.address, " ", each.port, " ", one_line(each.host), "\n");
  }
  return text;
}

struct NamedPeer {
  Peer peer;
  std::string host;
};

std::vector<NamedPeer> parse_peers(const std::string& text) {
  std::vector<NamedPeer> peers;
  for (const std::string& line : lines_in(text)) {
    const auto words = words_in(line);
    if (words.size() < 4) continue;
    const auto rank = numbers_in(words[0]), port = numbers_in(words[2]);
    if (rank.empty() || port.empty()) continue;
    peers.push_back(
        {{static_cast<int>(rank.front()), {words[1], static_cast<std::uint16_t>(port.front())}},
         words[3]});
  }
  return peers;
}

std::string step_text(const Step& step) {
  std::string text;
  for (const auto& [from, to] : step) text += concat(from, " ", to, "\n");
  return text;
}

// Why a peer's name doesn't lead to it; empty: it does.
std::string name_problem(const std::string& host, Deadline deadline) {
  const NameLookup found = look_up({.host = host, .port = 1}, deadline);
  if (found.addresses.empty()) return found.failure;
  const bool is_loopback = std::all_of(found.addresses.begin(), found.addresses.end(),
                                       [](const SocketAddress& a) { return a.is_loopback(); });
  return is_loopback ? "it is only " + found.addresses.front().host_text() : "";
}

// What every node does, rank 0 included.
class Participant {
 public:
  Participant(store::Store& store, const Place& place, NodeSheet sheet, std::string token,
              const ExchangeOptions& options)
      : store_(store),
        rank_(place.node_rank),
        token_(std::move(token)),
        options_(options),
        server_(place.address, token_, place.node_rank),
        sheet_(std::move(sheet)) {
    sheet_.port = server_.port();
    store_.set(sheet_key(rank_), to_json(sheet_));
  }

  void meet(const std::string& peers) {
    peers_ = parse_peers(peers);
    std::erase_if(peers_, [&](const NamedPeer& each) { return each.peer.node_rank == rank_; });
    // Each begins with the node behind its own: nobody is asked by all at once.
    std::stable_partition(peers_.begin(), peers_.end(),
                          [&](const NamedPeer& each) { return each.peer.node_rank > rank_; });
  }

  // Whom does this node reach, and by which names?
  void reach() {
    const Deadline deadline = earlier(options_.deadline, Deadline::after(kReachPatience));
    std::vector<Peer> all;
    for (const NamedPeer& each : peers_) all.push_back(each.peer);
    NodeReach reach;
    reach.node_rank = rank_;
    reach.greetings = greet_all(all, token_, kGreetingPatience, deadline);
    int num_names = 0;
    for (const NamedPeer& each : peers_) {
      if (!options_.looks_up_names || ++num_names > kMostNames || deadline.expired()) break;
      const Deadline limit = earlier(deadline, Deadline::after(kNamePatience));
      const std::string problem = name_problem(each.host, limit);
      if (!problem.empty()) reach.names.push_back({each.peer.node_rank, problem});
    }
    store_.set(reach_key(rank_), to_json(reach));
  }

  // Measures, where this node is to begin with a pair of the step.
  void take_step(std::size_t number, const std::string& step) {
    for (const std::string& line : lines_in(step)) {
      const auto ranks = numbers_in(line);
      if (ranks.size() != 2 || ranks.front() != rank_) continue;
      for (const NamedPeer& each : peers_) {
        if (each.peer.node_rank != ranks.back()) continue;
        const Deadline deadline = earlier(options_.deadline, Deadline::after(kPairPatience));
        const PairMeasure measure = measure_pair(rank_, each.peer, token_, options_.pair, deadline);
        store_.set(result_key(number, rank_), to_json(measure));
      }
    }
  }

 private:
  store::Store& store_;
  const int rank_;
  const std::string token_;
  const ExchangeOptions& options_;
  PeerServer server_;
  NodeSheet sheet_;
  std::vector<NamedPeer> peers_;  // without this node
};

// Rank 0's side of the steps.
class Conductor {
 public:
  Conductor(store::Store& store, Participant& own, const ExchangeOptions& options,
            NodesFacts& facts)
      : store_(store), own_(own), options_(options), facts_(facts) {}

  void measure_pairs() {
    std::vector<int> nodes;
    for (const NodeReach& each : facts_.reaches) nodes.push_back(each.node_rank);
    if (nodes.size() <= kMostNodesForAllPairs) {
      for (const Step& step : all_pairs(nodes)) look(step);
    } else {
      const Step first = first_step(nodes);
      look(first);
      const auto speed_of = [this](int node) { return speed(node); };
      for (const Step& step : second_steps(nodes, first, speed_of)) look(step);
    }
    const auto slow =
        pairs_to_repeat(facts_.pairs, options_.slow_factor, options_.least_bits_per_second);
    for (const Step& step : steps_for(slow)) look_again(step);
  }

  void end() { store_.set(step_key(num_steps_), kEnd); }

 private:
  void look(const Step& wanted) {
    if (!options_.deadline.expired()) {
      for (PairMeasure& each : run(wanted)) facts_.pairs.push_back(std::move(each));
    } else if (facts_.notes.empty()) {
      facts_.notes.emplace_back("not all pairs were measured in time");
    }
  }

  // Once more; without the time for it the first look counts.
  void look_again(const Step& wanted) {
    if (options_.deadline.remaining() < kPairPatience + kTransport) return;
    for (const PairMeasure& again : run(wanted)) {
      for (PairMeasure& first : facts_.pairs) {
        if (std::minmax(first.from, first.to) != std::minmax(again.from, again.to)) continue;
        first = better_of(first, again);
        break;
      }
    }
  }

  // Each pair begins at a node that reaches the other one; where none does, that is known already.
  std::vector<PairMeasure> run(const Step& wanted) {
    std::vector<PairMeasure> measures;
    Step step;
    for (const auto& [one, other] : wanted) {
      if (facts_.failure(one, other).empty()) {
        step.emplace_back(one, other);
      } else if (facts_.failure(other, one).empty()) {
        step.emplace_back(other, one);
      }
    }
    if (step.empty()) return measures;
    const std::size_t number = num_steps_++;
    const std::string text = step_text(step);
    store_.set(step_key(number), text);
    const Deadline deadline =
        earlier(options_.deadline, Deadline::after(kPairPatience + kTransport));
    own_.take_step(number, text);
    std::map<int, std::string> keys;
    for (const auto& [from, to] : step) keys[from] = result_key(number, from);
    const auto results = await_all(store_, keys, deadline);
    for (const auto& [from, to] : step) {
      const auto found = results.find(from);
      auto measure = found == results.end() ? std::nullopt : parse_measure(found->second);
      if (!measure) measure = PairMeasure{from, to, "no answer in time", 0, 0, 0, ""};
      measures.push_back(std::move(*measure));
    }
    return measures;
  }

  double speed(int node) const {
    for (const PairMeasure& each : facts_.pairs) {
      if (each.from == node || each.to == node) {
        return std::min(each.out_bits_per_second, each.in_bits_per_second);
      }
    }
    return 0;
  }

  store::Store& store_;
  Participant& own_;
  const ExchangeOptions& options_;
  NodesFacts& facts_;
  std::size_t num_steps_ = 0;
};

}  // namespace

NodesFacts gather_nodes(store::Store& store, const Place& place, NodeSheet sheet,
                        const ExchangeOptions& options) {
  NodesFacts facts;
  facts.num_nodes = place.num_nodes;
  const std::string token = random_id();
  store.set(kTokenKey, token);
  Participant own(store, place, std::move(sheet), token, options);
  std::map<int, std::string> keys;
  for (int rank = 0; rank < place.num_nodes; ++rank) keys[rank] = sheet_key(rank);
  const auto patience = std::min<Clock::duration>(kSheetPatience, options.deadline.remaining() / 3);
  for (const auto& [rank, text] : await_all(store, keys, Deadline::after(patience))) {
    if (auto each = parse_sheet(text)) facts.sheets.push_back(std::move(*each));
  }
  const std::string peers = peers_text(facts.sheets);
  store.set(kPeersKey, peers);
  own.meet(peers);
  own.reach();
  keys.clear();
  for (const NodeSheet& each : facts.sheets) keys[each.node_rank] = reach_key(each.node_rank);
  const Deadline reached = earlier(options.deadline, Deadline::after(kReachPatience + kTransport));
  for (const auto& [rank, text] : await_all(store, keys, reached)) {
    if (auto each = parse_reach(text)) facts.reaches.push_back(std::move(*each));
  }
  Conductor conductor(store, own, options, facts);
  if (options.measures_pairs) conductor.measure_pairs();
  conductor.end();
  return facts;
}

void answer_rank_0(store::Store& store, const Place& place, NodeSheet sheet,
                   const ExchangeOptions& options) {
  const Deadline deadline(options.deadline.at() + kRank0Patience);
  const std::string token = await_key(store, kTokenKey, deadline);
  if (token.size() != kTokenBytes) throw Error(ErrorCode::kProtocol, "rank 0 gave no token");
  Participant own(store, place, std::move(sheet), token, options);
  own.meet(await_key(store, kPeersKey, deadline));
  own.reach();
  for (std::size_t number = 0;; ++number) {
    const std::string step = await_key(store, step_key(number), deadline);
    if (step == kEnd) return;
    own.take_step(number, step);
  }
}

}  // namespace ddprun::doctor
