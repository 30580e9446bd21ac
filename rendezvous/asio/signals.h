// SPDX-License-Identifier: Apache-2.0
// Asio's wait for signals, again and again.
#pragma once

#include <boost/asio/signal_set.hpp>
#include <boost/system/error_code.hpp>
#include <utility>

namespace ddprun {

// Calls `then` with the number of each signal, until the set is cleared, cancelled or gone. `then`
// may do that.
template <typename Then>
void on_each_signal(boost::asio::signal_set& signals, Then then) {
  signals.async_wait([&signals, then = std::move(then)](const boost::system::error_code& error,
                                                        int number) mutable {
    if (error) return;
    on_each_signal(signals, then);
    then(number);
  });
}

}  // namespace ddprun
