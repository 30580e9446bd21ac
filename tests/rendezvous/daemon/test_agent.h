// SPDX-License-Identifier: Apache-2.0
// A node without processes: the shipped agent machine on the shipped link. The test gives the
// events of its workers. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/link/agent_link.h"
#include "agent/link/agent_machine.h"
#include "common/variant.h"

namespace ddprun::rendezvous::testing {

inline membership::Join make_join(const std::string& host, int num_nodes, int num_workers = 2) {
  membership::Join join;
  join.run_id = "job";
  join.instance = "instance-of-" + host;
  join.host = host;
  join.settings.min_nodes = join.settings.max_nodes = num_nodes;
  join.num_workers = num_workers;
  join.program = "train";
  return join;
}

class TestAgent {
 public:
  TestAgent(boost::asio::io_context& io, std::uint16_t port, const membership::Join& join)
      : TestAgent(io, options(port, join)) {}

  TestAgent(boost::asio::io_context& io, const membership::AgentOptions& options,
            const membership::LinkSecurity& security = {})
      : io_(io),
        timer_(io),
        machine_(options, [this](const auto&, auto) { return next_port_++; }),
        link_(std::make_unique<membership::AgentLink>(
            io, options.endpoints, [this](const membership::AgentEvent& event) { feed(event); },
            nullptr, security)) {
    feed(membership::agent_event::Start{});
  }

  static membership::AgentOptions options(std::uint16_t port, const membership::Join& join) {
    membership::AgentOptions options;
    options.join = join;
    options.endpoints = {Endpoint{.host = "127.0.0.1", .port = port}};
    options.connect_timeout = std::chrono::milliseconds(5000);
    return options;
  }

  void feed(const membership::AgentEvent& event) {
    for (auto& action : machine_.step(event, Clock::now())) perform(action);
    timer_.cancel();
    if (const auto deadline = machine_.next_deadline()) {
      timer_.expires_at(*deadline);
      timer_.async_wait([this](boost::system::error_code error) {
        if (!error) feed(membership::agent_event::Timer{});
      });
    }
  }

  // Loses the connection as a network would. The machine hears of it.
  void cut_link() {
    link_->close();
    feed(membership::agent_event::LinkDown{false, "cut by the test"});
  }

  // Ends like a process that is killed, without another word.
  void kill() {
    link_.reset();
    killed_ = true;
    timer_.cancel();
  }

  void worker_fails(int exit_code) {
    membership::agent_event::WorkerFailed failed;
    failed.round = rounds.back().round;
    failed.failure.global_rank = rounds.back().first_global_rank;
    failed.failure.exit_code = exit_code;
    failed.failure.last_lines = {"the last words"};
    feed(failed);
  }
  void workers_succeed() { feed(membership::agent_event::WorkersSucceeded{rounds.back().round}); }

  // Everything that was seen so far.
  std::vector<membership::StartRound> rounds;
  std::vector<std::string> told;
  std::optional<membership::agent_action::Exit> exit;
  bool workers_live = false;
  // The answer to a question about what a rank prints; null: none.
  std::function<membership::Tail(const membership::agent_action::ReadTail&)> prints;

 private:
  void perform(membership::AgentAction& action) {
    namespace act = membership::agent_action;
    namespace ev = membership::agent_event;
    if (killed_) return;
    if (auto* connect = variants::get_if<act::Connect>(&action)) {
      link_->connect(connect->timeout);
    } else if (variants::get_if<act::CloseLink>(&action) != nullptr) {
      link_->close();
    } else if (auto* send = variants::get_if<act::Send>(&action)) {
      link_->send(send->envelope);
    } else if (auto* keep_alive = variants::get_if<act::SetKeepAlive>(&action)) {
      link_->set_keep_alive(keep_alive->timeout, keep_alive->interval);
    } else if (auto* spawn = variants::get_if<act::Spawn>(&action)) {
      rounds.push_back(spawn->round);
      workers_live = true;
      post(ev::WorkersRunning{spawn->round.round});
    } else if (variants::get_if<act::StopWorkers>(&action) != nullptr) {
      workers_live = false;
      post(ev::WorkersGone{rounds.back().round});
    } else if (auto* wanted = variants::get_if<act::ReadTail>(&action)) {
      if (prints) post(ev::TailRead{prints(*wanted)});
    } else if (auto* tell = variants::get_if<act::Tell>(&action)) {
      told.push_back(tell->text);
    } else if (auto* leave = variants::get_if<act::Exit>(&action)) {
      exit = *leave;
    }
  }

  void post(const membership::AgentEvent& event) {
    boost::asio::post(io_, [this, event] {
      if (!killed_) feed(event);
    });
  }

  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  membership::AgentMachine machine_;
  std::unique_ptr<membership::AgentLink> link_;
  std::uint16_t next_port_ = 10'000;
  bool killed_ = false;
};

// Runs `io` until `done()` or the deadline. Returns whether it was done.
template <typename Done>
bool run_until(boost::asio::io_context& io, Done done,
               std::chrono::milliseconds timeout = std::chrono::milliseconds(10'000)) {
  const Deadline deadline = Deadline::after(timeout);
  while (!done() && !deadline.expired()) {
    io.restart();
    io.run_one_for(std::chrono::milliseconds(20));
  }
  return done();
}

}  // namespace ddprun::rendezvous::testing
