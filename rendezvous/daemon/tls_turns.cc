// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/tls_turns.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/log.h"

namespace ddprun::rendezvous {

TlsTurns::TlsTurns(boost::asio::io_context& io, std::shared_ptr<Newcomers> newcomers,
                   Options options)
    : options_(std::move(options)), io_(io), newcomers_(std::move(newcomers)), timer_(io) {}

void TlsTurns::take(UniqueFd connection, Newcomer newcomer) {
  const std::string name = newcomer.address();
  Address& address = addresses_[name];
  if (address.waiting.empty()) (address.num_under_way == 0 ? fresh_ : in_turn_).push_back(name);
  const std::uint64_t number = next_number_++;
  newcomer.ended_by(
      [self = shared_from_this(), name, number](const std::string&) { self->drop(name, number); });
  address.waiting[number] = {std::move(connection), std::move(newcomer)};
  begin_more();
}

void TlsTurns::drop(const std::string& name, std::uint64_t number) {
  const auto address = addresses_.find(name);
  if (address == addresses_.end() || address->second.waiting.erase(number) == 0) return;
  if (!address->second.waiting.empty()) return;
  std::erase(fresh_, name);
  std::erase(in_turn_, name);
  if (address->second.num_under_way == 0) addresses_.erase(address);
}

std::optional<TlsTurns::Waiting> TlsTurns::next() {
  auto waiting = next_of(fresh_);
  return waiting ? std::move(waiting) : next_of(in_turn_);
}

std::optional<TlsTurns::Waiting> TlsTurns::next_of(std::deque<std::string>& names) {
  for (std::size_t i = names.size(); i > 0; --i) {
    const std::string name = std::move(names.front());
    names.pop_front();
    Address& address = addresses_[name];
    if (address.num_under_way >= options_.max_per_address) {
      names.push_back(name);
      continue;
    }
    Waiting waiting = std::move(address.waiting.extract(address.waiting.begin()).mapped());
    waiting.newcomer.ended_by(nullptr);
    if (!address.waiting.empty()) in_turn_.push_back(name);
    return waiting;
  }
  return std::nullopt;
}

void TlsTurns::begin_more() {
  while (under_way_.size() < options_.max_under_way && options_.begin) {
    auto waiting = next();
    if (!waiting) break;
    Newcomer& newcomer = waiting->newcomer;
    const std::uint64_t number = next_number_++;
    under_way_[number] = {newcomer.address(), Clock::now(), newcomer.number()};
    ++addresses_[newcomer.address()].num_under_way;
    newcomer.pin();  // or a flood would get as many handshakes as it has connections
    newcomer.when_left([self = shared_from_this(), number] { self->over(number); });
    options_.begin(std::move(waiting->connection), std::move(newcomer));
  }
  make_way();
}

// Somewhere within whatever made it known, or ended it: what follows comes later.
void TlsTurns::over(std::uint64_t number) {
  const auto ended = under_way_.extract(number);
  if (ended.empty()) return;
  const auto address = addresses_.find(ended.mapped().address);
  if (--address->second.num_under_way == 0 && address->second.waiting.empty()) {
    addresses_.erase(address);
  }
  if (fresh_.empty() && in_turn_.empty()) return;
  boost::asio::post(io_, [self = shared_from_this()] { self->begin_more(); });
}

// The oldest one of the address that has the most.
const TlsTurns::UnderWay& TlsTurns::first_to_go() const {
  const UnderWay* first = &under_way_.begin()->second;
  std::size_t most = addresses_.at(first->address).num_under_way;
  for (const auto& [number, candidate] : under_way_) {
    const std::size_t its = addresses_.at(candidate.address).num_under_way;
    if (its <= most) continue;
    first = &candidate;
    most = its;
  }
  return *first;
}

Clock::time_point TlsTurns::time_to_go(const UnderWay& first) const {
  const bool is_brief = !fresh_.empty() && addresses_.at(first.address).num_under_way > 1;
  return first.since + (is_brief ? std::min(options_.brief_turn, options_.turn) : options_.turn);
}

// Who says nothing would keep others out.
void TlsTurns::make_way() {
  if ((fresh_.empty() && in_turn_.empty()) || under_way_.empty()) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(time_to_go(first_to_go()));
  timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error || (self->fresh_.empty() && self->in_turn_.empty())) return;
    if (self->under_way_.empty()) return;
    const UnderWay first = self->first_to_go();
    if (self->time_to_go(first) <= Clock::now()) {
      log_warning("closed a connection of ", first.address,
                  ": over TLS it did not say who it is in its turn, and others wait");
      self->newcomers_->end(first.newcomer, "others wait for their turn");
    }
    self->make_way();
  });
}

void TlsTurns::stop() {
  options_.begin = nullptr;
  const auto cut = std::exchange(addresses_, {});
  fresh_.clear();
  in_turn_.clear();
  under_way_.clear();
  timer_.cancel();
}

}  // namespace ddprun::rendezvous
