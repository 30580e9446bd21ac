// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/node_exchange.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <map>
#include <utility>

#include "common/child_process.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/parsed_number.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "common/socket.h"
#include "common/text.h"
#include "ctl/doctor/nodes/ways.h"
#include "ctl/doctor/readings.h"

namespace ddprun::doctor {
namespace {

int place_number(const Environment& environment, const char* name, int least) {
  const std::string text = find_variable(environment, name).value_or("");
  if (const auto value = parsed_number<int>(text); value && *value >= least) return *value;
  throw Error(ErrorCode::kInvalidArgument, std::string(name) + "=" + text +
                                               ": as ddprun sets it for its workers it is a "
                                               "number of " +
                                               std::to_string(least) + " or more");
}

using std::chrono::milliseconds;

constexpr milliseconds kAnswerPatience{5'000};  // the store must answer within this time

// Waits until another rank has put the key into the store. Throws Error(kTimeout).
std::string await_key(store::Store& store, const std::string& key, Deadline deadline) {
  store.set_timeout(std::chrono::ceil<milliseconds>(deadline.remaining()) + milliseconds(1));
  return store.get(key);
}

// Returns the values of the keys that exist at the deadline, or once all exist.
std::map<int, std::string> await_all(store::Store& store, const std::map<int, std::string>& keys,
                                     Deadline deadline) {
  std::map<int, std::string> values;
  std::vector<std::string> names;
  for (const auto& [rank, key] : keys) names.push_back(key);
  if (names.empty()) return values;
  bool are_there = true;
  try {
    store.set_timeout(std::chrono::ceil<milliseconds>(deadline.remaining()) + milliseconds(1));
    store.wait(names);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    are_there = false;
  }
  store.set_timeout(kAnswerPatience);
  for (const auto& [rank, key] : keys) {
    if (are_there || store.check({key})) values[rank] = store.get(key);
  }
  return values;
}

using std::chrono::milliseconds;

// How long rank 0 waits for a part that all nodes do at the same time. It never waits longer than a
// third of its own time.
constexpr milliseconds kSheetPatience{10'000};
constexpr milliseconds kGreetingPatience{2'000};  // for one connection
constexpr milliseconds kNamePatience{1'000};
constexpr milliseconds kReachPatience{9'000};  // for all greetings of a node
constexpr milliseconds kPairPatience{6'000};
constexpr milliseconds kTransport{1'000};  // for an answer's way, beyond the time to make it
constexpr int kMostNames = 64;             // names that each node looks up

constexpr char kTokenKey[] = "doctor/token";
constexpr char kPeersKey[] = "doctor/peers";
constexpr char kEnd[] = "end";

std::string sheet_key(int rank) { return concat("doctor/sheet/", rank); }
std::string reach_key(int rank) { return concat("doctor/reach/", rank); }
std::string step_key(std::size_t step) { return concat("doctor/step/", step); }
std::string result_key(std::size_t step, int rank) {
  return concat("doctor/result/", step, "/", rank);
}

// The other nodes wait this much longer for rank 0 than rank 0 waits for them.
constexpr milliseconds kRank0Patience{5'000};

Deadline earlier(Deadline one, Deadline other) { return one.at() < other.at() ? one : other; }

// "0 10.0.0.1 40123\n…": the nodes that take part, with address and port.
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

// Says why a peer's name doesn't lead to it; empty: it does.
std::string name_problem(const std::string& host, Deadline deadline) {
  const NameLookup found = look_up({.host = host, .port = 1}, deadline);
  if (found.addresses.empty()) return found.failure;
  const bool is_loopback = std::all_of(found.addresses.begin(), found.addresses.end(),
                                       [](const SocketAddress& a) { return a.is_loopback(); });
  return is_loopback ? "it is only " + found.addresses.front().host_text() : "";
}

// Runs the part of every node, also of rank 0.
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
    // Each node begins with the node after its own, so that not all ask the same node at once.
    std::stable_partition(peers_.begin(), peers_.end(),
                          [&](const NamedPeer& each) { return each.peer.node_rank > rank_; });
  }

  // Finds out which nodes this one reaches, and by which names.
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

  // Measures those pairs of this step that this node begins.
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

// Runs rank 0's part of the steps.
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

  // Measures these pairs again. If there is no time for that, the first measure counts.
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

  // Each pair begins at a node that reaches the other one. A pair in which neither does is left
  // out.
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

constexpr char kBeginKey[] = "doctor/collective";
constexpr char kBegin[] = "begin";
constexpr std::chrono::seconds kLeadersPatience{5};  // beyond rank 0's own deadline
constexpr std::chrono::milliseconds kAnswerTime{1'000};

std::string collective_key(int rank) { return concat(kBeginKey, "/", rank); }

// Runs ddprun-check. Returns what it prints on stdout; its stderr is this process'.
std::string run_check_program(std::uint64_t num_bytes, Deadline deadline) {
  const double seconds = std::chrono::duration<double>(deadline.remaining()).count();
  Pipe output = make_pipe();
  Child child;
  try {
    child = start_child(
        {.argv = {helper_program("ddprun-check"), std::to_string(num_bytes), concat(seconds)},
         .environment = to_strings(current_environment()),
         .descriptors = {ChildCommand::kNothing, output.write_end.get(), ChildCommand::kNothing},
         .dies_with_us = true});
  } catch (const StartError&) {
    return "host failed: ddprun-check can't be started";
  }
  output.write_end.reset();
  std::string text;
  std::array<char, 4096> buffer;
  ssize_t size = 1;
  const Deadline patience(deadline.at() + kAnswerTime);
  while (size > 0 && wait_ready(output.read_end.get(), POLLIN, patience)) {
    size = ::read(output.read_end.get(), buffer.data(), buffer.size());
    if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  int status = 0;
  if (size > 0) {  // not reaped if it can't end yet: init will do that
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, WNOHANG);
    return "host failed: no end in time";
  }
  ::waitpid(child.pid, &status, 0);
  if (text.empty()) text = concat("host failed: ddprun-check ended with status ", status);
  return text;
}

}  // namespace

std::optional<Place> find_place(const Environment& environment) {
  const auto address = find_variable(environment, env::kNodeAddr);
  const auto host = find_variable(environment, env::kMasterAddr);
  if (!address || !host || !find_variable(environment, env::kRank)) return std::nullopt;
  Place place;
  const bool is_virtual = find_variable(environment, env::kTrueLocalRank).has_value();
  place.local_rank =
      place_number(environment, is_virtual ? env::kTrueLocalRank : env::kLocalRank, 0);
  place.global_rank = place_number(environment, env::kRank, 0);
  place.node_rank = place_number(environment, env::kGroupRank, 0);
  place.num_nodes = place_number(environment, env::kGroupWorldSize, 1);
  place.world_size = place_number(environment, env::kWorldSize, 1);
  const int port = place_number(environment, env::kMasterPort, 1);
  place.store = {*host, static_cast<std::uint16_t>(port)};
  place.address = *address;
  place.round = find_variable(environment, env::kRound).value_or("1");
  return place;
}

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

std::vector<RankCollective> parse_collectives(const std::string& text) {
  constexpr std::string_view kFailed = " failed: ";
  std::vector<RankCollective> found;
  for (const std::string& line : lines_in(text)) {
    RankCollective each;
    if (const std::size_t at = line.find(kFailed); at != std::string::npos) {
      each.backend = line.substr(0, at);
      each.failure = line.substr(at + kFailed.size());
    } else {
      const auto words = words_in(line);
      const auto numbers = numbers_in(line);
      if (words.size() != 3 || numbers.size() != 2 || numbers[1] <= 0) continue;
      each.backend = words[0];
      each.num_bytes = static_cast<double>(numbers[0]);
      each.seconds = static_cast<double>(numbers[1]) / 1e9;
    }
    if (each.backend == "host" || each.backend == "nccl") found.push_back(std::move(each));
  }
  return found;
}

void lead_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      const std::string& reason_against, Deadline deadline, NodesFacts& facts) {
  facts.no_collectives = reason_against;
  if (!reason_against.empty()) return store.set(kBeginKey, reason_against);
  store.set(kBeginKey, kBegin);
  const std::string own = run_check_program(num_bytes, deadline);
  store.set(collective_key(place.global_rank), concat(place.node_rank, "\n", own));
  std::map<int, std::string> keys;
  for (int rank = 0; rank < place.world_size; ++rank) keys[rank] = collective_key(rank);
  const Deadline patience(deadline.at() + kAnswerTime * 2);
  const auto answers = await_all(store, keys, patience);
  for (int rank = 0; rank < place.world_size; ++rank) {
    const auto answer = answers.find(rank);
    if (answer == answers.end()) {
      facts.collectives.push_back({rank, -1, "host", 0, 0, "no answer in time"});
      continue;
    }
    const auto node = numbers_in(lines_in(answer->second).front());
    for (RankCollective& each : parse_collectives(answer->second)) {
      each.global_rank = rank;
      each.node_rank = node.empty() ? -1 : static_cast<int>(node.front());
      facts.collectives.push_back(std::move(each));
    }
  }
}

void join_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      Deadline deadline) {
  if (await_key(store, kBeginKey, Deadline(deadline.at() + kLeadersPatience)) != kBegin) return;
  const std::string found = run_check_program(num_bytes, deadline);
  store.set(collective_key(place.global_rank), concat(place.node_rank, "\n", found));
}

}  // namespace ddprun::doctor
