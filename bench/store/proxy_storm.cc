// SPDX-License-Identifier: Apache-2.0
// The start of a large job with --store=proxy: `proxy_storm PORT PID NODES WORKERS [REQUESTS]`
// plays NODES agents of one job with WORKERS workers each (storm.h). Agent machine, connection and
// the node's end of the proxy are the shipped ones; left out is the loopback between workers and
// proxy. If one message brought several workers their answers, their next requests go in one
// message, too. With REQUESTS at most so many go in one, as if workers were not at the same point.
// Prints one JSON line: the time from the first request to the last rank's release, and the
// ddprund's CPU time. That is process PID at PORT. All agents are there at the first request.
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/link/agent_link.h"
#include "agent/link/agent_runner.h"
#include "bench/store/bench_client.h"
#include "bench/store/storm.h"
#include "rendezvous/store_server/store_proxy.h"

using namespace ddprun;
using namespace ddprun::bench;
namespace action = membership::agent_action;
namespace event = membership::agent_event;

namespace {

constexpr std::chrono::seconds kPatience{30};

struct Job {
  int port = 0;
  int num_nodes = 0;
  int num_workers = 0;  // of each
  int per_message = 0;  // requests at most
  int num_ranks() const { return num_nodes * num_workers; }
};

class Node {
 public:
  // `ready`: it has said that its workers run, and the rendezvous has heard its proxy. `rank_done`:
  // for each of its ranks.
  Node(boost::asio::io_context& io, const Job& job, int index, const StormSteps& steps,
       std::function<void()> ready, std::function<void()> rank_done)
      : io_(io),
        per_message_(job.per_message),
        ready_(std::move(ready)),
        rank_done_(std::move(rank_done)),
        end_({[this](store::ConnectionId rank, std::string_view bytes) { replied(rank, bytes); },
              [](store::ConnectionId, const std::string& reason) { die(reason); }}),
        link_(io, {endpoint_of(job)}, [this](const auto& event) { runner_.handle(event); }),
        timer_(io),
        runner_(options_of(job, index),
                {[] { return Clock::now(); }, [this](const auto& todo) { perform(todo); },
                 [this](const auto at) { wake_at(at); },
                 [](const auto&, auto) { return std::uint16_t{1}; }}) {
    for (int i = 0; i < job.num_workers; ++i) {
      const bool is_last = index == job.num_nodes - 1 && i == job.num_workers - 1;
      ranks_.emplace_back(steps.of(is_last));
    }
    link_.on_binary([this](std::string_view message) { received(message); });
    runner_.handle(event::Start{});
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  void begin_storm() {
    for (store::ConnectionId rank = 0; rank < ranks_.size(); ++rank) ask(rank);
  }

 private:
  static Endpoint endpoint_of(const Job& job) {
    return {"127.0.0.1", static_cast<std::uint16_t>(job.port)};
  }

  static membership::AgentOptions options_of(const Job& job, int index) {
    membership::AgentOptions options;
    options.endpoints = {endpoint_of(job)};
    membership::Join& join = options.join;
    join.run_id = "storm";
    join.instance = std::to_string(index);
    join.host = "node" + join.instance;
    join.settings.min_nodes = join.settings.max_nodes = job.num_nodes;
    join.settings.store = membership::StoreMode::kProxy;
    join.timeouts.keep_alive = 4 * kPatience;  // no pings while the clock runs
    join.num_workers = job.num_workers;
    return options;
  }

  void wake_at(std::optional<Clock::time_point> at) {
    if (!at) {
      timer_.cancel();
      return;
    }
    timer_.expires_at(*at);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) runner_.handle(event::Timer{});
    });
  }

  void perform(const membership::AgentAction& todo) {
    if (const auto* connect = variants::get_if<action::Connect>(&todo)) {
      link_.connect(connect->timeout);
    } else if (const auto* send = variants::get_if<action::Send>(&todo)) {
      link_.send(send->envelope);
    } else if (const auto* keep = variants::get_if<action::SetKeepAlive>(&todo)) {
      link_.set_keep_alive(keep->timeout, keep->interval);
    } else if (const auto* start = variants::get_if<action::Spawn>(&todo)) {
      round_ = start->round.round;
      runner_.handle(event::WorkersRunning{round_});
      flush_later();  // after that was said
    } else if (const auto* exit = variants::get_if<action::Exit>(&todo)) {
      die("a node ends: " + exit->verdict.reason);
    }
  }

  // ---- the proxy ----

  void ask(store::ConnectionId rank) {
    for (const std::string& request : ranks_[rank].step().requests) {
      // The proxy answers it.
      if (static_cast<store::Opcode>(request.front()) == store::Opcode::kValidate) continue;
      end_.request(rank, request);
      if (++num_unsent_ == per_message_) flush();
    }
    flush_later();
  }

  void received(std::string_view message) {
    end_.received(store::decode_frame(message));
    if (ready_) std::exchange(ready_, nullptr)();
    flush_later();
  }

  void replied(store::ConnectionId rank, std::string_view bytes) {
    if (!ranks_[rank].received(bytes.size())) return;
    ranks_[rank].is_done() ? rank_done_() : ask(rank);
  }

  void flush_later() {
    if (std::exchange(flushing_, true)) return;
    boost::asio::post(io_, [this] {
      flushing_ = false;
      flush();
    });
  }

  void flush() {
    num_unsent_ = 0;
    while (auto frame = end_.next_frame(round_)) link_.send_binary(std::move(*frame));
  }

  boost::asio::io_context& io_;
  const int per_message_;
  std::function<void()> ready_;
  const std::function<void()> rank_done_;
  std::vector<StormRank> ranks_;
  std::uint64_t round_ = 0;
  bool flushing_ = false;
  int num_unsent_ = 0;  // requests
  store::ProxyEnd end_;
  membership::AgentLink link_;
  boost::asio::steady_timer timer_;
  membership::AgentRunner runner_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) die("usage: proxy_storm PORT PID NODES WORKERS [REQUESTS]");
  const int pid = std::atoi(argv[2]);
  const Job job{std::atoi(argv[1]), std::atoi(argv[3]), std::atoi(argv[4]),
                argc == 6 ? std::atoi(argv[5]) : std::numeric_limits<int>::max()};
  need_files(job.num_nodes + 16);
  const StormSteps steps(job.num_ranks());

  boost::asio::io_context io(1);
  std::vector<std::unique_ptr<Node>> nodes;
  std::optional<StormClock> clock;
  int num_ready = 0, num_done = 0;
  boost::asio::steady_timer patience(io);
  const auto wait_for = [&patience](const char* what) {
    patience.expires_after(kPatience);
    patience.async_wait([what](const boost::system::error_code& error) {
      if (!error) die(std::string(what) + ": not within 30 s");
    });
  };
  const auto ready = [&] {
    if (++num_ready < job.num_nodes) return;
    clock.emplace(pid);
    wait_for("all ranks are through");
    for (const auto& node : nodes) boost::asio::post(io, [&node] { node->begin_storm(); });
  };
  const auto rank_done = [&] {
    if (++num_done == job.num_ranks()) io.stop();
  };
  wait_for("all nodes have joined");
  for (int i = 0; i < job.num_nodes; ++i) {
    nodes.push_back(std::make_unique<Node>(io, job, i, steps, ready, rank_done));
  }
  io.run();
  clock->print(job.num_ranks());
  return 0;
}
