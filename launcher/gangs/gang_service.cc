// SPDX-License-Identifier: Apache-2.0
#include "launcher/gangs/gang_service.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace ddprun::launcher {

using std::chrono::milliseconds;

namespace {

// A call takes a quarter of the manager's span at most, and the next sign is due after another one.
std::optional<std::chrono::microseconds> quarter_of(const ServiceManager& manager) {
  const auto limit = manager.watchdog_limit();
  return limit ? std::optional(*limit / 4) : std::nullopt;
}

}  // namespace

GangService::GangService(ServiceManager manager)
    : manager_(std::move(manager)), sign_period_(quarter_of(manager_)) {}

milliseconds GangService::bounded(milliseconds most) const {
  if (!sign_period_) return most;
  return std::clamp(std::chrono::duration_cast<milliseconds>(*sign_period_), milliseconds(1), most);
}

void GangService::goes_on(const std::string& status) {
  if (status == status_) return goes_on();
  const bool is_first = std::exchange(status_, status).empty();
  said_ = Clock::now();
  manager_.tell(concat(is_first ? "READY=1\n" : "", sign_period_ ? "WATCHDOG=1\n" : "",
                       "STATUS=", one_line(status)));
}

void GangService::goes_on() {
  const auto now = Clock::now();
  if (status_.empty() || !sign_period_ || now - said_ < *sign_period_) return;
  said_ = now;
  manager_.tell("WATCHDOG=1");
}

void GangService::stopping() { manager_.tell("STOPPING=1\nSTATUS=stopping"); }

}  // namespace ddprun::launcher
