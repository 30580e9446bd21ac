// SPDX-License-Identifier: Apache-2.0
// Asks agents for the stacks of a job's ranks, all at the same time (docs/stack.md). A question
// ends when all have answered, or after a time limit. There is one at a time for each job. I/O
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/daemon/http_session.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::rendezvous {

class StackPages : public std::enable_shared_from_this<StackPages> {
 public:
  struct Options {
    // JobTable's functions. They may not call this object.
    std::function<std::vector<membership::TailRoute>(const std::string& run_id,
                                                     const membership::TailQuestion&)>
        ask;
    std::function<std::optional<int>(const std::string& run_id)> num_ranks;
    std::chrono::milliseconds limit{2'500};  // for all answers to a question
    std::size_t most = 16;                   // simultaneous questions, about different jobs
    // The limit of all lines in an answer; the stacks of further ranks are left out.
    std::size_t text_bytes = std::size_t{24} << 20;
  };

  StackPages(boost::asio::io_context& io, Options options);

  // Handles GET kStacksPath. Calls `answer` once, at once or later, unless stop() comes first.
  void ask(std::string_view target, HttpSession::Answer answer);
  // Takes an agent's answer. Ignores one without a question, from another agent, or given before.
  void said(membership::ConnectionId connection, const membership::Tail& tail);
  // Drops the open questions.
  void stop();

 private:
  static std::string too_many(int num_ranks);

  struct Rank {
    int global_rank = 0;
    std::string host;
    std::optional<membership::ConnectionId> asked_of;  // set: its answer is awaited
    std::vector<std::string> lines;
    std::string note;
  };
  struct Waiting {
    std::string run_id;
    int num_ranks = 0;  // the job's
    HttpSession::Answer answer;
    std::vector<Rank> ranks;  // in the question's order
    std::size_t num_due = 0;
    std::size_t num_bytes = 0;  // in all lines so far
    std::unique_ptr<boost::asio::steady_timer> timer;
  };

  std::string problem_of(std::string_view target, Waiting& waiting) const;
  void finish(std::uint64_t first_request);

  boost::asio::io_context& io_;
  const Options options_;
  std::map<std::uint64_t, Waiting> waiting_;  // by the first rank's request
  // Far from the numbers of Tails, whose answers come the same way.
  std::uint64_t next_request_ = std::uint64_t{1} << 40;
};

}  // namespace ddprun::rendezvous
