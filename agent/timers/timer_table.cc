// SPDX-License-Identifier: Apache-2.0
#include "agent/timers/timer_table.h"

#include <boost/json/value.hpp>
#include <cmath>

#include "common/json.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMostPid = 1 << 22;  // PID_MAX_LIMIT
constexpr std::int64_t kMostSignal = 64;

std::optional<std::int64_t> integer(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_int64()) return std::nullopt;
  return value->get_int64();
}

// Python writes 5.0 and 5.
std::optional<double> real(const json::object& object, std::string_view name) {
  if (const auto whole = integer(object, name)) return static_cast<double>(*whole);
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_double() || !std::isfinite(value->get_double())) {
    return std::nullopt;
  }
  return value->get_double();
}

}  // namespace

std::optional<TimerRequest> parse_timer_request(std::string_view line) {
  const auto parsed = parse_object(line);
  if (!parsed) return std::nullopt;
  const json::object& object = *parsed;
  const auto pid = integer(object, "pid");
  const auto expires = real(object, "expiration_time");
  const auto signal = integer(object, "signal");
  const json::value* scope = object.if_contains("scope_id");
  if (!pid || *pid < 1 || *pid > kMostPid || !expires || !signal || *signal > kMostSignal ||
      scope == nullptr || !scope->is_string() ||
      scope->get_string().size() > TimerTable::kMostScopeBytes) {
    return std::nullopt;
  }
  TimerRequest request;
  request.pid = static_cast<pid_t>(*pid);
  request.scope = std::string(scope->get_string());
  request.expires = *expires;
  request.signal = *signal > 0 ? static_cast<int>(*signal) : 0;
  return request;
}

bool TimerTable::take(const TimerRequest& request, std::uint64_t begun) {
  const Key key{request.pid, request.scope};
  if (const auto found = timers_.find(key); found != timers_.end()) forget(found);
  if (request.expires < 0) return true;
  if (timers_.size() == kMostTimers) return false;
  timers_[key] = {request.expires, request.signal, begun};
  by_time_.emplace(request.expires, key);
  return true;
}

void TimerTable::forget(std::map<Key, Timer>::iterator timer) {
  by_time_.erase({timer->second.expires, timer->first});
  timers_.erase(timer);
}

std::optional<double> TimerTable::next() const {
  if (by_time_.empty()) return std::nullopt;
  return by_time_.begin()->first;
}

std::vector<TimerTable::Expired> TimerTable::expire(double now) {
  std::vector<Expired> all;
  while (!by_time_.empty() && by_time_.begin()->first <= now) {
    const pid_t pid = by_time_.begin()->second.first;
    Expired expired{pid, 0, by_time_.begin()->second.second, 0};
    const Timer* first = nullptr;
    const auto of_process = timers_.lower_bound({pid, ""});
    for (auto each = of_process; each != timers_.end() && each->first.first == pid; ++each) {
      const Timer& timer = each->second;
      expired.begun = timer.begun;
      const bool counts = timer.expires <= now && timer.signal > 0;
      if (!counts || (first != nullptr && first->expires <= timer.expires)) continue;
      first = &timer;
      expired.scope = each->first.second;
      expired.signal = timer.signal;
    }
    for (auto each = timers_.lower_bound({pid, ""});
         each != timers_.end() && each->first.first == pid;) {
      forget(each++);
    }
    all.push_back(std::move(expired));
  }
  return all;
}

}  // namespace ddprun::agent
