// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>

namespace ddprun::store {

// Calls `some` from the io context until it returns false. Others have their turn in between.
void do_in_turns(const boost::asio::any_io_executor& io, std::function<bool()> some);

}  // namespace ddprun::store
