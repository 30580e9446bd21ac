// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>

namespace ddprun::store {

// Calls `some` from the I/O context until it returns false. Other handlers run between the calls.
void do_in_turns(const boost::asio::any_io_executor& io, std::function<bool()> some);

}  // namespace ddprun::store
