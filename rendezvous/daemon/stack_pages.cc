// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/stack_pages.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <numeric>
#include <utility>

#include "common/json.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/messages/stacks_target.h"

namespace ddprun::rendezvous {
namespace {

HttpSession::Page json_page(const boost::json::object& object) {
  return {"application/json", written_json(object) + "\n"};
}

HttpSession::Page busy_page(const std::string& why) { return {"text/plain", why + "\n", 503}; }

}  // namespace

StackPages::StackPages(boost::asio::io_context& io, Options options)
    : io_(io), options_(std::move(options)) {}

std::string StackPages::too_many(int num_ranks) {
  return concat("ask for at most ", membership::kMostStacks, " of its ", num_ranks, " ranks, as 0-",
                membership::kMostStacks - 1);
}

// Returns a problem of the request. Empty: none; then all of `waiting` but the answer is set.
std::string StackPages::problem_of(std::string_view target, Waiting& waiting) const {
  auto asked = membership::parse_stacks_target(target);
  if (!asked) return "the question is none: it is ?job=ID, and &ranks=0-3,5 for some of its ranks";
  const auto num_ranks = options_.num_ranks(asked->run_id);
  if (!num_ranks)
    return concat("no job \"", one_line(asked->run_id), "\" runs here: see ddprunctl jobs");
  if (*num_ranks == 0) return concat("no round of ", one_line(asked->run_id), " has begun yet");
  if (asked->ranks.empty() && *num_ranks > membership::kMostStacks) return too_many(*num_ranks);
  std::vector<int> ranks(static_cast<std::size_t>(*num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (!asked->ranks.empty()) {
    auto some = membership::parse_rank_list(asked->ranks, *num_ranks);
    if (!some) {
      return concat("\"", one_line(asked->ranks), "\" are no ranks of ", one_line(asked->run_id),
                    ", which has ",
                    *num_ranks == 1 ? "rank 0 alone" : concat("0 to ", *num_ranks - 1));
    }
    ranks = std::move(*some);
    if (std::ssize(ranks) > membership::kMostStacks) return too_many(*num_ranks);
  }
  for (const int rank : ranks) waiting.ranks.push_back({rank, {}, {}, {}, {}});
  waiting.run_id = std::move(asked->run_id);
  waiting.num_ranks = *num_ranks;
  return {};
}

void StackPages::ask(std::string_view target, HttpSession::Answer answer) {
  Waiting waiting;
  const std::string problem = problem_of(target, waiting);
  constexpr std::size_t kMostSaid = 512;  // a name in it may be long, or not UTF-8
  if (!problem.empty()) {
    return answer(json_page({{"problem", clean_utf8(problem, kMostSaid)}}));
  }
  const auto is_same = [&](const auto& other) { return other.second.run_id == waiting.run_id; };
  if (std::ranges::any_of(waiting_, is_same)) {
    return answer(busy_page("somebody else asks for the stacks of this job: ask again"));
  }
  if (waiting_.size() >= options_.most) {
    return answer(busy_page(
        concat("the stacks of ", waiting_.size(), " jobs are being asked for: ask again")));
  }
  membership::TailQuestion question;
  question.kind = membership::TailKind::kStack;
  question.first_request = next_request_;
  for (const Rank& rank : waiting.ranks) question.global_ranks.push_back(rank.global_rank);
  next_request_ += waiting.ranks.size();
  const auto routes = options_.ask(waiting.run_id, question);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    Rank& rank = waiting.ranks[i];
    rank.host = routes[i].host;
    rank.note = routes[i].why_not;
    rank.asked_of = routes[i].connection;
    waiting.num_due += rank.asked_of ? 1 : 0;
  }
  waiting.answer = std::move(answer);
  waiting.timer = std::make_unique<boost::asio::steady_timer>(io_);
  const std::uint64_t number = question.first_request;
  Waiting& placed = waiting_.emplace(number, std::move(waiting)).first->second;
  if (placed.num_due == 0) return finish(number);
  run_after(*placed.timer, options_.limit, [weak = weak_from_this(), number] {
    if (const auto self = weak.lock()) self->finish(number);
  });
}

void StackPages::said(membership::ConnectionId connection, const membership::Tail& tail) {
  auto found = waiting_.upper_bound(tail.request);
  if (found == waiting_.begin()) return;
  --found;
  auto& [first_request, waiting] = *found;
  const std::uint64_t index = tail.request - first_request;
  if (index >= waiting.ranks.size() || waiting.ranks[index].asked_of != connection) return;
  Rank& rank = waiting.ranks[index];
  rank.asked_of.reset();
  rank.note = tail.note;
  for (const std::string& line : tail.lines) waiting.num_bytes += line.size();
  if (waiting.num_bytes <= options_.text_bytes) {
    rank.lines = tail.lines;
  } else {
    rank.note = "left out, as the answer is too long: ask for some of the ranks";
  }
  if (--waiting.num_due == 0) finish(first_request);
}

void StackPages::finish(std::uint64_t first_request) {
  auto taken = waiting_.extract(first_request);
  if (taken.empty()) return;
  Waiting& waiting = taken.mapped();
  boost::json::array ranks;
  for (Rank& rank : waiting.ranks) {
    if (rank.asked_of) {
      rank.note = concat("its agent has not answered for ", options_.limit.count() / 1000.0, " s");
    }
    ranks.push_back({{"rank", rank.global_rank},
                     {"host", rank.host},
                     {"lines", boost::json::array(rank.lines.begin(), rank.lines.end())},
                     {"note", rank.note}});
  }
  waiting.answer(json_page(
      {{"run_id", waiting.run_id}, {"num_ranks", waiting.num_ranks}, {"ranks", std::move(ranks)}}));
}

void StackPages::stop() { waiting_.clear(); }

}  // namespace ddprun::rendezvous
