// SPDX-License-Identifier: Apache-2.0
#include "common/signal_echo.h"

#include "common/signal_names.h"
#include "common/text.h"

namespace ddprun {

bool SignalEcho::is_echo(int number, Clock::time_point now) {
  if (++num_signals_ == 1) {
    number_ = number;
    at_ = now;
    return false;
  }
  return num_signals_ == 2 && number == number_ && now < at_ + kTime;
}

std::string SignalEcho::text(int number, std::string_view how) {
  return concat("got ", signal_name(number), " again at once", how, ": it counts once");
}

}  // namespace ddprun
