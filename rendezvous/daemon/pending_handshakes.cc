// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/pending_handshakes.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <limits>
#include <vector>

#include "common/endpoint.h"
#include "common/log.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::rendezvous {

// If many connections of an address wait, its turns are shorter, so that all of them have theirs in
// this time. It is less than the time that a newcomer has.
constexpr std::chrono::milliseconds kAllTurns{10'000};

Newcomer::Newcomer(Newcomer&& other) noexcept
    : all_(std::move(other.all_)), address_(std::move(other.address_)), number_(other.number_) {}

Newcomer& Newcomer::operator=(Newcomer&& other) noexcept {
  std::swap(all_, other.all_);
  std::swap(address_, other.address_);
  std::swap(number_, other.number_);
  return *this;
}

Newcomer::~Newcomer() {
  if (all_) all_->leave(number_);
}

void Newcomer::ended_by(End end) {
  if (!all_) return;
  const auto place = all_->all_.find(number_);
  if (place != all_->all_.end()) place->second.end = std::move(end);
}

void Newcomer::pin() {
  if (!all_ || !all_->all_.contains(number_)) return;
  all_->change(address_, [this](PendingHandshakes::Group& group) { group.members.erase(number_); });
}

void Newcomer::when_left(std::function<void()> left) {
  if (!all_) return;
  const auto place = all_->all_.find(number_);
  if (place != all_->all_.end()) place->second.left = std::move(left);
}

PendingHandshakes::PendingHandshakes(boost::asio::io_context& io, Options options)
    : options_(options), timer_(io) {}

std::optional<Newcomer> PendingHandshakes::admit(const SocketAddress& peer, UniqueFd& connection) {
  if (!lower(connection)) return std::nullopt;
  Newcomer newcomer;
  newcomer.all_ = shared_from_this();
  newcomer.number_ = next_number_++;
  newcomer.address_ = address_of(peer);
  Place& place = all_[newcomer.number_];
  place.address = newcomer.address_;
  place.since = Clock::now();
  change(newcomer.address_, [&](Group& group) { group.members.insert(newcomer.number_); });
  const Group& group = groups_[newcomer.address_];
  if (group.members.size() > options_.max_per_address) {
    say_too_many(concat("more than ", options_.max_per_address, " connections of ",
                        newcomer.address_, " have not said who they are"));
    end(*group.members.begin(), "others of its address came after it");
  }
  if (all_.size() > options_.max) {
    say_too_many(concat("more than ", options_.max, " connections have not said who they are"));
    const std::uint64_t first = next_to_go();
    if (first == newcomer.number_) return std::nullopt;  // all others are pinned
    end(first, concat(options_.max, " came after it"));
  }
  arm_timer();
  return newcomer;
}

// Closes other connections until this one's descriptor is low enough. A descriptor gets the lowest
// free number, so a high number means that nearly all are in use.
bool PendingHandshakes::lower(UniqueFd& connection) {
  while (connection.get() >= options_.max_descriptor) {
    if (by_rank_.empty()) return false;
    say_too_many("nearly all descriptors are in use (raise the limit of open files: ulimit -Hn)");
    end(next_to_go(), "descriptors are scarce, and others came after it");
    const int freed = ::fcntl(connection.get(), F_DUPFD_CLOEXEC, 0);
    if (freed >= 0) connection.reset(freed);
  }
  return true;
}

void PendingHandshakes::stop() {
  timer_.cancel();
  std::vector<Place> places;  // destroying one place may end another
  for (auto& [number, place] : all_) {
    Place& cut = places.emplace_back();
    std::swap(cut.end, place.end);
    std::swap(cut.left, place.left);
  }
}

std::string PendingHandshakes::address_of(const SocketAddress& peer) {
  return network_of(peer.host_text());
}

PendingHandshakes::Rank PendingHandshakes::rank(const Group& group) {
  return {group.members.size(), std::numeric_limits<std::uint64_t>::max() - *group.members.begin()};
}

void PendingHandshakes::change(const std::string& address,
                               const std::function<void(Group&)>& edit) {
  Group& group = groups_[address];
  if (!group.members.empty()) by_rank_.erase(rank(group));
  edit(group);
  if (group.members.empty()) {
    groups_.erase(address);
  } else {
    by_rank_[rank(group)] = address;
  }
}

std::uint64_t PendingHandshakes::next_to_go() const {
  if (by_rank_.empty()) return 0;
  return std::numeric_limits<std::uint64_t>::max() - by_rank_.rbegin()->first.second;
}

void PendingHandshakes::leave(std::uint64_t number) {
  const auto place = all_.extract(number);
  if (place.empty()) return;
  change(place.mapped().address, [number](Group& group) { group.members.erase(number); });
  if (place.mapped().left) place.mapped().left();
}

void PendingHandshakes::end(std::uint64_t number, const std::string& reason) {
  const auto found = all_.find(number);
  if (found == all_.end()) return;
  const Newcomer::End end = std::move(found->second.end);
  leave(number);
  if (end) end(reason);
}

void PendingHandshakes::say_too_many(const std::string& what) {
  if (std::exchange(said_too_many_, true)) return;
  log_warning(what, "; closing the oldest ones of the address that has the most (said once)");
}

// Waits for the oldest one's time limit. If that one has left by then, the wait was in vain.
void PendingHandshakes::arm_timer() {
  if (all_.empty() || std::exchange(timing_, true)) return;
  run_at(timer_, all_.begin()->second.since + options_.time_limit, [self = shared_from_this()] {
    self->timing_ = false;
    const Clock::time_point late = Clock::now() - self->options_.time_limit;
    while (!self->all_.empty() && self->all_.begin()->second.since <= late) {
      self->end(self->all_.begin()->first,
                concat("it came ", self->options_.time_limit.count(), " ms ago"));
    }
    self->arm_timer();
  });
}

TlsAdmission::TlsAdmission(boost::asio::io_context& io,
                           std::shared_ptr<PendingHandshakes> newcomers, Options options)
    : options_(std::move(options)), io_(io), newcomers_(std::move(newcomers)), timer_(io) {}

void TlsAdmission::take(UniqueFd connection, Newcomer newcomer) {
  const std::string name = newcomer.address();
  Address& address = addresses_[name];
  if (address.waiting.empty()) (address.num_under_way == 0 ? fresh_ : in_turn_).push_back(name);
  const std::uint64_t number = next_number_++;
  newcomer.ended_by(
      [self = shared_from_this(), name, number](const std::string&) { self->drop(name, number); });
  address.waiting[number] = {std::move(connection), std::move(newcomer)};
  begin_more();
}

void TlsAdmission::drop(const std::string& name, std::uint64_t number) {
  const auto address = addresses_.find(name);
  if (address == addresses_.end() || address->second.waiting.erase(number) == 0) return;
  if (!address->second.waiting.empty()) return;
  std::erase(fresh_, name);
  std::erase(in_turn_, name);
  if (address->second.num_under_way == 0) addresses_.erase(address);
}

std::optional<TlsAdmission::Waiting> TlsAdmission::next_of(std::deque<std::string>& names) {
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

void TlsAdmission::begin_more() {
  while (under_way_.size() < options_.max_under_way && options_.begin) {
    auto waiting = next_of(fresh_);
    if (!waiting) waiting = next_of(in_turn_);
    if (!waiting) break;
    Newcomer& newcomer = waiting->newcomer;
    const std::uint64_t number = next_number_++;
    under_way_[number] = {newcomer.address(), Clock::now(), newcomer.number()};
    ++addresses_[newcomer.address()].num_under_way;
    newcomer.pin();  // else a flood would get a handshake for each connection
    newcomer.when_left([self = shared_from_this(), number] { self->over(number); });
    options_.begin(std::move(waiting->connection), std::move(newcomer));
  }
  make_way();
}

// Called while the connection's owner handles it, so further sessions begin later.
void TlsAdmission::over(std::uint64_t number) {
  const auto ended = under_way_.extract(number);
  if (ended.empty()) return;
  const auto address = addresses_.find(ended.mapped().address);
  if (--address->second.num_under_way == 0 && address->second.waiting.empty()) {
    addresses_.erase(address);
  }
  if (fresh_.empty() && in_turn_.empty()) return;
  boost::asio::post(io_, [self = shared_from_this()] { self->begin_more(); });
}

// Returns the oldest session of the address that has the most.
const TlsAdmission::UnderWay& TlsAdmission::first_to_go() const {
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

Clock::time_point TlsAdmission::time_to_go(const UnderWay& first) const {
  const Address& address = addresses_.at(first.address);
  const std::chrono::milliseconds brief = std::min(options_.brief_turn, options_.turn);
  if (!fresh_.empty() && address.num_under_way > 1) return first.since + brief;
  const auto num_rounds =
      static_cast<std::int64_t>(address.waiting.size() / options_.max_per_address + 1);
  return first.since + std::clamp(kAllTurns / num_rounds, brief, options_.turn);
}

// Ends a session whose turn is over while others wait: a silent connection would block them.
void TlsAdmission::make_way() {
  if ((fresh_.empty() && in_turn_.empty()) || under_way_.empty()) {
    timer_.cancel();
    return;
  }
  run_at(timer_, time_to_go(first_to_go()), [self = shared_from_this()] {
    if ((self->fresh_.empty() && self->in_turn_.empty())) return;
    if (self->under_way_.empty()) return;
    const UnderWay first = self->first_to_go();
    if (self->time_to_go(first) <= Clock::now()) {
      log_about_peer(LogLevel::kWarning, "closed a connection of ", first.address,
                     ": over TLS it did not say who it is in its turn, and others wait");
      self->newcomers_->end(first.newcomer, "others wait for their turn");
    }
    self->make_way();
  });
}

void TlsAdmission::stop() {
  options_.begin = nullptr;
  const auto cut = std::exchange(addresses_, {});
  fresh_.clear();
  in_turn_.clear();
  under_way_.clear();
  timer_.cancel();
}

}  // namespace ddprun::rendezvous
