// SPDX-License-Identifier: Apache-2.0
// A real agent's socket in a thread of its own, for tests of a worker's messages.
#pragma once

#include <boost/asio/post.hpp>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent_socket.h"
#include "common/log_level.h"
#include "tests/support/io_thread.h"
#include "tests/support/temp_directory.h"

namespace ddprun::test {

class AgentThread : public IoThread {
 public:
  AgentThread(std::uint64_t round, int num_workers) {
    pages_.begin_round(round, num_workers);
    agent::AgentSocketEvents events;
    events.said = [this](int local_rank, const agent::WorkerLine& line) {
      if (variants::holds_alternative<agent::WaitForPlace>(line)) {
        pages_.begin_round(place_round_, pages_.num_workers());
        socket_->assign(local_rank, place_);
      }
      if (variants::holds_alternative<agent::AsksToRecover>(line)) go_on_if_all_ask();
      const std::lock_guard lock(mutex_);
      said_.emplace_back(local_rank, line);
      changed_.notify_all();
    };
    events.tell = [](LogLevel, const std::string&) {};
    socket_ = std::make_unique<agent::AgentSocket>(
        io_, pages_, agent::AgentSocket::new_directory(directory_.path()), std::move(events));
    path_ = socket_->path();
    start_thread();
  }
  ~AgentThread() {
    boost::asio::post(io_, [this] { socket_.reset(); });
    stop_thread();
  }

  const std::string& path() const { return path_; }

  agent::ProgressSample read(int local_rank) {
    return on_io_thread([this, local_rank] { return pages_.read(local_rank); });
  }
  void ask_for_records() {
    on_io_thread([this] { return socket_->ask_for_records(), 0; });
  }
  agent::ProgressPages& pages() { return pages_; }  // to be used on the io thread

  bool offers_recovery(int local_rank) {
    return on_io_thread([=, this] {
      socket_->read_pending();
      return socket_->offers_recovery(local_rank);
    });
  }

  // The place that a waiting worker (round 0) will get. To be called before the worker comes.
  void set_place(std::uint64_t round, std::vector<std::string> environment) {
    on_io_thread([&] {
      place_round_ = round;
      place_ = std::move(environment);
    });
  }

  // The workers that go on in the round, and their places. They get them once all of them have
  // asked.
  void set_places(std::uint64_t round, std::map<int, std::vector<std::string>> by_local_rank) {
    on_io_thread([&] {
      place_round_ = round;
      places_ = std::move(by_local_rank);
    });
  }

  // The workers' messages, once there are `count`; fewer after 10 s.
  std::vector<std::pair<int, agent::WorkerLine>> await_said(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return said_.size() >= count; });
    return said_;
  }

 private:
  void go_on_if_all_ask() {
    if (places_.empty()) return;
    for (const auto& [local_rank, place] : places_) {
      if (!socket_->asks_to_recover(local_rank)) return;
    }
    pages_.begin_round(place_round_, pages_.num_workers());
    for (const auto& [local_rank, place] : std::exchange(places_, {})) {
      socket_->go_on(local_rank, place);
    }
    socket_->end_old_round();
  }

  const TempDirectory directory_;
  agent::ProgressPages pages_;
  std::unique_ptr<agent::AgentSocket> socket_;
  std::string path_;
  std::uint64_t place_round_ = 0;  // io thread only, as are the next two
  std::vector<std::string> place_;
  std::map<int, std::vector<std::string>> places_;  // by local rank
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, agent::WorkerLine>> said_;  // Guarded by mutex_
};

}  // namespace ddprun::test
