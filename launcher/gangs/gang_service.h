// SPDX-License-Identifier: Apache-2.0
// A ddprun that follows a gang as a service of systemd (docs/systemd.md): it has no event loop, so
// it gives its signs of life between calls, and bounds these. One thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/service_manager.h"

namespace ddprun::launcher {

class GangService {
 public:
  explicit GangService(ServiceManager manager);

  // So long a call may take, at most `most`: a sign of life comes before and after each.
  std::chrono::milliseconds bounded(std::chrono::milliseconds most) const;

  // A sign of life, where one is due; `status` is the line that `systemctl status` shows. The first
  // one says that all is in place.
  void goes_on(const std::string& status);
  // Likewise, with the status that was said last; nothing before it.
  void goes_on();
  void stopping();

 private:
  const ServiceManager manager_;
  const std::optional<std::chrono::microseconds> sign_period_;
  std::string status_;  // that was said last; empty: none yet
  Clock::time_point said_{};
};

}  // namespace ddprun::launcher
