// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/gang_pages.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/peer_user.h"
#include "common/text.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;
using gangs::GangQueue;
using Verdict = GangQueue::Verdict;

namespace {

constexpr std::chrono::milliseconds kNodePatience{1'000};  // beyond the node's own waiting time

HttpSession::Page refusal_page(unsigned status, const std::string& why) {
  return {"text/plain", why + "\n", status};
}

}  // namespace

std::shared_ptr<GangPages> GangPages::make(asio::io_context& io, std::shared_ptr<GangHub> hub) {
  std::shared_ptr<GangPages> pages(new GangPages(io, std::move(hub)));
  GangHub::Listener listener;
  listener.changed = [weak = std::weak_ptr(pages)](const std::string& gang) {
    if (const auto self = weak.lock()) self->changed(gang);
  };
  listener.output = [weak = std::weak_ptr(pages)](gangs::ConnectionId connection,
                                                  const gangs::OutputAnswer& answer) {
    if (const auto self = weak.lock()) self->answered(connection, answer);
  };
  pages->hub_->listen(std::move(listener));
  return pages;
}

GangPages::GangPages(asio::io_context& io, std::shared_ptr<GangHub> hub)
    : io_(io), hub_(std::move(hub)), all_(io, [this](const SharedPage::Made& made) {
        const Clock::time_point begun = Clock::now();
        const std::string body = gangs::gangs_page(hub_->queue());
        made(body, Clock::now() - begun);
      }) {}

void GangPages::ask(const HttpSession::Request& request, HttpSession::Answer answer) {
  if (!hub_->refusal().empty()) return answer(refusal_page(403, hub_->refusal()));
  const auto target = gangs::parse_gang_target(request.target);
  if (!target) return answer(refusal_page(404, concat("the queue has no such page")));
  const bool is_all = target->id.empty();
  const bool is_get = request.method == "GET";
  if (is_all && request.method == "POST") return submit(request, std::move(answer));
  const bool is_delete = !is_all && !target->is_logs && request.method == "DELETE";
  if (!is_get && !is_delete) {
    return answer(refusal_page(405, concat(request.method, " is not known here")));
  }
  if (is_all) {
    // State that isn't kept yet must not be shown.
    return hub_->when_kept([self = shared_from_this(), answer = std::move(answer)] {
      self->all_.ask([answer](const std::string& body) {
        answer(HttpSession::Page{"application/json", body});
      });
    });
  }
  const GangQueue::Gang* gang = hub_->queue().find(target->id);
  if (gang == nullptr) return answer(refusal_page(404, gangs::no_gang_text(target->id)));
  if (is_delete) return cancel(*gang, request, std::move(answer));
  if (target->is_logs) {
    return logs(*target, *gang, loopback_client(request.socket), std::move(answer));
  }
  hub_->when_kept([self = shared_from_this(), id = target->id, answer = std::move(answer)] {
    answer(self->told(id, 200));
  });
}

HttpSession::Page GangPages::told(const std::string& id, unsigned status) const {
  const GangQueue::Gang* gang = hub_->queue().find(id);
  if (gang == nullptr) return refusal_page(404, gangs::no_gang_text(id));
  return {"application/json", gangs::gang_page(hub_->queue(), *gang), status};
}

void GangPages::submit(const HttpSession::Request& request, HttpSession::Answer answer) {
  gangs::GangSpec spec;
  try {
    spec = gangs::parse_gang(request.body);
  } catch (const Error& error) {
    return answer(refusal_page(400, concat("it is no gang: ", error.what())));
  }
  const auto owner = hub_->owner_of(spec.user, spec.uid, request.socket);
  if (!owner) {
    return answer(refusal_page(
        403,
        concat("you are not ", spec.user, " (uid ", spec.uid,
               "), and without a token nobody submits for somebody else", user_namespace_hint())));
  }
  const std::string id = spec.id, user = spec.user;
  const Verdict verdict = hub_->submit(std::move(spec), *owner);
  switch (verdict) {
    case Verdict::kOther:
      return answer(refusal_page(409, concat("there is another job nodes:", id)));
    case Verdict::kFull:
      return answer(refusal_page(429, "the queue is full: cancel gangs, or wait"));
    case Verdict::kFullOfOwner:
      return answer(refusal_page(429, concat("the gangs of ", user,
                                             " that have not ended fill their half of the queue: "
                                             "cancel some, or wait")));
    case Verdict::kTaken:
    case Verdict::kKnown:
      const unsigned status = verdict == Verdict::kTaken ? 201 : 200;
      hub_->when_kept([self = shared_from_this(), id, status, answer = std::move(answer)] {
        answer(self->told(id, status));
      });
  }
}

void GangPages::cancel(const GangQueue::Gang& gang, const HttpSession::Request& request,
                       HttpSession::Answer answer) {
  const std::size_t mark = gang.state.owner.find('#');
  if (mark != std::string::npos) {  // the kernel identified the owner
    const std::int64_t uid = std::stoll(gang.state.owner.substr(mark + 1));
    if (!hub_->owner_of(gang.state.user, uid, request.socket)) {
      return answer(refusal_page(403, concat("job nodes:", gang.state.id, " is ", gang.state.user,
                                             "'s: only its user can cancel it")));
    }
  }
  const std::string id = gang.state.id;
  hub_->cancel(id, gang.state.user);
  hub_->when_kept(
      [self = shared_from_this(), id, answer = std::move(answer)] { answer(self->told(id, 200)); });
}

// ---- jobs' output ----

void GangPages::logs(const gangs::GangTarget& target, const GangQueue::Gang& gang,
                     std::optional<uid_t> user, HttpSession::Answer answer) {
  const auto num_theirs = std::ranges::count_if(
      waiting_, [&](const auto& each) { return user && each.second.user == user; });
  if (waiting_.size() >= kMaxWaiting || static_cast<std::size_t>(num_theirs) >= kMaxWaitingOfUser) {
    return answer(refusal_page(429, "too many wait for output: try again"));
  }
  const std::uint64_t number = next_number_++;
  Waiting& waiting = waiting_[number];
  waiting.gang = gang.state.id;
  waiting.user = user;
  waiting.answer = std::move(answer);
  // A reader that doesn't know the gang's present state gets it at once.
  const bool has_news = target.seen != gang.changes;
  const std::int64_t wait_ms = has_news ? 0 : target.wait_ms;
  waiting.is_patient = wait_ms > 0;
  waiting.seen = gang.changes;
  for (const gangs::OutputPlace& place : target.from) {
    ask_node(waiting, number, place, gang, wait_ms);
  }
  if (waiting.asked.empty() && !waiting.is_patient) return finish(number);
  const auto limit = std::chrono::milliseconds(wait_ms) +
                     (waiting.asked.empty() ? std::chrono::milliseconds(0) : kNodePatience);
  waiting.timer = std::make_unique<asio::steady_timer>(io_, limit);
  waiting.timer->async_wait([weak = weak_from_this(), number](boost::system::error_code error) {
    const auto self = weak.lock();
    if (!error && self) self->finish(number);
  });
}

void GangPages::ask_node(Waiting& waiting, std::uint64_t number, const gangs::OutputPlace& place,
                         const GangQueue::Gang& gang, std::int64_t wait_ms) {
  gangs::NodeOutput output;
  output.at = place;
  output.out_next = place.out;
  output.err_next = place.err;
  gangs::OutputRequest request;
  request.request = next_request_++;
  request.gang = gang.state.id;
  request.out = place.out;
  request.err = place.err;
  request.most = gangs::kMaxOutputBytes;
  request.wait_ms = wait_ms;
  const std::uint64_t id = request.request;
  if (const auto asked = hub_->ask(place.node, gang.state.owner, std::move(request))) {
    waiting.asked[id] = waiting.output.size();
    waits_for_[id] = {number, *asked};
  } else {
    output.reason = concat("node ", place.node, " is not connected");
  }
  waiting.output.push_back(std::move(output));
}

void GangPages::answered(gangs::ConnectionId connection, const gangs::OutputAnswer& answer) {
  const auto whose = waits_for_.find(answer.request);
  // The answer is late, or from a node that wasn't asked.
  if (whose == waits_for_.end() || whose->second.asked_of != connection) return;
  const std::uint64_t number = whose->second.number;
  waits_for_.erase(whose);
  Waiting& waiting = waiting_.at(number);
  const auto asked = waiting.asked.find(answer.request);
  gangs::NodeOutput& output = waiting.output[asked->second];
  waiting.asked.erase(asked);
  output.out = answer.out;
  output.err = answer.err;
  output.out_next = answer.out_next;
  output.err_next = answer.err_next;
  output.reason = one_line(answer.reason.substr(0, gangs::kMaxReasonBytes));
  const bool has_more = !output.out.empty() || !output.err.empty();
  if (waiting.asked.empty() || (waiting.is_patient && has_more)) finish(number);
}

void GangPages::changed(const std::string& gang) {
  std::vector<std::uint64_t> theirs;
  const GangQueue::Gang* now = hub_->queue().find(gang);
  for (const auto& [number, waiting] : waiting_) {
    // A change is reported once it is kept, so a request that came meanwhile knows it already.
    const bool is_news = now == nullptr || now->changes != waiting.seen;
    if (waiting.gang == gang && waiting.is_patient && is_news) theirs.push_back(number);
  }
  for (const std::uint64_t number : theirs) finish(number);
}

void GangPages::finish(std::uint64_t number) {
  const auto found = waiting_.extract(number);
  if (found.empty()) return;
  Waiting& waiting = found.mapped();
  for (const auto& [request, index] : waiting.asked) waits_for_.erase(request);
  const GangQueue::Gang* gang = hub_->queue().find(waiting.gang);
  if (gang == nullptr) {
    return waiting.answer(refusal_page(404, gangs::no_gang_text(waiting.gang)));
  }
  waiting.answer(HttpSession::Page{"application/json",
                                   gangs::logs_page(hub_->queue(), *gang, waiting.output)});
}

void GangPages::stop() {
  hub_->listen({});
  waiting_.clear();
  waits_for_.clear();
}

}  // namespace ddprun::rendezvous
